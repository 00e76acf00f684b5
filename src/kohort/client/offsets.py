"""Requests for offsets: first, last, by time, committed; and commits.

All are coroutines over a `Cluster`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import UUID

from kohort.client.net.cluster import Between, BrokerById, Cluster, Coordinator
from kohort.client.net.metadata import NO_TOPIC_ID
from kohort.client.net.runtime import Task
from kohort.client.net.topic_existence import existing_topics, present_topics
from kohort.errors import CommitFailedError, CorruptDataError, ErrorCode, KafkaError, RetriableError, error_for
from kohort.ids import TopicPartition, by_topic
from kohort.wire.data import ListOffsetsRequest
from kohort.wire.offsets import OffsetCommitRequest, OffsetFetchRequest, OffsetFetchResponse

AFTER_LOST_ANSWER = "an earlier try was sent and had no answer: it may have been carried out"
"""The end of a repeated change's error message if `KafkaError.after_lost_answer` is set."""
MAY_BE_DONE = (
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
)
"""Retriable errors after which a change may have been made. After all others nothing was."""

# -- Offsets and assignments for the client's callers. Values only


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed offset: the next one to read, and the committer's metadata."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """The result of a search by time: the first record at or after it."""

    offset: int
    timestamp: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class Assignment:
    """The assignment of a member by its group.

    Attributes:
        partitions: The partitions, sorted.
        generation: The classic generation, or the KIP-848 member epoch; -1 before the first join.
        member_id: The member's id at the coordinator.
        user_data: Data from the assignor, if any.
    """

    partitions: tuple[TopicPartition, ...] = ()
    generation: int = -1
    member_id: str = ""
    user_data: bytes | None = None


@dataclass(frozen=True, slots=True)
class Revocation:
    """Partitions that the group revokes. The member owns them until it acknowledges.

    Attributes:
        partitions: The partitions, sorted.
        deadline_ms: When the coordinator continues without this member, on the core's monotonic clock
            (`time.monotonic() * 1000`).
        lost: Whether other members may own them already (session expired, fenced): nothing can be committed for them.
    """

    partitions: tuple[TopicPartition, ...] = ()
    deadline_ms: float = field(default=float("inf"))
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Rebalance:
    """A completed rebalance of a member: a new assignment, even if it changed nothing.

    Attributes:
        number: The number among this member's rebalances; the first is 1.
        generation: The generation of the new assignment, as in `Assignment`.
        member_id: The member's id at the coordinator.
        held: Number of partitions in the new assignment.
        gained, lost: Number of partitions that are new, and that are no longer assigned.
        began_ms, ended_ms: On the core's monotonic clock: when the member had to revoke, (re)join or was evicted, and
            when it held its new assignment.
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
    """The group membership of a consumer, sent with a transaction's offsets: the coordinator refuses an outdated one.

    Source: KIP-447.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class RebalanceListener:
    """Callbacks around a rebalance, called by the thread that polls, inside `poll`. Override the ones you need."""

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        """Handle partitions that are about to be revoked; their offsets can still be committed."""

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        """Handle newly assigned partitions; `seek` can change their positions."""

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        """Handle partitions that others own by now; commits fail. Calls `on_partitions_revoked` unless overridden."""
        self.on_partitions_revoked(partitions)


class HoldingListener(RebalanceListener):
    """A listener that keeps revoked partitions until the application calls `release`.

    After `on_revocation_requested`, polls return no records of these partitions. Their positions stay, and can be
    committed. Polls return the other partitions' records and keep the member alive. `release` gives the partitions up
    and calls `on_partitions_revoked`. The group waits at most `max_poll_interval_ms` for that; then they are lost.
    """

    def on_revocation_requested(self, partitions: list[TopicPartition]) -> None:
        """Handle partitions that the group wants back: finish their records, then call `release`."""


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
"""The highest version of OffsetCommit and OffsetFetch that names topics; from version 10 on they have topic ids
only."""


async def list_offsets(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    *,
    read_committed: bool = False,
    timeout_ms: float | None = None,
    skip_missing_partitions: bool = False,
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """Look up offsets by time, with one request per leader.

    Args:
        cluster: The cluster.
        wanted: Milliseconds since the epoch, `LATEST` or `EARLIEST`, per partition.
        read_committed: `LATEST` then means the last stable offset.
        timeout_ms: None: `default_api_timeout_ms`.
        skip_missing_partitions: Leave partitions out that do not exist, instead of waiting for them to appear.

    Returns:
        The offsets; `offset` is -1 if no record is at or after the time.

    Raises:
        KafkaError: A partition's error that retries do not cure, or the time is over.
    """
    found: dict[TopicPartition, OffsetAndTimestamp] = {}
    moved: set[str] = set()

    async def list_remaining_offsets() -> dict[TopicPartition, OffsetAndTimestamp]:
        missing = {partition: time for partition, time in wanted.items() if partition not in found}
        await list_offsets_once(
            cluster,
            missing,
            found,
            moved,
            read_committed=read_committed,
            skip_missing_partitions=skip_missing_partitions,
        )
        return found

    if not wanted:
        return found
    return await cluster.retry_call(list_remaining_offsets, "list offsets", timeout_ms)


async def list_offsets_once(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    found: dict[TopicPartition, OffsetAndTimestamp],
    moved: set[str],
    *,
    read_committed: bool,
    skip_missing_partitions: bool = False,
) -> None:
    """Look up offsets like `list_offsets`, in one attempt.

    If some partitions fail, the offsets of all others are still stored in `found`.

    Args:
        cluster: The cluster.
        wanted: As in `list_offsets`.
        found: The offsets are stored here.
        moved: Topics whose metadata is refreshed first; those to refresh before the next attempt are stored here.
        read_committed: As in `list_offsets`.
        skip_missing_partitions: As in `list_offsets`.

    Raises:
        KafkaError: A partition's error; one that no retry cures, if there is one.
    """
    by_leader: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
    await _know_leaders(cluster, wanted, moved)
    gone = set(await _gone(cluster, wanted)) if skip_missing_partitions else ()
    for partition, time in wanted.items():
        if partition not in gone:
            by_leader[cluster.metadata.leader(partition)][partition] = time
    leaderless = by_leader.pop(-1, {})
    asked = [_ask_leader(cluster, node, part, read_committed, found, moved) for node, part in by_leader.items()]
    asked += [_no_leader(cluster, partition) for partition in leaderless]
    await gather_results([cluster.runtime.spawn(coro) for coro in asked])


def is_retriable(error: KafkaError) -> bool:
    """Return whether a retry may succeed after this error; not for damaged data."""
    return (isinstance(error, RetriableError) or is_code_retriable(error.code)) and not isinstance(
        error, CorruptDataError
    )


def is_code_retriable(code: ErrorCode) -> bool:
    """Return whether an error code is retriable; False for CORRUPT_MESSAGE, because a damaged file stays damaged."""
    return code.retriable and code is not ErrorCode.CORRUPT_MESSAGE


async def gather_results(tasks: list[Task[T]]) -> list[T]:
    """Return the values of all tasks.

    After failures raise one error: the first that no retry cures, else the first.
    """
    results, failures = [], []
    try:
        for task in tasks:
            try:
                results.append(await task)
            except KafkaError as error:
                failures.append(error)
    finally:
        for task in tasks:
            task.cancel()
    if failures:
        raise min(failures, key=is_retriable)
    return results


async def _no_leader(cluster: Cluster, partition: TopicPartition) -> None:
    """Raise the error for a partition without a known leader.

    The function is run as a task beside the requests to other partitions' leaders.
    """
    info = cluster.metadata.topics.get(partition.topic)
    code = ErrorCode.LEADER_NOT_AVAILABLE if info is None else info.error or ErrorCode.LEADER_NOT_AVAILABLE
    if info is not None and not info.error and partition.partition not in info.partitions:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    raise error_for(code, f"no leader of {partition} is known")


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
    try:
        answer = await cluster.send(request, BrokerById(node))
    except KafkaError:
        moved.update(by_topic(wanted))  # another broker may lead by now, and nothing else refreshes these topics
        raise
    failures: list[KafkaError] = []
    for topic_response in answer.topics:
        for part in topic_response.partitions:
            partition = TopicPartition(topic_response.name, part.partition_index)
            code = ErrorCode.of(part.error_code)
            if code is ErrorCode.NONE:
                found[partition] = OffsetAndTimestamp(part.offset, part.timestamp, part.leader_epoch)
                continue
            if code in _STALE_LEADER:
                moved.add(partition.topic)
            failures.append(error_for(code, f"offsets of {partition}"))
    if failures:
        raise min(failures, key=is_retriable)


class GroupIdentity:
    """The identity of a committing member: generation (or epoch), member id, instance id.

    The defaults are for a commit without a membership.
    """

    __slots__ = ("generation", "instance_id", "member_id")

    def __init__(self, generation: int = -1, member_id: str = "", instance_id: str | None = None) -> None:
        self.generation = generation
        self.member_id = member_id
        self.instance_id = instance_id


def topic_ids_for_offsets(
    cluster: Cluster, partitions: Iterable[TopicPartition], held: Mapping[str, UUID] | None = None
) -> dict[str, UUID]:
    """Return the topic ids for a commit or fetch of offsets: the id in `held`, else the one in the metadata.

    Empty if the id of any topic is unknown: the request then names topics without ids.
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
    """Commit offsets, retrying while the coordinator is not available.

    Args:
        cluster: The cluster.
        group: The group.
        offsets: The offsets to commit.
        identity: The committing member.
        timeout_ms: None: `default_api_timeout_ms`.
        ids: The topic ids of the offsets, so that no offsets are committed for a recreated topic; None: the current
            ids.

    Raises:
        NotFoundError: A topic was deleted since; the other topics' offsets may be committed or not.
        CommitFailedError: The member's generation is over; the partitions may belong to another member.
        FencedError: Another member has this instance id.
        KafkaError: A partition was refused; names the first.
    """
    coordinator = Coordinator(group)
    topic_ids = topic_ids_for_offsets(cluster, offsets) if ids is None else ids
    names = {topic_id: topic for topic, topic_id in topic_ids.items()}
    unanswered = 0

    def count_unanswered() -> None:
        nonlocal unanswered
        unanswered += 1

    async def commit_offsets_once() -> KafkaError | None:
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=identity.generation,
            member_id=identity.member_id,
            group_instance_id=identity.instance_id,
            topics=[_commit_topic(topic, numbers, offsets, topic_ids) for topic, numbers in by_topic(offsets).items()],
        )
        nonlocal unanswered
        wanted = Between(request, highest=None if topic_ids else HIGHEST_BY_NAME)
        answer = await cluster.send(wanted, coordinator, leaving=count_unanswered)
        before = unanswered > 1
        failed = [
            (
                TopicPartition(topic.name or names.get(topic.topic_id, ""), part.partition_index),
                ErrorCode.of(part.error_code),
            )
            for topic in answer.topics
            for part in topic.partitions
            if part.error_code
        ]
        unanswered -= all(code not in MAY_BE_DONE for _, code in failed)
        if failed:
            partition, code = min(failed, key=lambda failure: is_code_retriable(failure[1]))
            if code in LOST_COORDINATOR:
                cluster.forget_coordinator(coordinator)
            missing = {part.topic: code for part, code in failed if code in NO_SUCH_TOPIC} if code.retriable else {}
            for topic, why in missing.items():
                if await is_topic_gone(cluster, topic, topic_ids):
                    return error_for(why, f"commit for group {group!r}: topic {topic!r} was deleted since")
            raise _commit_error(group, partition, code, len(failed), after_lost_answer=before)
        return None

    refused = (
        await cluster.retry_call(commit_offsets_once, f"commit for group {group!r}", timeout_ms) if offsets else None
    )
    if refused is not None:
        raise refused


async def is_topic_gone(cluster: Cluster, topic: str, ids: Mapping[str, UUID]) -> bool:
    """Return whether the topic with the id in `ids` no longer exists: the name is gone, or has another id.

    A coordinator did not know the id; metadata requests decide. False if `ids` lacks the topic.
    """
    if topic not in ids:
        return False
    infos = await present_topics(cluster, [topic])
    return topic not in infos or infos[topic].topic_id != ids[topic]


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


def _commit_error(
    group: str, partition: TopicPartition, code: ErrorCode, count: int, *, after_lost_answer: bool
) -> KafkaError:
    more = f" and {count - 1} more" if count > 1 else ""
    before = f" ({AFTER_LOST_ANSWER})" if after_lost_answer else ""
    error = error_for(code, f"commit for group {group!r} of {partition}{more}: {code.text}{before}")
    if isinstance(error, CommitFailedError):
        text = f"commit for group {group!r} of {partition}{more}: this member's generation is over{before}"
        error = CommitFailedError(text, code)
    error.after_lost_answer = after_lost_answer
    return error


async def committed_offsets(
    cluster: Cluster,
    group: str,
    partitions: Iterable[TopicPartition],
    *,
    timeout_ms: float | None = None,
) -> dict[TopicPartition, OffsetAndMetadata | None]:
    """Return the group's committed offsets; None for a partition that has none.

    The call waits for open transactions that move them. The next owner of a partition would otherwise read again what
    its last owner is about to commit, whichever records it reads itself. Source: KIP-447.

    Raises:
        KafkaError: The response has an error for a partition that retries do not cure, or lacks the partition. Neither
            means that there is no offset: a consumer would start over.
    """
    wanted = list(partitions)
    found: dict[TopicPartition, OffsetAndMetadata | None] = {}

    async def fetch_remaining_offsets() -> dict[TopicPartition, OffsetAndMetadata | None]:
        missing = [partition for partition in wanted if partition not in found]
        await committed_offsets_once(cluster, group, missing, found)
        return {partition: found[partition] for partition in wanted}

    if not wanted:
        return {}
    return await cluster.retry_call(fetch_remaining_offsets, f"committed offsets of group {group!r}", timeout_ms)


async def committed_offsets_once(
    cluster: Cluster,
    group: str,
    wanted: Sequence[TopicPartition],
    found: dict[TopicPartition, OffsetAndMetadata | None],
) -> None:
    """Fetch committed offsets as `committed_offsets`, in one attempt; `found` also gets those beside failed ones.

    Raises:
        KafkaError: A partition's error; one that no retry cures, if there is one.
    """
    coordinator = Coordinator(group)
    ids = topic_ids_for_offsets(cluster, wanted)
    names = {topic_id: topic for topic, topic_id in ids.items()}
    request = offset_fetch_request(group, wanted, require_stable=True, ids=ids)
    answer = await cluster.send(Between(request, highest=None if ids else HIGHEST_BY_NAME), coordinator)
    response = answer.groups[0] if answer.groups else answer
    codes = [(ErrorCode.of(response.error_code), "")]
    for topic in response.topics:
        name = topic.name
        if isinstance(topic, OffsetFetchResponse.OffsetFetchResponseGroup.OffsetFetchResponseTopics):
            name = name or names.get(topic.topic_id, "")
        for entry in topic.partitions:
            partition = TopicPartition(name, entry.partition_index)
            codes.append((ErrorCode.of(entry.error_code), f" in {partition}"))
            if not entry.error_code and not response.error_code:
                found[partition] = (
                    OffsetAndMetadata(entry.committed_offset, entry.metadata or "", entry.committed_leader_epoch)
                    if entry.committed_offset >= 0
                    else None
                )
    failed = [(code, where) for code, where in codes if code]
    if failed:
        code, where = min(failed, key=lambda failure: is_code_retriable(failure[0]))
        if code in LOST_COORDINATOR:
            cluster.forget_coordinator(coordinator)
        if any(code is ErrorCode.UNKNOWN_TOPIC_ID for code, _ in failed):
            await cluster.describe_topics(ids)
        raise error_for(code, f"committed offsets of group {group!r}{where}: {code.text}")
    for partition in wanted:
        if partition not in found:
            text = f"committed offsets of group {group!r}: the answer says nothing of {partition}"
            raise error_for(ErrorCode.UNKNOWN_SERVER_ERROR, text)


def offset_fetch_request(
    group: str,
    partitions: Iterable[TopicPartition] | None,
    *,
    require_stable: bool = False,
    ids: Mapping[str, UUID] | None = None,
) -> OffsetFetchRequest:
    """Make an OffsetFetch request that can be encoded in every version.

    `partitions` None: all partitions with a committed offset.

    The request also goes to brokers that can't wait for open transactions, as in Kafka's consumer. A caller that needs
    the wait sets the lowest version.
    """
    wanted = None if partitions is None else by_topic(partitions)
    group_type, topic_type = OffsetFetchRequest.OffsetFetchRequestGroup, OffsetFetchRequest.OffsetFetchRequestTopic
    known = ids or {}
    group_request = group_type(group_id=group, topics=None)
    older = None
    if wanted is not None:
        group_request.topics = [
            group_type.OffsetFetchRequestTopics(
                name=name, topic_id=known.get(name, NO_TOPIC_ID), partition_indexes=numbers
            )
            for name, numbers in wanted.items()
        ]
        older = [topic_type(name=name, partition_indexes=numbers) for name, numbers in wanted.items()]
    return OffsetFetchRequest(group_id=group, topics=older, groups=[group_request], require_stable=require_stable)


# -- Partitions of topics, and their first and last offsets. Coroutines over a Cluster


async def beginning_offsets(
    cluster: Cluster, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
) -> dict[TopicPartition, int]:
    """Look up the first offsets that can be read."""
    offsets = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST), timeout_ms=timeout_ms)
    return {part: value.offset for part, value in offsets.items()}


async def end_offsets(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    timeout_ms: float | None = None,
    *,
    read_committed: bool = False,
) -> dict[TopicPartition, int]:
    """Look up the offsets after the last ones that can be read."""
    offsets = await list_offsets(
        cluster, dict.fromkeys(partitions, LATEST), read_committed=read_committed, timeout_ms=timeout_ms
    )
    return {part: value.offset for part, value in offsets.items()}


async def offsets_for_times(
    cluster: Cluster,
    times: Mapping[TopicPartition, int],
    timeout_ms: float | None = None,
    *,
    read_committed: bool = False,
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """Look up the first records at or after a time; None for a partition that has none that can be read."""
    offsets = await list_offsets(cluster, times, read_committed=read_committed, timeout_ms=timeout_ms)
    return {part: value if value.offset >= 0 else None for part, value in offsets.items()}


async def partitions_of(
    cluster: Cluster, topics: Iterable[str], timeout_ms: float | None = None
) -> dict[str, list[int]]:
    """Return the partition numbers of topics, by metadata requests and not from a cache; unknown ones are left out.

    Raises:
        KafkaError: A topic is not visible for another reason than that it does not exist.
    """
    wanted = list(topics)
    infos = await cluster.describe_topics(wanted, timeout_ms) if wanted else {}
    return {name: sorted(info.partitions) for name, info in existing_topics(infos).items()}


async def topic_names(cluster: Cluster, timeout_ms: float | None = None) -> list[str]:
    """Return all topics, sorted; internal ones left out."""
    infos = await cluster.describe_topics(None, timeout_ms)
    return sorted(name for name, info in infos.items() if not info.internal)
