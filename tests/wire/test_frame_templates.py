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
from kohort.wire.schema import WireError

Topic, Part = OffsetCommitRequest.OffsetCommitRequestTopic, OffsetCommitRequest.OffsetCommitRequestPartition
HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=3, member_id="m")
REPEATED = (HeartbeatRequest.API_KEY, OffsetCommitRequest.API_KEY, ConsumerGroupHeartbeatRequest.API_KEY)
KIP_848 = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=7)


def frame_of(message: Message, version: int, correlation_id: int = 5, client_id: str | None = "c") -> bytes:
    return framing.encode_request(message, version, correlation_id, client_id)[4:]


def decoded(frame: bytes) -> tuple[framing.RequestHeader, Any]:
    header, body = framing.decode_request_header(frame)
    message, _ = framing.APIS[header.api_key].request.decode_prefix(body, header.api_version)
    return header, message


def template_of(frame: bytes) -> FrameTemplate:
    template = FrameTemplate.from_frame(frame, *decoded(frame))
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
    numbers = template.varying_numbers(memoryview(bytearray(later)))
    assert numbers is not None
    assert numbers[0] == correlation_id
    _, message = decoded(later)
    assert template.make(numbers) == message
    offsets, epochs = template.offsets_and_epochs(numbers)
    parts = [part for topic in message.topics for part in topic.partitions]
    assert list(offsets) == [part.committed_offset for part in parts]
    assert list(epochs) == [part.committed_leader_epoch for part in parts]
    assert template.make(template.varying_numbers(frame_of(first, version)) or ()) == first


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
        numbers = template.varying_numbers(other)
        if numbers is None:
            continue
        found_header, found = decoded(bytes(other))
        assert found_header._replace(correlation_id=0) == header._replace(correlation_id=0)
        assert template.make(numbers) == found
        assert found == message or [t.name for t in found.topics] == [t.name for t in message.topics]
    assert template.varying_numbers(frame + b"\0") is None
    assert template.varying_numbers(frame[:-1]) is None


def mutated(frame: bytes, chance: random.Random) -> bytes:
    """A frame with a few changes: bits, bytes that move, come or go, longer varints, other ends."""
    data = bytearray(frame)
    for _ in range(chance.choice((1, 1, 2, 3))):
        at = chance.randrange(len(data)) if data else 0
        change = chance.randrange(8)
        if not data or change == 0:
            data[at:at] = chance.choice((b"\0", b"\x80", b"\xff" * 8))
        elif change == 1:
            data[at] ^= 1 << chance.randrange(8)
        elif change == 2:
            data[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif change == 3:
            del data[at : at + chance.randrange(1, 9)]
        elif change == 4:
            data[at : at + 1] = bytes((data[at] | 0x80, 0))
        elif change == 5:
            data.insert(chance.randrange(len(data)), data.pop(at))
        elif change == 6:
            data += bytes(chance.randrange(1, 20))
        else:
            data[4:8] = chance.randbytes(4)
    return bytes(data)


def with_any_numbers(template: FrameTemplate, frame: bytes, chance: random.Random) -> bytes:
    """A frame of the template with random bits wherever it may differ."""
    base = bytearray(frame)
    for at in range(len(frame)):
        base[at] ^= 1
        if template.varying_numbers(base) is None:
            base[at] ^= 1
        else:
            base[at] = chance.randrange(256)
    return bytes(base)


def any_request(chance: random.Random) -> tuple[Message, int]:
    """A request that clients repeat, and its version."""
    texts = ("", "g", "\0\0\0", "ü" * 64, "x" * 127, "x" * 128)
    text = chance.choice(texts)
    kind = chance.randrange(3)
    if kind == 0:
        version = chance.randrange(2, 11)
        return commit(version, [chance.choice((0, 1, 2, 9)) for _ in range(chance.randrange(3))], chance), version
    if kind == 1:
        version = chance.randrange(HeartbeatRequest.MIN_VERSION, HeartbeatRequest.MAX_VERSION + 1)
        instance = chance.choice((None, text)) if version >= 3 else None
        return HeartbeatRequest(group_id=text, generation_id=-1, member_id="m", group_instance_id=instance), version
    topics = [ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=uuid.UUID(int=5), partitions=[0, -1])]
    message = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id=text,
        member_epoch=chance.choice((-2, -1, 0, 7)),
        rack_id=chance.choice((None, text)),
        subscribed_topic_names=chance.choice((None, [], [text, "t"])),
        topic_partitions=chance.choice((None, [], topics)),
    )
    return message, chance.choice((0, 1))


def try_decode(frame: bytes) -> tuple[framing.RequestHeader, Any] | None:
    """Return a frame's header and message; None if the broker would refuse it."""
    try:
        header, body = framing.decode_request_header(frame)
        request = framing.APIS[header.api_key].request
        if not request.MIN_VERSION <= header.api_version <= request.MAX_VERSION:
            return None
        return header, request.decode_prefix(body, header.api_version)[0]
    except (KeyError, WireError):
        return None


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 1 << 32))
def test_changed_frame_that_matches_is_what_the_decoder_reads(seed: int) -> None:
    """Templates are also made of changed frames, which some client may send."""
    chance = random.Random(seed)
    request, version = any_request(chance)
    frame = frame_of(request, version, client_id=chance.choice((None, "", "c")))
    frame = mutated(frame, chance) if chance.random() < 0.3 else frame
    read = try_decode(frame)
    template = None if read is None or read[0].api_key not in REPEATED else FrameTemplate.from_frame(frame, *read)
    if template is None:
        return
    later = [mutated(frame, chance) for _ in range(20)]
    for other in (*later, with_any_numbers(template, frame, chance)):
        numbers = template.varying_numbers(other)
        if numbers is not None:
            found = try_decode(other)
            assert found is not None
            assert found[0] == template.header._replace(correlation_id=numbers[0])
            assert found[1] == template.make(numbers)


@pytest.mark.parametrize("message", [HEARTBEAT, KIP_848], ids=lambda message: type(message).__name__)
def test_heartbeats_share_one_message(message: Message) -> None:
    for version in range(message.MIN_VERSION, message.MAX_VERSION + 1):
        template = template_of(frame_of(message, version, client_id=None))
        assert template.same == message
        assert template.varying_numbers(frame_of(message, version, 77, None)) == (77,)
        assert template.varying_numbers(frame_of(message, version, 77, "c")) is None
        assert template.make((77,)) is template.same


def test_request_that_is_encoded_in_another_way_has_no_template() -> None:
    """Bytes after the message, and a length in more bytes than it needs, are what other encoders may send."""
    frame = frame_of(HEARTBEAT, 4)
    assert FrameTemplate.from_frame(frame + b"\0", *decoded(frame + b"\0")) is None
    at = frame.index(b"\x02g")
    longer = frame[:at] + b"\x82\x00" + frame[at + 1 :]
    assert decoded(longer) == decoded(frame)
    assert FrameTemplate.from_frame(longer, *decoded(longer)) is None


def test_long_frame_has_no_template() -> None:
    count = TEMPLATE_BYTES_MAX // 18 + 1
    frame = frame_of(commit(8, [count], random.Random(2)), 8)
    assert FrameTemplate.from_frame(frame, *decoded(frame)) is None
