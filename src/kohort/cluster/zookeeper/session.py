"""A session with ZooKeeper on an asyncio loop; the only file that uses kazoo.

kazoo calls back in threads of its own. Every callback is passed to the loop, and nothing here blocks one of kazoo's
threads. Watches are lost with a connection: their owner reads again, and sets new ones, when the next connection is up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from kohort.cluster.zookeeper.security import (
    CHECKS_HOSTS,
    DIGEST,
    SASL,
    ZooKeeperAddress,
    ZooKeeperConfig,
    tls_context,
)
from kohort.errors import InvalidInputError, KafkaError, NotAuthorizedError, RetriableError, TimedOutError

try:
    from kazoo import exceptions
    from kazoo.client import KazooClient, TransactionRequest
    from kazoo.protocol.states import KeeperState
    from kazoo.retry import KazooRetry
    from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE
except ImportError:
    KazooClient = None

log = logging.getLogger("kohort.cluster")
_KAZOO_LOG = logging.getLogger("kohort.cluster.kazoo")
_KAZOO_LOG.setLevel(logging.ERROR)
"""kazoo logs two lines for each attempt to connect, one attempt a second; this module logs what matters."""
_RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0}
_LOOKS_PER_SESSION = 20
"""Checks of the watching thread, in one session timeout, whether the event loop is alive."""
_CLOSE_S = 2.0
"""Timeout of closing a session; without an answer it expires by itself."""
_LOGIN_AGAIN_S = 5.0
"""Pause before the next attempt to log in after a refusal; kazoo makes none."""
_PROBE_S = 2.0
"""Timeout of the TLS handshake that finds out why no server answers."""


class SessionState(Enum):
    """The state of a ZooKeeper session, as far as it is known."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """No connection; whether the session still exists is unknown."""
    LOST = "lost"
    """The session is over: its ephemeral nodes are gone, or will be."""


class ZooKeeperUnavailable(RetriableError):
    """The error of a request whose connection or session ended before the answer; its change may have been made."""


@dataclass(frozen=True, slots=True)
class ZNode:
    """A ZooKeeper node as it was read.

    Attributes:
        data: The node's bytes.
        version: The version of the data; a recreated node starts at 0 again.
        owner: The session that owns an ephemeral node, 0 for a persistent one.
    """

    data: bytes
    version: int
    owner: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """One change of an atomic ZooKeeper multi: create, set, delete or check a node.

    Attributes:
        path: The node's path.
        data: The node's new content; None for a check or a deletion.
        version: The version that the node must have, -1: any; None: create it.
        ephemeral: Whether a created node is deleted with the session.
        delete: Whether to delete the node. Without data and `delete`, only its version is checked.
    """

    path: str
    data: bytes | None = None
    version: int | None = -1
    ephemeral: bool = False
    delete: bool = False


class ZooKeeperSession:
    """A ZooKeeper session: reads and changes are coroutines, states and watches are calls on the loop.

    The session lives only while the event loop is alive. When `report_loop_alive` was not called for a session timeout,
    a thread closes the session. Otherwise kazoo's own thread would keep it up beside a hanging loop. The next
    `report_loop_alive` begins a new one.

    Attributes:
        address: The address as it was given.
        root: The path that is the parent of all nodes.
        state: The session's state, as far as it is known.
        connections: The number of connections so far; each has its own watches.
    """

    def __init__(
        self, address: str | ZooKeeperAddress, session_ms: int, on_state: Callable[[SessionState], None]
    ) -> None:
        """Create a closed session; `open` connects it.

        Args:
            address: HOST:PORT, several with commas between, and the path that is the parent of all nodes, if any; with
                the settings of connections, where they are secure.
            session_ms: The session timeout.
            on_state: Called on the loop when the state changes.

        Raises:
            InvalidInputError: the address is malformed, or the package kazoo is missing.
        """
        if KazooClient is None:
            raise InvalidInputError("ZooKeeper needs the package kazoo: pip install 'kohort[zookeeper]'")
        if isinstance(address, ZooKeeperAddress):
            address, self._config = address
        else:
            self._config = ZooKeeperConfig()
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
        self._login_refused = False
        self._warned: set[str] = set()
        self._asked: set[asyncio.Future[Any]] = set()

    @property
    def id(self) -> int | None:
        """The session's id, None while there is no session."""
        known = self._client.client_id if self._client is not None and self.state is not SessionState.LOST else None
        return None if known is None or not known[0] else int(known[0])

    async def open(self, timeout_ms: float) -> None:
        """Connect to ZooKeeper. May be called again after a failure, or after the session was closed.

        Raises:
            TimedOutError: no server answered.
            NotAuthorizedError: ZooKeeper refused the login.
        """
        self._loop = asyncio.get_running_loop()
        self._ended, self._hung, self._reviving, self.state = threading.Event(), False, None, SessionState.LOST
        self.report_loop_alive()
        await self._connect()
        watching = threading.Thread(
            target=self._watch_loop, args=(self._ended,), name="kohort-zookeeper-turns", daemon=True
        )
        watching.start()
        deadline = self._loop.time() + timeout_ms / 1000
        while self.state is not SessionState.CONNECTED:
            if self._login_refused:
                await self.close()
                raise self._error(exceptions.AuthFailedError())
            if self._loop.time() > deadline:
                await self.close()
                why = await asyncio.to_thread(_tls_failure, self._hosts, self._config) or "is it up?"
                raise TimedOutError(f"ZooKeeper at {self._hosts} did not answer within {timeout_ms:.0f} ms: {why}")
            self.report_loop_alive()
            await asyncio.sleep(0.02)
        if not self._config.authenticates:
            self._warn(
                "nodes are open to everyone who reaches ZooKeeper: whoever changes them moves groups between "
                "coordinators. Set zookeeper.auth.scheme, or a certificate"
            )

    def _warn(self, text: str) -> None:
        """Log a warning about unprotected nodes, once for each text."""
        if text not in self._warned:
            self._warned.add(text)
            log.warning("nodes in ZooKeeper at %s are unprotected: %s", self.address, text)

    def report_loop_alive(self) -> None:
        """Report that the event loop is alive; begin a new session if it hung meanwhile, or its login was refused."""
        self._turned_s = time.monotonic()
        if self._ended.is_set() or self._reviving is not None:
            return
        if self._hung:
            self._reviving = self._loop.create_task(self._revive())
        elif self._login_refused and self.connections:
            log.error("ZooKeeper at %s refused the login of %s; retrying", self.address, self._config.user)
            self._reviving = self._loop.create_task(self._revive(_LOGIN_AGAIN_S))

    async def close(self) -> None:
        """End the session, and with it its ephemeral nodes. A second call does nothing."""
        if self._ended.is_set():
            return
        self._ended.set()
        if self._reviving is not None:
            await asyncio.wait([self._reviving])
        await asyncio.to_thread(_stop, self._client)
        self.state = SessionState.LOST

    # -- reads

    async def read(self, path: str, watch: Callable[[], None] | None = None) -> ZNode | None:
        """Read a node, None if there is none; the watch is set either way.

        Args:
            path: The node's path.
            watch: Called once on the loop when the node changes, comes or goes, or the connection ends.
        """
        call = self._client
        kazoo_watch = None if watch is None else self._handed_over(watch)
        while True:
            with contextlib.suppress(exceptions.NoNodeError):
                data, stat = await self._await_kazoo(call.get_async(self.root + path, watch=kazoo_watch))
                return ZNode(data, stat.version, stat.ephemeralOwner)
            if (
                kazoo_watch is None
                or await self._await_kazoo(call.exists_async(self.root + path, watch=kazoo_watch)) is None
            ):
                return None

    async def children(self, path: str, watch: Callable[[], None] | None = None) -> list[str]:
        """Return the sorted names of a node's children. If there is no node, return none and set no watch."""
        kazoo_watch = None if watch is None else self._handed_over(watch)
        with contextlib.suppress(exceptions.NoNodeError):
            return sorted(await self._await_kazoo(self._client.get_children_async(self.root + path, watch=kazoo_watch)))
        return []

    # -- changes

    async def create_path(self, path: str) -> None:
        """Create this persistent node and those above it, the address's path included."""
        full = self.root + path
        ends = [index for index, letter in enumerate(full) if letter == "/" and index] + [len(full)]
        for end in ends:
            with contextlib.suppress(exceptions.NodeExistsError):
                await self._await_kazoo(self._client.create_async(full[:end], b""))
        if self._creates_for_user:
            await self._check_acl(full)

    async def _check_acl(self, full: str) -> None:
        """Warn of a node that everyone may change, from a time when processes here did not log in."""
        acls, _ = await self._await_kazoo(self._client.get_acls_async(full))
        if any(acl in OPEN_ACL_UNSAFE for acl in acls):
            self._warn(
                f"{full} is open to everyone, because it was created without a login. To protect what is there, stop "
                "the coordinators and delete it, or set its ACL and those below it (setAcl -R)"
            )

    async def change(self, *changes: Change) -> bool:
        """Make all changes or none; return False if a node existed, was missing, or had another version."""
        transaction = TransactionRequest(self._client)
        for change in changes:
            path = self.root + change.path
            if change.delete:
                transaction.delete(path, -1 if change.version is None else change.version)
            elif change.data is None:
                transaction.check(path, -1 if change.version is None else change.version)
            elif change.version is None:
                transaction.create(path, change.data, ephemeral=change.ephemeral)
            else:
                transaction.set_data(path, change.data, change.version)
        results: Sequence[object] = await self._await_kazoo(transaction.commit_async())
        for result in results:
            if isinstance(result, exceptions.NoAuthError):
                raise self._error(result)
        return not any(isinstance(result, Exception) for result in results)

    # -- kazoo's threads

    async def _connect(self) -> None:
        self._login_refused = False
        client = self._client = KazooClient(
            hosts=self._hosts,
            timeout=self._session_ms / 1000,
            connection_retry=KazooRetry(**_RECONNECT),
            logger=_KAZOO_LOG,
            default_acl=CREATOR_ALL_ACL if self._creates_for_user else None,
            **_security_arguments(self._config),
        )

        def on_state(state: str) -> None:
            refused = client.client_state == KeeperState.AUTH_FAILED  # for this moment only: CLOSED follows
            self._on_loop(lambda: self._set_state(client, SessionState(state.lower()), refused))

        client.add_listener(on_state)
        await asyncio.to_thread(client.start_async)

    @property
    def _creates_for_user(self) -> bool:
        return self._config.authenticates and self._config.sets_acl

    async def _revive(self, pause_s: float = 0) -> None:
        """Begin a new session after the loop hung, or after a pause if the login was refused."""
        try:
            await asyncio.sleep(pause_s)
            await asyncio.to_thread(_stop, self._client)
            self._set_state(self._client, SessionState.LOST, False)  # kazoo may report it only after the new session
            for future in self._asked:  # requests of the abandoned client, which may never answer
                if not future.done():
                    future.set_exception(ZooKeeperUnavailable(f"ZooKeeper at {self.address}: its session was given up"))
            if not self._ended.is_set():
                await self._connect()
            self._turned_s, self._hung = time.monotonic(), False
        finally:
            self._reviving = None  # after a failure the next `report_loop_alive` tries again

    def _watch_loop(self, ended: threading.Event) -> None:
        session_s = self._session_ms / 1000
        while not ended.wait(session_s / _LOOKS_PER_SESSION):
            if not self._hung and time.monotonic() - self._turned_s > session_s:
                log.error(
                    "ZooKeeper: closing the session: the event loop was blocked for longer than its timeout of %.1f s",
                    session_s,
                )
                client = self._client  # from `_hung` on, the loop may replace it
                self._hung = True
                _stop(client)

    def _set_state(self, client: object, state: SessionState, refused: bool) -> None:
        if client is not self._client or self._ended.is_set():
            return
        self._login_refused = self._login_refused or refused
        if state is not self.state:
            self.state = state
            self.connections += state is SessionState.CONNECTED
            self._on_state(state)

    def _handed_over(self, watch: Callable[[], None]) -> Callable[[object], None]:
        return _LoopWatch(self._on_loop, watch)

    def _on_loop(self, call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(call)

    async def _await_kazoo(self, result: Any) -> Any:
        """Send a request by kazoo, and await its result.

        Raises:
            ZooKeeperUnavailable: the connection or the session ended.
            KafkaError: ZooKeeper refused the request.
        """
        future: asyncio.Future[Any] = self._loop.create_future()

        def on_kazoo_result(done: Any) -> None:
            if not future.done():
                if done.exception is None:
                    future.set_result(done.value)
                else:
                    future.set_exception(done.exception)

        self._asked.add(future)
        result.rawlink(lambda done: self._on_loop(lambda: on_kazoo_result(done)))
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
        if isinstance(error, exceptions.AuthFailedError):
            return NotAuthorizedError(f"ZooKeeper at {self.address} refused the login of {self._config.user}")
        if isinstance(error, exceptions.SessionClosedRequireSaslError):
            text = "takes no session without a login: set zookeeper.auth.scheme, zookeeper.auth.username and …password"
            return NotAuthorizedError(f"ZooKeeper at {self.address} {text}")
        if isinstance(error, exceptions.NoAuthError):
            user = self._config.user if self._config.authenticates else "a process without a login"
            text = (
                f"{name}: {user} may not change what is there: other users' ACLs protect it, or the password is wrong"
            )
            return NotAuthorizedError(f"ZooKeeper at {self.address}: {text}")
        away = (
            exceptions.ConnectionLoss,
            exceptions.SessionExpiredError,
            exceptions.OperationTimeoutError,
            exceptions.SessionMovedError,
        )
        if isinstance(error, away):
            return ZooKeeperUnavailable(f"ZooKeeper at {self.address}: {name}")
        return KafkaError(f"ZooKeeper at {self.address}: {name}: {error}")


@dataclass(frozen=True, slots=True)
class _LoopWatch:
    """A watch for kazoo. Equal watches on one node count once, so a repeated read adds none."""

    on_loop: Callable[[Callable[[], None]], None]
    call: Callable[[], None]

    def __call__(self, _: object) -> None:
        self.on_loop(self.call)


def _security_arguments(config: ZooKeeperConfig) -> dict[str, Any]:
    """Return `KazooClient`'s arguments for the login (digest or SASL) and for TLS."""
    chosen: dict[str, Any] = {}
    if config.scheme == DIGEST:
        chosen["auth_data"] = [(DIGEST, f"{config.username}:{config.password}")]
    elif config.scheme == SASL:
        login = {"mechanism": "DIGEST-MD5", "username": config.username, "password": config.password}
        chosen["sasl_options"] = login
    if config.uses_tls:
        key = config.keystore or None
        chosen |= {
            "use_ssl": True,
            "ca": config.truststore or None,
            "certfile": key,
            "keyfile": key,
            "keyfile_password": config.keystore_password or None,
            "check_hostname": config.identification == CHECKS_HOSTS,
        }
    return chosen


def _tls_failure(hosts: str, config: ZooKeeperConfig) -> str | None:
    """Return why a TLS handshake with a server fails, since kazoo gives no reason; None: no handshake fails."""
    if not config.uses_tls:
        return None
    context = tls_context(config)
    for server in hosts.split(","):
        host, _, port = server.rpartition(":")
        host = host.strip("[]")
        try:
            with (
                socket.create_connection((host, int(port)), _PROBE_S) as plain,
                context.wrap_socket(plain, server_hostname=host),
            ):
                continue
        except (ConnectionError, TimeoutError):
            continue
        except OSError as error:
            return f"TLS with {server} fails: {error}"
    return None


def _stop(client: Any) -> None:
    """Close a session, for at most `_CLOSE_S`."""

    def stop_kazoo() -> None:
        with contextlib.suppress(Exception):  # a session that is not closed expires
            client.stop()
            client.close()

    thread = threading.Thread(target=stop_kazoo, name="kohort-zookeeper-stop", daemon=True)
    thread.start()
    thread.join(_CLOSE_S)


def _is_host_port(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    return bool(colon and host) and port.isdecimal() and 0 < int(port) < 65_536
