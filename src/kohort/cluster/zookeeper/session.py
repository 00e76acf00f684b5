"""A session with ZooKeeper on an asyncio loop; the one file that knows kazoo.

kazoo calls back in threads of its own. Whatever it says is handed to the loop, and nothing here waits in one of its
threads. Its watches are gone with a connection: who watches reads again, with its watches, as soon as the next one
stands.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from kohort.errors import InvalidInputError, KafkaError, NotAuthorizedError, RetriableError, TimedOutError

try:
    from kazoo import exceptions
    from kazoo.client import KazooClient, TransactionRequest
    from kazoo.retry import KazooRetry
except ImportError:
    KazooClient = None

log = logging.getLogger("kohort.cluster")
_KAZOO_LOG = logging.getLogger("kohort.cluster.kazoo")
_KAZOO_LOG.setLevel(logging.ERROR)
"""It writes two lines for each attempt to connect, one a second while ZooKeeper is away; what counts is told here."""
_RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0}
_LOOKS_PER_SESSION = 20
"""How often the watching thread asks whether the loop turns."""
_CLOSE_S = 2.0
"""For a session to be closed; without an answer it ends by itself."""


class SessionState(Enum):
    """What is known of the session."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """No connection. Says nothing of the session, which may stand, or be over without our knowledge."""
    LOST = "lost"
    """Over: ephemeral nodes are gone, or will be."""


class ZooKeeperAway(RetriableError):
    """No answer, as the connection or the session ended: whether a change was made is not known."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node as it was read.

    Attributes:
        data: Its bytes.
        version: Of its data; a node that is made again begins at 0 again.
        owner: The session that an ephemeral node is of, 0 for a persistent one.
    """

    data: bytes
    version: int
    owner: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """One change of those that are made together or not at all.

    Attributes:
        path: Of the node.
        data: What it is to hold; None with `check` or `delete`.
        version: The version that it must have, -1: any; None: it is made new.
        ephemeral: Whether a new one ends with the session.
        delete: Whether it is deleted. Without data and `delete`, its version is checked and it stays as it is.
    """

    path: str
    data: bytes | None = None
    version: int | None = -1
    ephemeral: bool = False
    delete: bool = False


class ZooKeeperSession:
    """Reads and changes as coroutines, states and watches as calls on the loop.

    The session lives as long as the loop turns: when `alive` was not called for a session's length, a thread closes it,
    for kazoo's own would keep it up beside a loop that hangs. `alive` begins a new one then.

    Attributes:
        address: As it was given.
        root: The path under which all nodes are.
        state: As far as is known.
        connections: How many there were; each has its own watches.
    """

    def __init__(self, address: str, session_ms: int, on_state: Callable[[SessionState], None]) -> None:
        """Does nothing yet.

        Args:
            address: HOST:PORT, several with commas between, and the path under which all nodes are, if any.
            session_ms: A client silent for so long has ended.
            on_state: Called on the loop when the state changes.

        Raises:
            InvalidInputError: no such address, or the package kazoo is missing.
        """
        if KazooClient is None:
            raise InvalidInputError("ZooKeeper needs the package kazoo: pip install 'kohort[zookeeper]'")
        hosts, slash, path = address.partition("/")
        if not hosts or not all(_is_host_port(host) for host in hosts.split(",")) or "//" in slash + path:
            raise InvalidInputError(f"ZooKeeper: {address!r} is no HOST:PORT[,HOST:PORT…][/PATH]")
        self.address = address
        self.root = (slash + path).rstrip("/")
        self.state = SessionState.LOST
        self.connections = 0
        self._hosts = hosts
        self._session_ms = session_ms
        self._on_state = on_state
        self._loop: asyncio.AbstractEventLoop
        self._client: Any = None
        self._turned_s = time.monotonic()
        self._hung = False
        self._ended = threading.Event()
        self._reviving: asyncio.Task[None] | None = None
        self._asked: set[asyncio.Future[Any]] = set()

    @property
    def id(self) -> int | None:
        """The session's, None while there is none."""
        known = self._client.client_id if self._client is not None and self.state is not SessionState.LOST else None
        return None if known is None or not known[0] else int(known[0])

    async def open(self, timeout_ms: float) -> None:
        """Begins; may be called again after it failed or was closed.

        Raises:
            TimedOutError: no server answered.
        """
        self._loop = asyncio.get_running_loop()
        self._ended, self._hung, self._reviving, self.state = threading.Event(), False, None, SessionState.LOST
        self.alive()
        await self._connect()
        watching = threading.Thread(
            target=self._watch_loop, args=(self._ended,), name="kohort-zookeeper-turns", daemon=True
        )
        watching.start()
        deadline = self._loop.time() + timeout_ms / 1000
        while self.state is not SessionState.CONNECTED:
            if self._loop.time() > deadline:
                await self.close()
                raise TimedOutError(f"ZooKeeper at {self._hosts} did not answer within {timeout_ms:.0f} ms: is it up?")
            self.alive()
            await asyncio.sleep(0.02)

    def alive(self) -> None:
        """The loop turns."""
        self._turned_s = time.monotonic()
        if self._hung and not self._ended.is_set() and self._reviving is None:
            self._reviving = self._loop.create_task(self._revive())

    async def close(self) -> None:
        """Ends the session, and with it its ephemeral nodes. Does nothing the second time."""
        if self._ended.is_set():
            return
        self._ended.set()
        if self._reviving is not None:
            await asyncio.wait([self._reviving])
        await asyncio.to_thread(_stop, self._client)
        self.state = SessionState.LOST

    # Reads.

    async def read(self, path: str, watch: Callable[[], None] | None = None) -> Node | None:
        """A node, None where there is none; the watch is set either way.

        Args:
            path: Of the node.
            watch: Called once on the loop when it changes, comes or goes, or the connection ends.
        """
        call = self._client
        seen = None if watch is None else self._handed_over(watch)
        while True:
            with contextlib.suppress(exceptions.NoNodeError):
                data, stat = await self._ask(call.get_async(self.root + path, watch=seen))
                return Node(data, stat.version, stat.ephemeralOwner)
            if seen is None or await self._ask(call.exists_async(self.root + path, watch=seen)) is None:
                return None

    async def children(self, path: str, watch: Callable[[], None] | None = None) -> list[str]:
        """The names of a node's children, sorted; none where there is no node, and no watch then."""
        seen = None if watch is None else self._handed_over(watch)
        with contextlib.suppress(exceptions.NoNodeError):
            return sorted(await self._ask(self._client.get_children_async(self.root + path, watch=seen)))
        return []

    # Changes.

    async def make_path(self, path: str) -> None:
        """Has this persistent node and those above it, the address's path too."""
        whole = self.root + path
        ends = [place for place, letter in enumerate(whole) if letter == "/" and place] + [len(whole)]
        for end in ends:
            with contextlib.suppress(exceptions.NodeExistsError):
                await self._ask(self._client.create_async(whole[:end], b""))

    async def change(self, *changes: Change) -> bool:
        """All of these or none; False: a node was there, was not, or had another version."""
        transaction = TransactionRequest(self._client)
        for one in changes:
            path = self.root + one.path
            if one.delete:
                transaction.delete(path, -1 if one.version is None else one.version)
            elif one.data is None:
                transaction.check(path, -1 if one.version is None else one.version)
            elif one.version is None:
                transaction.create(path, one.data, ephemeral=one.ephemeral)
            else:
                transaction.set_data(path, one.data, one.version)
        results: Sequence[object] = await self._ask(transaction.commit_async())
        for result in results:
            if isinstance(result, exceptions.NoAuthError):
                raise self._error(result)
        return not any(isinstance(result, Exception) for result in results)

    # kazoo's threads.

    async def _connect(self) -> None:
        client = self._client = KazooClient(
            hosts=self._hosts,
            timeout=self._session_ms / 1000,
            connection_retry=KazooRetry(**_RECONNECT),
            logger=_KAZOO_LOG,
        )

        def heard(state: str) -> None:
            self._on_loop(lambda: self._set_state(client, SessionState(state.lower())))

        client.add_listener(heard)
        await asyncio.to_thread(client.start_async)

    async def _revive(self) -> None:
        """A new session after the loop hung."""
        await asyncio.to_thread(_stop, self._client)
        for future in self._asked:  # of the client that is given up: it may never answer
            if not future.done():
                future.set_exception(ZooKeeperAway(f"ZooKeeper at {self.address}: its session was given up"))
        if not self._ended.is_set():
            await self._connect()
        self._turned_s, self._hung, self._reviving = time.monotonic(), False, None

    def _watch_loop(self, ended: threading.Event) -> None:
        session_s = self._session_ms / 1000
        while not ended.wait(session_s / _LOOKS_PER_SESSION):
            if not self._hung and time.monotonic() - self._turned_s > session_s:
                log.error("ZooKeeper: the loop has not turned for %.1f s, its session is given up", session_s)
                self._hung = True
                _stop(self._client)

    def _set_state(self, client: object, state: SessionState) -> None:
        if client is self._client and state is not self.state and not self._ended.is_set():
            self.state = state
            self.connections += state is SessionState.CONNECTED
            self._on_state(state)

    def _handed_over(self, watch: Callable[[], None]) -> Callable[[object], None]:
        return _Watch(self._on_loop, watch)

    def _on_loop(self, call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(call)

    async def _ask(self, result: Any) -> Any:
        """What kazoo's result comes to.

        Raises:
            ZooKeeperAway: the connection or the session ended.
            KafkaError: it was refused.
        """
        future: asyncio.Future[Any] = self._loop.create_future()

        def taken(done: Any) -> None:
            if not future.done():
                if done.exception is None:
                    future.set_result(done.value)
                else:
                    future.set_exception(done.exception)

        self._asked.add(future)
        result.rawlink(lambda done: self._on_loop(lambda: taken(done)))
        try:
            return await future
        except (exceptions.NoNodeError, exceptions.NodeExistsError):
            raise
        except exceptions.KazooException as error:
            raise self._error(error) from error
        finally:
            self._asked.discard(future)

    def _error(self, error: Exception) -> KafkaError:
        name = type(error).__name__
        if isinstance(error, exceptions.NoAuthError | exceptions.AuthFailedError):
            return NotAuthorizedError(f"ZooKeeper at {self.address}: {name}: this user may not change what is there")
        away = (
            exceptions.ConnectionLoss,
            exceptions.SessionExpiredError,
            exceptions.OperationTimeoutError,
            exceptions.SessionMovedError,
        )
        if isinstance(error, away):
            return ZooKeeperAway(f"ZooKeeper at {self.address}: {name}")
        return KafkaError(f"ZooKeeper at {self.address}: {name}: {error}")


@dataclass(frozen=True, slots=True)
class _Watch:
    """A watch of kazoo's; one set again beside another is one, as they are equal."""

    on_loop: Callable[[Callable[[], None]], None]
    call: Callable[[], None]

    def __call__(self, _: object) -> None:
        self.on_loop(self.call)


def _stop(client: Any) -> None:
    """Closes a session, for a short while at most."""

    def stop() -> None:
        with contextlib.suppress(Exception):  # what is not closed ends with its time
            client.stop()
            client.close()

    thread = threading.Thread(target=stop, name="kohort-zookeeper-stop", daemon=True)
    thread.start()
    thread.join(_CLOSE_S)


def _is_host_port(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    return bool(colon and host) and port.isdecimal() and 0 < int(port) < 65_536
