"""A partition whose files can't be opened at all: it refuses everything, so that the others can be served."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from kohort.errors import ErrorCode, RetriableError
from kohort.log.config import LogConfig
from kohort.log.damage import Damage, DamagedError
from kohort.log.filesystem import ReadBuffer
from kohort.log.markers import Marker
from kohort.log.partition import PartitionLog
from kohort.log.recovery import OpenOptions
from kohort.log.results import AppendResult, Isolation, ReadResult, TimestampOffset

_FAR = 2**63 - 1


class UnreadableLog(PartitionLog):
    """What stands for a log that could not be opened. Nothing of it is written.

    Attributes:
        damage: why.
    """

    __slots__ = ("damage",)
    readable = False

    def __init__(self, path: Path, config: LogConfig, options: OpenOptions, error: Exception) -> None:
        super().__init__(path, config, options)
        self.missing = False
        self.log_start_offset = options.log_start_offset or 0
        self.end_offset = self.flushed_offset = max(options.known_end, self.log_start_offset)
        self.cleaned_offset = options.cleaned_offset
        reason = f"the log can't be opened ({error})"
        self.damage = Damage(path, 0, None, self.log_start_offset, None, reason)

    def check_readable(self) -> None:
        """Raises DamagedError."""
        self._refuse_read()

    def _refuse_read(self) -> NoReturn:
        raise DamagedError(self.damage)

    def _refuse_write(self) -> NoReturn:
        raise RetriableError(f"nothing can be written: {self.damage.sentence()}", ErrorCode.KAFKA_STORAGE_ERROR)

    def append(self, batches: ReadBuffer, now_ms: int, *, from_client: bool = True) -> AppendResult:
        """Raises RetriableError (KAFKA_STORAGE_ERROR)."""
        self._refuse_write()

    def append_marker(self, marker: Marker, now_ms: int) -> AppendResult:
        """Raises RetriableError (KAFKA_STORAGE_ERROR)."""
        self._refuse_write()

    def advance_leader_epoch(self, epoch: int) -> None:
        """Raises RetriableError (KAFKA_STORAGE_ERROR)."""
        self._refuse_write()

    def delete_records(self, before_offset: int) -> int:
        """Raises RetriableError (KAFKA_STORAGE_ERROR)."""
        self._refuse_write()

    def read(
        self, offset: int, max_bytes: int, isolation: Isolation = Isolation.READ_UNCOMMITTED, *, min_one: bool = True
    ) -> ReadResult:
        """Raises DamagedError."""
        self._refuse_read()

    def batches(self, offset: int, max_bytes: int = 1 << 20) -> Iterator[memoryview]:
        """Raises DamagedError."""
        self._refuse_read()

    def offset_for_timestamp(
        self, timestamp: int, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> TimestampOffset:
        """Raises DamagedError."""
        self._refuse_read()

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Nothing tells a reader that its history is gone: it may come back."""
        return leader_epoch, _FAR

    def truncate_to(self, offset: int) -> None:
        """Raises RetriableError (KAFKA_STORAGE_ERROR)."""
        self._refuse_write()

    def flush(self, upto: int | None = None) -> None:
        """There is nothing to flush."""

    def close(self) -> None:
        """There is nothing to close."""
