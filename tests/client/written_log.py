"""The whole consumer core against a log that is written down, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from kohort.client.consumer.core import ConsumerCore
from kohort.client.consumer.effects import (
    AwaitCoroutine,
    CallApplication,
    DecodeRecordSets,
    RunningScript,
    Script,
    WaitUntil,
)
from kohort.columns import decode
from kohort.errors import ErrorCode
from kohort.ids import TopicPartition
from kohort.wire.batch import BatchRecord, build_batch
from kohort.wire.data import FetchResponse, ListOffsetsResponse
from tests.client.virtual import PARK, VirtualCluster

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
TopicAnswer = FetchResponse.FetchableTopicResponse


@dataclass
class Session:
    """A broker's state of a fetch session: `epoch` is the one that the next request must name."""

    id: int
    epoch: int = 1
    parts: dict[tuple[UUID, int], Any] = field(default_factory=dict)


class Log:
    """Partitions as lists of batches of ten records each; offsets are consecutive."""

    def __init__(self, sizes: dict[TopicPartition, int], **settings: Any) -> None:
        settings = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 100} | settings
        self.world = VirtualCluster(settings=settings, topics={"a": 2})
        self.ends = sizes
        self.start = dict.fromkeys(sizes, 0)
        self.errors: dict[TopicPartition, ErrorCode] = {}
        self.damaged: set[int] = set()
        self.facts: dict[str, Any] = {}
        self.batches_at_once = 2
        self.sessions: dict[int, Session] | None = None
        self.session_error = ErrorCode.NONE
        self.waiting: dict[int, Session] = {}
        self.world.handlers["Fetch"] = self.fetch
        self.world.handlers["ListOffsets"] = self.list_offsets
        self.core = ConsumerCore(self.world.cluster, self.world.config)
        self.core.assign(sizes)

    def fetch(self, message: Any, version: int) -> Any:
        if self.sessions is not None:
            return self.fetch_in_session(self.sessions, message)
        topics = []
        for topic in message.topics:
            parts = [self.partition(TopicPartition("a", part.partition), part) for part in topic.partitions]
            topics.append(TopicAnswer(topic="a", topic_id=topic.topic_id, partitions=parts))
        if (
            all(not part.records and not part.error_code for topic in topics for part in topic.partitions)
            and not self.facts
        ):
            return PARK
        return FetchResponse(responses=topics)

    def fetch_in_session(self, sessions: dict[int, Session], message: Any) -> Any:
        """Follow KIP-227 strictly: a client's mistake shows as missing or repeated records."""
        code, self.session_error = self.session_error, ErrorCode.NONE
        known = sessions.get(message.session_id)
        if message.session_epoch > 0:
            if known is None or code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            if known.epoch != message.session_epoch or code:
                return FetchResponse(error_code=code or ErrorCode.INVALID_FETCH_SESSION_EPOCH)
            known.epoch += 1
        else:
            sessions.pop(message.session_id, None)
            if message.session_epoch < 0:
                return FetchResponse()
            known = Session(len(self.world.sent("Fetch")))
            sessions[known.id] = known
        for topic in message.forgotten_topics_data:
            for number in topic.partitions:
                del known.parts[topic.topic_id, number]
        for topic in message.topics:
            for part in topic.partitions:
                known.parts[topic.topic_id, part.partition] = part
        answer = self.session_answer(known)
        if answer.responses:
            return answer
        self.waiting[id(message)] = known
        timer = self.world.runtime.promise_at(self.world.runtime.now_ms + message.max_wait_ms)
        timer.on_done(lambda _: self.end_wait(message))
        return PARK

    def session_answer(self, session: Session) -> FetchResponse:
        """Return the response for every partition of a session."""
        topics = []
        for (topic_id, number), part in session.parts.items():
            if topic_id != self.world.ids["a"]:
                answer = TopicAnswer.PartitionData(partition_index=number, error_code=ErrorCode.UNKNOWN_TOPIC_ID)
            else:
                answer = self.partition(TopicPartition("a", number), part)
            if answer.records or answer.error_code:
                topics.append(TopicAnswer(topic_id=topic_id, partitions=[answer]))
        return FetchResponse(session_id=session.id, responses=topics)

    def end_wait(self, message: Any) -> None:
        """Answer a fetch that waits."""
        session = self.waiting.pop(id(message), None)
        for request in self.world.parked_named("Fetch"):
            if request.message is message and session is not None:
                self.world.answer(request, self.session_answer(session))

    def append(self, partition: TopicPartition, batches: int) -> None:
        """More records; fetches that wait are answered."""
        self.ends[partition] += 10 * batches
        for request in self.world.parked_named("Fetch"):
            self.end_wait(request.message)

    def partition(self, partition: TopicPartition, asked: Any) -> Any:
        answer = TopicAnswer.PartitionData(partition_index=partition.partition, aborted_transactions=[], records=b"")
        code = self.errors.get(partition, ErrorCode.NONE)
        if not code and not self.start[partition] <= asked.fetch_offset <= self.ends[partition]:
            code = ErrorCode.OFFSET_OUT_OF_RANGE
        answer.error_code = code
        if code:
            return answer
        answer.high_watermark = answer.last_stable_offset = self.ends[partition]
        for name, value in self.facts.items():
            setattr(answer, name, value)
        first = asked.fetch_offset - asked.fetch_offset % 10
        last = min(self.ends[partition], first + 10 * self.batches_at_once)
        answer.records = b"".join(self.batch(at) for at in range(first, last, 10))
        return answer

    def batch(self, at: int) -> bytes:
        records = [BatchRecord(at + i, 1000 + at + i, None, str(at + i).encode()) for i in range(10)]
        batch = bytearray(build_batch(records, base_offset=at, leader_epoch=3))
        if at in self.damaged:
            batch[-1] ^= 0xFF
        return bytes(batch)

    def list_offsets(self, message: Any, version: int) -> Any:
        topics = []
        for topic in message.topics:
            kind = ListOffsetsResponse.ListOffsetsTopicResponse
            parts = []
            for part in topic.partitions:
                partition = TopicPartition("a", part.partition_index)
                offset = self.start[partition] if part.timestamp == -2 else self.ends[partition]
                parts.append(
                    kind.ListOffsetsPartitionResponse(
                        partition_index=part.partition_index, offset=offset, leader_epoch=3
                    )
                )
            topics.append(kind(name="a", partitions=parts))
        return ListOffsetsResponse(topics=topics)

    # The application.

    def poll(self, limit: int | None = None, timeout_ms: float = 1000) -> list[tuple[TopicPartition, int]]:
        slices = self.carry_out(self.core.poll(limit, self.world.runtime.now_ms + timeout_ms))
        return [
            (part.partition, record.offset) for part in slices for record in part.block.records(part.start, part.stop)
        ]

    def carry_out(self, script: Script[Any]) -> Any:
        return carry_out(self.world, script)

    def fetches(self) -> list[dict[int, int]]:
        """Each fetch sent: wanted offsets by partition."""
        sent = self.world.sent("Fetch")
        return [
            {part.partition: part.fetch_offset for topic in future.message.topics for part in topic.partitions}
            for future in sent
        ]


def carry_out(world: VirtualCluster, script: Script[Any]) -> Any:
    """Run a script of the core as the facades do, in virtual time."""
    running = RunningScript(script)
    while (effect := running.step()) is not None:
        try:
            running.store_result(outcome(world, effect))
        except BaseException as error:  # noqa: BLE001 - the script cleans up and raises it again
            running.store_error(error)
        world.run()
    world.run()
    return running.value


def outcome(world: VirtualCluster, effect: Any) -> Any:
    """Return the result of one effect."""
    if isinstance(effect, WaitUntil):
        while not effect.ready() and world.runtime.now_ms < effect.deadline_ms:
            deadline = world.runtime.next_deadline_ms()
            world.run(min(effect.deadline_ms, deadline if deadline is not None else effect.deadline_ms))
        return effect.ready()
    if isinstance(effect, DecodeRecordSets):
        return decode(effect.sets, effect.options)
    if isinstance(effect, AwaitCoroutine):
        return world.call(effect.coro)
    if isinstance(effect, CallApplication):
        return effect.function(effect.argument)
    raise TypeError(effect)


def offsets(found: list[tuple[TopicPartition, int]], partition: TopicPartition) -> list[int]:
    return [offset for part, offset in found if part == partition]
