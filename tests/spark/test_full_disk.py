"""A query whose checkpoint lies on a full disk ends, and goes on exactly once there is room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.conftest import Sink, Stage
from tests.support.tiny_disk import fill, tiny_disk

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default"), pytest.mark.timeout(1_200)]

EACH = 40


@pytest.fixture
def tiny_checkpoint(stage: Stage) -> Iterator[Path]:
    """The checkpoint's folder, on a file system of one megabyte."""
    folder = stage.folder / "checkpoint-q"
    folder.mkdir()
    with tiny_disk(folder, "1m"):
        yield folder


def test_each_record_comes_once_when_the_checkpoint_had_no_room(
    run: Callable[..., Any], stage: Stage, tiny_checkpoint: Path
) -> None:
    sink = Sink()
    stage.produce(EACH)
    query = run(sink)
    stage.until(lambda: sink.values() == list(range(EACH)), "the query reads the first records")
    ballast = tiny_checkpoint / "ballast"
    fill(ballast)
    stage.produce(EACH)
    stage.until(lambda: not query.isActive, "the query ends")
    assert "No space left on device" in str(query.exception())
    ballast.unlink()
    query = run(sink)
    stage.until(lambda: sink.values() == list(range(2 * EACH)), "the query goes on")
    stage.until(lambda: stage.lag() == 0, "the group has all offsets")
