"""How fast a shard loads: its journal in a topic of Kafka, beside the same records in the log of a broker of ours."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.journals import NOW, Cluster, Holder

from bench.cluster.site import Site
from bench.harness import Contender, Sample
from kohort.cluster.journal.journal_partition import JournalSettings
from kohort.groups.config import GroupConfig
from kohort.groups.machine import GroupMachine
from kohort.groups.records import OffsetCommitted, Record
from kohort.journal.local import LogJournal
from kohort.log import LogConfig, PartitionLog

EACH = 1_000
"""The number of records of one append, and of partitions of each group."""


def appends(count: int) -> Iterator[list[Record]]:
    """Yield offsets in groups of `EACH` partitions each."""
    for start in range(0, count, EACH):
        yield [OffsetCommitted(f"group-{start}", "topic", n, n, -1, "", NOW) for n in range(EACH)]


class _Loading(Holder):
    """An owner that puts what it reads into a machine."""

    async def into_machine(self) -> None:
        """Returns when all is there."""
        self.term += 1
        machine = GroupMachine(GroupConfig())
        for records in self.journal.begin_term(self.term, self):
            if records is None:
                await self.reported()
            else:
                _apply(machine, records)


def _timed(name: str, load: Callable[[], None], count: int) -> Contender:
    def run() -> Sample:
        used, began = time.process_time(), time.perf_counter()
        load()
        seconds = time.perf_counter() - began
        return Sample(count, seconds, {"s": round(seconds, 3), "CPU s": round(time.process_time() - used, 3)})

    return Contender(name, run)


def _apply(machine: GroupMachine, records: Sequence[Record]) -> None:
    for record in records:
        machine.apply(record)


@contextmanager
def contenders(site: Site, count: int) -> Iterator[list[Contender]]:
    """Both journals, with so many offsets each.

    The one on Kafka fences in each load, as every load must.
    """
    name = site.settings()[-1].removeprefix("placement.group=__coordinators-")
    settings = JournalSettings(topic=f"__groups-{name}", partitions=1, coordinator=101)
    with asyncio.Runner() as runner, tempfile.TemporaryDirectory(prefix="kohort-bench-") as folder:
        opened = Cluster(site.kafka.bootstrap_servers, settings)
        loading = runner.run(_filled(opened, count))
        log = PartitionLog.open(Path(folder) / "__consumer_offsets-0", LogConfig(cleanup_policy=("compact",)))
        local = LogJournal(log)
        list(local.begin_term(1))
        for records in appends(count):
            local.append(1, records, NOW)

        def here() -> None:
            machine = GroupMachine(GroupConfig())
            for records in local.begin_term(1):
                _apply(machine, records)

        def there() -> None:
            runner.run(loading.into_machine())

        try:
            yield [_timed("the local journal", here, count), _timed("in a topic of Kafka", there, count)]
        finally:
            runner.run(opened.close())
            log.close()


async def _filled(opened: Cluster, count: int) -> _Loading:
    first = await opened.holder()
    await first.load()
    for records in appends(count):
        await first.append(*records)
    first.journal.end_term()
    return _Loading((await opened.holder()).journal)
