"""A flipped byte in any file beside a log's segments: read as before, or refused, and no records are ever removed."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from kohort.errors import CorruptDataError, InvalidInputError
from kohort.ids import TopicPartition
from kohort.log import Isolation, LogStore, Marker
from kohort.log.catalog import read_catalog
from kohort.log.check import FolderCheck, locked_folder
from kohort.log.checkpoints import (
    CLEANED,
    LOG_STARTS,
    OFFSET_CHECKSUMS,
    RECOVERY_POINTS,
    TRANSACTION_INDEXES,
    new_id,
    write_offset_checkpoints,
    write_partition_metadata,
)
from kohort.log.damage import DamagedError
from kohort.log.repair import repair
from kohort.wire.batch import parse_header
from kohort.wire.records import read_records
from tests.log.making import NOW, batch, keyed, values

PART = TopicPartition("t", 0)
KEPT = TopicPartition("kept", 0)
SIDE_FILES = [
    "*.index",
    "*.timeindex",
    "*.txnindex",
    "*.snapshot",
    "leader-epoch-checkpoint",
    "partition.metadata",
    "transaction-index-checkpoint",
]


def _transactional(number: int) -> bytes:
    values = (b"v%d" % number * 9, b"w")
    sequence = number // 2 * 2
    return batch(*values, producer_id=7 + number % 2, producer_epoch=0, base_sequence=sequence, transactional=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that was closed in order, with committed and aborted transactions in four segments."""
    folder = tmp_path_factory.mktemp("made") / "data"
    with LogStore(folder) as store:
        store.create_topic("t", 1, {"segment.bytes": "3000", "index.interval.bytes": "300"})
        log = store.partition(PART)
        for number in range(40):
            log.append(_transactional(number), NOW + number)
            log.append(batch(b"plain%d" % number * 7, at=NOW + number * 10), NOW + number)
            if number % 4 == 3:
                for producer_id in (7, 8):
                    log.append_marker(Marker(producer_id, 0, (number // 4 + producer_id) % 2 == 0, 0), NOW + number)
    return folder


class View(NamedTuple):
    """The log as readers and producers see it."""

    bounds: tuple[int, int]
    batches: list[tuple[int, bool]]
    by_time: list[int]
    producers: list[tuple[int, int, int, int]]
    epoch: tuple[int, int]


def _view(folder: Path) -> View:
    with LogStore(folder) as store:
        log = store.partition(PART)
        batches: list[tuple[int, bool]] = []
        offset = log.log_start_offset
        while offset < log.end_offset:
            result = log.read(offset, 400, Isolation.READ_COMMITTED)
            data, at = result.bytes(), 0
            while at < len(data):
                header = parse_header(data, at)
                at += header.size
                aborted = header.is_transactional and any(
                    header.producer_id == producer_id and first <= header.base_offset
                    for producer_id, first in result.aborted or ()
                )
                batches.append((header.base_offset, aborted))
            offset = result.next_offset
        by_time = [log.offset_for_timestamp(NOW + ms).offset for ms in range(0, 400, 37)]
        producers = [
            (key, state.epoch, state.batches[-1].last_sequence, state.first_open_offset)
            for key, state in sorted(log.producers.by_id.items())
        ]
        epoch = log.end_offset_for_epoch(0)
        return View((log.log_start_offset, log.end_offset), batches, by_time, producers, epoch)


def _records(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.log"))


@pytest.mark.parametrize("pattern", SIDE_FILES)
def test_damage_beside_the_segments_changes_nothing_that_is_read(made: Path, tmp_path: Path, pattern: str) -> None:
    shutil.copytree(made, tmp_path / "whole")
    whole = _view(tmp_path / "whole")
    assert any(aborted for _, aborted in whole.batches)
    for path in sorted((made / "t-0").glob(pattern)):
        content = path.read_bytes()
        cases = [(at, 1 << at % 5) for at in range(2, len(content), max(1, len(content) // 6))]
        for number, case in enumerate([*cases, None, b""]):
            folder = tmp_path / f"{path.name}-{number}"
            shutil.copytree(made, folder)
            spoiled = folder / "t-0" / path.name
            if case is None:
                spoiled.unlink()
            elif isinstance(case, bytes):
                spoiled.write_bytes(case)
            else:
                data = bytearray(content)
                data[case[0]] ^= case[1]
                spoiled.write_bytes(data)
            assert _view(folder) == whole, (path.name, case)
            shutil.rmtree(folder)


def test_a_damaged_catalog_is_refused_and_no_records_are_removed(made: Path, tmp_path: Path) -> None:
    content = (made / "topics.json").read_bytes()
    size = _records(made)
    for at in range(0, len(content), 7):
        folder = tmp_path / "d"
        shutil.copytree(made, folder)
        data = bytearray(content)
        data[at] ^= 1
        (folder / "topics.json").write_bytes(data)
        with contextlib.suppress(CorruptDataError):  # none where only the layout changed
            LogStore(folder).close()
        assert _records(folder) == size, at
        shutil.rmtree(folder)


def test_a_catalog_that_was_edited_is_read_without_its_checksum(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "d")
    path = tmp_path / "d" / "topics.json"
    edited = path.read_text().replace('"3000"', '"4000"')
    path.write_text(edited)
    with pytest.raises(CorruptDataError, match="remove the checksum"):
        LogStore(tmp_path / "d")
    path.write_text("\n".join(line for line in edited.splitlines() if "checksum" not in line).replace("],", "]"))
    catalog = read_catalog(tmp_path / "d")
    assert catalog is not None and catalog["t"].configs["segment.bytes"] == "4000"


def test_a_damaged_topic_id_costs_no_records_and_is_logged_once(
    made: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "d"
    shutil.copytree(made, folder)
    path = folder / "t-0" / "partition.metadata"
    data = bytearray(path.read_bytes())
    data[-5] = ord("A") if data[-5] != ord("A") else ord("B")
    path.write_bytes(data)
    for _ in range(2):
        with LogStore(folder) as store:
            assert len(values(store.partition(PART))) == 140
    assert caplog.text.count("t-0/partition.metadata is damaged: topic id") == 1


def test_a_restored_folder_of_a_topic_that_is_not_known_is_kept(
    made: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An operator may have copied it in from a backup, under a name that is free or that a topic has."""
    folder = tmp_path / "d"
    with LogStore(folder) as store:
        store.create_topic("t", 1)
    for name in ("t-0", "other-0"):
        shutil.copytree(made / "t-0", folder / name)
    size = _records(made)
    with LogStore(folder) as store:
        log = store.partition(PART)
        assert log.end_offset == 0
        log.append(batch(b"x"), NOW)
    with LogStore(folder) as store:
        assert values(store.partition(PART)) == [(0, b"x")]
    assert _records(folder / "t-0-stray") == _records(folder / "other-0") == size
    assert "renamed folder t-0 to t-0-stray" in caplog.text
    assert "kept folder other-0" in caplog.text


def test_a_restored_folder_is_kept_when_its_partition_is_first_written(made: Path, tmp_path: Path) -> None:
    with LogStore(tmp_path / "d") as store:
        store.create_topic("t", 1)
        shutil.copytree(made / "t-0", tmp_path / "d" / "t-0")
        write_partition_metadata(tmp_path / "d" / "t-0", new_id())
        store.partition(PART).append(batch(b"x"), NOW)
        assert values(store.partition(PART)) == [(0, b"x")]
    assert _records(tmp_path / "d" / "t-0-stray") == _records(made)


@pytest.mark.parametrize("name", ["meta.properties", "recovery-point-offset-checkpoint", "cleaner-offset-checkpoint"])
def test_damage_in_files_of_the_data_folder_loses_no_record(made: Path, tmp_path: Path, name: str) -> None:
    content = (made / name).read_bytes()
    for at in range(0, len(content), 3):
        folder = tmp_path / "d"
        shutil.copytree(made, folder)
        data = bytearray(content)
        data[at] ^= 1
        (folder / name).write_bytes(data)
        try:
            with LogStore(folder) as store:
                log = store.partition(PART)
                assert log.append(batch(b"new"), NOW).base_offset >= 140, at
                read: list[int] = []
                with contextlib.suppress(DamagedError):  # offsets that the checkpoint names and the file has not
                    read.extend(record.offset for part in log.iterate_batches(0) for record in read_records(part))
                assert read[:140] == list(range(140)), at
        except InvalidInputError:
            assert name == "meta.properties"
        assert _records(folder) >= _records(made)
        shutil.rmtree(folder)


class Started(NamedTuple):
    """The records that readers get of both topics of a folder."""

    bounds: list[tuple[int, int]]
    values: list[tuple[int, bytes]]
    kept: list[tuple[int, bytes]]


def _started(folder: Path) -> Started:
    with LogStore(folder) as store:
        logs = [store.partition(PART), store.partition(KEPT)]
        bounds = [(log.log_start_offset, log.end_offset) for log in logs]
        read = [[pair for pair in values(log) if pair[0] >= log.log_start_offset] for log in logs]
        return Started(bounds, *read)


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with recovery points, a log whose start lies within a segment, and a compacted one."""
    folder = tmp_path_factory.mktemp("bounded") / "data"
    with LogStore(folder) as store:
        store.create_topic("t", 1, {"segment.bytes": "1000"})
        store.create_topic(
            "kept", 1, {"cleanup.policy": "compact", "segment.bytes": "500", "index.interval.bytes": "1"}
        )
        for number in range(45):
            store.partition(PART).append(batch(b"v%d" % number * 7, at=NOW), NOW)
            store.partition(KEPT).append(keyed((b"k%d" % (number % 3), b"v%d" % number)), NOW)
        store.partition(PART).delete_records(32)
        while store.run_maintenance_slice(NOW + 3_600_000):
            pass
    return folder


@pytest.mark.parametrize("name", [RECOVERY_POINTS, LOG_STARTS, CLEANED, OFFSET_CHECKSUMS])
def test_a_flipped_byte_of_an_offset_checkpoint_is_no_silent_loss(
    bounded: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A flipped digit moved a log's start past its records, which were gone without a word."""
    monkeypatch.setattr("os.fsync", lambda _: None)  # power is not lost here, and hundreds of them take minutes
    shutil.copytree(bounded, tmp_path / "whole")
    whole = _started(tmp_path / "whole")
    assert whole.bounds[0] == (32, 45) and len(whole.values) == 13 and 3 <= len(whole.kept) < 45
    content = (bounded / name).read_bytes()
    assert "\nt 0 " in content.decode() or name in (CLEANED, OFFSET_CHECKSUMS)
    for at in range(0, len(content), 4 if name == OFFSET_CHECKSUMS else 1):
        caplog.clear()
        folder = tmp_path / "d"
        shutil.copytree(bounded, folder)
        data = bytearray(content)
        data[at] ^= 1 << at % 4
        (folder / name).write_bytes(data)
        read = _started(folder)
        assert set(read.values) >= set(whole.values) and set(read.kept) >= set(whole.kept), (at, bytes(data))
        assert name in caplog.text or (name == OFFSET_CHECKSUMS and read == whole), (at, bytes(data))
        assert read == whole or name == LOG_STARTS, (at, bytes(data))
        assert read.bounds[0][1] == 45, (at, bytes(data))
        caplog.clear()
        _started(folder)
        assert name not in caplog.text, "the next start finds it sound"
        shutil.rmtree(folder)


@pytest.mark.parametrize("name", [RECOVERY_POINTS, LOG_STARTS, CLEANED])
def test_a_flipped_digit_of_an_offset_checkpoint_is_found_by_a_check(bounded: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "d"
    shutil.copytree(bounded, folder)
    text = (folder / name).read_text()
    (folder / name).write_text(text[:-2] + ("8" if text[-2] != "8" else "9") + "\n")
    with locked_folder(folder):
        (found,) = FolderCheck(folder).run().found
    assert found.damage.path.name == name and "its checksum does not fit" in found.damage.reason
    (folder / OFFSET_CHECKSUMS).unlink()
    with locked_folder(folder):
        assert name not in [finding.damage.path.name for finding in FolderCheck(folder).run().found], (
            "edited on purpose"
        )


@pytest.mark.parametrize("at", ["between", "after"])
def test_a_crash_between_an_offset_checkpoint_and_its_checksum_is_no_damage(
    bounded: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, at: str
) -> None:
    folder = tmp_path / "d"
    shutil.copytree(bounded, folder)
    before = (folder / LOG_STARTS).read_bytes()
    write_offset_checkpoints(folder, {LOG_STARTS: {PART: 40}})
    if at == "between":
        (folder / LOG_STARTS).write_bytes(before)
    assert _started(folder).bounds[0] == (40 if at == "after" else 32, 45)
    assert LOG_STARTS not in caplog.text


def test_segments_before_the_log_start_are_kept_when_no_checksum_tells_that_it_is_right(
    bounded: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder from before the checksums is opened like this one: a start past the end removed all segments."""
    folder = tmp_path / "d"
    shutil.copytree(bounded, folder)
    size = _records(folder / "t-0")
    (folder / OFFSET_CHECKSUMS).unlink()
    (folder / LOG_STARTS).write_text("0\n1\nt 0 72\n")
    assert _started(folder).bounds[0] == (72, 72)
    assert "lies before the log start offset 72 of log-start-offset-checkpoint" in caplog.text
    assert sum(path.stat().st_size for path in (folder / "t-0").glob("*.damaged")) == size


def _spoiled_bytes(content: bytes) -> list[bytes]:
    """The content with each byte flipped, without the end, and without all."""
    flipped = []
    for at in range(len(content)):
        data = bytearray(content)
        data[at] ^= 1 << at % 8
        flipped.append(bytes(data))
    return [*flipped, content[:-34], b""]


@pytest.mark.parametrize("has_checksums", [True, False], ids=["with checksums", "without"])
def test_a_check_finds_each_flipped_byte_of_a_transaction_index(
    made: Path, tmp_path: Path, has_checksums: bool
) -> None:
    """Of a wrong index, a check said nothing; readers would get aborted records, or lack committed ones."""
    folder = tmp_path / "d"
    shutil.copytree(made, folder)
    if not has_checksums:
        (folder / "t-0" / TRANSACTION_INDEXES).unlink()
    with locked_folder(folder):
        assert FolderCheck(folder).run().found == []
    paths = [path for path in sorted((folder / "t-0").glob("*.txnindex")) if path.stat().st_size]
    assert len(paths) >= 2
    for path in paths:
        content = path.read_bytes()
        for data in _spoiled_bytes(content):
            path.write_bytes(data)
            with locked_folder(folder):
                (found,) = FolderCheck(folder).run().found
            assert (found.damage.path, found.kind, found.lost_offsets) == (path, "index", 0), data
            assert "made again" in found.damage.reason
        path.write_bytes(content)


@pytest.mark.parametrize("spoil", [*range(0, 34, 5), "emptied", "gone"])
def test_a_wrong_transaction_index_is_made_again_by_a_repair(made: Path, tmp_path: Path, spoil: int | str) -> None:
    shutil.copytree(made, tmp_path / "whole")
    whole = _view(tmp_path / "whole")
    folder = tmp_path / "d"
    shutil.copytree(made, folder)
    (folder / "t-0" / TRANSACTION_INDEXES).unlink()
    path = next(path for path in sorted((folder / "t-0").glob("*.txnindex")) if path.stat().st_size)
    data = bytearray(path.read_bytes())
    if isinstance(spoil, int):
        data[spoil] ^= 1
        path.write_bytes(data)
    elif spoil == "gone":
        path.unlink()
    else:
        path.write_bytes(b"")
    with locked_folder(folder):
        found = FolderCheck(folder).run().found
        assert [defect for defect, _ in repair(found)] == found and len(found) == 1
    assert _view(folder) == whole
    with locked_folder(folder):
        assert FolderCheck(folder).run().found == []


def test_a_check_takes_the_transaction_indexes_of_shortened_and_compacted_logs(tmp_path: Path) -> None:
    """Their batches, or whole transactions, are not there any more."""
    folder = tmp_path / "d"
    with LogStore(folder) as store:
        store.create_topic("t", 1, {"segment.bytes": "600"})
        store.create_topic("kept", 1, {"cleanup.policy": "compact", "segment.bytes": "600"})
        for number in range(60):
            for part in (PART, KEPT):
                log = store.partition(part)
                log.append(keyed((b"k%d" % (number % 5), b"v%d" % number * 5)), NOW)
                log.append(_transactional(number), NOW)
                if number % 6 == 5:
                    for producer_id in (7, 8):
                        log.append_marker(Marker(producer_id, 0, (number // 6 + producer_id) % 2 == 0, 0), NOW)
        store.partition(PART).delete_records(75)
        while store.run_maintenance_slice(NOW + 3_600_000):
            pass
        assert store.partition(PART).segments[0].base_offset > 0
    with locked_folder(folder):
        assert FolderCheck(folder).run().found == []
