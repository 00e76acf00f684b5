"""A broker whose disk is full.

Clients get errors that they retry, nothing acknowledged is lost, and it goes on when there is room.
"""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from kohort import Broker
from kohort.errors import ErrorCode
from kohort.wire.offsets import OffsetFetchRequest
from tests.broker.group_member import Member, committed
from tests.broker.raw import RawClient, create_topic

SETTINGS = {"offsets.topic.num.partitions": 1, "group.initial.rebalance.delay.ms": 0}
WAIT_S = 60.0
RETRIED = {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}

Fill: TypeAlias = Callable[[Broker, Path], AbstractContextManager[None]]


@contextmanager
def small_files(broker: Broker, folder: Path) -> Iterator[None]:
    """No file of the broker can grow any more; the one that is written takes a part of the next write."""
    (journal,) = (folder / "__consumer_offsets-0").glob("*.log")
    hard = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (journal.stat().st_size + 10, hard))
    yield
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (hard, hard))


@contextmanager
def full_disk(broker: Broker, folder: Path) -> Iterator[None]:
    """Nothing is left of the disk: what is written last takes a part of it."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (65_536, 4_096, 1):
            try:
                while file.write(b"\0" * size):
                    pass
            except OSError:
                continue
    yield
    ballast.unlink()


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", tmp_path], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a file system can't be mounted here")
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def play(folder: Path, fill: Fill) -> None:
    """Commit while there is room, while there is none, and again; look at what a crash leaves."""
    with Broker(folder, SETTINGS) as broker, RawClient(broker.bootstrap_servers) as client:
        create_topic(client, "t")
        member = Member(client, "g", "t")
        member.join()
        member.sync({member.id: b"all"})
        assert member.commit("t", 0, 1) == ErrorCode.NONE
        acknowledged, refusals = 1, 0
        with fill(broker, folder):
            until = time.monotonic() + WAIT_S
            while refusals < 2:
                assert time.monotonic() < until
                error = ErrorCode.of(member.commit("t", 0, acknowledged + 1))
                assert error in {ErrorCode.NONE, *RETRIED}
                if error:
                    refusals += 1
                    assert member.heartbeat() == ErrorCode.NONE, "as Kafka while it loads"
                else:
                    acknowledged += 1
                assert committed_when_served(client) == acknowledged
        until = time.monotonic() + WAIT_S
        while member.commit("t", 0, acknowledged + 10) != ErrorCode.NONE:
            assert time.monotonic() < until
            committed_when_served(client)
        assert committed(client, "g", "t") == acknowledged + 10
        assert member.heartbeat() == ErrorCode.NONE
        broker.kill()
        broker.restart()
        with RawClient(broker.bootstrap_servers) as other:
            assert committed_when_served(other) == acknowledged + 10


def committed_when_served(client: RawClient) -> int:
    """Return the committed offsets once the coordinator has loaded again."""
    wanted = OffsetFetchRequest.OffsetFetchRequestTopics(name="t", partition_indexes=[0])
    asked = OffsetFetchRequest(groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=[wanted])])
    until = time.monotonic() + WAIT_S
    while (answer := client.ask(asked, 9).groups[0]).error_code:
        assert ErrorCode.of(answer.error_code) in RETRIED
        assert time.monotonic() < until
        time.sleep(0.02)
    return int(answer.topics[0].partitions[0].committed_offset)


def test_files_that_can_t_grow_lose_nothing_acknowledged(tmp_path: Path) -> None:
    play(tmp_path, small_files)


def test_a_full_disk_loses_nothing_acknowledged(tiny_disk: Path) -> None:
    play(tiny_disk, full_disk)
