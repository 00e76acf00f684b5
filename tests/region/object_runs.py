"""Faults of object stores that file systems do not have: lost answers, refusals, several writers of one name."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path

from obstore.exceptions import GenericError

from kohort.errors import InvalidInputError, RetriableError
from kohort.region.sinks import Keep, Sink
from kohort.region.staged import StagedKey
from tests.region.place_runs import (
    AGAIN,
    EPOCH,
    FIRST,
    KEYS,
    NEXT,
    OTHER,
    QUIET,
    SECOND,
    STAGED,
    all_is_well,
    begun,
    publish,
)
from tests.region.places import REGION, SCHEMA, Calls, Place, Row, copied, same, table
from tests.region.volume import Died

ATTEMPTS = 8


def _whole_life(sink: Sink) -> None:
    sink.check(SCHEMA)
    for key in KEYS:
        sink.stage(key, table(STAGED.get(key, [])))
    sink.publish(1, KEYS)


def _tried(act: Callable[[Sink], None], sink: Sink, seen: Callable[[], list[Row]]) -> None:
    """Repeat a call as a member does; what readers see is whole after each attempt."""
    for attempt in range(ATTEMPTS):
        try:
            act(sink)
            return
        except RetriableError:
            assert attempt < ATTEMPTS - 1, "the retries never succeed"
            assert seen() == [] or same(seen(), FIRST), seen()


def _failing(place: Place, root: Path, *, happened: bool) -> None:
    """Each request fails once, or several in a row; the store has done it, or not."""
    place.at(root / "count")
    calls = Calls()
    _whole_life(place.sink(calls))
    for number in range(1, calls.number + 1):
        for length in (1, 3):
            trial = copy.copy(place)
            trial.at(root / f"trial-{number}-{length}")
            calls = Calls()

            def fail(now: int, call: str, *, first: int = number, length: int = length) -> None:
                if first <= now < first + length:
                    raise GenericError("503 Service Unavailable: SlowDown")

            if happened:
                calls.after = fail
            else:
                calls.at = fail
            _tried(_whole_life, trial.sink(calls), trial.rows)
            assert same(trial.rows(), FIRST)
            sink = trial.sink()
            assert sink.published() == 1
            for key in (*NEXT, *QUIET):
                sink.stage(key, table(STAGED.get(key, [])))
            all_is_well(trial)


def lost_answers(place: Place, root: Path) -> None:
    """The store has done what was asked, and its answer does not arrive."""
    _failing(place, root, happened=True)


def refused_requests(place: Place, root: Path) -> None:
    """The store answers 503, and has done nothing."""
    _failing(place, root, happened=False)


def published_rows_stay(place: Place, root: Path) -> None:
    """At each call of a publisher another one publishes other rows as the same sequence; the first one counts."""
    theirs = StagedKey(REGION, EPOCH, "other", 1)
    trials = begun(place, root)
    trials.place.sink().stage(theirs, table([(77, "theirs")]))

    def other(trial: Place, number: int) -> None:
        trial.sink().publish(1, [theirs])

    def act(sink: Sink) -> None:
        with contextlib.suppress(InvalidInputError):
            publish(sink)

    seen: list[list[Row]] = []

    def look(trial: Place, number: int) -> None:
        other(trial, number)
        seen.append(trial.rows())

    for trial in trials.holds(act, look):
        assert seen and trial.rows() == seen.pop(), "rows that were published are others now"


def two_regions(place: Place, root: Path) -> None:
    """Two regions meet at a new folder, at each call of one: it becomes one's, and the other is refused."""
    place.at(root / "count")
    calls = Calls()
    place.sink(calls).check(SCHEMA)
    for number in range(1, calls.number + 1):
        trial = copy.copy(place)
        trial.at(root / f"trial-{number}")
        calls = Calls()
        refused: list[str] = []

        def check(sink: Sink, refused: list[str] = refused) -> None:
            try:
                sink.check(SCHEMA)
            except InvalidInputError as error:
                refused.append(str(error))

        def meanwhile(now: int, call: str, *, at: int = number, trial: Place = trial) -> None:
            if now == at:
                check(trial.sink(region=OTHER))

        calls.at = meanwhile
        check(trial.sink(calls))
        assert len(refused) == 1 and "belongs to region" in refused[0], refused


def swept_after_death(place: Place, root: Path) -> None:
    """A publisher dies at each call. Another finds its sequence there and publishes the next, and sweeps the epoch."""
    for died in begun(place, root).deaths(publish):
        if died.sink().published():
            trial = copy.copy(died)
            copied(trial, root / "swept-at-once")
            trial.sink().sweep(Keep(EPOCH + 1, (*NEXT, *QUIET)))
            assert same(trial.rows(), FIRST)
            trial.sink().publish(2, NEXT)
            assert same(trial.rows(), FIRST + SECOND)
            _removed(root / "swept-at-once")
            died.sink().publish(2, NEXT)
            died.sink().sweep(Keep(EPOCH + 1, QUIET))
            assert same(died.rows(), FIRST + SECOND)
            all_is_well(died)


def _removed(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()


def staging_killed_and_swept(place: Place, root: Path) -> None:
    """A member dies while it stages, and its rows are nobody's."""
    for died in begun(place, root).deaths(lambda sink: sink.stage(AGAIN, table(STAGED[AGAIN]))):
        died.sink().sweep(Keep(EPOCH + 2, (*KEYS, *NEXT, *QUIET)))
        assert not any(AGAIN.file_stem() in name for name in died.staged()), "rows that nobody removes"
        all_is_well(died)


def held_sweeps(place: Place, root: Path) -> None:
    """A sweep is held at each call while others publish the sequences after the one whose publisher died."""
    trials = begun(place, root)
    calls = Calls()
    with trials.copy() as count:
        publish(count.sink(calls))
    created = next(number for number, call in enumerate(calls.trace, 1) if call.startswith("put _sequences/"))
    calls = Calls()
    calls.die_at(created, happened=True)
    with contextlib.suppress(Died):
        publish(trials.place.sink(calls))
    assert same(trials.place.rows(), FIRST)

    def meanwhile(trial: Place, number: int) -> None:
        trial.sink().publish(2, NEXT)
        trial.sink().publish(3, QUIET)

    for trial in trials.holds(lambda sink: sink.sweep(Keep(EPOCH + 1, (*NEXT, *QUIET))), meanwhile):
        assert same(trial.rows(), FIRST + SECOND)
        trial.sink().sweep(Keep(EPOCH + 1))
        assert same(trial.rows(), FIRST + SECOND) and trial.staged() == []


OBJECT_RUNS = (
    lost_answers,
    refused_requests,
    published_rows_stay,
    two_regions,
    swept_after_death,
    staging_killed_and_swept,
    held_sweeps,
)
