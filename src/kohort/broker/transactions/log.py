"""The transaction log: the partitions of `__transaction_state`, in Kafka's own record schemas."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum

from kohort.broker.shards import java_hash
from kohort.broker.topics import TRANSACTIONS_TOPIC
from kohort.errors import CorruptDataError
from kohort.ids import TopicPartition, by_topic
from kohort.journal.checked import UNREADABLE, WHAT_TO_DO, DamageSurvey, checked_batches, log_truncated_names
from kohort.log import LogDamage, LogStore, PartitionLog
from kohort.wire.batch import BatchHeader, BatchRecord, build_batch
from kohort.wire.journal import TransactionLogKey, TransactionLogValue
from kohort.wire.records import iter_key_values

log = logging.getLogger("kohort.transactions")

READ_BYTES = 1 << 20
_KEY_VERSION = b"\0\0"
VALUE_VERSION = 1
"""Version 1 has the history of the producer id (KIP-890)."""
EPOCH_AT_END = 2
"""The version of transactions whose end brings another epoch. Source: KIP-890."""


class Status(IntEnum):
    """The state of a transaction, with the numbers of Kafka's records.

    EMPTY: nothing was written since the id was created. ONGOING: partitions were added. PREPARE_COMMIT, PREPARE_ABORT:
    the outcome is durable and markers are being written; a restart resumes this. COMPLETE_COMMIT, COMPLETE_ABORT: all
    markers are written.
    """

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def preparing(self) -> bool:
        """Whether the transaction's outcome is decided, and its markers are being written."""
        return self in (Status.PREPARE_COMMIT, Status.PREPARE_ABORT)

    @property
    def admin_name(self) -> str:
        """The name of the state that admin tools show."""
        return "".join(word.capitalize() for word in self.name.split("_"))


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id and its latest transaction.

    Attributes:
        previous_producer_id: the id before the current one, if that ran out of epochs; -1: none.
        next_producer_id: the producer's id after this transaction; -1: the same.
        epoch: the producer's current epoch; while a transaction is being ended, the epoch of its markers.
        partitions: the partitions in the order in which they were added.
        was_requested: whether the producer itself requested the end; not stored, and False after a restart.
        members: the same as a set. A transaction may have 100,000 partitions, and each batch asks for its own.
        start_ms: wall-clock time of the first partition; -1: none yet.
        update_ms: wall-clock time of this state.
        client_version: 2 in the state of an ended transaction: its end brought the epoch (KIP-890).
        continued: whether an InitProducerId of the producer before brought the epoch; not written: False after a
            restart, as in Kafka.
    """

    id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    status: Status = Status.EMPTY
    partitions: tuple[TopicPartition, ...] = ()
    start_ms: int = -1
    update_ms: int = -1
    previous_producer_id: int = -1
    next_producer_id: int = -1
    client_version: int = 0
    continued: bool = False
    was_requested: bool = field(default=False, compare=False)
    members: frozenset[TopicPartition] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", frozenset(self.partitions))


class TransactionLog:
    """A reader and writer of `__transaction_state`."""

    def __init__(
        self,
        store: LogStore,
        *,
        serves_older_values: bool = False,
        on_append: Callable[[PartitionLog, int], None] | None = None,
    ) -> None:
        """Use the partitions of `__transaction_state` in a log store.

        Args:
            store: the store.
            serves_older_values: whether to skip damage; otherwise a damaged partition is not served.
            on_append: takes the log and the size in bytes of each append, for clients that read the topic.
        """
        self._store = store
        self._on_append = on_append
        self._older_values = serves_older_values
        self._refused: set[int] = set()

    @property
    def partitions(self) -> int:
        """The number of partitions of `__transaction_state`."""
        return self._store.topics[TRANSACTIONS_TOPIC].partitions

    def _partition_log(self, index: int) -> PartitionLog:
        return self._store.partition(TopicPartition(TRANSACTIONS_TOPIC, index))

    def write_transaction(self, transaction: Transaction, now_ms: int) -> None:
        """Write a transaction's state to its partition, durably.

        Raises:
            OSError: the state could not be written.
        """
        self._append(transaction.id, _encode(transaction), now_ms)

    def write_tombstone(self, transactional_id: str, now_ms: int) -> None:
        """Write a tombstone for a transactional id, durably."""
        self._append(transactional_id, None, now_ms)

    def _append(self, transactional_id: str, value: bytes | None, now_ms: int) -> None:
        key = _KEY_VERSION + TransactionLogKey(transactional_id=transactional_id).encode(0)
        batch = build_batch([BatchRecord(0, now_ms, key, value)])
        target = self._partition_log(java_hash(transactional_id) % self.partitions)
        target.append(bytearray(batch), now_ms, from_client=False)
        if self._on_append is not None:
            self._on_append(target, len(batch))

    def read_transactions(self) -> Iterator[tuple[str, Transaction | None]]:
        """Yield every written state, oldest first.

        None means that the id was forgotten. Partitions that are not served are skipped.

        Raises:
            OSError: a state from before a restart could not be flushed.
        """
        for index in range(self.partitions):
            source = self._partition_log(index)
            source.flush_if_due()
            log_truncated_names(source, _id_of, "transactional id")
            found: list[tuple[str, Transaction | None]] = []
            if self._read_partition(source, found) or (self._older_values and source.readable):
                yield from found
            else:
                self._refused.add(index)
                log.error(
                    "[partition %s] damaged: the transactional ids in it are not served. %s",
                    source.path.name,
                    WHAT_TO_DO,
                )

    def _read_partition(self, source: PartitionLog, found: list[tuple[str, Transaction | None]]) -> bool:
        """Read the last states of one partition into `found`; return False if it is damaged, which is logged."""
        if (last := _read_last_states(source)) is not None:
            found += last
            return True
        whole = True
        for batch_or_damage in checked_batches(source, source.log_start_offset, READ_BYTES):
            if isinstance(batch_or_damage, LogDamage):
                whole = False
                continue
            _, header, batch = batch_or_damage
            if not header.is_control:
                try:
                    found += _read_batch(header, batch)
                except UNREADABLE:
                    whole = False
        if not whole:
            survey = DamageSurvey(source, _read_batch, _id_of, "transactional id")
            for _ in survey.examine_in_steps():
                pass
            for sentence in survey.describe_damage():
                log.error(
                    "damaged transaction records: %s%s",
                    sentence,
                    "; the older values are served" if self._older_values else "",
                )
        return whole

    def serves(self, transactional_id: str) -> bool:
        """Return whether the transactional id's partition of the transaction log is readable."""
        return not self._refused or java_hash(transactional_id) % self.partitions not in self._refused


def _read_last_states(source: PartitionLog) -> list[tuple[str, Transaction | None]] | None:
    """Return the last state of each id in a partition, None if anything is damaged.

    A partition may have a million states of few ids before it is compacted. Only the last ones are decoded.
    """
    last: dict[bytes, bytes | None] = {}
    try:
        for batch_or_damage in checked_batches(source, source.log_start_offset, READ_BYTES):
            if isinstance(batch_or_damage, LogDamage):
                return None
            _, header, batch = batch_or_damage
            if header.is_control:
                continue
            for key, value, _ in iter_key_values(batch, header):
                if key is None:
                    return None
                last[key] = value
        return [_decode(key, value) for key, value in last.items()]
    except (ValueError, *UNREADABLE):
        return None


def _read_batch(header: BatchHeader, batch: memoryview) -> list[tuple[str, Transaction | None]]:
    """Return the transactional ids and states in a batch of the log."""
    try:
        return [_decode(key, value) for key, value, _ in iter_key_values(batch, header)]
    except ValueError as error:
        raise CorruptDataError(f"no state of a transaction: {error}") from error


def _id_of(key: bytes) -> str | None:
    """Return the transactional id in a record's key."""
    return TransactionLogKey.decode(key[2:], 0).transactional_id if key[:2] == _KEY_VERSION else None


def _encode(transaction: Transaction) -> bytes:
    make = TransactionLogValue.PartitionsSchema
    empty = transaction.status is Status.EMPTY
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=int(transaction.status),
        transaction_partitions=None
        if empty
        else [make(topic=topic, partition_ids=parts) for topic, parts in by_topic(transaction.partitions).items()],
        transaction_last_update_timestamp_ms=transaction.update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        client_transaction_version=transaction.client_version,
    )
    return VALUE_VERSION.to_bytes(2, "big") + value.encode(VALUE_VERSION)


def _decode(key: bytes | None, encoded: bytes | None) -> tuple[str, Transaction | None]:
    if key is None or key[:2] != _KEY_VERSION:
        raise CorruptDataError("the transaction log holds a record that is none of its own")
    transactional_id = TransactionLogKey.decode(key[2:], 0).transactional_id
    if encoded is None:
        return transactional_id, None
    value = TransactionLogValue.decode(encoded[2:], int.from_bytes(encoded[:2], "big"))
    return transactional_id, Transaction(
        id=transactional_id,
        producer_id=value.producer_id,
        epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        status=Status(value.transaction_status),
        partitions=tuple(
            TopicPartition(topic.topic, partition)
            for topic in value.transaction_partitions or ()
            for partition in topic.partition_ids
        ),
        start_ms=value.transaction_start_timestamp_ms,
        update_ms=value.transaction_last_update_timestamp_ms,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        client_version=value.client_transaction_version,
    )
