"""A batch that a broker finds too large becomes two that carry the same records and sequences."""

from __future__ import annotations

from kohort.client.producer.accumulator import Accumulator
from kohort.client.producer.batches import Batch
from kohort.columns import DecodeOptions, RecordSet, decode
from kohort.columns.encode import Chunk

_AS_SENT = DecodeOptions(columns=("key", "value", "timestamp", "headers"), timestamp_unit="ms", check_crcs=False)


def split(batch: Batch, accumulator: Accumulator) -> list[Batch]:
    """Two batches, which stand for `batch` from now on: it is done when both are. Under the accumulator's lock.

    Args:
        batch: Sealed, of two records at least, in none of its partition's lists.
        accumulator: Whose memory it takes.
    """
    assert batch.sealed is not None
    given = RecordSet(batch.partition.topic, batch.partition.partition, batch.sealed, 0)
    records = decode([given], _AS_SENT).records()
    half = len(records) // 2
    parts = []
    for stretch in (records[:half], records[half:]):
        chunk = Chunk(2 * batch.size)
        for record in stretch:
            if not chunk.append(record.timestamp, record.key, record.value, record.headers):
                raise AssertionError("half of a batch is larger than the batch")
        part = Batch(batch.partition, chunk, batch.owner, batch.created_ms)
        part.size = chunk.size
        parts.append(part)
    if batch.sequence >= 0:
        parts[0].sequence = batch.sequence
        parts[1].sequence = (batch.sequence + half) % 2**31
    accumulator.used += sum(part.size for part in parts) - batch.size
    batch.size = 0
    batch.sealed = None
    batch.become(parts)
    accumulator.incomplete.update(parts)
    return parts
