"""`kohort log check`: what it prints, how it ends, and what readers get after a repair."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
import pytest
from tests.support.damaged import COUNT, PART, make_folder, offsets, place_of, put

from kohort import Broker, Consumer
from kohort.cli.app import run

Check = Callable[..., tuple[int, str, str]]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder that was closed in order."""
    return make_folder(tmp_path / "data")


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Check:
    """The command; how it ended, and what it said on both channels."""

    def command(*args: str | Path) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(["log", "check", *map(str, args)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return command


def test_a_sound_folder(check: Check, data: Path) -> None:
    size = sum(path.stat().st_size for path in data.glob("*/*.log"))
    assert check(data) == (0, "", f"2 partitions, {size} bytes: sound\n")
    code, out, err = check(data, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {
        "directory": str(data),
        "partitions": 2,
        "files": len(list(data.glob("*/*.log"))),
        "bytes": size,
        "sound": True,
        "damaged": [],
        "notes": [],
    }


def test_damage_is_named_with_what_is_lost(check: Check, data: Path) -> None:
    path, position = place_of(data, 510)
    put(path, position + 8, b"\xff")
    code, out, err = check(data)
    assert code == 1
    heading, row = out.splitlines()
    assert heading.split("  ")[0] == "PARTITION"
    assert row.split()[:2] == ["t-0", path.name]
    assert str(position) in row.split()
    assert row.split()[4:6] == ["510", "519"]
    assert "1 damaged, 10 offsets can't be read; --repair" in err
    code, out, _ = check(data, "--json")
    assert code == 1
    (damaged,) = json.loads(out)["damaged"]
    assert (damaged["first_offset"], damaged["next_offset"], damaged["lost"], damaged["repaired"]) == (
        510,
        520,
        10,
        False,
    )


def test_a_repaired_folder_is_read_on_by_all(check: Check, data: Path) -> None:
    path, position = place_of(data, 510)
    before = path.read_bytes()
    put(path, position + 8, b"\xff")
    code, out, err = check(data, "--repair")
    assert code == 0
    aside = path.with_name(f"{path.name}.{position}.damaged")
    assert aside.name in out
    assert "all was repaired" in err
    spoiled = before[position : position + 8] + b"\xff" + before[position + 9 :]
    assert spoiled.startswith(aside.read_bytes())
    assert check(data)[0] == 0
    left = [*range(510), *range(520, COUNT)]
    with Broker(data) as broker:
        with Consumer(broker.bootstrap_servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([PART])
            assert offsets(consumer, len(left)) == left
            consumer.seek(PART, 510)
            assert offsets(consumer, 1)[0] == 520
        theirs = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
        try:
            theirs.assign([confluent_kafka.TopicPartition("t", 0, 505)])
            seen: list[int] = []
            while len(seen) < 10:
                message = theirs.poll(10)
                assert message is not None
                assert message.error() is None
                seen.append(message.offset())
            assert seen == [*range(505, 510), *range(520, 525)]
        finally:
            theirs.close()


def test_what_can_not_be_repaired_is_said(check: Check, data: Path) -> None:
    path, _ = place_of(data, 1500)
    path.rename(data / "kept")
    path.mkdir()
    code, out, err = check(data, "--repair")
    assert code == 1
    assert "Is a directory" in out
    assert "0 repaired, 1 can't be repaired here" in err


def test_wrong_use(check: Check, data: Path, tmp_path: Path) -> None:
    with Broker(data):
        code, out, err = check(data, "--repair")
        assert (code, out) == (2, "")
        assert "is in use by a broker (process" in err
    assert check(tmp_path / "nothing")[0] == 2
    assert "no data folder" in check(tmp_path)[2]
    assert check(data)[0] == 0


def test_progress_is_for_terminals(data: Path) -> None:
    """On a terminal there is a bar, and a table; with the table what matters is whole."""
    path, position = place_of(data, 510)
    put(path, position + 8, b"\xff")
    reader, terminal = pty.openpty()
    command = [sys.executable, "-c", "from kohort.cli import main; main()", "log", "check", str(data)]
    environment = {**os.environ, "COLUMNS": "160", "TERM": "xterm"}
    with subprocess.Popen(command, stdout=terminal, stderr=terminal, env=environment) as process:
        os.close(terminal)
        said = b""
        try:
            while part := os.read(reader, 4096):
                said += part
        except OSError:  # the other end is closed
            pass
        assert process.wait(60) == 1
    os.close(reader)
    text = said.decode()
    assert "looking through" in text
    assert "Reason" in text
    assert "t-0" in text


def test_folder_is_checked_without_standard_error(data: Path) -> None:
    command = ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-m", "kohort", "log", "check", str(data), "--json"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0 and json.loads(done.stdout)["sound"]
