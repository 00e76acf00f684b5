"""A shard whose journal fails.

Each request has one answer, what is in no journal is neither kept nor answered from, one load follows.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kohort.coordinator.shard import STEP_SLICE_EVENTS
from kohort.errors import CorruptDataError, ErrorCode
from kohort.groups.events import Heartbeat, ListGroups, OffsetCommit, OffsetToCommit, TopicsDeleted
from kohort.groups.records import OffsetCommitted
from tests.broker.driven import (
    IMAGE,
    LONG_S,
    TOPIC,
    Driven,
    Failure,
    broken_disk,
    fenced,
    no_space,
    short_write,
    too_large,
    unexpected,
    written_all_the_same,
)

DISK = [no_space, broken_disk, short_write]
ANY = [*DISK, too_large, unexpected]
LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
UNAVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE


def name_of(failure: Failure) -> str:
    return failure.__name__


@pytest.fixture
def driven(tmp_path: Path) -> Driven:
    """A shard that serves, with one offset of group `old`."""
    driven = Driven(tmp_path)
    driven.load()
    driven.commit("old", 7)
    driven.turns.settle()
    assert driven.written() == {"old": 7}
    driven.journal.loads = 0
    return driven


def serves_what_is_written(driven: Driven) -> bool:
    """Whether each group that anyone asked for is told the offset that the files hold, and commits again."""
    written = driven.written()
    groups = ("old", "a", "b", "c")
    asked = [driven.fetch(group) for group in groups]
    driven.turns.settle()
    answered = {group: driven.answer(number) for group, number in zip(groups, asked, strict=True)}
    again = driven.commit("old", 99)
    driven.turns.settle()
    return (
        answered == {group: written.get(group, -1) for group in groups}
        and driven.answer(again) is ErrorCode.NONE
        and driven.written()["old"] == 99
        and driven.each_answered_once()
    )


@pytest.mark.parametrize("failure", DISK, ids=name_of)
def test_a_commit_that_can_t_be_written_is_refused_and_forgotten(driven: Driven, failure: Failure) -> None:
    driven.journal.fails = [failure]
    commit, fetch = driven.commit("a", 1), driven.fetch("old")
    driven.turns.turn()
    assert [driven.answer(commit), driven.answer(fetch)] == [UNAVAILABLE, UNAVAILABLE]
    refused = driven.fetch("a")
    assert driven.answer(refused) is LOADING
    assert not driven.shard.is_loaded
    driven.turns.pass_time(LONG_S)
    assert driven.journal.loads == 1
    assert driven.written() == {"old": 7}
    assert serves_what_is_written(driven)


@pytest.mark.parametrize("failure", [*DISK, unexpected], ids=name_of)
def test_request_behind_a_failed_append_gets_nothing_that_is_in_no_journal(driven: Driven, failure: Failure) -> None:
    driven.commit("a", 1)
    driven.turns.settle()
    driven.journal.fails = [failure]
    numbers = [driven.commit("a", 2), driven.fetch("a")]
    driven.turns.turn()
    numbers += [driven.fetch("a"), driven.commit("b", 3)]
    driven.turns.pass_time(LONG_S)
    assert not any(driven.answer(number) in (ErrorCode.NONE, 1, 2, 3) for number in numbers[:1])
    assert driven.answer(numbers[1]) not in (1, 2)
    assert driven.journal.loads == 1
    assert serves_what_is_written(driven)


@pytest.mark.parametrize("failure", DISK, ids=name_of)
def test_each_failure_brings_one_load(driven: Driven, failure: Failure) -> None:
    for count in range(1, 4):
        driven.journal.fails = [failure]
        commit = driven.commit("a", count)
        driven.turns.settle()
        assert driven.answer(commit) is UNAVAILABLE
        driven.turns.pass_time(LONG_S)
        assert driven.journal.loads == count
    assert serves_what_is_written(driven)


def test_no_reply_is_out_before_its_append(driven: Driven) -> None:
    seen: list[bool] = []
    commit = driven.commit("a", 1)
    driven.journal.fails = [lambda journal, records, now_ms: seen.append(bool(driven.answers[commit]))]
    driven.turns.settle()
    assert seen == [False]
    assert driven.answer(commit) is ErrorCode.NONE


@pytest.mark.parametrize("failure", DISK, ids=name_of)
def test_what_was_acknowledged_before_a_failure_stays(driven: Driven, failure: Failure) -> None:
    driven.journal.fails = [None, failure]
    first = driven.commit("a", 1)
    driven.turns.turn()
    second = driven.commit("b", 2)
    driven.turns.turn()
    assert [driven.answer(first), driven.answer(second)] == [ErrorCode.NONE, UNAVAILABLE]
    driven.turns.pass_time(LONG_S)
    assert driven.written() == {"old": 7, "a": 1}
    assert serves_what_is_written(driven)


def test_what_was_written_before_the_append_failed_is_found_again(driven: Driven) -> None:
    driven.journal.fails = [written_all_the_same]
    commit = driven.commit("a", 1)
    driven.turns.settle()
    assert driven.answer(commit) is UNAVAILABLE
    driven.turns.pass_time(LONG_S)
    assert driven.written() == {"old": 7, "a": 1}
    assert serves_what_is_written(driven)


def test_a_fenced_coordinator_sends_everyone_away_for_good(driven: Driven) -> None:
    driven.journal.fails = [fenced]
    commit, fetch = driven.commit("a", 1), driven.fetch("old")
    driven.turns.settle()
    assert [driven.answer(commit), driven.answer(fetch)] == [ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR]
    driven.turns.pass_time(LONG_S)
    assert driven.answer(driven.fetch("old")) is ErrorCode.NOT_COORDINATOR
    driven.load()
    driven.turns.pass_time(LONG_S)
    assert driven.answer(driven.commit("a", 2)) is ErrorCode.NOT_COORDINATOR
    assert driven.journal.loads == 0
    assert driven.written() == {"old": 7}
    assert driven.each_answered_once()


def test_a_coordinator_that_is_fenced_before_it_loads_serves_nobody(tmp_path: Path) -> None:
    driven = Driven(tmp_path)
    driven.journal.log.advance_leader_epoch(5)
    driven.load()
    driven.turns.pass_time(LONG_S)
    assert driven.answer(driven.fetch("old")) is ErrorCode.NOT_COORDINATOR
    assert driven.journal.loads == 1
    assert driven.written() == {}


# -- in the middle of a fault of the coordinator


def broken_request(driven: Driven) -> int:
    """A request on which the machine breaks: no id can be a list."""
    return driven.ask(lambda number: Heartbeat(number, "old", None, []))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "failure", [None, *DISK, unexpected], ids=lambda failure: failure.__name__ if failure else "none"
)
def test_a_fault_whose_append_fails_too_brings_one_load(
    driven: Driven, failure: Failure | None, caplog: pytest.LogCaptureFixture
) -> None:
    driven.journal.fails = [failure]
    before, broken, behind = driven.commit("a", 1), broken_request(driven), driven.fetch("old")
    driven.turns.turn()
    assert driven.each_answered_once()
    if failure is None:
        assert [driven.answer(before), driven.answer(broken)] == [ErrorCode.NONE, ErrorCode.UNKNOWN_SERVER_ERROR]
        assert "a fault in the coordinator at Heartbeat of group old" in caplog.text
    else:
        assert [driven.answer(before), driven.answer(broken)] == [UNAVAILABLE, UNAVAILABLE]
    assert driven.answer(behind) is UNAVAILABLE
    assert caplog.text.count("; reloading in ") == 1
    driven.turns.pass_time(LONG_S)
    assert driven.journal.loads == 1
    assert driven.written() == ({"old": 7, "a": 1} if failure is None else {"old": 7})
    assert serves_what_is_written(driven)


def test_a_fault_after_which_the_coordinator_is_fenced_brings_no_load(driven: Driven) -> None:
    driven.journal.fails = [fenced]
    before, broken, behind = driven.commit("a", 1), broken_request(driven), driven.fetch("old")
    driven.turns.pass_time(LONG_S)
    assert {driven.answer(number) for number in (before, broken, behind)} == {ErrorCode.NOT_COORDINATOR}
    assert driven.journal.loads == 0
    assert driven.answer(driven.fetch("old")) is ErrorCode.NOT_COORDINATOR


# -- while it loads


def with_something_to_write_when_loaded(driven: Driven) -> None:
    """Loading must drop an offset: its topic is gone."""
    driven.image = type(IMAGE)(2, {"other": IMAGE.topics[TOPIC]})


@pytest.mark.parametrize("failure", ANY, ids=name_of)
def test_a_load_whose_own_append_fails_is_tried_again(driven: Driven, failure: Failure) -> None:
    with_something_to_write_when_loaded(driven)
    driven.journal.fails = [failure]
    asked = driven.settings_asked
    driven.load()
    assert not driven.shard.is_loaded
    assert driven.answer(driven.fetch("old")) is LOADING
    assert driven.written() == {"old": 7}
    driven.turns.pass_time(LONG_S)
    assert driven.journal.loads == 2
    assert driven.settings_asked == asked + 2, "they may have changed meanwhile"
    assert driven.written() == {}
    fetch = driven.fetch("old")
    driven.turns.settle()
    assert driven.answer(fetch) == -1


def test_a_load_whose_own_append_is_fenced_is_the_last(driven: Driven) -> None:
    with_something_to_write_when_loaded(driven)
    driven.journal.fails = [fenced]
    driven.load()
    driven.turns.pass_time(LONG_S)
    assert driven.answer(driven.fetch("old")) is ErrorCode.NOT_COORDINATOR
    assert driven.journal.loads == 1
    assert driven.written() == {"old": 7}


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), ZeroDivisionError("a fault in the journal")])
def test_a_journal_that_can_t_be_read_for_now_is_tried_again(driven: Driven, error: Exception) -> None:
    driven.journal.unreadable = [error, error]
    driven.load()
    assert driven.answer(driven.fetch("old")) is LOADING
    driven.turns.pass_time(LONG_S)
    assert driven.journal.loads == 3
    assert serves_what_is_written(driven)


def test_a_damaged_journal_is_not_served_and_not_read_again(driven: Driven) -> None:
    driven.journal.unreadable = [CorruptDataError("a bit is wrong")]
    waits = driven.fetch("old")
    driven.load()
    driven.turns.pass_time(LONG_S)
    assert driven.answer(waits) is LOADING
    assert driven.answer(driven.fetch("old")) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert driven.answer(driven.commit("a", 1)) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert driven.journal.loads == 1
    assert driven.each_answered_once()


def test_a_load_answers_who_waits_and_forgets_what_is_queued(driven: Driven) -> None:
    held = driven.ask(ListGroups)
    commit = driven.commit("a", 1)
    driven.shard.start_loading()
    assert [driven.answer(held), driven.answer(commit)] == [LOADING, LOADING]
    driven.turns.settle()
    assert driven.written() == {"old": 7}
    assert driven.journal.loads == 1
    assert serves_what_is_written(driven)


def test_a_second_load_takes_the_place_of_the_first(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kohort.coordinator.shard.LOAD_SLICE_S", -1.0)
    asked = driven.settings_asked
    driven.shard.start_loading()
    driven.shard.start_loading()
    driven.turns.settle()
    assert driven.settings_asked == asked + 1
    driven.journal.fails = [no_space]
    driven.commit("a", 1)
    driven.turns.settle()
    loads = driven.journal.loads
    driven.shard.start_loading()
    driven.turns.pass_time(LONG_S)
    assert driven.journal.loads == loads + 1
    assert serves_what_is_written(driven)


def test_no_load_follows_the_end(driven: Driven) -> None:
    driven.journal.fails = [no_space]
    commit = driven.commit("a", 1)
    driven.turns.settle()
    driven.shard.close()
    driven.turns.pass_time(LONG_S)
    assert driven.journal.loads == 0
    assert driven.answer(commit) is UNAVAILABLE
    driven.load()
    assert driven.journal.loads == 0
    assert driven.each_answered_once()


# -- what is too large


def test_what_is_too_large_costs_its_own_request_alone(driven: Driven, caplog: pytest.LogCaptureFixture) -> None:
    driven.journal.too_large_for = "b"
    first, large, behind = driven.commit("a", 1), driven.commit("b", 2), driven.commit("c", 3)
    driven.turns.settle()
    assert driven.answer(first) is ErrorCode.NONE
    assert driven.answer(large) is ErrorCode.RECORD_LIST_TOO_LARGE
    assert driven.answer(behind) is UNAVAILABLE
    assert "OffsetCommit" in caplog.text
    driven.turns.pass_time(LONG_S)
    assert driven.journal.loads == 1
    assert driven.written() == {"old": 7, "a": 1}
    assert serves_what_is_written(driven)


def test_what_is_too_large_only_together_is_written_one_after_the_other(driven: Driven) -> None:
    driven.journal.fails = [too_large]
    numbers = [driven.commit(group, 5) for group in ("a", "b", "c")]
    driven.turns.settle()
    assert [driven.answer(number) for number in numbers] == [ErrorCode.NONE] * 3
    assert driven.journal.loads == 0
    assert driven.written() == {"old": 7, "a": 5, "b": 5, "c": 5}
    assert serves_what_is_written(driven)


def test_events_are_not_gathered_into_appends_without_bound(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kohort.coordinator.shard.APPEND_RECORDS", 4)
    driven.journal.appends.clear()
    numbers = [driven.commit("a", offset) for offset in range(10)]
    driven.turns.settle()
    assert [driven.answer(number) for number in numbers] == [ErrorCode.NONE] * 10
    offsets = [
        position.offset for some in driven.journal.appends for position in some if isinstance(position, OffsetCommitted)
    ]
    assert offsets == list(range(10))
    assert max(map(len, driven.journal.appends)) <= 5


# -- beside it


def test_a_reply_that_can_t_be_handed_out_keeps_no_other_back(driven: Driven, caplog: pytest.LogCaptureFixture) -> None:
    def broken(value: object) -> None:
        raise ZeroDivisionError("a fault in a handler")

    driven.shard.ask(OffsetCommit(10_000, "a", "", -1, (OffsetToCommit(TOPIC, 0, 1),)), broken)
    behind = driven.commit("b", 2)
    driven.turns.settle()
    assert driven.answer(behind) is ErrorCode.NONE
    assert "a fault in a handler" in caplog.text
    assert driven.written() == {"old": 7, "a": 1, "b": 2}
    assert driven.journal.loads == 0


@pytest.mark.parametrize("place", ["queued", "stepped", "failed", "loading"])
def test_a_topic_deleted_meanwhile_takes_its_offsets_with_it(driven: Driven, place: str) -> None:
    """Also when a topic of the same name is made again before the coordinator has loaded: it is told when it loads."""
    if place == "queued":
        broken_request(driven)
    else:
        driven.journal.fails = [no_space]
        if place != "stepped":
            driven.commit("a", 1)
            driven.turns.settle()
        if place == "loading":
            driven.shard.start_loading()
    driven.shard.queue_event(TopicsDeleted((TOPIC,)))
    while driven.shard.process_queued_events():
        pass
    if not driven.shard.is_loaded:
        driven.unseen = [TOPIC]
    driven.turns.pass_time(LONG_S)
    assert driven.written() == {}
    commit = driven.commit("old", 8)
    driven.turns.settle()
    assert driven.answer(commit) is ErrorCode.NONE
    driven.load()
    assert driven.written() == {"old": 8}


def test_offsets_of_a_deleted_topic_are_gone_before_one_of_its_name_can_be_made(driven: Driven) -> None:
    """Whoever is killed between the two finds nothing of the earlier topic."""
    commits = [driven.commit(f"g{number}", number) for number in range(3 * STEP_SLICE_EVENTS)]
    driven.shard.queue_event(TopicsDeleted((TOPIC,)))
    while driven.shard.process_queued_events():
        pass
    assert driven.written() == {}, "without a turn of the loop"
    driven.turns.settle()
    assert {driven.answer(commit) for commit in commits} == {ErrorCode.NONE}
    assert driven.each_answered_once()


def test_nothing_is_served_before_it_is_noted_that_earlier_topics_are_forgotten(driven: Driven) -> None:
    """Else the next load would take what is committed now for positions in the earlier topic."""
    driven.unseen, driven.not_noted = [TOPIC], [OSError(28, "No space left on device")]
    driven.load()
    assert not driven.shard.is_loaded
    assert driven.written() == {}
    driven.turns.pass_time(LONG_S)
    assert driven.shard.is_loaded and not driven.unseen
    driven.commit("old", 8)
    driven.turns.settle()
    driven.load()
    assert driven.written() == {"old": 8}


def test_loads_of_a_disk_that_stays_full_become_rare(driven: Driven) -> None:
    driven.image = type(IMAGE)(2, {"other": IMAGE.topics[TOPIC]})
    driven.journal.fails = [no_space] * 1_000
    driven.load()
    driven.turns.pass_time(10 * LONG_S)
    assert 10 * LONG_S / 6 < driven.journal.loads < 10 * LONG_S / 4
    driven.journal.fails = []
    driven.turns.pass_time(LONG_S)
    assert driven.shard.is_loaded


def test_being_fenced_is_said(driven: Driven, caplog: pytest.LogCaptureFixture) -> None:
    driven.journal.fails = [fenced]
    driven.commit("a", 1)
    driven.turns.settle()
    assert "another coordinator has taken over" in caplog.text
