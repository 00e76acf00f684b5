"""Frames (a length of four bytes, a header, a message) and the table of all APIs.

A request header has version 2 (with tagged fields) if the message's version is flexible, else version 1. A response
header has version 1 or 0 by the same rule. The ApiVersions response always has header version 0, so that a client can
read it before it knows the broker's versions.

Source: Kafka protocol guide, "Request headers"; KIP-482; KIP-511.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, TypeVar

from kohort.wire import (
    cluster_admin,
    coordinators,
    data,
    discovery,
    groups,
    offsets,
    security,
    share_groups,
    streams_groups,
    transactions,
)
from kohort.wire.codec import skip_tags
from kohort.wire.message import Message, RequestMessage, merge_small_parts
from kohort.wire.schema import NEVER, Buffer, WireError

API_VERSIONS: Final = 18
CLIENT_NAMES: Final = 4_096
"""Client ids kept decoded: every request carries one."""
CLIENT_NAME_BYTES: Final = 255
"""The longest client id that is cached. A stranger may send ids of 32 KiB, which would keep 256 MiB."""

_REQUEST: Final = struct.Struct(">ihhih")
_RESPONSE: Final = struct.Struct(">ii")
_HEADER: Final = struct.Struct(">hhih")
_unpack_header: Final = _HEADER.unpack_from

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Api:
    """One API: its key, its name as Kafka spells it, and its two messages."""

    key: int
    name: str
    request: type[Message]
    response: type[Message]

    @property
    def min_version(self) -> int:
        """The oldest version that this package supports."""
        return self.request.MIN_VERSION

    @property
    def max_version(self) -> int:
        """The newest version that this package supports."""
        return self.request.MAX_VERSION


class RequestHeader(NamedTuple):
    """The header of a request."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


_new_header: Final[Callable[[tuple[Any, ...]], RequestHeader]] = partial(tuple.__new__, RequestHeader)
"""`RequestHeader` without its Python frame: every request has one."""


def _apis() -> dict[int, Api]:
    table: dict[int, Api] = {}
    for module in (
        discovery,
        coordinators,
        cluster_admin,
        groups,
        offsets,
        data,
        transactions,
        security,
        share_groups,
        streams_groups,
    ):
        for name, request in vars(module).items():
            if not name.endswith("Request") or request is RequestMessage:
                continue
            plain = name.removesuffix("Request")
            table[request.API_KEY] = Api(request.API_KEY, plain, request, getattr(module, plain + "Response"))
    return dict(sorted(table.items()))


APIS: Final[dict[int, Api]] = _apis()
"""Every supported API, by key."""
_FLEXIBLE_SINCE: Final = {key: api.request.FLEXIBLE_SINCE for key, api in APIS.items()}


def response_type_of(request: RequestMessage[M]) -> type[M]:
    """Return the class of the response to a request."""
    response: Any = APIS[request.API_KEY].response
    kind: type[M] = response
    return kind


def encode_request_parts(msg: Message, version: int, correlation_id: int, client_id: str | None) -> list[Buffer]:
    """Return a request frame in pieces; large record sets are not copied."""
    name = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(name)
    tags = b"\0" if version >= msg.FLEXIBLE_SINCE else b""
    body = merge_small_parts([name, tags, *msg.encode_parts(version)])
    size = _HEADER.size + sum(map(len, body))
    return merge_small_parts([_REQUEST.pack(size, msg.API_KEY, version, correlation_id, length), *body])


def encode_request(msg: Message, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """Return a request frame: length, header, message."""
    name = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(name)
    tags = b"\0" if version >= msg.FLEXIBLE_SINCE else b""
    body = msg.encode(version)
    size = _HEADER.size + len(name) + len(tags) + len(body)
    return _REQUEST.pack(size, msg.API_KEY, version, correlation_id, length) + name + tags + body


def decode_request_header(frame: Buffer) -> tuple[RequestHeader, memoryview]:
    """Split a frame (without its length) into header and message.

    The header of an unknown API or version is read by the rule of the newest version known. The request can then be
    refused with its correlation id.

    Raises:
        WireError: the bytes are no header.
    """
    try:
        key, version, correlation_id, length = _unpack_header(frame)
        position = _HEADER.size
        client_id = None
        if length >= 0:
            position += length
            if position > len(frame):
                raise WireError("request header: the client id reaches past the end")
            raw = bytes(frame[_HEADER.size : position])
            client_id = _client_name(raw) if length <= CLIENT_NAME_BYTES else raw.decode(errors="replace")
        elif length != -1:
            raise WireError(f"request header: a client id of length {length}")
        if version >= _FLEXIBLE_SINCE.get(key, NEVER):
            if frame[position] == 0:
                position += 1
            else:
                position = skip_tags(frame, position, len(frame))
    except (struct.error, IndexError) as error:
        raise WireError(f"request header: {error}") from error
    return _new_header((key, version, correlation_id, client_id)), memoryview(frame)[position:]


@lru_cache(maxsize=CLIENT_NAMES)
def _client_name(raw: bytes) -> str:
    """Decode a client id; bytes that are not UTF-8 become U+FFFD, as in Kafka.

    Clients in C send any encoding.
    """
    return raw.decode(errors="replace")


def encode_response_frame(msg: Message, version: int, correlation_id: int) -> bytes:
    """Return a response frame in one piece, which is faster where there are no record sets."""
    return frame_response(type(msg), msg.encode(version), version, correlation_id)


def frame_response(response: type[Message], body: bytes, version: int, correlation_id: int) -> bytes:
    """Return the frame of a response that is encoded already."""
    if version >= response.FLEXIBLE_SINCE and response.API_KEY != API_VERSIONS:
        return _RESPONSE.pack(len(body) + 5, correlation_id) + b"\0" + body
    return _RESPONSE.pack(len(body) + 4, correlation_id) + body


def encode_response(msg: Message, version: int, correlation_id: int) -> list[Buffer]:
    """Return a response frame in pieces; large record sets are not copied."""
    parts = msg.encode_parts(version)
    tags = b"\0" if version >= msg.FLEXIBLE_SINCE and msg.API_KEY != API_VERSIONS else b""
    size = 4 + len(tags) + sum(map(len, parts))
    head = _RESPONSE.pack(size, correlation_id) + tags
    if parts and len(parts[0]) < 4096:
        parts[0] = head + parts[0]
        return parts
    return [head, *parts]


def decode_response(response: type[M], version: int, frame: Buffer) -> tuple[int, M]:
    """Return the correlation id and the message of a response frame (without its length).

    Raises:
        WireError: the bytes are not this response.
    """
    view = memoryview(frame)
    if len(view) < 4:
        raise WireError(f"{response.__name__}: a frame of {len(view)} bytes has no correlation id")
    correlation_id = int.from_bytes(view[:4], "big", signed=True)
    position = 4
    if version >= response.FLEXIBLE_SINCE and response.API_KEY != API_VERSIONS:
        try:
            position = skip_tags(view, position, len(view))
        except IndexError as error:
            raise WireError(f"{response.__name__}: the header ends early") from error
    return correlation_id, response.decode(view[position:], version)
