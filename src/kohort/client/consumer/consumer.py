"""The blocking consumer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, cast

from kohort.client import lookups
from kohort.client.consumer import shared_methods
from kohort.client.consumer.core import ConsumerCore, WakeupError
from kohort.client.consumer.deserializers import with_schema_registry
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
from kohort.client.lookups import LookupMethods
from kohort.client.net.facades import blocking
from kohort.client.net.thread_driver import ThreadClient, copy_error_for_application
from kohort.client.setting_types import ConsumerSettings
from kohort.client.settings import ConsumerConfig, Servers, client_config
from kohort.columns import Record, decode
from kohort.errors import InvalidInputError, KafkaError
from kohort.ids import TopicPartition
from kohort.io.signal_delay import SignalDelay
from kohort.settings.arguments import check_call_arguments, checks_arguments
from kohort.settings.config import documents_settings

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
_ITERATION_POLL_MS = 60_000


@checks_arguments
@documents_settings(ConsumerConfig)
class Consumer(LookupMethods, NonWaitingMethods):
    """A consumer of topics, as a group member or with partitions assigned by hand.

        with Consumer("127.0.0.1:9092", group_id="etl", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["flights"])
            while True:
                for record in consumer.poll(timeout_ms=1000):
                    ...
                consumer.commit()

    One thread at a time may use it; `wakeup` may be called from any. Heartbeats and fetches continue in the background
    between polls; rebalance listeners are called inside `poll`, by the thread that polls.

    A kohort broker may soon reassign this consumer's partitions when its coordinator has not answered for
    `group.disconnect.lease.ms`. Polls then return nothing (a warning is logged, `metrics.lapses` counts it) and
    positions stay. The next answer resumes the consumer.

    While no broker can be reached, polls return nothing and the connections are retried. A broker that restarts can't
    be told from an address that never had one. The log `kohort.client` has a warning at once, then less and less often.
    Calls that need an answer (`committed`, `position`, `commit` …) raise TimedOutError when their time is over. Its
    text has addresses and causes.
    """

    _core: ConsumerCore

    @check_call_arguments
    def __init__(self, bootstrap_servers: Servers = None, **settings: Unpack[ConsumerSettings]) -> None:
        """Make a consumer, which connects with the first call.

        Args:
            bootstrap_servers: HOST:PORT, several with commas between or as a list.
            **settings: Kafka's names with `_` for `.`, or as a file has them (`**{"group.id": "g"}`). The class's
                docstring lists them.

        Raises:
            InvalidInputError: An unknown setting (naming the nearest), or an invalid value.
        """
        config, _registry = with_schema_registry(client_config(ConsumerConfig, bootstrap_servers, settings))
        super().__init__(ThreadClient(config), config)
        self._core = ConsumerCore(self._client.cluster, self.config)
        self._user = threading.Lock()
        self._user_thread: int | None = None
        self._in_listener = False
        self._close_asked: tuple[float | None] | None = None
        self._client.close_when_collected(self, _abandon, self._core)
        self._limit = None if self.config.max_poll_records < 0 else self.config.max_poll_records

    # Subscription and assignment.

    def unsubscribe(self) -> None:
        """Leave the group, or drop the assigned partitions."""
        self._run(self._core.unsubscribe())

    def release(self) -> bool:
        """Release the revoked partitions that a `HoldingListener` keeps; the listener may call this itself.

        With auto commit, commit first.

        Returns:
            False if no partitions were held any more, because they were lost meanwhile.
        """
        return self._run(self._core.release(), in_listener=True)

    # Reading.

    def poll(self, timeout_ms: float = 1000, max_records: int | None = None) -> Records:
        """Return records as soon as there are any, at most `max_poll_records` (or `max_records`); empty on timeout.

        Raises:
            WakeupError: `wakeup` was called.
            KafkaError: The group can't be joined, or a partition can't be read. The error skips no record.
        """
        limit = self._limit if max_records is None else max_records
        taken = self._poll(limit, timeout_ms)
        return Records(taken, self.config.key_deserializer, self.config.value_deserializer)

    def poll_arrow(self, timeout_ms: float = 1000, max_records: int | None = None) -> pa.RecordBatch | None:
        """Return records as one Arrow batch with the columns of Spark's Kafka source; None on timeout.

        Args:
            timeout_ms: Limit for the first record.
            max_records: None: those of one fetch, within `fetch_max_bytes`.
        """
        return slices_to_arrow(self._poll(max_records, timeout_ms))

    def __iter__(self) -> Iterator[Record]:
        """Yield records until the consumer is closed. The position follows the record that was yielded last."""
        while not self._client.closed:
            yield from self._core.record_iterator.iterate(self._poll(self._limit, _ITERATION_POLL_MS))
        self._client.raise_failure()

    # Offsets.

    commit = blocking(shared_methods.commit)
    committed = blocking(shared_methods.committed)

    def position(self, partition: TopicPartition, *, timeout_ms: float | None = None) -> int:
        """Return the offset of the next record that will be returned. A rebalance listener may call this, too."""
        return self._run(self._core.position(partition, self._deadline(timeout_ms)), in_listener=True)

    def seek_to_times(self, times: Mapping[TopicPartition, int], *, timeout_ms: float | None = None) -> None:
        """Continue from the first records at or after these times (ms since the epoch).

        A partition without such a record continues after its last offset.
        """
        offsets = self.offsets_for_times(times, timeout_ms=timeout_ms)
        late = [partition for partition, value in offsets.items() if value is None]
        if late:
            self.seek_to_end(*late)
        for partition, value in offsets.items():
            if value is not None:
                self.seek(partition, value.offset)

    partitions_for_topic = blocking(lookups.partitions_for_topic)

    # Wakeup and close.

    def wakeup(self) -> None:
        """Make the running poll, or the next one, raise WakeupError. May be called from any thread."""
        with self._client.lock:
            self._core.wakeup()
        self._client.notify()

    def close(self, *, timeout_ms: float | None = None) -> None:
        """Commit what was returned (with auto commit), leave the group at once, close. Does nothing the second time.

        Records that `poll` returned count as processed, as in Kafka's own consumer: call `close` after processing them.
        The current record of a loop over the consumer is not committed, and is returned again. When an exception leaves
        the `with`, the last poll's records are not committed either, beyond what the application has committed of them.

        In a signal handler that interrupts `poll`, `close` returns at once: the poll returns nothing and closes the
        consumer. In a rebalance listener or a commit's callback, the running or next poll does. Does nothing in a
        forked child.

        Args:
            timeout_ms: Limit for all of it except the rebalance listener; None: up to 5 s for the commit, 3 s for
                leaving.
        """
        self._close(timeout_ms, unfinished=self._core.record_iterator.giving)

    def _close(self, timeout_ms: float | None, *, unfinished: bool) -> None:
        if self._client.closed or self._client.was_made_before_fork():
            return
        # In a method of this consumer, which a signal handler has interrupted or which calls a listener or callback.
        if self._user_thread == threading.get_ident() or self._client.is_own_thread():
            self._close_asked = (timeout_ms,)
            self.wakeup()
            return
        until_s = self._client.deadline_s(timeout_ms)
        interrupted = self._enter_to_close(timeout_ms, until_s)
        if interrupted is None:
            return
        try:
            self._carry_out(self._core.close(timeout_ms, unfinished=unfinished or interrupted))
        except KafkaError as error:
            raise copy_error_for_application(error)  # noqa: B904 - a copy of the error
        finally:
            self._leave()
            self._client.close(until_s)

    def _enter_to_close(self, timeout_ms: float | None, until_s: float | None) -> bool | None:
        """Make this thread the one that closes the consumer.

        If another thread polls, end its poll, and let that thread close the consumer itself.

        Returns:
            Whether a call of the other thread was interrupted: nobody has processed the records that it returns. None
            if the other thread has closed the consumer.

        Raises:
            InvalidInputError: The other thread does not return in time; nothing is closed.
        """
        interrupted = not self._user.acquire(blocking=False)
        if interrupted:
            self._close_asked = (timeout_ms,)
            self.wakeup()
            limit_s = OTHER_CALLER_S if until_s is None else until_s - time.monotonic()
            if not self._user.acquire(timeout=max(OTHER_CALLER_LEAST_S, limit_s)):
                raise InvalidInputError("another thread is using this consumer, and did not return to let it close")
        self._user_thread = threading.get_ident()
        if self._client.closed:
            self._leave()
            return None
        return interrupted

    def _close_if_asked(self) -> bool:
        close_args, self._close_asked = self._close_asked, None
        if close_args is not None:
            self._close(close_args[0], unfinished=False)
        return close_args is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(None, unfinished=error is not None)

    # Driving the core.

    def _deadline(self, timeout_ms: float | None) -> float:
        limit = self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        return time.monotonic() * 1000 + limit

    def _run_action(self, action: Callable[[ConsumerCore], T], *, sends: bool = False) -> T:
        """Run a function of the consumer's core under the client's lock; with `sends`, also send its requests here.

        Otherwise the client's thread sends them.
        """
        client = self._client
        with client.lock, SignalDelay():
            client.raise_if_closed()
            client.cluster.runtime.set_time(time.monotonic() * 1000)
            try:
                return action(self._core)
            finally:
                if sends:
                    client.send_now()
                else:
                    client.wake_if_busy()

    def _poll(self, limit: int | None, timeout_ms: float) -> list[RowSlice]:
        self._core.taken = []
        try:
            return self._poll_once(limit, timeout_ms)
        except BaseException:
            with self._client.lock:
                self._core.refetch_unread_records()
            raise
        finally:
            self._core.taken = []  # the application alone keeps their memory

    def _poll_once(self, limit: int | None, timeout_ms: float) -> list[RowSlice]:
        if self._close_if_asked():
            return []
        if limit is not None:
            self._enter()
            try:
                taken = self._run_action(lambda core: core.poll_without_waiting(limit), sends=True)
            finally:
                self._leave()
            if taken:
                return taken
        try:
            return self._run(self._core.poll(limit, self._deadline(timeout_ms)))
        except WakeupError:
            if self._close_if_asked():
                return []
            raise

    def _run(self, script: Script[T], *, in_listener: bool = False) -> T:
        """Run a script of the core (a generator that yields effects) on this thread, and return its value.

        With `in_listener`, a rebalance listener may do so, inside the call that called the listener.
        """
        nested = in_listener and self._in_listener and self._user_thread == threading.get_ident()
        if not nested:
            self._enter()
        try:
            return self._carry_out(script)
        except KafkaError as error:
            raise copy_error_for_application(error)  # noqa: B904 - a copy of the error
        finally:
            if not nested:
                self._leave()

    def _enter(self) -> None:
        if not self._user.acquire(blocking=False):
            if self._user_thread == threading.get_ident():
                raise InvalidInputError(CALLED_WITHIN)
            raise InvalidInputError(
                "another thread is using this consumer; only wakeup may be called from a second one"
            )
        self._user_thread = threading.get_ident()

    def _leave(self) -> None:
        self._user_thread = None
        self._user.release()

    def _carry_out(self, script: Script[T]) -> T:
        running = RunningScript(script)
        while True:
            effect = self._run_action(lambda _: running.step())
            if effect is None:
                return cast(T, running.value)
            try:
                running.store_result(self._effect(effect))
            except BaseException as error:  # noqa: BLE001 - the script cleans up and raises it again
                running.store_error(error)

    def _effect(self, effect: Effect) -> Any:
        if isinstance(effect, WaitUntil):
            return self._client.wait_until(effect.ready, max(0.0, effect.deadline_ms / 1000 - time.monotonic()))
        if isinstance(effect, DecodeRecordSets):
            return decode(effect.sets, effect.options)
        if isinstance(effect, AwaitCoroutine):
            return self._client.call(effect.coro)
        if isinstance(effect, CallApplication):
            self._in_listener = True
            try:
                return effect.function(effect.argument)
            finally:
                self._in_listener = False
        raise TypeError(effect)


def _abandon(client: ThreadClient, core: ConsumerCore) -> None:
    """Leave the group for a consumer that nobody closed, so that its group need not wait for the session timeout."""
    if not client.closed:
        client.abandon(core.leave_without_commit())
