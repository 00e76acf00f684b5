"""Requests get equal responses with and without templates, whatever happens between them.

A frame with a byte behind its message is read as if it were not there, and has no template.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from kohort import Broker
from kohort.wire import framing
from kohort.wire.discovery import DeleteTopicsRequest
from kohort.wire.groups import (
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    HeartbeatRequest,
    LeaveGroupRequest,
)
from kohort.wire.message import Message
from kohort.wire.offsets import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from tests.broker.raw import RawClient, create_topic, topic_id

Topic, Part = OffsetCommitRequest.OffsetCommitRequestTopic, OffsetCommitRequest.OffsetCommitRequestPartition
GROUPS, TOPICS = ("of a member", "g"), ("a", "b", "zz")
STEPS, REPEATS_MAX = 40, 9
VERSIONS = (5, 8, 9, 10)


class Client(RawClient):
    """A client whose frames end with `tail`."""

    def __init__(self, address: str, tail: bytes) -> None:
        super().__init__(address)
        self._tail = tail

    def send_frame(self, frame: bytes | bytearray) -> None:
        """Send a frame, given without its length."""
        self.sock.sendall(b"".join(((len(frame) + len(self._tail)).to_bytes(4, "big"), frame, self._tail)))

    def ask_tailed(self, message: Message, version: int) -> Any:
        """Send a request with the tail, and receive its answer."""
        self.send_frame(framing.encode_request(message, version, 1, "raw")[4:])
        return framing.decode_response(framing.APIS[message.API_KEY].response, version, self.frame())[1]


class Story:
    """A seeded order of requests to one broker, and its responses.

    Args:
        address: the broker.
        seed: decides about the requests.
        tail: the bytes behind each message.

    Attributes:
        responses: what the broker answered, with names in place of topic ids.
    """

    def __init__(self, address: str, seed: int, tail: bytes) -> None:
        self._tail = tail
        self.responses: list[object] = []
        self._address = address
        self._chance = random.Random(seed)
        self._client = Client(address, tail)
        self._usual: dict[int, OffsetCommitRequest] = {}
        self._ids: dict[str, uuid.UUID] = {}
        self._names: dict[uuid.UUID, str] = {}
        self._epoch = 0
        for name in TOPICS:
            self._create(name)

    def close(self) -> None:
        self._client.close()

    def send_story(self) -> None:
        """Send all requests."""
        steps: list[Callable[[], None]] = [self._commits] * 4 + [self._beats] * 2 + [self._joins, self._mutated]
        steps += [self._recreates] * 3 + [self._deletes]
        for _ in range(STEPS):
            if self._chance.random() < 0.5:
                self._client.close()
                self._client = Client(self._address, self._tail)
            self._chance.choice(steps)()
            for group in GROUPS:
                wanted = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None)
                self._ask(OffsetFetchRequest(groups=[wanted]), 8)

    def _create(self, name: str) -> None:
        create_topic(self._client, name, self._chance.choice((1, 7, 7, 7, 9)))
        self._ids[name] = topic_id(self._client, name)
        self._names[self._ids[name]] = name

    def _ask(self, message: Message, version: int) -> Any:
        answer = self._client.ask_tailed(message, version)
        self.responses.append((type(message).__name__, version, self._readable(answer)))
        return answer

    def _readable(self, answer: Any) -> str:
        text = repr(answer)
        for known, name in self._names.items():
            text = text.replace(repr(known), name).replace(str(known), name)
        return text

    def _commit(self, version: int) -> OffsetCommitRequest:
        chance = self._chance
        topics = []
        for name in chance.sample(TOPICS, chance.randrange(1, 3)):
            parts = [
                Part(partition_index=index, committed_offset=0, committed_metadata=chance.choice(("", "m", None)))
                for index in range(chance.choice((0, 1, 2, 2, 5)))
            ]
            ids = [known for known, of in self._names.items() if of == name]
            named = {"topic_id": chance.choice(ids)} if version >= 10 else {"name": name}
            topics.append(Topic(**named, partitions=parts))
        member = version >= 9 and chance.random() < 0.3
        return OffsetCommitRequest(
            group_id=GROUPS[not member],
            member_id="member" if member else "",
            generation_id_or_member_epoch=self._epoch if member else -1,
            retention_time_ms=-1,
            topics=topics,
        )

    def _commits(self, version: int = 0) -> None:
        """Repeat one commit several times, at other offsets; often that which was the last one before."""
        chance = self._chance
        version = version or chance.choice(VERSIONS)
        request = self._usual.get(version)
        if request is None or chance.random() < 0.2:
            request = self._usual[version] = self._commit(version)
        for _ in range(chance.randrange(3, REPEATS_MAX)):
            for topic in request.topics:
                for part in topic.partitions:
                    part.committed_offset = chance.choice((0, -1, 1 << 62, chance.randrange(1 << 40)))
                    part.committed_leader_epoch = chance.randrange(-1, 9) if version >= 6 else -1
            self._ask(request, version)

    def _beats(self) -> None:
        """Repeat one heartbeat several times: of a stranger, of a member, or of one in an old epoch."""
        chance, group = self._chance, GROUPS[0]
        classic = HeartbeatRequest(group_id=group, generation_id=chance.randrange(3), member_id="member")
        epoch = max(1, self._epoch - chance.randrange(2))
        new = ConsumerGroupHeartbeatRequest(group_id=group, member_id="member", member_epoch=epoch)
        request: Message = chance.choice((classic, new))
        for _ in range(chance.randrange(3, REPEATS_MAX)):
            self._ask(request, 4 if request is classic else 1)

    def _joins(self) -> None:
        """The group's only member joins without a topic, or leaves, so that nothing is computed in the background."""
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUPS[0],
            member_id="member",
            member_epoch=self._chance.choice((0, 0, -1)),
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=["missing"],
            topic_partitions=[],
        )
        answer = self._ask(request, 1)
        if not answer.error_code:
            self._epoch = max(0, answer.member_epoch)

    def _mutated(self) -> None:
        """Commits of which some have other bytes behind the header. A connection that closes is opened again."""
        chance = self._chance
        version = chance.choice((2, 5, 6, 8, 9))
        plain = framing.encode_request(self._commit(version), version, 7, "raw")[4:]
        client = Client(self._address, self._tail)
        for _ in range(8):
            frame = bytearray(plain)
            if chance.random() < 0.3:
                at = chance.randrange(14, len(frame))
                frame[at] = chance.choice((frame[at] ^ 1, 0, 1, 0x80, frame[at] | 0x80))
            client.send_frame(frame)
            try:
                self.responses.append(client.frame())
            except ConnectionResetError:
                self.responses.append("closed")
                client.close()
                client = Client(self._address, self._tail)
        client.close()

    def _recreates(self) -> None:
        """A topic of a repeated commit is deleted and made again."""
        version = self._chance.choice(VERSIONS)
        self._commits(version)
        name = self._chance.choice(TOPICS)
        state = DeleteTopicsRequest.DeleteTopicState(name=name)
        self._ask(DeleteTopicsRequest(topics=[state], timeout_ms=10_000), 6)
        self._commits(version)
        self._create(name)
        self._commits(version)

    def _deletes(self) -> None:
        chance = self._chance
        group, name = chance.choice(GROUPS), chance.choice(TOPICS)
        topic = OffsetDeleteRequest.OffsetDeleteRequestTopic(
            name=name, partitions=[OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)]
        )
        request: tuple[Message, int] = chance.choice(
            (
                (DeleteGroupsRequest(groups_names=[group]), 2),
                (OffsetDeleteRequest(group_id=group, topics=[topic]), 0),
                (LeaveGroupRequest(group_id=group, members=[LeaveGroupRequest.MemberIdentity(member_id="member")]), 4),
            )
        )
        self._ask(*request)


@pytest.mark.parametrize("seed", range(2))
def test_templates_change_no_response(seed: int) -> None:
    told = []
    for tail in (b"", b"\0"):
        with Broker() as broker:
            story = Story(broker.bootstrap_servers, seed, tail)
            try:
                story.send_story()
            finally:
                story.close()
            told.append(story.responses)
    with_templates, without = told
    assert len(without) == len(with_templates)
    for number, (found, expected) in enumerate(zip(with_templates, without, strict=True)):
        assert found == expected, number
