"""Record sets for property tests: all codecs, nulls, headers, transactions, control batches, gaps, cut ends."""

from __future__ import annotations

from hypothesis import strategies as st

from kohort.columns import DecodeOptions, RecordSet
from kohort.columns.shapes import COLUMNS
from tests.columns.batches import BatchMade, Made, marker

contents = st.none() | st.binary(max_size=40) | st.binary(min_size=100, max_size=400)
names = st.text(max_size=6).map(str.encode) | st.binary(max_size=5)
headers = st.just(()) | st.lists(st.tuples(names, st.none() | st.binary(max_size=9)), max_size=3)
stamps = st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 100_000)


@st.composite
def batches(draw: st.DrawFn, base_offset: int) -> BatchMade:
    """One batch; its records may have gaps, as compaction leaves them."""
    deltas = sorted(draw(st.sets(st.integers(0, 30), max_size=12)))
    records = [
        Made(delta, draw(contents), draw(contents), draw(st.integers(0, 500) | stamps), draw(headers))
        for delta in deltas
    ]
    return BatchMade(
        records,
        base_offset,
        last_delta=(deltas[-1] if deltas else 0) + draw(st.integers(0, 3)),
        codec=draw(st.sampled_from(("none", "none", "gzip", "snappy", "lz4", "zstd"))),
        base_timestamp=draw(st.integers(1_600_000_000_000, 1_800_000_000_000) | stamps),
        append_time=draw(st.booleans()),
        leader_epoch=draw(st.integers(-1, 5)),
    )


@st.composite
def record_sets(draw: st.DrawFn) -> RecordSet:
    """Some batches of plain producers and of transactions, cut anywhere, wanted from and to anywhere."""
    parts: list[bytes] = []
    aborted: list[tuple[int, int]] = []
    open_since: dict[int, int] = {}
    offset = draw(st.integers(0, 50) | st.integers(2**40, 2**41))
    start = offset
    for _ in range(draw(st.integers(0, 6))):
        batch = draw(batches(offset))
        producer = draw(st.sampled_from((-1, -1, 7, 9)))
        if producer in open_since and draw(st.booleans()):
            commit = draw(st.booleans())
            batch = marker(offset, producer, commit=commit)
            first = open_since.pop(producer)
            if not commit:
                aborted.append((producer, first))
        elif producer >= 0:
            open_since.setdefault(producer, offset)
            batch.producer_id = producer
            batch.transactional = True
        parts.append(batch.encode())
        offset = batch.next_offset
    data = b"".join(parts)
    if draw(st.integers(0, 3)) == 0:
        data = data[: draw(st.integers(0, len(data)))]
    end = draw(st.none() | st.integers(start, offset + 5))
    topic = draw(st.sampled_from(("t", "päckchen")))
    return RecordSet(
        topic, draw(st.integers(0, 9)), data, draw(st.just(start) | st.integers(start, offset + 2)), end, aborted
    )


options = st.builds(
    DecodeOptions,
    columns=st.just(COLUMNS) | st.lists(st.sampled_from(COLUMNS), unique=True, min_size=1).map(tuple),
    read_committed=st.booleans(),
    check_crcs=st.booleans(),
    timestamp_unit=st.sampled_from(("us", "ms")),
    timestamp_zone=st.sampled_from(("UTC", None)),
    max_records=st.none() | st.integers(1, 40),
    max_bytes=st.just(2**30) | st.integers(1, 3000),
)
