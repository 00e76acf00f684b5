"""The clock of what is deleted by age, while the wall clock steps."""

from __future__ import annotations

from kohort.io.age_clock import PATIENCE_MS, TOLERANCE_MS, AgeClock

DAY_MS = 86_400_000
START_MS = 1_700_000_000_000


def test_step_forward_counts_after_it_has_lasted() -> None:
    clock = AgeClock(START_MS, 5_000)
    assert clock.now_ms(START_MS + 1_000, 6_000) == START_MS + 1_000
    wall_ms = START_MS + 365 * DAY_MS
    assert clock.now_ms(wall_ms, 6_000) == START_MS + 1_000
    assert clock.held_back_ms == 365 * DAY_MS - 1_000
    assert clock.now_ms(wall_ms + PATIENCE_MS - 1, 6_000 + PATIENCE_MS - 1) == START_MS + 1_000 + PATIENCE_MS - 1
    assert clock.now_ms(wall_ms + PATIENCE_MS, 6_000 + PATIENCE_MS) == wall_ms + PATIENCE_MS
    assert clock.held_back_ms == 0


def test_step_forward_that_is_taken_back_never_counts() -> None:
    clock = AgeClock(START_MS, 0)
    for turn in range(5):
        at_ms = turn * PATIENCE_MS
        assert clock.now_ms(START_MS + at_ms + DAY_MS, at_ms) == START_MS + at_ms
        later_ms = at_ms + PATIENCE_MS // 2
        assert clock.now_ms(START_MS + later_ms, later_ms) == START_MS + later_ms
        assert clock.held_back_ms == 0


def test_second_step_forward_has_to_last_as_long_as_the_first() -> None:
    clock = AgeClock(START_MS, 0)
    first_ms, second_ms = 2 * TOLERANCE_MS, 365 * DAY_MS
    assert clock.now_ms(START_MS + first_ms, 0) == START_MS
    late_ms = PATIENCE_MS - 1
    assert clock.now_ms(START_MS + late_ms + second_ms, late_ms) == START_MS + late_ms
    after_ms = START_MS + PATIENCE_MS
    assert clock.now_ms(after_ms + second_ms, PATIENCE_MS) == after_ms + first_ms
    assert clock.held_back_ms == second_ms - first_ms
    after_ms += PATIENCE_MS
    assert clock.now_ms(after_ms + second_ms, 2 * PATIENCE_MS) == after_ms + second_ms
    assert clock.held_back_ms == 0


def test_step_back_and_drift_count_at_once() -> None:
    clock = AgeClock(START_MS, 0)
    assert clock.now_ms(START_MS - DAY_MS, 10) == START_MS - DAY_MS
    for turn in range(1, 5):
        wall_ms = START_MS - DAY_MS + turn * TOLERANCE_MS
        assert clock.now_ms(wall_ms, 10) == wall_ms
