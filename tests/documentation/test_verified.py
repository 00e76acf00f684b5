"""`make verify`: the promises that it knows, what it makes of the outcomes of tests, the page that it writes."""

from __future__ import annotations

import subprocess
import sys
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


def test_results_of_a_whole_run_are_taken_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_a.py").write_text(_RUN_OF_ALL_KINDS)
    options = [
        "-o",
        "junit_family=xunit1",
        "-o",
        "junit_suite_name=0123abcd",
        "--junitxml=run.xml",
        "-p",
        "no:cacheprovider",
    ]
    subprocess.run([sys.executable, "-m", "pytest", *options, "test_a.py"], cwd=tmp_path, check=False, timeout=60)
    at, outcomes = verify.results_in(tmp_path / "run.xml")
    assert (at, outcomes) == (
        "0123abcd",
        {
            "test_a.py::test_case[a.b::c]": "PASSED",
            "test_a.py::test_wrong": "FAILED",
            "test_a.py::test_setup": "ERROR",
            "test_a.py::TestY::test_z": "PASSED",
            "test_a.py::TestY::test_left_out": "SKIPPED",
        },
    )
    monkeypatch.setattr(verify, "PAGE", tmp_path / "verified.md")
    promises = [
        Promise("1.1", "text", ("test_a.py::TestY::test_z",)),
        Promise("1.2", "text", ("test_a.py::test_wrong",)),
        Promise("1.3", "text", ("test_b.py::test_other",)),
    ]
    monkeypatch.setattr(verify, "promises", lambda: promises)
    assert verify.main(["--results", str(tmp_path / "run.xml")]) == 1
    rows = verify.kept_rows(verify.PAGE.read_text())
    assert rows["1.1"].result == "kept: 1 passed" and rows["1.1"].commit == "0123abcd"
    assert rows["1.2"].result == "**broken**: `test_wrong`" and rows["1.3"].result == verify.NOT_RUN


_RUN_OF_ALL_KINDS = """
import pytest

@pytest.mark.parametrize("text", ["x"], ids=["a.b::c"])
def test_case(text): pass
def test_wrong(): assert False
@pytest.fixture
def broken(): raise OSError
def test_setup(broken): pass
class TestY:
    def test_z(self): pass
    @pytest.mark.skip(reason="why")
    def test_left_out(self): pass
"""


@pytest.mark.parametrize(
    ("text", "error"),
    [
        pytest.param("<testsuites", "not a whole JUnit file", id="cut off"),
        pytest.param("<testsuites/>", "has no test suite", id="empty"),
    ],
)
def test_file_that_is_no_run_is_refused(text: str, error: str, tmp_path: Path) -> None:
    (tmp_path / "run.xml").write_text(text)
    with pytest.raises(ValueError, match=error):
        verify.results_in(tmp_path / "run.xml")


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
