"""The offsets that a source may read now, queried and changed by two threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from uuid import UUID

import pytest
from tests.support.waiting import until

from kohort.ids import TopicPartition
from kohort.region.records import Position
from kohort.spark.region.source_assignments import SourceAssignments
from kohort.spark.source_sessions import AssignmentReply, IdleState, LostRecords

TOPIC = UUID(int=7)
RUN = 1
"""The number of the first."""
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def position(partition: int, offset: int) -> Position:
    return Position("g", "t", TOPIC, partition, offset)


class Seated:
    """A seat of a run in epoch 3 that holds two partitions."""

    def __init__(self) -> None:
        self.reported: list[str] = []
        self.gone: list[LostRecords] = []
        self.session = SourceAssignments(
            lambda: self.reported.append("begun"), lambda: self.reported.append("done"), self.gone.append
        )
        self.run = self.session.begin_run(3)
        self.session.resume_batches("not started")
        self.session.assign_partition(position(0, 10))
        self.session.assign_partition(position(1, 20))


def test_what_is_handed_out_has_its_start_and_a_number_of_its_own() -> None:
    seated = Seated()
    held = seated.run.wait_partitions(0)
    assert held is not None and held.epoch == 3
    assert [(part.partition, part.start) for part in held.parts] == [(0, 10), (1, 20)]
    seated.session.remove_revoked([T0])
    seated.session.assign_partition(position(0, 10))
    again = seated.run.wait_partitions(0)
    assert again is not None
    first, second = held.parts[0].assignment_version, again.parts[0].assignment_version
    assert first != second, "the same partition under the number that it had"


def test_a_batch_begins_only_of_what_was_handed_out_last() -> None:
    session = Seated().session
    held = session.wait_partitions(0, RUN)
    assert held is not None
    session.remove_revoked([T1])
    assert not session.begin_batch(held.version, 1)
    now = session.wait_partitions(0, RUN)
    assert now is not None and session.begin_batch(now.version, 1)
    assert session.running_batch() == 1


def test_nothing_begins_while_there_is_a_reason_to_hold() -> None:
    session = Seated().session
    held = session.wait_partitions(0, RUN)
    assert held is not None
    assert session.pause_batches("wanted back") is None
    assert not session.begin_batch(held.version, 1)
    assert session.wait_partitions(1, RUN) is None
    session.pause_batches("too far ahead")
    session.resume_batches("wanted back")
    assert session.wait_partitions(1, RUN) is None, "one reason is left"
    session.resume_batches("too far ahead")
    assert session.wait_partitions(0, RUN) is not None


def test_a_source_that_waits_gets_the_answer_at_once() -> None:
    session = Seated().session
    session.pause_batches("wanted back")
    found: list[object] = []
    waiting = threading.Thread(target=lambda: found.append(session.wait_partitions(60_000, RUN)))
    waiting.start()
    session.resume_batches("wanted back")
    waiting.join(10)
    assert found and found[0] is not None


def test_a_source_that_waits_is_answered_when_its_run_is_to_be_stopped() -> None:
    """Spark's stop waits for it: a query that was idle took up to a second to go back."""
    seated = Seated()
    seated.session.pause_batches("not started")
    found: list[object] = []
    waiting = threading.Thread(target=lambda: found.append(seated.run.wait_partitions(60_000)))
    waiting.start()
    seated.session.end_run()
    waiting.join(10)
    assert found == [None]
    seated.session.resume_batches("not started")
    assert seated.run.wait_partitions(0) is None, "it is over, whatever is held"


DAY_MS = 86_400_000
PATIENCE_S = 10.0
"""How long an answer that is due may take; less where it is to fail."""


class Asking:
    """An idle source's question: for a day there is nothing to read in what it knows."""

    def __init__(self, seated: Seated, wait_ms: int = DAY_MS) -> None:
        held = seated.run.wait_partitions(0)
        assert held is not None
        self.knows = held.version
        self.answers: list[AssignmentReply | None] = []
        idle = IdleState(held.version, DAY_MS)
        self._thread = threading.Thread(
            target=lambda: self.answers.append(seated.run.wait_partitions(wait_ms, idle)), daemon=True
        )
        self._thread.start()
        until(lambda: seated.session._changed._waiters, "it waits")  # type: ignore[attr-defined]

    def answer(self) -> AssignmentReply | None:
        self._thread.join(PATIENCE_S)
        assert self.answers, "the source waits on"
        return self.answers[0]


NEWS: list[Callable[[SourceAssignments], object]] = [
    lambda session: session.assign_partition(position(2, 5)),
    lambda session: session.remove_revoked([T1]),
    lambda session: session.stop_planning([T1]),
    lambda session: session.remove_partitions(),
]


@pytest.mark.parametrize("report", NEWS, ids=["given", "taken", "kept", "cleared"])
def test_an_idle_source_hears_at_once_of_what_is_new(report: Callable[[SourceAssignments], object]) -> None:
    seated = Seated()
    asking = Asking(seated)
    report(seated.session)
    reported = asking.answer()
    assert reported is not None and reported.version > asking.knows
    assert reported == seated.run.wait_partitions(0)


def test_an_idle_source_hears_at_once_that_nothing_may_be_planned() -> None:
    seated = Seated()
    asking = Asking(seated, wait_ms=0)
    seated.session.pause_batches("wanted back")
    assert asking.answer() is None


@pytest.mark.parametrize("stop", ["the run is to end", "a reset has begun another"])
def test_neither_stop_nor_reset_waits_for_an_idle_source(stop: str) -> None:
    seated = Seated()
    asking = Asking(seated)
    if stop == "the run is to end":
        seated.session.end_run()
    else:
        seated.session.begin_run(4)
    assert asking.answer() is None


def _has_stop_wait(
    self: SourceAssignments, wait_ms: int, run: int, idle: IdleState | None = None
) -> AssignmentReply | None:
    with self._changed:
        if idle is not None:
            self._changed.wait_for(lambda: idle.version != self._version, idle.ms / 1000)
    return _HELD(self, wait_ms, run)


def _hears_of_no_change(
    self: SourceAssignments, wait_ms: int, run: int, idle: IdleState | None = None
) -> AssignmentReply | None:
    with self._changed:
        if idle is not None:
            self._changed.wait_for(lambda: run != self._run, idle.ms / 1000)
    return _HELD(self, wait_ms, run)


_HELD = SourceAssignments.wait_partitions


@pytest.mark.parametrize(
    ("fault", "test"),
    [
        (_has_stop_wait, lambda: test_neither_stop_nor_reset_waits_for_an_idle_source("the run is to end")),
        (_has_stop_wait, test_an_idle_source_hears_at_once_that_nothing_may_be_planned),
        (_hears_of_no_change, lambda: test_an_idle_source_hears_at_once_of_what_is_new(NEWS[0])),
    ],
)
def test_a_session_that_leaves_an_idle_source_waiting_is_seen(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[..., AssignmentReply | None], test: Callable[[], None]
) -> None:
    monkeypatch.setattr(SourceAssignments, "wait_partitions", fault)
    monkeypatch.setitem(globals(), "PATIENCE_S", 0.5)
    with pytest.raises(AssertionError, match="the source waits on"):
        test()


def test_an_idle_source_waits_for_as_long_as_it_said_when_nothing_is_new() -> None:
    seated = Seated()
    held = seated.run.wait_partitions(0)
    assert held is not None
    began = time.monotonic()
    assert seated.run.wait_partitions(0, IdleState(held.version, 50)) == held
    assert time.monotonic() - began >= 0.05
    found = seated.run.wait_partitions(0, IdleState(held.version - 1, DAY_MS))
    assert found == held, "what it knew was old"


def test_what_is_wanted_back_is_kept_and_not_planned() -> None:
    session = Seated().session
    session.stop_planning([T0, TopicPartition("t", 9)])
    held = session.wait_partitions(0, RUN)
    assert held is not None and [part.partition for part in held.parts] == [1]
    assert session.all_assigned().keys() == {T0, T1}, "its end is contributed until it is let go"
    session.remove_revoked([T0])
    assert session.all_assigned().keys() == {T1}


def test_the_begin_and_the_end_of_a_batch_are_reported() -> None:
    seated = Seated()
    held = seated.run.wait_partitions(0)
    assert held is not None
    seated.session.begin_batch(held.version, 4)
    seated.run.complete_batch(3)
    assert seated.session.running_batch() == 4, "another batch's end"
    seated.run.complete_batch(4)
    assert seated.session.running_batch() is None
    assert seated.reported == ["begun", "done"]


def test_the_next_run_knows_nothing_of_a_batch_that_ran() -> None:
    seated = Seated()
    held = seated.run.wait_partitions(0)
    assert held is not None
    seated.session.begin_batch(held.version, 4)
    run = seated.session.begin_run(5)
    assert seated.session.running_batch() is None
    now = run.wait_partitions(0)
    assert now is not None and now.epoch == 5


def test_whoever_finds_that_nothing_runs_has_heard_of_all_that_ran() -> None:
    """A batch begins while the member's thread wants partitions back: it must not think that nothing was read."""
    telling, proceed = threading.Event(), threading.Event()

    def begun() -> None:
        telling.set()
        assert proceed.wait(10)

    session = SourceAssignments(begun, lambda: None, lambda lost: None)
    session.begin_run(3)
    session.resume_batches("not started")
    held = session.wait_partitions(0, RUN)
    assert held is not None
    beginning = threading.Thread(target=session.begin_batch, args=(held.version, 1))
    beginning.start()
    assert telling.wait(10)
    found: list[int | None] = []
    holding = threading.Thread(target=lambda: found.append(session.pause_batches("wanted back")))
    holding.start()
    holding.join(0.05)
    assert not found, "it was seen whether a batch runs before the batch was told"
    proceed.set()
    holding.join(10)
    beginning.join(10)
    assert found == [1]


def test_the_end_of_an_earlier_run_s_batch_is_none_of_this_one_s() -> None:
    seated = Seated()
    later = seated.session.begin_run(5)
    held = later.wait_partitions(0)
    assert held is not None and seated.session.begin_batch(held.version, 1)
    seated.run.complete_batch(1)
    assert seated.session.running_batch() == 1
    later.complete_batch(1)
    assert seated.session.running_batch() is None
