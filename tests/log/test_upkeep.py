"""Upkeep and changes of topics that go on in slices, and what happens between two of them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kohort.ids import TopicPartition
from kohort.log import LogStore, StoreLimits, run_steps
from kohort.log import store as store_module
from tests.log.making import NOW, batch, keyed, values

COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "400000", "min.cleanable.dirty.ratio": "0"}


@pytest.fixture
def shortest_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each slice of upkeep is one step."""
    monkeypatch.setattr(store_module, "_SLICE_S", 0.0)


def test_settings_that_are_altered_while_a_topic_grows_are_kept(tmp_path: Path) -> None:
    with LogStore(tmp_path / "d") as store:
        store.create_topic("t", 1)
        growing = store.add_partitions_in_steps({"t": 3})
        next(growing)
        store.set_configs("t", {"retention.ms": "-1"})
        run_steps(growing)
        assert (store.topics["t"].partitions, dict(store.topics["t"].configs)) == (3, {"retention.ms": "-1"})
        assert [partition.config.retention_ms for _, partition in store.partitions()] == [-1, -1, -1]
    with LogStore(tmp_path / "d") as store:
        assert store.log_config("t").retention_ms == -1


@pytest.mark.usefixtures("shortest_slices")
def test_a_topic_that_is_deleted_while_it_is_compacted_ends_no_upkeep(tmp_path: Path) -> None:
    with LogStore(tmp_path / "d") as store:
        for name in ("gone", "kept"):
            store.create_topic(name, 1, COMPACTED)
            log = store.partition(TopicPartition(name, 0))
            for number in range(2_000):
                log.append(keyed((b"%d" % (number % 7), bytes(500))), NOW)
        now_ms = int(time.time() * 1000) + 10_000
        for _ in range(20):
            assert store.run_maintenance_slice(now_ms)
        store.delete_topic("gone")
        while store.run_maintenance_slice(now_ms):
            pass
        kept = store.partition(TopicPartition("kept", 0))
        assert kept.cleaned_offset == kept.active.base_offset > 0


@pytest.mark.usefixtures("shortest_slices")
def test_a_log_whose_file_is_closed_between_two_slices_is_compacted_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with LogStore(tmp_path / "d", limits=StoreLimits(open_files=4)) as store:
        store.create_topic("t", 1, COMPACTED)
        store.create_topic("others", 10)
        log = store.partition(TopicPartition("t", 0))
        for number in range(3_000):
            log.append(keyed((b"%d" % number, bytes(500))), NOW)
        now_ms = int(time.time() * 1000) + 10_000
        while store.run_maintenance_slice(now_ms):
            for number in range(10):
                store.partition(TopicPartition("others", number)).append(batch(b"x"), NOW)
        assert not [line.getMessage() for line in caplog.records if "not compacted" in line.getMessage()]
        assert log.cleaned_offset == log.active.base_offset > 0
        assert len(values(log)) == 3_000


@pytest.mark.usefixtures("shortest_slices")
def test_flushes_by_time_do_not_wait_for_folders_that_are_removed(tmp_path: Path) -> None:
    with LogStore(tmp_path / "d") as store:
        store.create_topic("gone", 50)
        store.create_topic("timed", 1, {"flush.ms": "1000"})
        for number in range(50):
            store.partition(TopicPartition("gone", number)).append(batch(b"x"), NOW)
        timed = store.partition(TopicPartition("timed", 0))
        timed.append(batch(b"x"), NOW)
        run_steps(store.delete_topics_in_steps(["gone"]))
        assert store.run_maintenance_slice(NOW)
        assert store.run_maintenance_slice(NOW + 1_000), "there are folders left"
        assert timed.flushed_offset == 1
