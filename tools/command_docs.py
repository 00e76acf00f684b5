"""Writes docs/commands.md from the commands' own help: `python tools/command_docs.py [--check]`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from kohort.cli.app import COMMANDS, command_tree
from kohort.cli.output import NAMES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "commands.md"
HEAD = """<!-- Written by tools/command_docs.py from the help texts: change those, then run `make docs`. -->
"""

OF_EVERY_COMMAND = """## Options of every command

Commands that ask a cluster take these. Their pages (`kohort COMMAND --help`) list them too.

"""
_COMMON = re.compile(
    r"(?:^\* `--(?:bootstrap-server STR|command-config PATH|json|timeout INT)`: .+\n){4}", re.MULTILINE
)

NAMES_ARE = """Rows have one name for a thing: the key in JSON is the heading of the table. A pipe gets it in
capitals, with - for _. A terminal leaves out columns in which no row has anything. Records that
`kohort consume` writes are named as Spark's are."""


def page() -> str:
    """Return the page that the help texts make."""
    for name, (place, _) in COMMANDS.items():
        if not place.endswith(":app"):  # what a list of commands says of it is only its beginning
            command = command_tree()[name]
            command.help = getattr(command.default_command, "__doc__", None)
    called_as, sys.argv = sys.argv, ["kohort"]  # cyclopts puts the way it was called into usage lines
    try:
        text = command_tree().generate_docs(output_format="markdown", recursive=True)
    finally:
        sys.argv = called_as
    text = re.sub(r"\n {6,}(?=\S)", " ", text)  # a help text of several lines is one paragraph
    text = re.sub(r" \*\[default: (?:\(\)|False)\]\*", "", text)
    return HEAD + common_once(text).rstrip() + "\n\n" + names()


def common_once(text: str) -> str:
    """Return the page with the options of every command in a section of their own, and a link to it at each command."""
    options = dict.fromkeys(_COMMON.findall(text))
    assert len(options) == 1, "the options of every command differ"
    linked = _COMMON.sub("* the [options of every command](#options-of-every-command)\n", text)
    return str(linked).rstrip() + "\n\n" + OF_EVERY_COMMAND + next(iter(options))


def names() -> str:
    """Return the section on names in tables and in JSON."""
    rows = [f"| `{name}` | {meaning} |" for name, meaning in NAMES.items()]
    return "\n".join(["## Names", "", NAMES_ARE, "", "| name | meaning |", "|---|---|", *rows, ""])


def main() -> int:
    """Write the page, or with --check report whether it is current."""
    if "--check" in sys.argv[1:]:
        current = PAGE.exists() and PAGE.read_text(encoding="utf-8") == page()
        print("docs/commands.md is " + ("current" if current else "out of date: make docs"))
        return 0 if current else 1
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
