"""Reads ranges of offsets without a group: big fetches, one ahead, bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kohort.ids import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa


class RangeReader:
    """Fetches offsets [start, end) of partitions as Arrow batches.

        with RangeReader("127.0.0.1:9092", columns=("key", "value", "offset")) as reader:
            for batch in reader.read(TopicPartition("flights", 0), 0, 100_000):
                ...

    Keeps its connections between reads. Holds at most three fetch answers of `fetch_bytes`. One thread may use it at a time.
    """

    def __init__(
        self,
        bootstrap_servers: str | list[str],
        *,
        columns: Sequence[str] | None = None,
        fetch_bytes: int = 8 * 1024 * 1024,
        **settings: Any,
    ) -> None:
        """Connects with the first call.

        Args:
            bootstrap_servers: HOST:PORT, several with commas between or as a list.
            columns: Out of key, value, topic, partition, offset, timestamp, timestampType, headers; None: all.
            fetch_bytes: Asked for at once from one partition.
            **settings: Of `ConsumerConfig` (isolation_level, check_crcs, security …), by either kind of name.
        """

    def read(self, partition: TopicPartition, start: int, end: int, *, fail_on_data_loss: bool = True) -> "Iterator[pa.RecordBatch]":
        """Batches with the records of [start, end), in order, at most one fetch answer each; ends early at no offset short of `end`.

        Offsets without a record (compacted, control, aborted records) are passed over.

        Args:
            partition: Which.
            start: The first offset.
            end: The offset after the last one; must not lie after the partition's end, or `read` waits for data until
                `default_api_timeout_ms` has passed without any.
            fail_on_data_loss: False goes on at the first offset there is when retention has removed a part.

        Raises:
            OffsetError: a part of the range is gone; names offsets.
            TimedOutError: no data for `default_api_timeout_ms`.
            CorruptDataError: a damaged batch; names its offset.
        """

    def partitions_of(self, topics: Iterable[str], timeout_ms: float | None = None) -> dict[str, list[int]]:
        """Partition numbers of topics, asked now; unknown topics are left out."""

    def topics(self, timeout_ms: float | None = None) -> list[str]:
        """All topics, sorted; internal ones left out."""

    def beginning_offsets(self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None) -> dict[TopicPartition, int]:
        """First offsets that can be read."""

    def end_offsets(self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None) -> dict[TopicPartition, int]:
        """Offsets after the last one that can be read (the last stable one with read_committed)."""

    def offsets_for_times(self, times: Mapping[TopicPartition, int], timeout_ms: float | None = None) -> dict[TopicPartition, Any]:
        """`OffsetAndTimestamp` of the first record at or after a time (ms since the epoch); None where there is none."""

    def close(self) -> None:
        """Close the connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
