"""The control plane's machine, one rule at a time; what happens all together is in test_machines.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar
from uuid import UUID

import pytest

from kohort.region import messages
from kohort.region.control_plane import events as plane_events
from kohort.region.control_plane.events import ResetCause
from kohort.region.control_plane.machine import TABLE, RegionMachine
from kohort.region.control_plane.state import RegionConfig, RegionFacts
from kohort.region.messages import CheckpointAttempt, Identity
from kohort.region.records import (
    Contribution,
    EpochBegun,
    Fact,
    InitialOffset,
    InitialTopics,
    KeyedStateChainHead,
    Manifest,
    OffsetSpan,
    Part,
    Position,
    PublishedCheckpoint,
    RegionStopped,
    StoppedMembers,
    to_part,
)
from kohort.region.staged import StagedKey
from kohort.region.states import RegionState

REGION_ID, TOPIC_ID = UUID(int=7), UUID(int=9)
Said = TypeVar("Said", bound=messages.Order)
P0, P1 = (Part("etl", "t", number, TOPIC_ID) for number in (0, 1))


def at(part: Part, offset: int) -> Position:
    return Position(part.group, part.topic, part.topic_id, part.partition, offset)


def begun(part: Part, offset: int) -> InitialOffset:
    return InitialOffset("r", part.group, part.topic, part.topic_id, part.partition, offset)


KNOWN = RegionFacts("r", REGION_ID, term=3, epoch=5, floor=4, sequence=7, initial=(begun(P0, 0), begun(P1, 0)),
              positions=(at(P0, 70), at(P1, 71)))  # fmt: skip


def to_initial(driven: Driven) -> messages.RegionResetRequest:
    """Return an operator's request for the initial state, with its confirmation."""
    plane = driven.machine.plane
    confirms = messages.EmptySinksConfirmation(
        plane.region_id, tuple(sink.place for sink in plane.describe_region().sinks)
    )
    return messages.RegionResetRequest("a person", forced=True, initial=True, confirms=confirms)


class Driven:
    """A machine whose facts are saved at once."""

    def __init__(self, known: RegionFacts = KNOWN, config: RegionConfig | None = None) -> None:
        self.machine = RegionMachine(known, config or RegionConfig(checkpoint_every_ms=None), 0)
        self.heard: dict[int, list[messages.Order | messages.ResetDeclined]] = {}
        self.closed: set[int] = set()
        self.facts: list[Fact] = []
        self.commits: list[plane_events.CommitCheckpoint] = []
        self.looks: list[plane_events.FindOutsideClients] = []
        self.lines: list[plane_events.WriteLogLine] = []
        self.now_ms = 0
        self.saves = True

    def do(self, event: plane_events.Event) -> None:
        events = [event]
        while events:
            for effect in self.machine.step(events.pop(0), self.now_ms):
                match effect:
                    case plane_events.SendMessage(connection, order):
                        self.heard.setdefault(connection, []).append(order)
                    case plane_events.EndMemberConnection(connection):
                        self.closed.add(connection)
                    case plane_events.SaveFacts(token, facts):
                        self.facts += facts
                        if self.saves:
                            events.append(plane_events.FactsSaved(token))
                    case plane_events.CommitCheckpoint():
                        self.commits.append(effect)
                    case plane_events.FindOutsideClients():
                        self.looks.append(effect)
                    case plane_events.WriteLogLine():
                        self.lines.append(effect)

    def say(self, connection: int, report: messages.Report) -> None:
        self.do(plane_events.MessageReceived(connection, report))

    def tick(self, after_ms: int) -> None:
        self.now_ms += after_ms
        self.do(plane_events.ClockTick())

    def last(self, connection: int) -> messages.Order | messages.ResetDeclined:
        return self.heard[connection][-1]

    def orders(self, connection: int, kind: type[Said]) -> list[Said]:
        return [order for order in self.heard.get(connection, []) if isinstance(order, kind)]

    def stands(self, state: RegionState) -> bool:
        return self.machine.state is state

    # what members do

    def join(
        self, connection: int, name: str, *, holds: tuple[Position, ...] = (), epoch: int = -1, **other: object
    ) -> None:
        report = messages.RegistrationRequest(
            name, UUID(int=connection), "etl", Identity(name, 1), epoch, holds, sink="s"
        )
        self.say(connection, replace(report, **other))  # type: ignore[arg-type]

    def ask(self, connection: int, *parts: Part) -> tuple[Position, ...]:
        self.say(connection, messages.StartOffsetsRequest(1, parts))
        starts = self.orders(connection, messages.StartOffsetsAnswer)
        return starts[-1].found if starts else ()

    def cut(self) -> CheckpointAttempt:
        self.say(1, messages.CheckpointRequest())
        return self.orders(1, messages.DrainOrder)[-1].cut

    def give(self, name: str, *spans: OffsetSpan, **other: object) -> Contribution:
        member = self.machine.plane.members[name]
        sequence = self.machine.plane.sequence + 1
        key = StagedKey(REGION_ID, member.epoch, name, 0)
        given = Contribution(
            "r", sequence, 3, member.epoch, name, (), "etl", name, 1, None, spans, (key,), b"", member.sink
        )
        return replace(given, **other)  # type: ignore[arg-type]


def span(part: Part, begin: int, end: int) -> OffsetSpan:
    return OffsetSpan(part.group, part.topic, part.topic_id, part.partition, begin, end)


def two(t: str = "s") -> Driven:
    """Two members, each with a partition; `t`: the sink of the second."""
    driven = Driven()
    for connection, name, part, sink in ((1, "m1", P0, "s"), (2, "m2", P1, t)):
        driven.join(connection, name, sink=sink)
        assert driven.ask(connection, part) == (at(part, 70 + part.partition),)
    assert driven.stands(RegionState.RUNNING)
    return driven


def test_each_event_has_an_entry_in_each_state_with_its_reason() -> None:
    for event, rows in TABLE.items():
        assert set(rows) == set(RegionState), event
        assert all(row.why for row in rows.values())


def test_a_cut_is_complete_when_all_have_contributed() -> None:
    driven = two()
    cut = driven.cut()
    driven.say(1, messages.MemberDrained(cut))
    assert driven.stands(RegionState.DRAINING), "the other is not drained yet"
    driven.say(2, messages.MemberDrained(cut))
    assert driven.last(1) == driven.last(2) == messages.ContributeOrder(3, cut, ("m1", "m2"))
    driven.say(1, messages.ContributionReport(cut, driven.give("m1", span(P0, 70, 80))))
    assert driven.commits == []
    driven.say(2, messages.ContributionReport(cut, driven.give("m2", span(P1, 71, 71))))
    [commit] = driven.commits
    assert {to_part(position): position.offset for position in commit.manifest.positions} == {P0: 80, P1: 71}
    assert [(offset.member, offset.identity, len(offset.positions)) for offset in commit.offsets] == [
        ("m1", Identity("m1", 1), 1),
        ("m2", Identity("m2", 1), 1),
    ], "one commit for each member, under its own name"
    assert driven.orders(1, messages.CheckpointCompleted) == []
    driven.do(plane_events.CommitEnded(cut))
    assert driven.orders(1, messages.CheckpointCompleted) == [messages.CheckpointCompleted(3, 8, 6)]
    assert driven.stands(RegionState.RUNNING)
    assert driven.orders(1, messages.PublishOrder) and not driven.orders(2, messages.PublishOrder), (
        "one publishes for all"
    )


def complete(driven: Driven, end: int) -> list[plane_events.WriteLogLine]:
    """One sequence, to which one member gives a partition up to `end`; what is told of it."""
    driven.lines.clear()
    cut = driven.cut()
    driven.say(1, messages.MemberDrained(cut))
    driven.say(2, messages.MemberDrained(cut))
    driven.now_ms += 40
    begin = driven.machine.plane.members["m1"].handed[P0]
    driven.say(1, messages.ContributionReport(cut, driven.give("m1", span(P0, begin, end))))
    driven.say(2, messages.ContributionReport(cut, driven.give("m2", span(P1, 71, 71))))
    driven.do(plane_events.CommitEnded(cut))
    driven.say(1, messages.CheckpointPublished(cut.sequence))
    return driven.lines


def test_a_sequence_is_a_line_in_the_log_and_a_reset_is_one_with_its_cause() -> None:
    driven = two()
    assert complete(driven, 80) == [
        plane_events.WriteLogLine(
            plane_events.LogLevel.INFO, "region r: sequence 8 is complete: 10 records, members: 2, 40 ms"
        )
    ]
    [empty] = complete(driven, 80)
    assert empty.level is plane_events.LogLevel.DEBUG, "nobody needs to read that nothing was read"
    driven.lines.clear()
    driven.say(1, messages.RegionResetRequest("the disk is full"))
    assert driven.lines == [
        plane_events.WriteLogLine(plane_events.LogLevel.WARNING, "region r resets to sequence 9: the disk is full")
    ]


@pytest.mark.parametrize(
    ("spans", "other", "why"),
    [
        ((span(P0, 69, 80),), {}, "a repetition"),
        ((span(P0, 71, 80),), {}, "a gap"),
        ((span(P0, 70, 60),), {}, "an end before its beginning"),
        ((span(P0, 70, 80), span(P1, 71, 72)), {}, "a partition that it was not given"),
        ((), {}, "less than it was given"),
        ((span(P0, 70, 80), span(P0, 70, 80)), {}, "a partition twice"),
        ((span(P0, 70, 80),), {"term": 2}, "another term"),
        ((span(P0, 70, 80),), {"epoch": 5}, "another epoch"),
        ((span(P0, 70, 80),), {"sequence": 7}, "another sequence"),
        ((span(P0, 70, 80),), {"member": "m2"}, "another member"),
        ((span(P0, 70, 80),), {"group": "other"}, "another group"),
        ((span(P0, 70, 80),), {"sink": "t"}, "another sink"),
    ],
)
def test_what_can_not_be_contributed_has_all_go_back(
    spans: tuple[OffsetSpan, ...], other: dict[str, object], why: str
) -> None:
    driven = two()
    cut = driven.cut()
    driven.say(1, messages.MemberDrained(cut))
    driven.say(2, messages.MemberDrained(cut))
    driven.say(2, messages.ContributionReport(cut, driven.give("m2", span(P1, 71, 75))))
    driven.say(1, messages.ContributionReport(cut, driven.give("m1", *spans, **other)))
    assert driven.stands(RegionState.RESETTING), why
    assert driven.commits == []
    assert driven.orders(1, messages.ResetOrder) and driven.orders(2, messages.ResetOrder)


def test_a_partition_that_another_may_be_reading_is_given_to_nobody() -> None:
    driven = two()
    assert driven.ask(2, P0) != (at(P0, 70),)
    driven.say(1, messages.AssignmentChanged(Identity("m1", 2), (P0,)))
    assert driven.orders(2, messages.StartOffsetsAnswer)[-1] == messages.StartOffsetsAnswer(3, 1, (at(P0, 70),)), (
        "when it was let go"
    )


def test_no_start_is_given_during_a_cut() -> None:
    driven = two()
    cut = driven.cut()
    driven.say(1, messages.MemberDrained(cut))
    driven.say(1, messages.AssignmentChanged(Identity("m1", 2), (P0,)))
    driven.say(2, messages.StartOffsetsRequest(2, (P0,)))
    assert len(driven.orders(2, messages.StartOffsetsAnswer)) == 1
    driven.say(2, messages.MemberDrained(cut))
    driven.say(1, messages.ContributionReport(cut, driven.give("m1", generation=2)))
    driven.say(2, messages.ContributionReport(cut, driven.give("m2", span(P1, 71, 75))))
    assert len(driven.orders(2, messages.StartOffsetsAnswer)) == 1, "and not while it is committed"
    driven.do(plane_events.CommitEnded(cut))
    assert driven.orders(2, messages.StartOffsetsAnswer)[-1] == messages.StartOffsetsAnswer(3, 2, (at(P0, 70),))


def test_what_left_a_members_hands_voids_what_it_contributed() -> None:
    driven = two()
    cut = driven.cut()
    for connection in (1, 2):
        driven.say(connection, messages.MemberDrained(cut))
    driven.say(1, messages.ContributionReport(cut, driven.give("m1", span(P0, 70, 80))))
    driven.say(1, messages.AssignmentChanged(Identity("m1", 2), (P0,)))
    assert driven.stands(RegionState.DRAINING)
    again = driven.orders(1, messages.DrainOrder)[-1].cut
    assert again != cut and again.sequence == cut.sequence
    driven.say(2, messages.ContributionReport(cut, driven.give("m2", span(P1, 71, 75))))
    assert driven.commits == [], "an answer to an earlier question is none"


@pytest.mark.parametrize(
    ("holds", "epoch", "why"),
    [
        ((at(P0, 60),), 5, "it holds what is not the last manifest's"),
        ((at(P0, 70),), 3, "all have gone back since"),
        ((at(P0, 70),), 6, "an epoch that nobody has given"),
        ((at(P1, 71),), 5, "another holds it"),
    ],
)
def test_a_member_that_returns_with_what_can_not_be_is_reset_alone(
    holds: tuple[Position, ...], epoch: int, why: str
) -> None:
    driven = Driven(replace(KNOWN, expected=frozenset({"m1", "m2"})))
    driven.join(2, "m2", holds=(at(P1, 71),), epoch=5)
    driven.join(1, "m1", holds=holds, epoch=epoch)
    assert driven.stands(RegionState.RUNNING)
    assert isinstance(
        driven.last(2), messages.RegistrationAccepted | messages.PublishOrder | messages.MemberNamesChanged
    )
    assert driven.orders(1, messages.ResetOrder), why
    assert not driven.orders(2, messages.ResetOrder)
    assert driven.ask(1, P0) == (), "until it has gone back"


def test_a_member_that_returns_with_what_it_holds_continues() -> None:
    driven = Driven(replace(KNOWN, expected=frozenset({"m1"}), contributors={"m1": 5}))
    driven.join(1, "m1", holds=(at(P0, 70),), epoch=5)
    assert driven.stands(RegionState.RUNNING)
    assert driven.orders(1, messages.RegistrationAccepted) == [
        messages.RegistrationAccepted(3, 5, 7, ("m1",), moves_state=True)
    ]
    assert not any(isinstance(fact, EpochBegun) for fact in driven.facts)


def stopped_members(driven: Driven) -> dict[str, UUID]:
    """Return the members that an operator has stopped, as the topic has them."""
    return [fact for fact in driven.facts if isinstance(fact, StoppedMembers)][-1].members


def test_stop_of_a_member_survives_a_takeover() -> None:
    before = two()
    before.saves = False
    before.do(plane_events.MemberStopRequested("m1"))
    [unsaved] = [member.name for member in before.machine.plane.describe_region().members if member.stop_unsaved]
    assert unsaved == "m1"
    driven = Driven(replace(KNOWN, expected=frozenset({"m1", "m2"}), stopped_members=stopped_members(before)))
    driven.join(2, "m2", holds=(at(P1, 71),), epoch=5)
    driven.join(1, "m1", holds=(at(P0, 70),), epoch=5)
    assert driven.stands(RegionState.DRAINING)
    cut = driven.orders(1, messages.DrainOrder)[-1].cut
    for connection in (1, 2):
        driven.say(connection, messages.MemberDrained(cut))
    driven.say(1, messages.ContributionReport(cut, driven.give("m1", span(P0, 70, 80), keys=(), sink="s")))
    driven.say(2, messages.ContributionReport(cut, driven.give("m2", span(P1, 71, 72), keys=(), sink="s")))
    [commit] = driven.commits
    assert commit.manifest.stay == ("m2",)
    driven.do(plane_events.CommitEnded(cut))
    assert driven.orders(1, messages.StopOrder)[-1].cause == "the member was stopped"


def test_stop_of_a_member_is_for_that_member_alone() -> None:
    """A supervisor starts another member under its name."""
    told = {"m1": UUID(int=1)}
    driven = Driven(replace(KNOWN, expected=frozenset({"m1"}), stopped_members=told))
    driven.join(7, "m1")
    assert driven.ask(7, P0) == (at(P0, 70),)
    assert driven.stands(RegionState.RUNNING) and not driven.orders(7, messages.StopOrder)
    driven.do(plane_events.MemberStopRequested("m1"))
    assert stopped_members(driven) == {"m1": UUID(int=7)}
    assert not any(member.stop_unsaved for member in driven.machine.plane.describe_region().members)


def test_stop_of_a_member_is_kept_until_it_registers() -> None:
    driven = Driven(
        replace(KNOWN, expected=frozenset({"m1", "m2"}), stopped_members={"m1": UUID(int=1), "m": UUID(int=3)})
    )
    driven.join(2, "m2", holds=(at(P1, 71),), epoch=5)
    driven.do(plane_events.MemberStopRequested("m2"))
    assert stopped_members(driven) == {"m1": UUID(int=1), "m2": UUID(int=2)}


def test_stopped_member_that_holds_nothing_leaves_when_it_registers() -> None:
    driven = Driven(replace(KNOWN, stopped_members={"m1": UUID(int=1)}))
    driven.join(2, "m2")
    driven.join(1, "m1")
    assert driven.orders(1, messages.StopOrder) and list(driven.machine.plane.members) == ["m2"]


def test_a_new_control_plane_gives_nothing_out_before_all_are_there() -> None:
    driven = Driven(replace(KNOWN, expected=frozenset({"m1", "m2"})))
    driven.join(3, "m3")
    assert driven.stands(RegionState.FORMING)
    assert driven.ask(3, P0) == () and driven.heard.get(3, []) == [messages.MemberNamesChanged(3, ("m3",))]
    driven.join(1, "m1", holds=(at(P0, 70),), epoch=5)
    driven.tick(RegionConfig().register_ms)
    assert driven.stands(RegionState.RESETTING), "m2 is dead, and what it read since the last sequence is lost"


def test_a_reset_is_over_when_all_are_back() -> None:
    driven = two()
    driven.say(1, messages.RegionResetRequest("something behind it failed"))
    assert driven.stands(RegionState.RESETTING)
    epoch = driven.machine.plane.epoch
    assert [fact for fact in driven.facts if isinstance(fact, EpochBegun)][-1].floor == epoch
    driven.say(1, messages.MemberWasReset(epoch - 1))
    driven.say(1, messages.MemberWasReset(epoch))
    assert driven.ask(1, P0) == (at(P0, 70),) and len(driven.orders(1, messages.StartOffsetsAnswer)) == 1, (
        "the first one, before"
    )
    assert driven.stands(RegionState.RESETTING), "the other is not back"
    driven.say(2, messages.MemberWasReset(epoch))
    assert driven.stands(RegionState.RUNNING)
    assert len(driven.orders(1, messages.StartOffsetsAnswer)) == 2


def test_an_epoch_is_in_the_topic_before_anyone_hears_of_it() -> None:
    driven = Driven()
    driven.saves = False
    driven.join(1, "m1")
    assert [type(fact) for fact in driven.facts] == [EpochBegun]
    assert driven.orders(1, messages.RegistrationAccepted) == []


def test_nothing_is_swept_by_a_floor_that_is_not_in_the_topic() -> None:
    """Otherwise a control plane that was replaced, and does not know it, would remove rows that count."""
    key = StagedKey(REGION_ID, 5, "m2", 0)
    driven = Driven(replace(KNOWN, keys={"s": (key,)}))
    driven.saves = False
    driven.join(1, "m1")
    assert driven.orders(1, messages.PublishOrder) == [messages.PublishOrder(3, 7, (key,), floor=4, place="s")]
    driven.saves = True
    driven = Driven(replace(KNOWN, keys={"s": (key,)}))
    driven.join(1, "m1")
    driven.say(1, messages.PublishFailed(7, "the disk is full"))
    driven.join(1, "m1", epoch=driven.machine.plane.epoch)
    assert driven.orders(1, messages.PublishOrder)[-1] == messages.PublishOrder(3, 7, (key,), floor=6, place="s"), (
        "it is in the topic"
    )


def test_that_it_has_stopped_is_in_the_topic_before_anyone_hears_of_it() -> None:
    driven = two()
    driven.saves = False
    driven.say(1, messages.UnrecoverableFailure("records are lost", "reset it"))
    assert driven.stands(RegionState.STOPPED) and not driven.orders(1, messages.StopOrder) and not driven.closed
    token = driven.machine.plane._tokens
    driven.do(plane_events.FactsSaved(token))
    assert (
        driven.orders(1, messages.StopOrder)
        == driven.orders(2, messages.StopOrder)
        == [messages.StopOrder(3, "m1: records are lost", "reset it")]
    )


def test_where_a_partition_begins_is_in_the_topic_before_it_is_read() -> None:
    driven = Driven(replace(KNOWN, initial=(), positions=()))
    driven.join(1, "m1")
    driven.say(1, messages.StartOffsetsRequest(1, (P0,)))
    assert driven.last(1) == messages.StartOffsetsAnswer(3, 1, (), first=(P0,))
    driven.saves = False
    driven.say(1, messages.StartOffsetsLookedUp(1, (at(P0, 40),)))
    assert driven.facts[-1] == begun(P0, 40) and len(driven.orders(1, messages.StartOffsetsAnswer)) == 1
    assert isinstance(driven.facts[-1], InitialOffset)
    driven.do(plane_events.FactsSaved(2))
    assert driven.last(1) == messages.StartOffsetsAnswer(3, 1, (at(P0, 40),))


def test_partitions_that_are_added_to_a_topic_begin_at_their_beginning() -> None:
    driven = Driven(replace(KNOWN, initial=(begun(P0, 0),), positions=(at(P0, 70),)))
    driven.join(1, "m1")
    driven.say(1, messages.StartOffsetsRequest(1, (P0, P1)))
    assert driven.last(1) == messages.StartOffsetsAnswer(3, 1, (at(P0, 70),), added=(P1,))


def test_member_that_an_operator_stopped_leaves_after_a_reset() -> None:
    """The reset abandoned the checkpoint with which it was to leave, and no other began without a period."""
    driven = two()
    driven.do(plane_events.MemberStopRequested("m1"))
    assert driven.stands(RegionState.DRAINING)
    driven.say(2, messages.RegionResetRequest("records can't be read"))
    for connection in (1, 2):
        driven.say(connection, messages.MemberWasReset(driven.machine.plane.epoch))
    assert driven.stands(RegionState.DRAINING)


def test_member_that_an_operator_stopped_during_a_takeover_leaves() -> None:
    driven = Driven(replace(KNOWN, expected=frozenset({"m1", "m2"})))
    driven.join(1, "m1", holds=(at(P0, 70),), epoch=5)
    driven.do(plane_events.MemberStopRequested("m1"))
    assert driven.stands(RegionState.FORMING)
    driven.join(2, "m2", holds=(at(P1, 71),), epoch=5)
    assert driven.stands(RegionState.DRAINING)


def test_partitions_of_a_second_member_begin_where_the_first_looked_them_up() -> None:
    """Before, partitions of a member that asked later counted as added: a group with start="end" read old records."""
    driven = Driven(replace(KNOWN, initial=(), positions=()))
    driven.join(1, "m1")
    driven.join(2, "m2")
    driven.say(1, messages.StartOffsetsRequest(1, (P0,)))
    driven.say(1, messages.StartOffsetsLookedUp(1, (at(P0, 40), at(P1, 41))))
    assert driven.facts[-2:] == [begun(P0, 40), begun(P1, 41)]
    assert driven.last(1) == messages.StartOffsetsAnswer(3, 1, (at(P0, 40),))
    assert driven.ask(2, P1) == (at(P1, 41),)


def test_member_that_looks_up_late_moves_no_start_offset() -> None:
    driven = Driven(replace(KNOWN, initial=(), positions=()))
    driven.join(1, "m1")
    driven.join(2, "m2")
    driven.say(1, messages.StartOffsetsRequest(1, (P0,)))
    driven.say(2, messages.StartOffsetsRequest(1, (P1,)))
    driven.say(1, messages.StartOffsetsLookedUp(1, (at(P0, 40), at(P1, 41))))
    driven.say(2, messages.StartOffsetsLookedUp(1, (at(P0, 50), at(P1, 51))))
    assert driven.orders(2, messages.StartOffsetsAnswer) == [
        messages.StartOffsetsAnswer(3, 1, (), first=(P1,)),
        messages.StartOffsetsAnswer(3, 1, (at(P1, 41),)),
    ]


def test_start_offsets_of_topics_that_the_member_did_not_ask_for_are_ignored() -> None:
    again, other = P1._replace(topic_id=UUID(int=10)), P1._replace(topic="u")
    driven = Driven(replace(KNOWN, initial=(), positions=()))
    driven.join(1, "m1")
    driven.say(1, messages.StartOffsetsRequest(1, (P0,)))
    driven.say(1, messages.StartOffsetsLookedUp(1, (at(P0, 40), at(again, 41), at(other, 42))))
    assert driven.machine.plane.initial == {P0: at(P0, 40)}


def test_topics_that_a_pattern_finds_later_begin_at_their_beginning() -> None:
    """The start position of what was there at first skipped what they had until somebody looked."""
    there, later = Part("etl", "there", 0, UUID(int=10)), Part("etl", "later", 0, UUID(int=11))
    driven = Driven(replace(KNOWN, initial=(), positions=()))
    driven.join(1, "m1")
    driven.say(1, messages.StartOffsetsRequest(1, (P0,)))
    driven.say(1, messages.StartOffsetsLookedUp(1, (at(P0, 40),), ("t", "there")))
    assert driven.facts[-1] == InitialTopics("r", "etl", ("t", "there"))
    driven.say(1, messages.StartOffsetsRequest(2, (there, later)))
    assert driven.last(1) == messages.StartOffsetsAnswer(3, 2, (), first=(there,), added=(later,))
    driven.say(1, messages.StartOffsetsLookedUp(2, (at(there, 5), at(later, 0)), ("t", "there", "later")))
    assert not isinstance(driven.facts[-1], InitialTopics), "it is said once"
    after = Driven(replace(KNOWN, initial=(begun(P0, 40),), positions=(), began={"etl": ("t", "there")}))
    after.join(1, "m1")
    after.say(1, messages.StartOffsetsRequest(1, (there, later)))
    assert after.last(1) == messages.StartOffsetsAnswer(3, 1, (), first=(there,), added=(later,)), (
        "another control plane knows it"
    )


def test_topic_that_is_made_again_begins_at_its_beginning() -> None:
    again = Part("etl", "t", 0, UUID(int=10))
    driven = Driven()
    driven.join(1, "m1")
    driven.say(1, messages.StartOffsetsRequest(1, (again,)))
    assert driven.last(1) == messages.StartOffsetsAnswer(3, 1, (), added=(again,))


@pytest.mark.parametrize("shows", [6, 8])
@pytest.mark.parametrize("returns", [False, True])
def test_sink_of_another_history_stops_the_region(shows: int, returns: bool) -> None:
    """Known is that it showed 7; members that are told to stop say their numbers and how to go on."""
    driven = Driven(replace(KNOWN, places=("s",), shown={"s": PublishedCheckpoint("r", "s", 7, 0)}))
    if returns:
        driven.join(1, "m1", sink="s", shows=7)
        driven.do(plane_events.ConnectionEnded(1))
    driven.join(2, "m1", sink="s", shows=shows, incarnation=UUID(int=1))
    assert driven.stands(RegionState.STOPPED)
    [stop] = driven.orders(2, messages.StopOrder)
    assert f"s shows sequence {shows}" in stop.cause and "sequence 7" in stop.cause
    assert "kohort region adopt r s" in stop.remedy and "kohort region resume" in stop.remedy


@pytest.mark.parametrize("shows", [6, 8])
def test_dead_letter_sink_of_another_history_stops_the_region(shows: int) -> None:
    """Rows of dead letters would be as lost as those of the other sink, which is of this history."""
    shown = {place: PublishedCheckpoint("r", place, 7, 0) for place in ("s", "bad")}
    driven = Driven(replace(KNOWN, places=("s", "bad"), shown=shown))
    driven.join(1, "m1", sink="s", shows=7, letters="bad", letters_show=shows)
    assert driven.stands(RegionState.STOPPED)
    [stop] = driven.orders(1, messages.StopOrder)
    assert f"bad shows sequence {shows}" in stop.cause and "kohort region adopt r bad" in stop.remedy


@pytest.mark.parametrize(
    ("known", "shows"),
    [
        ({"places": ("s",), "shown": {"s": PublishedCheckpoint("r", "s", 7, 0)}}, 7),
        ({"places": ("s",), "shown": {"s": PublishedCheckpoint("r", "s", 6, 0)}, "keys": {"s": ()}}, 6),
        ({"places": ("s",), "shown": {"s": PublishedCheckpoint("r", "s", 6, 0)}, "keys": {"s": ()}}, 7),
        ({"places": ("s",), "shown": {"s": PublishedCheckpoint("r", "s", 7, 0, True)}}, 0),
        ({"places": ("s",), "shown": {"s": PublishedCheckpoint("r", "s", 5, 0)}, "empties": True}, 5),
        ({"places": ("s",), "shown": {"s": PublishedCheckpoint("r", "s", 5, 0)}, "empties": True}, 0),
        ({"places": ("t",), "shown": {"t": PublishedCheckpoint("r", "t", 7, 0)}}, 0),
        ({"places": ("s",), "shown": {"s": PublishedCheckpoint("r", "s", 7, 0)}}, -1),
    ],
)
def test_sink_of_this_history_is_taken(known: dict[str, Any], shows: int) -> None:
    driven = Driven(replace(KNOWN, **known))
    driven.join(1, "m1", sink="s", shows=shows)
    assert driven.stands(RegionState.RUNNING)


def test_sink_that_was_never_written_to_shows_nothing_when_it_was_emptied() -> None:
    """A member that looked at it before, and registers late, is of this history."""
    known = replace(KNOWN, places=("s",), empties=True, shown={"s": PublishedCheckpoint("r", "s", 5, 0)})
    driven = Driven(known)
    driven.join(1, "m1", sink="s", shows=0)
    driven.say(1, messages.CheckpointPublished(7))
    driven.join(2, "m2", sink="s", shows=0)
    assert driven.stands(RegionState.RUNNING)


def test_five_resets_in_a_row_stop_the_region_and_forced_ones_do_not() -> None:
    driven = two()

    def reset(*, forced: bool) -> None:
        driven.say(1, messages.RegionResetRequest("the disk is full", forced=forced))
        for connection in (1, 2):
            driven.say(connection, messages.MemberWasReset(driven.machine.plane.epoch))

    for _ in range(7):
        reset(forced=True)
    for _ in range(4):
        reset(forced=False)
    assert driven.stands(RegionState.RUNNING)
    reset(forced=False)
    assert driven.stands(RegionState.STOPPED)
    [stopped] = [fact for fact in driven.facts if isinstance(fact, RegionStopped)]
    assert "the disk is full" in stopped.cause and stopped.member == "m1"
    assert "the disk is full" in driven.orders(2, messages.StopOrder)[-1].cause
    driven.join(4, "m4")
    assert isinstance(driven.last(4), messages.StopOrder) and 4 in driven.closed
    driven.do(plane_events.ResumeRequested())
    driven.join(5, "m5")
    assert driven.stands(RegionState.RUNNING)


def test_a_refused_commit_is_tried_again_under_the_generation_that_holds_now() -> None:
    driven = two()
    cut = _contributed(driven)
    driven.do(plane_events.CommitEnded(cut, {"m1": "ILLEGAL_GENERATION"}))
    assert driven.last(1) == messages.GroupGenerationRequest(3, cut) and driven.stands(RegionState.COMMITTING)
    driven.say(1, messages.AssignmentChanged(Identity("m1", 9)))
    assert driven.commits[-1].offsets[0].identity == Identity("m1", 9) and len(driven.commits) == 2
    driven.do(plane_events.CommitEnded(cut))
    assert driven.machine.plane.sequence == 8


def test_a_refused_commit_of_a_member_that_released_partitions_is_cut_again() -> None:
    driven = two()
    cut = _contributed(driven)
    driven.do(plane_events.CommitEnded(cut, {"m1": "ILLEGAL_GENERATION"}))
    driven.say(1, messages.AssignmentChanged(Identity("m1", 9), (P0,)))
    assert driven.stands(RegionState.DRAINING) and len(driven.commits) == 1


def test_a_refused_commit_of_a_member_that_is_gone_has_all_go_back() -> None:
    driven = two()
    cut = _contributed(driven)
    driven.do(plane_events.CommitEnded(cut, {"m1": "UNKNOWN_MEMBER_ID"}, frozenset({"m1"})))
    assert driven.stands(RegionState.RESETTING)


def test_a_reset_that_is_asked_for_while_a_commit_is_out_waits_for_its_outcome() -> None:
    driven = two()
    cut = _contributed(driven)
    driven.say(1, messages.RegionResetRequest("something failed"))
    assert driven.stands(RegionState.COMMITTING)
    driven.do(plane_events.CommitEnded(cut))
    assert driven.stands(RegionState.RESETTING) and driven.machine.plane.sequence == 8
    assert driven.orders(1, messages.ResetOrder)[-1].sequence == 8


@pytest.mark.parametrize(("connection", "why"), [(1, ResetCause.PARTITIONS), (99, ResetCause.ASKED)])
def test_a_forced_reset_of_a_person_is_not_counted_as_a_rebalances(connection: int, why: ResetCause) -> None:
    driven = two()
    driven.say(connection, messages.RegionResetRequest("a cause", forced=True))
    assert driven.machine.plane.metrics.resets == {why: 1}


def test_publish_orders_are_repeated_to_a_member_that_returns_before_it_got_its_epoch() -> None:
    """The order went out on a connection that had ended, and no checkpoint completed any more."""
    key = StagedKey(REGION_ID, 5, "m2", 0)
    driven = Driven(replace(KNOWN, keys={"s": (key,)}))
    driven.saves = False
    driven.join(1, "m1")
    again = messages.RegistrationRequest("m1", UUID(int=1), "etl", Identity("m1", 1), sink="s")
    driven.say(2, again)
    assert driven.orders(2, messages.PublishOrder) == [messages.PublishOrder(3, 7, (key,), floor=4, place="s")]


def test_the_region_runs_after_a_reset_when_the_topic_has_it_also_if_all_have_died_meanwhile() -> None:
    """The reset to the initial state was on its way, and a cut of the sequence that it is began."""
    driven = two()
    driven.saves = False
    driven.say(1, to_initial(driven))
    for connection in (1, 2):
        driven.do(plane_events.ConnectionEnded(connection))
    driven.tick(RegionConfig().register_ms)
    assert not driven.machine.plane.members and driven.stands(RegionState.RESETTING)
    driven.do(plane_events.FactsSaved(driven.machine.plane._tokens))
    assert driven.stands(RegionState.RUNNING) and driven.machine.plane.sequence == 8


def test_a_member_that_comes_during_a_reset_gets_its_epoch_once() -> None:
    """A second reset sent it back once the region ran, and no other member waited for it."""
    driven = Driven(replace(KNOWN, expected=frozenset({"m1"})))
    driven.saves = False
    driven.tick(RegionConfig().register_ms)
    driven.join(2, "m2")
    assert driven.stands(RegionState.RESETTING)
    driven.join(3, "m3")
    driven.do(plane_events.FactsSaved(1))
    assert driven.stands(RegionState.RUNNING) and [
        order.epoch for order in driven.orders(3, messages.RegistrationAccepted)
    ] == [6]
    driven.do(plane_events.FactsSaved(2))
    assert not driven.orders(3, messages.ResetOrder)


def test_each_sink_is_published_by_one_of_its_members_and_the_next_commit_waits_for_all() -> None:
    """Members with two folders had one publish for all: what the other staged was found nowhere, for ever."""
    driven = two(t="t")
    cut = _contributed(driven)
    (commit,) = driven.commits
    assert commit.manifest.places == ("s", "t") and [contribution.sink for contribution in commit.contributions] == [
        "s",
        "t",
    ]
    driven.do(plane_events.CommitEnded(cut))
    for connection, name in ((1, "m1"), (2, "m2")):
        (order,) = driven.orders(connection, messages.PublishOrder)
        key = StagedKey(REGION_ID, driven.machine.plane.epoch - 2 + connection, name, 0)
        assert order == messages.PublishOrder(3, 8, (key,), 6, place="st"[connection - 1])
    driven.say(2, messages.CheckpointPublished(8))
    shown = driven.machine.plane.describe_region()
    assert (shown.published, shown.sequence) == (7, 8)
    assert shown.sinks == (messages.SinkStatus("s", 7, "m1"), messages.SinkStatus("t", 8, "m2"))
    cut = driven.cut()
    for connection in (1, 2):
        driven.say(connection, messages.MemberDrained(cut))
    driven.say(1, messages.ContributionReport(cut, driven.give("m1", span(P0, 80, 81))))
    driven.say(2, messages.ContributionReport(cut, driven.give("m2", span(P1, 75, 76), keys=())))
    assert driven.stands(RegionState.CHECKPOINTING) and len(driven.commits) == 1, "it waits for the other sink"
    driven.say(2, messages.CheckpointPublished(8))
    assert len(driven.commits) == 1, "said by who writes elsewhere"
    driven.say(1, messages.CheckpointPublished(8))
    assert driven.commits[-1].manifest.places == ("s", "t"), "all that was ever published to"
    driven.do(plane_events.CommitEnded(cut))
    assert len(driven.orders(1, messages.PublishOrder)) == 2 and len(driven.orders(2, messages.PublishOrder)) == 1, (
        "it staged nothing"
    )


def test_a_cut_that_waited_for_a_publish_and_begins_again_waits_for_its_members_only_so_long() -> None:
    driven = two(t="t")
    driven.do(plane_events.CommitEnded(_contributed(driven)))
    cut = driven.cut()
    for connection in (1, 2):
        driven.say(connection, messages.MemberDrained(cut))
    driven.say(1, messages.ContributionReport(cut, driven.give("m1", span(P0, 80, 81))))
    driven.say(2, messages.ContributionReport(cut, driven.give("m2", span(P1, 75, 76))))
    driven.tick(2 * RegionConfig().drain_ms)
    assert driven.stands(RegionState.CHECKPOINTING), "it is not the members who are late"
    driven.say(1, messages.AssignmentChanged(Identity("m1", 2), (P0,)))
    assert driven.orders(1, messages.DrainOrder)[-1].cut != cut and driven.stands(RegionState.DRAINING)
    driven.tick(RegionConfig().drain_ms - 1)
    assert driven.stands(RegionState.DRAINING)
    driven.tick(1)
    assert driven.stands(RegionState.RESETTING), "a member that is there and silent would be waited for without end"


def test_a_sink_that_nobody_writes_to_any_more_is_said() -> None:
    driven = two(t="t")
    driven.do(plane_events.CommitEnded(_contributed(driven)))
    driven.say(1, messages.CheckpointPublished(8))
    driven.do(plane_events.ConnectionEnded(2))
    assert driven.machine.plane.describe_region().sinks[1] == messages.SinkStatus("t", 7, "")
    driven.join(3, "m3", sink="t")
    assert [order.keys for order in driven.orders(3, messages.PublishOrder)] == [
        driven.machine.plane.unpublished["t"]
    ], "by who comes"


def test_that_a_place_shows_a_sequence_is_in_the_topic_before_another_is_committed() -> None:
    """A control plane that took over waited for who alone wrote to a place, and had published everything there."""
    driven = two(t="t")
    driven.do(plane_events.CommitEnded(_contributed(driven)))
    driven.say(1, messages.CheckpointPublished(8))
    cut = driven.cut()
    for connection in (1, 2):
        driven.say(connection, messages.MemberDrained(cut))
    driven.say(1, messages.ContributionReport(cut, driven.give("m1", span(P0, 80, 81))))
    driven.say(2, messages.ContributionReport(cut, driven.give("m2", span(P1, 75, 76))))
    driven.saves = False
    driven.say(2, messages.CheckpointPublished(8))
    shown = [fact for fact in driven.facts if isinstance(fact, PublishedCheckpoint)]
    assert [(fact.region, fact.place, fact.sequence) for fact in shown] == [("r", "s", 8), ("r", "t", 8)]
    assert driven.machine.plane.describe_region().published == 7 and len(driven.commits) == 1
    driven.do(plane_events.FactsSaved(driven.machine.plane._tokens))
    assert driven.machine.plane.describe_region().published == 8 and len(driven.commits) == 2


def test_a_new_control_plane_waits_for_nobody_where_the_last_sequence_is_shown() -> None:
    keys = {name: (StagedKey(REGION_ID, 5, name, 0),) for name in ("s", "t")}
    known = replace(KNOWN, keys=keys, places=("s", "t"), shown={"t": PublishedCheckpoint("r", "t", 7, 0)})
    driven = Driven(known)
    assert list(driven.machine.plane.unpublished) == ["s"]
    driven.join(1, "m1", sink="s")
    driven.say(1, messages.CheckpointPublished(7))
    assert driven.machine.plane.describe_region().published == 7
    emptied = Driven(replace(known, empties=True, keys={}))
    assert list(emptied.machine.plane.unpublished) == ["s"], "one that is empty too"


def test_what_a_place_showed_of_the_sequence_before_does_not_count_for_this_one() -> None:
    driven = two(t="t")
    driven.do(plane_events.CommitEnded(_contributed(driven)))
    driven.saves = False
    driven.say(1, messages.CheckpointPublished(8))
    driven.say(2, to_initial(driven))
    for token in (driven.machine.plane._tokens, driven.machine.plane._tokens - 1):
        driven.do(plane_events.FactsSaved(token))
    assert set(driven.machine.plane.unpublished) == {"s", "t"}, "they are to be emptied"


def test_who_leaves_and_alone_can_publish_in_its_sink_does_so_first() -> None:
    driven = two(t="t")
    driven.say(2, messages.LeaveRequest())
    cut = driven.orders(1, messages.DrainOrder)[-1].cut
    for connection in (1, 2):
        driven.say(connection, messages.MemberDrained(cut))
    driven.say(1, messages.ContributionReport(cut, driven.give("m1", span(P0, 70, 80))))
    driven.say(2, messages.ContributionReport(cut, driven.give("m2", span(P1, 71, 75))))
    driven.do(plane_events.CommitEnded(cut))
    assert driven.orders(2, messages.PublishOrder) and not driven.orders(2, messages.StopOrder), (
        "the other writes elsewhere"
    )
    driven.say(1, messages.CheckpointPublished(8))
    assert not driven.orders(2, messages.StopOrder)
    driven.say(2, messages.CheckpointPublished(8))
    assert driven.orders(2, messages.StopOrder) and driven.machine.plane.member_names() == ("m1",)


def test_reset_to_the_initial_state_that_waits_outlives_the_resets_that_are_asked_for_meanwhile() -> None:
    driven = two()
    cut = _contributed(driven)
    assert driven.stands(RegionState.COMMITTING)
    driven.say(1, to_initial(driven))
    driven.say(2, messages.RegionResetRequest("what is behind it has failed"))
    driven.say(2, messages.RegionResetRequest("partitions were revoked", forced=True))
    driven.do(plane_events.CommitEnded(cut))
    (manifest,) = [fact for fact in driven.facts if isinstance(fact, Manifest)]
    assert manifest.empties and driven.stands(RegionState.RESETTING)
    assert not driven.machine.plane.positions


def test_resets_to_the_initial_state_that_are_on_their_way_have_numbers_of_their_own() -> None:
    """Both had one number: the answer of a sink to the first was taken for one to the second."""
    driven = Driven(replace(KNOWN, places=("s",), shown={"s": PublishedCheckpoint("r", "s", 7, 0)}))
    driven.join(1, "m1", sink="s", shows=7)
    driven.saves = False
    for _ in range(2):
        driven.say(1, to_initial(driven))
    assert [fact.sequence for fact in driven.facts if isinstance(fact, Manifest)] == [8, 9]


@pytest.mark.parametrize("shows", [6, 7])
def test_place_that_is_owed_a_sequence_that_was_numbered_anew_knows_it_by_its_first_number(shows: int) -> None:
    """The place may show the sequence already; nothing is left then to be published under the new number."""
    key = StagedKey(REGION_ID, 5, "m1", 0)
    shown = {"s": PublishedCheckpoint("r", "s", 6, 0), "ahead": PublishedCheckpoint("r", "ahead", 20, 0)}
    known = replace(KNOWN, sequence=20, made_as=7, places=("ahead", "s"), shown=shown, keys={"s": (key,)})
    driven = Driven(known)
    driven.join(1, "m1", sink="s", shows=shows)
    assert [order.sequence for order in driven.orders(1, messages.PublishOrder)] == [7]
    driven.say(1, messages.CheckpointPublished(7))
    assert not driven.machine.plane.unpublished and driven.machine.plane.published == 20


@pytest.mark.parametrize("shows", [8, 19, 20])
def test_number_between_the_two_of_a_sequence_is_of_another_history(shows: int) -> None:
    known = replace(KNOWN, sequence=20, made_as=7, places=("s",), keys={"s": ()})
    driven = Driven(known)
    driven.join(1, "m1", sink="s", shows=shows)
    assert driven.stands(RegionState.STOPPED)
    assert "knows of sequence 7 there" in driven.orders(1, messages.StopOrder)[0].cause


def test_back_at_the_initial_state_every_sink_is_emptied_that_was_ever_published_to() -> None:
    driven = Driven(replace(KNOWN, places=("before", "s")))
    driven.join(1, "m1")
    driven.join(2, "m2", sink="t")
    driven.say(1, to_initial(driven))
    (manifest,) = [fact for fact in driven.facts if isinstance(fact, Manifest)]
    assert manifest.places == ("before", "s", "t") and manifest.empties
    assert driven.orders(1, messages.PublishOrder)[-1].empties and driven.orders(2, messages.PublishOrder)[-1].empties
    for connection in (1, 2):
        driven.say(connection, messages.CheckpointPublished(8))
    assert (driven.machine.plane.published, set(driven.machine.plane.unpublished)) == (7, {"before"})
    driven.join(3, "m3", sink="before")
    assert driven.orders(3, messages.PublishOrder)[-1].empties
    driven.say(3, messages.CheckpointPublished(8))
    assert driven.machine.plane.published == 8


def test_a_new_control_plane_publishes_what_is_owed_to_each_sink() -> None:
    keys = {name: (StagedKey(REGION_ID, 5, name, 0),) for name in ("s", "t")}
    driven = Driven(replace(KNOWN, keys=keys, places=("s", "t", "u")))
    driven.join(1, "m1", sink="t")
    driven.join(2, "m2", sink="u")
    assert [order.keys for order in driven.orders(1, messages.PublishOrder)] and not driven.orders(
        2, messages.PublishOrder
    )
    assert driven.orders(1, messages.PublishOrder)[-1].keys == keys["t"]
    assert driven.machine.plane.describe_region().published == 6


@pytest.mark.parametrize("empties", [False, True])
def test_what_an_earlier_release_staged_is_published_by_the_first_with_a_sink(empties: bool) -> None:
    """The earlier release did not name the sink: a region had one."""
    key = StagedKey(REGION_ID, 5, "m9", 0)
    driven = Driven(replace(KNOWN, empties=True) if empties else replace(KNOWN, keys={"": (key,)}))
    driven.join(1, "m1", sink="")
    driven.join(2, "m2")
    assert driven.orders(2, messages.PublishOrder) == [
        messages.PublishOrder(3, 7, () if empties else (key,), 6, empties, place="s")
    ]
    assert not driven.orders(1, messages.PublishOrder)
    driven.say(2, messages.CheckpointPublished(7))
    assert driven.machine.plane.published == 7 and driven.machine.plane.places == {"s"}


ALONE = "would be wrong"


def refused(driven: Driven, connection: int) -> bool:
    orders = driven.orders(connection, messages.RegistrationRefused)
    return bool(orders) and ALONE in orders[-1].why and bool(orders[-1].remedy) and connection in driven.closed


def test_a_member_whose_state_does_not_move_is_alone_in_its_group() -> None:
    driven = Driven()
    driven.join(1, "m1", shares=False)
    driven.join(2, "m2")
    assert (
        refused(driven, 2)
        and not driven.orders(2, messages.RegistrationAccepted)
        and driven.machine.plane.member_names() == ("m1",)
    )
    assert "m1" in driven.orders(2, messages.RegistrationRefused)[-1].why
    driven.join(3, "m3", group="other")
    driven.join(4, "m4", group="other")
    assert driven.machine.plane.member_names() == ("m1", "m3", "m4"), "other groups are not touched"
    driven.join(5, "m5", group="other", shares=False)
    assert refused(driven, 5), "the newcomer of the two, whichever it is"
    driven.join(6, "m1", shares=False)
    assert driven.orders(6, messages.RegistrationAccepted), "another of its name fences the first"
    assert ALONE not in driven.orders(1, messages.RegistrationRefused)[-1].why


def test_who_was_there_before_a_takeover_comes_before_a_newcomer_that_was_faster() -> None:
    driven = Driven(replace(KNOWN, expected=frozenset({"m1"})))
    driven.join(2, "m2")
    driven.join(3, "m3", group="other", shares=False)
    driven.join(4, "m4", group="other")
    driven.join(1, "m1", holds=(at(P0, 70),), epoch=5, shares=False)
    assert driven.stands(RegionState.RUNNING) and driven.machine.plane.member_names() == ("m1", "m3")
    assert driven.orders(1, messages.RegistrationAccepted) and driven.orders(3, messages.RegistrationAccepted)
    assert refused(driven, 2) and refused(driven, 4)


def test_a_member_that_returns_with_its_epoch_is_let_in_and_one_that_must_reset_alone_is_a_newcomer() -> None:
    driven = Driven(replace(KNOWN, expected=frozenset({"m1", "m2"})))
    driven.join(1, "m1", holds=(at(P0, 70),), epoch=5, shares=False)
    driven.join(2, "m2", holds=(at(P1, 71),), epoch=5)
    assert driven.machine.plane.member_names() == ("m1", "m2"), "how they came to be two is not judged again"
    driven.do(plane_events.ConnectionEnded(2))
    driven.tick(RegionConfig().register_ms)
    assert driven.machine.plane.member_names() == ("m1",)
    driven.join(3, "m2", holds=(at(P1, 71),), epoch=5)
    assert refused(driven, 3), "it was taken for dead"
    driven.join(4, "m1", incarnation=UUID(int=1), epoch=5, shares=False)
    assert not refused(driven, 4)


def test_a_second_of_a_name_fences_the_first() -> None:
    driven = two()
    driven.join(3, "m1")
    assert (
        isinstance(driven.orders(1, messages.RegistrationRefused)[-1], messages.RegistrationRefused)
        and 1 in driven.closed
    )
    assert driven.stands(RegionState.RESETTING), "what the first has read since the last sequence is lost"


def test_who_has_slept_while_another_took_its_place_ends_and_not_the_other() -> None:
    driven = two()
    slept = driven.machine.plane.members["m1"].epoch
    driven.join(3, "m1")
    driven.say(2, messages.MemberWasReset(driven.orders(2, messages.ResetOrder)[-1].epoch))
    driven.join(4, "m1", epoch=slept, incarnation=UUID(int=1))
    assert driven.orders(4, messages.RegistrationRefused) and 4 in driven.closed
    assert 3 not in driven.closed and driven.machine.plane.members["m1"].connection == 3
    assert driven.stands(RegionState.RUNNING), "nobody goes back for it"


def test_to_the_initial_state_everything_begins_where_it_was_begun() -> None:
    driven = two()
    driven.say(1, to_initial(driven))
    for connection in (1, 2):
        driven.say(connection, messages.MemberWasReset(driven.machine.plane.epoch))
    assert driven.ask(1, P0) == (at(P0, 0),)
    assert driven.orders(1, messages.ResetOrder)[-1].state is None


def test_back_at_the_initial_state_sinks_are_emptied_before_the_next_sequence_and_after_the_topic_has_it() -> None:
    driven = two()
    driven.saves = False
    driven.say(1, to_initial(driven))
    (manifest,) = [fact for fact in driven.facts if isinstance(fact, Manifest)]
    assert (manifest.sequence, manifest.empties) == (8, True) and not driven.orders(1, messages.PublishOrder)
    driven.say(1, messages.CheckpointPublished(7))
    assert driven.machine.plane.sequence == 7, "who was overtaken has nothing emptied"
    driven.saves = True
    driven.do(plane_events.FactsSaved(driven.machine.plane._tokens))
    epoch = driven.machine.plane.epoch
    assert driven.orders(1, messages.PublishOrder) == [messages.PublishOrder(3, 8, (), epoch, empties=True, place="s")]
    for connection in (1, 2):
        driven.say(connection, messages.MemberWasReset(epoch))
    assert driven.ask(1, P0) == (at(P0, 0),) and driven.ask(2, P1) == (at(P1, 0),)
    cut = driven.cut()
    for connection in (1, 2):
        driven.say(connection, messages.MemberDrained(cut))
    driven.say(1, messages.ContributionReport(cut, driven.give("m1", span(P0, 0, 80))))
    driven.say(2, messages.ContributionReport(cut, driven.give("m2", span(P1, 0, 75))))
    assert driven.stands(RegionState.CHECKPOINTING) and not driven.commits, "it waits"
    driven.say(1, messages.CheckpointPublished(8))
    assert [commit.cut for commit in driven.commits] == [cut]
    driven.do(plane_events.CommitEnded(cut))
    assert (
        driven.orders(1, messages.PublishOrder)[-1].sequence == 9
        and not driven.orders(1, messages.PublishOrder)[-1].empties
    )


def test_a_new_control_plane_continues_to_empty_sinks() -> None:
    driven = Driven(replace(KNOWN, empties=True, places=("s",)))
    driven.join(1, "m1")
    assert driven.orders(1, messages.PublishOrder) == [messages.PublishOrder(3, 7, (), 4, empties=True, place="s")]


def test_the_last_one_leaves_when_it_has_published() -> None:
    driven = two()
    for connection in (1, 2):
        driven.say(connection, messages.LeaveRequest())
    cut = driven.orders(1, messages.DrainOrder)[-1].cut
    for connection in (1, 2):
        driven.say(connection, messages.MemberDrained(cut))
    driven.say(1, messages.ContributionReport(cut, driven.give("m1", span(P0, 70, 80))))
    driven.say(2, messages.ContributionReport(cut, driven.give("m2", span(P1, 71, 75))))
    assert driven.commits[-1].manifest.stay == ()
    driven.do(plane_events.CommitEnded(cut))
    assert isinstance(driven.last(2), messages.StopOrder), "one is enough"
    assert isinstance(driven.last(1), messages.PublishOrder) and driven.stands(RegionState.RUNNING)
    driven.join(3, "m3")
    assert driven.machine.plane.owner_of(P0) is None, "it holds nothing any more"
    driven.say(1, messages.CheckpointPublished(8))
    assert isinstance(
        driven.orders(1, messages.StopOrder)[-1], messages.StopOrder
    ) and driven.machine.plane.member_names() == ("m3",)


def test_who_leaves_has_another_publish() -> None:
    driven = two()
    driven.say(1, messages.LeaveRequest())
    cut = driven.orders(1, messages.DrainOrder)[-1].cut
    for connection in (1, 2):
        driven.say(connection, messages.MemberDrained(cut))
    driven.say(1, messages.ContributionReport(cut, driven.give("m1", span(P0, 70, 80))))
    driven.say(2, messages.ContributionReport(cut, driven.give("m2", span(P1, 71, 75))))
    driven.do(plane_events.CommitEnded(cut))
    assert isinstance(driven.orders(1, messages.StopOrder)[-1], messages.StopOrder)
    assert driven.orders(2, messages.PublishOrder)


def _contributed(driven: Driven) -> CheckpointAttempt:
    cut = driven.cut()
    for connection in (1, 2):
        driven.say(connection, messages.MemberDrained(cut))
    driven.say(1, messages.ContributionReport(cut, driven.give("m1", span(P0, 70, 80))))
    driven.say(2, messages.ContributionReport(cut, driven.give("m2", span(P1, 71, 75))))
    assert driven.stands(RegionState.COMMITTING)
    return cut


@pytest.mark.parametrize("keeps", [True, False])
def test_a_state_waits_for_a_member_that_is_away_or_goes_with_it(keeps: bool) -> None:
    driven = two()
    driven.say(2, messages.LeaveRequest())
    cut = driven.cut()
    for connection in (1, 2):
        driven.say(connection, messages.MemberDrained(cut))
    driven.say(1, messages.ContributionReport(cut, driven.give("m1", span(P0, 70, 80), state=b"one", keeps=keeps)))
    driven.say(2, messages.ContributionReport(cut, driven.give("m2", span(P1, 71, 75), state=b"two", keeps=keeps)))
    driven.do(plane_events.CommitEnded(cut))
    for sequence in (9, 10):
        driven.say(1, messages.CheckpointPublished(driven.machine.plane.sequence))
        cut = driven.cut()
        assert cut.sequence == sequence
        driven.say(1, messages.MemberDrained(cut))
        begin = 80 if sequence == 9 else 81
        driven.say(
            1,
            messages.ContributionReport(cut, driven.give("m1", span(P0, begin, begin + 1), state=b"new", keeps=keeps)),
        )
        assert driven.commits[-1].manifest.away == ({"m2": 8} if keeps else {})
        driven.do(plane_events.CommitEnded(cut))
    driven.join(3, "m2")
    assert [order.state for order in driven.orders(3, messages.RegistrationAccepted)] == [b"two" if keeps else None]
    driven.say(1, to_initial(driven))
    assert driven.machine.plane.waiting == {}


STATE = KeyedStateChainHead(6, 7, bytes(16), 9_000)


def with_state() -> Driven:
    """Two members, of whose partitions one has a keyed state."""
    known = replace(KNOWN, positions=(replace(at(P0, 70), state=STATE), at(P1, 71)))
    driven = Driven(known)
    for connection, name, part in ((1, "m1", P0), (2, "m2", P1)):
        driven.join(connection, name, keyed=True)
        driven.ask(connection, part)
    return driven


def test_state_is_handed_out_with_its_partition_and_committed_with_its_offset() -> None:
    driven = with_state()
    assert driven.orders(1, messages.StartOffsetsAnswer)[-1].found == (replace(at(P0, 70), state=STATE),)
    assert driven.orders(1, messages.RegistrationAccepted)[-1].moves_state
    cut = driven.cut()
    driven.say(1, messages.MemberDrained(cut))
    driven.say(2, messages.MemberDrained(cut))
    later = STATE._replace(sequence=8)
    driven.say(1, messages.ContributionReport(cut, driven.give("m1", replace(span(P0, 70, 80), state=later))))
    driven.say(2, messages.ContributionReport(cut, driven.give("m2", span(P1, 71, 71))))
    [commit] = driven.commits
    assert commit.manifest.positions == (replace(at(P0, 80), state=later), at(P1, 71))
    driven.do(plane_events.CommitEnded(cut))
    driven.say(1, messages.AssignmentChanged(Identity("m1", 2), (P0,)))
    assert driven.ask(2, P0) == (replace(at(P0, 80), state=later),), "it moves"


def test_contribution_without_the_state_that_was_handed_out_resets() -> None:
    driven = with_state()
    cut = driven.cut()
    driven.say(1, messages.MemberDrained(cut))
    driven.say(2, messages.MemberDrained(cut))
    driven.say(1, messages.ContributionReport(cut, driven.give("m1", span(P0, 70, 80))))
    assert driven.stands(RegionState.RESETTING) and not driven.commits
    assert "without its keyed state" in driven.lines[-1].text


def test_members_of_a_group_keep_states_all_or_none() -> None:
    driven = Driven()
    driven.join(1, "m1", keyed=True)
    driven.join(2, "m2")
    assert (
        "give keyed_state= to all" in driven.orders(2, messages.RegistrationRefused)[-1].remedy and 2 in driven.closed
    )
    driven.join(3, "m3", group="other")
    driven.join(4, "m4", group="other", keyed=True)
    assert driven.orders(4, messages.RegistrationRefused) and driven.machine.plane.member_names() == ("m1", "m3")
    driven.join(5, "m5", keyed=True)
    assert driven.machine.plane.member_names() == ("m1", "m3", "m5")


def test_initial_state_has_no_keyed_state() -> None:
    driven = with_state()
    driven.say(1, to_initial(driven))
    for connection in (1, 2):
        driven.say(connection, messages.MemberWasReset(driven.orders(connection, messages.ResetOrder)[-1].epoch))
    assert driven.ask(1, P0) == (at(P0, 0),)
