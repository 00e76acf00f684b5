"""The messages of KEDA's external scaler: from protobuf's bytes and back.

They are few and flat, so that no generated code and no further package is needed. Source: KEDA,
`externalscaler.proto`; Protocol Buffers, "Encoding".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kohort.errors import InvalidInputError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
VARINT_BYTES_MAX = 10
"""The longest varint: 64 bits."""

Value = int | bytes


@dataclass(frozen=True, slots=True)
class ScaledObject:
    """The object that KEDA scales: its name, its namespace, and the metadata of its trigger."""

    name: str = ""
    namespace: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


def decode_scaled_object(data: bytes) -> ScaledObject:
    """Decode a ScaledObjectRef.

    Raises:
        InvalidInputError: The bytes are no such message.
    """
    name, namespace, metadata = "", "", {}
    for number, value in _fields(data):
        if number == 1:
            name = _text(value)
        elif number == 2:
            namespace = _text(value)
        elif number == 3:
            entry = {key: _text(found) for key, found in _fields(_bytes(value))}
            metadata[entry.get(1, "")] = entry.get(2, "")
    return ScaledObject(name, namespace, metadata)


def decode_metrics_request(data: bytes) -> tuple[ScaledObject, str]:
    """Decode a GetMetricsRequest: the object, and the name of the metric.

    Raises:
        InvalidInputError: The bytes are no such message.
    """
    scaled, metric = ScaledObject(), ""
    for number, value in _fields(data):
        if number == 1:
            scaled = decode_scaled_object(_bytes(value))
        elif number == 2:
            metric = _text(value)
    return scaled, metric


def encode_active(is_active: bool) -> bytes:
    """Encode an IsActiveResponse."""
    return b"\x08\x01" if is_active else b""


def encode_metric_spec(name: str, target: int) -> bytes:
    """Encode a GetMetricSpecResponse with one metric."""
    return _delimited(1, _metric(name, target))


def encode_metrics(name: str, value: int) -> bytes:
    """Encode a GetMetricsResponse with one metric."""
    return _delimited(1, _metric(name, value))


def _metric(name: str, value: int) -> bytes:
    """Encode a MetricSpec or a MetricValue: both have a name, an integer for older versions of KEDA, and a double."""
    number = b"" if not value else b"\x10" + _varint(value)
    double = b"" if not value else b"\x19" + struct.pack("<d", value)
    return _delimited(1, name.encode()) + number + double


def _delimited(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """Yield the fields of a message: number and value."""
    place = 0
    while place < len(data):
        key, place = _read_varint(data, place)
        kind = key & 7
        if kind == _VARINT:
            value, place = _read_varint(data, place)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            size, place = _read_varint(data, place)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise InvalidInputError(f"a field of type {kind}")
        if size > len(data) - place:
            raise InvalidInputError("a field is longer than its message")
        yield key >> 3, data[place : place + size]
        place += size


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for count, byte in enumerate(data[place : place + VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, place + count + 1
    raise InvalidInputError("a number without an end")


def _bytes(value: Value) -> bytes:
    if isinstance(value, int):
        raise InvalidInputError("a number in place of a text or a message")
    return value


def _text(value: Value) -> str:
    try:
        return _bytes(value).decode()
    except UnicodeDecodeError:
        raise InvalidInputError("a text that is not UTF-8") from None
