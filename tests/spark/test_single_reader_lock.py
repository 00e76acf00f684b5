"""Two queries that read one `load()`: the second is refused, or warned of where nobody can know."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.cloudpickle import dumps, loads
from tests.spark.queries import Place, declared, own_signals, place
from tests.support.waiting import LAST_RESORT

from kohort.errors import InvalidInputError
from kohort.spark.data_source import KohortDataSource
from kohort.spark.driver_channel import ChannelServer
from kohort.spark.source.single_reader_lock import LoadCall, ReaderLock

__all__ = ["own_signals", "place"]
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("own_signals"), LAST_RESORT]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Less patience than users get, and locks of the test's own."""
    monkeypatch.setattr("kohort.spark.source.single_reader_lock.LOCK_TIMEOUT_S", 0.3)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def begin(made: bytes) -> Any:
    """A query's process receives what `load()` made, and makes its first call."""
    source = loads(made)
    reader = source.streamReader(declared(source))
    try:
        reader.prepareForTriggerAvailableNow()
    except InvalidInputError:
        reader.stop()
        raise
    return reader


@pytest.fixture
def application() -> Any:
    board = ChannelServer()
    yield KohortDataSource.with_channel_address(board.address)
    board.close()


def test_the_second_query_of_one_load_is_refused_until_the_first_has_ended(place: Place, application: Any) -> None:
    place.make()
    made = dumps(application(place.options()))
    first = begin(made)
    try:
        with pytest.raises(InvalidInputError, match=f"group {place.group}.*a group.id of its own.*one foreachBatch"):
            begin(made)
        another = begin(dumps(application(place.options())))
        another.stop()
    finally:
        first.stop()
    begin(made).stop()


def test_without_a_group_every_query_reads_all_and_none_is_refused(place: Place, application: Any) -> None:
    place.make()
    given = {key: value for key, value in place.options().items() if key != "group.id"}
    made = dumps(application(given))
    first, second = begin(made), begin(made)
    first.stop()
    second.stop()


def test_the_same_options_are_warned_of_where_ids_can_not_distinguish(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """On Spark Connect each query has a source object of its own, and the application is out of reach."""
    place.make()
    first = begin(dumps(KohortDataSource(place.options())))
    try:
        begin(dumps(KohortDataSource(place.options(maxOffsetsPerTrigger=5)))).stop()
        assert "THE SAME OPTIONS" not in caplog.text
        begin(dumps(KohortDataSource(place.options()))).stop()
        assert "another query reads with the same options as this one" in caplog.text
    finally:
        first.stop()


def test_a_killed_process_has_no_claim(tmp_path: Path) -> None:
    program = (
        "import sys, time, kohort.spark.source.single_reader_lock as s; "
        "c = s.ReaderLock.acquire('x'); print(c is not None, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "True\n"
        assert ReaderLock.acquire("x") is None
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    claim = ReaderLock.acquire("x")
    assert claim is not None
    claim.release()
    assert list(tmp_path.rglob("*.lock")) == []


def test_a_folder_of_someone_elses_is_not_trusted(
    place: Place, application: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place.make()
    (tmp_path / f"kohort-spark-{os.getuid()}").symlink_to(tmp_path)
    begin(dumps(application(place.options()))).stop()
    assert "would go unnoticed" in caplog.text


def test_equal_options_are_named_without_secrets() -> None:
    plain, secret = ({"kafka.sasl.password": word, "subscribe": "a"} for word in ("one", "two"))
    assert (
        LoadCall.from_options(plain).likeness
        == LoadCall.from_options(secret).likeness
        != LoadCall.from_options({"subscribe": "b"}).likeness
    )
    assert LoadCall.from_options(plain).id != LoadCall.from_options(plain).id
