"""Look-ups of partitions and offsets: one function for each facade (`client.net.facades`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from kohort.client import offsets
from kohort.client.net.cluster import Cluster
from kohort.client.net.facades import blocking
from kohort.client.net.runtime import Work
from kohort.client.net.thread_driver import ThreadClient
from kohort.client.offsets import OffsetAndTimestamp
from kohort.client.settings import ConsumerConfig
from kohort.ids import TopicPartition
from kohort.settings.arguments import checks_arguments

T = TypeVar("T")


class LookupContext(Protocol):
    """An interface: the cluster and settings that the functions for look-ups of offsets and partitions need."""

    @property
    def cluster(self) -> Cluster: ...

    @property
    def config(self) -> ConsumerConfig: ...


@dataclass(frozen=True, slots=True)
class LookupOnlyClient:
    """The cluster and settings for look-ups, without a consumer (a `LookupContext`)."""

    cluster: Cluster
    config: ConsumerConfig


async def partitions_of(
    core: LookupContext, topics: Iterable[str], *, timeout_ms: float | None = None
) -> dict[str, list[int]]:
    """Return the partition numbers of topics, by a metadata request and not from a cache; unknown ones are left out."""
    return await offsets.partitions_of(core.cluster, topics, timeout_ms)


async def partitions_for_topic(core: LookupContext, topic: str, *, timeout_ms: float | None = None) -> set[int]:
    """Return a topic's partition numbers, by a metadata request and not from a cache; empty if it does not exist."""
    return set((await offsets.partitions_of(core.cluster, [topic], timeout_ms)).get(topic, ()))


async def beginning_offsets(
    core: LookupContext, partitions: Iterable[TopicPartition], *, timeout_ms: float | None = None
) -> dict[TopicPartition, int]:
    """Look up the first offsets that can be read."""
    return await offsets.beginning_offsets(core.cluster, partitions, timeout_ms)


async def end_offsets(
    core: LookupContext, partitions: Iterable[TopicPartition], *, timeout_ms: float | None = None
) -> dict[TopicPartition, int]:
    """Look up the offsets after the last ones that can be read (the last stable ones with read_committed)."""
    committed = core.config.isolation_level == "read_committed"
    return await offsets.end_offsets(core.cluster, partitions, timeout_ms, read_committed=committed)


async def offsets_for_times(
    core: LookupContext, times: Mapping[TopicPartition, int], *, timeout_ms: float | None = None
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """Look up the first record at or after each time (ms since the epoch); None for a partition that has none.

    With read_committed, records from the last stable offset on do not count, because they can't be read yet.
    """
    committed = core.config.isolation_level == "read_committed"
    return await offsets.offsets_for_times(core.cluster, times, timeout_ms, read_committed=committed)


@checks_arguments
class LookupMethods:
    """A mixin of blocking facades such as Consumer: look-ups of partitions and offsets that need no group."""

    config: ConsumerConfig
    _core: LookupContext

    def __init__(self, client: ThreadClient, config: ConsumerConfig) -> None:
        self.config = config
        self._client = client
        self._core = LookupOnlyClient(client.cluster, config)

    def _call(self, coro: Work[T]) -> T:
        return self._client.call(coro)

    partitions_of = blocking(partitions_of)
    beginning_offsets = blocking(beginning_offsets)
    end_offsets = blocking(end_offsets)
    offsets_for_times = blocking(offsets_for_times)
