"""Draws docstrings, log lines and names at random, for a reader without the code: `python -m tools.reading_test`.

Somebody who knows Kafka, Python and Spark, and not this project, explains each. Of 60 excerpts, 57 must be explained
rightly at the first reading.
"""

from __future__ import annotations

import argparse
import ast
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LEVELS = {"debug", "info", "warning", "error", "exception"}


class Excerpt(NamedTuple):
    """A docstring, log line or name, and its place."""

    kind: str
    place: str
    text: str


def excerpts() -> Iterator[Excerpt]:
    """Yield every docstring, log line and public function or class name of the package.

    Methods bear their class's name, as where they are used. A function within another has no public name.
    """
    for file in sorted((ROOT / "src" / "kohort").rglob("*.py")):
        yield from _excerpts_in(ast.parse(file.read_text()), str(file.relative_to(ROOT / "src")), "")


def _excerpts_in(parent: ast.AST, path: str, within: str | None) -> Iterator[Excerpt]:
    """Yield the excerpts below a node; `within`: the class around it with a dot, or None in a function."""
    for node in ast.iter_child_nodes(parent):
        inner = within
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if (docstring := ast.get_docstring(node)) is not None:
                yield Excerpt("docstring", f"{path}, {within or ''}{node.name}", docstring)
            if within is not None and not node.name.startswith("_"):
                yield Excerpt("name", path, _signature(node, within))
            inner = f"{within or ''}{node.name}." if isinstance(node, ast.ClassDef) else None
        elif (text := _log_line(node)) is not None:
            yield Excerpt("log line", path, text)
        yield from _excerpts_in(node, path, inner)


def _signature(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, within: str) -> str:
    if isinstance(node, ast.ClassDef):
        return f"class {within}{node.name}({', '.join(ast.unparse(base) for base in node.bases)})"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    marks = [f"@{ast.unparse(mark)} " for mark in node.decorator_list if not isinstance(mark, ast.Call)]
    return f"{''.join(marks)}def {within}{node.name}({ast.unparse(node.args)}){returns}"


def _log_line(node: ast.AST) -> str | None:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS):
        return None
    if not node.args or not isinstance(node.args[0], ast.Constant) or not isinstance(node.args[0].value, str):
        return None
    return f"{node.func.attr}: {node.args[0].value}"


def drawn(seed: int, count: int) -> list[Excerpt]:
    """Draw equally many docstrings, log lines and names."""
    kinds: dict[str, list[Excerpt]] = {}
    for excerpt in excerpts():
        kinds.setdefault(excerpt.kind, []).append(excerpt)
    chance = random.Random(seed)
    return [excerpt for kind in sorted(kinds) for excerpt in chance.sample(kinds[kind], count // len(kinds))]


def main() -> None:
    """Print the draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--count", type=int, default=60)
    arguments = parser.parse_args()
    for number, excerpt in enumerate(drawn(arguments.seed, arguments.count), 1):
        print(f"{number}. [{excerpt.kind}] {excerpt.place}\n   " + excerpt.text.replace("\n", "\n   ") + "\n")


if __name__ == "__main__":
    main()
