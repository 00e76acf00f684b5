"""The simulated partition behaves as measured with Apache Kafka 4.3."""

from __future__ import annotations

from simulation.harness.world import World
from simulation.remote.kafka import Kafka
from simulation.remote.partition import Author, Partition

from kohort.errors import ErrorCode
from kohort.journal.sealing import encode_single_record
from kohort.wire.batch import seal_batch

NONE, FENCED = ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH
UNKNOWN_KIND = b"\x30\x39"
"""A key version that no reader knows: it is skipped."""


def batch(producer_id: int, epoch: int, sequence: int, key: bytes = b"k") -> bytes:
    payload, count = encode_single_record(UNKNOWN_KIND + key, b"v")
    facts = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
    return bytes(seal_batch(payload, count, (count - 1, 0, 0), facts))  # type: ignore[arg-type]


def test_the_first_batch_of_a_later_epoch_fences_and_not_the_epoch_itself() -> None:
    kafka = Kafka(World(1))
    partition = kafka.partition
    assert partition.append(batch(7, 0, 0)) == (NONE, 0)
    assert partition.append(batch(7, 0, 1)) == (NONE, 1)
    assert partition.append(batch(7, 1, 0)) == (NONE, 2)
    assert partition.append(batch(7, 0, 2))[0] is FENCED
    partition.commit(3)
    assert partition.overtaken_ms(Author(7, 0)) == 0
    assert partition.overtaken_ms(Author(7, 1)) is None


def test_a_batch_that_comes_again_is_known_and_one_out_of_order_refused() -> None:
    partition = Partition(lambda: 0)
    assert partition.append(batch(7, 0, 0)) == (NONE, 0)
    assert partition.append(batch(7, 0, 1)) == (NONE, 1)
    assert partition.append(batch(7, 0, 0)) == (NONE, 0)
    assert partition.append(batch(7, 0, 3))[0] is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.append(batch(7, 1, 1))[0] is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.append(batch(8, 0, 5)) == (NONE, 2)
    assert partition.append(batch(-1, -1, -1)) == (NONE, 3)


def test_a_new_leader_may_lack_what_was_not_committed_and_knows_producers_as_of_then() -> None:
    partition = Partition(lambda: 0)
    partition.append(batch(7, 0, 0))
    partition.commit(1)
    partition.append(batch(7, 1, 0))
    partition.lead_elsewhere(1)
    assert partition.end == 1
    assert partition.append(batch(7, 0, 1)) == (NONE, 1)
    partition.append(batch(7, 2, 0))
    partition.lead_elsewhere(3)
    assert partition.committed == 3
    assert partition.append(batch(7, 0, 2))[0] is FENCED


def test_compaction_takes_batches_whose_keys_are_written_again() -> None:
    partition = Partition(lambda: 0)
    for sequence, key in enumerate((b"a", b"b", b"a", b"c")):
        partition.append(batch(7, 0, sequence, key))
    partition.commit(4)
    partition.compact(1.0)
    assert [position.offset for position in partition.batches] == [1, 2, 3]
