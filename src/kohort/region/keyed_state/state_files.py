"""The files of a partition's keyed state, as bytes.

A state is a chain of files: first the pieces of its base, a SQLite database; then deltas, the changed keys. Each file
lists those before it, and its name has the digest of its content. The region's topic names the newest file. So that
record, which is sealed, proves all of them. Two processes that write one name write the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from kohort.errors import CorruptDataError
from kohort.region.records import KeyedStateChainHead, Part

FILE_BYTES: Final = 32 * 1024 * 1024
"""Size of a file's payload; one more change may exceed it."""
KEY_BYTES_MAX: Final = 64 * 1024
VALUE_BYTES_MAX: Final = 16 * 1024 * 1024
CONTENT_BYTES_MAX: Final = 128 * 1024 * 1024
"""Limit on a file's size: a payload, one more change, and a list of files that has room for 60 TB."""
SUFFIX: Final = ".state"
OBJECTS_BYTES: Final = 250
"""The memory of Python's objects and tables for a key with a value, beside their bytes."""
_MAGIC: Final = b"kohort-state-1\n"
_DIGEST_BYTES: Final = 16
_LENGTH_BYTES: Final = 8
_NAME_CHARACTERS: Final = 100
ReadPart: TypeAlias = bytes | memoryview


class KeyedStateFile(NamedTuple):
    """One file of a keyed state: a part of its base (a whole copy), or a delta (changed keys).

    Attributes:
        sequence: the id of the checkpoint for which it was written.
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
        """The file's name, made from the checkpoint id and the digest."""
        return file_name(self.sequence, self.digest)


def file_name(sequence: int, digest: bytes) -> str:
    """Return the name of a keyed state's file, made from the checkpoint id and the content's digest."""
    return f"{sequence:019d}-{digest.hex()}{SUFFIX}"


def checkpoint_id_in_name(name: str) -> int | None:
    """Return the checkpoint id in the name of a keyed state's file, also of an unfinished one; None: another file."""
    number, dash, _ = name.partition("-")
    return int(number) if dash and len(number) == 19 and number.isdecimal() else None


def partition_folder_name(part: Part) -> str:
    """Return the name of a partition's folder: readable, and unique by a digest of group, topic and topic id."""
    told = msgspec.msgpack.encode((part.group, part.topic, part.topic_id.bytes, part.partition))
    readable = part.topic[:_NAME_CHARACTERS].lstrip("._-") or "topic"
    return f"{readable}-{part.partition}-{_digest(told).hex()}"


def head_of_chain(chain: list[KeyedStateFile]) -> KeyedStateChainHead:
    """Return the entry by which the region's metadata topic names a state: its newest file, with the size of all."""
    newest, base = chain[-1], min(file.sequence for file in chain)
    return KeyedStateChainHead(base, newest.sequence, newest.digest, sum(file.size for file in chain))


def encode_file_header(kind: Literal["base", "delta"], before: list[KeyedStateFile]) -> bytes:
    """Encode the header of a state file: its kind, and the list of the files before it."""
    header = msgspec.msgpack.encode((kind, before))
    return b"".join((_MAGIC, len(header).to_bytes(_LENGTH_BYTES), header))


def entry_of_file(sequence: int, kind: Literal["base", "delta"], content: bytes | bytearray) -> KeyedStateFile:
    """Return the entry for a file with this content: checkpoint id, digest, size and kind."""
    return KeyedStateFile(sequence, _digest(content), len(content), kind)


def decode_state_file(
    name: str, digest: bytes, content: bytes
) -> tuple[KeyedStateFile, list[KeyedStateFile], memoryview]:
    """Check a file of a keyed state and decode it: its entry, the files before it, and its payload.

    Raises:
        CorruptDataError: it is not the file that was written.
    """
    if _digest(content) != digest:
        raise damaged_file_error(name, "its content has another digest")
    try:
        if not content.startswith(_MAGIC):
            raise ValueError("a later release has written it")
        begin = len(_MAGIC) + _LENGTH_BYTES
        end = begin + int.from_bytes(content[len(_MAGIC) : begin])
        kind, before = msgspec.msgpack.decode(
            content[begin:end], type=tuple[Literal["base", "delta"], list[KeyedStateFile]]
        )
    except (ValueError, msgspec.MsgspecError) as error:
        raise CorruptDataError(f"The file {name} of a keyed state can't be read: {error}") from error
    sequence = checkpoint_id_in_name(name)
    assert sequence is not None
    return KeyedStateFile(sequence, digest, len(content), kind), before, memoryview(content)[end:]


class StateFileCheck:
    """The check of a state file that is read in parts: its size, header and digest must be the expected ones."""

    def __init__(self, file: KeyedStateFile, before: list[KeyedStateFile]) -> None:
        self._file, self._head = file, encode_file_header(file.kind, before)
        self._begin, self._size, self._hash = b"", 0, hashlib.sha256()

    @property
    def payload_bytes(self) -> int:
        """The size of the file's payload, without its header."""
        return self._file.size - len(self._head)

    def add(self, read: ReadPart) -> tuple[int, memoryview]:
        """Check the next part of the file; return its payload's position and bytes, perhaps none."""
        self._hash.update(read)
        at, head_bytes = self._size, len(self._head)
        self._size += len(read)
        if at < head_bytes:
            self._begin += bytes(read[: head_bytes - at])
        return max(0, at - head_bytes), memoryview(read)[max(0, head_bytes - at) :]

    def finish_check(self) -> None:
        """Check the file's size, digest and header, after its last part.

        Raises:
            CorruptDataError: it is not the file that was written.
        """
        if self._size != self._file.size or self._hash.digest()[:_DIGEST_BYTES] != self._file.digest:
            raise damaged_file_error(self._file.name, "its content has another digest")
        if self._begin != self._head:
            raise damaged_file_error(self._file.name, "it is a part of another state")


def damaged_file_error(name: str, why: str) -> CorruptDataError:
    """Return the error of a file that is not the one that was saved."""
    return CorruptDataError(
        f"The file {name} of a keyed state is damaged: {why}. Nothing of it is used. Put the file back from a copy of "
        "the place, or reset the region to its initial state"
    )


def encode_deltas(changes: Mapping[bytes, bytes | None]) -> Iterator[bytes]:
    """Encode changes of keys as the payloads of deltas, some 32 MiB each; a value of None removes the key."""
    rows: list[tuple[bytes, bytes | None]] = []
    size = 0
    for key, value in changes.items():
        if size >= FILE_BYTES:
            yield msgspec.msgpack.encode(rows)
            rows, size = [], 0
        rows.append((key, value))
        size += change_file_bytes(key, value)
    if rows:
        yield msgspec.msgpack.encode(rows)


def decode_changes(payload: Any) -> list[tuple[bytes, bytes | None]]:
    """Decode the payload of a delta into keys and values; a value of None removes the key.

    Raises:
        CorruptDataError: the payload can't be decoded.
    """
    try:
        return msgspec.msgpack.decode(payload, type=list[tuple[bytes, bytes | None]])
    except msgspec.MsgspecError as error:
        raise CorruptDataError(f"The changes of a keyed state can't be read: {error}") from error


def change_file_bytes(key: bytes, value: bytes | None) -> int:
    """Return the approximate number of bytes that a changed key and its value take in a delta."""
    return len(key) + len(value or b"") + 8


def change_memory_bytes(key: bytes, value: bytes | None) -> int:
    """Return the approximate bytes of memory that a changed key and its value take.

    Counted are two objects, and an entry in each of two tables.
    """
    return len(key) + len(value or b"") + OBJECTS_BYTES


def _digest(content: bytes | bytearray) -> bytes:
    return hashlib.sha256(content).digest()[:_DIGEST_BYTES]
