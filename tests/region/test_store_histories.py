"""A region whose sinks are in object stores or on a cluster, in virtual time: requests fail, are late or slow."""

from __future__ import annotations

import random
from typing import Any

import pytest
from obstore.exceptions import AlreadyExistsError
from obstore.store import MemoryStore

from tests.region.store_mutants import (
    DELTA_MUTANTS,
    DUCKLAKE_MUTANTS,
    ICEBERG_MUTANTS,
    SQL_MUTANTS,
    STORE_MUTANTS,
    TOPIC_MUTANTS,
)
from tests.region.world.bucket import Bucket, BucketClient
from tests.region.world.world import World
from tests.support.long_runs import IS_LONG

SEEDS = 60 if IS_LONG else 3
"""`python -m tests.region --sinks objects --seeds 20000` plays more."""
KINDS = ("objects", "objects-parted", "delta", "ducklake", "iceberg", "sql", "topic")
SEEDS_OF = {"ducklake": 20 if IS_LONG else 2}
"""DuckDB takes seconds for a history."""
MUTANT_SEEDS = 40
SEEN_AT = {
    "objects: publish without a condition": 91,
    "objects: a publisher does not look whether its sequence is done": 16,
    "objects: a compactor takes an unknown outcome for a refusal": 68,
    "objects: a compactor removes orphans before its generation": 17,
    "objects: replaced files are removed at once": 1,
    "delta: a commit has no condition": 1,
    "delta: a publisher commits before it looks": 13,
    "delta: a sweep takes what a manifest names": 1,
    "delta: what is void stays": 3,
    "delta: rows are counted from another version": 3,
    "ducklake: publish without the guard": 8,
    "ducklake: a retry does not look first": 16,
    "ducklake: a sweep takes what a manifest names": 1,
    "ducklake: offsets are taken from another snapshot": 1,
    "ducklake: files are removed that the lake has": 7,
    "ducklake: what is void stays": 7,
    "iceberg: a retry does not look first": 3,
    "iceberg: manifests of a commit are removed that was taken": 14,
    "iceberg: what is void stays": 3,
    "sql: a retry does not look first": 26,
    "topic: a publisher does not look at the marker": 7,
    "topic: a topic is emptied up to whatever its end is then": 6,
    "objects: a sweep takes what a manifest names": 1,
    "iceberg: a sweep takes what a manifest names": 1,
}
"""Looked at first."""
SHORT = (
    "objects: publish without a condition",
    "objects: a publisher does not look whether its sequence is done",
    "objects: a sweep takes what a manifest names",
    "delta: a commit has no condition",
    "delta: a publisher commits before it looks",
    "delta: a sweep takes what a manifest names",
    "ducklake: a sweep takes what a manifest names",
    "ducklake: offsets are taken from another snapshot",
    "iceberg: a retry does not look first",
    "iceberg: a sweep takes what a manifest names",
    "iceberg: offsets are taken from another snapshot",
    "sql: publish without the guard",
    "sql: a sequence is recorded in a transaction of its own",
    "sql: a sequence is recorded for all tables",
    "sql: a sweep takes what a manifest names",
    "topic: a transaction is committed without its sequence",
)
"""Those in `make test`."""


@pytest.mark.parametrize("kind", KINDS)
def test_histories_with_a_store_are_clean(kind: str) -> None:
    faults = beside = 0
    for seed in range(1, 1 + SEEDS_OF.get(kind, SEEDS)):
        world = World(seed, sinks=kind)
        try:
            world.play()
        except Exception as error:
            error.add_note(f"seed {seed}\n" + "\n".join(world.clock.story[-60:]))
            raise
        faults += sum(world.faults.counts.values())
        beside += sum(actor.done > 0 for actor in world.besides)
    assert faults > 0 and beside > 1, "requests fail, and others use the sinks too"


HAD_A_FAULT = (
    ("topic", 100_162),
    ("topic", 200_253),
    ("topic", 100_004),
    ("topic", 100_154),
    ("iceberg", 100_019),
    ("objects-parted", 100_084),
    ("objects", 100_108),
    ("objects", 100_506),
    ("objects-parted", 100_432),
    *([("ducklake", 6)] if IS_LONG else []),
)
"""A publisher that another had overtaken said that staged rows are gone. One that woke while it emptied a topic deleted
rows that another had published since (topic 200253). A folder of states, whose name could not be synced at first, went
with a power loss. A lake whose rows a person had deleted was refused. The world had faults too: late requests to
restored stores, readers of an older copy, and requests held within one another for ever."""


@pytest.mark.parametrize(("kind", "seed"), HAD_A_FAULT, ids=[f"{kind}-{seed}" for kind, seed in HAD_A_FAULT])
def test_histories_with_a_store_that_had_a_fault_are_clean(kind: str, seed: int) -> None:
    World(seed, sinks=kind).play()


MUTANTS_OF = {
    "objects": STORE_MUTANTS, "delta": DELTA_MUTANTS, "ducklake": DUCKLAKE_MUTANTS, "iceberg": ICEBERG_MUTANTS,
    "sql": SQL_MUTANTS, "topic": TOPIC_MUTANTS,
}  # fmt: skip
PLANTED = {f"{kind}: {name}": (kind, plant) for kind, mutants in MUTANTS_OF.items() for name, plant in mutants.items()}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", PLANTED if IS_LONG else SHORT)
def test_faults_planted_in_store_sinks_are_seen(name: str) -> None:
    kind, plant = PLANTED[name]
    with plant():
        for seed in (SEEN_AT.get(name, 0), *range(MUTANT_SEEDS)):
            try:
                World(seed, sinks=kind).play()
            except Exception:  # noqa: BLE001 - a violation, or the sink's own error
                return
    pytest.fail(f"{name}: not seen in {MUTANT_SEEDS} histories")


def test_bucket_answers_as_a_store_in_memory_does() -> None:
    """Each answer and each refusal is that of obstore's store to the same requests."""
    chance, real = random.Random(7), MemoryStore()
    client = BucketClient(Bucket(), None)
    paths = [f"{folder}{name}" for folder in ("", "a/", "a/b/", "ab/") for name in ("x", "y")]
    for number in range(2_000):
        path, other = chance.choice(paths), chance.choice(paths)
        what = chance.choice(("put", "create", "get", "copy", "delete", "list", "top"))
        mode, prefix = ("create" if what == "create" else "overwrite"), chance.choice(("a/", "a/b/", "ab/"))
        offset = chance.choice((None, path))
        answers: list[object] = []
        stores: tuple[Any, ...] = (real, client)
        for store in stores:
            try:
                match what:
                    case "put" | "create":
                        store.put(path, str(number).encode(), mode=mode, use_multipart=False)
                        answers.append("")
                    case "get":
                        found = store.get(path)
                        answers.append((bytes(found.bytes()), found.meta["size"], store.head(path)["size"]))
                    case "copy":
                        answers.append(store.copy(path, other))
                    case "delete":
                        answers.append(store.delete([path, other]))
                    case "list":
                        pages = store.list(prefix, offset=offset, chunk_size=2)
                        answers.append(sorted(entry["path"] for page in pages for entry in page))
                    case _:
                        top = store.list_with_delimiter(prefix)
                        answers.append((sorted(top["common_prefixes"]), [entry["path"] for entry in top["objects"]]))
            except (AlreadyExistsError, FileNotFoundError) as error:
                answers.append(type(error).__name__)
        assert answers[0] == answers[1], f"{what} {path}"
