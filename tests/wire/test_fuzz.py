"""Bytes from anywhere: decoding ends in a message or in WireError, and looks at nothing beyond its buffer."""

from __future__ import annotations

import random
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohort.wire import journal
from kohort.wire.framing import APIS, decode_request_header, encode_request
from kohort.wire.message import Message
from kohort.wire.schema import WireError
from tests.support.long_runs import examples
from tests.wire.values import Values

RECORDS = [
    kind
    for kind in vars(journal).values()
    if isinstance(kind, type) and issubclass(kind, Message) and kind is not Message
]
MESSAGES = [kind for api in APIS.values() for kind in (api.request, api.response)] + RECORDS


def _versions(kind: type[Message]) -> range:
    return range(kind.MIN_VERSION, kind.MAX_VERSION + 1)


def _try(kind: type[Message], buf: bytes, version: int) -> Message | None:
    try:
        return kind.decode(buf, version)
    except WireError:
        return None


def _mutations(data: bytes, pick: random.Random) -> list[bytes]:
    """Cut short, made longer, bytes changed, a length made huge."""
    found = [data[: pick.randrange(len(data))] for _ in range(4)] if data else []
    found.append(data + b"\0")
    for _ in range(12):
        changed = bytearray(data or b"\0")
        for _ in range(pick.choice((1, 1, 2, 5))):
            changed[pick.randrange(len(changed))] = pick.choice((0, 1, 0x7F, 0x80, 0xFF, pick.randrange(256)))
        found.append(bytes(changed))
    at = pick.randrange(len(data) + 1)
    found.append(data[:at] + b"\xff\xff\xff\xff\x0f" + data[at + 4 :])
    found.append(data[:at] + b"\x7f\xff\xff\xff" + data[at + 4 :])
    return found


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_damaged_messages_raise_wire_errors_only(kind: type[Message]) -> None:
    for version in _versions(kind):
        pick = random.Random(f"{kind.__name__}/{version}")
        data = Values(f"{kind.__name__}/{version}/fuzz", version, "small").instance(kind).encode(version)
        for damaged in _mutations(data, pick):
            read = _try(kind, damaged, version)
            if read is not None:
                repr(read)


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_every_cut_is_noticed(kind: type[Message]) -> None:
    """No proper prefix of a message is a message, and nothing may follow one."""
    version = kind.MAX_VERSION
    data = Values(f"{kind.__name__}/cut", version, "small").instance(kind).encode(version)
    for length in range(min(len(data), 200)):
        with pytest.raises(WireError):
            kind.decode(data[:length], version)
    with pytest.raises(WireError, match="after its end"):
        kind.decode(data + b"\0", version)
    message, end = kind.decode_prefix(data + b"more", version)
    assert end == len(data)
    assert message.encode(version) == data


@settings(max_examples=examples(60), deadline=None)
@given(st.binary(max_size=300))
def test_arbitrary_bytes(data: bytes) -> None:
    for kind in MESSAGES:
        for version in {kind.MIN_VERSION, kind.MAX_VERSION}:
            _try(kind, data, version)


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=80))
def test_arbitrary_request_headers(data: bytes) -> None:
    try:
        header, body = decode_request_header(data)
    except WireError:
        return
    assert len(body) <= len(data) - 10
    assert header.client_id is None or "\ufffd" in header.client_id or header.client_id.encode() in data


def test_a_decoder_sees_its_own_slice_only() -> None:
    """A message in the middle of a buffer is read as if nothing followed, whatever type the buffer has."""
    for kind in (APIS[0].request, APIS[1].response, APIS[11].request, APIS[3].response):
        version = kind.MAX_VERSION
        data = Values(f"{kind.__name__}/slice", version, "small").instance(kind).encode(version)
        whole = b"\xff" * 7 + data + b"\xff" * 9
        expected = kind.decode(data, version)
        for view in (memoryview(whole)[7:-9], memoryview(bytearray(whole))[7:-9], bytearray(data)):
            assert kind.decode(view, version) == expected
        with pytest.raises(WireError):
            kind.decode(memoryview(whole)[7:-10], version)


def test_a_short_frame_can_not_ask_for_much_memory() -> None:
    """An array length is checked against the bytes left before a list is made."""
    claim = (1 << 31) - 1
    request: Any = APIS[3].request
    with pytest.raises(WireError):
        request.decode(claim.to_bytes(4, "big") + b"\0" * 40, 4)
    with pytest.raises(WireError):
        request.decode(b"\xff\xff\xff\xff\x0f" + b"\0" * 40, 12)
    assert sys.getsizeof(request.decode(b"\0\0\0\0\0", 4).topics) < 1000


def test_the_elements_of_a_request_are_bounded_in_all_arrays_together() -> None:
    """Bytes that are there can stand for many times as much memory."""
    metadata: Any = APIS[3].request
    assert len(metadata.decode((30_000).to_bytes(4, "big") + b"\0\0" * 30_000 + b"\1", 4).topics) == 30_000
    with pytest.raises(WireError, match="more than 30000 elements"):
        metadata.decode((30_001).to_bytes(4, "big") + b"\0\0" * 30_001 + b"\1", 4)
    fetch: Any = APIS[9].request  # OffsetFetch: partitions within topics
    topic = b"\0\1t" + (60_000).to_bytes(4, "big") + bytes(240_000)
    with pytest.raises(WireError, match="more than 200000 elements"):
        fetch.decode(b"\0\1g" + (9).to_bytes(4, "big") + topic * 9, 1)
    with pytest.raises(WireError, match="tagged fields"):
        metadata.decode(b"\1\0\0" + b"\xff\xff\3" + b"\7\0" * 65_535, 12)


def test_the_elements_of_a_response_are_bounded() -> None:
    mechanisms: Any = APIS[17].response
    many = 10_000_001
    assert len(mechanisms.decode(b"\0\0" + (70_000).to_bytes(4, "big") + bytes(140_000), 1).mechanisms) == 70_000
    with pytest.raises(WireError, match="more than 10000000 elements"):
        mechanisms.decode(b"\0\0" + many.to_bytes(4, "big") + bytes(2 * many), 1)


def test_every_request_goes_through_a_frame_and_back() -> None:
    for api in APIS.values():
        for version in range(api.min_version, api.max_version + 1):
            request = Values(f"{api.name}/{version}/frame", version, "small").instance(api.request)
            frame = encode_request(request, version, 77, "client-ü")
            assert int.from_bytes(frame[:4], "big") == len(frame) - 4
            header, body = decode_request_header(frame[4:])
            assert header == (api.key, version, 77, "client-ü")
            assert api.request.decode(body, version) == request
