"""Declaring and using messages: defaults, comparison, what a version refuses, what it drops."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from kohort.errors import ErrorCode, InvalidInputError
from kohort.wire.codec import COLUMN_ROWS
from kohort.wire.data import FetchResponse, ProduceRequest
from kohort.wire.discovery import ApiVersionsResponse, MetadataRequest
from kohort.wire.framing import APIS, decode_response, encode_request, encode_request_parts, encode_response
from kohort.wire.groups import FindCoordinatorRequest, HeartbeatRequest, JoinGroupRequest, JoinGroupResponse
from kohort.wire.message import Message
from kohort.wire.offsets import OffsetCommitRequest
from kohort.wire.schema import ZERO_UUID, Field, Struct, StructRows, WireError, array, columns_of, int32, string, struct


def test_defaults_are_kafkas_and_lists_are_not_shared() -> None:
    one, two = JoinGroupRequest(group_id="g"), JoinGroupRequest(group_id="g")
    assert (one.rebalance_timeout_ms, one.group_instance_id, one.protocols) == (-1, None, [])
    assert one == two
    one.protocols.append(JoinGroupRequest.JoinGroupRequestProtocol(name="range"))
    assert one != two
    assert two.protocols == []
    assert FetchResponse.FetchableTopicResponse().topic_id == ZERO_UUID
    assert FetchResponse.FetchableTopicResponse.PartitionData().current_leader.leader_id == -1


def test_a_misspelt_field_is_refused() -> None:
    with pytest.raises(TypeError):
        HeartbeatRequest(groupid="g")  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        HeartbeatRequest().groupid = "g"  # type: ignore[attr-defined]


def test_repr_shows_what_was_said() -> None:
    assert repr(HeartbeatRequest(group_id="g", generation_id=3)) == "HeartbeatRequest(group_id='g', generation_id=3)"


def test_messages_can_be_pickled() -> None:
    request = JoinGroupRequest(group_id="g", protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range")])
    assert pickle.loads(pickle.dumps(request)) == request


def test_a_value_that_the_version_lacks_is_refused() -> None:
    request = HeartbeatRequest(group_id="g", group_instance_id="static")
    assert HeartbeatRequest.decode(request.encode(3), 3) == request
    with pytest.raises(InvalidInputError, match="group_instance_id") as caught:
        request.encode(2)
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_an_ignorable_value_is_dropped() -> None:
    response = JoinGroupResponse(throttle_time_ms=9)
    assert JoinGroupResponse.decode(response.encode(1), 1).throttle_time_ms == 0
    assert JoinGroupResponse.decode(response.encode(2), 2).throttle_time_ms == 9


def _absent(cls: type[Struct], version: int) -> list[tuple[Field, bool]]:
    """Fields that a version lacks, anywhere in a structure, and whether they may be dropped."""
    found = []
    for field in cls.FIELDS:
        inner = field.struct or (field.element.struct if field.element is not None else None)
        if not field.is_in_version(version):
            found.append((field, field.ignorable))
        elif inner is not None:
            found += _absent(inner, version)
    return found


def _carrying(cls: type[Struct], version: int, wanted: Field, value: Any) -> Struct | None:
    """An instance in which one absent field, however deep, has this value; None where it is not within."""
    for field in cls.FIELDS:
        if field is wanted:
            return cls(**{field.name: value})
        inner = field.struct or (field.element.struct if field.element is not None else None)
        if inner is not None and field.is_in_version(version):
            part = _carrying(inner, version, wanted, value)
            if part is not None:
                return cls(**{field.name: [part] if field.kind == "array" else part})
    return None


_SAID = {"string": "said", "bool": True, "uuid": UUID(int=9), "bytes": b"said", "records": b"said"} | dict.fromkeys(
    ("int8", "int16", "int32", "int64", "uint16"), 77
)


@pytest.mark.parametrize("name", [api.name for api in APIS.values()])
def test_of_each_request_a_version_drops_what_may_be_dropped_and_refuses_the_rest(name: str) -> None:
    request = next(api.request for api in APIS.values() if api.name == name)
    for version in range(request.MIN_VERSION, request.MAX_VERSION + 1):
        for field, ignorable in _absent(request, version):
            if field.kind not in _SAID:
                continue
            value = not field.default if field.kind == "bool" else _SAID[field.kind]
            said = _carrying(request, version, field, value)
            silent = _carrying(request, version, field, field.fresh_default())
            assert isinstance(said, Message)
            assert isinstance(silent, Message)
            if ignorable:
                assert said.encode(version) == silent.encode(version)
            else:
                with pytest.raises(InvalidInputError, match=f"no field {field.name}") as caught:
                    said.encode(version)
                assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_both_layouts_of_one_question_may_be_said_at_once() -> None:
    both = FindCoordinatorRequest(key="g", coordinator_keys=["g"])
    assert FindCoordinatorRequest.decode(both.encode(3), 3) == FindCoordinatorRequest(key="g")
    assert FindCoordinatorRequest.decode(both.encode(4), 4) == FindCoordinatorRequest(coordinator_keys=["g"])


def test_versions_outside_the_range_are_refused() -> None:
    for version in (-1, 5):
        with pytest.raises(InvalidInputError) as caught:
            HeartbeatRequest().encode(version)
        assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
        with pytest.raises(InvalidInputError):
            HeartbeatRequest.decode(b"", version)


@pytest.mark.parametrize(
    "request_",
    [
        HeartbeatRequest(group_id=None),  # type: ignore[arg-type]
        HeartbeatRequest(generation_id="seven"),  # type: ignore[arg-type]
        HeartbeatRequest(generation_id=1 << 40),
        HeartbeatRequest(group_id="x" * 40_000),
        MetadataRequest(topics=7),  # type: ignore[arg-type]
    ],
)
def test_values_of_the_wrong_kind_are_refused(request_: Message) -> None:
    with pytest.raises(InvalidInputError):
        request_.encode(0)


def test_null_only_where_the_version_allows_it() -> None:
    assert MetadataRequest.decode(MetadataRequest(topics=None).encode(1), 1).topics is None
    with pytest.raises(InvalidInputError):
        MetadataRequest(topics=None).encode(0)


def test_unknown_tagged_fields_are_skipped() -> None:
    plain = HeartbeatRequest(group_id="g", member_id="m").encode(4)
    assert plain.endswith(b"\0")
    tagged = plain[:-1] + b"\x02\x05\x03abc\x87\x01\x00"
    assert HeartbeatRequest.decode(tagged, 4) == HeartbeatRequest(group_id="g", member_id="m")


def test_a_tagged_field_whose_size_lies_is_refused() -> None:
    class Inner(Struct):
        number: int = int32()

    class Probe(Message, versions=(0, 0), flexible=0):
        inner: Inner = struct(Inner, tag=0)
        names: list[str] = array(string, tag=1)

    good = Probe(inner=Inner(number=7), names=["a"]).encode(0)
    assert Probe.decode(good, 0).inner.number == 7
    for at in range(len(good)):
        for change in (1, 2, 255):
            damaged = bytearray(good)
            damaged[at] = (damaged[at] + change) % 256
            with contextlib.suppress(WireError):
                assert Probe.decode(damaged, 0) != Probe(inner=Inner(number=7), names=["a"])


def test_record_sets_are_not_copied() -> None:
    payload = bytearray(b"r" * 100_000)
    topic = ProduceRequest.TopicProduceData(
        name="t", partition_data=[ProduceRequest.TopicProduceData.PartitionProduceData(records=[b"head", payload])]
    )
    request = ProduceRequest(topic_data=[topic])
    parts = request.encode_parts(9)
    assert any(part is payload for part in parts)
    frame = encode_request(request, 9, 1, "c")
    assert b"".join(encode_request_parts(request, 9, 1, "c")) == frame
    read = ProduceRequest.decode(memoryview(frame)[-len(request.encode(9)) :], 9)
    records = read.topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert records.obj is frame
    assert records == b"head" + payload


def test_the_api_versions_response_never_has_a_flexible_header() -> None:
    response = ApiVersionsResponse(api_keys=[ApiVersionsResponse.ApiVersion(api_key=3, max_version=13)])
    for version in (0, 3, 4):
        frame = b"".join(encode_response(response, version, 5))
        assert len(frame) == 4 + 4 + len(response.encode(version))
        assert decode_response(ApiVersionsResponse, version, frame[4:]) == (5, response)


def test_uuids_are_read_as_written() -> None:
    one = FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic_id=UUID(int=(7 << 100) + 1))])
    assert FetchResponse.decode(one.encode(13), 13) == one


PLAIN_COUNT = 20


@pytest.mark.parametrize("odd", [None, 0, 7, PLAIN_COUNT - 1])
@pytest.mark.parametrize("metadata", ["", None, "m", "x" * 200])
def test_an_element_that_is_not_like_the_others_is_read_as_it_is(odd: int | None, metadata: str | None) -> None:
    part = OffsetCommitRequest.OffsetCommitRequestPartition
    parts = [part(partition_index=n, committed_offset=n << 40, committed_metadata="") for n in range(PLAIN_COUNT)]
    if odd is not None:
        parts[odd].committed_metadata = metadata
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=parts)
    message = OffsetCommitRequest(group_id="g", topics=[topic, topic])
    for version in (7, 9):
        assert OffsetCommitRequest.decode(message.encode(version), version) == message


@pytest.mark.parametrize("count", [8, COLUMN_ROWS, COLUMN_ROWS + 1])
@pytest.mark.parametrize("metadata", ["", None])
def test_columns_of_a_long_array_are_those_of_its_structures(count: int, metadata: str | None) -> None:
    part = OffsetCommitRequest.OffsetCommitRequestPartition
    parts = [
        part(partition_index=-n, committed_offset=n << 40, committed_leader_epoch=n - 1, committed_metadata="")
        for n in range(count)
    ]
    parts[3].committed_metadata = metadata
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=parts)
    encoded = OffsetCommitRequest(topics=[topic]).encode(9)
    rows = OffsetCommitRequest.decode(encoded, 9).topics[0].partitions
    names = ("committed_metadata", "partition_index", "committed_leader_epoch")
    assert type(rows) is StructRows
    assert len(rows) == count
    assert [*map(list, columns_of(rows, names))] == [*map(list, columns_of(parts, names))]
    assert rows == parts
    assert parts == rows
    assert rows != parts[1:]
    assert rows[3] == parts[3]
    assert rows[2:4] == parts[2:4]
    assert repr(rows) == repr(parts)
    assert (
        OffsetCommitRequest(topics=[OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=rows)]).encode(9)
        == encoded
    )


def test_rows_of_a_long_array_have_the_defaults_of_fields_that_the_version_lacks() -> None:
    class Probe(Message, versions=(0, 1), flexible=0):
        class Item(Struct):
            number: int = int32()
            later: int = int32(since=1, default=7, ignorable=True)

        items: Sequence[Item] = array(Item, columns=True)

    items = [Probe.Item(number=number, later=number) for number in range(PLAIN_COUNT)]
    assert [item.later for item in Probe.decode(Probe(items=items).encode(0), 0).items] == [7] * PLAIN_COUNT
    assert Probe.decode(Probe(items=items).encode(1), 1).items == items


def test_a_tagged_field_in_one_of_many_elements_is_skipped_and_a_null_that_may_not_be_is_refused() -> None:
    def many(text: bytes, tags: bytes) -> bytes:
        plain = b"\0\0\0\7" + b"\1" + b"\0"
        return bytes([PLAIN_COUNT + 1]) + plain * (PLAIN_COUNT - 1) + b"\0\0\0\7" + text + tags + b"\0"

    plain = Many.decode(many(b"\1", b"\0"), 0)
    assert [item.text for item in plain.items] == [""] * PLAIN_COUNT
    assert Many.decode(many(b"\1", b"\1\5\2ab"), 0) == plain
    with pytest.raises(WireError):
        Many.decode(many(b"\0", b"\0"), 0)
    with pytest.raises(WireError):
        Many.decode(many(b"\1", b"\0")[:-2], 0)


class Many(Message, key=-1, versions=(0, 0), flexible=0):
    """Twenty structures with a text that may not be null."""

    class Item(Struct):
        """One of them."""

        number: int = int32()
        text: str = string()

    items: list[Item] = array(Item)


def test_instance_of_a_base_class_leaves_other_classes_usable() -> None:
    """The broker makes one to refuse a request. Messages that were not used before it were then unusable."""

    class Middle(Struct):
        pass

    class Leaf(Middle):
        count: int = int32()

    Struct()
    Middle()

    class Later(Struct):
        count: int = int32()

    assert (Leaf(count=1).count, Later(count=2).count) == (1, 2)
