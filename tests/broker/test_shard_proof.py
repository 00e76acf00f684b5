"""A shard whose journal tells a deposed owner nothing: what it answers stands on an append that was sent lately."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import force_setattr

from kohort.broker.driver import LoopDriver
from kohort.coordinator.shard import Phase
from kohort.errors import ErrorCode, FencedError
from kohort.groups.effects import Now
from kohort.groups.events import Client as Sender
from kohort.groups.events import (
    ConsumerGroupDescribe,
    DeleteGroups,
    DescribeGroups,
    Event,
    Heartbeat,
    JoinGroup,
    ListGroups,
    OffsetDelete,
    OffsetFetch,
    SyncGroup,
    TimersDue,
)
from kohort.groups.records import OfferedProtocol
from kohort.ids import TopicPartition
from tests.broker.driven import TOPIC, Driven, LateJournal

PROOF_MS = 1_000
SESSION_MS = 10_000
FENCED = FencedError("a later term has begun", ErrorCode.INVALID_PRODUCER_EPOCH)
DONE = ErrorCode.NONE
READS: list[Any] = [
    lambda number: OffsetFetch(number, "g", (TopicPartition(TOPIC, 0),)),
    lambda number: DescribeGroups(number, ("g",)),
    lambda number: ConsumerGroupDescribe(number, ("g",)),
    ListGroups,
    lambda number: DeleteGroups(number, ("missing",)),
    lambda number: OffsetDelete(number, "missing", ()),
]


class VirtualClock(LoopDriver):
    """A driver whose clocks are those of the turns.

    Attributes:
        asleep_ms: how long the machine slept, which the monotonic clock does not know of.
    """

    asleep_ms = 0
    turns: Any

    def now(self) -> Now:
        mono_ms = round(self.turns.now_s * 1000)
        return Now(mono_ms, 1_700_000_000_000 + mono_ms)

    def clock_with_sleep_ms(self) -> int:
        return self.now().mono_ms + self.asleep_ms

    def call_at(self, mono_ms: int, action: Any) -> Any:
        return self.turns.call_later((mono_ms - self.now().mono_ms) / 1000, action)


class Proving(Driven):
    """A shard that serves one stable group of one member, `g`, over a journal that wants proof."""

    journal: LateJournal

    def __init__(self, folder: Path, ownership_proof_ms: int | None = PROOF_MS) -> None:
        journal = LateJournal(folder)
        journal.ownership_proof_ms = ownership_proof_ms
        super().__init__(folder, journal)
        driver = VirtualClock(self.turns, self)  # type: ignore[arg-type]
        driver.turns = self.turns
        self.clock = driver
        self.driver = driver
        self.shard = self.make(0, 1)
        self.load()
        self.member, self.generation = self._join()
        journal.appends.clear()
        self.answered.clear()

    def _join(self) -> tuple[str, int]:
        protocols = (OfferedProtocol("range", b""),)
        join = JoinGroup(
            0, "g", "", "one", Sender("c", "/h"), "consumer", protocols, SESSION_MS, SESSION_MS, requires_known_id=False
        )
        number = self.ask(lambda request: _with(join, request))
        self.settle(10_000)
        (joined,) = self.answers[number]
        sync = SyncGroup(0, "g", joined.generation, "one", (("one", b"all"),))
        number = self.ask(lambda request: _with(sync, request))
        self.settle()
        assert self.answers[number][0].assignment == b"all"
        return "one", joined.generation

    def settle(self, pass_ms: int = 0) -> None:
        """Answer until nothing is on its way."""
        self.turns.settle()
        for _ in itertools.count():
            if self.journal.on_way is not None:
                self.journal.answer()
                self.turns.settle()
            elif pass_ms > 0:
                self.turns.pass_time(0.1)
                pass_ms -= 100
            else:
                return

    def beat(self, delay_ms: int = 0) -> int:
        """A heartbeat of the member."""
        return self.ask(
            lambda number: Heartbeat(number, "g", self.generation, self.member, None, delay_ms, interval_ms=9_000)
        )

    def members(self) -> list[str]:
        """Return the group's members."""
        asked = self.ask(lambda number: DescribeGroups(number, ("g",)))
        self.settle()
        return [member.member_id for member in self.answers[asked][0].groups[0].members]

    def reported(self, number: int) -> list[Any]:
        """Return the responses so far: error codes where a response has one."""
        return [getattr(value, "error", value) for value in self.answers[number]]

    @property
    def sent(self) -> list[int]:
        """How many records each append had."""
        return [len(records) for records in self.journal.appends]


def _with(event: Event, request: int) -> Any:
    force_setattr(event, "request", request)
    return event


@pytest.fixture
def proving(tmp_path: Path) -> Proving:
    """A shard with a stable group, whose proof is just acknowledged."""
    return Proving(tmp_path)


def test_a_heartbeat_leaves_at_once_while_the_proof_is_young(proving: Proving) -> None:
    proving.turns.pass_time(PROOF_MS / 1000)
    beat = proving.beat()
    proving.turns.settle()
    assert proving.reported(beat) == [DONE]
    assert proving.sent == []


def test_with_an_older_proof_several_wait_for_one_append_without_records(proving: Proving) -> None:
    proving.turns.pass_time(1.001)
    beats = [proving.beat() for _ in range(3)]
    proving.turns.settle()
    late = proving.beat()
    proving.turns.settle()
    assert proving.answered == []
    assert proving.sent == [0]
    assert not proving.shard.is_idle
    proving.journal.answer()
    assert proving.answered == [*beats, late]
    assert proving.sent == [0]
    assert proving.shard.is_idle


@pytest.mark.parametrize("read", READS)
def test_a_read_stands_on_an_append_that_was_sent_after_it_came(proving: Proving, read: Any) -> None:
    asked = proving.ask(read)
    proving.turns.settle()
    assert proving.sent == [0]
    second, beat = proving.ask(read), proving.beat()
    proving.turns.settle()
    assert proving.answered == []
    proving.journal.answer()
    assert proving.answered == [asked]
    assert proving.sent == [0, 0]
    third = proving.ask(read)
    proving.turns.settle()
    proving.journal.answer()
    assert proving.answered == [asked, second, beat]
    proving.journal.answer()
    assert proving.answered == [asked, second, beat, third]
    assert proving.sent == [0, 0, 0]


def test_a_read_shares_an_append_with_records(proving: Proving) -> None:
    proving.commit("old", 1)
    fetch = proving.fetch("old")
    proving.turns.settle()
    assert len(proving.sent) == 1
    proving.journal.answer()
    assert proving.answer(fetch) == 1
    assert len(proving.sent) == 1


def test_what_is_acknowledged_too_late_is_no_proof(proving: Proving) -> None:
    """The shard does not write such records again, and requests that arrived meanwhile wait with them."""
    commit = proving.commit("old", 5)
    proving.turns.settle()
    proving.turns.pass_time(1.5)
    beat = proving.beat()
    proving.turns.settle()
    proving.journal.answer()
    assert proving.answered == []
    assert proving.sent[1:] == [0]
    assert not proving.shard.is_idle
    proving.turns.pass_time(0.5)
    proving.journal.answer()
    assert proving.answered == [commit, beat]
    assert proving.shard.is_idle
    assert proving.written()["old"] == 5
    assert len(proving.sent) == 2


def test_a_proof_grows_old_while_the_machine_sleeps(proving: Proving) -> None:
    proving.clock.asleep_ms = 60_000
    beat = proving.beat()
    proving.turns.settle()
    assert proving.answered == []
    proving.journal.lose(FENCED)
    assert proving.reported(beat) == [ErrorCode.NOT_COORDINATOR]


def test_long_polled_heartbeat_needs_its_proof_when_it_is_released(proving: Proving) -> None:
    beat = proving.beat(delay_ms=3_000)
    proving.turns.pass_time(2.0)
    assert proving.answered == []
    assert proving.sent == []
    proving.turns.pass_time(1.1)
    assert proving.answered == []
    assert proving.sent == [0]
    proving.journal.answer()
    assert proving.reported(beat) == [DONE]


def test_a_deposed_owner_answers_nothing_and_says_that_it_ended(proving: Proving) -> None:
    proving.turns.pass_time(2.0)
    beat, read = proving.beat(), proving.fetch("g")
    proving.turns.settle()
    proving.journal.lose(FENCED)
    assert proving.reported(beat) == proving.reported(read) == [ErrorCode.NOT_COORDINATOR]
    assert proving.ended == []
    proving.turns.settle()
    assert proving.ended == [(0, Phase.FENCED, FENCED)]


def test_what_answers_nobody_needs_no_proof(proving: Proving) -> None:
    """A tick that finds nothing due."""
    proving.beat()
    proving.turns.settle()
    proving.turns.pass_time(2.0)
    proving.shard.queue_event(TimersDue())
    proving.turns.settle()
    assert proving.sent == []
    assert proving.shard.is_idle


def test_where_no_proof_is_wanted_none_is_made(tmp_path: Path) -> None:
    proving = Proving(tmp_path, ownership_proof_ms=None)
    proving.turns.pass_time(5.0)
    beat, read = proving.beat(), proving.fetch("g")
    proving.turns.settle()
    assert proving.answered == [beat, read]
    assert proving.sent == []


@pytest.mark.parametrize(("ownership_proof_ms", "longer_ms"), [(None, 0), (PROOF_MS, PROOF_MS)])
@pytest.mark.parametrize("heard_ms", [None, 400])
def test_sessions_count_from_when_an_earlier_owner_may_have_answered_last(
    tmp_path: Path, ownership_proof_ms: int | None, longer_ms: int, heard_ms: int | None
) -> None:
    """Also of a member that has been heard since: it may have asked the earlier owner after that."""
    proving = Proving(tmp_path, ownership_proof_ms)
    proving.load()
    proving.settle()
    if heard_ms is not None:
        proving.turns.pass_time(heard_ms / 1000)
        proving.beat()
        proving.settle()
    last_ms = max(heard_ms or 0, longer_ms) + SESSION_MS - (heard_ms or 0)
    proving.turns.pass_time(last_ms / 1000 - 0.001)
    proving.settle()
    assert proving.members() == ["one"]
    proving.turns.pass_time(0.002)
    proving.settle()
    assert proving.members() == []
