"""What a source may read now, asked and changed by two threads."""

from __future__ import annotations

import threading
from uuid import UUID

from kohort.ids import TopicPartition
from kohort.region.facts import Position
from kohort.spark.region.handing import HandingSeat
from kohort.spark.region.seats import Lost

TOPIC = UUID(int=7)
RUN = 1
"""The number of the first."""
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def position(partition: int, offset: int) -> Position:
    return Position("g", "t", TOPIC, partition, offset)


class Seated:
    """A seat of a run in epoch 3 that holds two partitions."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.gone: list[Lost] = []
        self.seat = HandingSeat(lambda: self.told.append("begun"), lambda: self.told.append("done"), self.gone.append)
        self.run = self.seat.start(3)
        self.seat.let("not started")
        self.seat.give(position(0, 10))
        self.seat.give(position(1, 20))


def test_what_is_handed_out_has_its_start_and_a_number_of_its_own() -> None:
    seated = Seated()
    held = seated.run.held(0)
    assert held is not None and held.epoch == 3
    assert [(part.partition, part.start) for part in held.parts] == [(0, 10), (1, 20)]
    seated.seat.take([T0])
    seated.seat.give(position(0, 10))
    again = seated.run.held(0)
    assert again is not None
    first, second = held.parts[0].handing, again.parts[0].handing
    assert first != second, "the same partition under the number that it had"


def test_a_batch_begins_only_of_what_was_handed_out_last() -> None:
    seat = Seated().seat
    held = seat.held(0, RUN)
    assert held is not None
    seat.take([T1])
    assert not seat.begin(held.version, 1)
    now = seat.held(0, RUN)
    assert now is not None and seat.begin(now.version, 1)
    assert seat.running() == 1


def test_nothing_begins_while_there_is_a_reason_to_hold() -> None:
    seat = Seated().seat
    held = seat.held(0, RUN)
    assert held is not None
    assert seat.hold("wanted back") is None
    assert not seat.begin(held.version, 1)
    assert seat.held(1, RUN) is None
    seat.hold("too far ahead")
    seat.let("wanted back")
    assert seat.held(1, RUN) is None, "one reason is left"
    seat.let("too far ahead")
    assert seat.held(0, RUN) is not None


def test_who_waits_is_told_at_once() -> None:
    seat = Seated().seat
    seat.hold("wanted back")
    found: list[object] = []
    waiting = threading.Thread(target=lambda: found.append(seat.held(60_000, RUN)))
    waiting.start()
    seat.let("wanted back")
    waiting.join(10)
    assert found and found[0] is not None


def test_a_source_that_waits_is_answered_when_its_run_is_to_be_stopped() -> None:
    """Spark's stop waits for it: a query that was idle took up to a second to go back."""
    seated = Seated()
    seated.seat.hold("not started")
    found: list[object] = []
    waiting = threading.Thread(target=lambda: found.append(seated.run.held(60_000)))
    waiting.start()
    seated.seat.end_run()
    waiting.join(10)
    assert found == [None]
    seated.seat.let("not started")
    assert seated.run.held(0) is None, "it is over, whatever is held"


def test_what_is_wanted_back_is_kept_and_not_planned() -> None:
    seat = Seated().seat
    seat.keep_from([T0, TopicPartition("t", 9)])
    held = seat.held(0, RUN)
    assert held is not None and [part.partition for part in held.parts] == [1]
    assert seat.handed().keys() == {T0, T1}, "its end is contributed until it is let go"
    seat.take([T0])
    assert seat.handed().keys() == {T1}


def test_a_batch_is_told_when_it_begins_and_when_it_is_done() -> None:
    seated = Seated()
    held = seated.run.held(0)
    assert held is not None
    seated.seat.begin(held.version, 4)
    seated.run.end(3)
    assert seated.seat.running() == 4, "another batch's end"
    seated.run.end(4)
    assert seated.seat.running() is None
    assert seated.told == ["begun", "done"]


def test_the_next_run_knows_nothing_of_a_batch_that_ran() -> None:
    seated = Seated()
    held = seated.run.held(0)
    assert held is not None
    seated.seat.begin(held.version, 4)
    run = seated.seat.start(5)
    assert seated.seat.running() is None
    now = run.held(0)
    assert now is not None and now.epoch == 5


def test_who_finds_that_nothing_runs_was_told_of_all_that_ran() -> None:
    """A batch begins while the member's thread wants partitions back: it must not think that nothing was read."""
    telling, goes_on = threading.Event(), threading.Event()

    def begun() -> None:
        telling.set()
        assert goes_on.wait(10)

    seat = HandingSeat(begun, lambda: None, lambda lost: None)
    seat.start(3)
    seat.let("not started")
    held = seat.held(0, RUN)
    assert held is not None
    beginning = threading.Thread(target=seat.begin, args=(held.version, 1))
    beginning.start()
    assert telling.wait(10)
    found: list[int | None] = []
    holding = threading.Thread(target=lambda: found.append(seat.hold("wanted back")))
    holding.start()
    holding.join(0.05)
    assert not found, "it was seen whether a batch runs before the batch was told"
    goes_on.set()
    holding.join(10)
    beginning.join(10)
    assert found == [1]


def test_the_end_of_an_earlier_run_s_batch_is_none_of_this_one_s() -> None:
    seated = Seated()
    later = seated.seat.start(5)
    held = later.held(0)
    assert held is not None and seated.seat.begin(held.version, 1)
    seated.run.end(1)
    assert seated.seat.running() == 1
    later.end(1)
    assert seated.seat.running() is None
