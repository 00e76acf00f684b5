"""Receiving and framing: memory grows with received bytes, not with announced ones."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from kohort.client.net.buffers import SCRATCH_BYTES, BufferPool, FrameReader
from kohort.errors import CorruptDataError

LIMIT = 256 << 20


def received(reader: FrameReader, stream: bytes, sizes: list[int]) -> list[bytes]:
    """The frames that come out when the socket gives so much at a time, over and over."""
    frames: list[bytes] = []
    at = turn = 0
    while at < len(stream):
        target = reader.receive_buffer()
        count = min(len(target), sizes[turn % len(sizes)], len(stream) - at)
        target[:count] = stream[at : at + count]
        del target
        frames += [bytes(frame) for frame in reader.complete_frames(count)]
        at, turn = at + count, turn + 1
    return frames


@pytest.mark.parametrize("seed", range(20))
def test_frames_come_out_of_any_pieces(seed: int) -> None:
    pick = random.Random(seed)
    largest = (50, SCRATCH_BYTES + 10, 5 << 20)[seed % 3]
    bodies = [pick.randbytes(pick.randint(0, largest)) for _ in range(6)]
    sizes = [pick.randint(1, largest) for _ in range(5)]
    stream = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    assert received(FrameReader(BufferPool(), LIMIT), stream, sizes) == bodies


def test_an_answer_that_is_only_announced_takes_no_memory() -> None:
    tracemalloc.start()
    try:
        reader = FrameReader(BufferPool(), LIMIT)
        assert received(reader, LIMIT.to_bytes(4, "big") + b"abc", [7]) == []
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
        assert received(reader, bytes(5 << 20), [1 << 18]) == []
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()


def test_memory_that_a_large_answer_left_is_used_again() -> None:
    pool = BufferPool()
    stream = (3 << 20).to_bytes(4, "big") + bytes(3 << 20)
    assert len(received(FrameReader(pool, LIMIT), stream, [1 << 18])) == 1
    cut = stream[:-1]
    tracemalloc.start()
    try:
        received(FrameReader(pool, LIMIT), cut, [1 << 18])
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_claims_are_believed_up_to_what_has_arrived_before() -> None:
    """The second of two answers of one size, the first still in use, is received into one buffer of its size."""
    pool = BufferPool()
    body = bytes(8 << 20)
    reader, stream = FrameReader(pool, LIMIT), len(body).to_bytes(4, "big") + body
    (in_use,) = _frames(reader, stream)
    tracemalloc.start()
    try:
        (second,) = _frames(reader, stream)
        assert (len(in_use), len(second)) == (len(body), len(body))
        assert tracemalloc.get_traced_memory()[1] < 10 << 20  # 1 + 2 + 4 + 8 MiB, while it grew
        assert received(FrameReader(pool, LIMIT), LIMIT.to_bytes(4, "big") + b"abc", [7]) == []
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


def _frames(reader: FrameReader, stream: bytes) -> list[memoryview]:
    frames: list[memoryview] = []
    at = 0
    while at < len(stream):
        target = reader.receive_buffer()
        count = min(len(target), 1 << 18, len(stream) - at)
        target[:count] = stream[at : at + count]
        del target
        frames += reader.complete_frames(count)
        at += count
    return frames


@pytest.mark.parametrize("length", [LIMIT + 1, -1, 2**31 - 1])
def test_an_answer_over_the_limit_names_both(length: int) -> None:
    with pytest.raises(CorruptDataError, match=f"{length} bytes; the limit is {LIMIT}"):
        received(FrameReader(BufferPool(), LIMIT), length.to_bytes(4, "big", signed=True), [4])
