"""What partitions there are and where they begin and end, as calls that wait: the same for every face over a thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kohort.calls import checked
from kohort.client.net.thread_driver import ThreadClient
from kohort.client.offset_values import OffsetAndTimestamp
from kohort.client.settings import ConsumerConfig
from kohort.client.topic_offsets import beginning_offsets, end_offsets, offsets_for_times, partitions_of
from kohort.ids import TopicPartition


@checked
class Lookups:
    """Questions to the cluster that need no group and move no position."""

    config: ConsumerConfig

    def __init__(self, client: ThreadClient, config: ConsumerConfig) -> None:
        self.config = config
        self._client = client

    def partitions_of(self, topics: Iterable[str], *, timeout_ms: float | None = None) -> dict[str, list[int]]:
        """Partition numbers of topics, asked now; unknown topics are left out."""
        return self._client.call(partitions_of(self._client.cluster, topics, timeout_ms))

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """First offsets that can be read."""
        return self._client.call(beginning_offsets(self._client.cluster, partitions, timeout_ms))

    def end_offsets(
        self, partitions: Iterable[TopicPartition], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """Offsets after the last one that can be read (the last stable one with read_committed)."""
        committed = self.config.isolation_level == "read_committed"
        return self._client.call(end_offsets(self._client.cluster, partitions, timeout_ms, read_committed=committed))

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each time (ms since the epoch); None where there is none."""
        return self._client.call(offsets_for_times(self._client.cluster, times, timeout_ms))
