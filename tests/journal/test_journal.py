"""Group records as Kafka's bytes, and the journal that keeps them."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation.harness.files import Files, Volume
from simulation.harness.world import World
from simulation.mutants.disk_mutants import ServesUnflushed, planted

from kohort.errors import FencedError, InvalidInputError
from kohort.groups import records as r
from kohort.journal import local, sealing
from kohort.journal.codec import GroupRecordReader, encode_record
from kohort.journal.local import LogJournal
from kohort.log import OpenOptions, PartitionLog, compact_now
from kohort.log.files import FileCache
from kohort.wire.batch import BatchRecord, build_batch, parse_header
from tests.log.making import CRASHED, NOW, copy_folder, keyed, small

_ID = uuid.UUID("66fa98a9-798b-4cb7-8a8a-4d3a5e1cf0a2")
RECORDS: list[r.Record] = [
    r.OffsetCommitted("g", "t", 3, 42, 5, "meta", 1000),
    r.OffsetCommitted("g", "t", 3, 42, -1, "", 1000),
    r.OffsetCommitted("g", "t", 3, 42, -1, "m", 1000, expire_ms=2000),
    r.OffsetCommitted("g", "t", 3, 42, 5, "ü" * 500, 1000, topic_id=_ID),
    r.GroupSaved("empty", "", 0, None, None, -1, ()),
    r.GroupSaved(
        "g",
        "consumer",
        3,
        "range",
        "m1",
        123,
        (
            r.SavedMember("m1", "i", "c", "/h", 300, 10, b"sub", b"asg"),
            r.SavedMember("m2", None, "c", "/h", 300, 10, b"x" * 5000, b""),
            r.SavedMember("m3", None, "c", "/h", -1, 10, b"", b""),
        ),
    ),
    r.GenerationStarted("g", 4),
    r.OffsetsImported("g", 1_700_000_000_000, 3),
    r.PushGroupSaved("p", -1),
    r.PushMemberSaved("p", "c-1", "client", "/h", (("t", 2), ("u", 1)), None, False, 1, True, False, 6000),
    r.PushMemberSaved("p", "c-2", "", "/h", (), "f.*", True, 3, False, True, 6000),
    r.PushMemberSaved("p", "c-3", "", "/h", (), "f.*", False, 1, False, None, 6000),
    r.PushOwned("p", "c-1", (r.TopicPartitions(_ID, (0, 2)),)),
    r.MemberSaved("h", "m", None, "r", "c", "/x", ("a", "b"), None, 5, "uniform"),
    r.MemberSaved("h", "m", "i", None, "c", "/x", (), "x.*", 5, None, 600, (r.OfferedProtocol("range", b"x"),)),
    r.EpochBumped("h", 3, -77),
    r.TargetEpochSet("h", 3, 99),
    r.TargetEpochSet("h", 3),
    r.TargetAssigned("h", "m", (r.TopicPartitions(_ID, (0, 1, 2)),)),
    r.MemberAssigned(
        "h",
        "m",
        3,
        2,
        r.ReconciliationState.UNREVOKED_PARTITIONS,
        (r.HeldPartitions(_ID, (0,), (3,)),),
        (r.HeldPartitions(_ID, (1, 2), (1, 2)),),
    ),
    r.RegexResolved("h", "x.*", ("xa", "xb"), 5, 1234),
]
TOMBSTONES: list[r.Record] = [r.Tombstone(record.key) for record in RECORDS if not isinstance(record, r.Tombstone)]
PENDING = r.OffsetCommitted("g", "t", 3, 43, 5, "m", 1000, producer_id=7, producer_epoch=1)


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    return PartitionLog.open(
        tmp_path / "__consumer_offsets-0", small(cleanup_policy=("compact",), segment_bytes=60_000)
    )


def replayed(log: PartitionLog) -> list[r.Record]:
    return [record for some in LogJournal(log).replay() for record in some]


@pytest.mark.parametrize("record", RECORDS + TOMBSTONES, ids=lambda record: type(record).__name__)
def test_every_kind_survives_as_kafkas_bytes(record: r.Record) -> None:
    key, value = encode_record(record)
    assert GroupRecordReader().decode_record(key, value) == record


_TEXT = st.text(max_size=40)
_COMMIT = st.builds(
    r.OffsetCommitted,
    group_id=_TEXT,
    topic=_TEXT,
    partition=st.integers(0, 2**31 - 1),
    offset=st.integers(0, 2**63 - 1),
    leader_epoch=st.integers(-1, 2**31 - 1),
    metadata=_TEXT,
    commit_ms=st.integers(0, 2**60),
    expire_ms=st.just(-1),
    topic_id=st.just(r.NO_TOPIC_ID) | st.uuids(),
    producer_id=st.just(-1),
    producer_epoch=st.just(-1),
)


@settings(deadline=None)
@given(st.lists(_COMMIT, max_size=20))
def test_any_commit_survives(commits: list[r.OffsetCommitted]) -> None:
    reader = GroupRecordReader()
    assert [reader.decode_record(*encode_record(commit)) for commit in commits] == commits


def test_kinds_of_others_are_skipped() -> None:
    reader = GroupRecordReader()
    for kind in (4, 9, 17, 99, 10001, 32000):
        assert reader.decode_record(kind.to_bytes(2, "big") + b"\0\1g", b"\0\0") is None


def test_what_is_appended_is_replayed_in_order(log: PartitionLog) -> None:
    writer = LogJournal(log)
    writer.begin_term(1)
    for record in RECORDS:
        writer.append(1, [record], NOW)
    writer.append(1, RECORDS + TOMBSTONES, NOW)
    end = log.end_offset
    writer.append(1, [], NOW)
    assert log.end_offset == end
    for opened in (log, PartitionLog.open(log.path, log.config, CRASHED)):
        assert replayed(opened) == RECORDS + RECORDS + TOMBSTONES


def test_one_append_is_one_batch(log: PartitionLog) -> None:
    writer = LogJournal(log)
    writer.begin_term(1)
    writer.append(1, RECORDS, NOW)
    assert [parse_header(b).records_count for b in log.iterate_batches(0)] == [len(RECORDS)]


@pytest.mark.parametrize("form", ["kernel", "plain"])
@pytest.mark.parametrize(
    "changed",
    [{"group_id": "g" * 40_000}, {"partition": 1 << 40}, {"offset": 1 << 70}, {"leader_epoch": 1 << 31}],
    ids=lambda changed: next(iter(changed)),
)
def test_position_that_no_record_holds_is_refused(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch, form: str, changed: dict[str, Any]
) -> None:
    if form == "plain":
        monkeypatch.setattr(sealing, "PACK_OFFSETS", None)
    writer = LogJournal(log)
    writer.begin_term(1)
    commit = r.OffsetCommitted("g", "t", 3, 42, 5, "meta", 1000)
    with pytest.raises(InvalidInputError, match="can't be encoded"):
        writer.append(1, [commit, commit._replace(**changed)], NOW)
    assert log.end_offset == 0


def test_an_older_term_is_fenced(log: PartitionLog) -> None:
    writer = LogJournal(log)
    writer.begin_term(4)
    writer.append(4, RECORDS, NOW)
    LogJournal(log).begin_term(5)
    end = log.end_offset
    with pytest.raises(FencedError):
        writer.append(4, RECORDS, NOW)
    with pytest.raises(FencedError):
        writer.begin_term(4)
    assert log.end_offset == end
    with pytest.raises(FencedError):
        LogJournal(PartitionLog.open(log.path, log.config, CRASHED)).begin_term(3)


def test_offsets_of_transactions_are_in_transactional_batches(log: PartitionLog) -> None:
    writer = LogJournal(log)
    writer.begin_term(1)
    mixed = [RECORDS[0], PENDING, PENDING, RECORDS[6], r.TransactionMarked(7, 1, True), RECORDS[0]]
    writer.append(1, mixed[:4], NOW)
    assert log.last_stable_offset < log.end_offset
    writer.append(1, mixed[4:], NOW)
    assert log.last_stable_offset == log.end_offset
    writer.append(1, [PENDING], NOW)
    writer.append(1, [r.TransactionMarked(7, 1, False)], NOW)
    again = PartitionLog.open(log.path, log.config, CRASHED)
    assert replayed(again) == [*mixed, PENDING, r.TransactionMarked(7, 1, False)]
    headers = [parse_header(b) for b in again.iterate_batches(0)]
    assert [h.is_transactional for h in headers if not h.is_control].count(True) == 2
    assert len(again.active.transactions.entries) == 1


def test_large_appends_are_whole_or_not_there(
    log: PartitionLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "BATCH_BYTES_MAX", 2000)
    writer = LogJournal(log)
    writer.begin_term(1)
    writer.append(1, [RECORDS[0]], NOW)
    end = log.end_offset
    commits = [r.OffsetCommitted("group", "topic", number, number, 0, "", NOW) for number in range(300)]
    writer.append(1, commits, NOW)
    sizes = [parse_header(b).size for b in log.iterate_batches(0)]
    assert len(sizes) > 8
    assert max(sizes) < 2500
    assert replayed(log) == [RECORDS[0], *commits]
    file = log.active.path
    starts = [parse_header(b).base_offset for b in log.iterate_batches(end)]
    for number, size in enumerate(range(sum(sizes[:1]), sum(sizes), 1777)):
        copy = copy_folder(log.path, tmp_path / f"torn-{number}")
        (copy / file.name).write_bytes(file.read_bytes()[:size])
        torn = PartitionLog.open(copy, log.config, CRASHED)
        assert torn.end_offset in [end, *starts]
        assert replayed(torn) == [RECORDS[0]]
        assert torn.end_offset == end
        again = LogJournal(torn)
        again.begin_term(2)
        again.append(2, [RECORDS[1]], NOW)
        assert replayed(torn) == [RECORDS[0], RECORDS[1]]


def test_an_append_beyond_all_bounds_is_refused(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "APPEND_BYTES_MAX", 1000)
    writer = LogJournal(log)
    writer.begin_term(1)
    with pytest.raises(InvalidInputError, match="1000"):
        writer.append(1, RECORDS, NOW)
    assert log.end_offset == 0


@pytest.mark.parametrize("record", [RECORDS[0]._replace(group_id="g" * 40_000), r.GenerationStarted("g" * 40_000, 1)])
def test_a_name_that_no_record_holds_is_refused(log: PartitionLog, record: r.Record) -> None:
    writer = LogJournal(log)
    writer.begin_term(1)
    with pytest.raises(InvalidInputError, match="can't be encoded"):
        writer.append(1, [RECORDS[0], record], NOW)
    assert log.end_offset == 0


def test_the_journal_does_not_grow_for_ever(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "BATCH_BYTES_MAX", 2000)
    writer = LogJournal(log)
    writer.begin_term(1)
    largest = 0
    for turn in range(30):
        commits = [r.OffsetCommitted("group", "topic", number, turn, 0, "", NOW) for number in range(200)]
        writer.append(1, commits, NOW)
        writer.append(1, [PENDING, r.TransactionMarked(7, 1, turn % 2 == 0)], NOW)
        if turn % 5 == 4:
            log.roll()
            compact_now(log, NOW + turn)
            largest = max(largest, log.size_bytes())
    assert largest < 3 * 200 * 120
    for opened in (log, PartitionLog.open(log.path, log.config, CRASHED)):
        state = {record.key: record for record in replayed(opened) if isinstance(record, r.OffsetCommitted)}
        assert [state[r.RecordKind.OFFSET, "group", "topic", number].offset for number in range(200)] == [29] * 200
        LogJournal(opened).begin_term(2)


def test_a_foreign_record_without_key_is_skipped(log: PartitionLog) -> None:
    log.append(build_batch([BatchRecord(0, NOW, None, b"odd")]), NOW, from_client=False)
    log.append(keyed((b"\x7f\x00odd", b"odd")), NOW, from_client=False)
    assert replayed(log) == []


@pytest.mark.parametrize("why", ["the process died", "the flush failed"])
def test_what_is_served_survives_a_power_loss_where_appends_are_flushed(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, config = Path("/data/g-0"), small(flush_messages=1)
    for seed in range(20):
        volume = Volume(World(seed), "/data")
        files = Files(volume, lambda: None)
        log = PartitionLog.open(path, config, OpenOptions(files=FileCache(3, 1, files)))
        LogJournal(log).append(log.leader_epoch, RECORDS[:2], NOW)
        with monkeypatch.context() as broken:
            broken.setattr(files, "fsync", mock.Mock(side_effect=OSError(5, "Input/output error")))
            with pytest.raises(OSError, match="Input"):
                LogJournal(log).append(log.leader_epoch, RECORDS[2:4], NOW)
        if why == "the process died":
            files.dead = True
            files = Files(volume, lambda: None)
            options = OpenOptions(clean=False, files=FileCache(3, 1, files))
            log = PartitionLog.open(path, config, options)
        served = [record for some in LogJournal(log).begin_term(log.leader_epoch + 1) for record in some]
        assert served == RECORDS[:4]
        files.dead = True
        volume.lose_power()
        options = OpenOptions(clean=False, verified_offset=0, files=FileCache(3, 1, Files(volume, lambda: None)))
        assert replayed(PartitionLog.open(path, config, options)) == served


def test_what_can_not_be_flushed_is_not_served(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    LogJournal(log).append(0, RECORDS, NOW)
    again = PartitionLog.open(log.path, small(flush_messages=1), CRASHED)
    journal = LogJournal(again)
    with monkeypatch.context() as broken:
        broken.setattr("os.fsync", mock.Mock(side_effect=OSError(5, "Input/output error")))
        with pytest.raises(OSError, match="Input"):
            list(journal.begin_term(1))
    assert [record for some in journal.begin_term(2) for record in some] == RECORDS
    assert again.flushed_offset == again.end_offset


def test_that_kills_who_serves_what_is_not_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    with planted(ServesUnflushed), pytest.raises(AssertionError):
        test_what_is_served_survives_a_power_loss_where_appends_are_flushed("the process died", monkeypatch)
