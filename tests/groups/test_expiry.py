"""Scenario 13 and spec 1.5-1.6: which positions expire, and from when."""

from __future__ import annotations

import pytest

from kohort.errors import ErrorCode
from kohort.groups.events import DescribeGroups, OffsetToCommit, TxnOffsetCommit
from kohort.groups.outcome import Meter
from tests.groups.trial import Trial, protocols

HOUR_MS = 3_600_000
CHECK_MS = 60_000


def make_trial() -> Trial:
    return Trial(offsets_retention_minutes=60, offsets_retention_check_ms=CHECK_MS, max_session_timeout_ms=24 * HOUR_MS)


def is_gone(trial: Trial) -> bool:
    reply = trial.ask(DescribeGroups(trial.request(), ("g",)))
    return reply.groups[0].error is ErrorCode.GROUP_ID_NOT_FOUND


def test_scenario_13_an_empty_groups_positions_expire_from_the_moment_it_became_empty() -> None:
    trial = make_trial()
    members, generation = trial.stable(1, session_timeout_ms=10 * HOUR_MS)
    trial.commit(1, members[0], generation)
    trial.pass_time(3 * HOUR_MS)
    assert trial.committed() == 1
    trial.leave(members[0])
    trial.pass_time(HOUR_MS - CHECK_MS)
    assert trial.committed() == 1
    trial.pass_time(2 * CHECK_MS)
    assert trial.committed() == -1
    assert trial.counted(Meter.OFFSET_EXPIRATIONS) == 1
    assert is_gone(trial)
    assert list(trial.machine.snapshot()) == []


def test_scenario_13_a_stable_group_loses_only_positions_of_topics_it_does_not_read() -> None:
    trial = make_trial()
    members, generation = trial.stable(1, session_timeout_ms=10 * HOUR_MS)
    trial.commit(1, members[0], generation)
    trial.commit(2, members[0], generation, topic="old")
    trial.pass_time(HOUR_MS + CHECK_MS)
    assert (trial.committed(), trial.committed("old")) == (1, -1)


@pytest.mark.parametrize("kind", ["rebalancing", "other type", "unreadable"])
def test_scenario_13_no_position_expires(kind: str) -> None:
    trial = make_trial()
    more: dict[str, object] = {"session_timeout_ms": 10 * HOUR_MS, "rebalance_timeout_ms": 10 * HOUR_MS}
    if kind == "other type":
        more["protocol_type"] = "connect"
    if kind == "unreadable":
        more["protocols"] = (type(protocols("range")[0])("range", b"\x00"),)
    members, generation = trial.stable(2, **more)
    trial.commit(2, members[0], generation, topic="old")
    if kind == "rebalancing":
        trial.join(members[0], **more)
    trial.pass_time(3 * HOUR_MS)
    assert trial.committed("old") == 2


def test_scenario_13_pending_positions_keep_theirs_and_their_group() -> None:
    trial = make_trial()
    trial.commit(1)
    trial.feed(TxnOffsetCommit(trial.request(), "g", 9, 0, (OffsetToCommit("t", 0, 2),)))
    trial.pass_time(3 * HOUR_MS)
    assert trial.committed() == 1


def test_positions_without_group_management_expire_from_their_commit() -> None:
    trial = make_trial()
    trial.commit(1)
    trial.pass_time(HOUR_MS // 2)
    trial.commit(2, partition=1)
    trial.pass_time(HOUR_MS // 2 + CHECK_MS)
    assert (trial.committed(), trial.committed(partition=1)) == (-1, 2)
    trial.pass_time(HOUR_MS)
    assert is_gone(trial)


def test_an_expire_timestamp_of_its_own_wins() -> None:
    trial = make_trial()
    trial.commit(1, retention_ms=5_000)
    trial.commit(2, partition=1, retention_ms=5 * HOUR_MS)
    trial.pass_time(CHECK_MS + 1)
    assert trial.committed() == -1
    trial.pass_time(3 * HOUR_MS)
    assert trial.committed(partition=1) == 2


def test_a_commit_to_an_empty_group_starts_its_own_time() -> None:
    trial = make_trial()
    members, _ = trial.stable(1)
    trial.leave(members[0])
    trial.commit(1, topic="keeps", retention_ms=10 * HOUR_MS)
    trial.pass_time(2 * HOUR_MS)
    trial.commit(5)
    trial.pass_time(HOUR_MS // 2)
    assert trial.committed() == 5


def test_thousands_of_positions_expire_over_several_steps() -> None:
    trial = make_trial()
    for number in range(30):
        for partition in range(400):
            trial.commit(1, group_id=f"g{number}", partition=partition)
    trial.notes.clear()
    trial.pass_time(HOUR_MS + 2 * CHECK_MS)
    assert trial.counted(Meter.OFFSET_EXPIRATIONS) == 12_000
    assert list(trial.machine.snapshot()) == []
