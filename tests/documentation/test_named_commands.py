"""Commands that pages and messages name are there, with the options that they are given."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator

import pytest
from cyclopts import App

from kohort.cli.app import COMMANDS, HELP, VERSION, command_tree
from tests.documentation.snippets import PAGES, ROOT, snippets

_NAMED = re.compile(r"`(kohort [a-z][^`]*)`")
_IN_A_SHELL = re.compile(r"(?:^|[|&(;] *|\bexec )(kohort [a-z][^|&>#;)\n]*)", re.MULTILINE)
_FOLDERS = ("examples", "deploy")
QUOTED = {"kohort runs from an archive"}
"""Beginnings of messages that look like commands."""


def commands_on_pages() -> Iterator[tuple[str, str]]:
    for page in [*PAGES, *(file for folder in _FOLDERS for file in (ROOT / folder).rglob("*.md"))]:
        for command in _NAMED.findall(page.read_text(encoding="utf-8")):
            yield str(page.relative_to(ROOT)), command
        for snippet in snippets(page) if page in PAGES else ():
            if snippet.language == "sh":
                for command in _IN_A_SHELL.findall(snippet.code.replace("\\\n", " ")):
                    yield snippet.place, command


def commands_in_the_code() -> Iterator[tuple[str, str]]:
    """Commands in docstrings and messages; of a message with values in it, those that stand in one part."""
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for command in _NAMED.findall(node.value):
                    yield f"{file.relative_to(ROOT)}:{node.lineno}", command


def options_of(app: App) -> set[str]:
    """The options of a command, as a user writes them."""
    arguments = app.assemble_argument_collection(parse_docstring=True) if app.default_command is not None else ()
    return {*HELP, *(name for argument in arguments for name in argument.names if name.startswith("-"))}


def fault_of(command: str) -> str:
    """Return the fault of a command; empty: it has none."""
    words = [word.rstrip(",") for word in shlex.split(" ".join(command.split()))][1:]
    if words[0] not in COMMANDS:
        return "" if words[0] == VERSION else f"there is no command {words[0]}"
    app, words = command_tree()[words[0]], words[1:]
    while words and not words[0].startswith("-"):
        if words[0] in app:
            app, words = app[words[0]], words[1:]
        elif app.default_command is None:
            return f"there is no command {words[0]}"
        else:
            break
    unknown = {word.split("=")[0] for word in words if word.startswith("--")} - options_of(app)
    return f"there is no option {', '.join(sorted(unknown))}" if unknown else ""


def test_commands_of_pages_are_there() -> None:
    found = [(place, command) for place, command in commands_on_pages() if command not in QUOTED]
    assert len(found) > 250
    assert [(*named, fault) for named in found if (fault := fault_of(named[1]))] == []


def test_commands_in_docstrings_and_messages_are_there() -> None:
    found = [*commands_in_the_code()]
    assert len(found) > 50
    assert [(*named, fault) for named in found if (fault := fault_of(named[1]))] == []


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        pytest.param("kohort groups lag payments --all", "", id="right"),
        pytest.param("kohort lags payments", "there is no command lags", id="command"),
        pytest.param("kohort groups rest-offsets g", "there is no command rest-offsets", id="subcommand"),
        pytest.param("kohort groups lag --dry-run=1", "there is no option --dry-run", id="option"),
    ],
)
def test_fault_of_a_command(command: str, fault: str) -> None:
    assert fault_of(command) == fault
