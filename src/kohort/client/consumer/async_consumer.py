"""The asyncio consumer: the same core as `Consumer`, stepped by the event loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, cast

from kohort.client import lookups
from kohort.client.consumer import shared_methods
from kohort.client.consumer.core import ConsumerCore, WakeupError
from kohort.client.consumer.deserializers import decode_and_look_up_schemas, with_schema_registry
from kohort.client.consumer.effects import (
    AwaitCoroutine,
    CallApplication,
    DecodeRecordSets,
    Effect,
    RunningScript,
    Script,
    WaitUntil,
)
from kohort.client.consumer.fetch_buffer import RowSlice
from kohort.client.consumer.records import Records, slices_to_arrow
from kohort.client.consumer.shared_methods import CALLED_WITHIN, OTHER_CALLER_LEAST_S, OTHER_CALLER_S, NonWaitingMethods
from kohort.client.net.asyncio_driver import AsyncClient
from kohort.client.net.facades import awaiting
from kohort.client.net.runtime import Work
from kohort.client.setting_types import ConsumerSettings
from kohort.client.settings import ConsumerConfig, Servers, client_config
from kohort.columns import Record, decode
from kohort.errors import InvalidInputError
from kohort.ids import TopicPartition
from kohort.settings.arguments import check_call_arguments, checks_arguments
from kohort.settings.config import documents_settings

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
_ITERATION_POLL_MS = 60_000
_DECODE_HERE_BYTES = 64 * 1024


@checks_arguments
@documents_settings(ConsumerConfig)
class AsyncConsumer(NonWaitingMethods):
    """A consumer of topics on the running event loop. Listener methods may be coroutine functions.

    async with AsyncConsumer("127.0.0.1:9092", group_id="etl") as consumer:
        consumer.subscribe(["flights"])
        async for record in consumer:
            ...

    A coordinator that does not answer has the same effects as in `Consumer`.
    """

    config: ConsumerConfig

    @check_call_arguments
    def __init__(self, bootstrap_servers: Servers = None, **settings: Unpack[ConsumerSettings]) -> None:
        """Make a consumer on the running loop; it connects with the first call. Settings are `Consumer`'s."""
        self.config, self._registry = with_schema_registry(
            client_config(ConsumerConfig, bootstrap_servers, settings), schemas_are_prepared=True
        )
        self._client = AsyncClient(self.config)
        self._core = core = ConsumerCore(self._client.cluster, self.config)
        self._client.close_when_collected(self, core.leave_without_commit, core.unclosed_warning)
        self._limit = None if self.config.max_poll_records < 0 else self.config.max_poll_records
        self._idle = asyncio.Event()  # no task is using this consumer
        self._idle.set()
        self._closing: asyncio.Future[None] | None = None
        self._close_asked: tuple[float | None] | None = None
        self._listening: asyncio.Task[Any] | None = None  # the task that has called the listener
        self._iterating: asyncio.Task[Any] | None = None  # the task whose loop has the current record

    # Subscription and assignment.

    async def unsubscribe(self) -> None:
        """Leave the group, or drop the assigned partitions."""
        await self._run(self._core.unsubscribe())

    async def release(self) -> bool:
        """Release the revoked partitions that a `HoldingListener` keeps; the listener may call this itself.

        With auto commit, commit first.

        Returns:
            False if no partitions were held any more, because they were lost meanwhile.
        """
        return await self._run(self._core.release(), in_listener=True)

    # Reading.

    async def poll(self, timeout_ms: float = 1000, max_records: int | None = None) -> Records:
        """Return records as soon as there are any, at most `max_poll_records` (or `max_records`); empty on timeout."""
        limit = self._limit if max_records is None else max_records
        taken = await self._poll(limit, timeout_ms)
        return Records(taken, self.config.key_deserializer, self.config.value_deserializer)

    async def poll_arrow(self, timeout_ms: float = 1000, max_records: int | None = None) -> pa.RecordBatch | None:
        """Return records as one Arrow batch with the columns of Spark's Kafka source; None on timeout."""
        return slices_to_arrow(await self._poll(max_records, timeout_ms))

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Yield records until the consumer is closed. The position follows the record that was yielded last."""
        while not self._client.closed:
            for record in self._core.record_iterator.iterate(await self._poll(self._limit, _ITERATION_POLL_MS)):
                self._iterating = asyncio.current_task()
                yield record
                await self._client.yield_to_event_loop()
        self._client.raise_failure()

    # Offsets.

    commit = awaiting(shared_methods.commit)
    committed = awaiting(shared_methods.committed)

    async def position(self, partition: TopicPartition, *, timeout_ms: float | None = None) -> int:
        """Return the offset of the next record that will be returned. A rebalance listener may call this, too."""
        return await self._run(self._core.position(partition, self._deadline(timeout_ms)), in_listener=True)

    offsets_for_times = awaiting(lookups.offsets_for_times)
    beginning_offsets = awaiting(lookups.beginning_offsets)
    end_offsets = awaiting(lookups.end_offsets)
    partitions_for_topic = awaiting(lookups.partitions_for_topic)

    # Wakeup and close.

    def wakeup(self) -> None:
        """Make the running poll, or the next one, raise WakeupError."""
        self._core.wakeup()
        self._client.notify()

    async def close(self, *, timeout_ms: float | None = None) -> None:
        """Commit what was returned (with auto commit), leave the group at once, close. Does nothing the second time.

        Returned records count as processed: call `close` after processing them. When an exception or a cancellation
        leaves the `async with`, the last poll's records are not committed, and are returned again. The same is true of
        a loop's current record when another task closes the consumer, as a signal handler does.

        A poll of another task returns nothing, and the loop around it ends. In a rebalance listener, `close` returns at
        once, and the poll that called the listener closes the consumer.

        Args:
            timeout_ms: Limit for all of it except the rebalance listener; None: up to 5 s for the commit, 3 s for
                leaving.
        """
        in_hand = self._core.record_iterator.giving and asyncio.current_task() is not self._iterating
        await self._close(timeout_ms, unfinished=in_hand)

    async def _close(self, timeout_ms: float | None, *, unfinished: bool) -> None:
        if self._client.closed:
            return
        if self._listening is not None and self._listening is asyncio.current_task():
            self._close_asked = (timeout_ms,)
            self.wakeup()
            return
        if self._closing is not None:  # another task closes it already
            await asyncio.wait([self._closing])
            return
        until_ms = None if timeout_ms is None else self._client.now_ms() + timeout_ms
        self._closing = asyncio.get_running_loop().create_future()
        try:
            interrupted = await self._interrupt(until_ms)
            left_ms = None if until_ms is None else max(0.0, until_ms - self._client.now_ms())
            try:
                await self._run(self._core.close(left_ms, unfinished=unfinished or interrupted))
            finally:
                await self._client.close()
        finally:
            self._closing.set_result(None)
            self._closing = None

    async def _interrupt(self, until_ms: float | None) -> bool:
        """Wake up the poll that another task runs, and wait until it returns; return whether there was one.

        True also means that the records of that poll were processed by nobody.

        Raises:
            InvalidInputError: The other task does not return in time; nothing is closed.
        """
        interrupted = False
        limit_s = OTHER_CALLER_S if until_ms is None else (until_ms - self._client.now_ms()) / 1000
        deadline = asyncio.get_running_loop().time() + max(OTHER_CALLER_LEAST_S, limit_s)
        while not self._idle.is_set():
            interrupted = True
            self.wakeup()
            try:
                await asyncio.wait_for(self._idle.wait(), deadline - asyncio.get_running_loop().time())
            except TimeoutError:
                text = "another task is using this consumer, and did not return to let it close"
                raise InvalidInputError(text) from None
        return interrupted

    async def _close_if_asked(self) -> bool:
        """Close the consumer if a rebalance listener called `close`; wait for a close that another task runs.

        Return True if the consumer is closed now.
        """
        if self._closing is not None:
            await asyncio.wait([self._closing])
            return True
        close_args, self._close_asked = self._close_asked, None
        if close_args is not None:
            await self._close(close_args[0], unfinished=False)
        return close_args is not None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(None, unfinished=error is not None)

    # Driving the core.

    def _deadline(self, timeout_ms: float | None) -> float:
        return self._client.now_ms() + (self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms)

    async def _call(self, coro: Work[T]) -> T:
        return await self._client.call(coro)

    def _run_action(self, action: Callable[[ConsumerCore], T]) -> T:
        self._client.raise_if_closed()
        self._client.cluster.runtime.set_time(self._client.now_ms())
        try:
            return action(self._core)
        finally:
            self._client.wake()

    def _query(self, question: Callable[[ConsumerCore], T]) -> T:
        return question(self._core)

    async def _poll(self, limit: int | None, timeout_ms: float) -> list[RowSlice]:
        await self._client.yield_to_event_loop()  # before records are taken, which a cancellation would lose
        if await self._close_if_asked():
            return []
        try:
            return await self._run(self._core.poll(limit, self._deadline(timeout_ms)))
        except WakeupError:
            if self._closing is not None or await self._close_if_asked():
                return []
            raise

    async def _run(self, script: Script[T], *, in_listener: bool = False) -> T:
        """Run a script of the core (a generator that yields effects) on the event loop, and return its value.

        With `in_listener`, a rebalance listener may do so, inside the call that called the listener.
        """
        if self._listening is not None and self._listening is asyncio.current_task():
            if not in_listener:
                raise InvalidInputError(CALLED_WITHIN)
            return await self._carry_out(script)
        if not self._idle.is_set():
            raise InvalidInputError(
                "another task is using this consumer; only wakeup and close may be called meanwhile"
            )
        self._idle.clear()
        try:
            return await self._carry_out(script)
        finally:
            self._idle.set()

    async def _carry_out(self, script: Script[T]) -> T:
        running = RunningScript(script)
        while True:
            effect = self._run_action(lambda _: running.step())
            if effect is None:
                return cast(T, running.value)
            try:
                running.store_result(await self._effect(effect))
            except BaseException as error:  # noqa: BLE001 - the script cleans up and raises it again
                running.store_error(error)

    async def _effect(self, effect: Effect) -> Any:
        if isinstance(effect, WaitUntil):
            return await self._client.wait_until(
                effect.ready, max(0.0, (effect.deadline_ms - self._client.now_ms()) / 1000)
            )
        if isinstance(effect, DecodeRecordSets):
            if self._registry is not None:
                return await asyncio.to_thread(decode_and_look_up_schemas, effect, self._registry)
            if sum(len(given.buffer) for given in effect.sets) < _DECODE_HERE_BYTES:
                return decode(effect.sets, effect.options)
            return await asyncio.to_thread(decode, effect.sets, effect.options)
        if isinstance(effect, AwaitCoroutine):
            return await self._client.call(effect.coro)
        if isinstance(effect, CallApplication):
            self._listening = asyncio.current_task()
            try:
                result = effect.function(effect.argument)
                return await result if inspect.isawaitable(result) else result
            finally:
                self._listening = None
        raise TypeError(effect)
