"""Other users of the machine can't read what a broker stores."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kohort import Admin, Broker, Consumer, Producer
from kohort.log.filesystem import file_mode, folder_mode
from tests.broker.raw import RawClient, produce
from tests.support.hostile_batches import bomb

OTHERS = stat.S_IROTH | stat.S_IWOTH | stat.S_IXOTH
GROUP_WRITES = stat.S_IWGRP


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A data folder with everything that a broker creates, after a restart; the program's umask denies nothing."""
    before = os.umask(0)
    try:
        data = tmp_path / "data"
        for _ in range(2):
            with Broker(data, {"log.cleaner.min.compaction.lag.ms": 0}) as broker:
                used(broker)
        yield data
    finally:
        os.umask(before)


def used(broker: Broker) -> None:
    with Producer(broker.bootstrap_servers, transactional_id="t") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("seen", value="v")
        producer.commit_transaction()
    with Consumer(broker.bootstrap_servers, group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["seen"])
        deadline = time.monotonic() + 30
        while not consumer.poll(500) and time.monotonic() < deadline:
            pass
        consumer.commit()
    with Admin(broker.bootstrap_servers) as admin:
        admin.list_topics()
    with RawClient(broker.bootstrap_servers) as client:
        produce(client, "seen", 0, bomb("zstd", 100))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_no_other_user_may_read_or_write(folder: Path) -> None:
    found = [folder, *folder.rglob("*")]
    assert len(found) > 20
    assert not [str(path) for path in found if mode(path) & (OTHERS | GROUP_WRITES)]


def test_journals_checkpoints_and_small_files_are_private(folder: Path) -> None:
    private = [path for path in folder.rglob("*") if path.parent.name.startswith("__") or path.parent == folder]
    files = [path for path in private if path.is_file()]
    assert {mode(path) for path in files} == {0o600}
    names = {path.name for path in files}
    assert {"meta.properties", "recovery-point-offset-checkpoint", "00000000000000000000.log"} <= names
    folders = [path for path in folder.iterdir() if path.name.startswith("__")]
    assert len(folders) >= 2
    assert {mode(path) for path in folders} == {0o700}
    checkpoints = [*folder.glob("*/partition.metadata"), *folder.glob("*/leader-epoch-checkpoint")]
    assert {mode(path) for path in checkpoints} == {0o600}


def test_records_are_readable_for_the_group(folder: Path) -> None:
    assert mode(folder / "seen-0") == 0o750
    assert mode(folder / "seen-0" / "00000000000000000000.log") == 0o640


def test_journal_of_an_earlier_release_is_closed_to_others(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker:
        used(broker)
    journal = next(path for path in (tmp_path / "data").iterdir() if path.name.startswith("__consumer_offsets"))
    journal.chmod(0o755)
    with Broker(tmp_path / "data"):
        assert mode(journal) == 0o700


def test_mode_goes_by_the_name_of_the_partition() -> None:
    assert file_mode("/data/__kohort_regions-0/00000000000000000000.log") == 0o600
    assert file_mode("/data/orders-0/00000000000000000000.index") == 0o640
    assert (folder_mode("/data/__transaction_state-1"), folder_mode("/data/orders-0")) == (0o700, 0o750)
