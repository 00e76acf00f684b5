"""The producer without threads, loops or sockets.

`Producer` and `AsyncProducer` share it and add only how they wait. `send` and `send_arrow` do not wait. If a topic is
not known yet or the memory is full, they raise `WouldBlock`; the facade waits in its own way and retries. All other
methods are coroutines of the core.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from kohort.client.net.cluster import Cluster
from kohort.client.net.metadata import Metadata, TopicInfo
from kohort.client.net.runtime import Task
from kohort.client.net.thread_driver import ClientClosedError
from kohort.client.net.topic_existence import check_topic_names
from kohort.client.offsets import GroupMetadata, OffsetAndMetadata
from kohort.client.producer.accumulator import Accumulator, WouldBlock, content_bytes, monotonic_ms
from kohort.client.producer.appender import OVERHEAD
from kohort.client.producer.batches import Batch, Delivery, RecordMetadata, TableDelivery
from kohort.client.producer.sender import METADATA_IDLE_MS, ProducerMetrics, Sender
from kohort.client.producer.settings import MOST_IN_FLIGHT, ProducerConfig
from kohort.client.producer.transactions import TransactionManager, TxnState
from kohort.client.settings import Servers, client_config
from kohort.columns.encode import Chunk, ColumnNames, encode_arrow, highest_partition, murmur2
from kohort.columns.shapes import HeadersLike
from kohort.errors import ErrorCode, InvalidInputError, KafkaError, TimedOutError, error_for
from kohort.ids import TopicPartition
from kohort.io.closing import NotPicklable
from kohort.io.log_throttle import FailureThrottle
from kohort.settings.arguments import Arguments

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("kohort.client")
T = TypeVar("T")
OnDelivery: TypeAlias = Callable[[KafkaError | None, RecordMetadata | None], None]
_ABORT_MS = 1_000
"""Limit for aborting a transaction in a close after an error; the abort unblocks `read_committed` readers."""
_SETTLE = 0.5
"""Share of a close's time for requests in flight, before their transaction is aborted."""
TOPIC_CREATION_MS = 1_000
"""The time in which a cluster creates a topic that it creates by itself, and its brokers learn of it, and of partitions
that are added. A topic or partition that is unknown for longer is reported as missing."""
_ROWS_AT_ONCE = 65_536
"""Rows of a table that are encoded before their batches are queued, so that sending starts early."""


def producer_config(bootstrap_servers: Servers, given: Mapping[str, Any]) -> ProducerConfig:
    """Make the configuration, with the defaults that follow other settings, as in Kafka's own producer.

    acks=0 or 1, or more than five requests in flight, disable idempotence unless it is set. A longer linger or request
    timeout makes the delivery timeout longer unless that is set.
    """
    config = client_config(ProducerConfig, bootstrap_servers, given)
    if not {"enable_idempotence", "enable.idempotence"} & given.keys():
        if config.acks_number != -1:
            config = replace(config, enable_idempotence=False)
        elif config.max_in_flight_requests_per_connection > MOST_IN_FLIGHT and config.transactional_id is None:
            log.warning(
                "enable.idempotence is off here: max.in.flight.requests.per.connection is over %d", MOST_IN_FLIGHT
            )
            config = replace(config, enable_idempotence=False)
    least = config.linger_ms + config.request_timeout_ms
    if config.delivery_timeout_ms < least and not {"delivery_timeout_ms", "delivery.timeout.ms"} & given.keys():
        log.warning("delivery.timeout.ms is %d here: linger.ms + request.timeout.ms", least)
        config = replace(config, delivery_timeout_ms=least)
    return config.check()


class ProducerCore:
    """One producer, without I/O.

    Args:
        cluster: The connections to the brokers.
        config: The settings.
        wake: Makes the facade's driver step the core, from any thread.
        condition: The type of condition that deliveries wait on.
        clock_ms: Returns the milliseconds of the clock by which the driver steps the core.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: ProducerConfig,
        wake: Callable[[Callable[[], None]], None],
        condition: Callable[[threading.Lock], threading.Condition] = threading.Condition,
        clock_ms: Callable[[], float] = monotonic_ms,
    ) -> None:
        self.cluster = cluster
        self.config = config
        self.accumulator = Accumulator(config, cluster, wake, self._kicked, condition, clock_ms)
        self.sender = Sender(cluster, self.accumulator, config)
        self.transactions = (
            None
            if config.transactional_id is None
            else TransactionManager(cluster, self.accumulator, self.sender, config)
        )
        self.started = False
        self._partitions: dict[str, list[int]] = {}
        self._led: dict[str, list[int]] = {}
        self._topics: set[str] = set()
        self._creating: Task[None] | None = None
        self._missing_topics = FailureThrottle(lambda: cluster.runtime.now_ms)
        self._largest = config.max_request_size
        self._serialize = config.key_serializer is not None or config.value_serializer is not None
        cluster.call_before_refresh(self._want_topics_in_use)
        cluster.add_metadata_listener(self._take_metadata)
        cluster.add_fault_listener(lambda error: self.sender.end_sending(error, at_once=True))

    # Records.

    def send(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp_ms: int | None,
        headers: HeadersLike,
        on_delivery: OnDelivery | None,
    ) -> Delivery:
        """Send one record, with the arguments of `Producer.send`.

        Raises:
            WouldBlock: The topic is not known, or the memory full.
        """
        if self._serialize:
            key, value = self._serialized(key, value)
        size = OVERHEAD
        if value is not None:
            if type(value) is str:
                value = value.encode()
            size += len(value) if type(value) is bytes else content_bytes(value, "value")
        if key is not None:
            if type(key) is str:
                key = key.encode()
            size += len(key) if type(key) is bytes else content_bytes(key, "key")
        if headers:
            if type(headers) is not list and type(headers) is not tuple:
                headers = SEND.check_argument("headers", headers)
            size += _headers_size(headers)
        if partition is not None and type(partition) is not int:
            partition = SEND.check_argument("partition", partition)
        if not (on_delivery is None or callable(on_delivery)):
            SEND.check_argument("on_delivery", on_delivery)  # type: ignore[unreachable]
        if size > self._largest:
            self._too_large(size)
        if timestamp_ms is None:
            timestamp_ms = int(time.time() * 1000)
        elif type(timestamp_ms) is not int or not 0 <= timestamp_ms < 1 << 63:
            timestamp_ms = SEND.check_argument("timestamp_ms", timestamp_ms)
        record = (timestamp_ms, key, value, headers)
        return self._put(topic, partition, record, size, on_delivery)

    def _put(
        self,
        topic: str,
        partition: int | None,
        record: tuple[int, Any, Any, HeadersLike],
        size: int,
        on_delivery: OnDelivery | None,
    ) -> Delivery:
        try:
            places = self.accumulator.places.get(topic)
        except TypeError:  # can't be hashed
            SEND.check_argument("topic", topic)
            raise
        if places is None or (partition is not None and not 0 <= partition < len(places)):
            raise self._unknown(topic, partition, partial(self._put, topic, partition, record, size, on_delivery))
        choices: list[int] | None = None
        if partition is None and record[1] is None and self.config.partitioner is None:
            choices = self._led.get(topic) or list(range(len(places)))
            partition = self.accumulator.sticky_partition(topic, choices)
        elif partition is None:
            partition = self._choose(topic, record[1], len(places))
        return self.accumulator.append_record(places[partition], record, size, on_delivery, choices)

    def send_arrow(self, topic: str, batch: pa.RecordBatch | pa.Table, names: ColumnNames) -> TableDelivery:
        """Send the rows of a batch or table, with the arguments of `Producer.send_arrow`.

        Raises:
            WouldBlock: The topic is not known, or the memory full; chunks that were queued before stay queued.
        """
        partitions = self._partitions.get(topic)
        if partitions is None:
            raise self._unknown(topic, None, partial(self.send_arrow, topic, batch, names))
        highest = highest_partition(batch, names.partition)
        if highest >= len(partitions):
            raise WouldBlock(
                partial(self._find_partition, topic, highest), partial(self._put_rows, topic, batch, names)
            )
        return self._put_rows(topic, batch, names)

    def _put_rows(self, topic: str, batch: pa.RecordBatch | pa.Table, names: ColumnNames) -> TableDelivery:
        """Encode and queue rows for the partitions that are known; the error for another partition names the row."""
        return self._put_all(topic, self._chunks(topic, batch, names, len(self._partitions[topic])), [])

    def _chunks(
        self, topic: str, batch: pa.RecordBatch | pa.Table, names: ColumnNames, count: int
    ) -> Iterator[tuple[int, Chunk]]:
        for part in batch.to_batches() if hasattr(batch, "to_batches") else [batch]:
            for start in range(0, len(part), _ROWS_AT_ONCE):
                rows = part.slice(start, _ROWS_AT_ONCE)
                now, limit = int(time.time() * 1000), self.accumulator.batch_limit(topic)
                for to, chunk in encode_arrow(rows, names, count, lambda: self._pick_sticky(topic), now, limit):
                    if chunk.size > self.config.max_request_size:
                        self._too_large(chunk.size)
                    yield to, chunk

    def _put_all(self, topic: str, chunks: Iterator[tuple[int, Chunk]], sent: list[Batch]) -> TableDelivery:
        before = len(sent)
        for to, chunk in chunks:
            try:
                sent.append(self.accumulator.add_chunk(TopicPartition(topic, to), chunk))
            except WouldBlock as full:
                again = partial(self._put_all, topic, chain([(to, chunk)], chunks), sent)
                raise WouldBlock(full.wait, again, moved=len(sent) > before) from None
        return TableDelivery(sent)

    def send_deadline_ms(self) -> float:
        """Return the monotonic time in ms at which a `send` that begins to wait now fails (`max.block.ms`)."""
        return self.accumulator.clock_ms() + self.config.max_block_ms

    # Coroutines.

    async def partitions_for(self, topic: str) -> list[int]:
        """Return the partitions of a topic, sorted."""
        self.start_sender()
        if topic not in self._partitions:
            await self._find_topic(topic, self.send_deadline_ms())
        return list(self._partitions[topic])

    async def flush(self, *, timeout_ms: float | None = None) -> None:
        """Wait until every record sent so far is delivered or failed; failures are in their deliveries.

        Raises:
            TimedOutError: The time is over.
            KafkaError: The producer ended by an unexpected error: make a new one.
        """
        self.start_sender()
        if not await self.accumulator.flush(timeout_ms):
            why = self.cluster.unreachable_text() or "brokers have not taken them all"
            raise TimedOutError(f"records are still not delivered after {timeout_ms} ms: {why}")
        self.sender.raise_if_failed()

    async def init_transactions(self) -> None:
        """Register this as the only producer of its `transactional_id`, once, before the first transaction."""
        transactions = self._need_transactions()
        self.start_sender()
        await transactions.init()

    async def begin_transaction(self) -> None:
        """Open a transaction: everything sent until commit or abort belongs to it."""
        transactions = self._need_transactions()
        self.sender.raise_if_failed()
        transactions.begin()

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], group: str | GroupMetadata
    ) -> None:
        """Commit a group's offsets with the transaction.

        Args:
            offsets: The next offset to read of each partition, as a number or an OffsetAndMetadata.
            group: The group's id, or the consumer's group metadata (which refuses a consumer that was evicted).

        Raises:
            CommitFailedError: The consumer was evicted: abort, and read again from the committed offsets.
            KafkaError: The offsets can't be committed; abort.
        """
        await self._need_transactions().send_offsets(offsets, group)

    async def send_offsets_of_members(
        self, members: Sequence[tuple[GroupMetadata, Mapping[TopicPartition, OffsetAndMetadata | int]]]
    ) -> dict[str, KafkaError]:
        """Commit offsets of several members, in one or more groups, with the transaction: one round trip for all.

        Args:
            members: Each member's group metadata, and the next offsets of its own partitions.

        Returns:
            By member id, why its group refused the offsets: then abort.

        Raises:
            KafkaError: The offsets can't be committed; abort.
        """
        return await self._need_transactions().send_member_offsets(members)

    async def commit_transaction(self) -> None:
        """Deliver everything and commit, after the calls of other threads or tasks that add offsets.

        Records and offsets that they give meanwhile are refused.

        Raises:
            TimedOutError: No response within `max_block_ms`: commit again to learn how the transaction ended.
            FencedError: Another instance took over, or the coordinator ended the transaction: close this producer.
            KafkaError: The transaction can't be committed; abort it.
        """
        transactions = self._need_transactions()
        with transactions.refusing_records():
            await transactions.wait_offsets_added()
            await self.accumulator.flush(None)
            await transactions.end_transaction(commit=True)

    async def abort_transaction(self) -> None:
        """Abort the transaction; records that still wait fail.

        Raises:
            TimedOutError: No response within `max_block_ms`: abort again.
            KafkaError: This producer can't be used any more: close it.
        """
        transactions = self._need_transactions()
        with transactions.refusing_records():
            if transactions.state in (TxnState.OPEN, TxnState.FAILED):
                self._drop()
            await transactions.wait_offsets_added()
            await self.accumulator.flush(None)
            await transactions.end_transaction(commit=False)

    def abort_close_limit_ms(self) -> float:
        """Return the time limit, in ms, for closing after the application's exception.

        It suffices to abort an open transaction; without one it is 0: records are not delivered.
        """
        return _ABORT_MS if self._in_transaction() is not None else 0

    def _in_transaction(self) -> TransactionManager | None:
        is_open = self.transactions is not None and self.transactions.state in (TxnState.OPEN, TxnState.FAILED)
        return self.transactions if is_open else None

    async def close(self, timeout_ms: float | None) -> None:
        """Deliver all records, or abort an open transaction; then fail what is left, and refuse new records.

        Args:
            timeout_ms: Limit for all of it; None: each step's own limit.
        """
        transactions = self._in_transaction()
        if transactions is not None:
            runtime = self.cluster.runtime
            until_ms = None if timeout_ms is None else runtime.now_ms + timeout_ms
            self._drop()
            await self.accumulator.flush(None if timeout_ms is None else timeout_ms * _SETTLE)
            left_ms = self.config.max_block_ms if until_ms is None else max(0.0, until_ms - runtime.now_ms)
            with contextlib.suppress(KafkaError):  # the coordinator aborts it after its timeout
                await runtime.run_within(transactions.abort_at_close(), left_ms, "abort at close")
        else:
            await self.accumulator.flush(timeout_ms)
        self.fail_records()

    def fail_records(self) -> None:
        """Fail all undelivered records at once, also those of requests in flight, and refuse new ones.

        Call this on the client's thread or under its lock.
        """
        self.sender.end_sending(ClientClosedError("the producer is closed"), at_once=True)

    def unread_failures_error(self) -> KafkaError | None:
        """Return an error for failed records whose deliveries nobody read; None when there are none."""
        unseen = self.accumulator.unseen
        with self.accumulator.lock:
            count, first = unseen.count, unseen.first
        if not count or first is None:
            return None
        some = "1 record was" if count == 1 else f"{count} records were"
        return error_for(first.code, f"{some} not delivered, and nothing asked their deliveries why: {first.message}")

    def unclosed_warning(self) -> str:
        """Return, for the log, which records a producer that nobody closed has not delivered."""
        with self.accumulator.lock:
            count = sum(batch.count for batch in self.accumulator.incomplete)
        records = "1 record was" if count == 1 else f"{count} records were"
        return f"{records} not delivered" if count else ""

    # Internals.

    def start_sender(self) -> None:
        """Start the sender, once. On the client's thread or loop, or under its lock."""
        if not self.started:
            self.started = True
            self.cluster.spawn_essential_task(self.sender.run(), "producer")

    def _kicked(self) -> None:
        self.start_sender()
        self.sender.wake_sender()

    def _drop(self) -> None:
        assert self.transactions is not None
        for batch in self.transactions.fail_unsent_records():
            batch.run_callbacks()

    def _need_transactions(self) -> TransactionManager:
        if self.transactions is None:
            raise InvalidInputError("transactions need the setting transactional_id")
        return self.transactions

    def _serialized(self, key: Any, value: Any) -> tuple[Any, Any]:
        if self.config.key_serializer is not None and key is not None:
            key = self.config.key_serializer(key)
        if self.config.value_serializer is not None and value is not None:
            value = self.config.value_serializer(value)
        return key, value

    def _too_large(self, size: int) -> None:
        text = f"a record of about {size} bytes is more than max.request.size ({self.config.max_request_size})"
        raise error_for(ErrorCode.MESSAGE_TOO_LARGE, text)

    def _choose(self, topic: str, key: Any, count: int) -> int:
        if self.config.partitioner is not None:
            chosen = self.config.partitioner(topic, key, count)
            if not 0 <= chosen < count:
                raise InvalidInputError(f"the partitioner chose {chosen}; {topic} has {count} partitions")
            return chosen
        return (murmur2(key) & 0x7FFFFFFF) % count

    def _pick_sticky(self, topic: str) -> int:
        return self.accumulator.next_sticky_partition(topic, self._led.get(topic) or self._partitions[topic])

    def _unknown(self, topic: str, partition: int | None, again: Callable[[], T]) -> WouldBlock[T]:
        """Return the `WouldBlock` for a `send` to a topic or partition that the metadata does not have."""
        SEND.check_argument("topic", topic)
        SEND.check_argument("partition", partition)
        if self.accumulator.failure is not None:
            raise self.accumulator.failure.with_traceback(None)

        async def wait_for_topic(until_ms: float) -> None:
            await self._find_topic(topic, until_ms)
            if partition is not None:
                await self._find_partition(topic, partition, until_ms)
                if partition >= (count := len(self._partitions[topic])):
                    raise InvalidInputError(f"{topic} has {count} partitions, there is no partition {partition}")

        return WouldBlock(wait_for_topic, again)

    async def _find_partition(self, topic: str, partition: int, until_ms: float) -> None:
        """Look a topic up while it lacks a partition, which other brokers may know already, for `TOPIC_CREATION_MS`.

        Source: KAFKA-6833.
        """
        clock_ms = self.accumulator.clock_ms
        late_ms, lookups = min(until_ms, clock_ms() + TOPIC_CREATION_MS), 0
        while partition >= len(self._partitions[topic]):
            lookups += 1
            wait_ms = self.cluster.backoff_ms(lookups)
            if clock_ms() + wait_ms >= late_ms:
                return
            await self.cluster.runtime.sleep(wait_ms)
            await self._find_topic(topic, until_ms)

    async def _find_topic(self, topic: str, until_ms: float) -> None:
        """Look a topic up, waiting until the metadata has it or this time is over.

        Raises:
            KafkaError: The topic is not available.
        """
        self._topics.add(topic)
        self.sender.record_topic_use(topic)
        self._want_topics_in_use()

        began_ms = self.cluster.runtime.now_ms

        async def find_topic_once() -> None:
            info = (await self.cluster.describe_topics([topic], create=True)).get(topic)
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if info is None else info.error
            if code is ErrorCode.NONE and not _is_whole(info):
                code = ErrorCode.LEADER_NOT_AVAILABLE
            if code is not ErrorCode.NONE:
                check_topic_names([topic])
                late = self.cluster.runtime.now_ms - began_ms >= TOPIC_CREATION_MS
                if late and code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and self._missing_topics.should_log(topic):
                    log.warning("topic %r does not exist: records for it wait for it to be created; retrying", topic)
                raise error_for(code, f"topic {topic}: {code.text}")
            self._missing_topics.end_failure(topic)

        try:
            await self.cluster.retry_call(
                find_topic_once, f"metadata of topic {topic}", max(0.0, until_ms - self.accumulator.clock_ms())
            )
        except KafkaError:
            if topic not in self._partitions:  # leave it out of later refreshes
                self._topics.discard(topic)
                self._want_topics_in_use()
            raise

    def _want_topics_in_use(self) -> None:
        """Limit metadata refreshes to topics with records to send, or used within `METADATA_IDLE_MS`."""
        idle_ms = self.cluster.runtime.now_ms - METADATA_IDLE_MS
        used_ms, waiting = self.sender.used_ms, self._with_records()
        in_use = {topic for topic in self._topics if topic in waiting or used_ms.get(topic, idle_ms) > idle_ms}
        self.cluster.set_wanted_topics(self, in_use)

    def _with_records(self) -> set[str]:
        """Return the topics that still have undelivered records."""
        with self.accumulator.lock:
            return {queue.partition.topic for queue in self.accumulator.queues.values() if not queue.idle}

    async def _create_again(self, topics: set[str]) -> None:
        """Ask for deleted topics that have records to send, so that the broker may create them.

        A refresh does not ask for that: it would bring a topic back that nobody uses any more. Source: KAFKA-2948.
        """
        with contextlib.suppress(KafkaError):  # the records' errors say that there is no such topic
            await self.cluster.describe_topics(topics, create=True)

    def _take_metadata(self, metadata: Metadata) -> None:
        """Update the partitions of the producer's topics from new metadata. On the client's thread."""
        for topic in self._topics:
            info = metadata.topics.get(topic)
            if info is not None and _is_whole(info):
                self._led[topic] = sorted(number for number, part in info.partitions.items() if part.leader >= 0)
                numbers = sorted(info.partitions)
                self.accumulator.places[topic] = [TopicPartition(topic, number) for number in numbers]
                self._partitions[topic] = numbers
                self.accumulator.drop_missing_sticky_partition(topic, len(numbers))
        gone = {topic for topic in self._partitions if _is_missing(metadata.topics.get(topic))}
        if gone and (self._creating is None or self._creating.done) and (gone := gone & self._with_records()):
            self._creating = self.cluster.spawn_essential_task(self._create_again(gone), "topics that were deleted")
        self.sender.wake_sender()


def _is_whole(topic: TopicInfo | None) -> bool:
    """Return whether a topic's metadata has no gap in its partition numbers; only then are records partitioned."""
    numbers = () if topic is None else topic.partitions.keys()
    return bool(numbers) and min(numbers) == 0 and max(numbers) == len(numbers) - 1


def _is_missing(topic: TopicInfo | None) -> bool:
    return topic is not None and topic.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


SEND = Arguments(ProducerCore.send)
"""Types of the arguments of `send`, for error texts."""


def not_encodable_error(error: UnicodeEncodeError) -> InvalidInputError:
    """Return the error of a record whose text has no UTF-8 form."""
    return InvalidInputError(
        f"the text has {error.object[error.start]!r}, half of a surrogate pair, at character {error.start}, which "
        "UTF-8 can't write: send bytes, as text.encode(errors='surrogatepass') gives, or mend the text"
    )


def _headers_size(headers: HeadersLike) -> int:
    size = 0
    try:
        for name, content in headers:
            if not isinstance(name, str):
                raise TypeError
            size += len(name) * 4 + content_bytes(content, "header") + 10
    except (TypeError, ValueError):
        SEND.check_argument("headers", headers)
        raise
    return size


def column_names(
    batch: pa.RecordBatch | pa.Table,
    key: str | None,
    value: str | None,
    partition: str | None,
    columns: ColumnNames | None,
) -> ColumnNames:
    """Return the columns to send for the arguments of `send_arrow`."""
    if columns is not None:
        return columns
    missing = key == "key" and key not in batch.schema.names
    return ColumnNames(None if missing else key, value, partition)


class ProducerFacadeMixin(NotPicklable):
    """The properties that `Producer` and `AsyncProducer` share: metrics, producer id and epoch."""

    _core: ProducerCore

    @property
    def metrics(self) -> ProducerMetrics:
        """Return the metrics."""
        return self._core.sender.metrics

    @property
    def epoch(self) -> int:
        """The producer epoch from the broker; -1 before `init_transactions` or the first record."""
        return self._core.sender.identity.epoch

    @property
    def producer_id(self) -> int:
        """The producer id from the broker; -1 before `init_transactions` or the first record."""
        return self._core.sender.identity.producer_id
