"""What a data folder's checkpoints say of its logs: how far each was synced and compacted, and where it begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kohort.ids import TopicPartition
from kohort.log import checkpoints
from kohort.log.checkpoints import CLEANED, LOG_STARTS, RECOVERY_POINTS
from kohort.log.filesystem import SYSTEM, FileSystem, exists, read_file
from kohort.log.partition import PartitionLog
from kohort.log.recovery import OpenOptions


@dataclass(frozen=True, slots=True)
class Points:
    """The three files; None for one that can't be read."""

    synced: Mapping[TopicPartition, int] | None
    starts: Mapping[TopicPartition, int] | None
    cleaned: Mapping[TopicPartition, int] | None

    @classmethod
    def read(cls, folder: Path, fs: FileSystem = SYSTEM) -> Points:
        """Read them. Raises OSError: for want of something that another attempt may have."""
        synced = checkpoints.readable_offsets(folder / RECOVERY_POINTS, fs=fs)
        starts = checkpoints.readable_offsets(folder / LOG_STARTS, fs=fs)
        return cls(synced, starts, checkpoints.readable_offsets(folder / CLEANED, fs=fs))

    def topics(self) -> set[str]:
        """The topics that they name."""
        return {tp.topic for file in (self.synced, self.starts, self.cleaned) for tp in file or ()}

    def of(self, tp: TopicPartition, *, same_boot: bool) -> OpenOptions:
        """How to open one log; `same_boot`: the machine has been running since it was written."""
        synced = (self.synced or {}).get(tp, 0)
        return OpenOptions(
            verified_offset=None if same_boot else synced,
            known_end=synced,
            synced_unknown=self.synced is None,
            log_start_offset=(self.starts or {}).get(tp),
            cleaned_offset=(self.cleaned or {}).get(tp, 0),
            cleaned_unknown=self.cleaned is None,
        )


def write_points(folder: Path, logs: Iterable[tuple[TopicPartition, PartitionLog]], fs: FileSystem = SYSTEM) -> None:
    """Note how far the logs were synced and compacted, so that a power loss leaves that or what was noted before.

    Only what has changed is written. Raises OSError.
    """
    listed = list(logs)
    synced = {tp: log.flushed_offset for tp, log in listed if log.flushed_offset}
    cleaned = {tp: log.cleaned_offset for tp, log in listed if log.cleaned_offset}
    for name, offsets in ((RECOVERY_POINTS, synced), (CLEANED, cleaned)):
        path, data = folder / name, checkpoints.offsets_file(offsets)
        if not exists(path, fs) or read_file(path, fs) != data:
            checkpoints.replace_file(path, data, fs=fs)
