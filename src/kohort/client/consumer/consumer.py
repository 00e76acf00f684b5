"""The consumer for threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, cast

from kohort.client import lookups
from kohort.client.consumer import sync_methods
from kohort.client.consumer.core import ConsumerCore, WakeupError
from kohort.client.consumer.effects import Await, CallUser, Decode, Effect, Running, Script, Wait
from kohort.client.consumer.fetch_buffer import Slice
from kohort.client.consumer.records import Records, to_batch
from kohort.client.consumer.sync_methods import Steering
from kohort.client.lookups import Lookups
from kohort.client.net.facades import blocking
from kohort.client.net.thread_driver import ThreadClient, for_application
from kohort.client.setting_types import ConsumerSettings
from kohort.client.settings import ConsumerConfig, Servers, client_config
from kohort.columns import Record, decode
from kohort.errors import InvalidInputError, KafkaError
from kohort.ids import TopicPartition
from kohort.settings.arguments import checked, checked_call
from kohort.settings.config import documented

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
_ITERATION_POLL_MS = 60_000
_OTHER_THREAD_S = 10.0
"""How long a close waits for another thread to return from a call of this consumer."""


@checked
@documented(ConsumerConfig)
class Consumer(Lookups, Steering):
    """Reads topics, as a member of a group or by itself.

        with Consumer("127.0.0.1:9092", group_id="etl", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["flights"])
            while True:
                for record in consumer.poll(timeout_ms=1000):
                    ...
                consumer.commit()

    One thread at a time may use it; `wakeup` may be called from any. Heartbeats and fetches go on in the background
    between polls; rebalance listeners are called inside `poll`, by the thread that polls.

    When a kohort broker's coordinator has not answered for its `group.disconnect.lease.ms`, others may have this
    consumer's partitions soon: polls then return nothing (a warning, `figures.lapses`), positions stay, and the next
    answer makes it go on.

    While no broker can be reached, polls return nothing and connections are tried again, since one that restarts can't
    be told from one that never was there. The log `kohort.client` is warned at once, then more and more rarely. Calls
    that need an answer (`committed`, `position`, `commit` …) raise TimedOutError with addresses and causes when their
    time is over.
    """

    _core: ConsumerCore

    @checked_call
    def __init__(self, bootstrap_servers: Servers = None, **settings: Unpack[ConsumerSettings]) -> None:
        """Connects with the first call.

        Args:
            bootstrap_servers: HOST:PORT, several with commas between or as a list.
            **settings: Kafka's names with `_` for `.`, or as a file has them (`**{"group.id": "g"}`); the class's text
                lists them.

        Raises:
            InvalidInputError: an unknown setting (naming the nearest), or a value that can't be.
        """
        config = client_config(ConsumerConfig, bootstrap_servers, settings)
        super().__init__(ThreadClient(config), config)
        self._core = ConsumerCore(self._client.cluster, self.config)
        self._user = threading.Lock()
        self._user_thread: int | None = None
        self._close_asked: tuple[float | None] | None = None
        self._client.guard(self, _abandon, self._core)
        self._limit = None if self.config.max_poll_records < 0 else self.config.max_poll_records

    # What to read.

    def unsubscribe(self) -> None:
        """Leave the group, or drop what was assigned."""
        self._run(self._core.unsubscribe())

    def release(self) -> bool:
        """Give up what the group wants back, with a `HoldingListener`.

        Commits first with auto commit. False: nothing is held any more, because it was lost meanwhile.
        """
        return self._run(self._core.release())

    # Reading.

    def poll(self, timeout_ms: float = 1000, max_records: int | None = None) -> Records:
        """Records as soon as there are any, at most `max_poll_records` (or `max_records`); empty when time is over.

        Raises:
            WakeupError: `wakeup` was called.
            KafkaError: the group can't be joined, or a partition can't be read on; what was returned before is not
                affected.
        """
        limit = self._limit if max_records is None else max_records
        taken = self._poll(limit, timeout_ms)
        return Records(taken, self.config.key_deserializer, self.config.value_deserializer)

    def poll_arrow(self, timeout_ms: float = 1000, max_records: int | None = None) -> pa.RecordBatch | None:
        """Records as one Arrow batch with the columns of Spark's Kafka source; None when time is over.

        Args:
            timeout_ms: How long to wait for the first record.
            max_records: None: one fetch's worth, within `fetch_max_bytes`.
        """
        return to_batch(self._poll(max_records, timeout_ms))

    def __iter__(self) -> Iterator[Record]:
        """Records for ever, until the consumer is closed. The position follows the record that was yielded last."""
        while not self._client.closed:
            yield from self._core.handing_out.give(self._poll(self._limit, _ITERATION_POLL_MS))

    # Offsets.

    commit = blocking(sync_methods.commit)
    committed = blocking(sync_methods.committed)

    def position(self, partition: TopicPartition, *, timeout_ms: float | None = None) -> int:
        """The offset of the next record that will be returned."""
        return self._run(self._core.position(partition, self._deadline(timeout_ms)))

    def seek_to_times(self, times: Mapping[TopicPartition, int], *, timeout_ms: float | None = None) -> None:
        """Go on from the first records at or after these times (ms since the epoch).

        Where there is none, after the last offset.
        """
        found = self.offsets_for_times(times, timeout_ms=timeout_ms)
        late = [partition for partition, value in found.items() if value is None]
        if late:
            self.seek_to_end(*late)
        for partition, value in found.items():
            if value is not None:
                self.seek(partition, value.offset)

    partitions_for_topic = blocking(lookups.partitions_for_topic)

    # The end.

    def wakeup(self) -> None:
        """Make the running poll, or the next one, raise WakeupError. May be called from any thread."""
        with self._client.lock:
            self._core.wakeup()
        self._client.notify()

    def close(self, *, timeout_ms: float | None = None) -> None:
        """Commit what was returned (with auto commit), leave the group at once, close. Does nothing the second time.

        What `poll` returned counts as processed, as in Kafka's own consumer: call `close` when it is. The record that a
        loop over the consumer has in hand does not count: it comes again. Nor does what was returned last when an
        exception leaves the `with`. In a signal's handler that interrupts `poll`, `close` returns at once: the poll
        returns nothing, and the consumer is closed with it. Does nothing in a forked child.

        Args:
            timeout_ms: For all of it, but what the rebalance listener takes; None: up to 5 s for the commit, 3 s for
                leaving.
        """
        self._close(timeout_ms, unfinished=self._core.handing_out.giving)

    def _close(self, timeout_ms: float | None, *, unfinished: bool) -> None:
        if self._client.closed or self._client.is_of_another_process():
            return
        if self._user_thread == threading.get_ident():  # a signal's handler has interrupted one of our methods
            self._close_asked = (timeout_ms,)
            self.wakeup()
            return
        until_s = self._client.until_s(timeout_ms)
        if not self._enter_to_close(timeout_ms, until_s):
            return
        try:
            self._carry_out(self._core.close(timeout_ms, unfinished=unfinished))
        except KafkaError as error:
            raise for_application(error)  # noqa: B904 - a copy of it
        finally:
            self._leave()
            self._client.close(until_s)

    def _enter_to_close(self, timeout_ms: float | None, until_s: float | None) -> bool:
        """Become the thread that closes; a poll of another thread ends, and closes the consumer itself.

        Returns:
            False if the other thread has closed it.

        Raises:
            InvalidInputError: the other thread does not return in time; nothing is closed.
        """
        if not self._user.acquire(blocking=False):
            self._close_asked = (timeout_ms,)
            self.wakeup()
            limit_s = _OTHER_THREAD_S if until_s is None else max(0.0, until_s - time.monotonic())
            if not self._user.acquire(timeout=limit_s):
                raise InvalidInputError("another thread is using this consumer, and did not return to let it close")
        self._user_thread = threading.get_ident()
        if self._client.closed:
            self._leave()
            return False
        return True

    def _close_if_asked(self) -> bool:
        asked, self._close_asked = self._close_asked, None
        if asked is not None:
            self._close(asked[0], unfinished=False)
        return asked is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(None, unfinished=error is not None)

    # How the core is driven.

    def _deadline(self, timeout_ms: float | None) -> float:
        limit = self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        return time.monotonic() * 1000 + limit

    def _do(self, action: Callable[[ConsumerCore], T], *, sends: bool = False) -> T:
        """Something that needs no waiting; `sends`: what it has to send leaves on this thread."""
        client = self._client
        with client.lock:
            client.check()
            client.cluster.runtime.set_time(time.monotonic() * 1000)
            try:
                return action(self._core)
            finally:
                if sends:
                    client.send_now()
                else:
                    client.wake_if_busy()

    def _poll(self, limit: int | None, timeout_ms: float) -> list[Slice]:
        if self._close_if_asked():
            return []
        if limit is not None:
            self._enter()
            try:
                taken = self._do(lambda core: core.poll_now(limit), sends=True)
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

    def _run(self, script: Script[T]) -> T:
        """Carry out a script's effects, blocking."""
        self._enter()
        try:
            return self._carry_out(script)
        except KafkaError as error:
            raise for_application(error)  # noqa: B904 - a copy of it
        finally:
            self._leave()

    def _enter(self) -> None:
        if not self._user.acquire(blocking=False):
            raise InvalidInputError(
                "another thread is using this consumer; only wakeup may be called from a second one"
            )
        self._user_thread = threading.get_ident()

    def _leave(self) -> None:
        self._user_thread = None
        self._user.release()

    def _carry_out(self, script: Script[T]) -> T:
        running = Running(script)
        while True:
            effect = self._do(lambda _: running.step())
            if effect is None:
                return cast(T, running.value)
            try:
                running.succeeded(self._effect(effect))
            except BaseException as error:  # noqa: BLE001 - the script cleans up and raises it again
                running.failed(error)

    def _effect(self, effect: Effect) -> Any:
        if isinstance(effect, Wait):
            return self._client.wait(effect.ready, max(0.0, effect.deadline_ms / 1000 - time.monotonic()))
        if isinstance(effect, Decode):
            return decode(effect.sets, effect.options)
        if isinstance(effect, Await):
            return self._client.call(effect.coro)
        if isinstance(effect, CallUser):
            return effect.function(effect.argument)
        raise TypeError(effect)


def _abandon(client: ThreadClient, core: ConsumerCore) -> None:
    """A consumer that nobody closed: its group need not wait for the session's end."""
    if not client.closed:
        client.abandon(core.goodbye())
