"""Consumers of the push protocol at the broker's end: frames to their connections, answers to their groups' shards."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import NamedTuple, TypeAlias
from zlib import crc32

from kohort.broker.authorization import Right
from kohort.broker.metrics import ApiMetrics, Histogram, Metrics
from kohort.broker.net.connection import Connection
from kohort.broker.net.faults import Faults
from kohort.broker.net.framing import BadFrame, Frame
from kohort.broker.net.sending import Parts
from kohort.broker.net.session import ClientSession
from kohort.broker.net.turned import OnAnswer, Turned
from kohort.broker.places import Places
from kohort.broker.shards import GroupShards
from kohort.errors import ErrorCode, KafkaError
from kohort.groups.events import Asking, ConsumerAnswered, Position
from kohort.groups.outcome import DismissConsumer, PingConsumer, Push, StartConsumer, StopConsumer
from kohort.wire.push import (
    ErrorResponse,
    PositionedPartition,
    PushType,
    decode_ping_answer,
    encode_ping,
    encode_start,
    encode_stop,
    framed,
)
from kohort.wire.schema import WireError

log = logging.getLogger("kohort.broker")

NO_LEADER = -1
Asks: TypeAlias = PingConsumer | StopConsumer | StartConsumer
KINDS = {Asking.PING: PushType.PING, Asking.STOP: PushType.STOP, Asking.START: PushType.START}


class AskedFrame:
    """One frame that a consumer is asked, from when it is wanted until its answer, as `Request` is the other way round.

    Attributes:
        client_id: the consumer's.
        message: what its group's shard wanted.
    """

    __slots__ = ("api", "began", "client_id", "connection", "latency", "message", "on_answer", "on_reply")

    def __init__(
        self, kind: PushType, connection: Connection, message: Asks, figures: ApiMetrics, on_answer: OnAnswer
    ) -> None:
        self.api = kind.api
        self.connection = connection
        self.client_id = message.member_id
        self.message = message
        self.latency: Histogram = figures.latency
        self.on_answer = on_answer
        self.on_reply: Callable[[Parts], bool] | None = None
        self.began = perf_counter()
        figures.requests += 1

    @property
    def name(self) -> str:
        """The frame for log lines."""
        return f"{self.api} to {self.connection.name} ({self.client_id})"

    def take(self, frame: Frame) -> None:
        """The answer has come. Raises BadFrame."""
        if self.on_reply is not None and not self.on_reply([bytes(frame)]):
            return
        self.latency.observe(perf_counter() - self.began)
        self.on_answer(frame)

    def send(self, parts: Parts) -> None:
        """Have its shard hear an answer that waited, or was made up."""
        if self.connection.closed:
            return
        (frame,) = parts
        assert isinstance(frame, bytes)
        try:
            self.take(memoryview(frame))
        except BadFrame as error:
            log.warning("closing the connection from %s: %s", self.connection.name, error)
            self.connection.close()

    def unreadable(self) -> Parts:
        """An answer that its shard can't read."""
        return [b"\xff"]

    def fail(self, error: ErrorCode, why: str) -> None:
        """The consumer is not asked, and answers this; an answer to a Ping holds no error: its connection ends."""
        if self.api == PushType.PING.api:
            log.warning("closing the connection from %s: %s", self.connection.name, why)
            self.connection.close()
        else:
            self.send([ErrorResponse(error).encode()])


class Registered(NamedTuple):
    """A connection on which a consumer has registered.

    Attributes:
        right: what allowed it to; None: everybody may.
    """

    connection: Connection
    turned: Turned
    group_id: str
    right: Right | None


class PushedConsumers:
    """The connections that have turned round, by their numbers."""

    def __init__(self, groups: GroupShards, places: Places, metrics: Metrics, faults: Faults) -> None:
        self._groups = groups
        self._places = places
        self._figures = {asking: metrics.apis[kind] for asking, kind in KINDS.items()}
        self._faults = faults
        self._by_number: dict[int, Registered] = {}

    def __len__(self) -> int:
        return len(self._by_number)

    def turn(self, connection: Connection, group_id: str, right: Right | None = None) -> None:
        """A consumer registers on this connection: what comes on it from now on are answers."""
        self._by_number[connection.client.number] = Registered(connection, connection.turn_round(), group_id, right)

    def dismiss(self, index: int) -> None:
        """End the connections of a shard's groups: its consumers come back at once, and not after a silence."""
        for connection, _, group_id, _ in list(self._by_number.values()):
            if self._groups.index_of(group_id) == index:
                log.info(
                    "closing the connection from %s: the coordinator of group %s is another one",
                    connection.name,
                    group_id,
                )
                connection.finish()

    def forget(self, client: ClientSession) -> None:
        """A connection has ended."""
        self._by_number.pop(client.number, None)

    def push(self, push: Push) -> None:
        """Send what a consumer is asked; one whose connection has ended is not there, which its shard is told."""
        found = self._by_number.get(push.connection)
        if found is None:
            return
        connection = found.connection
        value = push.value
        try:
            if isinstance(value, DismissConsumer):
                log.info("closing the connection from %s: group %s: %s", connection.name, value.group_id, value.why)
                connection.finish()
            else:
                self._ask(found, value, *asking_frame(value, self._leader))
        except WireError as error:
            self._end(connection, value.group_id, error)

    @staticmethod
    def _end(connection: Connection, group_id: str, error: KafkaError) -> None:
        log.warning("closing the connection from %s: group %s: %s", connection.name, group_id, error)
        connection.finish()

    def _ask(self, to: Registered, value: Asks, asking: Asking, body: bytes) -> None:
        connection = to.connection
        answer = partial(self._take, to, value, asking)
        asked = AskedFrame(KINDS[asking], connection, value, self._figures[asking], answer)

        def run() -> None:
            if connection.closed:
                return
            try:
                to.turned.ask([framed(body)], asked.take)
            except KafkaError as error:
                self._end(connection, value.group_id, error)

        if not (self._faults.active and self._faults.on_request(asked, run)):
            run()

    def _leader(self, topic: str, partition: int) -> int:
        """As of now."""
        leaders = self._places.leaders(topic, range(partition, partition + 1))
        return leaders[0][0] if leaders else NO_LEADER

    def _take(self, by: Registered, value: Asks, asked: Asking, frame: Frame) -> None:
        """An answer has come; of one that may not be a member any more it counts for nothing. Raises BadFrame."""
        connection = by.connection
        if by.right is not None and (refused := by.right.refusal()):
            what = f"{value.member_id} may not be a member any more: {refused.name}: {refused.text}"
            self._end(connection, value.group_id, KafkaError(what, refused))
            return
        try:
            answered = read_answer(value, connection.client.number, asked, frame)
        except WireError as bad:
            what = f"{value.member_id} answers {asked.name.capitalize()}"
            raise BadFrame(f"group {value.group_id}: {what}: {bad}") from None
        self._groups.tell(value.group_id, answered)


def asking_frame(value: Asks, leader: Callable[[str, int], int]) -> tuple[Asking, bytes]:
    """What a consumer is asked, and the frame without its size. Raises WireError: more than it can hold."""
    if isinstance(value, PingConsumer):
        return Asking.PING, encode_ping(value.retries)
    if isinstance(value, StopConsumer):
        return Asking.STOP, encode_stop()
    parts = [PositionedPartition(topic, leader(topic, number), number, at) for topic, number, at in value.positions]
    return Asking.START, encode_start(parts)


def read_answer(value: Asks, connection: int, asked: Asking, frame: Frame) -> ConsumerAnswered:
    """The answer to what a consumer was asked, which its frame does not say. Raises WireError."""
    error = ErrorCode.NONE
    positions: tuple[Position, ...] = ()
    if asked is Asking.PING:
        found = decode_ping_answer(frame, isinstance(value, PingConsumer) and value.auto_commit)
        positions = tuple([Position(each.topic, each.partition, each.offset) for each in found])
    else:
        error = ErrorCode.of(ErrorResponse.decode(frame).error_code)
    return ConsumerAnswered(value.group_id, value.member_id, connection, asked, error, positions)


class Dividers:
    """Threads that divide partitions of push groups: each with a queue, a group always in the same one.

    A group whose assignor hangs holds up those of its queue and no others. Source: spec 4.9.
    """

    def __init__(self, count: int) -> None:
        self._threads: list[ThreadPoolExecutor | None] = [None] * count

    def of(self, group_id: str) -> ThreadPoolExecutor:
        """The thread of a group's queue, which begins with its first work."""
        index = crc32(group_id.encode()) % len(self._threads)
        found = self._threads[index]
        if found is None:
            found = self._threads[index] = ThreadPoolExecutor(1, f"kohort-divide-{index}")
        return found

    def close(self) -> None:
        """Let go of the threads."""
        for thread in self._threads:
            if thread is not None:
                thread.shutdown(wait=False, cancel_futures=True)
