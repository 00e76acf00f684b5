"""The topics in a classic member's metadata, read as version 0 whatever version it names.

Source: spec 1.4 (KIP-496, "Proposed Changes"): the version is ignored, so are bytes after the topics.
"""

from __future__ import annotations

import struct

CONSUMER_PROTOCOL_TYPE = "consumer"

_INT16 = struct.Struct(">h")
_HEAD = struct.Struct(">hi")


def read_topics(metadata: bytes) -> tuple[str, ...] | None:
    """The subscribed topic names in the order given, or None when the bytes are no subscription.

    Layout: int16 version, int32 count, count times (int16 length, UTF-8 name), then anything.
    """
    size = len(metadata)
    if size < _HEAD.size:
        return None
    _, count = _HEAD.unpack_from(metadata)
    if count < 0 or count > (size - _HEAD.size) // 2:
        return None
    at = _HEAD.size
    topics = []
    for _ in range(count):
        if at + 2 > size:
            return None
        (length,) = _INT16.unpack_from(metadata, at)
        at += 2
        if length < 0 or at + length > size:
            return None
        try:
            topics.append(metadata[at : at + length].decode())
        except UnicodeDecodeError:
            return None
        at += length
    return tuple(topics)
