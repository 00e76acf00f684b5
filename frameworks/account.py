"""The account of a run: which numbered records were lost, repeated or out of order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple


class Numbered(NamedTuple):
    """A record that came out of a framework.

    Attributes:
        key: the key under which the record was produced.
        number: its position among the records of this key, from 0.
        total: how many records of this key the framework's state had counted, this one included; None without state.
    """

    key: str
    number: int
    total: int | None = None

    @classmethod
    def parse(cls, key: str, value: str) -> Numbered:
        """Parse `NUMBER` or `NUMBER:COUNT`.

        Raises:
            ValueError: the value has another form.
        """
        number, _, total = value.partition(":")
        return cls(key, int(number), int(total) if total else None)


@dataclass(frozen=True, slots=True)
class Account:
    """The number of records of each kind.

    Attributes:
        produced: records that were given to the framework.
        lost: records that never came out.
        repeated: records that came out again after their first time.
        out_of_order: records that came out for the first time after a later record of their key.
        miscounted: records whose count, when they first came out, was not their position.
        unknown: records that nobody had produced.
    """

    produced: int
    lost: int
    repeated: int
    out_of_order: int
    miscounted: int
    unknown: int

    def faults(self, *, exactly_once: bool) -> list[str]:
        """Return what breaks the promise, one text for each kind; a repetition only breaks exactly-once."""
        tolerated = {"produced"} if exactly_once else {"produced", "repeated"}
        kinds = {name: number for name, number in asdict(self).items() if name not in tolerated}
        return [f"{number} {name.replace('_', ' ')}" for name, number in kinds.items() if number]


def account_of(produced: Mapping[str, int], records: Iterable[Numbered]) -> Account:
    """Compare what came out with what was produced.

    Args:
        produced: how many records each key had; they are numbered from 0.
        records: what came out. Records of one key stand in their order.
    """
    seen: dict[str, set[int]] = defaultdict(set)
    latest: dict[str, int] = defaultdict(lambda: -1)
    repeated = out_of_order = miscounted = unknown = 0
    for record in records:
        if not 0 <= record.number < produced.get(record.key, 0):
            unknown += 1
        elif record.number in seen[record.key]:
            repeated += 1
        else:
            seen[record.key].add(record.number)
            out_of_order += record.number < latest[record.key]
            miscounted += record.total is not None and record.total != record.number + 1
            latest[record.key] = max(latest[record.key], record.number)
    expected = sum(produced.values())
    lost = expected - sum(len(numbers) for numbers in seen.values())
    return Account(expected, lost, repeated, out_of_order, miscounted, unknown)
