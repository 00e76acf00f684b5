"""The encoding of facts as records of `__kohort_regions`, and back.

A key is a JSON array of the fact's kind and its subject. Compaction compares bytes, so equal subjects have equal
bytes; any tool can read them.

A value is MessagePack, its version first. Partitions of one topic share its name, so that ten thousand of them take a
quarter of a megabyte. Source: spec 5.10.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from kohort.errors import CorruptDataError, ErrorCode, InvalidInputError
from kohort.region.records import (
    Contribution,
    EpochBegun,
    Fact,
    GroupClaim,
    InitialOffset,
    InitialTopics,
    KeyedStateChainHead,
    Manifest,
    OffsetSpan,
    Position,
    PublishedCheckpoint,
    RegionCreated,
    RegionStopped,
    StoppedMembers,
    TermBegun,
)
from kohort.region.staged import StagedKey

VERSION = 1
RECORD_BYTES_MAX = 1_000_000
"""Below `message.max.bytes`, by default 1 MiB, with a margin for the batch around it."""
Located = TypeVar("Located", Position, OffsetSpan)

_KINDS: dict[str, type[Fact]] = {
    "claim": GroupClaim,
    "birth": RegionCreated,
    "term": TermBegun,
    "epoch": EpochBegun,
    "initial": InitialOffset,
    "began": InitialTopics,
    "contribution": Contribution,
    "manifest": Manifest,
    "stopped": RegionStopped,
    "stoppedmembers": StoppedMembers,
    "shown": PublishedCheckpoint,
}
_NAMES: dict[type[Fact], str] = {kind: name for name, kind in _KINDS.items()}


_NO_KEY = ValueError, TypeError, RecursionError
"""Errors of a key that no region wrote. A stranger's may be nested deeper than Python's decoder goes."""


def encode_fact_key(fact: Fact) -> bytes:
    """Return the key of a fact's record: a later record of the same key replaces it in the compacted topic."""
    match fact:
        case GroupClaim(group, region):
            about: list[Any] = [group, region]
        case InitialOffset(region, group, topic, topic_id, partition):
            about = [region, group, topic, topic_id.hex, partition]
        case InitialTopics(region, group):
            about = [region, group]
        case Contribution(region, sequence):
            about = [region, sequence, fact.member]
        case Manifest():
            about = [fact.region, fact.sequence]
        case PublishedCheckpoint(region, place):
            about = [region, place]
        case _:
            about = [fact.region]
    return msgspec.json.encode([_NAMES[type(fact)], *about])


def encode_fact_value(fact: Fact) -> bytes:
    """Encode a fact, a data class of `records`, as the value of a Kafka record.

    Raises:
        InvalidInputError: the value is larger than a record may be.
    """
    told = {field.name: getattr(fact, field.name) for field in fields(fact)}
    match fact:
        case Contribution():
            told["spans"] = _by_topic(
                fact.spans, lambda span: (span.partition, span.begin, span.end, span.leader_epoch, *_state(span))
            )
            told["keys"] = _packed(fact.keys)
            told["letter_keys"] = _packed(fact.letter_keys)
        case Manifest():
            told["positions"] = _by_topic(
                fact.positions,
                lambda position: (position.partition, position.offset, position.leader_epoch, *_state(position)),
            )
    value = bytes([VERSION]) + msgspec.msgpack.encode(told)
    if len(value) > RECORD_BYTES_MAX:
        raise InvalidInputError(_too_large(fact, len(value)), ErrorCode.MESSAGE_TOO_LARGE)
    return value


def _too_large(fact: Fact, size: int) -> str:
    text = f"{type(fact).__name__} {encode_fact_key(fact).decode()} takes {size} bytes, more than {RECORD_BYTES_MAX}"
    if isinstance(fact, Contribution):
        units = len(fact.keys) + len(fact.letter_keys)
        text += f": {len(fact.state)} of state, {len(fact.spans)} partitions, {units} staged units"
    return text


def decode_fact(key: bytes, value: bytes) -> Fact:
    """Decode a fact, a data class of `records`, from a Kafka record.

    Raises:
        CorruptDataError: the record is of another release, or damaged.
    """
    try:
        kind = _KINDS[msgspec.json.decode(key)[0]]
        if value[0] != VERSION:
            raise CorruptDataError(f"a record of version {value[0]}: a later release wrote it")
        told = msgspec.msgpack.decode(memoryview(value)[1:])
        if kind is Contribution:
            told["spans"] = list(_one_by_one(told["spans"], OffsetSpan))
            told["keys"] = _unpacked(told["keys"])
            told["letter_keys"] = _unpacked(told.get("letter_keys", ()))
        elif kind is Manifest:
            told["positions"] = list(_one_by_one(told["positions"], Position))
        fact: Fact = msgspec.convert(told, kind)
    except CorruptDataError:
        raise
    except (ValueError, TypeError, LookupError, RecursionError, msgspec.MsgspecError) as error:
        raise CorruptDataError(f"no record of a region: {error!r}") from error
    if encode_fact_key(fact) != key:
        raise CorruptDataError(f"the key {key!r} belongs to another record than {encode_fact_key(fact)!r}")
    return fact


def _packed(keys: Iterable[StagedKey]) -> list[tuple[bytes, int, str, int]]:
    return [(key.region_id.bytes, key.epoch, key.member, key.unit) for key in keys]


def _unpacked(given: Iterable[Any]) -> list[StagedKey]:
    return [StagedKey(UUID(bytes=key[0]), *key[1:]) for key in given]


def _state(given: Position | OffsetSpan) -> tuple[KeyedStateChainHead, ...]:
    """Return the keyed state as the last field of an encoded row; empty without one, as in earlier releases."""
    return () if given.state is None else (given.state,)


def _by_topic(
    given: Iterable[Located], row: Callable[[Located], tuple[Any, ...]]
) -> list[tuple[str, str, bytes, list[Any]]]:
    topics: dict[tuple[str, str, bytes], list[Any]] = {}
    for entry in given:
        topics.setdefault((entry.group, entry.topic, entry.topic_id.bytes), []).append(row(entry))
    return [(group, topic, topic_id, rows) for (group, topic, topic_id), rows in topics.items()]


def _one_by_one(topics: Iterable[Any], kind: type[Located]) -> Iterable[Located]:
    for group, topic, topic_id, rows in topics:
        for row in rows:
            if isinstance(row[-1], list):
                row[-1] = KeyedStateChainHead(*row[-1])
            yield kind(group, topic, UUID(bytes=topic_id), *row)


def region_in_record_key(key: bytes) -> str | None:
    """Return the region that a record's key names; None: the record is a claim of a group, or of an unknown kind."""
    try:
        kind, *about = msgspec.json.decode(key)
    except _NO_KEY:
        return None
    return str(about[0]) if isinstance(kind, str) and kind in _KINDS and kind != "claim" and about else None


def region_in_claim_key(key: bytes) -> str | None:
    """Return the region that claims a group in a record of this key; None: the record is no claim."""
    try:
        kind, *about = msgspec.json.decode(key)
    except _NO_KEY:
        return None
    return str(about[1]) if kind == "claim" and len(about) > 1 else None


def checkpoint_tombstones(region: str, sequence: int, members: Iterable[str]) -> Mapping[bytes, None]:
    """Return the tombstones for the records of a checkpoint to which no reset returns any more."""
    names = [["manifest", region, sequence], *(["contribution", region, sequence, name] for name in members)]
    return {msgspec.json.encode(name): None for name in names}
