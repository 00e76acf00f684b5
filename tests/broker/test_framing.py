"""Framing: however the bytes come, the frames are the same."""

from __future__ import annotations

import random

import pytest

from kohort.broker.framing import BadFrame, Frames

MAX = 1_000


def framed(*bodies: bytes) -> bytes:
    """Bodies, each behind its size."""
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


def cut(frames: Frames, data: bytes) -> list[bytes]:
    """Return the frames that these bytes complete, and the bytes kept for the next read."""
    found = [bytes(frame) for frame in frames.split_frames(memoryview(data))]
    while frames.kept:
        found += [bytes(frame) for frame in frames.split_frames(frames.take_unsplit_bytes())]
    return found


@pytest.mark.parametrize("seed", range(20))
def test_pieces_of_any_size_make_the_same_frames(seed: int) -> None:
    chance = random.Random(seed)
    bodies = [chance.randbytes(chance.choice([0, 1, 2, 7, 8, 100, MAX])) for _ in range(40)]
    data, frames, found = framed(*bodies), Frames(0, MAX), []
    while data:
        size = chance.choice([1, 2, 3, 4, 5, 50, 1_500])
        found += cut(frames, data[:size])
        data = data[size:]
    assert found == bodies


@pytest.mark.parametrize("seed", range(20))
def test_frames_that_are_put_back_come_again_in_their_order(seed: int) -> None:
    """Whoever can take no more loses nothing: not what came behind, nor what had only begun."""
    chance = random.Random(seed)
    bodies = [chance.randbytes(chance.choice([1, 8, 100])) for _ in range(40)]
    data, frames, found = framed(*bodies), Frames(0, MAX), []
    while data or frames.kept:
        if frames.kept:
            got = frames.split_frames(frames.take_unsplit_bytes())
        else:
            size = chance.choice([1, 3, 6, 200, 400])
            got, data = frames.split_frames(memoryview(data[:size])), data[size:]
        taken = chance.randint(1, 3)
        found += [bytes(frame) for frame in got[:taken]]
        if got[taken:]:
            frames.put_back(got[taken:])
    assert found == bodies


@pytest.mark.parametrize("size", [-1, 7, MAX + 1])
def test_frames_before_one_of_a_bad_size_are_given_first(size: int) -> None:
    frames = Frames(8, MAX)
    data = framed(b"a" * 8, b"b" * 9) + size.to_bytes(4, "big", signed=True) + b"c" * 20
    assert [bytes(frame) for frame in frames.split_frames(memoryview(data))] == [b"a" * 8, b"b" * 9]
    with pytest.raises(BadFrame):
        frames.split_frames(frames.take_unsplit_bytes())


def test_a_size_alone_is_refused_before_anything_of_the_frame_has_come() -> None:
    with pytest.raises(BadFrame, match="bytes; socket.request.max.bytes is 1000"):
        Frames(8, MAX).split_frames(memoryview((MAX + 1).to_bytes(4, "big")))


def test_a_smaller_size_counts_for_the_frames_behind() -> None:
    frames = Frames(8, MAX)
    assert len(frames.split_frames(memoryview(framed(b"a" * 8, b"", b"bc")))) == 1
    frames.size_min = 0
    assert [bytes(frame) for frame in frames.split_frames(frames.take_unsplit_bytes())] == [b"", b"bc"]


def test_what_is_put_back_comes_before_what_was_kept() -> None:
    frames = Frames(2, MAX)
    first, *rest = frames.split_frames(memoryview(framed(b"aa", b"bb", b"cc", b"d", b"ee")))
    assert bytes(first) == b"aa"
    frames.put_back(rest)
    frames.size_min = 0
    assert cut(frames, bytes(frames.take_unsplit_bytes())) == [b"bb", b"cc", b"d", b"ee"]


def test_a_claimed_size_takes_no_memory() -> None:
    frames = Frames(8, 100 << 20)
    assert frames.split_frames(memoryview((100 << 20).to_bytes(4, "big") + b"x")) == []
    assert frames.kept == b""
    assert frames._begun == b"x"
