"""The estimated size of a record, compared with its real size."""

from __future__ import annotations

import pytest

from kohort.groups.records import OffsetCommitted, Record
from kohort.groups.sizes import record_bytes
from kohort.journal.codec import encode_record
from tests.journal.test_journal import RECORDS, TOMBSTONES

LONG = "ü" * 5_000
COMMITS = [
    OffsetCommitted(LONG, "t", 3, 42, 5, "", 1000),
    OffsetCommitted("g", LONG, 3, 42, 5, "", 1000),
    OffsetCommitted("g", "t", 3, 42, 5, LONG, 1000),
]


@pytest.mark.parametrize("record", [*RECORDS, *TOMBSTONES, *COMMITS])
def test_a_record_is_not_taken_for_less_than_it_needs_nor_for_much_more(record: Record) -> None:
    key, value = encode_record(record)
    needed = len(key) + len(value or b"")
    assert needed <= record_bytes(record) <= needed + 600
