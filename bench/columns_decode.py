"""Decoding and encoding record sets in memory: the kernels alone, beside a plain copy of the same bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import pyarrow as pa
from rich.console import Console

from bench.harness import Contender, Figure, Options, Sample, compare
from kohort.columns import COLUMNS, DecodeOptions, RecordSet, decode
from kohort.columns.encode import Chunk, ColumnNames, encode_arrow
from kohort.columns.reference import decode_block
from kohort.wire.compression import CODECS

_RESPONSE_BYTES = 16 * 1024 * 1024
_PARTITIONS = 4
_FEW = ("value", "partition", "offset", "timestamp")
_SHAPES = [
    ("100 B, 128 KiB batches", 100, 1150, "none"),
    ("100 B, 16 KiB batches", 100, 145, "none"),
    ("100 B, one record per batch", 100, 1, "none"),
    ("1 KiB, 128 KiB batches", 1024, 120, "none"),
    *((f"100 B, 128 KiB batches, {codec}", 100, 1150, codec) for codec in ("snappy", "lz4", "zstd", "gzip")),
    ("100 B, one record per batch, lz4", 100, 1, "lz4"),
]
_REPEATS = 20


def measurements(options: Options, console: Console) -> Iterator[Figure]:
    """One figure for each shape of a fetch response, and one for encoding."""
    for name, size, count, codec in _SHAPES:
        title = f"decode {name}"
        if options.only in title:
            yield compare(title, _decoders(options, size, count, codec), rounds=options.rounds, console=console)
    if options.only in "encode 100 B":
        yield compare("encode 100 B", _encoders(options), rounds=options.rounds, console=console)


def _values(size: int, count: int) -> list[bytes]:
    """Values that compress about as well as JSON does."""
    return [
        (b'{"number": %d, "of": "' % (number * 7919) + b"%x" % (number * 104729 + 2**40) * 99)[:size]
        for number in range(count)
    ]


def _response(size: int, count: int, codec: str, total: int) -> list[RecordSet]:
    chunk = Chunk(2**30)
    for number, value in enumerate(_values(size, count)):
        chunk.append(1_700_000_000_000 + number, None, value, ())
    batch = bytes(chunk.seal(CODECS[codec], None, -1, -1, -1, False))
    copies = max(1, total // _PARTITIONS // (count * (size + 10)))
    whole = b"".join((number * count).to_bytes(8, "big") + batch[8:] for number in range(copies))
    return [RecordSet("flights", partition, whole, 0) for partition in range(_PARTITIONS)]


def _decoders(options: Options, size: int, count: int, codec: str) -> list[Contender]:
    sets = _response(size, count, codec, max(64 * 1024, int(_RESPONSE_BYTES * min(1.0, options.scale))))
    rows = len(decode(sets))
    few, every = DecodeOptions(columns=_FEW), DecodeOptions(columns=COLUMNS)
    small = [
        RecordSet(record_set.topic, record_set.partition, record_set.buffer, 0, end_offset=rows // 50 // _PARTITIONS)
        for record_set in sets
    ]
    return [
        Contender("to Arrow, 4 columns", partial(_timed, lambda: decode(sets, few).to_arrow(), rows, _REPEATS)),
        Contender("to Arrow, 8 columns", partial(_timed, lambda: decode(sets, every).to_arrow(), rows, _REPEATS)),
        Contender("to records", partial(_timed, lambda: decode(sets, every).records(), rows, 3)),
        Contender(
            "plain copy of the bytes",
            partial(_timed, lambda: [bytearray(record_set.buffer) for record_set in sets], rows, _REPEATS),
        ),
        Contender("plain-Python reference", partial(_timed, lambda: decode_block(small, few), len(decode(small)), 1)),
    ]


def _encoders(options: Options) -> list[Contender]:
    rows = options.records(100_000)
    values = _values(100, rows)
    batch = pa.record_batch({"value": pa.array(values, pa.binary())})
    names = ColumnNames(key=None)

    def by_arrow() -> None:
        for _, chunk in encode_arrow(batch, names, 4, lambda: 0, 1_700_000_000_000, 131_072):
            chunk.seal(0, None, 1, 0, 0, False)

    def one_by_one() -> None:
        chunk = Chunk(131_072)
        for value in values:
            if not chunk.append(1_700_000_000_000, None, value, ()):
                chunk.seal(0, None, 1, 0, 0, False)
                chunk = Chunk(131_072)
                chunk.append(1_700_000_000_000, None, value, ())

    return [
        Contender("from Arrow", partial(_timed, by_arrow, rows, _REPEATS)),
        Contender("one by one", partial(_timed, one_by_one, rows, 3)),
    ]


def _timed(job: Callable[[], object], amount: int, repeats: int) -> Sample:
    """The fastest of some repeats: the kernel's own speed, as far as a shared machine shows it."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        job()
        best = min(best, time.perf_counter() - start)
    return Sample(amount, best)
