"""The tree of commands, and how a command ends: 0 done, 1 refused or failed, 2 wrong use.

A family's module is imported when one of its commands is asked for, so that `kohort --help` answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from cyclopts import App, CycloptsError

from kohort.errors import KafkaError

DONE, FAILED, WRONG_USE, INTERRUPTED = 0, 1, 2, 130

app = App(
    name="kohort",
    help="Kafka consumer groups, whole: a broker, records in and out, topics, groups and their offsets.",
    version=lambda: version("kohort"),
    version_flags=["--version"],
    result_action="return_value",
)

_COMMANDS = {
    "demo": ("kohort.cli.demo:demo", "The main job, start to finish: flights through a group of Spark queries."),
    "broker": ("kohort.cli.broker:broker", "Serve as a Kafka broker with real consumer groups."),
    "topics": ("kohort.cli.topics:app", "List, describe, create, delete and alter topics."),
    "produce": ("kohort.cli.produce:produce", "Write lines to a topic."),
    "consume": ("kohort.cli.consume:consume", "Read records of a topic."),
    "groups": ("kohort.cli.groups:app", "List and describe groups, their lag, and change their offsets."),
    "log": ("kohort.cli.logs:app", "Look at what a stopped broker keeps on the disk."),
    "zookeeper": ("kohort.cli.zookeeper:zookeeper", "A real ZooKeeper for trying things."),
    "doctor": ("kohort.cli.doctor:doctor", "Say what is missing on this machine, and how to get it."),
}
for _name, (_target, _help) in _COMMANDS.items():
    app.command(_target, name=_name, help=_help)


class UsageError(Exception):
    """The command was used wrongly; the text says how."""


def run(tokens: Sequence[str]) -> int:
    """Runs a command; whatever goes wrong becomes one line on standard error and the exit code.

    Args:
        tokens: the arguments after the program's name.

    Returns:
        the exit code.
    """
    try:
        result = app(list(tokens), exit_on_error=False, print_error=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else DONE
    except CycloptsError as error:
        return _complain(str(error), WRONG_USE, hint=f"see kohort {_command_of(tokens)}--help")
    except UsageError as error:
        return _complain(str(error), WRONG_USE)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KafkaError as error:
        return _complain(str(error), FAILED)
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return _complain(what, FAILED)


def _complain(text: str, code: int, hint: str | None = None) -> int:
    line = " ".join(text.split())
    print(f"kohort: {line}" + (f" ({hint})" if hint else ""), file=sys.stderr)
    return code


def _command_of(tokens: Sequence[str]) -> str:
    """The command's own words among the arguments, each with a blank after it."""
    words: list[str] = []
    for token in tokens[:2]:
        if token.startswith("-") or (not words and token not in _COMMANDS):
            break
        if words and words[0] not in ("topics", "groups", "log"):
            break
        words.append(token)
    return "".join(f"{word} " for word in words)
