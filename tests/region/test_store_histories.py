"""A region whose sinks are in an object store, in virtual time: requests fail, are late, or take their time."""

from __future__ import annotations

import random
from typing import Any

import pytest
from obstore.exceptions import AlreadyExistsError
from obstore.store import MemoryStore

from tests.region.store_mutants import STORE_MUTANTS
from tests.region.world.bucket import Bucket, BucketClient
from tests.region.world.world import World
from tests.support.long_runs import IS_LONG

SEEDS = 60 if IS_LONG else 3
"""`python -m tests.region --sinks objects --seeds 20000` plays more."""
KINDS = ("objects", "objects-parted")
MUTANT_SEEDS = 40
SEEN_AT: dict[str, int] = {}
"""Looked at first."""


@pytest.mark.parametrize("kind", KINDS)
def test_histories_with_a_store_are_clean(kind: str) -> None:
    faults, reads, merged = 0, 0, 0
    for seed in range(SEEDS):
        world = World(seed, sinks=kind)
        try:
            world.play()
        except Exception as error:
            error.add_note(f"seed {seed}\n" + "\n".join(world.clock.story[-60:]))
            raise
        faults += sum(world.faults.counts.values())
        reads += sum(getattr(actor, "reads", 0) for actor in world.besides)
        merged += sum(getattr(actor, "merged", 0) for actor in world.besides)
    assert faults > 0 and reads > 0 and merged > 0, "the worlds have faults, readers and compactors"


@pytest.mark.parametrize("name", STORE_MUTANTS if IS_LONG else list(STORE_MUTANTS)[:4])
def test_faults_planted_in_store_sinks_are_seen(name: str) -> None:
    with STORE_MUTANTS[name]():
        for seed in (SEEN_AT.get(name, 0), *range(MUTANT_SEEDS)):
            try:
                World(seed, sinks="objects").play()
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
