"""One partition's log: a list of segments, the producers' sequences, the transactions."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from kohort.log.config import LogConfig
from kohort.log.results import AppendResult, Isolation, ReadResult, RecoveryReport, TimestampOffset

EARLIEST = -2
LATEST = -1
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4


class PartitionLog:
    """Appends and reads whole record batches (v2), which stay opaque.

    Refusals are raised as `KafkaError` with Kafka's code; `OSError` means that the disk failed, nothing of that
    append remains, and the partition still serves.
    """

    log_start_offset: int
    end_offset: int
    leader_epoch: int
    recovery: RecoveryReport

    @classmethod
    def open(cls, path: Path, config: LogConfig) -> Self:
        """Open or create the folder `<topic>-<partition>`, recovering after an unclean end."""
        raise NotImplementedError

    @property
    def last_stable_offset(self) -> int:
        """First offset of the earliest open transaction, or `end_offset`."""
        raise NotImplementedError

    def append(self, batches: bytearray | memoryview | bytes, now_ms: int, *, from_client: bool = True) -> AppendResult:
        """Append one or more batches with one write; offsets and leader epoch are patched in place if writable.

        Args:
            batches: whole v2 batches, back to back.
            now_ms: wall clock.
            from_client: refuse what a producer must not send (control batches) and check its sequences.

        Raises:
            CorruptDataError: CORRUPT_MESSAGE: bad length or CRC.
            InvalidInputError: MESSAGE_TOO_LARGE, INVALID_RECORD, INVALID_TIMESTAMP, UNSUPPORTED_FOR_MESSAGE_FORMAT.
            KafkaError: OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE.
            OSError: the write failed; it was cut off again.
        """
        raise NotImplementedError

    def append_marker(
        self, producer_id: int, producer_epoch: int, commit: bool, coordinator_epoch: int, now_ms: int
    ) -> AppendResult:
        """Append the control batch that ends a producer's transaction here."""
        raise NotImplementedError

    def read(
        self, offset: int, max_bytes: int, isolation: Isolation = Isolation.READ_UNCOMMITTED, *, min_one: bool = True
    ) -> ReadResult:
        """Whole batches from `offset`, at most `max_bytes`, from one segment.

        Args:
            min_one: return the first batch even if it is larger than `max_bytes`.

        Raises:
            OffsetError: OFFSET_OUT_OF_RANGE: below `log_start_offset` or above `end_offset`.
        """
        raise NotImplementedError

    def offset_for_timestamp(
        self, timestamp: int, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> TimestampOffset:
        """First record at or after `timestamp` (ms), or for -1 the end, -2 and -4 the start, -3 the latest timestamp."""
        raise NotImplementedError

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """`(epoch, end_offset)` of the largest epoch not above the one asked for; (-1, -1) if unknown."""
        raise NotImplementedError

    def advance_leader_epoch(self, epoch: int) -> None:
        """Begin a leader epoch; later appends carry it. Raises FencedError for one below the current."""
        raise NotImplementedError

    def delete_records(self, before_offset: int) -> int:
        """Move the log start to `before_offset` (-1: the end), persist it, and return it.

        Raises:
            OffsetError: OFFSET_OUT_OF_RANGE: above the end.
        """
        raise NotImplementedError

    def truncate_to(self, offset: int) -> None:
        """Throw away `offset` and everything after it (to the batch that holds it)."""
        raise NotImplementedError

    def enforce_retention(self, now_ms: int) -> int:
        """Delete whole old segments by age, size and log start; returns how many."""
        raise NotImplementedError

    def compact(self, now_ms: int) -> int:
        """Keep the last record of each key in closed segments; returns bytes saved."""
        raise NotImplementedError

    def size_bytes(self) -> int:
        """Bytes of all log files."""
        raise NotImplementedError

    def flush(self) -> None:
        """Make everything appended survive a power loss (fsync)."""
        raise NotImplementedError

    def close(self) -> None:
        """Flush, and write what makes the next open quick."""
        raise NotImplementedError
