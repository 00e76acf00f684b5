"""The parts of compiled codecs: from the fields of a class and one version to plain Python functions.

Two functions are written as Python source for each message version and executed once. The encoder returns the message
as a list of byte strings; the decoder takes the whole buffer. Nested structures are inlined. Neighbouring fields of
fixed size become one `struct` call. A field that the version lacks costs nothing but a check. So the work per field is
what a programmer would write by hand for that version.

A decoder never reads beyond its buffer. It never makes a list longer than the remaining bytes could hold. Malformed
input ends in WireError: `Message.decode` converts struct.error, IndexError and UnicodeDecodeError.
"""

from __future__ import annotations

import struct as packing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import repeat
from typing import Any, Final
from uuid import UUID

from kohort.errors import ErrorCode, InvalidInputError
from kohort.wire.schema import ZERO_UUID, Buffer, Field, WireError

FIXED: Final = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint16": "H",
    "float64": "d",
    "bool": "?",
}
_UUIDS_MAX: Final = 16_384
"""Topic ids decoded so far: the same ones recur, and the table is emptied when it reaches this size."""
_VARINT_BITS_MAX: Final = 35
SHORT_ARRAYS: Final = 32
COLUMN_ROWS: Final = 256
"""Longer arrays of structures are unpacked row by row. With two layouts, the cached unpackers take 6 MB at most."""
PARTITION_ELEMENTS_MAX: Final = 200_000
"""The maximum number of elements in the arrays of one request together, for requests that name partitions one by one:
twice the partitions of a broker. Two bytes can stand for an element that takes a hundred bytes in memory. Some elements
take the broker's one thread 10 microseconds.
"""
ELEMENTS_MAX: Final = 30_000
"""The maximum number of elements for all other requests: three for each topic of a broker. Unpacking one takes up to 50
microseconds.
"""
BY_PARTITION: Final = frozenset({0, 1, 2, 8, 9, 14, 21, 23, 24, 28, 47, 68})
"""The APIs whose requests name partitions one by one, and SyncGroup, which names members."""
ANSWER_ELEMENTS_MAX: Final = 10_000_000
"""The maximum number of elements in the arrays of one response together: Metadata of 1.4 million partitions with three
replicas each has as many. Two or three bytes of a response can stand for an element that takes 150 bytes in memory.
"""
TAGS_MAX: Final = 10_000
"""The maximum number of tagged fields that are skipped in one structure."""


def uvarint_bytes(value: int) -> bytes:
    """Encode an unsigned number as a varint: seven bits a byte, the low bits first."""
    if value < 0:
        raise ValueError(f"{value} has no unsigned form")
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


VARINTS: Final = [uvarint_bytes(value) for value in range(1024)]


def read_uvarint(buf: Buffer, position: int) -> tuple[int, int]:
    """Return the number at `position`, of five bytes at most, and the position after it."""
    value = shift = 0
    while True:
        byte = buf[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
        if shift >= _VARINT_BITS_MAX:
            raise WireError("a variable-length number is longer than five bytes")


UUIDS: Final[dict[bytes, UUID]] = {bytes(16): ZERO_UUID}


def cached_uuid(raw: bytes) -> UUID:
    """Return the UUID of sixteen bytes, cached."""
    if len(UUIDS) >= _UUIDS_MAX:
        UUIDS.clear()
        UUIDS[bytes(16)] = ZERO_UUID
    return UUIDS.setdefault(raw, UUID(bytes=raw))


def skip_tags(buf: Buffer, position: int, end: int) -> int:
    """Return the end of the tagged fields that start at `position`; this version knows none of them."""
    count, position = read_uvarint(buf, position)
    if count > TAGS_MAX:
        raise WireError(f"{count} tagged fields, the limit is {TAGS_MAX}")
    for _ in range(count):
        _, position = read_uvarint(buf, position)
        size, position = read_uvarint(buf, position)
        position += size
        if position > end:
            raise WireError("a tagged field reaches past the end")
    return position


def append_record_set(out: list[Any], value: Any, compact: bool, nullable: bool) -> None:
    """Append the length of a record set and its pieces to `out`; the pieces are not copied."""
    if value is None:
        if not nullable:
            raise InvalidInputError("records may not be null in this version")
        out.append(b"\0" if compact else b"\xff\xff\xff\xff")
        return
    pieces = value if isinstance(value, (list, tuple)) else (value,)
    pieces = [piece.cast("B") if isinstance(piece, memoryview) else piece for piece in pieces]
    size = sum(map(len, pieces))
    out.append(uvarint_bytes(size + 1) if compact else packing.pack(">i", size))
    out += pieces


def absent_field_error(owner: str, name: str, version: int) -> InvalidInputError:
    """Return the UNSUPPORTED_VERSION error for a value of a field that this version of the message lacks."""
    return InvalidInputError(f"{owner} v{version} has no field {name}", ErrorCode.UNSUPPORTED_VERSION)


@cache
def short_array_methods(code: str, method: str) -> list[Callable[..., Any]]:
    """Return methods of `struct.Struct` for arrays of 0, 1, 2 … numbers of one type, since most arrays are short."""
    return [getattr(packing.Struct(f">{size}{code}"), method) for size in range(SHORT_ARRAYS)]


def decode_rows_as_columns(layout: str, columns: int, block: bytes, rows: int) -> Sequence[Sequence[Any]]:
    """Decode rows that lie back to back, and return them as columns, in a third of the time of `iter_unpack`."""
    if rows > COLUMN_ROWS:
        return list(zip(*packing.iter_unpack(f">{layout}", block), strict=True))
    flat = _rows_unpacker(layout, rows)(block)
    return [flat[position::columns] for position in range(columns)]


@lru_cache(maxsize=2 * COLUMN_ROWS)
def _rows_unpacker(layout: str, rows: int) -> Callable[[bytes], tuple[Any, ...]]:
    return packing.Struct(f">{layout * rows}").unpack


def decode_empty_strings(lengths: bytes) -> Sequence[str | None]:
    """Decode a column of strings that are all empty or null, from their length bytes: 1 or 0."""
    if lengths.count(1) == len(lengths):
        return ("",) * len(lengths)
    return ["" if length else None for length in lengths]


def encode_plain_rows(
    pack: Callable[..., bytes], columns: Mapping[str, Sequence[Any]], names: Sequence[str], texts: Collection[str]
) -> Iterator[bytes] | None:
    """Encode an array of structures row by row by one `pack` call each.

    None: a string in them is null or not empty, so the caller has to encode them field by field.

    Args:
        pack: packs one row; a string is a byte, and so are the tagged fields at the end.
        columns: the columns by field.
        names: the fields in the order of a row.
        texts: those of them that are strings.
    """
    size = len(columns[names[0]])
    if any(columns[name].count("") != size for name in texts):
        return None
    packed = [repeat(1) if name in texts else columns[name] for name in names]
    return map(pack, *packed, repeat(0, size))


def bad_length_error(name: str, length: int) -> WireError:
    """Return the WireError for a length that the field or the remaining bytes do not allow."""
    return WireError(f"{name}: a length of {length} does not fit")


def elements_max(api_key: int) -> int:
    """Return the most elements in the arrays of one request together."""
    return PARTITION_ELEMENTS_MAX if api_key in BY_PARTITION else ELEMENTS_MAX


def too_many(name: str, limit: int) -> WireError:
    """Return the error for a request or response whose arrays have more elements than one message may have."""
    return WireError(f"{name}: more than {limit} elements in one message")


def min_size(field: Field, version: int, flexible: bool) -> int:
    """Return the fewest bytes that a field can take in a version, by which a decoder bounds the length of arrays."""
    if field.null_since <= version and field.kind == "struct":
        return 1
    if field.kind in FIXED:
        return packing.calcsize(">" + FIXED[field.kind])
    if field.kind == "uuid":
        return 16
    if field.struct is not None:
        present = (part for part in field.struct.FIELDS if part.is_in_version(version) and part.tag is None)
        return sum(min_size(part, version, flexible) for part in present) + flexible
    if flexible:
        return 1
    return 2 if field.kind == "string" else 4


class FunctionSource:
    """The lines of a function while it is written, and the constants that they refer to."""

    def __init__(self, flexible: bool, version: int, owner: str) -> None:
        self.flexible = flexible
        self.version = version
        self.owner = owner
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}
        self.depth = 1
        self._count = 0

    def write_line(self, line: str) -> None:
        """Write one line at the current depth."""
        self.lines.append("    " * self.depth + line)

    def name(self, prefix: str) -> str:
        """Return a name that was not used before."""
        self._count += 1
        return f"{prefix}{self._count}"

    def constant(self, prefix: str, value: Any) -> str:
        """Return a name that is bound to `value` when the function is made."""
        for name, known in self.names.items():
            if known is value or (
                type(known) is type(value) and isinstance(value, (int, str, bytes)) and known == value
            ):
                return name
        name = self.name(prefix)
        self.names[name] = value
        return name

    def packer(self, layout: str, method: str) -> str:
        """Return a name bound to `struct.Struct(layout).method`."""
        name = f"{method}_{layout}".replace("?", "o")
        if name not in self.names:
            self.names[name] = getattr(packing.Struct(">" + layout), method)
        return name

    def literal(self, value: Any) -> str:
        """Return a Python expression for a field's default, for the generated code."""
        if value is None or isinstance(value, (bool, int, float, str, bytes)):
            return repr(value)
        return self.constant("default", value)

    def compile_function(self, parameters: str, last_lines: Sequence[str] = ()) -> Any:
        """Compile the lines to a function with these parameters, and return it."""
        text = "\n".join([f"def function({parameters}):", *self.lines, *("    " + line for line in last_lines)])
        scope: dict[str, Any] = dict(self.names)
        exec(compile(text, f"<{self.owner} v{self.version}>", "exec"), scope)
        return scope["function"]
