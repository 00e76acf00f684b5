"""docs/spec.md is whole and true: ids, places and tests; and each check notices what it is there for."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.documentation import spec_page
from tests.documentation.spec_page import PAGE, texts

TEXT = PAGE.read_text(encoding="utf-8")


def test_every_point_and_every_scenario_has_its_row() -> None:
    assert spec_page.missing_ids(TEXT) == []


def test_every_id_that_is_cited_is_explained() -> None:
    assert spec_page.unexplained(TEXT, texts()) == []


def test_every_source_is_one_that_a_reader_can_look_up() -> None:
    assert spec_page.unknown_sources(texts()) == []


def test_every_place_and_every_test_that_is_named_exists() -> None:
    assert spec_page.wrong_places(TEXT) == []


def test_what_is_there_is_proved_and_what_is_absent_says_so() -> None:
    assert spec_page.unproved(TEXT) == []


def test_nothing_is_absent_that_a_file_says_it_does_or_tests() -> None:
    assert spec_page.absent_and_cited(TEXT, texts()) == []


def test_row_that_says_absent_of_what_is_cited_is_noticed() -> None:
    row = re.search(r"^\| 4\.3 \|.*$", TEXT, re.MULTILINE)
    assert row is not None
    page = TEXT.replace(row[0], "| 4.3 | frames | absent | | not yet |")
    assert "spec 4.3 is absent, and src/kohort/wire/push.py cites it" in spec_page.absent_and_cited(page, texts())


def test_scenarios_are_tested_where_the_page_says_and_nowhere_else() -> None:
    assert spec_page.misplaced_scenarios(TEXT) == []


def without(text: str, start: str) -> str:
    """A page without the row that begins like this."""
    return re.sub(rf"^{re.escape(start)}.*\n", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("check", "old", "new", "complaint"),
    [
        (spec_page.missing_ids, "| 3.7 | ", "| 3.6 | ", "3.7 has 0 rows"),
        (spec_page.missing_ids, "| 3.7 | ", "| 3.6 | ", "3.6 has 2 rows"),
        (spec_page.missing_ids, "| 5.13 | ", "| 5.14 | ", "5.14 is no point of a text"),
        (spec_page.missing_ids, "## 4 · ", "## ", "4 has no heading"),
        (spec_page.missing_ids, "\n| 12 | ", "\n| 23 | ", "12 has 0 rows"),
        (spec_page.wrong_places, "`wire/offsets.py`", "`wire/moved.py`", "1.1: there is no src/kohort/wire/moved.py"),
        (
            spec_page.wrong_places,
            "`groups/offsets.py` (`delete`)",
            "`groups/offsets.py` (`remove_it`)",
            "1.2: src/kohort/groups/offsets.py has no remove_it",
        ),
        (
            spec_page.wrong_places,
            "`tests/client/test_admin.py::test_group_offsets`",
            "`tests/client/test_gone.py::test_group_offsets`",
            "1.3: there is no tests/client/test_gone.py",
        ),
        (
            spec_page.wrong_places,
            "`tests/client/test_admin.py::test_group_offsets`",
            "`tests/client/test_admin.py::test_renamed`",
            "1.3: tests/client/test_admin.py has no test_renamed",
        ),
        (
            spec_page.unproved,
            "| `wire/offsets.py`, `broker/api/group_offsets.py` |",
            "| absent |",
            "1.1 is absent and names what is there",
        ),
        (
            spec_page.unproved,
            "| `wire/offsets.py`, `broker/api/group_offsets.py` |",
            "| |",
            "1.1 names no place or no test, and does not say that it is absent",
        ),
        (
            spec_page.misplaced_scenarios,
            "`tests/lag/test_lag.py` |",
            "`tests/lag/__init__.py` |",
            "tests/lag/__init__.py has no test_scenario_17_",
        ),
        (
            spec_page.misplaced_scenarios,
            "`tests/lag/test_lag.py` |",
            "`tests/lag/__init__.py` |",
            "tests/lag/test_lag.py tests scenario 17, and the page does not say so",
        ),
    ],
)
def test_a_page_that_is_not_true_is_noticed(
    check: Callable[[str], list[str]], old: str, new: str, complaint: str
) -> None:
    assert old in TEXT
    assert complaint in check(TEXT.replace(old, new, 1))


@pytest.mark.parametrize(
    ("cited", "row"),
    [
        ("Source: spec 1.5, 1.6, KIP-211.", "1.6"),
        ("Source: spec 2.1–2.3, 2.5.", "2.2"),
        ("Source: spec 2.1–2.3,\n2.5.", "2.5"),
        ("Source: spec 3.2-3.6, 3.10.", "3.4"),
        ("(spec 3.7) and more", "3.7"),
    ],
)
def test_an_id_that_the_page_lost_is_noticed_where_it_is_cited(cited: str, row: str) -> None:
    assert spec_page.unexplained(TEXT, [("src/a.py", cited)]) == []
    assert spec_page.unexplained(without(TEXT, f"| {row} |"), [("src/a.py", cited)]) == [f"src/a.py cites spec {row}"]


@pytest.mark.parametrize("cited", ["spec " + "7.1", "spec " + "9", "scenario " + "23", "KAFKA" + "-1"])
def test_an_id_that_never_was_is_noticed(cited: str) -> None:
    assert spec_page.unexplained(TEXT, [("src/a.py", f"Source: {cited}.")]) == [f"src/a.py cites {cited}"]


def test_a_source_that_no_one_can_look_up_is_noticed() -> None:
    assert spec_page.unknown_sources([("src/a.py", '"""A fact.\n\nSource: the other page.\n"""')]) == [
        "src/a.py: Source: the other page.\n"
    ]
    assert spec_page.unknown_sources([("src/a.py", '"""A fact. Source: KIP-62."""')]) == []
