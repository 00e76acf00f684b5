"""A query's entry in a checkpoint, and the changes that an upgraded program may make."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kohort.errors import InvalidInputError
from kohort.spark.region.query_state import SavedQuery, refuse_changed_query

SAVED = SavedQuery(4, 17, '{"type":"struct"}', ("aggregation",), ("flights",))


def test_state_is_decoded_as_it_was() -> None:
    assert SavedQuery.from_bytes(SAVED.to_bytes()) == SAVED
    assert SavedQuery.from_bytes(replace(SAVED, batch=None).to_bytes()).batch is None


@pytest.mark.parametrize("state", [b"", b"{}", b"[1]", b'{"counts": 3}', b'{"kohort-spark": 1}'])
def test_what_is_no_querys_is_refused(state: bytes) -> None:
    with pytest.raises(InvalidInputError, match="no Spark query: choose another name"):
        SavedQuery.from_bytes(state)


def test_a_later_form_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="later kohort"):
        SavedQuery.from_bytes(SAVED.to_bytes().replace(b'"kohort-spark":1', b'"kohort-spark":9'))


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (replace(SAVED, operators=("dropDuplicates",)), "were aggregation, and are dropDuplicates now"),
        (replace(SAVED, operators=()), "were aggregation, and are none now"),
        (replace(SAVED, sources=("delays",)), "what it reads were flights, and are delays now"),
        (replace(SAVED, output="{}"), "the columns of its rows"),
    ],
)
def test_a_query_with_state_is_what_it_was(now: SavedQuery, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        refuse_changed_query(SAVED, now, "totals")


def test_a_state_of_an_earlier_release_does_not_say_whether_files_are_needed() -> None:
    earlier = replace(SAVED, kept=True).to_bytes().replace(b',"kept":true', b"")
    assert b"kept" not in earlier and SavedQuery.from_bytes(earlier) == SAVED


def test_a_query_must_not_leave_out_a_source_outside_its_region() -> None:
    """Where it was in that source would be forgotten, and read again once it returns."""
    before = replace(SAVED, operators=(), kept=True)
    with pytest.raises(InvalidInputError, match="a source outside its region"):
        refuse_changed_query(before, replace(before, kept=False), "totals")
    refuse_changed_query(before, before, "totals")
    for kept in (None, False):
        refuse_changed_query(replace(before, kept=kept), replace(before, kept=False), "totals")
        refuse_changed_query(replace(before, kept=kept), before, "totals")


def test_a_query_without_state_may_change() -> None:
    before = replace(SAVED, operators=())
    refuse_changed_query(before, replace(before, output="{}", sources=("delays",)), "totals")
    with pytest.raises(InvalidInputError, match="were none, and are aggregation now"):
        refuse_changed_query(before, SAVED, "totals")
