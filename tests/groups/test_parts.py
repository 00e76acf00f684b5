"""The core's parts for themselves: deadlines and the reader of subscriptions."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation.checkers import invariants

from kohort.consumer_protocol import read_topics
from kohort.groups import timers as timers_module
from kohort.groups.timers import SWEEP_MIN, Deadline, Deadlines, Timer
from tests.groups.harness import Trial, subscription


def test_timers_come_due_in_order_and_can_be_moved_and_cancelled() -> None:
    deadlines = Deadlines()
    first, second, third = (Timer(Deadline.SESSION, "g", name) for name in "abc")
    deadlines.set_timer(first, 10)
    deadlines.set_timer(second, 20)
    deadlines.set_timer(third, 30)
    deadlines.set_timer(first, 40)
    deadlines.set_timer(third, 5)
    second.cancel()
    assert deadlines.next_ms() == 5
    assert deadlines.pop_due(4) is None
    assert deadlines.pop_due(100) is third
    assert deadlines.pop_due(39) is None
    assert deadlines.next_ms() == 40
    assert deadlines.pop_due(40) is first
    assert deadlines.next_ms() is None


def test_cancelled_timers_take_no_memory_until_their_time() -> None:
    """Each unused member id left a timer for its session timeout: half an hour of JoinGroups, and their ids."""
    deadlines = Deadlines()
    kept = [Timer(Deadline.SESSION, "g", str(number)) for number in range(3_000)]
    for number, timer in enumerate(kept):
        deadlines.set_timer(timer, 10_000 + number)
    for number in range(50_000):
        timer = Timer(Deadline.PENDING_MEMBER, "g", f"joined-{number}")
        deadlines.set_timer(timer, 1_800_000)
        timer.cancel()
        deadlines.set_timer(kept[number % len(kept)], 10_000 + number % len(kept))
    assert len(deadlines) <= 4 * len(kept)
    assert [deadlines.pop_due(20_000) for _ in kept] == kept
    assert deadlines.pop_due(2_000_000) is None


def test_a_timer_that_comes_earlier_again_and_again_is_kept_once() -> None:
    deadlines = Deadlines()
    timer = Timer(Deadline.SESSION, "g", "m")
    for due in range(50_000, 0, -1):
        deadlines.set_timer(timer, due)
    assert len(deadlines) <= SWEEP_MIN
    assert deadlines.pop_due(1) is timer
    assert deadlines.pop_due(50_000) is None


def test_timers_agree_with_a_plain_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers_module, "SWEEP_MIN", 8)
    chance = random.Random(7)
    deadlines = Deadlines()
    timers = [Timer(Deadline.SESSION, "g", str(number)) for number in range(20)]
    plain: dict[Timer, int] = {}
    now = 0
    for _ in range(5_000):
        timer = chance.choice(timers)
        action = chance.random()
        if action < 0.6:
            due = now + chance.randrange(100)
            deadlines.set_timer(timer, due)
            plain[timer] = due
        elif action < 0.7:
            timer.cancel()
            plain.pop(timer, None)
        else:
            now += chance.randrange(30)
            fired = set()
            while (due_timer := deadlines.pop_due(now)) is not None:
                fired.add(due_timer)
            assert fired == {timer for timer, due in plain.items() if due <= now}
            plain = {timer: due for timer, due in plain.items() if due > now}
        nearest = deadlines.next_ms()
        assert (nearest is None) == (not plain)
        assert nearest is None or nearest <= min(plain.values())


@pytest.mark.parametrize("version", [0, 1, 2, 3, 99, -1])
def test_a_subscription_is_read_as_version_0(version: int) -> None:
    assert read_topics(subscription("a", "é", version=version, user_data=b"xyz") + b"trailing") == ("a", "é")


@pytest.mark.parametrize("raw", [b"", b"\0\0", b"\0\0\xff\xff\xff\xff", b"\0\0\0\0\0\1", b"\0\0\0\0\0\1\0\5ab"])
def test_what_is_no_subscription_is_none(raw: bytes) -> None:
    assert read_topics(raw) is None


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    topics = read_topics(raw)
    assert topics is None or all(isinstance(topic, str) for topic in topics)


def test_broken_invariants_are_named() -> None:
    trial = Trial()
    members, _ = trial.stable(2)
    classic = trial.classic_group()
    invariants.check(trial.machine.context)
    classic.awaiting_join = 7
    classic.static_ids["i"] = members[0]
    with pytest.raises(invariants.BrokenInvariantError, match="g: awaiting_join is 7; static_ids are"):
        invariants.check(trial.machine.context)
