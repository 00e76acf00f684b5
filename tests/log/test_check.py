"""Looking a stopped folder through, and repairing it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kohort.errors import InvalidInputError
from kohort.groups import records as r
from kohort.ids import TopicPartition
from kohort.journal.local import LogJournal
from kohort.log import LogStore
from kohort.log.check import Defect, FolderCheck, Report, locked_folder
from kohort.log.checkpoints import OFFSET_CHECKSUMS, RECOVERY_POINTS
from kohort.log.damage import ASIDE
from kohort.log.folder import CLEAN, LOCK
from kohort.log.repair import repair
from kohort.wire.records import read_records
from tests.log.making import NOW, batch, keyed, values

T = TopicPartition("t", 0)


def make(folder: Path) -> list[tuple[int, bytes]]:
    """A folder with a topic of several segments, one compacted, and a journal; what the first holds."""
    with LogStore(folder) as store:
        store.create_topic("t", 1, {"segment.bytes": "4000", "index.interval.bytes": "300"})
        store.create_topic("kept", 1, {"cleanup.policy": "compact", "segment.bytes": "1500"})
        store.create_topic("__consumer_offsets", 1, {"cleanup.policy": "compact"})
        log = store.partition(T)
        for number in range(90):
            log.append(batch(*[b"v%d" % number * 4] * (1 + number % 3), at=NOW + number), NOW)
        kept = store.partition(TopicPartition("kept", 0))
        for number in range(60):
            kept.append(keyed((b"k%d" % (number % 7), b"v%d" % number)), NOW)
        journal = LogJournal(store.partition(TopicPartition("__consumer_offsets", 0)))
        journal.begin_term(1)
        for offset in range(30):
            journal.append(1, [r.OffsetCommitted("g", "t", 0, offset, -1, "", NOW)], NOW)
        return values(log)


def look(folder: Path) -> Report:
    with locked_folder(folder):
        return FolderCheck(folder).run()


def mend(folder: Path, found: list[Defect]) -> list[tuple[Defect, Path | None]]:
    with locked_folder(folder):
        return list(repair(found))


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def test_a_sound_folder_is_sound_and_stays_as_it_is(tmp_path: Path) -> None:
    make(tmp_path / "d")
    before = {file: file.read_bytes() for file in (tmp_path / "d").rglob("*") if file.is_file()}
    report = look(tmp_path / "d")
    assert (report.found, report.notes) == ([], [])
    assert report.partitions == 3
    assert report.bytes == sum(file.stat().st_size for file in (tmp_path / "d").glob("*/*.log"))
    assert {file: file.read_bytes() for file in (tmp_path / "d").rglob("*") if file.is_file()} == before


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    with LogStore(tmp_path / "d"), pytest.raises(InvalidInputError, match=f"in use by a broker .process {os.getpid()}"):
        look(tmp_path / "d")
    (tmp_path / "other").mkdir()
    with pytest.raises(InvalidInputError, match="no data folder"):
        look(tmp_path / "other")


def _length(part: Path) -> None:
    flip(segments(part)[1], 8)


def _payload(part: Path) -> None:
    flip(segments(part)[1], 90)


def _last_batch(part: Path) -> None:
    flip(segments(part)[-1], 16)


def _cut_off(part: Path) -> None:
    path = segments(part)[-1]
    os.truncate(path, path.stat().st_size - 10)


def _emptied(part: Path) -> None:
    segments(part)[1].write_bytes(b"")


def _removed(part: Path) -> None:
    segments(part)[1].unlink()


def _removed_with_indexes(part: Path) -> None:
    for file in part.glob(f"{segments(part)[1].stem}.*"):
        file.unlink()


def _noise(part: Path) -> None:
    path = segments(part)[1]
    data = path.read_bytes()
    path.write_bytes(data[:700] + os.urandom(900) + data[1600:])


def _inserted(part: Path) -> None:
    path = segments(part)[1]
    size = int.from_bytes(path.read_bytes()[8:12], "big") + 12
    path.write_bytes(path.read_bytes()[:size] + b"\0" * 33 + path.read_bytes()[size:])


SPOILT = (_length, _payload, _last_batch, _cut_off, _emptied, _removed, _removed_with_indexes, _noise, _inserted)


CASES = [
    *(("t-0", spoil) for spoil in SPOILT),
    # without its indexes nothing tells a file that is gone from one that compaction removed
    *(("kept-0", spoil) for spoil in SPOILT if spoil is not _removed_with_indexes),
    ("__consumer_offsets-0", _last_batch),
    ("__consumer_offsets-0", _cut_off),
]


@pytest.mark.parametrize(("name", "spoil"), CASES)
def test_what_is_damaged_is_named_and_repaired_without_loss(
    tmp_path: Path, name: str, spoil: Callable[[Path], None]
) -> None:
    """Readable records stay readable, offsets go on, and every byte is still there."""
    folder = tmp_path / "d"
    make(folder)
    part = folder / name
    tp = TopicPartition(name[:-2], 0)
    with LogStore(folder) as store:
        whole = values(store.partition(tp))
        end = store.partition(tp).end_offset
    spoil(part)
    bytes_before = sorted(b"".join(file.read_bytes() for file in segments(part)))
    found = look(folder).found
    assert found, "it is seen"
    assert {finding.partition for finding in found} == {name}
    records = [finding for finding in found if finding.kind == "records"]
    lost = [
        offset for record in records for offset in range(record.damage.first_offset, record.damage.next_offset or 0)
    ]
    done = mend(folder, found)
    assert [finding for finding, _ in done if finding not in found] == []
    assert len(done) == len(found)
    again = look(folder)
    assert again.found == []
    assert again.notes == []
    asides = b"".join(file.read_bytes() for file in part.glob(f"*.log.*{ASIDE}"))
    kept_bytes = b"".join(file.read_bytes() for file in segments(part))
    fillers = 61 * sum(1 for record in records if record.lost_offsets)
    assert len(asides) + len(kept_bytes) - fillers == len(bytes_before)
    with LogStore(folder) as store:
        log = store.partition(tp)
        assert values(log) == [pair for pair in whole if pair[0] not in lost]
        assert log.end_offset == end
        offset = log.append(batch(b"goes on", at=NOW), NOW, from_client=False).base_offset
        assert offset == end
        found_offsets = [(r.offset) for data in log.iterate_batches(0) for r in read_records(data)]
        assert found_offsets == sorted(set(found_offsets))


@pytest.mark.parametrize(("suffix", "at"), [(".index", 3), (".timeindex", 11), (".timeindex", 7)])
def test_a_wrong_index_costs_nothing(tmp_path: Path, suffix: str, at: int) -> None:
    whole = make(tmp_path / "d")
    part = tmp_path / "d" / "t-0"
    index = segments(part)[1].with_suffix(suffix)
    flip(index, at)
    (found,) = look(tmp_path / "d").found
    assert (found.kind, found.lost_offsets) == ("index", 0)
    assert mend(tmp_path / "d", [found]) == [(found, index.with_name(index.name + ASIDE))]
    assert look(tmp_path / "d").found == []
    with LogStore(tmp_path / "d") as store:
        assert values(store.partition(T)) == whole


def test_an_unreadable_file_is_named_and_left(tmp_path: Path) -> None:
    make(tmp_path / "d")
    path = segments(tmp_path / "d" / "t-0")[1]
    path.rename(path.with_name("elsewhere"))
    path.mkdir()
    report = look(tmp_path / "d")
    assert [finding.kind for finding in report.found] == ["file"]
    assert "Is a directory" in report.found[0].damage.reason
    assert report.notes == ["t-0/elsewhere is no file of a log"]
    assert mend(tmp_path / "d", report.found) == []


def test_a_torn_end_after_a_crash_is_no_damage(tmp_path: Path) -> None:
    make(tmp_path / "d")
    (tmp_path / "d" / ".kafka_cleanshutdown").unlink()
    last = segments(tmp_path / "d" / "t-0")[-1]
    last.write_bytes(last.read_bytes() + batch(b"torn" * 30)[:100])
    report = look(tmp_path / "d")
    assert report.found == []
    assert report.notes == [f"t-0/{last.name} ends in a torn write of 100 bytes"]


def test_a_damaged_catalog_and_checkpoint_are_named(tmp_path: Path) -> None:
    make(tmp_path / "d")
    (tmp_path / "d" / "topics.json").write_text("{")
    (tmp_path / "d" / "recovery-point-offset-checkpoint").write_text("what")
    report = look(tmp_path / "d")
    assert [(finding.damage.path.name, finding.kind) for finding in report.found] == [
        ("recovery-point-offset-checkpoint", "index"),
        ("topics.json", "file"),
    ]
    assert report.partitions == 3


def test_a_partition_without_a_folder_is_sound_where_nothing_was_written(tmp_path: Path) -> None:
    """A partition's folder comes with its first record; retention may leave none, and the log start stays."""
    with LogStore(tmp_path / "d") as store:
        store.create_topic("t", 3)
        store.partition(TopicPartition("t", 1)).append(batch(b"a", b"b"), NOW)
        store.partition(TopicPartition("t", 2)).append(batch(b"a", b"b"), NOW)
        store.partition(TopicPartition("t", 2)).delete_records(-1)
    shutil.rmtree(tmp_path / "d" / "t-2")
    report = look(tmp_path / "d")
    assert (report.found, report.notes, report.partitions) == ([], [], 3)
    (tmp_path / "d" / "t-2").mkdir()
    assert look(tmp_path / "d").found == []


@pytest.mark.parametrize("empty", [False, True], ids=["no folder", "an empty folder"])
def test_the_records_of_a_folder_that_is_gone_are_counted_and_passed_over(tmp_path: Path, empty: bool) -> None:
    folder = tmp_path / "d"
    with LogStore(folder) as store:
        store.create_topic("t", 1)
        log = store.partition(T)
        log.append(batch(b"a", b"b", b"c", b"d", b"e"), NOW)
        log.delete_records(2)
    shutil.rmtree(folder / "t-0")
    if empty:
        (folder / "t-0").mkdir()
    (found,) = look(folder).found
    assert (found.partition, found.damage.first_offset, found.damage.next_offset, found.lost_offsets) == (
        "t-0",
        2,
        5,
        3,
    )
    assert found.damage.reason == ("the file is missing" if empty else "the folder of the partition is missing")
    assert mend(folder, [found]) == [(found, None)]
    assert look(folder).found == []
    with LogStore(folder) as store:
        log = store.partition(T)
        assert (log.log_start_offset, log.end_offset, values(log)) == (2, 5, [])
        assert log.append(batch(b"goes on"), NOW).base_offset == 5
        assert values(log) == [(5, b"goes on")]


def test_where_a_start_would_end_a_log_after_a_power_loss_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    whole = make(folder)
    part = folder / "t-0"
    (folder / CLEAN).unlink()
    (folder / LOCK).write_text("1 another-boot\n")
    (folder / RECOVERY_POINTS).write_text("0\n1\nt 0 10\n")
    (folder / OFFSET_CHECKSUMS).unlink()
    flip(segments(part)[1], 70)
    report = look(folder)
    (damaged,) = [finding for finding in report.found if finding.partition == "t-0"]
    (note,) = report.notes
    first = damaged.damage.first_offset
    assert note.startswith(f"t-0/{segments(part)[1].name}: the machine stopped before")
    assert f"at offset {first}," in note
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    mend(folder, report.found)
    assert look(folder).notes == []
    with LogStore(copy) as store:
        assert store.partition(T).end_offset == first
        assert values(store.partition(T)) == [pair for pair in whole if pair[0] < first]
    with LogStore(folder) as store:
        assert store.partition(T).end_offset == whole[-1][0] + 1
