"""Push groups under test: consumers whose frames the test sees, and answers as it says, or as the text has it."""

from __future__ import annotations

from typing import Any

from kohort.errors import ErrorCode
from kohort.groups.effects import DisconnectConsumer, Effects, PingConsumer, Pushed, StartConsumer, StopConsumer
from kohort.groups.events import (
    Client,
    ConnectionLost,
    PushConsumerAnswered,
    PushPosition,
    PushRequestKind,
    RegisterConsumer,
)
from kohort.groups.push.group import PushGroup
from tests.groups.harness import Trial

SESSION_MS = 6_000
ASKED = {PingConsumer: PushRequestKind.PING, StopConsumer: PushRequestKind.STOP, StartConsumer: PushRequestKind.START}


class PushConsumer:
    """One consumer on one connection. It holds what it was started with, until it answers a Stop.

    Attributes:
        owed: what it was asked and has not answered, oldest first.
        reads: position by partition, as the text's topicRegistry.
        stopped: its fetchers stand still.
        answers: it answers at once.
        dismissed: why its connection was closed by the coordinator.
    """

    def __init__(self, trial: PushTrial, name: str, connection: int, **more: Any) -> None:
        self.trial, self.name, self.connection = trial, name, connection
        self.owed: list[Pushed] = []
        self.seen: list[str] = []
        self.reads: dict[tuple[str, int], int] = {}
        self.stopped = True
        self.answers = True
        self.dismissed: str | None = None
        self.auto_commit = bool(more.get("auto_commit", True))
        self.reply = trial.request()
        fields: dict[str, Any] = {
            "request": self.reply,
            "group_id": "g",
            "member_id": name,
            "client": Client("client", "/127.0.0.1"),
            "topics": {"t": 1},
            "regex": None,
            "excluding": False,
            "streams": 1,
            "auto_commit": True,
            "from_begin": True,
            "session_timeout_ms": SESSION_MS,
            "connection": connection,
        }
        trial.consumers[connection] = self
        trial.feed(RegisterConsumer(**(fields | more)))
        trial.run()

    @property
    def error(self) -> ErrorCode | None:
        """The answer to its registration, None while it waits."""
        reply = self.trial.reply(self.reply)
        return None if reply is None else reply.error

    @property
    def partitions(self) -> set[int]:
        """The partitions that it reads, by number."""
        return {partition for _, partition in self.reads}

    def take(self, value: Pushed) -> None:
        """A frame has come."""
        if isinstance(value, DisconnectConsumer):
            self.dismissed = value.why
        else:
            self.owed.append(value)
            retries = value.retries if isinstance(value, PingConsumer) else 0
            self.seen.append(ASKED[type(value)].name + (str(retries) if retries else ""))

    def answer(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """Answer the oldest frame as the text has it."""
        value = self.owed.pop(0)
        positions: tuple[PushPosition, ...] = ()
        if isinstance(value, PingConsumer) and self.auto_commit:
            positions = tuple(PushPosition(topic, number, at) for (topic, number), at in self.reads.items())
        elif isinstance(value, StopConsumer) and error is ErrorCode.NONE:
            self.stopped = True
        elif isinstance(value, StartConsumer) and error is ErrorCode.NONE:
            reported = {(position.topic, position.partition): position.offset for position in value.positions}
            if not self.stopped and reported.keys() != self.reads.keys():
                error = ErrorCode.UNKNOWN_SERVER_ERROR
            else:
                self.reads = reported if self.stopped else self.reads
                self.stopped = False
        asked = ASKED[type(value)]
        self.trial.feed(PushConsumerAnswered(value.group_id, self.name, self.connection, asked, error, positions))

    def read(self, count: int) -> None:
        """Move on in each partition."""
        for part in self.reads:
            self.reads[part] += count

    def lose_connection(self, **more: Any) -> None:
        """End the member's connection."""
        self.answers = False
        self.dismissed = "by the network"
        self.trial.feed(ConnectionLost(self.connection, **more))
        self.trial.run()


class PushTrial(Trial):
    """A machine with consumers."""

    def __init__(self, partitions: int = 6, **config: Any) -> None:
        self.consumers: dict[int, PushConsumer] = {}
        super().__init__(**config)
        self.set_topics(t=partitions)

    @property
    def push(self) -> PushGroup:
        """The group."""
        push = self.machine.context.ledger.groups["g"].membership_as(PushGroup)
        assert push is not None
        return push

    def consumer(self, name: str, **more: Any) -> PushConsumer:
        """A consumer registers."""
        connection = more.pop("connection", len(self.consumers) + 1)
        return PushConsumer(self, name, connection, **more)

    def saved(self, partition: int) -> tuple[int, str]:
        """A committed offset with its metadata."""
        found = self.machine.context.ledger.groups["g"].offsets["t", partition]
        return found.offset, found.metadata

    def run(self) -> None:
        """Those that answer have answered all."""
        while waiting := [consumer for consumer in self.consumers.values() if consumer.answers and consumer.owed]:
            waiting[0].answer()
            self.check_owners()

    def pass_time(self, ms: int) -> None:
        """Answers come at once meanwhile."""
        end = self.mono_ms + ms
        while (due := self.machine.next_deadline_ms()) is not None and due <= end:
            super().pass_time(max(due - self.mono_ms, 0))
            self.run()
        super().pass_time(end - self.mono_ms)

    def check_owners(self) -> None:
        """Nobody who can be reached reads what another reads."""
        there = [
            consumer for consumer in self.consumers.values() if not consumer.stopped and consumer.dismissed is None
        ]
        held = [part for owner in there for part in owner.reads]
        assert len(held) == len(set(held)), f"read twice: {[(owner.name, owner.reads) for owner in there]}"

    def _take(self, outcome: Effects) -> Effects:
        for push in outcome.pushes:
            if push.connection in self.consumers:
                self.consumers[push.connection].take(push.value)
        return super()._take(outcome)
