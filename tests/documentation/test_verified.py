"""`make verify`: the promises that it knows, what it makes of the outcomes of tests, the page that it writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import verify
from tools.verify import Promise, Row

TESTS = ("tests/a.py::test_x", "tests/a.py::TestY")


def test_page_has_a_row_for_each_promise() -> None:
    text = verify.PAGE.read_text(encoding="utf-8")
    assert verify.render(verify.promises(), verify.kept_rows(text)) == text, "run make docs"


def test_every_promise_names_tests_that_are_there() -> None:
    found = verify.promises()
    assert len({promise.name for promise in found}) == len(found) > 100
    assert [promise.name for promise in found if not promise.tests] == []
    assert {"1.1", "scenario-22", "region-1", "iceberg-6", "README.md"} <= {promise.name for promise in found}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("tests/a.py::test_x PASSED     [ 50%]", ("tests/a.py::test_x", "PASSED")),
        ("tests/a.py::test_x[two words] SKIPPED (why) [ 5%]", ("tests/a.py::test_x[two words]", "SKIPPED")),
        ("tests/a.py::test_x ", None),
        ("E   assert 1 == 2 PASSED", None),
    ],
)
def test_outcome_of_a_line(line: str, found: tuple[str, str] | None) -> None:
    assert verify.outcome(line) == found


@pytest.mark.parametrize(
    ("outcomes", "result"),
    [
        ({"test_x[1]": "PASSED", "test_x[2]": "PASSED", "TestY::test_z": "PASSED"}, "kept: 3 passed"),
        ({"test_x[1]": "PASSED", "test_x[2]": "SKIPPED", "TestY::test_z": "PASSED"}, "kept: 2 passed, 1 skipped"),
        ({"test_x": "PASSED", "TestY::test_z": "SKIPPED"}, "partly: 1 passed, 1 skipped"),
        ({"test_x": "PASSED", "test_xy": "FAILED", "TestY::test_z": "PASSED"}, "kept: 2 passed"),
        ({"test_x": "PASSED"}, "not run"),
        ({"test_x[a|b]": "FAILED"}, "**broken**: `test_x[a/b]`"),
    ],
)
def test_result_of_a_promise(outcomes: dict[str, str], result: str) -> None:
    assert verify.verdict(TESTS, {f"tests/a.py::{name}": word for name, word in outcomes.items()}) == result


def test_row_is_kept_until_its_promise_runs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "PAGE", tmp_path / "verified.md")
    promise = Promise("1.2", "what it says", ("tests/documentation/test_verified.py::test_outcome_of_a_line",))
    monkeypatch.setattr(verify, "promises", lambda: [promise])
    assert verify.main(["--minutes", "0"]) == 0
    assert "| `1.2` | what it says | not run |  |  |  |" in verify.PAGE.read_text()
    assert verify.main(["--minutes", "1"]) == 0
    text = verify.PAGE.read_text()
    assert "kept: 4 passed" in text and f"1. {verify.machine()}\n" in text
    assert verify.kept_rows(text)["1.2"].machine == verify.machine()
    assert verify.main(["--minutes", "0.00001"]) == 0
    assert verify.kept_rows(verify.PAGE.read_text())["1.2"] == verify.kept_rows(text)["1.2"]


def test_unknown_name_of_a_promise_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        verify.main(["--only", "9.9"])
    assert "no promise has the name 9.9" in capsys.readouterr().err


def test_table_of_guarantees_that_grew_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    heading, tests = verify.GUARANTEES["region"]
    monkeypatch.setattr(verify, "GUARANTEES", {"region": (heading, tests[:-1])})
    with pytest.raises(ValueError, match="zip"):
        verify.promises()
    assert Row().result == verify.NOT_RUN
