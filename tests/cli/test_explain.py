"""`kohort explain`, and the line of a failed command that names it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.running import Kohort
from tools.error_docs import PAGE

from kohort import KafkaError
from kohort.cli import explain
from kohort.cli.app import run
from kohort.errors import ErrorCode


def explained(capsys: pytest.CaptureFixture[str], *names: str) -> str:
    capsys.readouterr()
    assert run(["explain", *names]) == 0
    return capsys.readouterr().out


def test_code_is_explained_by_name_in_any_spelling_and_by_number(capsys: pytest.CaptureFixture[str]) -> None:
    text = explained(capsys, "GROUP_ID_NOT_FOUND")
    assert text.startswith("GROUP_ID_NOT_FOUND (69): there is no such group\nWhat to do: `kohort groups list`")
    assert text.splitlines()[2:] == [
        "In Python: NotFoundError. A repetition alone does not help.",
        "In the documentation: errors.md#group_id_not_found",
    ]
    assert [explained(capsys, name) for name in ("group_id_not_found", "[GROUP_ID_NOT_FOUND]", "69")] == [text] * 3


def test_class_is_explained_by_its_name_in_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    text = explained(capsys, "kohort.errors.TimedOutError")
    assert text == explained(capsys, "TimedOutError")
    assert "The time allowed ran out" in text and "raise `timeout_ms`" in text.lower()
    tls = explained(capsys, "TlsError")
    assert "errors.md#notauthorizederror" in tls, "it has the remedy of its base"


def test_every_error_and_code_has_a_cause_and_a_remedy_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    names = [kind.__name__ for kind in explain.public_errors()] + [code.name for code in ErrorCode]
    rows = json.loads(explained(capsys, "--json", *names))
    assert [row["name"] for row in rows] == names
    assert [row["name"] for row in rows if len(row["meaning"]) < 5 or len(row["remedy"]) < 5] == []
    assert [row["name"] for row in rows if "Source:" in row["meaning"]] == []
    anchors = PAGE.read_text(encoding="utf-8").lower()
    pages = {row["page"].partition("#")[2] for row in rows} - {"none"}
    assert [anchor for anchor in pages if f'id="{anchor}"' not in anchors and f"## {anchor}\n" not in anchors] == []


def test_every_class_of_the_client_has_a_place_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = explain._every_error()
    documented = {kind.__name__ for kind in explain.public_errors()} | {code.name for code in ErrorCode}
    assert len(kinds) > 20
    for kind in kinds:
        error: KafkaError = kind.__new__(kind)
        error.code = kind.default_code
        assert error.name_on_page in documented


def test_list_without_names_has_the_classes(capsys: pytest.CaptureFixture[str]) -> None:
    lines = explained(capsys).splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", *(kind.__name__ for kind in explain.public_errors())]


def test_unknown_name_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "GROUP_NOT_FOUND"]) == 2
    assert "did you mean GROUP_ID_NOT_FOUND?" in capsys.readouterr().err
    assert run(["explain", "zzz"]) == 2
    assert "`kohort explain` lists" in capsys.readouterr().err


def test_failed_command_ends_with_the_name_of_its_explanation(
    kohort: Kohort, capsys: pytest.CaptureFixture[str]
) -> None:
    error, more = kohort("topics", "describe", "no-such-topic").err.splitlines()
    assert "[UNKNOWN_TOPIC_OR_PARTITION]" in error
    assert more == "More: kohort explain UNKNOWN_TOPIC_OR_PARTITION"
    assert "kohort topics create" in explained(capsys, *more.split()[3:])
    assert len(kohort("topics", "descrbe").err.splitlines()) == 1, "a wrong use says itself what to do"


def test_refusal_that_says_what_to_do_leads_to_no_explanation(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kohort", "broker", "--listen", "0.0.0.0:0", "--data", str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "Ways to go on: --tls FILE with --client-ca FILE" in last and last.endswith("[INVALID_REQUEST]")


def test_no_library_of_a_sink_is_imported_to_explain() -> None:
    """Libraries such as pandas and pyiceberg took a second of processor time, in an installation that has them."""
    code = "import sys; from kohort.cli.app import run; run(['explain', 'RowRefused']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "did you mean RowRefusedError?" in done.stderr
    assert {"pandas", "pyiceberg", "deltalake", "duckdb", "sqlalchemy"}.isdisjoint(done.stdout.split())
