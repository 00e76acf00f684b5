"""Faults planted in what a query of a region contributes and gives up; each with the test that must see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

from kohort.region.member import events
from kohort.region.messages import CheckpointAttempt
from kohort.spark.region import query_run
from kohort.spark.region.query_run import RegionQuery
from kohort.spark.region.query_thread import SourceMemberThread
from kohort.spark.region.source_assignments import SourceAssignments
from kohort.spark.region.staging import StagedBatches

Mutant = Callable[[], Any]
_ENDS = RegionQuery._ends
_CONTRIBUTE = RegionQuery.contribute


def _by_the_last_batch_alone(self: RegionQuery, run: Any, member: SourceMemberThread, last: int | None) -> Any:
    with mock.patch.object(StagedBatches, "last_included_batch", return_value=-1 if last is None else last - 1):
        return _ENDS(self, run, member, last)


def _under_any_assignment_version(self: RegionQuery, run: Any, member: SourceMemberThread, last: int | None) -> Any:
    batch = None if last is None else self._batch_of(run, last, member)
    assignment_versions = {} if batch is None else dict(batch.assignment_versions)

    def handed(session: SourceAssignments) -> Any:
        return {
            at: mock.Mock(assignment_version=assignment_versions.get(at), topic_id=topic.topic_id)
            for at, topic in _HANDED(session).items()
        }

    with (
        mock.patch.object(SourceAssignments, "all_assigned", handed),
        mock.patch.object(StagedBatches, "last_included_batch", return_value=-1),
    ):
        return _ENDS(self, run, member, last)


_HANDED = SourceAssignments.all_assigned


def _gives_back_in_a_cut(self: SourceMemberThread) -> None:
    self._process_posted()
    while self._kept:
        self._step(self._kept.popleft())


def _keeps_in_a_batch(self: SourceMemberThread) -> None:
    while self._asked_back:
        self._kept.append(self._asked_back.popleft())
    self.assignments.resume_batches("partitions are wanted back")


def _leaves_in_a_cut(self: SourceMemberThread) -> None:
    if self._leaves and not self.machine.closing:
        self._step(events.CloseRequested())


def _contributes_what_it_finds(self: RegionQuery, member: int, cut: CheckpointAttempt, names: tuple[str, ...]) -> Any:
    self._at_cut = None
    return _CONTRIBUTE(self, member, cut, names)


MUTANTS: dict[str, tuple[Mutant, str]] = {
    "what the last batch does not name ends where it began": (
        lambda: mock.patch.object(RegionQuery, "_ends", _by_the_last_batch_alone),
        "test_what_is_wanted_back_ends_where_a_batch_has_read_it_last",
    ),
    "a batch counts under another assignment": (
        lambda: mock.patch.object(RegionQuery, "_ends", _under_any_assignment_version),
        "test_a_new_assignment_is_read_from_its_start",
    ),
    "what is wanted back is given during a cut": (
        lambda: mock.patch.object(SourceMemberThread, "_give_back_between_cuts", _gives_back_in_a_cut),
        "test_partitions_revoked_from_one_member_during_a_cut_are_not_released_with_it",
    ),
    "what is wanted back is given during a batch": (
        lambda: mock.patch.object(SourceMemberThread, "_keep_when_idle", _keeps_in_a_batch),
        "test_what_is_wanted_back_during_a_batch_waits_for_it",
    ),
    "the machine is not told of a batch before a loss": (
        lambda: mock.patch.object(SourceMemberThread, "_process_posted"),
        "test_what_is_lost_just_as_a_batch_has_begun_has_all_go_back",
    ),
    "what is lost is answered for later": (
        lambda: mock.patch.object(SourceMemberThread, "_is_not_asked_back"),
        "test_what_is_lost_is_not_reported_once_it_has_returned",
    ),
    "a query leaves in the middle": (
        lambda: mock.patch.object(SourceMemberThread, "_leave_when_idle", _leaves_in_a_cut),
        "test_it_leaves_with_a_sequence_that_has_all_that_it_read",
    ),
    "a state is known when the run begins, and not before": (
        lambda: mock.patch.object(RegionQuery, "_set_state"),
        "test_a_cut_before_the_query_has_begun_keeps_its_state",
    ),
    "members look for themselves": (
        lambda: mock.patch.object(RegionQuery, "contribute", _contributes_what_it_finds),
        "test_members_of_one_query_contribute_the_same_batch",
    ),
    "a query fails for ever": (
        lambda: mock.patch.object(query_run, "FAILURES_IN_A_ROW_MAX", 1_000),
        "test_a_query_that_fails_goes_back_and_at_last_stops_the_region",
    ),
}
"""By what is wrong: the fault, and the name of the test in test_runs.py."""
