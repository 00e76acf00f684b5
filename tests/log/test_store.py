"""A data folder: its owner, its catalog, and changes interrupted halfway."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from kohort.errors import CorruptDataError, ErrorCode, InvalidInputError, KafkaError, NotFoundError
from kohort.ids import TopicPartition
from kohort.log import LogConfig, LogStore, StoreLimits
from kohort.log.compaction import compact_now
from kohort.log.cooperative import run_steps
from kohort.log.retention import delete_old_segments
from tests.log.making import NOW, batch, keyed, values


def test_topics_and_records_survive_a_restart(tmp_path: Path) -> None:
    with LogStore(tmp_path / "d") as store:
        made = store.create_topic("flights", 3, {"retention.ms": "5000"})
        store.partition(TopicPartition("flights", 2)).append(batch(b"x"), NOW)
        cluster = store.cluster_id
    with LogStore(tmp_path / "d") as store:
        assert store.topics == {"flights": made}
        assert store.topics_by_id[made.id] is store.topics["flights"]
        assert store.cluster_id == cluster
        assert store.log_config("flights").retention_ms == 5000
        assert values(store.partition(TopicPartition("flights", 2))) == [(0, b"x")]
        assert [tp.partition for tp, _ in store.partitions()] == [0, 1, 2]


def test_a_second_broker_is_refused_with_the_first_ones_process(tmp_path: Path) -> None:
    with LogStore(tmp_path / "d"):
        with pytest.raises(InvalidInputError, match=rf"in use by another broker \(process {os.getpid()}\)"):
            LogStore(tmp_path / "d")
        program = "import sys; from kohort.log import LogStore; LogStore(sys.argv[1])"
        other = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "d")], capture_output=True, text=True, check=False
        )
        assert other.returncode == 1
        assert f"process {os.getpid()}" in other.stderr
    LogStore(tmp_path / "d").close()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("x")
    with pytest.raises(InvalidInputError, match=r"thesis\.txt"):
        LogStore(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_another_brokers_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=abc\n")
    (tmp_path / "__cluster_metadata-0").mkdir()
    with pytest.raises(InvalidInputError, match="another kind of broker"):
        LogStore(tmp_path)


def test_a_topic_cannot_make_the_folder_look_like_another_brokers(tmp_path: Path) -> None:
    """Earlier versions created it on request, and then refused their own folder."""
    with LogStore(tmp_path) as store, pytest.raises(InvalidInputError, match="is the quorum's"):
        store.create_topic("__cluster_metadata", 1)
    (tmp_path / "__cluster_metadata-0").mkdir()
    LogStore(tmp_path).close()


def test_another_clusters_folder_is_refused(tmp_path: Path) -> None:
    LogStore(tmp_path / "d", cluster_id="one").close()
    with pytest.raises(InvalidInputError, match="belongs to cluster one, not two"):
        LogStore(tmp_path / "d", cluster_id="two")


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "d").write_text("")
    with pytest.raises(InvalidInputError, match="can't use the data folder"):
        LogStore(tmp_path / "d")


@pytest.mark.parametrize(
    ("name", "partitions", "configs", "code"),
    [
        ("", 1, {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        (".", 1, {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("..", 1, {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("a/b", 1, {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("ü", 1, {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("a\n", 1, {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("x" * 250, 1, {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("there_is", 1, {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("there.is", 1, {}, ErrorCode.TOPIC_ALREADY_EXISTS),
        ("t", 0, {}, ErrorCode.INVALID_PARTITIONS),
        ("t", 1, {"retention.mss": "1"}, ErrorCode.INVALID_CONFIG),
        ("t", 1, {"retention.ms": "soon"}, ErrorCode.INVALID_CONFIG),
        ("t", 1, {"cleanup.policy": "burn"}, ErrorCode.INVALID_CONFIG),
        ("t", 1_000_000, {}, ErrorCode.POLICY_VIOLATION),
    ],
)
def test_bad_topics_are_refused(
    tmp_path: Path, name: str, partitions: int, configs: dict[str, str], code: ErrorCode
) -> None:
    with LogStore(tmp_path / "d") as store:
        store.create_topic("there.is", 1)
        for attempt in (store.check_topic, store.create_topic):
            with pytest.raises(InvalidInputError) as caught:
                attempt(name, partitions, configs)
            assert caught.value.code is code
        assert list(store.topics) == ["there.is"]


def test_limits_of_topics(tmp_path: Path) -> None:
    with LogStore(tmp_path / "d", limits=StoreLimits(topics=2, partitions=5)) as store:
        store.create_topic("a", 2)
        store.create_topic("x" * 249, 2)
        for refused in (lambda: store.create_topic("c", 1), lambda: store.add_partitions("a", 9)):
            with pytest.raises(KafkaError) as caught:
                refused()
            assert caught.value.code is ErrorCode.POLICY_VIOLATION


def test_open_files_are_bounded_whatever_there_are_partitions(tmp_path: Path) -> None:
    limits = StoreLimits(open_files=8)
    with LogStore(tmp_path / "d", limits=limits) as store:
        before = len(os.listdir("/proc/self/fd"))
        store.create_topic("wide", 100)
        for number in range(100):
            store.partition(TopicPartition("wide", number)).append(batch(b"x"), NOW)
        assert len(os.listdir("/proc/self/fd")) - before <= 8
    with LogStore(tmp_path / "d", limits=limits) as store:
        assert len(os.listdir("/proc/self/fd")) - before <= 8
        for number in range(100):
            assert values(store.partition(TopicPartition("wide", number))) == [(0, b"x")]
        assert len(os.listdir("/proc/self/fd")) - before <= 8


def test_partitions_can_only_grow(tmp_path: Path) -> None:
    with LogStore(tmp_path / "d") as store:
        made = store.create_topic("a", 2)
        for count in (0, 1, 2):
            with pytest.raises(InvalidInputError) as caught:
                store.add_partitions("a", count)
            assert caught.value.code is ErrorCode.INVALID_PARTITIONS
        assert store.add_partitions("a", 4).id == made.id
        assert store.get("a", 3) is not None
        with pytest.raises(NotFoundError):
            store.add_partitions("b", 4)
    with LogStore(tmp_path / "d") as store:
        assert store.topics["a"].partitions == 4


def test_configs_change_the_open_logs(tmp_path: Path) -> None:
    with LogStore(tmp_path / "d", defaults=LogConfig(segment_bytes=5000)) as store:
        store.create_topic("a", 1, {"retention.ms": "77"})
        store.set_configs("a", {"max.message.bytes": "100"})
        assert store.log_config("a") == LogConfig(segment_bytes=5000, max_message_bytes=100)
        with pytest.raises(KafkaError):
            store.partition(TopicPartition("a", 0)).append(batch(b"x" * 200), NOW)
        with pytest.raises(InvalidInputError) as caught:
            store.set_configs("a", {"segment.bytes": "-5"})
        assert caught.value.code is ErrorCode.INVALID_CONFIG


def test_a_deleted_topic_is_gone_and_can_be_made_again(tmp_path: Path) -> None:
    with LogStore(tmp_path / "d") as store:
        first = store.create_topic("a", 2)
        store.partition(TopicPartition("a", 0)).append(batch(b"x"), NOW)
        old = store.partition(TopicPartition("a", 0))
        reading = old.read(0, 1000)
        store.delete_topic("a")
        assert store.get("a", 0) is None
        with pytest.raises(NotFoundError) as caught:
            store.partition(TopicPartition("a", 0))
        assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not list((tmp_path / "d").glob("a-*"))
        assert len(reading.bytes()) == reading.size, "a reply under way still has its bytes"
        second = store.create_topic("a", 1)
        assert second.id != first.id
        assert store.partition(TopicPartition("a", 0)).end_offset == 0
        for late in (lambda: old.read(0, 1000), lambda: old.append(batch(b"y"), NOW)):
            with pytest.raises(NotFoundError):
                late()
        assert store.partition(TopicPartition("a", 0)).end_offset == 0


def test_a_deletion_interrupted_at_each_step_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Crash(Exception):
        pass

    def crash(*_args: object, **_facts: object) -> Any:
        raise Crash

    real = Path.replace

    def only_temporary(self: Path, to: Path) -> Path:
        return real(self, to) if self.name.endswith(".tmp") else crash()

    folder = tmp_path / "d"
    for target, name, broken in ((Path, "replace", only_temporary), (shutil, "rmtree", crash)):
        store = LogStore(folder)
        store.create_topic("gone", 2)
        if "stays" not in store.topics:
            store.create_topic("stays", 1)
        store.partition(TopicPartition("gone", 1)).append(batch(b"x"), NOW)
        with monkeypatch.context() as patch:
            patch.setattr(target, name, broken)
            with pytest.raises(Crash):
                store.delete_topic("gone")
        _release_lock(store)
        with LogStore(folder) as again:
            assert list(again.topics) == ["stays"]
            assert not [p for p in folder.iterdir() if "gone" in p.name or p.name.endswith("-delete")]


def test_a_deleted_folder_that_keeps_its_name_is_not_removed_once_it_is_another_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removal goes by names that no partition has."""
    real = Path.replace

    def never_aside(self: Path, to: Path) -> Path:
        if str(to).endswith("-delete"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(self, to)

    folder = tmp_path / "d"
    with LogStore(folder) as store:
        for name in ("again", "gone"):
            store.create_topic(name, 1)
            store.partition(TopicPartition(name, 0)).append(batch(b"old"), NOW)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", never_aside)
            run_steps(store.delete_topics_in_steps(["again", "gone"]))
        store.create_topic("again", 1)
        store.partition(TopicPartition("again", 0)).append(batch(b"new"), NOW)
        store.run_maintenance_slice(NOW)
        assert (folder / "again-0").exists()
    with LogStore(folder) as store:
        assert values(store.partition(TopicPartition("again", 0))) == [(0, b"new")]
        assert not (folder / "gone-0").exists()


def _release_lock(store: LogStore) -> None:
    """Give the folder free as a crash would."""
    os.close(store._owned.lock_fd)


def test_a_folder_without_its_catalog_is_not_emptied(tmp_path: Path) -> None:
    with LogStore(tmp_path / "d") as store:
        store.create_topic("a", 1)
        store.partition(TopicPartition("a", 0)).append(batch(b"x"), NOW)
    (tmp_path / "d" / "topics.json").unlink()
    with pytest.raises(CorruptDataError, match="no catalog"):
        LogStore(tmp_path / "d")
    assert (tmp_path / "d" / "a-0").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 9, "topics": []}', '{"version":1,"topics":[{"name":1}]}'])
def test_a_damaged_catalog_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    LogStore(tmp_path / "d").close()
    (tmp_path / "d" / "topics.json").write_text(text)
    with pytest.raises(CorruptDataError, match=r"topics\.json"):
        LogStore(tmp_path / "d")
    (tmp_path / "d" / "topics.json").write_text('{"version": 1, "topics": []}')
    LogStore(tmp_path / "d").close()


def test_files_are_kafkas(tmp_path: Path) -> None:
    topic_id = uuid.UUID("000102030405060708090a0b0c0d0e0f")
    with LogStore(tmp_path / "d", node_id=4) as store:
        store.create_topic("a", 1, topic_id=topic_id)
        log = store.partition(TopicPartition("a", 0))
        log.advance_leader_epoch(3)
        for _ in range(3):
            log.append(batch(b"x", b"y"), NOW)
        log.delete_records(2)
    folder = tmp_path / "d"
    assert (folder / "a-0" / "partition.metadata").read_text() == "version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
    assert (folder / "a-0" / "leader-epoch-checkpoint").read_text() == "0\n1\n3 0\n"
    assert (folder / "recovery-point-offset-checkpoint").read_text() == "0\n1\na 0 6\n"
    assert (folder / "log-start-offset-checkpoint").read_text() == "0\n1\na 0 2\n"
    assert "node.id=4\n" in (folder / "meta.properties").read_text()
    assert (folder / ".kafka_cleanshutdown").exists()
    store = LogStore(folder)
    assert not (folder / ".kafka_cleanshutdown").exists()
    assert store.partition(TopicPartition("a", 0)).log_start_offset == 2
    store.close()


def test_a_log_start_survives_a_crash(tmp_path: Path) -> None:
    store = LogStore(tmp_path / "d")
    store.create_topic("a", 1)
    store.partition(TopicPartition("a", 0)).append(batch(b"x", b"y"), NOW)
    store.partition(TopicPartition("a", 0)).delete_records(1)
    _release_lock(store)
    with LogStore(tmp_path / "d") as again:
        assert values(again.partition(TopicPartition("a", 0))) == [(1, b"y")]


def test_upkeep_compacts_and_expires(tmp_path: Path) -> None:
    with LogStore(tmp_path / "d") as store:
        store.create_topic("kept", 1, {"cleanup.policy": "compact", "segment.bytes": "1000"})
        store.create_topic("aged", 1, {"retention.ms": "10"})
        kept, aged = (store.partition(TopicPartition(name, 0)) for name in ("kept", "aged"))
        for number in range(100):
            kept.append(keyed((b"%d" % (number % 3), b"%d" % number)), NOW)
            aged.append(batch(b"x"), NOW)
        now_ms = int(time.time() * 1000)
        while store.run_maintenance_slice(now_ms):
            pass
        assert aged.log_start_offset == 0, "retention looks every five minutes, as Kafka's does"
        while store.run_maintenance_slice(now_ms + 400_000):
            pass
        assert store.run_maintenance_slice(now_ms + 400_001) is False
        assert kept.cleaned_offset == kept.active.base_offset
        assert len(values(kept)) < 30
        assert dict(r for r in values(kept))[99] == b"99"
        assert aged.log_start_offset == 100
    assert (tmp_path / "d" / "cleaner-offset-checkpoint").read_text().startswith("0\n1\nkept 0 ")


def test_record_from_the_future_is_reported_when_it_keeps_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing else would say why `retention.ms` does not hold. Source: KAFKA-18929."""
    with LogStore(tmp_path / "d") as store:
        store.create_topic("ahead", 1, {"retention.ms": "1000", "message.timestamp.after.max.ms": str(1 << 62)})
        ahead = store.partition(TopicPartition("ahead", 0))
        ahead.append(batch(b"x"), NOW)
        delete_old_segments(ahead, NOW - 1_000)
        assert not caplog.text
        delete_old_segments(ahead, NOW - 7_200_000)
        assert "ahead-0" in caplog.text
        assert "a record is stamped 2.0 h ahead of the clock" in caplog.text


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_retention_of_no_bytes_empties_the_log(tmp_path: Path, policy: str) -> None:
    """Kafka rolls the last segment for it, too."""
    with LogStore(tmp_path / "d") as store:
        store.create_topic("t", 1, {"cleanup.policy": policy, "segment.bytes": "1000", "retention.bytes": "0"})
        log = store.partition(TopicPartition("t", 0))
        for number in range(30):
            log.append(batch(b"%d" % number * 20), NOW)
        delete_old_segments(log, NOW)
        assert (values(log), log.log_start_offset, log.end_offset) == ([], 30, 30)
        assert delete_old_segments(log, NOW) == 0
        log.append(batch(b"more"), NOW)
        assert values(log) == [(30, b"more")]


def test_segment_that_compaction_emptied_does_not_keep_old_records(tmp_path: Path) -> None:
    """The first segment's records are all superseded; those of the second are over their time."""
    policy = {"cleanup.policy": "compact,delete", "segment.bytes": "1000", "retention.ms": "60000"}
    with LogStore(tmp_path / "d") as store:
        store.create_topic("t", 1, policy)
        log = store.partition(TopicPartition("t", 0))
        while len(log.segments) < 2:
            log.append(keyed((b"superseded", bytes(400))), NOW)
        log.append(keyed((b"superseded", bytes(400))), NOW)
        while len(log.segments) < 3:
            log.append(keyed((b"%d" % log.end_offset, bytes(400))), NOW)
        log.append(keyed((b"new", b"young"), at=NOW + 100_000), NOW + 100_000)
        compact_now(log, NOW)
        assert [segment.size > 0 for segment in log.segments] == [False, True, True]
        delete_old_segments(log, NOW + 100_000)
        assert values(log)[-1] == (log.end_offset - 1, b"young")
        assert log.log_start_offset == log.active.base_offset


def test_flush_ms_flushes_in_time(tmp_path: Path) -> None:
    with LogStore(tmp_path / "d") as store:
        store.create_topic("timed", 1, {"flush.ms": "3000"})
        store.create_topic("other", 1)
        timed, other = (store.partition(TopicPartition(name, 0)) for name in ("timed", "other"))
        for log in (timed, other):
            log.append(batch(b"x"), NOW)
        store.run_maintenance_slice(NOW)
        store.run_maintenance_slice(NOW + 2_999)
        assert timed.flushed_offset == 0
        store.run_maintenance_slice(NOW + 3_000)
        assert (timed.flushed_offset, other.flushed_offset) == (1, 0)
        timed.append(batch(b"x"), NOW)
        store.run_maintenance_slice(NOW + 3_001)
        store.run_maintenance_slice(NOW + 6_000)
        assert timed.flushed_offset == 1, "the time counts from the first record that is not flushed"
        store.set_configs("timed", {"flush.ms": "0"})
        store.run_maintenance_slice(NOW + 6_000)
        assert timed.flushed_offset == 2


def test_the_log_says_how_it_found_the_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "kohort.log")
    with LogStore(tmp_path / "d") as store:
        store.create_topic("a", 2)
    _release_lock(LogStore(tmp_path / "d"))
    _release_lock(LogStore(tmp_path / "d"))
    reported = [record.getMessage() for record in caplog.records if "partition logs in" in record.getMessage()]
    assert [how for line in reported for how in ("new", "closed in order", "unclean end") if how in line] == [
        "new",
        "closed in order",
        "unclean end",
    ]


def test_what_checkpoints_say_of_a_deleted_topic_is_not_taken_for_one_of_its_name(tmp_path: Path) -> None:
    """The log start of the one before would have thrown the new one's records away."""
    store = LogStore(tmp_path / "d")
    store.create_topic("t", 1)
    log = store.partition(TopicPartition("t", 0))
    for _ in range(30):
        log.append(batch(b"old"), NOW)
    log.delete_records(20)
    store.close()
    store = LogStore(tmp_path / "d")
    store.delete_topic("t")
    store.create_topic("t", 1)
    for _ in range(5):
        store.partition(TopicPartition("t", 0)).append(batch(b"new"), NOW)
    _release_lock(store)
    with LogStore(tmp_path / "d") as again:
        log = again.partition(TopicPartition("t", 0))
        assert (log.log_start_offset, log.end_offset) == (0, 5)
        assert len(values(log)) == 5


def test_folders_that_are_none_of_ours_are_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Only what an interrupted deletion left is removed."""
    folder = tmp_path / "d"
    with LogStore(folder) as store:
        store.create_topic("t", 1)
        store.partition(TopicPartition("t", 0)).append(batch(b"x"), NOW)
    shutil.copytree(folder / "t-0", folder / "t-copy-0")
    shutil.copytree(folder / "t-0", folder / "t-1")
    (folder / "backup-2024").mkdir()
    (folder / "backup-2024" / "notes").write_text("mine")
    (folder / "t-0" / "notes.txt").write_text("mine")
    with LogStore(folder) as store:
        assert len(values(store.partition(TopicPartition("t", 0)))) == 1
        store.add_partitions("t", 2)
        assert values(store.partition(TopicPartition("t", 1))) == []
    for kept in ("t-copy-0", "t-1-stray", "backup-2024/notes", "t-0/notes.txt"):
        assert (folder / kept).exists()
    for named in ("folder t-copy-0, ", "folder t-1 to t-1-stray", "folder backup-2024, ", "file notes.txt, "):
        assert named in caplog.text


def test_a_full_disk_at_the_first_record_refuses_only_that_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_fd: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder = tmp_path / "d"
    with LogStore(folder) as store:
        store.create_topic("t", 1)
        log = store.partition(TopicPartition("t", 0))
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            for _ in range(3):
                with pytest.raises(OSError, match="No space"):
                    log.append(batch(b"x"), NOW)
        log.append(batch(b"x"), NOW)
        assert values(log) == [(0, b"x")]
        assert not list(folder.glob("*-stray"))


def test_a_lost_folder_whose_records_were_all_deleted_is_an_empty_log(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    with LogStore(folder) as store:
        store.create_topic("t", 1)
        log = store.partition(TopicPartition("t", 0))
        log.append(batch(b"x", b"y"), NOW)
        log.delete_records(-1)
    shutil.rmtree(folder / "t-0")
    with LogStore(folder) as store:
        log = store.partition(TopicPartition("t", 0))
        assert log.readable
        log.append(batch(b"z"), NOW)
        assert values(log) == [(2, b"z")]


def test_folders_in_the_way_and_ones_that_stay_do_not_end_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "d"
    with LogStore(folder) as store:
        store.create_topic("t", 1)
    for text in ("one", "two"):
        (folder / "t-7").mkdir()
        (folder / "t-7" / "notes").write_text(text)
        LogStore(folder).close()
    assert sorted(path.read_text() for path in folder.glob("t-7*-stray/notes")) == ["one", "two"]
    (folder / "abc-delete").mkdir()

    def refused(path: object, *_args: object, **_facts: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", refused)
        with LogStore(folder) as store:
            assert list(store.topics) == ["t"]
    LogStore(folder).close()
    assert not (folder / "abc-delete").exists()


def test_a_new_topic_does_not_take_over_a_folder_of_its_name_that_tells_no_id(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    with LogStore(folder) as store:
        store.create_topic("t", 1)
        store.partition(TopicPartition("t", 0)).append(batch(b"old"), NOW)
    shutil.copytree(folder / "t-0", folder / "new-0")
    (folder / "new-0" / "partition.metadata").unlink()
    with LogStore(folder) as store:
        store.create_topic("new", 1)
    with LogStore(folder) as store:
        assert values(store.partition(TopicPartition("new", 0))) == []
    assert (folder / "new-0-stray").exists()
