"""Every call at which a process that writes to a place can die, fail or be held, and what must hold."""

from __future__ import annotations

import contextlib
import copy
import errno
import itertools
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

from kohort.errors import CorruptDataError, RetriableError
from kohort.region.sinks import Keep, Sink
from kohort.region.staged import StagedKey
from tests.region.places import REGION, SCHEMA, Calls, Place, Row, copied, merged, same, table
from tests.region.volume import Died
from tests.support.long_runs import IS_LONG

EPOCH = 5
KEYS = tuple(StagedKey(REGION, EPOCH, member, 1) for member in ("a", "b", "idle"))
NEXT = (StagedKey(REGION, EPOCH, "a", 3), StagedKey(REGION, EPOCH, "b", 2), StagedKey(REGION, EPOCH, "idle", 2))
QUIET = (StagedKey(REGION, EPOCH, "idle", 3),)
ZOMBIE = StagedKey(REGION, EPOCH - 1, "a", 9)
AGAIN = StagedKey(REGION, EPOCH + 1, "a", 0)
STAGED: dict[StagedKey, list[Row]] = {
    KEYS[0]: [(1, "one"), (2, "two"), (2, "2")],
    KEYS[1]: [(3, "three")],
    NEXT[1]: [(5, "five"), (4, "4"), (1, "1")],
    NEXT[0]: [(4, "four")],
    ZOMBIE: [(666, "zombie")],
    AGAIN: [(1, "again"), (7, "seven")],
}
FIRST = [row for key in KEYS for row in STAGED.get(key, [])]
SECOND = STAGED[NEXT[1]] + STAGED[NEXT[0]]
"""In the order of the units: b's second, then a's third."""
Act = Callable[[Sink], None]
SHORT_EVERY = {"delta": 6, "delta-parted": 6, "delta-objects": 6, "iceberg": 9, "ducklake": 15}
"""Processes with places of these kinds die, or are held, at every so-manyth call in `make test`, and at each commit."""
DECISIVE = ("commit", "merge", "add columns")
"""Calls that show a sequence, in small letters: every run tries them."""
SIGKILLS = 12 if IS_LONG else 4
"""Calls all over a publication at which a process of its own is killed."""


class Trials:
    """Copies of one place, each in a folder of its own."""

    def __init__(self, place: Place, root: Path, short_every: int = 1) -> None:
        """Make none yet; in `make test`, processes die or are held at every `short_every`-th call."""
        self.place, self._root, self._numbers = place, root, itertools.count()
        self._short_every = short_every

    @contextlib.contextmanager
    def copy(self) -> Iterator[Place]:
        trial = copy.copy(self.place)
        folder = self._root / f"trial-{next(self._numbers)}"
        copied(trial, folder)
        try:
            yield trial
        finally:
            shutil.rmtree(folder)

    def _every(self, slowest: dict[str, int]) -> int:
        """Only every so-manyth call is tried where a publication takes a hundred times as long as a link."""
        short = 1 if IS_LONG else max(self._short_every, SHORT_EVERY.get(self.place.kind, 1))
        return max(slowest.get(self.place.kind, 1), short)

    def calls(self, act: Act) -> list[str]:
        """The calls of an act to the system, in order."""
        with self.copy() as trial:
            calls = Calls()
            act(trial.sink(calls))
            return calls.trace

    def steps(self, act: Act) -> int:
        """How many calls it takes."""
        return len(self.calls(act))

    def deaths(self, act: Act) -> Iterator[Place]:
        """The place after a process died at each call of what it did, before it and after it.

        The place after one call is that before the next. In `make test` a process dies after the last and the decisive
        calls alone.
        """
        slowest = {
            "delta-update": 3, "delta-objects-update": 5, "iceberg": 3, "iceberg-parted": 7, "iceberg-update": 7,
            "ducklake": 5,
        }  # fmt: skip
        trace = self.calls(act)
        for number, decides in _tried(trace, self._every(slowest)):
            for happened in (False, True) if IS_LONG or decides or number == len(trace) else (False,):
                with self.copy() as trial:
                    calls = Calls()
                    calls.die_at(number, happened=happened)
                    try:
                        act(trial.sink(calls))
                    except Died:
                        yield trial

    def holds(self, act: Act, meanwhile: Callable[[Place, int], None]) -> Iterator[Place]:
        """The place after a process was held at each call, while others did what they do there."""
        slowest = {"iceberg": 3, "iceberg-parted": 7, "iceberg-update": 7, "ducklake": 5}
        for number, _ in _tried(self.calls(act), self._every(slowest)):
            with self.copy() as trial:
                calls = Calls()

                def hold(now: int, call: str, *, at: int = number, trial: Place = trial) -> None:
                    if now == at:
                        meanwhile(trial, at)

                calls.at = hold
                for _ in range(3):
                    with contextlib.suppress(RetriableError):
                        act(trial.sink(calls))
                        break
                yield trial


def _tried(trace: list[str], every: int) -> Iterator[tuple[int, bool]]:
    """Numbers of calls: every so-manyth, the decisive ones and the last; whether it is a decisive one."""
    for number, call in enumerate(trace, 1):
        decides = call.lower().startswith(DECISIVE)
        if decides or (number - 1) % every == 0 or number == len(trace):
            yield number, decides


def begun(place: Place, root: Path) -> Trials:
    """Two sequences staged, and what a zombie left; nothing published."""
    place.at(root / "first")
    sink = place.sink()
    sink.check(SCHEMA)
    for key in (*KEYS, *NEXT, *QUIET, ZOMBIE):
        sink.stage(key, table(STAGED.get(key, [])))
    return Trials(place, root)


def publish(sink: Sink) -> None:
    sink.publish(1, KEYS)


def _others_publish(place: Place, number: int) -> None:
    """Another publishes and sweeps; where the one that is held has the database to itself, it is told to come back."""
    sink = place.sink()
    with contextlib.suppress(RetriableError):
        publish(sink)
        sink.sweep(Keep(EPOCH))
        sink.publish(2, NEXT)
    assert same(place.rows(), []) or same(place.rows(), merged(place, FIRST)) or same(
        place.rows(), merged(place, FIRST, SECOND)
    ), place.rows()  # fmt: skip


def all_is_well(place: Place) -> None:
    """Whoever comes next publishes all; nothing was lost, nothing comes twice; nothing is left."""
    sink = place.sink()
    assert sink.published() in (0, 1, 2)
    for sequence, keys in ((1, KEYS), (2, NEXT), (3, QUIET)):
        sink.publish(sequence, keys)
    assert same(place.rows(), merged(place, FIRST, SECOND)), place.rows()
    assert sink.published() == 3
    sink.sweep(Keep(EPOCH + 1))
    assert place.staged() == []


def killed_publishers(place: Place, root: Path) -> None:
    for died in begun(place, root).deaths(publish):
        assert same(died.rows(), []) or same(died.rows(), merged(died, FIRST)), died.rows()
        all_is_well(died)


def held_publishers(place: Place, root: Path) -> None:
    """One is held at each call, another does all of it and sweeps; then the first goes on."""
    for trial in begun(place, root).holds(publish, _others_publish):
        all_is_well(trial)


def killed_while_staging(place: Place, root: Path) -> None:
    place.at(root / "first")
    place.sink().check(SCHEMA)
    for died in Trials(place, root).deaths(lambda sink: sink.stage(KEYS[0], table([(9, "lost")]))):
        assert died.rows() == []
        sink = died.sink()
        for key in (*KEYS, *NEXT, *QUIET):
            sink.stage(key, table(STAGED.get(key, [])))
        all_is_well(died)


def killed_checks(place: Place, root: Path) -> None:
    place.at(root / "first")
    Path(root / "first").mkdir(exist_ok=True)
    for died in Trials(place, root).deaths(lambda sink: sink.check(SCHEMA)):
        sink = died.sink()
        sink.check(SCHEMA)
        for key in (*KEYS, *NEXT, *QUIET):
            sink.stage(key, table(STAGED.get(key, [])))
        all_is_well(died)


def failing_disk(place: Place, root: Path) -> None:
    """Each call fails once, or for a while: an error that says so, nothing half, and the next try goes on."""

    def act(sink: Sink) -> None:
        for key in KEYS:
            sink.stage(key, table(STAGED.get(key, [])))
        sink.publish(1, KEYS)

    place.at(root / "first")
    place.sink().check(SCHEMA)
    trials = Trials(place, root)
    for number in range(1, trials.steps(act) + 1, 2):
        for length in (1, 10_000):
            with trials.copy() as trial:
                calls = Calls()

                def fail(now: int, call: str, *, first: int = number, length: int = length) -> None:
                    if first <= now < first + length and not call.startswith(("listdir", "unlink", "rmdir", "load")):
                        raise _no_space(trial)

                calls.at = fail
                sink = trial.sink(calls)
                for _ in range(2):
                    with contextlib.suppress(OSError, RetriableError):
                        act(sink)
                        break
                    assert same(trial.rows(), []) or same(trial.rows(), merged(trial, FIRST))
                calls.at = lambda now, call: None
                if not trial.rows():
                    act(sink)
                publish(sink)
                assert same(trial.rows(), merged(trial, FIRST))
                sink.sweep(Keep(EPOCH + 1))
                assert trial.staged() == []


def _no_space(place: Place) -> Exception:
    if place.kind.startswith("sqlite"):
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        return error
    return OSError(errno.ENOSPC, "no space")


def sweeps_at_each_moment(place: Place, root: Path) -> None:
    """A sweep at each call of a publish; what a manifest names and what the epoch stages stays."""

    def sweep(trial: Place, number: int) -> None:
        with contextlib.suppress(RetriableError):
            trial.sink().sweep(Keep(EPOCH + number % 2, (*KEYS, *NEXT, *QUIET)))

    for trial in begun(place, root).holds(publish, sweep):
        assert same(trial.rows(), merged(trial, FIRST))
        trial.sink().sweep(Keep(EPOCH, NEXT))
        assert not any(ZOMBIE.file_stem() in name for name in trial.staged())
        all_is_well(trial)


def _half_way(place: Place, root: Path) -> Trials:
    """The first sequence is shown, the second is staged, and so is what is read again."""
    trials = begun(place, root)
    sink = trials.place.sink()
    publish(sink)
    sink.stage(AGAIN, table(STAGED[AGAIN]))
    return trials


def _empty(sink: Sink) -> None:
    sink.empty(3, EPOCH + 1)


def _nothing_returns(place: Place) -> None:
    sink = place.sink()
    _empty(sink)
    assert place.rows() == [] and sink.published() == 3
    sink.publish(4, (AGAIN,))
    assert same(place.rows(), merged(place, STAGED[AGAIN]))
    with contextlib.suppress(CorruptDataError):
        sink.publish(2, NEXT)
    assert same(place.rows(), merged(place, STAGED[AGAIN]))
    sink.sweep(Keep(EPOCH + 2))
    assert place.staged() == []


def killed_while_emptied(place: Place, root: Path) -> None:
    for died in _half_way(place, root).deaths(_empty):
        assert died.rows() == [] or same(died.rows(), merged(died, FIRST))
        _nothing_returns(died)


def killed_while_emptied_as_a_number_that_is_shown(place: Place, root: Path) -> None:
    """The topic is from an older copy: the place has the number of the reset from a sequence that the copy lacks."""
    trials = begun(place, root)
    sink = trials.place.sink()
    publish(sink)
    sink.publish(3, NEXT)
    sink.stage(AGAIN, table(STAGED[AGAIN]))
    assert trials.place.rows() and sink.published() == 3
    for died in trials.deaths(_empty):
        _nothing_returns(died)


def emptied_by_two(place: Place, root: Path) -> None:
    """A process that empties is held at each call, while another does the same and publishes the next sequence."""

    def act(sink: Sink) -> None:
        with contextlib.suppress(FileNotFoundError):  # the other was faster: it is repeated below
            _empty(sink)

    def finish(trial: Place, number: int) -> None:
        with contextlib.suppress(RetriableError):
            _empty(trial.sink())
            trial.sink().publish(4, (AGAIN,))

    for trial in _half_way(place, root).holds(act, finish):
        sink = trial.sink()
        if sink.published() < 4:
            _nothing_returns(trial)
        assert same(trial.rows(), merged(trial, STAGED[AGAIN]))
        _empty(sink)
        assert same(trial.rows(), merged(trial, STAGED[AGAIN])) and sink.published() == 4


def emptied_under_a_publisher(place: Place, root: Path) -> None:
    """One that publishes what is void by now is held at each call, meanwhile all is emptied."""

    def act(sink: Sink) -> None:
        with contextlib.suppress(CorruptDataError):
            sink.publish(2, NEXT)

    def empty(trial: Place, number: int) -> None:
        with contextlib.suppress(RetriableError):
            _empty(trial.sink())
            assert trial.rows() == []

    for trial in _half_way(place, root).holds(act, empty):
        assert trial.rows() == [] or trial.sink().published() < 3
        _nothing_returns(trial)


def emptied_under_the_first_publisher(place: Place, root: Path) -> None:
    """Empty a place where nothing was published yet, so that there is nothing to remove."""

    def act(sink: Sink) -> None:
        with contextlib.suppress(CorruptDataError):
            publish(sink)

    def empty(trial: Place, number: int) -> None:
        with contextlib.suppress(RetriableError):
            _empty(trial.sink())
            assert trial.rows() == []

    trials = begun(place, root)
    trials.place.sink().stage(AGAIN, table(STAGED[AGAIN]))
    for trial in trials.holds(act, empty):
        assert trial.rows() == [] or trial.sink().published() < 3
        _nothing_returns(trial)


OTHER = UUID(int=0xB0B)


def others_write_meanwhile(place: Place, root: Path) -> None:
    """Another region publishes into the same table, at each call of a publisher."""
    key = StagedKey(OTHER, 1, "a", 1)

    def write(trial: Place, number: int) -> None:
        sink = trial.sink(region=OTHER)
        sink.check(SCHEMA)
        sink.stage(key, table([(900, "other")]))
        sink.publish(1, [key])

    for trial in begun(place, root).holds(publish, write):
        assert same(trial.rows(), merged(trial, FIRST, [(900, "other")])), trial.rows()


def _replacing(place: Place, root: Path) -> Trials:
    """The first sequence is shown, and the second replaces some of its rows."""
    trials = begun(place, root)
    publish(trials.place.sink())
    return trials


def _replace(sink: Sink) -> None:
    sink.publish(2, NEXT)


def killed_while_replacing(place: Place, root: Path) -> None:
    for died in _replacing(place, root).deaths(_replace):
        found = died.rows()
        assert same(found, merged(died, FIRST)) or same(found, merged(died, FIRST, SECOND)), found
        all_is_well(died)


def held_while_replacing(place: Place, root: Path) -> None:
    for trial in _replacing(place, root).holds(_replace, _others_publish):
        all_is_well(trial)


def others_replace_meanwhile(place: Place, root: Path) -> None:
    """Another region writes one of the keys, at each call of a publisher: one of the two rows replaces the other."""
    key = StagedKey(OTHER, 1, "a", 1)

    def write(trial: Place, number: int) -> None:
        sink = trial.sink(region=OTHER)
        sink.check(SCHEMA)
        sink.stage(key, table([(4, "other")]))
        sink.publish(1, [key])

    for trial in _replacing(place, root).holds(_replace, write):
        found, wanted = trial.rows(), merged(trial, FIRST, SECOND)
        assert same([row for row in found if row[0] != 4], [row for row in wanted if row[0] != 4]), found
        assert [row[1] for row in found if row[0] == 4] in (["four"], ["other"]), found


def replacing_by_sigkill(place: Place, root: Path) -> None:
    trials = _replacing(place, root)
    total = trials.steps(_replace)
    with Killer(place.kind) as killer:
        killed = 0
        for number in range(1, total + 1, max(1, total // SIGKILLS)):
            with trials.copy() as trial:
                killed += killer.publish(trial, 2, number)
                found = trial.rows()
                assert same(found, merged(trial, FIRST)) or same(found, merged(trial, FIRST, SECOND)), found
                all_is_well(trial)
    assert killed >= min(total, SIGKILLS - 2)


def compacted_meanwhile(place: Place, root: Path) -> None:
    """At each call of a publisher another publishes, and somebody writes the files anew (OPTIMIZE, compaction)."""

    def write(trial: Place, number: int) -> None:
        _others_publish(trial, number)
        trial.compact()  # type: ignore[attr-defined]

    for trial in begun(place, root).holds(publish, write):
        all_is_well(trial)


def a_publisher_while_it_is_emptied(place: Place, root: Path) -> None:
    """The emptying publisher stops at each call while another publishes voided rows."""

    def late(trial: Place, number: int) -> None:
        with contextlib.suppress(CorruptDataError, RetriableError):
            trial.sink().publish(2, NEXT)

    for trial in _half_way(place, root).holds(_empty, late):
        assert trial.rows() == []
        _nothing_returns(trial)


def publishers_by_sigkill(place: Place, root: Path) -> None:
    """Processes of their own, killed by the system at calls all over a publish; then whoever comes next."""
    trials = begun(place, root)
    total = trials.steps(publish)
    with Killer(place.kind) as killer:
        killed = 0
        for number in range(1, total + 1, max(1, total // SIGKILLS)):
            with trials.copy() as trial:
                killed += killer.publish(trial, 1, number)
                assert same(trial.rows(), []) or same(trial.rows(), merged(trial, FIRST)), trial.rows()
                all_is_well(trial)
    assert killed >= min(total, SIGKILLS - 2)


class Killer:
    """A process that has imported all and used nothing: each publisher is a fork of it, which kills itself."""

    def __init__(self, kind: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.region.place_process", kind], text=True, cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def __enter__(self) -> Killer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=30)

    def publish(self, place: Place, sequence: int, at: int) -> bool:
        """Publish in a process that is killed at the so-manyth call (0: at none); whether it was."""
        assert self._process.stdin is not None and self._process.stdout is not None
        root = os.path.dirname(place.path)  # type: ignore[attr-defined]
        print(root, sequence, at, file=self._process.stdin, flush=True)
        code = int(self._process.stdout.readline())
        assert code in (0, -signal.SIGKILL), code
        return code != 0


SEQUENCES = {1: KEYS, 2: NEXT, 3: QUIET}
RUNS: tuple[Callable[[Place, Path], None], ...] = (
    killed_publishers,
    held_publishers,
    killed_while_staging,
    killed_checks,
    failing_disk,
    sweeps_at_each_moment,
    killed_while_emptied,
    killed_while_emptied_as_a_number_that_is_shown,
    emptied_by_two,
    emptied_under_a_publisher,
    emptied_under_the_first_publisher,
    a_publisher_while_it_is_emptied,
    publishers_by_sigkill,
)
SHARED_RUNS = (others_write_meanwhile, compacted_meanwhile)
UPDATE_RUNS = (killed_while_replacing, held_while_replacing, others_replace_meanwhile, replacing_by_sigkill)
