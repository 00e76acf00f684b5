"""Writes docs/commands.md from the commands' own help: `python tools/command_docs.py [--check]`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from kohort.cli.app import app

PAGE = Path(__file__).resolve().parent.parent / "docs" / "commands.md"
HEAD = """<!-- Written by tools/command_docs.py from the help texts: change those, then run `make docs`. -->
"""


def page() -> str:
    """The page as the help texts make it."""
    called_as, sys.argv = sys.argv, ["kohort"]  # cyclopts puts the way it was called into usage lines
    try:
        text = app.generate_docs(output_format="markdown", recursive=True)
    finally:
        sys.argv = called_as
    text = re.sub(r"\n {6,}(?=\S)", " ", text)  # a help text of several lines is one paragraph
    text = re.sub(r" \*\[default: (?:\(\)|False)\]\*", "", text)
    return HEAD + text.rstrip() + "\n"


def main() -> int:
    """Writes the page, or with --check says whether it is what it should be."""
    if "--check" in sys.argv[1:]:
        current = PAGE.exists() and PAGE.read_text(encoding="utf-8") == page()
        print("docs/commands.md is " + ("current" if current else "out of date: make docs"))
        return 0 if current else 1
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
