"""Coordinators with a fault that somebody planted: `python -m tests.cluster.chaos.mutants NAME coordinator …`."""

from __future__ import annotations

import sys

from kohort.cli import main
from kohort.cluster.journal.reading import JournalDecoding
from kohort.groups.records import OffsetCommitted, Record
from kohort.wire.batch import BatchHeader
from tests.cluster.running import CoordinatorProcess

ONE_OF = 3


def loads_a_part() -> None:
    """The offsets in each third batch of the journal are passed over when it is read."""
    read = JournalDecoding._read_records

    def some(self: JournalDecoding, header: BatchHeader, batch: memoryview, found: list[Record]) -> None:
        known = len(found)
        read(self, header, batch, found)
        if header.base_offset % ONE_OF == 0:
            found[known:] = [record for record in found[known:] if not isinstance(record, OffsetCommitted)]

    JournalDecoding._read_records = some  # type: ignore[method-assign]


MUTANTS = {mutant.__name__: mutant for mutant in (loads_a_part,)}


def process(name: str) -> type[CoordinatorProcess]:
    """Coordinators that have the fault."""
    program = (sys.executable, "-m", __name__, name)
    return type("Mutant", (CoordinatorProcess,), {"program": program})


if __name__ == "__main__":
    MUTANTS[sys.argv.pop(1)]()
    main()
