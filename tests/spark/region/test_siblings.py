"""A query of several sources has a member for each: they are cut, leave and die together, or rows are lost or twice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import UUID

import pytest
from _pytest.outcomes import Failed
from tests.spark.region.both import Both
from tests.spark.region.driven import TERM
from tests.support.waiting import until

from kohort.region import messages
from kohort.region.control_plane import events as plane_events
from kohort.region.control_plane.events import ResetCause
from kohort.region.control_plane.state import ControlPlaneState
from kohort.region.member import events
from kohort.spark.region import query_run
from kohort.spark.region.query_run import RegionQuery
from kohort.spark.region.query_thread import SourceMemberThread
from kohort.spark.region.source_assignments import SourceAssignments
from kohort.spark.region.spark_region import StartedQuery


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Both]:
    both = Both(tmp_path)
    yield both
    both.close()


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The query's thread is busy with old folders after each sequence, until this is set."""
    go_on = threading.Event()
    monkeypatch.setattr(query_run, "remove_old_epochs", lambda folder, kept: go_on.wait(20))
    yield go_on
    go_on.set()


def checkpoint(both: Both, connection: int) -> None:
    both.plane.say(connection, messages.CheckpointRequest())
    both.pump()


@pytest.mark.parametrize("first", [0, 1])
def test_after_a_takeover_no_cut_begins_without_all_of_them(both: Both, first: int) -> None:
    both.reads()
    both.takeover()
    both.connect(first)
    both.pump(first)
    checkpoint(both, both.connections[first])
    assert both.sequences() == []
    both.connect(1 - first)
    both.pump()
    assert both.sequences() == [("q0", "q1")]
    assert (both.ends(), both.batches()) == ((110, 110), [0])


@pytest.mark.parametrize("first", [0, 1])
def test_who_waits_for_its_sibling_for_too_long_has_all_go_back(both: Both, first: int) -> None:
    both.reads()
    both.takeover()
    both.connect(first)
    both.pump(first)
    checkpoint(both, both.connections[first])
    both.plane.tick(9_999)
    assert both.plane.machine.plane.metrics.resets[ResetCause.DEAD] == 0
    both.plane.tick(1)
    assert both.plane.machine.plane.metrics.resets[ResetCause.DEAD] == 1
    assert both.connections[first] in both.plane.closed
    for member in (0, 1):  # both come back, now that the other is there
        both.connect(member)
    both.pump()
    for member in (0, 1):
        both.query.goes_back(member)
    both.pump()
    both.batch()
    checkpoint(both, both.connections[1])
    assert both.sequences() == [("q0", "q1")]
    assert (both.ends(), both.batches()) == ((110, 110), [0])


def test_a_lead_that_holds_nothing_stays_until_its_sibling_goes(both: Both, busy: threading.Event) -> None:
    """Two applications share both groups, and this one's lead got no partition; the query's thread is slow."""
    for member in (0, 1):
        both.connect(member)
    both.pump()
    both.assign(1)
    both.batch(1)
    for thread in both.query.threads:
        thread.leave_region()
    both.query.turn(0)
    lead = both.query.threads[0]
    assert not lead._over
    both.pump(0)
    assert both.sequences() == []
    both.pump()
    assert both.sequences() == [("q0", "q1")]
    assert (both.ends(), both.batches()) == ((100, 110), [0])
    both.plane.say(both.connections[0], messages.CheckpointPublished(8))
    both.pump()
    assert lead._over
    del busy


def test_the_lead_asks_to_leave_and_its_sibling_goes_with_it(both: Both) -> None:
    both.reads()
    lead = both.query.threads[0]
    lead.leave_region()
    both.query.turn(0)
    both.pump()
    assert both.sequences() == [("q0", "q1")]
    assert (both.ends(), both.batches()) == ((110, 110), [0])
    assert {member.left for member in both.plane.machine.plane.members.values()} == {True}


def test_while_a_lead_that_has_left_publishes_no_cut_has_its_sibling_alone(both: Both) -> None:
    both.reads()
    lead, second = both.query.threads
    lead.leave_region()
    both.query.turn(0)
    both.query.run.begin(1)  # of u alone, before the second is told to leave
    second.leave_region()
    both.pump()
    both.query.run.finish()
    both.query.run.end(1)
    both.query.turn(1)
    checkpoint(both, both.connections[1])
    assert both.sequences() == [("q0", "q1")]
    both.plane.say(both.connections[0], messages.CheckpointPublished(8))
    both.pump()
    assert both.plane.machine.plane.members == {}
    assert lead._over
    assert second._over
    assert (both.ends(), both.batches()) == ((110, 110), [0])


@pytest.mark.parametrize("name", ["q0", "q1"])
def test_a_person_stops_one_and_the_query_goes(both: Both, busy: threading.Event, name: str) -> None:
    both.reads()
    both.holds_commit = True
    both.plane.do(plane_events.MemberStopRequested(name))
    both.pump()
    both.batch()  # it reads on while the sequence is committed
    both.holds_commit = False
    both.pump()
    checkpoint(both, both.connections[0])
    assert both.sequences() == [("q0", "q1")]
    assert (both.ends(), both.batches()) == ((110, 110), [0])
    both.plane.say(both.connections[0], messages.CheckpointPublished(8))
    both.pump()
    assert all(thread._over and thread._error is not None for thread in both.query.threads)
    del busy


def test_a_run_that_ends_in_the_middle_of_a_cut_changes_nothing_of_it(both: Both) -> None:
    """The lead has contributed, and ends; the other is to contribute to the same cut."""
    both.reads()
    both.plane.say(both.connections[0], messages.CheckpointRequest())
    cut = both.plane.orders(both.connections[0], messages.DrainOrder)[-1].cut
    for member in (0, 1):
        both.query.order(messages.DrainOrder(TERM, cut), member=member)
        both.plane.say(both.connections[member], messages.MemberDrained(cut))
    order = both.plane.orders(both.connections[0], messages.ContributeOrder)[-1]
    both.query.order(order, member=0)
    both.query.query.on_source_member_ended(0, None)
    until(lambda: both.query.query._run is None, "the run is stopped", 10)
    both.query.order(order, member=1)
    for member in (0, 1):
        both.plane.say(both.connections[member], both.query.said(messages.ContributionReport, member)[-1])
    assert (both.ends(), both.batches()) == ((110, 110), [0])


def test_who_is_abandoned_says_nothing_more(both: Both) -> None:
    both.reads()
    both.plane.say(both.connections[0], messages.CheckpointRequest())
    cut = both.plane.orders(both.connections[1], messages.DrainOrder)[-1].cut
    second = both.query.threads[1]
    second.end_without_leaving()
    second._step(events.ControlPlaneMessageReceived(messages.DrainOrder(TERM, cut)))
    second._step(events.ControlPlaneMessageReceived(messages.ContributeOrder(TERM, cut, ("q0", "q1"))))
    assert both.query.said(messages.MemberDrained, 1) == []
    assert both.query.said(messages.ContributionReport, 1) == []


def test_a_cut_that_lacks_a_sibling_gets_nothing_of_the_run(both: Both) -> None:
    """A control plane that knows no siblings cuts with one alone."""
    both.reads()
    ends, staged, _ = both.query.query.contribute(0, messages.CheckpointAttempt(8, 1), ("q0",))
    assert (ends, staged.keys) == ({}, ())
    ends, staged, _ = both.query.query.contribute(0, messages.CheckpointAttempt(8, 2), ("q0", "q1"))
    assert ([at.offset for at in ends.values()], [key.unit for key in staged.keys]) == ([110], [0])


def test_a_batch_of_a_run_that_was_stopped_is_waited_for_no_more(both: Both) -> None:
    both.reads()
    both.query.run.begin(1)
    assert not both.query.query.is_idle()
    both.query.query.on_source_member_ended(0, None)
    until(both.query.query.is_idle, "nothing runs", 5)


def test_when_a_query_is_closed_no_source_begins_a_batch_between(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lead is idle and says that it leaves, before the other is told to."""
    both.reads()
    lead, second = both.query.threads
    held = both.query.run.held(1)
    began: list[object] = []

    def leave() -> None:
        SourceMemberThread.leave_region(lead)
        both.query.turn(0)
        began.append(both.query.run.ask("begin", 1, version=held.version, batch=2))

    monkeypatch.setattr(lead, "leave_region", leave)
    closing = StartedQuery(reads_outside_region=False)
    closing.members = [lead, second]
    closing.leave()
    both.query.turn(1)
    assert began == [{"ok": False}]
    assert lead.machine.closing
    assert second.machine.closing
    both.pump()
    assert (both.ends(), both.batches()) == ((110, 110), [0])


def test_who_is_started_again_ends_the_earlier_one_s_siblings(both: Both) -> None:
    """The earlier lead holds nothing; what its sibling has read must not count beside the new lead's."""
    for member in (0, 1):
        both.connect(member)
    both.pump()
    both.assign(1)
    both.batch(1)
    again = messages.RegistrationRequest("q0", UUID(int=77), "g0", messages.Identity(), sink="s", of="again", sources=2)
    both.plane.say(55, again)
    for member in (0, 1):
        assert both.plane.orders(both.connections[member], messages.RegistrationRefused)
        assert both.connections[member] in both.plane.closed
    assert both.plane.machine.plane.metrics.resets[ResetCause.DEAD] == 1
    both.plane.say(55, messages.MemberWasReset(both.plane.orders(55, messages.RegistrationAccepted)[-1].epoch))
    both.plane.say(55, messages.CheckpointRequest())
    assert both.sequences() == []


@pytest.mark.parametrize("all_at_once", [True, False])
def test_one_s_death_is_the_death_of_all(both: Both, *, all_at_once: bool) -> None:
    both.reads()
    for member in (0, 1)[: 1 + all_at_once]:
        both.plane.do(plane_events.ConnectionEnded(both.connections[member]))
    both.plane.tick(10_000)
    assert both.plane.machine.plane.members == {}
    assert both.plane.closed == (set() if all_at_once else {both.connections[1]})
    assert both.plane.machine.plane.metrics.resets[ResetCause.DEAD] == 1


def test_nobody_is_given_anything_before_all_of_the_query_are_there(both: Both) -> None:
    both.connect(0)
    both.pump()
    both.assign(0)
    assert both.query.said(messages.StartOffsetsRequest)
    assert both.plane.machine.plane.members["q0"].handed == {}
    both.plane.say(7, messages.RegistrationRequest("other", UUID(int=70), "g9", messages.Identity()))
    both.plane.say(7, messages.CheckpointRequest())  # the others do not wait for it
    assert both.plane.orders(7, messages.DrainOrder)
    both.plane.say(7, messages.DrainFailed(both.plane.orders(7, messages.DrainOrder)[-1].cut, "it is over"))
    both.plane.tick(10_000)
    assert "q0" in both.plane.machine.plane.members


def test_who_leaves_and_misses_its_sibling_waits_for_it_so_long(both: Both) -> None:
    both.reads()
    both.takeover()
    for thread in both.query.threads:
        thread.leave_region()
    both.connect(1)
    both.pump(1)
    both.query.turn(1)
    both.pump(1)
    assert both.query.threads[1].machine.closing
    both.plane.tick(10_000)
    both.pump(1)
    assert both.query.threads[1]._over
    assert both.plane.machine.plane.metrics.resets[ResetCause.DEAD] == 0
    assert both.plane.machine.plane.sequence == 7


MUTANTS: dict[str, tuple[Callable[[], AbstractContextManager[Any]], str, dict[str, Any]]] = {
    "a query is whole with one of its members": (
        lambda: mock.patch.object(ControlPlaneState, "has_all_query_members", return_value=True),
        "test_after_a_takeover_no_cut_begins_without_all_of_them",
        {"first": 1},
    ),
    "members leave and die alone": (
        lambda: mock.patch.object(ControlPlaneState, "query_members", lambda plane, member: [member]),
        "test_one_s_death_is_the_death_of_all",
        {"all_at_once": False},
    ),
    "nobody misses a sibling": (
        lambda: mock.patch.object(ControlPlaneState, "await_query_members"),
        "test_who_waits_for_its_sibling_for_too_long_has_all_go_back",
        {"first": 0},
    ),
    "a cut without a sibling gets the rows of the run": (
        lambda: mock.patch.object(
            RegionQuery, "_settle", lambda query, cut, names: _SETTLE(query, cut, ("q0", "q1", *names))
        ),
        "test_a_cut_that_lacks_a_sibling_gets_nothing_of_the_run",
        {},
    ),
    "the batch of a run that was stopped runs for ever": (
        lambda: mock.patch.object(SourceAssignments, "discard_running_batch"),
        "test_a_batch_of_a_run_that_was_stopped_is_waited_for_no_more",
        {},
    ),
}
"""By what is wrong: the fault, the test that sees it, and what that is given."""
_SETTLE = RegionQuery._settle


@pytest.mark.parametrize("wrong", MUTANTS)
def test_each_planted_fault_is_seen(both: Both, wrong: str) -> None:
    fault, seen_by, given = MUTANTS[wrong]
    test = globals()[seen_by]
    with fault(), pytest.raises((AssertionError, Failed)):
        test(both, **given)
