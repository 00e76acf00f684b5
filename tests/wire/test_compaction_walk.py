"""Compaction's two walks over a batch: the compiled and the plain form agree, on good, hostile and damaged bytes."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.errors import CorruptDataError
from kohort.wire import records
from kohort.wire.batch import HEADER_SIZE, BatchRecord, build_batch, parse_header
from kohort.wire.compression import TooLargeError
from tests.support.hostile_batches import HOSTILE


def both(batch: bytes, last: dict[bytes, int], drop_tombstones: bool) -> list[Any]:
    """Keys and offsets, and what remains of the batch, in each form; an error stands for its result."""
    found = []
    kernel = records.COMPACTION
    assert kernel is not None, "the kernel was not built"
    for form in (kernel, None):
        records.COMPACTION = form
        header, keys = parse_header(batch), dict(last)
        try:
            records.collect_keys(batch, header, keys)
            found.append((keys, bytes(records.keep_latest(batch, header, last, drop_tombstones))))
        except CorruptDataError as error:
            found.append(error.message)
        finally:
            records.COMPACTION = kernel
    return found


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    pytest.importorskip("kohort.wire._record_walk")


@pytest.mark.parametrize("name", [name for name, batch in HOSTILE.items() if batch[16] == 2])
def test_both_walks_agree_on_hostile_batches(name: str) -> None:
    compiled, plain = both(HOSTILE[name], {b"k": 0}, False)
    assert compiled == plain


@given(
    st.lists(
        st.tuples(
            st.integers(-(2**40), 2**40),
            st.one_of(st.none(), st.binary(max_size=2), st.binary(max_size=200)),
            st.one_of(st.none(), st.binary(max_size=300)),
        ),
        min_size=1,
    ),
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=3),
    st.sampled_from(["none", "lz4"]),
    st.booleans(),
    st.integers(0, 10),
)
def test_both_walks_agree_on_any_bytes(
    rows: list[Any], damage: list[tuple[int, int]], compression: str, drop_tombstones: bool, seed: int
) -> None:
    pytest.importorskip("kohort.wire._record_walk")
    made = [BatchRecord(0, stamp, key, value, [("h", (value or b"")[:5])]) for stamp, key, value in rows]
    batch = bytearray(build_batch(made, base_offset=900, compression=compression))
    if compression == "none":
        for at, value in damage:
            batch[HEADER_SIZE + at % (len(batch) - HEADER_SIZE)] = value
    chosen = random.Random(seed)
    last = {key: 900 + chosen.randrange(len(rows)) for _, key, _ in rows if key is not None and chosen.random() < 0.8}
    compiled, plain = both(bytes(batch), last, drop_tombstones)
    assert compiled == plain


def test_kernel_takes_usual_batches() -> None:
    """Without this, a kernel that always declines would agree with the plain form."""
    rows = [BatchRecord(0, 1_000 + number, b"k%d" % (number % 300), b"v" * 20) for number in range(1000)]
    header = parse_header(batch := build_batch(rows, base_offset=70))
    body, last = batch[HEADER_SIZE:], dict[bytes, int]()
    assert records.COMPACTION.collect_keys(body, header, last) is True
    assert last == {b"k%d" % number: 70 + max(range(number, 1000, 300)) for number in range(300)}
    kept, count, latest = records.COMPACTION.keep_latest(body, header, last, False)
    assert (count, latest) == (300, 1999)
    assert (kept, count, latest) == records.keep_latest_in_python(body, header, last, False)


def test_compaction_refuses_records_that_decompress_to_too_much() -> None:
    batch = build_batch([BatchRecord(0, 1, b"k", b"v" * 5000)], compression="zstd")
    header = parse_header(batch)
    with pytest.raises(TooLargeError):
        records.collect_keys(batch, header, {}, 1000)
    with pytest.raises(TooLargeError):
        records.keep_latest(batch, header, {}, False, 1000)


def test_walk_of_a_large_batch_lets_other_threads_run() -> None:
    """Batches of up to 128 MiB are walked in a thread of their own, and the loop must go on meanwhile."""
    batch = build_batch([BatchRecord(0, 1, b"%d" % number, None) for number in range(200_000)])
    header = parse_header(batch)
    turns: list[bool] = []
    walking, over = threading.Event(), threading.Event()

    def count() -> None:
        walking.wait()
        while not over.is_set():
            turns.append(True)
            over.wait(0.0001)

    other = threading.Thread(target=count)
    other.start()
    walking.set()
    for _ in range(5):
        before = len(turns)
        last: dict[bytes, int] = {}
        records.COMPACTION.collect_keys(batch[HEADER_SIZE:], header, last)
        during = len(turns) - before
        if during >= 2:
            break
    over.set()
    other.join()
    assert during >= 2
    assert len(last) == 200_000
