"""Compaction keeps the last record of every key, at its offset, and what transactions need."""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohort.log import Compaction, Isolation, LogConfig, Marker, OpenOptions, PartitionLog, compact_now
from kohort.log.damage import DamagedError
from kohort.log.index import AbortedRange
from kohort.log.retention import roll_for_compaction
from kohort.wire.batch import parse_header
from kohort.wire.records import read_records
from tests.log.making import CRASHED, NOW, keyed, small, values
from tests.support.long_runs import examples

COMPACT = small(cleanup_policy=("compact",), segment_bytes=800)
_APPENDS = st.lists(
    st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), st.none() | st.binary(max_size=40)), min_size=1),
    min_size=1,
    max_size=60,
)


def records(log: PartitionLog) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(r.offset, r.key, r.value) for b in log.iterate_batches(log.log_start_offset) for r in read_records(b)]


@settings(max_examples=examples(80), deadline=None)
@given(_APPENDS, st.sampled_from(["none", "gzip", "lz4", "zstd", "snappy"]), st.integers(1, 3))
def test_the_last_record_of_each_key_stays(
    tmp_path_factory: pytest.TempPathFactory, appends: list[list[tuple[bytes, bytes | None]]], codec: str, runs: int
) -> None:
    log = PartitionLog.open(tmp_path_factory.mktemp("compaction") / "t-0", COMPACT)
    everything: list[tuple[int, bytes, bytes | None]] = []
    share = max(1, len(appends) // runs)
    for number, pairs in enumerate(appends):
        base = log.append(keyed(*pairs, compression=codec), NOW).base_offset
        everything += [(base + i, key, value) for i, (key, value) in enumerate(pairs)]
        if number % share == share - 1:
            compact_now(log, NOW)
    end = log.end_offset
    last = {key: offset for offset, key, _ in everything if offset < log.cleaned_offset}
    wanted = [r for r in everything if r[0] >= log.cleaned_offset or last[r[1]] == r[0]]
    found = records(log)
    # what was last when an earlier run looked at it, and is not any more, may stay until the next run
    assert [r for r in found if r in wanted] == wanted
    assert set(found) <= set(everything)
    compact_now(log, NOW)
    current = {key: (offset, value) for offset, key, value in everything}
    assert {key: (offset, value) for offset, key, value in records(log)} == current
    again = PartitionLog.open(log.path, COMPACT, CRASHED)
    assert records(again) == records(log)
    assert again.end_offset == end
    for offset in range(again.log_start_offset, end + 1):
        assert values(again, offset) == [(o, v or b"") for o, _, v in records(log) if o >= offset]


@pytest.mark.parametrize("what", ["tombstone", "marker"])
def test_last_batch_of_a_log_stays(tmp_path: Path, what: str) -> None:
    """A program that reads up to the end offset gets there."""
    log = PartitionLog.open(tmp_path / "t-0", small(cleanup_policy=("compact",), delete_retention_ms=1000))
    log.append(keyed((b"a", b"1")), NOW)
    log.append(keyed((b"a", None)), NOW)
    if what == "marker":
        log.append(keyed((b"b", None), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True), NOW)
        log.append_marker(Marker(7, 0, True, 0), NOW)
    log.roll()
    for ms in (0, 100_000, 200_000):
        compact_now(log, NOW + ms)
    (last,) = log.iterate_batches(0)
    assert parse_header(last).next_offset == log.end_offset
    end = log.end_offset
    log.append(keyed((b"c", b"3")), NOW)
    compact_now(log, NOW + 300_000)
    assert [parse_header(batch).base_offset for batch in log.iterate_batches(0)] == [end]


def test_tombstones_go_after_their_time_on_a_second_run(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path / "t-0", small(cleanup_policy=("compact",), delete_retention_ms=1000))
    log.append(keyed((b"a", b"1"), (b"b", b"2")), NOW)
    log.append(keyed((b"a", None)), NOW)
    log.roll()
    log.append(keyed((b"c", b"3")), NOW)
    compact_now(log, NOW + 5000)
    assert records(log) == [(1, b"b", b"2"), (2, b"a", None), (3, b"c", b"3")]
    compact_now(log, NOW + 5999)
    assert records(log) == [(1, b"b", b"2"), (2, b"a", None), (3, b"c", b"3")]
    compact_now(log, NOW + 6000)
    assert records(log) == [(1, b"b", b"2"), (3, b"c", b"3")]
    assert log.end_offset == 4


def test_small_segments_are_merged(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path / "t-0", COMPACT)
    for number in range(300):
        log.append(keyed((b"%d" % (number % 5), b"%d" % number)), NOW)
    before = len(log.segments)
    compact_now(log, NOW)
    compact_now(log, NOW)
    assert before > 10
    assert len(log.segments) <= 4
    assert log.log_start_offset == 0
    assert len(list(log.path.glob("*.log"))) == len(log.segments)
    assert dict(values(log))[299] == b"299"


def test_sequences_and_offsets_of_a_thinned_batch_stay(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path / "t-0", small(cleanup_policy=("compact",)))
    facts = {"producer_id": 3, "producer_epoch": 1}
    log.append(keyed((b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"b", b"4"), base_sequence=0, **facts), NOW)
    log.append(keyed((b"b", b"5"), base_sequence=4, **facts), NOW)
    log.roll()
    compact_now(log, NOW)
    headers = [parse_header(b) for b in log.iterate_batches(0)]
    assert [(h.base_offset, h.last_offset, h.base_sequence, h.last_sequence) for h in headers] == [
        (0, 3, 0, 3),
        (4, 4, 4, 4),
    ]
    assert records(log) == [(2, b"a", b"3"), (4, b"b", b"5")]
    again = PartitionLog.open(log.path, COMPACT, OpenOptions(clean=False))
    assert again.append(keyed((b"b", b"5"), base_sequence=4, **facts), NOW).duplicate


def test_aborted_records_go_and_never_shadow_committed_ones(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path / "t-0", small(cleanup_policy=("compact",), delete_retention_ms=0))
    log.append(keyed((b"a", b"committed")), NOW)
    log.append(keyed((b"a", b"aborted"), producer_id=3, producer_epoch=0, base_sequence=0, transactional=True), NOW)
    log.append_marker(Marker(3, 0, False, 0), NOW)
    log.append(keyed((b"b", b"open"), producer_id=4, producer_epoch=0, base_sequence=0, transactional=True), NOW)
    log.roll()
    compact_now(log, NOW)
    assert (1, b"a", b"aborted") in records(log), "a segment with an open transaction is left alone"
    log.append_marker(Marker(4, 0, True, 0), NOW)
    log.roll()
    compact_now(log, NOW)
    assert [r for r in records(log) if r[1] in (b"a", b"b")] == [(0, b"a", b"committed"), (3, b"b", b"open")]
    compact_now(log, NOW + 10)
    assert [r[0] for r in records(log)] == [0, 3, 4], "the end of a transaction stays as long as a record of it"
    log.append(keyed((b"b", b"newer")), NOW)
    log.roll()
    compact_now(log, NOW + 20)
    compact_now(log, NOW + 30)
    assert records(log) == [(0, b"a", b"committed"), (5, b"b", b"newer")]


def test_when_it_is_due(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path / "t-0", COMPACT)
    assert Compaction.compaction_if_due(log, NOW) is None
    for number in range(40):
        log.append(keyed((b"%d" % number, b"%d" % number)), NOW)
    run = Compaction.compaction_if_due(log, NOW)
    assert run is not None
    for _ in run.steps():
        pass
    run.finish()
    assert Compaction.compaction_if_due(log, NOW) is None, "nothing is new"
    log.append(keyed((b"x", b"y" * 300)), NOW)
    log.append(keyed((b"x", b"y" * 300)), NOW)
    log.roll()
    assert Compaction.compaction_if_due(log, NOW) is None, "less than half is new"
    log.reconfigure(LogConfig())
    assert Compaction.compaction_if_due(log, NOW) is None, "the policy is delete"


def test_records_are_compacted_after_their_longest_lag(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path / "t-0", LogConfig(cleanup_policy=("compact",), max_compaction_lag_ms=1_000))
    log.append(keyed((b"x", b"y" * 900)), NOW)
    log.roll()
    log.append(keyed((b"x", b"z"), at=NOW + 500), NOW + 500)
    compact_now(log, NOW)
    roll_for_compaction(log, NOW + 1_500)
    assert Compaction.compaction_if_due(log, NOW + 1_500) is None, "the new record is young enough"
    roll_for_compaction(log, NOW + 1_501)
    assert len(log.segments) == 3
    again = PartitionLog.open(tmp_path / "t-0", log.config)
    again.cleaned_offset = log.cleaned_offset
    for opened in (log, again):
        opened.segments[1].first_timestamp = -1  # as of a segment that was adopted
        assert Compaction.compaction_if_due(opened, NOW + 1_500) is None
        assert Compaction.compaction_if_due(opened, NOW + 1_501) is not None, "too little is new, but it is too old"


def test_appends_and_reads_continue_between_the_steps(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path / "t-0", COMPACT)
    for number in range(100):
        log.append(keyed((b"%d" % (number % 3), b"%d" % number)), NOW)
    reading = log.read(0, 10_000)
    data = reading.bytes()
    run = Compaction(log, NOW)
    for _ in run.steps():
        pass
    for number in range(100, 150):
        log.append(keyed((b"%d" % (number % 3), b"%d" % number)), NOW)
    run.finish()
    assert reading.bytes() == data
    assert dict(values(log))[149] == b"149"
    assert log.append(keyed((b"z", b"z")), NOW).base_offset == 150


@pytest.mark.parametrize("steps", [1, 2, 1000], ids=["keys", "syncs", "all"])
def test_records_deleted_meanwhile_stay_deleted(tmp_path: Path, steps: int) -> None:
    log = PartitionLog.open(tmp_path / "t-0", COMPACT)
    for number in range(100):
        log.append(keyed((b"%d" % number, b"%d" % number)), NOW)
    run = Compaction(log, NOW)
    for _ in itertools.islice(work := run.steps(), steps):
        pass
    log.delete_records(90)
    for _ in work:
        pass
    run.finish()
    assert [offset for offset, _ in values(log)] == list(range(90, 100))
    assert not list(log.path.glob("*.cleaned"))


@pytest.mark.parametrize("steps", [1, 2, 1000], ids=["keys", "syncs", "all"])
@pytest.mark.parametrize("again", [False, True], ids=["ends there", "goes on"])
@pytest.mark.parametrize("at", ["within a segment", "where one begins", "within the first"])
def test_what_was_cut_off_meanwhile_takes_nothing_along(tmp_path: Path, at: str, again: bool, steps: int) -> None:
    """Neither the segments behind, nor those before, whose keys had newer values in what was cut off."""
    log = PartitionLog.open(tmp_path / "t-0", COMPACT)
    for number in range(100):
        log.append(keyed((b"%d" % (number % 40), b"%d" % number)), NOW)
    log.roll()
    assert len(log.segments) > 4
    begins = log.segments[2].base_offset
    offset = {"within a segment": begins + 3, "where one begins": begins, "within the first": 3}[at]
    run = Compaction(log, NOW)
    for _ in itertools.islice(work := run.steps(), steps):
        pass
    log.truncate_to(offset)
    wanted = records(log)
    assert wanted[-1][0] == offset - 1
    for number in range(offset, 100 if again else offset):
        log.append(keyed((b"in its place %d" % number, b"%d" % number)), NOW)
    wanted = records(log)
    for _ in work:
        pass
    run.finish()
    assert records(log) == wanted
    assert records(PartitionLog.open(log.path, COMPACT, CRASHED)) == wanted
    assert not list(log.path.glob("*.cleaned"))
    newest = {key: value for _, key, value in wanted}
    log.roll()
    compact_now(log, NOW)
    assert {key: value for _, key, value in records(log)} == newest
    assert len(records(log)) == len(newest)


def test_what_comes_in_the_place_of_compacted_records_is_compacted_too(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path / "t-0", small(cleanup_policy=("compact",), delete_retention_ms=0))
    for number in range(5):
        log.append(keyed((b"%d" % number, b"first")), NOW)
    log.roll()
    compact_now(log, NOW)
    assert log.cleaned_offset == 5
    log.truncate_to(3)
    assert log.cleaned_offset == 3
    log.append(keyed((b"0", None)), NOW)
    log.roll()
    compact_now(log, NOW + 5)
    assert records(log) == [(1, b"1", b"first"), (2, b"2", b"first"), (3, b"0", None)]


@pytest.mark.parametrize("at", [8, 65], ids=["header", "record"])
def test_what_is_damaged_is_not_compacted(tmp_path: Path, at: int) -> None:
    """A segment cut short would lose its rest, and a new checksum would hide the damage."""
    config = small(cleanup_policy=("compact",), segment_bytes=600)
    log = PartitionLog.open(tmp_path / "t-0", config)
    for number in range(40):
        log.append(keyed((b"k%d" % (number % 7), b"v%d" % number), (b"k", b"%d" % number)), NOW)
    log.close()
    path = log.segments[1].path
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)
    before = {file.name: file.read_bytes() for file in tmp_path.glob("t-0/*.log")}
    again = PartitionLog.open(tmp_path / "t-0", config)
    with pytest.raises(DamagedError):
        compact_now(again, NOW)
    assert {file.name: file.read_bytes() for file in tmp_path.glob("t-0/*.log")} == before


def test_a_flipped_offset_beside_a_gap_is_seen_by_the_index(tmp_path: Path) -> None:
    config = small(cleanup_policy=("compact",), segment_bytes=4000, index_interval_bytes=100_000)
    log = PartitionLog.open(tmp_path / "t-0", config)
    for number in range(90):
        log.append(keyed((b"k%d" % (number % 9 if number % 20 else number), b"v%d" % number)), NOW)
    compact_now(log, NOW)
    log.close()
    first = log.segments[0]
    batches = list(first.scan(0))
    pairs = itertools.pairwise(batches)
    beside = next(after for before, after in pairs if after.header.base_offset > before.header.next_offset + 1)
    data = bytearray(first.path.read_bytes())
    data[beside.position + 7] -= 1
    first.path.write_bytes(data)
    again = PartitionLog.open(tmp_path / "t-0", config, OpenOptions(cleaned_offset=log.cleaned_offset))
    seen = []
    with pytest.raises(DamagedError):
        seen.extend(again.iterate_batches(0))
    assert parse_header(seen[-1]).last_offset < beside.header.base_offset


def test_index_of_a_compacted_segment_is_taken_over_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A batch beside a gap, and behind an interval too, was indexed twice, so that each start built the index anew."""
    config = small(cleanup_policy=("compact",), segment_bytes=8000, index_interval_bytes=300)
    log = PartitionLog.open(tmp_path / "t-0", config)
    for number in range(200):
        log.append(keyed((b"k%d" % (number % 9 if number % 3 else number), b"v%d" % number)), NOW)
    compact_now(log, NOW)
    log.close()
    kept = records(log)
    with caplog.at_level("WARNING", logger="kohort.log"):
        again = PartitionLog.open(tmp_path / "t-0", config, OpenOptions(cleaned_offset=log.cleaned_offset))
        assert records(again) == kept
    assert caplog.messages == []


def test_an_aborted_record_whose_marker_lies_behind_shadows_nothing(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path / "t-0", small(cleanup_policy=("compact",)))
    log.append(keyed((b"a", b"committed")), NOW)
    log.append(keyed((b"a", b"aborted"), producer_id=3, producer_epoch=0, base_sequence=0, transactional=True), NOW)
    log.roll()
    log.append_marker(Marker(3, 0, False, 0), NOW)
    compact_now(log, NOW)
    assert [record for record in records(log) if record[1] == b"a"] == [(0, b"a", b"committed")]


@pytest.mark.parametrize("how", ["by a read", "by the next run"])
@pytest.mark.parametrize("call", ["replace", "unlink", "fsync"])
def test_a_replacement_that_the_disk_refused_is_finished_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, how: str
) -> None:
    log = PartitionLog.open(tmp_path / "t-0", COMPACT)
    for number in range(40):
        log.append(keyed((b"a", b"%d" % number), (b"b", bytes(60))), NOW)
    assert len(log.segments) > 3
    log.sync_folder_names()
    run = Compaction(log, NOW)
    for _ in run.steps():
        pass
    real, calls = getattr(os, call), itertools.count()

    def refused(*args: object) -> object:
        if next(calls) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refused)
        with pytest.raises(OSError, match="Input/output"):
            run.finish()
        with pytest.raises(OSError, match="could not take its place yet"):
            log.read(0, 1_000)
        patch.setattr(os, call, mock.Mock(side_effect=OSError(errno.EIO, os.strerror(errno.EIO))))
        with pytest.raises(OSError, match="Input/output"):
            Compaction(log, NOW)
    if how == "by the next run":
        compact_now(log, NOW)
    else:
        log.check_readable()
    assert {key: value for _, key, value in records(log)} == {b"a": b"39", b"b": bytes(60)}
    log.append(keyed((b"a", b"40")), NOW)
    again = PartitionLog.open(log.path, COMPACT, CRASHED)
    assert records(again) == records(log)


def test_an_append_that_is_flushed_puts_compacted_files_in_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(cleanup_policy=("compact",), segment_bytes=800, flush_messages=1)
    log = PartitionLog.open(tmp_path / "t-0", config)
    for number in range(30):
        log.append(keyed((b"k%d" % (number % 3), b"%d" % number * 20)), NOW)
    log = PartitionLog.open(tmp_path / "t-0", config, CRASHED)
    real = os.unlink

    def failing(path: str) -> None:
        if str(path).endswith(".log"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(path)

    with monkeypatch.context() as broken:
        broken.setattr(os, "unlink", failing)
        with pytest.raises(OSError, match="Input"):
            compact_now(log, NOW)
    assert log.append(keyed((b"k0", b"new")), NOW).base_offset == 30
    assert log.flushed_offset == 31
    assert {key: value for _, key, value in records(log)}[b"k0"] == b"new"


def test_records_are_deleted_from_a_log_whose_compacted_file_is_not_in_its_place_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = PartitionLog.open(tmp_path / "t-0", COMPACT)
    for number in range(30):
        log.append(keyed((b"k%d" % (number % 3), b"%d" % number * 20)), NOW)
    log.roll()
    with monkeypatch.context() as broken:
        broken.setattr(os, "unlink", mock.Mock(side_effect=OSError(errno.EIO, os.strerror(errno.EIO))))
        with pytest.raises(OSError, match="Input"):
            compact_now(log, NOW)
    assert log.delete_records(29) == 29
    log.flush()
    assert records(log)[-1] == (29, b"k2", b"29" * 20)


def test_a_compacted_file_that_is_in_its_place_is_not_looked_for_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = PartitionLog.open(tmp_path / "t-0", COMPACT)
    for number in range(30):
        log.append(keyed((b"k%d" % (number % 3), b"%d" % number * 20)), NOW)
    log.roll()
    compact_now(log, NOW)
    assert len(log.segments) > 2
    real = os.unlink

    def failing(path: str) -> None:
        if str(path).endswith(".txnindex"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(path)

    with monkeypatch.context() as broken:
        broken.setattr(os, "unlink", failing)
        with pytest.raises(OSError, match="Input"):
            compact_now(log, NOW)
    log.finish_interrupted_change()
    newest = {b"k%d" % (number % 3): b"%d" % number * 20 for number in range(30)}
    assert {key: value for _, key, value in records(log)} == newest


def committed_values(log: PartitionLog) -> list[bytes | None]:
    """The values that a client's reader of committed records hands out, fetch by fetch."""
    found: list[bytes | None] = []
    offset = log.log_start_offset
    while offset < log.end_offset:
        read = log.read(offset, 1 << 20, Isolation.READ_COMMITTED)
        waiting = sorted((entry.first_offset, entry.producer_id) for entry in read.aborted or ())
        aborted: set[int] = set()
        data = memoryview(read.bytes())
        while data:
            header = parse_header(data)
            while waiting and waiting[0][0] <= header.last_offset:
                aborted.add(waiting.pop(0)[1])
            if header.is_control:
                aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                found += [record.value for record in read_records(data)]
            data = data[header.size :]
        offset = read.next_offset
    return found


@pytest.mark.parametrize("reopened", ["never", "clean", "crashed"])
def test_records_after_an_abort_whose_marker_is_gone_are_read(tmp_path: Path, reopened: str) -> None:
    """A reader skips what a producer wrote after an abort until it meets the marker (KAFKA-5196)."""
    config = small(cleanup_policy=("compact",), segment_bytes=400, delete_retention_ms=0)
    log = PartitionLog.open(tmp_path / "t-0", config)
    facts = {"producer_id": 3, "producer_epoch": 0, "transactional": True}
    log.append(keyed((b"a", b"before")), NOW)
    log.append(keyed((b"b", b"aborted"), base_sequence=0, **facts), NOW)
    log.append_marker(Marker(3, 0, False, 0), NOW)
    log.append(keyed((b"c", b"committed"), base_sequence=1, **facts), NOW)
    log.append_marker(Marker(3, 0, True, 0), NOW)
    log.roll()
    expected = [b"before", b"committed"]
    assert committed_values(log) == expected
    for run in range(3):
        compact_now(log, NOW + 10 * run)
        assert committed_values(log) == expected
    kinds = [parse_header(found).is_control for found in log.iterate_batches(0)]
    assert kinds == [False, False, True], "the aborted record and its marker are gone"
    if reopened == "clean":
        log.close()
    if reopened != "never":
        options = OpenOptions(clean=reopened == "clean", cleaned_offset=log.cleaned_offset)
        log = PartitionLog.open(log.path, config, options)
        assert not log.recovery.rebuilt_indexes
        assert committed_values(log) == expected


def test_a_value_goes_after_the_marker_of_the_newer_one_is_on_the_disk(tmp_path: Path) -> None:
    """Without its marker the newer one is in an open transaction, which may be aborted."""
    log = PartitionLog.open(tmp_path / "t-0", small(cleanup_policy=("compact",)))
    log.append(keyed((b"a", b"1")), NOW)
    log.append(keyed((b"a", b"2"), producer_id=3, producer_epoch=0, base_sequence=0, transactional=True), NOW)
    log.roll()
    log.append_marker(Marker(3, 0, True, 0), NOW)
    compact_now(log, NOW)
    assert records(log)[0] == (1, b"a", b"2")
    assert log.flushed_offset == log.end_offset == 3


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "crashed"])
def test_entries_that_an_earlier_version_kept_without_their_markers_are_forgotten(tmp_path: Path, clean: bool) -> None:
    config = small(cleanup_policy=("compact",))
    log = PartitionLog.open(tmp_path / "t-0", config)
    facts = {"producer_id": 3, "producer_epoch": 0, "transactional": True}
    log.append(keyed((b"b", b"aborted"), base_sequence=0, **facts), NOW)
    log.append_marker(Marker(3, 0, False, 0), NOW)
    log.append(keyed((b"c", b"committed"), base_sequence=1, **facts), NOW)
    log.append_marker(Marker(3, 0, True, 0), NOW)
    log.roll()
    compact_now(log, NOW)
    log.segments[0].transactions.append(AbortedRange(3, 0, 1, 2))
    assert committed_values(log) == [], "as version 1.0.0rc1 left it"
    log.append(keyed((b"d", b"aborted"), base_sequence=2, **facts), NOW)
    log.append_marker(Marker(3, 0, False, 0), NOW)
    log.close()
    for _ in range(2):
        again = PartitionLog.open(log.path, config, OpenOptions(clean=clean, cleaned_offset=log.cleaned_offset))
        assert committed_values(again) == [b"committed"]
        assert not again.recovery.rebuilt_indexes
        if clean:
            again.close()


def test_a_tombstone_of_old_records_stays_as_long_as_a_reader_may_need_it(tmp_path: Path) -> None:
    """The records' own timestamps say nothing of that: mirrored and imported ones are old (KAFKA-4529)."""
    log = PartitionLog.open(tmp_path / "t-0", small(cleanup_policy=("compact",), delete_retention_ms=1000))
    log.append(keyed((b"a", b"1"), (b"b", b"2"), at=NOW - 10**9), NOW)
    log.append(keyed((b"a", None), at=NOW - 10**9), NOW)
    log.roll()
    log.append(keyed((b"c", b"3")), NOW)
    for after_ms in (0, 10, 900):
        compact_now(log, NOW + after_ms)
        assert records(log)[:-1] == [(1, b"b", b"2"), (2, b"a", None)], "a reader may have seen the value just before"
    compact_now(log, NOW + 1000)
    assert records(log) == [(1, b"b", b"2"), (3, b"c", b"3")]
