"""Messages as bytes."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest

from kohort.errors import CorruptDataError
from kohort.region import messages
from kohort.region.message_codec import UnknownMessageError, decode_order, decode_report, encode_message
from kohort.region.record_codec import region_in_claim_key, region_in_record_key
from kohort.region.records import Contribution, KeyedStateChainHead, OffsetSpan, Part, Position
from kohort.region.sinks.compaction import decode_generation
from kohort.region.sinks.owner_marker import OwnerMarker, decode_owner_marker, decode_schema
from kohort.region.sinks.staged_files import read_json
from kohort.region.sinks.staging_topic import join_pieces, split_into_pieces
from kohort.region.staged import StagedKey

TOPIC_ID, REGION_ID = UUID(int=5), UUID(int=6)
PART = Part("etl", "t", 3, TOPIC_ID)
POSITION = Position("etl", "t", TOPIC_ID, 3, 17, 2)
CUT = messages.CheckpointAttempt(4, 2)
KEY = StagedKey(REGION_ID, 3, "m", 0)
GIVEN = Contribution(
    "r",
    4,
    1,
    3,
    "m",
    ("m", "n"),
    "etl",
    "id",
    5,
    None,
    (OffsetSpan("etl", "t", TOPIC_ID, 3, 1, 17, 2),),
    (KEY,),
    b"\0\xff",
    "s",
)
WHO = messages.Identity("id", 5, "static")


@pytest.mark.parametrize(
    "message",
    [
        messages.RegistrationRequest(
            "m", UUID(int=9), "etl", WHO, 3, (POSITION,), 4, (POSITION,), "parquet:/out", False
        ),
        messages.ContributionReport(CUT, GIVEN),
        messages.AssignmentChanged(WHO, (PART,)),
        messages.StartOffsetsRequest(1, (PART,)),
        messages.StartOffsetsLookedUp(1, (POSITION,), ("t",)),
        messages.RegionResetRequest("why", forced=True),
        messages.LeaveRequest(),
        messages.DescribeRegion(),
    ],
)
def test_reports_are_decoded_as_they_were(message: messages.Report | messages.Ask) -> None:
    assert decode_report(encode_message(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        messages.RegistrationAccepted(1, 3, 4, ("m",), b"state", CUT),
        messages.RegistrationAccepted(1, 3, 4, ("m",)),
        messages.StartOffsetsAnswer(1, 1, (POSITION,), (PART,), (PART,)),
        messages.StartOffsetsAnswer(1, 1, (replace(POSITION, state=KeyedStateChainHead(3, 4, bytes(16), 9_000)),)),
        messages.PublishOrder(1, 4, (KEY,)),
        messages.PublishOrder(1, 4, (KEY,), positions=(POSITION,)),
        messages.ResetOrder(1, 3, 0, None),
        messages.RegionStatus("r", "RUNNING", 1, 3, 4, 4, (), (POSITION,), {"why": 2}),
        messages.RegionStatus(
            "r", "RUNNING", 1, 3, 4, 3, (), (), {}, sinks=(messages.SinkStatus("parquet:/out", 3, "m"),)
        ),
        messages.RegistrationRefused(1, "why", "what to do"),
        messages.KeepAlive(),
    ],
)
def test_orders_are_decoded_as_they_were(message: messages.Order | messages.Answer) -> None:
    back = decode_order(encode_message(message))
    assert back == message and repr(back) == repr(message), "also what does not compare"


def test_a_field_of_a_later_release_is_passed_over() -> None:
    body = msgspec.msgpack.encode(("AskReset", {"cause": "why", "later": [1]}))
    assert decode_report(body) == messages.RegionResetRequest("why")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode(("Nothing", {})),
        encode_message(messages.KeepAlive())[:-1],
        b"\x92\xa5Aliv\xff\x80",
        b"\x92\xa8AskReset\x81\xa5later" + b"\x91" * 5_000,
    ],
    ids=["nothing", "no type", "another message", "cut", "a name that is no text", "nested"],
)
def test_what_is_no_message_is_said_so(body: bytes) -> None:
    with pytest.raises(UnknownMessageError):
        decode_report(body)


def test_an_order_is_nothing_that_a_control_plane_hears() -> None:
    with pytest.raises(UnknownMessageError, match="Publish"):
        decode_report(encode_message(messages.PublishOrder(1, 4, ())))


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(b"[[]]", id="list in place of a kind"),
        pytest.param(b"[{}]", id="object in place of a kind"),
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(b'["\xff"]', id="no text"),
        pytest.param(b"5", id="number"),
    ],
)
def test_key_of_a_stranger_names_no_region(key: bytes) -> None:
    assert region_in_claim_key(key) is None
    assert region_in_record_key(key) is None


DEEP = b'{"unknown": ' + b"[" * 100_000


@pytest.mark.parametrize("content", [DEEP, b'{"region": "\xff"}', b"{"], ids=["deep", "no text", "cut off"])
@pytest.mark.parametrize(
    "read",
    [
        pytest.param(lambda data: decode_owner_marker(data, "folder"), id="owner marker"),
        pytest.param(lambda data: decode_generation(data, "folder"), id="generation"),
        pytest.param(lambda data: read_json(lambda _: data, "path", OwnerMarker), id="file"),
    ],
)
def test_json_of_a_stranger_in_a_sinks_folder_is_refused(read: Callable[[bytes], object], content: bytes) -> None:
    with pytest.raises(CorruptDataError, match="can't be read"):
        read(content)


def test_schema_of_a_stranger_is_refused() -> None:
    damaged = b"\xff\xff\xff\xff\x10\0\0\0" + b"\1" * 40
    with pytest.raises(CorruptDataError, match="A schema can't be read"):
        decode_schema(base64.b64encode(damaged).decode())


@pytest.mark.parametrize("last", [24, 2_000_000_000], ids=["other memory", "end of the process"])
def test_staged_rows_with_offsets_beyond_their_texts_are_refused(last: int) -> None:
    data = b"".join(split_into_pieces(pa.table({"a": ["x" * 10, "y" * 10]})))
    offsets = struct.pack("<iii", 0, 10, 20)
    assert data.count(offsets) == 1  # too short to be compressed
    with pytest.raises(CorruptDataError, match="Staged rows can't be read"):
        join_pieces([data.replace(offsets, struct.pack("<iii", 0, 10, last))])


def test_staged_texts_that_are_not_utf8_are_read_as_they_are() -> None:
    """Spark's strings may have any bytes."""
    texts = pa.Array.from_buffers(pa.string(), 3, pa.array([b"a", b"\xff\xfe", None], pa.binary()).buffers())
    keys = pa.Array.from_buffers(pa.string(), 3, pa.array([b"k", b"\xff", b"l"], pa.binary()).buffers())
    entries = pa.StructArray.from_arrays([keys, pa.array([b"1", None, b"\xff"])], ["key", "value"])
    headers = pa.ListArray.from_arrays(pa.array([0, 1, 1, 3], pa.int32()), entries)
    rows = pa.table({"value": texts, "headers": headers, "partition": [0, 1, 2]})
    found = join_pieces(split_into_pieces(rows))
    assert found.schema == rows.schema
    assert found.column("value").cast(pa.binary()).to_pylist() == [b"a", b"\xff\xfe", None]
    [part] = found.column("headers").chunks
    assert part.flatten().field("key").cast(pa.binary()).to_pylist() == [b"k", b"\xff", b"l"]
