"""The asyncio producer: the same core as `Producer`, stepped by the event loop.

async with AsyncProducer("127.0.0.1:9092") as producer:
    delivery = await producer.send("flights", b"...")        # accepted; `await delivery` gives partition and offset
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from kohort.client.net.asyncio_driver import AsyncClient
from kohort.client.net.facades import awaiting
from kohort.client.net.runtime import Work
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
from kohort.errors import InvalidInputError, KafkaError
from kohort.settings.arguments import check_call_arguments, checks_arguments, skips_argument_checks
from kohort.settings.config import documents_settings

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
log = logging.getLogger("kohort.client")
_CALLS_IN_A_TURN = 512
"""A loop of `send` looks this often whether the event loop is due: a look at the clock would slow each call down."""


@checks_arguments
@documents_settings(ProducerConfig)
class AsyncProducer(ProducerFacadeMixin):
    """A producer of records on the running event loop; used from that loop only.

    Settings and methods are those of `Producer`. `send` returns once the record is accepted: at once, unless the memory
    is full or the topic unknown. Await a delivery: its `result()` can't wait here, because that would stop the event
    loop that delivers.
    """

    config: ProducerConfig

    @check_call_arguments
    def __init__(self, bootstrap_servers: Servers = None, **settings: Unpack[ProducerSettings]) -> None:
        """Make a producer on the running loop; it connects with the first call."""
        self.config = producer_config(bootstrap_servers, settings)
        self._client = client = AsyncClient(self.config)

        def wake_client(step: Callable[[], None]) -> None:
            step()
            client.wake()

        self._core = ProducerCore(client.cluster, self.config, wake_client, _NeverWait)
        self._calls = 0
        self._append_open = self._core.accumulator.append_open
        core = self._core
        client.close_when_collected(self, lambda: core.close(None), core.unclosed_warning)

    # Records.

    @skips_argument_checks
    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: HeadersLike = NO_HEADERS,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """Send one record, with the arguments of `Producer.send`. `on_delivery` is called on the loop."""
        self._calls += 1
        if not self._calls % _CALLS_IN_A_TURN:
            await self._client.yield_to_event_loop()
        try:
            if headers is NO_HEADERS and partition is None and timestamp_ms is None and on_delivery is None:
                delivery = self._append_open(topic, value, key)
                if delivery is not None:
                    return delivery
            return self._core.send(topic, value, key, partition, timestamp_ms, headers, on_delivery)
        except UnicodeEncodeError as error:
            raise not_encodable_error(error) from None
        except WouldBlock as reason:
            first: WouldBlock[Delivery] = reason.with_traceback(None)
        return await self._retry_until_done(first)

    async def send_arrow(
        self,
        topic: str,
        batch: pa.RecordBatch | pa.Table,
        key: str | None = "key",
        value: str | None = "value",
        partition: str | None = None,
        columns: ColumnNames | None = None,
    ) -> TableDelivery:
        """Send the rows of an Arrow batch or table, with the arguments of `Producer.send_arrow`."""
        names = column_names(batch, key, value, partition, columns)
        try:
            return self._core.send_arrow(topic, batch, names)
        except WouldBlock as reason:
            first: WouldBlock[TableDelivery] = reason.with_traceback(None)
        return await self._retry_until_done(first)

    partitions_for = awaiting(ProducerCore.partitions_for)
    flush = awaiting(ProducerCore.flush)

    # Transactions.

    init_transactions = awaiting(ProducerCore.init_transactions)
    begin_transaction = awaiting(ProducerCore.begin_transaction)
    send_offsets_to_transaction = awaiting(ProducerCore.send_offsets_to_transaction)
    send_offsets_of_members = awaiting(ProducerCore.send_offsets_of_members)
    commit_transaction = awaiting(ProducerCore.commit_transaction)
    abort_transaction = awaiting(ProducerCore.abort_transaction)

    # Close.

    async def close(self, *, timeout_ms: float | None = None) -> None:
        """Deliver all records, or abort an open transaction, and close. Does nothing the second time.

        Undelivered records raise nothing here, like in `Producer.close`.

        Args:
            timeout_ms: Limit for all of it; None: until all is delivered or has failed.
        """
        if (undelivered := await self._close(timeout_ms)) is not None:
            log.warning(
                "the producer closed, and the application has not noticed that records were lost: %s; to notice, give "
                "send() a callback on_delivery, or call result() of each delivery",
                undelivered,
            )

    async def _close(self, timeout_ms: float | None) -> KafkaError | None:
        """Close; return the error of undelivered records that the application did not read."""
        if self._client.closed:
            return self._core.unread_failures_error() if self._client.failed else None
        try:
            await self._client.call(self._core.close(timeout_ms))
        except BaseException:  # a cancellation, for one: other tasks may wait for deliveries
            self._core.fail_records()
            raise
        finally:
            await self._client.close()
        return self._core.unread_failures_error()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the producer; raise the errors of `Producer.__exit__`."""
        if kind is not None:
            await self.close(timeout_ms=self._core.abort_close_limit_ms())
        elif (undelivered := await self._close(None)) is not None:
            raise undelivered

    # Internals.

    async def _call(self, coro: Work[T]) -> T:
        return await self._client.call(coro)

    async def _retry_until_done(self, reason: WouldBlock[T]) -> T:
        """Wait for memory or metadata, and retry the call, until it succeeds."""
        until_ms = self._core.send_deadline_ms()
        while True:
            await self._client.call(reason.wait(until_ms))
            try:
                return reason.again()
            except WouldBlock as another:
                reason = another.with_traceback(None)
                if reason.moved:
                    until_ms = self._core.send_deadline_ms()


class _NeverWait(threading.Condition):
    """A condition whose `wait_for` raises an error instead of blocking the event loop's thread."""

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        if timeout == 0:
            return predicate()
        raise InvalidInputError("not delivered yet: await the delivery, waiting here would stop the event loop")
