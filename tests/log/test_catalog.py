"""The catalog of topics when its disk fails.

What a caller is told, what is served and what the next start finds agree.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from kohort.errors import CorruptDataError
from kohort.ids import TopicPartition
from kohort.log import LogStore
from kohort.log.catalog import TopicPlan, read_catalog
from kohort.log.check import FolderCheck, locked_folder
from kohort.log.cooperative import run_steps
from tests.log.making import NOW, batch, values

CHANGES: dict[str, Callable[[LogStore], object]] = {
    "made": lambda store: store.create_topic("new", 2),
    "deleted": lambda store: store.delete_topic("t"),
    "grown": lambda store: store.add_partitions("t", 3),
    "configured": lambda store: store.set_configs("t", {"retention.ms": "7"}),
}


@pytest.fixture
def unsynced(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
    """While it is entered, no folder can be synced."""
    real = os.fsync

    def fsync(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    @contextmanager
    def entered() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            yield

    return entered


def filled(folder: Path) -> LogStore:
    store = LogStore(folder)
    store.create_topic("t", 1)
    store.partition(TopicPartition("t", 0)).append(batch(b"x", b"y"), NOW)
    return store


def release_files(store: LogStore) -> None:
    """Give the folder free as a crash would."""
    os.close(store._owned.lock_fd)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_that_was_refused_is_nowhere(
    tmp_path: Path, unsynced: Callable[[], AbstractContextManager[None]], change: Callable[[LogStore], object]
) -> None:
    store = filled(tmp_path / "d")
    before = dict(store.topics)
    with unsynced(), pytest.raises(OSError, match="has its old content again"):
        change(store)
    assert store.topics == before
    assert [tp for tp, _ in store.partitions()] == [TopicPartition("t", 0)]
    release_files(store)
    with LogStore(tmp_path / "d") as again:
        assert again.topics == before
        assert values(again.partition(TopicPartition("t", 0))) == [(0, b"x"), (1, b"y")]
        change(again)
        assert again.topics != before


@pytest.mark.parametrize("settled_by", ["close", "upkeep"])
def test_what_could_not_be_put_back_is_written_again(
    tmp_path: Path,
    unsynced: Callable[[], AbstractContextManager[None]],
    monkeypatch: pytest.MonkeyPatch,
    settled_by: str,
) -> None:
    real, calls = os.replace, []

    def once(path: Path, to: Path) -> None:
        calls.append(to)
        if len(calls) > 1:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        real(path, to)

    store = filled(tmp_path / "d")
    before = dict(store.topics)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", once)
        with unsynced(), pytest.raises(OSError, match="has its new content all the same"):
            store.create_topic("new", 1)
    assert store.topics == before
    assert read_catalog(tmp_path / "d") != before
    if settled_by == "close":
        store.close()
    else:
        while store.run_maintenance_slice(NOW):
            pass
        release_files(store)
    assert read_catalog(tmp_path / "d") == before


@pytest.mark.parametrize("name", ["../t", "a/../../t", "/t", "..", "", "t\0"], ids=ascii)
def test_catalog_with_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    """A folder may come from somewhere else: its partitions' folders must lie in it."""
    filled(tmp_path / "d").close()
    catalog = tmp_path / "d" / "topics.json"
    found = json.loads(catalog.read_text())
    found["topics"][0]["name"] = name
    del found["checksum"]
    catalog.write_text(json.dumps(found))
    (tmp_path / "d" / "t-0").rename(tmp_path / "t-0")
    before = {path.name: path.read_bytes() for path in (tmp_path / "t-0").iterdir()}
    with pytest.raises(CorruptDataError, match="topic name .* is not allowed"):
        LogStore(tmp_path / "d")
    with locked_folder(tmp_path / "d"):
        defects = FolderCheck(tmp_path / "d").run().found
    assert [defect.damage.path for defect in defects] == [catalog]
    assert {path.name: path.read_bytes() for path in (tmp_path / "t-0").iterdir()} == before


def test_a_log_start_that_could_not_be_kept_has_not_moved(
    tmp_path: Path, unsynced: Callable[[], AbstractContextManager[None]]
) -> None:
    store = filled(tmp_path / "d")
    log = store.partition(TopicPartition("t", 0))
    with unsynced(), pytest.raises(OSError, match="it is removed again"):
        log.delete_records(1)
    assert values(log) == [(0, b"x"), (1, b"y")]
    release_files(store)
    with LogStore(tmp_path / "d") as again:
        assert values(again.partition(TopicPartition("t", 0))) == [(0, b"x"), (1, b"y")]


def test_a_folder_is_free_also_when_its_clean_end_could_not_be_noted(
    tmp_path: Path, unsynced: Callable[[], AbstractContextManager[None]]
) -> None:
    store = filled(tmp_path / "d")
    store.delete_topic("t")
    with unsynced(), pytest.raises(OSError, match="it has its old content again"):
        store.close()
    LogStore(tmp_path / "d").close()


@pytest.mark.parametrize("name", ["recovery-point-offset-checkpoint", "log-start-offset-checkpoint"])
def test_a_checkpoint_that_is_no_file_keeps_no_store_from_opening(tmp_path: Path, name: str) -> None:
    store = filled(tmp_path / "d")
    release_files(store)
    (tmp_path / "d" / name).mkdir()
    store = LogStore(tmp_path / "d")
    assert values(store.partition(TopicPartition("t", 0))) == [(0, b"x"), (1, b"y")]
    release_files(store)


def test_a_topic_names_the_journals_that_have_not_seen_it_until_they_have(tmp_path: Path) -> None:
    store = filled(tmp_path / "d")
    asked: list[str] = []

    def unseen() -> tuple[int, ...]:
        assert "new" not in store.topics
        asked.append("now")
        return 3, 5

    making = store.create_topics_in_steps([TopicPlan("new", 2)], unseen)
    next(making)
    assert not asked, "it is asked when the topic is made, and not before"
    run_steps(making)
    assert (
        store.topics_created_since_load(3),
        store.topics_created_since_load(5),
        store.topics_created_since_load(4),
    ) == (["new"], ["new"], [])
    growing = store.add_partitions_in_steps({"new": 3})
    next(growing)
    store.record_topics_cleaned(3)
    run_steps(growing)
    store.set_configs("new", {"retention.ms": "7"})
    release_files(store)
    with LogStore(tmp_path / "d") as store:
        assert (store.topics_created_since_load(3), store.topics_created_since_load(5)) == ([], ["new"])
        store.record_topics_cleaned(5)
    assert "unseen" not in (tmp_path / "d" / "topics.json").read_text()
