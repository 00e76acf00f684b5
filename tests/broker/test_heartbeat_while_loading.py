"""Classic heartbeats while the coordinator loads: answered without an error, unless the client keeps a lease."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kohort.broker.api.groups import heartbeat
from kohort.broker.server.connection import ClientSession
from kohort.broker.shards import GroupShards
from kohort.coordinator.shard import Phase
from kohort.errors import ErrorCode
from kohort.groups.config import GroupConfig
from tests.broker.driven import TERM, Driven, no_space

LEASE_MS = 5_000


@pytest.mark.parametrize(
    ("software", "lease_ms", "reported"),
    [
        ("apache-kafka-java", 0, ErrorCode.NONE),
        ("kohort", 0, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        ("apache-kafka-java", LEASE_MS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    ],
)
def test_an_answer_that_knows_nothing_prolongs_no_lease(
    tmp_path: Path, software: str, lease_ms: int, reported: ErrorCode
) -> None:
    """A member that was evicted would work on partitions that are others'.

    A client without a lease is told as by Kafka.
    """
    driven, answers = Driven(tmp_path), list[int]()
    tokens = itertools.count(1_000)
    groups = GroupShards(lambda: next(tokens), lambda _index, _term: driven.shard)
    groups.take_over_shard(0, TERM)
    driven.turns.settle()
    client = ClientSession(1, "127.0.0.1")
    client.set_software(software, "1", "")
    client.lease_ms = lease_ms
    host: Any = SimpleNamespace(
        next_request_id=lambda: next(tokens), groups=groups, group_config=GroupConfig(notify_at_once="off")
    )
    message = SimpleNamespace(group_id="g", generation_id=7, member_id="put-out", group_instance_id=None)

    def beat() -> ErrorCode:
        request: Any = SimpleNamespace(
            message=message,
            client=client,
            is_only_waiting_request=True,
            accepts_encoded_response=False,
            reply=lambda answer: answers.append(answer.error_code),
        )
        heartbeat(host, request)
        driven.turns.settle()
        return ErrorCode.of(answers[-1])

    assert beat() is ErrorCode.UNKNOWN_MEMBER_ID
    driven.journal.fails = [no_space]
    driven.commit("a", 1)
    driven.turns.settle()
    assert driven.shard.phase is Phase.FAILED
    assert beat() is reported
    driven.turns.pass_time(60)
    assert beat() is ErrorCode.UNKNOWN_MEMBER_ID
