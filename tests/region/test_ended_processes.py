"""Members of a process that has ended are dead at once. Members that only lost their connection are not."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import pyarrow.parquet as pq
import pytest

from kohort.errors import TimedOutError
from kohort.io.processes import own_identity
from kohort.region import messages
from kohort.region import region as face
from kohort.region.control_plane import events
from kohort.region.control_plane.events import ResetCause
from kohort.region.control_plane.state import RegionConfig
from kohort.region.region import Region
from kohort.region.sinks.parquet_folder import ParquetFolder
from kohort.region.states import RegionState
from tests.region.conftest import Worker, fill, make_topic
from tests.region.test_plane import KNOWN, P0, P1, Driven, at, span, two
from tests.support.waiting import until

LONG_MS = 3_600_000
"""Far beyond the patience of any test: who is waited for so long is never found dead."""


def of_one_process() -> Driven:
    """Two members, of one process."""
    driven = Driven()
    for connection, name, part in ((1, "m1", P0), (2, "m2", P1)):
        driven.join(connection, name, process="p")
        assert driven.ask(connection, part) == (at(part, 70 + part.partition),)
    return driven


def test_all_go_back_as_soon_as_the_process_of_a_member_has_ended() -> None:
    driven = of_one_process()
    effects = driven.machine.step(events.ConnectionEnded(1), 0)
    assert events.CheckProcess("p") in effects and driven.stands(RegionState.RUNNING), "it may come back"
    driven.do(events.ProcessEnded("p"))
    assert driven.stands(RegionState.RESETTING) and driven.machine.plane.metrics.resets == {ResetCause.DEAD: 1}
    assert driven.machine.plane.member_names() == ("m2",), "what it has said last may be on its way"
    driven.do(events.ConnectionEnded(2))
    driven.do(events.ProcessEnded("p"))
    assert not driven.machine.plane.members


def test_a_process_without_a_name_is_not_looked_at() -> None:
    driven = two()
    effects = driven.machine.step(events.ConnectionEnded(1), 0)
    assert not [effect for effect in effects if isinstance(effect, events.CheckProcess)]


@pytest.mark.parametrize("how", ["of another", "came back", "came back in another"])
def test_a_process_that_may_live_has_its_time_to_rejoin(how: str) -> None:
    driven = of_one_process()
    incarnation = driven.machine.plane.members["m1"].incarnation
    driven.do(events.ConnectionEnded(1))
    if how != "of another":
        process = "p" if how == "came back" else "q"
        driven.join(3, "m1", epoch=6, holds=(at(P0, 70),), incarnation=incarnation, process=process)
        if process == "q":
            driven.do(events.ConnectionEnded(3))
    driven.do(events.ProcessEnded("other" if how == "of another" else "p"))
    assert "m1" in driven.machine.plane.members and driven.stands(RegionState.RUNNING)


EXPECTED = replace(KNOWN, expected=frozenset({"m1", "m2"}), processes={"m1": "p", "m2": "q"})


def test_a_new_control_plane_does_not_wait_for_who_has_ended() -> None:
    driven = Driven(EXPECTED)
    driven.do(events.ProcessEnded("q"))
    assert driven.stands(RegionState.FORMING)
    driven.join(1, "m1", holds=(at(P0, 70),), epoch=5, process="p")
    assert driven.stands(RegionState.RESETTING) and driven.machine.plane.metrics.resets == {ResetCause.DEAD: 1}
    late = Driven(EXPECTED)
    late.join(1, "m1", holds=(at(P0, 70),), epoch=5, process="p")
    late.do(events.ProcessEnded("another"))
    assert late.stands(RegionState.FORMING)
    others = Driven(replace(EXPECTED, expected=frozenset({"m1", "m2", "m3"})))
    others.join(1, "m1", holds=(at(P0, 70),), epoch=5, process="p")
    others.do(events.ProcessEnded("q"))
    assert others.stands(RegionState.FORMING), "m3 may come"
    late.do(events.ProcessEnded("q"))
    assert late.stands(RegionState.RESETTING)


def test_a_new_control_plane_waits_for_all_of_an_application_that_is_started_again() -> None:
    """Nobody is there who would have to go back, and none of them is given what is another's."""
    driven = Driven(EXPECTED)
    for process in "pq":
        driven.do(events.ProcessEnded(process))
    driven.join(1, "m1", process="r")
    assert driven.stands(RegionState.FORMING)
    driven.join(2, "m2", process="r")
    assert driven.stands(RegionState.RUNNING) and not driven.machine.plane.metrics.resets


def test_the_control_plane_notes_the_process_of_who_contributes() -> None:
    driven = of_one_process()
    cut = driven.cut()
    for connection in (1, 2):
        driven.say(connection, messages.MemberDrained(cut))
    for connection, name, part in ((1, "m1", P0), (2, "m2", P1)):
        begin = 70 + part.partition
        driven.say(connection, messages.ContributionReport(cut, driven.give(name, span(part, begin, begin + 1))))
    (commit,) = driven.commits
    assert [contribution.process for contribution in commit.contributions] == ["p", "p"]


@pytest.mark.skipif(not own_identity(), reason="processes have no names here: /proc is needed")
@pytest.mark.parametrize("serving", ["here", "in the one that dies"])
def test_a_killed_process_is_dead_at_once(
    serving: str, own_servers: str, name: str, tmp_path: Path, regions: list[Region], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock alone would not find it dead in this test: a member has an hour to return."""
    monkeypatch.setattr(face, "RegionConfig", partial(RegionConfig, register_ms=LONG_MS))
    make_topic(own_servers, name)
    region = Region(name, own_servers, checkpoint_every="200ms")
    regions.append(region)
    if serving == "here":
        region.serve()
    command = [sys.executable, "-m", "tests.region.member_process", own_servers, name, "other", name]
    with subprocess.Popen([*command, str(tmp_path), "classic", "checkpoint"]) as other:
        try:
            until(lambda: region.is_served() and reads(region) == {"other"}, "the other reads")
            fill(own_servers, name, range(1_000))
            worker = Alike(region, "m1", ParquetFolder(tmp_path), name, heartbeat_interval_ms=100)
            until(lambda: reads(region) == {"m1", "other"}, "both read")
            before = region.describe().sequence
            until(lambda: region.describe().sequence > before + 1, "both are in a sequence")
        finally:
            other.kill()
    until(lambda: reads(region) == {"m1"}, "the other is dead")
    assert region.describe().resets == {"dead": 1}
    until(lambda: all_once(tmp_path, range(1_000)), "all is there")
    worker.close()


class Alike(Worker):
    """A sink that writes rows like the process's own."""

    columns: ClassVar[list[str]] = ["value", "partition", "offset"]


def reads(region: Region) -> set[str]:
    """Return the members with partitions; none while the control plane changes."""
    try:
        return {member.name for member in region.describe().members if member.parts}
    except TimedOutError:
        return set()


def all_once(folder: Path, numbers: range) -> bool:
    files = list(folder.glob("sequence=*/*.parquet"))
    rows = Counter(int(value) for file in files for value in pq.ParquetFile(file).read(["value"])["value"].to_pylist())
    assert max(rows.values(), default=1) == 1
    return set(rows) == set(numbers)
