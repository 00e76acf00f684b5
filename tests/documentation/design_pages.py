"""ARCHITECTURE.md and docs/design/ held to the tree: paths, names of functions, rooms, size."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

from tests.documentation.spec_page import ROOT, names_in

PAGE = ROOT / "ARCHITECTURE.md"
DESIGN = ROOT / "docs" / "design"
CHANGING = ROOT / "docs" / "changing.md"
GENERATED = DESIGN / "layout.md"
BYTES_MAX = 12_000
HOME = ROOT / "src" / "kohort"
HELD = (PAGE, CHANGING, *sorted(path for path in DESIGN.glob("*.md") if path != GENERATED))
"""The pages whose paths and names are compared with the tree."""
DESCRIBED = (
    "groups", "coordinator", "journal", "log", "wire", "columns", "broker", "client", "cluster", "region", "spark",
)  # fmt: skip
"""The rooms whose files have a line in a design page."""
NOT_HERE = ("commits/", "offsets/", "state/")
"""Folders of a Spark checkpoint, which pages name too."""
_PATH = re.compile(r"`([A-Za-z_.][\w.]*(?:/[\w.]+)*(?:/|\.(?:py|pyx|pyi|md|toml|json|txt|sh)))`")
_NAMED = re.compile(r"`([\w/.]+\.py)` \(((?:`[\w.]+`(?:, )?)+)\)")


@cache
def find(path: str) -> str | None:
    """A path as the checkout has it: from its root, from the package on, or the end of one path of the package."""
    for base in (HOME, ROOT):
        if (base / path).exists():
            return (base / path).relative_to(ROOT).as_posix()
    ends = list(HOME.glob(f"**/{path.rstrip('/')}"))
    return ends[0].relative_to(ROOT).as_posix() if ends and (len(ends) == 1 or path.endswith("/")) else None


@cache
def names_of(file: str) -> frozenset[str]:
    """Functions, methods, classes and constants of a file."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    annotated = [node.target for node in tree.body if isinstance(node, ast.AnnAssign)]
    return names_in(file) | {target.id for target in annotated if isinstance(target, ast.Name)}


def paths(text: str) -> Iterator[str]:
    """Every path that a page names in backticks."""
    for path in _PATH.findall(text):
        if path not in NOT_HERE:
            yield path


def wrong_paths(text: str) -> list[str]:
    """Paths that are not in the tree."""
    return sorted({path for path in paths(text) if find(path) is None})


def wrong_names(text: str) -> list[str]:
    """Functions, classes and methods in brackets behind a file that does not have them."""
    found = []
    for path, names in _NAMED.findall(text):
        place = find(path)
        if place is not None:
            wanted = re.findall(r"`([\w.]+)`", names)
            found += [f"{place} has no {name}" for name in wanted if not set(name.split(".")) <= names_of(place)]
    return found


def missing_files(texts: list[str]) -> list[str]:
    """Modules of the rooms that design pages describe, and that none of these pages names."""
    named = {find(path) for text in texts for path in paths(text)}
    found = []
    for room in DESCRIBED:
        for path in sorted((HOME / room).rglob("*.py")):
            place = path.relative_to(ROOT).as_posix()
            if path.name not in ("__init__.py", "__main__.py") and place not in named:
                found.append(place)
    return found


def rooms() -> list[str]:
    """The rooms of the package."""
    return sorted(f"{path.parent.name}/" for path in HOME.glob("*/__init__.py"))


def missing_rooms(text: str) -> list[str]:
    """Rooms that the map has no row for."""
    of_map = text.partition("\n## The map\n")[2].partition("\n## ")[0]
    return [room for room in rooms() if not re.search(rf"^\| `{room}`", of_map, re.MULTILINE)]


def rows_of(text: str, heading: str) -> int:
    """How many rows the table of a section has, without its head."""
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return len(re.findall(r"^\| ", section, re.MULTILINE)) - 1
