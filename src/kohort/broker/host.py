"""What the handlers of group requests work with, and the shards behind them: a broker, or a process without a store.

| a host has | for |
|---|---|
| topics, by name and id | commits and fetches of offsets; the coordinator's image |
| places | Metadata, DescribeCluster, FindCoordinator |
| groups, with their settings | everything that is asked of a group |
| transactions | offsets within them; None: none are taken here |
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import NamedTuple, Protocol, TypeAlias
from uuid import UUID
from zlib import crc32

from kohort.broker.authorization import Right
from kohort.broker.driver import LoopDriver
from kohort.broker.endpoints import Places
from kohort.broker.metrics import ApiMetrics, Histogram, Metrics
from kohort.broker.server.connection import ClientSession, Connection, OnAnswer, Parts, Turned
from kohort.broker.server.faults import Faults
from kohort.broker.server.framing import BadFrame, Frame
from kohort.broker.shards import GroupShards
from kohort.coordinator.shard import Shard
from kohort.errors import ErrorCode, KafkaError
from kohort.groups.config import GroupConfig
from kohort.groups.effects import (
    Computation,
    Counted,
    DismissConsumer,
    DividePartitions,
    FindOffsets,
    PingConsumer,
    Push,
    Question,
    Rebalanced,
    StartConsumer,
    StopConsumer,
    Work,
)
from kohort.groups.events import (
    ConsumerAnswered,
    Event,
    GroupSettings,
    OffsetsFound,
    Position,
    PushRequestKind,
    TopicImage,
)
from kohort.ids import TopicPartition
from kohort.io.processes import ENDING_LOOKS_S, has_ended
from kohort.journal.protocol import Journal
from kohort.wire.discovery import ApiVersionsResponse
from kohort.wire.push import (
    ErrorResponse,
    PositionedPartition,
    PushType,
    decode_ping_response,
    encode_ping,
    encode_start,
    encode_stop,
    framed,
)
from kohort.wire.schema import WireError

# -- Consumers of the push protocol at the broker's end: frames to their connections, answers to their groups' shards

log = logging.getLogger("kohort.broker")

NO_LEADER = -1
Asks: TypeAlias = PingConsumer | StopConsumer | StartConsumer
KINDS = {
    PushRequestKind.PING: PushType.PING,
    PushRequestKind.STOP: PushType.STOP,
    PushRequestKind.START: PushType.START,
}


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

    def _ask(self, to: Registered, value: Asks, asking: PushRequestKind, body: bytes) -> None:
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

    def _take(self, by: Registered, value: Asks, asked: PushRequestKind, frame: Frame) -> None:
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


def asking_frame(value: Asks, leader: Callable[[str, int], int]) -> tuple[PushRequestKind, bytes]:
    """What a consumer is asked, and the frame without its size. Raises WireError: more than it can hold."""
    if isinstance(value, PingConsumer):
        return PushRequestKind.PING, encode_ping(value.retries)
    if isinstance(value, StopConsumer):
        return PushRequestKind.STOP, encode_stop()
    parts = [PositionedPartition(topic, leader(topic, number), number, at) for topic, number, at in value.positions]
    return PushRequestKind.START, encode_start(parts)


def read_answer(value: Asks, connection: int, asked: PushRequestKind, frame: Frame) -> ConsumerAnswered:
    """The answer to what a consumer was asked, which its frame does not say. Raises WireError."""
    error = ErrorCode.NONE
    positions: tuple[Position, ...] = ()
    if asked is PushRequestKind.PING:
        found = decode_ping_response(frame, isinstance(value, PingConsumer) and value.auto_commit)
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


FEATURES = {"group.version": (0, 1), "metadata.version": (7, 33), "transaction.version": (0, 2)}
"""Features with their lowest and highest levels, the highest being in effect, as of Apache Kafka 4.4."""
WORKERS = 2
"""Threads for long work of the coordinator: it is bound by the interpreter lock, so more would gain nothing."""


class KnownTopic(Protocol):
    """A topic, as far as groups are concerned."""

    @property
    def name(self) -> str: ...
    @property
    def id(self) -> UUID: ...
    @property
    def partitions(self) -> int: ...


class KnownTopics(Protocol):
    """The topics that there are, wherever they are kept.

    Attributes:
        sure: see `TopicImage`.
    """

    @property
    def sure(self) -> bool: ...
    @property
    def by_name(self) -> Mapping[str, KnownTopic]: ...
    @property
    def by_id(self) -> Mapping[UUID, KnownTopic]: ...

    def image(self) -> TopicImage:
        """All topics as the group coordinator sees them."""

    def refusal(self, name: str) -> KafkaError | None:
        """Why there can't be a topic of this name."""


class OffsetTransactions(Protocol):
    """Transactions, as far as they take in offsets of groups."""

    def add(self, transactional_id: str, producer: tuple[int, int], partitions: Sequence[TopicPartition]) -> ErrorCode:
        """Take partitions into a transaction."""

    def check_member(self, transactional_id: str, producer: tuple[int, int], partition: TopicPartition) -> ErrorCode:
        """Whether a transaction has taken a partition in."""


class GroupHost:
    """The groups of one process, with what their handlers and shards need. All methods run on the loop.

    Attributes:
        api_keys: what ApiVersions names.
        consumers: those of the push protocol that are connected.
        on_rebalanced: called when a group has rebalanced, once that is durable; None: nobody asks.
        features: its features, with their lowest and highest levels.
        described_partitions_max: partitions that one answer describes (`max.request.partition.size.limit`).
        coordinator_id: what our own clients are told of where it has groups apart from the brokers, -1: it has not.
    """

    features: Mapping[str, tuple[int, int]] = FEATURES
    coordinator_id = -1
    described_partitions_max = 2_000

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: GroupConfig,
        topics: Callable[[GroupShards], KnownTopics],
        places: Places,
        open_journal: Callable[[int], Journal],
        api_keys: Sequence[ApiVersionsResponse.ApiVersion],
    ) -> None:
        """`topics`: the topics, which tell these groups of changes. `open_journal`: where a shard's records are."""
        self.loop = loop
        self.group_config = config
        self.places = places
        self.api_keys = api_keys
        self._open_journal = open_journal
        self.transactions: OffsetTransactions | None = None
        self.metrics = Metrics()
        self.on_rebalanced: Callable[[Rebalanced], None] | None = None
        self.faults = Faults(loop)
        self._tokens = itertools.count(1)
        self.groups = GroupShards(self.token, self._make_shard)
        self.topics = topics(self.groups)
        self.consumers = PushedConsumers(self.groups, places, self.metrics, self.faults)
        self.groups.on_end = self.consumers.dismiss
        self._workers = ThreadPoolExecutor(WORKERS, "kohort-work")
        self._dividers = Dividers(config.push_rebalance_threads)
        self._work: set[asyncio.Future[Event]] = set()

    def token(self) -> int:
        """A number for one event, by which its reply finds its request."""
        return next(self._tokens)

    def _make_shard(self, index: int, term: int) -> Shard:
        return Shard(index, self._open_journal(index), term, self.group_config, LoopDriver(self.loop, self))

    # -- clients

    def lease_ms(self, client: ClientSession) -> int:
        """The lease that a client is told to keep; 0: none."""
        keeps_one = self.group_config.notice_disconnects != "off" and client.is_own
        return self.group_config.disconnect_lease_ms if keeps_one else 0

    def release(self, client: ClientSession) -> None:
        """Have a client's held heartbeats answered: another request came behind them."""
        self.groups.release(client)

    def client_lost(self, client: ClientSession) -> None:
        """Tell the coordinators that a client's connection is gone."""
        self.consumers.forget(client)
        if client.shards:
            noticed = client.lease_ms > 0 or self.group_config.notice_disconnects == "all"
            self._tell_lost(client, noticed, ENDING_LOOKS_S if noticed and client.process else ())

    def _tell_lost(self, client: ClientSession, noticed: bool, looks_s: tuple[float, ...]) -> None:
        """Tell the coordinators, once it is known whether the client's process has ended too or will not soon."""
        ended = bool(looks_s) and has_ended(client.process)
        if looks_s and not ended:
            self.loop.call_later(looks_s[0], self._tell_lost, client, noticed, looks_s[1:])
        else:
            self.groups.connection_lost(client, noticed=noticed, ended=ended)

    # -- what a shard needs

    def topic_image(self) -> TopicImage:
        """All topics now."""
        return self.topics.image()

    def unseen_topics(self, index: int) -> Sequence[str]:
        """Topics made since a shard's journal was last loaded; none where topics are told apart by their ids."""
        return ()

    def shard_loaded(self, index: int) -> None:
        """A shard has loaded: connections on which its consumers registered before say nothing any more."""
        self.consumers.dismiss(index)

    def shard_ended(self, index: int, error: Exception) -> None:
        """A shard was taken over, or can't be read: who registered there is told nothing any more."""
        self.consumers.dismiss(index)

    def own_settings(self, index: int) -> Mapping[str, GroupSettings]:
        """What groups of a shard have set for themselves."""
        return {}

    def run_work(self, work: Work, done: Callable[[Event], None]) -> None:
        """Run long work in a thread, or ask; its event comes back on the loop."""
        if isinstance(work, FindOffsets):
            self.find_offsets(work, done)
            return
        if not isinstance(work, Computation):
            self.ask_outside(work, done)
            return
        from kohort.broker.background_tasks import run  # loads the assignors: only when first needed

        workers = self._dividers.of(work.group_id) if isinstance(work, DividePartitions) else self._workers
        future = self.loop.run_in_executor(workers, run, work)
        self._work.add(future)

        def finish(finished: asyncio.Future[Event]) -> None:
            self._work.discard(finished)
            if not finished.cancelled():
                done(finished.result())

        future.add_done_callback(finish)

    def find_topics(self, names: Collection[str], ids: Collection[UUID], then: Callable[[], None]) -> None:
        """See whether topics that are not known are there by now; then go on. Where topics are `sure` they are not."""
        then()

    def ask_outside(self, question: Question, done: Callable[[Event], None]) -> None:
        """Ask whoever else knows of topics or groups. A host that has them all itself is never asked to."""
        log.error("there is nobody to ask: %s", question)

    def find_offsets(self, work: FindOffsets, done: Callable[[Event], None]) -> None:
        """Begin or end of partitions, which a process without a store can't tell."""
        failure = "begin and end of partitions can't be told here: commit positions before consumers start"
        self.loop.call_soon(done, OffsetsFound(work.group_id, work.member_id, work.ticket, (), failure))

    def push(self, push: Push) -> None:
        """Send a frame no request asked for."""
        self.consumers.push(push)

    def note(self, note: Counted | Rebalanced) -> None:
        """A figure of a group coordinator moved on."""
        self.metrics.take(note)
        if self.on_rebalanced is not None and isinstance(note, Rebalanced):
            self.on_rebalanced(note)

    # -- the end

    def stop_waiting(self) -> None:
        """Answer everyone who waits: the process ends."""
        for shard in self.groups:
            shard.close()

    def close(self) -> None:
        """Let go of the threads."""
        self.faults.clear()
        self._workers.shutdown(wait=False, cancel_futures=True)
        self._dividers.close()
