"""A look at a topic's records: some of the newest, or from an offset on. Bounded in number, bytes and time."""

from __future__ import annotations

import base64
import codecs
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from kohort.client.consumer.consumer import Consumer
from kohort.columns.record import Record
from kohort.errors import InvalidInputError, KafkaError, NotFoundError, RetriableError
from kohort.ids import TopicPartition
from kohort.schema_registry.prefix import has_prefix, schema_id
from kohort.schema_registry.registry import SchemaRegistry
from kohort.schema_registry.shown_values import value_as_json

RECORDS_SHOWN_MAX = 200
"""The most records of a look."""
RECORDS_SCANNED_MAX = 20_000
"""The most records that a look reads, also to filter them."""
BYTES_SCANNED_MAX = 32 << 20
"""The most bytes of keys, values and headers that a look reads."""
SCAN_S = 5.0
"""The longest time for reading, after the partitions' offsets are known."""
FIELD_BYTES_MAX = 4_096
"""The most bytes of a key, a value or a header that a page gets."""
HEADERS_SHOWN_MAX = 50
"""The most headers of a record that a page gets."""
INDENTED_MAX = 4 * FIELD_BYTES_MAX
"""The longest indented JSON of a field. Indented, 4,096 bytes of nested lists become 3.7 MB."""
ANSWER_BYTES_MAX = 8 << 20
"""The most bytes of the records that a page gets, as JSON. A zero byte alone takes six."""
DECODED_BYTES_MAX = 256 << 10
"""The largest value that is read by its schema: as Python objects it may take 200 times its size, 50 MiB."""
REGISTRY_MS = 2_000
"""How long a look waits for a schema registry. After one failure it asks no more."""
DECODE_S = 5.0
"""How long a look reads values by their schemas. Later ones are shown as they are: 200 large values take minutes."""
_POLL_MS = 200
_JSON_MARKS: Final = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\Z)|[\[\]{},:]', re.DOTALL)
"""Strings, and the characters that a line or a space follows in indented JSON."""
_SETTINGS = {
    "group.id": None,
    "enable.auto.commit": False,
    "allow.auto.create.topics": False,
    "auto.offset.reset": "earliest",
    "fetch.max.bytes": 4 << 20,
    "max.poll.records": 1_000,
    "max.decompressed.batch.bytes": BYTES_SCANNED_MAX,
    "queued.max.bytes": BYTES_SCANNED_MAX,
}
"""The settings of the consumer of a look, whatever the file of client properties says."""

View = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PeekRequest:
    """A request of the dashboard to show some records of a topic.

    Args:
        topic: The topic.
        partition: The partition; None: all.
        offset: The offset at which reading begins; None: the newest records.
        limit: The most records, from 1 to `RECORDS_SHOWN_MAX`.
        contains: A text that the key, the value or a header must contain; empty: any.

    Raises:
        InvalidInputError: A number is out of range, or there is an offset without a partition.
    """

    topic: str
    partition: int | None = None
    offset: int | None = None
    limit: int = 50
    contains: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= RECORDS_SHOWN_MAX:
            raise InvalidInputError(f"limit {self.limit}: give a number from 1 to {RECORDS_SHOWN_MAX}")
        if self.partition is not None and not 0 <= self.partition < 2**31:
            raise InvalidInputError(f"partition {self.partition}: there is no such number")
        if self.offset is not None and (self.partition is None or not 0 <= self.offset < 2**63):
            raise InvalidInputError(f"offset {self.offset}: give a number from 0 on, and a partition")


@dataclass(slots=True)
class _Scan:
    """The records found so far for a `PeekRequest`, and how many records and bytes were read."""

    request: PeekRequest
    ends: Mapping[TopicPartition, int]
    found: dict[TopicPartition, deque[Record]] = field(default_factory=dict)
    records: int = 0
    bytes: int = 0

    def take_record(self, record: Record) -> None:
        """Count a record that was read, and keep it if it matches the request.

        Of the newest records at most `limit` are kept for a partition: a later one replaces the oldest.
        """
        fields = [record.key or b"", record.value or b"", *(value or b"" for _, value in record.headers)]
        fields += [name.encode() for name, _ in record.headers]
        self.records += 1
        self.bytes += sum(map(len, fields))
        tp = TopicPartition(record.topic, record.partition)
        if record.offset >= self.ends.get(tp, 0):
            return
        wanted = self.request.contains.encode()
        if wanted and not any(wanted in data for data in fields):
            return
        newest = self.request.offset is None
        kept = self.found.setdefault(tp, deque(maxlen=self.request.limit if newest else None))
        if newest or len(kept) < self.request.limit:
            kept.append(record)

    @property
    def stop_reason(self) -> str | None:
        """The limit that stops the search, in words; None: none is reached yet."""
        if self.request.offset is not None and sum(map(len, self.found.values())) >= self.request.limit:
            return "limit"
        if self.records >= RECORDS_SCANNED_MAX:
            return f"{RECORDS_SCANNED_MAX} records were read"
        if self.bytes >= BYTES_SCANNED_MAX:
            return f"{BYTES_SCANNED_MAX >> 20} MiB were read"
        return None


def peek(
    servers: str,
    settings: Mapping[str, Any],
    request: PeekRequest,
    now_s: Callable[[], float] = time.monotonic,
    registry: SchemaRegistry | None = None,
) -> View:
    """Read some records by a consumer without a group, so that no group's offsets move; return them as a JSON object.

    Args:
        servers: HOST:PORT, several with commas between.
        settings: Properties of consumers.
        request: The records to show.
        now_s: The monotonic clock, in s.
        registry: The schema registry by which values are decoded; None: they are shown as they are.

    Returns:
        `records`: the newest first, or in the order of offsets; `scanned`: the number of records that were read;
            `stopped`: why reading ended before the partitions' ends, or None.

    Raises:
        NotFoundError: There is no such topic or partition.
        KafkaError: The cluster can't be reached, or refuses.
    """
    with Consumer(servers, **{**settings, **_SETTINGS}) as consumer:
        partitions = _partitions(consumer, request)
        starts = consumer.beginning_offsets(partitions)
        ends = consumer.end_offsets(partitions)
        scan = _Scan(request, ends)
        begins = {tp: _first_offset(request, starts[tp], ends[tp], len(partitions)) for tp in partitions}
        waiting = [tp for tp in partitions if begins[tp] < ends[tp]]
        stopped = None
        if waiting:
            consumer.assign(waiting)
            for tp in waiting:
                consumer.seek(tp, begins[tp])
            stopped = _scan(consumer, scan, waiting, now_s() + SCAN_S, now_s)
    views, stopped_by = _views(_in_order(scan), None if registry is None else _Decoding(registry, now_s))
    return {
        "records": views,
        "scanned": scan.records,
        "stopped": stopped_by or (None if stopped == "limit" else stopped),
    }


def _scan(
    consumer: Consumer,
    scan: _Scan,
    waiting: Sequence[TopicPartition],
    deadline_s: float,
    now_s: Callable[[], float],
) -> str | None:
    while any(consumer.position(tp) < scan.ends[tp] for tp in waiting):
        for record in consumer.poll(timeout_ms=_POLL_MS):
            scan.take_record(record)
            if stopped := scan.stop_reason:
                return stopped
            if now_s() >= deadline_s:
                return f"{SCAN_S:.0f} s have passed"
        if now_s() >= deadline_s:
            return f"{SCAN_S:.0f} s have passed"
    return None


def _partitions(consumer: Consumer, request: PeekRequest) -> list[TopicPartition]:
    numbers = sorted(consumer.partitions_for_topic(request.topic) or ())
    if not numbers:
        raise NotFoundError(f"there is no topic {request.topic!r}")
    if request.partition is None:
        return [TopicPartition(request.topic, number) for number in numbers]
    if request.partition not in numbers:
        raise NotFoundError(f"topic {request.topic!r} has no partition {request.partition}")
    return [TopicPartition(request.topic, request.partition)]


def _first_offset(request: PeekRequest, start: int, end: int, partitions: int) -> int:
    """Return the offset of a partition at which reading begins.

    Without a requested offset, this is some records before the end: as many as are shown, or more if they are searched.
    """
    if request.offset is not None:
        return max(start, request.offset)
    share = max(1, RECORDS_SCANNED_MAX // partitions)
    return max(start, end - (share if request.contains else min(share, request.limit)))


def _in_order(scan: _Scan) -> list[Record]:
    records = [record for kept in scan.found.values() for record in kept]
    if scan.request.offset is not None:
        return records
    records.sort(key=lambda record: (record.timestamp, record.partition, record.offset), reverse=True)
    return records[: scan.request.limit]


def _views(records: Sequence[Record], decoding: _Decoding | None) -> tuple[list[View], str | None]:
    """Return records as JSON objects up to a limit of bytes, at least one; and why others are left out, or None."""
    views: list[View] = []
    size = 0
    for record in records:
        view = record_view(record, decoding)
        size += len(msgspec.json.encode(view))
        if views and size > ANSWER_BYTES_MAX:
            return views, f"{ANSWER_BYTES_MAX >> 20} MiB are shown"
        views.append(view)
    return views, None


class _Decoding:
    """The decoding of record values by a schema registry for one request, with a limit of time for all values."""

    def __init__(self, registry: SchemaRegistry, now_s: Callable[[], float]) -> None:
        self._registry, self._now_s = registry, now_s
        self._until_s = now_s() + DECODE_S
        self._failure = ""

    def value_view(self, data: bytes | None) -> View | None:
        """Return a value as a JSON object, decoded if it begins with a schema id; raw with the reason if that fails."""
        if data is None or not has_prefix(data):
            return field_view(data)
        try:
            if not self._failure and self._now_s() > self._until_s:
                self._failure = f"values are read by their schemas for {DECODE_S:.0f} s: look at fewer records"
            if self._failure:
                raise RetriableError(self._failure)
            return {
                **(field_view(value_as_json(self._registry, data)) or {}),
                "size": len(data),
                "schema": schema_id(data),
            }
        except KafkaError as error:
            if isinstance(error, RetriableError):
                self._failure = error.message
            return {**(field_view(data) or {}), "problem": error.message[:FIELD_BYTES_MAX]}


def record_view(record: Record, decoding: _Decoding | None = None) -> View:
    """Return a record as a JSON object; fields are text if they are UTF-8, else base64, cut to `FIELD_BYTES_MAX`."""
    return {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_by": ("producer", "broker")[record.timestamp_type],
        "key": field_view(record.key),
        "value": field_view(record.value) if decoding is None else decoding.value_view(record.value),
        "headers": [{"name": name, **(field_view(data) or {})} for name, data in _shown_headers(record)],
        "headers_left_out": max(0, len(record.headers) - HEADERS_SHOWN_MAX),
    }


def _shown_headers(record: Record) -> Iterator[tuple[str, bytes | None]]:
    for name, data in record.headers[:HEADERS_SHOWN_MAX]:
        yield _cut_text(name.encode()), data


def _cut_text(data: bytes) -> str:
    """Decode the first `FIELD_BYTES_MAX` bytes as UTF-8, without a character that does not end there.

    Raises:
        UnicodeDecodeError: These bytes are not UTF-8.
    """
    return codecs.getincrementaldecoder("utf-8")().decode(data[:FIELD_BYTES_MAX], len(data) <= FIELD_BYTES_MAX)


def field_view(data: bytes | None) -> View | None:
    """Return a key, value or header as a JSON object with `text` or `base64`, its size and whether it was cut.

    JSON text is indented. None for null.
    """
    if data is None:
        return None
    shown = data[:FIELD_BYTES_MAX]
    view: View = {"size": len(data), "cut": len(data) > len(shown)}
    try:
        if len(shown) < len(data) <= BYTES_SCANNED_MAX:
            data.decode()  # text up to its end
        text = _cut_text(data)
    except UnicodeDecodeError:
        return {**view, "base64": base64.b64encode(shown).decode()}
    view["text"], view["json"] = text, False
    if not view["cut"] and text[:1] in ("{", "["):
        indented = _indented(text)
        if indented is not None:
            view["text"], view["json"] = indented, True
    return view


def _indented(text: str) -> str | None:
    """Return JSON text with indentation; None: the text is no JSON, or would become longer than `INDENTED_MAX`.

    The length is counted before the indented text is made.
    """
    size, depth = len(text), 0
    for mark in _JSON_MARKS.finditer(text):
        character = text[mark.start()]
        if character == '"':
            continue
        depth += (character in "[{") - (character in "]}")
        size += 1 if character == ":" else 1 + 2 * max(0, depth)
        if size > INDENTED_MAX:
            return None
    try:
        return msgspec.json.format(text, indent=2)
    except (msgspec.DecodeError, RecursionError):
        return None  # a text that begins as JSON does
