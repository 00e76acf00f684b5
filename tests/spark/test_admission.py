"""Fair splitting of a batch over partitions and tasks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kohort.ids import TopicPartition
from kohort.spark.source.batch_offset import OffsetRange
from kohort.spark.source.query import RecordSize, fair_shares, limit_by_bytes
from kohort.spark.source.readers import SMALL_TASK, plan_tasks

counts = st.dictionaries(st.integers(0, 20), st.integers(0, 1000), max_size=8)


def test_equal_shares_and_what_one_can_not_use_goes_to_the_others() -> None:
    assert fair_shares({"a": 1000, "b": 1000, "c": 1000}, 300) == {"a": 100, "b": 100, "c": 100}
    assert fair_shares({"a": 1000, "b": 1000, "c": 0}, 300) == {"a": 150, "b": 150, "c": 0}
    assert fair_shares({"a": 1000, "b": 10, "c": 1000}, 310) == {"a": 150, "b": 10, "c": 150}


def test_single_records_go_round_so_that_no_partition_starves() -> None:
    taken = {"a": 0, "b": 0, "c": 0}
    for turn in range(6):
        for key, count in fair_shares({"a": 9, "b": 9, "c": 9}, 1, first=turn).items():
            taken[key] += count
    assert taken == {"a": 2, "b": 2, "c": 2}


@given(available=counts, limit=st.integers(0, 3000), first=st.integers(0, 9))
def test_shares_are_whole_fair_and_within_reach(available: dict[int, int], limit: int, first: int) -> None:
    shares = fair_shares(available, limit, first)
    assert sum(shares.values()) == min(limit, sum(available.values()))
    assert all(0 <= shares[key] <= available[key] for key in available)
    unsatisfied = [shares[key] for key in available if shares[key] < available[key]]
    if unsatisfied:
        assert max(unsatisfied) - min(unsatisfied) <= 1
        assert all(shares[key] <= min(unsatisfied) + 1 for key in available)


@given(available=counts, limit=st.integers(1, 100_000), weight=st.integers(1, 300))
def test_a_byte_limit_is_kept_and_used(available: dict[int, int], limit: int, weight: int) -> None:
    weights = {key: float(weight + key) for key in available}
    records = limit_by_bytes(available, weights, limit)
    size = sum(count * weights[key] for key, count in fair_shares(available, records).items())
    assert size <= limit or records == 1
    more = fair_shares(available, records + 1)
    assert sum(more.values()) <= records or sum(n * weights[k] for k, n in more.items()) > limit


def test_first_sample_is_the_size_of_records() -> None:
    """Half of it would make the first batches twice as large as the byte limit."""
    size = RecordSize(0.0)
    size.add(100.0)
    assert size.mean == 100.0
    size.add(200.0)
    assert size.mean == 150.0


class Hashed(int):
    """A key that counts how often it is hashed."""

    hashed = 0

    def __hash__(self) -> int:
        Hashed.hashed += 1
        return int(self)


def test_work_grows_with_the_partitions_and_not_with_their_square() -> None:
    available = {Hashed(number): 100 + number for number in range(2_000)}
    Hashed.hashed = 0
    assert sum(fair_shares(available, 100_000).values()) == 100_000
    assert Hashed.hashed < 20 * len(available)


spans_given = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 30_000)), max_size=7)


@given(
    spans=spans_given,
    least=st.none() | st.integers(1, 12),
    most=st.none() | st.integers(500, 20_000),
)
def test_tasks_cover_each_offset_once(spans: list[tuple[int, int]], least: int | None, most: int | None) -> None:
    batch = [(TopicPartition("t", n), OffsetRange(start, start + size)) for n, (start, size) in enumerate(spans)]
    tasks = plan_tasks(batch, 3, min_partitions=least, max_records=most)
    slices = [part for task in tasks for part in task.slices]
    for tp, whole in batch:
        parts = sorted((s.span.start, s.span.end) for s in slices if s.partition == tp)
        edges = [whole.start, *(end for _, end in parts)]
        assert [start for start, _ in parts] == edges[:-1]
        assert edges[-1] == whole.end
        assert all(s.whole == whole and s.generation == 3 for s in slices if s.partition == tp)
    if most is not None:
        assert all(s.span.offset_count <= most for s in slices)
    total = sum(size for _, size in spans)
    if least is not None and total >= least:
        assert len(tasks) >= least


def test_small_partitions_share_a_task_and_large_ones_do_not() -> None:
    small = [(TopicPartition("t", n), OffsetRange(0, 100)) for n in range(6)]
    assert len(plan_tasks(small, 1)) == 1
    large = [(TopicPartition("t", n), OffsetRange(0, SMALL_TASK)) for n in range(6)]
    assert len(plan_tasks(large, 1)) == 6
