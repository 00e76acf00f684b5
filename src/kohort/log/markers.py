"""Transaction markers: the control batches that end a producer's transaction in a partition. Source: KIP-98."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from kohort.log.filesystem import ReadBuffer
from kohort.log.index import AbortedRange
from kohort.log.producers import Producers
from kohort.log.segment import Segment
from kohort.wire.batch import BatchHeader, BatchRecord, build_batch
from kohort.wire.records import read_records

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
MARKER_BYTES_MAX = 64 << 10
"""The most decompressed bytes of a control batch. Brokers write a few, and never compressed."""


class Marker(NamedTuple):
    """A transaction marker: commit or abort of one producer's transaction in a partition."""

    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int


def build_marker(marker: Marker, now_ms: int) -> bytearray:
    """Encode the control batch of a marker."""
    key, value = _KEY.pack(0, int(marker.commit)), _VALUE.pack(0, marker.coordinator_epoch)
    return bytearray(
        build_batch(
            [BatchRecord(0, now_ms, key, value)],
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            transactional=True,
            control=True,
        )
    )


def parse_marker(header: BatchHeader, batch: ReadBuffer) -> Marker | None:
    """Decode the marker in a control batch; None for other control records."""
    records = read_records(batch, MARKER_BYTES_MAX)
    if not records:
        return None
    key, value = records[0].key, records[0].value
    if key is None or value is None or len(key) < _KEY.size or len(value) < _VALUE.size:
        return None
    kind = _KEY.unpack_from(key)[1]
    if kind not in (0, 1):
        return None
    return Marker(header.producer_id, header.producer_epoch, kind == 1, _VALUE.unpack_from(value)[1])


def end_transaction_by_marker(producers: Producers, segment: Segment, marker: Marker, offset: int, now_ms: int) -> None:
    """Apply a marker at `offset` of `segment`: end the transaction, and index it if it was aborted."""
    first = producers.record_marker(marker.producer_id, marker.producer_epoch, marker.coordinator_epoch, now_ms)
    if first < 0 or marker.commit:
        return
    known = segment.transactions.entries
    if not known or known[-1].last_offset < offset:
        still_open = producers.first_open_offset()
        stable = offset + 1 if still_open is None else still_open
        segment.transactions.append(AbortedRange(marker.producer_id, first, offset, stable))


def record_appended_batches(
    producers: Producers, segment: Segment, appended: tuple[ReadBuffer, Sequence[BatchHeader]], offset: int, now_ms: int
) -> None:
    """Update the state of producers and transactions for batches that were appended to `segment` at `offset`."""
    batches, headers = appended
    at = 0
    for header in headers:
        if header.is_control:
            marker = parse_marker(header, memoryview(batches)[at : at + header.size])
            if marker is not None:
                end_transaction_by_marker(producers, segment, marker, offset, now_ms)
        elif header.producer_id >= 0:
            producers.record_batch(header, offset, now_ms)
        offset += header.last_offset_delta + 1
        at += header.size
