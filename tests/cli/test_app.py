"""How commands end: exit codes, closed pipes, `python -m kohort`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.running import fill
from tests.support.processes import KOHORT
from tests.support.waiting import until

from kohort import Broker, __version__

PIPE_CLOSED = 128 + signal.SIGPIPE


def test_python_m_kohort_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "kohort", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{__version__}\n", "")
    wrong = subprocess.run([sys.executable, "-m", "kohort", "nonsense"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("kohort: ")


@pytest.fixture
def topic(our_broker: Broker) -> str:
    fill(our_broker.bootstrap_servers, "piped", 5)
    return "piped"


def start(*args: str, **where: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*KOHORT, *args], stdin=subprocess.DEVNULL, **where)


@pytest.mark.parametrize("args", [("--help",), ("topics", "--help"), ("topics", "list"), ("topics", "list", "--json")])
@pytest.mark.parametrize("both", [False, True], ids=["stdout", "stdout-and-stderr"])
def test_a_closed_pipe_ends_a_command_quietly(
    our_broker: Broker, topic: str, args: tuple[str, ...], both: bool
) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    given = (*args, "--bootstrap-server", our_broker.bootstrap_servers)
    process = start(*given, stdout=write_end, stderr=write_end if both else subprocess.PIPE)
    os.close(write_end)
    _, reported = process.communicate(timeout=60)
    assert process.returncode == PIPE_CLOSED
    assert both or reported == b""


def test_a_complaint_into_a_closed_pipe_keeps_its_code() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    process = start("topics", "create", stdout=write_end, stderr=write_end)
    os.close(write_end)
    assert process.wait(60) == 2


@pytest.mark.parametrize("format", ["text", "json", "arrow"])
def test_a_closed_pipe_ends_consume_also_while_nothing_comes(our_broker: Broker, topic: str, format: str) -> None:
    """`kohort consume | head -1`: the reader has gone, and no record comes that would show it."""
    servers = our_broker.bootstrap_servers
    args = ("consume", topic, "--from-beginning", "--format", format, "--bootstrap-server", servers)
    process = start(*args, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.read(1)
    process.stdout.close()
    assert process.wait(60) == PIPE_CLOSED
    assert process.stderr.read() == b""
    process.stderr.close()


def test_what_was_not_read_is_not_committed(our_broker: Broker, topic: str) -> None:
    """A member whose reader goes away leaves its group, and commits nothing of what it could not write."""
    from kohort import Admin

    servers = our_broker.bootstrap_servers
    read_end, write_end = os.pipe()
    os.close(read_end)
    group = f"{topic}-readers"
    args = ("consume", topic, "--group", group, "--from-beginning", "--bootstrap-server", servers)
    process = start(*args, stdout=write_end, stderr=subprocess.DEVNULL)
    os.close(write_end)
    assert process.wait(60) == PIPE_CLOSED
    with Admin(servers) as admin:
        until(lambda: admin.describe_consumer_groups([group]).result(group).state == "Empty", "it has left", 5)
        assert admin.list_consumer_group_offsets(group).all() == {}


@pytest.mark.parametrize(
    ("args", "code", "reported"),
    [
        (("groups", "reset-offsets", "g", "--from-file", "{missing}"), 1, "No such file"),
        (("groups", "reset-offsets", "g", "--from-file", "{folder}"), 1, "Is a directory"),
        (("produce", "t", "{missing}"), 1, "No such file"),
        (("consume", "t", "--output", "{folder}/none/out"), 1, "No such file"),
        (("topics", "list", "--command-config", "{missing}"), 1, "No such file"),
        (("broker", "--data", "{folder}/data", "--config", "{missing}"), 1, "No such file"),
        (("consume", "t", "--json", "--format", "parquet", "--output", "{folder}/x"), 2, "--json"),
        (("groups", "reset-offsets", "g", "--topic", "t", "--to-latest", "--export", "--json"), 2, "--json"),
        (("groups", "reset-offsets", "g", "--topic", "t", "--to-offset", "-5"), 2, "--to-offset -5"),
        (("topics", "list", "--timeout", "-1"), 2, "timeout"),
        (("groups", "watch", "g", "--interval", "0"), 2, "--interval"),
        (("consume", "t", "--max-messages", "-1"), 2, "--max-messages"),
        (("topics", "list", "--bootstrap-server", "nowhere"), 2, "'nowhere' is no HOST:PORT: write nowhere:9092"),
        (
            ("topics", "list", "--bootstrap-server", "h:99999"),
            2,
            "'h:99999' is no HOST:PORT: ports are from 1 to 65535 [",
        ),
        (("topics", "list", "--bootstrap-server", "h:\u00b2"), 2, "is no HOST:PORT ["),
        (("broker", "--listen", "127.0.0.1:80000"), 2, "not '127.0.0.1:80000' (ports are from 0 to 65535)"),
        (("region", "serve"), 2, "NAME is missing"),
        (("produce",), 2, "TOPIC is missing"),
        (("groups", "history"), 2, "GROUP is missing"),
        (("exporter", "--tls", "{keyless}"), 2, "the file needs a private key"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_an_error_of_one_line(
    our_broker: Broker,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    args: tuple[str, ...],
    code: int,
    reported: str,
) -> None:
    from kohort.cli.app import run

    keyless = tmp_path / "keyless.pem"
    keyless.write_text("no key is here\n")
    given = [arg.format(missing=tmp_path / "missing", folder=tmp_path, keyless=keyless) for arg in args]
    if "--bootstrap-server" not in given and given[0] != "broker" and "history" not in given:
        given += ["--bootstrap-server", our_broker.bootstrap_servers]
    fill(our_broker.bootstrap_servers, "t", 1)
    assert run(given) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert reported in captured.err
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("kohort: ")
