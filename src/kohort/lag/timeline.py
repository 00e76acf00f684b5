"""Changes of a group between two reads: members, state and assignment as they show from outside. Pure.

Kohort's coordinators also record each rebalance with its causes, which stands here in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kohort.client.admin.values import GroupRebalanced, MemberDescription
from kohort.errors import ErrorCode
from kohort.ids import TopicPartition
from kohort.lag.evaluation import GroupLag, LagReport

NAMED_MAX = 5
"""The most partitions that a change names; a rebalance may move thousands."""


@dataclass(frozen=True, slots=True)
class GroupChange:
    """A change of a group between two successive reads of the cluster.

    Attributes:
        kind: `created`, `ended`, `joined`, `left`, `rebalance`, `state`, `assignment` or `status`.
        text: The change in words.
        at_ms: When it happened, by the coordinator's clock; None: at some time between the two reads.
    """

    kind: str
    text: str
    at_ms: int | None = None


def changes_between(before: LagReport, report: LagReport) -> list[tuple[str, GroupChange]]:
    """Return the changes of all groups between two reads, each with the group's name.

    A group that one of the two could not read is left out: it need neither have begun nor have ended.
    """
    unread = {*_unread(before), *_unread(report)}
    found = []
    for name in sorted(before.groups.keys() | report.groups.keys()):
        earlier, later = before.groups.get(name), report.groups.get(name)
        incomplete = before if earlier is None else report if later is None else None
        if incomplete is None or not (incomplete.failures or name in unread):
            found += [(name, change) for change in changes(earlier, later)]
    return found


def _unread(report: LagReport) -> list[str]:
    return [name for name, error in report.errors.items() if error.code is not ErrorCode.GROUP_ID_NOT_FOUND]


def changes(before: GroupLag | None, now: GroupLag | None) -> list[GroupChange]:
    """Return the changes of one group between two reads, causes first: members, rebalances, state, partitions, status.

    A member that leaves and one that joins in the same interval are two changes, also if they are one process.
    """
    if before is None or now is None:
        if before is now:
            return []
        if now is None:
            return [GroupChange("ended", "it is gone")]
        return [GroupChange("created", "the group is there"), *past_rebalances(now)]
    found = [*_members(before, now), *past_rebalances(now, before), *_state(before, now), *_assignment(before, now)]
    if before.status is not now.status:
        causes = {part.cause for part in now.partitions if part.status is now.status and part.cause}
        why = f": {', '.join(sorted(causes))}" if causes else ""
        found.append(GroupChange("status", f"{before.status.name} to {now.status.name}{why}"))
    return found


def past_rebalances(now: GroupLag, before: GroupLag | None = None) -> list[GroupChange]:
    """Return the rebalances that ended between two reads of a group; without `before`, all that have ended."""
    earlier = None if before is None else before.description.rebalances
    return [
        GroupChange("rebalance", rebalance_text(rebalance), rebalance.ended_ms)
        for rebalance in rebalances_since(earlier, now.description.rebalances)
    ]


def _members(before: GroupLag, now: GroupLag) -> list[GroupChange]:
    then = {member.member_id: member for member in before.description.members}
    there = {member.member_id: member for member in now.description.members}
    return [
        *(GroupChange("left", _name(member)) for name, member in then.items() if name not in there),
        *(GroupChange("joined", _name(member)) for name, member in there.items() if name not in then),
    ]


def _name(member: MemberDescription) -> str:
    instance = f" ({member.group_instance_id})" if member.group_instance_id else ""
    return f"{member.client_id or member.member_id}{instance} at {member.host}"


def _state(before: GroupLag, now: GroupLag) -> list[GroupChange]:
    found = []
    if before.description.state != now.description.state:
        found.append(GroupChange("state", f"{before.description.state} to {now.description.state}"))
    if before.description.type != now.description.type:
        found.append(GroupChange("state", f"{before.description.type} group to {now.description.type} group"))
    return found


def _assignment(before: GroupLag, now: GroupLag) -> list[GroupChange]:
    then, there = _owners(before), _owners(now)
    moved = sorted(tp for tp, owner in there.items() if tp in then and then[tp].member_id != owner.member_id)
    return [
        GroupChange("assignment", f"{what}: {_named_partitions(partitions)}")
        for what, partitions in (
            ("moved", moved),
            ("assigned", sorted(there.keys() - then.keys())),
            ("unassigned", sorted(then.keys() - there.keys())),
        )
        if partitions
    ]


def _owners(group: GroupLag) -> dict[TopicPartition, MemberDescription]:
    return {tp: member for member in group.description.members for tp in member.assignment or ()}


def _named_partitions(partitions: list[TopicPartition]) -> str:
    named = " ".join(map(str, partitions[:NAMED_MAX]))
    return named if len(partitions) <= NAMED_MAX else f"{named} and {len(partitions) - NAMED_MAX} more"


CAUSES_SHOWN = 3
"""The most causes of a rebalance in a sentence."""


def rebalance_text(rebalance: GroupRebalanced) -> str:
    """Return a rebalance as a sentence: the causes first, then the members after it and the downtime."""
    causes = [cause.text for cause in rebalance.causes[:CAUSES_SHOWN]]
    more = len(rebalance.causes) - len(causes) + rebalance.causes_left_out
    if more:
        causes.append(f"{more} more")
    why = "; ".join(causes)
    if rebalance.ended_ms is None:
        return f"{why}; under way"
    if not rebalance.members:
        return f"{why}; no members are left"
    took = f"{_seconds(rebalance.ended_ms - rebalance.began_ms)} until {_counted(rebalance.members)} had partitions"
    still = f", downtime {_seconds(rebalance.downtime_ms)}" if rebalance.downtime_ms else ", no downtime"
    return f"{why}; {took}{still}"


def rebalances_since(
    before: Sequence[GroupRebalanced] | None, now: Sequence[GroupRebalanced] | None
) -> list[GroupRebalanced]:
    """Return the rebalances that ended since an earlier read of the same group, the oldest first."""
    known = {_key(rebalance) for rebalance in before or () if rebalance.ended_ms is not None}
    return [rebalance for rebalance in now or () if rebalance.ended_ms is not None and _key(rebalance) not in known]


def _key(rebalance: GroupRebalanced) -> tuple[int, int | None, int | None]:
    return rebalance.began_ms, rebalance.ended_ms, rebalance.generation


def _counted(members: int) -> str:
    return "1 member" if members == 1 else f"all {members} members"


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.1f} s"
