"""Writes docs/log-lines.md from the calls of loggers in the sources: `python -m tools.log_line_docs`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src" / "kohort"
PAGE = ROOT / "docs" / "log-lines.md"
HEAD = """<!-- Written by tools/log_line_docs.py from the sources: change those, then run `make docs`. -->

# Log lines

Every warning and error that kohort logs, by logger. A line says what happened, then why, then what to do. Values stand
as `…` here, so search for words of the line that do not change. `#` is a number.

Commands that serve (`broker`, `coordinator`, `exporter`, `scaler`, `dashboard`, `region serve`) write the log to
standard error. In a program they are lines of Python's `logging`. [limits.md](limits.md) says how many lines a client
can cause.

An `exception` has a traceback: it is a fault of kohort's or of your own function, unless the line names another cause.
"""
LEVELS = ("warning", "error", "exception", "critical")
_VALUE = re.compile(r"%(?:%|(?:\([a-z_]+\))?[-#0 +]*[\d.*]*[a-zA-Z])")
_SHOWN = {"%": "%", "d": "#", "i": "#", "f": "#"}
"""How a value is shown, by the last letter of its place in the format."""


@dataclass(frozen=True, slots=True, order=True)
class LogLine:
    """A line of the log.

    Attributes:
        logger: the name of the logger.
        text: the text as a reader sees it, with its values left out.
        level: the method that logs it.
    """

    logger: str
    text: str
    level: str


def log_lines() -> list[LogLine]:
    """Return the warnings and errors of the package, each once."""
    return sorted(
        {line for path in sorted(SOURCES.rglob("*.py")) for line in lines_of(path.read_text(encoding="utf-8"))}
    )


def lines_of(source: str) -> Iterator[LogLine]:
    """Yield the warnings and errors that a module logs by its `log`, as far as their text is in the module."""
    tree = ast.parse(source)
    logger = _logger_name(tree)
    if logger is None:
        return
    for function in ast.walk(tree):
        if isinstance(function, ast.Call) and isinstance(function.func, ast.Attribute) and function.args:
            owner, level = function.func.value, function.func.attr
            if isinstance(owner, ast.Name) and owner.id == "log" and level in LEVELS:
                for text in _texts(function.args[0], tree):
                    yield LogLine(logger, readable(text), level)


def _logger_name(tree: ast.Module) -> str | None:
    """Return the logger of `log = logging.getLogger("…")`; None: the module has none."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "log" and isinstance(node.value, ast.Call):
            for argument in node.value.args:
                if isinstance(argument, ast.Constant):
                    return str(argument.value)
    return None


def _texts(argument: ast.expr, tree: ast.Module) -> Iterator[str]:
    """Yield what an argument can be: a text, one of two, or each text that a name of the module is given."""
    if isinstance(argument, ast.Name):
        named = [node.value for node in ast.walk(tree) if isinstance(node, ast.Assign) and argument.id in _names(node)]
        arguments = [value for value in named if not isinstance(value, ast.Name)]
    else:
        arguments = [argument]
    for value in arguments:
        parts = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
        yield from (part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str))


def _names(node: ast.Assign) -> set[str]:
    return {target.id for target in node.targets if isinstance(target, ast.Name)}


def readable(text: str) -> str:
    """Return a format as a reader sees it: `#` for a number, `…` for another value."""
    return _VALUE.sub(lambda value: _SHOWN.get(value[0][-1], "…"), text)


def page() -> str:
    """Return the page."""
    by_logger: dict[str, list[LogLine]] = {}
    for line in log_lines():
        by_logger.setdefault(line.logger, []).append(line)
    sections = []
    for logger, lines in sorted(by_logger.items()):
        rows = [f"| {line.level} | {_cell(line.text)} |" for line in lines]
        sections.append("\n".join([f"\n## {logger}\n", "| level | line |", "|---|---|", *rows, ""]))
    return HEAD + "".join(sections)


def _cell(text: str) -> str:
    shown = text.replace("|", "\\|").replace("\n", " ")
    return f"`` {shown} ``" if "`" in shown else f"`{shown}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
