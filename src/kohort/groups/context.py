"""What every protocol's handlers work with: the groups, the deadlines, the moment, and the outcome under way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kohort.groups.config import GroupConfig
from kohort.groups.events import NO_CONNECTION, GroupSettings, Topic, TopicImage
from kohort.groups.group import Group
from kohort.groups.imports import Imports
from kohort.groups.ledger import Ledger
from kohort.groups.liveness.deadlines import Deadline, Deadlines, Timer
from kohort.groups.liveness.held import HeldReplies
from kohort.groups.outcome import Counted, Level, Meter, Now, Outcome, Rebalanced, Reply, ReplyValue, Told
from kohort.groups.records import GroupSaved, Record, Tombstone
from kohort.ids import TopicId

if TYPE_CHECKING:
    from kohort.groups.protocol import Row


class Context:
    """The state of one shard and the step it is in.

    Attributes:
        protocols: a group's row by the class of its membership.
        ledger: the hard state.
        now: the moment of the step.
        out: what the step will return.
        image: the topics.
        connections: by connection, the (group, member id) last heard on it, or to be told their id on it.
        held: the replies that are held.
        imports: groups that are being asked for at their earlier coordinator.
        settings: groups' own settings.
        sessions_from_ms: an earlier owner may have heard members until then, and no session ends as if it had not.
        expiring: groups whose offsets the expiration under way has still to look at.
    """

    def __init__(self, config: GroupConfig, protocols: Sequence[Row]) -> None:
        self.config = config
        self.protocols = {protocol.membership: protocol for protocol in protocols}
        self.ledger = Ledger(list(self.protocols))
        self.deadlines = Deadlines()
        self.image = TopicImage()
        self._ids_of: TopicImage | None = None
        self._by_id: dict[TopicId, Topic] = {}
        self.now = Now(0, 0)
        self.out = Outcome()
        self._ticket = 0
        self.connections: dict[int, dict[tuple[str, str], None]] = {}
        self.held = HeldReplies()
        self.imports = Imports()
        self.settings: dict[str, GroupSettings] = {}
        self.sessions_from_ms = 0
        self.expiring: list[str] = []
        self.expiry = Timer(Deadline.EXPIRY)

    def begin(self, now: Now) -> None:
        """Start a step."""
        self.now = now
        self.out = Outcome()

    def emit(self, record: Record) -> None:
        """Change the hard state, now and durably."""
        self.ledger.apply(record)
        self.out.records.append(record)

    def reply(self, request: int, value: ReplyValue) -> None:
        """Answer a request, once the records so far are durable."""
        self.out.replies.append(Reply(request, value))

    def run(self, timer: Timer, delay_ms: int) -> None:
        """Set a timer from now."""
        self.deadlines.set(timer, self.now.mono_ms + delay_ms)

    def count(self, meter: Meter, amount: int = 1) -> None:
        """Move a meter on."""
        if amount:
            self.out.notes.append(Counted(meter, amount))

    def rebalanced(self, group_id: str, protocol: str, began_ms: int | None, still: list[int], members: int) -> None:
        """A group is whole again: count it, and leave how long it took and how long (`still`, ms) who stood still."""
        now_ms = self.now.mono_ms
        self.count(Meter.COMPLETED_REBALANCES)
        whole = now_ms - (now_ms if began_ms is None else began_ms)
        mean = sum(still) / len(still) if still else 0.0
        self.out.notes.append(Rebalanced(group_id, protocol, whole, mean, max(still, default=0), members))

    def tell(self, group_id: str, text: str, level: Level = Level.INFO) -> None:
        """Leave a line for the log."""
        self.out.notes.append(Told(level, group_id, text))

    def remember_connection(self, connection: int, group_id: str, member_id: str) -> None:
        """A member was heard on this connection."""
        if connection != NO_CONNECTION:
            self.connections.setdefault(connection, {})[group_id, member_id] = None

    def forget_connection(self, connection: int, group_id: str, member_id: str) -> None:
        """A member is gone, or was heard on another connection since."""
        of_connection = self.connections.get(connection)
        if of_connection is not None:
            of_connection.pop((group_id, member_id), None)
            if not of_connection:
                del self.connections[connection]

    def ticket(self) -> int:
        """A number that no earlier work of this process has, also not of a machine that was thrown away."""
        self._ticket = max(self._ticket + 1, self.now.mono_ms << 10)
        return self._ticket

    def topics_by_id(self) -> Mapping[TopicId, Topic]:
        """The topics of the image by their ids."""
        if self._ids_of is not self.image:
            self._ids_of = self.image
            self._by_id = {topic.id: topic for topic in self.image.topics.values()}
        return self._by_id

    def find(self, group_id: str) -> Group | None:
        """The group, None when there is none."""
        return self.ledger.groups.get(group_id)

    def protocol(self, group: Group) -> Row:
        """The row of a group's protocol, whose functions take its membership."""
        return self.protocols[type(group.membership)]

    def remove(self, group: Group) -> None:
        """Write that a group has no members' records any more; its offsets stay."""
        for key in list(group.membership.tombstones()):
            self.emit(Tombstone(key))

    def create(self, group_id: str) -> Group | None:
        """A new empty group with its record; None when the shard has as many as it may have."""
        if len(self.ledger.groups) >= self.config.groups_max:
            self.tell(group_id, f"refused: there are {self.config.groups_max} groups already", Level.WARNING)
            return None
        self.emit(GroupSaved(group_id, "", 0, None, None, self.now.wall_ms, ()))
        return self.ledger.groups[group_id]
