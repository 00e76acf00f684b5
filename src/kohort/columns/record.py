"""One record as an object, in plain Python; the kernel has a compiled twin."""

from __future__ import annotations

from kohort.columns.shapes import Header


class Record:
    """One record of a topic.

    Attributes:
        topic: Name of the topic.
        partition: Index of the partition.
        offset: Offset within the partition.
        timestamp: Milliseconds since the epoch; -1 if the record has none.
        timestamp_type: 0 set by the producer, 1 set by the broker on append.
        key: Bytes or None.
        value: Bytes, or None for a tombstone.
        headers: Pairs of name and bytes or None, in the record's order.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]

    __slots__ = ("headers", "key", "offset", "partition", "timestamp", "timestamp_type", "topic", "value")

    def __init__(  # noqa: PLR0913
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp: int,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: tuple[Header, ...] = (),
        timestamp_type: int = 0,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp = timestamp
        self.key = key
        self.value = value
        self.headers = headers
        self.timestamp_type = timestamp_type

    def _fields(self) -> tuple[object, ...]:
        return (
            self.topic,
            self.partition,
            self.offset,
            self.timestamp,
            self.key,
            self.value,
            self.headers,
            self.timestamp_type,
        )

    def __eq__(self, other: object) -> bool:
        return self._fields() == other._fields() if isinstance(other, Record) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.topic, self.partition, self.offset))

    def __reduce__(self) -> tuple[type[Record], tuple[object, ...]]:
        return Record, self._fields()

    def __repr__(self) -> str:
        return (
            f"Record(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
            f"timestamp={self.timestamp}, key={self.key!r}, value={self.value!r}, headers={self.headers!r})"
        )
