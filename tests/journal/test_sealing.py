"""Group records as record batches: the kernel, columns and single records give the same bytes."""

from __future__ import annotations

import uuid
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohort.errors import InvalidInputError
from kohort.groups import records as r
from kohort.journal import sealing
from kohort.journal.codec import encode_record
from kohort.wire.batch import HEADER_SIZE, has_valid_crc, iter_headers
from kohort.wire.records import iter_key_values, read_records

NOW = 1_700_000_000_000
STARTED = r.GenerationStarted("g", 4)
PENDING = r.OffsetCommitted("g", "t", 3, 43, 5, "m", 1000, producer_id=7, producer_epoch=1)
USUAL = [
    r.OffsetCommitted("g", "t", 3, 42, 5, "meta", 1000),
    r.OffsetCommitted("g", "t", 2**31 - 1, 2**63 - 1, -1, "", 1000),
    r.OffsetCommitted("h", "ü", 0, 0, 2**31 - 1, "ü" * 500, 1000, topic_id=uuid.UUID(int=9)),
]
_TEXT = st.text(max_size=40)
_COMMIT = st.builds(
    r.OffsetCommitted,
    group_id=_TEXT,
    topic=_TEXT,
    partition=st.integers(0, 2**31 - 1),
    offset=st.integers(0, 2**63 - 1),
    leader_epoch=st.integers(-1, 2**31 - 1),
    metadata=_TEXT,
    commit_ms=st.integers(0, 2**60),
    expire_ms=st.just(-1),
    topic_id=st.just(r.NO_TOPIC_ID) | st.uuids(),
    producer_id=st.just(-1),
    producer_epoch=st.just(-1),
)


_MANY = st.builds(
    lambda one, places: [one._replace(partition=partition, offset=offset) for partition, offset in places],
    _COMMIT | _COMMIT.map(lambda one: one._replace(expire_ms=5)) | st.just(PENDING),
    st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)), max_size=200),
)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.one_of(_MANY, st.lists(_COMMIT, max_size=6), st.just([STARTED])), max_size=6), st.booleans())
def test_kernel_columns_and_single_records_give_the_same_bytes(
    some: list[list[r.OffsetCommitted]], small_ones: bool
) -> None:
    records = [record for several in some for record in several]
    limit = 3_000 if small_ones else 1 << 20
    with mock.patch.object(sealing, "BATCH_BYTES_MAX", limit):
        packed = b"".join(sealing.encode_append(records, NOW))
        with mock.patch.object(sealing, "PACK_OFFSETS", None):
            whole = b"".join(sealing.encode_append(records, NOW))
            with mock.patch.object(sealing, "_RUN_MIN", 1 << 30):
                single = b"".join(sealing.encode_append(records, NOW))
    expected = [encode_record(record) for record in records]
    assert pairs_of(packed) == pairs_of(whole) == pairs_of(single) == expected
    if not small_ones:
        assert packed == whole == single


def test_kernel_takes_usual_positions_and_declines_the_others() -> None:
    pack = sealing.PACK_OFFSETS
    if pack is None:
        pytest.skip("the kernel was not built")
    packed = pack(USUAL, 5, 1 << 20)
    assert packed is not None
    assert pack([], 0, 1 << 20) is None
    assert pack(USUAL, 5, len(packed) - 1) is None
    for changed in (
        {"producer_id": 0},
        {"expire_ms": 0},
        {"partition": 1 << 31},
        {"offset": 1 << 63},
        {"topic": "t" * 32_768},
    ):
        assert pack([*USUAL, USUAL[0]._replace(**changed)], 0, 1 << 20) is None


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(_COMMIT, max_size=6).map(lambda some: [*some, STARTED]), min_size=1, max_size=6))
def test_what_is_packed_are_the_records_of_the_one_batch_that_is_sealed(some: list[list[r.Record]]) -> None:
    records = [record for several in some for record in several]
    (batch,) = sealing.encode_append(records, NOW)
    payload, count = sealing.encode_unbounded_batch(records)
    assert (payload, count) == (batch[HEADER_SIZE:], len(records))
    with mock.patch.object(sealing, "BATCH_BYTES_MAX", 100):
        assert sealing.encode_unbounded_batch(records) == (payload, count)


@pytest.mark.parametrize("record", [PENDING, r.TransactionMarked(7, 1, True)])
def test_what_belongs_to_a_transaction_is_not_packed_with_others(record: r.Record) -> None:
    with pytest.raises(InvalidInputError, match="transaction"):
        sealing.encode_unbounded_batch([STARTED, record])


def pairs_of(batches: bytes) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values of all records, without what only frames an append."""
    found = []
    for at, header in iter_headers(batches):
        batch = batches[at : at + header.size]
        assert has_valid_crc(batch, header)
        found += [(key, value) for key, value, _ in iter_key_values(batch, header)]
        assert [record.offset for record in read_records(batch)] == list(range(header.records_count))
    return [pair for pair in found if pair[0] != b"\x27\x11"]
