"""Driver of the client's core on asyncio: sockets by BufferedProtocol, the loop's clock, no thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from kohort.client.net.bootstrap_check import socket_error_text
from kohort.client.net.buffers import BufferPool, FrameReader
from kohort.client.net.cluster import Cluster
from kohort.client.net.connection import (
    CloseConnection,
    Command,
    OpenConnection,
    SendFrame,
    certificate_refusal,
    tls_error,
)
from kohort.client.net.dialing import connected_loop_socket
from kohort.client.net.runtime import Work
from kohort.client.net.security import TlsError, TlsFiles, fetch_sasl_mechanism
from kohort.client.net.thread_driver import ClientClosedError, clock_with_sleep_ms, transfer_outcome
from kohort.client.settings import ConnectionConfig
from kohort.errors import KafkaError
from kohort.io.processes import identity_for_peer
from kohort.io.signal_delay import SignalDelay
from kohort.wire.schema import Buffer

T = TypeVar("T")
_GOODBYE_S = 5.0
log = logging.getLogger("kohort.client")
TURN_S = 0.01
"""A loop around calls that need no wait lets the event loop run at least this often."""


class AsyncClient:
    """A client's core, stepped by the running event loop. Use it from that loop only.

    Attributes:
        cluster: The core; give its coroutines to `call`.
    """

    def __init__(self, config: ConnectionConfig) -> None:
        self.cluster = Cluster(config)
        self.cluster.runtime.clock_with_sleep_ms = clock_with_sleep_ms
        self._loop = asyncio.get_running_loop()
        self._tls = TlsFiles(config)
        self._pool = BufferPool()
        self._channels: dict[int, _Channel] = {}
        self._connecting: dict[int, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._step_due = False
        self._waiters: list[asyncio.Future[None]] = []
        self._calls: set[asyncio.Future[Any]] = set()
        self._failure: Exception | None = None
        self._turn_s = self._loop.time()
        self._pid, self._thread = os.getpid(), threading.get_ident()
        self._leaving: asyncio.Task[None] | None = None
        self._guard: weakref.finalize[..., Any] | None = None
        self.closed = False

    def close_when_collected(self, owner: Any, goodbye: Callable[[], Work[None]], undone: Callable[[], str]) -> None:
        """Close the client when `owner` is garbage collected without having been closed; before that, run `goodbye`.

        A warning then names what is still undone: everything, if the event loop has ended or the interpreter exits.

        Args:
            owner: The facade, such as an AsyncConsumer; neither function may refer to it.
            goodbye: Returns the coroutine to run before the client closes, for example leaving the group.
            undone: Returns the text of the warning; empty: nothing is logged.
        """
        self._guard = weakref.finalize(owner, self._handle_abandoned, goodbye, undone)

    def _handle_abandoned(self, goodbye: Callable[[], Work[None]], undone: Callable[[], str]) -> None:
        if self.closed or os.getpid() != self._pid:
            return
        if not self._loop.is_running():
            _log_undone(undone())
        elif threading.get_ident() == self._thread:
            self._say_goodbye(goodbye, undone)
        else:
            self._loop.call_soon_threadsafe(self._say_goodbye, goodbye, undone)

    def _say_goodbye(self, goodbye: Callable[[], Work[None]], undone: Callable[[], str]) -> None:
        async def wait_for_goodbye() -> None:
            with contextlib.suppress(KafkaError, TimeoutError):
                async with asyncio.timeout(_GOODBYE_S):
                    await self.call(goodbye())

        def finish_goodbye(_: object) -> None:  # also if the loop ends, which cancels the task
            _log_undone(undone())
            if not self.closed:
                self.cluster.close()
                self._carry_out()
                self._stop_stepping()

        self._leaving = self._loop.create_task(wait_for_goodbye())
        self._leaving.add_done_callback(finish_goodbye)

    @classmethod
    async def open(cls, config: ConnectionConfig) -> AsyncClient:
        """Make a client on the running loop; it connects with the first call."""
        return cls(config)

    async def call(self, coro: Work[T]) -> T:
        """Await a coroutine of the core. Cancelling the caller cancels the coroutine."""
        try:
            self.raise_if_closed()
        except ClientClosedError:
            coro.close()
            raise
        future: asyncio.Future[T] = self._loop.create_future()
        self._calls.add(future)
        task = self.cluster.runtime.spawn(coro)
        task.on_done(lambda promise: transfer_outcome(promise, future))
        self.wake()
        try:
            return await future
        finally:
            self._calls.discard(future)
            task.cancel()

    async def wait_until(self, ready: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until `ready()` is true, checked after every step of the core; False on timeout."""
        deadline = None if timeout_s is None else self._loop.time() + timeout_s
        if timeout_s is not None and timeout_s <= 0 and not ready():
            await asyncio.sleep(0)  # or a loop around calls that wait for nothing would stop the event loop
        while not self.closed and not ready():
            left = None if deadline is None else deadline - self._loop.time()
            if left is not None and left <= 0:
                return False
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append(waiter)
            await asyncio.wait([waiter], timeout=left)
            if not waiter.done():
                self._waiters.remove(waiter)
        self.raise_failure()
        return True

    @property
    def failed(self) -> bool:
        """Return whether an unexpected error has ended the client."""
        return self._failure is not None

    def raise_failure(self) -> None:
        """Raise ClientClosedError if an unexpected error has ended the client, and not `close`."""
        if self.failed:
            self.raise_if_closed()

    def raise_if_closed(self) -> None:
        """Raise ClientClosedError when the client is closed."""
        if self._failure is not None:
            cause = f"{type(self._failure).__name__}: {self._failure}"
            text = f"an unexpected error has ended the client ({cause}): make a new one"
            raise ClientClosedError(text) from self._failure
        if self.closed:
            raise ClientClosedError("the client is closed")

    def now_ms(self) -> float:
        return self._loop.time() * 1000

    def wake(self) -> None:
        """Schedule a step of the core."""
        if not self._step_due and not self.closed:
            self._step_due = True
            self._loop.call_soon(self._step)

    async def yield_to_event_loop(self) -> None:
        """Let the event loop run other tasks, if this method has not done so for `TURN_S`.

        A call whose result is ready awaits nothing. A loop over such calls would block all other tasks, and the
        client's own heartbeats.
        """
        if self._loop.time() - self._turn_s >= TURN_S:
            self._turn_s = self._loop.time()
            await asyncio.sleep(0)

    def notify(self) -> None:
        """Wake the callers of `wait_until`."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def close(self) -> None:
        """Close the connections. Calls under way fail. Does nothing the second time."""
        if self.closed:
            return
        self.cluster.close()
        self._carry_out()
        await asyncio.gather(*self._stop_stepping(), return_exceptions=True)
        self._fail_calls()

    def _stop_stepping(self) -> list[asyncio.Task[None]]:
        """Mark the client as closed, stop stepping its core, and cancel all attempts to connect; return these tasks."""
        self.closed = True
        if self._guard is not None:
            self._guard.detach()
        if self._timer is not None:
            self._timer.cancel()
        connecting = list(self._connecting.values())
        for task in connecting:
            task.cancel()
        return connecting

    def _fail_calls(self) -> None:
        """Fail the calls under way."""
        for future in list(self._calls):
            if not future.done():
                try:
                    self.raise_if_closed()
                except ClientClosedError as error:
                    future.set_exception(error)
        self.notify()

    def _step(self) -> None:
        self._step_due = False
        self._turn_s = self._loop.time()
        if self.closed:
            return
        with SignalDelay():  # around all of it: a handler's exception is no fault of the client
            try:
                self.cluster.runtime.advance(self.now_ms())
                self._carry_out()
            except Exception as error:  # noqa: BLE001 - every call raises it
                self.end_client_by_fault(error)
                return
            if self._timer is not None:
                self._timer.cancel()
            deadline = self.cluster.runtime.next_deadline_ms()
            self._timer = None if deadline is None else self._loop.call_at(deadline / 1000, self._step)
            self.notify()

    def end_client_by_fault(self, error: Exception) -> None:
        """End the client by an unexpected error, which every call under way and every later one raises."""
        if self.closed:
            return
        log.error("unexpected error: this client has ended, and all its calls fail; create a new one", exc_info=error)
        self._failure, self.closed = error, True
        if self._guard is not None:
            self._guard.detach()
        self.cluster.close_after_fault(error)
        for channel in list(self._channels.values()):
            channel.close()
        for task in self._connecting.values():
            if task is not asyncio.current_task(self._loop):
                task.cancel()
        self._fail_calls()
        self.cluster.runtime.cancel_unstarted()

    def _carry_out(self) -> None:
        while commands := self.cluster.connections.take_commands():
            for command in commands:
                self._run_command(command)
            self.cluster.runtime.advance(self.now_ms())

    def _run_command(self, command: Command) -> None:
        if isinstance(command, OpenConnection):
            self._connecting[command.link] = self._loop.create_task(self._connect(command))
        elif isinstance(command, SendFrame):
            channel = self._channels.get(command.link)
            if channel is not None:
                channel.send(command.parts)
        elif isinstance(command, CloseConnection):
            task = self._connecting.pop(command.link, None)
            if task is not None:
                task.cancel()
            channel = self._channels.pop(command.link, None)
            if channel is not None:
                channel.close()

    async def _connect(self, command: OpenConnection) -> None:
        try:
            await self._open_connection(command)
        except Exception as error:  # noqa: BLE001 - every call raises it
            self.end_client_by_fault(error)

    async def _open_connection(self, command: OpenConnection) -> None:
        address, config = command.address, self.cluster.config
        reader = FrameReader(self._pool, config.response_max_bytes)
        tls = None if command.plain else self._tls.current_tls_context()
        try:
            sock = await connected_loop_socket(address.host, address.port, config)
            transport, channel = await self._loop.create_connection(
                lambda: _Channel(self, command.link, reader),
                sock=sock,
                ssl=tls,
                server_hostname=address.tls_name if tls else None,
            )
            self._channels[command.link] = channel
            mechanism = None
            if config.sasl_mechanism == "OAUTHBEARER":
                mechanism = await asyncio.to_thread(fetch_sasl_mechanism, config)
        except Exception as error:  # noqa: BLE001 - names that can't be encoded and the like are no OSError
            refusal = None
            if tls is not None:
                refusal = await asyncio.to_thread(tls_error, error, address, config)
            if (made := self._channels.pop(command.link, None)) is not None:
                made.close()
            self.cluster.connections.on_link_closed(command.link, refusal or socket_error_text(error))
        else:
            if command.link not in self._channels:  # the peer has closed it meanwhile
                return
            process = identity_for_peer(transport.get_extra_info("socket"))
            if (
                not self.cluster.connections.on_link_opened(command.link, mechanism, process)
                and command.link in self._channels
            ):
                self._channels.pop(command.link).close()
        finally:
            self._connecting.pop(command.link, None)
            self.wake()

    def on_frame_received(self, link: int, frame: memoryview) -> None:
        self.cluster.connections.on_frame_received(link, frame)
        self.wake()

    def on_link_lost(self, link: int, reason: TlsError | str) -> None:
        if self._channels.pop(link, None) is not None:
            self.cluster.connections.on_link_closed(link, reason)
            self.wake()


class _Channel(asyncio.BufferedProtocol):
    """A socket of the asyncio driver; large frames are received straight into their own buffer."""

    def __init__(self, client: AsyncClient, link: int, reader: FrameReader) -> None:
        self._client = client
        self._link = link
        self._reader = reader
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.receive_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._reader.complete_frames(nbytes):
                self._client.on_frame_received(self._link, frame)
        except KafkaError as error:
            self._client.on_link_lost(self._link, error if isinstance(error, TlsError) else str(error))
            self.close()
        except Exception as error:  # noqa: BLE001 - every call raises it
            self._client.end_client_by_fault(error)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        reason = (
            "the broker closed the connection"
            if error is None
            else certificate_refusal(error) or socket_error_text(error)
        )
        try:
            self._client.on_link_lost(self._link, reason)
        except Exception as fault:  # noqa: BLE001 - every call raises it
            self._client.end_client_by_fault(fault)

    def send(self, parts: Sequence[Buffer]) -> None:
        if self._transport is not None:
            self._transport.writelines(parts)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _log_undone(text: str) -> None:
    if text:
        log.warning("a client was never closed: %s: use `async with`, or await close()", text)
