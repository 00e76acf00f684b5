"""The identifiers that every layer shares, under the names Kafka gives them."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from enum import IntEnum
from functools import partial
from typing import NamedTuple, TypeAlias

MemberId: TypeAlias = str
Generation: TypeAlias = int
Offset: TypeAlias = int
TopicId: TypeAlias = uuid.UUID

NO_TOPIC_ID: TopicId = uuid.UUID(int=0)
"""The UUID that means "no topic id" on the wire."""
NO_POSITION: Offset = -1
"""The number that means "no offset" when a push consumer is started that finds its start itself."""


TOPIC_NAME_RULE = "1 to 249 of letters, digits, '.', '_' and '-'"
"""Kafka's rule for names of topics, for error texts."""
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


QUORUM_TOPIC = "__cluster_metadata"
"""The name of the log of Apache Kafka's quorum, which no topic may have: its folder marks a data folder as Kafka's."""


def topic_name_allowed(name: str) -> bool:
    """Return whether a topic may have this name."""
    return name not in (".", "..") and _TOPIC_NAME.fullmatch(name) is not None


class TopicPartition(NamedTuple):
    """One partition of one topic; sorts by topic, then partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


topic_partition = partial(tuple.__new__, TopicPartition)
"""Make a `TopicPartition` of a pair, three times as fast as its constructor does."""


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return partition numbers by topic, both sorted."""
    found: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        found.setdefault(topic, []).append(number)
    return found


class AclOperation(IntEnum):
    """The operation that an access rule allows or denies, by the protocol's numbers; ANY is for filters."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPattern(IntEnum):
    """The meaning of a rule's name: literal, or a prefix of names. ANY and MATCH are for filters."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclPermission(IntEnum):
    """The permission of a rule: allow or deny; ANY is for filters."""

    ANY = 1
    DENY = 2
    ALLOW = 3
