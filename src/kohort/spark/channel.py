"""The channel between an application and the processes of its queries.

Spark drives a query's source in a process of its own, a child of the JVM, which the application can't call. So the
application listens on loopback, and each source connects back: one connection for each query, frames in both
directions. Both ends prove that they know the application's token before anything is said, without sending it: what
else may listen on that port, or connect to it, learns nothing and is told nothing.

A frame is four bytes of length and a JSON object whose `kind` says what it is about. A kind that an end does not know
is passed over.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import os
import secrets
import socket
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

log = logging.getLogger("kohort.spark")

Message: TypeAlias = dict[str, Any]
LOOPBACK = "127.0.0.1"
TOKEN_BYTES = NONCE_BYTES = PROOF_BYTES = 32
MESSAGE_BYTES_MAX = 16 * 1024 * 1024
"""A batch's ends take about 60 bytes for each partition: this is more than a quarter of a million."""
SOURCES_MAX = 256
"""Connections at once, a thread each: more queries than one driver runs."""
GREETING_S = 10.0
"""How long the other end may take to prove itself; a busy machine starts a thread late."""
SEND_S = 5.0
"""How long an end may leave its frames unread before it is given up."""
AGAIN_S = 5.0
"""How long a source waits before it tries again to reach its application."""
NAME_MAX = 256
"""Characters of a query's name: it is a UUID."""


@dataclass(frozen=True, slots=True)
class Contact:
    """How a source finds its application: a port on loopback, and what both know."""

    port: int
    token: bytes = field(repr=False)


def encode(message: Message) -> bytes:
    """A message as a frame.

    Raises:
        ValueError: it is longer than a frame may be.
    """
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MESSAGE_BYTES_MAX:
        raise ValueError(f"a message of {len(body)} bytes is longer than {MESSAGE_BYTES_MAX}")
    return len(body).to_bytes(4, "big") + body


class Frames:
    """Messages from a stream of bytes that arrives in any pieces."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are whole now.

        Raises:
            ValueError: a frame longer than one may be, or not a JSON object with its kind.
        """
        self._bytes += data
        found: list[Message] = []
        while len(self._bytes) >= 4:
            size = int.from_bytes(self._bytes[:4], "big")
            if size > MESSAGE_BYTES_MAX:
                raise ValueError(f"a message of {size} bytes is longer than {MESSAGE_BYTES_MAX}")
            if len(self._bytes) < 4 + size:
                break
            message = json.loads(self._bytes[4 : 4 + size])
            del self._bytes[: 4 + size]
            if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
                raise ValueError("a message without its kind")
            found.append(message)
        return found


def proof(token: bytes, who: str, nonces: bytes) -> bytes:
    """What only one who knows the token can say; `who` keeps an answer from being played back to its maker."""
    return hmac.digest(token, who.encode() + nonces, "sha256")


class Link:
    """One connection whose ends have proved themselves. Any thread may send, one reads."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(SEND_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._sending = threading.Lock()

    def send(self, message: Message) -> bool:
        """Send a message; False: the other end is gone, or reads nothing, and the connection is over."""
        data = encode(message)
        try:
            with self._sending:
                self._socket.sendall(data)
        except OSError:  # a timeout leaves half a frame behind
            self.close()
            return False
        return True

    def messages(self) -> Iterator[Message]:
        """What arrives, until the other end is gone or this one is closed.

        Raises:
            ValueError: what arrives is not of this channel.
        """
        frames = Frames()
        while True:
            try:
                data = self._socket.recv(65_536)
            except TimeoutError:
                continue
            except OSError:
                return
            if not data:
                return
            yield from frames.feed(data)

    def close(self) -> None:
        """End the connection for both; a thread that reads it is woken."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def forget(self) -> None:
        """Close a forked child's copy, without a word to the other end."""
        self._socket.close()


def _receive(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise ConnectionError("the other end hung up")
        data += piece
    return data


def greet_source(sock: socket.socket, token: bytes) -> Link:
    """The application's side of a new connection.

    Raises:
        OSError: the other end does not know the token, is silent, or gone.
    """
    sock.settimeout(GREETING_S)
    mine = secrets.token_bytes(NONCE_BYTES)
    sock.sendall(mine)
    said = _receive(sock, NONCE_BYTES + PROOF_BYTES)
    nonces = mine + said[:NONCE_BYTES]
    if not hmac.compare_digest(said[NONCE_BYTES:], proof(token, "source", nonces)):
        raise PermissionError("one that does not know the token")
    sock.sendall(proof(token, "application", nonces))
    return Link(sock)


def greet_application(sock: socket.socket, token: bytes) -> Link:
    """The source's side of a new connection.

    Raises:
        OSError: who listens there is not the application, is silent, or gone.
    """
    sock.settimeout(GREETING_S)
    theirs = _receive(sock, NONCE_BYTES)
    mine = secrets.token_bytes(NONCE_BYTES)
    sock.sendall(mine + proof(token, "source", theirs + mine))
    if not hmac.compare_digest(_receive(sock, PROOF_BYTES), proof(token, "application", theirs + mine)):
        raise PermissionError("one that does not know the token")
    return Link(sock)


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
    ) -> None:
        """Listen on a free port.

        Args:
            arrived: called with a query's identity when its source says that it drives it; gives what to tell it first.
            handlers: by kind, what to do with a query's messages; called by the connection's thread.
        """
        self._arrived, self._handlers = arrived, dict(handlers or {})
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
        return sum(link.send(message) for link in links)

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
            link = greet_source(sock, self.contact.token)
            for message in link.messages():
                named = message.get("query")
                if not isinstance(named, str) or len(named) > NAME_MAX:
                    raise ValueError("a message without its query")
                if message["kind"] == "drives":
                    self._part(link, query)
                    query = named
                    self._join(link, query)
                elif named == query and (handler := self._handlers.get(message["kind"])) is not None:
                    handler(query, message)
        except (OSError, ValueError) as error:
            log.debug("a connection ended: %s", error)
        finally:
            if link is not None:
                self._part(link, query)
            with self._lock:
                self._sockets.discard(sock)
            sock.close()

    def _join(self, link: Link, query: str) -> None:
        with self._lock:
            self._links.setdefault(query, set()).add(link)
        first = self._arrived(query)
        if first is not None:
            link.send(first)

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
        self._lock = threading.Lock()
        self._query = ""
        self._link: Link | None = None
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
        with self._lock:
            if query == self._query:
                return
            self._query = query
            link = self._link
        if link is not None:
            link.send({"kind": "drives", "query": query})

    def send(self, message: Message) -> bool:
        """Send a message of this query; False: the application can't be reached."""
        link = self._link
        return link is not None and link.send({**message, "query": self._query})

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
            return greet_application(sock, self._contact.token)
        except BaseException:
            sock.close()
            raise

    def _talk(self, link: Link) -> None:
        with self._lock:
            self._link, query = link, self._query
        try:
            if self._ended.is_set():
                return
            if query:
                link.send({"kind": "drives", "query": query})
            for message in link.messages():
                handler = self._handlers.get(message["kind"])
                if handler is not None:
                    handler(message)
        except ValueError as error:
            log.warning("the application sent what is not of this channel: %s", error)
        finally:
            with self._lock:
                self._link = None
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
