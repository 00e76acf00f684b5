"""Fetch: batches are sent as they are stored in the log.

Versions: 4 adds read_committed, 7 sessions, 9 leader epochs. 12 adds the last fetched epoch, and the leader in errors.
Version 13 adds topic ids, 15 the replica's state, 16 endpoints of leaders. Directory ids (17) and the high watermark of
a replica (18) have no meaning here.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable
from typing import TypeAlias

from kohort.broker.api.list_offsets import leader_epoch_error
from kohort.broker.authorization import Resource, is_allowed
from kohort.broker.dispatch import ApiHandler, api_handler
from kohort.broker.fetch_sessions import FetchedPartition, FetchSession, Key
from kohort.broker.node import Node
from kohort.broker.purgatory import WaitingFetch
from kohort.broker.server.requests import Request
from kohort.broker.transport import LogSlice
from kohort.errors import ErrorCode, KafkaError
from kohort.ids import AclOperation
from kohort.log import DamagedError, Isolation, PartitionLog, ReadResult
from kohort.wire.data import FetchRequest, FetchResponse
from kohort.wire.schema import Records

log = logging.getLogger("kohort.broker")

COPY_BYTES = 1 << 15
"""Ranges below this size are read at once and copied into the response; larger ones are sent from the file.

All ranges are read at once if responses in progress already hold too many open files.
"""

WAITING_BYTES = 400
"""Approximate memory, in bytes, of one partition of a waiting fetch.

For one in a fetch session, a quarter counts, since sessions have a bound.
"""

_Partition: TypeAlias = FetchResponse.FetchableTopicResponse.PartitionData
Found: TypeAlias = tuple[FetchedPartition, _Partition, int]
"""A requested partition, its response, and the size of its records."""


def _failed(index: int, error: int, *, known: bool = True) -> _Partition:
    """Return one partition of a Fetch response with an error.

    `known`: whether the partition exists here and the client may read it.
    """
    return _Partition(
        partition_index=index,
        error_code=error,
        high_watermark=-1,
        records=b"",
        aborted_transactions=None if known else [],
    )


class Fetch:
    """One fetch from its arrival to its response; it may wait in purgatory."""

    __slots__ = ("_held", "_isolation", "_node", "_parts", "_request", "_session", "_wait")

    def __init__(
        self,
        node: Node,
        request: Request[FetchRequest],
        parts: Iterable[FetchedPartition],
        session: FetchSession | None,
    ) -> None:
        self._node = node
        self._request = request
        self._parts = list(parts)
        self._session = session
        self._isolation = (
            Isolation.READ_COMMITTED if request.message.isolation_level == 1 else Isolation.READ_UNCOMMITTED
        )
        self._wait: WaitingFetch | None = None
        self._held = 0

    def start(self) -> FetchResponse | None:
        """Answer now if there is enough data, else wait in purgatory."""
        message = self._request.message
        found, size, missing, logs = self._read()
        if missing <= 0 or message.max_wait_ms <= 0 or not logs:
            return self._answer(found, size)
        if self._isolation is Isolation.READ_COMMITTED:
            missing = 1  # a marker is small, and what it makes readable is in the log already
        wait = WaitingFetch(logs, missing, self._resume, self._growth_of(logs))
        self._wait = wait
        self._request.client.waits.add(wait)
        self._node.waits.add(wait, message.max_wait_ms / 1000)
        self._keep_little()
        return None

    def _growth_of(self, logs: list[PartitionLog]) -> Callable[[], bool]:
        """Return a function that tells whether a waiting fetch can be answered after appends to these logs.

        For a read_committed consumer, records of an open transaction do not count. Otherwise each append would end its
        wait with an empty response. A transaction's marker is small, but makes records readable that are in the log
        already.
        """
        if self._isolation is Isolation.READ_UNCOMMITTED:
            return lambda: True
        seen = [part.last_stable_offset for part in logs]

        def has_enough_data() -> bool:
            stable = [part.last_stable_offset for part in logs]
            if stable == seen:
                return False
            seen[:] = stable
            return self._read()[2] <= 0

        return has_enough_data

    def _keep_little(self) -> None:
        """Free the fields of the request that a waiting fetch no longer needs.

        Count the rest toward the connection's memory limit: a request may name a partition a hundred thousand times,
        and wait for weeks.
        """
        message = self._request.message
        message.topics, message.forgotten_topics_data, message.rack_id = [], [], ""
        self._held = len(self._parts) * WAITING_BYTES // (1 if self._session is None else 4)
        self._request.connection.count_retained_bytes(self._held)

    def _resume(self) -> None:
        request = self._request
        if self._wait is not None:
            request.client.waits.discard(self._wait)
            request.connection.count_retained_bytes(-self._held)
        login = request.client.login
        if login is not None and login.has_expired:
            request.connection.close()  # as a request would now: a deleted user must not wait for later records
        elif not request.connection.closed:
            request.reply(self._answer(*self._read()[:2]))

    def _read(self) -> tuple[list[Found], int, int, list[PartitionLog]]:
        """Read the partitions of the fetch, after checking again which topics the client may read.

        Only whole batches are returned, so a byte limit is seldom used up. Toward `min_bytes`, a partition with more
        data than its limit therefore counts with the whole limit. If all partitions have more, waiting brings nothing.

        Returns:
            The responses, their total size, the bytes to wait for (0: answer at once), and the logs.
        """
        node, message = self._node, self._request.message
        left = min(message.max_bytes, node.config.fetch_bytes_max)
        if self._request.meter is not None:
            left = self._request.meter.fetch_bytes_max(left)
        least = min(message.min_bytes, max(1, left))
        total = reached = 0
        urgent = full = may_grow = False
        logs: list[PartitionLog] = []
        found: list[Found] = []
        incremental = self._session is not None and self._session.epoch > 1
        refusals = self._refusals() if node.authorizer is not None else {}
        for part in self._parts:
            if full and incremental:
                break  # the next fetch serves the remaining partitions first
            topic, index = part.key
            source, error = _find(node, topic, index)
            if topic in refusals:
                urgent = True
                found.append((part, _failed(index, refusals[topic], known=False), 0))
                continue
            if source is not None:
                error = leader_epoch_error(source, part.epoch)
            if source is None or error:
                urgent = True
                found.append((part, _failed(index, error, known=source is not None), 0))
                continue
            logs.append(source)
            if (cut_off := _cut_off(source, part)) is not None:
                urgent = True
                found.append((part, cut_off, 0))
                continue
            if incremental and part.has_nothing_new(source.end_offset, source.log_start_offset):
                may_grow = True
                continue
            limit = max(0, min(part.max_bytes, left))
            answer, size, has_more = self._read_one(source, part, limit, total == 0)
            urgent = urgent or answer.error_code != 0
            total += size
            reached += max(size, limit) if has_more else size
            may_grow = may_grow or not has_more
            left -= size
            full = total > 0 and not size and part.offset < answer.last_stable_offset and limit < part.max_bytes
            found.append((part, answer, size))
        return found, total, max(0, least - reached) if may_grow and not (urgent or full) else 0, logs

    def _refusals(self) -> dict[str | uuid.UUID, ErrorCode]:
        """Return TOPIC_AUTHORIZATION_FAILED for each requested topic, by name or id, that the client may not read.

        Ids that belong to no topic are left out. A follower needs CLUSTER_ACTION instead of READ.
        """
        request, node = self._request, self._node
        follower = fetching_replica_id(request) >= 0
        if follower and is_allowed(node, request, AclOperation.CLUSTER_ACTION, Resource.CLUSTER):
            return {}
        refused: dict[str | uuid.UUID, ErrorCode] = {}
        for topic in {part.key[0] for part in self._parts}:
            name = topic if isinstance(topic, str) else _name_of(node, topic)
            if name is None:
                continue
            if follower or not is_allowed(node, request, AclOperation.READ, Resource.TOPIC, name):
                refused[topic] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return refused

    def _read_one(
        self, source: PartitionLog, part: FetchedPartition, limit: int, first: bool
    ) -> tuple[_Partition, int, bool]:
        """Read one partition for the response: return its part, the size of its records, and whether more follow."""
        index = part.key[1]
        try:
            result = source.read(part.offset, limit, self._isolation, min_one=first)
            records = _records_read(result, source.files.is_crowded)
        except DamagedError as error:
            refused = _failed(index, error.code)
            if self._request.client.is_kohort_client:
                refused.damage = error.message
            return refused, 0, False
        except KafkaError as error:
            return _failed(index, error.code), 0, False
        except OSError as error:
            log.error(
                "[partition %s] could not be read, answering the fetch with KAFKA_STORAGE_ERROR: %s",
                source.path.name,
                error,
            )
            return _failed(index, ErrorCode.KAFKA_STORAGE_ERROR), 0, False
        aborted = result.aborted
        answer = _Partition(
            partition_index=index,
            high_watermark=result.high_watermark,
            last_stable_offset=result.last_stable_offset,
            log_start_offset=result.log_start_offset,
            records=records,
            aborted_transactions=None
            if aborted is None
            else [
                FetchResponse.AbortedTransaction(
                    producer_id=transaction.producer_id, first_offset=transaction.first_offset
                )
                for transaction in aborted
            ],
        )
        committed = self._isolation is Isolation.READ_COMMITTED
        end = result.last_stable_offset if committed else result.high_watermark
        return answer, result.size, result.size > 0 and result.next_offset < end

    def _answer(self, found: list[Found], size: int) -> FetchResponse:
        session, meter = self._session, self._request.meter
        if meter is not None and meter.charge_fetch(size):
            return self._throttled()
        if session is not None:
            incremental = session.epoch > 1
            found = [entry for entry in found if _has_news(entry) or not incremental]
            for part, _, size in found:
                if size:
                    session.move_to_end(part.key)
        topics: dict[str | uuid.UUID, list[_Partition]] = {}
        for part, answer, _ in found:
            topics.setdefault(part.key[0], []).append(answer)
        make = FetchResponse.FetchableTopicResponse
        return FetchResponse(
            session_id=session.id if session is not None else 0,
            responses=[
                make(topic=topic, partitions=parts)
                if isinstance(topic, str)
                else make(topic_id=topic, partitions=parts)
                for topic, parts in topics.items()
            ],
        )

    def _throttled(self) -> FetchResponse:
        """Return a fetch response without records for a client over its quota; it opens no fetch session."""
        session = self._session
        if session is not None and session.epoch == 1:
            self._node.sessions.close(session.id)
            session = None
        return FetchResponse(session_id=session.id if session is not None else 0)


def _has_news(entry: Found) -> bool:
    """Return whether an incremental fetch response must include a partition: it has records, an error or new bounds.

    An error that has ended counts too. The bounds are high watermark and log start offset. All are recorded as known to
    the client.
    """
    part, answer, size = entry
    news = (
        size > 0
        or answer.error_code != 0
        or part.sent_error
        or answer.high_watermark != part.high_watermark
        or answer.log_start_offset != part.log_start
    )
    part.sent_error = answer.error_code != 0
    part.high_watermark = answer.high_watermark
    part.log_start = answer.log_start_offset
    return news


def _cut_off(source: PartitionLog, part: FetchedPartition) -> _Partition | None:
    """Return a response with the diverging epoch if the client has read records that were truncated since; else None.

    If no epoch is known, or the offset is before the log start, the response has OFFSET_OUT_OF_RANGE.
    The records of an earlier leader may have been lost with its machine. Other records have those offsets now.
    Source: KIP-320, KIP-595.
    """
    if part.read_epoch < 0:
        return None
    epoch, end = source.end_offset_for_epoch(part.read_epoch)
    if epoch < 0 or part.offset < source.log_start_offset:
        return _failed(part.key[1], ErrorCode.OFFSET_OUT_OF_RANGE)
    if epoch >= part.read_epoch and end >= part.offset:
        return None
    return _Partition(
        partition_index=part.key[1],
        high_watermark=source.end_offset,
        last_stable_offset=source.last_stable_offset,
        log_start_offset=source.log_start_offset,
        records=b"",
        diverging_epoch=_Partition.EpochEndOffset(epoch=epoch, end_offset=end),
    )


def _find(node: Node, topic: str | uuid.UUID, index: int) -> tuple[PartitionLog | None, int]:
    if isinstance(topic, str):
        return node.store.get(topic, index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    known = node.store.topics_by_id.get(topic)
    if known is None:
        return None, ErrorCode.UNKNOWN_TOPIC_ID
    return node.store.get(known.name, index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _name_of(node: Node, topic_id: uuid.UUID) -> str | None:
    known = node.store.topics_by_id.get(topic_id)
    return known.name if known is not None else None


def fetching_replica_id(request: Request[FetchRequest]) -> int:
    """Return the node id of the follower that sends a Fetch; negative for a consumer."""
    message = request.message
    return message.replica_state.replica_id if request.version >= 15 else message.replica_id


def _records_read(result: ReadResult, crowded: bool) -> Records:
    if result.size < COPY_BYTES or crowded:
        return result.bytes()
    return [
        LogSlice(file_range) if file_range.length >= COPY_BYTES else file_range.bytes() for file_range in result.ranges
    ]


def _wanted(message: FetchRequest, by_id: bool) -> dict[Key, FetchedPartition]:
    wanted: dict[Key, FetchedPartition] = {}
    for topic in message.topics:
        name = topic.topic_id if by_id else topic.topic
        for part in topic.partitions:
            key = (name, part.partition)
            wanted[key] = FetchedPartition(
                key, part.fetch_offset, part.partition_max_bytes, part.current_leader_epoch, part.last_fetched_epoch
            )
    return wanted


def fetch(node: Node, request: Request[FetchRequest]) -> FetchResponse | None:
    """Return records of the partitions in the request or its session."""
    message = request.message
    by_id = request.version >= 13
    session_id, epoch = message.session_id, message.session_epoch
    if epoch > 0:
        return _fetch_on(node, request, session_id, epoch, by_id)
    owner = request.principal
    if session_id and node.sessions.get(session_id, owner) is not None:
        node.sessions.close(session_id)
    wanted = _wanted(message, by_id)
    session = node.sessions.open(by_id, wanted, owner) if epoch == 0 else None
    return Fetch(node, request, wanted.values(), session).start()


def _fetch_on(
    node: Node, request: Request[FetchRequest], session_id: int, epoch: int, by_id: bool
) -> FetchResponse | None:
    """Handle an incremental Fetch, which continues an open fetch session."""
    session = node.sessions.get(session_id, request.principal)
    if session is None:
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    if session.epoch != epoch:
        return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    if session.by_id != by_id:
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
    message = request.message
    forgotten = [
        (topic.topic_id if by_id else topic.topic, index)
        for topic in message.forgotten_topics_data
        for index in topic.partitions
    ]
    if not node.sessions.change_partitions(session, forgotten, _wanted(message, by_id)):
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    session.next_epoch()
    return Fetch(node, request, session.partitions.values(), session).start()


HANDLERS: list[ApiHandler[Node]] = [
    api_handler(FetchRequest, FetchResponse, fetch),
]
