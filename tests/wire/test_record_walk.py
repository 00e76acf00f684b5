"""The walk over records: its compiled and its plain form agree on good, hostile and random bytes."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.errors import ErrorCode
from kohort.wire import record_walk
from kohort.wire.batch import HEADER_SIZE, BatchHeader, BatchRecord, build_batch, parse_header
from kohort.wire.record_walk import (
    WRONG_RECORDS_MAX,
    RecordRules,
    RejectedRecordReason,
    find_record,
    find_record_in_python,
    invalid_record_error,
    walk_records_in_python,
)
from tests.support.hostile_batches import BASE_MS, HOSTILE, hostile_batch, record

ANY = (-(2**63), 2**63 - 1, 2**31 - 1, False)
PLAIN = {name: batch for name, batch in HOSTILE.items() if batch[16] == 2 and not batch[22] & 7}


@pytest.fixture(scope="module")
def compiled() -> Any:
    return pytest.importorskip("kohort.wire._record_walk")


def agreed(compiled: Any, batch: bytes, rules: RecordRules) -> Any:
    """The result of both forms, which must be the same."""
    header = parse_header(batch)
    found = walk_records_in_python(batch, HEADER_SIZE, header, rules)
    other = compiled.walk_records(batch, HEADER_SIZE, header, rules)
    if found[0] == 0:  # the maximum timestamp of a damaged batch is nobody's concern
        assert (other[0], other[2], other[3]) == (found[0], found[2], found[3])
    else:
        assert other[:2] == found[:2]
    assert list(other[4] or ()) == [tuple(entry) for entry in found[4] or ()]
    for timestamp in (BASE_MS, BASE_MS + 1, 2**62, -1):
        for offset in (0, 1, 5):
            plain = find_record_in_python(batch, HEADER_SIZE, header, timestamp, offset)
            assert compiled.find_record(batch, HEADER_SIZE, header, timestamp, offset) == plain
    return found


@pytest.mark.parametrize("name", PLAIN)
def test_both_forms_agree_on_hostile_batches(compiled: Any, name: str) -> None:
    agreed(compiled, PLAIN[name], ANY)


def test_both_forms_agree_on_a_base_offset_that_the_checksum_does_not_cover(compiled: Any) -> None:
    """The compiled search subtracted it from the wanted offset past the end of its type."""
    batch = bytearray(build_batch([BatchRecord(0, BASE_MS, b"k", b"v")]))
    for base in (-(2**63), -(2**62), 2**63 - 1):
        batch[:8] = base.to_bytes(8, "big", signed=True)
        agreed(compiled, bytes(batch), ANY)


@given(
    st.lists(st.tuples(st.integers(-5, 2**40), st.one_of(st.none(), st.binary(max_size=300)), st.binary(max_size=300))),
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=4),
    st.booleans(),
)
def test_both_forms_agree_on_damaged_bytes(rows: list[Any], damage: list[tuple[int, int]], keyed: bool) -> None:
    compiled = pytest.importorskip("kohort.wire._record_walk")
    records = [BatchRecord(0, stamp, key, value, [("h", value[:5])]) for stamp, key, value in rows]
    batch = bytearray(build_batch(records or [BatchRecord(0, 5, None, None)]))
    for at, value in damage:
        batch[HEADER_SIZE + at % (len(batch) - HEADER_SIZE)] = value
    agreed(compiled, bytes(batch), (0, 2**39, 200, keyed))


@pytest.mark.parametrize("check", ["compiled", "plain"])
def test_check_names_the_records_that_a_topic_rejects(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if check == "plain":
        monkeypatch.setattr(record_walk, "walk_records", walk_records_in_python)
    batch = build_batch(
        [
            BatchRecord(0, BASE_MS, b"k", b"v"),
            BatchRecord(0, BASE_MS, None, b"v"),
            BatchRecord(0, BASE_MS + 50, b"k", b"v"),
            BatchRecord(0, -1, b"k", b"v"),
            BatchRecord(0, BASE_MS - 50, b"k", b"v"),
            BatchRecord(0, BASE_MS, b"k", b"v" * 100),
        ]
    )
    rules = (BASE_MS - 10, BASE_MS + 10, 60, True)
    _, _, newest, wrong_count, wrong = record_walk.walk_records(batch, HEADER_SIZE, parse_header(batch), rules)
    assert newest == BASE_MS + 50
    assert wrong_count == 4
    assert wrong == [
        (1, RejectedRecordReason.NO_KEY, 0),
        (2, RejectedRecordReason.TIMESTAMP, BASE_MS + 50),
        (4, RejectedRecordReason.TIMESTAMP, BASE_MS - 50),
        (5, RejectedRecordReason.SIZE, len(record(5, value=b"v" * 100)) - 2),
    ]


@pytest.mark.parametrize("check", ["compiled", "plain"])
def test_check_names_a_bounded_number_of_records(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if check == "plain":
        monkeypatch.setattr(record_walk, "walk_records", walk_records_in_python)
    count = WRONG_RECORDS_MAX + 7
    batch = hostile_batch(b"".join(record(number, None) for number in range(count)), count)
    _, _, _, wrong_count, wrong = record_walk.walk_records(batch, HEADER_SIZE, parse_header(batch), (*ANY[:3], True))
    assert (wrong_count, len(wrong or ())) == (count, WRONG_RECORDS_MAX)


def test_fault_names_the_record() -> None:
    batch = HOSTILE["a value that runs past its record"]
    status, index, *_ = record_walk.walk_records(batch, HEADER_SIZE, parse_header(batch), ANY)
    error = invalid_record_error(status, index)
    assert error.message == "record 0: its value runs past its end"
    assert error.code is ErrorCode.INVALID_RECORD


def test_search_finds_the_first_record_at_a_time() -> None:
    batch = build_batch([BatchRecord(0, BASE_MS + 10 * number, None, b"v") for number in range(5)], base_offset=70)
    header: BatchHeader = parse_header(batch)
    assert find_record(batch, HEADER_SIZE, header, BASE_MS + 11, 0) == (72, BASE_MS + 20)
    assert find_record(batch, HEADER_SIZE, header, BASE_MS, 73) == (73, BASE_MS + 30)
    assert find_record(batch, HEADER_SIZE, header, BASE_MS + 41, 0) is None
    appended = header._replace(attributes=0x08, max_timestamp=BASE_MS + 99)
    assert find_record(batch, HEADER_SIZE, appended, BASE_MS + 99, 0) == (70, BASE_MS + 99)


def test_plain_form_takes_over_where_the_kernel_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(importlib.sys.modules, "kohort.wire._record_walk", None)  # type: ignore[attr-defined]
    monkeypatch.delitem(importlib.sys.modules, "kohort.wire.record_walk")  # type: ignore[attr-defined]
    fresh = importlib.import_module("kohort.wire.record_walk")
    assert not fresh.COMPILED
    batch = build_batch([BatchRecord(0, BASE_MS, b"k", b"v")])
    assert fresh.walk_records(batch, HEADER_SIZE, parse_header(batch), ANY) == (0, 1, BASE_MS, 0, [])
