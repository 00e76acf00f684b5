"""A member's machine, one rule at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar
from uuid import UUID

import pytest

from kohort.region import messages
from kohort.region.member import events as member_events
from kohort.region.member.machine import TABLE, MemberMachine
from kohort.region.member.state import MemberBehaviour
from kohort.region.messages import CheckpointAttempt, Identity
from kohort.region.records import KeyedStateChainHead, Part, Position
from kohort.region.states import RegionMemberState

REGION_ID, TOPIC_ID = UUID(int=7), UUID(int=9)
P0, P1 = (Part("etl", "t", number, TOPIC_ID) for number in (0, 1))
CUT = CheckpointAttempt(8, 1)
Kind = TypeVar("Kind")
Said = TypeVar("Said")


def at(part: Part, offset: int) -> Position:
    return Position(part.group, part.topic, part.topic_id, part.partition, offset)


class Driven:
    """A machine, and what came of it."""

    def __init__(self, **how: bool) -> None:
        self.machine = MemberMachine("r", "m1", UUID(int=1), "etl", "s", MemberBehaviour(**how))
        self.did: list[member_events.Effect] = []

    def do(self, *events: member_events.Event | messages.Order) -> list[member_events.Effect]:
        self.did = []
        for event in events:
            self.did += self.machine.step(
                member_events.ControlPlaneMessageReceived(event) if isinstance(event, messages.Order) else event
            )
        return self.did

    def effects(self, kind: type[Kind]) -> list[Kind]:
        return [effect for effect in self.did if isinstance(effect, kind)]

    def said(self, kind: type[Said]) -> list[Said]:
        return [
            effect.report
            for effect in self.did
            if isinstance(effect, member_events.SendReport) and isinstance(effect.report, kind)
        ]

    def stands(self, state: RegionMemberState) -> bool:
        return self.machine.state is state


def reading(**how: bool) -> Driven:
    """Return a member that has both partitions, from 70 and 71 on, and has fetched."""
    driven = Driven(**how)
    driven.do(member_events.ControlPlaneConnected(), messages.RegistrationAccepted(3, 5, 7, ("m1",)))
    driven.do(member_events.PartitionsAssigned(Identity("id", 1), (P0, P1)))
    driven.do(messages.StartOffsetsAnswer(3, 1, (at(P0, 70), at(P1, 71))), member_events.RecordsFetched())
    assert driven.stands(RegionMemberState.RECORDS_FETCHED)
    return driven


def drained(**how: bool) -> Driven:
    driven = reading(**how)
    driven.do(messages.DrainOrder(3, CUT), member_events.DrainCompleted(CUT))
    assert driven.stands(RegionMemberState.DRAINED)
    return driven


def contributed(**how: bool) -> Driven:
    driven = drained(**how)
    driven.do(
        messages.ContributeOrder(3, CUT, ("m1",)), member_events.StateSaved(CUT, (at(P0, 80), at(P1, 71)), (), b"s")
    )
    assert driven.stands(RegionMemberState.CHECKPOINTED)
    return driven


def test_each_event_has_an_entry_in_each_state_with_its_reason() -> None:
    for event, rows in TABLE.items():
        assert set(rows) == set(RegionMemberState), event
        assert all(row.why for row in rows.values())


def test_it_subscribes_and_reads_nothing_that_the_control_plane_has_not_given() -> None:
    driven = Driven()
    assert driven.stands(RegionMemberState.SUBSCRIBED)
    driven.do(member_events.PartitionsAssigned(Identity("id", 1), (P0,)))
    assert driven.said(messages.StartOffsetsRequest) == [] and driven.effects(member_events.SeekPositions) == []
    driven.do(member_events.ControlPlaneConnected())
    assert [(report.epoch, report.sink, report.shares) for report in driven.said(messages.RegistrationRequest)] == [
        (-1, "s", True)
    ]
    alone = Driven(shares=False)
    alone.do(member_events.ControlPlaneConnected())
    assert [report.shares for report in alone.said(messages.RegistrationRequest)] == [False]
    driven.do(messages.RegistrationAccepted(3, 5, 7, ("m1",), b"saved"))
    assert driven.effects(member_events.BeginEpoch) == [member_events.BeginEpoch(5, 7, b"saved")]
    assert driven.said(messages.StartOffsetsRequest) == [messages.StartOffsetsRequest(1, (P0,))]
    driven.do(messages.StartOffsetsAnswer(3, 1, (at(P0, 70), at(P1, 71))))
    assert driven.effects(member_events.SeekPositions) == [member_events.SeekPositions((at(P0, 70),))], (
        "not what it has not"
    )


def test_partitions_revoked_before_anything_was_fetched_are_released() -> None:
    driven = Driven()
    driven.do(
        member_events.ControlPlaneConnected(),
        messages.RegistrationAccepted(3, 5, 7, ("m1",)),
        member_events.PartitionsAssigned(Identity("id", 1), (P0,)),
    )
    driven.do(messages.StartOffsetsAnswer(3, 1, (at(P0, 70),)), member_events.PartitionsRevoked((P0,)))
    assert driven.effects(member_events.ReleasePartitions) == [
        member_events.ReleasePartitions((P0,))
    ] and not driven.said(messages.RegionResetRequest)


@pytest.mark.parametrize("event", [member_events.PartitionsRevoked((P0,)), member_events.PartitionsLost((P0,))])
@pytest.mark.parametrize("before", [reading, drained, contributed])
def test_what_is_revoked_after_records_were_fetched_has_all_go_back(before: type, event: member_events.Event) -> None:
    driven = before()
    driven.do(event)
    assert driven.stands(RegionMemberState.CR_RESET_PENDING)
    assert member_events.StopPolling(clear=True) in driven.did
    assert [report.forced for report in driven.said(messages.RegionResetRequest)] == [True]
    driven.do(
        member_events.PartitionsAssigned(Identity("id", 2), (P1,)), messages.StartOffsetsAnswer(3, 1, (at(P1, 71),))
    )
    assert driven.effects(member_events.SeekPositions) == [] and driven.said(messages.StartOffsetsRequest) == [], (
        "nothing is sought while it waits"
    )


def test_after_a_reset_it_polls_slowly_until_records_came() -> None:
    driven = reading()
    driven.do(messages.ResetOrder(3, 6, 7, b"saved"))
    assert driven.effects(member_events.ResetApplication) == [member_events.ResetApplication(6, 7, b"saved")]
    driven.do(member_events.ApplicationReset(5))
    assert driven.stands(RegionMemberState.CR_RESET_PENDING), "that was for an earlier one"
    driven.do(member_events.ApplicationReset(6))
    assert driven.stands(RegionMemberState.RESET_COMPLETE)
    assert driven.effects(member_events.StartPolling) == [member_events.StartPolling(slowly=True)]
    assert driven.said(messages.MemberWasReset) == [messages.MemberWasReset(6)] and driven.said(
        messages.StartOffsetsRequest
    )[0].parts == (
        P0,
        P1,
    )
    driven.do(messages.StartOffsetsAnswer(3, 2, (at(P0, 70),)))
    assert driven.effects(member_events.SeekPositions) == [member_events.SeekPositions((at(P0, 70),), commit=True)], (
        "the group's offsets go back too"
    )
    driven.do(member_events.PartitionsRevoked((P1,)))
    assert driven.stands(RegionMemberState.RESET_COMPLETE) and driven.effects(member_events.ReleasePartitions), (
        "it has fetched nothing"
    )
    driven.do(member_events.RecordsFetched())
    assert driven.effects(member_events.StartPolling) == [member_events.StartPolling(slowly=False)]


def test_who_has_gone_back_says_so_again_and_does_not_go_back_twice() -> None:
    """The connection ended, so the order was repeated: rows read since, in the same epoch, were staged twice."""
    driven = reading()
    driven.do(
        messages.ResetOrder(3, 6, 7, b"saved"),
        member_events.ControlPlaneConnected(),
        messages.ResetOrder(3, 6, 7, b"saved"),
    )
    assert len(driven.effects(member_events.ResetApplication)) == 1
    driven.do(
        member_events.ApplicationReset(6),
        messages.StartOffsetsAnswer(3, 2, (at(P0, 70),)),
        member_events.RecordsFetched(),
        member_events.ControlPlaneConnected(),
    )
    driven.do(messages.ResetOrder(3, 6, 7, b"saved"))
    assert not driven.effects(member_events.ResetApplication) and driven.said(messages.MemberWasReset) == [
        messages.MemberWasReset(6)
    ]
    assert driven.stands(RegionMemberState.RECORDS_FETCHED) and [
        report.parts for report in driven.said(messages.StartOffsetsRequest)
    ] == [(P1,)]


def test_a_drain_that_fails_is_said() -> None:
    driven = reading()
    driven.do(messages.DrainOrder(3, CUT))
    assert driven.effects(member_events.DrainMember) == [member_events.DrainMember(CUT)]
    driven.do(member_events.DrainAborted(CheckpointAttempt(8, 0), "an earlier one"))
    assert driven.did == []
    driven.do(member_events.DrainAborted(CUT, "one partition's offset was refused"))
    assert driven.said(messages.DrainFailed) == [messages.DrainFailed(CUT, "one partition's offset was refused")]


def test_a_contribution_has_names_offsets_state_and_where_records_begin_and_end() -> None:
    driven = drained()
    driven.do(messages.ContributeOrder(3, CUT, ("m1",)))
    assert driven.effects(member_events.SaveState)
    driven.do(member_events.StateSaved(CUT, (at(P0, 80), at(P1, 71)), (), b"s"))
    [given] = [report.contribution for report in driven.said(messages.ContributionReport)]
    assert (given.member, given.members, given.sequence, given.term, given.epoch) == ("m1", ("m1",), 8, 3, 5)
    assert (given.member_id, given.generation, given.state) == ("id", 1, b"s")
    assert [(span.partition, span.begin, span.end) for span in given.spans] == [(0, 70, 80), (1, 71, 71)]


def test_the_next_contribution_begins_where_the_last_complete_one_ended() -> None:
    driven = contributed()
    driven.do(messages.CheckpointCompleted(3, 8, 6))
    assert driven.effects(member_events.RetireCheckpoints) == [member_events.RetireCheckpoints(8, 6, counts=True)]
    assert driven.effects(member_events.ResumeSubmitting) and driven.stands(RegionMemberState.RECORDS_FETCHED)
    assert {hold.partition: hold.offset for hold in driven.machine.held_positions()} == {0: 80, 1: 71}


def test_a_contribution_in_vain_is_given_again_from_its_beginning() -> None:
    driven = contributed()
    driven.do(messages.DrainOrder(3, CheckpointAttempt(8, 2)))
    assert driven.said(messages.MemberDrained) == [messages.MemberDrained(CheckpointAttempt(8, 2))] and driven.stands(
        RegionMemberState.DRAINED
    )
    assert {hold.partition: hold.offset for hold in driven.machine.held_positions()} == {0: 70, 1: 71}
    driven.do(member_events.ControlPlaneConnected(), messages.RegistrationAccepted(4, 5, 7, ("m1",)))
    assert driven.effects(member_events.ResumeSubmitting), "a new control plane does not know of the cut"


@pytest.mark.parametrize(
    "says",
    [
        messages.CheckpointCompleted(3, 8, 6, counts=False),
        messages.RegistrationAccepted(4, 5, 8, ("m1",), counts=False),
    ],
)
def test_contribution_that_does_not_count_is_made_again_and_lets_nothing_go(says: messages.Order) -> None:
    """The control plane has completed the sequence without it: with another's of its name, say."""
    driven = contributed(holds_back=True)
    driven.do(member_events.PartitionsRevoked((P1,)))
    driven.do(says)
    assert driven.effects(member_events.RetireCheckpoints) == [
        member_events.RetireCheckpoints(
            8, says.retired if isinstance(says, messages.CheckpointCompleted) else 0, counts=False
        )
    ]
    assert {position.partition: position.offset for position in driven.machine.held_positions()} == {0: 70, 1: 71}
    assert not driven.effects(member_events.ReleasePartitions)
    assert driven.machine.sequence == 8 and driven.stands(RegionMemberState.RECORDS_FETCHED)


def test_what_is_held_back_is_released_when_a_sequence_is_complete() -> None:
    driven = reading(holds_back=True)
    driven.do(member_events.PartitionsRevoked((P1,)))
    assert driven.said(messages.RevokedPartitionsHeld) and not driven.effects(member_events.ReleasePartitions)
    assert driven.stands(RegionMemberState.RECORDS_FETCHED)
    driven.do(messages.DrainOrder(3, CUT), member_events.DrainCompleted(CUT), messages.ContributeOrder(3, CUT, ("m1",)))
    driven.do(member_events.StateSaved(CUT, (at(P0, 80), at(P1, 90)), (), b""))
    assert not driven.effects(member_events.ReleasePartitions)
    driven.do(messages.CheckpointCompleted(3, 8, 6))
    assert driven.effects(member_events.ReleasePartitions) == [member_events.ReleasePartitions((P1,))]
    assert [report.gone for report in driven.said(messages.AssignmentChanged)] == [(P1,)]


def test_who_reads_on_lets_go_with_a_sequence_that_has_all_that_it_read() -> None:
    """The member contributed, finished another batch, and was asked for a partition that this batch had read."""
    driven = contributed(holds_back=True, reads_on=True)
    driven.do(member_events.PartitionsRevoked((P1,)), messages.CheckpointCompleted(3, 8, 6))
    assert not driven.effects(member_events.ReleasePartitions), (
        "what it has read since it contributed is in no sequence"
    )
    again = CheckpointAttempt(9, 2)
    driven.do(
        messages.DrainOrder(3, again), member_events.DrainCompleted(again), messages.ContributeOrder(3, again, ("m1",))
    )
    driven.do(member_events.StateSaved(again, (at(P0, 90), at(P1, 99)), (), b""), messages.CheckpointCompleted(3, 9, 7))
    assert driven.effects(member_events.ReleasePartitions) == [member_events.ReleasePartitions((P1,))]
    stops = contributed(holds_back=True)
    stops.do(member_events.PartitionsRevoked((P1,)), messages.CheckpointCompleted(3, 8, 6))
    assert stops.effects(member_events.ReleasePartitions), "who stops for the cut has read nothing since"


def test_who_reads_on_lets_go_of_what_it_held_in_vain_with_the_contribution_that_counts() -> None:
    driven = contributed(holds_back=True, reads_on=True)
    driven.do(
        member_events.PartitionsRevoked((P1,)),
        messages.DrainOrder(3, CheckpointAttempt(8, 2)),
        messages.ContributeOrder(3, CheckpointAttempt(8, 2), ("m1",)),
    )
    driven.do(
        member_events.StateSaved(CheckpointAttempt(8, 2), (at(P0, 90), at(P1, 99)), (), b""),
        messages.CheckpointCompleted(3, 8, 6),
    )
    assert driven.effects(member_events.ReleasePartitions) == [member_events.ReleasePartitions((P1,))]


@pytest.mark.parametrize("reset", [False, True])
def test_what_is_first_read_in_a_cut_has_been_read(reset: bool) -> None:
    """A partition was let go at once, as unread, and a batch with its records was staged."""
    driven = Driven(holds_back=True, reads_on=True)
    driven.do(
        member_events.ControlPlaneConnected(),
        messages.RegistrationAccepted(3, 5, 7, ("m1",)),
        member_events.PartitionsAssigned(Identity("id", 1), (P0, P1)),
    )
    if reset:
        driven.do(messages.ResetOrder(3, 6, 7, None), member_events.ApplicationReset(6))
    driven.do(
        messages.StartOffsetsAnswer(3, 1, (at(P0, 70), at(P1, 71))),
        messages.DrainOrder(3, CUT),
        member_events.DrainCompleted(CUT),
        member_events.RecordsFetched(),
    )
    driven.do(
        messages.ContributeOrder(3, CUT, ("m1",)), member_events.StateSaved(CUT, (at(P0, 70), at(P1, 71)), (), b"")
    )
    driven.do(messages.CheckpointCompleted(3, 8, 6))
    assert driven.stands(RegionMemberState.RECORDS_FETCHED) and driven.effects(member_events.StartPolling) == [
        member_events.StartPolling(slowly=False)
    ]
    driven.do(member_events.PartitionsRevoked((P1,)))
    assert driven.said(messages.RevokedPartitionsHeld) and not driven.effects(member_events.ReleasePartitions)


def test_what_is_held_back_and_lost_meanwhile_has_all_go_back() -> None:
    driven = reading(holds_back=True)
    driven.do(member_events.PartitionsRevoked((P1,)), member_events.PartitionsLost((P0, P1)))
    assert driven.stands(RegionMemberState.CR_RESET_PENDING) and driven.said(messages.RegionResetRequest)


def test_a_control_plane_that_was_overtaken_is_not_heard() -> None:
    driven = reading()
    driven.do(messages.RegistrationAccepted(4, 5, 7, ("m1",)))
    assert driven.do(messages.ResetOrder(3, 6, 7, None)) == []
    assert driven.stands(RegionMemberState.RECORDS_FETCHED)


def test_it_registers_again_with_what_it_holds_and_what_it_gave() -> None:
    driven = contributed()
    [register] = (driven.do(member_events.ControlPlaneConnected()), driven.said(messages.RegistrationRequest))[1]
    assert (register.epoch, register.contributed) == (5, 8)
    assert register.holds == (at(P0, 70), at(P1, 71)) and register.ends == (at(P0, 80), at(P1, 71))
    driven.do(messages.RegistrationAccepted(4, 5, 8, ("m1",)))
    assert {hold.partition: hold.offset for hold in driven.machine.held_positions()} == {0: 80, 1: 71}, (
        "it was complete"
    )


def test_a_member_that_closes_waits_for_stop() -> None:
    """With the next sequence, or at once if it holds nothing: the control plane knows what it is needed for."""
    idle = Driven()
    idle.do(member_events.ControlPlaneConnected(), messages.RegistrationAccepted(3, 5, 7, ("m1",)))
    for driven in (reading(), idle):
        driven.do(member_events.CloseRequested())
        assert driven.said(messages.LeaveRequest)
        assert not driven.effects(member_events.EndMember)
        driven.do(messages.StopOrder(3, "", ""))
        assert driven.effects(member_events.EndMember) == [member_events.EndMember("", "")]


def test_the_next_control_plane_too_hears_of_an_unrecoverable_failure() -> None:
    driven = reading()
    driven.do(member_events.MemberFailed("records are lost", "reset it"))
    assert driven.said(messages.UnrecoverableFailure) == [messages.UnrecoverableFailure("records are lost", "reset it")]
    driven.do(member_events.ControlPlaneConnected(), messages.RegistrationAccepted(4, 5, 7, ("m1",)))
    assert driven.said(messages.UnrecoverableFailure) == [messages.UnrecoverableFailure("records are lost", "reset it")]


def test_who_wants_all_to_go_back_says_so_until_they_do_and_takes_part_in_no_cut() -> None:
    """An application has failed while no control plane was reached: what it had fetched must not count as read."""
    driven = reading()
    driven.do(member_events.CloseRequested(), member_events.ResetRequested("the application has failed"))
    assert driven.said(messages.RegionResetRequest) == [messages.RegionResetRequest("the application has failed")]
    driven.do(member_events.ControlPlaneConnected(), messages.RegistrationAccepted(4, 5, 7, ("m1",)))
    assert driven.said(messages.RegionResetRequest) == [messages.RegionResetRequest("the application has failed")], (
        "again, for it was not heard"
    )
    driven.do(messages.DrainOrder(4, CUT))
    assert not driven.effects(member_events.DrainMember)
    driven.do(messages.ResetOrder(4, 6, 7, None), member_events.ApplicationReset(6))
    assert driven.said(messages.LeaveRequest), "it was to be closed"
    assert not driven.effects(member_events.StartPolling) and not driven.said(messages.StartOffsetsRequest)


STATE = KeyedStateChainHead(6, 7, bytes(16), 9_000)


def test_state_goes_with_the_offset_into_the_contribution() -> None:
    driven = Driven(keyed=True)
    driven.do(member_events.ControlPlaneConnected(), messages.RegistrationAccepted(3, 5, 7, ("m1",), moves_state=True))
    assert driven.said(messages.AssignmentChanged)
    driven.do(member_events.PartitionsAssigned(Identity("id", 1), (P0,)))
    start = replace(at(P0, 70), state=STATE)
    driven.do(messages.StartOffsetsAnswer(3, 1, (start,)))
    assert driven.effects(member_events.SeekPositions) == [member_events.SeekPositions((start,))]
    driven.do(member_events.RecordsFetched(), messages.DrainOrder(3, CUT), member_events.DrainCompleted(CUT))
    later = STATE._replace(sequence=8)
    driven.do(messages.ContributeOrder(3, CUT, ("m1",)))
    driven.do(member_events.StateSaved(CUT, (replace(at(P0, 80), state=later),), (), b""))
    [given] = driven.said(messages.ContributionReport)
    [only] = given.contribution.spans
    assert (only.begin, only.end, only.state) == (70, 80, later)


def test_member_that_keeps_no_states_stops_the_region_before_it_reads_past_one() -> None:
    driven = Driven()
    driven.do(member_events.ControlPlaneConnected(), messages.RegistrationAccepted(3, 5, 7, ("m1",), moves_state=True))
    driven.do(member_events.PartitionsAssigned(Identity("id", 1), (P0, P1)))
    driven.do(messages.StartOffsetsAnswer(3, 1, (at(P1, 71), replace(at(P0, 70), state=STATE))))
    assert not driven.effects(member_events.SeekPositions) and not driven.machine.begins
    [failed] = driven.said(messages.UnrecoverableFailure)
    assert "t-0 of group 'etl' have keyed states" in failed.cause and "keyed_state=" in failed.remedy


def test_control_plane_of_an_earlier_release_gets_no_member_with_states() -> None:
    """Such a control plane would take the contribution, and write a manifest without the state."""
    driven = Driven(keyed=True)
    driven.do(member_events.ControlPlaneConnected(), messages.RegistrationAccepted(3, 5, 7, ("m1",)))
    [end] = driven.effects(member_events.EndMember)
    assert "earlier release" in end.cause and not driven.effects(member_events.BeginEpoch)
