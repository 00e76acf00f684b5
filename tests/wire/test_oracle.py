"""Every version of every message against kio, an independent implementation: bytes and fields, both ways."""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import io
import re
import uuid
from typing import Any, get_args

import pytest
from kio.serial import entity_reader, entity_writer

from kohort.wire.data import FetchResponse
from kohort.wire.discovery import ApiVersionsResponse
from kohort.wire.framing import APIS
from kohort.wire.message import Message
from kohort.wire.schema import Field, Struct
from tests.wire.values import Values

STYLES = ("defaults", "nulls", "small", "small", "large", "plain")
OWN_TAGS = 10_000
"""Tagged fields from this number on are kohort's own, which Kafka's schemas do not have."""


def _kio_class(cls: type[Message], version: int) -> Any:
    name = cls.__name__
    part = "data"
    for suffix in ("Request", "Response"):
        if name.endswith(suffix):
            part = suffix.lower()
            name = name.removesuffix(suffix)
    snake = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
    return getattr(importlib.import_module(f"kio.schema.{snake}.v{version}.{part}"), cls.__name__)


OWN_APIS = 10_000
"""APIs from this key on are kohort's own."""
MESSAGES = [kind for api in APIS.values() if api.key < OWN_APIS for kind in (api.request, api.response)]
NEWER = {(18, 5), (28, 6), (42, 3), (88, 1), (89, 1)}
"""APIs and versions of Kafka 4.4 that kio 0.6 does not have; `test_kafka_schemas` holds them to Kafka's own schemas."""
CASES = [
    (kind, version)
    for kind in MESSAGES
    for version in range(kind.MIN_VERSION, kind.MAX_VERSION + 1)
    if (kind.API_KEY, version) not in NEWER
]
RENAMED = {
    ("TxnOffsetCommitRequest", "generation_id"): "generation_id_or_member_epoch",
    ("StreamsGroupHeartbeatResponse", "acceptable_recovery_lag"): "acceptable_recovery_lag_legacy",
}
"""Fields that Kafka 4.4 calls otherwise, by message and the name that kio has."""


def _our_name(kind: str, theirs: str) -> str:
    return RENAMED.get((kind, theirs), theirs)


def _plain(value: Any) -> Any:
    """A value of either side, in terms that can be compared."""
    if isinstance(value, datetime.timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, datetime.datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, (memoryview, bytearray)):
        return bytes(value)
    return value


def _compare(ours: Any, theirs: Any, where: str) -> None:
    if isinstance(ours, Struct):
        for field in dataclasses.fields(theirs):
            name = _our_name(type(ours).__name__, field.name)
            name = name if hasattr(ours, name) else name + "_ms"
            _compare(getattr(ours, name), getattr(theirs, field.name), f"{where}.{name}")
    elif isinstance(ours, list) and ours and isinstance(ours[0], Struct):
        assert len(ours) == len(theirs), where
        for number, (left, right) in enumerate(zip(ours, theirs, strict=True)):
            _compare(left, right, f"{where}[{number}]")
    elif isinstance(ours, uuid.UUID):
        assert ours == (theirs or uuid.UUID(int=0)), where
    elif isinstance(ours, list) and ours and isinstance(ours[0], uuid.UUID):
        assert ours == [their_id or uuid.UUID(int=0) for their_id in theirs], where
    else:
        assert _plain(ours) == _plain(theirs), where


def _is_own(field: Field) -> bool:
    return field.tag is not None and field.tag >= OWN_TAGS


def _unset_own(value: Any) -> None:
    """Take what is not Kafka's out of a message, wherever in it."""
    if isinstance(value, list):
        for item in value:
            _unset_own(item)
    elif isinstance(value, Struct):
        for field in value.FIELDS:
            if _is_own(field):
                setattr(value, field.name, field.fresh_default())
            else:
                _unset_own(getattr(value, field.name))


@pytest.mark.parametrize(("kind", "version"), CASES, ids=lambda case: getattr(case, "__name__", f"v{case}"))
def test_agrees_with_kio(kind: type[Message], version: int) -> None:
    theirs = _kio_class(kind, version)
    read, write = entity_reader(theirs), entity_writer(theirs)
    fields = {_our_name(kind.__name__, field.name) for field in dataclasses.fields(theirs)}
    present = {field.name for field in kind.FIELDS if field.is_in_version(version) and not _is_own(field)}
    assert {name.removesuffix("_ms") for name in present} == {name.removesuffix("_ms") for name in fields}
    for number, style in enumerate(STYLES):
        message = Values(f"{kind.__name__}/{version}/{number}", version, style).instance(kind)
        _unset_own(message)
        encoded = message.encode(version)
        assert kind.decode(encoded, version) == message
        assert b"".join(message.encode_parts(version)) == encoded
        instance, consumed = read(encoded, 0)
        assert consumed == len(encoded)
        _compare(message, instance, kind.__name__)
        out = io.BytesIO()
        write(out, instance)
        assert out.getvalue() == encoded


def test_a_field_of_ours_is_read_back_and_leaves_no_trace_where_it_is_not_set() -> None:
    encoded = ApiVersionsResponse(lease_ms=5_000).encode(4)
    assert ApiVersionsResponse.decode(encoded, 4) == ApiVersionsResponse(lease_ms=5_000)
    assert ApiVersionsResponse.decode(ApiVersionsResponse(lease_ms=5_000).encode(2), 2) == ApiVersionsResponse()
    part = FetchResponse.PartitionData(partition_index=1, records=b"", damage="bytes")
    topic = FetchResponse.FetchableTopicResponse(topic="t", partitions=[part])
    assert (
        FetchResponse.decode(FetchResponse(responses=[topic]).encode(12), 12).responses[0].partitions[0].damage
        == "bytes"
    )
    assert FetchResponse.decode(FetchResponse(responses=[topic]).encode(11), 11).responses[0].partitions[0].damage == ""
    out = io.BytesIO()
    theirs = _kio_class(ApiVersionsResponse, 4)
    instance, _ = entity_reader(theirs)(ApiVersionsResponse().encode(4), 0)
    entity_writer(theirs)(out, instance)
    assert out.getvalue() == ApiVersionsResponse().encode(4)


def test_ranges_are_those_of_kafka_4_4() -> None:
    """Spot values of the ranges that clients of today ask for."""
    newest = {0: 13, 1: 18, 2: 11, 3: 13, 8: 10, 9: 10, 10: 6, 11: 9, 12: 4, 15: 6, 18: 5, 22: 6, 24: 5, 28: 6, 42: 3}
    newest |= {68: 1, 69: 1}
    assert {key: APIS[key].max_version for key in newest} == newest
    oldest = {0: 3, 1: 4, 2: 1, 3: 0, 8: 2, 9: 1, 19: 2, 20: 1, 32: 1}
    assert {key: APIS[key].min_version for key in oldest} == oldest
    for api in APIS.values():
        assert (api.request.MIN_VERSION, api.request.MAX_VERSION) == (
            api.response.MIN_VERSION,
            api.response.MAX_VERSION,
        )
        assert api.request.API_KEY == api.response.API_KEY == api.key


def test_a_request_names_the_response_that_answers_it() -> None:
    for api in APIS.values():
        [answered] = get_args(vars(api.request)["__orig_bases__"][0])
        assert answered.__forward_arg__ == api.response.__name__
