"""The local journal: the group coordinator's records in a partition of the broker's own log."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from kohort.errors import ErrorCode, FencedError, InvalidInputError
from kohort.groups.records import Record, TransactionMarked
from kohort.journal.checked import (
    ON_CORRUPTION,
    UNREADABLE,
    WHAT_TO_DO,
    DamageSurvey,
    checked_batches,
    describe_bad_batch,
    log_truncated_names,
    newest_names_first,
    newest_record_offsets,
)
from kohort.journal.codec import GroupRecordReader, announced_offsets, group_of_key
from kohort.journal.protocol import Owner
from kohort.journal.sealing import encode_append
from kohort.log.damage import DamagedError, LogDamage
from kohort.log.markers import parse_marker
from kohort.log.partition import PartitionLog
from kohort.wire.batch import BatchHeader
from kohort.wire.records import iter_key_values

APPEND_BYTES_MAX: Final = 512 << 20
"""The limit of one append: it goes into one segment, and one write of a step must be bounded."""
_READ_BYTES: Final = 256 << 10

log = logging.getLogger("kohort.log")


class LogJournal:
    """A journal in one partition of `__consumer_offsets`, in Kafka's own record schemas.

    An append is one batch if possible. Transactional offsets are in batches of their producer, and the end of a
    transaction is a marker. Large appends are split into several batches, and a record before them holds the number of
    offsets that they span. `replay` truncates an append that a crash left unfinished.
    """

    holds_transactions: Final = True
    append_bytes_max: Final = None
    ownership_proof_ms: Final = None

    def __init__(
        self,
        log: PartitionLog,
        *,
        serves_older_values: bool = False,
        on_append: Callable[[PartitionLog, int], None] | None = None,
    ) -> None:
        """Open a journal on a partition's log.

        Args:
            log: the partition's log.
            serves_older_values: skip damaged parts; otherwise a damaged journal cannot be replayed.
            on_append: takes the log and the size in bytes of each append, for clients that read the partition.
        """
        self._log = log
        self._on_append = on_append
        self._older_values = serves_older_values
        self._reader = GroupRecordReader()
        self._logged_cut = self._logged_damage = False

    def begin_term(self, term: int, owner: Owner | None = None) -> Iterator[Sequence[Record]]:
        """Begin a term (`Journal.begin_term`): FencedError if it is over, DamagedError if the log cannot be opened.

        The owner is never called. After the last records, all are as durable as an append. An earlier crash may have
        left some written but not flushed, and these must not be served and then lost.
        """
        del owner
        self._log.check_readable()
        self._log.advance_leader_epoch(term)
        return self._durable()

    def _durable(self) -> Iterator[Sequence[Record]]:
        yield from self.replay()
        self._log.flush_if_due()

    def _check_term(self, term: int) -> None:
        if term != self._log.leader_epoch:
            text = f"{self._log.path.name}: term {term} is over, term {self._log.leader_epoch} has begun"
            raise FencedError(text, ErrorCode.FENCED_LEADER_EPOCH)

    def append(self, term: int, records: Sequence[Record], now_ms: int) -> None:
        """Append records to the partition (`Journal.append`); they are durable when this returns."""
        self._check_term(term)
        if not records:
            return
        try:
            data = bytearray().join(encode_append(records, now_ms))
        except struct.error as error:
            raise InvalidInputError(f"a group record can't be encoded: {error}", ErrorCode.INVALID_RECORD) from error
        if len(data) > APPEND_BYTES_MAX:
            raise InvalidInputError(
                f"{len(data)} bytes of group records in one append, the limit is {APPEND_BYTES_MAX}",
                ErrorCode.RECORD_LIST_TOO_LARGE,
            )
        self._log.append(data, now_ms, from_client=False)
        if self._on_append is not None:
            self._on_append(self._log, len(data))

    def replay(self, offset: int = 0) -> Iterator[Sequence[Record]]:
        """Read every committed record, oldest first; truncate an append that is incomplete.

        Args:
            offset: where to begin, at the first record of an append.
        """
        if not self._logged_cut:
            self._logged_cut = True
            log_truncated_names(self._log, group_of_key, "group")
        records: list[Record] = []
        size = 0
        for found in checked_batches(self._log, max(offset, self._log.log_start_offset), _READ_BYTES):
            if isinstance(found, LogDamage):
                yield from self._damaged(found)
                continue
            position, header, batch = found
            if header.is_control:
                marker = parse_marker(header, batch)
                if marker is not None:
                    records.append(TransactionMarked(marker.producer_id, marker.producer_epoch, marker.commit))
            else:
                known = len(records)
                try:
                    cut = self._read_batch(batch, header, records)
                except UNREADABLE as error:
                    del records[known:]
                    yield from self._damaged(describe_bad_batch(self._log, position, header, str(error)))
                    continue
                if cut is not None:
                    self._cut_off(cut)
                    break
            size += header.size
            if size >= _READ_BYTES:
                yield records
                records, size = [], 0
        if records:
            yield records

    def _damaged(self, damage: LogDamage) -> Iterator[Sequence[Record]]:
        """At the first damage, search the whole journal and log every damage, before records behind it are read.

        Yield empty lists meanwhile, so that other work can run.

        Raises:
            DamagedError: unless damaged parts are skipped.
        """
        if not self._logged_damage:
            self._logged_damage = True
            survey = DamageSurvey(
                self._log, lambda header, batch: self._read_batch(batch, header, []), group_of_key, "group"
            )
            for _ in survey.examine_in_steps():
                yield ()
            for sentence in survey.describe_damage():
                log.error(
                    "damaged group records: %s. %s",
                    sentence,
                    f"Because of {ON_CORRUPTION}=older, the older values are served"
                    if self._older_values
                    else f"The groups of this partition are not served. {WHAT_TO_DO}",
                )
        if not self._older_values:
            raise DamagedError(damage, f"{damage.describe()}. {WHAT_TO_DO}")

    def _cut_off(self, offset: int) -> None:
        """Truncate an append that a crash left incomplete, and log the groups in it."""
        groups = newest_record_offsets(self._log, offset, group_of_key)
        log.warning(
            "[partition %s] truncated an unfinished append, offsets %d to %d: the broker ended during the write, "
            "which was never "
            "acknowledged. Groups in it: %s",
            self._log.path.name,
            offset,
            self._log.end_offset - 1,
            ", ".join(name for name, _ in newest_names_first(groups)) or "none",
        )
        self._log.truncate_to(offset)

    def _read_batch(self, batch: memoryview, header: BatchHeader, found: list[Record]) -> int | None:
        """Add a batch's records; return the offset of an incomplete append, else None."""
        producer_id = header.producer_id if header.is_transactional else -1
        reader = self._reader
        read_offset, add = reader.read_offset, found.append
        epoch = header.producer_epoch if producer_id >= 0 else -1
        for key, value, offset in iter_key_values(batch, header):
            if key is None:
                continue
            if key[:2] == b"\0\1":
                add(read_offset(key, value, producer_id, epoch))
                continue
            span = announced_offsets(key, value)
            if span is not None:
                if offset + 1 + span > self._log.end_offset:
                    return offset
                continue
            record = reader.decode_record(key, value)
            if record is not None:
                add(record)
        return None
