"""Records in by `kohort produce` and out by `kohort consume`, in every format."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow.ipc
import pyarrow.parquet
import pytest

from kohort import Admin, Broker
from kohort.cli.app import run
from kohort.client.admin.values import NewTopic


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    config = {"group.initial.rebalance.delay.ms": 0, "num.partitions": 2}
    with Broker(tmp_path_factory.mktemp("cli-records"), config) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def topic(servers: str) -> str:
    name = f"records-{uuid.uuid4().hex[:8]}"
    with Admin(servers) as admin:
        admin.create_topics([NewTopic(name)]).all()
    return name


@pytest.fixture
def kohort(
    servers: str, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, bytes, str]]:
    def command(*args: str, stdin: bytes = b"") -> tuple[int, bytes, str]:
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(stdin)))
        capfdbinary.readouterr()
        code = run([*args, "--bootstrap-server", servers])
        captured = capfdbinary.readouterr()
        return code, captured.out, captured.err.decode()

    return command


Kohort = Callable[..., tuple[int, bytes, str]]
ALL = ("--from-beginning", "--until-end")


def test_text_in_and_out(kohort: Kohort, topic: str) -> None:
    code, _, told = kohort("produce", topic, "--key-separator", ":", stdin=b"a:one\nb:two\nc:three\n")
    assert code == 0
    assert "3 records" in told
    code, out, _ = kohort("consume", topic, *ALL, "--print-key")
    assert code == 0
    assert sorted(out.splitlines()) == [b"a\tone", b"b\ttwo", b"c\tthree"]


def test_json_round_trip(kohort: Kohort, topic: str) -> None:
    records = [
        {"key": "k", "value": "text", "headers": [{"key": "h", "value": "x"}]},
        {"key": None, "value": {"base64": "//79"}},
        {"value": {"nested": [1, 2]}},
        {"key": "gone", "value": None},
    ]
    lines = b"".join(json.dumps(record).encode() + b"\n" for record in records)
    assert kohort("produce", topic, "--format", "json", "--compression", "zstd", stdin=lines)[0] == 0
    _, out, _ = kohort("consume", topic, *ALL, "--format", "json")
    rows = [json.loads(line) for line in out.splitlines()]
    by_key = {row["key"]: row for row in rows if row["key"]}
    assert by_key["k"]["value"] == "text"
    assert by_key["k"]["headers"] == [{"key": "h", "value": "x"}]
    assert by_key["gone"]["value"] is None
    assert {"base64": "//79"} in [row["value"] for row in rows]
    assert '{"nested":[1,2]}' in [row["value"] for row in rows]


def test_columns_out(kohort: Kohort, topic: str, tmp_path: Path) -> None:
    source = tmp_path / "lines.txt"
    source.write_bytes(b"".join(b"value %d\n" % number for number in range(2000)))
    assert kohort("produce", topic, str(source))[0] == 0
    file = tmp_path / "out.parquet"
    assert kohort("consume", topic, *ALL, "--format", "parquet", "--output", str(file))[0] == 0
    table = pyarrow.parquet.read_table(file)
    assert sorted(table.column("value").to_pylist()) == sorted(source.read_bytes().splitlines())
    _, out, _ = kohort("consume", topic, *ALL, "--format", "arrow")
    assert pyarrow.ipc.open_stream(out).read_all().num_rows == 2000


def test_nothing_there_is_a_file_without_rows(kohort: Kohort, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "empty.parquet"
    stop = ("--from-beginning", "--idle-timeout", "300")
    assert kohort("consume", topic, *stop, "--format", "parquet", "--output", str(file))[0] == 0
    assert pyarrow.parquet.read_table(file).num_rows == 0


def test_group_goes_on_where_it_stopped(kohort: Kohort, topic: str) -> None:
    kohort("produce", topic, "--partition", "0", stdin=b"1\n2\n3\n4\n5\n")
    group = ("--group", f"{topic}-group", "--from-beginning")
    assert kohort("consume", topic, *group, "--max-messages", "2")[1] == b"1\n2\n"
    assert kohort("consume", topic, *group, "--until-end")[1] == b"3\n4\n5\n"


def test_unknown_topic_is_told(kohort: Kohort) -> None:
    code, _, told = kohort("consume", "never-made")
    assert code == 1
    assert "never-made" in told


def test_bad_lines_are_told(kohort: Kohort, topic: str) -> None:
    code, _, told = kohort("produce", topic, "--format", "json", stdin=b'{"value": "ok"}\nnonsense\n')
    assert code == 1
    assert "line 2" in told
    code, _, told = kohort("produce", topic, "--key-separator", ":", stdin=b"no separator\n")
    assert code == 1
    assert "line 1" in told


def test_no_lines_are_no_records(kohort: Kohort, topic: str) -> None:
    for format in ("text", "json"):
        code, out, told = kohort("produce", topic, "--format", format, stdin=b"")
        assert (code, out, told) == (0, b"", "0 records\n")


def test_json_is_a_format_of_records_too(kohort: Kohort, topic: str) -> None:
    kohort("produce", topic, stdin=b"one\n")
    code, out, _ = kohort("consume", topic, *ALL, "--json")
    assert (code, json.loads(out)["value"]) == (0, "one")
    assert kohort("consume", topic, *ALL, "--json", "--format", "json")[1] == out
