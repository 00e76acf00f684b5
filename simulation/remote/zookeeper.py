"""ZooKeeper: sessions that expire, ephemeral nodes that outlive their owners, watches that fire once.

`VirtualSession` replaces `kohort.cluster.zookeeper.session`: the released coordination works with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kohort.cluster.zookeeper.session import Change, SessionState, ZNode, ZooKeeperUnavailable
from simulation.harness.world import Chance, World
from simulation.remote.life import ProcessLife
from simulation.remote.loop import VirtualLoop

DELAY_MS = 5
TICK_MS = 200
"""The interval at which the server looks for expired sessions."""
Watch = Callable[[], None]


@dataclass
class ServerSession:
    """A session at the server.

    Attributes:
        heard_ms: when its client last sent a message.
        watches: watches on nodes or their children, by path, set on its connection.
    """

    id: int
    timeout_ms: int
    heard_ms: int
    watches: dict[tuple[str, str], list[Watch]] = field(default_factory=dict)


class ZooKeeper:
    """The ensemble, modelled as one server.

    Attributes:
        nodes: by path; version and owner as in `ZNode`.
        cut_off: by client, the time until which no message passes.
        delay_ms: the maximum delay of a message.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.nodes: dict[str, ZNode] = {"/": ZNode(b"", 0)}
        self.sessions: dict[int, ServerSession] = {}
        self.cut_off: dict[str, int] = {}
        self.delay_ms = DELAY_MS
        self._next_id = 0x100
        world.after(TICK_MS, self._tick)

    def reaches(self, client: str) -> bool:
        """Return whether messages pass."""
        now_ms = self.world.now_ms
        return now_ms >= self.cut_off.get(client, 0) and now_ms >= self.cut_off.get("", 0)

    def _tick(self) -> None:
        self.world.after(TICK_MS, self._tick)
        if not self.reaches(""):  # no leader: nobody's time is counted
            for session in self.sessions.values():
                session.heard_ms = self.world.now_ms
        for session in [*self.sessions.values()]:
            if self.world.now_ms - session.heard_ms > session.timeout_ms:
                self.world.log(f"zookeeper: session {session.id:#x} has expired")
                self.end(session.id)

    def begin(self, timeout_ms: int) -> ServerSession:
        """Begin a session."""
        self._next_id += 1
        session = self.sessions[self._next_id] = ServerSession(self._next_id, timeout_ms, self.world.now_ms)
        return session

    def end(self, session_id: int) -> None:
        """End a session, and delete its ephemeral nodes."""
        if self.sessions.pop(session_id, None) is not None:
            for path in [path for path, node in self.nodes.items() if node.owner == session_id]:
                self._delete(path)

    def _delete(self, path: str) -> None:
        del self.nodes[path]
        self._fire(path)

    def _fire(self, path: str, *, children: bool = True) -> None:
        parent = path.rpartition("/")[0] or "/"
        for session in [*self.sessions.values()]:
            keys = [("node", path), ("children", parent)] if children else [("node", path)]
            for key in keys:
                for watch in session.watches.pop(key, []):
                    watch()

    def read(self, session: ServerSession, path: str, watch: Watch | None) -> ZNode | None:
        """Return a node, and set a watch on it."""
        if watch is not None:
            session.watches.setdefault(("node", path), []).append(watch)
        return self.nodes.get(path)

    def children(self, session: ServerSession, path: str, watch: Watch | None) -> list[str]:
        """Return the names below a node, and set a watch on them."""
        if watch is not None:
            session.watches.setdefault(("children", path), []).append(watch)
        head = path.rstrip("/") + "/"
        below = (name.removeprefix(head) for name in self.nodes if name.startswith(head))
        return sorted(name for name in below if name and "/" not in name)

    def make_path(self, session: ServerSession, path: str) -> None:
        """Create persistent nodes."""
        del session
        parts = path.strip("/").split("/")
        for count in range(1, len(parts) + 1):
            name = "/" + "/".join(parts[:count])
            if name not in self.nodes:
                self.nodes[name] = ZNode(b"", 0)
                self._fire(name)

    def change(self, session: ServerSession, changes: tuple[Change, ...]) -> bool:
        """Apply all changes, or none."""
        for change in changes:
            node = self.nodes.get(change.path)
            if (node is None) != (change.version is None):
                return False
            if node is not None and change.version not in (-1, node.version):
                return False
        for change in changes:
            node = self.nodes.get(change.path)
            if change.delete:
                self._delete(change.path)
            elif change.data is None:
                continue
            elif node is None:
                self.nodes[change.path] = ZNode(change.data, 0, session.id if change.ephemeral else 0)
                self._fire(change.path)
            else:
                self.nodes[change.path] = ZNode(change.data, node.version + 1, node.owner)
                self._fire(change.path, children=False)
        return True


class VirtualSession:
    """A client's session: it connects again, and begins another session when the last has expired.

    Attributes:
        since_ms: when it entered its state.
    """

    def __init__(
        self,
        zookeeper: ZooKeeper,
        client: str,
        life: ProcessLife,
        loop: VirtualLoop,
        on_state: Callable[[SessionState], None],
    ) -> None:
        self.address = "zookeeper:2181"
        self.state = SessionState.LOST
        self.connections = 0
        self.session_ms = 6_000
        self.since_ms = 0
        self._zookeeper = zookeeper
        self._world = zookeeper.world
        self._chance: Chance = zookeeper.world.stream(f"zookeeper of {client}")
        self._client = client
        self._life = life
        self._loop = loop
        self._on_state = on_state
        self._session: ServerSession | None = None
        self._connection = 0
        self._heard_ms = 0
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._asks = 0
        self._up_ms = self._down_ms = 0
        self._closed = False
        self._lacks = False  # something got lost on the way
        self._stands = asyncio.Event()

    @property
    def id(self) -> int | None:
        """Return the session's id, None while there is none."""
        return None if self._session is None or self.state is SessionState.LOST else self._session.id

    async def open(self, timeout_ms: float) -> None:
        """Begin a session, with retries, since nothing waits for the process."""
        del timeout_ms
        self._loop.call_soon(self._connect)
        await self._stands.wait()

    def report_loop_alive(self) -> None:
        """Do nothing: here only a stopped process blocks the loop."""

    async def close(self) -> None:
        """End the session, if the request reaches the server."""
        self._closed = True
        if self._session is not None and self._zookeeper.reaches(self._client):
            self._zookeeper.end(self._session.id)

    async def read(self, path: str, watch: Watch | None = None) -> ZNode | None:
        """Implement `Session.read`."""
        return await self._ask(lambda session: self._zookeeper.read(session, path, self._handed(watch, path)))  # type: ignore[no-any-return]

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Implement `Session.children`."""
        return await self._ask(lambda session: self._zookeeper.children(session, path, self._handed(watch, path)))  # type: ignore[no-any-return]

    async def create_path(self, path: str) -> None:
        """Implement `ZooKeeperSession.create_path`."""
        await self._ask(lambda session: self._zookeeper.make_path(session, path))

    async def change(self, *changes: Change) -> bool:
        """Implement `Session.change`."""
        return await self._ask(lambda session: self._zookeeper.change(session, changes))  # type: ignore[no-any-return]

    def _handed(self, watch: Watch | None, path: str) -> Watch | None:
        """Return a watch for the server: it fires over the connection that it was set on."""
        del path
        if watch is None:
            return None
        connection = self._connection

        def fired() -> None:
            if connection != self._connection:
                return
            if self._zookeeper.reaches(self._client):
                self._down(lambda: watch() if connection == self._connection else None)
            else:
                self._lacks = True

        return fired

    # -- the connection

    def _down(self, action: Callable[[], object]) -> None:
        """Deliver a message to the client, in order."""
        self._down_ms = max(self._world.now_ms + self._chance.upto(self._zookeeper.delay_ms), self._down_ms)
        self._life.after(self._down_ms - self._world.now_ms, action)

    async def _ask(self, carry_out: Callable[[ServerSession], Any]) -> Any:
        if self.state is not SessionState.CONNECTED or self._session is None or not self._life.alive:
            raise ZooKeeperUnavailable("there is no connection")
        self._asks += 1
        number, connection, session = self._asks, self._connection, self._session
        future = self._asked[number] = self._loop.create_future()
        self._up_ms = max(self._world.now_ms + self._chance.upto(self._zookeeper.delay_ms), self._up_ms)

        def arrive() -> None:
            if not self._zookeeper.reaches(self._client) or session.id not in self._zookeeper.sessions:
                self._lacks = True
                return
            session.heard_ms = self._world.now_ms
            value = carry_out(session)
            self._down(partial(self._answered, number, connection, value))

        self._world.after(self._up_ms - self._world.now_ms, arrive)
        return await future

    def _answered(self, number: int, connection: int, value: Any) -> None:
        future = self._asked.pop(number, None)
        if connection == self._connection:
            self._heard_ms = self._world.now_ms
            if future is not None and not future.done():
                future.set_result(value)

    def _ping(self, connection: int) -> None:
        """Ping at intervals; a client that receives nothing for two thirds of its session timeout reconnects."""
        if self._closed or connection != self._connection or self._session is None:
            return
        session = self._session
        if self._world.now_ms - self._heard_ms > session.timeout_ms * 2 // 3:
            self._lose()
            return
        if self._zookeeper.reaches(self._client):
            if self._lacks or session.id not in self._zookeeper.sessions:
                self._lose()
                return
            session.heard_ms = self._world.now_ms
            self._down(lambda: setattr(self, "_heard_ms", self._world.now_ms))
        self._life.after(session.timeout_ms // 4, partial(self._ping, connection))

    def _lose(self) -> None:
        self._connection += 1
        asked, self._asked = self._asked, {}
        for future in asked.values():
            if not future.done():
                future.set_exception(ZooKeeperUnavailable("the connection ended"))
        if self._session is not None:
            self._session.watches.clear()
        self._be(SessionState.SUSPENDED)
        self._life.after(self._chance.upto(1_000), self._connect)

    def _connect(self) -> None:
        if self._closed:
            return
        if not self._zookeeper.reaches(self._client):
            self._life.after(500, self._connect)
            return
        self._connection += 1
        self._heard_ms = self._world.now_ms
        self._lacks = False
        if self._session is None or self._session.id not in self._zookeeper.sessions:
            if self._session is not None:
                self._be(SessionState.LOST)
            self._session = self._zookeeper.begin(self.session_ms)
        self._session.heard_ms = self._world.now_ms
        self._session.watches.clear()
        self.connections += 1
        self._be(SessionState.CONNECTED)
        self._life.after(self._session.timeout_ms // 4, partial(self._ping, self._connection))

    def _be(self, state: SessionState) -> None:
        if state is not self.state:
            self.state = state
            self.since_ms = self._world.now_ms
            if state is SessionState.CONNECTED:
                self._stands.set()
            if self._world.tells:
                self._world.log(f"{self._client}: zookeeper {state.value}")
            self._on_state(state)
