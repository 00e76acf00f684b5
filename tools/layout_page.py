"""Writes docs/design/layout.md, one line for each file of the package: `python -m tools.layout_page [--check]`.

The line is the first line of the module's docstring; of a kernel's file that has none, it is the first comment.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

from tools.hygiene import ROOT, tracked_files

HOME = "src/kohort/"
PAGE = ROOT / "docs" / "design" / "layout.md"
HEAD = """<!-- Written by tools/layout_page.py from the modules' docstrings: change those, then run `make docs`. -->

# The tree, file by file

Each line is the first line of a file's docstring. The map of the rooms is in
[ARCHITECTURE.md](../../ARCHITECTURE.md). The other pages of this folder have the reasons.
"""
SUFFIXES = (".py", ".pyx", ".pxd", ".pxi", ".h")
"""Files that get a line; a stub (`.pyi`) repeats its kernel."""
_DOCSTRING = re.compile(r'^"""(.+?)(?:"""|\n)', re.MULTILINE)
_COMMENT = re.compile(r"^(?:# (?!cython:)|/\* )(.+?)(?: \*/)?$", re.MULTILINE)


def files() -> list[str]:
    """The files of the package that get a line, from its folder on."""
    names = [name.removeprefix(HOME) for name in tracked_files() if name.startswith(HOME)]
    return sorted(name for name in names if name.endswith(SUFFIXES))


def first_line(name: str, source: str) -> str:
    """The first line that a file says of itself.

    Raises:
        ValueError: the file says nothing.
    """
    if name.endswith(".py"):
        line = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
    else:
        found = _DOCSTRING.search(source) or _COMMENT.search(source)
        line = found[1] if found else ""
        line = line if line.endswith(".") else line[: line.rfind(". ") + 1] or line
    if not line:
        raise ValueError(f"{name} has no docstring")
    return line.strip()


def page() -> str:
    """The page as the docstrings make it."""
    rooms: dict[str, list[str]] = defaultdict(list)
    for name in files():
        rooms[str(Path(name).parent)].append(name)
    lines = [HEAD]
    for room in sorted(rooms, key=lambda room: (room != ".", room)):
        said = {name: first_line(name, (ROOT / HOME / name).read_text(encoding="utf-8")) for name in rooms[room]}
        own = "__init__.py" if room == "." else f"{room}/__init__.py"
        lines += [f"## {HOME}{'' if room == '.' else room + '/'}", "", said.pop(own, ""), ""]
        if said:
            lines += ["| file | responsibility |", "|---|---|"]
            lines += [f"| `{Path(name).name}` | {line.replace('|', chr(92) + '|')} |" for name, line in said.items()]
            lines.append("")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Write the page, or with --check say whether it is current."""
    text = page()
    if "--check" in arguments:
        current = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text
        print("docs/design/layout.md is " + ("current" if current else "out of date: make docs"))
        return 0 if current else 1
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
