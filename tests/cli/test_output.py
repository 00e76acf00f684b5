"""One name for a thing in tables and JSON; cells that others' names and bytes can't break."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import uuid
from collections.abc import Iterator

import pytest
from tests.cli.running import Kohort, fill
from tests.support.processes import KOHORT
from tests.support.waiting import until
from tools import command_docs

from kohort import Admin, Broker, Consumer, TopicPartition
from kohort.cli.output import NAMES, fitting_columns, print_rows
from kohort.client.offsets import OffsetAndMetadata

CONSUMED = {"key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"}
"""What records are called, which is what Spark calls it."""


@pytest.fixture
def busy(servers: str, topic: str, group: str) -> Iterator[str]:
    """A group with a member and committed offsets."""
    name = f"{topic}-busy"
    fill(servers, topic, 3)
    with Consumer(servers, group_id=name, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        consumer.poll(20_000)
        consumer.commit()
        yield name


def test_tables_and_json_have_one_name_for_a_thing(kohort: Kohort, topic: str, group: str, busy: str) -> None:
    """Every command that prints rows, those that change something last."""
    again, copy, second = f"{group}-again", f"{group}-copy", f"{topic}-second"
    kohort("groups", "clone", group, again, "--execute")
    alike = [
        ("topics", "list"), ("topics", "list", "--internal"),
        ("topics", "alter", topic, "--config", "retention.ms=1000000"),
        ("groups", "list"), ("groups", "members", busy), ("groups", "lag", busy), ("doctor",),
        ("groups", "reset-offsets", group, "--topic", f"{topic}:0", "--to-offset", "9"),
        ("groups", "reset-offsets", group, "--topic", f"{topic}:0", "--to-latest", "--execute"),
        ("groups", "clone", group, copy), ("groups", "clone", group, copy, "--execute"),
        ("groups", "delete-offsets", group, "--topic", f"{topic}:0"), ("groups", "delete", group),
    ]  # fmt: skip
    for command in alike:
        check_names(command, kohort(*command).out, kohort(*command, "--json").json)
    once = [
        (("topics", "create"), second, f"{second}-2"), (("topics", "delete"), second, f"{second}-2"),
        (("groups", "delete-offsets", "--topic", f"{topic}:0", "--execute"), group, again),
        (("groups", "delete", "--execute"), group, again),
    ]  # fmt: skip
    for command, of_table, of_json in once:
        check_names(command, kohort(*command, of_table).out, kohort(*command, of_json, "--json").json)


def check_names(command: tuple[str, ...], table: str, rows: list[dict[str, object]]) -> None:
    """Headings are keys of the rows, and all keys are names that are written down."""
    assert rows, command
    keys = set(rows[0])
    assert keys <= set(NAMES), command
    headings = [heading.lower().replace("-", "_") for heading in table.splitlines()[0].split()]
    assert headings, command
    assert set(headings) <= keys, command


def test_rows_inside_rows_have_the_same_names(kohort: Kohort, topic: str, group: str, busy: str) -> None:
    (described,) = kohort("groups", "describe", busy, "--json").json
    assert set(described) | set(described["partitions"][0]) <= set(NAMES)
    heading = kohort("groups", "describe", busy).out.splitlines()[1]
    assert {word.lower().replace("-", "_") for word in heading.split()} <= set(described["partitions"][0])
    (described,) = kohort("topics", "describe", topic, "--json").json
    assert set(described) | set(described["partitions"][0]) <= set(NAMES)
    heading = kohort("topics", "describe", topic).out.splitlines()[1]
    assert {word.lower().replace("-", "_") for word in heading.split()} <= set(described["partitions"][0])
    look = kohort("groups", "watch", busy, "--json", "--timeout", "0").json
    assert set(look["groups"][0]["partitions"][0]) <= set(NAMES)


def test_no_name_is_said_that_nothing_has() -> None:
    page = command_docs.page()
    assert all(f"| `{name}` |" in page for name in NAMES)


@pytest.fixture
def odd_group(our_broker: Broker) -> str:
    """A group whose name, and whose commit's metadata, would draw on the terminal."""
    servers, topic = our_broker.bootstrap_servers, f"odd-{uuid.uuid4().hex[:6]}"
    fill(servers, topic, 1)
    group = f"{topic}\x1b[2J\nsecond\tline"
    with Admin(servers) as admin:
        at = OffsetAndMetadata(1, "\x1b]0;title\x07" + "m" * 4000)
        admin.alter_consumer_group_offsets(group, {TopicPartition(topic, 0): at}).all()
    return group


@pytest.mark.parametrize("command", [("list",), ("lag", "--all-groups"), ("describe", "--all-groups")])
def test_control_characters_of_others_stay_out_of_tables(
    our_broker: Broker, odd_group: str, command: tuple[str, ...]
) -> None:
    where = ("--bootstrap-server", our_broker.bootstrap_servers)
    shown = on_terminal("groups", *command, *where, columns=60)
    piped = subprocess.run([*KOHORT, "groups", *command, *where], capture_output=True, check=True).stdout
    for output in (shown, piped):
        assert b"\x1b[2J" not in output
        assert b"\x1b]0;" not in output
    assert rb"\x1b[2J\nsecond\tline" in piped


@pytest.mark.parametrize("columns", [20, 40, 200])
def test_a_narrow_terminal_loses_nothing(our_broker: Broker, odd_group: str, columns: int) -> None:
    where = ("--bootstrap-server", our_broker.bootstrap_servers)
    with Consumer(our_broker.bootstrap_servers, group_id=f"narrow-{columns}") as consumer:
        consumer.subscribe([odd_group.partition("\x1b")[0]])
        until(lambda: consumer.poll(200) is not None and consumer.assignment(), "a member")
        shown = on_terminal("groups", "list", *where, columns=columns, no_color=True).decode()
    assert re.search(r"\x1b\[[349]", shown) is None
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert max(map(len, lines)) <= columns
    text = "".join("".join(lines).split())
    for word in ("Coordinator", "Protocol", "consumer", "Empty"):
        assert word in text


def on_terminal(*args: str, columns: int, no_color: bool = False) -> bytes:
    """Return a command's output when standard output is a terminal."""
    master, slave = pty.openpty()
    env = {
        **os.environ,
        "TERM": "xterm",
        "COLUMNS": str(columns),
        "LINES": "40",
        **({"NO_COLOR": "1"} if no_color else {}),
    }
    child = subprocess.Popen([*KOHORT, *args], stdin=slave, stdout=slave, stderr=subprocess.PIPE, env=env)
    os.close(slave)
    shown = b""
    while True:
        try:
            more = os.read(master, 100_000)
        except OSError:  # the terminal's other side is closed
            break
        if not more:
            break
        shown += more
    assert child.stderr is not None
    child.stderr.close()
    child.wait(30)
    os.close(master)
    return shown


def test_a_question_that_nobody_answers_is_a_no(our_broker: Broker, odd_group: str) -> None:
    """On a terminal without --execute the command asks, on standard error; the end of the input is no yes."""
    for answer, code in ((b"\x04", 1), (b"n\n", 1), (b"y\n", 0)):
        master, slave = pty.openpty()
        args = ("groups", "delete", odd_group, "--bootstrap-server", our_broker.bootstrap_servers)
        child = subprocess.Popen([*KOHORT, *args], stdin=slave, stdout=slave, stderr=subprocess.PIPE)
        os.close(slave)
        assert child.stderr is not None
        asked = b""
        while not asked.endswith(b"[y/N] "):
            asked += child.stderr.read(1)
        os.write(master, answer)
        reported = child.stderr.read()
        assert child.wait(30) == code
        assert b"Traceback" not in reported
        child.stderr.close()
        os.close(master)


def test_bytes_in_a_cell_are_readable(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(
        [{"key": b"\xff\x00a", "configs": {"a": None, "b": 1}, "lag": 0}], ("key", "configs", "lag"), as_json=False
    )
    assert capsys.readouterr().out.splitlines()[1].split() == ["\\xff\\x00a", "a=default,b=1", "0"]


@pytest.mark.parametrize(
    ("width", "left"),
    [(40, ["topic", "lag", "host"]), (20, ["topic", "lag"]), (10, ["topic"])],
    ids=["wide", "narrow", "too-narrow"],
)
def test_a_narrow_table_leaves_expendable_columns_out(width: int, left: list[str]) -> None:
    rows = [{"topic": "orders-of-1", "lag": 5, "host": "10.0.0.1", "error": None}]
    assert fitting_columns(rows, ("topic", "lag", "host", "error"), ("host", "lag"), width) == left
