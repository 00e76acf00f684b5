"""A shard's own failures: a fault in the coordinator costs one request, not the shard."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kohort.broker.run import RunningBroker
from kohort.broker.shard import GroupShard
from kohort.errors import ErrorCode
from kohort.groups.events import Heartbeat, ListGroups, OffsetCommit, OffsetToCommit


async def loaded(shard: GroupShard) -> None:
    """Wait until it serves."""
    async with asyncio.timeout(10):
        while not shard.loaded:  # noqa: ASYNC110  # a shard has no event for tests
            await asyncio.sleep(0.01)


async def play(folder: Path, faults: list[dict[str, Any]]) -> list[Any]:
    """A commit, a request on which the coordinator breaks, and another, in one batch; then the commit's trace."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: faults.append(context))
    broker = RunningBroker(loop, folder, "127.0.0.1:0", {})
    broker.listen()
    shard = next(iter(broker.node.groups))
    await loaded(shard)
    answers: list[Any] = []
    shard.ask(OffsetCommit(1, "g", "", -1, (OffsetToCommit("t", 0, 7),)), answers.append)
    shard.ask(Heartbeat(2, "g", None, []), answers.append)  # type: ignore[arg-type]  # no id can be a list
    shard.ask(ListGroups(3), answers.append)
    await asyncio.sleep(0)
    await loaded(shard)
    listed: asyncio.Future[Any] = loop.create_future()
    shard.ask(ListGroups(4), listed.set_result)
    answers.append(await listed)
    await broker.close()
    return answers


def test_a_fault_in_the_coordinator_costs_one_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    faults: list[dict[str, Any]] = []
    committed, broken, beside, listed = asyncio.run(play(tmp_path, faults))
    assert committed.errors == (ErrorCode.NONE,)
    assert broken is ErrorCode.UNKNOWN_SERVER_ERROR
    assert beside is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert [group.group_id for group in listed.groups] == ["g"]
    assert isinstance(faults[0]["exception"], TypeError)
    assert "a fault in the coordinator at Heartbeat" in caplog.text
