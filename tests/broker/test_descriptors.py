"""A broker with few descriptors: what it can't have is refused, what it has goes on working."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from kohort.broker.server.listener import DESCRIPTORS_MIN, OTHERS, divide_descriptors
from kohort.errors import InvalidInputError
from kohort.wire.data import FetchRequest
from kohort.wire.discovery import CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest, MetadataRequest
from kohort.wire.offsets import OffsetCommitRequest
from tests.broker.raw import RawClient, batch_of, create_topic, end_offset, fetch, produce

DESCRIPTORS = 256
CODE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[3]), int(sys.argv[3])))
from kohort.broker.run import run_broker
sys.exit(run_broker(sys.argv[1], sys.argv[2], {}))
"""


@contextmanager
def broker_with(descriptors: int, folder: Path) -> Iterator[tuple[str, int]]:
    """The address and process id of a broker that may have so many; it must end with 0."""
    command = [sys.executable, "-c", CODE, "127.0.0.1:0", str(folder), str(descriptors)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            word, address = process.stdout.readline().split()
            assert word == "ready"
            yield address, process.pid
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()


def descriptors_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def commit(client: RawClient, group: str, topic: str, offset: int) -> int:
    part = OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=""
    )
    asked = OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=[part])
    answer = client.ask(OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, topics=[asked]), 8)
    return int(answer.topics[0].partitions[0].error_code)


def test_thousands_of_partitions_need_no_descriptors(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with broker_with(DESCRIPTORS, folder) as (address, pid), RawClient(address) as client:
        before = descriptors_of(pid)
        create_topic(client, "wide", 3_000)
        assert descriptors_of(pid) <= before + 1
        for index in range(0, 3_000, 10):
            assert produce(client, "wide", index, batch_of(b"x")).error_code == 0
        assert descriptors_of(pid) < before + divide_descriptors(DESCRIPTORS).files + 5
    with broker_with(DESCRIPTORS, folder) as (address, pid), RawClient(address) as client:
        assert [end_offset(client, "wide", index) for index in (0, 1, 10, 2_990)] == [1, 0, 1, 1]


def test_a_full_broker_serves_who_is_there_refuses_the_others_and_starts_again(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with ExitStack() as stack:
        address, pid = stack.enter_context(broker_with(DESCRIPTORS, folder))
        client = stack.enter_context(RawClient(address))
        create_topic(client, "before", 200)
        admitted = refused = 0
        for _ in range(DESCRIPTORS):
            with suppress(ConnectionError):
                other = stack.enter_context(RawClient(address))
                other.send(MetadataRequest(topics=[]), 9)
                try:
                    other.receive()
                    admitted += 1
                except ConnectionError:
                    refused += 1
        assert admitted == divide_descriptors(DESCRIPTORS).connections - 1
        assert refused == DESCRIPTORS - admitted
        for index in range(200):
            assert produce(client, "before", index, batch_of(b"x")).error_code == 0
        assert bytes(fetch(client, "before", 7, 0).records)
        assert commit(client, "g", "before", 1) == 0
        create_topic(client, "after", 300)
        assert produce(client, "after", 299, batch_of(b"x")).error_code == 0
        assert descriptors_of(pid) < DESCRIPTORS
    with broker_with(DESCRIPTORS, folder) as (address, _), RawClient(address) as client:
        assert end_offset(client, "before", 199) == 1
        assert end_offset(client, "after", 299) == 1


def test_answers_that_nobody_takes_do_not_hold_on_to_all_files(tmp_path: Path) -> None:
    """Each large range is read from its file when the socket takes it: until then the file stays open."""
    with broker_with(DESCRIPTORS, tmp_path / "data") as (address, pid), ExitStack() as stack:
        client = stack.enter_context(RawClient(address))
        create_topic(client, "large", 300)
        for index in range(300):
            assert produce(client, "large", index, batch_of(b"x" * 40_000)).error_code == 0
        everything = [FetchRequest.FetchPartition(partition=i, partition_max_bytes=1 << 20) for i in range(300)]
        asked = FetchRequest(max_bytes=50 << 20, topics=[FetchRequest.FetchTopic(topic="large", partitions=everything)])
        lazy = []
        for _ in range(5):
            slow = stack.enter_context(RawClient(address))
            slow.send(asked, 12)
            lazy.append(slow)
        assert end_offset(client, "large", 0) == 1
        assert descriptors_of(pid) < DESCRIPTORS - 20
        for slow in lazy:
            (topic,) = slow.receive().responses
            assert [len(bytes(part.records)) > 40_000 for part in topic.partitions] == [True] * 300


def test_without_any_descriptor_a_connection_is_refused_and_changes_say_that_nothing_was_made(tmp_path: Path) -> None:
    with broker_with(DESCRIPTORS, tmp_path / "data") as (address, pid), ExitStack() as stack:
        client = stack.enter_context(RawClient(address))
        create_topic(client, "there", 2)
        assert produce(client, "there", 0, batch_of(b"x")).error_code == 0
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (descriptors_of(pid), DESCRIPTORS))
        with RawClient(address) as other:
            assert other.closed()
        make = CreateTopicsRequest.CreatableTopic(name="new", num_partitions=5, replication_factor=1)
        assert "nothing was changed" in client.ask(CreateTopicsRequest(topics=[make])).topics[0].error_message
        grow = CreatePartitionsRequest.CreatePartitionsTopic(name="there", count=4, assignments=None)
        assert client.ask(CreatePartitionsRequest(topics=[grow])).results[0].error_code == 56
        assert client.ask(DeleteTopicsRequest(topic_names=["there"]), 5).responses[0].error_code == 56
        assert produce(client, "there", 0, batch_of(b"y")).base_offset == 1
        known = {topic.name: len(topic.partitions) for topic in client.ask(MetadataRequest(topics=None)).topics}
        assert known["there"] == 2
        assert "new" not in known
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        create_topic(client, "new", 5)


@pytest.mark.parametrize("limit", [DESCRIPTORS_MIN, 256, 1024, 1500, 20_000, 1_000_000])
def test_shares_stay_within_the_limit(limit: int) -> None:
    files, lent, connections = divide_descriptors(limit)
    assert files >= 20
    assert lent >= 10
    assert connections > files
    assert files + lent + connections + OTHERS == limit


def test_too_few_descriptors_are_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"ulimit -n"):
        divide_descriptors(DESCRIPTORS_MIN - 1)
