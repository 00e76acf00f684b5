"""When a job that runs now and then is done."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from kohort.ids import TopicPartition
from kohort.region.messages import RegionStatus
from kohort.region.records import Position
from kohort.region.sinks import Sink
from kohort.spark.region import spark_region as module
from kohort.spark.region.query_spec import DeclaredQuery, check_query_arguments
from kohort.spark.region.spark_region import current_end_offsets, has_published_up_to, pinned_query_of

PARTITIONS, END = 6, 10


class Topic:
    """A catalog of one topic, with six partitions of ten records each."""

    def __init__(self, options: object) -> None: ...

    def partitions(self, known: None) -> list[TopicPartition]:
        return [TopicPartition("t", number) for number in range(PARTITIONS)]

    def end_offsets(self, parts: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(parts, END)

    def close(self) -> None: ...


def query(name: str, **how: Any) -> DeclaredQuery:
    sink = cast(Sink, SimpleNamespace(bind=None))
    source = {"subscribe": "t", "group.id": "g", "group.protocol": "classic"}
    return check_query_arguments(name, lambda frame: frame, source, sink, cast(Any, how), ("127.0.0.1:1", {}))


def at(numbers: Iterable[int]) -> RegionStatus:
    """A region that has published all of these partitions, and nothing of the others."""
    positions = [Position("g", "t", UUID(int=1), number, END) for number in numbers]
    return cast(RegionStatus, SimpleNamespace(published=9, sequence=9, positions=positions))


@pytest.fixture(autouse=True)
def topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TopicCatalog", Topic)


def own(name: str) -> set[int]:
    return {number for number in range(PARTITIONS) if pinned_query_of("t", number, ("a", "b")) == name}


def test_a_pinned_query_is_done_with_its_own_partitions_while_another_is_away() -> None:
    a, b = (query(name, state="pinned", queries=["b", "a"]) for name in ("a", "b"))
    assert own("a") and own("b")
    assert has_published_up_to(at(own("a")), current_end_offsets([a]))
    assert not has_published_up_to(at(own("b")), current_end_offsets([a]))
    assert not has_published_up_to(at(own("a")), current_end_offsets([a, b])), "both are this job's"
    assert has_published_up_to(at(own("a") | own("b")), current_end_offsets([a, b]))


def test_any_other_query_is_done_with_all_partitions_of_its_topics() -> None:
    assert not has_published_up_to(at(own("a")), current_end_offsets([query("a")]))
    assert has_published_up_to(at(range(PARTITIONS)), current_end_offsets([query("a")]))
