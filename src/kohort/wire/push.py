"""Frames of the push protocol: a consumer registers once, then answers the coordinator's requests.

A frame is an int32 size followed by that many bytes. Requests begin with an int16 type, from 20480 on, far from Kafka's
API keys. Responses have neither a type nor a number and are matched by their order. Strings are an int16 length and
UTF-8, a boolean is one byte. Lists follow a `num_…` field and have no count of their own.

| request | int16 | fields | response |
|---|---|---|---|
| ClusterMetadata | 20480 | none, or group_id | error_code, coordinator_id int16, num_brokers int16, brokers |
| RegisterConsumer | 20481 | those of `RegisterConsumerRequest`, in order; the last is an int32 | error_code |
| Ping | 20482 | num_retries int16 | nothing, or num_partition int16, offsets |
| Stop | 20483 | none | RestartFetcher: error_code |
| Start | 20484 | num_partitions int16, partitions with offsets | RestartFetcher: error_code |

An error_code is one of Kafka's, as an int16. A broker is id int32, host string, port int32. A partition is topic
string, partition string, offset int64. The partition string is the leader's id, a dash, and the partition's number.

Source: spec 4.3.
"""

from __future__ import annotations

import enum
import json  # not msgspec, without which clients start
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kohort.ids import TopicPartition
from kohort.wire.schema import Buffer, WireError

PUSH_TYPES: Final = 20_480
"""The first request type: the first two bytes of a frame of the push protocol are at least this number."""
NUMBER_MAX: Final = 32_767
"""The maximum number of partitions, brokers, or bytes of a string: an int16 counts them."""
COORDINATOR_ID_MAX: Final = 32_767
"""The maximum coordinator id of the push protocol, an int16, whatever broker ids are elsewhere."""
NO_COORDINATOR: Final = -1
_DIGITS_MAX: Final = 5
"""The digits of `NUMBER_MAX`. Python reads no number of more than 4,300."""

_INT16, _INT32, _INT64 = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")


class PushType(enum.IntEnum):
    """The type of a request of the push protocol: the first two bytes of its frame."""

    CLUSTER_METADATA = 20_480
    REGISTER_CONSUMER = 20_481
    PING = 20_482
    STOP = 20_483
    START = 20_484

    @property
    def api(self) -> str:
        """The request's name in the protocol text."""
        return self.name.title().replace("_", "")


class PushBroker(NamedTuple):
    """A broker's id and address in a ClusterMetadata response of the push protocol."""

    id: int
    host: str
    port: int


class PositionedPartition(NamedTuple):
    """A partition and the next offset to read. `leader` is the leader named in the partition string."""

    topic: str
    leader: int
    partition: int
    offset: int


class _FrameReader:
    """A reader of a frame's fields; `what` names the frame in errors."""

    __slots__ = ("_data", "_position", "what")

    def __init__(self, data: Buffer, what: str) -> None:
        self._data = bytes(data)
        self._position = 0
        self.what = what

    def number(self, form: struct.Struct) -> int:
        try:
            (value,) = form.unpack_from(self._data, self._position)
        except struct.error:
            raise WireError(f"{self.what}: it ends after {len(self._data)} bytes, within a number") from None
        self._position += form.size
        return int(value)

    def string(self) -> str:
        size = self.number(_INT16)
        end = self._position + size
        if size < 0 or end > len(self._data):
            raise WireError(f"{self.what}: a string of {size} bytes at {self._position} of {len(self._data)}")
        raw, self._position = self._data[self._position : end], end
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise WireError(f"{self.what}: a string that is not UTF-8: {error}") from None

    def boolean(self) -> bool:
        if self._position >= len(self._data):
            raise WireError(f"{self.what}: it ends after {len(self._data)} bytes, within a boolean")
        value = self._data[self._position]
        self._position += 1
        if value > 1:
            raise WireError(f"{self.what}: a boolean of {value}")
        return bool(value)

    def count(self) -> int:
        number = self.number(_INT16)
        if number < 0:
            raise WireError(f"{self.what}: a list of {number}")
        return number

    @property
    def left(self) -> int:
        return len(self._data) - self._position

    def check_fully_read(self) -> None:
        if self.left:
            raise WireError(f"{self.what}: {self.left} bytes too many")

    def kind(self, wanted: PushType) -> None:
        kind = self.number(_INT16)
        if kind != wanted:
            raise WireError(f"{self.what}: its type is {kind}, not {int(wanted)}")


def _text(value: str) -> bytes:
    raw = value.encode()
    if len(raw) > NUMBER_MAX:
        raise WireError(f"a string of {len(raw)} bytes; a frame holds {NUMBER_MAX}")
    return _INT16.pack(len(raw)) + raw


def _encode_count(count: int, what: str) -> bytes:
    if count > NUMBER_MAX:
        raise WireError(f"{count} {what}; a frame holds {NUMBER_MAX}")
    return _INT16.pack(count)


def with_length_prefix(body: bytes) -> bytes:
    """Return a whole frame: its size, not counting itself, and the bytes."""
    return _INT32.pack(len(body)) + body


def push_frame_type(frame: Buffer) -> int | None:
    """Return a frame's type if it is of the push protocol, known or not; None for a frame of Kafka's own."""
    if len(frame) < _INT16.size:
        return None
    kind = int(_INT16.unpack_from(frame)[0])
    return kind if kind >= PUSH_TYPES else None


# -- consumers' requests


@dataclass(frozen=True, slots=True)
class ClusterMetadataRequest:
    """A request of the push protocol for the coordinator and the brokers.

    `group_id` is the group whose coordinator is wanted; None: the elected coordinator.
    """

    group_id: str | None = None

    def encode_frame(self) -> bytes:
        """Return the frame's bytes without their size."""
        return _INT16.pack(PushType.CLUSTER_METADATA) + (b"" if self.group_id is None else _text(self.group_id))

    @classmethod
    def decode(cls, frame: Buffer) -> ClusterMetadataRequest:
        """Decode a frame's bytes. Raises WireError."""
        reader = _FrameReader(frame, "ClusterMetadataRequest")
        reader.kind(PushType.CLUSTER_METADATA)
        request = cls(reader.string() if reader.left else None)
        reader.check_fully_read()
        return request


@dataclass(frozen=True, slots=True)
class ClusterMetadataResponse:
    """The coordinator and the brokers, in answer to a push consumer.

    `coordinator_id` is -1 where there is no coordinator, or beside an error.
    """

    error_code: int
    coordinator_id: int = NO_COORDINATOR
    brokers: tuple[PushBroker, ...] = ()

    def encode_frame(self) -> bytes:
        """Return the frame's bytes without their size."""
        parts = [
            _INT16.pack(self.error_code),
            _INT16.pack(self.coordinator_id),
            _encode_count(len(self.brokers), "brokers"),
        ]
        for broker in self.brokers:
            parts += (_INT32.pack(broker.id), _text(broker.host), _INT32.pack(broker.port))
        return b"".join(parts)

    @classmethod
    def decode(cls, frame: Buffer) -> ClusterMetadataResponse:
        """Decode a frame's bytes. Raises WireError."""
        reader = _FrameReader(frame, "ClusterMetadataResponse")
        error, coordinator = reader.number(_INT16), reader.number(_INT16)
        brokers = [
            PushBroker(reader.number(_INT32), reader.string(), reader.number(_INT32)) for _ in range(reader.count())
        ]
        reader.check_fully_read()
        return cls(error, coordinator, tuple(brokers))


@dataclass(frozen=True, slots=True)
class RegisterConsumerRequest:
    """The request by which a push consumer joins its group; afterwards the coordinator sends the requests.

    `parse_topic_count` parses `topic_count`.
    """

    group_id: str
    consumer_id: str
    topic_count: str
    auto_commit: bool
    auto_offset_reset: str
    session_timeout_ms: int

    def encode_frame(self) -> bytes:
        """Return the frame's bytes without their size."""
        return b"".join(
            (
                _INT16.pack(PushType.REGISTER_CONSUMER),
                _text(self.group_id),
                _text(self.consumer_id),
                _text(self.topic_count),
                bytes((self.auto_commit,)),
                _text(self.auto_offset_reset),
                _INT32.pack(self.session_timeout_ms),
            )
        )

    @classmethod
    def decode(cls, frame: Buffer) -> RegisterConsumerRequest:
        """Decode a frame's bytes. Raises WireError."""
        reader = _FrameReader(frame, "RegisterConsumerRequest")
        reader.kind(PushType.REGISTER_CONSUMER)
        group, consumer, topics = reader.string(), reader.string(), reader.string()
        request = cls(group, consumer, topics, reader.boolean(), reader.string(), reader.number(_INT32))
        reader.check_fully_read()
        return request


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """A response with only an error code: to RegisterConsumer, and (as RestartFetcher) to Stop and Start."""

    error_code: int

    def encode_frame(self) -> bytes:
        """Return the frame's bytes without their size."""
        return _INT16.pack(self.error_code)

    @classmethod
    def decode(cls, frame: Buffer) -> ErrorResponse:
        """Decode a frame's bytes. Raises WireError."""
        reader = _FrameReader(frame, "an answer of an error code")
        response = cls(reader.number(_INT16))
        reader.check_fully_read()
        return response


# -- the coordinator's requests


def encode_ping(num_retries: int) -> bytes:
    """Return a PingRequest without its size. `num_retries` 0: no response is missing; n: the nth attempt."""
    return _INT16.pack(PushType.PING) + _INT16.pack(min(num_retries, NUMBER_MAX))


def encode_stop() -> bytes:
    """Return a StopRequest without its size."""
    return _INT16.pack(PushType.STOP)


def encode_start(partitions: Sequence[PositionedPartition]) -> bytes:
    """Return a StartRequest without its size.

    Raises:
        WireError: more partitions than the frame can count.
    """
    return _INT16.pack(PushType.START) + _encode_partitions(partitions)


class CoordinatorRequest(NamedTuple):
    """A coordinator's request as the consumer reads it: Ping with its retries, Stop, or Start with its partitions."""

    kind: PushType
    num_retries: int = 0
    partitions: tuple[PositionedPartition, ...] = ()


def decode_coordinator_request(frame: Buffer) -> CoordinatorRequest:
    """Decode a Ping, a Stop or a Start. Raises WireError."""
    reader = _FrameReader(frame, "a request of the coordinator")
    kind = reader.number(_INT16)
    if kind == PushType.PING:
        request = CoordinatorRequest(PushType.PING, reader.count())
    elif kind == PushType.STOP:
        request = CoordinatorRequest(PushType.STOP)
    elif kind == PushType.START:
        request = CoordinatorRequest(PushType.START, partitions=_decode_partitions(reader))
    else:
        raise WireError(f"a request of the coordinator: its type is {kind}; there are Ping, Stop and Start")
    reader.check_fully_read()
    return request


def encode_ping_response(positions: Sequence[PositionedPartition] | None) -> bytes:
    """Return a PingResponse without its size. None: auto commit is off, and the response is empty."""
    return b"" if positions is None else _encode_partitions(positions)


def decode_ping_response(frame: Buffer, auto_commit: bool) -> tuple[PositionedPartition, ...]:
    """Return the positions in a PingResponse; without auto commit there are none. Raises WireError."""
    reader = _FrameReader(frame, "PingResponse")
    positions = _decode_partitions(reader) if auto_commit or reader.left else ()
    reader.check_fully_read()
    return positions


def _encode_partitions(partitions: Sequence[PositionedPartition]) -> bytes:
    parts = [_encode_count(len(partitions), "partitions")]
    for position in partitions:
        name = f"{position.leader}-{position.partition}"
        parts += (_text(position.topic), _text(name), _INT64.pack(position.offset))
    return b"".join(parts)


def _decode_partitions(reader: _FrameReader) -> tuple[PositionedPartition, ...]:
    positions = []
    for _ in range(reader.count()):
        topic, text, offset = reader.string(), reader.string(), reader.number(_INT64)
        leader, partition = parse_partition_string(text, reader.what)
        positions.append(PositionedPartition(topic, leader, partition, offset))
    return tuple(positions)


def parse_partition_string(text: str, what: str = "a partition") -> tuple[int, int]:
    """Return the leader and the number of a partition string.

    Raises:
        WireError: it is not a number, a dash and a number.
    """
    leader, dash, number = text.rpartition("-")
    try:
        if dash and text.isascii():
            return int(leader), int(number)
    except ValueError:
        pass
    raise WireError(f"{what}: the partition {text[:100]!r} is not LEADER-NUMBER")


# -- a consumer's subscription


class TopicCount(NamedTuple):
    """The topics that a consumer reads, and the number of streams for each.

    Attributes:
        topics: streams by topic name; empty with a regular expression.
        regex: a regular expression for topic names; None: `topics` lists them.
        excluding: whether the consumer reads the topics that the expression does not match.
        streams: the number of streams of every topic that the expression selects.
    """

    topics: Mapping[str, int] = {}
    regex: str | None = None
    excluding: bool = False
    streams: int = 1


def parse_topic_count(text: str) -> TopicCount:
    """Parse `{"topic": streams}`, `*N*regex` (topics that match) or `!N!regex` (topics that do not).

    Raises:
        WireError: the text has none of these forms; the message says what is wrong with it.
    """
    if text[:1] in ("*", "!"):
        number, mark, regex = text[1:].partition(text[0])
        digits = number if number.isascii() and number.isdigit() and len(number) <= _DIGITS_MAX else "0"
        if not mark or not regex or not 1 <= int(digits) <= NUMBER_MAX:
            raise WireError(f"topic_count {text[:200]!r} is not *STREAMS*REGEX or !STREAMS!REGEX")
        return TopicCount(regex=regex, excluding=text[0] == "!", streams=int(number))
    try:
        topics = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WireError(f'topic_count {text[:200]!r} is not {{"TOPIC": STREAMS}}: {error}') from None
    if not isinstance(topics, dict) or not topics:
        raise WireError(f'topic_count {text[:200]!r} is not {{"TOPIC": STREAMS}} with a topic')
    for topic, streams in topics.items():
        if not _is_text(topic):
            raise WireError(f"topic_count: topic {topic!r} is not Unicode")
        if type(streams) is not int or not 1 <= streams <= NUMBER_MAX:
            raise WireError(f"topic_count: topic {topic!r} has {streams!r} streams, not 1 to {NUMBER_MAX}")
    return TopicCount(topics)


def _is_text(name: str) -> bool:
    """Return whether a name can be encoded as UTF-8.

    JSON escapes can also make halves of surrogate pairs, which no record holds.
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def format_topic_count(subscription: TopicCount) -> str:
    """Return the text form of a subscription."""
    if subscription.regex is None:
        return json.dumps(dict(subscription.topics), separators=(",", ":"), sort_keys=True)
    mark = "!" if subscription.excluding else "*"
    return f"{mark}{subscription.streams}{mark}{subscription.regex}"


def topic_partition_of(position: PositionedPartition) -> TopicPartition:
    """Return the partition without its position."""
    return TopicPartition(position.topic, position.partition)
