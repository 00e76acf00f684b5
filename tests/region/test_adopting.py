"""A person adopts a sink: what is interrupted at any step is finished by the same call again."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import deltalake
import pytest

from kohort.region.agreement import AdoptionHistory, records_after_adoption
from kohort.region.control_plane.state import RegionFacts
from kohort.region.records import Contribution, EpochBegun, Fact, Manifest, PublishedCheckpoint, RegionCreated
from kohort.region.region import Region
from kohort.region.region_log import RegionLogView
from kohort.region.region_topic import facts_of_region
from kohort.region.sinks import Sink
from kohort.region.sinks.bound import BoundSink
from kohort.region.staged import StagedKey
from tests.region import test_histories as read
from tests.region.conftest import fill, make_topic
from tests.region.test_histories import work_through
from tests.region.test_place_names import MOVED

ID = UUID(int=7)
OLD, NEW, OTHER = "parquet:/old", "parquet:/new", "parquet:/other"


def given(member: str, sink: str) -> Contribution:
    keys = (StagedKey(ID, 1, member, 0),)
    return Contribution("r", 7, 1, 1, member, (), "g", member, 1, None, (), keys, b"", sink)


def history(facts: list[Fact]) -> AdoptionHistory:
    return facts_of_region("r", [RegionCreated("r", ID, 0), *facts]).adoption_history("r")


@pytest.mark.parametrize("empties", [False, True])
@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("shows", [0, 6, 7, 20])
@pytest.mark.parametrize("was", ["", OLD, NEW])
def test_facts_of_a_repeated_adoption_are_the_same(was: str, shows: int, is_known: bool, empties: bool) -> None:
    """The place has its old name until the topic has the new one; the second call takes the first's facts for known."""
    place = was or OLD
    contributions = () if empties else (given("a", place), given("b", OTHER))
    members = tuple(contribution.member for contribution in contributions)
    manifest = Manifest("r", ID, 7, 1, 1, 0, members, members, (), empties, tuple(sorted((place, OTHER))))
    shown = [PublishedCheckpoint("r", place, 7 if is_known else 6, 0)]
    first = records_after_adoption(history([*contributions, manifest, *shown]), NEW, was, shows, 5)
    again = records_after_adoption(history([*contributions, manifest, *shown, *first]), NEW, was, shows, 5)
    before, after = (history([*contributions, manifest, *shown, *facts]) for facts in (first, [*first, *again]))
    assert after == before


RESET = Manifest("r", ID, 7, 1, 1, 0, (), (), (), True, (OLD, OTHER))
EMPTIED = tuple(PublishedCheckpoint("r", place, 7, 0, empty=True) for place in (OLD, OTHER))


def adopted(facts: Iterable[Fact], calls: Iterable[tuple[str, int]]) -> RegionFacts:
    every: list[Fact] = [RegionCreated("r", ID, 0), *facts]
    for place, shows in calls:
        every += records_after_adoption(facts_of_region("r", every).adoption_history("r"), place, "", shows, 5)
    return facts_of_region("r", every).to_region_facts("r", 1)


@pytest.mark.parametrize("turn", [1, -1], ids=["first to last", "last to first"])
@pytest.mark.parametrize(
    ("shows", "unpublished"),
    [
        ({OLD: 8, OTHER: 9}, set()),
        ({OLD: 9, OTHER: 9}, set()),
        ({OLD: 8, OTHER: 3}, {OTHER}),
        ({OLD: 3, OTHER: 9}, {OLD}),
        ({OLD: 0, OTHER: 9}, set()),  # it is empty already
        ({OLD: 3, OTHER: 4}, {OLD, OTHER}),
    ],
    ids=["both ahead", "as far ahead", "second behind", "first behind", "first empty", "both behind"],
)
def test_adopting_sinks_in_any_order_empties_those_alone_that_have_not_seen_the_reset(
    shows: dict[str, int], unpublished: set[str], turn: int
) -> None:
    """The topic's copy ends with a reset to the initial state. The second call had the first sink emptied."""
    known = adopted([RESET, *EMPTIED], list(shows.items())[::turn])
    assert known.unpublished_keys().keys() == unpublished
    assert [known.sink_id_bounds(place).allows_id(shown) for place, shown in shows.items()] == [True, True]
    assert known.sequence == max(7, *shows.values())


def test_sink_that_was_still_to_be_emptied_is_emptied_also_when_another_was_adopted() -> None:
    known = adopted([RESET, EMPTIED[0]], [(OLD, 8), (OTHER, 8)])
    assert known.unpublished_keys() == {OTHER: ()}
    assert known.sequence == 9 and known.sink_id_bounds(OTHER).allows_id(8) and known.sink_id_bounds(OLD).allows_id(8)


@pytest.mark.parametrize(
    ("shows", "unpublished"), [(3, {OLD}), (0, {""}), (8, set())], ids=["behind", "empty", "ahead"]
)
def test_sink_of_a_reset_without_names_is_emptied_unless_it_has_seen_the_reset(
    shows: int, unpublished: set[str]
) -> None:
    known = adopted([replace(RESET, places=())], [(OLD, shows)])
    assert known.unpublished_keys().keys() == unpublished
    assert known.sink_id_bounds(OLD).allows_id(shows)


def test_sink_with_an_older_copy_after_it_was_adopted_is_emptied() -> None:
    assert adopted([RESET, *EMPTIED], [(OLD, 8), (OTHER, 9), (OLD, 3)]).unpublished_keys() == {OLD: ()}
    assert adopted([RESET, *EMPTIED], [(OLD, 8), (OLD, 3)]).unpublished_keys() == {OLD: ()}


@pytest.mark.parametrize("last", [3, 20_000], ids=["a clock ahead", "a clock behind"])
def test_epochs_after_adopting_a_sink_that_is_ahead_are_none_that_it_has_seen(last: int) -> None:
    """The lost part of the topic had epochs of its own, and the sink has files that are named by them."""
    assert_an_adopted_sink_gets_epochs_that_it_has_not_seen(last)


def assert_an_adopted_sink_gets_epochs_that_it_has_not_seen(last: int) -> None:
    began = EpochBegun("r", last, 1, 2, 0, "", 0)
    manifest = Manifest("r", ID, 7, 1, 1, 0, (), (), (), places=(OLD,))
    facts = [RegionCreated("r", ID, 0), began, manifest, PublishedCheckpoint("r", OLD, 7, 0)]
    ahead, behind, equal = (
        facts_of_region(
            "r", [*facts, *records_after_adoption(history(facts[1:]), OLD, "", shows, 10_000)]
        ).to_region_facts("r", 1)
        for shows in (8, 6, 7)
    )
    assert ahead.epoch == ahead.floor == max(10_000, last + 1)
    assert (behind.epoch, behind.floor) == (equal.epoch, equal.floor) == (last, 2)


STEPS: dict[str, tuple[type, str, bool]] = {
    "before the topic has it": (RegionLogView, "adopt", False),
    "when the topic has it": (RegionLogView, "adopt", True),
    "before the place has its name": (BoundSink, "adopt", False),
    "when the place has its name": (BoundSink, "adopt", True),
}


class KilledError(Exception):
    """The process ends here."""


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kind", MOVED)
def test_adopt_that_was_killed_is_finished_by_the_same_call(
    own_servers: str, name: str, tmp_path: Path, kind: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place had its new name and the topic the old one: what was staged for it was owed to nobody, for ever."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    make_topic(own_servers, name)
    fill(own_servers, name, range(40))
    last = work_through(own_servers, name, MOVED[kind](here), 40)
    forget_that_it_is_published(own_servers, name, MOVED[kind](here), last)
    shutil.move(here, there)
    moved = MOVED[kind](there)
    owner, method, after = STEPS[step]
    owner = type(moved) if owner is BoundSink else owner
    real: Callable[..., Any] = getattr(owner, method)

    def killed(*args: Any) -> None:
        if after:
            real(*args)
        raise KilledError

    with Region(name, own_servers) as region:
        monkeypatch.setattr(owner, method, killed)
        with pytest.raises(KilledError):
            region.adopt(moved)
        monkeypatch.setattr(owner, method, real)
        region.adopt(moved)
        assert region.compared(moved) == ""
    fill(own_servers, name, range(40, 80))
    work_through(own_servers, name, moved, 40)
    assert rows(kind, there) == Counter(range(80))


def forget_that_it_is_published(servers: str, name: str, sink: Sink, last: int) -> None:
    """The topic is as when the publisher was killed before it had said so."""
    home = RegionLogView(name, servers, {})
    pen, known = home.take_over("127.0.0.1", 1)
    pen.save([PublishedCheckpoint(name, sink.place, last - 1, 0)])
    pen.close()
    assert known.keys.keys() == {sink.place}
    home.close()


def rows(kind: str, folder: Path) -> Counter[int]:
    if kind == "parquet":
        return Counter(read._parquet(folder / "out"))
    if kind == "sqlite":
        return Counter(read._sqlite(folder / "out.db"))
    table = deltalake.DeltaTable(str(folder / "out")).to_pyarrow_table()
    return Counter(int(value) for value in table["value"].to_pylist())
