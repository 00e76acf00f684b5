"""The history file: what a restart finds, retention, limits, and disks and files that can't be used."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.support.tiny_disk import tiny_disk
from tests.support.waiting import until

from kohort.client.admin.values import GroupDescription
from kohort.errors import CorruptDataError, InvalidInputError, NotFoundError
from kohort.ids import TopicPartition
from kohort.lag import GroupChange, GroupLag, LagReport, LagStatus, PartitionLag, history_file
from kohort.lag.history_file import (
    APPLICATION_ID,
    BYTES_MIN,
    READS_KEPT,
    STEP_MS,
    VERSION,
    HistoryReader,
    HistoryWriter,
    LagMinute,
    LagValues,
    TimedChange,
)

START_MS = 1_700_000_000_000 // STEP_MS * STEP_MS
HOUR_MS = 3_600_000


def report(at_ms: int, lags: dict[str, Iterable[int | None]], **others: object) -> LagReport:
    """A read of groups with these lags by partition; None: the partition's end is not known."""
    groups = {
        name: GroupLag(
            GroupDescription(name, "Classic", "Stable", "consumer", "range", (), 1),
            True,
            tuple(
                PartitionLag(TopicPartition("t", number), 0, log_start=0, log_end=lag, time_lag_ms=lag)
                for number, lag in enumerate(values)
            ),
        )
        for name, values in lags.items()
    }
    return LagReport(at_ms, groups, **others)  # type: ignore[arg-type]


def written(writer: HistoryWriter) -> None:
    """Waits until nothing is left to write."""
    until(lambda: not writer._pending, "everything is written", 30)


def restored(path: Path, since_ms: int = 0, cluster_id: str | None = "c") -> tuple[list[LagValues], list[TimedChange]]:
    """The reads and the changes that the next process finds."""
    reads: list[LagValues] = []
    with HistoryWriter(path) as writer:
        changes = writer.restore(cluster_id, since_ms, reads.append, 100)
        assert writer.error == ""
    return reads, changes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    with tiny_disk(folder, "2m"):
        yield folder


def test_restart_finds_the_last_reads_and_the_changes(path: Path) -> None:
    change = TimedChange(START_MS + 5, "g", GroupChange("joined", "reader at host"))
    with HistoryWriter(path) as writer:
        for number in range(3):
            found = report(START_MS + number, {"g": (number, None, 5), "h": (1,)})
            writer.add_report(found, "c", [change] if number == 1 else [])
    reads, changes = restored(path)
    assert [values.at_ms - START_MS for values in reads] == [0, 1, 2]
    assert reads[2] == LagValues.of(report(START_MS + 2, {"g": (2, None, 5), "h": (1,)}))
    assert reads[2].partitions == {
        ("g", TopicPartition("t", 0)): 2,
        ("g", TopicPartition("t", 2)): 5,
        ("h", TopicPartition("t", 0)): 1,
    }
    assert [(found.at_ms, found.group, found.change.kind, found.change.text) for found in changes] == [
        (START_MS + 5, "g", "joined", "reader at host")
    ]
    assert [values.at_ms for values in restored(path, START_MS + 2)[0]] == [START_MS + 2], "older ones are left out"


def test_killed_process_loses_no_read_that_was_written(path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from tests.lag.test_history_file import *\n"
        "writer = HistoryWriter(Path(sys.argv[1]))\n"
        "for number in range(50):\n"
        "    writer.add_report(report(START_MS + number, {'g': (number,)}), 'c')\n"
        "    written(writer)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(path)], check=False, timeout=60)
    assert ended.returncode == -9
    assert [values.lags["g"] for values in restored(path)[0]] == list(range(50))


def test_last_reads_are_bounded(path: Path) -> None:
    with HistoryWriter(path) as writer:
        for number in range(READS_KEPT + 5):
            writer.add_report(report(START_MS + number, {"g": (number,)}), "c")
            if number % 20 == 0:
                written(writer)
    reads, _ = restored(path)
    assert [values.lags["g"] for values in reads] == list(range(5, READS_KEPT + 5))


def test_read_with_too_many_partitions_has_the_groups_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_file, "PARTITIONS_MAX", 2)
    with HistoryWriter(path) as writer:
        writer.add_report(report(START_MS, {"g": (1, 2, 3)}), "c")
    (read,), _ = restored(path)
    assert (read.lags, read.partitions) == ({"g": 6}, {})


def test_minute_has_the_largest_lag_the_worst_status_and_the_last_members(path: Path) -> None:
    with HistoryWriter(path) as writer:
        for at, lags in ((0, (4,)), (10_000, (9,)), (20_000, (None,)), (30_000, (3,)), (STEP_MS, (1,))):
            found = report(START_MS + at, {"g": lags, "h": (None,)})
            if at == 20_000:
                object.__setattr__(found.groups["g"].partitions[0], "status", LagStatus.ERR)
            writer.add_report(found, "c")
    with HistoryReader(path) as reader:
        first, second = reader.read_minutes("g")
        assert (first.at_ms, first.lag, first.time_lag_ms, first.members) == (START_MS, 9, 9, 0)
        assert first.status is LagStatus.ERR
        assert (second.at_ms, second.lag, second.status) == (START_MS + STEP_MS, 1, LagStatus.OK)
        assert [minute.at_ms for minute in reader.read_minutes("g", START_MS + STEP_MS + 5)] == [START_MS + STEP_MS]
        assert [minute.lag for minute in reader.read_minutes("h")] == [None, None]
        assert reader.group_names() == ["g", "h"]
        with pytest.raises(NotFoundError, match="has no group 'gg'; did you mean g"):
            reader.read_minutes("gg")


def with_minutes(path: Path, minutes: Sequence[LagMinute]) -> HistoryReader:
    """A reader of a file with these minutes of `g`, beside others of `h`, which are long."""
    path.unlink(missing_ok=True)
    with HistoryWriter(path) as writer:
        writer.add_report(report(START_MS - STEP_MS, {"h": [9_999], "g": [0]}), "c", [], LagValues.of(report(0, {})))
        written(writer)
    rows = [(at.at_ms, at.lag, at.time_lag_ms, at.status, at.members) for at in minutes]
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM lag WHERE group_key = (SELECT key FROM group_names WHERE name = 'g')")
        connection.executemany("INSERT INTO minutes VALUES (?)", [row[:1] for row in rows])
        for name, given in (("g", rows), ("h", [(row[0], 9_999, 1, 3, 0) for row in rows])):
            key = connection.execute("SELECT key FROM group_names WHERE name = ?", (name,)).fetchone()[0]
            connection.executemany(
                "INSERT INTO lag VALUES (?, ?, ?, ?, ?, ?)", [(row[0], key, *row[1:]) for row in given]
            )
    return HistoryReader(path)


def test_picture_has_the_largest_of_each_part_and_gaps(path: Path) -> None:
    week = [
        LagMinute(START_MS + number * STEP_MS, number % 100, None, LagStatus(number % 2), number)
        for number in range(10_080)
        if not 2_000 <= number < 3_000
    ]
    with with_minutes(path, week) as reader:
        found = reader.chart_points("g", START_MS, 300)
        assert len(found) <= 302
        known = [point for point in found if point is not None]
        assert len(found) - len(known) == 1, "one gap"
        assert max(point.lag or 0 for point in known) == 99
        assert {point.status for point in known[:-1]} == {LagStatus.WARN}
        assert {point.time_lag_ms for point in known} == {None}
        assert known[0].at_ms == START_MS and known[-1].members == 10_079, "the members are those of the end"
        later = reader.chart_points("g", START_MS + 9_000 * STEP_MS, 300)
        assert later[0] is not None and later[0].at_ms == START_MS + 9_000 * STEP_MS
        assert reader.chart_points("g", START_MS + 10_080 * STEP_MS, 300) == []
        with pytest.raises(NotFoundError, match="no group 'gg'"):
            reader.chart_points("gg", 0, 300)
    with with_minutes(path, week[:5]) as reader:
        assert reader.chart_points("g", 0, 300) == week[:5]
    with with_minutes(path, week[:50:5]) as reader:
        assert reader.chart_points("g", 0, 300, 5 * STEP_MS) == week[:50:5], "an interval is no gap"
        assert reader.chart_points("g", 0, 300)[1] is None
    with with_minutes(path, []) as reader:
        assert reader.chart_points("g", 0, 300) == []


def test_what_is_older_than_the_retention_is_deleted(path: Path) -> None:
    with HistoryWriter(path, 2 * HOUR_MS) as writer:
        for hour in range(8):
            at_ms = START_MS + hour * HOUR_MS
            change = TimedChange(at_ms, "g", GroupChange("state", str(hour)))
            writer.add_report(report(at_ms, {"g": (hour,), f"only-{hour}": (1,)}), "c", [change])
            written(writer)
    with HistoryReader(path) as reader:
        assert [minute.lag for minute in reader.read_minutes("g")] == [5, 6, 7]
        assert [change.change.text for change in reader.read_changes("g")] == ["5", "6", "7"]
        names = reader.group_names()
        assert "only-0" not in names and "only-2" not in names, "nor are the names of groups kept that are gone"
        assert {"g", "only-5", "only-6", "only-7"} <= set(names)


def test_number_of_a_name_that_was_deleted_is_not_given_to_another_group(path: Path) -> None:
    """A clock that was ahead leaves changes behind whose group is gone; they must not become another group's."""
    with HistoryWriter(path, 2 * HOUR_MS) as writer:
        ahead = TimedChange(START_MS + 100 * HOUR_MS, "gone", GroupChange("joined", "of the group that is gone"))
        writer.add_report(report(START_MS, {"gone": (1,)}), "c", [ahead])
        for hour in (10, 11):
            writer.add_report(report(START_MS + hour * HOUR_MS, {f"new-{hour}": (1,)}), "c")
            written(writer)
    with HistoryReader(path) as reader:
        assert reader.group_names() == ["new-10", "new-11"]
        assert reader.read_changes() == []


def test_shorter_retention_counts_for_what_is_there(path: Path) -> None:
    with HistoryWriter(path) as writer:
        for minute in range(40):
            writer.add_report(report(START_MS + minute * STEP_MS, {"g": (minute,)}), "c")
            written(writer)
    with HistoryWriter(path, 2 * STEP_MS) as writer:
        writer.add_report(report(START_MS + 40 * STEP_MS, {"g": (40,)}), "c")
    with HistoryReader(path) as reader:
        assert [minute.lag for minute in reader.read_minutes("g")] == [38, 39, 40]


def test_oldest_goes_first_where_bytes_are_short(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(history_file, "READS_KEPT", 2)
    limit = 400_000
    with HistoryWriter(path, bytes_max=limit) as writer:
        for minute in range(200):
            found = report(START_MS + minute * STEP_MS, {f"group-{number}": (minute,) for number in range(200)})
            writer.add_report(found, "c")
            if minute % 20 == 19:
                written(writer)
    assert "has reached its limit of 400000 bytes" in caplog.text
    assert path.stat().st_size <= limit + 100_000
    with HistoryReader(path) as reader:
        minutes = reader.read_minutes("group-7")
    assert minutes[-1].lag == 199
    assert 10 < len(minutes) < 190
    assert [minute.lag for minute in minutes] == list(range(200 - len(minutes), 200)), "the oldest went"


def test_one_read_beyond_the_limit_ends(path: Path) -> None:
    with HistoryWriter(path, bytes_max=1) as writer:
        for number in range(3):
            writer.add_report(report(START_MS + number, {"g": (number,)}), "c")
            written(writer)
        assert writer.error == ""
    assert [values.lags["g"] for values in restored(path)[0]][-1] == 2


def test_second_process_is_refused_and_readers_are_not(path: Path) -> None:
    with HistoryWriter(path) as writer:
        writer.add_report(report(START_MS, {"g": (1,)}), "c")
        written(writer)
        link = path.with_name("link.db")
        link.symlink_to(path)
        for name in (path, link):
            with pytest.raises(InvalidInputError, match="another process writes the history .*a file of its own"):
                HistoryWriter(name)
        with HistoryReader(path) as reader:
            assert reader.group_names() == ["g"]
            writer.add_report(report(START_MS + 1, {"h": (1,)}), "c")
            written(writer)
            assert reader.group_names() == ["g", "h"]
    HistoryWriter(path).close()


def test_file_of_another_cluster_is_neither_shown_nor_written(path: Path) -> None:
    with HistoryWriter(path) as writer:
        writer.add_report(report(START_MS, {"g": (1,)}), "one")
    with HistoryWriter(path) as writer:
        reads: list[LagValues] = []
        assert writer.restore("two", 0, reads.append, 10) == []
        assert reads == []
        writer.add_report(report(START_MS + 1, {"of-two": (1,)}), "two")
        until(lambda: bool(writer.error), "it is said", 30)
        assert "has the history of the cluster with the id one" in writer.error
        assert "give a file for each cluster" in writer.error
    with HistoryReader(path) as reader:
        assert reader.group_names() == ["g"]


def test_full_disk_is_said_and_what_waited_is_written_when_there_is_room(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "kohort.lag")
    path = small_disk / "history.db"
    with HistoryWriter(path) as writer:
        writer.add_report(report(START_MS, {"g": (0,)}), "c")
        written(writer)
        fill = small_disk / "fill"
        with pytest.raises(OSError, match="No space left"):
            fill.write_bytes(bytes(4 << 20))
        added = 0
        while not writer.error:
            added += 1
            assert added < 500
            groups: dict[str, Iterable[int | None]] = {f"group-{number}-{added}": (added,) for number in range(50)}
            writer.add_report(report(START_MS + added, groups), "c")
            time.sleep(0.01)
        assert "full" in writer.error and str(path) in writer.error
        assert sum("not written" in record.getMessage() for record in caplog.records) == 1, "it is logged once"
        fill.unlink()
        writer.add_report(report(START_MS + 10_000, {"g": (7,)}), "c")
        written(writer)
        assert writer.error == ""
        assert "works again" in caplog.text
    reads, _ = restored(path)
    assert reads[0].lags == {"g": 0} and reads[-1].lags == {"g": 7}
    assert len(reads) == min(READS_KEPT, added + 2), "reads that waited are there too"


def test_disk_that_becomes_read_only_or_is_so_from_the_start_stops_nothing(small_disk: Path) -> None:
    path = small_disk / "history.db"
    remount = ["mount", "-o", "remount,{}", str(small_disk)]

    def make(mode: str) -> None:
        subprocess.run([word.format(mode) for word in remount], check=True)

    kept = small_disk / "kept.db"
    with HistoryWriter(kept) as writer:
        writer.add_report(report(START_MS, {"g": (5,)}), "c")
    make("ro")
    with HistoryReader(kept) as reader:
        assert [minute.lag for minute in reader.read_minutes("g")] == [5], "it is read where nothing can be written"
    with HistoryWriter(path) as writer:
        assert "Read-only file system" in writer.error
        writer.add_report(report(START_MS, {"g": (1,)}), "c")
        make("rw")
        writer.add_report(report(START_MS + 1, {"g": (2,)}), "c")
        written(writer)
        assert writer.error == ""
        with pytest.raises(InvalidInputError, match="another process"):
            HistoryWriter(path)
    assert [values.lags["g"] for values in restored(path)[0]] == [1, 2]


def test_reads_that_wait_are_bounded(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "kohort.lag")
    path.parent.joinpath("history.db.lock").mkdir()  # can't be opened as a file
    with HistoryWriter(path) as writer:
        assert "Is a directory" in writer.error
        for number in range(history_file.PENDING_MAX + 20):
            writer.add_report(report(START_MS + number, {"g": (number,)}), "c")
        assert len(writer._pending) == history_file.PENDING_MAX
        path.parent.joinpath("history.db.lock").rmdir()
        writer.add_report(report(START_MS + 1_000, {"g": (1_000,)}), "c")
        written(writer)
    found = [values.lags["g"] for values in restored(path)[0]]
    assert found in ([*range(21, 50), 1_000], [*range(20, 50), 1_000]), "one may be written before the last one comes"
    assert f"works again; {51 - len(found)} reads are missing" in caplog.text


def test_file_that_was_moved_away_is_begun_anew(path: Path) -> None:
    with HistoryWriter(path) as writer:
        writer.add_report(report(START_MS, {"g": (1,)}), "c")
        written(writer)
        path.rename(path.with_name("kept.db"))
        for ending in ("-wal", "-shm"):
            path.with_name(path.name + ending).rename(path.with_name("kept.db" + ending))
        writer.add_report(report(START_MS + 1, {"g": (2,)}), "c")
        written(writer)
    assert [values.lags["g"] for values in restored(path)[0]] == [2]


DAMAGE = {
    "text": lambda data: b"this is a text, and not a database. " * 100,
    "zeros in the middle": lambda data: data[:4096] + bytes(len(data) - 4096),
    "cut off": lambda data: data[: len(data) // 2],
    "bytes of chance": lambda data: data[:200] + os.urandom(len(data) - 200),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_file_is_refused_with_what_to_do(path: Path, how: str) -> None:
    with HistoryWriter(path) as writer:
        for number in range(20):
            groups: dict[str, Iterable[int | None]] = {f"group-{name}": (number,) for name in range(300)}
            writer.add_report(report(START_MS + number * STEP_MS, groups), "c")
    path.write_bytes(DAMAGE[how](path.read_bytes()))
    with pytest.raises(CorruptDataError, match=r"is damaged or none .*move it away.*a new one begins"):
        HistoryWriter(path)
    shutil.move(path, path.with_name("aside"))
    HistoryWriter(path).close()


def test_damage_while_it_is_used_is_said_and_a_new_file_begins(path: Path) -> None:
    with HistoryWriter(path) as writer:
        writer.add_report(report(START_MS, {"g": (1,)}), "c")
        written(writer)
        aside = path.with_name("other")
        aside.write_bytes(b"no database " * 1000)
        for ending in ("-wal", "-shm"):
            path.with_name(path.name + ending).unlink()
        aside.replace(path)
        writer.add_report(report(START_MS + 1, {"g": (2,)}), "c")
        until(lambda: "is damaged or none" in writer.error, "it is said", 30)
        for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
            path.with_name(name).unlink(missing_ok=True)
        writer.add_report(report(START_MS + 2, {"g": (3,)}), "c")
        written(writer)
        assert writer.error == ""
    assert [values.lags["g"] for values in restored(path)[0]] == [2, 3]


def test_file_of_a_later_version_or_another_program_is_refused_and_left_as_it_is(path: Path) -> None:
    HistoryWriter(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version={VERSION + 1}")
    connection.close()
    before = path.read_bytes()
    for opened in (HistoryWriter, HistoryReader):
        with pytest.raises(InvalidInputError, match=f"later version of kohort .its format is {VERSION + 1}"):
            opened(path)
    assert path.read_bytes() == before
    other = path.with_name("other.db")
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE things (name TEXT)")
    connection.close()
    before = other.read_bytes()
    with pytest.raises(InvalidInputError, match="is a database of another program"):
        HistoryWriter(other)
    assert other.read_bytes() == before


def test_folder_that_is_missing_or_a_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="there is no folder"):
        HistoryWriter(tmp_path / "missing" / "history.db")
    with pytest.raises(InvalidInputError, match="is a folder"):
        HistoryWriter(tmp_path)
    with pytest.raises(NotFoundError, match="there is no history .*kohort dashboard --history"):
        HistoryReader(tmp_path / "missing.db")


def test_file_is_its_owners_alone_and_shrinks(path: Path) -> None:
    HistoryWriter(path).close()
    assert path.stat().st_mode & 0o777 == 0o600
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,), "incremental"
    connection.close()
    assert BYTES_MIN < history_file.BYTES_MAX


def test_read_is_written_once_where_old_ones_can_not_be_deleted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with HistoryWriter(path) as writer:
        with monkeypatch.context() as full:

            def fail(*_: object) -> None:
                raise sqlite3.OperationalError("database or disk is full")

            full.setattr(writer, "_delete_old", fail)
            for number in range(3):
                writer.add_report(report(START_MS + number, {"g": (number,)}), "c")
                until(lambda: not writer._pending and writer.error != "", "it is written, and the disk is full", 30)
        writer.add_report(report(START_MS + 3, {"g": (3,)}), "c")
        until(lambda: writer.error == "", "old ones can be deleted again", 30)
    assert [values.lags["g"] for values in restored(path)[0]] == [0, 1, 2, 3]


def test_read_that_can_not_be_written_costs_no_other(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with HistoryWriter(path) as writer:
        for number, lag in enumerate((1, 1 << 63, 2)):  # SQLite's integers have 64 bits, with a sign
            writer.add_report(report(START_MS + number, {"g": (lag,)}), "c")
            until(lambda: not writer._pending, "it is written or given up", 30)
        assert writer._thread.is_alive()
        until(lambda: writer.error == "", "it is written again", 30)
    assert "unexpected error" in caplog.text
    assert [values.lags["g"] for values in restored(path)[0]] == [1, 2]


def test_clock_that_is_ahead_for_one_read_deletes_nothing(path: Path) -> None:
    with HistoryWriter(path, HOUR_MS) as writer:
        for at_ms in [START_MS, START_MS + STEP_MS, START_MS + 720 * HOUR_MS, START_MS + 2 * STEP_MS]:
            writer.add_report(report(at_ms, {"g": (7,)}), "c")
            written(writer)
    with HistoryReader(path) as reader:
        assert len(reader.read_minutes("g")) == 4


def test_last_reads_leave_room_for_minutes(path: Path) -> None:
    limit = 400_000
    with HistoryWriter(path, bytes_max=limit) as writer:
        for minute in range(100):
            lags = [(minute * 7919 + number * 104_729) % 1_000_003 for number in range(2_000)]
            writer.add_report(report(START_MS + minute * STEP_MS, {"g": lags}), "c")
            written(writer)
    with HistoryReader(path) as reader:
        assert len(reader.read_minutes("g")) == 100
        assert 1 < len(list(reader.read_values())) < 100


def test_files_beside_it_are_its_owners_alone_too(path: Path) -> None:
    path.touch(0o666)
    path.chmod(0o666)
    with HistoryWriter(path) as writer:
        writer.add_report(report(START_MS, {"g": (1,)}), "c")
        written(writer)
        files = sorted(path.parent.iterdir())
        assert [file.name for file in files] == ["history.db", "history.db-shm", "history.db-wal", "history.db.lock"]
        assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


def test_link_in_the_place_of_the_lock_is_not_followed(path: Path) -> None:
    target = path.with_name("target")
    path.with_name("history.db.lock").symlink_to(target)
    with HistoryWriter(path) as writer:
        assert "symbolic links" in writer.error
    assert not target.exists()


def test_older_sqlite_is_refused_at_the_start(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    with pytest.raises(InvalidInputError, match=r"needs SQLite 3\.35 or later"):
        HistoryWriter(path)


def test_folder_that_can_not_be_read_costs_only_the_history(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    with HistoryWriter(path) as writer, monkeypatch.context() as gone:
        gone.setattr(Path, "is_file", refuse)
        assert writer.restore("c", 0, lambda values: None, 10) == []
        assert "Permission denied" in writer.error
