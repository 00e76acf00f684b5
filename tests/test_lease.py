"""How one number of ms is divided: who lives on behind a broken connection has stopped before others take over."""

from __future__ import annotations

import pytest

from kohort.io.processes import lease_heartbeat_ms, lease_response_timeout_ms, long_poll_max_ms, ownership_ms

CLOCKS_DIFFER = 0.001
"""At worst, by the clocks' own limits."""
LEASES = [1_000, 5_000, 7_777, 60_000]


@pytest.mark.parametrize("lease_ms", LEASES)
def test_a_member_stops_before_it_is_evicted_though_clocks_differ(lease_ms: int) -> None:
    assert ownership_ms(lease_ms) * (1 + CLOCKS_DIFFER) + 2 < lease_ms


@pytest.mark.parametrize("lease_ms", LEASES)
def test_two_held_answers_in_a_row_leave_a_part_of_the_lease(lease_ms: int) -> None:
    assert 2 * long_poll_max_ms(lease_ms) <= lease_ms * 3 / 4 < ownership_ms(lease_ms)


@pytest.mark.parametrize("lease_ms", LEASES)
def test_a_lost_heartbeat_leaves_time_for_another(lease_ms: int) -> None:
    assert 2 * lease_heartbeat_ms(lease_ms) < ownership_ms(lease_ms)
    assert long_poll_max_ms(lease_ms) < lease_response_timeout_ms(lease_ms) < ownership_ms(lease_ms)
