"""What a classic heartbeat is told while its coordinator loads: nothing is wrong, unless its client keeps a lease."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kohort.broker.api.groups import heartbeat
from kohort.broker.shards import GroupShards
from kohort.coordinator.shard import Phase
from kohort.errors import ErrorCode
from tests.broker.driven import Driven, no_space

LEASE_MS = 5_000


@pytest.mark.parametrize(
    ("own", "lease_ms", "told"),
    [
        (False, 0, ErrorCode.NONE),
        (True, 0, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (False, LEASE_MS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    ],
)
def test_an_answer_that_knows_nothing_prolongs_no_lease(
    tmp_path: Path, own: bool, lease_ms: int, told: ErrorCode
) -> None:
    """A member that was put out would work on partitions that are others'; a client without a lease is told as by Kafka."""
    driven, answers = Driven(tmp_path), list[int]()
    driven.load()
    groups: Any = GroupShards(lambda: 1)
    groups.set([driven.shard])
    connection = SimpleNamespace(held={}, shards=set(), number=1, lease_ms=lease_ms, pending=[])
    tokens = itertools.count(1_000)
    node: Any = SimpleNamespace(
        token=lambda: next(tokens),
        hold_ms=lambda _: 0,
        interval_ms=lambda _: 0,
        is_own=lambda _: own,
        groups=groups,
    )
    message = SimpleNamespace(group_id="g", generation_id=7, member_id="put-out", group_instance_id=None)

    def beat() -> ErrorCode:
        request: Any = SimpleNamespace(
            message=message, connection=connection, reply=lambda answer: answers.append(answer.error_code)
        )
        heartbeat(node, request)
        driven.turns.settle()
        return ErrorCode.of(answers[-1])

    assert beat() is ErrorCode.UNKNOWN_MEMBER_ID
    driven.journal.fails = [no_space]
    driven.commit("a", 1)
    driven.turns.settle()
    assert driven.shard.phase is Phase.FAILED
    assert beat() is told
    driven.turns.pass_time(60)
    assert beat() is ErrorCode.UNKNOWN_MEMBER_ID
