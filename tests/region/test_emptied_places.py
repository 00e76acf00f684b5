"""A reset to the initial state, and who leaves meanwhile: every place that the region has written to is emptied."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from kohort.region import messages
from kohort.region.control_plane import events
from kohort.region.member import events as does
from kohort.region.member.machine import MemberMachine
from kohort.region.messages import Identity
from kohort.region.records import Manifest
from kohort.region.states import RegionState
from tests.region.test_coming_and_going import ends
from tests.region.test_plane import KNOWN, P0, P1, Driven, at, span, to_initial


def shown() -> Driven:
    """Sequence 7 is shown in `s` and `t`; m1 writes to the one, m2 alone to the other, each with a partition."""
    driven = Driven(replace(KNOWN, places=("s", "t")))
    for connection, name, part, sink in ((1, "m1", P0, "s"), (2, "m2", P1, "t")):
        driven.join(connection, name, sink=sink)
        assert driven.ask(connection, part) == (at(part, 70 + part.partition),)
    return driven


def save_all(driven: Driven) -> None:
    """The topic has all that was on its way there, and what comes of it."""
    driven.saves = True
    for token in sorted(driven.machine.plane._saving):
        driven.do(events.FactsSaved(token))


def has_gone(driven: Driven, connection: int, name: str) -> bool:
    return bool(driven.orders(connection, messages.StopOrder)) and name not in driven.machine.plane.members


def empty(driven: Driven, connection: int, name: str) -> None:
    """Keep the member until it has emptied its place, then let it leave."""
    assert not has_gone(driven, connection, name)
    order = driven.orders(connection, messages.PublishOrder)[-1]
    assert order.empties and order.sequence == driven.machine.plane.sequence
    driven.say(connection, messages.CheckpointPublished(order.sequence))
    assert has_gone(driven, connection, name)


def run_on(driven: Driven) -> None:
    """m1 goes back and empties its own place; the region runs, and commits the next sequence."""
    driven.say(1, messages.MemberWasReset(driven.machine.plane.epoch))
    assert driven.stands(RegionState.RUNNING)
    sequence = driven.machine.plane.sequence
    driven.say(1, messages.CheckpointPublished(sequence))
    assert driven.machine.plane.describe_region().published == sequence
    driven.ask(1, P0)
    cut = driven.cut()
    driven.say(1, messages.MemberDrained(cut))
    driven.say(1, messages.ContributionReport(cut, driven.give("m1", span(P0, 0, 80))))
    assert [commit.cut for commit in driven.commits][-1:] == [cut]
    assert driven.commits[-1].manifest.places == ("s",), "the other shows nothing any more"


def test_who_leaves_before_the_topic_has_the_reset_empties_its_place_first() -> None:
    """The control plane released it at once, since nothing was unpublished: its place went on to show void rows."""
    driven = shown()
    driven.saves = False
    driven.say(99, to_initial(driven))
    (manifest,) = [fact for fact in driven.facts if isinstance(fact, Manifest)]
    assert manifest.places == ("s", "t") and not driven.orders(2, messages.PublishOrder)
    driven.say(2, messages.LeaveRequest())
    save_all(driven)
    driven.say(2, messages.MemberWasReset(driven.machine.plane.epoch))
    driven.say(2, messages.LeaveRequest())  # as it does when it has gone back
    empty(driven, 2, "m2")
    run_on(driven)


def test_who_leaves_before_the_topic_has_the_first_of_two_resets_empties_its_place_first() -> None:
    """The second is one to the sequence that the first is."""
    driven = shown()
    driven.saves = False
    driven.say(99, to_initial(driven))
    driven.say(1, messages.RegionResetRequest("partitions were revoked", forced=True))
    driven.say(2, messages.LeaveRequest())
    save_all(driven)
    driven.say(2, messages.MemberWasReset(driven.machine.plane.epoch))
    empty(driven, 2, "m2")
    run_on(driven)


@pytest.mark.parametrize("stays", [True, False])
def test_who_leaves_before_the_topic_has_the_reset_goes_at_once_where_another_can_empty(stays: bool) -> None:
    driven = shown()
    driven.join(3, "m3", sink="t")
    driven.saves = False
    driven.say(99, to_initial(driven))
    driven.say(2, messages.LeaveRequest())
    assert has_gone(driven, 2, "m2")
    if not stays:
        driven.say(3, messages.LeaveRequest())
    save_all(driven)
    assert driven.orders(3, messages.PublishOrder)[-1].empties and not has_gone(driven, 3, "m3")


def test_who_leaves_with_a_sequence_behind_which_all_go_back_empties_its_place_first() -> None:
    """The reset waited for the outcome of the commit; what it staged last had long been published."""
    driven = shown()
    driven.say(2, messages.LeaveRequest())
    cut = driven.orders(1, messages.DrainOrder)[-1].cut
    for connection in (1, 2):
        driven.say(connection, messages.MemberDrained(cut))
    driven.say(1, messages.ContributionReport(cut, driven.give("m1", span(P0, 70, 80))))
    driven.say(2, messages.ContributionReport(cut, driven.give("m2", span(P1, 71, 71), keys=())))
    driven.say(99, to_initial(driven))
    assert driven.stands(RegionState.COMMITTING)
    driven.do(events.CommitEnded(cut))
    assert driven.stands(RegionState.RESETTING) and driven.machine.plane.sequence == 9
    driven.say(2, messages.MemberWasReset(driven.machine.plane.epoch))
    empty(driven, 2, "m2")
    run_on(driven)


def test_who_stays_to_publish_stays_also_to_empty_when_a_reset_is_on_its_way() -> None:
    driven = Driven(replace(KNOWN, places=("s", "t"), keys={"t": ()}))
    for connection, name, sink in ((1, "m1", "s"), (2, "m2", "t")):
        driven.join(connection, name, sink=sink)
    driven.say(2, messages.LeaveRequest())
    assert driven.machine.plane.members["m2"].left
    driven.saves = False
    driven.say(2, messages.CheckpointPublished(7))
    driven.say(99, to_initial(driven))
    save_all(driven)
    driven.say(2, messages.MemberWasReset(driven.machine.plane.epoch))
    empty(driven, 2, "m2")


def test_no_reset_waits_for_who_has_emptied_its_place_and_gone() -> None:
    """The member is told to end after it has emptied, perhaps before it has reported its reset."""
    driven = shown()
    driven.say(99, to_initial(driven))
    driven.say(2, messages.LeaveRequest())
    driven.say(1, messages.MemberWasReset(driven.machine.plane.epoch))
    assert driven.stands(RegionState.RESETTING)
    empty(driven, 2, "m2")
    assert driven.stands(RegionState.RUNNING)


def test_a_region_says_which_place_it_waits_for_when_who_wrote_there_has_died() -> None:
    driven = shown()
    driven.say(99, to_initial(driven))
    driven.do(events.ConnectionEnded(2))
    driven.tick(10_000)
    driven.say(1, messages.MemberWasReset(driven.machine.plane.epoch))
    driven.say(1, messages.CheckpointPublished(8))
    driven.ask(1, P0)
    cut = driven.cut()
    driven.say(1, messages.MemberDrained(cut))
    driven.lines.clear()
    driven.say(1, messages.ContributionReport(cut, driven.give("m1", span(P0, 0, 80))))
    assert driven.stands(RegionState.CHECKPOINTING) and not driven.commits
    [line] = driven.lines
    assert line.level is events.LogLevel.WARNING and "publication of sequence 8 to t" in line.text
    assert messages.SinkStatus("t", 7, "") in driven.machine.plane.describe_region().sinks
    driven.join(3, "m3", sink="t")
    driven.say(3, messages.CheckpointPublished(8))
    assert driven.commits


@pytest.mark.parametrize("sink", ["t", ""])
@pytest.mark.parametrize("goes_back", [False, True])
def test_a_member_that_closes_with_nothing_to_submit_waits_for_stop_if_it_writes_somewhere(
    sink: str, goes_back: bool
) -> None:
    """The member does not know of a reset whose manifest is on its way to the topic, and may be needed."""
    machine = MemberMachine("r", "m2", UUID(int=2), "etl", sink)
    machine.step(does.ControlPlaneConnected())
    machine.step(does.ControlPlaneMessageReceived(messages.RegistrationAccepted(3, 5, 7, ("m2",))))
    machine.step(does.PartitionsAssigned(Identity("m2", 1), (P1,)))
    if goes_back:
        machine.step(does.ControlPlaneMessageReceived(messages.StartOffsetsAnswer(3, 1, (at(P1, 71),))))
        assert not ends(machine, does.CloseRequested())
        ended = ends(
            machine, does.ControlPlaneMessageReceived(messages.ResetOrder(3, 6, 8, None)), does.ApplicationReset(6)
        )
    else:
        ended = ends(machine, does.CloseRequested())
    assert ended is not bool(sink)
    if sink:
        assert ends(machine, does.ControlPlaneMessageReceived(messages.StopOrder(3, "", "")))
