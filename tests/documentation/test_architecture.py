"""ARCHITECTURE.md, docs/design/ and docs/changing.md are short and true; each check notices what it is there for."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tools import layout_page

from tests.documentation import design_pages
from tests.documentation.design_pages import BYTES_MAX, HELD, PAGE
from tests.documentation.spec_page import ROOT

TEXT = PAGE.read_text(encoding="utf-8")
PURGATORY = "src/kohort/broker/purgatory.py"
READING_ORDER = ROOT / "docs" / "README.md"
page = cache(layout_page.page)


def test_architecture_is_short() -> None:
    assert len(TEXT.encode()) < BYTES_MAX


def test_map_names_every_room() -> None:
    assert design_pages.missing_rooms(TEXT) == []


def test_map_names_every_folder_beside_the_package() -> None:
    folders = {path.relative_to(ROOT).parts[0] for path in ROOT.glob("*/*") if path.suffix in (".py", ".md", ".txt")}
    shown = {folder for folder in folders if not folder.startswith(".") and folder not in ("build", "dist")}
    assert {"simulation", "tests", "bench", "tools", "docs", "requirements"} <= shown
    assert [folder for folder in sorted(shown - {"src"}) if f"`{folder}/`" not in TEXT] == []


@pytest.mark.parametrize("walk", ["Walk 1", "Walk 2", "Walk 3"])
def test_walk_has_eight_to_twelve_steps(walk: str) -> None:
    steps = re.findall(r"^\d+\. ", TEXT.partition(f"\n## {walk}")[2].partition("\n## ")[0], re.MULTILINE)
    assert 8 <= len(steps) <= 12


def test_glossary_is_short() -> None:
    assert 0 < design_pages.rows_of(TEXT, "Glossary") <= 15


@pytest.mark.parametrize("page", HELD, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_names_what_is_in_the_tree(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert design_pages.wrong_paths(text) == []
    assert design_pages.wrong_names(text) == []


@pytest.mark.parametrize(
    ("check", "old", "new", "complaint"),
    [
        (design_pages.wrong_paths, "`broker/purgatory.py`", "`broker/waits.py`", "broker/waits.py"),
        (design_pages.wrong_paths, "`assignors/`", "`dividers/`", "dividers/"),
        (
            design_pages.wrong_names,
            "(`Purgatory.add`)",
            "(`Purgatory.park`)",
            f"{PURGATORY} has no Purgatory.park",
        ),
        (design_pages.missing_rooms, "| `lag/` |", "| lag |", "lag/"),
    ],
)
def test_page_that_is_not_true_is_noticed(
    check: Callable[[str], list[str]], old: str, new: str, complaint: str
) -> None:
    assert old in TEXT
    assert complaint in check(TEXT.replace(old, new))


def test_design_pages_name_every_module_of_their_rooms() -> None:
    pages = {page: page.read_text(encoding="utf-8") for page in HELD if page.parent == design_pages.DESIGN}
    assert design_pages.missing_files(list(pages.values())) == []
    without_log = [text for page, text in pages.items() if page.name != "log.md"]
    assert "src/kohort/log/gaps.py" in design_pages.missing_files(without_log)


def test_layout_page_is_current() -> None:
    assert layout_page.PAGE.read_text(encoding="utf-8") == page(), "run make docs"


def test_layout_page_names_every_module() -> None:
    text = page()
    for path in sorted((ROOT / "src/kohort").rglob("*.py")):
        room = path.parent.relative_to(ROOT).as_posix()
        section = text.partition(f"\n## {room}/\n")[2].partition("\n## ")[0]
        assert section, room
        assert path.name == "__init__.py" or f"\n| `{path.name}` | " in section, path


def test_layout_page_needs_a_docstring() -> None:
    with pytest.raises(ValueError, match="has no docstring"):
        layout_page.first_line("wire/silent.py", "X = 1\n")


def test_reading_order_names_every_page() -> None:
    text = READING_ORDER.read_text(encoding="utf-8")
    linked = {(READING_ORDER.parent / target).resolve() for target in re.findall(r"\]\(([^)#]+)", text)}
    pages = {*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")} - {READING_ORDER}
    assert sorted(str(page.relative_to(ROOT)) for page in pages - linked) == []
