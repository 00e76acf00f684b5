"""Another protocol is a class with a table: nothing else of `groups` has to know of it.

The toy's members sign in for topics, and are out when their session ends or their connection does. They are heard at a
third of their session, which nobody tells them, and whoever asks is told who is silent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from simulation.checkers import invariants

from kohort.errors import ErrorCode
from kohort.groups.config import GroupConfig
from kohort.groups.effects import (
    DescribedGroup,
    DescribedMember,
    GroupState,
    HeartbeatReply,
    LeaveGroupReply,
    LeftMember,
)
from kohort.groups.events import (
    ConnectionLost,
    ConsumerGroupDescribe,
    DeleteGroups,
    DescribeGroups,
    GroupSettings,
    GroupSettingsChanged,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    ListGroups,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    OffsetToCommit,
    ReleaseLongPolls,
    SyncGroup,
    TimersDue,
    TopicsChanged,
    TxnOffsetCommit,
)
from kohort.groups.failure_detector import CAREFUL, MonitoredMember
from kohort.groups.group import GroupMembership
from kohort.groups.long_polling import SESSION_PARTS, SHORTEST_MS, LongPollEnd
from kohort.groups.machine import PROTOCOLS, GroupMachine
from kohort.groups.step import Step
from kohort.groups.table import Table, Transition, reaction
from kohort.groups.timers import Deadline
from kohort.groups.topics import ImageChange
from kohort.ids import TopicPartition
from tests.groups.harness import CLIENT, Trial, protocols

SESSION_MS = 10_000
GROUP, MEMBER = 20_000, 20_001
MINUTE_MS = 60_000


@dataclass(frozen=True)
class ToyRecord:
    """A group of the toy is there; or, with a member id, so is this member."""

    group_id: str
    member_id: str = ""
    topics: tuple[str, ...] = ()
    state_ms: int = -1

    @property
    def key(self) -> tuple[Any, ...]:
        return (MEMBER, self.group_id, self.member_id) if self.member_id else (GROUP, self.group_id)


@dataclass(frozen=True)
class SignIn:
    """A member comes, or says that it lives; `delay_ms`: it waits so long to be told to go on."""

    request: int
    group_id: str
    member_id: str
    topics: tuple[str, ...] = ("t",)
    connection: int = -1
    delay_ms: int = 0


class ToyMember(MonitoredMember):
    """A member of the toy protocol, in the state of its last request."""


class ToyGroup(GroupMembership):
    """The members of a toy group."""

    name = "toy"
    table: ClassVar[Table]

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.there: ToyRecord | None = None
        self.members: dict[str, ToyRecord] = {}
        self.heard: dict[str, ToyMember] = {}
        self.looked = 0
        self.settings = GroupSettings()

    def group_state(self) -> GroupState:
        return GroupState.STABLE if self.members else GroupState.EMPTY

    def subscribed_topics(self) -> frozenset[str]:
        return frozenset(topic for member in self.members.values() for topic in member.topics)

    def empty_since_ms(self) -> int:
        return -1 if self.members or self.there is None else self.there.state_ms

    def records(self) -> Iterator[Any]:
        if self.there is not None:
            yield self.there
        yield from self.members.values()

    def has_records(self) -> bool:
        return self.there is not None

    def tombstones(self) -> Iterator[Any]:
        yield from (member.key for member in self.members.values())
        yield (GROUP, self.group_id)

    def apply_tombstone(self, kind: Any, names: list[Any]) -> bool:
        if kind == MEMBER:
            self.members.pop(names[0], None)
        return bool(kind == GROUP)

    def cancel_timers(self) -> None:
        for member in self.heard.values():
            member.session.cancel()

    def member_connections(self) -> Iterator[tuple[str, int, bool]]:
        return ((name, member.connection, member.is_gone) for name, member in self.heard.items())

    def take(self, record: ToyRecord) -> None:
        if record.member_id:
            self.members[record.member_id] = record
        else:
            self.there = record

    appliers = {ToyRecord: take}  # noqa: RUF012

    def find_member(self, member_id: str) -> ToyMember | None:
        return self.heard.get(member_id)

    def default_interval_ms(self, step: Step) -> int:
        return SESSION_MS // 3

    def member_session_ms(self, step: Step, member: ToyMember) -> int:
        return SESSION_MS

    def listed_protocol_type(self) -> str:
        return "toys"

    def sign_in(self, step: Step, event: SignIn) -> None:
        step.emit(ToyRecord(event.group_id, event.member_id, event.topics))  # type: ignore[arg-type]
        member = self.expect(step, event.member_id)
        self.end_long_poll(step, member)
        member.bind_connection(step, event.connection)
        if not self.begin_long_poll(step, member, event, event.delay_ms):
            step.reply(event.request, HeartbeatReply(ErrorCode.NONE))

    def expect(self, step: Step, member_id: str) -> ToyMember:
        member = self.heard.setdefault(member_id, ToyMember(self.group_id, member_id))
        member.end_grace(step, SESSION_MS)
        return member

    def build_soft_state(self, step: Step) -> None:
        for member_id in self.members:
            self.expect(step, member_id)

    def go(self, step: Step, member_id: str) -> None:
        step.emit(ToyRecord(self.group_id, state_ms=step.now.wall_ms))  # type: ignore[arg-type]
        member = self.heard.pop(member_id)
        member.unbind_connection(step)
        member.session.cancel()
        self.members.pop(member_id)
        self.cancel_long_poll(step, member, ErrorCode.UNKNOWN_MEMBER_ID)

    def answer_long_poll(self, step: Step, member: ToyMember, event: SignIn, why: LongPollEnd) -> None:
        step.reply(event.request, HeartbeatReply(ErrorCode.NONE))

    def refuse_long_poll(self, step: Step, event: SignIn, error: ErrorCode, message: str | None) -> None:
        step.reply(event.request, HeartbeatReply(error))

    def lost(self, step: Step, member_id: str, event: ConnectionLost) -> None:
        self.go(step, member_id)

    def changed(self, step: Step, change: ImageChange) -> None:
        self.looked += any(self.is_subscribed(topic) for topic in change.topics)

    def commit_error(self, step: Step, event: OffsetCommit) -> ErrorCode:
        return ErrorCode.NONE if event.member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def transactional_commit_error(self, step: Step, event: TxnOffsetCommit) -> ErrorCode:
        return ErrorCode.NONE if event.member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def on_offsets_committed(self, step: Step, event: OffsetCommit) -> None:
        self.expect(step, event.member_id)

    def describe(self, step: Step) -> DescribedGroup:
        members = tuple(DescribedMember(name, None, "", "", b"", b"") for name in self.members)
        return DescribedGroup(self.group_id, self.group_state(), "toy", members=members)

    def set_settings(self, step: Step, event: GroupSettingsChanged) -> None:
        self.settings = event.settings


def always(do: Callable[..., None], *to: GroupState) -> dict[GroupState, Transition]:
    return dict.fromkeys((GroupState.EMPTY, GroupState.STABLE), reaction("always", do, *to))


ToyGroup.table = {
    SignIn: always(ToyGroup.sign_in, GroupState.STABLE),
    Deadline.SESSION: always(ToyGroup.go, GroupState.EMPTY),
    ConnectionLost: always(ToyGroup.lost, GroupState.EMPTY),
    Deadline.LONG_POLL: always(ToyGroup.on_long_poll_end),
    ReleaseLongPolls: always(ToyGroup.on_long_poll_end),
    TopicsChanged: always(ToyGroup.changed),
    GroupSettingsChanged: always(ToyGroup.set_settings),
}


class ToyMachine(GroupMachine):
    """A machine that creates groups of the toy."""

    def __init__(self, config: GroupConfig) -> None:
        super().__init__(config, (*PROTOCOLS, ToyGroup))
        self._handlers[SignIn] = self.sign_in

    def sign_in(self, event: SignIn) -> None:
        context = self.context
        if context.find(event.group_id) is None:
            context.emit(ToyRecord(event.group_id))  # type: ignore[arg-type]
        context.ledger.membership(event.group_id, ToyGroup)
        context.handle_event(context.ledger.groups[event.group_id], SignIn, event)


class ToyTrial(Trial):
    """A trial of a machine that speaks three protocols."""

    def make_machine(self) -> GroupMachine:
        return ToyMachine(self.config)

    def sign_in(self, member_id: str, **more: Any) -> ErrorCode | None:
        request = self.request()
        self.feed(SignIn(request, "g", member_id, **more))
        reply = self.reply(request)
        return None if reply is None else reply.error

    def toy(self) -> ToyGroup:
        toy = self.machine.context.ledger.groups["g"].membership_as(ToyGroup)
        assert toy is not None
        return toy

    def commit_of(self, member_id: str) -> ErrorCode:
        event = OffsetCommit(self.request(), "g", member_id, 0, (OffsetToCommit("t", 0, 7),))
        (error,) = self.ask(event).errors
        return error

    def listed(self) -> list[tuple[str, ...]]:
        groups = self.ask(ListGroups(self.request())).groups
        return [(group.group_id, group.protocol_type, group.state, group.type) for group in groups]


@pytest.fixture
def trial() -> ToyTrial:
    trial = ToyTrial()
    assert trial.sign_in("a", connection=1) is ErrorCode.NONE
    return trial


def test_its_groups_are_listed_described_and_counted(trial: ToyTrial) -> None:
    assert trial.listed() == [("g", "toys", "Stable", "toy")]
    assert list(trial.machine.group_states()) == [("toy", GroupState.STABLE)]
    (described,) = trial.ask(DescribeGroups(trial.request(), ("g",), knows_missing=True)).groups
    assert (described.error, [member.member_id for member in described.members]) == (ErrorCode.NONE, ["a"])
    (other,) = trial.ask(ConsumerGroupDescribe(trial.request(), ("g",))).groups
    assert (other.error, other.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, "Group g is not a consumer group.")


def test_its_groups_load_and_have_their_deadlines(trial: ToyTrial) -> None:
    trial.journal[:] = list(trial.machine.snapshot())
    trial.restart()
    assert trial.toy().members.keys() == {"a"}
    trial.pass_time(SESSION_MS)
    assert trial.listed() == [("g", "toys", "Empty", "toy")]


def test_its_members_lose_their_connections(trial: ToyTrial) -> None:
    assert trial.sign_in("b", connection=2) is ErrorCode.NONE
    trial.feed(ConnectionLost(1))
    assert trial.toy().members.keys() == {"b"}


def hold(trial: ToyTrial, delay_ms: int = 30_000) -> int:
    assert trial.sign_in("a", connection=1, delay_ms=delay_ms) is None
    ((request, timer),) = trial.machine.context.long_polls.items()
    assert timer is trial.toy().heard["a"].long_poll_timer
    return request


def test_its_held_replies_are_released(trial: ToyTrial) -> None:
    held = hold(trial)
    trial.feed(ReleaseLongPolls((held, 999)))
    assert trial.reply(held).error is ErrorCode.NONE
    assert not trial.machine.context.long_polls
    trial.feed(ReleaseLongPolls((held,)))
    trial.pass_time(SESSION_MS - 1)
    assert trial.toy().members.keys() == {"a"}, "the session starts again when the reply leaves"


@pytest.mark.parametrize(("bears_ms", "held_ms"), [(30_000, SESSION_MS // SESSION_PARTS), (500, 500)])
def test_its_replies_are_held_as_long_as_client_and_session_bear(trial: ToyTrial, bears_ms: int, held_ms: int) -> None:
    held = hold(trial, bears_ms)
    trial.pass_time(held_ms - 1)
    assert trial.reply(held) is None
    trial.pass_time(1)
    assert trial.reply(held).error is ErrorCode.NONE
    assert trial.sign_in("a", connection=1, delay_ms=SHORTEST_MS - 1) is ErrorCode.NONE


def test_its_held_replies_are_refused_when_their_members_go(trial: ToyTrial) -> None:
    held = hold(trial)
    trial.feed(ConnectionLost(1))
    assert trial.reply(held).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert not trial.machine.context.long_polls


def test_a_second_heartbeat_releases_the_first(trial: ToyTrial) -> None:
    first = hold(trial)
    second = hold(trial)
    assert trial.reply(first).error is ErrorCode.NONE
    assert trial.reply(second) is None


def test_its_members_are_silent_when_they_are_late(trial: ToyTrial) -> None:
    toy, context = trial.toy(), trial.machine.context
    member, third_ms = toy.heard["a"], SESSION_MS // 3
    longest_ms = third_ms * 3 // 2 + CAREFUL.late_ms
    trial.pass_time(longest_ms - 1)
    trial.feed(TimersDue())
    assert not toy.is_suspected(context, member)
    trial.pass_time(1)
    trial.feed(TimersDue())
    assert toy.is_suspected(context, member)
    member.clear_suspicion(context)
    trial.sign_in("a", connection=1)
    trial.pass_time(longest_ms)
    trial.feed(TimersDue())
    assert not toy.is_suspected(context, member), "it is given as much time as it took"
    hold(trial)
    assert toy.suspected_from_ms(context, member) is None, "who waits for an answer is never silent"


def test_a_reply_that_is_held_for_no_one_is_named(trial: ToyTrial) -> None:
    hold(trial)
    toy, context = trial.toy(), trial.machine.context
    member, held = toy.heard["a"], toy.heard["a"].long_poll
    invariants.check(context)
    toy.heard["a"] = ToyMember("g", "a")
    context.forget_connection(1, "g", "a")
    with pytest.raises(invariants.BrokenInvariantError, match="is held for a, who is not in it"):
        invariants.check(context)
    toy.heard["a"], member.long_poll = member, None
    member.bind_connection(context, 1)
    with pytest.raises(invariants.BrokenInvariantError, match="is held for a, who knows nothing of it"):
        invariants.check(context)
    member.long_poll = held
    assert member.long_poll_timer is not None
    member.long_poll_timer.cancel()
    with pytest.raises(invariants.BrokenInvariantError, match="nothing ends the hold"):
        invariants.check(context)


def test_it_refuses_and_takes_commits(trial: ToyTrial) -> None:
    assert trial.commit_of("stranger") is ErrorCode.UNKNOWN_MEMBER_ID
    trial.pass_time(SESSION_MS - 1)
    assert trial.commit_of("a") is ErrorCode.NONE
    trial.pass_time(SESSION_MS - 1)
    assert trial.toy().members.keys() == {"a"}, "a commit is a sign of life"
    fetched = trial.ask(OffsetFetch(trial.request(), "g", (TopicPartition("t", 0),)))
    assert [offset.offset for offset in fetched.offsets] == [7]
    stranger = TxnOffsetCommit(trial.request(), "g", 1, 0, (OffsetToCommit("t", 0, 8),), "stranger", 0)
    assert trial.ask(stranger).errors == (ErrorCode.UNKNOWN_MEMBER_ID,)


def test_it_hears_of_topics_and_settings(trial: ToyTrial) -> None:
    trial.set_topics(u=1)
    assert trial.toy().looked == 0
    trial.set_topics(u=1, t=1)
    assert trial.toy().looked == 1
    trial.feed(GroupSettingsChanged("g", GroupSettings(session_timeout_ms=1)))
    assert trial.toy().settings.session_timeout_ms == 1


def test_who_speaks_another_protocol_is_refused(trial: ToyTrial) -> None:
    request = trial.request()
    join = JoinGroup(
        request, "g", "", "new", CLIENT, "consumer", protocols("range"), 10_000, 10_000, requires_known_id=False
    )
    assert trial.ask(join).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert trial.ask(SyncGroup(trial.request(), "g", 1, "a")).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert trial.ask(Heartbeat(trial.request(), "g", 1, "a")).error is ErrorCode.UNKNOWN_MEMBER_ID
    left = trial.ask(LeaveGroup(trial.request(), "g", (LeavingMember("a"),)))
    assert left == LeaveGroupReply(ErrorCode.NONE, (LeftMember("a", None, ErrorCode.UNKNOWN_MEMBER_ID),))
    assert trial.ask(trial.consumer_event("c")).error is ErrorCode.GROUP_ID_NOT_FOUND
    assert trial.toy().members.keys() == {"a"}


def test_its_offsets_are_deleted_where_no_member_reads(trial: ToyTrial) -> None:
    assert trial.commit_of("a") is ErrorCode.NONE
    delete = OffsetDelete(trial.request(), "g", (TopicPartition("t", 0),))
    assert trial.ask(delete).errors == (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,)
    trial.sign_in("a", topics=("u",), connection=1)
    delete = OffsetDelete(trial.request(), "g", (TopicPartition("t", 0),))
    assert trial.ask(delete).errors == (ErrorCode.NONE,)
    assert not trial.machine.context.ledger.groups["g"].offsets


def test_its_groups_are_removed_when_they_are_empty(trial: ToyTrial) -> None:
    assert trial.ask(DeleteGroups(trial.request(), ("g",))).errors == (ErrorCode.NON_EMPTY_GROUP,)
    trial.feed(ConnectionLost(1))
    assert trial.ask(DeleteGroups(trial.request(), ("g",))).errors == (ErrorCode.NONE,)
    assert trial.listed() == []


def test_its_groups_expire_by_the_time_they_became_empty() -> None:
    trial = ToyTrial(offsets_retention_minutes=60, offsets_retention_check_ms=10 * MINUTE_MS)
    trial.sign_in("a", connection=1)
    assert trial.commit_of("a") is ErrorCode.NONE
    while trial.mono_ms < 70 * MINUTE_MS:
        trial.pass_time(SESSION_MS - 1)
        trial.sign_in("a", connection=1)
    trial.feed(ConnectionLost(1))
    trial.pass_time(50 * MINUTE_MS)
    assert trial.listed(), "its time starts when it is empty, not at the commit"
    trial.pass_time(20 * MINUTE_MS)
    assert trial.listed() == []


@pytest.mark.parametrize("classic", [True, False])
def test_an_empty_group_of_it_is_whatever_joins_it(trial: ToyTrial, classic: bool) -> None:
    trial.commit_of("a")
    trial.feed(ConnectionLost(1))
    if classic:
        trial.join(protocols=protocols("range"))
    else:
        trial.beat("c")
    assert [line[3] for line in trial.listed()] == ["classic" if classic else "consumer"]
    assert list(trial.machine.context.ledger.groups["g"].offsets) == [("t", 0)]
    trial.restart()
    assert [line[3] for line in trial.listed()] == ["classic" if classic else "consumer"]
