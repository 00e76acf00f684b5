"""The producer: records and Arrow batches into topics.

    with Producer("127.0.0.1:9092", compression_type="zstd") as producer:
        producer.send("flights", value=b"...", key=b"N14228")           # a Delivery: .result() has partition and offset
        producer.send_arrow("flights", batch, key="tailnum", value="json").result()

`send` returns at once; records leave in batches, when one is full or `linger_ms` old. It blocks only while `buffer_memory` is
full or a topic is not known yet, at most `max_block_ms`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kohort.client.net.metadata import Metadata
from kohort.client.net.thread_driver import ThreadClient
from kohort.client.offset_values import GroupMetadata
from kohort.client.producer.accumulator import OVERHEAD, Accumulator, sized
from kohort.client.producer.batches import Delivery, RecordMetadata, TableDelivery
from kohort.client.producer.sender import Figures, Sender
from kohort.client.producer.settings import ProducerConfig
from kohort.client.producer.transactions import Transactions, TxnState
from kohort.client.settings import client_config
from kohort.columns.encode import ColumnNames, encode_arrow, murmur2
from kohort.columns.shapes import HeadersLike
from kohort.errors import ErrorCode, InvalidInputError, KafkaError, TimedOutError, error_for
from kohort.ids import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

OnDelivery = Callable[[KafkaError | None, RecordMetadata | None], None]
_ROWS_AT_ONCE = 65_536
"""Rows of a table that are encoded before their batches are handed over, so that sending starts early."""


def producer_config(
    bootstrap_servers: str | list[str] | tuple[str, ...] | None, given: Mapping[str, Any]
) -> ProducerConfig:
    """Settings as given; acks=0 or 1 switches idempotence off unless it is asked for, as in Kafka's own producer."""
    settings = dict(given)
    if "acks" in settings:
        settings["acks"] = str(settings["acks"])
        if settings["acks"] in ("0", "1") and not {"enable_idempotence", "enable.idempotence"} & settings.keys():
            settings["enable_idempotence"] = False
    return client_config(ProducerConfig, bootstrap_servers, settings).check()


class Producer:
    """Sends records. Safe to share between threads; not across a fork.

    Args:
        bootstrap_servers: HOST:PORT, several with commas or as a list.
        **settings: Kafka's names with `_` for `.`; see `ProducerConfig`.

    Raises:
        InvalidInputError: an unknown setting (the nearest is named), or a contradiction.
    """

    def __init__(self, bootstrap_servers: str | list[str] | tuple[str, ...] | None = None, **settings: Any) -> None:
        self.config = producer_config(bootstrap_servers, settings)
        self._client = ThreadClient(self.config)
        cluster = self._client.cluster
        cluster.auto_create_topics = True
        self._accumulator = Accumulator(self.config, self._kick)
        self._sender = Sender(cluster, self._accumulator, self.config)
        self._txn = (
            None
            if self.config.transactional_id is None
            else Transactions(cluster, self._accumulator, self._sender, self.config)
        )
        self._partitions: dict[str, list[int]] = {}
        self._places: dict[str, list[TopicPartition]] = {}
        self._led: dict[str, list[int]] = {}
        self._topics: set[str] = set()
        self._closed = False
        self._started = False
        self._starting = threading.Lock()
        self._serialize = self.config.key_serializer is not None or self.config.value_serializer is not None
        cluster.on_metadata(self._take_metadata)

    # Records.

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: HeadersLike = (),
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """Send one record.

        Args:
            topic: Where to.
            value: Bytes, str (sent as UTF-8), what `value_serializer` takes, or None for a tombstone.
            key: Likewise, with `key_serializer`.
            partition: None: by key, or the sticky partition where there is no key.
            timestamp_ms: Since the epoch; None: now.
            headers: Pairs of name and bytes or None.
            on_delivery: Called with (error, None) or (None, metadata), on the producer's thread: keep it short.

        Returns:
            The future of its partition and offset.

        Raises:
            TimedOutError: memory stayed full, or the topic unknown, for `max_block_ms`.
            InvalidInputError: no such partition, or no bytes.
        """
        if self._serialize:
            key, value = self._serialized(key, value)
        if type(value) is str:
            value = value.encode()
        if type(key) is str:
            key = key.encode()
        size = (0 if key is None else sized(key, "key")) + sized(value, "value") + OVERHEAD
        if headers:
            size += sum(len(name) * 4 + sized(content, "header") + 10 for name, content in headers)
        if size > self.config.max_request_size:
            self._too_large(size)
        partitions = self._partitions.get(topic)
        if partitions is None:
            partitions = self._await_topic(topic)
        if partition is None:
            partition = self._choose(topic, key, len(partitions))
        elif not 0 <= partition < len(partitions):
            self._check_partition(topic, partition)
        stamp = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
        place = self._places[topic][partition]
        return self._accumulator.append(place, (stamp, key, value, headers), size, on_delivery)

    def send_arrow(
        self,
        topic: str,
        batch: pa.RecordBatch | pa.Table,
        key: str | None = "key",
        value: str | None = "value",
        partition: str | None = None,
        columns: ColumnNames | None = None,
    ) -> TableDelivery:
        """Send the rows of an Arrow batch or table, in their order, without making an object of any.

        Args:
            topic: Where to.
            batch: The rows.
            key: Column of keys (bytes or strings); None, or a column named "key" that is missing: no keys.
            value: Column of values.
            partition: Column of partitions; None: by key, rows without key batch by batch to the sticky partition.
            columns: Names all columns, time and headers too, instead of the three above.

        Raises:
            InvalidInputError: a column is missing or of a type that can't be sent.
            TimedOutError: as for `send`.
        """
        names = columns
        if names is None:
            missing = key == "key" and key not in batch.schema.names
            names = ColumnNames(None if missing else key, value, partition)
        count = len(self._partitions.get(topic) or self._await_topic(topic))
        sent = []
        for part in batch.to_batches() if hasattr(batch, "to_batches") else [batch]:
            for start in range(0, len(part), _ROWS_AT_ONCE):
                now = int(time.time() * 1000)
                limit = self._accumulator.batch_limit
                rows = part.slice(start, _ROWS_AT_ONCE)
                for to, chunk in encode_arrow(rows, names, count, lambda: self._pick_sticky(topic), now, limit):
                    if chunk.size > self.config.max_request_size:
                        self._too_large(chunk.size)
                    sent.append(self._accumulator.add(TopicPartition(topic, to), chunk))
        return TableDelivery(sent)

    def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic, sorted."""
        return list(self._partitions.get(topic) or self._await_topic(topic))

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every record sent so far is delivered or failed; failures are in their deliveries.

        Raises:
            TimedOutError: time is over.
        """
        if not self._accumulator.flush(timeout_s):
            raise TimedOutError(f"records are still not delivered after {timeout_s} s")

    @property
    def figures(self) -> Figures:
        """Counters."""
        return self._sender.figures

    @property
    def epoch(self) -> int:
        """The producer epoch that the broker gave; -1 before."""
        return self._sender.identity.epoch

    # Transactions.

    def init_transactions(self) -> None:
        """Make this the only producer of its `transactional_id`, once, before the first transaction."""
        transactions = self._transactions()
        self._start()
        self._client.call(transactions.init())

    def begin_transaction(self) -> None:
        """Open a transaction: everything sent until commit or abort is in it."""
        self._transactions().begin()

    def send_offsets_to_transaction(self, offsets: Mapping[TopicPartition, Any], group: str | GroupMetadata) -> None:
        """Commit a group's offsets with the transaction.

        Args:
            offsets: The next offset to read of each partition, as a number or an OffsetAndMetadata.
            group: The group's id, or the consumer's group metadata (which fences a consumer that lost its place).
        """
        self._client.call(self._transactions().send_offsets(offsets, group))

    def commit_transaction(self) -> None:
        """Deliver everything and commit.

        Raises:
            KafkaError: it can't be committed; abort it.
        """
        transactions = self._transactions()
        self._accumulator.flush(None)
        self._client.call(transactions.end(commit=True))

    def abort_transaction(self) -> None:
        """Undo the transaction; records that still wait fail."""
        transactions = self._transactions()
        if transactions.state in (TxnState.OPEN, TxnState.FAILED):
            for batch in transactions.drop_unsent():
                batch.tell()
        self._accumulator.flush(None)
        self._client.call(transactions.end(commit=False))

    # Life.

    def close(self, timeout_s: float | None = None) -> None:
        """Deliver what was sent (for at most `timeout_s`), then close. Does nothing the second time."""
        if self._closed:
            return
        self._closed = True
        if self._started and not self._client.closed:
            if self._txn is not None and self._txn.state is TxnState.OPEN:
                for batch in self._txn.drop_unsent():
                    batch.tell()
            self._accumulator.flush(timeout_s)
        with self._client.lock:
            self._sender.closed = True
            self._sender.kick()
        for batch in self._accumulator.fail(error_for(ErrorCode.NETWORK_EXCEPTION, "the producer is closed")):
            batch.tell()
        self._client.close()

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(None if kind is None else 0)

    # Inside.

    def _kick(self) -> None:
        with self._client.lock:
            self._start()
            self._sender.kick()
            self._client.wake()

    def _start(self) -> None:
        with self._starting:
            if self._started:
                return
            self._started = True
        self._client.submit(self._sender.run(), "producer")

    def _transactions(self) -> Transactions:
        if self._txn is None:
            raise InvalidInputError("transactions need the setting transactional_id")
        return self._txn

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
        if key is not None:
            return (murmur2(key) & 0x7FFFFFFF) % count
        return self._accumulator.sticky(topic, self._led.get(topic) or list(range(count)))

    def _pick_sticky(self, topic: str) -> int:
        return self._accumulator.next_sticky(topic, self._led.get(topic) or self._partitions[topic])

    def _check_partition(self, topic: str, partition: int) -> None:
        partitions = self._await_topic(topic, again=True)
        if not 0 <= partition < len(partitions):
            raise InvalidInputError(f"{topic} has {len(partitions)} partitions, there is no partition {partition}")

    def _await_topic(self, topic: str, again: bool = False) -> list[int]:
        """Ask for a topic, at most `max_block_ms`.

        Raises:
            KafkaError: it can't be had.
        """
        if self._closed:
            raise InvalidInputError("the producer is closed")
        cluster = self._client.cluster
        limit = self.config.max_block_ms

        async def ask() -> None:
            self._topics.add(topic)
            cluster.want_topics(self, self._topics)

            async def attempt() -> None:
                info = (await cluster.describe_topics([topic])).get(topic)
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if info is None else info.error
                if code is ErrorCode.NONE and info is not None and not info.partitions:
                    code = ErrorCode.LEADER_NOT_AVAILABLE
                if code is not ErrorCode.NONE:
                    raise error_for(code, f"topic {topic}: {code.text}")

            await cluster.retrying(attempt, f"metadata of topic {topic}", limit)

        if again or topic not in self._partitions:
            self._client.call(ask())
        return self._partitions[topic]

    def _take_metadata(self, metadata: Metadata) -> None:
        """On the client's thread, after every answer."""
        for topic in self._topics:
            info = metadata.topics.get(topic)
            if info is not None and info.partitions:
                self._led[topic] = sorted(number for number, part in info.partitions.items() if part.leader >= 0)
                numbers = sorted(info.partitions)
                self._places[topic] = [TopicPartition(topic, number) for number in numbers]
                self._partitions[topic] = numbers
        self._sender.kick()
