"""Checkpoints with text of strangers: a file of any content costs its own query, and no other group."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from obstore.store import LocalStore
from tests.spark.test_checkpoint_lag import KAFKA, only, positions, read, refusal
from tests.spark.test_checkpoint_move import T0, T1, ours, write
from tests.support.waiting import LAST_RESORT, until

from kohort import Broker
from kohort.errors import CorruptDataError, RetriableError
from kohort.lag import LagReader
from kohort.lag.cluster_watch import ClusterWatch
from kohort.region.sinks.object_store import ObjectStore
from kohort.spark import checkpoint_lag
from kohort.spark.checkpoint_lag import SparkCheckpoints

pytestmark = LAST_RESORT
INFINITE = json.dumps(ours(1, {T0: (0, 2)})).replace('"end": 2', '"end": 1e999')
SECRET = "root:x:0:0"


def test_infinite_number_is_an_error_of_its_query(tmp_path: Path) -> None:
    assert "1e999" in INFINITE
    assert "no form that Spark writes" in refusal(write(tmp_path, {0: INFINITE}, 0))


def test_watch_reads_again_after_an_unexpected_error(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Any:
        raise OverflowError("cannot convert float infinity to integer")

    with Broker() as broker:
        reader = LagReader(broker.bootstrap_servers)
        reader.read_others = broken
        watch = ClusterWatch("c", reader, 0.05)
        try:
            until(lambda: watch.state.reads.get("failed", 0) >= 2, "the cluster is read again", 60)
            assert not watch.state.is_up
            assert "OverflowError" in watch.state.messages[0]
            reader.read_others = dict
            until(lambda: watch.state.is_up, "the cluster is read", 60)
        finally:
            watch.close()
    assert sum("Traceback" in (record.exc_text or "") for record in caplog.records) == 1


@pytest.mark.parametrize(
    ("offset", "words"),
    [
        ('{"t":{"0":1' + "0" * 400 + "}}", "an offset"),
        ('{"t":{"0":9223372036854775808}}', "an offset"),
        ('{"t":{"2147483648":1}}', "a partition"),
        ('{"\\ud800":{"0":1}}', "a topic"),
        ('{"a b":{"0":1}}', "a topic"),
        ('{"..":{"0":1}}', "a topic"),
        ('{"' + "t" * 250 + '":{"0":1}}', "a topic"),
        (json.dumps(ours(1, {T0: (0, -5)})), "an offset"),
        (json.dumps(ours(1, {T0: (0, 2)})).replace('"end": 2', '"end": 1' + "0" * 400), "an offset"),
        (json.dumps(ours(1, {T0: (0, 2)})).replace('"0":', '"-1":'), "a partition"),
    ],
)
def test_position_that_no_log_has_is_refused(tmp_path: Path, offset: str, words: str) -> None:
    found = only(write(tmp_path, {0: offset}, 0))
    assert isinstance(found, CorruptDataError)
    assert f"names {words}" in str(found)


def test_largest_position_is_taken(tmp_path: Path) -> None:
    batch, found = positions(only(write(tmp_path, {0: '{"t":{"2147483647":9223372036854775807}}'}, 0)))
    assert (batch, [*found.values()]) == (0, [2**63 - 1])


def test_group_and_batch_of_any_text_are_left_out(tmp_path: Path) -> None:
    folder = write(tmp_path, {0: ours(1, {T0: (0, 2)}, group="\ud800" * 9)}, 0)
    for name in ("9" * 40, "٣"):
        (folder / "commits" / name).write_text("v1\n{}")
    assert positions(only(folder)) == (0, {T0: 2})


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("{}\n" * 20_000, "more than 100 sources"),
        ("\n" * 20_000, "more than 100 sources"),
        (json.dumps({"t": dict.fromkeys(map(str, range(200_001)), 1)}), "more than 200000 partitions"),
        ("-" * ((8 << 20) + 1), "more than 8388608 bytes"),
    ],
)
def test_query_has_bounded_sources_and_positions(tmp_path: Path, lines: str, words: str) -> None:
    folder = write(tmp_path, {0: lines}, 0)
    assert words in refusal(folder)
    assert len(read(folder)) == 1


def test_hundred_sources_are_read(tmp_path: Path) -> None:
    assert len(read(write(tmp_path, {0: "\n".join(['{"t":{"0":1}}'] * 99)}, 0))) == 99


@pytest.mark.parametrize("name", ["../../x", "a b", "n" * 101])
def test_source_name_that_spark_does_not_give_is_refused(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path, {}, -1)
    for number in range(2):
        (folder / "offsets" / str(number)).write_text(f'v2\n{{}}\n{name}:{{"t":{{"0":1}}}}')
        (folder / "commits" / str(number)).write_text("v1\n{}")
    if " " in name:  # no name at all for the parser
        assert "no source of the query reads Kafka" in refusal(folder)
    else:
        assert "no name of a source" in refusal(folder)


@pytest.mark.parametrize("path", ["offsets/4", "commits/4", "offsets/3"])
def test_link_in_a_checkpoint_is_not_followed(tmp_path: Path, path: str) -> None:
    (tmp_path / "passwd").write_text(f"{SECRET}\n{SECRET}\n{SECRET}")
    folder = write(tmp_path / "ck", KAFKA, 4)
    (folder / path).unlink()
    (folder / path).symlink_to(tmp_path / "passwd")
    assert f"{path} is a link" in refusal(folder)


@pytest.mark.parametrize("path", ["offsets/4", "commits/4"])
def test_pipe_in_a_checkpoint_does_not_block(tmp_path: Path, path: str) -> None:
    folder = write(tmp_path / "ck", KAFKA, 4)
    (folder / path).unlink()
    os.mkfifo(folder / path)
    assert f"{path} is no file" in refusal(folder)


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("offsets/4", f"{SECRET}\n{SECRET}\n{SECRET}".encode()),
        ("offsets/4", f"v1\n{{}}\n{SECRET}".encode() + b"\xff"),
        ("offsets/4", f'v1\n{{}}\n-\n{{"kohort":"{SECRET}","{SECRET}":2}}'.encode()),
        ("offsets/4", f'v1\n{{}}\n-\n{{"kohort":2,"topics":{{"t":{{"{SECRET}":{{}}}}}}}}'.encode()),
        ("offsets/4", f'v1\n{{}}\n-\n{{"{SECRET}":{{"0":1}}}}'.encode()),
        ("commits/4", SECRET.encode()),
    ],
)
def test_errors_quote_nothing_of_a_file(tmp_path: Path, path: str, content: bytes) -> None:
    folder = write(tmp_path, {**KAFKA, 3: "-"}, 4)
    (folder / path).write_bytes(content)
    assert SECRET not in refusal(folder)


@pytest.mark.parametrize("content", [f"\0v1\n{SECRET}", f'\0v1\n["{SECRET}"]'])
def test_error_of_the_first_offsets_quotes_nothing(tmp_path: Path, content: str) -> None:
    folder = write(tmp_path, {0: {"t": {"0": 3}}}, -1, {T0: 1})
    (folder / "sources" / "1" / "0").write_text(content)
    assert "sources/1/0" in refusal(folder)
    assert SECRET not in refusal(folder)


def local_store(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    monkeypatch.setattr(ObjectStore, "_open_store", lambda self: LocalStore(root / self.prefix, mkdir=True))


def test_object_of_any_size_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local_store(monkeypatch, tmp_path)
    folder = write(tmp_path / "ck", KAFKA, 4)
    with (folder / "offsets" / "4").open("r+b") as file:
        file.truncate(1 << 36)  # a sparse file, larger than the memory
    assert "more than 8388608 bytes" in refusal(folder)
    assert "more than 8388608 bytes" in str(only("s3://bucket/ck"))


def test_listing_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local_store(monkeypatch, tmp_path)
    monkeypatch.setattr(checkpoint_lag, "NAMES_MAX", 4)
    folder = write(tmp_path / "ck", KAFKA, 4)
    assert "offsets has more than 4 names" in refusal(folder)
    assert "offsets has more than 4 names" in str(only("s3://bucket/ck"))


@pytest.fixture
def silent_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A store that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        for name, value in (("ALLOW_HTTP", "true"), ("ACCESS_KEY_ID", "key"), ("SECRET_ACCESS_KEY", "secret")):
            monkeypatch.setenv(f"AWS_{name}", value)
        monkeypatch.setattr(checkpoint_lag, "STORE_TIMEOUT", "30s")
        yield "s3://bucket/silent"
    until(lambda: not readers(), "the reads end with the store", 60)


def readers() -> int:
    return sum(thread.name.startswith("kohort-checkpoint") for thread in threading.enumerate())


def test_checkpoint_that_hangs_delays_no_other(
    tmp_path: Path, silent_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_lag, "READ_TIMEOUT_S", 1.0)
    checkpoints = SparkCheckpoints([silent_store, str(write(tmp_path / "ck", KAFKA, 4))])
    for _ in range(3):
        found = checkpoints()
        assert positions(found["ck/1"]) == (4, {T0: 5, T1: 2})
        assert isinstance(found["silent"], RetriableError)
        assert "not read in time" in str(found["silent"])
    until(lambda: readers() == 1, "only the read that hangs is left", 60)


def test_close_does_not_wait_for_a_checkpoint(silent_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_lag, "READ_TIMEOUT_S", 3_600.0)
    with Broker() as broker:
        reader = LagReader(broker.bootstrap_servers)
        reader.read_others = SparkCheckpoints([silent_store])
        watch = ClusterWatch("c", reader, 0.05)
        until(lambda: readers() == 1, "the checkpoint is being read", 60)
        watch.close()
    assert readers() == 1
    assert watch.state.reads == {}


@pytest.mark.parametrize("content", [b"v1", b"v2", b"v\n{}", b"vague\n{}", b"v1\n{}x"])
def test_commit_that_spark_does_not_write_is_not_done(tmp_path: Path, content: bytes) -> None:
    folder = write(tmp_path, KAFKA, 4)
    (folder / "commits" / "4").write_bytes(content)
    assert "commits/4 is not written to its end" in refusal(folder)


def test_commit_of_a_later_spark_is_said(tmp_path: Path) -> None:
    folder = write(tmp_path, KAFKA, 4)
    (folder / "commits" / "4").write_bytes(b"v3\n{}")
    assert "a later Spark" in refusal(folder)
    (folder / "commits" / "4").write_bytes(b"v2\n{}")
    assert positions(only(folder)) == (4, {T0: 5, T1: 2})


def test_names_of_a_query_do_not_depend_on_its_offsets(tmp_path: Path) -> None:
    folder = write(tmp_path, {0: '{"t":{"0":5}}\n-', 1: '{"t":{"0":5}}\n{"u":{"0":7}}'}, 0)
    assert list(read(f"pay={folder}")) == ["pay/1"]
    (folder / "commits" / "1").write_text("v1\n{}")
    assert list(read(f"pay={folder}")) == ["pay/1", "pay/2"]
    single = write(tmp_path / "single", {}, -1)
    (single / "offsets" / "0").write_text('v1\n{}\n{"t":{"0":5}}')
    (single / "commits" / "0").write_text("v1\n{}")
    assert list(read(f"pay={single}")) == ["pay"]
