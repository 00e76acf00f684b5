"""A topic that is deleted under a query is known to be gone at once; what else the query reads goes on."""

from __future__ import annotations

from typing import Any

import pytest
from tests.spark.queries import Checkpoint, Place, Run, batch_reader, own_signals, place, values_of
from tests.support.waiting import LAST_RESORT

from kohort.errors import KafkaError, NotFoundError, OffsetError

__all__ = ["own_signals", "place"]
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("own_signals"), LAST_RESORT]
STRICT = pytest.mark.parametrize("strict", [True, False], ids=["fail", "go on"])
CHOSEN = pytest.mark.parametrize("chosen", ["subscribe", "subscribePattern", "assign", "alone"])


def options(place: Place, chosen: str, strict: bool) -> dict[str, str]:
    both = f"{place.topic()},{place.topic('b')}"
    ways: dict[str, dict[str, Any]] = {
        "subscribe": {"subscribe": both},
        "subscribePattern": {"subscribe": None, "subscribePattern": f"t-{place.name}-.*"},
        "assign": {"subscribe": None, "assign": f'{{"{place.topic()}": [0, 1], "{place.topic("b")}": [0, 1]}}'},
        "alone": {"subscribe": both, "group.id": None},
    }
    return place.options(failOnDataLoss=str(strict).lower(), **ways[chosen])


@CHOSEN
@STRICT
@pytest.mark.parametrize("down", [False, True], ids=["while it runs", "while it is down"])
def test_the_rest_is_read_or_the_query_says_what_is_gone(place: Place, chosen: str, strict: bool, down: bool) -> None:
    log = Checkpoint()
    place.make("a")
    place.make("b")
    place.produce(range(10), "a")
    place.produce(range(10, 20), "b")
    run = Run(options(place, chosen, strict), log)
    try:
        assert run.read(20) == list(range(20))
        if down:
            run.reader.stop()
            run = Run(options(place, chosen, strict), log)
        place.delete("b")
        place.produce(range(20, 30), "a")
        if strict:
            with pytest.raises(
                (OffsetError, NotFoundError), match=rf"{place.topic('b')}.*deleted.*failOnDataLoss=false"
            ):
                run.read(10)
            return
        assert run.read(10) == list(range(20, 30))
        place.make("b")
        place.produce(range(30, 40), "b")
        assert run.read(10) == list(range(30, 40))
    finally:
        run.reader.stop()


@STRICT
def test_a_topic_deleted_inside_a_batch(place: Place, strict: bool) -> None:
    place.make("a")
    place.make("b")
    place.produce(range(10), "a")
    place.produce(range(10, 20), "b")
    with Run(options(place, "subscribe", strict)) as run:
        planned = None
        while planned is None or not planned[1]:
            planned = run.plan()
        place.delete("b")
        if strict:
            with pytest.raises(OffsetError, match=rf"{place.topic('b')}.*deleted"):
                run.finish(planned)
            return
        assert run.finish(planned) == list(range(10))
        place.produce(range(20, 30), "a")
        assert run.read(10) == list(range(20, 30))
        assert place.committed() == {0: 10, 1: 10}


@STRICT
def test_a_topic_deleted_inside_a_batch_read(place: Place, strict: bool) -> None:
    place.make("a")
    place.make("b")
    place.produce(range(10), "a")
    place.produce(range(10, 20), "b")
    reader = batch_reader(options(place, "alone", strict))
    tasks = reader.partitions()
    place.delete("a")
    if strict:
        with pytest.raises(OffsetError, match=rf"{place.topic('a')}.*deleted"):
            values_of(reader, tasks)
    else:
        assert sorted(values_of(reader, tasks)) == list(range(10, 20))


@STRICT
def test_a_topic_that_never_was_is_an_error_at_once(place: Place, strict: bool) -> None:
    place.make("a")
    with (
        Run(options(place, "subscribe", strict)) as run,
        pytest.raises(KafkaError, match=f"no topic {place.topic('b')}"),
    ):
        run.read(1)
