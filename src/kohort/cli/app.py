"""The tree of commands, and how a command ends: 0 done, 1 refused or failed, 2 wrong use.

What reads the arguments is imported when a command is asked for, and a family's module with it, so that `kohort --help`
answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, TextIO

from kohort import __version__
from kohort.errors import KafkaError

if TYPE_CHECKING:  # it takes longer to import than all that help needs
    from cyclopts import App

DONE, FAILED, WRONG_USE, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 130, 141
"""130 and 141 are what a shell says of programs that SIGINT and SIGPIPE end."""

ABOUT = "Kafka consumer groups, whole: a broker, records in and out, topics, groups and their offsets."
COMMANDS = {
    "demo": ("kohort.cli.demo:demo", "The main job, start to finish: flights through a group of Spark queries."),
    "broker": ("kohort.cli.broker:broker", "Serve as a Kafka broker with real consumer groups."),
    "coordinator": ("kohort.cli.coordinator:app", "Serve consumer groups over an existing Apache Kafka cluster."),
    "topics": ("kohort.cli.topics:app", "List, describe, create, delete and alter topics."),
    "produce": ("kohort.cli.produce:produce", "Write lines to a topic."),
    "consume": ("kohort.cli.consume:consume", "Read records of a topic."),
    "groups": ("kohort.cli.groups:app", "List and describe groups, their lag, and change their offsets."),
    "region": ("kohort.cli.region:app", "Consistent regions: how they are, and what a person can have them do."),
    "spark": ("kohort.cli.spark:app", "Checkpoints of Spark queries: show them, move them between two sources."),
    "log": ("kohort.cli.logs:app", "Look at what a stopped broker keeps on the disk."),
    "zookeeper": ("kohort.cli.zookeeper:zookeeper", "A real ZooKeeper for trying things."),
    "doctor": ("kohort.cli.doctor:doctor", "Say what is missing on this machine, and how to get it."),
}
"""Command -> where it is, and what it is for. What is called `app` there has commands of its own."""
HELP, VERSION = ("--help", "-h"), "--version"


class UsageError(Exception):
    """The command was used wrongly; the text says how."""


@cache
def tree() -> App:
    """Every command; a command's own module is imported when it is asked for."""
    from cyclopts import App

    app = App(name="kohort", help=ABOUT, version=__version__, version_flags=[VERSION], result_action="return_value")
    for name, (target, about) in COMMANDS.items():
        app.command(target, name=name, help=about)
    return app


def run(tokens: Sequence[str]) -> int:
    """Runs a command; whatever goes wrong becomes one line on standard error and the exit code.

    Args:
        tokens: the arguments after the program's name.

    Returns:
        the exit code.
    """
    try:
        code = _run(list(tokens))
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
        return _complain(str(error), FAILED)
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        _drop_output()
        return _complain(what, FAILED)


def _run(tokens: list[str]) -> int:
    if tokens == [VERSION]:
        print(__version__)
        return DONE
    options = tokens[: tokens.index("--")] if "--" in tokens else tokens
    if _is_family(tokens) or any(word in options for word in HELP):
        from kohort.cli.help import help_page

        print(help_page(tokens), end="")
        return DONE
    from cyclopts import CycloptsError

    try:
        result = tree()(tokens, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        return _complain(str(error), WRONG_USE, hint=f"see kohort {_command_of(tokens)}--help")
    return result if isinstance(result, int) else DONE


def _is_family(tokens: Sequence[str]) -> bool:
    """Whether the arguments name no command but only those that have some."""
    if not tokens:
        return True
    if not COMMANDS.get(tokens[0], ("",))[0].endswith(":app"):
        return False
    if len(tokens) == 1:
        return True
    app = tree()[tokens[0]]
    return len(tokens) == 2 and tokens[1] in app and app[tokens[1]].default_command is None


def _drop_output() -> None:
    """Send output that can't be written nowhere, so that the interpreter's end finds nothing to complain of."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        if _is_lost(stream):
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _is_lost(stream: TextIO) -> bool:
    """Whether its reader has gone or its disk is full."""
    try:
        stream.flush()
    except OSError:
        return True
    except (AttributeError, ValueError):  # none, or closed
        return False
    return False


def _complain(text: str, code: int, hint: str | None = None) -> int:
    from kohort.cli.output import printable

    line = printable(" ".join(text.split()))
    try:
        print(f"kohort: {line}" + (f" ({hint})" if hint else ""), file=sys.stderr, flush=True)
    except BrokenPipeError:
        _drop_output()
    return code


def _command_of(tokens: Sequence[str]) -> str:
    """The command's own words among the arguments, each with a blank after it."""
    words: list[str] = []
    for token in tokens[:2]:
        if token.startswith("-") or (not words and token not in COMMANDS):
            break
        if words and not COMMANDS[words[0]][0].endswith(":app"):
            break
        words.append(token)
    return "".join(f"{word} " for word in words)
