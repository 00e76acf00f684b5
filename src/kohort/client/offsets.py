"""Offsets asked of brokers and coordinators: first, last, by time, committed; and commits.

Coroutines over a Cluster.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import UUID

from kohort.client.net.cluster import Between, Cluster, Coordinator, Node
from kohort.client.net.metadata import NO_TOPIC_ID
from kohort.client.net.runtime import Task
from kohort.client.net.topic_existence import present_topics, there
from kohort.errors import CommitFailedError, ErrorCode, KafkaError, error_for
from kohort.ids import TopicPartition, by_topic
from kohort.wire.data import ListOffsetsRequest
from kohort.wire.offsets import OffsetCommitRequest, OffsetFetchRequest, OffsetFetchResponse

# -- Offsets, positions and assignments as the client's callers see them. Values only


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed offset: the next one to read, and what the committer wrote beside it."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """What a search by time found: the first record at or after it."""

    offset: int
    timestamp: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a group gave to a member.

    Attributes:
        partitions: Sorted.
        generation: The classic generation, or the KIP-848 member epoch; -1 before the first join.
        member_id: As the coordinator knows it.
        user_data: What the assignor attached, if anything.
    """

    partitions: tuple[TopicPartition, ...] = ()
    generation: int = -1
    member_id: str = ""
    user_data: bytes | None = None


@dataclass(frozen=True, slots=True)
class Revocation:
    """Partitions that the group wants back. They stay the member's until it acknowledges.

    Attributes:
        partitions: Sorted.
        deadline_ms: On the core's monotonic clock (`time.monotonic() * 1000`): when the coordinator will go on without
            this member.
        lost: True when they belong to someone else already (session expired, fenced): nothing can be committed for
            them.
    """

    partitions: tuple[TopicPartition, ...] = ()
    deadline_ms: float = field(default=float("inf"))
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Rebalance:
    """One that a member has been through: a new assignment, from the first on, whatever it changed.

    Attributes:
        number: Of this member's; the first is 1.
        generation: As in `Assignment`, of what is held since.
        member_id: The same.
        held: Partitions since.
        gained, lost: Partitions that it has and had not before, or had and has not.
        began_ms, ended_ms: On the core's monotonic clock: from when the member was asked to give up, had to join
            (again), or was put out, until it held its assignment.
    """

    number: int
    generation: int
    member_id: str
    held: int
    gained: int
    lost: int
    began_ms: float
    ended_ms: float


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """A consumer's place in its group, for a transaction that commits its offsets: a stale one is refused.

    Source: KIP-447.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class RebalanceListener:
    """Callbacks around a rebalance, called by the thread that polls, inside `poll`. Override what is needed."""

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        """These are about to be given up; offsets can still be committed."""

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        """These were added; positions can be sought."""

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        """These belong to others already; commits for them fail. Calls `on_partitions_revoked` unless overridden."""
        self.on_partitions_revoked(partitions)


class HoldingListener(RebalanceListener):
    """Lets partitions go when the application says so, not when a callback returns.

    From `on_partitions_wanted` on, nothing of them is returned, their positions stay, and they can be committed; polls
    return the others' records and keep the member alive. `release` gives them up (`on_partitions_revoked` is called
    then). The group waits for that, at most for `max_poll_interval_ms`; then they are lost.
    """

    def on_partitions_wanted(self, partitions: list[TopicPartition]) -> None:
        """The group wants these back."""


T = TypeVar("T")
LATEST, EARLIEST = -1, -2
_STALE_LEADER = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
)
NO_SUCH_TOPIC = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
LOST_COORDINATOR = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
HIGHEST_BY_NAME = 9
"""From version 10 on, commits and fetches of offsets name topics by id only."""


async def list_offsets(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    *,
    read_committed: bool = False,
    timeout_ms: float | None = None,
    pass_over_gone: bool = False,
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """Offsets by time, one request per leader.

    Args:
        cluster: Where.
        wanted: Milliseconds since the epoch, `LATEST` or `EARLIEST`, per partition.
        read_committed: `LATEST` then means the last stable offset.
        timeout_ms: None: `default_api_timeout_ms`.
        pass_over_gone: Leave partitions out that do not exist, instead of waiting for them to appear.

    Returns:
        What was found; `offset` is -1 where no record is at or after the time.

    Raises:
        KafkaError: a partition's answer is an error that retries do not cure, or time is over.
    """
    found: dict[TopicPartition, OffsetAndTimestamp] = {}
    moved: set[str] = set()

    async def attempt() -> dict[TopicPartition, OffsetAndTimestamp]:
        missing = {partition: time for partition, time in wanted.items() if partition not in found}
        by_leader: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
        await _know_leaders(cluster, missing, moved)
        if pass_over_gone:
            for partition in await _gone(cluster, missing):
                del missing[partition]
        for partition, time in missing.items():
            node = cluster.metadata.leader(partition) if pass_over_gone else await cluster.leader(partition)
            if node < 0:
                raise error_for(ErrorCode.LEADER_NOT_AVAILABLE, f"no leader of {partition} is known")
            by_leader[node][partition] = time
        tasks = [
            cluster.runtime.spawn(_ask_leader(cluster, node, part, read_committed, found, moved))
            for node, part in by_leader.items()
        ]
        await gather(tasks)
        return found

    if not wanted:
        return found
    return await cluster.retrying(attempt, "list offsets", timeout_ms)


async def gather(tasks: list[Task[T]]) -> list[T]:
    """Wait for all; then the first error is raised, if any."""
    results, failure = [], None
    try:
        for task in tasks:
            try:
                results.append(await task)
            except KafkaError as error:
                failure = failure or error
    finally:
        for task in tasks:
            task.cancel()
    if failure is not None:
        raise failure
    return results


async def _know_leaders(cluster: Cluster, partitions: Iterable[TopicPartition], moved: set[str]) -> None:
    unknown = {partition.topic for partition in partitions if cluster.metadata.leader(partition) < 0} | moved
    if unknown:
        await cluster.describe_topics(unknown)
    moved.clear()


async def _gone(cluster: Cluster, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    doubtful = [partition for partition in partitions if cluster.metadata.partition(partition) is None]
    if doubtful:
        await present_topics(cluster, {partition.topic for partition in doubtful})
    return [partition for partition in doubtful if cluster.metadata.partition(partition) is None]


async def _ask_leader(
    cluster: Cluster,
    node: int,
    wanted: Mapping[TopicPartition, int],
    read_committed: bool,
    found: dict[TopicPartition, OffsetAndTimestamp],
    moved: set[str],
) -> None:
    topics = []
    for topic, numbers in by_topic(wanted).items():
        entries = [
            ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
                partition_index=number, timestamp=wanted[TopicPartition(topic, number)]
            )
            for number in numbers
        ]
        topics.append(ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=entries))
    request = ListOffsetsRequest(replica_id=-1, isolation_level=int(read_committed), topics=topics)
    answer = await cluster.send(request, Node(node))
    failure: KafkaError | None = None
    for told in answer.topics:
        for part in told.partitions:
            partition = TopicPartition(told.name, part.partition_index)
            code = ErrorCode.of(part.error_code)
            if code is ErrorCode.NONE:
                found[partition] = OffsetAndTimestamp(part.offset, part.timestamp, part.leader_epoch)
                continue
            if code in _STALE_LEADER:
                moved.add(partition.topic)
            failure = error_for(code, f"offsets of {partition}")
    if failure is not None:
        raise failure


class GroupIdentity:
    """As whom a member commits: generation (or epoch), member id, instance id.

    The defaults are for no member at all.
    """

    __slots__ = ("generation", "instance_id", "member_id")

    def __init__(self, generation: int = -1, member_id: str = "", instance_id: str | None = None) -> None:
        self.generation = generation
        self.member_id = member_id
        self.instance_id = instance_id


def known_ids(
    cluster: Cluster, partitions: Iterable[TopicPartition], held: Mapping[str, UUID] | None = None
) -> dict[str, UUID]:
    """The ids of these partitions' topics.

    By metadata where they are not held under one; empty when one is not known.
    """
    known = cluster.metadata.topic_id
    ids = {topic: (held or {}).get(topic, known(topic)) for topic in {part.topic for part in partitions}}
    return ids if NO_TOPIC_ID not in ids.values() else {}


async def commit_offsets(
    cluster: Cluster,
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    identity: GroupIdentity,
    timeout_ms: float | None = None,
    ids: Mapping[str, UUID] | None = None,
) -> None:
    """Commit, and try again while the coordinator can't take it for the moment.

    Args:
        cluster: Where.
        group: The group.
        offsets: What to commit.
        identity: As whom.
        timeout_ms: None: `default_api_timeout_ms`.
        ids: Of the topics that the offsets belong to, so that a topic that was deleted and made again gets none of
            them;
            None: those known now.

    Raises:
        NotFoundError: a topic has gone since; the other topics' offsets may be committed or not.
        CommitFailedError: the member's generation is over; the partitions may belong to another member.
        FencedError: another member has this instance id.
        KafkaError: a partition was refused; names the first.
    """
    coordinator = Coordinator(group)
    topic_ids = known_ids(cluster, offsets) if ids is None else ids
    names = {topic_id: topic for topic, topic_id in topic_ids.items()}

    async def attempt() -> KafkaError | None:
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=identity.generation,
            member_id=identity.member_id,
            group_instance_id=identity.instance_id,
            topics=[_commit_topic(topic, numbers, offsets, topic_ids) for topic, numbers in by_topic(offsets).items()],
        )
        answer = await cluster.send(Between(request, highest=None if topic_ids else HIGHEST_BY_NAME), coordinator)
        failed = [
            (
                TopicPartition(topic.name or names.get(topic.topic_id, ""), part.partition_index),
                ErrorCode.of(part.error_code),
            )
            for topic in answer.topics
            for part in topic.partitions
            if part.error_code
        ]
        if failed:
            partition, code = failed[0]
            if code in LOST_COORDINATOR:
                cluster.forget_coordinator(coordinator)
            if code in NO_SUCH_TOPIC and await is_gone(cluster, partition.topic, topic_ids):
                return error_for(code, f"commit for group {group!r}: topic {partition.topic!r} was deleted since")
            raise _commit_error(group, partition, code, len(failed))
        return None

    refused = await cluster.retrying(attempt, f"commit for group {group!r}", timeout_ms) if offsets else None
    if refused is not None:
        raise refused


async def is_gone(cluster: Cluster, topic: str, ids: Mapping[str, UUID]) -> bool:
    """Whether no topic has this id any more; else the coordinator has not heard of it yet."""
    if topic not in ids:
        return False
    found = await present_topics(cluster, [topic])
    return topic not in found or found[topic].topic_id != ids[topic]


def _commit_topic(
    topic: str,
    numbers: list[int],
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    ids: Mapping[str, UUID],
) -> OffsetCommitRequest.OffsetCommitRequestTopic:
    topic_type = OffsetCommitRequest.OffsetCommitRequestTopic
    entries = []
    for number in numbers:
        value = offsets[TopicPartition(topic, number)]
        entry = topic_type.OffsetCommitRequestPartition(
            partition_index=number,
            committed_offset=value.offset,
            committed_leader_epoch=value.leader_epoch,
            committed_metadata=value.metadata,
        )
        entries.append(entry)
    return topic_type(name=topic, topic_id=ids.get(topic, NO_TOPIC_ID), partitions=entries)


def _commit_error(group: str, partition: TopicPartition, code: ErrorCode, count: int) -> KafkaError:
    more = f" and {count - 1} more" if count > 1 else ""
    error = error_for(code, f"commit for group {group!r} of {partition}{more}: {code.text}")
    if isinstance(error, CommitFailedError):
        return CommitFailedError(
            f"commit for group {group!r} of {partition}{more}: this member's generation is over", code
        )
    return error


async def committed_offsets(
    cluster: Cluster,
    group: str,
    partitions: Iterable[TopicPartition],
    *,
    identity: GroupIdentity | None = None,
    require_stable: bool = False,
    timeout_ms: float | None = None,
) -> dict[TopicPartition, OffsetAndMetadata | None]:
    """The group's committed offsets; None where the coordinator says that there is none.

    Raises:
        KafkaError: the answer has an error for a partition that retries do not cure, or says nothing of it. Neither
            means that there is no offset: a consumer would start over.
    """
    wanted = list(partitions)
    coordinator = Coordinator(group)

    async def attempt() -> dict[TopicPartition, OffsetAndMetadata | None]:
        ids = known_ids(cluster, wanted)
        names = {topic_id: topic for topic, topic_id in ids.items()}
        request = offset_fetch(group, wanted, identity=identity, require_stable=require_stable, ids=ids)
        answer = await cluster.send(Between(request, highest=None if ids else HIGHEST_BY_NAME), coordinator)
        told = answer.groups[0] if answer.groups else answer
        found: dict[TopicPartition, OffsetAndMetadata | None] = {}
        codes = [(ErrorCode.of(told.error_code), "")]
        for topic in told.topics:
            name = topic.name
            if isinstance(topic, OffsetFetchResponse.OffsetFetchResponseGroup.OffsetFetchResponseTopics):
                name = name or names.get(topic.topic_id, "")
            for entry in topic.partitions:
                partition = TopicPartition(name, entry.partition_index)
                codes.append((ErrorCode.of(entry.error_code), f" in {partition}"))
                found[partition] = (
                    OffsetAndMetadata(entry.committed_offset, entry.metadata or "", entry.committed_leader_epoch)
                    if entry.committed_offset >= 0
                    else None
                )
        for code, where in codes:
            if code in LOST_COORDINATOR:
                cluster.forget_coordinator(coordinator)
            if code is ErrorCode.UNKNOWN_TOPIC_ID:
                await cluster.describe_topics(ids)
            if code:
                raise error_for(code, f"committed offsets of group {group!r}{where}: {code.text}")
        for partition in wanted:
            if partition not in found:
                text = f"committed offsets of group {group!r}: the answer says nothing of {partition}"
                raise error_for(ErrorCode.UNKNOWN_SERVER_ERROR, text)
        return {partition: found[partition] for partition in wanted}

    if not wanted:
        return {}
    return await cluster.retrying(attempt, f"committed offsets of group {group!r}", timeout_ms)


def offset_fetch(
    group: str,
    partitions: Iterable[TopicPartition] | None,
    *,
    identity: GroupIdentity | None = None,
    require_stable: bool = False,
    ids: Mapping[str, UUID] | None = None,
) -> OffsetFetchRequest:
    """An OffsetFetch in the layouts of all versions; no topics: of all.

    Brokers that can't wait for open transactions are asked all the same, as Kafka's consumer does: a caller to whom
    that is not enough names the lowest version.
    """
    wanted = None if partitions is None else by_topic(partitions)
    group_type, topic_type = OffsetFetchRequest.OffsetFetchRequestGroup, OffsetFetchRequest.OffsetFetchRequestTopic
    known = ids or {}
    asked = group_type(group_id=group, topics=None)
    older = None
    if wanted is not None:
        asked.topics = [
            group_type.OffsetFetchRequestTopics(
                name=name, topic_id=known.get(name, NO_TOPIC_ID), partition_indexes=numbers
            )
            for name, numbers in wanted.items()
        ]
        older = [topic_type(name=name, partition_indexes=numbers) for name, numbers in wanted.items()]
    if identity is not None and identity.member_id:
        asked.member_id, asked.member_epoch = identity.member_id, identity.generation
    return OffsetFetchRequest(group_id=group, topics=older, groups=[asked], require_stable=require_stable)


# -- What partitions there are and where they begin and end. Coroutines over a Cluster


async def beginning_offsets(
    cluster: Cluster, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
) -> dict[TopicPartition, int]:
    """First offsets that can be read."""
    found = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST), timeout_ms=timeout_ms)
    return {part: value.offset for part, value in found.items()}


async def end_offsets(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    timeout_ms: float | None = None,
    *,
    read_committed: bool = False,
) -> dict[TopicPartition, int]:
    """Offsets after the last one that can be read."""
    found = await list_offsets(
        cluster, dict.fromkeys(partitions, LATEST), read_committed=read_committed, timeout_ms=timeout_ms
    )
    return {part: value.offset for part, value in found.items()}


async def offsets_for_times(
    cluster: Cluster, times: Mapping[TopicPartition, int], timeout_ms: float | None = None
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """The first record at or after a time; None where there is none."""
    found = await list_offsets(cluster, times, timeout_ms=timeout_ms)
    return {part: value if value.offset >= 0 else None for part, value in found.items()}


async def partitions_of(
    cluster: Cluster, topics: Iterable[str], timeout_ms: float | None = None
) -> dict[str, list[int]]:
    """Partition numbers of topics, asked now; unknown topics are left out.

    Raises:
        KafkaError: a topic can't be seen for another reason than that it does not exist.
    """
    wanted = list(topics)
    found = await cluster.describe_topics(wanted, timeout_ms) if wanted else {}
    return {name: sorted(info.partitions) for name, info in there(found).items()}


async def topic_names(cluster: Cluster, timeout_ms: float | None = None) -> list[str]:
    """All topics, sorted; internal ones left out."""
    found = await cluster.describe_topics(None, timeout_ms)
    return sorted(name for name, info in found.items() if not info.internal)
