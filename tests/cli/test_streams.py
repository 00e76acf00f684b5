"""Standard streams that are closed, that are terminals, or whose encoding lacks characters."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.cli.running import committed, fill
from tests.support.processes import KOHORT

from kohort import Admin, Broker, NewTopic, TopicPartition
from kohort.cli.output import utc_text


@pytest.fixture
def group(our_broker: Broker) -> str:
    """A group whose name neither ASCII nor Latin-1 has, with offset 1 of a topic with two records."""
    topic = f"streams-{uuid.uuid4().hex[:6]}"
    fill(our_broker.bootstrap_servers, topic, 2)
    name = f"{topic}-größe-日本"
    with Admin(our_broker.bootstrap_servers) as admin:
        admin.alter_consumer_group_offsets(name, {TopicPartition(topic, 0): 1}).all()
    return name


def run_command(broker: Broker, *args: str, env: dict[str, str] | None = None, shell: str = "") -> Any:
    command = [*KOHORT, *args, "--bootstrap-server", broker.bootstrap_servers]
    around = ["sh", "-c", f'exec "$@" {shell}', "sh"] if shell else []
    return subprocess.run([*around, *command], capture_output=True, env={**os.environ, **(env or {})}, check=False)


ENCODINGS = [
    {"PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "latin-1"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
]


@pytest.mark.parametrize("env", ENCODINGS, ids=["ascii", "latin-1", "C locale"])
def test_names_are_written_as_escapes_where_the_encoding_lacks_them(
    our_broker: Broker, group: str, env: dict[str, str]
) -> None:
    topic = group.partition("-größe")[0]
    listed = run_command(our_broker, "groups", "list", env=env)
    assert listed.returncode == 0 and rb"\u65e5\u672c" in listed.stdout
    described = run_command(our_broker, "groups", "describe", group, env=env)
    assert described.returncode == 0 and rb"\u65e5\u672c" in described.stdout
    rows = json.loads(run_command(our_broker, "groups", "list", "--json", env=env).stdout)
    assert group in {row["group"] for row in rows}
    export = ("groups", "reset-offsets", group, "--all-topics", "--to-current", "--export")
    assert run_command(our_broker, *export, env=env).stdout.decode() == f"{topic},0,1\n"


def test_exported_offsets_are_utf_8_in_every_encoding(our_broker: Broker, group: str, tmp_path: Path) -> None:
    """The file can be read back: --from-file reads UTF-8."""
    file, env = tmp_path / "offsets.csv", {"PYTHONIOENCODING": "latin-1"}
    again = f"{group}-again"
    run_command(our_broker, "groups", "clone", group, again, "--execute")
    target = ("groups", "reset-offsets", group, again, "--all-topics", "--to-latest")
    file.write_bytes(run_command(our_broker, *target, "--export", env=env).stdout)
    done = run_command(our_broker, "groups", "reset-offsets", "--from-file", str(file), "--execute", env=env)
    assert done.returncode == 0
    assert set(committed(our_broker.bootstrap_servers, again).values()) == {2}


def test_argument_that_is_no_utf_8_is_a_wrong_use(our_broker: Broker) -> None:
    command = [*KOHORT, "groups", "describe", b"gr\xf6\xdfe", "--bootstrap-server", our_broker.bootstrap_servers]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 2 and b"are no UTF-8" in done.stderr and b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("groups", "list"),
        ("groups", "list", "--json"),
        ("groups", "watch", "--all-groups", "--timeout", "0"),
        ("consume", "without-output", "--until-end"),
    ],
    ids=" ".join,
)
def test_closed_standard_output_is_reported(our_broker: Broker, args: tuple[str, ...]) -> None:
    fill(our_broker.bootstrap_servers, "without-output", 1)
    done = run_command(our_broker, *args, shell=">&-")
    assert b"Traceback" not in done.stderr
    assert done.returncode in (1, 2) and b"there is no standard output" in done.stderr


def test_change_without_standard_output_is_made(our_broker: Broker, group: str) -> None:
    done = run_command(our_broker, "groups", "delete", group, "--execute", shell=">&-")
    assert (done.returncode, done.stderr) == (0, b"")


def test_closed_standard_input_is_reported(our_broker: Broker, group: str) -> None:
    done = run_command(our_broker, "produce", "t", shell="<&-")
    assert done.returncode == 2 and b"there is no standard input" in done.stderr
    done = run_command(our_broker, "groups", "delete", group, shell="<&-")
    assert done.returncode == 1 and b"this was a preview" in done.stderr


def test_closed_standard_error_sends_no_note_to_standard_output(our_broker: Broker) -> None:
    """Notes and errors stood between the records: print() takes standard output where standard error is missing."""
    topic = f"quiet-{uuid.uuid4().hex[:6]}"
    fill(our_broker.bootstrap_servers, topic, 2)
    read = run_command(our_broker, "consume", topic, "--from-beginning", "--until-end", "--json", shell="2>&-")
    assert read.returncode == 0
    assert [json.loads(line)["offset"] for line in read.stdout.splitlines()] == [0, 1]
    refused = run_command(our_broker, "groups", "list", "--state", "lazy", "--json", shell="2>&-")
    assert (refused.returncode, refused.stdout) == (2, b"")


@pytest.mark.parametrize("option", [(), ("--from-beginning",)], ids=["new records", "all records"])
def test_consumer_of_new_records_says_on_a_terminal_what_it_waits_for(
    our_broker: Broker, tmp_path: Path, option: tuple[str, ...]
) -> None:
    topic = f"hint-{uuid.uuid4().hex[:6]}"
    with Admin(our_broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(topic)]).all()
    master, slave = pty.openpty()
    command = [*KOHORT, "consume", topic, *option, "--bootstrap-server", our_broker.bootstrap_servers]
    command += ["--idle-timeout", "4000"]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=slave, check=True)
    os.close(slave)
    shown = os.read(master, 10_000)
    os.close(master)
    assert done.returncode == 0
    assert (b"--from-beginning" in shown) is not bool(option)


def test_time_after_the_year_9999_is_a_number() -> None:
    """Some producers take microseconds for milliseconds."""
    assert utc_text(1_795_867_523_000) == "2026-11-28T12:05:23.000+00:00"
    assert utc_text(1_795_867_523_000_000) == "1795867523000000 ms"
    assert utc_text(2**63 - 1) == f"{2**63 - 1} ms"
