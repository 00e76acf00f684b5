"""Sender of the producer's batches to their leaders, on the client's thread.

Order and uniqueness: each batch of an idempotent producer gets the next sequence numbers of its partition when it is
first sent. It keeps them for every further attempt, so that a broker can tell a repetition from a new batch. Nothing
follows the first batch of a partition before the broker has taken it: a broker without a known sequence accepts any.

When a batch must be sent again, its partition sends nothing new until every batch in flight has a response. Then the
batches are sent in the order of their sequences.

When a batch is given up, it may be unknown whether its sequences were used. If they were not, the broker refuses the
next batch as out of order. That shows that neither it nor any later batch of its partition was written. Only then the
producer raises its epoch. Each partition moves to the new epoch, numbered from 0, once none of its batches may have
been written under the old one. Until then a batch keeps its numbers, or it would be written twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kohort.client.net.cluster import ANY, TRANSACTION, Between, BrokerById, Cluster, Coordinator, Target
from kohort.client.net.connection import RECONNECT_GROWTH
from kohort.client.net.metadata import NO_TOPIC_ID
from kohort.client.net.runtime import Promise, logged_kafka_error
from kohort.client.producer.accumulator import Accumulator
from kohort.client.producer.batches import Batch, PartitionQueue, ProducerIdAndEpoch
from kohort.client.producer.settings import ProducerConfig
from kohort.columns import DecodeOptions, RecordSet, decode_all
from kohort.columns.encode import Chunk
from kohort.columns.shapes import BYTES_MAX
from kohort.errors import (
    ErrorCode,
    FencedError,
    KafkaError,
    RecordsRefusedError,
    RetriableError,
    TimedOutError,
    error_for,
)
from kohort.ids import TopicPartition
from kohort.wire.compression import CODECS
from kohort.wire.data import ProduceRequest, ProduceResponse
from kohort.wire.transactions import InitProducerIdRequest

# -- Splitting a batch that a broker finds too large into two with the same records and sequences

_AS_SENT = DecodeOptions(
    columns=("key", "value", "timestamp", "headers"),
    timestamp_unit="ms",
    check_crcs=False,
    max_batch_bytes=BYTES_MAX,
)


def split_batch(batch: Batch, accumulator: Accumulator) -> list[Batch]:
    """Split a batch into two that replace it: it is done when both are. Under the accumulator's lock.

    Args:
        batch: Sealed, with at least two records, in none of its partition's lists.
        accumulator: The owner of its memory.
    """
    assert batch.sealed is not None
    given = RecordSet(batch.partition.topic, batch.partition.partition, batch.sealed, 0)
    records = [record for part in decode_all([given], _AS_SENT) for record in part.records()]
    half = len(records) // 2
    parts = []
    for stretch in (records[:half], records[half:]):
        chunk = Chunk(2 * batch.size)
        for record in stretch:
            if not chunk.append(record.timestamp, record.key, record.value, record.headers):
                raise AssertionError("half of a batch is larger than the batch")
        part = Batch(batch.partition, chunk, batch.owner, batch.created_ms)
        part.size = chunk.size
        parts.append(part)
    if batch.sequence >= 0:
        parts[0].sequence = batch.sequence
        parts[1].sequence = (batch.sequence + half) % 2**31
    accumulator.used += sum(part.size for part in parts) - batch.size
    batch.size = 0
    batch.sealed = None
    batch.replace_by_parts(parts)
    accumulator.incomplete.update(parts)
    return parts


INT32_MAX = 2**31 - 1
EPOCH_MAX = 32_766
METADATA_IDLE_MS = 300_000
"""After this time without records a topic's metadata is not refreshed. Source: KIP-526."""
SOON_MS = 20
"""Wait between requests while the previous transaction still ends, which takes milliseconds."""
LAST_BEFORE_IMPLICIT_PARTITIONS = 11
"""Above version 11, a transactional Produce adds its partitions to the transaction by itself."""
HIGHEST_BY_NAME = 12
"""From version 13 on, Produce names topics by id only."""
_REPEATED = (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
_LOST_PLACE = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH)
_NEVER_WRITTEN = (
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)
"""Codes that brokers return before they write. Leaders return other retriable codes after a write, too."""
_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
_STALE_METADATA = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
)


@dataclass(slots=True)
class ProducerMetrics:
    """Metrics of a producer."""

    records_sent: int = 0
    bytes_sent: int = 0
    requests: int = 0
    retries: int = 0
    failures: int = 0


Way = tuple[int, str]
"""A broker, and the channel of the connection to it."""


@dataclass(slots=True)
class RequestBatches:
    """The batches that go into one Produce request to one broker."""

    way: Way
    batches: list[Batch] = field(default_factory=list)
    size: int = 0


class Sender:
    """The task of a producer that sends its batches to the partitions' leaders, and handles the responses.

    Attributes:
        identity: Producer id and epoch.
        metrics: Metrics.
        in_flight: Number of requests without a response, by broker and channel.
        used_ms: By topic, when a batch was last sent to it, or it was looked up for a record.
        gate: Set by transactions: whether a partition may be sent to yet.
        implicit: Set by transactions: a Produce adds its partitions to the transaction by itself (KIP-890).
        aborting: Set by transactions: why nothing is sent again; batches in flight get no further attempt.
        on_lost: Set by transactions: called for every batch that failed for good.
        failure: The unexpected error that ended the sender, which every later call raises; None: it runs.
        explained: Set by transactions: adds to an error what they know of its cause.
    """

    def __init__(self, cluster: Cluster, accumulator: Accumulator, config: ProducerConfig) -> None:
        self.cluster = cluster
        self.accumulator = accumulator
        self.config = config
        self.identity = ProducerIdAndEpoch()
        self.metrics = ProducerMetrics()
        self.in_flight: dict[Way, int] = {}
        self.used_ms: dict[str, float] = {}
        self.closed = False
        self.gate: Callable[[TopicPartition], bool] | None = None
        self.implicit = False
        self.aborting: KafkaError | None = None
        self.on_lost: Callable[[KafkaError], None] | None = None
        self.failure: KafkaError | None = None
        self.explained: Callable[[KafkaError], KafkaError] = lambda error: error
        self._codec = CODECS[config.compression_type]
        self._work: Promise[None] = Promise()
        self._used_up = False
        self._ask_leaders_ms = 0.0
        self._leader_asks = 0
        self._leaderless = False
        self._answer: list[Batch] = []
        self._delivering: set[Batch] = set()

    def wake_sender(self) -> None:
        """Wake the sender. Under the client's lock."""
        self._work.resolve(None)

    async def run(self) -> None:
        """Send batches to their leaders until the producer is closed; runs as a task of the client."""
        runtime = self.cluster.runtime
        while not self.closed:
            self._work = Promise()
            try:
                if self.config.enable_idempotence and self.config.transactional_id is None:
                    await self._ensure_identity()
                wait = self._step(runtime.now_ms)
            except Exception as error:  # noqa: BLE001 - callers that send or wait get any error
                self.end_sending(error)
                return
            with self.accumulator.lock:
                self.accumulator.wake_ms = self.accumulator.clock_ms() + wait
            await runtime.wait_first(self._work, timeout_ms=wait)

    def end_sending(self, error: Exception, *, at_once: bool = False) -> None:
        """End the sender: fail all records, those sent from now on too, and the open transaction.

        Args:
            error: The reason. Unless the broker has refused a producer id, `flush` and commits raise it too.
            at_once: Do not wait for the answers to requests in flight: the client has ended.
        """
        failure = logged_kafka_error("producer", error)
        if self.failure is None and not isinstance(error, KafkaError):
            self.failure = failure
        self.closed, self.aborting = True, failure
        failed, self._answer = self._answer + self.accumulator.fail_batches(failure), []
        with self.accumulator.lock:
            for queue in self.accumulator.queues.values():
                for batch in list(queue.in_flight):
                    if at_once or batch not in self._delivering:
                        batch.unsure = batch.unsure or batch.left
                        queue.in_flight.remove(batch)
                        failed += self.accumulator.finish_batch(
                            batch, _unsure(batch, failure) if batch.unsure else failure
                        )
        if self.on_lost is not None:
            self.on_lost(failure)
        self.accumulator.wake_waiting_callers()
        self._run_callbacks(failed)
        self.wake_sender()

    def record_topic_use(self, topic: str) -> None:
        """Record that the application sends to this topic now.

        After a long pause its metadata may be outdated, and is requested again.
        """
        now_ms = self.cluster.runtime.now_ms
        before_ms, self.used_ms[topic] = self.used_ms.get(topic, now_ms), now_ms
        if now_ms - before_ms >= METADATA_IDLE_MS:
            self.cluster.request_metadata()

    def raise_if_failed(self) -> None:
        """Raise the unexpected error that ended the sender."""
        if self.failure is not None:
            raise self.failure.with_traceback(None)

    # Identity.

    async def _ensure_identity(self) -> None:
        """Get a producer id before anything is sent.

        Raises:
            KafkaError: The broker refuses, or does not support producer ids.
        """
        if self.identity.producer_id >= 0 and not self._used_up:
            return
        with self.accumulator.lock:
            if not self.accumulator.incomplete:
                return
        failures = 0
        while not self.closed:
            try:
                await self.init_producer_id(
                    ANY, InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=INT32_MAX)
                )
                return
            except RetriableError as error:
                self.accumulator.blocked_reason = str(error)
                self._expire(self.cluster.runtime.now_ms)
                failures += 1
                await self.cluster.runtime.sleep(self.cluster.backoff_ms(failures))

    async def init_producer_id(self, to: Target, request: InitProducerIdRequest) -> None:
        """Get a producer id, and number all batches from 0."""
        answer = await self.cluster.send(request, to)
        if answer.error_code:
            code = ErrorCode.of(answer.error_code)
            raise error_for(code, f"the broker gives no producer id: {code.text}")
        self.adopt_identity(answer.producer_id, answer.producer_epoch)

    def adopt_identity(self, producer_id: int, epoch: int) -> None:
        """Adopt this identity; each partition numbers its batches from 0 when it adopts it too."""
        self.identity = ProducerIdAndEpoch(producer_id, epoch)
        self.accumulator.blocked_reason = ""
        self._used_up = False

    def _raise_epoch(self, queue: PartitionQueue) -> None:
        """Raise the epoch: the broker no longer accepts a partition's sequences, and its batches were not written."""
        if self.config.transactional_id is not None:
            return  # the transaction can only be aborted, which brings the next epoch
        queue.lost_place = True
        if queue.identity != self.identity:
            return  # there is a newer identity
        if self.identity.epoch >= EPOCH_MAX:
            self._used_up = True
        else:
            self.identity = ProducerIdAndEpoch(self.identity.producer_id, self.identity.epoch + 1)

    # Sending.

    def _step(self, now_ms: float) -> float:
        """Send all batches that may be sent; return the milliseconds until the next one may be due."""
        with self.accumulator.lock:
            self.accumulator.wake_ms = float("inf")  # a batch that is opened from here on needs a kick
        self._expire(now_ms)
        if self.config.enable_idempotence and self.identity.producer_id < 0:
            return float(self.config.retry_backoff_ms)
        self._leaderless = False
        while True:
            parcels: dict[Way, RequestBatches] = {}
            wait = 60_000.0
            with self.accumulator.lock:
                for queue in self.accumulator.queues.values():
                    if not queue.idle:
                        wait = min(wait, self._collect(queue, parcels, now_ms))
                    if queue.in_flight:
                        wait = min(wait, queue.in_flight[0].created_ms + self.config.delivery_timeout_ms - now_ms)
                self._move_served_to_end(parcels.values())
            if not parcels:
                if not self._leaderless:
                    self._leader_asks = 0
                return max(1.0, wait)
            for parcel in parcels.values():
                self._dispatch(parcel)

    def _collect(self, queue: PartitionQueue, parcels: dict[Way, RequestBatches], now_ms: float) -> float:
        """Put a queue's next batch into the request to its leader, if it may be sent now.

        Return the milliseconds until the next attempt.
        """
        hurry = self.accumulator.flushing or self.accumulator.waiting or self.closed
        if queue.open is not None:
            age = now_ms - queue.open.created_ms
            if age < self.config.linger_ms and not hurry and not queue.waiting:
                return self.config.linger_ms - age
            if not queue.waiting and queue.open.count:
                queue.close_open_batch()
        if not queue.waiting:
            return 60_000.0
        batch = queue.waiting[0]
        limit = batch.created_ms + self.config.delivery_timeout_ms - now_ms
        if queue.in_flight and not queue.begun and self.config.enable_idempotence:
            return limit
        if queue.mended:
            if queue.in_flight:
                return limit
            queue.mended = queue.has_retried_batch
        if self.config.enable_idempotence and not queue.adopt_identity(self.identity):
            return limit
        if batch.not_before_ms > now_ms:
            return batch.not_before_ms - now_ms
        if self.gate is not None and not self.gate(queue.partition):
            return limit
        node = self.cluster.metadata.leader(queue.partition)
        if node < 0:
            return self._ask_leaders(now_ms)
        channel = queue.partition.partition % self.config.connections_per_broker
        way = node, f"produce-{channel}" if channel else "main"
        if self.in_flight.get(way, 0) >= self.config.max_in_flight_requests_per_connection:
            return limit
        parcel = parcels.get(way)
        if parcel is None:
            parcel = parcels[way] = RequestBatches(way)
        elif parcel.size + batch.size > self.config.max_request_size:
            return limit
        queue.waiting.popleft()
        queue.in_flight.append(batch)
        parcel.batches.append(batch)
        parcel.size += batch.size
        return limit

    def _move_served_to_end(self, parcels: Iterable[RequestBatches]) -> None:
        """Let the partitions that are left out of full requests come first in the next ones. Source: KAFKA-13834."""
        queues = self.accumulator.queues
        for batch in [batch for parcel in parcels for batch in parcel.batches]:
            queues[batch.partition] = queues.pop(batch.partition)

    def _ask_leaders(self, now_ms: float) -> float:
        """Refresh the metadata, but not before the retry backoff is over; return the milliseconds until then.

        Each response wakes the sender.
        """
        self._leaderless = True
        if now_ms >= self._ask_leaders_ms:
            self._leader_asks += 1
            self._ask_leaders_ms = now_ms + self.cluster.backoff_ms(self._leader_asks, RECONNECT_GROWTH)
            self.cluster.request_metadata()
        return self._ask_leaders_ms - now_ms

    def _dispatch(self, parcel: RequestBatches) -> None:
        for batch in parcel.batches:
            self.record_topic_use(batch.partition.topic)
            self._seal(batch)
            self.metrics.retries += batch.attempts > 0
            batch.attempts += 1
        self.in_flight[parcel.way] = self.in_flight.get(parcel.way, 0) + 1
        self.metrics.requests += 1
        self._delivering.update(parcel.batches)
        self.cluster.spawn_essential_task(self._deliver(parcel), f"produce to {parcel.way[0]}")

    def _seal(self, batch: Batch) -> None:
        if batch.sealed is not None:
            return
        assert batch.chunk is not None
        idempotent = self.config.enable_idempotence
        queue = self.accumulator.queues[batch.partition]
        if idempotent and batch.sequence < 0:
            queue.assign_sequence(batch)
        identity = queue.identity
        batch.sealed = batch.chunk.seal(
            self._codec,
            self.config.codec_level,
            identity.producer_id if idempotent else -1,
            identity.epoch if idempotent else -1,
            batch.sequence,
            self.config.transactional_id is not None,
        )
        batch.chunk = None
        self.metrics.bytes_sent += len(batch.sealed)

    async def _deliver(self, parcel: RequestBatches) -> None:
        try:
            await self._deliver_batches(parcel)
        except Exception as error:  # noqa: BLE001 - callers that send or wait get any error
            self._delivering.difference_update(parcel.batches)
            self.end_sending(error)

    async def _deliver_batches(self, parcel: RequestBatches) -> None:
        def mark_batches_sent() -> None:
            for batch in parcel.batches:
                batch.left = True

        try:
            request = Between(self._request(parcel), highest=self._highest(parcel))
            node, channel = BrokerById(parcel.way[0]), parcel.way[1]
            if self.config.acks_number == 0:
                await self.cluster.send_without_response(request, node, channel=channel)
                for batch in parcel.batches:
                    if batch in self.accumulator.queues[batch.partition].in_flight:
                        self._delivered(batch, -1, -1)
            else:
                self._answered(
                    parcel, await self.cluster.send(request, node, channel=channel, leaving=mark_batches_sent)
                )
        except Exception as error:  # noqa: BLE001 - the records' callers get any error
            self.cluster.request_metadata()
            failure = logged_kafka_error("produce", error)
            for batch in parcel.batches:
                if batch in self.accumulator.queues[batch.partition].in_flight:
                    batch.unsure = batch.unsure or batch.left
                    self._batch_failed(batch, failure)
        finally:
            self.in_flight[parcel.way] -= 1
            self._delivering.difference_update(parcel.batches)
        done, self._answer = self._answer, []
        self.accumulator.wake_waiting_callers()
        self._run_callbacks(done)
        self.wake_sender()

    def _highest(self, parcel: RequestBatches) -> int | None:
        if self.config.transactional_id is not None and not self.implicit:
            return LAST_BEFORE_IMPLICIT_PARTITIONS
        metadata = self.cluster.metadata
        if any(metadata.topic_id(batch.partition.topic) == NO_TOPIC_ID for batch in parcel.batches):
            return HIGHEST_BY_NAME
        return None

    def _request(self, parcel: RequestBatches) -> ProduceRequest:
        topics: dict[str, ProduceRequest.TopicProduceData] = {}
        for batch in parcel.batches:
            name = batch.partition.topic
            if name not in topics:
                topic_id = self.cluster.metadata.topic_id(name)
                topics[name] = ProduceRequest.TopicProduceData(name=name, topic_id=topic_id)
            part = ProduceRequest.PartitionProduceData(index=batch.partition.partition, records=batch.sealed)
            topics[name].partition_data.append(part)
        return ProduceRequest(
            transactional_id=self.config.transactional_id,
            acks=self.config.acks_number,
            timeout_ms=self.config.request_timeout_ms,
            topic_data=list(topics.values()),
        )

    # Responses.

    def _answered(self, parcel: RequestBatches, answer: ProduceResponse) -> None:
        names = self.cluster.metadata.topic_names
        partitions = {
            TopicPartition(topic.name or names.get(topic.topic_id, ""), part.index): part
            for topic in answer.responses
            for part in topic.partition_responses
        }
        for batch in parcel.batches:
            part = partitions.get(batch.partition)
            if batch not in self.accumulator.queues[batch.partition].in_flight:
                continue  # it has failed: its time is over, or the producer has ended
            if part is None:
                missing = error_for(ErrorCode.NETWORK_EXCEPTION, f"{batch.partition}: the broker did not answer for it")
                batch.unsure = True
                self._batch_failed(batch, missing)
            elif part.error_code in _REPEATED:
                self._delivered(batch, part.base_offset, part.log_append_time_ms)
            else:
                text = part.error_message or f"{batch.partition}: {ErrorCode.of(part.error_code).text}"
                error = _error_of(part, text)
                batch.unsure = batch.unsure or (error.code.retriable and error.code not in _NEVER_WRITTEN)
                self._batch_failed(batch, error)

    def _delivered(self, batch: Batch, base_offset: int, append_time_ms: int) -> None:
        batch.base_offset = base_offset
        batch.append_time_ms = append_time_ms
        self.metrics.records_sent += batch.count
        with self.accumulator.lock:
            self.accumulator.queues[batch.partition].begun = True
            self._complete_batch(batch, None)

    def _batch_failed(self, batch: Batch, error: KafkaError) -> None:
        """Queue a failed batch again if a retry is allowed, split it if it is too large, or fail its records."""
        if self.aborting is not None:
            self._lose(batch, self.aborting)
            return
        now_ms = self.cluster.runtime.now_ms
        code = error.code
        if code in _STALE_METADATA:
            self.cluster.request_metadata()
        again = isinstance(error, RetriableError) or code.retriable
        if code in _TOO_LARGE and batch.count > 1:
            self._split(batch)
            return
        if self.config.enable_idempotence and code in _LOST_PLACE:
            again = self._lost_place(batch, code)
        if again and batch.attempts <= self.config.retries and not self._overdue(batch, now_ms):
            with self.accumulator.lock:
                queue = self.accumulator.queues[batch.partition]
                queue.in_flight.remove(batch)
                queue.put_back(batch)
                queue.mended = True
                batch.error = error
                pause = self.config.retry_backoff_ms
                if code is ErrorCode.CONCURRENT_TRANSACTIONS:
                    pause = min(pause, SOON_MS)
                batch.not_before_ms = now_ms + self.cluster.connections.backoff_ms(
                    batch.attempts, pause, self.config.retry_backoff_max_ms
                )
            return
        if again:
            is_late = self._overdue(batch, now_ms)
            when = f"within {self.config.delivery_timeout_ms} ms" if is_late else f"after {batch.attempts} attempts"
            error = TimedOutError(_not_delivered(batch, when, str(error)))
        self._lose(batch, error)

    def _split(self, batch: Batch) -> None:
        """Split a batch that the broker found too large, and send the halves instead."""
        with self.accumulator.lock:
            queue = self.accumulator.queues[batch.partition]
            queue.in_flight.remove(batch)
            self.accumulator.halve_batch_limit(batch)
            for part in split_batch(batch, self.accumulator):
                part.attempts = batch.attempts
                queue.put_back(part)
            queue.mended = True

    def _lost_place(self, batch: Batch, code: ErrorCode) -> bool:
        """Return whether to retry a batch whose sequence number or producer epoch the broker refused.

        Without transactions always: the epoch is raised first, unless an earlier batch that has to be sent again
        explains the refusal. With transactions only in the latter case.
        """
        if self.config.transactional_id is not None:
            return code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self._behind_another(batch)
        if not (code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self._behind_another(batch)):
            queue = self.accumulator.queues[batch.partition]
            batch.unsure = False
            self._raise_epoch(queue)
        return True

    def _behind_another(self, batch: Batch) -> bool:
        """Return whether an earlier batch of the partition is in flight or waits to be sent again.

        That explains OUT_OF_ORDER_SEQUENCE_NUMBER for this batch.
        """
        return not self.accumulator.queues[batch.partition].is_first(batch)

    def _lose(self, batch: Batch, error: KafkaError) -> None:
        """Fail a batch that was sent and won't be retried: the broker refused it, or may have appended it.

        An idempotent producer raises its epoch if the partition has no acknowledged batch yet.
        """
        error = self.explained(error)
        queue = self.accumulator.queues[batch.partition]
        if self.config.enable_idempotence and not queue.begun:
            self._raise_epoch(queue)  # else the broker could accept the next batch first and this one after it
        with self.accumulator.lock:
            self._complete_batch(batch, error)
        if self.on_lost is not None:
            self.on_lost(error)
        if self.config.transactional_id is not None and isinstance(error, FencedError):
            self._answer += self.accumulator.fail_batches(error)

    def _complete_batch(self, batch: Batch, error: KafkaError | None) -> None:
        """Complete a batch. Under the accumulator's lock."""
        queue = self.accumulator.queues[batch.partition]
        if batch in queue.in_flight:
            queue.in_flight.remove(batch)
        self.metrics.failures += error is not None
        self._answer += self.accumulator.finish_batch(batch, error)

    def _overdue(self, batch: Batch, now_ms: float) -> bool:
        return now_ms - batch.created_ms >= self.config.delivery_timeout_ms

    def _expire(self, now_ms: float) -> None:
        """Fail batches older than `delivery.timeout.ms`, also those in flight without a response."""
        late: list[Batch] = []
        with self.accumulator.lock:
            for queue in self.accumulator.queues.values():
                if queue.open is not None and self._overdue(queue.open, now_ms):
                    queue.close_open_batch()
                while queue.waiting and self._overdue(queue.waiting[0], now_ms):
                    late.append(queue.waiting.popleft())
                for batch in queue.in_flight:
                    if self._overdue(batch, now_ms):
                        batch.unsure = True  # its request is on its way
                        late.append(batch)
        for batch in late:
            why = self.accumulator.undelivered_reason_locked(batch)
            error = TimedOutError(_not_delivered(batch, f"within {self.config.delivery_timeout_ms} ms", why))
            if batch.attempts:
                self._lose(batch, error)
            else:
                with self.accumulator.lock:
                    self._complete_batch(batch, error)
                if self.on_lost is not None:
                    self.on_lost(error)
        if late:
            failed, self._answer = self._answer, []
            self.accumulator.wake_waiting_callers()
            self._run_callbacks(failed)

    def _run_callbacks(self, batches: list[Batch]) -> None:
        for batch in batches:
            batch.run_callbacks()


def _unsure(batch: Batch, failure: KafkaError) -> KafkaError:
    error = KafkaError(_not_delivered(batch, "before the producer ended", str(failure)))
    error.__cause__ = failure
    return error


def _not_delivered(batch: Batch, when: str, why: str) -> str:
    if batch.unsure:
        return f"{batch.partition}: not known to be delivered {when}, may have been written: {why}"
    return f"{batch.partition}: not delivered {when}: {why}"


def _error_of(part: ProduceResponse.TopicProduceResponse.PartitionProduceResponse, text: str) -> KafkaError:
    if part.record_errors:
        whys = {record.batch_index: record.batch_index_error_message or text for record in part.record_errors}
        return RecordsRefusedError(text, ErrorCode.of(part.error_code), whys)
    return error_for(part.error_code, text)


def coordinator_of(transactional_id: str) -> Coordinator:
    """Return the target of a transaction's requests."""
    return Coordinator(transactional_id, TRANSACTION)
