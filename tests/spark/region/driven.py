"""A query of a region without Spark: its members' threads are stepped by the test, and so are its batches.

Three parts are not real. The group's assignments are prepared, and the test gives the control plane's orders. `Run`
plays Spark: it asks the seat, logs the offsets, hands rows to the sink and logs the commit.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast
from uuid import UUID

import pyarrow as pa
from tests.support.waiting import until

from kohort.client.consumer.consumer import Consumer
from kohort.client.offsets import GroupMetadata
from kohort.ids import TopicPartition
from kohort.region import messages
from kohort.region.consuming.member_thread import ControlPlaneLink
from kohort.region.consuming.settings import MemberConfig
from kohort.region.consuming.starts import parse_start_option
from kohort.region.member import events
from kohort.region.member.machine import MemberMachine
from kohort.region.member.state import MemberBehaviour
from kohort.region.messages import CheckpointAttempt
from kohort.region.records import Contribution, Position
from kohort.region.sinks import Sink
from kohort.region.staged import StagedKey
from kohort.spark.region.query_factory import BuiltQuery
from kohort.spark.region.query_run import RegionQuery
from kohort.spark.region.query_thread import SourceMemberThread
from kohort.spark.region.staging import QueryOutput
from kohort.spark.source.batch_offset import BatchOffset, OffsetRange
from kohort.spark.source_sessions import SOURCE_SESSIONS, AssignmentReply, AssignmentReplyPart

TOPIC = UUID(int=7)
REGION_ID = UUID(int=1)
TERM = 3
Said = TypeVar("Said")


class Group:
    """A consumer whose group gives what the test says, and records nothing."""

    def __init__(self) -> None:
        self.held: set[TopicPartition] = set()
        self.back: set[TopicPartition] = set()

    def poll(self, wait_ms: float) -> None: ...

    def wakeup(self) -> None: ...

    def close(self) -> None: ...

    def assignment(self) -> set[TopicPartition]:
        return self.held

    def wanted(self) -> set[TopicPartition]:
        return self.back

    def release(self) -> None:
        self.held -= self.back
        self.back = set()

    def commit(self, offsets: object, timeout_ms: float) -> None: ...

    def committed(self, partitions: list[TopicPartition], timeout_ms: float) -> dict[TopicPartition, None]:
        return dict.fromkeys(partitions)

    def group_metadata(self) -> GroupMetadata:
        return GroupMetadata("g", 1, "m-1", None)

    def topic_ids(self) -> dict[str, UUID]:
        return {"t": TOPIC, "u": TOPIC}


class Plane:
    """The end of a link that notes what is said."""

    def __init__(self) -> None:
        self.said: list[messages.Report] = []

    def send_report(self, report: messages.Report) -> None:
        self.said.append(report)


class Run:
    """A run of the query as Spark drives it; a batch is a call."""

    def __init__(self, folder: str, sink: Callable[[Any, int], None], sessions: Sequence[str]) -> None:
        self.folder, self.sessions = Path(folder), tuple(sessions)
        self.epoch = int(self.folder.name[1:])
        self.isActive = True
        self.error: Exception | None = None
        self.may_stop = threading.Event()
        self.may_stop.set()
        self._sink = sink
        self._identities = {session: uuid.uuid4().hex for session in sessions}
        self._reached: dict[tuple[int, int], int] = {}  # by source and assignment version
        self._offsets = [BatchOffset(self._identities[session]) for session in sessions]
        for log in ("offsets", "commits"):
            (self.folder / log).mkdir(exist_ok=True)
        self.id = json.loads((self.folder / "metadata").read_text())["id"]
        self._number = max((int(path.name) for path in (self.folder / "commits").iterdir()), default=-1)

    def stop(self) -> None:
        assert self.may_stop.wait(30)
        self.isActive = False

    def exception(self) -> Exception | None:
        return self.error

    def fail(self, error: Exception) -> None:
        self.error, self.isActive = error, False

    def ask(self, what: str, source: int = 0, **facts: Any) -> dict[str, Any]:
        session = self.sessions[source]
        return SOURCE_SESSIONS.answer_request(
            self._identities[session], {"kind": "ask", "seat": session, "what": what, **facts}
        )

    def held(self, source: int = 0) -> AssignmentReply:
        return AssignmentReply.from_message(self.ask("held", source, wait_ms=0))

    def begin(self, source: int = 0, rows: int = 10) -> None:
        """Plan a batch of so many rows of each partition, and log it."""
        held = self.held(source)
        before = self._offsets[source]
        assert self.ask("begin", source, version=held.version, batch=before.batch + 1) == {"ok": True}
        spans = {}
        for part in held.parts:
            start = self._reached.get((source, part.assignment_version), part.start)
            self._reached[source, part.assignment_version] = start + rows
            spans[_tp(part)] = OffsetRange(start, start + rows)
        assignment_versions = {_tp(part): part.assignment_version for part in held.parts}
        self._offsets[source] = BatchOffset(
            before.query, before.batch + 1, 1, spans, {"t": TOPIC, "u": TOPIC}, "g", held.epoch, assignment_versions
        )
        ends = [json.dumps(offset.to_json()) for offset in self._offsets]
        (self.folder / "offsets" / f"{self._number + 1}").write_text("\n".join(["v1", "{}", *ends]))

    def finish(self) -> None:
        """The batch's rows go to the sink, and its commit is logged; the source has not heard of that yet."""
        self._number += 1
        self._sink(self, self._number)
        (self.folder / "commits" / f"{self._number}").write_text("v1\n{}")

    def end(self, source: int = 0) -> None:
        self.ask("end", source, batch=self._offsets[source].batch)

    def batch(self, source: int = 0, rows: int = 10) -> None:
        self.begin(source, rows)
        self.finish()
        self.end(source)

    # -- as the DataFrame that the sink is given

    def mapInArrow(self, function: object, schema: str) -> Run:  # noqa: N802 (Spark's name)
        return self

    def collect(self) -> list[Any]:
        key = StagedKey(REGION_ID, self.epoch, "q", self._number)
        return [SimpleNamespace(key=key.file_stem(), letters=0)]


def _tp(part: AssignmentReplyPart) -> TopicPartition:
    return TopicPartition(part.topic, part.partition)


class Spark:
    """A factory of runs, like `BuiltQuery`; each run waits until it may begin."""

    def __init__(self) -> None:
        self.output, self.operators, self.sources = "[]", (), ("t",)
        self.needs_last_checkpoint = True
        self.schema, self.batches_kept = pa.schema([]), 100
        self.runs: list[Run] = []
        self.may_start = threading.Event()
        self.may_start.set()
        self.error: Exception | None = None
        self.gone = False

    def run(self, sink: Callable[[Any, int], None], checkpoint: str, sessions: Sequence[str]) -> Run:
        assert self.may_start.wait(30)
        if self.error is not None:
            raise self.error
        self.runs.append(Run(checkpoint, sink, sessions))
        return self.runs[-1]

    def has_spark_ended(self, error: BaseException) -> bool:
        return self.gone


class Driven:
    """A query with a member for each topic: `t` and `u`."""

    def __init__(self, folder: Path, topics: str = "t") -> None:
        self.spark = Spark()
        self.folder = folder / "q"
        self.folder.mkdir()
        self.threads: list[SourceMemberThread] = []
        sink = cast(Sink, SimpleNamespace(place="s"))
        self.query = RegionQuery(
            "q", cast(BuiltQuery, self.spark), QueryOutput(sink), REGION_ID, str(self.folder), lambda: self.threads
        )
        self.groups = [Group() for _ in topics]
        self.planes = [Plane() for _ in topics]
        for number, topic in enumerate(topics):
            machine = MemberMachine(
                "r",
                f"q{number}",
                UUID(int=9),
                f"g{number}",
                "s" * (not number),
                MemberBehaviour(True, True, of="q" * (len(topics) > 1), sources=len(topics)),
            )
            config = MemberConfig((topic,), None, parse_start_option("beginning", "earliest"))
            consumer = cast(Consumer, self.groups[number])
            self.threads.append(SourceMemberThread(machine, consumer, (), config, self.query, number))
            self.threads[-1]._link = cast(ControlPlaneLink, self.planes[number])
        self.topics = topics
        self.query.start()

    def close(self) -> None:
        self.spark.may_start.set()
        for run in self.spark.runs:
            run.may_stop.set()
        self.query.close()

    @property
    def run(self) -> Run:
        """The present run, as soon as it is there."""
        until(lambda: self.query._run is not None, "the query runs", 10)
        until(lambda: "not started" not in self.threads[-1].assignments._holds, "the query runs", 10)
        return self.spark.runs[-1]

    def said(self, kind: type[Said], member: int = 0) -> list[Said]:
        return [event for event in self.planes[member].said if isinstance(event, kind)]

    def order(self, *orders: messages.Order, member: int = 0) -> None:
        for order in orders:
            self.threads[member].post(events.ControlPlaneMessageReceived(order))
            self.turn(member)

    def turn(self, member: int = 0) -> None:
        self.threads[member]._turn()

    def begin(self, state: bytes | None = None, epoch: int = 5, member: int = 0, sequence: int = 7) -> None:
        self.threads[member].post(events.ControlPlaneConnected())
        self.order(messages.RegistrationAccepted(TERM, epoch, sequence, ("q0",), state), member=member)

    def give(self, offsets: dict[int, int], member: int = 0) -> None:
        """The group gives partitions, and the control plane says where they start."""
        topic = self.topics[member]
        self.groups[member].held |= {TopicPartition(topic, number) for number in offsets}
        self.turn(member)
        asked = self.said(messages.StartOffsetsRequest, member)[-1].number
        found = tuple(Position(f"g{member}", topic, TOPIC, number, offset) for number, offset in offsets.items())
        self.order(messages.StartOffsetsAnswer(TERM, asked, found), member=member)

    def want(self, *numbers: int, member: int = 0) -> None:
        """The group wants partitions back."""
        parts = [TopicPartition(self.topics[member], number) for number in numbers]
        self.groups[member].back |= set(parts)
        self.threads[member]._hear_group(events.PartitionsRevoked, parts)
        self.turn(member)

    def lose(self, *numbers: int, member: int = 0) -> None:
        """The group has given partitions to others: heard in a turn in which something has happened before that."""
        parts = [TopicPartition(self.topics[member], number) for number in numbers]
        self.groups[member].held -= set(parts)
        self.threads[member]._hear_group(events.PartitionsLost, parts)
        self.threads[member]._follow_group()

    def contribute(self, cut: CheckpointAttempt, member: int = 0, term: int = TERM) -> Contribution:
        names = tuple(f"q{number}" for number in range(len(self.threads)))
        self.order(messages.DrainOrder(term, cut), messages.ContributeOrder(term, cut, names), member=member)
        given = self.said(messages.ContributionReport, member)[-1]
        assert given.cut == cut
        return given.contribution

    def sequence(self, cut: CheckpointAttempt, member: int = 0) -> dict[int, tuple[int, int]]:
        """A whole cut; gives where each partition began and ended."""
        given = self.contribute(cut, member)
        self.order(messages.CheckpointCompleted(TERM, cut.sequence, 0), member=member)
        return spans_of(given)

    def reset(self, epoch: int, state: bytes | None, sequence: int, member: int = 0) -> None:
        self.order(messages.ResetOrder(TERM, epoch, sequence, state), member=member)

    def goes_back(self, member: int = 0) -> None:
        until(lambda: not self.threads[member]._posted.empty(), "it has gone back", 10)
        self.turn(member)


def spans_of(given: Contribution) -> dict[int, tuple[int, int]]:
    return {span.partition: (span.begin, span.end) for span in given.spans}
