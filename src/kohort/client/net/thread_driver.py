"""Driver of the client's core with one background thread: sockets, the clock, and calls from other threads."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

from kohort.client.net.bootstrap_check import socket_error_text
from kohort.client.net.buffers import BufferPool, FrameReader
from kohort.client.net.cluster import Cluster
from kohort.client.net.connection import (
    CloseConnection,
    Command,
    OpenConnection,
    SendFrame,
    SocketChannel,
    certificate_refusal,
    connect,
    tls_error,
)
from kohort.client.net.runtime import Promise, Steppable, TaskCancelled, Work, logged_kafka_error
from kohort.client.net.security import SaslMechanism, TlsError, TlsFiles, fetch_sasl_mechanism
from kohort.client.settings import ConnectionConfig
from kohort.errors import InvalidInputError, KafkaError
from kohort.io.platforms import SIGNAL_CHECK_S, after_fork_in_child
from kohort.io.processes import identity_for_peer
from kohort.io.signal_delay import SignalDelay

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
C = TypeVar("C")
log = logging.getLogger("kohort.client")
_JOIN_S, _JOIN_LEAST_S = 5.0, 0.1
"""Limit for a close to wait for the client's thread, which an application's callback may block; and its minimum."""
Arrived: TypeAlias = tuple[int, socket.socket | None, SaslMechanism | TlsError | str | None]
"""A link with its socket and its SASL exchange, or without a socket and with the reason."""


class ClientClosedError(KafkaError):
    """Error for calls to a client that was closed, or that belongs to another process (it was made before a fork).

    Remedy: make a new client, in the process that uses it.
    """


class ThreadClient:
    """A client's core and the thread that drives it.

    The thread starts with the first call. Coroutines run on it, under `lock`; other threads may look at the core's
    state while they hold `lock`, and must call `wake` after changing anything. Not picklable; a forked child gets
    `ClientClosedError`.

    Attributes:
        cluster: The core; give its coroutines to `call`.
        lock: Held while the core is stepped.
    """

    def __init__(self, config: ConnectionConfig) -> None:
        self.cluster = Cluster(config)
        self.cluster.runtime.clock_with_sleep_ms = clock_with_sleep_ms
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self._pid = os.getpid()
        self._tls = TlsFiles(config)
        self._io: _IoThread | None = None
        self._closed = False
        self._failure: Exception | None = None
        self._calls: dict[Future[Any], Steppable] = {}
        self._guard: weakref.finalize[..., Any] | None = None
        _OF_THIS_PROCESS.add(self)

    def close_when_collected(self, owner: Any, abandon: Callable[[ThreadClient, C], None], core: C) -> None:
        """Call `abandon` if the owner is garbage collected, or the interpreter exits, before the client is closed.

        `close` must end this guard, which keeps client and core alive. The core must not refer to the owner, not even
        through the traceback of an error: the owner would never be collected.
        """
        self._guard = weakref.finalize(owner, abandon, self, core)

    def call(self, coro: Work[T], timeout_s: float | None = None) -> T:
        """Run a coroutine of the core and wait for its value.

        Raises:
            TimeoutError: `timeout_s` is over; the coroutine is cancelled. Coroutines have their own time limits.
            InvalidInputError: A callback on the client's own thread called it, which would wait for itself.
        """
        if self.is_own_thread():
            coro.close()
            raise InvalidInputError("a callback on the client's thread can't wait for the client: hand over to another")
        future = self.submit(coro)
        try:
            return _result_of(future, timeout_s)
        except KafkaError as error:
            raise copy_error_for_application(error)  # noqa: B904 - a copy of the error
        except BaseException:
            future.cancel()
            raise

    def submit(self, coro: Work[T], name: str = "") -> Future[T]:
        """Run a coroutine of the core; the future gets its result. Cancelling the future cancels the coroutine."""
        future: Future[T] = Future()
        with self.lock:
            try:
                self.raise_if_closed()
            except ClientClosedError:
                coro.close()
                raise
            task = self._calls[future] = self.cluster.runtime.spawn(coro, name)
            task.on_done(lambda promise: transfer_outcome(promise, future))
            self.wake()
        future.add_done_callback(lambda done: self._calls.pop(done, None))
        future.add_done_callback(lambda done: self._cancel(task) if done.cancelled() else None)
        return future

    def wait_until(self, ready: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until `ready()` is true, checked under the lock after every step of the core; False on timeout."""
        with self._changed:
            self.raise_if_closed()
            in_time = self._changed.wait_for(lambda: self._closed or ready(), timeout_s)
            self.raise_failure()
            return in_time

    def wake(self) -> None:
        """Make the thread step the core now."""
        with self.lock:
            if self._io is None:
                self.raise_if_closed()
                self._io = _IoThread(self, self._tls)
            self._io.wake()

    def wake_if_busy(self) -> None:
        """Wake the thread if a task can run."""
        with self.lock:
            if self.cluster.runtime.has_ready_tasks:
                self.wake()

    def send_now(self) -> None:
        """Send the requests of runnable tasks from the calling thread; if that fails, wake the client's thread.

        A program that processes records in Python holds the interpreter lock. The client's thread may wait for it as
        long as the interpreter's switch interval; the response can be on its way meanwhile.
        """
        with self.lock:
            if not self.cluster.runtime.has_ready_tasks:
                return
            with SignalDelay():  # around all of it: a handler's exception is no fault of the client
                try:
                    sent = self._io is not None and self._io.send_now()
                except Exception as failure:  # noqa: BLE001 - every call raises it, as after one on the client's thread
                    self._fail_calls(failure)
                    if self._io is not None:
                        self._io.wake()
                    self.raise_if_closed()
                else:
                    if not sent:
                        self.wake()

    def notify(self) -> None:
        """Wake the callers of `wait_until`, for state that changed without a step of the core."""
        with self._changed:
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        return self._closed

    def is_own_thread(self) -> bool:
        """Return whether the client's thread calls, for a callback of the application."""
        io = self._io
        return io is not None and threading.current_thread() is io.thread

    def was_made_before_fork(self) -> bool:
        """Return whether the client was made by the parent, before a fork."""
        return os.getpid() != self._pid

    def close(self, until_s: float | None = None) -> None:
        """Close connections and end the thread.

        Calls under way fail. Does nothing the second time or in a forked child.

        Args:
            until_s: Time of `time.monotonic` until which to wait for the thread; it ends in any case. None: in 5 s.
        """
        if os.getpid() != self._pid:
            return
        with self.lock:
            if self._closed:
                return
            self._closed = True
            self._unguard()
            self.cluster.close()
            io, self._io = self._io, None
            if io is not None:
                io.wake()
            self._changed.notify_all()
        if io is not None and threading.current_thread() is not io.thread:
            left_s = _JOIN_S if until_s is None else until_s - time.monotonic()
            io.thread.join(min(_JOIN_S, max(_JOIN_LEAST_S, left_s)))

    @staticmethod
    def deadline_s(timeout_ms: float | None) -> float | None:
        """Convert a close's time limit in ms to the time at which it must be over, for `close`."""
        return None if timeout_ms is None else time.monotonic() + timeout_ms / 1000

    def abandon(self, goodbye: Work[None], timeout_s: float = 1.0) -> None:
        """Run the coroutine `goodbye`, at most for `timeout_s`, then close; errors are ignored.

        This is for a client that nobody closed before the interpreter exits or its owner is collected. On the client's
        own thread, as in a callback, return at once: the client closes after `goodbye`.
        """
        try:
            future = self.submit(goodbye, "goodbye")
        except ClientClosedError:
            return
        if self.is_own_thread():
            future.add_done_callback(lambda _: self.close())
            return
        with contextlib.suppress(KafkaError, TimeoutError):
            future.result(timeout_s)
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a connected client can't be pickled: make one in each process")

    @property
    def failed(self) -> bool:
        """Return whether an unexpected error has ended the client."""
        return self._failure is not None

    def raise_failure(self) -> None:
        """Raise ClientClosedError if an unexpected error has ended the client, and not `close`."""
        if self.failed:
            self.raise_if_closed()

    def raise_if_closed(self) -> None:
        """Raise ClientClosedError when the client is closed or belongs to another process."""
        if os.getpid() != self._pid:
            raise ClientClosedError(
                "this client was made before a fork and belongs to the parent process: make a new one"
            )
        if self._failure is not None:
            cause = f"{type(self._failure).__name__}: {self._failure}"
            text = f"an unexpected error has ended the client ({cause}): make a new one"
            raise ClientClosedError(text) from self._failure
        if self._closed:
            raise ClientClosedError("the client is closed")

    def _fail_calls(self, failure: Exception | None) -> None:
        """Fail the calls under way, because the thread has ended. Under the lock."""
        if failure is not None:
            log.error(
                "unexpected error: this client has ended, and all its calls fail; create a new one", exc_info=failure
            )
            self._failure, self._closed = failure, True
            self._unguard()
            self.cluster.close_after_fault(failure)
        for future, task in list(self._calls.items()):
            try:
                self.raise_if_closed()
            except ClientClosedError as error:
                with contextlib.suppress(InvalidStateError):  # the future is done, or was cancelled just now
                    future.set_exception(error)
            task.cancel()
        self.cluster.runtime.cancel_unstarted()
        self._changed.notify_all()

    def _unguard(self) -> None:
        if self._guard is not None:
            self._guard.detach()

    def _cancel(self, task: Steppable) -> None:
        with self.lock:
            task.cancel()

    def _orphan(self) -> None:
        """Replace the lock in a forked child, and forget the client's thread, which does not exist there.

        The parent's thread may have held the lock during the fork.
        """
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self._io = None


_OF_THIS_PROCESS: weakref.WeakSet[ThreadClient] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_OF_THIS_PROCESS):
        client._orphan()


after_fork_in_child(_after_fork)


def transfer_outcome(promise: Promise[T], future: Future[T] | asyncio.Future[T]) -> None:
    """Give a caller's future the outcome of a promise of the core; a cancelled future stays as it is."""
    if future.done():
        return
    with contextlib.suppress(InvalidStateError):  # another thread has cancelled it just now
        if promise.error is None:
            future.set_result(promise.result())
        elif isinstance(promise.error, TaskCancelled):
            future.set_exception(ClientClosedError("the call was cancelled"))
        else:
            future.set_exception(promise.error)


def _result_of(future: Future[T], timeout_s: float | None) -> T:
    """Wait for a future, at most `SIGNAL_CHECK_S` at a time, so that a signal's handler runs meanwhile."""
    until_s = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        left_s = SIGNAL_CHECK_S if until_s is None else min(SIGNAL_CHECK_S, until_s - time.monotonic())
        try:
            return future.result(max(0.0, left_s))
        except TimeoutError:
            if future.done():
                return future.result()
            if left_s <= 0:
                raise


def copy_error_for_application(error: KafkaError) -> KafkaError:
    """Return a copy of an error to raise to the application, and remove the traceback of the original.

    The core may keep the original. Its traceback would keep the application's frames alive, and so a consumer that
    nobody closed could not be collected.
    """
    copied = type(error).__new__(type(error))
    copied.args, copied.__cause__, copied.__suppress_context__ = error.args, error.__cause__, True
    copied.__dict__.update(error.__dict__)
    error.__traceback__ = None
    return copied


def _close_arrived(arrived: Arrived) -> None:
    """Close a connection that was made after the client was closed."""
    _, sock, _ = arrived
    if sock is not None:
        sock.close()


class _IoThread:
    """The client's background thread, with the selector and sockets that it serves."""

    def __init__(self, client: ThreadClient, tls: TlsFiles) -> None:
        self._client = weakref.ref(client, self._collected)
        self._lock = client.lock
        self._cluster = client.cluster
        self._changed = client._changed
        self._tls = tls
        self._selector = selectors.DefaultSelector()
        self._pool = BufferPool()
        self._channels: dict[int, SocketChannel] = {}
        self._arrived: deque[Arrived] = deque()
        self._waker, self._wakened = socket.socketpair()
        for end in (self._waker, self._wakened):
            end.setblocking(False)
        self._selector.register(self._wakened, selectors.EVENT_READ, None)
        self._awake = False
        self._ended = False
        self._left: deque[Command] = deque()
        self._failed_sends: dict[int, OSError] = {}
        self._sleeps_until_ms = float("inf")
        self.thread = threading.Thread(target=self._run, name="kohort-client", daemon=True)
        self.thread.start()

    def wake(self) -> None:
        if self._awake or threading.current_thread() is self.thread:
            return
        self._awake = True
        with contextlib.suppress(BlockingIOError, OSError):
            self._waker.send(b"\0")

    def _collected(self, _: object) -> None:
        """Wake the thread when the client was collected. No lock: a garbage collection calls this."""
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")

    def send_now(self) -> bool:
        """Step the core and send, on another thread, under the lock.

        Only the thread itself closes sockets, because it may be reading from them. TLS is not safe for two threads.

        Returns:
            False when something is left for the thread itself.
        """
        runtime = self._cluster.runtime
        if self._cluster.config.uses_tls:
            return False
        runtime.advance(time.monotonic() * 1000)
        self._left.extend(self._cluster.connections.take_commands())
        while self._left and isinstance(self._left[0], SendFrame):
            channel = self._channels.get(self._left[0].link)
            if channel is not None:
                if channel.link in self._failed_sends:  # the channel has the frame already, and will not flush it
                    return False
                try:
                    channel.send(self._left[0].parts)
                except OSError as error:
                    self._failed_sends[channel.link] = error
                    return False  # the thread reports the error
            self._left.popleft()
        deadline = runtime.next_deadline_ms()
        return not self._left and (deadline is None or deadline >= self._sleeps_until_ms)

    def _run(self) -> None:
        failure: Exception | None = None
        try:
            while self._turn():
                pass
        except Exception as error:  # noqa: BLE001 - a thread that ends silently leaves its callers waiting
            failure = error
        except BaseException as error:  # noqa: BLE001 - SystemExit of an application's callback, for one
            failure = KafkaError(f"the client's thread ended: {error!r}")
        finally:
            with self._lock:
                self._ended = True
                client = self._client()
                if client is not None:
                    client._fail_calls(failure)
                while self._arrived:
                    _close_arrived(self._arrived.popleft())
            for channel in list(self._channels.values()):
                channel.close()
            self._selector.close()
            self._waker.close()
            self._wakened.close()

    def _turn(self) -> bool:
        with self._lock:
            self._awake = False
            self._take_arrived()
            self._step()
            client = self._client()
            if client is None:
                self._cluster.close()
            if client is None or client.closed:
                self._carry_out()
                return False
            self._changed.notify_all()
            deadline = self._cluster.runtime.next_deadline_ms()
            self._sleeps_until_ms = float("inf") if deadline is None else deadline
        del client
        wait = 60.0 if deadline is None else max(0.0, deadline / 1000 - time.monotonic())
        for key, mask in self._selector.select(min(wait, 60.0)):
            if key.data is None:
                self._drain_wakes()
            else:
                self._serve(key.data, mask)
        return True

    def _step(self) -> None:
        runtime = self._cluster.runtime
        runtime.advance(time.monotonic() * 1000)
        self._carry_out()

    def _carry_out(self) -> None:
        self._left.extend(self._cluster.connections.take_commands())
        while self._left:
            while self._left:
                self._run_command(self._left.popleft())
            self._cluster.runtime.advance(time.monotonic() * 1000)
            self._left.extend(self._cluster.connections.take_commands())

    def _run_command(self, command: Command) -> None:
        if isinstance(command, OpenConnection):
            opening = threading.Thread(
                target=self._open_connection, args=(command,), name="kohort-connect", daemon=True
            )
            try:
                opening.start()
            except RuntimeError as error:  # no thread is left, or the interpreter shuts down: no reason to end
                self._cluster.connections.on_link_closed(command.link, str(error))
            return
        channel = self._channels.get(command.link)
        if channel is None:
            return
        if isinstance(command, SendFrame):
            try:
                if (failure := self._failed_sends.get(command.link)) is not None:
                    raise failure
                channel.send(command.parts)
            except OSError as error:
                self._lost(channel, socket_error_text(error))
        elif isinstance(command, CloseConnection):
            self._drop(channel)

    def _open_connection(self, command: OpenConnection) -> None:
        config, link = self._cluster.config, command.link
        arrived: Arrived
        try:
            sock = connect(command.address, config, None if command.plain else self._tls.current_tls_context())
        except Exception as error:  # noqa: BLE001 - names that can't be encoded and the like are no OSError
            tls = None if command.plain or not config.uses_tls else tls_error(error, command.address, config)
            arrived = (link, None, tls or socket_error_text(error))
        else:
            try:
                arrived = (link, sock, fetch_sasl_mechanism(config))
            except Exception as error:  # noqa: BLE001 - callers that wait for the connection get any error
                sock.close()
                arrived = (link, None, str(logged_kafka_error(f"login at {command.address}", error)))
        with self._lock:
            if self._ended:
                _close_arrived(arrived)
            else:
                self._arrived.append(arrived)
                self.wake()

    def _take_arrived(self) -> None:
        while self._arrived:
            link, sock, arrived = self._arrived.popleft()
            if sock is None:
                self._cluster.connections.on_link_closed(
                    link, arrived if isinstance(arrived, TlsError) else str(arrived)
                )
                continue
            channel = SocketChannel(link, sock, FrameReader(self._pool, self._cluster.config.response_max_bytes))
            self._channels[link] = channel
            self._selector.register(sock, selectors.EVENT_READ, channel)
            channel.selector = self._selector
            mechanism = arrived if isinstance(arrived, SaslMechanism) else None
            if not self._cluster.connections.on_link_opened(link, mechanism, identity_for_peer(sock)):
                self._drop(channel)

    def _serve(self, channel: SocketChannel, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                with self._lock:
                    channel.flush()
            if mask & selectors.EVENT_READ:
                for frame in channel.receive():
                    with self._lock:
                        self._cluster.connections.on_frame_received(channel.link, frame)
        except (OSError, KafkaError) as error:
            reason = error if isinstance(error, TlsError) else certificate_refusal(error) or socket_error_text(error)
            with self._lock:
                self._lost(channel, reason)

    def _lost(self, channel: SocketChannel, reason: TlsError | str) -> None:
        self._drop(channel)
        self._cluster.connections.on_link_closed(channel.link, reason)

    def _drop(self, channel: SocketChannel) -> None:
        self._failed_sends.pop(channel.link, None)
        if self._channels.pop(channel.link, None) is not None:
            self._selector.unregister(channel.sock)
            channel.close()

    def _drain_wakes(self) -> None:
        try:
            while self._wakened.recv(4096):
                pass
        except BlockingIOError:
            pass


def clock_with_sleep_ms() -> float:
    """Return the time by a clock that, if the system has one, also runs while the machine sleeps.

    `time.monotonic` stops meanwhile on Linux.
    """
    clock = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
    return (time.monotonic() if clock is None else time.clock_gettime(clock)) * 1000
