"""Refusals of whole requests: at every version of every API they can be encoded, and say the error."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kohort.broker.routes import ROUTES
from kohort.broker.server.refusals import error_response
from kohort.errors import ErrorCode
from kohort.wire.framing import APIS
from kohort.wire.offsets import OffsetCommitRequest
from kohort.wire.schema import Field, Struct


def filled(kind: type[Struct], version: int) -> Any:
    """Return a message with one item in each of its lists."""
    return kind(**{field.name: value(field, version) for field in kind.FIELDS if field.is_in_version(version)})


def value(field: Field, version: int) -> Any:
    element = field.element
    if field.kind == "array" and element is not None:
        return [filled(element.struct, version) if element.struct else value(element, version)]
    if field.struct is not None:
        return filled(field.struct, version)
    return "x" if field.kind == "string" else field.fresh_default()


def errors_in(message: Struct) -> set[int]:
    """Return the error codes in a message and all its parts."""
    found = {getattr(message, field.name) for field in message.FIELDS if field.name.endswith("error_code")}
    for field in message.FIELDS:
        parts = getattr(message, field.name)
        for part in parts if isinstance(parts, list) else [parts]:
            found |= errors_in(part) if isinstance(part, Struct) else set()
    return found


@pytest.mark.parametrize("key", ROUTES)
def test_a_refusal_says_its_error_at_every_version(key: int) -> None:
    route, api = ROUTES[key], APIS[key]
    for version in range(route.low, route.high + 1):
        message = filled(api.request, version)
        request = cast("Any", SimpleNamespace(key=key, version=version, message=message))
        encoded = error_response(request, ErrorCode.INVALID_REQUEST, "no").encode(version)
        decoded = api.response.decode(encoded, version)
        assert int(ErrorCode.INVALID_REQUEST) in errors_in(decoded), (route.name, version, decoded)


def test_refusal_of_a_commit_names_each_of_its_partitions() -> None:
    """The decoder reads long arrays as columns."""
    topic, part = OffsetCommitRequest.OffsetCommitRequestTopic, OffsetCommitRequest.OffsetCommitRequestPartition
    parts = [part(partition_index=number, committed_offset=1, committed_metadata="") for number in range(9)]
    sent = OffsetCommitRequest(group_id="g", topics=[topic(name="t", partitions=parts)])
    message = OffsetCommitRequest.decode(sent.encode(8), 8)
    request = cast("Any", SimpleNamespace(key=OffsetCommitRequest.API_KEY, version=8, message=message))
    (answered,) = cast("Any", error_response(request, ErrorCode.GROUP_AUTHORIZATION_FAILED)).topics
    expected = [(number, ErrorCode.GROUP_AUTHORIZATION_FAILED) for number in range(9)]
    assert [(part.partition_index, part.error_code) for part in answered.partitions] == expected
