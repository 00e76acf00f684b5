"""The tree of commands, and their exit codes: 0 done, 1 refused or failed, 2 wrong use.

The argument parser and a command's module are imported only when a command runs, so `kohort --help` answers at once.
"""

from __future__ import annotations

import os
import sys
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Literal, TextIO

from kohort import __version__
from kohort.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from cyclopts import App, Argument, CycloptsError


DONE, FAILED, WRONG_USE, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 130, 141
"""130 and 141 are a shell's exit codes for programs that SIGINT and SIGPIPE end."""

ABOUT = "Kafka consumer groups: a broker, records in and out, topics, groups, their offsets and their lag."
COMMANDS = {
    "demo": (
        "kohort.cli.demo:demo",
        "Two Spark queries share a group, one is killed, and every flight is counted once.",
    ),
    "broker": ("kohort.cli.broker:broker", "Serve as a Kafka broker with real consumer groups."),
    "coordinator": ("kohort.cli.coordinator:app", "Serve consumer groups over an existing Apache Kafka cluster."),
    "topics": ("kohort.cli.topics:app", "List, describe, create, delete and alter topics."),
    "produce": ("kohort.cli.produce:produce", "Write lines to a topic."),
    "consume": ("kohort.cli.consume:consume", "Read records of a topic."),
    "groups": ("kohort.cli.groups:app", "List and describe groups, their lag, and change their offsets."),
    "exporter": ("kohort.cli.exporter:exporter", "Lag of all groups of one or several clusters, for Prometheus."),
    "scaler": ("kohort.cli.scaling:scaler", "How many members groups need, for KEDA over gRPC."),
    "dashboard": ("kohort.cli.dashboard:dashboard", "Web page of a cluster's groups: lag, members, topics, records."),
    "acls": ("kohort.cli.acls:app", "List, add and remove access control lists: who may do what."),
    "region": ("kohort.cli.region:app", "Describe, reset, adopt and delete consistent regions."),
    "spark": ("kohort.cli.spark:app", "Checkpoints of Spark queries: show them, move them between two sources."),
    "log": ("kohort.cli.logs:app", "Look at what a stopped broker keeps on the disk."),
    "zookeeper": ("kohort.cli.broker:zookeeper", "A real ZooKeeper for trying things."),
    "completion": ("kohort.cli.app:completion", "Print a script that completes commands in a shell."),
    "explain": ("kohort.cli.explain:explain", "Say what an error means and what to do."),
    "doctor": ("kohort.cli.doctor:doctor", "Say what is missing on this machine, and how to get it."),
}
"""Command -> its target and its purpose. A target named `app` has commands of its own."""
HELP, VERSION = ("--help", "-h"), "--version"


class UsageError(Exception):
    """The error that a command was called with wrong arguments; the message says how to call it."""


def command_family(name: str, about: str) -> App:
    """Return a command with subcommands; its flags have no negative form such as --no-OPTION."""
    from cyclopts import App, Parameter

    return App(name=name, help=about, result_action="return_value", default_parameter=Parameter(negative=""))


@cache
def command_tree() -> App:
    """Return the tree of all commands; a command's module is imported when the command is looked up."""
    app = command_family("kohort", ABOUT)
    app.version, app.version_flags = __version__, (VERSION,)
    for name, (target, about) in COMMANDS.items():
        app.command(target, name=name, help=about)
    return app


def run(tokens: Sequence[str]) -> int:
    """Run a command. Report a failure on standard error, with a line on where to read more, and by the exit code.

    Args:
        tokens: the arguments after the program's name.

    Returns:
        the exit code.
    """
    try:
        code = _run(list(tokens))
        if getattr(sys, "stdout", None) is not None:  # None where the caller closed it
            sys.stdout.flush()
        return code
    except UsageError as error:
        return _complain(str(error), WRONG_USE)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        _drop_output()
        return PIPE_CLOSED
    except KafkaError as error:
        hint = None if tokens[:1] == ["broker"] else _hint_of(error)  # a broker's properties are those of its listeners
        return _complain(str(error), FAILED, hint=hint, more=explain_hint([error]))
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        _drop_output()
        return _complain(what, FAILED)


def _usage_text(error: CycloptsError) -> str:
    """Return the text of an error about arguments. A missing argument is named as on the help page."""
    from cyclopts import MissingArgumentError, UnknownCommandError, UnknownOptionError

    if isinstance(error, MissingArgumentError) and error.argument is not None:
        is_given = error.keyword is not None or error.argument.tokens or error.unused_tokens
        if not is_given:
            return f"{_label(error.argument)} is missing"
    if isinstance(error, UnknownOptionError):
        word = (error.token.keyword or error.token.value).split("=")[0]
        if advice := _usual_option(word, error.argument_collection):
            return advice
    if isinstance(error, UnknownCommandError) and error.unused_tokens:
        word = error.unused_tokens[0]
        there = [f'"{family} {word}"' for family in _families() if word in _commands(command_tree()[family])]
        if word not in COMMANDS and there and not error.command_chain:
            return f'Unknown command "{word}". Did you mean {" or ".join(there)}?'
    return str(error)


USUAL_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "--bootstrap": ("--bootstrap-server",),
    "--bootstrap-servers": ("--bootstrap-server", "--servers"),
    "--broker-list": ("--bootstrap-server", "--servers"),
    "--brokers": ("--bootstrap-server", "--servers"),
    "--from-earliest": ("--from-beginning", "--to-earliest"),
    "--host": ("--listen",),
    "--port": ("--listen",),
    "--to-begin": ("--to-earliest",),
    "--to-beginning": ("--to-earliest",),
    "--to-start": ("--to-earliest",),
    "--to-end": ("--to-latest",),
}
"""Options of other tools, and guesses, with ours: what is alike in letters would name another one for them."""


def _usual_option(word: str, known: Iterable[Argument]) -> str:
    """Return the hint for an option of other tools, which names kohort's option instead; empty: there is none."""
    arguments = list(known)
    names = {name for argument in arguments for name in argument.names}
    if found := [name for name in USUAL_OPTIONS.get(word, ()) if name in names]:
        return f"Unknown option: {word}. Did you mean {found[0]}?"
    for argument in arguments:
        if argument.index is not None and _label(argument).rstrip(".").removesuffix("S") == word[2:].upper():
            return f"Unknown option: {word}. Write the value without it, as the argument {_label(argument)}"
    return ""


def _families() -> list[str]:
    """Return the command families: the commands that have subcommands."""
    return [name for name, (place, _) in COMMANDS.items() if place.endswith(":app")]


_SECURITY = ("security.protocol", "ssl.", "sasl.")


def _hint_of(error: KafkaError) -> str | None:
    """Return the hint on where to set the property that an error names; None: it names none."""
    if error.code is ErrorCode.SECURITY_DISABLED:
        return "access rules count when the brokers set authorizer.class.name"
    return property_location_hint(error.message) or None


def property_location_hint(message: str) -> str:
    """Return the hint on where to set the connection property that a message names; empty: it names none.

    The client's messages name the property that helps. A program sets it elsewhere than a command.
    """
    if any(family in message for family in _SECURITY):  # by text: no code says which property helps
        return "client properties are read from the file of --command-config"
    return ""


def explain_hint(errors: Iterable[KafkaError]) -> str:
    """Return the line that tells where these errors are explained; empty: their messages say all."""
    names = dict.fromkeys(error.name_on_page for error in errors)
    for name in (KafkaError.__name__, ErrorCode.INVALID_REQUEST.name):  # the explanation refers to the message
        names.pop(name, None)
    return f"More: kohort explain {' '.join(names)}" if names else ""


def _run(tokens: list[str]) -> int:
    if tokens == [VERSION]:
        print(__version__)
        return DONE
    options = tokens[: tokens.index("--")] if "--" in tokens else tokens
    if _is_family(tokens) or any(word in options for word in HELP):
        print(help_page(tokens), end="")
        return DONE
    from cyclopts import CycloptsError, UnknownCommandError

    try:
        result = command_tree()(tokens, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        known = tokens[:1] if isinstance(error, UnknownCommandError) else tokens
        return _complain(_usage_text(error), WRONG_USE, hint=f"see kohort {_command_of(known)}--help")
    return result if isinstance(result, int) else DONE


def _is_family(tokens: Sequence[str]) -> bool:
    """Return whether the arguments name a command with subcommands, and none of these."""
    if not tokens:
        return True
    if not COMMANDS.get(tokens[0], ("",))[0].endswith(":app"):
        return False
    if len(tokens) == 1:
        return True
    app = command_tree()[tokens[0]]
    return len(tokens) == 2 and tokens[1] in app and app[tokens[1]].default_command is None


def _drop_output() -> None:
    """Redirect lost standard streams to /dev/null, so that Python's shutdown reports no error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        if _is_lost(stream):
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _is_lost(stream: TextIO) -> bool:
    """Return whether a standard stream can't be written any more: its reader has gone, or its disk is full."""
    try:
        stream.flush()
    except OSError:
        return True
    except (AttributeError, ValueError):  # none, or closed
        return False
    return False


def _complain(text: str, code: int, hint: str | None = None, more: str = "") -> int:
    from kohort.cli.output import printable

    if getattr(sys, "stderr", None) is None:  # the caller closed it, and print() would take standard output
        return code
    line = printable(" ".join(text.split()))
    end = f"\n{more}" if more else ""
    try:
        print(f"kohort: {line}" + (f" ({hint})" if hint else "") + end, file=sys.stderr, flush=True)
    except BrokenPipeError:
        _drop_output()
    return code


def _command_of(tokens: Sequence[str]) -> str:
    """Return the command's words among the arguments, each followed by a space."""
    words: list[str] = []
    for token in tokens[:2]:
        if token.startswith("-") or (not words and token not in COMMANDS):
            break
        if words and not COMMANDS[words[0]][0].endswith(":app"):
            break
        words.append(token)
    return "".join(f"{word} " for word in words)


# -- Help pages as plain text, as wide as the terminal, made from the commands' signatures and docstrings.
#
# The pages of cyclopts need rich, which takes 0.2 s more.

_WIDTH_MAX = 120
_LABEL_MAX = 32
_KINDS = {"int": "NUMBER", "float": "NUMBER", "Path": "FILE"}
"""Placeholders by the name of an argument's type: `pathlib` would take longer to import than the top page."""
NO_COMMANDS: Mapping[str, str] = {}
_OF_HELP = ("-h, --help", "print this page")
COMMON_OPTIONS = frozenset({"bootstrap_server", "command_config", "json", "timeout"})
"""The options of every command, which are the fields of `Common`."""
SECURITY_OPTIONS = frozenset({"tls", "client_ca", "sasl", "secure", "insecure", "command_config", "trust_everyone"})
"""The options of servers that are about security, which are fields of `SecurityOptions` and `ServerOptions`."""


def help_page(tokens: Sequence[str]) -> str:
    """Return the help page of the command that the arguments name, or of all commands when they name none.

    Raises:
        UsageError: no such command; the message names the nearest.
    """
    words = _command_words(tokens)
    if not words:
        commands = {name: about for name, (_, about) in COMMANDS.items()}
        return _page("kohort COMMAND", ABOUT, [("Commands", list(commands.items())), _own(version=True)])
    name = words[0]
    if name not in COMMANDS:
        raise UsageError(_unknown("command", name, COMMANDS))
    app, called, about = command_tree()[name], f"kohort {name}", COMMANDS[name][1]
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
    """Return the commands of a family with their summaries."""
    return {command: _summary(app[command].help) for command in app if not command.startswith("-")}


def _unknown(what: str, word: str, known: Iterable[str]) -> str:
    from kohort.settings.config import did_you_mean  # needed only after a misspelling

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
    """Return a command's help page. `commands`: the subcommands of a command that also works without one."""
    arguments = [
        argument for argument in app.assemble_argument_collection(parse_docstring=True) if argument.name != "*"
    ]
    positional = [argument for argument in arguments if argument.index is not None]
    common = [argument for argument in arguments if argument.keys]  # fields of a class of options
    every = any(argument.name == "--json" for argument in common)
    if every:
        common = [argument for argument in common if COMMON_OPTIONS & {*argument.keys}]
    own = [argument for argument in arguments if argument.index is None and argument not in common]
    security = [] if every else [argument for argument in common if SECURITY_OPTIONS & {*argument.keys}]
    shared = [argument for argument in common if argument not in security]
    usage = " ".join([called, *map(_in_usage, positional), "[OPTIONS]"])
    sections = [
        ("Commands", list(commands.items())),
        ("Arguments", [(_label(argument), _about(argument)) for argument in positional]),
        ("Options", [*((_label(argument), _about(argument)) for argument in own), _OF_HELP]),
        (
            "Options of every command" if every else "Further options",
            [(_label(option), _about(option)) for option in shared],
        ),
        ("Options about security", [(_label(argument), _about(argument)) for argument in security]),
    ]
    return _page(usage, _description(getattr(app.default_command, "__doc__", None)), sections)


def _in_usage(argument: Argument) -> str:
    name = _label(argument)
    return name if argument.required else f"[{name}]"


def _label(argument: Argument) -> str:
    """Return the label of an argument on the help page: NAME, NAME... or --name VALUE."""
    if argument.index is not None:
        name = argument.field_info.names[0].upper().replace("_", "-")
        return f"{name}..." if argument.field_info.kind.name == "VAR_POSITIONAL" else name
    value = _value_of(argument)
    return f"{argument.name} {value}" if value else argument.name


def _value_of(argument: Argument) -> str:
    kind = argument.hint
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        kind = next(option for option in typing.get_args(kind) if option is not type(None))
    if kind is bool:
        return ""
    if typing.get_origin(kind) is typing.Literal:
        return "|".join(typing.get_args(kind))
    value = _KINDS.get(getattr(kind, "__name__", ""), "TEXT")
    is_folder = _one_line(argument.parameter.help or "").lower().startswith(("a folder", "the folder"))
    return "FOLDER" if value == "FILE" and is_folder else value


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
    """Return the part of a docstring before its Args."""
    text = (docstring or "").partition("\n    Args:")[0]
    return "\n\n".join(_one_line(paragraph) for paragraph in text.split("\n\n") if paragraph.strip())


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _page(usage: str, about: str, sections: Sequence[tuple[str, list[tuple[str, str]]]]) -> str:
    width = min(_WIDTH_MAX, max(20, _terminal_width()))
    lines = [f"Usage: {usage}", ""]
    for paragraph in about.split("\n\n"):
        lines += [*_wrapped(paragraph, width), ""]
    widest = min(_LABEL_MAX, width // 2, max((len(label) for _, rows in sections for label, _ in rows), default=0))
    for title, rows in sections:
        if not rows:
            continue
        lines.append(f"{title}:")
        for label, text in rows:
            lines += _help_row(label, text, widest, width)
        lines.append("")
    return "\n".join(lines[:-1]) + "\n"


def _help_row(label: str, text: str, widest: int, width: int) -> list[str]:
    indent = " " * (widest + 4)
    wrapped = _wrapped(text, max(20, width - len(indent)))
    first = f"  {label}"
    if len(label) > widest:
        return [first, *(indent + line for line in wrapped)]
    return [f"{first.ljust(len(indent))}{wrapped[0]}".rstrip(), *(indent + line for line in wrapped[1:])]


def _wrapped(text: str, width: int) -> list[str]:
    """Break a text into lines; `textwrap` does the same, and takes longer to import than the page to write."""
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line]


def _terminal_width() -> int:
    """Return the columns of the terminal as `shutil` does, whose import takes longer than the page."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return int(given)
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or 80  # type: ignore[union-attr]
    except (AttributeError, ValueError, OSError):
        return 80


def completion(shell: Literal["bash", "zsh", "fish"]) -> int:
    """Print a script that completes commands and options in a shell. Print it again after an upgrade.

    bash: kohort completion bash > ~/.local/share/bash-completion/completions/kohort

    zsh: kohort completion zsh > _kohort, in a folder of $fpath

    fish: kohort completion fish > ~/.config/fish/completions/kohort.fish

    Args:
        shell: bash, zsh or fish.
    """
    print(command_tree().generate_completion(prog_name="kohort", shell=shell))
    return DONE
