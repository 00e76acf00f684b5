"""Fences as bytes, and whose batches they cover."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from kohort.cluster.journal.fences import EPOCH_LAST, FIRST, Fence, JournalProducers, is_fence, read_fence
from kohort.errors import CorruptDataError
from kohort.groups.records import GenerationStarted
from kohort.journal.codec import GroupRecordReader, append_started_record, encode_record, group_of_key
from kohort.wire.batch import BatchRecord, build_batch, parse_header

FENCE = Fence(7, 3, 101, "in", "127.0.0.1", 19101, 50, UUID(int=5))


def _saw(authors: JournalProducers, producer_id: int, epoch: int, offset: int) -> None:
    facts = {"producer_id": producer_id, "producer_epoch": epoch, "base_offset": offset}
    authors.record_batch(parse_header(build_batch([BatchRecord(0, 0, b"k", b"v")], **facts)))  # type: ignore[arg-type]


def test_a_fence_is_read_as_it_was_written() -> None:
    key, value = FENCE.encoded()
    assert is_fence(key)
    assert read_fence(key, value) == FENCE
    assert group_of_key(key) is None
    assert GroupRecordReader().decode_record(key, value) is None


@pytest.mark.parametrize("key", [encode_record(GenerationStarted("g", 1))[0], append_started_record(3)[0]])
def test_other_records_are_no_fences(key: bytes) -> None:
    assert not is_fence(key)


@pytest.mark.parametrize("value", [None, b"", b"\0\1", FENCE.encoded()[1][:-1] if FENCE.encoded()[1] else b""])
def test_a_fence_that_cannot_be_read_is_an_error(value: bytes | None) -> None:
    with pytest.raises(CorruptDataError):
        read_fence(FENCE.encoded()[0], value)


def test_a_fence_covers_its_epoch_and_those_before_it() -> None:
    authors = JournalProducers()
    for epoch, offset in ((1, 10), (3, 20), (4, 30)):
        _saw(authors, 7, epoch, offset)
    _saw(authors, -1, -1, 40)
    authors.record_fence(FENCE)
    assert authors.producers_without_fence() == {(7, 4): 30, (-1, -1): 40}


def test_the_first_fence_of_all_covers_nobody() -> None:
    authors = JournalProducers()
    _saw(authors, -1, -1, 0)
    authors.record_fence(replace(FENCE, producer_id=FIRST, epoch=EPOCH_LAST))
    assert authors.producers_without_fence() == {(-1, -1): 0}
    assert authors.newest is None


def test_who_might_write_on_is_everybody_but_the_own_id_and_those_that_were_fenced_for_good() -> None:
    authors = JournalProducers()
    for producer_id, epoch in ((FIRST, 0), (5, 9), (6, EPOCH_LAST), (7, 3), (8, 0)):
        authors.record_fence(replace(FENCE, producer_id=producer_id, epoch=epoch))
    assert [fence.producer_id for fence in authors.fences_that_may_write(7)] == [5, 8]
