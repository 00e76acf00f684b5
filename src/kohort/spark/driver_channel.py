"""The channel between a Spark driver program and the processes of its queries' sources.

Spark runs a query's source in a separate process, a child of the JVM, which the driver program can't call. So the
application listens on loopback, and each source connects to it: one connection for each query, with frames in both
directions (`kohort.io.channel`). A frame's body is a JSON object whose `kind` names the type of message. Messages of an
unknown kind are ignored. A source's request has a number, which the answer repeats.
"""

from __future__ import annotations

import contextlib
import json  # not msgspec: Spark has imported it already, and a task starts sooner
import logging
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from kohort.errors import InvalidInputError
from kohort.io.channel import GREETING_S, TOKEN_BYTES, Link, authenticate_caller, authenticate_listener
from kohort.io.connection_gate import ConnectionGate, ConnectionSlot
from kohort.io.platforms import after_fork_in_child

log = logging.getLogger("kohort.spark")

Message: TypeAlias = dict[str, Any]
LOOPBACK = "127.0.0.1"
SOURCES_MAX = 256
"""Most connections of sources at once, with a thread each: more than one driver has queries. Strangers have places of
their own (`io.connection_gate`)."""
RECONNECT_DELAY_S = 5.0
"""Delay before a source tries again to connect to its driver program."""
WAIT_STEP_S = 0.25
"""Longest single wait for an answer.

A longer wait is made of several. Each counts as at most this long, so that time in which the machine or this process
was suspended is not taken for the driver program's silence.
"""
NAME_MAX = 256
"""Most characters of a query's identity, which is a UUID."""


@dataclass(frozen=True, slots=True)
class ChannelAddress:
    """The address of a driver program for its sources: a port on loopback and a shared token."""

    port: int
    token: bytes = field(repr=False)


def encode_message(message: Message) -> bytes:
    """Return a message as the body of a frame."""
    return json.dumps(message, separators=(",", ":")).encode()


def decode_message(body: bytes) -> Message:
    """Parse a message from a frame's body.

    Raises:
        ValueError: the body is not a JSON object with a `kind`.
    """
    message = json.loads(body)
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise ValueError("a message without its kind")
    return message


class ChannelServer:
    """The driver program's end of the channel: a server that knows the connections of each query's sources.

    A forked child closes its copies of the sockets.

    Attributes:
        address: the address that sources connect to.
    """

    def __init__(
        self,
        arrived: Callable[[str], Message | None] = lambda query: None,
        handlers: Mapping[str, Callable[[str, Message], None]] | None = None,
        answers: Mapping[str, Callable[[str, Message], Message]] | None = None,
    ) -> None:
        """Listen on a free port.

        Args:
            arrived: called with a query's identity when its source announces it; returns the first message to send, if
                any.
            handlers: functions for a query's messages by kind; called by the connection's thread.
            answers: functions that answer a query's requests, by kind; called by the connection's thread. A slow one
                delays this source's next messages, but not the messages sent to it.
        """
        self._arrived, self._handlers, self._answers = arrived, dict(handlers or {}), dict(answers or {})
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._gate = ConnectionGate(SOURCES_MAX)
        self._links: dict[str, set[Link]] = {}
        self._listening = socket.create_server((LOOPBACK, 0), backlog=socket.SOMAXCONN)
        self.address = ChannelAddress(self._listening.getsockname()[1], secrets.token_bytes(TOKEN_BYTES))
        self._closed = threading.Event()
        _OPEN_ENDS.add(self)
        threading.Thread(target=self._accept, name="kohort-channel", daemon=True).start()

    def send_message(self, query: str, message: Message) -> int:
        """Send a message to every source of a query; return the number of sources."""
        with self._lock:
            links = list(self._links.get(query, ()))
        return sum(link.send(encode_message(message)) for link in links)

    def queries(self) -> set[str]:
        """Return the identities of the queries whose sources are connected."""
        with self._lock:
            return set(self._links)

    def close(self) -> None:
        """Close all connections and stop listening."""
        with self._lock:
            self._closed.set()
            sockets = list(self._sockets)
        for sock in (self._listening, *sockets):
            _hang_up(sock)

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                sock, (address, *_) = self._listening.accept()
            except OSError as error:
                if not self._closed.wait(RECONNECT_DELAY_S):  # for example, too many open files
                    log.warning(
                        "the driver program can't accept connections of its queries' sources, retrying: %s", error
                    )
                continue
            with self._lock:
                if self._closed.is_set():
                    sock.close()
                    return
                self._sockets.add(sock)
            place = self._gate.admit_connection(address, partial(_hang_up, sock))
            self._serve_on_a_thread(sock, place)

    def _serve_on_a_thread(self, sock: socket.socket, place: ConnectionSlot) -> None:
        try:
            threading.Thread(target=self._serve, args=(sock, place), name="kohort-channel-link", daemon=True).start()
        except RuntimeError as error:  # the process has all the threads that it may have
            log.warning(
                "the driver program closes a source's connection, for which it can't start a thread: %s; the source "
                "reconnects",
                error,
            )
            place.release_slot()
            with self._lock:
                self._sockets.discard(sock)
            sock.close()

    def _serve(self, sock: socket.socket, place: ConnectionSlot) -> None:
        query: str | None = None
        link: Link | None = None
        try:
            link = authenticate_caller(sock, self.address.token)
            if not place.mark_authenticated():
                log.warning(
                    "the driver program refuses a source's connection: the limit of %s connections is reached",
                    SOURCES_MAX,
                )
                return
            for message in map(decode_message, link.receive_bodies()):
                announced = message.get("query")
                if not isinstance(announced, str) or len(announced) > NAME_MAX:
                    raise ValueError("message without a query")
                if message["kind"] == "drives":
                    self._part(link, query)
                    query = announced
                    self._join(link, query)
                elif announced == query:
                    self._handle_message(link, query, message)
        except (OSError, ValueError) as error:
            log.debug("the driver program closes a source's connection: %s", error)
        except Exception:
            log.exception(
                "[query %s] unexpected error while the driver program handled its source's message; closing the "
                "connection",
                query,
            )
        finally:
            if link is not None:
                self._part(link, query)
            place.release_slot()
            with self._lock:
                self._sockets.discard(sock)
            sock.close()

    def _handle_message(self, link: Link, query: str, message: Message) -> None:
        kind = message["kind"]
        if (handler := self._handlers.get(kind)) is not None:
            handler(query, message)
        elif (answer := self._answers.get(kind)) is not None:
            link.send(encode_message({**answer(query, message), "kind": "answer", "number": message.get("number")}))

    def _join(self, link: Link, query: str) -> None:
        with self._lock:
            self._links.setdefault(query, set()).add(link)
        first = self._arrived(query)
        if first is not None:
            link.send(encode_message(first))

    def _part(self, link: Link, query: str | None) -> None:
        with self._lock:
            links = self._links.get(query or "", set())
            links.discard(link)
            if not links:
                self._links.pop(query or "", None)

    def _orphan(self) -> None:
        """Close the connections' copies in a forked child without the lock, which a parent's thread may hold."""
        for sock in (self._listening, *self._sockets):
            sock.close()


def _hang_up(sock: socket.socket) -> None:
    """Close a connection; a thread that reads it wakes up."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


class ChannelClient:
    """A source's end of the channel: connects in the background, and reconnects when the connection ends."""

    def __init__(
        self,
        address: ChannelAddress,
        handlers: Mapping[str, Callable[[Message], None]],
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        """Set up the client; it connects after `start`.

        Args:
            address: the driver program's address.
            handlers: functions for the driver program's messages by kind; called one at a time by the client's thread.
            lost: called by the client's thread when the connection has ended.
        """
        self._address, self._handlers, self._lost = address, dict(handlers), lost
        self._changed = threading.Condition(threading.Lock())
        self._query = ""
        self._link: Link | None = None
        self._links = 0  # connections made so far
        self._number = 0
        self._answers: dict[int, Message | None] = {}  # by request number; None until the answer arrives
        self._ended = threading.Event()
        self._logged = False
        _OPEN_ENDS.add(self)
        self._thread = threading.Thread(target=self._run, name="kohort-line", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def connected(self) -> bool:
        """Whether the driver program is connected and knows this query's identity."""
        return self._link is not None and bool(self._query)

    def announce_query(self, query: str) -> None:
        """Announce that this process runs the query: the driver program sends the query's messages here from now on."""
        with self._changed:
            if query == self._query:
                return
            self._query = query
            if self._link is not None:
                self._link.send(encode_message({"kind": "drives", "query": query}))
            self._changed.notify_all()

    def ask(self, message: Message, timeout_s: float) -> Message:
        """Send a request to the driver program and wait for its answer; wait for the first connection too.

        Handlers must not call this, because the client's thread receives the answers.

        Args:
            message: the request, without its number.
            timeout_s: the longest time to wait.

        Raises:
            ConnectionError: the driver program can't be reached, or its connection has ended.
            TimeoutError: the driver program did not answer in time.
        """
        link, left_s = self._first_link(timeout_s)
        with self._changed:
            self._number += 1
            number = self._number
            self._answers[number] = None
        try:
            if not self.send({**message, "number": number}):
                raise ConnectionError("the application is gone")
            with self._changed:
                while (answer := self._answers[number]) is None:
                    if self._link is not link:
                        raise ConnectionError("the application is gone")
                    if left_s <= 0:
                        raise TimeoutError(f"the application did not answer within {timeout_s:g} s")
                    left_s = self._wait(left_s)
                return answer
        finally:
            del self._answers[number]

    def _first_link(self, left_s: float) -> tuple[Link, float]:
        """Wait for the first connection to the driver program; return it and the time left, in s.

        Raises:
            ConnectionError: the program can't be reached in that time, or an earlier connection has ended.
        """
        with self._changed:
            while self._link is None or not self._query:
                if self._links or self._ended.is_set():
                    raise ConnectionError("the application is gone")
                if left_s <= 0:
                    raise ConnectionError(f"the application can't be reached on port {self._address.port}")
                left_s = self._wait(left_s)
            return self._link, left_s

    def _wait(self, left_s: float) -> float:
        """Wait at most `WAIT_STEP_S` for a change of the connection or an answer; return the time left in s."""
        began = time.monotonic()
        self._changed.wait(min(left_s, WAIT_STEP_S))
        return left_s - min(time.monotonic() - began, WAIT_STEP_S)

    def _answered(self, message: Message) -> None:
        with self._changed:
            number = message.get("number")
            if number in self._answers:  # otherwise the caller has stopped waiting
                self._answers[number] = message
                self._changed.notify_all()

    def send(self, message: Message) -> bool:
        """Send a message of this query; return False if the driver program can't be reached."""
        link = self._link
        return link is not None and link.send(encode_message({**message, "query": self._query}))

    def close(self) -> None:
        """Close the connection without waiting for a running handler."""
        self._ended.set()
        link = self._link
        if link is not None:
            link.close()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                link = self._connect()
            except OSError as error:
                if not self._logged:
                    log.info(
                        "a query's source can't reach the driver program on port %s, retrying: %s",
                        self._address.port,
                        error,
                    )
                    self._logged = True
            else:
                self._logged = False
                self._talk(link)
            self._ended.wait(RECONNECT_DELAY_S)

    def _connect(self) -> Link:
        sock = socket.create_connection((LOOPBACK, self._address.port), GREETING_S)
        try:
            return authenticate_listener(sock, self._address.token)
        except BaseException:
            sock.close()
            raise

    def _talk(self, link: Link) -> None:
        with self._changed:
            if self._query:
                link.send(encode_message({"kind": "drives", "query": self._query}))
            self._link = link
            self._links += 1
            self._changed.notify_all()
        try:
            if self._ended.is_set():
                return
            for message in map(decode_message, link.receive_bodies()):
                if message["kind"] == "answer":
                    self._answered(message)
                    continue
                handler = self._handlers.get(message["kind"])
                if handler is not None:
                    handler(message)
        except ValueError as error:
            log.warning(
                "[query %s] reconnecting to the driver program: its message can't be decoded: %s", self._query, error
            )
        except Exception:  # a bug must not end the thread: the application would not be reached again
            log.exception(
                "[query %s] reconnecting to the driver program: unexpected error while handling its message",
                self._query,
            )
        finally:
            with self._changed:
                self._link = None
                self._changed.notify_all()
            link.close()
            self._lost()

    def _orphan(self) -> None:
        """Release the connection in a forked child: it belongs to the parent."""
        link, self._link = self._link, None
        if link is not None:
            link.close_forked_copy()


_OPEN_ENDS: weakref.WeakSet[ChannelServer | ChannelClient] = weakref.WeakSet()


def _after_fork() -> None:
    for end in list(_OPEN_ENDS):
        end._orphan()


after_fork_in_child(_after_fork)


# -- The receiver of the application's messages in a source's process

LAST_REPORTS_TIMEOUT_S = 1.0
"""Longest wait of a stopped query for news of its running batch; Spark reports a batch within 0.2 to 0.3 s."""


class SinkDoneReceiver:
    """The source's receiver of the driver program's reports: a sink has completed a batch, or the query's run is over.

    Messages: `done` with the batch's `end`, as in the checkpoint, and `stateful` if the query keeps state; `over` after
    the last of a run.

    Attributes:
        line: the connection to the driver program.
    """

    def __init__(self, address: ChannelAddress, sink_done: Callable[[str, bool], bool]) -> None:
        """Connect in the background.

        Args:
            address: the driver program's address.
            sink_done: called with a batch's end, and whether the query keeps state; returns whether that completed the
                running batch.
        """
        self._sink_done = sink_done
        self._stopping = False
        self._enough = threading.Event()
        self.line = ChannelClient(address, {"done": self._done, "over": self._over}, self._lost)
        self.line.start()

    @property
    def connected(self) -> bool:
        """Whether the driver program is connected."""
        return self.line.connected

    def announce_query(self, query: str) -> None:
        """Announce that this process runs the query: the driver program sends the query's messages here from now on."""
        self.line.announce_query(query)

    def await_last_reports(self, running: Callable[[], bool]) -> None:
        """Wait at most `LAST_REPORTS_TIMEOUT_S` for news of the running batch.

        Spark ends the process without waiting for it, and without saying how far its sink has come. The messages that
        Spark has already sent to the driver program may still be on their way.
        """
        self._stopping = True
        if self.connected and running():
            self._enough.wait(LAST_REPORTS_TIMEOUT_S)

    def close(self) -> None:
        self.line.close()

    def _done(self, message: Message) -> None:
        try:
            ended = self._sink_done(str(message.get("end")), message.get("stateful") is True)
        except (InvalidInputError, KeyError, TypeError, ValueError):
            log.warning(
                "ignored the driver program's report that a sink completed a batch: its end offset is invalid: %.200s. "
                "The batch counts as completed when Spark plans the next one",
                message,
            )
            return
        if ended and self._stopping:
            self._enough.set()

    def _lost(self) -> None:
        if self._stopping:
            self._enough.set()

    def _over(self, _message: Message) -> None:
        self._enough.set()
