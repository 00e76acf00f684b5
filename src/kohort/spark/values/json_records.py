"""JSON record by record, by Python's own parser: the meaning that Arrow's path must agree with, and what it refuses.

Conversions are those of Spark's `from_json`, except where docs/spark.md says why not. A record is good or bad as a
whole.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable
from datetime import tzinfo
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, TypeAlias

import pyarrow as pa

from kohort.spark.values.columns import Kind
from kohort.spark.values.isolate import check_size
from kohort.spark.values.moments import days_of_date, micros_of_time

DEPTH = 500
"""Levels of objects and arrays that a value may have: Python's parser takes one of its 1,000 frames for each."""
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
    """Converts one value after the other; for one thread.

    Attributes:
        type: what values become.
    """

    def __init__(self, kind: Kind, zone: tzinfo) -> None:
        """Prepare the conversion.

        Args:
            kind: of values.
            zone: of times that name none.
        """
        self.type = kind
        self._convert = _converter(kind, "value", zone)

    def convert(self, value: bytes) -> Any:
        """What `pa.array` takes for the type; None for a blank value.

        Raises:
            ValueError: the value is bad; says why.
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
    """Whether a value has more than `DEPTH` levels, damaged or not."""
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
    """A function from what the parser gives to what `pa.array` takes; null is handled by what holds the value."""
    made = _nested(kind, path, zone) or _leaf(kind, zone)

    def convert(found: Any) -> Any:
        try:
            return made(found)
        except _WrongKind:
            raise ValueError(f"{path} is {_what(found)}, and was declared {kind}") from None

    return convert if pa.types.is_nested(kind) else _named(made, path, kind)


def _named(made: Convert, path: str, kind: Kind) -> Convert:
    def convert(found: Any) -> Any:
        try:
            return made(found)
        except _WrongKind:
            raise ValueError(f"{path} is {_what(found)}, and was declared {kind}") from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    return convert


class _WrongKind(Exception):
    """A number where a string must be, and the like."""


def _what(found: Any) -> str:
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
            return list({name: None if one is None else item(one) for name, one in found}.items())

        return convert_map
    if pa.types.is_list(kind):
        element = _converter(kind.value_type, f"{path}[]", zone)

        def convert_list(found: Any) -> list[Any]:
            if type(found) is not list:
                raise _WrongKind
            return [None if one is None else element(one) for one in found]

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
    """What base64 stands for.

    Raises:
        ValueError: it is none.
    """
    try:
        return base64.b64decode(text.rstrip("\r\n"), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("no base64") from None


def _string(found: Any) -> str:
    """The text of a string; anything else as JSON without blanks, its numbers as they were written."""
    text = found if type(found) is str else _dumped(found)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair") from None
    return text


def _dumped(found: Any) -> str:
    if isinstance(found, _Members):
        return "{" + ",".join(f"{json.dumps(name, ensure_ascii=False)}:{_dumped(one)}" for name, one in found) + "}"
    if isinstance(found, list):
        return "[" + ",".join(map(_dumped, found)) + "]"
    return str(found) if isinstance(found, _Integer | _Real | _NotFinite) else json.dumps(found, ensure_ascii=False)
