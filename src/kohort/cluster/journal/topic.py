"""The journal's topic: created if it does not exist, else checked against what groups need.

A weaker setting is refused, with what to change. The reason: a journal that loses records does so silently, and long
after the start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from kohort.client.admin.configs import describe_configs
from kohort.client.admin.topics import create_topics
from kohort.client.admin.values import ConfigEntry, ConfigResource, NewTopic, ResourceType
from kohort.client.net.cluster import Cluster
from kohort.client.net.metadata import TopicInfo
from kohort.cluster.journal.journal_partition import JournalRefused, JournalSettings, JournalTopic
from kohort.errors import ErrorCode, InvalidInputError, KafkaError, NotAuthorizedError, RetriableError, error_for

BATCH_BYTES_MAX: Final = 32 << 20
"""The largest batch. An append is one batch, since several are not atomic; one group's record takes at most 16 MiB.

Segments have this size too: Kafka refuses a batch larger than a segment. Smaller ones would make a load read less.
"""
PRODUCER_EXPIRATION_MS_MIN: Final = 3_600_000
"""A leader must not forget a producer that appends every five minutes, even if the process is suspended for a while."""
TRANSACTIONAL_ID_EXPIRATION_MS_MIN: Final = 2 * 86_400_000
"""The daily renewal of the epoch keeps the transactional id alive."""
_SEEN_MS: Final = 30_000
"""Timeout until all brokers know a created topic."""
_BROKER_MS: Final = 3_000
"""Request timeout for a broker's configuration; a broker that exceeds it may hang."""
_AWAY_MS: Final = 30_000
"""Time after which a hanging broker has left the cluster."""

_Check: TypeAlias = tuple[str, str, Callable[[str], bool], str]
"""A property, the value to set, a test of the current value, and the reason."""

log = logging.getLogger("kohort.cluster")


def _at_least(limit: int) -> Callable[[str], bool]:
    return lambda value: int(value) >= limit


def _needed(replicas: int) -> list[_Check]:
    """Return the topic-level configs that a journal's topic must have, by name, for this replication factor."""
    in_sync = 2 if replicas >= 3 else 1
    return [
        ("cleanup.policy", "compact", lambda value: value == "compact", "offsets would be deleted by their age"),
        (
            "min.insync.replicas",
            str(in_sync),
            _at_least(in_sync),
            "what is acknowledged would be lost with one broker",
        ),
        (
            "unclean.leader.election.enable",
            "false",
            lambda value: value == "false",
            "a leader that lags would take acknowledged offsets back",
        ),
        (
            "message.timestamp.type",
            "LogAppendTime",
            lambda value: value == "LogAppendTime",
            "leaders count a producer's silence by its batches' times, and would forget one whose clock is late",
        ),
        ("max.message.bytes", str(BATCH_BYTES_MAX), _at_least(BATCH_BYTES_MAX), "large groups could not be written"),
        ("segment.bytes", str(BATCH_BYTES_MAX), _at_least(BATCH_BYTES_MAX), "large groups could not be written"),
    ]


_MADE_WITH: Final = {"min.cleanable.dirty.ratio": "0.1"}
"""Further properties of a created topic: early compaction, since a shard reads its whole log when it begins."""


async def journal_topic(cluster: Cluster, settings: JournalSettings) -> JournalTopic:
    """Create the journal's topic, or check an existing one. A coroutine of the client's core.

    Raises:
        JournalRefused: the topic or the brokers do not fit; the message says which setting to change.
        NotAuthorizedError: no permission to describe it, to create it, or to read its configuration; says which.
        KafkaError: the cluster does not answer.
    """
    name = settings.topic
    info = await _seen(cluster, name)
    if info is None:
        await _make(cluster, settings)
        info = await _made(cluster, name)
    brokers = len(cluster.metadata.brokers)
    replicas = min((len(part.replicas) for part in info.partitions.values()), default=0)
    wanted = min(settings.replication_factor, brokers)
    if replicas < wanted:
        raise JournalRefused(
            f"topic {name} has {replicas} replicas of a partition, {wanted} are needed: raise it with Kafka's "
            "kafka-reassign-partitions"
        )
    if replicas < settings.replication_factor:
        log.warning(
            "journal topic %s has only %d replicas, because the cluster has only %d brokers: %s. Use at least %d "
            "brokers",
            name,
            replicas,
            brokers,
            "groups are lost with that broker"
            if replicas == 1
            else "an acknowledged commit may be lost with one of them",
            settings.replication_factor,
        )
    await _check_topic(cluster, name, replicas)
    await _check_brokers(cluster)
    return JournalTopic(name, info.topic_id, len(info.partitions))


async def _seen(cluster: Cluster, name: str) -> TopicInfo | None:
    info = (await cluster.describe_topics([name])).get(name)
    if info is None or info.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return None
    if info.error and not info.partitions:
        error = error_for(info.error, f"topic {name}: {info.error.text}")
        raise _right(error, f"DESCRIBE on topic {name}")
    return info


async def _make(cluster: Cluster, settings: JournalSettings) -> None:
    replicas = max(1, min(settings.replication_factor, len(cluster.metadata.brokers)))
    configs = {check[0]: check[1] for check in _needed(replicas)} | _MADE_WITH
    topic = NewTopic(settings.topic, settings.partitions, replicas, configs)
    made = await create_topics(cluster, [topic])
    error = made.errors.get(settings.topic)
    if error is not None and error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
        raise _right(error, f"CREATE on topic {settings.topic}, or the topic made for them")


async def _made(cluster: Cluster, name: str) -> TopicInfo:
    """Wait until all partitions of the created journal topic have leaders, and return it."""

    async def made_once() -> TopicInfo:
        info = await _seen(cluster, name)
        if info is None or not info.partitions or any(part.leader < 0 for part in info.partitions.values()):
            raise error_for(ErrorCode.LEADER_NOT_AVAILABLE, f"topic {name} was made, and is not seen by all brokers")
        return info

    return await cluster.retry_call(made_once, f"topic {name}", _SEEN_MS)


async def _check_topic(cluster: Cluster, name: str, replicas: int) -> None:
    resource = ConfigResource(ResourceType.TOPIC, name)
    entries = await _described(cluster, resource, f"DESCRIBE_CONFIGS on topic {name}")
    wrong = [
        f"{key}={value} must be {good} ({why})"
        for key, good, fits, why in _needed(replicas)
        if (value := _value(entries, key)) is not None and not fits(value)
    ]
    if wrong:
        change = ",".join(f"{key}={good}" for key, good, fits, _ in _needed(replicas) if not _fits(entries, key, fits))
        raise JournalRefused(
            f"topic {name} does not keep what groups commit: {'; '.join(wrong)}. Change it: kafka-configs --alter "
            f"--topic {name} --add-config {change}"
        )


async def _check_brokers(cluster: Cluster) -> None:
    """Check how long every broker remembers producer ids and transactional ids without use.

    Raises:
        JournalRefused: `producer.id.expiration.ms` or `transactional.id.expiration.ms` is below the minimum.
    """
    limits = {
        "producer.id.expiration.ms": PRODUCER_EXPIRATION_MS_MIN,
        "transactional.id.expiration.ms": TRANSACTIONAL_ID_EXPIRATION_MS_MIN,
    }
    for broker in sorted(cluster.metadata.brokers):
        entries = await _broker_entries(cluster, broker)
        for key, limit in limits.items():
            value = _value(entries, key)
            if value is not None and int(value) < limit:
                raise JournalRefused(
                    f"broker {broker} has {key}={value}, and would let a coordinator that was deposed write again: it "
                    f"must be {limit} or more, on every broker"
                )


async def _broker_entries(cluster: Cluster, broker: int) -> dict[str, ConfigEntry]:
    """Return a broker's configuration; nothing if it has left the cluster, since it leads no partition then."""
    resource, runtime = ConfigResource(ResourceType.BROKER, str(broker)), cluster.runtime
    deadline_ms = runtime.now_ms + _AWAY_MS
    while True:
        try:
            return await _described(cluster, resource, "DESCRIBE_CONFIGS on the cluster", _BROKER_MS)
        except RetriableError:
            await cluster.refresh_metadata()
            if broker not in cluster.metadata.brokers:
                log.warning("broker %d has left the cluster: its producer.id.expiration.ms is not checked", broker)
                return {}
            if runtime.now_ms > deadline_ms:
                raise


async def _described(
    cluster: Cluster, resource: ConfigResource, right: str, timeout_ms: float | None = None
) -> dict[str, ConfigEntry]:
    found = await describe_configs(cluster, [resource], timeout_ms=timeout_ms)
    error = found.errors.get(resource)
    if error is not None:
        raise _right(error, right)
    return found.result(resource)


def _value(entries: Mapping[str, ConfigEntry], key: str) -> str | None:
    entry = entries.get(key)
    return None if entry is None else entry.value


def _fits(entries: Mapping[str, ConfigEntry], key: str, fits: Callable[[str], bool]) -> bool:
    value = _value(entries, key)
    return value is None or fits(value)


def _right(error: KafkaError, right: str) -> KafkaError:
    """Return the error, with the name of the missing permission if authorization failed."""
    if isinstance(error, NotAuthorizedError):
        return NotAuthorizedError(f"{error.message}. The coordinators' user needs {right}", error.code)
    if isinstance(error, InvalidInputError):
        return JournalRefused(error.message, error.code)
    return error
