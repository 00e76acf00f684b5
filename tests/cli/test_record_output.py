"""`kohort consume --group` commits what it has written whole, however its output takes bytes and however it ends."""

from __future__ import annotations

import fcntl
import io
import os
import signal
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest
from tests.cli.running import committed, fill
from tests.cli.test_output import on_terminal
from tests.support.processes import KOHORT
from tests.support.waiting import until

from kohort import Admin, Broker, Producer, TopicPartition
from kohort.cli.whole_writes import CompleteWrites, with_complete_writes
from kohort.client.admin.values import NewTopic
from kohort.client.offsets import OffsetAndMetadata

RECORDS = 4_000
VALUE_BYTES = 400
PIPE_BYTES = 4096
STREAMS = ("text", "json", "arrow")
"""Formats that can be read as far as they were written."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Broker(tmp_path_factory.mktemp("output"), {"group.initial.rebalance.delay.ms": 0}) as broker:
        yield broker.bootstrap_servers


@pytest.fixture(scope="module")
def topic(servers: str) -> str:
    """A topic of one partition with more records than a pipe or one fetch holds."""
    name = "many"
    with Admin(servers) as admin:
        admin.create_topics([NewTopic(name, 1)]).all()
    with Producer(servers) as producer:
        for number in range(RECORDS):
            producer.send(name, b"%06d" % number + b"v" * VALUE_BYTES, partition=0)
    return name


class Consuming:
    """`kohort consume --group` as a process of its own.

    Args:
        servers: where.
        topic: what it reads.
        format: in which format it writes.
        unbuffered: whether PYTHONUNBUFFERED is set, as in container images.
        stdout: where standard output goes; None: into a small pipe, which `out` reads.
        more: further arguments.
    """

    def __init__(
        self, servers: str, topic: str, format: str, unbuffered: bool, stdout: IO[bytes] | None = None, *more: str
    ) -> None:
        self.servers, self.topic, self.format = servers, topic, format
        self.group = f"g-{uuid.uuid4().hex[:8]}"
        env = {**os.environ, "PYTHONUNBUFFERED": "1" if unbuffered else ""}
        where = ("--bootstrap-server", servers, "--group", self.group, "--from-beginning", "--format", format)
        self.process = subprocess.Popen(
            [*KOHORT, "consume", topic, *where, *more],
            stdout=subprocess.PIPE if stdout is None else stdout,
            stderr=subprocess.PIPE,
            env=env,
            bufsize=0,
        )
        if self.process.stdout is not None:
            fcntl.fcntl(self.process.stdout, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    @property
    def out(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def end(self) -> tuple[int, str]:
        """Wait for its end; the exit code, and what it said."""
        _, reported = self.process.communicate(timeout=60)
        return self.process.returncode, reported.decode()

    def committed(self) -> int:
        """The offset that its group has committed; 0 without one."""
        return committed(self.servers, self.group).get(TopicPartition(self.topic, 0), 0)

    def whole(self, data: bytes) -> int:
        """How many records can be read back from what it wrote, in order and none of them twice."""
        values = read_back(self.format, data)
        assert [int(value[:6]) for value in values] == list(range(len(values)))
        assert all(len(value) == 6 + VALUE_BYTES for value in values)
        return len(values)


def read_back(format: str, data: bytes) -> list[bytes]:
    """The values of all records that are there whole."""
    if format == "text":
        return data.split(b"\n")[:-1]
    if format == "json":
        import json

        return [json.loads(line)["value"].encode() for line in data.split(b"\n")[:-1]]
    values: list[bytes] = []
    if format == "arrow":
        try:
            with pyarrow.ipc.open_stream(io.BytesIO(data)) as reader:
                for batch in reader:
                    values += batch.column("value").to_pylist()
        except (pa.ArrowInvalid, OSError):  # it breaks off here
            pass
        return values
    try:
        return list(pyarrow.parquet.read_table(io.BytesIO(data)).column("value").to_pylist())
    except pa.ArrowInvalid:  # no footer: nothing can be read
        return []


@pytest.mark.parametrize(("format", "unbuffered"), [(format, True) for format in STREAMS] + [("text", False)])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_signal_while_a_pipe_is_full_loses_nothing(
    servers: str, topic: str, format: str, unbuffered: bool, number: signal.Signals
) -> None:
    consuming = Consuming(servers, topic, format, unbuffered)
    data = consuming.out.read(VALUE_BYTES * 20)
    consuming.process.send_signal(number)
    while more := consuming.out.read(3000):
        data += more
    code, reported = consuming.end()
    if number is signal.SIGKILL:
        assert consuming.committed() <= consuming.whole(data)
    else:
        assert code == 0, reported
        assert 0 < consuming.committed() == consuming.whole(data)


@pytest.mark.parametrize(("format", "unbuffered"), [(format, True) for format in STREAMS] + [("text", False)])
def test_reader_that_goes_away_has_had_what_is_committed(
    servers: str, topic: str, format: str, unbuffered: bool
) -> None:
    consuming = Consuming(servers, topic, format, unbuffered)
    data = b""
    while len(data) < VALUE_BYTES * 20:
        data += consuming.out.read(1000)
    consuming.out.close()
    assert consuming.process.wait(60) == 141
    assert consuming.process.stderr is not None
    assert consuming.process.stderr.read() == b""
    consuming.process.stderr.close()
    assert consuming.committed() <= (len(data) + PIPE_BYTES) // VALUE_BYTES


TO_FILES = [("text", False), *((format, True) for format in (*STREAMS, "parquet"))]


@pytest.mark.parametrize(("format", "named"), TO_FILES)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, None])
def test_file_holds_what_is_committed(
    servers: str, topic: str, format: str, named: bool, number: signal.Signals | None, tmp_path: Path
) -> None:
    """By --output or by the shell's redirection; None: it ends by itself."""
    file = tmp_path / "out"
    file.touch()
    stop = ("--until-end",) if number is None else ()
    with file.open("wb") as redirected:
        consuming = Consuming(
            servers, topic, format, True, redirected, *(("--output", str(file)) if named else ()), *stop
        )
        if number is not None:
            until(lambda: file.stat().st_size > VALUE_BYTES, "records in the file")
            consuming.process.send_signal(number)
        code, reported = consuming.end()
    whole = consuming.whole(file.read_bytes())
    if number is signal.SIGKILL:
        assert consuming.committed() <= whole
        return
    assert code == 0, reported
    assert 0 < consuming.committed() == whole
    assert number is not None or whole == RECORDS


@pytest.mark.parametrize(("format", "named"), TO_FILES)
def test_full_disk_is_an_error_and_commits_nothing(servers: str, topic: str, format: str, named: bool) -> None:
    more = ("--output", "/dev/full") if named else ()
    with open("/dev/full", "wb") as full:
        consuming = Consuming(servers, topic, format, True, full, *more, "--until-end")
        code, reported = consuming.end()
    assert code == 1
    assert reported.splitlines() == ["kohort: [Errno 28] No space left on device"]
    assert consuming.committed() == 0


def test_second_signal_ends_a_command_whose_reader_takes_nothing(servers: str, topic: str) -> None:
    consuming = Consuming(servers, topic, "text", True)
    consuming.out.read(1)

    def signalled_to_its_end() -> bool:
        """Signals of one number that come at once are one signal, so that more are sent."""
        consuming.process.send_signal(signal.SIGTERM)
        return consuming.process.poll() is not None

    until(signalled_to_its_end, "a later signal ends it")
    assert consuming.end()[0] in (130, -signal.SIGTERM)
    assert consuming.committed() == 0


def test_write_waits_where_another_process_made_the_pipe_non_blocking() -> None:
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    out, data = CompleteWrites(write_end), os.urandom(1_000_000)
    got = bytearray()

    def read() -> None:
        while more := os.read(read_end, 10_000):
            got.extend(more)

    reader = threading.Thread(target=read)
    reader.start()
    assert out.write(data) == len(data)
    os.close(write_end)
    reader.join()
    os.close(read_end)
    assert got == data


@pytest.mark.parametrize("buffering", [0, -1])
def test_stream_with_whole_writes_is_as_buffered_as_before(buffering: int, tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb", buffering=buffering) as binary:
        before = io.TextIOWrapper(binary, encoding="utf-8", write_through=not buffering)
        stream = with_complete_writes(before)
        stream.write("text\n")
        assert (tmp_path / "out").read_bytes() == (b"text\n" if buffering == 0 else b"")
        stream.flush()
        assert (tmp_path / "out").read_bytes() == b"text\n"


@pytest.mark.parametrize("command", [("topics", "list"), ("topics", "list", "--json")])
def test_table_that_does_not_fit_on_the_disk_is_one_error(servers: str, topic: str, command: tuple[str, ...]) -> None:
    for unbuffered in ("", "1"):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                [*KOHORT, *command, "--bootstrap-server", servers],
                stdout=full,
                stderr=subprocess.PIPE,
                env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
                check=False,
            )
        assert (done.returncode, done.stderr) == (1, b"kohort: [Errno 28] No space left on device\n")


def test_plan_that_does_not_fit_on_the_disk_changes_nothing(servers: str, topic: str) -> None:
    with Admin(servers) as admin:
        admin.alter_consumer_group_offsets("planned", {TopicPartition(topic, 0): OffsetAndMetadata(7)}).all()
    args = ("groups", "reset-offsets", "planned", "--topic", topic, "--to-earliest", "--export", "--execute")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*KOHORT, *args, "--bootstrap-server", servers], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr) == (1, b"kohort: [Errno 28] No space left on device\n")
    assert committed(servers, "planned") == {TopicPartition(topic, 0): 7}


@pytest.fixture
def drawing(servers: str) -> str:
    """A topic with a record that would draw on a terminal."""
    name = f"drawing-{uuid.uuid4().hex[:6]}"
    fill(servers, name, 0)
    with Producer(servers) as producer:
        value = "\x1b[2Jtwo\nlines\t\x07\x9b31m\u202eé".encode() + b"\xff"
        producer.send(name, value, key=b"\x1b]0;key\x07", headers=[("\x1b[1m", b"\x1b[3m")], partition=0)
    return name


Terminal = Callable[..., bytes]


@pytest.mark.parametrize("format", ["text", "json"])
def test_values_are_escaped_on_a_terminal_and_raw_elsewhere(servers: str, drawing: str, format: str) -> None:
    where = ("--bootstrap-server", servers, "--from-beginning", "--until-end", "--format", format)
    args = ("consume", drawing, *where, *(("--print-key",) if format == "text" else ()))
    shown = on_terminal(*args, columns=200)
    assert not [char for char in shown.decode() if not char.isprintable() and char not in "\r\n\t"]
    piped = subprocess.run([*KOHORT, *args], capture_output=True, check=True).stdout
    raw = on_terminal(*args, "--no-escape", columns=200).replace(b"\r\n", b"\n")
    assert raw == piped
    escaped = subprocess.run([*KOHORT, *args, "--escape"], capture_output=True, check=True).stdout
    assert escaped == shown.replace(b"\r\n", b"\n")
    if format == "text":
        assert piped.startswith(b"\x1b]0;key\x07\t\x1b[2Jtwo\nlines\t\x07")
        assert escaped.decode() == "\\x1b]0;key\\x07\t\\x1b[2Jtwo\nlines\t\\x07\\x9b31m\\u202eé\\xff\n"
    else:
        import json

        assert json.loads(escaped) == json.loads(piped)
