"""Clients outside the groups: a transactional producer, an administrator, and a hostile client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kohort.errors import ErrorCode
from kohort.groups import events
from kohort.groups.events import Client as Sender
from kohort.groups.events import LeavingMember, OffsetToCommit
from kohort.groups.records import OfferedProtocol, TopicPartitions
from kohort.ids import TopicId, TopicPartition
from simulation.checkers.group_checkers import Checkers
from simulation.harness.assigning import COOPERATIVE, EAGER
from simulation.harness.network import Network
from simulation.harness.server import Server
from simulation.harness.world import World
from simulation.members.client import Client
from simulation.members.process import Process

FILTERS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("stable",), ()),
    (("Empty", "Assigning"), ()),
    ((), ("Consumer",)),
    (("Stable", "reconciling"), ("classic", "consumer")),
)
"""The states and types of groups in an administrator's ListGroups."""
STRANGE_PARTITION = 100
"""The first partition number that no topic has: a false claim to one takes nothing from a member."""


class Producer(Client):
    """A producer that commits offsets in one transaction and ends it, whatever it receives. Source: KIP-98, KIP-447."""

    def __init__(self, name: str, world: World, network: Network, server: Server, checkers: Checkers) -> None:
        super().__init__(name, world, network)
        self.server = server
        self.checkers = checkers

    def run(self, group_id: str, topic: str, member: Process | None, commit: bool, delay_ms: int) -> None:
        """Run a transaction with offsets of a topic, perhaps as a member; it ends `delay_ms` after a response."""
        producer_id = self.server.begin_transaction()
        topic_id = self.world.topic_ids.get(topic)
        if topic_id is None:
            self.server.end_transaction(producer_id, commit=False)
            return
        held = (
            [1, 0] if member is None else [partition.partition for partition in member.held if partition.topic == topic]
        )
        offsets = tuple(OffsetToCommit(topic, number, self.checkers.fresh_offset()) for number in sorted(held))
        as_whom = () if member is None else (member.member_id, member.generation, member.instance_id)
        event = events.TxnOffsetCommit(0, group_id, producer_id, 0, offsets, *as_whom)

        def answered(value: Any) -> None:
            taken = commit and not any(value.errors)
            self._later(delay_ms, lambda: self.server.end_transaction(producer_id, taken))

        def lost() -> None:
            self.server.end_transaction(producer_id, commit=False)

        if offsets:
            self._ask(event, answered, lost)
        else:
            lost()


class Administrator(Client):
    """A client that deletes groups and offsets, removes members, and lists, describes and reads groups."""

    def look(self, group_ids: Sequence[str]) -> None:
        """List and describe groups."""
        names = tuple(group_ids)
        for event in (
            events.ListGroups(0),
            events.ListGroups(0, *self.chance.choice(FILTERS)),
            events.DescribeGroups(0, names),
            events.ConsumerGroupDescribe(0, names),
        ):
            self.send(event)

    def read(self, group_ids: Sequence[str]) -> None:
        """Read all committed offsets."""
        for group_id in group_ids:
            self.send(events.OffsetFetch(0, group_id, None))

    def send(self, event: Any) -> None:
        """Send a request once."""
        self._ask(event, lambda reply: None, lambda: None)

    def remove(self, group_id: str, member: Process) -> None:
        """Remove a member, by its instance id if it has one."""
        static = member.instance_id is not None
        leaving = LeavingMember("" if static else member.member_id, member.instance_id)
        if static or member.member_id:
            self.send(events.LeaveGroup(0, group_id, (leaving,)))


class Hostile(Client):
    """A client that sends random, malformed and stale requests all the time.

    It uses the ids of others with wrong generations, joins groups itself, and leads them badly. It does not do what the
    protocol cannot prevent: it claims no partition of others in its assignments and commits.
    """

    EVERY_MS = 700

    def __init__(
        self,
        name: str,
        world: World,
        network: Network,
        group_ids: Sequence[str],
        members: list[Process],
        checkers: Checkers,
    ) -> None:
        super().__init__(name, world, network)
        self.checkers = checkers
        self.group_ids = group_ids
        self.members = members
        self.own: dict[str, tuple[str, int]] = {}
        self._menu: tuple[Callable[[str], Any], ...] = (
            self._join,
            self._join,
            self._sync,
            self._heartbeat,
            self._leave,
            self._commit,
            self._commit,
            self._beat,
            self._beat,
            self._fetch,
        )

    def start(self) -> None:
        """Begin."""
        self.world.log(f"{self.name}: begins to send nonsense")
        self._again()

    def _again(self) -> None:
        chance = self.chance
        group_id = chance.choice((*self.group_ids, *self.group_ids, "", "nowhere"))
        event = chance.choice(self._menu)(group_id)

        def answered(value: Any) -> None:
            if isinstance(event, events.JoinGroup):
                self._joined(group_id, value)

        self._ask(event, answered, lambda: None)
        self._later(chance.upto(2 * self.EVERY_MS), self._again)

    def _joined(self, group_id: str, value: Any) -> None:
        if value.error in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            self.own[group_id] = (value.member_id, value.generation)
        else:
            self.own.pop(group_id, None)

    def _someone(self, group_id: str) -> tuple[str, int]:
        """Return a member id and a generation: its own, another member's with a wrong generation, or invented ones."""
        chance = self.chance
        if group_id in self.own and chance.likely(0.6):
            return self.own[group_id]
        others = [member for member in self.members if member.group_id == group_id and member.member_id]
        if others and chance.likely(0.6):
            other = chance.choice(others)
            stale = other.generation - 3
            return other.member_id, chance.choice((stale if stale > 0 else 1_000, other.generation + 3, 1_000_000))
        return f"nobody-{chance.getrandbits(16)}", chance.choice((-2, 0, 5))

    def _noise(self) -> bytes:
        chance = self.chance
        return chance.choice(
            (b"", b"\0\1", b"\0\1\0\0\0\1\0\2t0\xff\xff\xff\xff", chance.randbytes(1 + chance.upto(60)))
        )

    def _instance(self) -> str | None:
        return self.chance.choice((None, None, None, "", "strange"))

    def _join(self, group_id: str) -> Any:
        chance = self.chance
        member_id = self.own.get(group_id, ("", -1))[0] if chance.likely(0.7) else f"nobody-{chance.getrandbits(16)}"
        names = chance.choice(((EAGER,), (COOPERATIVE,), (EAGER, COOPERATIVE, EAGER), ("", "x" * 300), ()))
        return events.JoinGroup(
            request=0,
            group_id=group_id,
            member_id=member_id,
            new_member_id=f"{self.name}-{chance.getrandbits(32):08x}",
            client=Sender(self.name * chance.choice((1, 50)), "/10.6.6.6"),
            protocol_type=chance.choice(("consumer", "consumer", "connect", "")),
            protocols=tuple(OfferedProtocol(name, self._noise()) for name in names),
            session_timeout_ms=chance.choice((6_000, 6_000, 10_000, -1, 0, 2**31 - 1)),
            rebalance_timeout_ms=chance.choice((5_000, 0, -1, 20_000)),
            instance_id=self._instance(),
            requires_known_id=chance.likely(0.5),
            can_skip_assignment=chance.likely(0.5),
        )

    def _sync(self, group_id: str) -> Any:
        member_id, generation = self._someone(group_id)
        ids = [member.member_id for member in self.members if member.group_id == group_id]
        plan = tuple((name, self._noise()) for name in (*ids, member_id, "nobody"))
        return events.SyncGroup(
            0,
            group_id,
            generation,
            member_id,
            self.chance.choice((plan, plan * 2, ())),
            self._instance(),
            self.chance.choice((None, "consumer", "connect")),
            self.chance.choice((None, EAGER, "nothing")),
        )

    def _heartbeat(self, group_id: str) -> Any:
        member_id, generation = self._someone(group_id)
        return events.Heartbeat(0, group_id, generation, member_id, self._instance())

    def _leave(self, group_id: str) -> Any:
        mine = self.own.pop(group_id, ("nobody", -1))[0]
        leaving = (
            LeavingMember(mine),
            LeavingMember("nobody", "strange"),
            LeavingMember("", None),
            LeavingMember(mine),
        )
        return events.LeaveGroup(0, group_id, leaving[: self.chance.upto(4)])

    def _commit(self, group_id: str) -> Any:
        chance = self.chance
        member_id, generation = self._someone(group_id)
        numbers = (STRANGE_PARTITION, STRANGE_PARTITION + chance.upto(3), 2**31 - 1)
        offsets = tuple(
            OffsetToCommit(
                "t0",
                number,
                chance.choice((0, 2**62)) + self.checkers.fresh_offset(),
                -1,
                "m" * chance.choice((0, 10, 5_000)),
            )
            for number in numbers[: 1 + chance.upto(2)]
        )
        if chance.likely(0.3):
            return events.TxnOffsetCommit(0, group_id, -1 - chance.upto(3), -1, offsets, member_id, generation)
        return events.OffsetCommit(0, group_id, member_id, generation, offsets, self._instance())

    def _beat(self, group_id: str) -> Any:
        chance = self.chance
        member_id, epoch = self._someone(group_id)
        if chance.likely(0.3):
            member_id, epoch = chance.choice((f"{self.name}-modern", "")), 0
        strange = TopicPartitions(TopicId(int=chance.getrandbits(100)), (0, STRANGE_PARTITION))
        return events.ConsumerGroupHeartbeat(
            request=0,
            group_id=group_id,
            member_id=member_id,
            new_member_id=f"{self.name}-{chance.getrandbits(32):08x}",
            member_epoch=chance.choice((epoch, epoch, -3)),
            client=Sender(self.name, "/10.6.6.6"),
            instance_id=self._instance(),
            rack_id=chance.choice((None, None, "", "r")),
            rebalance_timeout_ms=chance.choice((-1, 0, 5_000)),
            subscribed_topics=chance.choice((None, (), ("t0", "nothing"), ("t0", "t0"))),
            subscribed_regex=chance.choice((None, None, "", "nothing.*")),
            server_assignor=chance.choice((None, None, "range", "nothing")),
            owned=chance.choice((None, (), (strange,))),
            delay_ms=chance.choice((0, 900)),
        )

    def _fetch(self, group_id: str) -> Any:
        member_id, generation = self._someone(group_id)
        wanted = self.chance.choice((None, (), (TopicPartition("nothing", -1), TopicPartition("t0", 2**31 - 1))))
        named = self.chance.choice((None, member_id))
        return events.OffsetFetch(0, group_id, wanted, self.chance.likely(0.5), named, generation)
