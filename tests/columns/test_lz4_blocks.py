"""Frames of one block are read without the frame decoder; the result is what that decoder gives."""

from __future__ import annotations

from contextlib import suppress

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohort.wire.compression import CodecError, TooLargeError, _lz4_block, compress, decompress
from tests.support.long_runs import examples

contents = st.binary(max_size=200) | st.binary(min_size=1, max_size=30).map(lambda part: part * 3000)
LIMIT = 2**31 - 1


@given(contents)
@settings(max_examples=examples(150), deadline=None)
def test_same_as_the_frame_decoder(content: bytes) -> None:
    for frame in (bytes(compress(3, content)), bytes(cramjam.lz4.compress(content))):
        assert bytes(decompress(3, frame, LIMIT)) == content
    if content:
        assert (_lz4_block(memoryview(compress(3, content))) is not None) == (len(content) <= 65536)


@given(contents, st.data())
@settings(max_examples=examples(200), deadline=None)
def test_damage_is_an_error_or_bounded(content: bytes, data: st.DataObject) -> None:
    frame = bytearray(compress(3, content))
    frame[data.draw(st.integers(0, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    frame = frame[: data.draw(st.sampled_from((len(frame), len(frame) - 1, len(frame) // 2)))]
    with suppress(CodecError):
        assert len(decompress(3, bytes(frame), 5_000_000)) <= 5_000_000


def test_limits() -> None:
    frame = bytes(compress(3, bytes(60_000)))
    assert len(decompress(3, frame, 60_000)) == 60_000
    with pytest.raises(TooLargeError):
        decompress(3, frame, 59_999)
