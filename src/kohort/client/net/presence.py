"""Whether topics are there: a broker that does not know one may only not have heard of it yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kohort.client.net.cluster import Cluster
from kohort.client.net.metadata import TopicInfo
from kohort.errors import ErrorCode, error_for

ASKED = 3
"""How often a topic that no broker knows is asked for: a new one is known to one broker after the other, and each
question goes to any of them."""
BETWEEN_MS = 100.0
_NOT_THERE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE)


def there(found: Mapping[str, TopicInfo]) -> dict[str, TopicInfo]:
    """Those of an answer that exist.

    Raises:
        KafkaError: a topic can't be seen for another reason than that it does not exist.
    """
    for name, info in found.items():
        if info.error and info.error not in _NOT_THERE:
            raise error_for(info.error, f"topic {name!r}: {info.error.topic_text}")
    return {name: info for name, info in found.items() if info.partitions}


async def present_topics(
    cluster: Cluster, topics: Iterable[str], timeout_ms: float | None = None
) -> dict[str, TopicInfo]:
    """The topics that exist, asked now; one that is left out was unknown `ASKED` times in a row.

    Raises:
        KafkaError: a topic can't be seen for another reason than that it does not exist.
    """
    wanted = set(topics)
    found: dict[str, TopicInfo] = {}
    for turn in range(ASKED):
        if turn:
            await cluster.runtime.sleep(BETWEEN_MS)
        found |= there(await cluster.describe_topics(wanted - found.keys(), timeout_ms))
        if len(found) == len(wanted):
            break
    return found
