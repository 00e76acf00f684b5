"""One flipped byte, anywhere in a batch's header: never a wrong offset, never a silent gap, all before it delivered."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kohort.log import LogConfig, OpenOptions, PartitionLog, compact_now
from kohort.log.damage import ASIDE, DamagedError, LogDamage
from kohort.wire.batch import has_valid_crc, parse_header
from kohort.wire.records import read_records
from tests.log.making import CRASHED, NOW, UNKNOWN, batch, copy_folder, keyed, small
from tests.support.long_runs import examples

FIELDS = {
    "base offset": range(8),
    "length": range(8, 12),
    "leader epoch": range(12, 16),
    "magic": range(16, 17),
    "crc": range(17, 21),
    "attributes": range(21, 23),
    "last offset delta": range(23, 27),
    "timestamps": range(27, 43),
    "producer": range(43, 57),
    "records": range(57, 61),
}
OPENINGS = {"closed": OpenOptions(known_end=0), "process died": CRASHED, "machine died": UNKNOWN}


class Made(NamedTuple):
    """A log on the disk, and what is in it: (file, position, first offset, offset after it, values) of each batch."""

    folder: Path
    config: LogConfig
    batches: list[tuple[Path, int, int, int, list[tuple[int, bytes]]]]
    end: int
    cleaned: int
    fifth: int  # where epoch 5 begins; before it there is only epoch 3

    def __repr__(self) -> str:
        return f"a log of {len(self.batches)} batches"


def _batches(log: PartitionLog) -> list[tuple[Path, int, int, int, list[tuple[int, bytes]]]]:
    found = []
    for segment in log.segments:
        for entry in segment.scan(0):
            records = [(r.offset, bytes(r.value or b"")) for r in read_records(segment.read_batch(entry))]
            header = entry.header
            found.append((segment.path, entry.position, header.base_offset, header.next_offset, records))
    return found


def _make(folder: Path, *, compacted: bool) -> Made:
    config = small(segment_bytes=1500, cleanup_policy=("compact",)) if compacted else small(segment_bytes=1500)
    log = PartitionLog.open(folder, config)
    log.advance_leader_epoch(3)
    fifth = 0
    for number in range(70):
        if number == 40:
            log.advance_leader_epoch(5)
            fifth = log.end_offset
        if compacted:
            pairs = [(b"k%d" % (number * 7 % 31), b"v%d" % number), (b"%d" % number if number % 9 == 0 else b"x", b"w")]
            log.append(keyed(*pairs[: 1 + number % 2]), NOW + number)
        else:
            log.append(batch(*[b"v%d" % number * (1 + number % 6)] * (1 + number % 4), at=NOW + number), NOW)
    if compacted:
        compact_now(log, NOW)
    log.close()
    return Made(folder, config, _batches(log), log.end_offset, log.cleaned_offset, fifth)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Made]:
    folder = tmp_path_factory.mktemp("logs")
    return {entry: _make(folder / f"t{entry}-0", compacted=entry) for entry in (False, True)}


def _read_all(log: PartitionLog) -> tuple[list[tuple[int, int, bytes]], list[LogDamage]]:
    """Return the batches that a reader sees that skips each damage: (base offset, offset after it, bytes)."""
    seen, met = [], []
    offset = log.log_start_offset
    while offset < log.end_offset:
        try:
            result = log.read(offset, 400)
            data = result.bytes()
        except DamagedError as error:
            damage = error.damage
            met.append(damage)
            assert damage.first_offset <= offset
            if damage.next_offset is None:
                break
            assert damage.next_offset > offset
            offset = damage.next_offset
            continue
        assert result.next_offset > offset or not data
        at = 0
        while at < len(data):
            header = parse_header(data, at)
            seen.append((header.base_offset, header.next_offset, data[at : at + header.size]))
            at += header.size
        if not data:
            break
        offset = result.next_offset
    return seen, met


@settings(max_examples=examples(250), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    compacted=st.booleans(),
    number=st.integers(0, 10_000) | st.just(-1),
    field=st.sampled_from(sorted(FIELDS)),
    within=st.integers(0, 15) | st.just(7),
    mask=st.integers(1, 255) | st.integers(1, 4),
    indexed=st.booleans(),
    opening=st.sampled_from(sorted(OPENINGS)),
)
@example(compacted=False, number=30, field="length", within=0, mask=255, indexed=True, opening="closed")
@example(compacted=False, number=1, field="leader epoch", within=3, mask=1, indexed=True, opening="closed")
@example(compacted=False, number=30, field="base offset", within=5, mask=255, indexed=False, opening="closed")
def test_a_flipped_byte(
    made: dict[bool, Made],
    compacted: bool,
    number: int,
    field: str,
    within: int,
    mask: int,
    indexed: bool,
    opening: str,
) -> None:
    whole = made[compacted]
    number %= len(whole.batches)
    path, position, first, _following, _ = whole.batches[number]
    spot = FIELDS[field][within % len(FIELDS[field])]
    scratch = Path(tempfile.mkdtemp(prefix="kohort-damage-"))
    try:
        folder = copy_folder(whole.folder, scratch / "t-0")
        data = bytearray((folder / path.name).read_bytes())
        data[position + spot] ^= mask
        (folder / path.name).write_bytes(data)
        if not indexed:
            for file in (*folder.glob("*.index"), *folder.glob("*.timeindex")):
                file.unlink()
        options = OPENINGS[opening]
        if not options.clean:
            for file in folder.glob("*.snapshot"):
                file.unlink()
        if options.clean:
            options = OpenOptions(known_end=whole.end, cleaned_offset=whole.cleaned)
        log = PartitionLog.open(folder, whole.config, options)
        _check(log, whole, number, opening, indexed or not compacted)
        end = log.end_offset
        assert log.append(batch(b"goes on"), NOW).base_offset == end
        last_batch = number == len(whole.batches) - 1
        if last_batch and opening == "machine died" and spot >= 17:
            assert end == first, "nothing tells it from what the machine's end tore"
        elif last_batch and opening == "process died" and field in ("last offset delta", "records"):
            assert first < end <= whole.end
        else:
            assert end == whole.end, "no offset is given twice"
    finally:
        shutil.rmtree(scratch)


def _check(log: PartitionLog, whole: Made, number: int, opening: str, certain: bool) -> None:
    """Nothing wrong was seen, nothing was skipped without an error, all else was there."""
    wanted = {(first, following): None for _, _, first, following, _ in whole.batches}
    _, _, damaged, behind, _records = whole.batches[number]
    seen, met = _read_all(log)
    sound = [(base, following) for base, following, data in seen if has_valid_crc(data, parse_header(data))]
    unsound = [(base, following) for base, following, data in seen if not has_valid_crc(data, parse_header(data))]
    if certain:
        assert [record for record in sound if record not in wanted] == []
    for base, _ in unsound:
        assert base == damaged, "a reader that checks the checksum names the right batch"
    if opening != "machine died":
        epochs = {parse_header(data).partition_leader_epoch for _, following, data in seen if following <= whole.fifth}
        assert epochs <= {3}
        assert {parse_header(data).partition_leader_epoch for base, _, data in seen if base >= whole.fifth} <= {5}
    lost = [record for record in wanted if record not in sound]
    if certain or lost:
        assert set(lost) <= {(damaged, behind)}
    if certain and lost and not unsound and (opening == "closed" or log.end_offset == whole.end):
        assert [(entry.first_offset <= damaged, (entry.next_offset or 0) >= behind) for entry in met] == [(True, True)]
        assert met[0].describe()
    for damage in met:
        assert damage.path.parent == log.path
        assert not any(damage.first_offset <= base < (damage.next_offset or 0) for base, _ in sound)


@settings(max_examples=examples(120), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    compacted=st.booleans(),
    number=st.integers(0, 10_000) | st.just(-1),
    spot=st.integers(0, 60),
    mask=st.integers(1, 255),
    verified=st.integers(0, 10_000) | st.just(0),
)
def test_a_flipped_byte_in_what_was_not_known_to_be_on_the_disk(
    made: dict[bool, Made], compacted: bool, number: int, spot: int, mask: int, verified: int
) -> None:
    """The log ends before it, or refuses it; no sound batch before it is lost, and no bytes at all."""
    whole = made[compacted]
    number %= len(whole.batches)
    path, position, damaged, _, _ = whole.batches[number]
    verified = min(verified % (whole.end + 1), damaged)
    scratch = Path(tempfile.mkdtemp(prefix="kohort-damage-"))
    try:
        folder = copy_folder(whole.folder, scratch / "t-0")
        data = bytearray((folder / path.name).read_bytes())
        data[position + spot] ^= mask
        (folder / path.name).write_bytes(data)
        options = OpenOptions(clean=False, verified_offset=verified, known_end=verified)
        log = PartitionLog.open(folder, whole.config, options)
        before = [pair for *_, pairs in whole.batches[:number] for pair in pairs]
        seen, met = _read_all(log)
        assert [pair for pair in values_of(seen) if pair[0] < damaged] == before
        if not met and log.end_offset <= damaged:
            kept = sum((folder / name).stat().st_size for name in os.listdir(folder) if name.endswith((".log", ASIDE)))
            size = sum(file.stat().st_size for file in whole.folder.glob("*.log"))
            cut_whole = not list(folder.glob(f"*{ASIDE}"))
            assert kept == size or (cut_whole and number == len(whole.batches) - 1)
        assert log.append(batch(b"goes on"), NOW).base_offset == log.end_offset - 1
        again = PartitionLog.open(folder, whole.config, CRASHED)
        assert again.end_offset == log.end_offset
    finally:
        shutil.rmtree(scratch)


def values_of(seen: list[tuple[int, int, bytes]]) -> list[tuple[int, bytes]]:
    """The records of the sound batches among these."""
    sound = [data for _, _, data in seen if has_valid_crc(data, parse_header(data))]
    return [(record.offset, bytes(record.value or b"")) for data in sound for record in read_records(data)]
