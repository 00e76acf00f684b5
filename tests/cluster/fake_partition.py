"""A cluster of one broker in virtual time that keeps one partition as Kafka does: producers' epochs and sequences.

It can do what is hard to cause in a real one: lose, delay or refuse answers, show less than it has, forget a producer.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kohort.cluster.journal.journal_partition import JournalSettings, JournalTopic
from kohort.cluster.journal.kafka_journal import KafkaJournal
from kohort.errors import ErrorCode
from kohort.groups.records import Record
from kohort.wire.batch import parse_header, patch_header
from kohort.wire.data import FetchResponse, ListOffsetsResponse, ProduceResponse
from kohort.wire.transactions import InitProducerIdResponse
from tests.client.virtual import PARK, VirtualCluster
from tests.cluster.journals import NOW

TOPIC = JournalTopic("__groups", uuid.UUID(int=77), 1)
SETTINGS = JournalSettings(topic=TOPIC.name, partitions=1, coordinator=1)
Fault = Callable[[Any], Any]
"""What becomes of a request instead of an answer; None: it is answered as ever."""


@dataclass
class Producer:
    """The leader's state of one producer."""

    epoch: int
    last_sequence: int
    batches: dict[int, int] = field(default_factory=dict)


class FakePartition:
    """The log, its leader and the transaction coordinator.

    Attributes:
        log: batches with their offsets; start, end: of what is there, and behind it.
        shown: nothing at or behind this offset is read yet, None: all is.
        next_id: the producer id that the coordinator gives; raised by `forget_id`.
        faults: what becomes of the next requests by API name, first to last.
        produced: the sequence and epoch of each Produce that came.
    """

    def __init__(self) -> None:
        self.log: list[tuple[int, bytes]] = []
        self.end = self.start = 0
        self.shown: int | None = None
        self.producers: dict[int, Producer] = {}
        self.next_id = 7
        self.epochs: dict[int, int] = {}
        self.faults: dict[str, list[Fault | None]] = {}
        self.produced: list[tuple[int, int]] = []
        self.on_produce: Callable[[], None] | None = None

    def forget_id(self) -> None:
        self.next_id += 1

    def cluster(self) -> VirtualCluster:
        """A client's way to it."""
        made = VirtualCluster(settings={"retry_backoff_ms": 50}, topics={TOPIC.name: 1}, ids={TOPIC.name: TOPIC.id})
        for name in ("InitProducerId", "Produce", "Fetch", "ListOffsets"):
            made.handlers[name] = self._handler(name)
        return made

    def _handler(self, name: str) -> Callable[[Any, int], Any]:
        answer = {
            "InitProducerId": self._init,
            "Produce": self._produce,
            "Fetch": self._fetch,
            "ListOffsets": self._start,
        }[name]

        def handle(message: Any, _: int) -> Any:
            faults = self.faults.get(name)
            fault = faults.pop(0) if faults else None
            return answer(message) if fault is None else fault(message)

        return handle

    def write_and_park(self, message: Any) -> Any:
        """Write, and lose the answer."""
        self._produce(message)
        return PARK

    def park(self, message: Any) -> Any:
        """Nothing is written, and nobody is told."""
        return PARK

    @staticmethod
    def refuse(code: ErrorCode) -> Fault:
        """Answer a Produce with this code."""
        return lambda _: _produced(int(code), -1)

    def _init(self, message: Any) -> Any:
        own = message.producer_id
        if own >= 0 and (own != self.next_id or message.producer_epoch != self.epochs.get(own)):
            if own == self.next_id:
                return InitProducerIdResponse(error_code=int(ErrorCode.PRODUCER_FENCED))
            self.epochs.setdefault(self.next_id, -1)
        epoch = self.epochs[self.next_id] = self.epochs.get(self.next_id, -1) + 1
        return InitProducerIdResponse(producer_id=self.next_id, producer_epoch=epoch)

    def _produce(self, message: Any) -> Any:
        batch = bytearray(message.topic_data[0].partition_data[0].records)
        header = parse_header(batch)
        self.produced.append((header.producer_epoch, header.base_sequence))
        if self.on_produce is not None:
            hook, self.on_produce = self.on_produce, None
            hook()
        known = self.producers.get(header.producer_id)
        if header.producer_id >= 0:
            if known is not None and header.producer_epoch < known.epoch:
                return _produced(int(ErrorCode.INVALID_PRODUCER_EPOCH), -1)
            if known is None or known.epoch != header.producer_epoch:
                known = self.producers[header.producer_id] = Producer(header.producer_epoch, header.base_sequence - 1)
            if header.base_sequence in known.batches:
                return _produced(0, known.batches[header.base_sequence])
            if header.base_sequence != known.last_sequence + 1:
                return _produced(int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), -1)
            known.last_sequence = header.last_sequence
            known.batches[header.base_sequence] = self.end
        return _produced(0, self.append(batch))

    def append(self, batch: bytes | bytearray) -> int:
        """Take a batch as it is; gives its offset."""
        data, offset = bytearray(batch), self.end
        patch_header(data, offset, 0)
        self.log.append((offset, bytes(data)))
        self.end = parse_header(data).next_offset
        return offset

    def delete_before(self, offset: int) -> None:
        """Delete records before an offset, like DeleteRecords."""
        self.start = offset
        self.log = [(at, batch) for at, batch in self.log if at >= offset]

    def _fetch(self, message: Any) -> Any:
        part = message.topics[0].partitions[0]
        shown = self.end if self.shown is None else self.shown
        found, size = [], 0
        for offset, batch in self.log:
            if part.fetch_offset <= offset < shown and (not found or size + len(batch) <= part.partition_max_bytes):
                found.append(batch)
                size += len(batch)
        code = 0 if self.start <= part.fetch_offset <= self.end else int(ErrorCode.OFFSET_OUT_OF_RANGE)
        data = FetchResponse.PartitionData(
            partition_index=0, error_code=code, high_watermark=shown, records=b"" if code else b"".join(found)
        )
        topic = FetchResponse.FetchableTopicResponse(topic=TOPIC.name, topic_id=TOPIC.id, partitions=[data])
        return FetchResponse(responses=[topic])

    def _start(self, message: Any) -> Any:
        part = ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=0, offset=self.start)
        topic = ListOffsetsResponse.ListOffsetsTopicResponse(name=TOPIC.name, partitions=[part])
        return ListOffsetsResponse(topics=[topic])


def _produced(code: int, offset: int) -> ProduceResponse:
    part = ProduceResponse.PartitionProduceResponse(index=0, error_code=code, base_offset=offset)
    topic = ProduceResponse.TopicProduceResponse(name=TOPIC.name, topic_id=TOPIC.id, partition_responses=[part])
    return ProduceResponse(responses=[topic])


class VirtualHolder:
    """An owner of the journal, in virtual time.

    Attributes:
        slept_ms: how long its machine slept so far.
        records: of its newest load.
        durable_at: when each acknowledged append was sent, by token.
        reasons: why terms ended.
    """

    def __init__(self, partition: FakePartition, settings: JournalSettings = SETTINGS) -> None:
        self.virtual = partition.cluster()
        self.cluster = self.virtual.cluster
        self.slept_ms = 0.0
        self.virtual.runtime.clock_with_sleep_ms = lambda: self.virtual.runtime.now_ms + self.slept_ms
        self.journal = KafkaJournal(self, TOPIC, 0, settings)
        self.records: list[Record] = []
        self.durable_at: dict[int, int] = {}
        self.reasons: list[Exception] = []
        self.term = 0

    def wake(self) -> None:
        """The test steps the core."""

    def on_append_durable(self, token: int, sent_ms: int) -> None:
        self.durable_at[token] = sent_ms

    def on_journal_lost(self, reason: Exception) -> None:
        self.reasons.append(reason)

    def on_records_available(self) -> None:
        """The test reads on by itself."""

    @property
    def now_ms(self) -> float:
        return self.virtual.runtime.now_ms

    def load(self, limit_ms: float = 300_000) -> list[Record]:
        """Begin a term, and let time pass until it has loaded."""
        self.term += 1
        self.records = []
        end = self.now_ms + limit_ms
        for records in self.journal.begin_term(self.term, self):
            if records is not None:
                self.records += records
                self.virtual.run()
            else:
                assert self.now_ms < end, "it never loads"
                self.pass_ms(50)
        return self.records

    def pass_ms(self, time_ms: float) -> None:
        self.virtual.run(self.now_ms + time_ms)

    def sleep(self, time_ms: float) -> None:
        """The machine sleeps: its monotonic clock stands still."""
        self.slept_ms += time_ms

    def send(self, *records: Record) -> int:
        token = self.journal.append(self.term, records, NOW)
        self.virtual.run()
        return token

    def append(self, *records: Record) -> int:
        """Append what is acknowledged at once; gives when it was sent."""
        token = self.send(*records)
        assert token in self.durable_at, self.reasons
        return self.durable_at[token]


def written(partition: FakePartition, records: Sequence[Record]) -> int:
    """How many of the records the log holds, as a fresh owner reads it."""
    found = VirtualHolder(partition).load()
    return sum(record in found for record in records)
