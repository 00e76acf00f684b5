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
from kohort.log.checkpoints import new_id, write_partition_metadata
from kohort.log.damage import DamagedError
from kohort.wire.batch import parse_header
from kohort.wire.records import read_records
from tests.log.making import NOW, batch, values

PART = TopicPartition("t", 0)
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
    """What readers and producers see of the log."""

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


def test_a_damaged_topic_id_costs_no_records_and_is_told_once(
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
                read = []
                with contextlib.suppress(DamagedError):  # told: offsets that the checkpoint names and the file has not
                    read.extend(record.offset for part in log.batches(0) for record in read_records(part))
                assert read[:140] == list(range(140)), at
        except InvalidInputError:
            assert name == "meta.properties"
        assert _records(folder) >= _records(made)
        shutil.rmtree(folder)
