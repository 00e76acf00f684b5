"""Requests that clients repeat: when a template is made, and that a request read by it is handled like any other."""

from __future__ import annotations

import gc
import tracemalloc
import uuid
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from kohort import Admin, Broker
from kohort.broker.api import group_offsets
from kohort.broker.api.group_offsets import CommitPlan, RepeatedCommit
from kohort.broker.server import repeated_requests
from kohort.broker.server.repeated_requests import RepeatedRequests, Repetition
from kohort.client.admin.values import NewTopic
from kohort.errors import NO_ERROR, ErrorCode
from kohort.groups.effects import OffsetCommitReply
from kohort.wire import framing
from kohort.wire.groups import HeartbeatRequest
from kohort.wire.offsets import OffsetCommitRequest, OffsetFetchRequest
from tests.broker.raw import RawClient

Topic, Part = OffsetCommitRequest.OffsetCommitRequestTopic, OffsetCommitRequest.OffsetCommitRequestPartition
HEARTBEAT_KEY = HeartbeatRequest.API_KEY


class Client:
    """A client as `RepeatedRequests` sees it."""

    def __init__(self, requests: RepeatedRequests) -> None:
        self.repeated: dict[int, Repetition] = {}
        self._requests = requests

    def send(self, group: str, version: int = 4) -> bool:
        """Count a heartbeat as the dispatcher does; return whether a template has read it."""
        message = HeartbeatRequest(group_id=group, generation_id=1, member_id="m")
        frame = framing.encode_request(message, version, 1, "c")[4:]
        repetition = self.repeated.get(HEARTBEAT_KEY)
        if repetition is not None and repetition.template is not None and repetition.template.varying_numbers(frame):
            repetition.uses += 1
            return True
        header, body = framing.decode_request_header(frame)
        self._requests.record_request(self, frame, header, HeartbeatRequest.decode(body, version))
        return False


def test_template_serves_from_the_third_equal_request_on() -> None:
    client = Client(RepeatedRequests())
    assert [client.send("a") for _ in range(5)] == [False, False, True, True, True]


def test_another_request_is_not_read_by_the_template() -> None:
    client = Client(RepeatedRequests())
    for _ in range(20):
        client.send("a")
    assert [client.send("b") for _ in range(3)] == [False, False, True], "a new member has one as fast"


def test_client_whose_templates_do_not_serve_gets_fewer_of_them() -> None:
    client = Client(RepeatedRequests())
    made = 0
    for number in range(300):
        before = client.repeated[HEARTBEAT_KEY].template if number else None
        client.send("ab"[number % 2])
        after = client.repeated[HEARTBEAT_KEY].template
        made += after is not None and after is not before
    assert made < 12


def test_no_template_is_made_beyond_the_memory_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_requests, "KEPT_BYTES_MAX", 8_000)
    requests = RepeatedRequests()
    clients = [Client(requests) for _ in range(4)]
    served = [[client.send("a") for _ in range(4)][-1] for client in clients]
    assert served == [True, True, False, False]
    requests.forget_client(clients[0])
    assert [clients[2].send("a") for _ in range(3)][-1], "the memory of a closed connection is free again"


class KnownTopic(NamedTuple):
    name: str
    id: uuid.UUID
    partitions: int


def keep_template(requests: RepeatedRequests, request: OffsetCommitRequest, version: int) -> Repetition:
    """Make the template of a commit, with everything that the handler keeps in it."""
    client = Client(requests)
    frame = bytearray(framing.encode_request(request, version, 1, "c")[4:])
    for _ in range(2):
        header, body = framing.decode_request_header(frame)
        requests.record_request(client, frame, header, OffsetCommitRequest.decode(body, version))
    repetition = client.repeated[OffsetCommitRequest.API_KEY]
    template = repetition.template
    assert template is not None
    message = template.make(template.varying_numbers(frame) or ())
    assert isinstance(message, OffsetCommitRequest)
    known = [(topic, KnownTopic(topic.name, topic.topic_id, 1 << 30)) for topic in message.topics]
    plan = CommitPlan(known, version >= 10)
    count = sum(len(topic.partitions) for topic in message.topics)
    assert plan.encoded_success_response(version, OffsetCommitReply((NO_ERROR,) * count))
    template.prepared = RepeatedCommit(plan, "g", "m", 1, None, -1, True)
    return repetition


def bytes_used(requests: RepeatedRequests, request: OffsetCommitRequest, version: int) -> tuple[int, Repetition]:
    """Return the memory of one more template, with what other threads allocate meanwhile, and the template."""
    gc.collect()
    tracemalloc.start()
    try:
        kept = keep_template(requests, request, version)
        group_offsets.encoded_commit_response.cache_clear()
        gc.collect()
        return tracemalloc.get_traced_memory()[0], kept
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("version", [2, 8, 10])
@pytest.mark.parametrize(("topics", "partitions"), [(1, 1), (1, 100), (5, 10), (100, 1), (150, 0)], ids=str)
def test_memory_of_a_template_is_counted(version: int, topics: int, partitions: int) -> None:
    """Most of it is of topics, where a commit has many of them."""
    parts = [
        Part(partition_index=1_000 + index, committed_offset=100_000 + index, committed_metadata="")
        for index in range(partitions)
    ]
    named = [
        Topic(topic_id=uuid.UUID(int=number + 1), partitions=parts)
        if version >= 10
        else Topic(name=f"t{number}", partitions=parts)
        for number in range(topics)
    ]
    request = OffsetCommitRequest(group_id="g", member_id="m", topics=named)
    requests = RepeatedRequests()
    keep_template(requests, request, version)
    used, kept = min((bytes_used(requests, request, version) for _ in range(3)), key=lambda found: found[0])
    assert used < 1.2 * kept.kept_bytes


# -- through the broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("a", 5), NewTopic("b", 30)]).all()
        yield broker


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap_servers) as raw:
        yield raw


def commit_of(group: str, offset: int, *topics: tuple[str, int]) -> OffsetCommitRequest:
    """A commit of the first partitions of topics: each at the offset plus its index, in the epoch of its index."""
    named = [
        Topic(
            name=name,
            partitions=[
                Part(
                    partition_index=index,
                    committed_offset=offset + index,
                    committed_leader_epoch=index,
                    committed_metadata="m" if index == 1 else "",
                )
                for index in range(count)
            ],
        )
        for name, count in topics
    ]
    return OffsetCommitRequest(group_id=group, topics=named)


def codes(client: RawClient, request: OffsetCommitRequest, version: int = 8) -> list[int]:
    return [part.error_code for topic in client.ask(request, version).topics for part in topic.partitions]


def stored(client: RawClient, group: str) -> dict[tuple[str, int], tuple[int, int, str | None]]:
    asked = OffsetFetchRequest(groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None)])
    return {
        (topic.name, part.partition_index): (part.committed_offset, part.committed_leader_epoch, part.metadata)
        for topic in client.ask(asked, 8).groups[0].topics
        for part in topic.partitions
    }


@pytest.mark.parametrize("version", [5, 8])
def test_repeated_commits_store_their_own_offsets(client: RawClient, version: int) -> None:
    topics = (("a", 2), ("b", 12))
    for number in range(6):
        request = commit_of(f"g{version}", 100 * number, *topics)
        if version < 6:
            for topic in request.topics:
                for part in topic.partitions:
                    part.committed_leader_epoch = -1
        assert codes(client, request, version) == [0] * 14
        assert stored(client, f"g{version}") == {
            (name, index): (100 * number + index, index if version >= 6 else -1, "m" if index == 1 else "")
            for name, count in topics
            for index in range(count)
        }


def test_repeated_commits_in_one_read_are_answered_in_order(client: RawClient) -> None:
    for number in range(40):
        client.send(commit_of("many", number, ("b", 3)), 8)
    answers = [client.receive() for _ in range(40)]
    assert all(part.error_code == 0 for answer in answers for part in answer.topics[0].partitions)
    assert stored(client, "many")["b", 2] == (41, 2, "")


def test_repeated_commit_to_a_deleted_topic_is_refused(broker: Broker, client: RawClient) -> None:
    with Admin(broker.bootstrap_servers) as admin:
        for _ in range(2):
            admin.create_topics([NewTopic("gone", 2)]).all()
            assert [codes(client, commit_of("d", number, ("gone", 2))) for number in range(5)] == [[0, 0]] * 5
            admin.delete_topics(["gone"]).all()
            missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert [codes(client, commit_of("d", number, ("gone", 2))) for number in range(4)] == [[missing] * 2] * 4
        admin.create_topics([NewTopic("gone", 1)]).all()
        assert codes(client, commit_of("d", 9, ("gone", 2))) == [0, missing], "the new topic has one partition only"


def test_repeated_heartbeat_of_a_stranger_stays_refused(client: RawClient) -> None:
    heartbeat = HeartbeatRequest(group_id="none", generation_id=1, member_id="m")
    assert {client.ask(heartbeat, 4).error_code for _ in range(5)} == {ErrorCode.UNKNOWN_MEMBER_ID}
