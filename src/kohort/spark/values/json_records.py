"""The parser for single JSON records, for those that Arrow refuses; it also defines the results that Arrow must match.

Conversions are those of Spark's `from_json`; docs/spark.md has the exceptions and their reasons. A record is good or
bad as a whole.
"""

from __future__ import annotations

import base64
import binascii
import json  # not msgspec: text of other programs, with NaN and integers of any size
import re
from collections.abc import Callable
from datetime import tzinfo
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, TypeAlias

import pyarrow as pa

from kohort.spark.values.isolate import check_size
from kohort.spark.values.moments import days_of_date, micros_of_time
from kohort.spark.values.types import Kind

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
    """The text of a JSON number without fraction and exponent."""

    __slots__ = ()


class _Real(str):
    """The text of any other JSON number."""

    __slots__ = ()


class _NotFinite(str):
    """NaN, Infinity or -Infinity."""

    __slots__ = ()


class _Members(list[tuple[str, Any]]):
    """An object's members in their order."""

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
            zone: the zone of times without one.
        """
        self.type = kind
        self._convert = _converter(kind, "value", zone)

    def convert(self, value: bytes) -> Any:
        """Return a value in the form that `pa.array` takes for the type; None for a blank value.

        Raises:
            ValueError: the value is bad; the text says why.
        """
        check_size(value)
        if too_deep(value):
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
        if parsed is None:
            raise ValueError("the value is the word null")
        return self._convert(parsed)


def too_deep(value: bytes) -> bool:
    """Return whether a value has more than `DEPTH` levels, damaged or not."""
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
    """Return a function from the parser's result to the form for `pa.array`; the caller handles null."""
    made = _nested(kind, path, zone) or _leaf(kind, zone)

    def convert(found: Any) -> Any:
        try:
            return made(found)
        except _WrongKind:
            raise ValueError(f"{path} is {_described(found)}, and was declared {kind}") from None

    return convert if pa.types.is_nested(kind) else _named(made, path, kind)


def _named(made: Convert, path: str, kind: Kind) -> Convert:
    def convert(found: Any) -> Any:
        try:
            return made(found)
        except _WrongKind:
            raise ValueError(f"{path} is {_described(found)}, and was declared {kind}") from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    return convert


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
        return _whole(kind.bit_width)
    if pa.types.is_floating(kind):
        return _real(single=kind.bit_width == 32)
    if pa.types.is_decimal(kind):
        return _decimal(kind.precision, kind.scale)
    if pa.types.is_date(kind):
        return lambda found: days_of_date(_text(found))
    if pa.types.is_timestamp(kind):
        return _timestamp(zone) if kind.tz else lambda found: micros_of_time(_text(found), None)
    return {pa.bool_(): _boolean, pa.binary(): lambda found: binary_of(_text(found)), pa.string(): _string}[kind]


def _text(found: Any) -> str:
    if type(found) is not str:
        raise _WrongKind
    return found


def _boolean(found: Any) -> bool:
    if type(found) is not bool:
        raise _WrongKind
    return found


def _whole(bits: int) -> Convert:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def convert(found: Any) -> int:
        if type(found) is not _Integer:
            raise _WrongKind
        number = int(found) if len(found) <= 20 else high + 1
        if not low <= number <= high:
            raise ValueError(f"{found[:40]} does not fit into {bits} bits")
        return number

    return convert


def _real(*, single: bool) -> Convert:
    def convert(found: Any) -> float:
        if type(found) in _NUMBERS:
            if not single:
                return float(found)
            return pa.scalar(str(found)).cast(pa.float32()).as_py()
        if isinstance(found, str) and found in _NOT_FINITE:
            return _NOT_FINITE[found]
        raise _WrongKind

    return convert


def _decimal(precision: int, scale: int) -> Convert:
    unit = Decimal(1).scaleb(-scale)

    def convert(found: Any) -> Decimal:
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

    return convert


def _timestamp(zone: tzinfo) -> Convert:
    def convert(found: Any) -> int:
        if type(found) is not _Integer:
            return micros_of_time(_text(found), zone)
        seconds = int(found) if len(found) <= 20 else 1 << 63
        if abs(seconds) > (1 << 63) // 1_000_000 - 1:
            raise ValueError(f"{found[:40]} seconds are beyond what a timestamp holds")
        return seconds * 1_000_000

    return convert


def binary_of(text: str) -> bytes:
    """Decode base64.

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


def _dumped(found: Any) -> str:
    if isinstance(found, _Members):
        return (
            "{" + ",".join(f"{json.dumps(name, ensure_ascii=False)}:{_dumped(member)}" for name, member in found) + "}"
        )
    if isinstance(found, list):
        return "[" + ",".join(map(_dumped, found)) + "]"
    return str(found) if isinstance(found, _Integer | _Real | _NotFinite) else json.dumps(found, ensure_ascii=False)
