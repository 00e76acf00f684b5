"""docs/metrics.md and docs/log-lines.md are current, and have what the sources have."""

from __future__ import annotations

import ast

from tools import log_line_docs, metric_docs

LOG = """
log = logging.getLogger("kohort.part")
RENEWED = "the certificate %s was renewed; %d%% of its time is left"


def renew():
    log.warning(RENEWED, name, 80)
    log.info("not on the page")
    text = "a" if odd else "b"
    log.error(text)
"""


def test_metrics_are_those_of_the_exporters() -> None:
    assert metric_docs.page() == metric_docs.PAGE.read_text(encoding="utf-8"), "run make docs"


def test_log_lines_are_those_of_the_sources() -> None:
    assert log_line_docs.page() == log_line_docs.PAGE.read_text(encoding="utf-8"), "run make docs"
    assert len(log_line_docs.log_lines()) > 200


def test_line_is_found_with_its_values_left_out() -> None:
    found = [(line.logger, line.level, line.text) for line in sorted(log_line_docs.lines_of(LOG))]
    assert found == [
        ("kohort.part", "error", "a"),
        ("kohort.part", "error", "b"),
        ("kohort.part", "warning", "the certificate … was renewed; #% of its time is left"),
    ]


def test_every_warning_has_a_text_that_the_page_can_show() -> None:
    without = []
    for path in sorted(log_line_docs.SOURCES.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        calls = [node for node in ast.walk(ast.parse(source)) if _is_log_call(node)]
        if len(calls) > len(list(log_line_docs.lines_of(source))):
            without.append(path.relative_to(log_line_docs.SOURCES).as_posix())
    assert without == ["broker/run.py"], "its line is the text of ignored settings"


def _is_log_call(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    owner = node.func.value
    return isinstance(owner, ast.Name) and owner.id == "log" and node.func.attr in log_line_docs.LEVELS
