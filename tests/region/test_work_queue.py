"""The queue between a member's two threads, its permits, and what was submitted."""

from __future__ import annotations

import threading
from uuid import UUID

import pyarrow as pa
import pytest

from kohort.region.consuming.work_queue import SMALL_TABLES, FetchedTable, RecordQueue
from kohort.region.records import Part, Position
from tests.support.waiting import until

P0, P1 = (Part("g", "t", number, UUID(int=1)) for number in (0, 1))


def at(part: Part, offset: int) -> Position:
    return Position(part.group, part.topic, part.topic_id, part.partition, offset)


def piece(*rows: tuple[Part, int]) -> FetchedTable:
    table = pa.table(
        {
            "topic": ["t"] * len(rows),
            "partition": [part.partition for part, _ in rows],
            "offset": [at for _, at in rows],
        }
    )
    return FetchedTable(table, {part: at_(part, offset + 1) for part, offset in rows})


at_ = at


def offsets(found: FetchedTable | None) -> list[tuple[int, int]]:
    assert found is not None
    return [(row["partition"], row["offset"]) for row in found.table.to_pylist()]


@pytest.fixture
def flow() -> RecordQueue:
    flow = RecordQueue(10, 4)
    for part in (P0, P1):
        flow.set_start_offset(at(part, 0), part)
    return flow


def test_offsets_are_saved_after_submission(flow: RecordQueue) -> None:
    flow.add_fetched(piece((P0, 0), (P0, 1)))
    flow.open_for_application()
    assert offsets(flow.take_table()) == [(0, 0), (0, 1)]
    assert flow.next_offsets()[P0] == at(P0, 0) and not flow.is_idle()
    flow.finish_table()
    assert flow.next_offsets()[P0] == at(P0, 2) and flow.is_idle() and flow.submitted == 2


def test_small_pieces_are_taken_together_and_the_queue_has_an_end(flow: RecordQueue) -> None:
    for offset in range(6):
        flow.add_fetched(piece((P0, offset)))
    assert flow.free_record_count() == 4
    flow.open_for_application()
    assert len(offsets(flow.take_table())) == 4
    assert flow.free_record_count() == 8
    assert len(offsets(flow.take_table())) == 2
    assert flow.next_offsets()[P0] == at(P0, 4)


def test_queue_is_bounded_in_bytes_and_a_quarter_of_them_is_taken_at_once() -> None:
    size = piece((P0, 0)).bytes
    flow = RecordQueue(1_000, 1_000, 4 * size)
    flow.set_start_offset(at(P0, 0), P0)
    flow.set_start_offset(at(P1, 0), P1)
    for offset in range(4):
        assert flow.free_record_count()
        flow.add_fetched(piece((P0, offset)))
    assert flow.bytes == 4 * size and not flow.free_record_count()
    flow.open_for_application()
    assert len(offsets(flow.take_table())) == 1 and flow.free_record_count()
    flow.put_back_table(dirty=False)
    assert flow.bytes == 4 * size and not flow.free_record_count()
    flow.discard_partitions([P0])
    assert flow.bytes == 0 and flow.free_record_count()
    flow.add_fetched(piece((P1, 0)))
    flow.discard_all_records()
    assert flow.bytes == 0


def test_piece_that_is_put_back_is_taken_again_and_does_not_count(flow: RecordQueue) -> None:
    flow.add_fetched(piece((P0, 0)))
    flow.open_for_application()
    flow.take_table()
    flow.put_back_table(dirty=False)
    assert flow.is_idle() and flow.has_records_of(P0) and flow.next_offsets()[P0] == at(P0, 0) and not flow.dirty
    assert offsets(flow.take_table()) == [(0, 0)]
    flow.put_back_table(dirty=True)
    assert flow.dirty
    flow.discard_partitions()
    assert not flow.dirty


def test_without_a_permit_nothing_is_taken_and_nothing_is_lost(flow: RecordQueue) -> None:
    flow.add_fetched(piece((P0, 0)))
    taken: list[FetchedTable | None] = []
    thread = threading.Thread(target=lambda: taken.append(flow.take_table()))
    thread.start()
    assert flow.is_idle() and taken == []
    flow.open_for_application()
    thread.join(60)
    assert offsets(taken[0]) == [(0, 0)]
    flow.close_for_application()
    flow.add_fetched(piece((P0, 1)))
    flow.finish_table()
    assert flow.is_idle() and flow.has_records_of(P0), "it is the drain buffer now"


def test_what_is_void_is_not_saved(flow: RecordQueue) -> None:
    flow.add_fetched(piece((P0, 0)))
    flow.add_fetched(piece((P0, 1), (P1, 0)))
    flow.open_for_application()
    flow.take_table()
    flow.discard_all_records()
    assert flow.discards_rows
    flow.finish_table()
    assert not flow.has_records_of(P1)
    assert flow.next_offsets()[P0] == at(P0, 0) and flow.submitted == 0


def test_of_what_was_given_up_nothing_more_is_taken(flow: RecordQueue) -> None:
    flow.add_fetched(piece((P0, 0), (P1, 0), (P0, 1)))
    flow.add_fetched(piece((P0, 2)))
    flow.discard_partitions([P0])
    assert flow.free_record_count() == 9 and list(flow.next_offsets()) == [P1]
    flow.open_for_application()
    assert offsets(flow.take_table()) == [(1, 0)]


def test_all_that_wait_learn_of_the_end(flow: RecordQueue) -> None:
    reported: list[object] = []

    def take() -> None:
        try:
            reported.append(flow.take_table())
        except ValueError as error:
            reported.append(error)

    threads = [threading.Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    flow.end_queue(ValueError("why"))
    for thread in threads:
        thread.join(60)
    assert [str(event) for event in reported] == ["why", "why"]
    flow.end_queue()
    until(lambda: not any(thread.is_alive() for thread in threads), "they have ended")


def test_records_of_a_slow_topic_are_merged_into_few_tables() -> None:
    """A table of one record takes 9 KB beside it, which no limit on bytes counts."""
    flow = RecordQueue(10_000, 1_000)
    for part in (P0, P1):
        flow.set_start_offset(at(part, 0), part)
    wanted = [(P0, number // 2) if number % 2 == 0 else (P1, number // 2) for number in range(2_000)]
    for row in wanted:
        flow.add_fetched(piece(row))
    assert flow.free_record_count() == 8_000 and flow.bytes == 2_000 * piece((P0, 0)).bytes
    flow.open_for_application()
    read = list[tuple[int, int]]()
    while not flow.take_would_wait():
        found = flow.take_table()
        read += offsets(found)
        assert found is not None
        assert found.table.column("offset").num_chunks < 2 * SMALL_TABLES
    flow.finish_table()
    assert read == [(part.partition, offset) for part, offset in wanted]
    assert flow.next_offsets() == {P0: at(P0, 1_000), P1: at(P1, 1_000)} and flow.bytes == 0


def test_merged_tables_are_no_more_than_is_taken_together() -> None:
    flow = RecordQueue(1_000, 50)
    flow.set_start_offset(at(P0, 0), P0)
    for offset in range(200):
        flow.add_fetched(piece((P0, offset)))
    flow.open_for_application()
    assert [len(offsets(flow.take_table())) for _ in range(4)] == [50, 50, 50, 50]


def test_records_of_revoked_partitions_leave_a_merged_table() -> None:
    flow = RecordQueue(1_000, 500)
    for part in (P0, P1):
        flow.set_start_offset(at(part, 0), part)
    for offset in range(SMALL_TABLES):
        flow.add_fetched(piece((P0, offset), (P1, offset)))
    flow.discard_partitions([P1])
    flow.add_fetched(piece((P0, SMALL_TABLES)))
    flow.open_for_application()
    assert offsets(flow.take_table()) == [(0, offset) for offset in range(SMALL_TABLES + 1)]
    flow.finish_table()
    assert flow.next_offsets() == {P0: at(P0, SMALL_TABLES + 1)}
