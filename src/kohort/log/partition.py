"""The log of one partition: its segments, producers and transactions."""

from __future__ import annotations

import contextlib
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Self

from kohort.errors import ErrorCode, FencedError, error_for
from kohort.log import checkpoints, recovery
from kohort.log.config import LogConfig
from kohort.log.cooperative import LoopBudget, Search, run_search
from kohort.log.files import FileCache
from kohort.log.filesystem import ReadBuffer, file_exists, folder_mode, remove_if_exists, sync_folder
from kohort.log.index import AbortedRange
from kohort.log.markers import Marker, build_marker, record_appended_batches
from kohort.log.producers import Producers
from kohort.log.recovery import OpenOptions
from kohort.log.results import (
    AbortedTxn,
    AppendResult,
    Isolation,
    ReadResult,
    RecoveryReport,
    TimestampOffset,
)
from kohort.log.segment import Segment
from kohort.log.strays import clear_partition_folder
from kohort.log.validator import BatchValidator, CheckedBatches, assign_offsets, with_append_time
from kohort.wire.batch import BatchHeader, parse_header

# -- Leader epochs of a partition with their first offsets, ascending


def end_of_epoch(epochs: Sequence[tuple[int, int]], epoch: int, end_offset: int) -> tuple[int, int]:
    """Return `(epoch, end offset)` of the largest leader epoch up to the requested one.

    `end_offset` is the log's end. An epoch before the first known one ended where that began.
    """
    number = bisect_right(epochs, (epoch, end_offset)) - 1
    if number < 0:
        return epoch, epochs[0][1]
    return epochs[number][0], epochs[number + 1][1] if number + 1 < len(epochs) else end_offset


def epoch_at(epochs: Sequence[tuple[int, int]], offset: int) -> int:
    """Return the epoch of a record at `offset`, -1 if unknown."""
    number = bisect_right(epochs, offset, key=lambda entry: entry[1]) - 1
    return epochs[number][0] if number >= 0 else -1


def with_new_epoch(epochs: Sequence[tuple[int, int]], epoch: int, start: int, end: int) -> list[tuple[int, int]]:
    """Return the (epoch, first offset) pairs of a log with records from `start` to `end`, plus a new epoch at `end`.

    Epochs without remaining records are left out.
    """
    kept = [entry for entry in epochs if entry[1] < end]
    while len(kept) > 1 and kept[1][1] <= start:
        del kept[0]
    return [*kept, (epoch, end)]


def _marker_offset(entry: AbortedRange) -> int:
    return entry.last_offset


LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4

_log = logging.getLogger("kohort.log")

_SNAPSHOT_EVERY_BYTES = 16 << 20
_CLEANINGS_KEPT = 64
"""Into how many parts `delete.retention.ms` is divided, to remember one compaction of each."""
_INT_MAX = 2**31 - 1


class PartitionLog:
    """The log of one partition, which appends and reads complete record batches (v2) without decoding their records.

    A rejected request raises a `KafkaError`. An `OSError` means that the disk failed; the partition still serves.

    Attributes:
        path: the folder `<topic>-<partition>`, created with the first write.
        missing: whether the folder does not exist yet.
        log_start_offset: the first offset that readers may request.
        end_offset: the offset of the next record.
        leader_epoch: the leader epoch of appended batches.
        flushed_offset: everything before it was fsynced.
        cuts: increases when segments are deleted or the log is truncated.
        recovery: the report of recovery.
        readable: whether the files could be opened.
        unfinished: completes a compaction or truncation that the disk interrupted; None: there is none.
    """

    readable: ClassVar[bool] = True

    __slots__ = (
        "_bases", "_cleanings", "_config", "_decompressed_ratio", "_epochs", "_index_checksums", "_names_new",
        "_persist", "_since_snapshot", "_snapshot_offset", "_topic_id", "_validator", "active", "cleaned_offset",
        "cuts", "end_offset", "files", "flushed_offset", "leader_epoch", "log_start_offset", "missing", "path",
        "producers", "recovery", "segments", "unfinished",
    )  # fmt: skip

    def __init__(self, path: Path, config: LogConfig, options: OpenOptions) -> None:
        """Create an object without files; callers use `open`."""
        self.path = path
        limits = options.limits
        self._decompressed_ratio = limits.decompressed_ratio
        self.reconfigure(config)
        self.files = FileCache(limits.open_files, limits.lent_files) if options.files is None else options.files
        self._persist, self._topic_id = options.persist or (lambda: None), options.topic_id
        self.missing = self._names_new = True
        self._since_snapshot, self._snapshot_offset = 0, -1
        self.producers = Producers(path.name, options.limits.producers)
        self.recovery = RecoveryReport()
        self.unfinished: Callable[[], None] | None = None
        self.segments: list[Segment] = []
        self._bases: list[int] = []
        self._index_checksums: dict[int, checkpoints.IndexChecksum] = {}
        self._cleanings: list[tuple[int, int]] = []
        self._epochs: list[tuple[int, int]] = []
        self.leader_epoch = self.cuts = 0
        self.log_start_offset = self.end_offset = self.flushed_offset = self.cleaned_offset = 0

    @classmethod
    def open(cls, path: Path, config: LogConfig, options: OpenOptions | None = None, *, now_ms: int = 0) -> Self:
        """Open the folder `<topic>-<partition>`, with recovery after an unclean shutdown; no folder: an empty log."""
        options = options or OpenOptions()
        log = cls(path, config, options)
        fs = log.files.fs
        names: list[str] = []
        if not options.fresh:
            with contextlib.suppress(FileNotFoundError):
                names = fs.listdir(path)
                log.missing = False
        elif file_exists(path, fs) and checkpoints.read_partition_metadata(path, fs) is None:
            clear_partition_folder(
                path, options.topic_id, fs
            )  # a restart before the first write would take it for this one's
        if log.missing and options.known_end > (options.log_start_offset or 0):
            fs.mkdir(path, folder_mode(path))  # it was there: what is lost with it is refused where it is read
            log.missing = False
        if log.missing:
            log.replace_segments([Segment(path, options.log_start_offset or 0, log.files, config.index_interval_bytes)])
        else:
            if options.topic_id is not None and options.topic_id != checkpoints.read_partition_metadata(path, fs):
                checkpoints.write_partition_metadata(path, options.topic_id, fs)
            log.replace_segments(recovery.open_segments(path, names, log.files, config, options, log.recovery))
            log._forget_ended_aborts(options.cleaned_offset)
        log.log_start_offset = max(log.segments[0].base_offset, options.log_start_offset or 0)
        if log.log_start_offset > log.end_offset:
            log._restart_at(log.log_start_offset)
        if not log.missing and (log.end_offset or recovery.producer_snapshot_offsets(names)):
            log._snapshot_offset = recovery.load_producers(path, log.segments, log.producers, now_ms, fs)
        for damage in log.recovery.damages:
            _log.error("damaged records, reads of them fail: %s", damage.describe())
        if checkpoints.LEADER_EPOCHS in names or (
            log.active.epochs.known is None and log.end_offset and not log.missing
        ):
            log._epochs = recovery.load_or_rebuild_epochs(path, log.segments, fs)
        log.leader_epoch = log._epochs[-1][0] if log._epochs else 0
        log._begin_epoch(options)
        log.cleaned_offset = options.cleaned_offset
        log._cleanings = [(0, options.cleaned_offset)]  # when an earlier process cleaned is not known: long ago
        flushed = options.clean or log.missing
        log.flushed_offset = log.end_offset if flushed else min(options.verified_offset or 0, log.end_offset)
        log.active.synced_size = log.active.size if flushed else 0
        return log

    def _forget_ended_aborts(self, cleaned_offset: int) -> None:
        """Clear the transaction indexes of compacted segments whose abort markers compaction has removed.

        An earlier version of kohort kept such indexes.
        """
        cleaned = [s for s in self.segments[:-1] if s.end_offset <= cleaned_offset and s.transactions.entries]
        outlived = [segment for segment in cleaned if segment.readable and segment.has_lost_marker()]
        if outlived:
            self.forget_index_checksums(outlived)
            for segment in outlived:
                segment.transactions.reset()

    def _begin_epoch(self, options: OpenOptions) -> None:
        """Begin a leader epoch, so that readers detect records that a power loss took, even if all were lost."""
        known = not self.missing and (self._epochs or self.end_offset)
        lowest = 0 if known else options.epoch_without_folder
        if self.missing:  # in memory until something is written: there may be thousands of these
            self.leader_epoch, self._epochs = lowest, [(lowest, self.end_offset)] if lowest else []
            return
        may_lack = not options.clean and options.verified_offset is not None
        epoch = max(self.leader_epoch + may_lack, lowest)
        if epoch > self.leader_epoch:
            self.advance_leader_epoch(epoch)

    def _make_folder(self) -> None:
        """Create the folder before the first write.

        Most partitions are never written to, and a folder takes longer than everything else.
        """
        fs = self.files.fs
        try:
            fs.mkdir(self.path, folder_mode(self.path))
        except FileExistsError:
            clear_partition_folder(self.path, self._topic_id, fs)
        if self._topic_id is not None:
            checkpoints.write_partition_metadata(self.path, self._topic_id, fs)
        if self._epochs:
            checkpoints.write_leader_epochs(self.path, self._epochs, fs)
        self.active.create_file()
        self.missing = False

    def check_readable(self) -> None:
        """Check that the log's files can be used.

        Raises:
            DamagedError: the log is not `readable`.
            OSError: a compaction or truncation can't be completed.
        """
        self.finish_interrupted_change()

    def finish_interrupted_change(self) -> None:
        """Complete an interrupted compaction or truncation.

        Raises:
            OSError: the disk still prevents it.
        """
        if self.unfinished is not None:
            self.unfinished()

    def replace_segments(self, segments: list[Segment]) -> None:
        """Replace the list of segments; the last one is appended to."""
        self.segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self.active = segments[-1]
        self.end_offset = self.active.end_offset
        self._index_checksums = {}

    @property
    def config(self) -> LogConfig:
        return self._config

    def reconfigure(self, config: LogConfig) -> None:
        """Apply changed topic settings."""
        self._config = config
        self._validator = BatchValidator(self.path.name, config, self._decompressed_ratio)

    @property
    def validator(self) -> BatchValidator:
        """The validator of produced batches, which any thread may use."""
        return self._validator

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the earliest open transaction, or `end_offset`; never before `log_start_offset`.

        Otherwise a reader of committed records, whose position was deleted, would be sent back to a deleted offset.
        """
        first = self.producers.first_open_offset()
        return self.end_offset if first is None else max(first, self.log_start_offset)

    # -- appending

    def append(
        self,
        batches: ReadBuffer,
        now_ms: int,
        *,
        from_client: bool = True,
        budget: LoopBudget | None = None,
        from_zero: bool = False,
    ) -> AppendResult:
        """Append batches with one write. Offsets and leader epoch are set in place if the buffer is writable.

        Args:
            batches: complete v2 batches, back to back.
            now_ms: wall-clock time.
            from_client: whether to reject what a producer must not send (control batches, records that can't be read),
                and check its sequences.
            budget: what may be decompressed on the event loop; None: everything.
            from_zero: whether a producer without a batch here must begin with sequence 0.

        Raises:
            CorruptDataError: CORRUPT_MESSAGE: bad length or CRC.
            InvalidInputError: MESSAGE_TOO_LARGE, INVALID_RECORD, INVALID_TIMESTAMP, UNSUPPORTED_FOR_MESSAGE_FORMAT,
                UNSUPPORTED_COMPRESSION_TYPE.
            TooMuchForLoopError: the budget does not cover the batches; nothing was appended.
            KafkaError: OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE.
            OSError: the write failed and was truncated; or the flush failed, and the batches are written but not
                acknowledged.
        """
        if from_client:
            return self.append_validated(self._validator.validate(batches, now_ms, budget), now_ms, from_zero=from_zero)
        return self.append_validated((batches, self._validator.split_headers(batches)), now_ms, sequences=False)

    def append_validated(
        self, checked: CheckedBatches, now_ms: int, *, sequences: bool = True, from_zero: bool = False
    ) -> AppendResult:
        """Append batches that the partition's `validator` accepted.

        Args:
            checked: the batches.
            now_ms: wall-clock time.
            sequences: whether to check the sequences of their producer.
            from_zero: whether a producer without a batch here must begin with sequence 0.

        Raises:
            KafkaError, OSError: as `append`.
        """
        batches, headers = checked
        produced = headers[0].producer_id >= 0 or len(headers) > 1
        if produced:
            repeated = self.producers.check_batches(headers, sequences=sequences, from_zero=from_zero)
            if repeated is not None:
                self.flush_if_due()  # the first append may have failed to flush, or its process died before
                first, last = repeated.base_offset, repeated.last_offset
                stamped_ms = repeated.timestamp if self._config.uses_log_append_time else -1
                return AppendResult(first, last, stamped_ms, self.log_start_offset, duplicate=True)
        config, stamped_ms = self._config, -1
        if config.message_timestamp_type == "LogAppendTime":
            stamped_ms = now_ms
            batches = with_append_time(batches, now_ms)
            headers = self._validator.split_headers(batches)
        base = self.end_offset
        end, parts = assign_offsets(batches, headers, base, self.leader_epoch)
        size = len(batches)
        active = self.active
        if (
            active.size + size > config.segment_bytes
            or end - active.base_offset > _INT_MAX
            or headers[-1].max_timestamp - active.first_timestamp > config.segment_ms
            or len(active.index.offsets) * 8 >= config.segment_index_bytes
        ):
            active = self._roll_if_old(end, size, headers)
        if self.missing:
            self._make_folder()
        active.append(parts, size, headers, end)
        self.end_offset = end
        if produced:
            record_appended_batches(self.producers, self.active, (batches, headers), base, now_ms)
        self._since_snapshot += size
        if self._since_snapshot >= _SNAPSHOT_EVERY_BYTES:
            with contextlib.suppress(OSError):  # the records are in the log already: recovery only reads more
                self.write_producer_snapshot()
        if end - self.flushed_offset >= config.flush_messages:
            self.flush()
        return AppendResult(base, end - 1, stamped_ms, self.log_start_offset)

    def _roll_if_old(self, end: int, size: int, headers: Sequence[BatchHeader]) -> Segment:
        """Roll the segment when it is full or old. Age alone counts only if its first batch had a timestamp."""
        active, config = self.active, self._config
        full = (
            active.size + size > config.segment_bytes
            or end - active.base_offset > _INT_MAX
            or len(active.index.offsets) * 8 >= config.segment_index_bytes
        )
        return self.roll() if full or active.first_timestamp >= 0 else active

    def _refuse_append(self, code: ErrorCode, text: str) -> Exception:
        return error_for(code, f"{self.path.name}: {text}")

    def append_marker(self, marker: Marker, now_ms: int) -> AppendResult:
        """Append the control batch that commits or aborts a producer's transaction.

        Raises:
            FencedError: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED.
        """
        self.producers.check_marker(marker.producer_id, marker.producer_epoch, marker.coordinator_epoch)
        return self.append(build_marker(marker, now_ms), now_ms, from_client=False)

    def roll(self) -> Segment:
        """Start a new segment at the end, unless the last one is empty."""
        active = self.active
        if active.size == 0:
            return active
        active.add_last_time_entry()
        if self.flushed_offset >= self.end_offset:
            active.sync_indexes()
        fresh = self._made(self.end_offset)
        self.segments.append(fresh)
        self._bases.append(fresh.base_offset)
        self.active = fresh
        self.write_producer_snapshot()
        self._write_index_checksums()
        return fresh

    def forget_index_checksums(self, segments: Sequence[Segment]) -> None:
        """Write the checksums without those of segments whose transaction indexes are about to be removed."""
        if any(segment.transactions.entries for segment in segments):
            self._write_index_checksums({segment.base_offset for segment in segments})

    def _write_index_checksums(self, without: Collection[int] = ()) -> None:
        """Write the checksums of the transaction indexes to their checkpoint, except for the segments in `without`.

        Kafka's format of these indexes has no checksum.
        """
        known = self._index_checksums
        found: dict[int, checkpoints.IndexChecksum] = {}
        for segment in self.segments:
            index = segment.transactions
            if index.entries and segment.base_offset not in without:
                before = known.get(segment.base_offset)
                count = len(index.entries)
                if before is None or before.entries != count:
                    before = checkpoints.IndexChecksum(count, index.checksum(count))
                found[segment.base_offset] = before
        if found != known or without:
            checkpoints.write_index_checksums(self.path, found, self.files.fs)
            self._index_checksums = found

    def write_producer_snapshot(self) -> None:
        """Write a snapshot of the producers at the end, and delete snapshots older than the last two."""
        self._since_snapshot = 0
        if self._snapshot_offset == self.end_offset:
            return
        fs = self.files.fs
        self.producers.write_producer_snapshot(recovery.producer_snapshot_path(self.path, self.end_offset), fs)
        self._snapshot_offset = self.end_offset
        for offset in recovery.producer_snapshot_offsets(fs.listdir(self.path))[:-2]:
            remove_if_exists(recovery.producer_snapshot_path(self.path, offset), fs)

    # -- reading

    def read(
        self, offset: int, max_bytes: int, isolation: Isolation = Isolation.READ_UNCOMMITTED, *, min_one: bool = True
    ) -> ReadResult:
        """Return complete batches from `offset`, at most `max_bytes`, from one segment.

        Args:
            min_one: whether to return the first batch even if it is larger than `max_bytes`.

        Raises:
            OffsetError: OFFSET_OUT_OF_RANGE: below `log_start_offset` or above `end_offset`.
        """
        end = high = self.end_offset
        stable = self.last_stable_offset
        if offset > end or offset < self.log_start_offset:
            text = f"offset {offset} is outside {self.log_start_offset} to {end}"
            raise self._refuse_append(ErrorCode.OFFSET_OUT_OF_RANGE, text)
        committed = isolation == Isolation.READ_COMMITTED
        if committed:
            end = stable
        result = ReadResult(offset, high, stable, self.log_start_offset)
        if offset < end:
            number = bisect_right(self._bases, offset) - 1
            while number < len(self.segments):
                found, result.next_offset = self.segments[number].read(offset, max_bytes, end, min_one)
                if found is not None:
                    result.ranges, result.size = (found,), found.length
                    break
                number += 1
                if number == len(self.segments) or self._bases[number] >= end or result.next_offset <= offset:
                    break
                offset = result.next_offset = self._bases[number]
        if committed:
            result.aborted = self._aborted(offset, result.next_offset)
        return result

    def _aborted(self, offset: int, end: int) -> list[AbortedTxn]:
        """Return the aborted transactions that a read_committed reader of `[offset, end)` must skip."""
        found = []
        for segment in self.segments[max(0, bisect_right(self._bases, offset) - 1) :]:
            entries = segment.transactions.entries
            for number in range(bisect_left(entries, offset, key=_marker_offset), len(entries)):
                entry = entries[number]
                if entry.first_offset < end:
                    found.append(AbortedTxn(entry.producer_id, entry.first_offset))
                if entry.last_stable_offset >= end:
                    return found
        return found

    def iterate_batches(self, offset: int, read_bytes: int = 1 << 20) -> Iterator[memoryview]:
        """Yield every complete batch from `offset` on, one by one, reading `read_bytes` at a time."""
        while offset < self.end_offset:
            result = self.read(offset, read_bytes)
            if not result.ranges:
                return
            view = memoryview(result.bytes())
            while view:
                size = parse_header(view, 0).size
                yield view[:size]
                view = view[size:]
            offset = result.next_offset

    def offset_for_timestamp(
        self, timestamp: int, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> TimestampOffset:
        """Return the first record at or after `timestamp` (ms).

        Special timestamps are -1 for the end, -2 and -4 for the start, and -3 for the latest timestamp.
        """
        return run_search(self.search_by_time(timestamp, isolation))

    def search_by_time(
        self, timestamp: int, isolation: Isolation, budget: LoopBudget | None = None
    ) -> Search[TimestampOffset]:
        """Search like `offset_for_timestamp`, and yield the work on large batches as jobs for another thread.

        Args:
            timestamp: as there.
            isolation: as there.
            budget: what may be decompressed on the event loop; None: everything.
        """
        end = self.last_stable_offset if isolation == Isolation.READ_COMMITTED else self.end_offset
        if timestamp == LATEST:
            return TimestampOffset(end, -1, self.leader_epoch)
        if timestamp in (EARLIEST, EARLIEST_LOCAL):
            epoch = epoch_at(self._epochs, self.log_start_offset)
            return TimestampOffset(self.log_start_offset, -1, epoch if epoch >= 0 else self.leader_epoch)
        if timestamp == MAX_TIMESTAMP:
            return (yield from self._search_latest(end, budget))
        for segment in self.segments:
            found = yield from segment.search_by_time(timestamp, self.log_start_offset, budget)
            if found is not None:
                return found if found.offset < end else TimestampOffset(-1, -1, -1)
        return TimestampOffset(-1, -1, -1)

    def _search_latest(self, end: int, budget: LoopBudget | None) -> Search[TimestampOffset]:
        """Search the first record with the largest timestamp, among those from the log start to before `end`."""
        start, latest = self.log_start_offset, TimestampOffset(-1, -1, -1)
        there = [s for s in self.segments if s.size and s.max_timestamp >= 0 and start < min(end, s.end_offset)]
        for segment in sorted(there, key=lambda s: (-s.max_timestamp, s.base_offset)):
            if segment.max_timestamp < latest.timestamp:
                break
            is_later = segment.max_timestamp == latest.timestamp and segment.base_offset > latest.offset
            if is_later or segment.base_offset >= end:
                continue
            found = yield from segment.search_largest_timestamp(start, end, budget)
            if found is not None and (-found.timestamp, found.offset) < (-latest.timestamp, latest.offset):
                latest = found
        return latest

    # -- leader epochs

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Return `(epoch, end_offset)` of the largest epoch up to the requested one; (-1, -1) for a future one."""
        if leader_epoch == self.leader_epoch:
            return leader_epoch, self.end_offset
        if leader_epoch > self.leader_epoch or not self._epochs:
            return -1, -1
        return end_of_epoch(self._epochs, leader_epoch, self.end_offset)

    def advance_leader_epoch(self, epoch: int) -> None:
        """Begin a leader epoch, which later batches get.

        Raises:
            FencedError: the epoch is below the current one.
        """
        if epoch < self.leader_epoch:
            text = f"{self.path.name}: leader epoch {epoch} is over, {self.leader_epoch} has begun"
            raise FencedError(text, ErrorCode.FENCED_LEADER_EPOCH)
        if epoch > self.leader_epoch or not self._epochs:
            known = with_new_epoch(self._epochs, epoch, self.log_start_offset, self.end_offset)
            if self.missing:
                self._make_folder()
            checkpoints.write_leader_epochs(self.path, known, self.files.fs)
            self._epochs = known
            self.leader_epoch = epoch

    # -- keeping it small

    def delete_records(self, before_offset: int) -> int:
        """Move the log start to `before_offset` (-1: the end), persist it, and return it.

        Raises:
            OffsetError: OFFSET_OUT_OF_RANGE: above the end.
            OSError: the log start could not be persisted, and is unchanged; or old segments could not be deleted.
        """
        if before_offset == -1:
            before_offset = self.end_offset
        if before_offset > self.end_offset or before_offset < 0:
            text = f"offset {before_offset} is outside {self.log_start_offset} to {self.end_offset}"
            raise self._refuse_append(ErrorCode.OFFSET_OUT_OF_RANGE, text)
        if before_offset > self.log_start_offset:
            self.finish_interrupted_change()
            known, self.log_start_offset = self.log_start_offset, before_offset
            try:
                self._persist()
            except OSError:
                self.log_start_offset = known
                raise
            self.delete_first_segments(bisect_right(self._bases, before_offset) - 1)
        return self.log_start_offset

    def record_compacted_offset(self, offset: int, now_ms: int) -> None:
        """Record that compaction has processed all records before this offset, and when."""
        self.cleaned_offset = max(self.cleaned_offset, offset)
        step = max(1, self._config.delete_retention_ms // _CLEANINGS_KEPT)
        if self._cleanings and self._cleanings[-1][0] // step == now_ms // step:
            self._cleanings.pop()
        self._cleanings.append((now_ms, self.cleaned_offset))

    def compacted_offset_at(self, ms: int) -> int:
        """Return up to which offset compaction had processed the log at this time; 0 if that is not known.

        A tombstone stays for `delete.retention.ms` after compaction removed the values before it, however old it is.
        A reader that had seen a value by then must also meet its tombstone. Source: KAFKA-4529.
        """
        known = self._cleanings
        while len(known) > 1 and known[1][0] <= ms:
            del known[0]
        return min(known[0][1], self.cleaned_offset) if known and known[0][0] <= ms else 0

    def truncate_to(self, offset: int) -> None:
        """Remove the batch with `offset` and all later ones.

        Raises:
            OSError: the disk failed. Some of these batches may be left, which another call removes. The log ends with
                the last batch that its file has.
        """
        if offset >= self.end_offset:
            return
        self.finish_interrupted_change()
        kept = max(1, bisect_right(self._bases, offset))
        found = self.segments[kept - 1].locate(offset)
        end = offset if found is None else found.header.base_offset
        self.flushed_offset, self.cleaned_offset = min(self.flushed_offset, end), min(self.cleaned_offset, end)
        self._cleanings = [(ms, min(before, end)) for ms, before in self._cleanings]
        self.cuts += 1
        self._persist()  # records that replace the removed ones are not on the disk
        try:
            for segment in reversed(self.segments[kept:]):
                segment.delete()
        finally:
            self.replace_segments([segment for segment in self.segments if segment.gone is None])
        active = self.active
        try:
            active.truncate_to(offset)
        except OSError:
            if found is not None and active.file_size() == found.position:  # an index failed, and the records are gone
                active.size, active.end_offset, self.end_offset = found.position, end, end
            raise
        self.end_offset = active.end_offset
        if self._epochs and self._epochs[-1][1] > self.end_offset:
            self._epochs = with_new_epoch(self._epochs, self.leader_epoch, self.log_start_offset, self.end_offset)
            self.unfinished = self._write_epochs
        self._snapshot_offset = recovery.load_producers(self.path, self.segments, self.producers, 0, self.files.fs)
        self.finish_interrupted_change()

    def _write_epochs(self) -> None:
        """Write the leader epochs before the log changes: after a power loss, earlier ones would contradict the log."""
        checkpoints.write_leader_epochs(self.path, self._epochs, self.files.fs, sync=True)
        self.unfinished = None

    def _restart_at(self, offset: int) -> None:
        """Empty the log and begin again at `offset`, the log start: all existing records lie before it.

        Old segments with records are renamed, not deleted.
        """
        for segment in reversed(self.segments):
            aside = recovery.set_segment_aside(segment, self.recovery, self.files.fs)
            if aside is not None:
                _log.warning(
                    "[partition %s] %s lies before the log start offset %d of %s: the segment is renamed to %s",
                    self.path.name,
                    segment.path.name,
                    offset,
                    checkpoints.LOG_STARTS,
                    aside.name,
                )
        self.replace_segments([self._made(offset)])

    def _made(self, offset: int) -> Segment:
        """Create the file of a new, empty segment at this base offset, and return the segment."""
        fresh = Segment(self.path, offset, self.files, self._config.index_interval_bytes)
        fresh.create_file()
        self._names_new = True
        return fresh

    def delete_first_segments(self, count: int) -> None:
        """Delete the first `count` segments.

        Raises:
            OSError: the disk failed. The log begins with the first segment that is not deleted.
        """
        try:
            for segment in self.segments[:count]:
                segment.delete()
        finally:
            deleted = next((at for at, segment in enumerate(self.segments[:count]) if segment.gone is None), count)
            self.replace_segments(self.segments[deleted:])
            self.cuts += deleted
            self.log_start_offset = max(self.log_start_offset, self.segments[0].base_offset)

    def size_bytes(self) -> int:
        """Return the size of all log files of the partition."""
        return sum(segment.size for segment in self.segments)

    # -- ending

    def flush_if_due(self) -> None:
        """Flush now if `flush.messages` records are unflushed, because an earlier flush failed."""
        if self.end_offset - self.flushed_offset >= self._config.flush_messages:
            self.flush()

    def flush(self, upto: int | None = None) -> None:
        """Fsync all appended batches, or only the segments that end at or before `upto`."""
        self.finish_interrupted_change()
        upto = self.end_offset if upto is None else upto
        for segment in self.segments:
            if self.flushed_offset < segment.end_offset <= upto:
                self._names_new |= segment.sync()
                if segment is not self.active:
                    segment.sync_indexes()
                    self._names_new = True
        self.sync_folder_names()
        self.flushed_offset = max(self.flushed_offset, upto)

    def sync_folder_names(self) -> None:
        """Fsync the folder, so that new files survive a power loss."""
        if self._names_new and not self.missing:
            sync_folder(self.path, self.files.fs)
            sync_folder(self.path.parent, self.files.fs)
            self._names_new = False

    def close(self) -> None:
        """Flush the log, and write indexes and a producer snapshot to make the next opening fast."""
        self.flush()
        if self.end_offset and not self.missing:
            self.write_producer_snapshot()
        for segment in self.segments:
            segment.close()
        if self.end_offset and not self.missing:
            self._write_index_checksums()

    def release_files(self) -> None:
        """Release the files of a deleted partition. Users of this object get NotFoundError from now on."""
        self.missing = False
        for segment in self.segments:
            segment.release_file()
