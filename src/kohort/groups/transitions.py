"""State transitions of groups and members by event: the tables from which docs/states.md is generated.

The handlers do not use these tables; the simulation does (`tests/simulation/test_states.py`). A transition that occurs
but is missing from a table fails the test. So does one that a table lists but that never occurs, unless it is marked as
rare. An event that is missing from a table leaves the state unchanged.
"""

from __future__ import annotations

from typing import NamedTuple

NONE = "(none)"
CLASSIC, CONSUMER, PUSH = "classic group", "consumer group", "push group"


class Transition(NamedTuple):
    """A transition from one state to another.

    Attributes:
        event: the name of a class of `events`; a Tick stands for every deadline.
        to: the next state, `NONE`, or the other kind of group.
        why: the condition under which the event leads there.
        rare: the simulation need not produce it.
    """

    state: str
    event: str
    to: str
    why: str
    rare: bool = False


EMPTY, PREPARING, COMPLETING, STABLE = "Empty", "PreparingRebalance", "CompletingRebalance", "Stable"
ASSIGNING, RECONCILING = "Assigning", "Reconciling"
SETTLED, UNREVOKED, UNRELEASED = "STABLE", "UNREVOKED_PARTITIONS", "UNRELEASED_PARTITIONS"

_GONE = "the last member left, was removed, or was evicted"
_CHANGED = "a member left, was removed, or was evicted"

CLASSIC_GROUP: tuple[Transition, ...] = (
    Transition(NONE, "JoinGroup", EMPTY, "a first member is sent back for its id (KIP-394)"),
    Transition(NONE, "JoinGroup", PREPARING, "a first member; the initial delay runs"),
    Transition(NONE, "OffsetCommit", EMPTY, "someone without group management commits"),
    Transition(NONE, "TxnOffsetCommit", EMPTY, "the same, in a transaction"),
    Transition(EMPTY, "JoinGroup", PREPARING, "a member; the initial delay runs"),
    Transition(NONE, "GroupImported", EMPTY, "its offsets are taken over from an earlier coordinator", rare=True),
    Transition(
        EMPTY, "ConsumerGroupHeartbeat", CONSUMER, "a member of the other protocol: an empty group is whatever joins it"
    ),
    Transition(EMPTY, "RegisterConsumer", PUSH, "the same, of the push protocol", rare=True),
    Transition(EMPTY, "DeleteGroups", NONE, "an administrator"),
    Transition(EMPTY, "Tick", NONE, "its last offset expired"),
    Transition(EMPTY, "TopicsDeleted", NONE, "its last offset went, and it never had members", rare=True),
    Transition(EMPTY, "OffsetDelete", NONE, "the same", rare=True),
    Transition(
        EMPTY,
        "TransactionEnded",
        NONE,
        "its last offset was pending and is aborted, and it never had members",
        rare=True,
    ),
    Transition(PREPARING, "JoinGroup", COMPLETING, "the last one awaited"),
    Transition(
        PREPARING, "Tick", COMPLETING, "the initial delay or the rebalance timeout is over; who did not join is evicted"
    ),
    Transition(PREPARING, "Tick", EMPTY, "the same, and no one joined; or the last member was evicted"),
    Transition(PREPARING, "LeaveGroup", COMPLETING, "the last one awaited leaves"),
    Transition(PREPARING, "LeaveGroup", EMPTY, _GONE, rare=True),
    Transition(PREPARING, "ConnectionLost", COMPLETING, "the last one awaited had not been told its id", rare=True),
    Transition(PREPARING, "ConnectionLost", EMPTY, "the only one had not been told its id", rare=True),
    Transition(PREPARING, "ConsumerGroupHeartbeat", CONSUMER, "a member of the other protocol, and the way up is open"),
    Transition(COMPLETING, "SyncGroup", STABLE, "the leader's: the assignment is durable and handed out"),
    Transition(COMPLETING, "JoinGroup", PREPARING, "a member comes, or joins with something new"),
    Transition(
        COMPLETING, "JoinGroup", COMPLETING, "the same, and no one else is awaited: another generation", rare=True
    ),
    Transition(COMPLETING, "LeaveGroup", PREPARING, _CHANGED),
    Transition(COMPLETING, "LeaveGroup", EMPTY, _GONE),
    Transition(
        COMPLETING, "Tick", PREPARING, "a member was silent, or did not sync within the rebalance timeout", rare=True
    ),
    Transition(COMPLETING, "Tick", EMPTY, _GONE),
    Transition(COMPLETING, "ConnectionLost", PREPARING, "a new member had not been told its id", rare=True),
    Transition(COMPLETING, "ConnectionLost", EMPTY, "the only one had not been told its id", rare=True),
    Transition(
        COMPLETING, "ConsumerGroupHeartbeat", CONSUMER, "a member of the other protocol, and the way up is open"
    ),
    Transition(STABLE, "JoinGroup", PREPARING, "a member comes, joins with something new, or the leader joins again"),
    Transition(STABLE, "JoinGroup", COMPLETING, "the same, and no one else is awaited"),
    Transition(STABLE, "Heartbeat", PREPARING, "a static member came back to read topics that nobody has", rare=True),
    Transition(STABLE, "LeaveGroup", PREPARING, _CHANGED),
    Transition(STABLE, "LeaveGroup", EMPTY, _GONE),
    Transition(STABLE, "Tick", PREPARING, "a member was silent for its session, or never synced"),
    Transition(STABLE, "Tick", EMPTY, _GONE),
    Transition(
        STABLE, "TopicsChanged", PREPARING, "topics changed that its static leader may not look after", rare=True
    ),
    Transition(STABLE, "TopicsChanged", COMPLETING, "the same, and no one else is awaited", rare=True),
    Transition(STABLE, "ConnectionLost", PREPARING, "a new member had not been told its id", rare=True),
    Transition(STABLE, "ConnectionLost", EMPTY, "the only one had not been told its id", rare=True),
    Transition(STABLE, "ConsumerGroupHeartbeat", CONSUMER, "a member of the other protocol, and the way up is open"),
)

_NEW = "a member comes, or says something new"
_DOWN = "the last member of the consumer protocol goes, and the way down is open"

CONSUMER_GROUP: tuple[Transition, ...] = (
    Transition(NONE, "ConsumerGroupHeartbeat", ASSIGNING, "a first member"),
    Transition(EMPTY, "ConsumerGroupHeartbeat", ASSIGNING, "a member"),
    Transition(EMPTY, "JoinGroup", CLASSIC, "a member of the other protocol: an empty group is whatever joins it"),
    Transition(EMPTY, "RegisterConsumer", PUSH, "the same, of the push protocol", rare=True),
    Transition(EMPTY, "DeleteGroups", NONE, "an administrator", rare=True),
    Transition(EMPTY, "Tick", NONE, "its last offset expired"),
    Transition(ASSIGNING, "AssignmentComputed", RECONCILING, "there is a target for the newest epoch"),
    Transition(ASSIGNING, "AssignmentComputed", STABLE, "the same, and everyone has all of it already"),
    Transition(ASSIGNING, "ConsumerGroupHeartbeat", EMPTY, "the last member leaves", rare=True),
    Transition(ASSIGNING, "ConsumerGroupHeartbeat", CLASSIC, _DOWN, rare=True),
    Transition(ASSIGNING, "JoinGroup", CLASSIC, "a classic member takes the place of the last other one", rare=True),
    Transition(ASSIGNING, "LeaveGroup", EMPTY, _GONE, rare=True),
    Transition(ASSIGNING, "Tick", EMPTY, _GONE, rare=True),
    Transition(ASSIGNING, "Tick", CLASSIC, _DOWN, rare=True),
    Transition(ASSIGNING, "ConnectionLost", EMPTY, "the only one had not been told its id", rare=True),
    Transition(ASSIGNING, "ConnectionLost", CLASSIC, _DOWN, rare=True),
    Transition(RECONCILING, "ConsumerGroupHeartbeat", STABLE, "the last member has all of its target"),
    Transition(RECONCILING, "JoinGroup", STABLE, "the same, of a classic member"),
    Transition(RECONCILING, "ConsumerGroupHeartbeat", ASSIGNING, f"{_NEW}, or leaves"),
    Transition(RECONCILING, "JoinGroup", ASSIGNING, f"{_NEW}, by the classic protocol"),
    Transition(RECONCILING, "JoinGroup", CLASSIC, "a classic member takes the place of the last other one", rare=True),
    Transition(RECONCILING, "LeaveGroup", ASSIGNING, _CHANGED),
    Transition(RECONCILING, "LeaveGroup", EMPTY, _GONE, rare=True),
    Transition(
        RECONCILING,
        "Tick",
        ASSIGNING,
        "a member was silent, or waited for one that is, or did not join or sync in time",
    ),
    Transition(RECONCILING, "Tick", EMPTY, _GONE),
    Transition(RECONCILING, "Tick", CLASSIC, _DOWN),
    Transition(RECONCILING, "ConsumerGroupHeartbeat", EMPTY, "the last member leaves", rare=True),
    Transition(RECONCILING, "ConsumerGroupHeartbeat", CLASSIC, _DOWN, rare=True),
    Transition(RECONCILING, "ConnectionLost", ASSIGNING, "a new member had not been told its id", rare=True),
    Transition(RECONCILING, "TopicsChanged", ASSIGNING, "a topic that members read came, went or grew"),
    Transition(RECONCILING, "RegexesResolved", ASSIGNING, "a pattern matches other topics now", rare=True),
    Transition(STABLE, "ConsumerGroupHeartbeat", ASSIGNING, f"{_NEW}, or leaves"),
    Transition(STABLE, "ConsumerGroupHeartbeat", RECONCILING, "a static member is away for a while, or back"),
    Transition(STABLE, "ConsumerGroupHeartbeat", EMPTY, "the last member leaves"),
    Transition(STABLE, "ConsumerGroupHeartbeat", CLASSIC, _DOWN, rare=True),
    Transition(STABLE, "JoinGroup", ASSIGNING, f"{_NEW}, by the classic protocol"),
    Transition(STABLE, "JoinGroup", CLASSIC, "a classic member takes the place of the last other one", rare=True),
    Transition(STABLE, "JoinGroup", RECONCILING, "a classic member takes the place of a static one", rare=True),
    Transition(STABLE, "LeaveGroup", ASSIGNING, _CHANGED),
    Transition(STABLE, "LeaveGroup", EMPTY, _GONE, rare=True),
    Transition(STABLE, "Tick", ASSIGNING, "a member was silent for its session"),
    Transition(STABLE, "Tick", EMPTY, _GONE),
    Transition(STABLE, "Tick", CLASSIC, _DOWN),
    Transition(STABLE, "ConnectionLost", ASSIGNING, "a new member had not been told its id", rare=True),
    Transition(STABLE, "TopicsChanged", ASSIGNING, "a topic that members read came, went or grew"),
    Transition(STABLE, "RegexesResolved", ASSIGNING, "a pattern matches other topics now"),
)

_OUT = "a consumer's session is over"
_LEAVES = "a consumer leaves, or is removed"
_ENDED = "a consumer's process has ended"

PUSH_GROUP: tuple[Transition, ...] = (
    Transition(NONE, "RegisterConsumer", PREPARING, "a first consumer"),
    Transition(EMPTY, "RegisterConsumer", PREPARING, "a consumer"),
    Transition(EMPTY, "JoinGroup", CLASSIC, "a member of another protocol: an empty group is whatever joins it"),
    Transition(EMPTY, "ConsumerGroupHeartbeat", CONSUMER, "the same", rare=True),
    Transition(EMPTY, "DeleteGroups", NONE, "an administrator", rare=True),
    Transition(EMPTY, "Tick", NONE, "its last offset expired", rare=True),
    Transition(PREPARING, "ConsumerAnswered", STABLE, "the last one has been started"),
    Transition(PREPARING, "PartitionsDivided", STABLE, "nobody is to have anything else"),
    Transition(PREPARING, "LeaveGroup", EMPTY, "the last one leaves", rare=True),
    Transition(PREPARING, "LeaveGroup", STABLE, "the last one awaited leaves", rare=True),
    Transition(PREPARING, "ConnectionLost", EMPTY, "the last one's process has ended", rare=True),
    Transition(PREPARING, "ConnectionLost", STABLE, "that of the last one awaited has ended", rare=True),
    Transition(PREPARING, "Tick", EMPTY, "the last one's session is over", rare=True),
    Transition(PREPARING, "Tick", STABLE, "that of the last one awaited is over", rare=True),
    Transition(STABLE, "RegisterConsumer", PREPARING, "a consumer comes, or comes back and reads other topics"),
    Transition(STABLE, "TopicsChanged", PREPARING, "topics changed that consumers read, or may"),
    Transition(STABLE, "OwnersMissing", PREPARING, "what ZooKeeper shows of owners was deleted", rare=True),
    Transition(STABLE, "ConsumerAnswered", PREPARING, "a consumer has something else than it was given", rare=True),
    Transition(STABLE, "LeaveGroup", PREPARING, _LEAVES),
    Transition(STABLE, "LeaveGroup", EMPTY, _LEAVES),
    Transition(STABLE, "ConnectionLost", PREPARING, _ENDED),
    Transition(STABLE, "ConnectionLost", EMPTY, _ENDED),
    Transition(STABLE, "Tick", PREPARING, _OUT),
    Transition(STABLE, "Tick", EMPTY, _OUT),
)

_EVICTED = "it was silent, or did not give up, join or sync in time"

CONSUMER_MEMBER: tuple[Transition, ...] = (
    Transition(NONE, "ConsumerGroupHeartbeat", SETTLED, "it joins, or a classic group turns into a consumer group"),
    Transition(NONE, "JoinGroup", SETTLED, "a classic member joins"),
    Transition(NONE, "JoinGroup", UNRELEASED, "the same; others still hold what it is to have", rare=True),
    Transition(NONE, "ConsumerGroupHeartbeat", UNRELEASED, "it joins; others still hold what it is to have", rare=True),
    Transition(SETTLED, "ConsumerGroupHeartbeat", UNREVOKED, "it must give up: it is told what it keeps"),
    Transition(SETTLED, "ConsumerGroupHeartbeat", UNRELEASED, "others still hold what it is to have"),
    Transition(SETTLED, "JoinGroup", UNREVOKED, "as by its heartbeat, of a classic member"),
    Transition(SETTLED, "JoinGroup", UNRELEASED, "as by its heartbeat, of a classic member", rare=True),
    Transition(SETTLED, "AssignmentComputed", UNREVOKED, "its heartbeat or join had waited for the target"),
    Transition(SETTLED, "AssignmentComputed", UNRELEASED, "its heartbeat or join had waited for the target"),
    Transition(SETTLED, "ReleaseHeld", UNREVOKED, "its heartbeat had been held", rare=True),
    Transition(SETTLED, "Tick", UNREVOKED, "its heartbeat had been held", rare=True),
    Transition(UNREVOKED, "ConsumerGroupHeartbeat", SETTLED, "it has given up, and has all that it is to have"),
    Transition(
        UNREVOKED, "ConsumerGroupHeartbeat", UNRELEASED, "it has given up; others still hold what it is to have"
    ),
    Transition(UNREVOKED, "JoinGroup", SETTLED, "as by its heartbeat, of a classic member"),
    Transition(UNREVOKED, "JoinGroup", UNRELEASED, "as by its heartbeat, of a classic member", rare=True),
    Transition(UNREVOKED, "AssignmentComputed", SETTLED, "its heartbeat or join had waited for the target", rare=True),
    Transition(
        UNREVOKED, "AssignmentComputed", UNRELEASED, "its heartbeat or join had waited for the target", rare=True
    ),
    Transition(UNRELEASED, "ConsumerGroupHeartbeat", SETTLED, "the others have given up"),
    Transition(UNRELEASED, "ConsumerGroupHeartbeat", UNREVOKED, "a newer target takes something from it", rare=True),
    Transition(UNRELEASED, "JoinGroup", SETTLED, "as by its heartbeat, of a classic member"),
    Transition(UNRELEASED, "JoinGroup", UNREVOKED, "as by its heartbeat, of a classic member", rare=True),
    Transition(UNRELEASED, "AssignmentComputed", SETTLED, "its heartbeat or join had waited for the target", rare=True),
    Transition(
        UNRELEASED, "AssignmentComputed", UNREVOKED, "its heartbeat or join had waited for the target", rare=True
    ),
    *(
        Transition(state, event, NONE, why, rare=state != SETTLED or event == "ConnectionLost")
        for state in (SETTLED, UNREVOKED, UNRELEASED)
        for event, why in (
            ("ConsumerGroupHeartbeat", "it leaves, or another process has its instance id"),
            ("JoinGroup", "a classic member has its instance id"),
            ("LeaveGroup", "it leaves, or an administrator removes it"),
            ("Tick", _EVICTED),
            ("ConnectionLost", "it is new and had not been told its id"),
        )
    ),
)
