"""Planning of fetches and handling of their responses: one request in flight and little prefetch per broker. No I/O.

The next request to a broker follows as soon as its last response has arrived. The batch headers show where to continue.
So the next response travels while the application decodes and processes. At most two responses per broker wait to be
decoded, the second only behind a small one. No request is sent while `queued_max_bytes` wait, decoded or not.

With a limit on records the next fetch begins when fewer than `max_poll_records` are left, or when an eighth of a large
response is used. If it began with the last poll, the application would wait for the whole round trip. Source: spec 2.4
(prefetch heuristics 1 and 2), KIP-74, KIP-227, KIP-320, KIP-392.
"""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias
from uuid import UUID

from kohort.client.consumer.fetch_buffer import FetchBuffer
from kohort.client.consumer.positions import missing_position_wait_ms
from kohort.client.consumer.subscription import FetchPosition, Partitions, PartitionState
from kohort.client.net.cluster import Between, BrokerById, Cluster
from kohort.client.net.connection import RECONNECT_GROWTH
from kohort.client.net.metadata import NO_TOPIC_ID, PartitionInfo
from kohort.client.net.runtime import Promise, logged_kafka_error
from kohort.client.settings import ConsumerConfig
from kohort.columns import RecordSet, extent
from kohort.errors import ErrorCode, KafkaError, RetriableError, error_for
from kohort.ids import TopicPartition
from kohort.wire.data import FetchRequest, FetchResponse

# -- Fetch requests in the layouts of all versions, by topic name and id

FETCH_LANE = "fetch"
HIGHEST_BY_NAME = 12
"""The highest version of Fetch that names topics; from version 13 on it has topic ids only."""

MOVED = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
    ErrorCode.LEADER_NOT_AVAILABLE,
)
"""Codes after which the metadata is refreshed and the fetch retried."""


@dataclass(frozen=True, slots=True)
class FetchEntry:
    """One partition of a Fetch request."""

    partition: TopicPartition
    position: FetchPosition
    max_bytes: int


Topics: TypeAlias = dict[str, FetchRequest.FetchTopic]
"""The topics of a request, by name."""


def fetch_request(
    cluster: Cluster, config: ConsumerConfig, entries: Sequence[FetchEntry], max_bytes: int | None = None
) -> Between[FetchResponse]:
    """Make a Fetch for these partitions, outside a fetch session; topics by id if all ids are known.

    Args:
        cluster: Supplies topic ids and leader epochs.
        config: Waits, limits, isolation, rack.
        entries: The partitions; brokers fill the response in this order.
        max_bytes: Limit for the whole response; None: `fetch_max_bytes`.
    """
    topics: Topics = {}
    for entry in entries:
        add_fetch_partition(cluster, topics, entry)
    request = sessionless_request(config, topics)
    if max_bytes is not None:
        request.max_bytes = max_bytes
    return Between(request, highest=None if can_fetch_by_id(cluster, entries) else HIGHEST_BY_NAME)


def can_fetch_by_id(cluster: Cluster, entries: Sequence[FetchEntry]) -> bool:
    """Return whether a Fetch can name its topics by id: the metadata has the ids of all."""
    return all(cluster.metadata.topic_id(topic).int for topic in {entry.partition.topic for entry in entries})


def sessionless_request(config: ConsumerConfig, topics: Topics) -> FetchRequest:
    """Make a sessionless Fetch request of these topics (session id 0, which is the default)."""
    return FetchRequest(
        max_wait_ms=config.fetch_max_wait_ms,
        min_bytes=config.fetch_min_bytes,
        max_bytes=config.fetch_max_bytes,
        isolation_level=int(config.isolation_level == "read_committed"),
        topics=list(topics.values()),
        rack_id=config.client_rack,
    )


def add_fetch_partition(cluster: Cluster, topics: Topics, entry: FetchEntry) -> None:
    """Add a partition to the topics of a request."""
    name = entry.partition.topic
    topic = topics.get(name)
    if topic is None:
        topic = topics[name] = FetchRequest.FetchTopic(topic=name, topic_id=cluster.metadata.topic_id(name))
    info = cluster.metadata.partition(entry.partition)
    part = FetchRequest.FetchPartition(
        partition=entry.partition.partition,
        current_leader_epoch=-1 if info is None else info.leader_epoch,
        fetch_offset=entry.position.offset,
        last_fetched_epoch=entry.position.leader_epoch,
        partition_max_bytes=entry.max_bytes,
    )
    topic.partitions.append(part)


# -- Fetch sessions
#
# A request names only what changed since the last one (KIP-227). No I/O.
#
# Epoch 0: The next request is full. It has every partition, closes the named session, if any, and requests a new one.
# Epoch n > 0: The next request is incremental. It has the partitions that are new or moved, and those to forget.
#
# A broker without room for a session responds with id 0; requests then stay full. After a response:
#
# In order, with a session: `id` is the broker's, `epoch` the next one.
# In order, without a session: `id` and `epoch` are 0.
# FETCH_SESSION_ID_NOT_FOUND: `id` and `epoch` are 0.
# Another error of the session, or no response: `id` is kept, to be closed, and `epoch` is 0.
#
# Source: KIP-227, "Fetch Session Epoch", "Fetch Session Errors"; KIP-516 for topics by id.

_EPOCH_MAX = 2**31 - 1
_CLOSE = -1
_SESSION_ERRORS = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)
_PartitionFetch: TypeAlias = tuple[FetchPosition, int]
"""Where a fetch of a partition begins, and the version of its position then."""
_SessionEntry: TypeAlias = tuple[FetchPosition, int, int, UUID]
"""A session's data of a partition: position, byte limit, leader epoch, topic id."""


class FetchSessionHandler:
    """The fetch session with one broker.

    Attributes:
        id: The broker's id of the session; 0 if there is no session.
        epoch: The epoch of the next request.
    """

    def __init__(self) -> None:
        self.id = 0
        self.epoch = 0
        self._by_id = False
        self._in_session: dict[TopicPartition, _SessionEntry] = {}
        self._ids: dict[str, UUID] = {}

    def next_fetch_request(
        self, cluster: Cluster, config: ConsumerConfig, asked: Mapping[TopicPartition, _PartitionFetch]
    ) -> Between[FetchResponse]:
        """Return the session's next Fetch: all of these partitions in this order, or only what has changed."""
        limit = config.max_partition_fetch_bytes
        wanted, ids = _session_entries(cluster, asked, limit)
        by_id = all(topic_id.int for topic_id in ids.values())
        changed_ids = any(topic_id != ids.get(topic, topic_id) for topic, topic_id in self._ids.items())
        if by_id != self._by_id or (changed_ids and _recreated(self._in_session, wanted)):
            self._by_id, self.epoch = by_id, 0
        in_session = self._in_session if self.epoch else {}
        topics: Topics = {}
        kept = 0
        for partition, facts in wanted.items():
            before = in_session.get(partition)
            kept += before is not None
            if before != facts:
                add_fetch_partition(cluster, topics, FetchEntry(partition, facts[0], limit))
        request = sessionless_request(config, topics)
        request.session_id, request.session_epoch = self.id, self.epoch
        if kept < len(in_session):
            request.forgotten_topics_data = _forgotten(in_session, wanted)
        self._in_session, self._ids = wanted, ids
        return Between(request, highest=None if by_id else HIGHEST_BY_NAME)

    def update_from_response(self, code: ErrorCode, session_id: int) -> bool:
        """Update the session after a response; return True if its error only asks for a full Fetch."""
        if code is ErrorCode.NONE and session_id:
            self.id = session_id
            self.epoch = 1 if self.epoch == _EPOCH_MAX else self.epoch + 1
            return False
        again = code in _SESSION_ERRORS and self.epoch > 0
        self.epoch = 0
        if code in (ErrorCode.NONE, ErrorCode.FETCH_SESSION_ID_NOT_FOUND):
            self.id = 0
        return again

    def restart_session(self) -> None:
        """Restart the session, because the broker may or may not have processed the last request."""
        self.epoch = 0

    def session_closing_request(self) -> FetchRequest | None:
        """Return a Fetch that closes the session and frees its memory at the broker; None: there is no session."""
        if not self.id:
            return None
        return FetchRequest(max_wait_ms=0, min_bytes=0, isolation_level=0, session_id=self.id, session_epoch=_CLOSE)


def _session_entries(
    cluster: Cluster, asked: Mapping[TopicPartition, _PartitionFetch], limit: int
) -> tuple[dict[TopicPartition, _SessionEntry], dict[str, UUID]]:
    """Return what a fetch session stores of each partition (position, limit, leader epoch, topic id), and topic ids.

    The order stays. Every Fetch runs this over all partitions of a broker, so it is written for speed.
    """
    facts: dict[TopicPartition, _SessionEntry] = {}
    ids: dict[str, UUID] = {}
    partitions, name, topic_id = _NO_PARTITIONS, "", NO_TOPIC_ID
    for partition, (position, _) in asked.items():
        topic_name, number = partition
        if topic_name != name:
            name = topic_name
            topic = cluster.metadata.topics.get(name)
            partitions, topic_id = (
                (_NO_PARTITIONS, NO_TOPIC_ID) if topic is None else (topic.partitions, topic.topic_id)
            )
            ids[name] = topic_id
        info = partitions.get(number)
        facts[partition] = position, limit, -1 if info is None else info.leader_epoch, topic_id
    return facts, ids


def _recreated(
    in_session: Mapping[TopicPartition, _SessionEntry], wanted: Mapping[TopicPartition, _SessionEntry]
) -> bool:
    """Return whether a topic has been recreated since the session began: its id is another one than in the session.

    A request by name can't drop the old topic from the session and add the new one.
    """
    for partition, facts in wanted.items():
        before = in_session.get(partition)
        if before is not None and before[-1] is not facts[-1] and before[-1] != facts[-1]:
            return True
    return False


def _forgotten(
    in_session: Mapping[TopicPartition, _SessionEntry], wanted: Mapping[TopicPartition, _SessionEntry]
) -> list[FetchRequest.ForgottenTopic]:
    topics: dict[str, FetchRequest.ForgottenTopic] = {}
    for partition, facts in in_session.items():
        if partition not in wanted:
            topic = topics.get(partition.topic)
            if topic is None:
                topic = topics[partition.topic] = FetchRequest.ForgottenTopic(topic=partition.topic, topic_id=facts[-1])
            topic.partitions.append(partition.partition)
    return list(topics.values())


_NO_PARTITIONS: Mapping[int, PartitionInfo] = MappingProxyType({})
REPLICA_LEASE_MS = 300_000
"""How long a replica is read from that the leader has named; then the leader is asked again (KIP-392)."""

_SMALL_BYTES = 8 * 1024 * 1024
"""Limit for a response behind which another may wait: both together decode as fast as a usual one arrives."""

_LARGE_BYTES = 1024 * 1024
"""Minimum of a large response: its successor is fetched when an eighth of it is used, not only at the last poll."""


@dataclass(slots=True)
class CompletedFetch:
    """The record sets of one fetch response, not decoded yet.

    `versions` has each partition's `position_version` when the fetch was sent: outdated record sets are dropped by it.
    """

    node: int
    sets: list[RecordSet]
    versions: list[int]
    counts: list[int]
    bytes: int


class Fetcher:
    """The fetches of one consumer: requests to the brokers, and responses that wait to be decoded.

    Attributes:
        ready: Responses to decode, oldest first.
        error: Why a broker can't be fetched from, though a retry may succeed; taken with `take_error`.
        unbounded: Whether the application polls without a limit on records: then only bytes limit the prefetch.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        partitions: Partitions,
        buffer: FetchBuffer,
        changed: Callable[[], None],
    ) -> None:
        self.cluster = cluster
        self.config = config
        self.partitions = partitions
        self.buffer = buffer
        self.ready: deque[CompletedFetch] = deque()
        self.unbounded = config.max_poll_records < 0
        self.fetches = 0
        self.fetched_bytes = 0
        self._changed = changed
        self.error: KafkaError | None = None
        self._sessions: dict[int, FetchSessionHandler] = {}
        self._busy: set[int] = set()
        self._order: dict[TopicPartition, None] = {}
        self._order_changes = -1
        self._on_out_of_range: Callable[[TopicPartition], None] = lambda partition: None
        self._on_truncated: Callable[[TopicPartition, FetchPosition], None] = lambda partition, position: None
        self._timer_ms = float("inf")
        self._ask_leaders_ms = float("-inf")
        self._leader_asks = 0
        self._refresh: Promise[None] | None = None
        self._undecoded: Counter[TopicPartition] = Counter()
        self._undecoded_records = 0
        self._ahead = 0
        self._closed = False

    def set_lost_position_callbacks(
        self, out_of_range: Callable[[TopicPartition], None], truncated: Callable[[TopicPartition, FetchPosition], None]
    ) -> None:
        """Set the functions to call for a partition whose fetch position the broker does not have.

        `truncated` is called after an unclean leader election, with the last position that both sides have.
        """
        self._on_out_of_range, self._on_truncated = out_of_range, truncated

    def close(self) -> None:
        self._closed = True
        self.ready.clear()

    async def close_fetch_sessions(self, timeout_ms: float) -> None:
        """Close the fetch sessions; a broker that does not respond in time drops the session by itself later."""
        runtime = self.cluster.runtime
        until_ms = runtime.now_ms + timeout_ms
        for node, session in self._sessions.items():
            request = session.session_closing_request()
            if request is not None and self.cluster.connections.requests_in_flight(node) is not None:
                goodbye = self.cluster.send(request, BrokerById(node), timeout_ms=timeout_ms)
                with contextlib.suppress(KafkaError):
                    await runtime.run_within(goodbye, max(0.0, until_ms - runtime.now_ms), "the end of a fetch session")

    def take_error(self) -> KafkaError | None:
        error, self.error = self.error, None
        return error

    # Responses that wait to be decoded.

    @property
    def queued_bytes(self) -> int:
        return sum(fetched.bytes for fetched in self.ready)

    def kept_records(self, partition: TopicPartition | None = None) -> int:
        """Return the number of records fetched and not yet returned, decoded or not; of one partition or of all."""
        if partition is not None:
            return self.buffer.buffered_records(partition) + self._undecoded[partition]
        return self.buffer.records + self._undecoded_records

    def available_records(self) -> int:
        """Return the number of records fetched and not yet returned, of partitions that are not paused."""
        paused = sum(self._undecoded[partition] for partition in self.partitions.paused)
        return self.buffer.unpaused_records() + self._undecoded_records - paused

    def has_ready_response(self, partition: TopicPartition) -> bool:
        """Return whether a response that waits to be decoded has records at a partition's position."""
        return any(
            (given.topic, given.partition) == partition and self._current(given, version)
            for fetched in self.ready
            for given, version in zip(fetched.sets, fetched.versions, strict=True)
        )

    def take_next_response(self) -> CompletedFetch | None:
        """Take the oldest response that waits to be decoded, or None if there is no such response.

        Partitions that were revoked or sought since the fetch are left out.
        """
        while self.ready:
            fetched = self.ready.popleft()
            keep = [i for i, given in enumerate(fetched.sets) if self._current(given, fetched.versions[i])]
            if len(keep) < len(fetched.sets):
                for gone in set(range(len(fetched.sets))) - set(keep):
                    self._count(fetched, gone, -1)
                fetched.sets = [fetched.sets[i] for i in keep]
                fetched.versions = [fetched.versions[i] for i in keep]
                fetched.counts = [fetched.counts[i] for i in keep]
            if keep:
                return fetched
        return None

    def subtract_decoded_records(self, fetched: CompletedFetch) -> None:
        """Subtract a response's records, which the caller has decoded, from the number that is still to be decoded."""
        for index in range(len(fetched.sets)):
            self._count(fetched, index, -1)

    def _count(self, fetched: CompletedFetch, index: int, sign: int) -> None:
        given = fetched.sets[index]
        partition = TopicPartition(given.topic, given.partition)
        self._undecoded[partition] += sign * fetched.counts[index]
        self._undecoded_records += sign * fetched.counts[index]
        if not self._undecoded[partition]:
            del self._undecoded[partition]

    def put_back(self, fetched: CompletedFetch) -> None:
        """Queue a response to be decoded first."""
        self.ready.appendleft(fetched)
        for index in range(len(fetched.sets)):
            self._count(fetched, index, 1)

    def _current(self, given: RecordSet, position_version: int) -> bool:
        state = self.partitions.get(TopicPartition(given.topic, given.partition))
        return state is not None and state.position_version == position_version

    # Planning.

    def send_fetches_if_free(self) -> None:
        """Run `send_fetches` if a broker may be free. Cheap while all brokers are busy."""
        full = self._full_nodes()
        if any(node not in self._busy and node not in full for node in self.cluster.metadata.brokers):
            self.send_fetches()

    def send_fetches(self) -> None:
        """Send a Fetch to every broker that is free and has fetchable partitions."""
        if self._closed or self._is_full():
            return
        wanted = self._enough()
        if wanted is None:
            return
        by_node: dict[int, dict[TopicPartition, _PartitionFetch]] = {}
        barred = self._busy | self._full_nodes()
        bounded = wanted != float("inf")
        now, topics, states = self.cluster.runtime.now_ms, self.cluster.metadata.topics, self.partitions.states
        name, infos, leaderless = "", _NO_PARTITIONS, False
        for partition in self._ordered():  # of which there may be thousands
            state = states[partition]
            if state.retry_at_ms > now and self._waits(partition, state):
                continue
            position = _fetchable_from(state)
            if position is None or (bounded and self.kept_records(partition) >= wanted):
                continue
            topic_name, number = partition
            if topic_name != name:
                name, topic = topic_name, topics.get(topic_name)
                infos = _NO_PARTITIONS if topic is None else topic.partitions
            info = infos.get(number)
            node = -1 if info is None else info.leader
            if state.replica is not None:
                node = self._node(partition, state)
            if node < 0:
                leaderless = True
            elif node not in barred:
                if node not in by_node:
                    by_node[node] = {}
                by_node[node][partition] = position, state.position_version
        if leaderless:
            self._ask_leaders(now)
        else:
            self._leader_asks = 0
        for node, asked in by_node.items():
            self._busy.add(node)
            self.cluster.spawn_essential_task(self._fetch(node, asked), f"fetch from {node}")

    def _is_full(self) -> bool:
        """Return whether `queued_max_bytes` of fetched data wait for polls, so that nothing more is fetched.

        Decoded records of paused partitions alone do not block the other partitions.
        """
        most = self.config.queued_max_bytes
        if self.queued_bytes >= most:
            return True
        return self.queued_bytes + self.buffer.nbytes >= most and self.available_records() > 0

    def _full_nodes(self) -> set[int]:
        """Return the brokers of which enough responses wait to be decoded: two, or one of `_SMALL_BYTES` or more."""
        first: dict[int, int] = {}
        full = set()
        for fetched in self.ready:
            if fetched.node in first or fetched.bytes >= _SMALL_BYTES:
                full.add(fetched.node)
            first[fetched.node] = fetched.bytes
        return full

    def _enough(self) -> float | None:
        """Return the number of records not returned yet at which a partition is no longer fetched (prefetch limit).

        None: the consumer has enough records in all, so no partition is fetched. Infinity: no limit by records.
        """
        if self.unbounded:
            return float("inf")
        limit = self.config.max_poll_records
        if self.config.prefetch == "share":
            return max(1.0, limit / max(1, len(self.partitions)))
        return float("inf") if self.available_records() < max(limit, self._ahead) else None

    def _node(self, partition: TopicPartition, state: PartitionState) -> int:
        if (
            state.replica is not None
            and self.cluster.runtime.now_ms < state.replica_until_ms
            and state.replica in self.cluster.metadata.brokers
        ):
            return state.replica
        return self.cluster.metadata.leader(partition)

    def _ordered(self) -> dict[TopicPartition, None]:
        """Return the assigned partitions in the order of the next Fetch: those fetched most recently come last.

        Brokers fill a response in the order of the request.
        """
        if self._order_changes != self.partitions.changes:
            old = {part: None for part in self._order if part in self.partitions}
            self._order = old | {part: None for part in self.partitions if part not in old}
            self._order_changes = self.partitions.changes
        return self._order

    # One fetch.

    async def _fetch(self, node: int, asked: dict[TopicPartition, _PartitionFetch]) -> None:
        session = self._sessions.setdefault(node, FetchSessionHandler())
        try:
            timeout_ms = self.config.request_timeout_ms + self.config.fetch_max_wait_ms
            request = session.next_fetch_request(self.cluster, self.config, asked)
            answer = await self.cluster.send(request, BrokerById(node), timeout_ms=timeout_ms, channel=FETCH_LANE)
            code = ErrorCode.of(answer.error_code)
            if not session.update_from_response(code, answer.session_id):
                self._take_in(node, asked, answer, code)
        except Exception as error:  # noqa: BLE001 - the application gets any error
            self._not_fetched(session, asked, logged_kafka_error(f"fetch from broker {node}", error))
        finally:
            self._busy.discard(node)
        self.send_fetches_if_free()

    def _not_fetched(
        self, session: FetchSessionHandler, asked: dict[TopicPartition, _PartitionFetch], error: KafkaError
    ) -> None:
        session.restart_session()
        if isinstance(error, RetriableError) or error.code.retriable:
            self.cluster.request_metadata()
        else:
            self.error = error
            self._changed()
        for partition in asked:
            state = self.partitions.get(partition)
            if state is not None:
                state.replica = None
                self._later(partition, state)

    # One answer.

    def _take_in(
        self, node: int, asked: dict[TopicPartition, _PartitionFetch], answer: FetchResponse, code: ErrorCode
    ) -> None:
        if code is not ErrorCode.NONE:
            raise error_for(code, f"fetch from broker {node}")
        self.fetches += 1
        fetched = CompletedFetch(node, [], [], [], 0)
        for topic in answer.responses:
            name = topic.topic or self.cluster.metadata.topic_names.get(topic.topic_id, "")
            for part in topic.partitions:
                partition = TopicPartition(name, part.partition_index)
                entry, state = asked.get(partition), self.partitions.get(partition)
                if entry is not None and state is not None and _continues(state, entry):
                    self._take_partition(fetched, partition, entry, state, part)
        if fetched.sets:
            self.fetched_bytes += fetched.bytes
            self._ahead = sum(fetched.counts) * 7 // 8 if fetched.bytes >= _LARGE_BYTES else 0
            self.ready.append(fetched)
        self._changed()

    def _take_partition(
        self,
        fetched: CompletedFetch,
        partition: TopicPartition,
        entry: _PartitionFetch,
        state: PartitionState,
        part: FetchResponse.FetchableTopicResponse.PartitionData,
    ) -> None:
        if part.error_code:
            self._failed(partition, state, ErrorCode.of(part.error_code), part.damage)
            return
        state.doubted_ms = None
        state.high_watermark, state.log_start, state.last_stable = (
            part.high_watermark,
            part.log_start_offset,
            part.last_stable_offset,
        )
        if part.preferred_read_replica >= 0:
            state.replica = part.preferred_read_replica
            state.replica_until_ms = self.cluster.runtime.now_ms + REPLICA_LEASE_MS
        else:
            state.failures = 0  # the leader may name a replica again and again that lacks the offset
        if part.diverging_epoch.end_offset >= 0:
            self._on_truncated(partition, FetchPosition(part.diverging_epoch.end_offset, part.diverging_epoch.epoch))
            self._later(partition, state)
            return
        records = part.records
        if records is None or not len(records):
            return
        position, position_version = entry
        next_offset, count, epoch = extent(records)
        aborted = [(txn.producer_id, txn.first_offset) for txn in part.aborted_transactions or ()]
        fetched.sets.append(RecordSet(partition.topic, partition.partition, records, position.offset, aborted=aborted))
        fetched.versions.append(position_version)
        fetched.counts.append(count)
        fetched.bytes += len(records)
        self._count(fetched, len(fetched.sets) - 1, 1)
        if next_offset > position.offset:
            state.fetch_position = FetchPosition(next_offset, epoch)
        self._order[partition] = self._order.pop(partition, None)

    def _failed(self, partition: TopicPartition, state: PartitionState, code: ErrorCode, damage: str) -> None:
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            if state.replica is not None:
                state.replica = None
                self._later(partition, state)
            elif self._believed(partition, state):
                self._on_out_of_range(partition)
            else:
                self.cluster.request_metadata()
                state.failures = 0  # brokers are asked often while they are not believed, which is not for long
                self._later(partition, state)
        elif code in MOVED or (code.retriable and code is not ErrorCode.CORRUPT_MESSAGE):
            state.replica = None
            self.cluster.request_metadata()
            self._later(partition, state)
        else:
            error = error_for(code, f"{partition} can't be read: {damage or code.text}")
            self.partitions.mark_unreadable(partition, error, recovers=code is not ErrorCode.CORRUPT_MESSAGE)
            self._later(partition, state)
        self._changed()

    def _believed(self, partition: TopicPartition, state: PartitionState) -> bool:
        """Return whether OFFSET_OUT_OF_RANGE counts: brokers have reported it for long enough.

        An outdated leader may report it by mistake (`missing_position_wait_ms`).
        """
        position, now_ms = state.fetch_position, self.cluster.runtime.now_ms
        assert position is not None
        if state.doubted_ms is None:
            state.doubted_ms = now_ms
        return now_ms - state.doubted_ms >= missing_position_wait_ms(
            position, self.cluster.metadata.partition(partition)
        )

    def _ask_leaders(self, now_ms: float) -> None:
        """Request a metadata refresh to find new leaders, once per backoff: a partition may lack a leader for hours."""
        if now_ms >= self._ask_leaders_ms:
            self._leader_asks += 1
            self._ask_leaders_ms = now_ms + self.cluster.backoff_ms(self._leader_asks, RECONNECT_GROWTH)
            refresh = self.cluster.request_metadata()
            if refresh is not self._refresh:
                self._refresh = refresh
                refresh.on_done(self._asked_leaders)
        self._pump_at(self._ask_leaders_ms)

    def _asked_leaders(self, refresh: Promise[None]) -> None:
        """Keep the error of a failed metadata refresh, so that the next poll raises it.

        A refresh only fails if no retry helps: for example after a refused login, or a response that can't be decoded.
        """
        if isinstance(refresh.error, KafkaError):
            self.error = refresh.error
            self._changed()

    def _later(self, partition: TopicPartition, state: PartitionState) -> None:
        """Delay the next fetch of a partition whose fetch failed: by the retry backoff, or until its leader changes."""
        state.failures += 1
        state.retry_at_ms = self.cluster.runtime.now_ms + self.cluster.backoff_ms(state.failures, RECONNECT_GROWTH)
        state.failed_at = self._leadership(partition)
        self._pump_at(state.retry_at_ms)

    def _waits(self, partition: TopicPartition, state: PartitionState) -> bool:
        """Return whether a partition whose fetch failed still has the same leader, and so waits for its backoff."""
        if self._leadership(partition) != state.failed_at:
            return False
        self._pump_at(state.retry_at_ms)  # the timer may have been set for an earlier partition
        return True

    def _leadership(self, partition: TopicPartition) -> tuple[int, int]:
        info = self.cluster.metadata.partition(partition)
        return (-1, -1) if info is None else (info.leader, info.leader_epoch)

    def _pump_at(self, when: float) -> None:
        if not self.cluster.runtime.now_ms < self._timer_ms <= when:
            self._timer_ms = when
            self.cluster.runtime.promise_at(when).on_done(lambda _: self.send_fetches())


def _continues(state: PartitionState, asked: _PartitionFetch) -> bool:
    """Return whether a partition's fetch position is still the one that a fetch asked for.

    If not, its response is outdated, for example because a stalled broker answered late.
    """
    position = state.fetch_position
    return position is not None and position.offset == asked[0].offset and state.position_version == asked[1]


def _fetchable_from(state: PartitionState) -> FetchPosition | None:
    """Return the partition's fetch position; None while it is unknown, paused, being reset or failed."""
    if state.paused or state.reset is not None or state.broken is not None:
        return None
    return state.fetch_position
