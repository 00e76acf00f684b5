"""The channel between an application and the processes of its queries.

Spark drives a query's source in a process of its own, a child of the JVM, which the application can't call. So the
application listens on loopback, and each source connects back: one connection for each query, frames in both directions
(`kohort.io.channel`). A body is a JSON object whose `kind` says what it is about. A kind that an end does not know is
passed over. What a source asks has a number, which the frame that answers it repeats.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from kohort.errors import InvalidInputError
from kohort.io.channel import GREETING_S, TOKEN_BYTES, Link, greet_caller, greet_listener

log = logging.getLogger("kohort.spark")

Message: TypeAlias = dict[str, Any]
LOOPBACK = "127.0.0.1"
SOURCES_MAX = 256
"""Connections at once, a thread each: more queries than one driver runs."""
AGAIN_S = 5.0
"""How long a source waits before it tries again to reach its application."""
PIECE_S = 0.25
"""A wait for an answer is made of such pieces, and each counts as no longer: time in which the machine itself stood
still, or this process, is not the application's silence."""
NAME_MAX = 256
"""Characters of a query's name: it is a UUID."""


@dataclass(frozen=True, slots=True)
class Contact:
    """How a source finds its application: a port on loopback, and what both know."""

    port: int
    token: bytes = field(repr=False)


def encode(message: Message) -> bytes:
    """A message as the body of a frame."""
    return json.dumps(message, separators=(",", ":")).encode()


def decode(body: bytes) -> Message:
    """A message from a frame's body.

    Raises:
        ValueError: it is not a JSON object with its kind.
    """
    message = json.loads(body)
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise ValueError("a message without its kind")
    return message


class Switchboard:
    """The application's end: listens, and knows which queries are on which connection.

    A forked child has no part in it: there, it is closed, as a source's end is.

    Attributes:
        contact: what a source needs to connect.
    """

    def __init__(
        self,
        arrived: Callable[[str], Message | None] = lambda query: None,
        handlers: Mapping[str, Callable[[str, Message], None]] | None = None,
        answers: Mapping[str, Callable[[str, Message], Message]] | None = None,
    ) -> None:
        """Listen on a free port.

        Args:
            arrived: called with a query's identity when its source says that it drives it; gives what to tell it first.
            handlers: by kind, what to do with a query's messages; called by the connection's thread.
            answers: by kind, what to answer a query's messages on their connection; called by its thread. One that
                takes its time holds up what this source says next, and nothing that it is told.
        """
        self._arrived, self._handlers, self._answers = arrived, dict(handlers or {}), dict(answers or {})
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._links: dict[str, set[Link]] = {}
        self._listening = socket.create_server((LOOPBACK, 0), backlog=SOURCES_MAX)
        self.contact = Contact(self._listening.getsockname()[1], secrets.token_bytes(TOKEN_BYTES))
        self._closed = threading.Event()
        _OF_THIS_PROCESS.add(self)
        threading.Thread(target=self._accept, name="kohort-channel", daemon=True).start()

    def tell(self, query: str, message: Message) -> int:
        """Send a message to every source that drives a query; returns to how many."""
        with self._lock:
            links = list(self._links.get(query, ()))
        return sum(link.send(encode(message)) for link in links)

    def queries(self) -> set[str]:
        """Identities of the queries whose sources are connected."""
        with self._lock:
            return set(self._links)

    def close(self) -> None:
        """End all connections and listen no more."""
        with self._lock:
            self._closed.set()
            sockets = list(self._sockets)
        for sock in (self._listening, *sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                sock, _ = self._listening.accept()
            except OSError as error:
                if not self._closed.wait(AGAIN_S):  # as when the process has too many open files
                    log.warning("no source can connect just now: %s", error)
                continue
            with self._lock:
                room = not self._closed.is_set() and len(self._sockets) < SOURCES_MAX
                if room:
                    self._sockets.add(sock)
            if room:
                threading.Thread(target=self._serve, args=(sock,), name="kohort-channel-link", daemon=True).start()
            else:
                log.warning("a source could not connect: %s connections are the most at once", SOURCES_MAX)
                sock.close()

    def _serve(self, sock: socket.socket) -> None:
        query: str | None = None
        link: Link | None = None
        try:
            link = greet_caller(sock, self.contact.token)
            for message in map(decode, link.bodies()):
                named = message.get("query")
                if not isinstance(named, str) or len(named) > NAME_MAX:
                    raise ValueError("a message without its query")
                if message["kind"] == "drives":
                    self._part(link, query)
                    query = named
                    self._join(link, query)
                elif named == query:
                    self._take(link, query, message)
        except (OSError, ValueError) as error:
            log.debug("a connection ended: %s", error)
        except Exception:
            log.exception("what the source of query %s said was not dealt with; its connection ends", query)
        finally:
            if link is not None:
                self._part(link, query)
            with self._lock:
                self._sockets.discard(sock)
            sock.close()

    def _take(self, link: Link, query: str, message: Message) -> None:
        kind = message["kind"]
        if (handler := self._handlers.get(kind)) is not None:
            handler(query, message)
        elif (answer := self._answers.get(kind)) is not None:
            link.send(encode({**answer(query, message), "kind": "answer", "number": message.get("number")}))

    def _join(self, link: Link, query: str) -> None:
        with self._lock:
            self._links.setdefault(query, set()).add(link)
        first = self._arrived(query)
        if first is not None:
            link.send(encode(first))

    def _part(self, link: Link, query: str | None) -> None:
        with self._lock:
            links = self._links.get(query or "", set())
            links.discard(link)
            if not links:
                self._links.pop(query or "", None)

    def _orphan(self) -> None:
        """In a forked child: the lock may be held by a thread that is not there, the connections are the parent's."""
        for sock in (self._listening, *self._sockets):
            sock.close()


class Line:
    """A source's end: connects in the background, and again when the connection ends."""

    def __init__(
        self,
        contact: Contact,
        handlers: Mapping[str, Callable[[Message], None]],
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        """Not connected before `start`.

        Args:
            contact: of the application.
            handlers: by kind, what to do with the application's messages; called by the line's thread, one by one.
            lost: called by the line's thread when the connection has ended.
        """
        self._contact, self._handlers, self._lost = contact, dict(handlers), lost
        self._changed = threading.Condition(threading.Lock())
        self._query = ""
        self._link: Link | None = None
        self._links = 0  # how many connections there have been
        self._number = 0
        self._answers: dict[int, Message | None] = {}  # by number: what is waited for, and what has come
        self._ended = threading.Event()
        self._told = False
        _OF_THIS_PROCESS.add(self)
        self._thread = threading.Thread(target=self._run, name="kohort-line", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def connected(self) -> bool:
        """Whether the application is there and has been told which query this is."""
        return self._link is not None and bool(self._query)

    def drives(self, query: str) -> None:
        """Say which query this process drives: messages for it come from now on."""
        with self._changed:
            if query == self._query:
                return
            self._query = query
            if self._link is not None:
                self._link.send(encode({"kind": "drives", "query": query}))
            self._changed.notify_all()

    def ask(self, message: Message, timeout_s: float) -> Message:
        """Ask the application, and wait for its answer; the first connection is waited for too.

        Not to be called by a handler: the line's thread takes in the answers.

        Args:
            message: the question; gets its number here.
            timeout_s: the longest to wait.

        Raises:
            ConnectionError: the application can't be reached, or was and is gone.
            TimeoutError: it did not answer in time.
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
        """The connection, and what is left of the time; one that has ended is not waited for to come again."""
        with self._changed:
            while self._link is None or not self._query:
                if self._links or self._ended.is_set():
                    raise ConnectionError("the application is gone")
                if left_s <= 0:
                    raise ConnectionError(f"the application can't be reached on port {self._contact.port}")
                left_s = self._wait(left_s)
            return self._link, left_s

    def _wait(self, left_s: float) -> float:
        """Wait for a change, for a piece of the time that is left; gives what is left then."""
        began = time.monotonic()
        self._changed.wait(min(left_s, PIECE_S))
        return left_s - min(time.monotonic() - began, PIECE_S)

    def _answered(self, message: Message) -> None:
        with self._changed:
            number = message.get("number")
            if number in self._answers:  # else nobody waits for it any more
                self._answers[number] = message
                self._changed.notify_all()

    def send(self, message: Message) -> bool:
        """Send a message of this query; False: the application can't be reached."""
        link = self._link
        return link is not None and link.send(encode({**message, "query": self._query}))

    def close(self) -> None:
        """Hang up; a handler that runs is not waited for."""
        self._ended.set()
        link = self._link
        if link is not None:
            link.close()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                link = self._connect()
            except OSError as error:
                if not self._told:
                    log.info("the application can't be reached on port %s: %s", self._contact.port, error)
                    self._told = True
            else:
                self._told = False
                self._talk(link)
            self._ended.wait(AGAIN_S)

    def _connect(self) -> Link:
        sock = socket.create_connection((LOOPBACK, self._contact.port), GREETING_S)
        try:
            return greet_listener(sock, self._contact.token)
        except BaseException:
            sock.close()
            raise

    def _talk(self, link: Link) -> None:
        with self._changed:
            if self._query:
                link.send(encode({"kind": "drives", "query": self._query}))
            self._link = link
            self._links += 1
            self._changed.notify_all()
        try:
            if self._ended.is_set():
                return
            for message in map(decode, link.bodies()):
                if message["kind"] == "answer":
                    self._answered(message)
                    continue
                handler = self._handlers.get(message["kind"])
                if handler is not None:
                    handler(message)
        except ValueError as error:
            log.warning("the application sent what is not of this channel: %s", error)
        finally:
            with self._changed:
                self._link = None
                self._changed.notify_all()
            link.close()
            self._lost()

    def _orphan(self) -> None:
        """In a forked child: the connection is the parent's."""
        link, self._link = self._link, None
        if link is not None:
            link.forget()


_OF_THIS_PROCESS: weakref.WeakSet[Switchboard | Line] = weakref.WeakSet()


def _after_fork() -> None:
    for end in list(_OF_THIS_PROCESS):
        end._orphan()


os.register_at_fork(after_in_child=_after_fork)


# -- The source's ear: what the application says of the query that this process drives

LAST_WORDS_S = 1.0
"""How long a query that is stopped waits to hear whether its running batch is done: what Spark tells of a batch takes
0.2 to 0.3 s."""


class Hearing:
    """Hears when a sink is done, and when the query is over and all has been said.

    Messages: `done` with the batch's `end`, as the checkpoint has it; `over` after the last of a run.

    Attributes:
        line: to the application.
    """

    def __init__(self, contact: Contact, sink_done: Callable[[str], bool]) -> None:
        """Connect in the background.

        Args:
            contact: of the application.
            sink_done: takes a batch's end; gives whether that ended the running batch.
        """
        self._sink_done = sink_done
        self._stopping = False
        self._enough = threading.Event()
        self.line = Line(contact, {"done": self._done, "over": self._over}, self._lost)
        self.line.start()

    @property
    def connected(self) -> bool:
        """Whether the application is there."""
        return self.line.connected

    def drives(self, query: str) -> None:
        """Say which query this process drives: it is heard of from now on."""
        self.line.drives(query)

    def last_words(self, running: Callable[[], bool]) -> None:
        """Wait, for a moment, until it is known whether the running batch is done.

        Spark ends the process without waiting for it, and without saying how far its sink has come. What it told the
        application before that is on its way.
        """
        self._stopping = True
        if self.connected and running():
            self._enough.wait(LAST_WORDS_S)

    def close(self) -> None:
        self.line.close()

    def _done(self, message: Message) -> None:
        try:
            ended = self._sink_done(str(message.get("end")))
        except (InvalidInputError, KeyError, TypeError, ValueError):
            log.warning("the application spoke of a batch that can't be read: %.200s", message)
            return
        if ended and self._stopping:
            self._enough.set()

    def _lost(self) -> None:
        if self._stopping:
            self._enough.set()

    def _over(self, _message: Message) -> None:
        self._enough.set()
