"""A query's members report its state, by which the region keeps others out of their groups."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kohort.region import messages
from kohort.region.member import events
from kohort.region.sinks import Sink
from kohort.spark import SparkRegion
from kohort.spark.region.query_spec import check_query_arguments
from kohort.spark.region.spark_region import member_behaviour


@pytest.mark.parametrize("pinned", [False, True])
def test_each_source_of_a_query_with_state_keeps_it_in_its_group(pinned: bool) -> None:
    sink = cast(Sink, SimpleNamespace(bind=None, place="s"))
    sources = [{"subscribe": "t", "group.id": group, "group.protocol": "classic"} for group in ("g", "h")]
    how: dict[str, Any] = {"state": "pinned", "queries": ["b", "a"]} if pinned else {}
    declared = check_query_arguments("a", lambda *frames: frames, sources, sink, cast(Any, how), ("127.0.0.1:1", {}))
    region = SparkRegion.__new__(SparkRegion)
    region._region = cast(Any, SimpleNamespace(name="r"))
    takes_part = member_behaviour(declared, shares=pinned, keeps=True)
    for number, name in enumerate(("a", "a#2")):
        machine = region._machine(declared, number, (sink,), takes_part)
        [said] = [
            event.report
            for event in machine.step(events.ControlPlaneConnected())
            if isinstance(event, events.SendReport)
        ]
        assert isinstance(said, messages.RegistrationRequest)
        assert (said.name, said.group, said.shares) == (name, "gh"[number], pinned)
        assert said.of and said.sources == 2
        assert said.pinned == (("a", "b") if pinned else ())
        assert machine.how.keeps, "also the second's: while the query is away, its group is its own"
