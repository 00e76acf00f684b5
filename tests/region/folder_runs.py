"""A Parquet folder on a disk in memory: every step at which a process can die, fail or be held, and what must hold."""

from __future__ import annotations

import contextlib
import copy
import errno
import random
from collections.abc import Callable, Iterator
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from kohort.errors import CorruptDataError, InvalidInputError
from kohort.region.sinks import Keep
from kohort.region.sinks.parquet_folder import ParquetFolder
from kohort.region.staged import StagedKey
from tests.region.volume import Calls, Died, Volume
from tests.support.long_runs import IS_LONG

REGION = UUID(int=0xA11CE)
OTHER = UUID(int=0xB0B)
SCHEMA = pa.schema([("id", pa.int64())])
EPOCH = 5
KEYS = tuple(StagedKey(REGION, EPOCH, member, 1) for member in ("a", "b", "idle"))
NEXT = tuple(StagedKey(REGION, EPOCH, member, 2) for member in ("a", "b", "idle"))
QUIET = (StagedKey(REGION, EPOCH, "idle", 3),)
ZOMBIE = StagedKey(REGION, EPOCH - 1, "a", 9)
AGAIN = StagedKey(REGION, EPOCH + 1, "a", 0)
AGAIN_ROWS = [1, 2, 4]
ROWS = {AGAIN: AGAIN_ROWS, KEYS[0]: [1, 2], KEYS[1]: [3], NEXT[0]: [4], NEXT[1]: [5, 6], ZOMBIE: [666]}
FIRST, SECOND = [1, 2, 3], [4, 5, 6]
SEEDS = range(6 if IS_LONG else 3)
EMPTIED_SEEDS = range(10)


def table(key: StagedKey) -> pa.Table:
    return pa.table({"id": ROWS.get(key, [])}, schema=SCHEMA)


def folder(calls: Calls, region: UUID = REGION) -> ParquetFolder:
    made = ParquetFolder("/out")
    made._files = calls
    return made.bind(f"region-{region.int}", region)


def process(volume: Volume) -> tuple[ParquetFolder, Calls]:
    calls = Calls(volume)
    return folder(calls), calls


def seen(volume: Volume) -> dict[int, list[int]]:
    """Return the ids in each checkpoint's folder, as any reader sees them."""
    found: dict[int, list[int]] = {}
    out = (volume.root.names or {}).get("out")
    for name, node in ((out.names if out else None) or {}).items():
        if name.startswith(("_", ".")):
            continue
        ids: list[int] = []
        for file, data in (node.names or {}).items():
            if not file.startswith(("_", ".")):
                ids += pq.read_table(pa.BufferReader(bytes(data.data))).column("id").to_pylist()
        found[int(name.removeprefix("sequence="))] = sorted(ids)
    return found


def staged_names(volume: Volume) -> set[str]:
    out = (volume.root.names or {})["out"]
    return set(((out.names or {})["_staging"].names) or {})


def begun() -> Volume:
    """Two sequences staged, and what a zombie left; nothing published."""
    volume = Volume()
    sink, _ = process(volume)
    sink.check(SCHEMA)
    for key in (*KEYS, *NEXT, *QUIET, ZOMBIE):
        sink.stage(key, table(key))
    return volume


def steps(volume: Volume, act: Callable[[ParquetFolder], None]) -> int:
    """How many calls it takes."""
    trial = copy.deepcopy(volume)
    sink, calls = process(trial)
    act(sink)
    return calls.number


def deaths(volume: Volume, act: Callable[[ParquetFolder], None]) -> Iterator[Volume]:
    """The disk after a process died at each call of what it did, before and after it."""
    for number in range(1, steps(volume, act) + 1):
        for happened in (False, True):
            trial = copy.deepcopy(volume)
            sink, calls = process(trial)
            calls.die_at(number, happened=happened)
            try:
                act(sink)
            except Died:
                yield trial


def publish(sink: ParquetFolder) -> None:
    sink.publish(1, KEYS)


def publish_again_and_more(volume: Volume) -> None:
    """Whoever comes next publishes both sequences; nothing was lost, nothing comes twice."""
    sink, _ = process(volume)
    before = sink.published()
    assert before in (0, 1)
    for sequence, keys in ((1, KEYS), (2, NEXT), (3, QUIET)):
        sink.publish(sequence, keys)
    assert seen(volume) == {1: FIRST, 2: SECOND}, seen(volume)
    assert sink.published() == 3


def killed_publishers() -> None:
    for volume in deaths(begun(), publish):
        assert seen(volume) in ({}, {1: FIRST})
        publish_again_and_more(volume)


def power_lost() -> None:
    for volume in deaths(begun(), publish):
        for seed in SEEDS:
            trial = copy.deepcopy(volume)
            trial.lose_power(random.Random(seed))
            assert seen(trial) in ({}, {1: FIRST})
            publish_again_and_more(trial)


def power_lost_after_a_word_was_given() -> None:
    """Results of `publish` and `published` survive a power loss, though nothing but they themselves called fsync."""
    base = begun()
    for held in [*deaths(base, publish)]:
        for ask in (publish, lambda sink: sink.published()):
            said = copy.deepcopy(held)
            sink, _ = process(said)
            ask(sink)
            done = sink.published() if ask is not publish else 1
            for seed in SEEDS:
                trial = copy.deepcopy(said)
                trial.lose_power(random.Random(seed))
                again, _ = process(trial)
                assert again.published() >= done
                assert seen(trial) == {1: FIRST} or not done
                publish_again_and_more(trial)


def an_empty_sequence_and_a_power_loss() -> None:
    volume = begun()
    sink, _ = process(volume)
    publish_again_and_more(volume)
    sink.sweep(Keep(EPOCH + 1))
    for seed in SEEDS:
        trial = copy.deepcopy(volume)
        trial.lose_power(random.Random(seed))
        again, _ = process(trial)
        assert again.published() == 3
        again.publish(3, QUIET)


def killed_while_staging() -> None:
    volume = Volume()
    sink, _ = process(volume)
    sink.check(SCHEMA)
    for died in deaths(volume, lambda sink: sink.stage(KEYS[0], table(KEYS[0]))):
        for seed in SEEDS:
            trial = copy.deepcopy(died)
            trial.lose_power(random.Random(seed))
            assert seen(trial) == {}
            again, _ = process(trial)
            for key in KEYS:
                again.stage(key, table(key))
            trial.lose_power(random.Random(seed + 100))
            again.publish(1, KEYS)
            assert seen(trial) == {1: FIRST}


def failing_disk(code: int = errno.ENOSPC) -> None:
    """Each call fails once: an OSError, nothing half, and the next try goes on; also one that fails for a while."""

    def act(sink: ParquetFolder) -> None:
        for key in KEYS:
            sink.stage(key, table(key))
        sink.publish(1, KEYS)

    empty = Volume()
    process(empty)[0].check(SCHEMA)
    for number in range(1, steps(empty, act) + 1):
        for length in (1, 3, 10_000):
            trial = copy.deepcopy(empty)
            sink, calls = process(trial)

            def fail(now: int, name: str, path: str, *, first: int = number, length: int = length) -> None:
                grows = name in ("write", "mkdir", "link", "open", "rename", "fsync")
                if first <= now < first + length and grows:
                    raise OSError(code, "no space", path)

            calls.at = fail
            for _ in range(3):
                try:
                    act(sink)
                    break
                except OSError as error:
                    if error.errno != code:
                        raise
                    assert seen(trial) in ({}, {1: FIRST})
            calls.at = lambda now, name, path: None
            if sink.published() == 0:
                for key in KEYS:
                    if not seen(trial):
                        sink.stage(key, table(key))
                sink.publish(1, KEYS)
            assert seen(trial) == {1: FIRST}
            sink.sweep(Keep(EPOCH + 1))
            assert staged_names(trial) == set()


def held_publishers() -> None:
    """One is held at each call, another does all of it and sweeps, or dies in it; then the first goes on."""
    base = begun()
    total = steps(base, publish)
    for number in range(1, total + 1):
        for death in (0, *range(1 + number % 5, total + 1, 5)):
            for happened in (False, True) if death else (False,):
                trial = copy.deepcopy(base)
                sink, calls = process(trial)

                def meanwhile(
                    now: int, name: str, path: str, *, at: int = number, death: int = death, happened: bool = happened,
                    trial: Volume = trial,
                ) -> None:  # fmt: skip
                    if now != at:
                        return
                    other, theirs = process(trial)
                    if death:
                        theirs.die_at(death, happened=happened)
                    with contextlib.suppress(Died):
                        publish(other)
                        other.sweep(Keep(EPOCH))
                        other.publish(2, NEXT)
                        other.publish(3, QUIET)  # without rows: its mark alone says that it is published
                    assert seen(trial).get(1, FIRST) == FIRST

                calls.at = meanwhile
                publish(sink)
                assert seen(trial) in ({1: FIRST}, {1: FIRST, 2: SECOND})
                assert death or process(trial)[0].published() == 3, "a late publisher takes no mark back"
                publish_again_and_more_from_any(trial)


def _published() -> Volume:
    """The first sequence is shown, the second is staged, and so is what is read again."""
    volume = begun()
    publish(process(volume)[0])
    process(volume)[0].stage(AGAIN, table(AGAIN))
    return volume


def _empty(sink: ParquetFolder) -> None:
    sink.empty(3, EPOCH + 1)


def _empty_and_more(volume: Volume) -> None:
    """Whoever comes next empties it, or has nothing to do; then what was read again is shown, and that alone."""
    sink, _ = process(volume)
    _empty(sink)
    assert seen(volume) == {} and sink.published() == 3
    sink.publish(4, (AGAIN,))
    assert seen(volume) == {4: AGAIN_ROWS}


def emptied() -> None:
    """Killed, or without power, at each call: nothing comes back."""
    base = _published()
    assert seen(base) == {1: FIRST}
    for died in deaths(base, _empty):
        assert seen(died) in ({1: FIRST}, {})
        for seed in EMPTIED_SEEDS:
            trial = copy.deepcopy(died)
            trial.lose_power(random.Random(seed))
            assert seen(trial) in ({1: FIRST}, {})
            _empty_and_more(trial)
        _empty_and_more(died)
    for seed in EMPTIED_SEEDS:
        trial = copy.deepcopy(base)
        _empty(process(trial)[0])
        trial.lose_power(random.Random(seed))
        assert seen(trial) == {} and process(trial)[0].published() == 3, "it had said so"


def emptied_under_a_publisher() -> None:
    """One that publishes what is void by now is held at each call, or before it, meanwhile all is emptied."""
    base = _published()

    def act(sink: ParquetFolder) -> None:
        sink.publish(2, NEXT)

    for number in range(1, steps(base, act) + 1):
        trial = copy.deepcopy(base)
        sink, calls = process(trial)

        def meanwhile(now: int, name: str, path: str, *, at: int = number, trial: Volume = trial) -> None:
            if now == at:
                _empty(process(trial)[0])
                assert seen(trial) == {}

        calls.at = meanwhile
        with contextlib.suppress(CorruptDataError):
            act(sink)
        assert seen(trial) == {}, f"shown by a call after {calls.trace[number - 1]}"
        _empty_and_more(trial)


def a_publisher_while_it_is_emptied() -> None:
    """The emptying publisher stops at each call while another publishes voided rows, or dies doing so."""
    base = _published()
    for number in range(1, steps(base, _empty) + 1):
        for death in range(0, steps(base, lambda sink: sink.publish(2, NEXT)) + 1, 3):
            trial = copy.deepcopy(base)
            sink, calls = process(trial)

            def meanwhile(
                now: int, name: str, path: str, *, at: int = number, death: int = death, trial: Volume = trial
            ) -> None:
                if now == at:
                    other, theirs = process(trial)
                    if death:
                        theirs.die_at(death, happened=bool(death % 2))
                    with contextlib.suppress(CorruptDataError, Died):
                        other.publish(2, NEXT)

            calls.at = meanwhile
            _empty(sink)
            assert seen(trial) == {}, f"published before {calls.trace[number - 1]}"
            _empty_and_more(trial)


def publish_again_and_more_from_any(volume: Volume) -> None:
    sink, _ = process(volume)
    assert sink.published() in (1, 2, 3)
    for sequence, keys in ((1, KEYS), (2, NEXT), (3, QUIET)):
        sink.publish(sequence, keys)
    assert seen(volume) == {1: FIRST, 2: SECOND}
    sink.sweep(Keep(EPOCH + 1))
    assert staged_names(volume) == set()


def sweeps_at_each_moment() -> None:
    """A sweep at each call of a publish, itself killed at any; what a manifest names and the epoch stages stays."""
    base = begun()

    def sweep(sink: ParquetFolder) -> None:
        sink.sweep(Keep(EPOCH, KEYS))

    for number in range(1, steps(base, publish) + 1):
        for death in range(steps(base, sweep) + 3):
            trial = copy.deepcopy(base)
            sink, calls = process(trial)

            def meanwhile(
                now: int, name: str, path: str, *, at: int = number, death: int = death, trial: Volume = trial
            ) -> None:
                if now == at:
                    other, theirs = process(trial)
                    if death:
                        theirs.die_at(death, happened=True)
                    with contextlib.suppress(Died):
                        sweep(other)

            calls.at = meanwhile
            publish(sink)
            assert seen(trial) == {1: FIRST}
            sink.sweep(Keep(EPOCH, NEXT))
            assert not any(name.startswith(ZOMBIE.file_stem()) for name in staged_names(trial))
            publish_again_and_more(trial)


def swept_keys_of_older_epochs() -> None:
    """After a reset the last manifest still has to be published: its keys are of an epoch that is over."""
    volume = begun()
    sink, _ = process(volume)
    sink.sweep(Keep(EPOCH + 1, KEYS))
    assert not any(name.startswith(key.file_stem()) for key in (*NEXT, ZOMBIE) for name in staged_names(volume))
    sink.publish(1, KEYS)
    assert seen(volume) == {1: FIRST}


def given_up_folders() -> None:
    """A publisher is held right before its rename; its folder is given up by one that dies while emptying it."""
    base = begun()
    total = steps(base, publish)
    for death in range(1, total + 15):
        trial = copy.deepcopy(base)
        sink, calls = process(trial)
        did: list[bool] = []

        def meanwhile(
            now: int, name: str, path: str, *, death: int = death, trial: Volume = trial, did: list[bool] = did
        ) -> None:
            if name == "rename" and "sequence=" in path and not did:
                did.append(True)
                other, theirs = process(trial)
                theirs.die_at(death, happened=True)
                with contextlib.suppress(Died):
                    publish(other)
                out = (trial.root.names or {})["out"].names or {}
                if process(trial)[0].published():
                    out.pop("sequence=1", None)  # its readers have moved it elsewhere

        calls.at = meanwhile
        publish(sink)
        assert did
        assert seen(trial) in ({}, {1: FIRST})


def refusal(sink: ParquetFolder) -> list[str]:
    try:
        sink.check(SCHEMA)
    except InvalidInputError as error:
        return [str(error)]
    return []


def two_regions() -> None:
    """Two regions meet at a new folder, at each call of one: it becomes one's, and the other hears of it."""
    for number in range(1, steps(Volume(), lambda sink: sink.check(SCHEMA)) + 1):
        trial = Volume()
        sink, calls = process(trial)
        refused: list[str] = []

        def meanwhile(
            now: int, name: str, path: str, *, at: int = number, trial: Volume = trial, refused: list[str] = refused
        ) -> None:
            if now == at:
                refused.extend(refusal(folder(Calls(trial), OTHER)))

        calls.at = meanwhile
        refused += refusal(sink)
        assert len(refused) == 1 and "belongs to region" in refused[0], refused


def killed_checks() -> None:
    for died in deaths(Volume(), lambda sink: sink.check(SCHEMA)):
        for seed in SEEDS:
            trial = copy.deepcopy(died)
            trial.lose_power(random.Random(seed))
            sink, _ = process(trial)
            sink.check(SCHEMA)
            trial.lose_power(random.Random(seed + 50))
            for key in KEYS:
                sink.stage(key, table(key))
            trial.lose_power(random.Random(seed + 100))
            process(trial)[0].publish(1, KEYS)
            assert seen(trial) == {1: FIRST}
            process(trial)[0].check(SCHEMA)
            assert not any("probe" in name for name in (trial.root.names or {})["out"].names or {})
