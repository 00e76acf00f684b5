"""Records of push groups as bytes: key versions of our own, which Kafka's readers skip as unknown."""

from __future__ import annotations

from typing import Any

from kohort.groups.records import PushGroupSaved, PushMemberSaved, PushOwned, TopicPartitions
from kohort.wire.message import Message
from kohort.wire.schema import Struct, array, boolean, int8, int16, int32, int64, string, uuid

END, BEGIN, NONE = range(3)
"""Where a consumer reads a partition from that has no position; NONE: it finds that itself."""


class PushGroupKey(Message, key=10010, versions=(0, 0)):
    """Key of a push group."""

    group: str = string()


class PushGroupValue(Message, key=10010, versions=(0, 0)):
    """Since when it is empty."""

    state_ms: int = int64()


class PushMemberKey(Message, key=10011, versions=(0, 0)):
    """Key of a consumer."""

    group_id: str = string()
    member_id: str = string()


class PushMemberValue(Message, key=10011, versions=(0, 0)):
    """What it said as it registered."""

    class TopicStreams(Struct):
        """A topic and how many streams read it."""

        topic: str = string()
        streams: int = int16()

    client_id: str = string()
    client_host: str = string()
    topics: list[TopicStreams] = array(TopicStreams)
    regex: str | None = string(nullable=True, default=None)
    excluding: bool = boolean()
    streams: int = int16()
    auto_commit: bool = boolean()
    reset: int = int8()  # END, BEGIN or NONE
    session_timeout_ms: int = int32()


class PushOwnedKey(Message, key=10012, versions=(0, 0)):
    """Key of what a consumer may read."""

    group_id: str = string()
    member_id: str = string()


class PushOwnedValue(Message, key=10012, versions=(0, 0)):
    """Partitions by topic."""

    class Partitions(Struct):
        """Partitions of one topic."""

        topic_id: Any = uuid()
        partitions: list[int] = array(int32)

    topics: list[Partitions] = array(Partitions)


def group_value(record: PushGroupSaved) -> Message:
    """The message of it."""
    return PushGroupValue(state_ms=record.state_ms)


def read_group(fields: tuple[Any, ...], data: bytes, version: int) -> PushGroupSaved:
    """From the key's fields and the value's bytes."""
    return PushGroupSaved(fields[0], PushGroupValue.decode(data, version).state_ms)


def member_value(record: PushMemberSaved) -> Message:
    """The message of it."""
    make = PushMemberValue.TopicStreams
    return PushMemberValue(
        client_id=record.client_id,
        client_host=record.client_host,
        topics=[make(topic=topic, streams=streams) for topic, streams in record.topics],
        regex=record.regex,
        excluding=record.excluding,
        streams=record.streams,
        auto_commit=record.auto_commit,
        reset=NONE if record.from_begin is None else int(record.from_begin),
        session_timeout_ms=record.session_timeout_ms,
    )


def read_member(fields: tuple[Any, ...], data: bytes, version: int) -> PushMemberSaved:
    """From the key's fields and the value's bytes."""
    value = PushMemberValue.decode(data, version)
    return PushMemberSaved(
        fields[0],
        fields[1],
        value.client_id,
        value.client_host,
        tuple((each.topic, each.streams) for each in value.topics),
        value.regex,
        value.excluding,
        value.streams,
        value.auto_commit,
        None if value.reset == NONE else value.reset == BEGIN,
        value.session_timeout_ms,
    )


def owned_value(record: PushOwned) -> Message:
    """The message of it."""
    make = PushOwnedValue.Partitions
    return PushOwnedValue(
        topics=[make(topic_id=each.topic_id, partitions=list(each.partitions)) for each in record.partitions]
    )


def read_owned(fields: tuple[Any, ...], data: bytes, version: int) -> PushOwned:
    """From the key's fields and the value's bytes."""
    topics = PushOwnedValue.decode(data, version).topics
    return PushOwned(
        fields[0], fields[1], tuple(TopicPartitions(each.topic_id, tuple(each.partitions)) for each in topics)
    )
