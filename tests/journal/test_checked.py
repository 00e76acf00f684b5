"""A journal with damage in it: what can't be read is never interpreted, and whom it may concern is said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kohort.groups import records as r
from kohort.journal import sealing
from kohort.journal.checked import DamageSurvey, checked_batches
from kohort.journal.codec import encode_record, group_of_key
from kohort.journal.local import LogJournal
from kohort.log import DamagedError, OpenOptions, PartitionLog
from kohort.wire.batch import parse_header
from tests.log.making import CRASHED, NOW, keyed, small

CRC_FROM = 17
"""The checksum itself, and all that it covers, begin here in a batch."""
CLOSED = OpenOptions()


def committed(group: str, offset: int) -> r.OffsetCommitted:
    return r.OffsetCommitted(group, "topic", 0, offset, -1, "", NOW)


STEPS: list[list[r.Record]] = [
    [committed("before", 1), committed("renewed", 1)],
    [committed("lost", 1)],
    [committed("lost", 2), r.GroupSaved("saved", "consumer", 1, None, None, NOW, ())],
    [committed("renewed", 3)],
    [committed("behind", 4)],
]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    """A journal with a batch for each of the steps."""
    log = PartitionLog.open(tmp_path / "__consumer_offsets-0", small(segment_bytes=60_000))
    writer = LogJournal(log)
    writer.begin_term(1)
    for step in STEPS:
        writer.append(1, step, NOW)
    yield log
    log.close()


def spots(log: PartitionLog, number: int) -> tuple[int, int, int]:
    """Where a batch begins and ends in the file, and its base offset."""
    at = 0
    for place, batch in enumerate(log.iterate_batches(0)):
        if place == number:
            return at, at + len(batch), parse_header(batch).base_offset
        at += len(batch)
    raise AssertionError(number)


def flipped(log: PartitionLog, position: int, bit: int = 4) -> None:
    data = bytearray(log.active.path.read_bytes())
    data[position] ^= 1 << bit
    log.active.path.write_bytes(data)


def replay(log: PartitionLog, *, older: bool) -> list[r.Record]:
    return [record for some in LogJournal(log, serves_older_values=older).replay() for record in some]


@pytest.mark.parametrize("number", range(len(STEPS)))
def test_no_flipped_bit_is_believed(log: PartitionLog, number: int) -> None:
    begin, end, base = spots(log, number)
    others = [record for place, step in enumerate(STEPS) for record in step if place != number]
    for position in range(begin + CRC_FROM, end):
        flipped(log, position)
        with pytest.raises(DamagedError) as caught:
            replay(log, older=False)
        damage = caught.value.damage
        assert (damage.path, damage.position, damage.length) == (log.active.path, begin, end - begin)
        assert (damage.first_offset, damage.next_offset) == (base, base + len(STEPS[number]))
        assert replay(log, older=True) == others
        flipped(log, position)
    assert replay(log, older=False) == [record for step in STEPS for record in step]


def test_it_says_whom_damage_may_concern(log: PartitionLog, caplog: pytest.LogCaptureFixture) -> None:
    begin, end, _ = spots(log, 2)
    flipped(log, end - 12)
    with pytest.raises(DamagedError, match=r"offsets\.load\.on\.corruption=older"):
        replay(log, older=False)
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert f"__consumer_offsets-0/{'0' * 20}.log is damaged at byte {begin} ({end - begin} bytes)" in line
    assert "offsets 3 to 4 can't be read, the next readable one is 5" in line
    assert "names that can be made out in it: lost, saved" in line
    assert "2 groups have records" in line
    assert "newer ones: lost (offset 2), before (offset 0)" in line
    assert "behind" not in line
    assert "renewed" not in line


def test_each_damage_is_said_once(log: PartitionLog, caplog: pytest.LogCaptureFixture) -> None:
    for number in (1, 3):
        flipped(log, spots(log, number)[1] - 12)
    journal = LogJournal(log, serves_older_values=True)
    for _ in range(3):
        assert len([record for some in journal.replay() for record in some]) == 5
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 2
    assert caplog.text.count("the older values are served") == 2


def test_a_record_that_is_none_damages_its_batch(log: PartitionLog, caplog: pytest.LogCaptureFixture) -> None:
    """The checksum is right, what it covers is not: another program wrote it, or a later version."""
    key, value = encode_record(committed("g", 1))
    good = (key, value)
    log.append(keyed(good, (b"\0\2\0\1g", b"\0\3\xff\xff\xff")), NOW, from_client=False)
    with pytest.raises(DamagedError):
        replay(log, older=False)
    assert replay(log, older=True) == [record for step in STEPS for record in step]
    assert "is damaged at byte" in caplog.text


def test_a_survey_looks_at_a_long_log_in_steps(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path / "__consumer_offsets-0", small(segment_bytes=200_000))
    writer = LogJournal(log)
    writer.begin_term(1)
    for number in range(300):
        writer.append(1, [committed(f"g{number}-{part}" + "x" * 100, number) for part in range(20)], NOW)
    survey = DamageSurvey(log, lambda header, batch: None, group_of_key, "group")
    assert len(list(survey.examine_in_steps())) > 2
    assert not survey.damages
    assert len(list(checked_batches(log, 0, 1000))) == 300


def test_an_unfinished_append_is_cut_off_and_said(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sealing, "BATCH_BYTES_MAX", 2_000)
    LogJournal(log).append(1, [committed(f"many-{number}", number) for number in range(100)], NOW)
    file = log.active.path
    file.write_bytes(file.read_bytes()[:-30])
    torn = PartitionLog.open(log.path, log.config, CRASHED)
    assert replay(torn, older=False) == [record for step in STEPS for record in step]
    opened, cut = [record.getMessage() for record in caplog.records if record.name == "kohort.log"]
    assert f"[partition __consumer_offsets-0] truncated {torn.recovery.truncated_bytes} bytes after offset" in opened
    assert "Groups in the last records before: many-" in opened
    assert "truncated an unfinished append, offsets 7 to" in cut
    assert "Groups in it: many-" in cut


def test_a_torn_end_behind_a_name_that_is_no_text_is_said(log: PartitionLog, caplog: pytest.LogCaptureFixture) -> None:
    """Another program wrote the name. Older values are served all the same, where that is allowed."""
    log.append(keyed((b"\0\2\0\2\xff\xfe", b"")), NOW, from_client=False)
    LogJournal(log).append(1, [committed("torn", 1)], NOW)
    file = log.active.path
    file.write_bytes(file.read_bytes()[:-3])
    torn = PartitionLog.open(log.path, log.config, CRASHED)
    assert replay(torn, older=True) == [record for step in STEPS for record in step]
    assert "Groups in the last records before: behind (offset 6)" in caplog.text


def test_whose_a_record_is() -> None:
    for step in STEPS:
        for record in step:
            assert group_of_key(encode_record(record)[0]) == record.key[1]
    for key in (b"", b"\0", b"\0\1\0\5ab", b"\x27\x11", b"\0\x63\0\1g"):
        assert group_of_key(key) is None
