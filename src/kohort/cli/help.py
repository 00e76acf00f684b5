"""Help pages as plain text, as wide as the terminal. What they say is in the commands' signatures and docstrings."""

from __future__ import annotations

import shutil
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kohort.cli.app import ABOUT, COMMANDS, UsageError, tree

if TYPE_CHECKING:  # only pages of a command's own need it
    from cyclopts import App, Argument

_WIDTH_MAX = 120
_LABEL_MAX = 32
_KINDS = {int: "NUMBER", float: "NUMBER", Path: "FILE"}
NO_COMMANDS: Mapping[str, str] = {}
_OF_HELP = ("-h, --help", "print this page")


def help_page(tokens: Sequence[str]) -> str:
    """The page of the command that the arguments name; of all commands when they name none.

    Raises:
        UsageError: no such command; the text names the nearest.
    """
    words = _command_words(tokens)
    if not words:
        commands = {name: about for name, (_, about) in COMMANDS.items()}
        return _page("kohort COMMAND", ABOUT, [("Commands", list(commands.items())), _own(version=True)])
    name = words[0]
    if name not in COMMANDS:
        raise UsageError(_unknown("command", name, COMMANDS))
    app, called, about = tree()[name], f"kohort {name}", COMMANDS[name][1]
    if not COMMANDS[name][0].endswith(":app"):
        return _command_page(called, app)
    for word in words[1:]:
        if not (commands := _commands(app)):
            break  # an argument of the command
        if word not in commands:
            raise UsageError(_unknown(f"command of {called}", word, commands))
        app, called, about = app[word], f"{called} {word}", app[word].help or ""
    if app.default_command is None:
        return _page(f"{called} COMMAND", about, [("Commands", list(_commands(app).items())), _own()])
    return _command_page(called, app, _commands(app))


def _commands(app: App) -> dict[str, str]:
    """The commands of a family with their summaries."""
    return {command: _summary(app[command].help) for command in app if not command.startswith("-")}


def _unknown(what: str, word: str, known: Iterable[str]) -> str:
    from kohort.config import did_you_mean  # only for who mistyped

    names = list(known)
    return f"there is no {what} {word!r}" + (did_you_mean(word, names) or f"; there are {', '.join(names)}")


def _command_words(tokens: Sequence[str]) -> list[str]:
    words = []
    for token in tokens:
        if token.startswith("-"):
            break
        words.append(token)
    return words


def _own(version: bool = False) -> tuple[str, list[tuple[str, str]]]:
    return "Options", [_OF_HELP, *([("--version", "print the version")] if version else [])]


def _command_page(called: str, app: App, commands: Mapping[str, str] = NO_COMMANDS) -> str:
    """`commands`: that it has itself, beside what it does without one."""
    arguments = [one for one in app.assemble_argument_collection(parse_docstring=True) if one.name != "*"]
    positional = [one for one in arguments if one.index is not None]
    own = [one for one in arguments if one.index is None and not one.keys]
    common = [one for one in arguments if one.keys]
    usage = " ".join([called, *map(_in_usage, positional), "[OPTIONS]"])
    sections = [
        ("Commands", list(commands.items())),
        ("Arguments", [(_label(one), _about(one)) for one in positional]),
        ("Options", [*((_label(one), _about(one)) for one in own), _OF_HELP]),
        ("Options of every command", [(_label(one), _about(one)) for one in common]),
    ]
    return _page(usage, _description(getattr(app.default_command, "__doc__", None)), sections)


def _in_usage(argument: Argument) -> str:
    name = _label(argument)
    return name if argument.required else f"[{name}]"


def _label(argument: Argument) -> str:
    """NAME, NAME... or --name VALUE."""
    if argument.index is not None:
        name = argument.field_info.names[0].upper().replace("_", "-")
        return f"{name}..." if argument.field_info.kind.name == "VAR_POSITIONAL" else name
    value = _value_of(argument)
    return f"{argument.name} {value}" if value else argument.name


def _value_of(argument: Argument) -> str:
    kind = argument.hint
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        kind = next(one for one in typing.get_args(kind) if one is not type(None))
    if kind is bool:
        return ""
    if typing.get_origin(kind) is typing.Literal:
        return "|".join(typing.get_args(kind))
    return _KINDS.get(kind, "TEXT")


def _about(argument: Argument) -> str:
    text = _one_line(argument.parameter.help or "")
    default = argument.field_info.default
    if argument.required and argument.index is None:
        return f"{text} [needed]"
    if isinstance(default, (str, int, float)) and not isinstance(default, bool) and default not in ("", -1):
        return f"{text} [{default} unless given]"
    return text


def _summary(docstring: str | None) -> str:
    return _one_line((docstring or "").strip().partition("\n\n")[0])


def _description(docstring: str | None) -> str:
    """What a docstring says before its Args."""
    text = (docstring or "").partition("\n    Args:")[0]
    return "\n\n".join(_one_line(paragraph) for paragraph in text.split("\n\n") if paragraph.strip())


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _page(usage: str, about: str, sections: Sequence[tuple[str, list[tuple[str, str]]]]) -> str:
    width = min(_WIDTH_MAX, max(20, shutil.get_terminal_size().columns))
    lines = [f"Usage: {usage}", ""]
    for paragraph in about.split("\n\n"):
        lines += [*_wrapped(paragraph, width), ""]
    widest = min(_LABEL_MAX, width // 2, max((len(label) for _, rows in sections for label, _ in rows), default=0))
    for title, rows in sections:
        if not rows:
            continue
        lines.append(f"{title}:")
        for label, text in rows:
            lines += _row(label, text, widest, width)
        lines.append("")
    return "\n".join(lines[:-1]) + "\n"


def _row(label: str, text: str, widest: int, width: int) -> list[str]:
    indent = " " * (widest + 4)
    wrapped = _wrapped(text, max(20, width - len(indent)))
    first = f"  {label}"
    if len(label) > widest:
        return [first, *(indent + line for line in wrapped)]
    return [f"{first.ljust(len(indent))}{wrapped[0]}".rstrip(), *(indent + line for line in wrapped[1:])]


def _wrapped(text: str, width: int) -> list[str]:
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line]
