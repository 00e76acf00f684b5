"""The account of a run notices every kind of fault, and allows what the promise allows."""

from __future__ import annotations

import pytest
from frameworks.account import Account, Numbered, account_of

PRODUCED = {"a": 3, "b": 2}
RIGHT = [Numbered("a", 0, 1), Numbered("b", 0, 1), Numbered("a", 1, 2), Numbered("a", 2, 3), Numbered("b", 1, 2)]


def test_right_records_have_no_fault() -> None:
    account = account_of(PRODUCED, RIGHT)
    assert account == Account(5, 0, 0, 0, 0, 0)
    assert account.faults(exactly_once=True) == []


@pytest.mark.parametrize(
    ("records", "fault"),
    [
        (RIGHT[:-1], "1 lost"),
        ([*RIGHT, RIGHT[0]], "1 repeated"),
        ([RIGHT[2], RIGHT[0], RIGHT[1], RIGHT[3], RIGHT[4]], "1 out of order"),
        ([*RIGHT[:-1], Numbered("b", 1, 3)], "1 miscounted"),
        ([*RIGHT, Numbered("a", 3)], "1 unknown"),
        ([*RIGHT, Numbered("c", 0)], "1 unknown"),
    ],
)
def test_fault_is_noticed(records: list[Numbered], fault: str) -> None:
    assert account_of(PRODUCED, records).faults(exactly_once=True) == [fault]


def test_at_least_once_allows_repeated_records_alone() -> None:
    again = account_of(PRODUCED, [*RIGHT[:2], *RIGHT])
    assert (again.repeated, again.faults(exactly_once=False)) == (2, [])
    assert account_of(PRODUCED, RIGHT[1:]).faults(exactly_once=False) == ["1 lost"]


def test_record_is_parsed_with_and_without_a_total() -> None:
    assert Numbered.parse("a", "7") == Numbered("a", 7)
    assert Numbered.parse("a", "7:8") == Numbered("a", 7, 8)
    with pytest.raises(ValueError, match="invalid literal"):
        Numbered.parse("a", "seven")
