"""Frame templates: a repeated request read by its template is the one that the decoder reads."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohort.wire import framing
from kohort.wire.frame_templates import TEMPLATE_BYTES_MAX, FrameTemplate
from kohort.wire.groups import ConsumerGroupHeartbeatRequest, HeartbeatRequest
from kohort.wire.message import Message
from kohort.wire.offsets import OffsetCommitRequest

Topic, Part = OffsetCommitRequest.OffsetCommitRequestTopic, OffsetCommitRequest.OffsetCommitRequestPartition
HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=3, member_id="m")
KIP_848 = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=7)


def frame_of(message: Message, version: int, correlation_id: int = 5, client_id: str | None = "c") -> bytes:
    return framing.encode_request(message, version, correlation_id, client_id)[4:]


def decoded(frame: bytes) -> tuple[framing.RequestHeader, Any]:
    header, body = framing.decode_request_header(frame)
    message, _ = framing.APIS[header.api_key].request.decode_prefix(body, header.api_version)
    return header, message


def template_of(frame: bytes) -> FrameTemplate:
    template = FrameTemplate.of(frame, *decoded(frame))
    assert template is not None
    return template


def commit(version: int, counts: list[int], chance: random.Random) -> OffsetCommitRequest:
    """A commit of so many positions in each topic, with every field that the version has."""
    topics = []
    for number, count in enumerate(counts):
        parts = [
            Part(
                partition_index=chance.randrange(1 << 31),
                committed_offset=chance.randrange(1 << 63),
                committed_leader_epoch=chance.randrange(-1, 1 << 31) if version >= 6 else -1,
                committed_metadata=chance.choice(("", "", None, "m", "ü" * 70)),
            )
            for _ in range(count)
        ]
        named = {"topic_id": uuid.UUID(int=number + 9)} if version >= 10 else {"name": f"t{number}"}
        topics.append(Topic(**named, partitions=parts))
    return OffsetCommitRequest(
        group_id="g" * chance.randrange(200),
        generation_id_or_member_epoch=chance.randrange(-1, 99),
        member_id="m",
        retention_time_ms=chance.randrange(-1, 99) if version <= 4 else -1,
        group_instance_id=chance.choice((None, "i")) if version >= 7 else None,
        topics=topics,
    )


def moved(request: OffsetCommitRequest, version: int, chance: random.Random) -> OffsetCommitRequest:
    """Return a commit of the same partitions at other offsets."""
    topics = [
        Topic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[
                Part(
                    partition_index=part.partition_index,
                    committed_offset=chance.choice((-1, 0, 1 << 62, chance.randrange(1 << 63))),
                    committed_leader_epoch=chance.randrange(-1, 1 << 31) if version >= 6 else -1,
                    committed_metadata=part.committed_metadata,
                )
                for part in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return OffsetCommitRequest(
        group_id=request.group_id,
        generation_id_or_member_epoch=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        retention_time_ms=request.retention_time_ms,
        group_instance_id=request.group_instance_id,
        topics=topics,
    )


@settings(deadline=None, max_examples=150)
@given(
    st.integers(2, 10),
    st.lists(st.sampled_from([0, 1, 2, 9, 20]), max_size=3),
    st.integers(0, 1 << 32),
    st.integers(-(1 << 31), (1 << 31) - 1),
)
def test_commit_read_by_its_template_is_the_decoded_one(
    version: int, counts: list[int], seed: int, correlation_id: int
) -> None:
    chance = random.Random(seed)
    first = commit(version, counts, chance)
    template = template_of(frame_of(first, version))
    later = frame_of(moved(first, version, chance), version, correlation_id)
    numbers = template.numbers(memoryview(bytearray(later)))
    assert numbers is not None
    assert numbers[0] == correlation_id
    _, message = decoded(later)
    assert template.make(numbers) == message
    offsets, epochs = template.positions(numbers)
    parts = [part for topic in message.topics for part in topic.partitions]
    assert list(offsets) == [part.committed_offset for part in parts]
    assert list(epochs) == [part.committed_leader_epoch for part in parts]
    assert template.make(template.numbers(frame_of(first, version)) or ()) == first


@pytest.mark.parametrize("version", range(2, 11))
@pytest.mark.parametrize("counts", [[1], [2, 9]], ids=["one position", "two topics"])
def test_frame_of_another_request_does_not_match(version: int, counts: list[int]) -> None:
    """Every byte beside correlation id, offsets and leader epochs counts."""
    frame = frame_of(commit(version, counts, random.Random(1)), version)
    template = template_of(frame)
    header, message = decoded(frame)
    for at in range(len(frame)):
        other = bytearray(frame)
        other[at] ^= 1
        numbers = template.numbers(other)
        if numbers is None:
            continue
        found_header, found = decoded(bytes(other))
        assert found_header._replace(correlation_id=0) == header._replace(correlation_id=0)
        assert template.make(numbers) == found
        assert found == message or [t.name for t in found.topics] == [t.name for t in message.topics]
    assert template.numbers(frame + b"\0") is None
    assert template.numbers(frame[:-1]) is None


@pytest.mark.parametrize("message", [HEARTBEAT, KIP_848], ids=lambda message: type(message).__name__)
def test_heartbeats_share_one_message(message: Message) -> None:
    for version in range(message.MIN_VERSION, message.MAX_VERSION + 1):
        template = template_of(frame_of(message, version, client_id=None))
        assert template.same == message
        assert template.numbers(frame_of(message, version, 77, None)) == (77,)
        assert template.numbers(frame_of(message, version, 77, "c")) is None
        assert template.make((77,)) is template.same


def test_request_that_is_encoded_in_another_way_has_no_template() -> None:
    """Bytes after the message, and a length in more bytes than it needs, are what other encoders may send."""
    frame = frame_of(HEARTBEAT, 4)
    assert FrameTemplate.of(frame + b"\0", *decoded(frame + b"\0")) is None
    at = frame.index(b"\x02g")
    longer = frame[:at] + b"\x82\x00" + frame[at + 1 :]
    assert decoded(longer) == decoded(frame)
    assert FrameTemplate.of(longer, *decoded(longer)) is None


def test_long_frame_has_no_template() -> None:
    count = TEMPLATE_BYTES_MAX // 18 + 1
    frame = frame_of(commit(8, [count], random.Random(2)), 8)
    assert FrameTemplate.of(frame, *decoded(frame)) is None
