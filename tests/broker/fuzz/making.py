"""Requests of every API in every version, with values that reach far, and what can be done to their bytes."""

from __future__ import annotations

import random
import struct
import time
import uuid
from typing import Any

from kohort.wire.batch import BatchRecord, build_batch
from kohort.wire.framing import APIS, Api, encode_request
from kohort.wire.schema import Field
from tests.wire.values import Values

TOPICS = tuple(f"fuzz-{number}" for number in range(12))
GROUPS = tuple(f"fuzz-group-{number}" for number in range(8))
MEMBERS = ("", "member-a", "member-b", "fuzz-1")
TRANSACTIONS = ("fuzz-tx-0", "fuzz-tx-1", "fuzz-tx-2")
CONFIGS = {
    "cleanup.policy": ("compact", "delete", "compact,delete", "burn"),
    "segment.bytes": ("1000", "100000", "-1"),
    "retention.ms": ("1", "-1", "x"),
    "max.message.bytes": ("100", "10000000"),
    "message.timestamp.type": ("LogAppendTime", "CreateTime"),
    "flush.messages": ("1",),
}
_NAMES: dict[str, tuple[str, ...]] = {
    "name": TOPICS, "topic": TOPICS, "topic_name": TOPICS, "topic_names": TOPICS, "subscribed_topic_names": TOPICS,
    "resource_name": TOPICS, "group_id": GROUPS, "groups": GROUPS, "group_ids": GROUPS, "groups_names": GROUPS,
    "key": (*GROUPS, *TRANSACTIONS), "coordinator_keys": (*GROUPS, *TRANSACTIONS), "member_id": MEMBERS,
    "group_instance_id": ("static-a", "static-b"), "instance_id": ("static-a",), "transactional_id": TRANSACTIONS,
    "transactional_ids": TRANSACTIONS, "v3_and_below_transactional_id": TRANSACTIONS, "protocol_type": ("consumer",),
    "protocol_name": ("range",), "server_assignor": ("range", "uniform"), "entity_type": ("user", "client-id", "ip"),
    "subscribed_topic_regex": ("fuzz-.*", "(", "(a+)+$", ".{1,9999}"), "configuration_keys": tuple(CONFIGS),
    "mechanism": ("PLAIN", "SCRAM-SHA-256"),
}  # fmt: skip
_NUMBERS: dict[str, tuple[int, ...]] = {
    "num_partitions": (1, 1, 2, 3, 3, -1, 0, 40, 2_000, 10_000, 10_001, 2**31 - 1),
    "count": (1, 2, 4, 50, 3_000, 12_000, 2**31 - 1),
    "replication_factor": (1, 1, 1, -1, 3),
    "acks": (-1, -1, 1, 0, 7),
    "max_wait_ms": (0, 1, 50, 300),
    "session_timeout_ms": (6_000, 6_000, 10_000, 1, 2**31 - 1),
    "rebalance_timeout_ms": (1, 500, 3_000, -1),
    "member_epoch": (0, 0, 1, -1, -2, 7),
    "generation_id": (-1, 0, 1, 2),
    "generation_id_or_member_epoch": (-1, 0, 1),
    "resource_type": (2, 2, 2, 4, 8, 16, 32, 77),
    "replica_id": (-1, -1, 1, 0),
    "isolation_level": (0, 1, 1, 2),
    "key_type": (0, 1, 2),
}
_PARTITIONS = ("partition", "index", "partition_index", "partition_indexes", "partitions")
ids: list[uuid.UUID] = []
"""Ids of topics that are there: learned from answers."""


class Requests(Values):
    """Values that are often names of what is there, and numbers that are often in range."""

    def __init__(self, seed: str, version: int) -> None:
        super().__init__(seed, version, "small")
        self._owner = ""

    def value(self, field: Field) -> Any:
        """A value for one field."""
        name = field.name or self._owner
        pick = self.random
        if field.kind == "array":
            self._owner, owner = field.name, self._owner
            try:
                return super().value(field)
            finally:
                self._owner = owner
        if pick.random() < 0.12:
            found = super().value(field)
            return min(found, 1_000) if name in ("max_wait_ms", "rebalance_timeout_ms") else found
        if name in _NAMES and field.kind == "string":
            return pick.choice(_NAMES[name])
        if name in _NUMBERS and field.kind != "string":
            return pick.choice(_NUMBERS[name])
        if name in _PARTITIONS and field.kind == "int32":
            return pick.choice((0, 0, 0, 1, 2, 5_000))
        if field.kind == "records":
            return records(pick)
        if field.kind == "uuid" and ids and pick.random() < 0.7:
            return pick.choice(ids)
        return super().value(field)


def records(pick: random.Random) -> bytes | None:
    """A record set: whole, damaged, or none."""
    kind = pick.random()
    if kind < 0.1:
        return None if kind < 0.05 else pick.randbytes(pick.choice((1, 61, 200, 5_000)))
    facts: dict[str, Any] = {"compression": pick.choice(("none", "none", "gzip", "snappy", "lz4", "zstd"))}
    if pick.random() < 0.4:
        facts |= {"producer_id": pick.choice((0, 1, 2, 500)), "producer_epoch": pick.choice((0, 1))}
        facts |= {"base_sequence": pick.choice((0, 1, 2, 3)), "transactional": pick.random() < 0.4}
    count = pick.choice((1, 1, 2, 5))
    size = pick.choice((0, 1, 100, 100, 2_000, 300_000)) if pick.random() < 0.3 else 50
    key = pick.choice((None, b"k", b"l"))
    now = int(time.time() * 1000)
    made = bytearray(build_batch([BatchRecord(i, now, key, bytes(size)) for i in range(count)], **facts))
    if pick.random() < 0.25:
        for _ in range(pick.choice((1, 1, 4))):
            made[pick.randrange(len(made))] ^= 1 << pick.randrange(8)
    return bytes(made)


def request(pick: random.Random, number: int, api: Api | None = None) -> tuple[Api, int, bytes]:
    """An API, a version, and the frame of a request that the broker can read."""
    api = api or pick.choice(list(APIS.values()))
    version = pick.randint(api.min_version, api.max_version)
    message = Requests(str(pick.random()), version).instance(api.request)
    for topic in getattr(message, "topics", None) or ():
        for config in getattr(topic, "configs", None) or ():
            config.name = pick.choice(list(CONFIGS))
            config.value = pick.choice(CONFIGS[config.name])
    client = pick.choice(("fuzz", "fuzz", None, "a\nforged line", "c" * 3_000))
    return api, version, encode_request(message, version, number, client)


def _flipped(pick: random.Random, frame: bytes) -> bytes:
    data = bytearray(frame)
    for _ in range(pick.choice((1, 1, 2, 8))):
        data[pick.randrange(4, len(data))] = pick.randrange(256)
    return bytes(data)


def _spliced(pick: random.Random, frame: bytes) -> bytes:
    body = bytearray(frame[4:])
    at = pick.randrange(len(body) + 1)
    if pick.random() < 0.5:
        del body[at : at + pick.choice((1, 4, 50))]
    else:
        body[at:at] = pick.randbytes(pick.choice((1, 4, 50)))
    return struct.pack(">i", len(body)) + bytes(body)


def _counted(pick: random.Random, frame: bytes) -> bytes:
    """A huge number somewhere, where a count may be."""
    body = bytearray(frame[4:])
    huge = pick.choice(
        (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\x00\x10\x00\x00", b"\xff\xff\xff\xff", b"\xff\xff\x03")
    )
    at = pick.randrange(min(8, len(body)), len(body) + 1)
    body[at : at + len(huge)] = huge
    return struct.pack(">i", len(body)) + bytes(body)


def _mis_sized(pick: random.Random, frame: bytes) -> bytes:
    sizes = (0, -1, 1, 7, 8, len(frame) - 5, len(frame) - 3, len(frame) + 900, 100 << 20, (100 << 20) + 1, 2**31 - 1)
    return struct.pack(">i", pick.choice(sizes)) + frame[4:]


def _garbage(pick: random.Random, _frame: bytes) -> bytes:
    return pick.randbytes(pick.choice((1, 3, 4, 14, 100, 70_000)))


MUTATIONS = (_flipped, _spliced, _counted, _mis_sized, _garbage)
