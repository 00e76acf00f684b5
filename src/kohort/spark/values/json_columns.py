"""The decoder of `valueFormat=json`: Arrow's JSON reader for chunks of values, and a parser for single records.

Arrow's reader takes one text of many objects, and does not know the records that they came from. Each chunk is checked
so that row i is surely record i. Every record of it begins with `{` and ends with `}`, and a line end follows. No JSON
string has a raw line end, so the last `}` of a record is a token. After that token, `{` can only follow between two
complete objects. So each record is one object or more. If there are as many rows as records, each is exactly one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from datetime import tzinfo
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.json as pj

from kohort.spark.values.isolate import REFUSALS, VALUE_BYTES, Parts, convert_in_parts
from kohort.spark.values.json_records import DEPTH, JsonRecords, binary_of
from kohort.spark.values.types import Column, Kind, check_required, has_required, read_json
from kohort.spark.values.types import compute as pc

CHUNK_BYTES = 1 << 20
"""Bytes of values that are parsed together: a bad value repeats the work for its chunk, and a chunk fits the cache."""
_NOT_FINITE = r"[:\[,]\s*-?(?:NaN|Inf)"
"""Spellings that Arrow's reader accepts and others do not, even in fields that are not read."""
_BLANKS = " \t\r\n"


class JsonDecoder:
    """A decoder of JSON values, for one thread.

    Attributes:
        type: the Arrow type of decoded values.
    """

    def __init__(self, kind: Kind, zone: tzinfo) -> None:
        """Prepare the decoder.

        Args:
            kind: the type of values.
            zone: the zone of times without one.
        """
        self.type = kind
        self._records = JsonRecords(kind, zone)
        self._zone = str(zone)
        self._required = has_required(kind)
        wire = _wire_type(kind) if pa.types.is_struct(kind) else None
        self._parse = pj.ParseOptions(
            explicit_schema=None if wire is None else pa.schema(list(wire)), unexpected_field_behavior="ignore"
        )
        self._wire = wire
        scales = list(_scales(kind))
        self._odd = "|".join([_NOT_FINITE, _too_long(max(scales))] if scales else [_NOT_FINITE])

    def decode(self, values: Column) -> Parts:
        """Decode every value as the declared type.

        Args:
            values: binary values; null and blank ones become null, which is not bad.
        """
        parts = Parts(self.type, len(values))
        for start, stop in _chunks(values):
            chunk, rows = values.slice(start, stop - start), range(start, stop)
            if self._wire is None:
                self._one_by_one(chunk, rows, parts)
            else:
                self._decode_chunk(chunk, rows, parts)
        return parts

    def _decode_chunk(self, values: Column, rows: Sequence[int], parts: Parts) -> None:
        plain = self._plain_values(values)
        if plain is not None:
            trimmed = pc.ascii_trim(_unchecked_text(values), _BLANKS).view(pa.binary())
            plain = self._plain_values(trimmed)
            if plain is not None:
                odd = pc.invert(plain)
                self._one_by_one(values.filter(odd), _chosen(rows, odd), parts)
                trimmed, rows = trimmed.filter(plain), _chosen(rows, plain)
            values = trimmed
        if len(values):
            convert_in_parts(values, rows, parts, self._convert, self._one_by_one)

    def _plain_values(self, values: Column) -> Column | None:
        """Return which values Arrow's reader can take; None if it can take all.

        Such values begin with { and end with }, have no number that Arrow reads differently, and are neither deep nor
        huge.
        """
        plain = pc.and_(pc.starts_with(values, b"{"), pc.ends_with(values, b"}"))
        odd = pc.match_substring_regex(values, self._odd)
        if pc.any(odd).as_py():
            plain = pc.and_(plain, pc.invert(odd))
        sizes = pc.binary_length(values)
        largest = pc.max(sizes).as_py() or 0
        if largest > VALUE_BYTES:
            plain = pc.and_(plain, pc.less_equal(sizes, VALUE_BYTES))
        if largest > DEPTH:
            brackets = pc.add(pc.count_substring(values, b"{"), pc.count_substring(values, b"["))
            plain = pc.and_(plain, pc.less_equal(brackets, DEPTH))
        if plain.null_count:
            plain = plain.fill_null(False)
        return None if pc.all(plain, min_count=0).as_py() else plain

    def _convert(self, values: Column) -> Column:
        """Convert values that begin with { and end with }, as a whole.

        Raises:
            ValueError: one of `REFUSALS`, if a value is not one object of the declared type.
        """
        _unchecked_text(values).validate(full=True)
        text = pc.binary_join(_as_one_list(values), b"\n")[0].as_buffer()
        read = pj.ReadOptions(use_threads=False, block_size=text.size + 1)
        table = read_json(pa.BufferReader(text), read_options=read, parse_options=self._parse)
        if table.num_rows != len(values):
            raise ValueError(f"{table.num_rows} objects in {len(values)} values")
        wire = self._wire
        assert wire is not None
        columns = [_one_chunk(table.column(field.name)) for field in wire]
        found = pa.StructArray.from_arrays(columns, fields=list(wire))
        found.validate(full=True)  # the reader does not check the digits of decimals
        done = self._finished(found, self.type)
        if self._required:
            check_required(done)
        return done

    def _one_by_one(self, values: Column, rows: Sequence[int], parts: Parts) -> None:
        good: list[object] = []
        for value, row in zip(values.to_pylist(), rows, strict=True):
            try:
                good.append(None if value is None else self._records.convert(value))
            except ValueError as error:
                parts.reasons[row] = str(error)
                good.append(None)
        self._build(good, rows, parts)

    def _build(self, good: list[object], rows: Sequence[int], parts: Parts) -> None:
        try:
            built = pa.array(good, self.type)
            if self._required:
                check_required(built)
            parts.add(rows, built)
        except REFUSALS as error:
            if len(good) > 1:
                half = len(good) // 2
                self._build(good[:half], rows[:half], parts)
                self._build(good[half:], rows[half:], parts)
            else:
                parts.reasons[rows[0]] = str(error)
                parts.add(rows, pa.nulls(1, self.type))

    def _finished(self, found: Column, kind: Kind) -> Column:
        """Return the result of Arrow's reader in the declared type: dates, times and base64 are still strings."""
        if found.type.equals(kind):
            return found
        if pa.types.is_struct(kind):
            children = [self._finished(found.field(i), kind.field(i).type) for i in range(kind.num_fields)]
            return pa.StructArray.from_arrays(children, fields=list(kind), mask=_nulls(found))
        if pa.types.is_list(kind):
            items = self._finished(found.values, kind.value_type)
            return pa.ListArray.from_arrays(found.offsets, items, type=kind, mask=_nulls(found))
        if pa.types.is_binary(kind):
            return _from_base64(found)
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            return self._instants(found)
        return pc.cast(found, kind)

    def _instants(self, texts: Column) -> Column:
        """Parse times, if all name a zone or none does."""
        kind = pa.timestamp("us", tz="UTC")
        try:
            return pc.cast(texts, kind)
        except pa.ArrowInvalid:
            local = pc.cast(texts, pa.timestamp("us"))
            return pc.assume_timezone(local, self._zone, ambiguous="earliest").cast(kind)


def _wire_type(kind: Kind) -> Kind | None:
    """Return the type for Arrow's reader; None if it has none, because it reads no maps."""
    if pa.types.is_map(kind):
        return None
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_binary(kind):
        return pa.string()
    if pa.types.is_list(kind):
        element = _wire_type(kind.value_type)
        return None if element is None else pa.list_(pa.field("element", element))
    if pa.types.is_struct(kind):
        fields = [(field.name, part) for field in kind if (part := _wire_type(field.type)) is not None]
        return pa.struct(fields) if len(fields) == kind.num_fields else None
    return kind


def _scales(kind: Kind) -> Iterator[int]:
    if pa.types.is_decimal(kind):
        yield kind.scale
    elif pa.types.is_struct(kind) or pa.types.is_list(kind):
        for number in range(kind.num_fields):
            yield from _scales(kind.field(number).type)


def _too_long(scale: int) -> str:
    """Return a pattern of numbers that may need more than 128 bits at a scale: Arrow's reader truncates them."""
    return rf"[0-9.][eE][+-]?[0-9]|[0-9]{{{max(1, 39 - scale)}}}"


def _from_base64(texts: Column) -> Column:
    found = [None if text is None else binary_of(text) for text in texts.to_pylist()]
    ends = array("i", accumulate((len(value or b"") for value in found), initial=0))
    plain = pa.Array.from_buffers(
        pa.binary(),
        len(found),
        [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(b"".join(value or b"" for value in found))],
    )
    return pc.if_else(texts.is_null(), pa.scalar(None, pa.binary()), plain) if texts.null_count else plain


def _chunks(values: Column) -> Iterator[tuple[int, int]]:
    """Yield the rows from start to stop of each chunk: `CHUNK_BYTES` of values, or one larger value."""
    ends = memoryview(values.buffers()[1]).cast("i") if len(values) else memoryview(b"")
    first, stop = values.offset, values.offset + len(values)
    start = first
    while start < stop:
        limit, low, high = ends[start] + CHUNK_BYTES, start + 1, stop
        while low < high:
            middle = (low + high + 1) // 2
            if ends[middle] <= limit:
                low = middle
            else:
                high = middle - 1
        yield start - first, low - first
        start = low


def _unchecked_text(values: Column) -> Column:
    """Return binary values as strings without a check of their bytes."""
    return pa.Array.from_buffers(pa.string(), len(values), values.buffers(), offset=values.offset)


def _as_one_list(values: Column) -> Column:
    offsets = pa.py_buffer(b"".join(number.to_bytes(4, "little") for number in (0, len(values))))
    return pa.Array.from_buffers(pa.list_(pa.binary()), 1, [None, offsets], children=[values])


def _chosen(rows: Sequence[int], mask: Column) -> list[int]:
    return [row for row, taken in zip(rows, mask.to_pylist(), strict=True) if taken]


def _one_chunk(column: Any) -> Column:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _nulls(array: Column) -> Column | None:
    return array.is_null() if array.null_count else None
