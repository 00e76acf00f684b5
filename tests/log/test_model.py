"""A partition's log behaves as a plain list of records, whatever is done to it in whatever order."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kohort.log import OpenOptions, PartitionLog
from kohort.log.retention import delete_old_segments
from kohort.wire.batch import parse_header
from kohort.wire.records import read_records
from tests.log.making import CRASHED, NOW, POWER_LOST, batch, small
from tests.support.long_runs import examples

_VALUES = st.lists(st.binary(min_size=1, max_size=120), min_size=1, max_size=8)


class LogAgainstList(RuleBasedStateMachine):
    """The model: offset of the first readable record, and (offset, timestamp, value) of all."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="kohort-log-"))
        self.log = PartitionLog.open(self.folder / "t-0", small())
        self.start = 0
        self.records: list[tuple[int, int, bytes]] = []
        self.clock = NOW

    def teardown(self) -> None:
        self.log.close()
        shutil.rmtree(self.folder)

    def _readable(self) -> list[tuple[int, int, bytes]]:
        return [r for r in self.records if r[0] >= self.start]

    @rule(appends=st.lists(_VALUES, min_size=1, max_size=3), writable=st.booleans(), step=st.integers(0, 5000))
    def append(self, appends: list[list[bytes]], writable: bool, step: int) -> None:
        self.clock += step
        data = b"".join(batch(*values, at=self.clock) for values in appends)
        result = self.log.append(bytearray(data) if writable else data, self.clock)
        base = len(self.records)
        for values in appends:
            first = len(self.records)
            self.records += [(first + i, self.clock + i, value) for i, value in enumerate(values)]
        assert (result.base_offset, result.last_offset) == (base, len(self.records) - 1)

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(clean=st.booleans(), power_lost=st.booleans())
    def reopen(self, clean: bool, power_lost: bool) -> None:
        if clean:
            self.log.close()
        options = OpenOptions() if clean else POWER_LOST if power_lost else CRASHED
        options = OpenOptions(clean=options.clean, verified_offset=options.verified_offset, log_start_offset=self.start)
        self.log = PartitionLog.open(self.folder / "t-0", small(), options)
        assert self.log.recovery.truncated_bytes == 0

    @precondition(lambda self: self.records)
    @rule(data=st.data(), limit=st.integers(0, 3000))
    def read(self, data: st.DataObject, limit: int) -> None:
        offset = data.draw(st.integers(self.start, len(self.records)))
        result = self.log.read(offset, limit)
        assert result.size == len(result.bytes()) == sum(r.length for r in result.ranges)
        wanted = self._readable()
        if not result.ranges:
            assert offset == len(self.records)
            return
        view = memoryview(result.bytes())
        found, first = [], parse_header(view).size
        while view:
            size = parse_header(view).size
            found += read_records(view[:size])
            view = view[size:]
        assert result.size <= max(limit, first)
        assert found[0].offset <= offset <= found[-1].offset
        assert result.next_offset == found[-1].offset + 1
        shown = [(r.offset, r.timestamp, r.value) for r in found if r.offset >= self.start]
        assert shown == [r for r in wanted if found[0].offset <= r[0] <= found[-1].offset]

    @precondition(lambda self: self.records)
    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, len(self.records)))
        assert self.log.delete_records(offset) == offset
        self.start = offset

    @precondition(lambda self: self.records)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        bases = {parse_header(b).base_offset for b in self.log.iterate_batches(self.start)}
        offset = data.draw(st.sampled_from(sorted(bases | {self.log.end_offset})))
        if offset < self.start:
            return
        self.log.truncate_to(offset)
        self.records = self.records[:offset]

    @rule(age=st.integers(0, 20_000))
    def expire(self, age: int) -> None:
        self.log.reconfigure(small(retention_ms=age))
        delete_old_segments(self.log, self.clock)
        gone = self.records[self.start : self.log.log_start_offset]
        assert all(self.clock - timestamp > age for _, timestamp, _ in gone)
        self.start = self.log.log_start_offset

    @precondition(lambda self: self.records)
    @rule(data=st.data())
    def search_by_time(self, data: st.DataObject) -> None:
        latest = max(r[1] for r in self.records)
        timestamp = data.draw(st.integers(NOW - 10, latest + 10))
        wanted = next(((r[0], r[1]) for r in self._readable() if r[1] >= timestamp), (-1, -1))
        found = self.log.offset_for_timestamp(timestamp)
        assert (found.offset, found.timestamp) == wanted

    @invariant()
    def same_bounds(self) -> None:
        assert self.log.end_offset == len(self.records)
        assert self.log.log_start_offset == self.start

    @invariant()
    def all_is_there(self) -> None:
        found = [r for b in self.log.iterate_batches(self.start) for r in read_records(b)]
        assert [(r.offset, r.timestamp, r.value) for r in found if r.offset >= self.start] == self._readable()


TestLogAgainstList = LogAgainstList.TestCase
TestLogAgainstList.settings = settings(
    max_examples=examples(60), stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
