"""Logs and journals with one known fault each, to show that the checker named beside it detects the fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import ModuleType
from typing import Any

from kohort.groups.records import Record
from kohort.journal.local import LogJournal
from kohort.log import opening, recovery
from kohort.log.compaction import Compaction
from kohort.log.filesystem import FileSystem
from kohort.log.index import OffsetIndex
from kohort.log.partition import PartitionLog
from kohort.log.results import RecoveryReport
from kohort.log.segment import Segment
from simulation.checkers.group_checkers import ReplayChecker
from simulation.checkers.offset_checkers import DurabilityChecker
from simulation.checkers.property import Checker
from simulation.checkers.refusal_checkers import JournalChecker
from simulation.mutants.swapped import swapped


class DiskMutant:
    """The real log and journal with one function replaced by `swap(real)` while a run lasts."""

    where: ModuleType | type
    name: str

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return the replacement of the real function."""
        raise NotImplementedError

    @classmethod
    @contextmanager
    def planted(cls) -> Iterator[None]:
        """Install the fault within the context."""
        with swapped(cls.where, cls.name, cls.swap(getattr(cls.where, cls.name))):
            yield


def planted(mutant: type[DiskMutant] | None) -> Any:
    """Install a mutant's fault within the context, if there is one."""
    return nullcontext() if mutant is None else mutant.planted()


class KeepsTornTail(DiskMutant):
    """Recovery keeps a torn write at the end as part of the log."""

    where, name = opening, "truncate_torn_end"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that records the file's size where the real one truncates the file."""

        def cut(segment: Segment, report: RecoveryReport) -> None:
            del report
            segment.size = segment.file_size()
            segment.unverified = None

        return cut


class CompactsNewestAway(DiskMutant):
    """Compaction drops the newest record of a key."""

    where, name = Compaction, "_collect_keys"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that sees a record behind the last record of each key."""

        def collect(run: Compaction) -> Iterator[None]:
            yield from real(run)
            run._last = {key: offset + 1 for key, offset in run._last.items()}

        return collect


class UnsyncedFiles:
    """Files that are never synced."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fs, name)

    def fsync(self, fd: int) -> None:
        """Do nothing."""


class ReplacesUnsynced(DiskMutant):
    """Compaction replaces the old files by its new file without syncing it."""

    where, name = Compaction, "__init__"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does not sync its own files."""

        def init(run: Compaction, *args: Any) -> None:
            real(run, *args)
            run._fs = UnsyncedFiles(run._fs)

        return init


class SaysDurableFirst(DiskMutant):
    """The journal acknowledges each append as durable, and writes it with the next one."""

    where, name = LogJournal, "append"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that writes the previous append."""
        held: dict[LogJournal, tuple[int, Sequence[Record], int]] = {}

        def append(journal: LogJournal, term: int, records: Sequence[Record], now_ms: int) -> None:
            before = held.pop(journal, None)
            held[journal] = term, records, now_ms
            if before is not None and before[0] == term:
                real(journal, *before)

        return append


class SyncsNoNames(DiskMutant):
    """A flush syncs files but not their names."""

    where, name = PartitionLog, "sync_folder_names"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does nothing."""
        return lambda _log: None


class SyncsNoIndexes(DiskMutant):
    """The index of a compacted file, which alone proves that its gaps are intended, is not synced."""

    where, name = OffsetIndex, "sync_file"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does nothing."""
        return lambda _index: None


class ServesUnflushed(DiskMutant):
    """Records that an earlier process left unflushed in the journal are served without a flush."""

    where, name = PartitionLog, "flush_if_due"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does nothing."""
        return lambda _log: None


class KeepsHoles(DiskMutant):
    """Recovery treats a gap after the last fsync as damage."""

    where, name = recovery, "truncate_at_hole"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does nothing."""
        return lambda *_: None


class ForgetsEnds(DiskMutant):
    """Compaction drops an old end of a transaction whose records stay."""

    where, name = Compaction, "_keep"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does not remember whose records stayed."""

        def kept(run: Compaction, *args: Any) -> Any:
            run._unended.clear()
            return real(run, *args)

        return kept


DISK_MUTANTS: dict[type[DiskMutant], type[Checker]] = {
    KeepsTornTail: JournalChecker,
    CompactsNewestAway: ReplayChecker,
    ReplacesUnsynced: DurabilityChecker,
    SaysDurableFirst: DurabilityChecker,
    SyncsNoNames: DurabilityChecker,
    ForgetsEnds: ReplayChecker,
}
"""`SyncsNoIndexes`, `KeepsHoles` and `ServesUnflushed` show too rarely in a run: tests of their own detect them."""
