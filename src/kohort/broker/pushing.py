"""Consumers of the push protocol at the broker's end: frames to their connections, answers to their groups' shards."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple
from zlib import crc32

from kohort.broker.net.connection import Connection
from kohort.broker.net.framing import BadFrame, Frame
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
    decode_ping_answer,
    encode_ping,
    encode_start,
    encode_stop,
    framed,
)
from kohort.wire.schema import WireError

log = logging.getLogger("kohort.broker")

NO_LEADER = -1


class Registered(NamedTuple):
    """A connection on which a consumer has registered."""

    connection: Connection
    turned: Turned
    group_id: str


class PushedConsumers:
    """The connections that have turned round, by their numbers."""

    def __init__(self, groups: GroupShards, places: Places) -> None:
        self._groups = groups
        self._places = places
        self._by_number: dict[int, Registered] = {}

    def __len__(self) -> int:
        return len(self._by_number)

    def turn(self, connection: Connection, group_id: str) -> None:
        """A consumer registers on this connection: what comes on it from now on are answers."""
        self._by_number[connection.client.number] = Registered(connection, connection.turn_round(), group_id)

    def dismiss(self, index: int) -> None:
        """End the connections of a shard's groups: its consumers come back at once, and not after a silence."""
        for connection, _, group_id in list(self._by_number.values()):
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
        connection, turned, _ = found
        value = push.value
        try:
            if isinstance(value, DismissConsumer):
                log.info("closing the connection from %s: group %s: %s", connection.name, value.group_id, value.why)
                connection.finish()
            elif isinstance(value, PingConsumer):
                answer = self._answer(value, connection, Asking.PING, auto_commit=value.auto_commit)
                turned.ask([framed(encode_ping(value.retries))], answer)
            elif isinstance(value, StopConsumer):
                turned.ask([framed(encode_stop())], self._answer(value, connection, Asking.STOP))
            else:
                frame = encode_start(self._positioned(value))
                turned.ask([framed(frame)], self._answer(value, connection, Asking.START))
        except (KafkaError, WireError) as error:
            log.warning("closing the connection from %s: group %s: %s", connection.name, value.group_id, error)
            connection.finish()

    def _positioned(self, value: StartConsumer) -> list[PositionedPartition]:
        """With the leaders as of now."""
        found = []
        for topic, partition, offset in value.positions:
            leaders = self._places.leaders(topic, range(partition, partition + 1))
            found.append(PositionedPartition(topic, leaders[0][0] if leaders else NO_LEADER, partition, offset))
        return found

    def _answer(
        self,
        value: PingConsumer | StopConsumer | StartConsumer,
        connection: Connection,
        asked: Asking,
        *,
        auto_commit: bool = False,
    ) -> OnAnswer:
        return partial(self._take, value.group_id, value.member_id, connection.client.number, asked, auto_commit)

    def _take(self, group_id: str, member_id: str, number: int, asked: Asking, auto_commit: bool, frame: Frame) -> None:
        """An answer has come. Raises BadFrame."""
        error = ErrorCode.NONE
        positions: tuple[Position, ...] = ()
        try:
            if asked is Asking.PING:
                found = decode_ping_answer(frame, auto_commit)
                positions = tuple([Position(each.topic, each.partition, each.offset) for each in found])
            else:
                error = ErrorCode.of(ErrorResponse.decode(frame).error_code)
        except WireError as bad:
            raise BadFrame(f"group {group_id}: {member_id} answers {asked.name.capitalize()}: {bad}") from None
        self._groups.tell(group_id, ConsumerAnswered(group_id, member_id, number, asked, error, positions))


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
