"""Existence of topics: a broker that does not know a topic may not have learned of it yet."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from kohort.client.net.cluster import Cluster
from kohort.client.net.metadata import Metadata, TopicInfo
from kohort.client.net.runtime import Runtime
from kohort.errors import ErrorCode, InvalidInputError, error_for
from kohort.ids import TOPIC_NAME_RULE, TopicPartition, topic_name_allowed
from kohort.io.log_throttle import FailureThrottle

log = logging.getLogger("kohort.client")

LOOKUP_ATTEMPTS = 3
"""Number of requests for an unknown topic: brokers learn of a new topic one after the other, and each request may go
to another."""
LOOKUP_RETRY_DELAY_MS = 100.0
_NOT_THERE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE)


def existing_topics(found: Mapping[str, TopicInfo]) -> dict[str, TopicInfo]:
    """Return the topics of a Metadata response that have partitions.

    Raises:
        KafkaError: A topic is not visible for another reason than that it does not exist.
    """
    for name, info in found.items():
        if info.error and info.error not in _NOT_THERE:
            raise error_for(info.error, f"topic {name!r}: {info.error.topic_text}")
    return {name: info for name, info in found.items() if info.partitions}


async def present_topics(cluster: Cluster, topics: Iterable[str]) -> dict[str, TopicInfo]:
    """Return those topics that exist, by metadata requests and not from a cache.

    A topic is left out if `LOOKUP_ATTEMPTS` requests in a row did not know it.

    Raises:
        KafkaError: A topic is not visible for another reason than that it does not exist.
    """
    wanted = set(topics)
    found: dict[str, TopicInfo] = {}
    for turn in range(LOOKUP_ATTEMPTS):
        if turn:
            await cluster.runtime.sleep(LOOKUP_RETRY_DELAY_MS)
        found |= existing_topics(await cluster.describe_topics(wanted - found.keys()))
        if len(found) == len(wanted):
            break
    return found


def check_topic_names(topics: Iterable[str]) -> None:
    """Refuse names that no topic can have.

    Raises:
        InvalidInputError: INVALID_TOPIC_EXCEPTION, with the name and the rule.
    """
    for topic in topics:
        if not topic_name_allowed(topic):
            raise InvalidInputError(
                f"topic name {topic[:300]!r} is not allowed: {TOPIC_NAME_RULE}", ErrorCode.INVALID_TOPIC_EXCEPTION
            )


class MissingTopicWarnings:
    """Throttled warnings for topics and partitions that are subscribed or assigned but do not exist."""

    def __init__(self, runtime: Runtime) -> None:
        self._throttle = FailureThrottle(lambda: runtime.now_ms)

    def check_topics(self, metadata: Metadata, subscribed: Iterable[str], partitions: Iterable[TopicPartition]) -> None:
        """Compare the topics and partitions to read with the latest metadata."""
        topics = {*subscribed, *(partition.topic for partition in partitions)}
        known = {topic: metadata.topics[topic] for topic in topics if topic in metadata.topics}
        for topic, info in known.items():
            if not info.error or info.partitions:
                if self._throttle.end_failure(topic):
                    log.info("topic %r is available now, and its records are read", topic)
            elif info.error is not ErrorCode.LEADER_NOT_AVAILABLE and self._throttle.should_log(topic):
                why = "does not exist" if info.error in _NOT_THERE else f"can't be read ({info.error.text})"
                log.warning("topic %r %s: no records are read from it; retrying", topic, why)
        for partition in partitions:
            count = len(known[partition.topic].partitions) if partition.topic in known else 0
            if not count or partition.partition in known[partition.topic].partitions:
                self._throttle.end_failure(partition)
            elif self._throttle.should_log(partition):
                text = "%s does not exist, so nothing is read from it; retrying: topic %r has %d partitions"
                log.warning(text, partition, partition.topic, count)
