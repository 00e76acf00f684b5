"""The producer: records and Arrow batches into topics.

    with Producer("127.0.0.1:9092", compression_type="zstd") as producer:
        producer.send("flights", value=b"...", key=b"N14228")           # a Delivery: .result() has partition and offset
        producer.send_arrow("flights", batch, key="tailnum", value="json").result()

A transaction of offsets and records, which `read_committed` readers see together or not at all:

    producer = Producer("127.0.0.1:9092", transactional_id="copier-1")
    producer.init_transactions()
    while True:
        records = consumer.poll()                                       # a Consumer with enable_auto_commit=False
        producer.begin_transaction()
        try:
            ...send the results, and collect the offsets after the records...
            producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
            producer.commit_transaction()
        except FencedError:
            raise                                                       # another copier-1 took over: close
        except KafkaError:
            producer.abort_transaction()                                # then seek back to the committed offsets

`send` returns at once; records are sent in batches, when one is full or `linger_ms` old. It blocks only while
`buffer_memory` is full or a topic is not known yet, at most `max_block_ms`.

A record that could not be delivered has the error in its `Delivery`, and in the `on_delivery` callback. Leaving the
`with` block raises when records failed and the application did not read the error.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from kohort.client.net.facades import blocking
from kohort.client.net.runtime import Work
from kohort.client.net.thread_driver import ClientClosedError, ThreadClient
from kohort.client.producer.accumulator import NO_HEADERS, WouldBlock
from kohort.client.producer.batches import Delivery, TableDelivery
from kohort.client.producer.core import (
    OnDelivery,
    ProducerCore,
    ProducerFacadeMixin,
    column_names,
    not_encodable_error,
    producer_config,
)
from kohort.client.producer.settings import ProducerConfig
from kohort.client.setting_types import ProducerSettings
from kohort.client.settings import Servers
from kohort.columns.encode import ColumnNames
from kohort.columns.shapes import HeadersLike
from kohort.errors import KafkaError
from kohort.settings.arguments import check_call_arguments, checks_arguments, skips_argument_checks
from kohort.settings.config import documents_settings

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
log = logging.getLogger("kohort.client")
_GOODBYE_MS = 5_000
"""Limit for a producer that nobody closed to deliver its records when the interpreter exits."""


@checks_arguments
@documents_settings(ProducerConfig)
class Producer(ProducerFacadeMixin):
    """A producer of records. Safe to share between threads; not across a fork.

    Args:
        bootstrap_servers: HOST:PORT, several with commas or as a list.
        **settings: Kafka's names with `_` for `.`.

    Raises:
        InvalidInputError: An unknown setting (the nearest is named), or a contradiction.
    """

    config: ProducerConfig

    @check_call_arguments
    def __init__(self, bootstrap_servers: Servers = None, **settings: Unpack[ProducerSettings]) -> None:
        self.config = producer_config(bootstrap_servers, settings)
        self._client = client = ThreadClient(self.config)

        def wake_client(step: Callable[[], None]) -> None:
            with client.lock:
                step()
                client.wake()

        self._core = ProducerCore(client.cluster, self.config, wake_client)
        self._append_open = self._core.accumulator.append_open
        client.close_when_collected(self, _abandon, self._core)

    # Records.

    @skips_argument_checks
    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: HeadersLike = NO_HEADERS,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """Send one record.

        Args:
            topic: The topic.
            value: Bytes, str (sent as UTF-8), what `value_serializer` takes, or None for a tombstone.
            key: Likewise, with `key_serializer`.
            partition: None: by key, or the sticky partition where there is no key.
            timestamp_ms: Since the epoch; None: now.
            headers: Pairs of name and bytes or None.
            on_delivery: Called with (error, None) or (None, metadata), on the producer's thread: it must be quick.

        Returns:
            A future of the record's partition and offset.

        Raises:
            TimedOutError: Memory stayed full, or the topic unknown, for `max_block_ms`.
            InvalidInputError: No such partition, or key or value are no bytes, or a text is no UTF-8.
        """
        try:
            if headers is NO_HEADERS and partition is None and timestamp_ms is None and on_delivery is None:
                delivery = self._append_open(topic, value, key)
                if delivery is not None:
                    return delivery
            return self._core.send(topic, value, key, partition, timestamp_ms, headers, on_delivery)
        except WouldBlock as reason:
            first: WouldBlock[Delivery] = reason.with_traceback(None)
        except UnicodeEncodeError as error:
            raise not_encodable_error(error) from None
        return self._retry_until_done(first)

    def send_arrow(
        self,
        topic: str,
        batch: pa.RecordBatch | pa.Table,
        key: str | None = "key",
        value: str | None = "value",
        partition: str | None = None,
        columns: ColumnNames | None = None,
    ) -> TableDelivery:
        """Send the rows of an Arrow batch or table, in their order, without an object for each row.

        Args:
            topic: The topic.
            batch: The rows.
            key: The column of keys (bytes or strings). None, or "key" without such a column: no keys.
            value: Column of values.
            partition: Column of partitions. None: by key; rows without a key to the sticky partition of each batch.
            columns: The names of all columns, with time and headers, instead of the three above.

        Raises:
            InvalidInputError: A column is missing or of a type that can't be sent.
            TimedOutError: For the reasons of `send`.
        """
        names = column_names(batch, key, value, partition, columns)
        try:
            return self._core.send_arrow(topic, batch, names)
        except WouldBlock as reason:
            first: WouldBlock[TableDelivery] = reason.with_traceback(None)
        return self._retry_until_done(first)

    partitions_for = blocking(ProducerCore.partitions_for)
    flush = blocking(ProducerCore.flush)

    # Transactions.

    init_transactions = blocking(ProducerCore.init_transactions)
    begin_transaction = blocking(ProducerCore.begin_transaction)
    send_offsets_to_transaction = blocking(ProducerCore.send_offsets_to_transaction)
    send_offsets_of_members = blocking(ProducerCore.send_offsets_of_members)
    commit_transaction = blocking(ProducerCore.commit_transaction)
    abort_transaction = blocking(ProducerCore.abort_transaction)

    # Close.

    def close(self, *, timeout_ms: float | None = None) -> None:
        """Deliver all records, or abort an open transaction, and close. Does nothing the second time.

        In a delivery's callback, `close` returns at once, and the producer closes when all is delivered.

        Undelivered records raise nothing here: their deliveries and callbacks have the error. If the application has
        read neither, a warning is logged.

        Args:
            timeout_ms: Limit for all of it; None: until all is delivered or has failed.
        """
        if (undelivered := self._close(timeout_ms)) is not None:
            log.warning(
                "the producer closed, and the application has not noticed that records were lost: %s; to notice, give "
                "send() a callback on_delivery, or call result() of each delivery",
                undelivered,
            )

    def _close(self, timeout_ms: float | None) -> KafkaError | None:
        """Close; return the error of undelivered records that the application did not read."""
        if self._client.closed:
            return self._core.unread_failures_error() if self._client.failed else None
        if self._client.is_own_thread():
            self._client.abandon(self._core.close(timeout_ms))
            return None
        until_s = self._client.deadline_s(timeout_ms)
        try:
            with contextlib.suppress(ClientClosedError):  # in a forked child
                self._client.call(self._core.close(timeout_ms))
        except BaseException:  # Ctrl-C, for one: other threads may wait for deliveries
            with self._client.lock:
                self._core.fail_records()
            raise
        finally:
            self._client.close(until_s)
        return self._core.unread_failures_error()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the producer.

        Raises:
            KafkaError: Records were not delivered, and the application has read neither a callback's error nor a
                delivery's. It does not replace an exception that is already being raised.
        """
        if kind is not None:
            self.close(timeout_ms=self._core.abort_close_limit_ms())
        elif (undelivered := self._close(None)) is not None:
            raise undelivered

    # Internals.

    def _call(self, coro: Work[T]) -> T:
        return self._client.call(coro)

    def _retry_until_done(self, reason: WouldBlock[T]) -> T:
        """Wait for memory or metadata, and retry the call, until it succeeds."""
        until_ms = self._core.send_deadline_ms()
        while True:
            self._client.call(reason.wait(until_ms))
            try:
                return reason.again()
            except WouldBlock as another:
                reason = another.with_traceback(None)
                if reason.moved:
                    until_ms = self._core.send_deadline_ms()


def _abandon(client: ThreadClient, core: ProducerCore) -> None:
    """Deliver the records of a producer that nobody closed."""
    if core.started and not client.closed:
        client.abandon(core.close(_GOODBYE_MS), _GOODBYE_MS / 1000 + 1)
    client.close()
