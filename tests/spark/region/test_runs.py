"""A query's contributions, releases and resets, in any order of its threads."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.spark.region.driven import Driven, spans_of
from tests.spark.region.run_mutants import MUTANTS
from tests.support.waiting import until

from kohort.client.offsets import OffsetAndMetadata
from kohort.errors import InvalidInputError, KafkaError, TimedOutError
from kohort.ids import TopicPartition
from kohort.region import messages
from kohort.region.member import events
from kohort.region.messages import CheckpointAttempt
from kohort.spark import source_sessions as sessions
from kohort.spark.region.query_run import FAILURES_IN_A_ROW_MAX, WORKER_START_TIMEOUT
from kohort.spark.region.query_state import SavedQuery


@pytest.fixture(params=[True, False], ids=["cloned", "anew"])
def query(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Driven]:
    """A query whose runs have cloned checkpoints, and one that needs none."""
    driven = Driven(tmp_path)
    driven.spark.needs_last_checkpoint = request.param
    yield driven
    driven.close()


@pytest.fixture
def join(tmp_path: Path) -> Iterator[Driven]:
    driven = Driven(tmp_path, "tu")
    yield driven
    driven.close()


def reading(query: Driven) -> Driven:
    """Return a run in epoch 5, from 100 and 200 on, after a batch of ten rows from each."""
    query.begin()
    query.give({0: 100, 1: 200})
    query.run.batch()
    query.turn()
    return query


def batch_of(state: bytes) -> int | None:
    found = json.loads(state)["batch"]
    assert found is None or isinstance(found, int)
    return found


def test_it_contributes_its_last_batch_that_is_done_and_reads_on(query: Driven) -> None:
    reading(query)
    query.run.begin()
    given = query.contribute(CheckpointAttempt(8, 1))
    assert spans_of(given) == {0: (100, 110), 1: (200, 210)} and batch_of(given.state) == 0
    assert [key.unit for key in given.keys] == [0]
    query.run.finish()
    query.run.end()
    query.order(messages.CheckpointCompleted(3, 8, 0))
    given = query.contribute(CheckpointAttempt(9, 1))
    assert spans_of(given) == {0: (110, 120), 1: (210, 220)} and [key.unit for key in given.keys] == [1]


def test_what_is_wanted_back_ends_where_a_batch_has_read_it_last(query: Driven) -> None:
    """Batches after that don't name it, and their rows go with the same sequence."""
    reading(query)
    query.want(1)
    assert query.said(messages.RevokedPartitionsHeld)
    query.run.batch()
    given = query.contribute(CheckpointAttempt(8, 1))
    assert spans_of(given) == {0: (100, 120), 1: (200, 210)} and len(given.keys) == 2
    query.order(messages.CheckpointCompleted(3, 8, 0))
    assert 1 not in {part.partition for part in query.groups[0].held}, "it is let go with the sequence"


def test_what_is_wanted_back_during_a_batch_waits_for_it(query: Driven) -> None:
    reading(query)
    query.run.begin()
    query.want(1)
    assert not query.said(messages.RevokedPartitionsHeld)
    query.run.finish()  # the source has not heard of it: the member looks itself
    query.turn()
    query.turn()
    assert query.said(messages.RevokedPartitionsHeld)
    assert query.sequence(CheckpointAttempt(8, 1)) == {0: (100, 120), 1: (200, 220)}


def test_partitions_revoked_during_a_cut_are_not_released_with_it(query: Driven) -> None:
    """The batch after the one that was contributed has read it."""
    reading(query)
    query.contribute(CheckpointAttempt(8, 1))
    query.run.batch()
    query.want(1)
    query.order(messages.CheckpointCompleted(3, 8, 0))
    query.turn()
    assert len(query.groups[0].held) == 2, "what the batch has read of it is in no sequence"
    assert query.said(messages.RevokedPartitionsHeld)
    assert query.sequence(CheckpointAttempt(9, 1)) == {0: (110, 120), 1: (210, 220)}
    assert len(query.groups[0].held) == 1


def test_the_first_batch_that_begins_during_a_cut_has_read(query: Driven) -> None:
    query.begin()
    query.give({0: 100, 1: 200})
    query.contribute(CheckpointAttempt(8, 1))
    query.run.batch()
    query.turn()
    query.order(messages.CheckpointCompleted(3, 8, 0))
    query.want(1)
    query.turn()
    assert len(query.groups[0].held) == 2, "it was let go as if nothing had been read"
    assert query.sequence(CheckpointAttempt(9, 1)) == {0: (100, 110), 1: (200, 210)}


def test_what_is_lost_just_as_a_batch_has_begun_has_all_go_back(query: Driven) -> None:
    query.begin()
    query.give({0: 100, 1: 200})
    query.run.begin()
    query.lose(1)
    assert [report.forced for report in query.said(messages.RegionResetRequest)] == [True]


def test_what_is_lost_is_not_reported_once_it_has_returned(query: Driven) -> None:
    """The group wanted the partition, the batch took too long, the group reassigned it, and then returned it."""
    query.begin()
    query.give({0: 100})
    query.run.begin()
    query.groups[0].held.add(TopicPartition("t", 1))
    query.turn()
    query.want(1)
    query.groups[0].back.clear()
    query.lose(1)
    query.turn()
    query.give({1: 200})
    query.run.finish()
    query.run.end()
    query.turn()
    assert query.sequence(CheckpointAttempt(8, 1)) == {0: (100, 110), 1: (200, 200)}
    query.run.batch()
    assert query.sequence(CheckpointAttempt(9, 1)) == {0: (110, 120), 1: (200, 210)}


def test_a_new_assignment_is_read_from_its_start(query: Driven) -> None:
    """An idle query's last batch names what it has given away since, and got back."""
    reading(query)
    query.want(1)
    query.sequence(CheckpointAttempt(8, 1))
    query.give({1: 500})
    assert query.sequence(CheckpointAttempt(9, 1)) == {0: (110, 110), 1: (500, 500)}
    query.run.batch()
    assert query.sequence(CheckpointAttempt(10, 1)) == {0: (110, 120), 1: (500, 510)}


def test_a_cut_before_the_query_has_begun_keeps_its_state(query: Driven) -> None:
    state = SavedQuery(4, 17, "[]", (), ("t",)).to_bytes()
    query.spark.may_start.clear()
    query.begin(state)
    query.give({0: 100})
    given = query.contribute(CheckpointAttempt(8, 1))
    assert given.state == state and given.keys == () and spans_of(given) == {0: (100, 100)}


def test_a_cut_after_all_was_given_up_keeps_no_state(query: Driven) -> None:
    reading(query)
    query.sequence(CheckpointAttempt(8, 1))
    query.spark.may_start.clear()
    query.reset(6, None, 9)
    query.goes_back()
    query.give({0: 0, 1: 0})
    assert batch_of(query.contribute(CheckpointAttempt(10, 1)).state) is None


def test_what_a_batch_did_before_a_reset_is_void(query: Driven) -> None:
    reading(query)
    query.sequence(CheckpointAttempt(8, 1))
    before = query.run
    before.begin()
    query.reset(6, query.said(messages.ContributionReport)[-1].contribution.state, 8)
    before.finish()
    query.goes_back()
    query.give({0: 110, 1: 210})
    assert query.run is not before and query.run.epoch == 6
    assert "refused" in before.ask("held", wait_ms=0)
    query.run.batch(rows=3)
    given = query.contribute(CheckpointAttempt(9, 1))
    assert spans_of(given) == {0: (110, 113), 1: (210, 213)}
    assert {key.epoch for key in given.keys} == {6}


def test_a_query_that_keeps_nothing_needs_no_earlier_folder(tmp_path: Path) -> None:
    """The query goes back, and starts on another machine, where its folder is not; Spark's id of it stays."""
    here, there = tmp_path / "here", tmp_path / "there"
    states, ids = list[bytes](), list[str]()
    for machine in (here, there):
        machine.mkdir()
        query = Driven(machine)
        query.spark.needs_last_checkpoint = False
        query.begin(states[-1] if states else None, epoch=5 + 3 * len(states))
        query.give({0: 100, 1: 200})
        query.run.batch()
        query.sequence(CheckpointAttempt(8, 1))
        state = query.said(messages.ContributionReport)[-1].contribution.state
        shutil.rmtree(query.folder)
        query.reset(6 + 3 * len(states), state, 8)
        query.goes_back()
        query.give({0: 110, 1: 210})
        query.run.batch(rows=3)
        given = query.contribute(CheckpointAttempt(9, 1))
        assert spans_of(given) == {0: (110, 113), 1: (210, 213)} and batch_of(given.state) == 0
        assert {key.epoch for key in given.keys} == {query.run.epoch}
        states.append(given.state)
        ids += [run.id for run in query.spark.runs]
        query.close()
    assert len(ids) == 4 and len(set(ids)) == 1


def test_a_source_that_is_added_beside_a_regions_own_begins_with_an_empty_checkpoint(tmp_path: Path) -> None:
    """The earlier checkpoint has no position of it, and may have been on another machine."""
    state = SavedQuery(4, 17, "[]", (), ("t",), kept=False).to_bytes()
    query = Driven(tmp_path)
    query.begin(state)
    query.give({0: 100})
    query.run.batch()
    assert batch_of(query.contribute(CheckpointAttempt(8, 1)).state) == 0
    query.close()


def test_a_checkpoint_that_is_needed_is_missed(tmp_path: Path) -> None:
    """An earlier release did not say; a state that is gone is not begun anew."""
    for kept in (None, True):
        (tmp_path / str(kept)).mkdir()
        query = Driven(tmp_path / str(kept))
        query.begin(SavedQuery(4, 17, "[]", (), ("t",), kept).to_bytes())
        until(lambda query=query: query.turn() or query.said(messages.RegionResetRequest), "it fails", 10)  # type: ignore[misc]
        assert "e4 is not there or empty" in query.said(messages.RegionResetRequest)[0].cause
        assert not query.spark.runs
        query.close()


def test_state_of_an_operator_that_is_not_known_fails_its_batch(tmp_path: Path) -> None:
    """The next run would begin without it."""
    query = Driven(tmp_path)
    query.spark.needs_last_checkpoint = False
    query.begin()
    query.give({0: 100})
    query.run.batch()
    query.run.begin()
    (query.run.folder / "state").mkdir()
    with pytest.raises(InvalidInputError, match="by an operator that kohort does not know"):
        query.run.finish()
    assert spans_of(query.contribute(CheckpointAttempt(8, 1))) == {0: (100, 110)}
    query.close()


def test_an_idle_run_is_stopped_without_waiting_for_its_source(query: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's stop waits for what the source has asked, and that waited for partitions."""
    monkeypatch.setattr(sessions, "WAIT_MS_MAX", 60_000)
    run, answers = reading(query).run, list[object]()
    query.threads[0].assignments.pause_batches("not now")
    run.may_stop.clear()

    def ask() -> None:
        answers.append(run.ask("held", wait_ms=60_000))
        run.may_stop.set()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    query.reset(6, None, 0)
    query.goes_back()
    asking.join(10)
    assert len(answers) == 1


def test_of_two_resets_at_once_the_query_begins_for_the_last(query: Driven) -> None:
    reading(query).run.may_stop.clear()
    query.reset(6, None, 0)
    query.reset(7, None, 0)
    query.spark.runs[-1].may_stop.set()
    query.goes_back()
    until(lambda: len(query.spark.runs) == 2, "it runs again", 10)
    assert query.run.epoch == 7
    assert not (query.folder / "e6").exists()


def test_another_control_plane_s_cut_of_the_same_number_is_another(query: Driven) -> None:
    reading(query)
    query.contribute(CheckpointAttempt(8, 1))
    query.run.batch()
    query.order(messages.RegistrationAccepted(4, 5, 7, ("q0",)))
    assert spans_of(query.contribute(CheckpointAttempt(8, 1), term=4)) == {0: (100, 120), 1: (200, 220)}


def test_what_was_counted_in_vain_is_given_again(query: Driven) -> None:
    reading(query)
    query.contribute(CheckpointAttempt(8, 1))
    query.run.batch()
    assert [key.unit for key in query.contribute(CheckpointAttempt(8, 2)).keys] == [0, 1]
    query.order(messages.CheckpointCompleted(3, 8, 0))
    assert query.contribute(CheckpointAttempt(9, 1)).keys == ()


def test_it_leaves_with_a_sequence_that_has_all_that_it_read(query: Driven) -> None:
    reading(query)
    query.run.begin()
    query.contribute(CheckpointAttempt(8, 1))
    query.threads[0].leave_region()
    query.turn()
    assert not query.said(messages.LeaveRequest), "the batch that runs is not done"
    query.run.finish()
    query.run.end()
    query.turn()
    assert not query.said(messages.LeaveRequest), (
        "it would leave with the cut that is under way, which has not the last batch"
    )
    query.order(messages.CheckpointCompleted(3, 8, 0))
    query.turn()
    assert query.said(messages.LeaveRequest)
    assert query.sequence(CheckpointAttempt(9, 1)) == {0: (110, 120), 1: (210, 220)}


def test_members_of_one_query_go_back_together(join: Driven) -> None:
    for member in (0, 1):
        join.begin(epoch=5 + member, member=member)
        join.give({0: 100}, member=member)
    join.run.batch(0)
    join.run.batch(1)
    state = SavedQuery(-1, None, "[]", (), ("t",)).to_bytes()
    for member in (0, 1):
        join.reset(7, state, 7, member)
    for member in (0, 1):
        join.goes_back(member)
    until(lambda: len(join.spark.runs) == 2, "it runs again", 10)
    assert join.run.epoch == 7


def test_members_of_one_query_contribute_the_same_batch(join: Driven) -> None:
    for member in (0, 1):
        join.begin(epoch=5 + member, member=member)
        join.give({0: 100}, member=member)
    join.run.batch(0)
    join.run.batch(1)
    assert batch_of(join.contribute(CheckpointAttempt(8, 1)).state) == 1
    join.run.batch(1)
    assert spans_of(join.contribute(CheckpointAttempt(8, 1), member=1)) == {0: (100, 110)}


def test_partitions_revoked_from_one_member_during_a_cut_are_not_released_with_it(join: Driven) -> None:
    """The batch that counts was fixed by the other member, and a later one has read of what is wanted back."""
    for member in (0, 1):
        join.begin(epoch=5 + member, member=member)
        join.give({0: 100}, member=member)
    join.run.batch(0)
    join.run.batch(1)
    join.order(messages.DrainOrder(3, CheckpointAttempt(8, 1)), member=1)
    join.contribute(CheckpointAttempt(8, 1))
    join.run.batch(1)
    join.want(0, member=1)
    join.order(messages.ContributeOrder(3, CheckpointAttempt(8, 1), ("q0", "q1")), member=1)
    assert spans_of(join.said(messages.ContributionReport, 1)[-1].contribution) == {0: (100, 110)}
    join.order(messages.CheckpointCompleted(3, 8, 0), member=1)
    join.turn(1)
    assert len(join.groups[1].held) == 1, "what the later batch has read of it is in no sequence"
    assert join.sequence(CheckpointAttempt(9, 1), member=1) == {0: (110, 120)}
    join.turn(1)
    assert not join.groups[1].held


def test_a_state_that_counts_is_kept_also_when_the_run_has_ended_meanwhile(join: Driven) -> None:
    """One member goes back alone between the contribution and the word that the sequence is complete."""
    for member in (0, 1):
        join.begin(epoch=5 + member, member=member)
        join.give({0: 100}, member=member)
    join.run.batch(0)
    state = join.contribute(CheckpointAttempt(8, 1)).state
    join.contribute(CheckpointAttempt(8, 1), member=1)
    join.reset(9, None, 8, member=1)
    join.goes_back(1)
    join.order(messages.CheckpointCompleted(3, 8, 0))
    given = join.contribute(CheckpointAttempt(9, 1))
    assert given.state == state and given.keys == ()


def test_who_runs_ahead_asks_until_there_is_a_sequence_and_is_held(query: Driven) -> None:
    query.spark.batches_kept = 12
    reading(query)
    for _ in range(5):
        query.run.batch()
    until(lambda: "too far ahead" in query.threads[0].assignments._holds, "it is held", 10)

    def asked() -> int:
        query.turn()
        return len(query.said(messages.CheckpointRequest))

    until(lambda: asked() > 1, "it asks again: the first word may be lost", 10)
    query.sequence(CheckpointAttempt(8, 1))
    until(lambda: not query.threads[0].assignments._holds, "it goes on", 10)


def test_a_query_that_fails_goes_back_and_at_last_stops_the_region(query: Driven) -> None:

    def said() -> int:
        return len(query.said(messages.RegionResetRequest)) + len(query.said(messages.UnrecoverableFailure))

    query.begin()
    query.give({0: 100})
    for number in range(FAILURES_IN_A_ROW_MAX):
        query.run.begin()
        query.run.fail(ValueError("a record that nobody can read"))
        until(lambda number=number: query.turn() or said() > number, "it is seen", 10)  # type: ignore[misc]
        if number < FAILURES_IN_A_ROW_MAX - 1:
            assert len(query.said(messages.RegionResetRequest)) == number + 1 and not query.said(
                messages.UnrecoverableFailure
            )
            query.reset(6 + number, None, 0)
            query.goes_back()
            query.give({0: 100})
            until(lambda number=number: len(query.spark.runs) == number + 2, "it runs again", 10)  # type: ignore[misc]
    assert "a record that nobody can read" in query.said(messages.UnrecoverableFailure)[0].cause


def test_a_query_that_fails_before_it_has_planned_anything_begins_again_alone(query: Driven) -> None:
    query.begin()
    query.give({0: 100})
    for number in range(FAILURES_IN_A_ROW_MAX + 2):
        query.run.fail(OSError(f"Python worker {WORKER_START_TIMEOUT}"))
        until(lambda number=number: len(query.spark.runs) == number + 2, "it runs again", 10)  # type: ignore[misc]
    query.run.batch()
    query.turn()
    assert not query.said(messages.RegionResetRequest)
    assert query.sequence(CheckpointAttempt(8, 1)) == {0: (100, 110)}


@pytest.mark.parametrize("gone", [True, False])
def test_a_query_that_can_not_be_started_any_more_ends_and_has_nobody_go_back(query: Driven, *, gone: bool) -> None:
    reading(query)
    query.spark.gone = gone
    query.run.fail(OSError("the JVM is gone") if gone else InvalidInputError("another program's state"))
    assert query.query.over.wait(10) and query.query.error is not None
    assert not query.said(messages.RegionResetRequest)


@pytest.mark.parametrize("what", MUTANTS)
def test_each_planted_fault_is_seen(tmp_path: Path, what: str) -> None:
    plant, seen_by = MUTANTS[what]
    driven = Driven(tmp_path, "tu" if "member" in seen_by else "t")
    try:
        with plant(), pytest.raises((AssertionError, LookupError)):
            globals()[seen_by](driven)
    finally:
        driven.close()


def test_nothing_is_contributed_while_a_commit_has_no_answer(query: Driven) -> None:
    """The answer may still come after the checkpoint's commit: the group would be back at the checkpoint before."""
    query.begin()
    query.give({0: 100})
    query.reset(6, None, 7)
    query.goes_back()
    committed: list[dict[TopicPartition, OffsetAndMetadata]] = []
    answers: list[KafkaError | None] = [TimedOutError("no answer"), TimedOutError("no answer"), None]

    def commit(offsets: dict[TopicPartition, OffsetAndMetadata], timeout_ms: float) -> None:
        committed.append(dict(offsets))
        error = answers.pop(0)
        if error is not None:
            raise error

    query.groups[0].commit = commit  # type: ignore[method-assign,assignment]
    query.give({0: 100})
    query.turn()
    query.order(messages.DrainOrder(3, CheckpointAttempt(8, 1)))
    assert len(committed) == 1 and query.said(messages.MemberDrained)
    query.threads[0].post(
        events.ControlPlaneMessageReceived(messages.ContributeOrder(3, CheckpointAttempt(8, 1), ("q0",)))
    )
    query.threads[0]._step(query.threads[0]._posted.get())
    assert len(committed) == 2 and not query.said(messages.ContributionReport)
    query.turn()
    assert [report.contribution.spans[0].begin for report in query.said(messages.ContributionReport)] == [100]
    assert committed == [{TopicPartition("t", 0): OffsetAndMetadata(100)}] * 3
    query.turn()
    assert len(committed) == 3 and len(query.said(messages.ContributionReport)) == 1


@pytest.mark.parametrize("goes", ["its partition", "the cut"])
def test_a_commit_without_an_answer_is_not_sent_again_for_what_is_gone(query: Driven, goes: str) -> None:
    query.begin()
    query.give({0: 100, 1: 200})
    committed: list[set[int]] = []

    def commit(offsets: dict[TopicPartition, OffsetAndMetadata], timeout_ms: float) -> None:
        committed.append({offset.partition for offset in offsets})
        raise TimedOutError("no answer")

    query.groups[0].commit = commit  # type: ignore[method-assign,assignment]
    thread = query.threads[0]
    thread._later.commit = {TopicPartition("t", number): OffsetAndMetadata(100) for number in (0, 1)}
    query.turn()
    query.order(messages.DrainOrder(3, CheckpointAttempt(8, 1)))
    query.order(messages.ContributeOrder(3, CheckpointAttempt(8, 1), ("q0",)))
    assert committed[-1] == {0, 1} and not query.said(messages.ContributionReport)
    if goes == "the cut":
        query.reset(6, None, 7)
        before = len(committed)
        query.turn()
        assert len(committed) == before and thread._saves is None
        return
    query.groups[0].held.discard(TopicPartition("t", 1))
    query.turn()
    query.turn()
    assert committed[-1] == {0}
