"""The decoder of `valueFormat=json`: Arrow's JSON reader for chunks of values, and a parser for single records.

Arrow's reader takes one text of many objects, and does not know the records that they came from. Each chunk is checked
so that row i is surely record i. Every record of it begins with `{` and ends with `}`, and a line end follows. No JSON
string has a raw line end, so the last `}` of a record is a token. After that token, `{` can only follow between two
complete objects. So each record is one object or more. If there are as many rows as records, each is exactly one.
"""

from __future__ import annotations

import base64
import binascii
import json  # not msgspec: text of other programs, with NaN and integers of any size
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from datetime import tzinfo
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from itertools import accumulate
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.json as pj

from kohort.spark.values.isolate import VALUE_BYTES, ConvertedParts, check_value_size, convert_in_parts
from kohort.spark.values.moments import parse_date_days, parse_time_us
from kohort.spark.values.types import Column, Kind, check_not_null, has_not_null_part, read_json
from kohort.spark.values.types import compute as pc

# -- The parser for single records, for those that Arrow refuses. It also defines the results that Arrow must match

DEPTH = 500
"""Most levels of objects and arrays in a value: Python's parser needs one of its 1,000 frames for each."""
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]', re.DOTALL)
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_ROUNDING = Context(prec=100, rounding=ROUND_HALF_UP, Emax=10**6, Emin=-(10**6))
_NOT_FINITE = {
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "+Infinity": float("inf"),
    "-Infinity": float("-inf"),
    "+INF": float("inf"),
    "-INF": float("-inf"),
}
"""Texts that stand for numbers of FLOAT and DOUBLE, as Spark takes them."""

Convert: TypeAlias = Callable[[Any], Any]


class _Integer(str):
    """A JSON number without fraction and exponent, kept as its text."""

    __slots__ = ()


class _Real(str):
    """The text of any other JSON number."""

    __slots__ = ()


class _NotFinite(str):
    """NaN, Infinity or -Infinity."""

    __slots__ = ()


class _Members(list[tuple[str, Any]]):
    """The members of a JSON object as (name, value) pairs, in their order, with repeated names."""

    __slots__ = ()


_DECODER = json.JSONDecoder(
    object_pairs_hook=_Members, parse_int=_Integer, parse_float=_Real, parse_constant=_NotFinite
)
_NUMBERS = (_Integer, _Real)


class JsonRecords:
    """A converter of single values, for one thread.

    Attributes:
        type: the Arrow type of converted values.
    """

    def __init__(self, kind: Kind, zone: tzinfo) -> None:
        """Prepare the conversion.

        Args:
            kind: the type of values.
            zone: the zone of times that name none.
        """
        self.type = kind
        self._convert = _converter(kind, "value", zone)

    def convert(self, value: bytes) -> Any:
        """Return a value in the form that `pa.array` takes for the type; None for a blank value.

        Raises:
            ValueError: the value is bad; the text says why.
        """
        check_value_size(value)
        if is_too_deep(value):
            raise ValueError(f"nested deeper than {DEPTH} levels")
        try:
            text = value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"not UTF-8 at byte {error.start}") from None
        if not text.strip(" \t\r\n"):
            return None
        try:
            parsed = _DECODER.decode(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"no JSON: {error.msg} at character {error.pos}") from None
        except RecursionError:  # a caller that is deep itself has left too few of Python's frames
            raise ValueError("nested deeper than Python can parse here") from None
        if parsed is None:
            raise ValueError("the value is the word null")
        return self._convert(parsed)


def is_too_deep(value: bytes) -> bool:
    """Return whether a JSON text is nested more than `DEPTH` levels deep; the text may be malformed."""
    if value.count(b"[") + value.count(b"{") <= DEPTH:
        return False
    depth = 0
    for found in _BRACKETS.finditer(value):
        first = found[0][:1]
        if first in b"[{":
            depth += 1
            if depth > DEPTH:
                return True
        elif first in b"]}":
            depth -= 1
    return False


def _converter(kind: Kind, path: str, zone: tzinfo) -> Convert:
    """Return a function that converts a parsed JSON value to the input of `pa.array`; the caller handles null."""
    made = _nested(kind, path, zone) or _leaf(kind, zone)

    def convert_value(found: Any) -> Any:
        try:
            return made(found)
        except _WrongKind:
            raise ValueError(f"{path} is {_described(found)}, and was declared {kind}") from None

    return convert_value if pa.types.is_nested(kind) else _naming_path(made, path, kind)


def _naming_path(made: Convert, path: str, kind: Kind) -> Convert:
    def convert_named_value(found: Any) -> Any:
        try:
            return made(found)
        except _WrongKind:
            raise ValueError(f"{path} is {_described(found)}, and was declared {kind}") from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    return convert_named_value


class _WrongKind(Exception):
    """A value of the wrong JSON type, such as a number in place of a string."""


def _described(found: Any) -> str:
    if isinstance(found, _Members):
        return "an object"
    if isinstance(found, list):
        return "an array"
    if isinstance(found, bool):
        return "true" if found else "false"
    if found is None:
        return "null"
    text = str(found) if len(found) <= 40 else f"{found[:40]}…"
    return f"the number {text}" if type(found) is not str else f"the string {text!r}"


def _nested(kind: Kind, path: str, zone: tzinfo) -> Convert | None:
    if pa.types.is_struct(kind):
        fields = {field.name: _converter(field.type, f"{path}.{field.name}", zone) for field in kind}

        def convert_struct(found: Any) -> dict[str, Any]:
            if type(found) is not _Members:
                raise _WrongKind
            return {name: None if member is None else fields[name](member) for name, member in found if name in fields}

        return convert_struct
    if pa.types.is_map(kind):
        item = _converter(kind.item_type, f"{path}{{}}", zone)

        def convert_map(found: Any) -> list[tuple[str, Any]]:
            if type(found) is not _Members:
                raise _WrongKind
            return list({name: None if member is None else item(member) for name, member in found}.items())

        return convert_map
    if pa.types.is_list(kind):
        element = _converter(kind.value_type, f"{path}[]", zone)

        def convert_list(found: Any) -> list[Any]:
            if type(found) is not list:
                raise _WrongKind
            return [None if item is None else element(item) for item in found]

        return convert_list
    return None


def _leaf(kind: Kind, zone: tzinfo) -> Convert:
    if pa.types.is_integer(kind):
        return _integer_of(kind.bit_width)
    if pa.types.is_floating(kind):
        return _real(single=kind.bit_width == 32)
    if pa.types.is_decimal(kind):
        return _decimal(kind.precision, kind.scale)
    if pa.types.is_date(kind):
        return lambda found: parse_date_days(_text(found))
    if pa.types.is_timestamp(kind):
        return _timestamp(zone) if kind.tz else lambda found: parse_time_us(_text(found), None)
    return {pa.bool_(): _boolean, pa.binary(): lambda found: decode_base64(_text(found)), pa.string(): _string}[kind]


def _text(found: Any) -> str:
    if type(found) is not str:
        raise _WrongKind
    return found


def _boolean(found: Any) -> bool:
    if type(found) is not bool:
        raise _WrongKind
    return found


def _integer_of(bits: int) -> Convert:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def convert_integer(found: Any) -> int:
        if type(found) is not _Integer:
            raise _WrongKind
        number = int(found) if len(found) <= 20 else high + 1
        if not low <= number <= high:
            raise ValueError(f"{found[:40]} does not fit into {bits} bits")
        return number

    return convert_integer


def _real(*, single: bool) -> Convert:
    def convert_real(found: Any) -> float:
        if type(found) in _NUMBERS:
            if not single:
                return float(found)
            return pa.scalar(str(found)).cast(pa.float32()).as_py()
        if isinstance(found, str) and found in _NOT_FINITE:
            return _NOT_FINITE[found]
        raise _WrongKind

    return convert_real


def _decimal(precision: int, scale: int) -> Convert:
    unit = Decimal(1).scaleb(-scale)

    def convert_decimal(found: Any) -> Decimal:
        if not isinstance(found, str) or type(found) is _NotFinite or not _DECIMAL.fullmatch(found):
            raise _WrongKind
        try:
            number = Decimal(str(found))
            if number and number.adjusted() < -100:
                return Decimal(0).scaleb(-scale)
            rounded = number.quantize(unit, context=_ROUNDING)
        except InvalidOperation:
            raise ValueError(f"{found[:40]} does not fit into {precision} digits") from None
        if len(rounded.as_tuple().digits) > precision and rounded:
            raise ValueError(f"{found[:40]} does not fit into {precision} digits, {scale} of them after the point")
        return rounded

    return convert_decimal


def _timestamp(zone: tzinfo) -> Convert:
    def convert_timestamp(found: Any) -> int:
        if type(found) is not _Integer:
            return parse_time_us(_text(found), zone)
        seconds = int(found) if len(found) <= 20 else 1 << 63
        if abs(seconds) > (1 << 63) // 1_000_000 - 1:
            raise ValueError(f"{found[:40]} seconds are beyond what a timestamp holds")
        return seconds * 1_000_000

    return convert_timestamp


def decode_base64(text: str) -> bytes:
    """Decode base64 text to bytes.

    Raises:
        ValueError: the text is not base64.
    """
    try:
        return base64.b64decode(text.rstrip("\r\n"), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("no base64") from None


def _string(found: Any) -> str:
    """Return the text of a string; any other value as JSON without blanks, with its numbers as written."""
    text = found if type(found) is str else _dumped(found)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair") from None
    return text


class _JsonText(str):
    """JSON text that is already written."""

    __slots__ = ()


def _dumped(found: Any) -> str:
    """Return a parsed value as JSON text. Without recursion: `DEPTH` levels would take two of Python's frames each."""
    texts: list[str] = []
    left = [found]
    while left:
        part = left.pop()
        if isinstance(part, _Members):
            left.append(_JsonText("}"))
            for number, (name, member) in reversed([*enumerate(part)]):
                left += (member, _JsonText(f"{',' if number else ''}{json.dumps(name, ensure_ascii=False)}:"))
            left.append(_JsonText("{"))
        elif isinstance(part, list):
            left.append(_JsonText("]"))
            for number, item in reversed([*enumerate(part)]):
                left += (item, _JsonText("," if number else ""))
            left.append(_JsonText("["))
        elif isinstance(part, _Integer | _Real | _NotFinite | _JsonText):
            texts.append(part)
        else:
            texts.append(json.dumps(part, ensure_ascii=False))
    return "".join(texts)


CHUNK_BYTES = 1 << 20
"""Bytes of values that are parsed together: a bad value repeats the work for its chunk, and a chunk fits the cache."""
_NOT_FINITE_SPELLING = r"[:\[,]\s*-?(?:NaN|Inf)"
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
            zone: the zone of times that name none.
        """
        self.type = kind
        self._records = JsonRecords(kind, zone)
        self._zone = str(zone)
        self._required = has_not_null_part(kind)
        wire = _wire_type(kind) if pa.types.is_struct(kind) else None
        self._parse = pj.ParseOptions(
            explicit_schema=None if wire is None else pa.schema(list(wire)), unexpected_field_behavior="ignore"
        )
        self._wire = wire
        scales = list(_scales(kind))
        self._odd = "|".join([_NOT_FINITE_SPELLING, _too_long(max(scales))] if scales else [_NOT_FINITE_SPELLING])

    def decode(self, values: Column) -> ConvertedParts:
        """Decode every value as the declared type.

        Args:
            values: binary values; null and blank ones become null, which is not bad.
        """
        parts = ConvertedParts(self.type, len(values))
        for start, stop in _chunks(values):
            chunk, rows = values.slice(start, stop - start), range(start, stop)
            if self._wire is None:
                self._one_by_one(chunk, rows, parts)
            else:
                self._decode_chunk(chunk, rows, parts)
        return parts

    def _decode_chunk(self, values: Column, rows: Sequence[int], parts: ConvertedParts) -> None:
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
        """Return a mask of the values that Arrow's JSON reader can parse; None if it can parse all of them.

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
            check_not_null(done)
        return done

    def _one_by_one(self, values: Column, rows: Sequence[int], parts: ConvertedParts) -> None:
        good: list[object] = []
        for value, row in zip(values.to_pylist(), rows, strict=True):
            try:
                good.append(None if value is None else self._records.convert(value))
            except ValueError as error:
                parts.reasons[row] = str(error)
                good.append(None)
        parts.add_converted(good, rows, self._build)

    def _build(self, good: Sequence[object]) -> Column:
        built = pa.array(good, self.type)
        if self._required:
            check_not_null(built)
        return built

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
        """Parse a column of time texts at once, which must either all name a zone or all name none."""
        kind = pa.timestamp("us", tz="UTC")
        try:
            return pc.cast(texts, kind)
        except pa.ArrowInvalid:
            local = pc.cast(texts, pa.timestamp("us"))
            return pc.assume_timezone(local, self._zone, ambiguous="earliest").cast(kind)


def _wire_type(kind: Kind) -> Kind | None:
    """Return the Arrow type by which Arrow's JSON reader reads a declared type: dates, times and binary as strings.

    None if the type contains a map, which that reader can't read.
    """
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
    """Return a regular expression for JSON numbers that may exceed a 128-bit decimal: Arrow truncates them."""
    return rf"[0-9.][eE][+-]?[0-9]|[0-9]{{{max(1, 39 - scale)}}}"


def _from_base64(texts: Column) -> Column:
    found = [None if text is None else decode_base64(text) for text in texts.to_pylist()]
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
