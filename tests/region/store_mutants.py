"""Faults planted in sinks in object stores: the checkers of a world with a store must see each of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from obstore.exceptions import AlreadyExistsError, BaseError

from kohort.errors import RetriableError
from kohort.region.sinks import compaction
from kohort.region.sinks.compaction import Compactor, Generation
from kohort.region.sinks.object_store import ObjectStore
from kohort.region.sinks.parquet_objects import SequenceLog, StoreGenerations
from tests.region.mutants import MUTANTS


def _instead(module: Any, name: str, other: Callable[..., Any]) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: mock.patch.object(module, name, other)


def _put_anyway(store: ObjectStore, path: str, data: bytes) -> bytes:
    store.put_object(path, data)
    return data


@contextlib.contextmanager
def _publishes_without_condition() -> Iterator[None]:
    """Also the check before the first record, which would refuse the store."""
    with (
        mock.patch.object(ObjectStore, "create_object", _put_anyway),
        mock.patch.object(ObjectStore, "check_conditional", return_value=None),
    ):
        yield


def _takes_an_error_for_a_refusal(store: ObjectStore, path: str, data: bytes) -> bytes:
    try:
        store._raw.put(path, data, mode="create", use_multipart=False)
    except AlreadyExistsError:
        return store.read_object(path)
    except BaseError as error:
        if path.startswith("_sequences/compaction-"):
            return b""
        raise RetriableError(str(error)) from None
    return data


def _removes_orphans_first(compactor: Compactor, *given: Any) -> Any:
    store = compactor._store
    base = store.newest()
    store.remove_files([path for path in store.merged_files() if path not in base.files | base.replaced])
    return _ATTEMPT(compactor, *given)


_ATTEMPT = Compactor._attempt


def _forgets_the_grace(generations: StoreGenerations, generation: Generation) -> bool:
    created = _CREATE(generations, generation)
    if created:
        generations.remove_files(generation.replaced)
    return created


_CREATE = StoreGenerations.create_generation


STORE_MUTANTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "publish without a condition": _publishes_without_condition,
    "a publisher does not look whether its sequence is done": _instead(
        SequenceLog, "is_done", lambda log, sequence: False
    ),
    "a compactor takes an unknown outcome for a refusal": _instead(
        ObjectStore, "create_object", _takes_an_error_for_a_refusal
    ),
    "a sweep takes what a manifest names": MUTANTS["what still counts is swept"],
    "a compactor removes orphans before its generation": _instead(Compactor, "_attempt", _removes_orphans_first),
    "replaced files are removed at once": _instead(StoreGenerations, "create_generation", _forgets_the_grace),
    "an emptied folder is not fenced from compactors": _instead(
        Compactor, "fence_emptied", lambda compactor, sequence: None
    ),
    "only the last generation is kept": _instead(compaction, "old_generations", lambda numbers: sorted(numbers)[:-1]),
}
