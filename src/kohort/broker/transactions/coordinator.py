"""The transaction coordinator: it assigns producer epochs to transactional ids and ends their transactions.

| status | init | add partitions | end |
|---|---|---|---|
| EMPTY, COMPLETE_* | next epoch, EMPTY | ONGOING | success if the outcome is the same, else an error |
| ONGOING | bump the epoch, abort, then as after COMPLETE_* | more partitions | PREPARE_*, markers, COMPLETE_* |
| PREPARE_* | wait for the end | CONCURRENT_TRANSACTIONS | wait if the outcome is the same, else an error |

A state is written to the log before it takes effect. The record PREPARE_* decides a transaction. After a crash the
coordinator continues with the markers, which may be written twice and have no effect the second time.

EndTxn is answered when all markers are written. If that takes long, it is answered earlier, as Kafka always does. If
damage prevents an offsets marker, the state stays PREPARE_* until a restart after the repair. Requests get an error in
the meantime. A transaction past its timeout is aborted with a new epoch, which fences its producer.

Source: KIP-98, KIP-360, KIP-890.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from kohort.broker.config.settings import BrokerConfig
from kohort.broker.purgatory import Purgatory
from kohort.broker.shards import GroupShards
from kohort.broker.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, Topics
from kohort.broker.transactions.log import EPOCH_AT_END, Status, Transaction, TransactionLog
from kohort.errors import ErrorCode, KafkaError, RetriableError
from kohort.groups.events import TransactionEnded
from kohort.ids import TopicPartition
from kohort.log import LogStore
from kohort.log.checkpoints import replace_file
from kohort.log.markers import Marker
from kohort.wire.batch import parse_header
from kohort.wire.schema import Buffer

# -- Producer ids: unique, also across restarts and power losses
#
# A block of ids is reserved on disk before its first id is used.

FILE = "producer-ids"
BLOCK = 1_000
"""Ids reserved by one write. A crash loses at most this many."""


class ProducerIds:
    """The allocator of producer ids, which reserves a block of them with each write."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._next = int(self._path.read_text(encoding="ascii")) if self._path.exists() else 0
        self._reserved = self._next

    def allocate(self) -> int:
        """Return a producer id that was never used before."""
        if self._next >= self._reserved:
            self._reserve()
        self._next += 1
        return self._next - 1

    def _reserve(self) -> None:
        reserved = self._next + BLOCK
        replace_file(self._path, str(reserved))
        self._reserved = reserved


# -- Requests that wait until all markers of a transaction are written, limited in time and number

WAIT_S = 5.0
"""How long a request waits for markers that fail.

The time is well below clients' request timeouts, and longer than a coordinator takes to load.
"""
WAITING_MAX = 100
"""The most requests that wait for the end of one transaction. Further ones are retries, which get a retriable error."""


@dataclass(frozen=True, slots=True)
class _Wait:
    since_s: float
    ended: Callable[[], None]
    otherwise: Callable[[ErrorCode], None]


class MarkerWaits:
    """Requests that wait until all markers of a transaction are written, by transactional id."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[_Wait]] = {}
        self._stuck: set[str] = set()

    def add(self, transactional_id: str, ended: Callable[[], None], otherwise: Callable[[ErrorCode], None]) -> None:
        """Register a request that waits until all markers of a transaction are written.

        Args:
            transactional_id: the transaction's id.
            ended: called when all markers are written.
            otherwise: called with an error code if the wait fails, perhaps before this method returns: the code
                that `pending_markers_error` returns.
        """
        waiting = self._waiting.get(transactional_id, [])
        if transactional_id in self._stuck or len(waiting) >= WAITING_MAX:
            otherwise(self.pending_markers_error(transactional_id))
            return
        waiting.append(_Wait(time.monotonic(), ended, otherwise))
        self._waiting[transactional_id] = waiting

    def pending_markers_error(self, transactional_id: str) -> ErrorCode:
        """Return the error code while markers are missing: retriable, unless a retry can't succeed."""
        return ErrorCode.UNKNOWN_SERVER_ERROR if transactional_id in self._stuck else ErrorCode.CONCURRENT_TRANSACTIONS

    def on_markers_failed(self, transactional_id: str, *, stuck: bool) -> None:
        """Handle a failed attempt to write markers: answer the requests that have waited for `WAIT_S` with an error.

        If no later attempt of this process can succeed (`stuck`), answer all requests.
        """
        if stuck:
            self._stuck.add(transactional_id)
        before_s = time.monotonic() - (0.0 if stuck else WAIT_S)
        waiting = self._waiting.pop(transactional_id, [])
        left = [wait for wait in waiting if wait.since_s > before_s]
        if left:
            self._waiting[transactional_id] = left
        for wait in waiting:
            if wait.since_s <= before_s:
                wait.otherwise(self.pending_markers_error(transactional_id))

    def answer_waiting(self, transactional_id: str) -> None:
        """Answer all requests that wait for a transaction, because all of its markers are written."""
        self._stuck.discard(transactional_id)
        for wait in self._waiting.pop(transactional_id, ()):
            wait.ended()


log = logging.getLogger("kohort.transactions")

ID_NOT_WRITTEN = "transactional id %s could not be written, its producer gets COORDINATOR_NOT_AVAILABLE: %s"

Done: TypeAlias = Callable[[ErrorCode, int, int], None]
"""Callback that takes the error, producer id and epoch of a response."""

EPOCH_MAX = 32_766
"""The last epoch of a producer. The one above is for fencing it."""
COORDINATOR_EPOCH = 0
RETRY_S = 0.5
MARKERS_A_STEP = 16
"""Markers written in a row, at most 5 ms: the first one of a partition makes its folder. A transaction may have 100,000
partitions, and others have turns in between."""
IDS_MAX = 100_000
"""The most transactional ids known at once, which bounds memory."""
ID_CHARS_MAX = 100 * IDS_MAX
"""The most characters of all known ids. A single id may have 32,767."""


@dataclass(frozen=True, slots=True)
class TransactionHost:
    """The services of the broker that the transaction coordinator uses."""

    loop: asyncio.AbstractEventLoop
    store: LogStore
    config: BrokerConfig
    topics: Topics
    groups: GroupShards
    waits: Purgatory
    fresh_producer_id: Callable[[], int]
    next_request_id: Callable[[], int]
    age_ms: Callable[[], int]


class Transactions:
    """The transaction coordinator of this broker. All methods run on the loop."""

    def __init__(self, host: TransactionHost) -> None:
        self._host = host
        serves_older_values = host.config.serves_older_values
        self._log = TransactionLog(
            host.store, serves_older_values=serves_older_values, on_append=host.waits.on_append_after_step
        )
        self._known: dict[str, Transaction] = {}
        self._id_chars = 0
        self._unmarked: dict[str, set[TopicPartition]] = {}
        self._retries: dict[str, asyncio.TimerHandle] = {}
        self._steps: dict[str, asyncio.Handle] = {}
        self._waits = MarkerWaits()
        self._open_since_ms: dict[str, int] = {}
        self._closed = False

    def start(self) -> None:
        """Load the transaction log, resume transactions that were being ended, and start the timeout checks."""
        if TRANSACTIONS_TOPIC in self._host.store.topics:
            for transactional_id, transaction in self._log.read_transactions():
                if transaction is None:
                    self._known.pop(transactional_id, None)
                else:
                    self._known[transactional_id] = transaction
        self._id_chars = sum(map(len, self._known))
        for transaction in list(self._known.values()):
            if transaction.status.preparing:
                self._begin_markers(transaction)
        self._check_timeouts()
        self._host.loop.call_later(self._host.config.transactional_id_check_ms / 1000, self._expire)

    def close(self) -> None:
        """Stop the coordinator. Unfinished transactions are resumed at the next start."""
        self._closed = True

    def all_transactions(self) -> Iterable[Transaction]:
        """Return all transactional ids, for admin requests."""
        return self._known.values()

    def get(self, transactional_id: str) -> Transaction | None:
        """Return the state of one transactional id."""
        return self._known.get(transactional_id)

    def serves(self, transactional_id: str) -> bool:
        """Return whether the transactional id's partition of the transaction log is readable."""
        return self._log.serves(transactional_id)

    def _save(self, transaction: Transaction) -> Transaction:
        """Write a transaction's state to the log, then make it the current one.

        Raises:
            OSError: the state could not be written.
        """
        if TRANSACTIONS_TOPIC not in self._host.store.topics:
            config = self._host.config
            configs = {"cleanup.policy": "compact", "segment.bytes": str(config.transaction_segment_bytes)}
            self._host.topics.create(TRANSACTIONS_TOPIC, config.transaction_partitions, configs)
        now_ms = _wall_ms()
        transaction = replace(transaction, update_ms=now_ms)
        self._log.write_transaction(transaction, now_ms)
        if transaction.id not in self._known:
            self._id_chars += len(transaction.id)
        self._known[transaction.id] = transaction
        return transaction

    # -- beginning

    def assign_producer_id(self, transactional_id: str, timeout_ms: int, producer: tuple[int, int], done: Done) -> None:
        """Assign a producer id and epoch. An unfinished transaction of an older producer is aborted first.

        Args:
            transactional_id: the producer's transactional id.
            timeout_ms: the timeout of its transactions.
            producer: the current id and epoch, to continue with the next epoch; (-1, -1): none.
            done: called once with the result.
        """
        if not 0 < timeout_ms <= self._host.config.transaction_timeout_max_ms:
            done(ErrorCode.INVALID_TRANSACTION_TIMEOUT, -1, -1)
            return
        if not self.serves(transactional_id):
            done(ErrorCode.UNKNOWN_SERVER_ERROR, -1, -1)
            return
        known = self._known.get(transactional_id)
        if known is None:
            if len(self._known) >= IDS_MAX or self._id_chars + len(transactional_id) > ID_CHARS_MAX:
                done(ErrorCode.POLICY_VIOLATION, -1, -1)
                return
            fresh_id = self._host.fresh_producer_id
            self._answer(transactional_id, lambda: Transaction(transactional_id, fresh_id(), 0, timeout_ms), done)
            return
        continues = producer == (known.producer_id, known.epoch) or _is_next_producer(known, producer)
        if producer[0] != -1 and not (continues or _is_predecessor(known, producer)):
            done(ErrorCode.PRODUCER_FENCED, -1, -1)
            return
        if known.status is Status.ONGOING:
            if not self._fence(known):
                done(ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, -1)
                return
            if known.epoch >= EPOCH_MAX:
                producer = (-1, -1)
            # Else the abort's epoch is the one that the producer gets, as after EndTxn. Source: KAFKA-19367.
        if self._known[transactional_id].status.preparing:
            again = partial(self.assign_producer_id, transactional_id, timeout_ms, producer, done)
            self._when_ended(transactional_id, again, lambda error: done(error, -1, -1))
            return
        known = self._known[transactional_id]
        if producer[0] != -1 and producer != (known.producer_id, known.epoch) and known.epoch <= EPOCH_MAX:
            if known.timeout_ms == timeout_ms:
                done(ErrorCode.NONE, known.producer_id, known.epoch)  # nothing was written since
            else:
                self._answer(transactional_id, lambda: replace(known, timeout_ms=timeout_ms), done)
            return
        continued = producer[0] != -1
        self._answer(
            transactional_id, lambda: self._bumped(replace(known, timeout_ms=timeout_ms, continued=continued)), done
        )

    def _bumped(self, known: Transaction) -> Transaction:
        """Return a transactional id's state for its next producer: the epoch plus one, or a new producer id.

        A new id is needed when the epochs of the old one are used up.
        """
        fresh = replace(known, status=Status.EMPTY, partitions=(), start_ms=-1, next_producer_id=-1)
        if known.epoch < EPOCH_MAX:
            return replace(fresh, epoch=known.epoch + 1)
        return replace(
            fresh, producer_id=self._host.fresh_producer_id(), previous_producer_id=known.producer_id, epoch=0
        )

    def _answer(self, transactional_id: str, make: Callable[[], Transaction], done: Done) -> None:
        try:
            saved = self._save(make())
        except OSError as error:  # of the state, or of a new producer id
            log.error(ID_NOT_WRITTEN, transactional_id, error)
            done(ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, -1)
            return
        done(ErrorCode.NONE, saved.producer_id, saved.epoch)

    # -- writing

    def add_partitions(
        self, transactional_id: str, producer: tuple[int, int], partitions: Iterable[TopicPartition]
    ) -> ErrorCode:
        """Add partitions to the transaction, which begins with the first one."""
        known, error = self._check_producer(transactional_id, producer)
        if known is None or error:
            return error
        new = [tp for tp in dict.fromkeys(partitions) if known.status is not Status.ONGOING or tp not in known.members]
        if not new:
            return ErrorCode.NONE
        ongoing = known.status is Status.ONGOING
        begun = replace(
            known,
            status=Status.ONGOING,
            partitions=(*known.partitions, *new) if ongoing else tuple(new),
            start_ms=known.start_ms if ongoing else _wall_ms(),
        )
        if not ongoing:
            self._open_since_ms[transactional_id] = _mono_ms()
        try:
            self._save(begun)
        except OSError as failure:
            log.error(ID_NOT_WRITTEN, transactional_id, failure)
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    def check_transactional_produce(
        self, transactional_id: str, partition: TopicPartition, records: Buffer, adds: bool
    ) -> None:
        """Check that a producer may write these batches; add the partition if the request's version does so.

        Raises:
            KafkaError: the producer may not.
        """
        header = parse_header(records)
        producer = (header.producer_id, header.producer_epoch)
        if not header.is_transactional:
            raise KafkaError("a batch outside any transaction", ErrorCode.INVALID_RECORD)
        if adds:
            error = self.add_partitions(transactional_id, producer, [partition])
        else:
            error = self.check_partition_in_transaction(transactional_id, producer, partition)
        if error is ErrorCode.PRODUCER_FENCED:
            error = ErrorCode.INVALID_PRODUCER_EPOCH
        if error:
            raise KafkaError(f"transaction {transactional_id}: {error.text}", error)

    def check_partition_in_transaction(
        self, transactional_id: str, producer: tuple[int, int], partition: TopicPartition
    ) -> ErrorCode:
        """Check that a partition is part of the producer's transaction."""
        known, error = self._check_producer(transactional_id, producer)
        if known is None or error:
            return error
        if known.status is not Status.ONGOING or partition not in known.members:
            return ErrorCode.INVALID_TXN_STATE
        return ErrorCode.NONE

    def _check_producer(self, transactional_id: str, producer: tuple[int, int]) -> tuple[Transaction | None, ErrorCode]:
        known = self._known.get(transactional_id)
        if not transactional_id:
            return None, ErrorCode.INVALID_REQUEST
        if known is None and not self.serves(transactional_id):
            return None, ErrorCode.UNKNOWN_SERVER_ERROR
        if known is not None and _is_next_producer(known, producer):
            return None, self._waits.pending_markers_error(transactional_id)
        if known is None or known.producer_id != producer[0]:
            return None, ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if known.epoch != producer[1]:
            return None, ErrorCode.PRODUCER_FENCED
        if known.status.preparing:
            return None, self._waits.pending_markers_error(transactional_id)
        return known, ErrorCode.NONE

    # -- ending

    def end_transaction(
        self, transactional_id: str, producer: tuple[int, int], commit: bool, new_epoch: bool, done: Done
    ) -> None:
        """Commit or abort a transaction; answered when all markers are written.

        Args:
            transactional_id: the transaction's id.
            producer: the producer's id and epoch.
            commit: True to commit, False to abort.
            new_epoch: whether the producer continues with the next epoch (KIP-890).
            done: called once with the result.
        """
        known = self._known.get(transactional_id)
        if known is not None and _is_next_producer(known, producer):
            done(self._waits.pending_markers_error(transactional_id), -1, -1)
            return
        if known is None or producer[0] < 0 or producer[0] not in (known.producer_id, known.previous_producer_id):
            error = ErrorCode.INVALID_PRODUCER_ID_MAPPING if transactional_id else ErrorCode.INVALID_REQUEST
            if not self.serves(transactional_id):
                error = ErrorCode.UNKNOWN_SERVER_ERROR
            done(error, -1, -1)
            return
        outcome = (
            (Status.COMPLETE_COMMIT, Status.PREPARE_COMMIT) if commit else (Status.COMPLETE_ABORT, Status.PREPARE_ABORT)
        )
        again = new_epoch and _is_predecessor(known, producer)
        if producer != (known.producer_id, known.epoch) and not again:
            done(ErrorCode.PRODUCER_FENCED, -1, -1)
            return
        if known.status in outcome and (again or not new_epoch):
            self._answer_when_ended(transactional_id, done)
        elif again:
            # A commit meets the coordinator's own abort. INVALID_TXN_STATE ends Java's producers (KAFKA-20785).
            aborted = commit and not known.was_requested
            fenced = aborted or known.status in (Status.ONGOING, Status.EMPTY)
            done(ErrorCode.PRODUCER_FENCED if fenced else ErrorCode.INVALID_TXN_STATE, -1, -1)
        elif known.status is Status.ONGOING or (new_epoch and not commit and not known.status.preparing):
            self._end_transaction(known, commit, new_epoch, done)
        elif known.status.preparing:
            done(self._waits.pending_markers_error(transactional_id), -1, -1)
        else:
            done(ErrorCode.INVALID_TXN_STATE, -1, -1)

    def _answer_when_ended(self, transactional_id: str, done: Done) -> None:
        """Answer EndTxn without an error when the markers are written or the wait is over.

        The outcome is durable in both cases. The answer names this transaction's next epoch: in the meantime another
        producer may have got the one after it.
        """
        known = self._known[transactional_id]
        rotated = known.next_producer_id != -1
        producer_id, epoch = (known.next_producer_id, 0) if rotated else (known.producer_id, known.epoch)

        def answer_without_error(_ignored: ErrorCode = ErrorCode.NONE) -> None:
            done(ErrorCode.NONE, producer_id, epoch)

        self._when_ended(transactional_id, answer_without_error, answer_without_error)

    def _end_transaction(self, known: Transaction, commit: bool, new_epoch: bool, done: Done) -> None:
        """Write the decision to commit or abort to the transaction log, then write the markers."""
        prepared = replace(
            known,
            status=Status.PREPARE_COMMIT if commit else Status.PREPARE_ABORT,
            partitions=known.partitions if known.status is Status.ONGOING else (),
            start_ms=known.start_ms if known.status is Status.ONGOING else _wall_ms(),
            client_version=0,
            was_requested=True,
        )
        try:
            prepared = self._save(self._with_next_epoch(prepared) if new_epoch else prepared)
        except OSError as error:
            log.error(
                "transaction %s: its %s could not be written, the producer gets COORDINATOR_NOT_AVAILABLE: %s",
                known.id,
                "commit" if commit else "abort",
                error,
            )
            done(ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, -1)
            return
        self._begin_markers(prepared)
        self._answer_when_ended(known.id, done)

    def _with_next_epoch(self, known: Transaction) -> Transaction:
        """Return the transaction's state with the next producer epoch, under which its markers are written.

        After the last usable epoch, a new producer id follows. The markers then have an epoch that no producer uses.
        Source: KAFKA-20090.

        Raises:
            OSError: a producer id could not be reserved.
        """
        known = replace(known, client_version=EPOCH_AT_END)
        if known.epoch < EPOCH_MAX:
            return replace(known, epoch=known.epoch + 1)
        return replace(known, epoch=EPOCH_MAX + 1, next_producer_id=self._host.fresh_producer_id())

    def _fence(self, known: Transaction) -> bool:
        """Abort a transaction under a new epoch, which fences the producer of the old one.

        Returns:
            False if the abort could not be written.
        """
        aborted = replace(known, status=Status.PREPARE_ABORT, was_requested=False)
        try:
            self._begin_markers(self._save(self._with_next_epoch(aborted)))
        except OSError as error:
            log.error("transaction %s could not be aborted and stays open: %s", known.id, error)
            return False
        return True

    def _when_ended(
        self, transactional_id: str, then: Callable[[], None], otherwise: Callable[[ErrorCode], None]
    ) -> None:
        if self._known[transactional_id].status.preparing:
            self._waits.add(transactional_id, then, otherwise)
        else:
            then()

    # -- markers

    def _begin_markers(self, transaction: Transaction) -> None:
        self._unmarked[transaction.id] = set(transaction.partitions)
        self._write_markers(transaction.id)

    def _write_markers(self, transactional_id: str) -> None:
        """Write the missing markers, then complete the transaction; retry later after a failure."""
        transaction = self._known[transactional_id]
        for later in (self._retries.pop(transactional_id, None), self._steps.pop(transactional_id, None)):
            if later is not None:
                later.cancel()
        if self._closed or not transaction.status.preparing:
            return
        unmarked = self._unmarked[transactional_id]
        missing = [partition for partition in reversed(transaction.partitions) if partition in unmarked]
        self._write_step(transactional_id, missing)

    def _write_step(self, transactional_id: str, missing: list[TopicPartition], failed: bool = False) -> None:
        """Write some of the missing markers, taken from the end of the list.

        After the last one, complete the transaction, or retry the failed markers.

        Args:
            transactional_id: the transaction's id.
            missing: the partitions that no step has tried yet; each step removes those that it tries.
            failed: whether a marker of an earlier step could not be written.
        """
        self._steps.pop(transactional_id, None)
        transaction = self._known[transactional_id]
        if self._closed or not transaction.status.preparing:
            return
        unmarked = self._unmarked[transactional_id]
        for tp in [missing.pop() for _ in range(min(len(missing), MARKERS_A_STEP))]:
            if tp.topic == OFFSETS_TOPIC:
                self._mark_offsets(transaction, tp)
            elif self._mark(transaction, tp):
                unmarked.discard(tp)
            else:
                failed = True
        if missing:
            step = self._host.loop.call_soon(self._write_step, transactional_id, missing, failed)
            self._steps[transactional_id] = step
            return
        if not unmarked and not self._complete(transaction):
            failed = True
        if failed:
            self._retry_markers(transactional_id)

    def _retry_markers(self, transactional_id: str) -> None:
        """Schedule one retry of the missing markers, however many failed, and answer requests that have waited long."""
        unmarked = self._unmarked.get(transactional_id)
        stuck = bool(unmarked) and all(map(self._is_damaged, unmarked or ()))
        if stuck:
            text = "transaction %s has ended, but its offsets take effect after %s is repaired and the broker restarted"
            log.error(text, transactional_id, ", ".join(sorted(map(str, unmarked or ()))))
        elif transactional_id not in self._retries:
            retry = self._host.loop.call_later(RETRY_S, self._write_markers, transactional_id)
            self._retries[transactional_id] = retry
        self._waits.on_markers_failed(transactional_id, stuck=stuck)

    def _is_damaged(self, tp: TopicPartition) -> bool:
        """Return whether this is a damaged partition of `__consumer_offsets`, not served until it is repaired."""
        return tp.topic == OFFSETS_TOPIC and self._host.groups.is_damaged(tp.partition)

    def _mark(self, transaction: Transaction, tp: TopicPartition) -> bool:
        target = self._host.store.get(*tp)
        if target is None:  # the partition was deleted: there is nothing to mark
            return True
        commit = transaction.status is Status.PREPARE_COMMIT
        try:
            target.append_marker(
                Marker(transaction.producer_id, transaction.epoch, commit, COORDINATOR_EPOCH), _wall_ms()
            )
        except (RetriableError, OSError) as error:  # the log can't be written or opened: its marker is still owed
            log.error(
                "transaction %s: its commit or abort marker in %s could not be written, retrying: %s",
                transaction.id,
                tp,
                error,
            )
            return False
        except KafkaError as error:
            if error.code is ErrorCode.INVALID_PRODUCER_EPOCH:
                log.warning(
                    "transaction %s: no commit or abort marker written in %s, which has a newer epoch of the "
                    "producer: %s",
                    transaction.id,
                    tp,
                    error,
                )
            else:
                log.error(
                    "transaction %s: completing without its marker in %s, which refused it: %s",
                    transaction.id,
                    tp,
                    error,
                )
        self._host.waits.answer_waiting([target])
        return True

    def _mark_offsets(self, transaction: Transaction, tp: TopicPartition) -> None:
        """Let a group shard write the marker, which makes the transaction's offsets effective.

        A slow shard may be asked again, and answer a second time when the next transaction of this id is being ended.
        """
        transactional_id, unmarked = transaction.id, self._unmarked[transaction.id]
        commit = transaction.status is Status.PREPARE_COMMIT

        def on_marker_written(value: object) -> None:
            if self._unmarked.get(transactional_id) is not unmarked:
                return
            error = value if isinstance(value, ErrorCode) else getattr(value, "error", ErrorCode.NONE)
            if error:  # the shard is loading, or damaged
                self._retry_markers(transactional_id)
                return
            unmarked.discard(tp)
            current = self._known[transactional_id]
            if not unmarked and current.status.preparing and not self._complete(current):
                self._retry_markers(transactional_id)

        event = TransactionEnded(transaction.producer_id, transaction.epoch, commit, self._host.next_request_id())
        self._host.groups.ask_shard(tp.partition, event, on_marker_written)

    def _complete(self, transaction: Transaction) -> bool:
        """Complete a transaction whose markers are all written."""
        commit = transaction.status is Status.PREPARE_COMMIT
        done = replace(transaction, status=Status.COMPLETE_COMMIT if commit else Status.COMPLETE_ABORT, partitions=())
        if done.next_producer_id != -1:
            done = replace(
                done,
                previous_producer_id=done.producer_id,
                producer_id=done.next_producer_id,
                next_producer_id=-1,
                epoch=0,
            )
        try:
            self._save(done)
        except OSError as error:
            log.error("transaction %s: its completion could not be written, retrying: %s", transaction.id, error)
            return False
        del self._unmarked[transaction.id]
        self._waits.answer_waiting(transaction.id)
        return True

    # -- time

    def _check_timeouts(self) -> None:
        if self._closed:
            return
        ongoing = [known for known in self._known.values() if known.status is Status.ONGOING]
        self._open_since_ms = {transaction.id: self._open_since(transaction) for transaction in ongoing}
        for transaction in ongoing:
            if _mono_ms() - self._open_since_ms[transaction.id] > transaction.timeout_ms:
                log.info(  # comes with every killed application of Kafka Streams
                    "transaction %s aborted: open for longer than its timeout of %d ms",
                    transaction.id,
                    transaction.timeout_ms,
                )
                self._fence(transaction)
        self._host.loop.call_later(self._host.config.transaction_abort_interval_ms / 1000, self._check_timeouts)

    def _open_since(self, transaction: Transaction) -> int:
        """Return when a transaction began, by the monotonic clock: changes of the wall clock do not affect its timeout.

        The age of a transaction from an earlier process comes from the wall clock, once.
        """
        known = self._open_since_ms.get(transaction.id)
        if known is not None:
            return known
        return _mono_ms() - min(max(0, _wall_ms() - transaction.start_ms), transaction.timeout_ms)

    def _expire(self) -> None:
        if self._closed:
            return
        before = self._host.age_ms() - self._host.config.transactional_id_expiration_ms
        settled = (Status.EMPTY, Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT)
        for transaction in list(self._known.values()):
            if transaction.status in settled and transaction.update_ms < before:
                try:
                    self._log.write_tombstone(transaction.id, _wall_ms())
                except OSError as error:
                    log.error(
                        "expired transactional id %s not removed, retrying at the next check: %s", transaction.id, error
                    )
                    break
                del self._known[transaction.id]
                self._id_chars -= len(transaction.id)
        self._host.loop.call_later(self._host.config.transactional_id_check_ms / 1000, self._expire)


def _is_predecessor(known: Transaction, producer: tuple[int, int]) -> bool:
    """Return whether a producer repeats the request that raised its epoch by one, because the answer was lost.

    That request is the EndTxn of its last transaction, or its own InitProducerId. If another producer got the epoch, or
    a transaction has begun since, the request comes from a zombie.

    Producer id and epoch may also be the last of an id that ran out of epochs. Then its successor must still be at
    epoch 0.
    """
    if known.status is Status.EMPTY:
        asks_again = known.continued
    else:
        asks_again = known.status is not Status.ONGOING and known.client_version == EPOCH_AT_END
    if not asks_again:
        return False
    producer_id, epoch = producer
    if producer_id == known.producer_id:
        return epoch == known.epoch - 1
    return 0 <= producer_id == known.previous_producer_id and epoch >= EPOCH_MAX and known.epoch == 0


def _is_next_producer(known: Transaction, producer: tuple[int, int]) -> bool:
    """Return whether a request already uses the new producer id that EndTxn announced while its transaction ends."""
    return known.status.preparing and known.next_producer_id != -1 and producer == (known.next_producer_id, 0)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _mono_ms() -> int:
    return time.monotonic_ns() // 1_000_000
