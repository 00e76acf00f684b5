"""Reading of a cluster's groups and offsets, in few requests.

| what | requests of a read |
|---|---|
| brokers | one Metadata |
| groups | one ListGroups to each broker |
| members | DescribeGroups and ConsumerGroupDescribe to each coordinator, `GROUPS_PER_REQUEST` groups in each |
| committed offsets | OffsetFetch to each coordinator, `GROUPS_PER_REQUEST` groups in each |
| share and streams groups | requests of their own for both, where there are such groups (`queue_groups`) |
| starts, ends, last stable offsets | three ListOffsets to each leader, `PARTITIONS_PER_REQUEST` partitions in each |
| leaders | one Metadata for topics that are new or whose leaders moved |
| timestamps | the fetches of `record_times`, at most a fixed number |

A request that fails makes only what it was for unavailable: a dead broker hides neither the groups nor the partitions
of the others. All brokers are asked at once.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar, Unpack

from kohort.client.admin.groups import SendRequest, describe_groups_of_coordinator
from kohort.client.admin.values import GroupDescription, GroupListing
from kohort.client.net.cluster import Between, BrokerById, Cluster, ConnectionFailed, Coordinator
from kohort.client.net.health import check_reachable
from kohort.client.net.thread_driver import ThreadClient
from kohort.client.offsets import EARLIEST, HIGHEST_BY_NAME, LATEST, OffsetAndMetadata, offset_fetch_request
from kohort.client.setting_types import ConnectionSettings
from kohort.client.settings import ConnectionConfig, Servers, client_config
from kohort.errors import ErrorCode, KafkaError, RetriableError, TimedOutError, error_for
from kohort.ids import TopicPartition, by_topic
from kohort.io.closing import ClosedOnExit
from kohort.lag.evaluation import WINDOW_MS, LagReport, abandoned_topics, evaluate
from kohort.lag.queue_groups import (
    SHARE,
    STREAMS,
    ShareOffsets,
    describe_share_groups,
    describe_streams_groups,
    share_group_offsets,
)
from kohort.lag.record_times import OFFSETS_MAX, RecordTimes
from kohort.lag.snapshot import ClusterSnapshot, GroupReading, PartitionBounds, ReadFailure
from kohort.settings.arguments import check_call_arguments, checks_arguments
from kohort.settings.config import documents_settings
from kohort.wire.data import ListOffsetsRequest
from kohort.wire.groups import ListGroupsRequest
from kohort.wire.message import Message, RequestMessage
from kohort.wire.offsets import OffsetFetchRequest, OffsetFetchResponse
from kohort.wire.schema import columns_of

GROUPS_PER_REQUEST = 100
"""Bounds the size of an answer, and the time that a broker takes for it."""
PARTITIONS_PER_REQUEST = 10_000
ATTEMPTS_MAX = 3
"""How often a read asks for a group or partition whose coordinator or leader moves. The next read asks again."""
PHASES = 4
"""A request has this part of a read's time: groups, members, committed offsets and ends follow one another."""
LOOKUPS_MAX = 50
"""The most coordinators that a read looks up one by one, of groups that its list does not show or that moved."""
SEVERAL_GROUPS_SINCE = 8
"""The first version of OffsetFetch with several groups."""
REFUSALS_KEPT_MS = 300_000
"""How long topics whose records may not be read are not asked for again."""
REBALANCES_ASKED = 20
"""The rebalances of a group to ask for where they are shown: as many as a coordinator keeps."""
K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R", bound=Message)
_FetchedTopic: TypeAlias = (
    OffsetFetchResponse.OffsetFetchResponseTopic
    | OffsetFetchResponse.OffsetFetchResponseGroup.OffsetFetchResponseTopics
)


_OFFSET = ("partition_index", "committed_offset", "committed_leader_epoch", "metadata", "error_code")
"""The fields of a committed offset in an OffsetFetch response."""
ReadOthers: TypeAlias = Callable[[], Mapping[str, GroupReading | KafkaError]]
"""Returns positions that no coordinator has, by name, or why one could not be read."""
Offsets: TypeAlias = tuple[dict[TopicPartition, OffsetAndMetadata], dict[TopicPartition, KafkaError]]
"""The committed offsets of a group, and why some are unavailable."""


_AskCoordinator: TypeAlias = Callable[[SendRequest, int, Sequence[str]], Awaitable[dict[str, V | KafkaError]]]
"""A request about groups to their coordinator: how to send it, the node, and the groups' names."""


@dataclass(frozen=True, slots=True)
class _Task(Generic[K, V]):
    """A kind of request that a read sends for many keys (groups or partitions), each to the node that serves the key.

    Attributes:
        node_of: Return a key's node, or raise the key's error; the key is tried again after a `RetriableError` only.
        renew: Look up the nodes of these keys again.
        ask: Send the requests for some keys to a node; return a value or an error for each.
        per_request: The most keys for a call of `ask`.
    """

    node_of: Callable[[K], int]
    renew: Callable[[list[K]], Awaitable[None]]
    ask: Callable[[int, list[K]], Awaitable[Mapping[K, V]]]
    per_request: int


@dataclass(slots=True)
class LagReading:
    """One read of a cluster's groups, offsets and timestamps.

    Attributes:
        cluster: The cluster.
        timeout_ms: The limit of the whole read.
        record_times: The cache of timestamps that earlier reads found.
        offsets_max: The most unread offsets whose timestamps are fetched.
        rebalances: How many of the last rebalances kohort's coordinators are to describe for each group.
        others: Offsets that no coordinator has (of Spark checkpoints), by name. They were read before this read asks
            for log ends.
        is_read: Returns, for a group's name, whether the group is read; and for a topic's name, whether the ends of all
            its partitions are. None: every group, and the partitions that groups read.
    """

    cluster: Cluster
    timeout_ms: float
    record_times: RecordTimes
    offsets_max: int = OFFSETS_MAX
    rebalances: int = 0
    others: Mapping[str, GroupReading | KafkaError] = field(default_factory=dict)
    is_read: Callable[[str], bool] | None = None
    _deadline_ms: float = 0.0
    _listing: dict[str, GroupListing] = field(default_factory=dict)
    _listed: frozenset[int] = frozenset()
    _failures: list[ReadFailure] = field(default_factory=list)
    _silent: dict[int, KafkaError] = field(default_factory=dict)
    _nodes: dict[str, int] = field(default_factory=dict)
    _unfound: dict[str, KafkaError] = field(default_factory=dict)
    _lookups: int = 0
    _partitions: dict[str, dict[int, TopicPartition]] = field(default_factory=dict)
    """The partitions by topic and number: all groups share one object."""

    async def read_groups(self, names: Sequence[str] | None, also: Collection[TopicPartition] = ()) -> ClusterSnapshot:
        """Read the named groups, or all groups for None, and the bounds of the partitions in `also` too.

        Raises:
            KafkaError: No broker could list its groups, or all brokers went away during the read.
        """
        self._deadline_ms = self.cluster.runtime.now_ms + self.timeout_ms
        if names is None:
            await self._list_groups()
        listed = self._listing if self.is_read is None else filter(self.is_read, self._listing)
        wanted = sorted(listed) if names is None else list(dict.fromkeys(names))
        described = await self._described(wanted)
        if names is not None and any(isinstance(found, KafkaError) for found in described.values()):
            await self._list_groups()  # a share group, or a misspelt name
            described |= await self._described([name for name in wanted if name in self._listing])
        there = {name: found for name, found in described.items() if isinstance(found, GroupDescription)}
        offsets = await self._committed([name for name, found in there.items() if not _is_of(found, SHARE)])
        shares = await self._share_offsets([name for name, found in there.items() if _is_of(found, SHARE)])
        groups: dict[str, GroupReading] = {}
        errors = {name: found for name, found in described.items() if isinstance(found, KafkaError)}
        for name, found in there.items():
            position = shares[name] if name in shares else offsets[name]
            if isinstance(position, KafkaError):
                errors[name] = position
            elif isinstance(position, ShareOffsets):
                groups[name] = GroupReading(
                    found, self._has_members(found), position.starts, position.errors, lags=position.lags
                )
            else:
                groups[name] = GroupReading(found, self._has_members(found), *position)
        self._add_others(groups, errors)
        bounds, taken_ms = await self._bounds(groups.values(), [*also, *await self._topics_read()])
        times = await self._times(groups.values(), bounds)
        if await self._is_away():
            raise self._silent[min(self._listed)]  # the last whole read tells more than a part of this one
        self._failures += [ReadFailure.of(f"broker {node}", error) for node, error in sorted(self._silent.items())]
        return ClusterSnapshot(
            taken_ms,
            groups,
            errors,
            bounds,
            times,
            self._listing if names is None or self._listing else None,
            tuple(self._failures),
        )

    def _add_others(self, groups: dict[str, GroupReading], errors: dict[str, KafkaError]) -> None:
        """Add the positions of Spark's checkpoints, unless a group of the cluster has the same name."""
        for name, found in self.others.items():
            if self.is_read is not None and not self.is_read(name):
                continue
            if name in groups or name in errors or name in self._listing:
                text = "a group of the cluster has this name: give another one"
                self._failures.append(ReadFailure(name, "refused", text))
            elif isinstance(found, KafkaError):
                errors[name] = found
            else:
                groups[name] = found

    async def _topics_read(self) -> list[TopicPartition]:
        """Return all partitions of the topics for which `is_read` is true, even those without committed offsets."""
        if self.is_read is None:
            return []
        try:
            topics = await self.cluster.describe_topics(None, self._left_ms())
        except KafkaError as error:
            self._failures.append(ReadFailure.of("metadata", error))
            return []
        named = [topic for name, topic in topics.items() if not (topic.internal or topic.error) and self.is_read(name)]
        return [TopicPartition(topic.name, number) for topic in named for number in topic.partitions]

    async def _is_away(self) -> bool:
        """Return whether all brokers that were asked for their groups are unreachable, by one more request to each."""
        if not self._listed or not all(isinstance(self._silent.get(node), ConnectionFailed) for node in self._listed):
            return False
        for node in self._listed:
            try:
                await self.cluster.send(ListGroupsRequest(), BrokerById(node), timeout_ms=self._left_ms())
            except (TimedOutError, ConnectionFailed):
                continue
            return False
        return True

    def _left_ms(self) -> float:
        """Return the timeout of a request in ms: a part of the read's time, so that a silent broker leaves some."""
        left = self._deadline_ms - self.cluster.runtime.now_ms
        return max(1.0, min(left, self.timeout_ms / PHASES, self.cluster.config.request_timeout_ms))

    async def _send_request(self, message: RequestMessage[R] | Between[R], node: int) -> R:
        """Send a request to a node, unless the node was unreachable or timed out earlier in this read.

        Raises:
            KafkaError: The node can't be reached or gave no answer in time, now or earlier in this read.
        """
        if node in self._silent:
            raise self._silent[node]
        try:
            return await self.cluster.send(message, BrokerById(node), timeout_ms=self._left_ms())
        except (TimedOutError, ConnectionFailed) as error:
            self._silent[node] = error
            raise

    # Groups and members.

    async def _list_groups(self) -> None:
        nodes = await self.cluster.group_coordinator_nodes(self._left_ms())
        self._listed = frozenset(nodes)
        tasks = [self.cluster.runtime.spawn(self._listed_at(node)) for node in nodes]
        errors = {node: await task for node, task in zip(nodes, tasks, strict=True)}
        failed = {node: error for node, error in errors.items() if error is not None}
        if failed and len(failed) == len(nodes):
            raise next(iter(failed.values()))
        self._failures += [
            ReadFailure.of(f"broker {node}", error) for node, error in failed.items() if node not in self._silent
        ]

    async def _listed_at(self, node: int) -> KafkaError | None:
        """List the groups of one broker, repeating the request while the broker is loading groups."""
        failure: KafkaError | None = None
        for attempt in range(ATTEMPTS_MAX):
            if attempt and not await self._paused(attempt):
                break
            try:
                answer = await self._send_request(ListGroupsRequest(), node)
                if answer.error_code:
                    raise error_for(answer.error_code, f"broker {node} did not list its groups")
            except KafkaError as error:
                failure = error
                if node in self._silent or not error.code.retriable:
                    break
                continue
            for group in answer.groups:
                self._listing[group.group_id] = GroupListing(
                    group.group_id, group.protocol_type, group.group_state, group.group_type, node
                )
            return None
        return failure

    async def _described(self, names: Sequence[str]) -> dict[str, GroupDescription | KafkaError]:
        kinds = {name: self._listing[name].type.lower() for name in names if name in self._listing}
        classic = {name for name, kind in kinds.items() if kind == "classic"}

        async def send_described(node: int, chunk: list[str]) -> dict[str, GroupDescription | KafkaError]:
            return await describe_groups_of_coordinator(self._send_request, node, chunk, classic, self.rebalances)

        others = [name for name in names if kinds.get(name) not in (SHARE, STREAMS)]
        await self._find_coordinators([name for name in others if name not in self._listing])
        task = _Task(self._coordinator, self._find_coordinators, send_described, GROUPS_PER_REQUEST)
        found = await self._asked(others, task)
        for kind, describe in ((SHARE, describe_share_groups), (STREAMS, describe_streams_groups)):
            theirs = [name for name in names if kinds.get(name) == kind]
            if theirs:
                # One that can't describe its groups has at least listed them.
                found |= await self._ask_coordinators(theirs, describe, lambda name: _undescribed(self._listing[name]))
        return {name: found[name] for name in names}

    async def _ask_coordinators(
        self, names: Sequence[str], ask: _AskCoordinator[V], too_old: Callable[[str], V]
    ) -> dict[str, V | KafkaError]:
        """Send requests about groups to their coordinators; return a value or an error for each group.

        If a coordinator does not know the request, the value is what `too_old` returns for the group.
        """

        async def send_known(node: int, chunk: list[str]) -> Mapping[str, V | KafkaError]:
            try:
                return await ask(self._send_request, node, chunk)
            except KafkaError as error:
                if error.code is not ErrorCode.UNSUPPORTED_VERSION:
                    raise
                return {name: too_old(name) for name in chunk}

        task = _Task(self._coordinator, self._find_coordinators, send_known, GROUPS_PER_REQUEST)
        return await self._asked(names, task)

    def _coordinator(self, name: str) -> int:
        """Return the node id of a group's coordinator.

        Raises:
            KafkaError: The coordinator is not known now.
        """
        node = self._nodes.get(name)
        if node is not None:
            return node
        if name in self._listing:
            return self._listing[name].coordinator
        raise self._unfound.get(name) or error_for(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, f"group {name!r}: its coordinator was not looked up in this read"
        )

    async def _find_coordinators(self, names: list[str]) -> None:
        """Look up the coordinators of groups that are not listed or have moved; at most `LOOKUPS_MAX` in a read."""
        for name in names:
            if self._lookups >= LOOKUPS_MAX:
                return
            self._lookups += 1
            target = Coordinator(name)
            self.cluster.forget_coordinator(target)
            try:
                self._nodes[name] = await self.cluster.coordinator(target, self._left_ms())
            except KafkaError as error:
                self._unfound[name] = error

    @staticmethod
    def _has_members(found: GroupDescription) -> bool:
        """Return whether a group's members are known. Old brokers only list the names of share and streams groups."""
        return found.epoch is not None or not (_is_of(found, SHARE) or _is_of(found, STREAMS))

    # Committed offsets.

    async def _committed(self, names: Sequence[str]) -> dict[str, Offsets | KafkaError]:
        async def send_committed(node: int, chunk: list[str]) -> dict[str, Offsets | KafkaError]:
            try:
                return await self._offsets_at(node, chunk)
            except KafkaError as error:
                if error.code is not ErrorCode.UNSUPPORTED_VERSION:
                    raise
            outcomes = {}
            for name in chunk:  # Kafka before 3.0
                outcomes.update(await self._offsets_at(node, [name]))
            return outcomes

        task = _Task(self._coordinator, self._find_coordinators, send_committed, GROUPS_PER_REQUEST)
        return await self._asked(names, task)

    async def _offsets_at(self, node: int, names: list[str]) -> dict[str, Offsets | KafkaError]:
        request = offset_fetch_request(names[0], None)
        group_type = OffsetFetchRequest.OffsetFetchRequestGroup
        request.groups = [group_type(group_id=name, topics=None) for name in names]
        lowest = SEVERAL_GROUPS_SINCE if len(names) > 1 else 0
        answer = await self._send_request(Between(request, lowest=lowest, highest=HIGHEST_BY_NAME), node)
        responses = {group.group_id: group for group in answer.groups} if answer.groups else {names[0]: answer}
        outcomes: dict[str, Offsets | KafkaError] = {}
        for name in names:
            response = responses.get(name)
            if response is None:
                outcomes[name] = error_for(ErrorCode.UNKNOWN_SERVER_ERROR, f"group {name!r}: no offsets in the answer")
            elif response.error_code:
                outcomes[name] = error_for(response.error_code, f"offsets of group {name!r}")
            else:
                outcomes[name] = self._offsets(name, response.topics)
        return outcomes

    def _offsets(self, group: str, topics: Iterable[_FetchedTopic]) -> Offsets:
        committed, errors = {}, {}
        for topic in topics:
            names = self._partitions.setdefault(topic.name, {})
            for number, offset, epoch, metadata, code in zip(*columns_of(topic.partitions, _OFFSET), strict=True):
                tp = names.get(number)
                if tp is None:
                    tp = names[number] = TopicPartition(topic.name, number)
                if code:
                    errors[tp] = error_for(code, f"offset of group {group!r} in {tp}")
                elif offset >= 0:
                    committed[tp] = OffsetAndMetadata(offset, metadata or "", epoch)
        return committed, errors

    async def _share_offsets(self, names: Sequence[str]) -> dict[str, ShareOffsets | KafkaError]:
        return await self._ask_coordinators(names, share_group_offsets, lambda _: ShareOffsets())

    # Starts and ends.

    async def _bounds(
        self, groups: Iterable[GroupReading], also: Collection[TopicPartition]
    ) -> tuple[dict[TopicPartition, PartitionBounds | KafkaError], int]:
        wanted = set(also)
        for group in groups:
            wanted.update(group.committed)
            wanted.update(tp for member in group.description.members for tp in member.assignment or ())
        unknown = [tp for tp in wanted if self.cluster.metadata.leader(tp) < 0]
        if unknown:
            await self._find_leaders(unknown)
        task = _Task(self._leader, self._find_leaders, self._bounds_at, PARTITIONS_PER_REQUEST)
        return await self._asked(sorted(wanted), task), time.time_ns() // 1_000_000

    async def _find_leaders(self, partitions: list[TopicPartition]) -> None:
        try:
            await self.cluster.describe_topics({tp.topic for tp in partitions}, self._left_ms())
        except KafkaError as error:
            self._failures.append(ReadFailure.of("metadata", error))

    def _leader(self, tp: TopicPartition) -> int:
        """Return the node id of a partition's leader.

        Raises:
            KafkaError: The partition has no leader now, or does not exist (UNKNOWN_TOPIC_OR_PARTITION).
        """
        topic = self.cluster.metadata.topics.get(tp.topic)
        if topic is None:
            raise error_for(ErrorCode.LEADER_NOT_AVAILABLE, f"no leader of {tp} is known")
        if topic.error:
            raise error_for(topic.error, f"topic {tp.topic!r}: {topic.error.topic_text}")
        if tp.partition not in topic.partitions:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise error_for(code, f"{tp}: the topic has {len(topic.partitions)} partitions")
        node = self.cluster.metadata.leader(tp)
        if node < 0:
            raise error_for(ErrorCode.LEADER_NOT_AVAILABLE, f"{tp} has no leader now")
        return node

    async def _bounds_at(
        self, node: int, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, PartitionBounds | KafkaError]:
        """Request log starts, log ends and last stable offsets of partitions from their leader, in this order."""
        found: list[dict[TopicPartition, int]] = []
        errors: dict[TopicPartition, KafkaError] = {}
        for when, is_committed in ((EARLIEST, False), (LATEST, False), (LATEST, True)):
            left = [tp for tp in partitions if tp not in errors]
            offsets: dict[TopicPartition, int] = {}
            if left:
                answer = await self._send_request(_list_offsets(left, when, is_committed), node)
                for topic in answer.topics:
                    for part in topic.partitions:
                        tp = TopicPartition(topic.name, part.partition_index)
                        if part.error_code:
                            errors[tp] = error_for(part.error_code, f"offsets of {tp}")
                        else:
                            offsets[tp] = part.offset
            found.append(offsets)
        outcomes: dict[TopicPartition, PartitionBounds | KafkaError] = {}
        for tp in partitions:
            values = [offsets[tp] for offsets in found if tp in offsets]
            if tp in errors or len(values) < len(found):
                outcomes[tp] = errors.get(tp) or error_for(ErrorCode.UNKNOWN_SERVER_ERROR, f"no offsets of {tp}")
            else:
                outcomes[tp] = PartitionBounds(*values)
        return outcomes

    def _leads(self, tp: TopicPartition) -> bool:
        """Return whether a partition has a leader that was neither unreachable nor too slow in this read."""
        node = self.cluster.metadata.leader(tp)
        return node >= 0 and node not in self._silent

    # Timestamps.

    async def _times(
        self, groups: Iterable[GroupReading], bounds: Mapping[TopicPartition, PartitionBounds | KafkaError]
    ) -> dict[tuple[TopicPartition, int], int]:
        wanted: dict[tuple[TopicPartition, int], PartitionBounds] = {}
        abandoned: dict[tuple[TopicPartition, int], PartitionBounds] = {}
        for group in groups:
            left = abandoned_topics(group)
            for tp, committed in group.committed.items():
                found = bounds.get(tp)
                if isinstance(found, PartitionBounds):
                    at = max(found.log_start, committed.offset)
                    if at < found.log_end:
                        (abandoned if tp.topic in left else wanted)[tp, at] = found
        if len(wanted) + len(abandoned) <= self.offsets_max:
            wanted = {**abandoned, **wanted}
        asked = {offset: found for offset, found in wanted.items() if self._leads(offset[0])}
        times, failures = await self.record_times.look_up_timestamps(
            self.cluster, asked, self.offsets_max, self._left_ms()
        )
        self._failures += failures
        return times

    # Requests to several nodes at once.

    async def _asked(self, keys: Sequence[K], task: _Task[K, V]) -> dict[K, V | KafkaError]:
        """Send a kind of request for all keys to the keys' nodes; return a value or an error for each key.

        Keys with a temporary error are tried again, after their nodes were looked up anew.
        """
        done: dict[K, V | KafkaError] = {}
        left = list(keys)
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                if not left or not await self._paused(attempt):
                    break
                await task.renew(left)
            by_node: dict[int, list[K]] = {}
            again: list[K] = []
            for key in left:
                try:
                    by_node.setdefault(task.node_of(key), []).append(key)
                except KafkaError as error:
                    done[key] = error
                    again += [key] if isinstance(error, RetriableError) else []
            size = task.per_request
            spawned = [
                self.cluster.runtime.spawn(_outcomes(task, node, theirs[start : start + size]))
                for node, theirs in sorted(by_node.items())
                for start in range(0, len(theirs), size)
            ]
            for asking in spawned:
                outcomes = await asking
                done.update(outcomes)
                again += [key for key, outcome in outcomes.items() if _is_temporary(outcome)]
            left = again
        return done

    async def _paused(self, attempt: int) -> bool:
        """Wait before another attempt at a request; return False, without waiting, if the read has no time for it."""
        wait = self.cluster.backoff_ms(attempt)
        if self.cluster.runtime.now_ms + wait >= self._deadline_ms:
            return False
        await self.cluster.runtime.sleep(wait)
        return True


def _is_temporary(outcome: object) -> bool:
    return isinstance(outcome, KafkaError) and (isinstance(outcome, RetriableError) or outcome.code.retriable)


async def _outcomes(task: _Task[K, V], node: int, chunk: list[K]) -> dict[K, V | KafkaError]:
    """Send a request for some keys; return a value or an error for each, also for those that the answer leaves out."""
    try:
        answer = await task.ask(node, chunk)
    except KafkaError as error:
        return dict.fromkeys(chunk, error)
    outcomes: dict[K, V | KafkaError] = {}
    for key in chunk:
        if key in answer:
            outcomes[key] = answer[key]
        else:
            text = f"broker {node} left {key if isinstance(key, TopicPartition) else repr(key)} out of its answer"
            outcomes[key] = error_for(ErrorCode.UNKNOWN_SERVER_ERROR, text)
    return outcomes


def _list_offsets(partitions: Iterable[TopicPartition], when: int, is_committed: bool) -> ListOffsetsRequest:
    part = ListOffsetsRequest.ListOffsetsPartition
    topics = [
        ListOffsetsRequest.ListOffsetsTopic(
            name=topic, partitions=[part(partition_index=number, timestamp=when) for number in numbers]
        )
        for topic, numbers in by_topic(partitions).items()
    ]
    return ListOffsetsRequest(replica_id=-1, isolation_level=int(is_committed), topics=topics)


def _is_of(found: GroupDescription, kind: str) -> bool:
    return found.type.lower() == kind


def _undescribed(listed: GroupListing) -> GroupDescription:
    return GroupDescription(
        listed.group_id, listed.type.capitalize(), listed.state, listed.protocol_type, "", (), listed.coordinator
    )


@checks_arguments
@documents_settings(ConnectionConfig)
class LagReader(ClosedOnExit):
    """The reader of a cluster's lag: it reads groups, members, offsets and timestamps, and evaluates them.

        with LagReader("127.0.0.1:9092") as reader:
            for group in reader.read().groups.values():
                print(group.description.group_id, group.status.name, group.sum_lag)

    Rates, `STALL` and `WARN` come from several reads. One thread may read at a time.

    Args:
        bootstrap_servers: HOST:PORT, several with commas between, or a list of them.
        settings: Kafka's client properties as keywords, with _ for the dots. `default_api_timeout_ms` bounds a read.

    Attributes:
        window_ms: How long there may be no progress before that is a finding.
        offsets_max: The most unread offsets whose timestamps a read fetches.
        rebalances: How many of the last rebalances of each group a read asks kohort's coordinators for; 0: none. Other
            coordinators record none.
        is_read: Called with the name of each group and of each topic: a read of all groups leaves out those for which
            it returns False, and has the ends of all partitions of those topics for which it returns True. None: no
            group is left out, and ends are those of partitions that groups read.
        read_others: Called at the beginning of each read, for positions that no coordinator has, such as those in
            checkpoints of Spark (`kohort.spark.checkpoint_lag`). They are in the report beside the groups. If it has
            a method `close`, the reader's `close` calls that, to end a read that waits for them.

    Raises:
        InvalidInputError: An unknown setting, or an invalid value.
    """

    @check_call_arguments
    def __init__(self, bootstrap_servers: Servers = None, **settings: Unpack[ConnectionSettings]) -> None:
        self.window_ms = WINDOW_MS
        self.offsets_max = OFFSETS_MAX
        self.rebalances = 0
        self.is_read: Callable[[str], bool] | None = None
        self.read_others: ReadOthers = dict
        self._client = ThreadClient(client_config(ConnectionConfig, bootstrap_servers, settings))
        self._times = RecordTimes()
        self._asked_again_ms = 0.0
        self.report: LagReport | None = None
        self.listing: Mapping[str, GroupListing] | None = None

    def read(
        self,
        groups: Iterable[str] | None = None,
        *,
        also: Collection[TopicPartition] = (),
        timeout_ms: float | None = None,
    ) -> LagReport:
        """Read the named groups, or all; a group that can't be read is in the report's errors.

        Args:
            groups: Their names; None: every group of the cluster.
            also: Partitions whose bounds are in the report whether or not a group has an offset there.
            timeout_ms: The limit of the read; None: `default_api_timeout_ms`.

        Raises:
            KafkaError: The cluster can't be reached.
        """
        cluster = self._client.cluster
        limit = cluster.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        if time.monotonic() * 1000 - self._asked_again_ms > REFUSALS_KEPT_MS:
            self._asked_again_ms = time.monotonic() * 1000
            self._times.retry_refused_topics()
        is_read = self.is_read if groups is None else None
        reading = LagReading(
            cluster, limit, self._times, self.offsets_max, self.rebalances, self.read_others(), is_read
        )
        snapshot = self._client.call(reading.read_groups(None if groups is None else list(groups), also))
        self.listing = snapshot.listing
        self.report = evaluate(snapshot, self.report, self.window_ms)
        return self.report

    def connect(self, timeout_ms: float) -> None:
        """Connect to a broker of the cluster, retrying until the time is over.

        Raises:
            KafkaError: No broker could be connected, or it refused the login; names addresses and causes.
        """
        self._client.call(check_reachable(self._client.cluster, timeout_ms))

    @property
    def cluster_id(self) -> str | None:
        """The cluster's id; None before the first read, and for brokers that have none."""
        return self._client.cluster.metadata.cluster_id

    def close(self) -> None:
        """Close the connections; may be called again."""
        close_others = getattr(self.read_others, "close", None)
        if close_others is not None:
            close_others()
        self._client.close()
