"""Fails when a source file or a function has grown past what one sitting can read.

A file may have 800 lines, a function 60 (docstring not counted). Tests may be longer.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

FILE_LINES_MAX = 800
FUNCTION_LINES_MAX = 60
ROOT = Path(__file__).resolve().parent.parent
CHECKED = ("src/", "simulation/", "bench/", "frameworks/", "tools/", "examples/")


def tracked_sources() -> list[Path]:
    """Return every tracked or new Python and Cython file that the limits apply to."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py", "*.pyx"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    return [ROOT / name for name in listing if name.startswith(CHECKED) and (ROOT / name).exists()]


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of lines from the `def` to the end, without the docstring."""
    total = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    has_docstring = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    if has_docstring:
        total -= (first.end_lineno or first.lineno) - first.lineno + 1
    return total


def complaints(path: Path) -> list[str]:
    """Return the excess sizes of one file, one line each."""
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(ROOT)
    found = []
    count = text.count("\n")
    if count > FILE_LINES_MAX:
        found.append(f"{name}: {count} lines, {FILE_LINES_MAX} allowed")
    if path.suffix != ".py":
        return found
    for node in ast.walk(ast.parse(text, str(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = body_lines(node)
            if lines > FUNCTION_LINES_MAX:
                found.append(f"{name}:{node.lineno}: {node.name} has {lines} lines, {FUNCTION_LINES_MAX} allowed")
    return found


def main() -> int:
    """Print every fault; return 1 if there is one."""
    sources = tracked_sources()
    found = [line for path in sources for line in complaints(path)]
    for line in found:
        print(line)
    print(f"sizes: {len(sources)} files, {len(found)} too long")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
