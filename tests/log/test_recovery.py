"""Remains of a crash: torn tails, damaged indexes, interrupted changes, a killed writer."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kohort.errors import KafkaError
from kohort.log import LogConfig, LogStore, OpenOptions, PartitionLog
from kohort.log.compaction import Compaction
from kohort.log.damage import DamagedError
from kohort.wire.records import read_records
from tests.log.making import CRASHED, NOW, POWER_LOST, UNKNOWN, batch, copy_folder, keyed, small, values


def _fill(path: Path, batches: int = 12, config: LogConfig | None = None) -> PartitionLog:
    log = PartitionLog.open(path, config or small())
    for number in range(batches):
        log.append(batch(b"%d" % number * 20, b"second", at=NOW + number), NOW)
    return log


@pytest.mark.parametrize("options", [CRASHED, POWER_LOST], ids=["process died", "machine died"])
def test_a_tail_torn_at_every_byte_is_cut(tmp_path: Path, options: OpenOptions) -> None:
    log = _fill(tmp_path / "t-0")
    wanted = values(log)
    last = log.active.path
    whole = last.read_bytes()
    size = len(batch(b"11" * 20, b"second"))
    for cut in range(1, size + 1):
        copy = copy_folder(tmp_path / "t-0", tmp_path / f"cut{cut}-0")
        (copy / last.name).write_bytes(whole[: len(whole) - cut])
        again = PartitionLog.open(copy, small(), options)
        assert values(again) == wanted[:-2]
        assert again.recovery.truncated_bytes == size - cut
        again.append(batch(b"new"), NOW)
        assert values(PartitionLog.open(copy, small(), CRASHED)) == [*wanted[:-2], (22, b"new")]


def test_damage_after_a_power_loss_is_found_by_checksum_from_the_recovery_point(tmp_path: Path) -> None:
    config = small(segment_bytes=100_000)
    log = _fill(tmp_path / "t-0", config=config)
    log.active.flush_indexes()
    size = log.active.size // 12
    data = bytearray(log.active.path.read_bytes())
    data[5 * size + 80] ^= 1
    log.active.path.write_bytes(data)
    for verified, end, damaged in ((0, 10, []), (10, 10, []), (11, 24, [(10, 12)]), (13, 24, [])):
        copy = copy_folder(tmp_path / "t-0", tmp_path / f"from{verified}-0")
        again = PartitionLog.open(copy, config, OpenOptions(clean=False, verified_offset=verified))
        assert again.end_offset == end
        assert [(damage.first_offset, damage.next_offset) for damage in again.recovery.damages] == damaged
        assert again.recovery.truncated_bytes == len(data) - again.active.size


@pytest.mark.parametrize("options", [OpenOptions(), CRASHED, UNKNOWN], ids=["closed", "process died", "machine died"])
def test_damage_in_an_older_segment_is_kept_and_what_follows_is_served(tmp_path: Path, options: OpenOptions) -> None:
    log = _fill(tmp_path / "t-0", 60)
    wanted, count = values(log), len(log.segments)
    assert count > 3
    log.close()
    damaged = log.segments[1]
    data = bytearray(damaged.path.read_bytes())
    last = damaged.end_offset - 2
    position = damaged.locate(last).position  # type: ignore[union-attr]
    data[position + 8] = 0xFF
    damaged.path.write_bytes(data)
    again = PartitionLog.open(tmp_path / "t-0", small(), options)
    assert again.end_offset == 120
    assert len(again.segments) == count
    assert damaged.path.read_bytes() == data
    assert values(again, damaged.end_offset) == wanted[damaged.end_offset :]
    with pytest.raises(DamagedError) as met:
        values(again)
    assert (met.value.damage.first_offset, met.value.damage.next_offset) == (last, damaged.end_offset)
    again.append(batch(b"goes on"), NOW)
    assert values(again, damaged.end_offset) == [*wanted[damaged.end_offset :], (120, b"goes on")]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "empty", "odd", "zeros", "noise", "beyond"])
def test_damaged_indexes_are_rebuilt(tmp_path: Path, suffix: str, damage: str, clean: bool) -> None:
    log = _fill(tmp_path / "t-0", 60)
    wanted, count = values(log), len(log.segments)
    log.close()
    noise = random.Random(7)
    for segment in log.segments:
        index = segment.path.with_suffix(suffix)
        data = index.read_bytes()
        if damage == "missing":
            index.unlink()
        else:
            bad = {
                "empty": b"",
                "odd": data[:-3],
                "zeros": bytes(len(data)),
                "noise": noise.randbytes(len(data)),
                "beyond": data + b"\x7f\xff\xff\xff" * (len(data) // 8),
            }[damage]
            index.write_bytes(bad)
    again = PartitionLog.open(tmp_path / "t-0", small(), OpenOptions() if clean else CRASHED)
    assert values(again) == wanted
    assert len(again.segments) == count
    for offset, _ in wanted:
        assert values(again, offset)[0][0] == offset
    for number in range(60):
        assert again.offset_for_timestamp(NOW + number)[0] <= 2 * number
    again.append(batch(b"new"), NOW)
    assert values(again) == [*wanted, (120, b"new")]


def test_leftovers_of_interrupted_work_are_removed(tmp_path: Path) -> None:
    wanted = values(_fill(tmp_path / "t-0"))
    leftovers = [
        "00000000000000000000.log.cleaned",
        "00000000000000000009.index",
        "00000000000000000000.log.deleted",
    ]
    for name in leftovers:
        (tmp_path / "t-0" / name).write_bytes(b"left")
    assert values(PartitionLog.open(tmp_path / "t-0", small(), CRASHED)) == wanted
    assert not any((tmp_path / "t-0" / name).exists() for name in leftovers)


def test_a_compaction_interrupted_at_each_step_loses_nothing(tmp_path: Path) -> None:
    config = small(cleanup_policy=("compact",), segment_bytes=600)
    log = PartitionLog.open(tmp_path / "t-0", config)
    for number in range(60):
        log.append(keyed((b"k%d" % (number % 7), b"v%d" % number)), NOW)
    run = Compaction(log, NOW)
    for _ in run.steps():
        pass
    current = {f"k{n % 7}": f"v{n}" for n in range(60)}

    def state(path: Path) -> dict[str, str]:
        again = PartitionLog.open(path, config, CRASHED)
        found = {}
        for data in again.iterate_batches(again.log_start_offset):
            for record in read_records(data):
                found[bytes(record.key or b"").decode()] = bytes(record.value or b"").decode()
        assert again.end_offset == 60
        return found

    written = copy_folder(tmp_path / "t-0", tmp_path / "written-0")
    cleaned = sorted(written.glob("*.cleaned"))
    assert cleaned
    assert state(copy_folder(written, tmp_path / "before-0")) == current
    swapped = copy_folder(written, tmp_path / "swapped-0")
    for file in sorted(swapped.glob("*.cleaned")):
        file.replace(file.with_suffix(""))
    assert state(copy_folder(swapped, tmp_path / "all-0")) == current
    half = copy_folder(swapped, tmp_path / "half-0")
    for file in sorted(half.glob("*.log"))[:2]:
        file.unlink()
    assert state(half) == current


def test_an_append_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = _fill(tmp_path / "t-0", 3)
    wanted, real = values(log), os.pwritev

    def full_disk(fd: int, buffers: list[bytes], offset: int) -> int:
        real(fd, [b"".join(buffers)[:40]], offset)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwritev", full_disk)
    with pytest.raises(OSError, match="No space"):
        log.append(batch(b"lost"), NOW)
    monkeypatch.undo()
    assert log.active.path.stat().st_size == log.active.size
    assert values(log) == wanted
    assert log.append(batch(b"kept"), NOW).base_offset == 6
    assert values(PartitionLog.open(tmp_path / "t-0", small(), CRASHED)) == [*wanted, (6, b"kept")]


def test_a_short_write_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = _fill(tmp_path / "t-0", 1)
    real = os.pwritev
    once = os.pwrite
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, at: real(fd, [b"".join(buffers)[:50]], at))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: once(fd, data[:50], at))
    log.append(batch(b"whole" * 30), NOW)
    log.append(bytearray(batch(b"again" * 30)), NOW)
    assert values(log)[2:] == [(2, b"whole" * 30), (3, b"again" * 30)]


_WRITER = """
import sys, os
from kohort.log import LogStore, LogConfig
from kohort.wire.records import read_records
from tests.log.making import batch, NOW
store = LogStore(sys.argv[1], defaults=LogConfig(segment_bytes=200_000, index_interval_bytes=500))
if "t" not in store.topics:
    store.create_topic("t", 2)
logs = [store.get("t", 0), store.get("t", 1)]
number = int(sys.argv[2])
while True:
    log = logs[number % 2]
    value = b"%d " % number
    at = log.append(batch(value * (1 + number % 400), producer_id=5 + number % 2, producer_epoch=0,
                          base_sequence=number // 2), NOW).base_offset
    os.write(1, b"%d %d %d\\n" % (number % 2, at, number))
    number += 1
"""


def test_nothing_acknowledged_is_lost_when_the_writer_is_killed(tmp_path: Path) -> None:
    chance = random.Random(20)
    acknowledged: list[dict[int, int]] = [{}, {}]
    number = 0
    for _ in range(6):
        lines = chance.randrange(50, 1500)
        with subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(tmp_path / "data"), str(number)],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        ) as writer:
            assert writer.stdout is not None
            for seen, line in enumerate(writer.stdout, 1):
                part, offset, number = map(int, line.split())
                acknowledged[part][offset] = number
                if seen == lines:
                    writer.send_signal(signal.SIGKILL)
        with LogStore(tmp_path / "data") as store:
            for part in (0, 1):
                log = store.get("t", part)
                assert log is not None
                found = dict(values(log))
                for offset, value in acknowledged[part].items():
                    assert found[offset].split()[0] == b"%d" % value
                assert sorted(found) == list(range(len(found)))
                # a write that was not acknowledged any more may be there: the numbering goes on behind it
                acknowledged[part] = {offset: int(value.split()[0]) for offset, value in found.items()}
                number = max([number, *acknowledged[part].values()])
                producer = log.producers.by_id[5 + part]
                assert producer.batches[-1].last_offset == log.end_offset - 1
                assert producer.batches[-1].last_sequence == acknowledged[part][log.end_offset - 1] // 2
        number += 1


def test_garbage_as_a_segment_is_cut_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / "00000000000000000000.log").write_bytes(random.Random(1).randbytes(5000))
    log = PartitionLog.open(tmp_path / "t-0", small(), CRASHED)
    assert log.end_offset == 0
    with pytest.raises(KafkaError):
        log.read(1, 100)
    log.append(batch(b"first"), NOW)
    assert values(log) == [(0, b"first")]


def test_indexes_that_can_not_be_written_do_not_fail_an_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = _fill(tmp_path / "t-0", 3, LogConfig(index_interval_bytes=100))

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full_disk)
        for _ in range(3):
            log.append(batch(b"x" * 900_000), NOW)
    assert log.active.path.with_suffix(".index").stat().st_size == 0
    log.append(batch(b"x" * 1_000_000), NOW)
    log.append(batch(b"x" * 1_000_000), NOW)
    assert log.active.path.with_suffix(".index").stat().st_size >= 8 * 6, "what was missing then is there now"
    wanted = values(log)
    assert len(wanted) == 11
    again = PartitionLog.open(tmp_path / "t-0", LogConfig(), CRASHED)
    assert values(again) == wanted
    assert not again.recovery.rebuilt_indexes


def test_what_rots_while_the_broker_runs_is_met_as_damage(tmp_path: Path) -> None:
    """Data written by this process is not scanned again, but bytes that are no batch are not skipped either."""
    log = _fill(tmp_path / "t-0", 60)
    wanted = values(log)
    segment = log.segments[1]
    found = segment.locate(segment.base_offset + 4)
    assert found is not None
    data = bytearray(segment.path.read_bytes())
    data[found.position + 16] = 9
    segment.path.write_bytes(data)
    first = found.header.base_offset
    with pytest.raises(DamagedError) as met:
        log.read(first, 100)
    assert (met.value.damage.first_offset, met.value.damage.next_offset) == (first, first + 2)
    assert values(log, first + 2) == wanted[first + 2 :]
    result = log.read(segment.base_offset, 10_000)
    assert result.next_offset == first


def test_a_batch_in_a_record_is_not_taken_for_one_of_the_log(tmp_path: Path) -> None:
    """Behind damage the next batch is looked for; a value may hold bytes that look like one."""
    log = PartitionLog.open(tmp_path / "t-0", small(segment_bytes=100_000))
    log.append(batch(b"first"), NOW)
    inner = bytearray(batch(b"inner"))
    inner[7] = 3  # an offset that could come next
    log.append(batch(bytes(inner), bytes(inner) + bytes(inner), b"tail"), NOW)
    log.append(batch(b"last"), NOW)
    wanted = values(log)
    found = log.active.locate(1)
    assert found is not None
    log.close()
    data = bytearray(log.active.path.read_bytes())
    data[found.position + 8] = 0xFF
    log.active.path.write_bytes(data)
    again = PartitionLog.open(tmp_path / "t-0", small(segment_bytes=100_000))
    with pytest.raises(DamagedError) as met:
        values(again, 1)
    assert (met.value.damage.first_offset, met.value.damage.next_offset) == (1, 4)
    assert values(again, 4) == wanted[4:]


def test_a_search_by_time_does_not_pass_over_damage(tmp_path: Path) -> None:
    log = _fill(tmp_path / "t-0", 12, small(segment_bytes=100_000))
    log.close()
    found = log.active.locate(10)
    assert found is not None
    data = bytearray(log.active.path.read_bytes())
    data[found.position + 16] = 9
    log.active.path.write_bytes(data)
    again = PartitionLog.open(tmp_path / "t-0", small(segment_bytes=100_000))
    assert again.offset_for_timestamp(NOW + 1).offset == 1
    with pytest.raises(DamagedError):
        again.offset_for_timestamp(NOW + 6)
    assert again.offset_for_timestamp(NOW + 9).offset == 17


@pytest.mark.parametrize("lost", ["leader-epoch-checkpoint gone", "leader-epoch-checkpoint damaged"])
def test_leader_epochs_are_read_from_the_batches_again(tmp_path: Path, lost: str) -> None:
    log = PartitionLog.open(tmp_path / "t-0", small())
    for epoch in (2, 3, 7):
        log.advance_leader_epoch(epoch)
        for _ in range(9):
            log.append(batch(b"x" * 50), NOW)
    wanted = values(log)
    log.close()
    path = tmp_path / "t-0" / "leader-epoch-checkpoint"
    if lost.endswith("gone"):
        path.unlink()
    else:
        path.write_text("0\n9\n1")
    again = PartitionLog.open(tmp_path / "t-0", small())
    assert values(again) == wanted
    assert again.leader_epoch == 7
    assert again.end_offset_for_epoch(2) == (2, 9)


def test_leader_epochs_that_a_power_loss_left_older_than_the_batches_are_not_begun_again(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path / "t-0", small(flush_messages=1))
    path = tmp_path / "t-0" / "leader-epoch-checkpoint"
    log.advance_leader_epoch(2)
    log.append(batch(b"x"), NOW)
    older = path.read_bytes()
    log.advance_leader_epoch(7)
    log.append(batch(b"y"), NOW)
    path.write_bytes(older)
    lost = OpenOptions(clean=False, verified_offset=0)
    again = PartitionLog.open(tmp_path / "t-0", small(), lost)
    assert again.leader_epoch == 8
    again.append(batch(b"z"), NOW)
    third = PartitionLog.open(tmp_path / "t-0", small(), lost)
    assert values(third) == [(0, b"x"), (1, b"y"), (2, b"z")]
    assert not third.recovery.damages
