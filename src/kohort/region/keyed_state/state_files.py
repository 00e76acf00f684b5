"""The files of a partition's keyed state, as bytes.

A state is a chain of files: first the pieces of its base, a SQLite database; then deltas, the changed keys. Each file
lists those before it, and its name has the digest of its content. The region's topic names the newest file. So that
record, which is sealed, proves all of them. Two processes that write one name write the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec

from kohort.errors import CorruptDataError
from kohort.region.records import Part, StateHead

FILE_BYTES: Final = 32 * 1024 * 1024
"""Size of a file's payload; one more change may exceed it."""
KEY_BYTES_MAX: Final = 64 * 1024
VALUE_BYTES_MAX: Final = 16 * 1024 * 1024
SUFFIX: Final = ".state"
_MAGIC: Final = b"kohort-state-1\n"
_DIGEST_BYTES: Final = 16
_LENGTH_BYTES: Final = 8
_NAME_CHARACTERS: Final = 100


class StateFile(NamedTuple):
    """A file of a chain.

    Attributes:
        sequence: the sequence for which it was written.
        digest: the digest of its content.
        size: its size in bytes.
        kind: a piece of the base, or a delta.
    """

    sequence: int
    digest: bytes
    size: int
    kind: Literal["base", "delta"]

    @property
    def name(self) -> str:
        """The file name."""
        return file_name(self.sequence, self.digest)


def file_name(sequence: int, digest: bytes) -> str:
    """Return the name of a state's file."""
    return f"{sequence:019d}-{digest.hex()}{SUFFIX}"


def sequence_in(name: str) -> int | None:
    """Return the sequence in the name of a state's file, finished or not; None: it is another file."""
    number, dash, _ = name.partition("-")
    return int(number) if dash and len(number) == 19 and number.isdecimal() else None


def folder_of(part: Part) -> str:
    """Return the name of a partition's folder: readable, and unique by a digest of group, topic and topic id."""
    told = msgspec.msgpack.encode((part.group, part.topic, part.topic_id.bytes, part.partition))
    readable = part.topic[:_NAME_CHARACTERS].lstrip("._-") or "topic"
    return f"{readable}-{part.partition}-{_digest(told).hex()}"


def head_of(chain: list[StateFile]) -> StateHead:
    """Return what the region's topic says of a chain."""
    newest, base = chain[-1], min(file.sequence for file in chain)
    return StateHead(base, newest.sequence, newest.digest, sum(file.size for file in chain))


def encode_file(
    sequence: int, kind: Literal["base", "delta"], before: list[StateFile], payload: bytes
) -> tuple[StateFile, bytes]:
    """Return a file that follows a chain, and its content."""
    header = msgspec.msgpack.encode((kind, before))
    content = b"".join((_MAGIC, len(header).to_bytes(_LENGTH_BYTES), header, payload))
    return StateFile(sequence, _digest(content), len(content), kind), content


def decode_file(name: str, digest: bytes, content: bytes) -> tuple[StateFile, list[StateFile], memoryview]:
    """Return a file, the chain before it, and its payload.

    Raises:
        CorruptDataError: it is not the file that was written.
    """
    if _digest(content) != digest:
        raise CorruptDataError(f"The file {name} of a keyed state is damaged: its content has another digest")
    try:
        if not content.startswith(_MAGIC):
            raise ValueError("a later release has written it")
        begin = len(_MAGIC) + _LENGTH_BYTES
        end = begin + int.from_bytes(content[len(_MAGIC) : begin])
        kind, before = msgspec.msgpack.decode(content[begin:end], type=tuple[Literal["base", "delta"], list[StateFile]])
    except (ValueError, msgspec.MsgspecError) as error:
        raise CorruptDataError(f"The file {name} of a keyed state can't be read: {error}") from error
    sequence = sequence_in(name)
    assert sequence is not None
    return StateFile(sequence, digest, len(content), kind), before, memoryview(content)[end:]


def delta_payloads(changes: Mapping[bytes, bytes | None]) -> Iterator[bytes]:
    """Encode changes as the payloads of one file or more; None means that a key was removed."""
    rows: list[tuple[bytes, bytes | None]] = []
    size = 0
    for key, value in changes.items():
        if size >= FILE_BYTES:
            yield msgspec.msgpack.encode(rows)
            rows, size = [], 0
        rows.append((key, value))
        size += change_bytes(key, value)
    if rows:
        yield msgspec.msgpack.encode(rows)


def changes_in(payload: Any) -> dict[bytes, bytes | None]:
    """Decode the payload of a delta.

    Raises:
        CorruptDataError: it has no changes.
    """
    try:
        rows: Iterable[tuple[bytes, bytes | None]] = msgspec.msgpack.decode(
            payload, type=list[tuple[bytes, bytes | None]]
        )
    except msgspec.MsgspecError as error:
        raise CorruptDataError(f"The changes of a keyed state can't be read: {error}") from error
    return dict(rows)


def change_bytes(key: bytes, value: bytes | None) -> int:
    """Return the approximate size of a change."""
    return len(key) + len(value or b"") + 8


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()[:_DIGEST_BYTES]
