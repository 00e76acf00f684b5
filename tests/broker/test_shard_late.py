"""A shard whose journal answers later.

Nothing is let out that is not durable, and what is lost is lost for everyone who saw it.
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from kohort.coordinator import shard
from kohort.errors import ErrorCode, FencedError, KafkaError
from kohort.groups.effects import CounterIncreased
from kohort.groups.events import Heartbeat, ListGroups, TopicsDeleted
from kohort.groups.records import OffsetCommitted
from tests.broker.driven import LONG_S, TOPIC, Driven, LateJournal

LOST = OSError(errno.ETIMEDOUT, "the topic did not answer")
FENCED = FencedError("a later term has begun", ErrorCode.INVALID_PRODUCER_EPOCH)
LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
UNAVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE
DONE = ErrorCode.NONE


class Late(Driven):
    """A shard over a journal that answers later."""

    journal: LateJournal

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, LateJournal(folder))

    def settle(self) -> None:
        """Answer until nothing is on its way."""
        self.turns.settle()
        while self.journal.on_way is not None:
            self.journal.answer()
            self.turns.settle()

    def offsets(self) -> list[list[int]]:
        """The offsets in each append that was asked for."""
        found = [
            [position.offset for position in some if isinstance(position, OffsetCommitted)]
            for some in self.journal.appends
        ]
        return [some for some in found if some]


@pytest.fixture
def late(tmp_path: Path) -> Late:
    """A shard that serves, with one offset of group `old`."""
    late = Late(tmp_path)
    late.load()
    late.commit("old", 7)
    late.settle()
    assert late.written() == {"old": 7}
    late.journal.loads = 0
    late.journal.appends.clear()
    late.answered.clear()
    late.notes.clear()
    return late


def serves_what_is_written(late: Late) -> bool:
    """Whether each group that anyone asked for is told the offset that the files hold, and commits again."""
    late.turns.pass_time(LONG_S)
    late.settle()
    written, groups = late.written(), ("old", "a", "b", "c")
    asked = [late.fetch(group) for group in groups]
    again = late.commit("old", 99)
    late.settle()
    reported = {group: late.answer(number) for group, number in zip(groups, asked, strict=True)}
    ok = reported == {group: written.get(group, -1) for group in groups} and late.answer(again) is DONE
    return ok and late.written()["old"] == 99 and late.each_answered_once()


def test_what_saw_an_append_on_its_way_waits_for_it(late: Late) -> None:
    """The commit, who reads it, and a figure; another group's reader waits too, since answers leave in order."""
    commit = late.commit("a", 1)
    late.turns.settle()
    fetch, other = late.fetch("a"), late.fetch("old")
    late.turns.settle()
    assert late.answered == []
    assert late.notes == []
    late.journal.answer()
    assert late.answered == [commit, fetch, other]
    assert [late.answer(number) for number in late.answered] == [DONE, 1, 7]
    assert [type(note) for note in late.notes] == [CounterIncreased]


def test_a_read_with_nothing_on_its_way_is_answered_at_once(late: Late) -> None:
    fetch = late.fetch("old")
    late.turns.settle()
    assert late.answer(fetch) == 7
    assert late.journal.appends == []


def test_what_comes_meanwhile_is_the_next_append(late: Late) -> None:
    first = late.commit("a", 1)
    late.turns.settle()
    behind = [late.commit("a", 2), late.fetch("a")]
    late.turns.settle()
    behind += [late.commit("b", 3), late.fetch("b")]
    late.turns.settle()
    assert late.offsets() == [[1]]
    late.journal.answer()
    assert late.answered == [first]
    assert late.offsets() == [[1], [2, 3]]
    late.journal.answer()
    assert late.answered == [first, *behind]
    assert [late.answer(number) for number in behind] == [DONE, 2, DONE, 3]
    assert late.shard.is_idle
    assert serves_what_is_written(late)


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("gathered", [False, True])
def test_what_is_lost_is_refused_to_all_who_wait(late: Late, written: bool, gathered: bool) -> None:
    numbers = [late.commit("a", 1)]
    late.turns.settle()
    numbers += [late.fetch("a"), late.commit("b", 2)] if gathered else [late.fetch("a")]
    late.turns.settle()
    queued = late.fetch("old")
    late.journal.lose(LOST, written=written)
    assert [late.answer(number) for number in (*numbers, queued)] == [UNAVAILABLE] * (len(numbers) + 1)
    assert late.answer(late.fetch("a")) is LOADING
    late.turns.pass_time(LONG_S)
    assert late.journal.loads == 1
    assert late.written() == ({"old": 7, "a": 1} if written else {"old": 7})
    assert serves_what_is_written(late)


def test_a_deposed_coordinator_sends_everyone_away_for_good(late: Late, caplog: pytest.LogCaptureFixture) -> None:
    numbers = [late.commit("a", 1)]
    late.turns.settle()
    numbers += [late.commit("b", 2), late.fetch("old")]
    late.turns.settle()
    late.journal.lose(FENCED)
    assert [late.answer(number) for number in numbers] == [ErrorCode.NOT_COORDINATOR] * 3
    late.turns.pass_time(LONG_S)
    assert late.answer(late.fetch("old")) is ErrorCode.NOT_COORDINATOR
    assert late.journal.loads == 0
    assert late.written() == {"old": 7}
    assert "another coordinator has taken over" in caplog.text
    assert "its own last append was sent" in caplog.text


@pytest.mark.parametrize("reason", [LOST, FENCED], ids=["lost", "fenced"])
def test_a_term_may_end_while_nothing_is_on_its_way(late: Late, reason: Exception) -> None:
    """An idle owner hears of it too: it need not be asked for anything first."""
    assert late.journal.owner is not None
    late.journal.owner.on_journal_lost(reason)
    assert late.answer(late.fetch("old")) is (LOADING if reason is LOST else ErrorCode.NOT_COORDINATOR)
    late.turns.pass_time(LONG_S)
    assert late.journal.loads == (1 if reason is LOST else 0)
    assert reason is FENCED or serves_what_is_written(late)


def test_an_answer_to_a_load_that_is_over_says_nothing(late: Late) -> None:
    commit = late.commit("a", 1)
    late.turns.settle()
    assert late.journal.on_way is not None
    owner, token = late.journal.owner, late.journal.on_way[0]
    late.load()
    assert late.answer(commit) is LOADING
    assert owner is not None
    again = late.commit("a", 2)
    late.turns.settle()
    for stale in (token, token + 1):
        owner.on_append_durable(stale, 0)
    assert late.journal.owner is not None
    late.journal.owner.on_append_durable(token, 0)
    owner.on_journal_lost(LOST)
    owner.on_records_available()
    assert late.answers[again] == []
    late.settle()
    assert late.answer(again) is DONE
    assert serves_what_is_written(late)


def test_a_fault_waits_for_what_came_before_it(late: Late) -> None:
    first = late.commit("a", 1)
    late.turns.settle()
    before = late.commit("b", 2)
    # No id can be a list.
    broken = late.ask(lambda number: Heartbeat(number, "old", None, []))  # type: ignore[arg-type]
    behind = late.commit("c", 3)
    late.turns.settle()
    after = late.ask(ListGroups)
    late.turns.settle()
    assert late.answered == []
    late.journal.answer()
    assert late.answered == [first]
    late.journal.answer()
    assert late.answered[:3] == [first, before, broken]
    reported = [late.answer(number) for number in (first, before, broken, behind, after)]
    assert reported == [DONE, DONE, ErrorCode.UNKNOWN_SERVER_ERROR, UNAVAILABLE, UNAVAILABLE]
    late.turns.pass_time(LONG_S)
    assert late.journal.loads == 1
    assert late.written() == {"old": 7, "a": 1, "b": 2}
    assert serves_what_is_written(late)


def test_a_fault_behind_an_append_that_is_lost_brings_one_load(late: Late) -> None:
    late.commit("a", 1)
    late.turns.settle()
    late.ask(lambda number: Heartbeat(number, "old", None, []))  # type: ignore[arg-type]  # no id can be a list
    late.turns.settle()
    late.journal.lose(LOST)
    assert late.each_answered_once()
    late.turns.pass_time(LONG_S)
    assert late.journal.loads == 1
    assert serves_what_is_written(late)


def test_no_more_is_gathered_than_one_append_may_hold(late: Late, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kohort.coordinator.shard.APPEND_RECORDS", 4)
    numbers = []
    for offset in range(20):
        numbers.append(late.commit("a", offset))
        late.turns.settle()
    assert late.offsets() == [[0]]
    assert not late.shard.is_idle
    late.settle()
    assert [offset for some in late.offsets() for offset in some] == list(range(20))
    assert max(map(len, late.offsets())) == 4
    assert late.answered == numbers


def test_appends_are_bounded_by_their_bytes_where_the_journal_has_a_bound(tmp_path: Path) -> None:
    late = Late(tmp_path)
    late.journal.append_bytes_max = 4_000
    late.load()
    name = "g" * 1_000
    numbers = [late.commit(name, offset) for offset in range(12)]
    late.settle()
    assert [late.answer(number) for number in numbers] == [DONE] * 12
    assert [offset for some in late.offsets() for offset in some] == list(range(12))
    assert max(map(len, late.offsets())) <= 4
    late.journal.appends.clear()
    for offset in range(12):
        late.commit(name, offset)
        late.turns.settle()
    late.settle()
    assert max(map(len, late.offsets())) <= 4


def test_steps_that_wait_are_bounded(late: Late, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "WAITING_STEPS", 3)
    numbers = [late.commit("a", 1)]
    late.turns.settle()
    for _ in range(8):
        numbers.append(late.fetch("a"))
        late.turns.settle()
    numbers.append(late.commit("a", 2))
    late.turns.settle()
    assert len(late.offsets()) == 1
    late.settle()
    assert late.answered == numbers
    assert late.offsets() == [[1], [2]]


def test_what_is_too_large_together_is_appended_one_after_the_other(late: Late) -> None:
    late.journal.too_large_for = "b"
    first = late.commit("a", 1)
    late.turns.settle()
    gathered = [late.commit("a", 2), late.fetch("a"), late.commit("a", 3), late.commit("b", 4), late.commit("c", 5)]
    late.turns.settle()
    late.journal.answer()
    later = late.fetch("a")
    late.turns.settle()
    assert late.offsets() == [[1], [2]]
    late.journal.answer()
    assert late.answered == [first, *gathered[:2]]
    late.journal.answer()
    reported = [late.answer(number) for number in (*gathered, later)]
    assert reported == [DONE, 2, DONE, ErrorCode.RECORD_LIST_TOO_LARGE, UNAVAILABLE, UNAVAILABLE]
    late.turns.pass_time(LONG_S)
    assert late.journal.loads == 1
    assert late.written() == {"old": 7, "a": 3}
    assert serves_what_is_written(late)


def test_a_journal_that_refuses_later_is_one_that_could_not_be_written(late: Late) -> None:
    commit = late.commit("a", 1)
    late.turns.settle()
    late.journal.lose(KafkaError("no right to write", ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    assert late.answer(commit) is UNAVAILABLE
    assert serves_what_is_written(late)


@pytest.mark.parametrize("place", ["on its way", "gathered", "queued"])
@pytest.mark.parametrize("durable", [False, True])
def test_a_deletion_is_settled_when_it_is_durable_or_the_shard_serves_no_longer(
    late: Late, place: str, durable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic of that name can be made then: it is one that a shard which does not serve has not seen."""
    if place != "on its way":
        late.commit("a", 1)
        late.turns.settle()
    if place == "queued":
        monkeypatch.setattr(shard, "WAITING_STEPS", 1)
    late.shard.queue_event(TopicsDeleted((TOPIC,)))
    assert late.shard.process_queued_events()
    if place != "on its way" and durable:
        late.journal.answer()
        assert late.shard.process_queued_events()
    if durable:
        late.journal.answer()
        assert late.shard.is_loaded
    else:
        late.journal.lose(LOST)
        assert not late.shard.is_loaded
        late.unseen = [TOPIC]
    assert not late.shard.process_queued_events()
    late.turns.pass_time(LONG_S)
    late.settle()
    assert late.written() == {}
    assert not late.unseen


def test_nobody_is_served_before_what_loading_writes_is_durable(late: Late) -> None:
    """Also not before it is noted; news that come meanwhile wait."""
    late.unseen = [TOPIC]
    late.load()
    assert late.answer(late.fetch("old")) is LOADING
    late.shard.queue_event(TopicsDeleted((TOPIC,)))
    late.journal.lose(LOST)
    assert late.unseen == [TOPIC]
    assert late.written() == {"old": 7}
    late.turns.pass_time(LONG_S)
    late.shard.queue_event(TopicsDeleted((TOPIC,)))
    assert late.shard.process_queued_events()
    assert late.answer(late.fetch("old")) is LOADING
    late.not_noted = [OSError(errno.ENOSPC, "No space left on device")]
    late.journal.answer()
    assert not late.shard.is_loaded
    late.turns.pass_time(LONG_S)
    assert late.shard.is_loaded
    assert late.unseen == []
    assert late.journal.loads == 3
    fetch = late.fetch("old")
    late.turns.settle()
    assert late.answer(fetch) == -1
    assert late.written() == {}


def test_a_load_waits_for_what_is_still_to_be_read(late: Late) -> None:
    late.journal.reads_wait = True
    late.load()
    late.turns.pass_time(LONG_S)
    assert late.answer(late.fetch("old")) is LOADING
    assert late.journal.owner is not None
    late.journal.owner.on_records_available()
    late.turns.settle()
    assert late.journal.loads == 1
    assert serves_what_is_written(late)


def test_a_load_that_is_overtaken_by_the_end_leaves_no_groups(late: Late, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "LOAD_SLICE_S", -1.0)  # a turn for each list that is read
    late.shard.start_loading()
    late.shard.close()
    late.turns.settle()
    assert not late.shard.has_group("old")
    assert list(late.shard.group_states()) == []


def test_nothing_follows_the_end(late: Late) -> None:
    numbers = [late.commit("a", 1)]
    late.turns.settle()
    numbers.append(late.commit("a", 2))
    late.turns.settle()
    late.shard.close()
    late.journal.answer()
    late.turns.pass_time(LONG_S)
    assert [late.answer(number) for number in numbers] == [ErrorCode.NOT_COORDINATOR] * 2
    assert late.offsets() == [[1]]
