"""Frames of the pushing coordinator against bytes written out by hand. Source: spec 4.3."""

from __future__ import annotations

import pytest

from kohort.wire.push import (
    NUMBER_MAX,
    ClusterMetadataRequest,
    ClusterMetadataResponse,
    CoordinatorRequest,
    ErrorResponse,
    PositionedPartition,
    PushBroker,
    PushType,
    RegisterConsumerRequest,
    TopicCount,
    decode_coordinator_request,
    decode_ping_response,
    encode_ping,
    encode_ping_response,
    encode_start,
    encode_stop,
    format_topic_count,
    parse_partition_string,
    parse_topic_count,
    push_frame_type,
    with_length_prefix,
)
from kohort.wire.schema import WireError

REGISTER = RegisterConsumerRequest("g", "c-1", '{"t":2}', True, "smallest", 6000)
REGISTER_BYTES = (
    bytes.fromhex("5001")
    + b"\0\x01g"
    + b"\0\x03c-1"
    + b'\0\x07{"t":2}'
    + b"\x01"
    + b"\0\x08smallest"
    + bytes.fromhex("00001770")
)
POSITIONS = (PositionedPartition("t", 1, 0, 7), PositionedPartition("u", 2, 13, -1))
POSITION_BYTES = (
    bytes.fromhex("0002")
    + b"\0\x01t"
    + b"\0\x031-0"
    + bytes.fromhex("0000000000000007")
    + b"\0\x01u"
    + b"\0\x042-13"
    + bytes.fromhex("ffffffffffffffff")
)


def test_cluster_metadata_is_two_bytes_or_names_a_group() -> None:
    assert with_length_prefix(ClusterMetadataRequest().encode_frame()) == bytes.fromhex("000000025000")
    named = ClusterMetadataRequest("g")
    assert named.encode_frame() == bytes.fromhex("5000") + b"\0\x01g"
    for request in (ClusterMetadataRequest(), named, ClusterMetadataRequest("")):
        assert ClusterMetadataRequest.decode(request.encode_frame()) == request


def test_cluster_metadata_response() -> None:
    response = ClusterMetadataResponse(0, 3, (PushBroker(3, "::1", 9092), PushBroker(70_000, "b", 1)))
    raw = (
        bytes.fromhex("00000003000200000003")
        + b"\0\x03::1"
        + bytes.fromhex("0000238400011170")
        + b"\0\x01b"
        + bytes.fromhex("00000001")
    )
    assert response.encode_frame() == raw
    assert ClusterMetadataResponse.decode(raw) == response
    assert ClusterMetadataResponse(15).encode_frame() == bytes.fromhex("000fffff0000")


def test_register_consumer() -> None:
    assert REGISTER.encode_frame() == REGISTER_BYTES
    assert RegisterConsumerRequest.decode(REGISTER_BYTES) == REGISTER
    assert ErrorResponse(82).encode_frame() == bytes.fromhex("0052")
    assert ErrorResponse.decode(bytes.fromhex("0052")) == ErrorResponse(82)


def test_what_the_coordinator_asks() -> None:
    assert with_length_prefix(encode_ping(0)) == bytes.fromhex("0000000450020000")
    assert encode_ping(3) == bytes.fromhex("50020003")
    assert encode_stop() == bytes.fromhex("5003")
    assert encode_start(POSITIONS) == bytes.fromhex("5004") + POSITION_BYTES
    assert decode_coordinator_request(encode_ping(3)) == CoordinatorRequest(PushType.PING, 3)
    assert decode_coordinator_request(encode_stop()) == CoordinatorRequest(PushType.STOP)
    assert decode_coordinator_request(encode_start(POSITIONS)) == CoordinatorRequest(
        PushType.START, partitions=POSITIONS
    )
    assert decode_coordinator_request(encode_start(())) == CoordinatorRequest(PushType.START)


def test_ping_answers_have_positions_with_auto_commit_and_nothing_without() -> None:
    assert encode_ping_response(None) == b""
    assert encode_ping_response(()) == bytes.fromhex("0000")
    assert encode_ping_response(POSITIONS) == POSITION_BYTES
    assert decode_ping_response(b"", auto_commit=False) == ()
    assert decode_ping_response(POSITION_BYTES, auto_commit=True) == POSITIONS
    with pytest.raises(WireError, match="within a number"):
        decode_ping_response(b"", auto_commit=True)


@pytest.mark.parametrize("size", range(len(REGISTER_BYTES)))
def test_a_registration_that_is_cut_off_is_refused(size: int) -> None:
    with pytest.raises(WireError):
        RegisterConsumerRequest.decode(REGISTER_BYTES[:size])


@pytest.mark.parametrize("size", range(2, len(POSITION_BYTES) + 2))
def test_a_start_that_is_cut_off_is_refused(size: int) -> None:
    with pytest.raises(WireError):
        decode_coordinator_request(encode_start(POSITIONS)[:size])


def test_bytes_too_many_are_refused() -> None:
    for decode, raw in (
        (RegisterConsumerRequest.decode, REGISTER_BYTES),
        (ErrorResponse.decode, b"\0\0"),
        (decode_coordinator_request, encode_ping(1)),
        (decode_coordinator_request, encode_stop()),
        (ClusterMetadataRequest.decode, ClusterMetadataRequest("g").encode_frame()),
    ):
        with pytest.raises(WireError, match="1 bytes too many"):
            decode(raw + b"\0")


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"\x50\x01\xff\xff", "a string of -1 bytes"),
        (b"\x50\x01\0\x02\xff\xfe", "not UTF-8"),
        (REGISTER_BYTES.replace(b"\x01\0\x08", b"\x02\0\x08"), "a boolean of 2"),
        (b"\x50\x02", "its type is 20482"),
    ],
)
def test_malformed_registrations_are_refused_with_the_reason(raw: bytes, why: str) -> None:
    with pytest.raises(WireError, match=why):
        RegisterConsumerRequest.decode(raw)


def test_other_requests_are_refused() -> None:
    with pytest.raises(WireError, match="its type is 20485"):
        decode_coordinator_request(b"\x50\x05")
    with pytest.raises(WireError, match="a list of -1"):
        decode_coordinator_request(b"\x50\x04\xff\xff")


def test_types_are_distinguished_from_keys() -> None:
    assert push_frame_type(b"\x50\x00") == PushType.CLUSTER_METADATA
    assert push_frame_type(b"\x7f\xff") == NUMBER_MAX
    assert push_frame_type(b"\x00\x12\x00\x04") is None
    assert push_frame_type(b"\x80\x00") is None
    assert push_frame_type(b"\x50") is None


@pytest.mark.parametrize("text", ["", "1", "-", "1-", "-1", "a-1", "1-b", "1-²", "1--"])
def test_partitions_without_leader_and_number_are_refused(text: str) -> None:
    with pytest.raises(WireError, match="LEADER-NUMBER"):
        parse_partition_string(text)


def test_partitions_have_a_leader_and_a_number() -> None:
    assert parse_partition_string("12-3") == (12, 3)
    assert parse_partition_string("-1-3") == (-1, 3), "no leader as of now"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('{"t":2,"u":1}', TopicCount({"t": 2, "u": 1})),
        ("*2*flights.*", TopicCount(regex="flights.*", streams=2)),
        ("!1!a*b", TopicCount(regex="a*b", excluding=True)),
    ],
)
def test_topic_counts(text: str, wanted: TopicCount) -> None:
    assert parse_topic_count(text) == wanted
    assert format_topic_count(wanted) == text


@pytest.mark.parametrize(
    "text",
    ["", "t", "[]", "{}", '{"t":0}', '{"t":true}', '{"t":"1"}', '{"t":32768}', "*t", "*x*t", "*0*t", "*1*", "!1*t"],
)
def test_topic_counts_that_say_nothing_are_refused(text: str) -> None:
    with pytest.raises(WireError, match="topic_count"):
        parse_topic_count(text)


@pytest.mark.parametrize(
    "text", ['{"\\ud800":1}', "*" + "9" * 5_000 + "*t", '{"t":' + "9" * 5_000 + "}", "[" * 16_000],
    ids=["half a surrogate pair", "digits before a pattern", "digits", "nested lists"],
)  # fmt: skip
def test_topic_counts_that_no_record_or_number_holds_are_refused(text: str) -> None:
    """The first made a shard reload its journal, and the second left its consumer without an answer."""
    with pytest.raises(WireError, match="topic_count"):
        parse_topic_count(text)


def test_a_frame_counts_no_more_than_it_can() -> None:
    with pytest.raises(WireError, match="32768 partitions"):
        encode_start([POSITIONS[0]] * (NUMBER_MAX + 1))
    with pytest.raises(WireError, match="a string of 32768 bytes"):
        ClusterMetadataRequest("g" * (NUMBER_MAX + 1)).encode_frame()
