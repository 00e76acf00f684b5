"""The last rebalances of the groups that this process coordinates: their causes, and the downtime of members.

The history is kept in memory alone, within fixed bounds. It begins with the process, or when the group's shard came
here, and ends when the shard goes elsewhere.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from kohort.groups.effects import Cause, Downtime, RebalanceCaused, Rebalanced, RebalanceLeftNoMembers

REBALANCES_KEPT: Final = 20
"""The rebalances of a group that are kept: the last ones."""
CAUSES_KEPT: Final = 10
"""The causes of a rebalance that are kept: the first ones. Thousands of members may join at once."""
TEXT_MAX: Final = 300
"""The characters of a cause or of a member id that are kept. Clients choose both, up to 32 KiB."""
HISTORY_CHARS_MAX: Final = 4_000_000
"""The size of all histories in characters. Beyond it, groups that have not rebalanced for the longest time go first."""
REBALANCE_CHARS: Final = 300
"""The characters for which a rebalance without its texts counts."""


@dataclass(frozen=True, slots=True)
class TimedCause:
    """A cause of a rebalance, and when it came, in milliseconds since 1970."""

    at_ms: int
    cause: Cause


@dataclass(slots=True)
class RebalanceRecord:
    """A rebalance, under way until `ended_ms` is known.

    Attributes:
        causes: the first causes.
        causes_left_out: the number of further ones.
        ended_ms: the time in milliseconds since 1970; -1: it is under way.
        generation: the generation or epoch that it led to; -1: unknown, and for push groups.
        members: the number of members after it.
        downtime_ms: the longest downtime of a member or a partition.
        longest: the members with the longest downtimes.
    """

    causes: list[TimedCause] = field(default_factory=list)
    causes_left_out: int = 0
    ended_ms: int = -1
    generation: int = -1
    members: int = 0
    downtime_ms: int = 0
    longest: tuple[Downtime, ...] = ()

    @property
    def size(self) -> int:
        """The size of this rebalance in the history, in characters."""
        texts = sum(len(timed.cause.text) + len(timed.cause.member_id) for timed in self.causes)
        return REBALANCE_CHARS + texts + sum(len(member_id) for member_id, _ in self.longest)


@dataclass(slots=True)
class GroupRebalanceHistory:
    """The last rebalances of one group, and how many causes of each kind there were.

    Attributes:
        past: those that ended, the oldest first.
        current: the one under way.
        causes: the number of causes by reason, since this process coordinates the group.
        size: the size of all rebalances and of the group's name, in characters.
    """

    past: deque[RebalanceRecord] = field(default_factory=deque)
    current: RebalanceRecord | None = None
    causes: Counter[str] = field(default_factory=Counter)
    size: int = 0


class RebalanceHistory:
    """The last rebalances of all groups of a process, from what its shards report. Used on the event loop alone."""

    def __init__(self) -> None:
        self._groups: OrderedDict[str, GroupRebalanceHistory] = OrderedDict()
        self._size = 0

    def record_rebalance_event(self, note: RebalanceCaused | Rebalanced | RebalanceLeftNoMembers) -> None:
        """Record an event that a shard reports: a rebalance was caused, a rebalance ended, or the group is empty."""
        group = self._groups.get(note.group_id)
        if group is None:
            group = self._groups[note.group_id] = GroupRebalanceHistory(size=len(note.group_id))
            self._size += group.size
        self._groups.move_to_end(note.group_id)
        before = group.size
        if isinstance(note, RebalanceCaused):
            _add_cause(group, note)
        else:
            _end_rebalance(group, note)
        self._size += group.size - before
        while self._size > HISTORY_CHARS_MAX and len(self._groups) > 1:
            _, oldest = self._groups.popitem(last=False)
            self._size -= oldest.size

    def history_of_group(self, group_id: str) -> GroupRebalanceHistory:
        """Return the history of a group; an empty one if nothing is known."""
        return self._groups.get(group_id) or GroupRebalanceHistory()

    def drop_histories(self, is_gone: Callable[[str], bool]) -> None:
        """Drop the histories of all groups for whose name `is_gone` returns True."""
        for name in [name for name in self._groups if is_gone(name)]:
            self._size -= self._groups.pop(name).size


def _add_cause(group: GroupRebalanceHistory, note: RebalanceCaused) -> None:
    group.causes[note.cause.reason.value] += 1
    if group.current is None:
        group.current = RebalanceRecord()
        group.size += group.current.size
    if len(group.current.causes) >= CAUSES_KEPT:
        group.current.causes_left_out += 1
        return
    reason, text, member_id, topics = note.cause
    kept = Cause(reason, text[:TEXT_MAX], member_id[:TEXT_MAX], topics)
    group.current.causes.append(TimedCause(note.at_ms, kept))
    group.size += len(kept.text) + len(kept.member_id)


def _end_rebalance(group: GroupRebalanceHistory, note: Rebalanced | RebalanceLeftNoMembers) -> None:
    record, group.current = group.current, None
    if record is None:  # the group was loaded in the middle of a rebalance
        return
    group.size -= record.size
    record.ended_ms, record.generation = note.at_ms, note.generation
    if isinstance(note, Rebalanced):
        record.members, record.downtime_ms = note.members, note.downtime_max_ms
        record.longest = tuple(Downtime(member_id[:TEXT_MAX], downtime) for member_id, downtime in note.longest)
    group.past.append(record)
    group.size += record.size
    if len(group.past) > REBALANCES_KEPT:
        group.size -= group.past.popleft().size
