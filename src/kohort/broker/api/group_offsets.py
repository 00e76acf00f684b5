"""OffsetCommit, OffsetFetch, OffsetDelete: the committed offsets of groups.

Versions: OffsetCommit 2-4 have a retention time, 6 adds leader epochs, 9 member epochs, 10 topic ids. OffsetFetch 2
adds all partitions and an error of the group, 7 require_stable, 8 several groups, 9 member epochs, 10 topic ids.
TxnOffsetCommit is in `offset_transactions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import compress, islice, repeat, starmap
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from kohort.broker.authorization import Resource, is_allowed, may_see, unauthorized_names
from kohort.broker.dispatch import ApiHandler, api_handler
from kohort.broker.host import GroupHost, KnownTopic
from kohort.broker.server.requests import Request, without_many_repeats
from kohort.errors import NO_ERROR, ErrorCode, InvalidInputError
from kohort.groups import events
from kohort.groups.effects import FetchedOffset, OffsetCommitReply, OffsetDeleteReply, OffsetFetchReply
from kohort.groups.records import NO_TOPIC_ID
from kohort.ids import AclOperation, TopicPartition
from kohort.wire.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kohort.wire.schema import StructRows, columns_of
from kohort.wire.transactions import TxnOffsetCommitRequest

T = TypeVar(
    "T",
    OffsetCommitRequest.OffsetCommitRequestTopic,
    TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic,
)
_FetchedTopic: TypeAlias = OffsetFetchResponse.OffsetFetchResponseGroup.OffsetFetchResponseTopics
GROUPS_MAX: Final = 10_000
"""The most groups in one OffsetFetch. Asking a shard for one takes 15 microseconds of the event loop."""
_HIDDEN: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
PARTS_KEPT: Final = 8_192
"""Cached partition entries of responses, because every member commits the same partitions again and again."""


WHOLE_PARTS: Final = 256
"""Partitions and topics of a commit whose whole response is cached: with `WHOLE_KEPT`, 40 MB at the very most."""
WHOLE_KEPT: Final = 512
"""Cached responses. A member commits the same partitions until the next rebalance."""
_POSITION: Final = ("partition_index", "committed_offset", "committed_leader_epoch", "committed_metadata")
"""The fields of a partition in a commit."""
_NEW_PARTITION: Final[Callable[[Iterable[Any]], TopicPartition]] = partial(tuple.__new__, TopicPartition)
"""`TopicPartition._make` without its overhead in Python."""
_NEW_COMMIT: Final[Callable[[Iterable[Any]], events.OffsetCommit]] = partial(tuple.__new__, events.OffsetCommit)
"""`OffsetCommit._make` likewise."""
CommittedTopics: TypeAlias = tuple[tuple[str | UUID, tuple[int, ...]], ...]
"""Topics of a commit by name or id, with their partitions."""


class CommitPlan(Generic[T]):
    """The partitions of an OffsetCommit in the request's order: those for the coordinator, and those rejected before.

    Where nothing is rejected, they are handled as columns, because a commit may name hundreds of partitions.
    """

    def __init__(
        self, topics: Iterable[tuple[T, KnownTopic | ErrorCode | None]], by_id: bool, keep_ids: bool = False
    ) -> None:
        """Sort the partitions of a commit request into those for the coordinator and those to reject.

        Args:
            topics: the request's topics, each with the existing topic, the error that rejects it, or None.
            by_id: whether the request names topics by id.
            keep_ids: whether to store topic ids also if the request names topics by name.
        """
        accepted: list[Sequence[Sequence[Any]]] = []
        self._all_accepted = True
        self._by_id = by_id
        self._body: bytes | None = None
        self._targets: list[tuple[str | UUID, KnownTopic]] = []
        self._topics: list[tuple[T, Sequence[int], dict[int, ErrorCode]]] = []
        for topic, known in topics:
            columns = columns_of(topic.partitions, _POSITION) if topic.partitions else ((), (), (), ())
            refused: dict[int, ErrorCode] = {}
            if known is None:
                known = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if isinstance(known, ErrorCode):
                refused = dict.fromkeys(range(len(columns[0])), known)
            else:
                self._targets.append((topic.topic_id if by_id else topic.name, known))
                refused = _accept(accepted, known, columns, known.id if by_id or keep_ids else NO_TOPIC_ID)
            if refused:
                self._all_accepted = False
            self._topics.append((topic, columns[0], refused))
        self.offsets = events.OffsetColumns.joined(accepted)

    def is_reusable_for(self, host: GroupHost, request: Request[Any]) -> bool:
        """Return whether this plan holds for a later request with the same topics and partitions.

        All partitions must have been accepted, the topics must be the same objects, and the client still be allowed to
        read them.
        """
        if not self._all_accepted or not self._targets:
            return False
        known: Mapping[Any, KnownTopic] = host.topics.by_id if self._by_id else host.topics.by_name
        for name, topic in self._targets:
            if known.get(name) is not topic:
                return False
        return host.authorizer is None or all(
            may_see(host, request, AclOperation.READ, Resource.TOPIC, topic.name) for _, topic in self._targets
        )

    def encoded_success_response(self, version: int, value: OffsetCommitReply | ErrorCode | None) -> bytes | None:
        """Return the encoded OffsetCommit response if the commit is small and all of it succeeded; else None."""
        if not isinstance(value, OffsetCommitReply) or not self._all_accepted:
            return None
        size = len(value.errors)
        if size + len(self._topics) > WHOLE_PARTS or value.errors.count(NO_ERROR) != size:
            return None
        if self._body is None:
            by_id = self._by_id
            parts = [(topic.topic_id if by_id else topic.name, tuple(indexes)) for topic, indexes, _ in self._topics]
            self._body = encoded_commit_response(version, tuple(parts))
        return self._body

    def topic_results(
        self, value: OffsetCommitReply | ErrorCode | None
    ) -> Iterator[tuple[T, Iterable[tuple[int, int]]]]:
        """Yield each topic of the request with (partition, error code) pairs, merging the coordinator's reply.

        `value` is that reply, or one error for all partitions that were sent to it.
        """
        whole = value if isinstance(value, ErrorCode) else None
        errors = iter(() if value is None or isinstance(value, ErrorCode) else value.errors)
        for topic, indexes, refused in self._topics:
            if refused:
                found: Iterable[int] = [
                    refused[place] if place in refused else whole if whole is not None else next(errors)
                    for place in range(len(indexes))
                ]
            else:
                found = repeat(whole, len(indexes)) if whole is not None else islice(errors, len(indexes))
            yield topic, zip(indexes, map(int, found), strict=True)


def _accept(
    accepted: list[Sequence[Sequence[Any]]], topic: KnownTopic, columns: Sequence[Sequence[Any]], topic_id: UUID
) -> dict[int, ErrorCode]:
    """Append the existing partitions of one topic to the commits for the coordinator.

    Return UNKNOWN_TOPIC_OR_PARTITION for each other one, by its index in the request's list.
    """
    indexes, refused = columns[0], dict[int, ErrorCode]()
    if indexes and (max(indexes) >= topic.partitions or min(indexes) < 0):
        exists = [0 <= index < topic.partitions for index in indexes]
        missing = [place for place, found in enumerate(exists) if not found]
        refused = dict.fromkeys(missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        columns = [list(compress(column, exists)) for column in columns]
    partitions, offsets, epochs, metadata = columns
    if metadata.count("") != len(metadata):
        metadata = [text or "" for text in metadata]
    if offsets:
        size = len(offsets)
        accepted.append(((topic.name,) * size, partitions, offsets, epochs, metadata, (topic_id,) * size))
    return refused


def topics_to_commit(
    host: GroupHost, request: Request[Any], topics: Sequence[T], by_id: bool
) -> list[tuple[T, KnownTopic | ErrorCode | None]]:
    """Look up the topics of a commit by name or id.

    Each comes with the existing topic, None if there is none, or an error if the client may not read it.
    """
    found: list[KnownTopic | None] = (
        [host.topics.by_id.get(topic.topic_id) for topic in topics]
        if by_id
        else [host.topics.by_name.get(topic.name) for topic in topics]
    )
    if host.authorizer is None:
        return list(zip(topics, found, strict=True))
    names = [known.name if known else None for known in found] if by_id else [topic.name for topic in topics]
    asked = [name for name in names if name is not None]
    refused = unauthorized_names(host, request, AclOperation.READ, Resource.TOPIC, asked)
    return [
        (topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED if name in refused else known)
        for topic, name, known in zip(topics, names, found, strict=True)
    ]


@lru_cache(maxsize=PARTS_KEPT)
def commit_partition_response(
    index: int, error: int
) -> OffsetCommitResponse.OffsetCommitResponseTopic.OffsetCommitResponsePartition:
    """Return the response entry of one partition. Entries are never modified, so they are shared."""
    return OffsetCommitResponse.OffsetCommitResponsePartition(partition_index=index, error_code=error)


@lru_cache(maxsize=WHOLE_KEPT)
def encoded_commit_response(version: int, topics: CommittedTopics) -> bytes:
    """Return the encoded OffsetCommit response for a commit without errors, from a cache.

    A member commits the same partitions until the next rebalance. The cache saved 8 % of the broker's thread with
    commits of 1, 10 and 100 partitions.
    """
    make_topic = OffsetCommitResponse.OffsetCommitResponseTopic
    parts = [[commit_partition_response(index, 0) for index in indexes] for _, indexes in topics]
    return OffsetCommitResponse(
        topics=[
            make_topic(name=topic, partitions=entries)
            if isinstance(topic, str)
            else make_topic(topic_id=topic, partitions=entries)
            for (topic, _), entries in zip(topics, parts, strict=True)
        ]
    ).encode(version)


class RepeatedCommit(NamedTuple):
    """The part of a member's OffsetCommit that stays the same until the next rebalance.

    Attributes:
        plan: their partitions, all of which exist.
        retention_ms, knows_stale_epoch: as in `events.OffsetCommit`.
    """

    plan: CommitPlan[OffsetCommitRequest.OffsetCommitRequestTopic]
    group_id: str
    member_id: str
    generation: int
    instance_id: str | None
    retention_ms: int
    knows_stale_epoch: bool


def offset_commit(host: GroupHost, request: Request[OffsetCommitRequest]) -> None:
    """Commit offsets; answered when they are durable."""
    if (template := request.template) is not None and template.prepared is not None:
        shape: RepeatedCommit = template.prepared
        if shape.plan.is_reusable_for(host, request):
            positions = shape.plan.offsets.with_offsets(*template.offsets_and_epochs(request.numbers))
            _send_commit(host, request, shape, positions)
            return
    if not host.topics.sure:
        topics, by_id = request.message.topics, request.version >= 10
        names = [] if by_id else [topic.name for topic in topics if topic.name not in host.topics.by_name]
        ids = [topic.topic_id for topic in topics if topic.topic_id not in host.topics.by_id] if by_id else []
        if names or ids:
            host.lookup_topics(names, ids, partial(commit_after_lookup, host, request))
            return
    commit_after_lookup(host, request)


def commit_after_lookup(host: GroupHost, request: Request[OffsetCommitRequest]) -> None:
    """Handle an OffsetCommit once its unknown topics have been looked up."""
    message, version = request.message, request.version
    by_id = version >= 10
    plan = CommitPlan(topics_to_commit(host, request, message.topics, by_id), by_id, keep_ids=not host.topics.sure)
    shape = RepeatedCommit(
        plan,
        message.group_id,
        message.member_id,
        message.generation_id_or_member_epoch,
        message.group_instance_id,
        message.retention_time_ms if version <= 4 else -1,
        version >= 9,
    )
    if request.template is not None:
        request.template.prepared = shape
    _send_commit(host, request, shape, plan.offsets)


def _send_commit(
    host: GroupHost, request: Request[OffsetCommitRequest], shape: RepeatedCommit, offsets: events.OffsetColumns
) -> None:
    """Send a commit to its coordinator, and answer it."""
    plan, group_id, member_id, generation, instance_id, retention_ms, knows_stale_epoch = shape
    version = request.version

    def send_response(value: OffsetCommitReply | ErrorCode | None) -> None:
        if request.accepts_encoded_response and (body := plan.encoded_success_response(version, value)) is not None:
            request.reply_encoded(OffsetCommitResponse, body)
            return
        make_topic = OffsetCommitResponse.OffsetCommitResponseTopic
        topics = []
        for topic, pairs in plan.topic_results(value):
            partitions = list(starmap(commit_partition_response, pairs))
            if version >= 10:
                topics.append(make_topic(topic_id=topic.topic_id, partitions=partitions))
            else:
                topics.append(make_topic(name=topic.name, partitions=partitions))
        request.reply(OffsetCommitResponse(topics=topics))

    if not offsets.columns[0]:
        send_response(None)
        return
    client = request.client
    asked = (host.next_request_id(), group_id, member_id, generation, offsets, instance_id, retention_ms)
    host.groups.ask(client, _NEW_COMMIT((*asked, knows_stale_epoch, client.number)), send_response)


def offset_fetch(host: GroupHost, request: Request[OffsetFetchRequest]) -> None:
    """Return the committed offsets of one group, or since version 8 of several."""
    if len(request.message.groups) > GROUPS_MAX:
        raise InvalidInputError(f"offsets of more than {GROUPS_MAX} groups at once", ErrorCode.INVALID_REQUEST)
    if request.version >= 10 and not host.topics.sure:
        named = (topic.topic_id for group in request.message.groups for topic in group.topics or ())
        ids = [topic_id for topic_id in named if topic_id not in host.topics.by_id]
        if ids:
            host.lookup_topics((), ids, partial(fetch_offsets_of_known_topics, host, request))
            return
    fetch_offsets_of_known_topics(host, request)


def fetch_offsets_of_known_topics(host: GroupHost, request: Request[OffsetFetchRequest]) -> None:
    """Handle an OffsetFetch once its unknown topics have been looked up."""
    message, version = request.message, request.version
    if version < 8:
        _fetch_one(host, request)
        return
    groups = without_many_repeats(message.groups, lambda group: group.group_id)
    found: dict[int, OffsetFetchResponse.OffsetFetchResponseGroup] = {}
    if not groups:
        request.reply(OffsetFetchResponse())
        return

    def collect_reply(position: int, response: OffsetFetchResponse.OffsetFetchResponseGroup) -> None:
        found[position] = response
        if len(found) == len(groups):
            request.reply(OffsetFetchResponse(groups=[found[number] for number in range(len(groups))]))

    for position, group in enumerate(groups):
        _fetch_group(host, request, group, partial(collect_reply, position))


def _fetch_one(host: GroupHost, request: Request[OffsetFetchRequest]) -> None:
    message, version = request.message, request.version
    topics = message.topics
    everything = topics is None and version >= 2
    fetch_error = is_allowed(host, request, AclOperation.DESCRIBE, Resource.GROUP, message.group_id)
    refused = _refused_topics(host, request, topics or ()) if fetch_error else frozenset()
    partitions = (
        None
        if everything
        else tuple(
            TopicPartition(t.name, i) for t in topics or () if t.name not in refused for i in t.partition_indexes
        )
    )
    event = events.OffsetFetch(
        host.next_request_id(), message.group_id, partitions, require_stable=version >= 7 and message.require_stable
    )

    def send_response(value: OffsetFetchReply | ErrorCode) -> None:
        reply = OffsetFetchReply(value) if isinstance(value, ErrorCode) else value
        make_topic = OffsetFetchResponse.OffsetFetchResponseTopic
        make = OffsetFetchResponse.OffsetFetchResponsePartition
        by_topic: dict[str, list[OffsetFetchResponse.OffsetFetchResponseTopic.OffsetFetchResponsePartition]] = {}
        if not everything and not reply.error:
            by_topic = {topic.name: [] for topic in topics or ()}
            for topic in topics or ():
                if topic.name in refused:
                    by_topic[topic.name] = [
                        make(partition_index=index, committed_offset=-1, metadata="", error_code=_HIDDEN)
                        for index in topic.partition_indexes
                    ]
        if reply.error and version < 2:  # no error for the group as a whole: each partition carries it
            for name, index in partitions or ():
                by_topic.setdefault(name, []).append(
                    make(partition_index=index, committed_offset=-1, metadata="", error_code=reply.error)
                )
        for committed in reply.offsets:
            if everything and not may_see(host, request, AclOperation.DESCRIBE, Resource.TOPIC, committed.topic):
                continue
            part = make(
                partition_index=committed.partition,
                committed_offset=committed.offset,
                metadata=committed.metadata,
                error_code=committed.error,
            )
            if version >= 5:
                part.committed_leader_epoch = committed.leader_epoch
            by_topic.setdefault(committed.topic, []).append(part)
        request.reply(
            OffsetFetchResponse(
                topics=[make_topic(name=name, partitions=parts) for name, parts in by_topic.items()],
                error_code=reply.error if version >= 2 else 0,
            )
        )

    if not fetch_error:
        send_response(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        return
    host.groups.ask(request.client, event, send_response)


def _refused_topics(
    host: GroupHost, request: Request[Any], topics: Iterable[OffsetFetchRequest.OffsetFetchRequestTopic]
) -> frozenset[str]:
    return unauthorized_names(host, request, AclOperation.DESCRIBE, Resource.TOPIC, [topic.name for topic in topics])


def _fetch_group(
    host: GroupHost,
    request: Request[OffsetFetchRequest],
    group: OffsetFetchRequest.OffsetFetchRequestGroup,
    done: Callable[[OffsetFetchResponse.OffsetFetchResponseGroup], None],
) -> None:
    """Fetch the offsets of one group of a request of version 8 or later."""
    version = request.version
    by_id = version >= 10
    wanted: list[TopicPartition] | None = None
    named: dict[str, UUID] = {}
    unknown: list[_FetchedTopic] = []
    make = OffsetFetchResponse.OffsetFetchResponsePartitions
    if not is_allowed(host, request, AclOperation.DESCRIBE, Resource.GROUP, group.group_id):
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        done(OffsetFetchResponse.OffsetFetchResponseGroup(group_id=group.group_id, error_code=code))
        return
    if group.topics is not None:
        wanted = []
        for topic in group.topics:
            name: str | None = topic.name
            if by_id:
                known = host.topics.by_id.get(topic.topic_id)
                name = known.name if known is not None else None
            error = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.NONE
            if name is not None and not is_allowed(host, request, AclOperation.DESCRIBE, Resource.TOPIC, name):
                error = _HIDDEN
            if name is None or error:
                refused = [
                    make(partition_index=i, committed_offset=-1, error_code=error) for i in topic.partition_indexes
                ]
                hidden = _FetchedTopic(topic_id=topic.topic_id) if by_id else _FetchedTopic(name=topic.name)
                hidden.partitions = refused
                unknown.append(hidden)
            else:
                named[name] = topic.topic_id
                wanted += map(_NEW_PARTITION, zip(repeat(name), topic.partition_indexes, strict=False))

    def send_response(value: OffsetFetchReply | ErrorCode) -> None:
        reply = OffsetFetchReply(value) if isinstance(value, ErrorCode) else value
        offsets: Iterable[FetchedOffset] = reply.offsets
        if wanted is None and host.authorizer is not None:
            may_describe = partial(may_see, host, request, AclOperation.DESCRIBE, Resource.TOPIC)
            offsets = [committed for committed in offsets if may_describe(committed.topic)]
        topics = [*unknown, *_fetched(host, offsets, named, by_id)]
        done(
            OffsetFetchResponse.OffsetFetchResponseGroup(
                group_id=group.group_id, topics=topics if not reply.error else [], error_code=reply.error
            )
        )

    event = events.OffsetFetch(
        host.next_request_id(),
        group.group_id,
        tuple(wanted) if wanted is not None else None,
        require_stable=request.message.require_stable,
        member_id=group.member_id if version >= 9 else None,
        member_epoch=group.member_epoch if version >= 9 else -1,
    )
    host.groups.ask(request.client, event, send_response)


def _fetched(
    host: GroupHost, offsets: Iterable[FetchedOffset], named: Mapping[str, UUID], by_id: bool
) -> Iterator[_FetchedTopic]:
    """Yield committed offsets by topic. Requested topics come first, also those without an offset.

    A topic that was requested by id and deleted meanwhile gets UNKNOWN_TOPIC_ID. If it were left out, the client would
    take the response for damaged.
    """
    by_topic: dict[str, list[FetchedOffset]] = {name: [] for name in named}
    for committed in offsets:
        by_topic.setdefault(committed.topic, []).append(committed)
    for name, found in by_topic.items():
        if not by_id:
            yield _FetchedTopic(name=name, partitions=_fetched_rows(found))
            continue
        known, asked = host.topics.by_name.get(name), named.get(name)
        if asked is not None and (known is None or known.id != asked):
            gone = [committed._replace(offset=-1, error=ErrorCode.UNKNOWN_TOPIC_ID) for committed in found]
            yield _FetchedTopic(topic_id=asked, partitions=_fetched_rows(gone))
        elif known is not None:
            yield _FetchedTopic(topic_id=known.id, partitions=_fetched_rows(found))


def _fetched_rows(found: Sequence[FetchedOffset]) -> Sequence[_FetchedTopic.OffsetFetchResponsePartitions]:
    if not found:
        return []
    _, partitions, offsets, epochs, metadata, errors, _ = zip(*found, strict=True)
    columns = {
        "partition_index": partitions,
        "committed_offset": offsets,
        "committed_leader_epoch": epochs,
        "metadata": metadata,
        "error_code": errors,
    }
    return StructRows(OffsetFetchResponse.OffsetFetchResponsePartitions, columns)


def offset_delete(host: GroupHost, request: Request[OffsetDeleteRequest]) -> None:
    """Delete offsets of topics that no member of the group subscribes to. Source: KIP-496."""
    message = request.message
    if not message.group_id:
        request.reply(OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID))
        return
    there = host.topics.by_name
    names = [topic.name for topic in message.topics]
    refused = unauthorized_names(host, request, AclOperation.READ, Resource.TOPIC, names)
    known = [
        TopicPartition(topic.name, part.partition_index)
        for topic in message.topics
        if topic.name not in refused and (found := there.get(topic.name)) is not None
        for part in topic.partitions
        if 0 <= part.partition_index < found.partitions
    ]

    def send_response(value: OffsetDeleteReply | ErrorCode) -> None:
        if isinstance(value, ErrorCode) or value.error:
            whole = value if isinstance(value, ErrorCode) else value.error
            request.reply(OffsetDeleteResponse(error_code=whole))
            return
        errors = dict(zip(known, value.errors, strict=True))
        make = OffsetDeleteResponse.OffsetDeleteResponsePartition
        topics = []
        for topic in message.topics:
            parts = []
            for part in topic.partitions:
                key = TopicPartition(topic.name, part.partition_index)
                unknown = _HIDDEN if topic.name in refused else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                error = errors.get(key, unknown)
                parts.append(make(partition_index=part.partition_index, error_code=error))
            topics.append(OffsetDeleteResponse.OffsetDeleteResponseTopic(name=topic.name, partitions=parts))
        request.reply(OffsetDeleteResponse(topics=topics))

    host.groups.ask(
        request.client, events.OffsetDelete(host.next_request_id(), message.group_id, tuple(known)), send_response
    )


HANDLERS: list[ApiHandler[GroupHost]] = [
    api_handler(OffsetCommitRequest, OffsetCommitResponse, offset_commit),
    api_handler(OffsetFetchRequest, OffsetFetchResponse, offset_fetch),
    api_handler(OffsetDeleteRequest, OffsetDeleteResponse, offset_delete),
]
