"""The offsets of a query in a region: the driver program assigns partitions and starts, and only the region commits."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from kohort.errors import InvalidInputError, KafkaError
from kohort.ids import NO_TOPIC_ID, TopicPartition
from kohort.io.channel import GREETING_S
from kohort.spark.driver_channel import Message
from kohort.spark.options import SourceOptions
from kohort.spark.source.batch_offset import BatchOffset
from kohort.spark.source.catalog import PresentTopics, TopicCatalog, report_lost_records
from kohort.spark.source.offset_coordinator import AssignedPartitions, ReplayedBatch
from kohort.spark.source.progress import MemberProgress
from kohort.spark.source_sessions import (
    IDLE_MS,
    WAIT_MS_MAX,
    AssignmentReply,
    AssignmentReplyPart,
    IdleState,
    LostRange,
    LostRecords,
    topic_ids_by_name,
)
from kohort.spark.topic_pattern import INTERNAL_TOPICS

ANSWER_TIMEOUT_S = 4.0
"""Longest wait for the driver program's answer, including the wait that was requested. A query whose driver program
has ended must end within five seconds.
"""
LOOK_S = 1.0
"""Interval of the check whether the assigned topics exist."""
NOBODY_WAITS = 0
"""The number of a request whose answer is ignored; other requests count from 1."""
GONE = (
    "a query in a region does nothing without the application that started it, and ends: SparkRegion starts it again, "
    "from the last sequence"
)


class ApplicationChannel(Protocol):
    """The channel to the driver program: `kohort.spark.driver_channel.ChannelClient`."""

    def ask(self, message: Message, timeout_s: float) -> Message:
        """Send a request to the driver program, and wait for the answer."""

    def send(self, message: Message) -> bool:
        """Send a message to the driver program; return False if the driver program can't be reached."""


class RegionOffsets:
    """An offset coordinator that asks the driver program, commits nothing, and repeats no batch of an earlier run.

    A partition starts where its assignment says. It continues where the last planned batch ended, as long as it has the
    same assignment number (`assignment_version`).
    """

    def __init__(self, options: SourceOptions, catalog: TopicCatalog, line: ApplicationChannel, session: str) -> None:
        """Set up the offsets of a region's source; nothing is requested from the driver program yet.

        Args:
            options: the options of the source.
            catalog: looks up topics and offsets.
            line: the channel to the driver program.
            session: the id of the source's session.
        """
        self._options, self._catalog, self._line, self._session = options, catalog, line, session
        self._asked = False
        self._epoch: int | None = None
        self._parts: dict[TopicPartition, AssignmentReplyPart] = {}  # the last assignment
        self._reached: dict[int, int] = {}  # next offset by assignment number
        self._checked: set[int] = set()  # assignments whose starts were checked against the log
        self._gone: set[int] = set()  # assignments of deleted topics, which were reported
        self._known: tuple[int, float] | None = None  # version without a batch so far, and its time
        self._present, self._looked_at, self._looked_for = PresentTopics(), float("-inf"), frozenset[str]()

    def resume_from_checkpoint(self, start: BatchOffset) -> None:
        """Do nothing: the checkpoint is another run's, and the driver program knows where to start."""

    def wait_assigned_partitions(
        self, previous: BatchOffset, positions: Mapping[TopicPartition, int]
    ) -> AssignedPartitions | None:
        """Return the assigned partitions of existing topics; None while no batch may be planned.

        A query that is too far ahead of its region waits here, however long that takes. If Spark learned that there is
        nothing to read, it would run batches without records, if the query has timers. Each request takes a second at
        most, so that a stopped run is refused with the next one. SIGTERM and the end of the driver program take effect
        at once.
        """
        del previous
        answer = self._ask("held", wait_ms=WAIT_MS_MAX, **self._idle())
        while answer.get("stay"):
            answer = self._ask("held", wait_ms=WAIT_MS_MAX)
        if answer.get("hold"):
            return None
        handed = AssignmentReply.from_message(answer)
        self._known = handed.version, time.monotonic()
        self._check_epoch(handed.epoch)
        self._keep_positions(handed, positions)
        parts = self._parts = self._existing(handed.parts)
        return AssignedPartitions(
            tuple(parts),
            handed.generation,
            {tp: self._reached[part.assignment_version] for tp, part in parts.items()},
            topic_ids_by_name(parts.values()),
            handed.epoch,
            {tp: part.assignment_version for tp, part in parts.items()},
            handed.version,
        )

    def _idle(self) -> Message:
        """Return request fields by which a source that found nothing to read lets the driver program answer later.

        They are the known assignment version, and the ms left until `IDLE_MS` after the last look-up. Longer waits
        would delay the other sources of a join, which Spark asks one after the other. Empty: answer at once.
        """
        if self._known is None:
            return {}
        version, since_s = self._known
        left_ms = round(IDLE_MS - (time.monotonic() - since_s) * 1000)
        return IdleState(version, left_ms).to_message() if left_ms > 0 else {}

    def _keep_positions(self, handed: AssignmentReply, at: Mapping[TopicPartition, int]) -> None:
        """Remember the position of each assigned partition by its assignment number; forget those of others.

        A new assignment begins at its start offset. A partition that one metadata look-up misses keeps its position.
        """
        reached = self._reached | {part.assignment_version: at[tp] for tp, part in self._parts.items() if tp in at}
        self._reached = {
            part.assignment_version: reached.get(part.assignment_version, part.start) for part in handed.parts
        }
        self._checked &= self._reached.keys()
        self._gone &= self._reached.keys()

    def _check_epoch(self, epoch: int) -> None:
        """Check that the driver program still has this run's epoch, which is unique.

        Raises:
            InvalidInputError: the driver program has begun another run.
        """
        self._epoch = epoch if self._epoch is None else self._epoch
        if epoch != self._epoch:
            raise InvalidInputError(
                f"the region has gone on to epoch {epoch}, this run is of epoch {self._epoch}: it ends, and "
                "SparkRegion starts another"
            )

    def _existing(self, parts: tuple[AssignmentReplyPart, ...]) -> dict[TopicPartition, AssignmentReplyPart]:
        """Return the partitions that exist, in order, and report deleted topics once.

        Raises:
            OffsetError: a topic was deleted or re-created, and that ends the query.
        """
        if self._options.subscribe_pattern is not None:  # a coordinator matches Kafka's internal topics too
            parts = tuple(part for part in parts if part.topic not in INTERNAL_TOPICS)
        present = self._look(frozenset(part.topic for part in parts))
        there: dict[TopicPartition, AssignmentReplyPart] = {}
        gone: list[AssignmentReplyPart] = []
        for part in sorted(parts, key=lambda part: (part.topic, part.partition)):
            now = present.ids.get(part.topic, part.topic_id)
            if part.topic not in present.present_topics or (now != part.topic_id and part.topic_id != NO_TOPIC_ID):
                gone.append(part)
            elif TopicPartition(part.topic, part.partition) in present.partitions:  # else not in metadata yet
                there[TopicPartition(part.topic, part.partition)] = part
        self._report_gone([part for part in gone if part.assignment_version not in self._gone], present)
        return there

    def _look(self, topics: frozenset[str]) -> PresentTopics:
        now = time.monotonic()
        if topics and (now - self._looked_at >= LOOK_S or not topics <= self._looked_for):
            self._present, self._looked_at, self._looked_for = self._catalog.describe_existing(topics), now, topics
        return self._present

    def _report_gone(self, gone: list[AssignmentReplyPart], present: PresentTopics) -> None:
        if not gone:
            return
        was = []
        for topic, of in sorted({(part.topic, part.topic_id) for part in gone}):
            again = f" and made again, as id {present.ids.get(topic)}" if topic in present.present_topics else ""
            was.append(f"topic {topic} (id {of}) was deleted{again}")
        lost = [
            LostRange(
                part.topic,
                part.topic_id,
                part.partition,
                part.assignment_version,
                self._reached[part.assignment_version],
                -1,
            )
            for part in gone
        ]
        text = f"{'; '.join(was)}: what the region had not read of it is lost"
        self._report_lost(text, lost, "goes on without it")
        self._gone.update(part.assignment_version for part in gone)

    def _report_lost(self, text: str, parts: list[LostRange], remedy: str) -> None:
        strict = self._options.fail_on_data_loss
        self._send(LostRecords(text, strict, tuple(parts)).to_message(self._session))
        report_lost_records(text, remedy, strict=strict)

    def move_into_logs(
        self, held: AssignedPartitions, at: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Return the positions `at`, with those outside their partition's log moved into it.

        Lost records are reported to the driver program. A position beyond the end moves to the end if the topic has an
        id: its log was truncated. Other positions move to the beginning.

        Raises:
            OffsetError: records are lost, and failOnDataLoss ends the query.
        """
        ends = self._catalog.confirm_end_offsets({tp: at[tp] for tp in held.partitions}, ends)
        fresh = [tp for tp in held.partitions if held.assignment_versions[tp] not in self._checked]
        beginnings = self._catalog.beginning_offsets(fresh) if fresh else {}
        there = [tp for tp in held.partitions if tp in ends]
        outside = [tp for tp in there if not beginnings.get(tp, 0) <= at[tp] <= ends[tp]]
        beginnings |= self._catalog.beginning_offsets(tp for tp in outside if tp not in beginnings)
        outside = [tp for tp in outside if tp in beginnings]  # otherwise deleted meanwhile; the next check reports it
        settled = dict(at)
        lost: list[LostRange] = []
        for tp in outside:
            part = self._parts[tp]
            is_truncated = at[tp] > ends[tp] and part.topic_id != NO_TOPIC_ID
            settled[tp] = ends[tp] if is_truncated else beginnings[tp]
            lost.append(LostRange(tp.topic, part.topic_id, tp.partition, part.assignment_version, at[tp], settled[tp]))
        if lost:
            tp = outside[0]
            more = f" (and so in {len(lost) - 1} more partitions)" if len(lost) > 1 else ""
            text = (
                f"{tp} holds offsets {beginnings[tp]} to {ends[tp]}, the region was at {at[tp]}: records are gone{more}"
            )
            self._report_lost(text, lost, f"goes on at {settled[tp]}")
        self._checked.update(held.assignment_versions[tp] for tp in fresh if tp in beginnings)
        return settled

    def needs_start_in_checkpoint(self) -> bool:
        """Return False: the region stores where its queries start."""
        return False

    def is_assignment_current(self, held: AssignedPartitions) -> bool:
        """Return True: a change of the assignment comes with the driver program's next answer."""
        return True

    def owns_whole_assignment(self, expected: Collection[TopicPartition]) -> bool:
        """Return True: a region's query does not end on an empty result."""
        return True

    def keep_batch_for_reading(self) -> bool:
        """Return True: the driver program abandons no batch."""
        return True

    def begin_batch(self, held: AssignedPartitions, batch: int) -> bool:
        """Ask the driver program whether a batch may begin; until it ends, no partition is released."""
        self._known = None  # records are waiting: the next lookup is due at once, even if this batch may not begin
        return bool(self._ask("begin", version=held.version, batch=batch).get("ok"))

    def finish_batch(self, batch: BatchOffset, timeout_ms: float | None = None) -> None:
        """Report to the driver program that a batch is complete. The source commits nothing: the region does.

        Do not wait for the answer, because the thread that receives answers may call this. Messages arrive in order.
        """
        del timeout_ms
        self._send(self._request("end", batch=batch.batch) | {"number": NOBODY_WAITS})

    def replay_batch(self, start: BatchOffset, planned: BatchOffset) -> ReplayedBatch:
        """Refuse to repeat a batch: a run of a region begins with a checkpoint folder of finished batches.

        Raises:
            InvalidInputError: always.
        """
        del start
        raise InvalidInputError(
            f"batch {planned.batch} was planned by an earlier run, in epoch {planned.epoch}, and not finished: a "
            "region's query begins with a checkpoint folder that ends with a finished batch. Let SparkRegion clone "
            "it, and change nothing in it by hand"
        )

    def member_progress(self) -> MemberProgress:
        """Return an empty state: the member is in the driver program."""
        return MemberProgress()

    def close(self) -> None:
        """Do nothing: the member stays in the driver program."""

    def _request(self, what: str, **facts: Any) -> Message:
        return {"kind": "ask", "seat": self._session, "what": what, **facts}

    def _ask(self, what: str, **facts: Any) -> Message:
        """Return the driver program's answer to a request.

        Raises:
            KafkaError: the driver program has ended, or does not answer.
            InvalidInputError: the driver program refuses the request.
        """
        timeout_s = ANSWER_TIMEOUT_S if self._asked else max(ANSWER_TIMEOUT_S, GREETING_S)
        try:
            answer = self._line.ask(self._request(what, **facts), timeout_s)
        except (ConnectionError, TimeoutError) as error:
            raise KafkaError(f"{error}; {GONE}") from error
        self._asked = True
        refused = answer.get("refused")
        if refused is not None:
            raise InvalidInputError(str(refused))
        return answer

    def _send(self, message: Message) -> None:
        if not self._line.send(message):
            raise KafkaError(f"the application is gone; {GONE}")
