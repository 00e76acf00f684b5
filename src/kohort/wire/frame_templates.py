"""Frame templates: requests that a client repeats are decoded once, and compared from then on.

A member sends the same heartbeat, and commits the same partitions, until the next rebalance. Of such a frame only the
correlation id changes, and in a commit the offsets and leader epochs. All of them have a fixed size. A template knows
their places from the encoder: it encodes the request twice, with these numbers zero and with all their bits set. A
frame that has the template's other bits is the same request, so its numbers are all that is read.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from kohort.wire.framing import RequestHeader, encode_request
from kohort.wire.message import Message
from kohort.wire.offsets import OffsetCommitRequest
from kohort.wire.schema import Buffer, StructRows, columns_of

TEMPLATE_BYTES_MAX: Final = 4_096
"""The longest frame with a template: a commit of 200 positions."""
_Topic: Final = OffsetCommitRequest.OffsetCommitRequestTopic
_COLUMNS: Final = ("partition_index", "committed_metadata")
_EPOCHS_SINCE: Final = 6
"""The version of OffsetCommit that added leader epochs."""
_VARYING: Final = re.compile(rb"[^\0]+")
_CODES: Final = {4: "i", 8: "q", 12: "qi"}
"""The layout of neighbouring numbers by their bytes: correlation id; offset; offset and leader epoch."""
_LENGTH_BYTES: Final = 4
Make: TypeAlias = Callable[[Sequence[int]], Message]


class FrameTemplate:
    """The bytes of a request that a client repeats, by which later ones are decoded without parsing.

    Attributes:
        size: the length of its frames.
        header: the header of its frames; the correlation id differs.
        make: makes the message of a frame from the frame's `varying_numbers`. Messages share what does not change,
            and must not be modified.
        same: the message of all frames, if only the correlation id changes; else None.
        prepared: what the request's handler keeps for later frames; None at first.
    """

    __slots__ = ("_fixed", "_mask", "_unpack", "header", "make", "prepared", "same", "size")

    def __init__(self, header: RequestHeader, fixed: int, varying: bytes, layout: str, message: Make | Message) -> None:
        """Create a template; `from_frame` derives the arguments from a frame."""
        self.header = header
        self.size = len(varying)
        self.same = message if isinstance(message, Message) else None
        self.make: Make = (lambda _: message) if isinstance(message, Message) else message
        self.prepared: Any = None
        self._mask = ~int.from_bytes(varying, "big") & ((1 << 8 * self.size) - 1)
        self._fixed = fixed & self._mask
        self._unpack = struct.Struct(layout).unpack_from

    @classmethod
    def from_frame(cls, frame: Buffer, header: RequestHeader, message: Message) -> FrameTemplate | None:
        """Return the template of a frame (without its length), which was decoded to this header and message.

        Returns:
            None if the client encodes the request in another way than this package does, or the frame is too long.
        """
        size = len(frame)
        if size > TEMPLATE_BYTES_MAX or _encoded(message, header) != bytes(frame):
            return None
        zeros = ones = message
        make: Make | Message = message
        if isinstance(message, OffsetCommitRequest):
            make = _commits_like(message, header.api_version)
            count = sum(len(topic.partitions) for topic in message.topics)
            count *= 2 if header.api_version >= _EPOCHS_SINCE else 1
            zeros, ones = make((0,) * (1 + count)), make((-1,) * (1 + count))
        low = _encoded(zeros, header._replace(correlation_id=0))
        high = _encoded(ones, header._replace(correlation_id=-1))
        varying = (int.from_bytes(low, "big") ^ int.from_bytes(high, "big")).to_bytes(size, "big")
        layout, at = ">", 0
        for run in _VARYING.finditer(varying):
            layout += f"{run.start() - at}x{_CODES[run.end() - run.start()]}"
            at = run.end()
        return cls(header, int.from_bytes(frame, "big"), varying, layout, make)

    def varying_numbers(self, frame: Buffer) -> tuple[int, ...] | None:
        """Return the correlation id and other varying numbers of a frame.

        None: the frame is another request than the template's.
        """
        if len(frame) != self.size or int.from_bytes(frame, "big") & self._mask != self._fixed:
            return None
        return self._unpack(frame)

    def offsets_and_epochs(self, numbers: tuple[int, ...]) -> tuple[Sequence[int], Sequence[int]]:
        """Return the offsets and leader epochs of an OffsetCommit, from its frame's varying `varying_numbers`."""
        if self.header.api_version >= _EPOCHS_SINCE:
            return numbers[1::2], numbers[2::2]
        return numbers[1:], (-1,) * (len(numbers) - 1)


def _encoded(message: Message, header: RequestHeader) -> bytes:
    frame = encode_request(message, header.api_version, header.correlation_id, header.client_id)
    return frame[_LENGTH_BYTES:]


def _commits_like(message: OffsetCommitRequest, version: int) -> Make:
    """Return a function that builds this OffsetCommit again with other offsets and leader epochs."""
    group_id, member_id, instance_id = message.group_id, message.member_id, message.group_instance_id
    generation, retention_ms = message.generation_id_or_member_epoch, message.retention_time_ms
    step = 2 if version >= _EPOCHS_SINCE else 1
    topics = []
    first = 1
    for topic in message.topics:
        count = len(topic.partitions)
        indexes, metadata = columns_of(topic.partitions, _COLUMNS) if count else ((), ())
        stop = first + step * count
        offsets, epochs = slice(first, stop, step), slice(first + 1, stop, step)
        topics.append((topic.name, topic.topic_id, indexes, metadata, offsets, epochs, (-1,) * count))
        first = stop
    new_commit, new_topic, row = (
        OffsetCommitRequest.__new__,
        _Topic.__new__,
        OffsetCommitRequest.OffsetCommitRequestPartition,
    )

    def make_message(numbers: Sequence[int]) -> Message:
        made = new_commit(OffsetCommitRequest)
        made.group_id, made.member_id, made.group_instance_id = group_id, member_id, instance_id
        made.generation_id_or_member_epoch, made.retention_time_ms = generation, retention_ms
        made.topics = found = []
        for name, topic_id, indexes, metadata, offsets, epochs, unknown in topics:
            topic = new_topic(_Topic)
            topic.name, topic.topic_id = name, topic_id
            columns = {
                "partition_index": indexes,
                "committed_offset": numbers[offsets],
                "committed_leader_epoch": unknown if step == 1 else numbers[epochs],
                "committed_metadata": metadata,
            }
            topic.partitions = StructRows(row, columns)
            found.append(topic)
        return made

    return make_message
