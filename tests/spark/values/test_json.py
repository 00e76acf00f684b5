"""JSON values: whole chunks by Arrow give exactly what the record-by-record reading gives, and rows never shift."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.long_runs import examples

from kohort.spark.values.isolate import ONE_BY_ONE_MAX, VALUE_BYTES
from kohort.spark.values.json_columns import DEPTH, JsonDecoder, JsonRecords
from kohort.spark.values.types import check_not_null

NUMBERED = pa.struct([("n", pa.int64()), ("s", pa.string())])
INNER = pa.struct([("x", pa.int8()), ("y", pa.list_(pa.field("element", pa.string())))])
WIDE = pa.struct(
    [
        ("n", pa.int32()),
        ("s", pa.string()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("b", pa.bool_()),
        ("m", pa.decimal128(12, 3)),
        ("k", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("in", INNER),
        ("all", pa.list_(pa.field("element", INNER))),
    ]
)
MAPS = pa.struct([("n", pa.int16()), ("m", pa.map_(pa.string(), pa.int32()))])


def one_by_one(kind: pa.DataType, values: list[bytes | None], zone: Any = UTC) -> tuple[list[str], set[int]]:
    """Return each value read alone, as text (NaN differs from itself), and which values are bad."""
    records = JsonRecords(kind, zone)
    found, bad = [], set()
    for row, value in enumerate(values):
        try:
            made = pa.array([None if value is None else records.convert(value)], kind)
            made.validate(full=True)
            check_not_null(made)
        except (ValueError, OverflowError):
            bad.add(row)
            made = pa.nulls(1, kind)
        found.append(repr(made[0].as_py()))
    return found, bad


@pytest.fixture(autouse=True, scope="module")
def _small_pieces() -> Iterator[None]:
    """Columns of some dozens of values are cut as large ones are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kohort.spark.values.isolate.ONE_BY_ONE_MAX", 4)
        yield


def by_column(kind: pa.DataType, values: list[bytes | None], zone: Any = UTC) -> tuple[list[str], set[int]]:
    parts = JsonDecoder(kind, zone).decode(pa.array(values, pa.binary()))
    found = parts.to_array()
    found.validate(full=True)
    assert found.type.equals(kind)
    return [repr(value) for value in found.to_pylist()], set(parts.reasons)


small = st.integers(-200, 200)
leaf = st.one_of(
    st.none(),
    st.booleans(),
    small,
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=6),
    st.decimals(allow_nan=False, allow_infinity=False, places=3).map(str),
    st.dates().map(str),
    st.datetimes(timezones=st.none() | st.just(UTC)).map(lambda at: at.isoformat()),
    st.sampled_from(
        ["2024-2-9", "2024-02-29T24:00", "aGk=", "NaN", "1e400", "\ud800", "12", "2024", "}", "{", '"', "\n"]
    ),
)
anything = st.recursive(
    leaf,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=5,
)


def of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values that mostly fit the type."""
    if pa.types.is_struct(kind):
        fields = {field.name: of(field.type) for field in kind}
        return st.fixed_dictionaries({}, optional={**fields, "extra": anything})
    if pa.types.is_list(kind):
        return st.lists(of(kind.value_type), max_size=3)
    if pa.types.is_map(kind):
        return st.dictionaries(st.text(max_size=2), of(kind.item_type), max_size=3)
    fitting: dict[pa.DataType, st.SearchStrategy[Any]] = {
        pa.string(): st.text(max_size=5),
        pa.bool_(): st.booleans(),
        pa.float32(): st.floats(width=32),
        pa.float64(): st.floats(),
        pa.date32(): st.dates().map(str),
        pa.timestamp("us"): st.datetimes().map(lambda at: at.isoformat()),
        pa.timestamp("us", tz="UTC"): st.datetimes().map(lambda at: at.isoformat() + "Z") | st.integers(0, 2**31),
        pa.binary(): st.sampled_from(["aGk=", "", "AAEC"]),
    }
    return st.one_of(fitting.get(kind, small), st.none(), *([leaf] if kind != pa.string() else []))


NOISE = [
    *(
        b"",
        b" ",
        b"\n",
        b"\r",
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b'"',
        b"\\",
        b"null",
        b"\0",
        b"\xff",
        b"\xef\xbb\xbf",
        b":",
    ),
    *(b"{}", b'"n":1', b'{"n":1}', b"}{", b"NaN", b"-Inf", b"1e40", b"\\ud800", b"\x0b", b"//"),
]


def texts(kind: pa.DataType) -> st.SearchStrategy[bytes | None]:
    whole = st.builds(
        lambda value, indent, ascii_only: json.dumps(value, indent=indent, ensure_ascii=ascii_only),
        of(kind),
        st.sampled_from([None, None, 1]),
        st.booleans(),
    ).map(lambda text: text.encode("utf-8", "surrogatepass"))
    noise = st.sampled_from(NOISE)

    def damaged(text: bytes, more: bytes, at: int, cut: int) -> bytes:
        place = at % (len(text) + 1)
        return text[:place] + more + text[place + cut :]

    hurt = st.builds(damaged, whole, noise | st.binary(max_size=3), st.integers(0, 10_000), st.integers(0, 3))
    joined = st.lists(whole | noise, max_size=3).map(b"".join)
    return st.one_of(whole, whole, whole, hurt, joined, noise, st.none())


@pytest.mark.parametrize("kind", [NUMBERED, WIDE, MAPS, pa.int32(), pa.list_(pa.field("element", INNER))], ids=str)
def test_a_column_is_what_its_records_are_one_by_one(kind: pa.DataType) -> None:
    @settings(max_examples=examples(150), deadline=None)
    @given(st.lists(texts(kind), max_size=40))
    @example([b'{"n":1}null{"n":2}', b'{"n":3}'])
    @example([b'{"n":1}', b"null", b'{"n":2}'])
    @example([b'{"n":1}{"n":2}', b'{"n":', b"5}"])
    @example([b'{"n":1},"x":{"n":5}', b'{"n":7}'])
    def holds(values: list[bytes | None]) -> None:
        assert by_column(kind, values) == one_by_one(kind, values)

    holds()


@pytest.mark.parametrize(
    ("values", "bad"),
    [
        ([b'{"n":1}{"x":', b'{"y":1},"n":2}'], [0, 1]),
        ([b'{"n":1}{"n":2}', b'{"x":', b'{"y":1}}', b'{"n":3}'], [0, 1, 2]),
        ([b'{"n":1}', b'{"n":2}null{"n":3}', b'{"n":4}'], [1]),
        ([b'{"n":1,"x":"\xff"}', b'{"n":2}'], [0]),
        ([b'{"n":1}\0', b'{"n":2}\0{"n":3}', b'{"n":4,"s":"\0"}', b'{"n":5}'], [0, 1, 2]),
        ([b'{"n":1,"x":Inf}', b'{"n":2,"x":-NaN}', b'{"n":3,"x":NaN}'], [0, 1]),
    ],
    ids=str,
)
def test_what_arrows_reader_alone_would_take(values: list[bytes | None], bad: list[int]) -> None:
    """Arrow's reader finds as many rows as records, or enough, and yet not one for each record."""
    parts = JsonDecoder(NUMBERED, UTC).decode(pa.array(values, pa.binary()))
    assert sorted(parts.reasons) == bad
    assert by_column(NUMBERED, values) == one_by_one(NUMBERED, values)


def test_few_bad_values_among_many_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Good values are converted as a whole: only a piece with a bad value is read one by one."""
    monkeypatch.setattr("kohort.spark.values.isolate.ONE_BY_ONE_MAX", ONE_BY_ONE_MAX)
    seen: list[bytes] = []
    convert = JsonRecords.convert

    def counted(self: JsonRecords, value: bytes) -> Any:
        seen.append(value)
        return convert(self, value)

    monkeypatch.setattr(JsonRecords, "convert", counted)
    values: list[bytes | None] = [b'{"n":%d}' % n for n in range(20_000)]
    bad = [0, 4_321, 19_999]
    for row in bad:
        values[row] = b'{"n":"x"}'
    parts = JsonDecoder(NUMBERED, UTC).decode(pa.array(values, pa.binary()))
    assert sorted(parts.reasons) == bad
    found = parts.to_array().to_pylist()
    assert [row and row["n"] for row in found] == [None if n in bad else n for n in range(20_000)]
    assert len(seen) <= len(bad) * ONE_BY_ONE_MAX


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_damage_never_shifts_a_row(data: st.DataObject) -> None:
    """Each good record carries its own row's number; between them is anything at all."""
    noise = data.draw(st.lists(texts(NUMBERED) | st.binary(max_size=8), min_size=1, max_size=12))
    values: list[bytes | None] = []
    places = {}
    for number, value in enumerate(noise):
        values.append(value)
        places[len(values)] = number
        blank = data.draw(st.sampled_from(["", " ", "\n", "\r\n"]))
        values.append(f'{blank}{{{blank}"n":{number},{blank}"s":"row {number}"}}{blank}'.encode())
    found = JsonDecoder(NUMBERED, UTC).decode(pa.array(values, pa.binary())).to_array()
    assert {row: found[row].as_py() for row in places} == {
        row: {"n": number, "s": f"row {number}"} for row, number in places.items()
    }


def test_slices_and_many_chunks_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kohort.spark.values.json_columns.CHUNK_BYTES", 300)
    monkeypatch.setattr("kohort.spark.values.isolate.ONE_BY_ONE_MAX", 3)
    values: list[bytes | None] = [b'{"n":%d,"s":"%s"}' % (n, b"x" * (n % 50)) for n in range(500)]
    values[7], values[300], values[499], values[20] = None, b"broken", b"", b'{"s":"' + b"y" * 1000 + b'"}'
    whole = pa.array([b"before", *values, b"after"], pa.binary()).slice(1, 500)
    parts = JsonDecoder(NUMBERED, UTC).decode(whole)
    found = parts.to_array().to_pylist()
    assert [row and row["n"] for row in found] == [None if n in (7, 20, 300, 499) else n for n in range(500)]
    assert found[20] == {"n": None, "s": "y" * 1000}
    assert set(parts.reasons) == {300}


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (pa.int8(), "127", 127),
        (pa.decimal128(10, 2), "1.255", Decimal("1.26")),
        (pa.decimal128(10, 2), '"-1.255"', Decimal("-1.26")),
        (pa.decimal128(10, 2), "1E-300", Decimal("0.00")),
        (pa.float64(), "1e400", float("inf")),
        (pa.float64(), '"-Infinity"', float("-inf")),
        (pa.float32(), "16777217", 16777216.0),
        (pa.string(), "1.50", "1.50"),
        (pa.string(), '{"b": [1, 2.50, true, null, "\\u00e9"]}', '{"b":[1,2.50,true,null,"é"]}'),
        (pa.string(), '"\\ud83d\\ude00\\u0000"', "😀\0"),
        (pa.binary(), '"AAE="', b"\0\1"),
        (pa.date32(), '"2024-2-9"', date(2024, 2, 9)),
        (
            pa.timestamp("us", tz="UTC"),
            '"2024-02-29T01:02:03.1234567+02:00"',
            datetime(2024, 2, 28, 23, 2, 3, 123456, UTC),
        ),
        (pa.timestamp("us", tz="UTC"), "1709168523", datetime(2024, 2, 29, 1, 2, 3, tzinfo=UTC)),
        (pa.timestamp("us", tz="UTC"), '"2024-07-01 12:00:00"', datetime(2024, 7, 1, 10, tzinfo=UTC)),
        (pa.timestamp("us", tz="UTC"), '"2024-07-01 12:00 America/New_York"', datetime(2024, 7, 1, 16, tzinfo=UTC)),
        (pa.timestamp("us"), '"2024-07-01 12:00"', datetime(2024, 7, 1, 12)),  # noqa: DTZ001
        (pa.map_(pa.string(), pa.int32()), '{"a":1,"b":null,"a":2}', [("a", 2), ("b", None)]),
    ],
    ids=str,
)
def test_what_a_field_becomes(kind: pa.DataType, text: str, expected: object) -> None:
    whole = pa.struct([("v", kind)])
    value = f'{{"v":{text}}}'.encode()
    berlin = ZoneInfo("Europe/Berlin")
    parts = JsonDecoder(whole, berlin).decode(pa.array([value], pa.binary()))
    assert parts.reasons == {}
    assert parts.to_array()[0].as_py() == {"v": expected}
    assert one_by_one(whole, [value], berlin) == by_column(whole, [value], berlin)


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (pa.int8(), "128", "value.v: 128 does not fit into 8 bits"),
        (pa.int32(), "1.0", "value.v is the number 1.0, and was declared int32"),
        (pa.int32(), '"1"', "value.v is the string '1'"),
        (pa.decimal128(10, 2), "100000000", "does not fit into 10 digits"),
        (pa.decimal128(38, 18), "1e30", "does not fit into 38 digits"),
        (pa.decimal128(38, 18), "1" * 30, "does not fit into 38 digits"),
        (pa.string(), '"\\ud800"', "half of a surrogate pair"),
        (pa.string(), '"a\nb"', "no JSON: Invalid control character"),
        (pa.binary(), '"!"', "no base64"),
        (pa.date32(), '"2023-02-29"', "no day of the calendar"),
        (pa.timestamp("us"), '"2024-02-29T01:02:03Z"', "names a zone"),
        (pa.timestamp("us", tz="UTC"), '"2024-02-29T01:02:03 Mars/North"', "no zone that is known"),
        (pa.list_(pa.field("element", pa.int32())), '[1,"x"]', r"value.v\[\] is the string 'x'"),
        (INNER, "[]", "value.v is an array"),
    ],
    ids=str,
)
def test_a_bad_field_says_where_and_why(kind: pa.DataType, text: str, reason: str) -> None:
    values = [b'{"v":null}', f'{{"v":{text}}}'.encode(), b"{}"]
    parts = JsonDecoder(pa.struct([("v", kind)]), UTC).decode(pa.array(values, pa.binary()))
    assert list(parts.reasons) == [1]
    with pytest.raises(ValueError, match=reason):
        raise ValueError(parts.reasons[1])
    assert parts.to_array().to_pylist() == [{"v": None}, None, {"v": None}]


def test_a_field_that_may_not_be_null_makes_its_record_bad() -> None:
    inner = pa.struct([pa.field("x", pa.int32(), nullable=False)])
    kind = pa.struct([pa.field("n", pa.int32(), nullable=False), ("in", inner)])
    values = [b'{"n":1}', b'{"n":null}', b'{"n":2,"in":{}}', b'{"n":3,"in":{"x":4}}', b"{}"]
    parts = JsonDecoder(kind, UTC).decode(pa.array(values, pa.binary()))
    assert sorted(parts.reasons) == [1, 2, 4]
    assert parts.reasons[2] == "value.in.x is null, and was declared NOT NULL"
    assert [row and row["n"] for row in parts.to_array().to_pylist()] == [1, None, None, 3, None]


@pytest.mark.parametrize("depth", [DEPTH, DEPTH + 1, 200_000])
def test_depth_is_bounded_whatever_field_is_deep(depth: int) -> None:
    inside = depth - 1  # the object itself is a level
    values = [b'{"n":1,"x":' + b"[" * inside + b"]" * inside + b"}", b'{"x":' + b'{"x":' * inside + b"1" + b"}" * depth]
    parts = JsonDecoder(NUMBERED, UTC).decode(pa.array([*values, b'{"n":2}'], pa.binary()))
    assert sorted(parts.reasons) == ([] if depth <= DEPTH else [0, 1])
    assert parts.to_array()[2].as_py() == {"n": 2, "s": None}


@pytest.mark.parametrize(
    ("opened", "closed"),
    [
        pytest.param(b"[", b"]", id="lists"),
        pytest.param(b'{"x":', b"}", id="objects"),
        pytest.param(b'{"x":1,"y":["z",', b"]}", id="both"),
    ],
)
def test_deep_value_of_a_string_column_is_its_json(opened: bytes, closed: bytes) -> None:
    levels = (DEPTH - 1) // (opened.count(b"[") + opened.count(b"{"))
    text = opened * levels + b'"\xc3\xbc"' + closed * levels
    parts = JsonDecoder(NUMBERED, UTC).decode(pa.array([b'{"n":1,"s":' + text + b"}", b'{"n":2}'], pa.binary()))
    assert parts.reasons == {}
    assert parts.to_array().to_pylist() == [{"n": 1, "s": text.decode()}, {"n": 2, "s": None}]


def test_deep_value_is_at_most_bad_where_the_caller_is_deep_too() -> None:
    """Python 3.11 counts its parser's levels with the caller's frames; later versions count them apart."""
    records, text = JsonRecords(NUMBERED, UTC), "[" * 490 + "]" * 490

    def convert_at(level: int) -> str:
        if level:
            return convert_at(level - 1)
        try:
            return str(records.convert(f'{{"s":{text}}}'.encode())["s"])
        except ValueError as error:
            return str(error)

    assert convert_at(10) == text
    deep = convert_at(sys.getrecursionlimit() - len(inspect.stack()) - 100)
    assert deep in (text, "nested deeper than Python can parse here")


def test_brackets_in_strings_are_no_levels() -> None:
    value = b'{"n":1,"s":"' + b"[{" * DEPTH + b'\\"[' + b'"}'
    parts = JsonDecoder(NUMBERED, UTC).decode(pa.array([value], pa.binary()))
    assert parts.reasons == {}
    assert parts.to_array()[0]["n"].as_py() == 1


def test_a_huge_value_is_bad_before_anything_is_made_of_it() -> None:
    huge = b'{"n":1,"s":"' + b"x" * VALUE_BYTES + b'"}'
    largest = b'{"n":1,"s":"' + b"x" * (VALUE_BYTES - 14) + b'"}'
    assert len(largest) == VALUE_BYTES
    parts = JsonDecoder(NUMBERED, UTC).decode(
        pa.array([b'{"n":1}', huge, largest, b" " * (VALUE_BYTES + 1)], pa.binary())
    )
    assert sorted(parts.reasons) == [1, 3]
    assert "are more than the" in parts.reasons[1]
    assert parts.to_array()[2]["n"].as_py() == 1
