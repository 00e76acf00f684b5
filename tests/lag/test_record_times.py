"""The oldest unread record among fetched batches."""

from __future__ import annotations

import pytest

from kohort.lag import first_record_timestamp
from kohort.lag.snapshot import UNDATED
from kohort.wire.batch import LOG_APPEND_TIME, BatchOptions, BatchRecord, build_batch

ABORT, COMMIT = b"\0\0\0\0", b"\0\0\0\1"


def batch(*times: int, **facts: int | str | bool) -> bytes:
    """A batch whose records have these timestamps."""
    given: BatchOptions = {**facts}  # type: ignore[typeddict-item]
    return build_batch([BatchRecord(0, time, None, b"x") for time in times], **given)


def marker(kind: bytes, base_offset: int, producer_id: int) -> bytes:
    record = BatchRecord(0, 999, kind, b"\0" * 6)
    return build_batch([record], base_offset=base_offset, producer_id=producer_id, transactional=True, control=True)


PLAIN = batch(100, 101, 102) + batch(200, 201, base_offset=3)
ABORTED = batch(1, 2, producer_id=7, transactional=True) + marker(ABORT, 2, 7)


@pytest.mark.parametrize(
    ("records", "offset", "aborted", "found"),
    [
        (PLAIN, 0, [], 100),
        (PLAIN, 1, [], 101),
        (PLAIN, 3, [], 200),
        (PLAIN, 4, [], 201),
        (PLAIN, 5, [], None),
        (batch(100, 101, 102, compression="gzip"), 1, [], 101),
        (batch(100, 101, compression="zstd"), 0, [], 100),
        (batch(-1, -1), 0, [], UNDATED),
        (batch(-1, -1), 1, [], UNDATED),
        (b"", 0, [], None),
        (PLAIN[:-1], 3, [], None),
        (ABORTED, 0, [(7, 0)], None),
        (ABORTED, 0, [], 1),
        (ABORTED + batch(50, base_offset=3), 0, [(7, 0)], 50),
        (ABORTED + batch(50, producer_id=7, transactional=True, base_offset=3), 0, [(7, 0)], 50),
        (batch(5, producer_id=7, transactional=True) + marker(COMMIT, 1, 7), 0, [], 5),
        (batch(5, producer_id=7, transactional=True) + marker(COMMIT, 1, 7), 1, [], None),
        (batch(5, producer_id=8, transactional=True), 0, [(7, 0)], 5),
    ],
)
def test_oldest_record_is_the_first_that_a_consumer_gets(
    records: bytes, offset: int, aborted: list[tuple[int, int]], found: int | None
) -> None:
    assert first_record_timestamp(records, offset, aborted)[0] == found


def test_offset_after_the_batches_is_where_the_search_continues() -> None:
    assert first_record_timestamp(ABORTED, 0, [(7, 0)]) == (None, 3)
    assert first_record_timestamp(PLAIN[:-1], 3) == (None, 3)
    assert first_record_timestamp(b"", 9) == (None, 9)


def test_log_append_time_is_every_records_time() -> None:
    stamped = batch(100, 101, 102, timestamp_type=1)
    assert stamped[22] & LOG_APPEND_TIME
    assert first_record_timestamp(stamped, 1)[0] == 102


def test_base_timestamp_that_is_a_delete_horizon_is_no_records_time() -> None:
    """KIP-534: the compactor puts the time at which tombstones may go into the batch's base timestamp."""
    made = bytearray(batch(100, 101))
    made[22] |= 0x40
    assert first_record_timestamp(bytes(made), 0)[0] == 100, "the record's own delta counts"
