"""Coordination through ZooKeeper: registration, leader election and the placement.

Each candidate has an ephemeral node under `/brokers/ids`. The leader is the candidate that creates the ephemeral node
`/consumers/coordinator`, which holds its id. The leader writes the placement, and all candidates read it. Each write is
guarded by the version of `/consumers/coordinator_epoch`, which the election raised: a deposed leader can't write.

One coroutine reconciles the nodes (`_settle`). It reads them, with a watch on each, and changes what differs from the
intended state. Each watch, each new connection and each new session makes it start over: nothing is assumed from an
earlier session.

Source: spec 4.2 (elector, `handleNewSession`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kohort.cluster.coordination.placement import (
    Candidate,
    Placement,
    compute_placement,
    from_bytes,
    placement_fields,
    read_placement,
    to_bytes,
)
from kohort.cluster.zookeeper.nodes import (
    COORDINATOR,
    EPOCH,
    FOREIGN,
    IDS,
    PLACEMENT,
    TOPICS,
    Election,
    MirroredTopic,
    Registration,
    split_changes,
    topic_node_changes,
)
from kohort.cluster.zookeeper.security import ZooKeeperAddress
from kohort.cluster.zookeeper.session import Change, SessionState, ZNode, ZooKeeperSession
from kohort.errors import CorruptDataError, ErrorCode, KafkaError, NotAuthorizedError, TimedOutError

# -- Kafka's topics in ZooKeeper: written by the leader, watched by all
#
# Source: spec 4.8.

_READS = 500
"""Concurrent reads: the topics of a cluster with 10,000 of them are read in 20 rounds."""


class TopicMirror:
    """The topic mirror as one coordinator sees it; only nodes whose watch has fired are read again.

    Attributes:
        wanted: The topics that ZooKeeper should list; None: this coordinator does not know.
        on_change: Called when the topics below `/brokers/topics` have changed; None: nobody is interested.
    """

    def __init__(self, session: ZooKeeperSession, look: Callable[[], None]) -> None:
        """Create the mirror of a session. It calls `look` to request another `write_topics`."""
        self.wanted: Mapping[str, MirroredTopic] | None = None
        self.on_change: Callable[[], None] | None = None
        self._session = session
        self._look = look
        self._connection = 0
        self._seen: dict[str, bytes] = {}
        self._names_due = True
        self._due: set[str] = set()

    async def write_topics(self, guard: Change | None) -> None:
        """Read the topic nodes that may have changed, report changes to `on_change`, and write the wanted topics.

        Args:
            guard: A check that holds only while this coordinator leads; None: it does not lead.

        Raises:
            KafkaError: ZooKeeper is away, or refuses.
        """
        if self.on_change is None and (guard is None or self.wanted is None):
            return
        if self._connection != self._session.connections:  # the watches of the one before are gone
            self._connection = self._session.connections
            self._names_due = True
            self._due.update(self._seen)
        before = dict(self._seen)
        await self._read_names()
        while self._due:
            await self._read_topics(sorted(self._due)[:_READS])
        if before != self._seen and self.on_change is not None:
            self.on_change()
        if guard is not None and self.wanted is not None:
            await self._write_topics(guard, self.wanted)

    def mark_for_zookeeper(self, name: str | None) -> None:
        """Mark a topic, or the list of names (None), as changed: its watch has fired."""
        if name is None:
            self._names_due = True
        else:
            self._due.add(name)
        self._look()

    async def _read_names(self) -> None:
        if not self._names_due:
            return
        self._names_due = False
        try:
            names = set(await self._session.children(TOPICS, _TopicWatch(self, None)))
        except BaseException:
            self._names_due = True
            raise
        for name in self._seen.keys() - names:
            del self._seen[name]
        self._due |= names - self._seen.keys()

    async def _read_topics(self, names: list[str]) -> None:
        self._due.difference_update(names)  # before the reads: a watch may fire meanwhile
        try:
            nodes = await asyncio.gather(
                *(self._session.read(f"{TOPICS}/{name}", _TopicWatch(self, name)) for name in names)
            )
        except BaseException:
            self._due.update(names)
            raise
        for name, node in zip(names, nodes, strict=True):
            if node is None:
                self._seen.pop(name, None)
            else:
                self._seen[name] = node.data

    async def _write_topics(self, guard: Change, wanted: Mapping[str, MirroredTopic]) -> None:
        for piece in split_changes(topic_node_changes(self._seen, wanted)):
            changes = [self._change(name, data) for name, data in piece]
            if not await self._session.change(guard, *changes):
                self._names_due = True
                self._due.update(self._seen)
                self._look()
                return
            for name, data in piece:
                if data is None:
                    self._seen.pop(name, None)
                else:
                    self._seen[name] = data

    def _change(self, name: str, data: bytes | None) -> Change:
        path = f"{TOPICS}/{name}"
        if data is None:
            return Change(path, delete=True)
        return Change(path, data, -1 if name in self._seen else None)


@dataclass(frozen=True, slots=True)
class _TopicWatch:
    """A watch that marks a topic below `/brokers/topics`, or the list of names, as changed."""

    mirror: TopicMirror
    name: str | None

    def __call__(self) -> None:
        self.mirror.mark_for_zookeeper(self.name)


log = logging.getLogger("kohort.cluster")
SESSION_MS = 6_000
_REACH_MS = 15_000
_OPEN_MS = 30_000
_LAST_WORD_MS = 1_000
"""Timeout of the last requests at shutdown. They take a few milliseconds; session expiry does the same in 6 s."""
_AGAIN_S = 0.5
"""Retry delay after a failure whose end no watch reports."""
_TRIES = 10
"""Attempts to change a node that others change between the read and the write; then `_settle` is retried later."""


@dataclass(frozen=True, slots=True)
class WriteGuard:
    """The permission of this process to write the push groups of some shards to ZooKeeper.

    Attributes:
        changes: version checks to include in each multi; they fail once another process may write.
        shards: the shards whose groups this process may write.
    """

    changes: tuple[Change, ...]
    shards: frozenset[int]


class ZooKeeperCoordination:
    """A coordination service over ZooKeeper."""

    def __init__(
        self, address: str | ZooKeeperAddress, session_ms: int = SESSION_MS, *, exclusive: bool = False
    ) -> None:
        """Create a closed service; `open` connects it.

        Args:
            address: HOST:PORT[,HOST:PORT…][/PATH]; all nodes are under the path. With the settings of connections,
                where they are secure.
            session_ms: The session timeout, after which a silent candidate is unregistered.
            exclusive: Own all shards and share the path with nobody, because a broker's groups are in its data folder.

        Raises:
            InvalidInputError: the address is malformed.
        """
        self.placement: Placement | None = None
        self.is_leader = False
        self.session = ZooKeeperSession(address, session_ms, self._session_changed)
        self._exclusive = exclusive
        self._refused_by: Registration | None = None
        self._session_ms = session_ms
        self._mine: Registration | None = None
        self._shards = 0
        self._map: Placement | None = None
        self._map_node: ZNode | None = None
        self._epoch: ZNode | None = None
        self._taken_by: Candidate | None = None
        self._entered = False
        self._notified: tuple[Placement | None, bool] = (None, False)
        self._trouble: KafkaError | None = None
        self._on_change: Callable[[], None] = lambda: None
        self._look = asyncio.Event()
        self._looks = self._looked = 0
        self._mirror = TopicMirror(self.session, self._look.set)
        self._settled = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._deposing: set[asyncio.Task[None]] = set()

    # -- the coordination service

    def on_changes(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` on the loop after `placement` or `is_leader` changed."""
        self._on_change = on_change

    async def open(self, me: Candidate, shards: int) -> None:
        """Connect and register; return once this candidate is registered and there is a placement.

        Raises:
            KafkaError: ZooKeeper can't be reached, may not be used, or the id is taken; the message says what to do.
        """
        self._mine, self._shards, self._entered = Registration(me, exclusive=self._exclusive), shards, False
        self.placement = self._taken_by = self._trouble = self._refused_by = None
        await self.session.open(_REACH_MS)
        try:
            await self._check_root()
            for path in ("/consumers", EPOCH, IDS, TOPICS):
                await self.session.create_path(path)
            self._keeper = asyncio.get_running_loop().create_task(self._keep())
            self._look.set()
            await self._wait(self._has_place, _OPEN_MS, self._session_ms + 2_000)
        except BaseException:
            await self.close()
            raise

    def remove_dead_candidate(self, candidate: Candidate) -> None:
        """Delete the nodes of a process that seems to have ended. If it is alive it creates them again."""
        if self._keeper is None:
            return
        task = asyncio.get_running_loop().create_task(self._depose(candidate))
        self._deposing.add(task)
        task.add_done_callback(self._deposing.discard)

    async def hand_over_and_leave(self) -> None:
        """Stop cleanly: hand the shards over to others, and unregister once the placement says so."""
        if self._mine is not None and self._keeper is not None and self.placement is not None:
            number = self._mine.candidate.id
            self._mine = Registration(self._mine.candidate, retiring=True, exclusive=self._exclusive)
            self._look.set()
            with contextlib.suppress(KafkaError):  # nobody is there to take them
                await self._wait(
                    lambda: self.placement is None or not self.placement.shards_of(number), self._session_ms
                )
        await self.close()

    async def refresh_placement(self) -> None:
        """Refresh `placement` from ZooKeeper; wait for as long as ZooKeeper is unavailable."""
        wanted = self._looks + 1  # a look under way may have read the placement already
        self._look.set()
        while self._looked < wanted:
            self._settled.clear()
            await self._settled.wait()

    def report_loop_alive(self) -> None:
        """Report that the event loop is alive."""
        self.session.report_loop_alive()

    async def close(self) -> None:
        """Unregister at once, after pending suspicions are written: nobody else may know of them."""
        keeper, self._keeper, self.is_leader = self._keeper, None, False
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait([keeper])
        if self._deposing:
            _, late = await asyncio.wait(self._deposing, timeout=_LAST_WORD_MS / 1000)
            for task in late:
                task.cancel()
        await self.session.close()

    # -- topics

    def mirror_topics(self, topics: Mapping[str, MirroredTopic]) -> None:
        """Mirror these topics in `/brokers/topics` for as long as this coordinator leads."""
        self._mirror.wanted = dict(topics)
        self._look.set()

    def on_topics_changed(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` on the loop when any process has changed the topics below `/brokers/topics`."""
        self._mirror.on_change = on_change
        self._look.set()

    # -- groups

    @property
    def connections(self) -> int:
        """The number of connections so far; the nodes may have changed between two of them."""
        return self.session.connections

    def write_guard(self) -> WriteGuard | None:
        """Return the permission to write the push groups of this process's shards to ZooKeeper; None: not now."""
        mine, stands = self._mine, self._map
        if mine is None or stands is None or self._map_node is None or (self._exclusive and not self.is_leader):
            return None
        named = stands.candidate(mine.candidate.id)
        if named is None or named.incarnation != mine.candidate.incarnation:
            return None
        changes = [Change(PLACEMENT, version=self._map_node.version)]
        if self.is_leader and self._epoch is not None:
            changes.append(Change(EPOCH, version=self._epoch.version))
        return WriteGuard(tuple(changes), stands.shards_of(mine.candidate.id))

    def reread_all_nodes(self) -> None:
        """Read all nodes again, because one of them was not as expected."""
        self._look.set()

    # -- reconciliation

    async def _keep(self) -> None:
        while True:
            await self._look.wait()
            self._look.clear()
            if self.session.state is not SessionState.CONNECTED:
                continue  # the next connection triggers another look
            try:
                await self._settle()
                self._trouble = None
            except KafkaError as error:
                self._look_failed(error)
            except Exception as error:
                log.exception("placement: unexpected error while reading or updating it in ZooKeeper, retrying")
                self._look_failed(KafkaError(f"unexpected error: {error!r}"))
            self._notify_change()

    def _look_failed(self, error: KafkaError) -> None:
        if self._trouble is None or self._trouble.message != error.message:  # by text: logged once
            log.warning(
                "placement: retrying every %.1f s: reading or updating it in ZooKeeper failed: %s", _AGAIN_S, error
            )
        self._trouble = error
        asyncio.get_running_loop().call_later(_AGAIN_S, self._look.set)

    async def _settle(self) -> None:
        session, mine = self.session.id, self._require_mine()
        if session is None:
            return
        self._looks += 1
        look = self._looks
        before, self._taken_by = self._taken_by, await self._register(session, mine)
        if self._taken_by is None:
            self._entered = True
            self.is_leader = await self._elect(session, mine)
        else:
            if self._entered and before is None:
                log.error(
                    "placement: this coordinator has lost its registration and resigns: %s", _taken(self._taken_by)
                )
            self.is_leader = False
            await self._resign(session)
        await self._read_map()
        if self.is_leader:
            await self._place(mine)
        self.placement, self._looked = self._map, look
        self._notify_change()
        guard = Change(EPOCH, version=self._epoch.version) if self.is_leader and self._epoch is not None else None
        await self._mirror.write_topics(guard)

    async def _register(self, session: int, mine: Registration) -> Candidate | None:
        """Create this candidate's node in this session, and delete one of an earlier session.

        Returns: the other candidate that has the id, if any.
        """
        path = f"{IDS}/{mine.candidate.id}"
        for _ in range(_TRIES):
            node = await self.session.read(path, self._look.set)
            if node is None:
                await self.session.change(Change(path, mine.to_bytes(), version=None, ephemeral=True))
            elif is_of_session(node, session):
                if node.data == mine.to_bytes():
                    return None
                await self.session.change(Change(path, mine.to_bytes(), node.version))
            else:
                holder = _read_registration(str(mine.candidate.id), node)
                if holder is not None and self._is_other(holder.candidate, mine.candidate):
                    return holder.candidate
                await self.session.change(Change(path, version=node.version, delete=True))
        raise KafkaError(f"{path} does not stay as it was made")

    async def _elect(self, session: int, mine: Registration) -> bool:
        """Return whether this coordinator leads. Stand for election if nobody does, unless it is about to stop."""
        for _ in range(_TRIES):
            node = await self.session.read(COORDINATOR, self._look.set)
            if node is None:
                if mine.retiring:
                    return False
                await self._stand_for_election(session, mine.candidate.id)
            elif is_of_session(node, session):
                self._refused_by = None
                self._epoch = await self.session.read(EPOCH)
                if self._epoch is not None and Election.from_bytes(self._epoch.data).session == session:
                    return True
                if await self.session.read(COORDINATOR) == node:  # nobody else was elected meanwhile
                    await self.session.change(Change(COORDINATOR, version=node.version, delete=True))
            elif node.data == str(mine.candidate.id).encode():  # an earlier session's, of this id, which is ours
                await self.session.change(Change(COORDINATOR, version=node.version, delete=True))
            else:
                before, self._refused_by = self._refused_by, await self._refusing(node, mine)
                if self.placement is not None and self._refused_by not in (None, before):
                    log.error(
                        "placement: conflict over the ZooKeeper path, this coordinator does not lead any more: %s",
                        self._has_path(self._refused_by.candidate),
                    )
                return False
        raise KafkaError(f"{COORDINATOR} does not stay as it was made")

    async def _refusing(self, election: ZNode, mine: Registration) -> Registration | None:
        """Return the elected process's registration if it or this process demands the path for itself; else None."""
        number = election.data.decode(errors="replace")
        node = await self.session.read(f"{IDS}/{number}")
        holder = None if node is None else _read_registration(number, node)
        return holder if holder is not None and (holder.exclusive or mine.exclusive) else None

    async def _resign(self, session: int) -> None:
        """Give up leadership of the placement, because this coordinator is not registered any more."""
        node = await self.session.read(COORDINATOR)
        if node is not None and is_of_session(node, session):
            await self.session.change(Change(COORDINATOR, version=node.version, delete=True))

    async def _stand_for_election(self, session: int, number: int) -> None:
        epoch = await self.session.read(EPOCH)
        if epoch is None:
            await self.session.create_path(EPOCH)
            return
        office = Election(Election.from_bytes(epoch.data).epoch + 1, number, session)
        if await self.session.change(
            Change(EPOCH, office.to_bytes(), epoch.version),
            Change(COORDINATOR, str(number).encode(), version=None, ephemeral=True),
        ):
            log.info("placement: elected leader, epoch %d", office.epoch)

    async def _read_map(self) -> None:
        self._map_node = await self.session.read(PLACEMENT, self._look.set)
        self._map = None
        if self._map_node is not None:
            try:
                self._map = read_placement(from_bytes(self._map_node.data))
            except CorruptDataError as error:
                log.warning("placement: rewriting %s, which can't be decoded: %s", PLACEMENT, error)

    async def _place(self, mine: Registration) -> None:
        """Compute the placement of the present candidates, and write it to ZooKeeper."""
        after = compute_placement(self._map, await self._alive(), mine.candidate.id, self._shards)
        if after is self._map or self._epoch is None:
            return
        data = to_bytes(placement_fields(after))
        version = None if self._map_node is None else self._map_node.version
        if await self.session.change(Change(EPOCH, version=self._epoch.version), Change(PLACEMENT, data, version)):
            await self._read_map()
        else:
            self._look.set()  # another was elected, or wrote

    async def _alive(self) -> list[Candidate]:
        mine = self._require_mine()
        if self._exclusive:
            return [] if mine.retiring else [mine.candidate]
        names = [name for name in await self.session.children(IDS, self._look.set) if name.isdecimal()]
        nodes = await asyncio.gather(*(self.session.read(f"{IDS}/{name}", self._look.set) for name in names))
        candidates = []
        for name, node in zip(names, nodes, strict=True):
            registration = None if node is None else _read_registration(name, node)
            if registration is not None and not registration.retiring:
                candidates.append(registration.candidate)
        return candidates

    async def _depose(self, candidate: Candidate) -> None:
        try:
            await self._delete_nodes(candidate)
        except KafkaError as error:
            log.warning(
                "placement: coordinator %d seems to have ended, but its node in ZooKeeper can't be deleted (%s): its "
                "groups move when its session there expires",
                candidate.id,
                error,
            )

    async def _delete_nodes(self, candidate: Candidate) -> None:
        path = f"{IDS}/{candidate.id}"
        node = await self.session.read(path)
        registration = None if node is None else _read_registration(str(candidate.id), node)
        if node is None or registration is None or registration.candidate.incarnation != candidate.incarnation:
            return
        changes = [Change(path, version=node.version, delete=True)]
        office = await self.session.read(COORDINATOR)
        if office is not None and is_of_session(office, node.owner):
            changes.append(Change(COORDINATOR, version=office.version, delete=True))
        if await self.session.change(*changes):
            log.info(
                "placement: unregistered coordinator %d at %s, which seems to have ended",
                candidate.id,
                candidate.address,
            )

    # -- state and messages

    def _is_other(self, holder: Candidate, me: Candidate) -> bool:
        """Return whether a candidate's node belongs to a process other than this one that may still be alive.

        An address belongs to one process at a time. A process that was at this address earlier has ended. A process
        that comes to it later assumes the same of this one.
        """
        return holder.incarnation != me.incarnation and (self._entered or holder.address != me.address)

    def _has_place(self) -> bool:
        is_in = self._taken_by is None and self._refused_by is None
        return self.placement is not None and is_in and (self.is_leader or not self._exclusive)

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            log.warning("placement: the ZooKeeper session has expired; beginning a new one")
            self.is_leader = False
            self._notify_change()
        elif state is SessionState.SUSPENDED:
            log.warning("placement: connection to ZooKeeper lost, reconnecting; the last known placement stays in use")
        else:
            self._look.set()

    def _notify_change(self) -> None:
        now = (self.placement, self.is_leader)
        if now != self._notified:
            self._notified = now
            self._on_change()
        self._settled.set()

    async def _wait(self, ready: Callable[[], bool], timeout_ms: float, taken_ms: float | None = None) -> None:
        """Wait until `ready()`, and report meanwhile that the loop is alive.

        Raises:
            TimedOutError: it is not ready in time.
            KafkaError: another process had the id for `taken_ms`, or ZooKeeper refuses.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not ready():
            self.session.report_loop_alive()
            passed_ms = (loop.time() - began) * 1000
            if taken_ms is not None and passed_ms > taken_ms:
                self._check_alone()
            if self._taken_by is not None and taken_ms is not None and passed_ms > taken_ms:
                text = f"{_taken(self._taken_by)}; give this one another with --id"
                raise KafkaError(text, ErrorCode.DUPLICATE_BROKER_REGISTRATION)
            if isinstance(self._trouble, NotAuthorizedError):
                raise self._trouble
            if passed_ms > timeout_ms:
                why = self._trouble or "nobody wrote the map"
                raise TimedOutError(f"no place among the coordinators within {timeout_ms:.0f} ms: {why}")
            self._settled.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._settled.wait(), 0.2)

    def _check_alone(self) -> None:
        """Raise KafkaError if another process uses the path exclusively, or prevents this one from doing so."""
        holder = None if self._refused_by is None else self._refused_by.candidate
        if self._exclusive and holder is None:
            holder = self._taken_by
        if holder is not None:
            raise KafkaError(self._has_path(holder), ErrorCode.DUPLICATE_BROKER_REGISTRATION)

    def _has_path(self, holder: Candidate) -> str:
        text = f"ZooKeeper at {self.session.address}: {holder.id} at {holder.address} has this path"
        return f"{text}; a broker keeps its data for itself and shares no path; name another one, as HOST:PORT/other"

    async def _check_root(self) -> None:
        """Raise KafkaError if the path has nodes of a Kafka in ZooKeeper mode."""
        for path in FOREIGN:
            if await self.session.read(path) is not None:
                text = f"ZooKeeper at {self.session.address}: {path} is there, so a Kafka keeps its topics here"
                advice = "they would be written over; name a path of the coordinators' own, as HOST:PORT/kohort"
                raise KafkaError(f"{text}; {advice}", ErrorCode.INVALID_CONFIG)

    def _require_mine(self) -> Registration:
        if self._mine is None:
            raise RuntimeError("the door is not open")
        return self._mine


def is_of_session(node: ZNode, session: int) -> bool:
    """Return whether a node belongs to this session. Its content says nothing: an earlier session's is the same."""
    return node.owner == session


def _taken(holder: Candidate) -> str:
    return f"the id {holder.id} is taken by the coordinator at {holder.address}"


def _read_registration(name: str, node: ZNode) -> Registration | None:
    try:
        return Registration.from_bytes(name, node.data)
    except CorruptDataError as error:
        log.warning("placement: ignoring the node of broker %s, which is not a kohort coordinator's: %s", name, error)
        return None
