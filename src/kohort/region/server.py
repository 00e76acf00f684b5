"""The process that serves a control plane: connections of members and operators, one machine, one writer.

A thread with its own event loop steps the machine. Its writes go to the region's topic one after the other, on
another thread; each outcome returns as an event. The process stops serving when another control plane has taken over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, TypeVar

from kohort.errors import InvalidInputError, KafkaError, NotAuthorizedError, RetriableError
from kohort.io.channel import UNREAD_BYTES_MAX, AsyncLink, authenticate_caller_async
from kohort.io.connection_gate import ConnectionGate
from kohort.io.pinned_tls import listener_tls_context
from kohort.io.processes import ENDING_LOOKS_S, has_process_ended
from kohort.region import messages
from kohort.region.control_plane import events
from kohort.region.control_plane.events import Effect, Event, MemberOffsets, OutsideClient
from kohort.region.control_plane.machine import RegionMachine
from kohort.region.control_plane.state import RegionConfig, RegionFacts
from kohort.region.message_codec import decode_report, encode_message
from kohort.region.messages import RegionStatus
from kohort.region.records import Contribution, Fact, Manifest, Part
from kohort.settings.config import is_loopback

log = logging.getLogger("kohort.region")

TERM_FAILED = "[region %s] unexpected error in the control plane; its term ends, and the next begins here or elsewhere"
T = TypeVar("T")
Pauses: TypeAlias = Generator[float, None, T]

CONNECTIONS_MAX = 1_000
"""Limit on the connections of members and operators; strangers have places of their own (`io.connection_gate`)."""
ACCEPT_DELAY_S = 1.0
"""Delay in seconds after a connection could not be accepted, for example with too many open files."""
ALIVE_S = 1.0
SILENCE_S = 5.0
"""Timeout in seconds of a connection; each end sends a message every second."""
DESCRIBE_S = 5.0
LOOK_S = 5.0
"""Seconds without a write after which a control plane checks whether another has taken over. Nothing else would show
it. Members that are connected here would wait for ever, for example for a sequence whose publisher is connected to
the other."""
AGAIN_S = (0.1, 0.2, 0.5, 1.0)
"""Delays in seconds before a failed write is retried."""


class TermOverError(KafkaError):
    """The error that a control plane's term is over, so that it may write nothing more.

    Another control plane has taken over, a transaction took too long, or a write has failed for good.
    """


FINAL = (NotAuthorizedError, InvalidInputError)
"""Errors that an operator has to repair; all other errors of the region's topic pass."""


class UnknownOutcomeError(KafkaError):
    """The error that a transaction may have been committed or not; `RegionLog.resolve_pending_commit` finds out."""


@dataclass(frozen=True, slots=True)
class OffsetsRefusal:
    """The reason why the group coordinator rejected a member's offsets, so that the checkpoint was not committed.

    Attributes:
        why: the coordinator's error as text.
        gone: the coordinator does not know the member any more.
    """

    why: str
    gone: bool = False


class RegionLog(Protocol):
    """The writer of the region's records in its topic, as the control plane uses it.

    All methods block. They raise `TermOverError` when another control plane has taken over.
    """

    def save(self, facts: Iterable[Fact]) -> None:
        """Write records of the region in one transaction.

        Raises:
            TimedOutError: the outcome is unknown; the caller may write the same records again.
        """

    def commit(
        self, manifest: Manifest, contributions: tuple[Contribution, ...], offsets: tuple[MemberOffsets, ...]
    ) -> dict[str, OffsetsRefusal]:
        """Commit a checkpoint in one transaction: all acknowledgements, the manifest, and the offsets of all groups.

        Returns:
            Empty if the checkpoint is committed. Otherwise nothing is committed, and the result has the reason for each
                member whose offsets the group coordinator rejected.

        Raises:
            UnknownOutcomeError: the answer was lost, or does not show whether the transaction was committed.
        """

    def resolve_pending_commit(self) -> int:
        """Find out which checkpoint was committed last, after the answer to a commit was lost; return its sequence."""

    def raise_if_term_over(self) -> None:
        """Raise `TermOverError` if another control plane has begun a later term. Any thread may call this."""

    def find_outside_clients(
        self, group: str, parts: tuple[Part, ...], members: frozenset[str]
    ) -> tuple[OutsideClient, ...] | None:
        """Return members of a consumer group that own some of these partitions and do not belong to the region.

        None: the group is not stable (it rebalances or has no member), so that owners can't be told.
        """

    def close(self) -> None:
        """Close all connections to the cluster."""


class RetryingFactWriter:
    """The control plane's writes to the region's topic, each retried until its outcome is known.

    Each method is a generator. It yields the seconds to wait before the next attempt, and returns the event for the
    control plane's machine. It raises `TermOverError` when another control plane has taken over.
    """

    def __init__(self, region_log: RegionLog, region: str) -> None:
        self._region_log, self._region = region_log, region

    def save(self, effect: events.SaveFacts) -> Pauses[Event]:
        """Write the region's records, stamped with the wall-clock time; return `FactsSaved`."""
        facts = [_stamped(fact) for fact in effect.facts]
        yield from self._retry_until_written("facts", lambda: self._region_log.save(facts))
        return events.FactsSaved(effect.token)

    def commit(self, effect: events.CommitCheckpoint) -> Pauses[Event]:
        """Commit a checkpoint; if the outcome is unknown, look it up in the topic, and retry if it was not committed.

        Returns:
            `CommitEnded`, with the reason for each member whose offsets the group coordinator rejected. After an
                unknown outcome that proved to be committed there are none: the coordinator's answer was lost.
        """
        manifest = _stamped(effect.manifest)
        unknown = 0
        while True:
            try:
                refused = yield from self._retry_until_written(
                    "a sequence", lambda: self._region_log.commit(manifest, effect.contributions, effect.offsets)
                )
            except UnknownOutcomeError as error:
                log.warning(
                    "[region %s] unknown whether the checkpoint of sequence %s was committed, looking it up: %s",
                    self._region,
                    manifest.sequence,
                    error,
                )
                yield AGAIN_S[min(unknown, len(AGAIN_S) - 1)]
                unknown += 1
                if (
                    yield from self._retry_until_written("the outcome", self._region_log.resolve_pending_commit)
                ) < manifest.sequence:
                    continue
                refused = {}
            gone = frozenset(name for name, refusal in refused.items() if refusal.gone)
            return events.CommitEnded(effect.cut, {name: refusal.why for name, refusal in refused.items()}, gone)

    def _retry_until_written(self, what: str, write: Callable[[], T]) -> Pauses[T]:
        """Retry a call until it succeeds. The control plane's later writes wait meanwhile.

        An error that is not retriable ends the term, from the sixth attempt on.

        Raises:
            TermOverError: another control plane has taken over, or an error that is not retriable has lasted.
            UnknownOutcomeError: the outcome of a commit is unknown.
        """
        failures = 0
        while True:
            try:
                return write()
            except (TermOverError, UnknownOutcomeError):
                raise
            except KafkaError as error:
                log.warning(
                    "[region %s] %s could not be written to the region's topic, retrying: %s", self._region, what, error
                )
                if not isinstance(error, RetriableError) and failures > len(AGAIN_S):
                    raise TermOverError(f"{what} can't be written: {error}") from error
            yield AGAIN_S[min(failures, len(AGAIN_S) - 1)]
            failures += 1


@dataclass(frozen=True, slots=True)
class ListeningSocket:
    """The server socket of a control plane.

    Attributes:
        socket: the bound socket.
        tls: the TLS settings of connections; None: no TLS, as on loopback.
        pin: the SHA-256 of the TLS certificate; empty: without TLS.
    """

    socket: socket.socket
    tls: ssl.SSLContext | None = None
    pin: bytes = b""

    @property
    def port(self) -> int:
        """The TCP port on which the socket listens."""
        port: int = self.socket.getsockname()[1]
        return port

    def close(self) -> None:
        """Close the socket, so that no further connection is accepted."""
        self.socket.close()


def open_listening_socket(host: str) -> ListeningSocket:
    """Listen on a free port of this host; use TLS with a new self-signed certificate, except on loopback.

    Raises:
        OSError: the address is not this machine's.
        InvalidInputError: TLS is not available.
    """
    if is_loopback(host):
        return ListeningSocket(socket.create_server((host, 0), backlog=CONNECTIONS_MAX))
    tls, pin = listener_tls_context()
    return ListeningSocket(socket.create_server((host, 0), backlog=CONNECTIONS_MAX), tls, pin)


class ControlPlane:
    """A region's control plane during one term.

    The term ends by `close`, when another control plane has taken over, or after an unexpected error.

    Attributes:
        over: set when the term has ended, for any reason.
    """

    def __init__(
        self,
        region_log: RegionLog,
        known: RegionFacts,
        config: RegionConfig,
        listening: ListeningSocket,
        token: bytes,
        on_lost: Callable[[ControlPlane], None] = lambda _: None,
    ) -> None:
        """Initialise the control plane; `start` begins to serve.

        Args:
            region_log: The region's topic, written under this term.
            known: The region's state when the term began.
            config: The checkpoint interval and the deadlines.
            listening: The socket that members connect to, which the control plane closes.
            token: The shared secret that members prove.
            on_lost: Called on the control plane's own thread when the term ends and `close` was not called.
        """
        self.term, self.region = known.term, known.region
        self.over = threading.Event()
        self._region_log, self._listening, self._token = region_log, listening, token
        self._on_lost, self._closed = on_lost, False
        self._machine = RegionMachine(known, config, _now_ms())
        self._links: dict[int, AsyncLink] = {}
        self._gate = ConnectionGate(CONNECTIONS_MAX)
        self._connections = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._writing: asyncio.Queue[Pauses[Event]] = asyncio.Queue()
        self._writer = RetryingFactWriter(region_log, self.region)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event = asyncio.Event()
        self._wrote_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._pool = ThreadPoolExecutor(2, f"kohort-region-{self.region}")
        self._thread = threading.Thread(target=self._run, name=f"kohort-plane-{self.region}", daemon=True)

    def start(self) -> None:
        """Start the thread that accepts members and steps the control plane's state machine."""
        self._thread.start()

    def close(self) -> None:
        """End the term abruptly, without a message to members.

        They then look for another control plane, as after a crash.
        """
        self._closed = True
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(self._end.set)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self.over.wait()  # not for the thread: what it calls after a lost term may wait for this call's caller
        self._pool.shutdown(wait=False)

    def describe(self) -> RegionStatus | None:
        """Return a description of the region for operators; None: the term has ended or has not begun.

        None is also the result if the control plane's thread does not answer within 5 s. Any thread except that one may
        call this.
        """
        loop = self._loop
        if loop is None or self.over.is_set():
            return None

        answer: Future[RegionStatus] = Future()
        try:
            loop.call_soon_threadsafe(lambda: answer.set_result(self._machine.plane.describe_region()))
            return answer.result(DESCRIBE_S)
        except (RuntimeError, TimeoutError):  # it has ended, or ends at this moment
            return None

    # -- the loop

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception:
            log.exception(TERM_FAILED, self.region)
        finally:
            self._region_log.close()
            self.over.set()
        if not self._closed:
            self._on_lost(self)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        if self._closed:  # before there was a loop that `close` could tell
            self._end.set()
        self._spawn(self._accept())
        log.info("[region %s] serving as control plane, term %s", self.region, self.term)
        self._spawn(self._write())
        self._spawn(self._keep_alive())
        self._spawn(self._keep_looking())
        for process in sorted(set(self._machine.plane.expected.values()) - {""}):
            self._spawn(self._look_at_process(process))
        self._plan_tick()
        try:
            await self._end.wait()
        finally:
            for link in self._links.values():
                link.abort()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._listening.close()

    def _spawn(self, coro: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(coro)
        self._tasks.add(task)
        task.add_done_callback(self._spawned_ended)

    def _spawned_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error(TERM_FAILED, self.region, exc_info=task.exception())
            self._end.set()

    # -- connections

    async def _accept(self) -> None:
        loop, sock = asyncio.get_running_loop(), self._listening.socket
        sock.setblocking(False)
        while True:
            try:
                accepted, (address, *_) = await loop.sock_accept(sock)
            except OSError as error:
                log.warning("[region %s] no connection can be accepted, retrying: %s", self.region, error)
                await asyncio.sleep(ACCEPT_DELAY_S)
            else:
                self._spawn(self._serve_connection(accepted, address))

    async def _serve_connection(self, sock: socket.socket, address: str) -> None:
        task = asyncio.current_task()
        assert task is not None

        def evict_connection() -> None:
            task.cancel()

        place = self._gate.admit_connection(address, evict_connection)
        self._connections += 1
        connection, link = self._connections, None
        try:
            link = await authenticate_caller_async(sock, self._token, self._listening.tls)
            if not place.mark_authenticated():
                log.warning(
                    "[region %s] connection refused: %s members and operators are connected, the most that it serves",
                    self.region,
                    CONNECTIONS_MAX,
                )
                return
            self._links[connection] = link
            await self._read_reports(connection, link)
        except (OSError, ValueError, TimeoutError) as error:
            log.debug("[region %s] a connection from %s ended: %s", self.region, address, error)
        finally:
            place.release_slot()
            if self._links.pop(connection, None) is not None and not self._end.is_set():
                self._step(events.ConnectionEnded(connection))
            if link is not None:
                link.abort() if self._end.is_set() else link.close()
            else:
                sock.close()

    async def _read_reports(self, connection: int, link: AsyncLink) -> None:
        async for body in link.receive_bodies(SILENCE_S):
            self._heard(connection, decode_report(body))
            if connection not in self._links:
                return  # it was closed

    def _heard(self, connection: int, said: messages.Report | messages.Ask) -> None:
        match said:
            case messages.KeepAlive():
                pass
            case messages.DescribeRegion():
                self._send(connection, self._machine.plane.describe_region())
            case messages.StopMember(name):
                self._step(events.MemberStopRequested(name))
            case messages.ResumeRegion():
                self._step(events.ResumeRequested())
            case _:
                self._step(events.MessageReceived(connection, said))

    def _send(self, connection: int, message: messages.Order | messages.Answer) -> None:
        link = self._links.get(connection)
        if link is not None and not link.send(encode_message(message)):
            log.warning(
                "[region %s] closing a member's connection: it does not read, and more than %s bytes wait for it",
                self.region,
                UNREAD_BYTES_MAX,
            )

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(ALIVE_S)
            for connection in list(self._links):
                self._send(connection, messages.KeepAlive())

    # -- the machine

    def _step(self, event: Event) -> None:
        before = self._machine.state
        effects = self._machine.step(event, _now_ms())
        if self._machine.state is not before:
            log.debug("[region %s] state changed from %s to %s", self.region, before.name, self._machine.state.name)
        for effect in effects:
            self._carry_out(effect)
        self._plan_tick()

    def _plan_tick(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due_ms = self._machine.next_deadline_ms()
        if due_ms is not None:
            wait_s = max(0, due_ms - _now_ms()) / 1000
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._step, events.ClockTick())

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case events.SendMessage(connection, order):
                self._send(connection, order)
            case events.EndMemberConnection(connection):
                link = self._links.pop(connection, None)
                if link is not None:
                    link.close()
            case events.SaveFacts():
                self._writing.put_nowait(self._writer.save(effect))
            case events.CommitCheckpoint():
                self._writing.put_nowait(self._writer.commit(effect))
            case events.FindOutsideClients():
                self._spawn(self._look(effect))
            case events.CheckProcess(process):
                self._spawn(self._look_at_process(process))
            case events.WriteLogLine(level, text):
                log.log(level, "%s", text)

    # -- the topic

    async def _keep_looking(self) -> None:
        """End this control plane when another has taken over, by reading the topic after each 5 s without a write."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_S)
            if loop.time() - self._wrote_s < LOOK_S:
                continue
            try:
                await loop.run_in_executor(self._pool, self._region_log.raise_if_term_over)
            except TermOverError as error:
                self._is_over(error)
                return
            except KafkaError as error:
                log.info(
                    "[region %s] can't check whether another control plane has taken over, retrying: %s",
                    self.region,
                    error,
                )

    def _is_over(self, error: TermOverError) -> None:
        log.warning("[region %s] this control plane stops serving, term %s is over: %s", self.region, self.term, error)
        self._end.set()

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            writing = await self._writing.get()
            try:
                event = await loop.run_in_executor(self._pool, self._written, writing)
            except TermOverError as error:
                self._is_over(error)
                return
            self._wrote_s = loop.time()
            self._step(event)

    def _written(self, writing: Pauses[Event]) -> Event:
        """Run a write with all its retries, and return its event. Runs on a thread that may block."""
        while True:
            try:
                pause_s = next(writing)
            except StopIteration as done:
                event: Event = done.value
                return event
            time.sleep(pause_s)
            if self._end.is_set():
                raise TermOverError("the control plane was closed")

    async def _look(self, effect: events.FindOutsideClients) -> None:
        ids = frozenset(member.identity.member_id for member in self._machine.plane.members.values())
        try:
            found = await asyncio.get_running_loop().run_in_executor(
                self._pool, lambda: self._region_log.find_outside_clients(effect.group, effect.parts, ids)
            )
        except KafkaError as error:
            log.info(
                "[region %s][group %s] the group could not be described, so members from outside the region go "
                "unnoticed: %s",
                self.region,
                effect.group,
                error,
            )
            return
        if found is not None:
            self._step(events.OutsideClientsChecked(effect.group, found))

    async def _look_at_process(self, process: str) -> None:
        for pause_s in (*ENDING_LOOKS_S, 0.0):
            if has_process_ended(process):
                self._step(events.ProcessEnded(process))
                return
            await asyncio.sleep(pause_s)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _stamped(fact: Any) -> Any:
    """Return the record with the wall-clock time in `at_ms`, if it has that field.

    The machine's own clock is monotonic, and has no meaning in another process.
    """
    return replace(fact, at_ms=time.time_ns() // 1_000_000) if hasattr(fact, "at_ms") else fact
