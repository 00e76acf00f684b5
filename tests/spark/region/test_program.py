"""A whole program: stopped by a signal with a last sequence, and with the oldest PySpark that kohort takes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from tests.spark.conftest import Stage
from tests.spark.everywhere.places import OWN, ROOT, Environment, Unavailable, clean_environment, environment
from tests.spark.region.in_process import rows_of
from tests.spark.region.program import Order
from tests.support.waiting import LAST_RESORT

pytestmark = [
    LAST_RESORT,
    pytest.mark.skipif("KOHORT_SPARK_REGION" not in os.environ, reason="a long one: make spark-region"),
]


@contextmanager
def program(stage: Stage, until: str | None, spark: Environment = OWN) -> Iterator[subprocess.Popen[str]]:
    """Start the program in its own process group, so that a test can signal it as a terminal does."""
    order = Order(
        servers=stage.servers,
        region=f"r-{stage.topic}",
        topic=stage.topic,
        group=stage.group,
        folder=str(stage.folder),
        until=until,
    )
    command: Sequence[str] = [spark.python, str(ROOT / "tests" / "spark" / "region" / "program.py"), json.dumps(order)]
    with (stage.folder / "log").open("a") as log:
        process = subprocess.Popen(
            command, env=clean_environment(), stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )
    stage.signs["log"] = lambda: (stage.folder / "log").stat().st_size
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def published(stage: Stage) -> list[int]:
    return sorted(int(row["line"]) for row in rows_of(stage.folder / "out"))


def test_a_signal_ends_it_with_a_last_sequence(stage: Stage) -> None:
    """Sequences are a minute apart: what is published after the signal is published because of it."""
    stage.produce(50)
    for number, which in enumerate((signal.SIGTERM, signal.SIGINT)):
        if number:
            stage.produce(30)
        with program(stage, None) as process:
            stage.until(partial(_has_staged, stage.folder, number), "a batch is staged")
            assert not number or len(published(stage)) < stage.sent
            process.send_signal(which)
            options, _ = process.communicate()
            assert process.returncode == 0 and "ended well" in options, (stage.folder / "log").read_text()[-4000:]
        assert published(stage) == list(range(stage.sent))
        assert stage.lag() == 0
    assert "goes back" not in (stage.folder / "log").read_text()


def _has_staged(folder: Path, number: int) -> bool:
    runs = [path for path in (folder / "regions").glob("*/q/e*") if path.name[1:].isdigit()]
    newest = max(runs, key=lambda path: int(path.name[1:]), default=None)
    done = [] if newest is None else [int(name.name) for name in newest.glob("commits/*") if name.name.isdigit()]
    return len(runs) > number and len(done) > number


@pytest.fixture(scope="module")
def spark_4_2() -> Environment:
    try:
        return environment("4.2.0")
    except Unavailable as error:
        pytest.skip(str(error))


def test_pyspark_4_2(spark_4_2: Environment, stage: Stage) -> None:
    """Two jobs in a row, the second with repeats of the first's."""
    for _ in range(2):
        stage.produce(40)
        with program(stage, "caught-up", spark_4_2) as process:
            options, _ = process.communicate()
            assert process.returncode == 0 and "4.2.0" in options, (stage.folder / "log").read_text()[-4000:]
        assert published(stage) == list(range(stage.sent))
        stage.sent -= 10
