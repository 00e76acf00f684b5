"""The broker's caches by names that clients choose are bounded in bytes, not only in entries."""

from __future__ import annotations

import struct
from pathlib import Path

from kohort.broker.config.quotas import CLIENT, StoredQuotas, quota_entity_key
from kohort.broker.server.throttling import CLIENT_ID_MAX, RATES_MAX, Throttling
from kohort.broker.shards import CACHED_NAME_MAX, NAMES_CACHED, cached_java_hash, java_hash
from kohort.wire import framing
from kohort.wire.framing import CLIENT_NAME_BYTES, CLIENT_NAMES, decode_request_header

LONG = 32_000
BYTES_MAX = 64 << 20


def _header(client_id: bytes) -> bytes:
    return struct.pack(">hhih", 3, 1, 7, len(client_id)) + client_id


def test_long_client_ids_of_strangers_are_not_cached() -> None:
    framing._client_name.cache_clear()
    for number in range(8):
        name = b"%05d" % number + b"x" * LONG
        header, _ = decode_request_header(_header(name))
        assert header.client_id == name.decode()
    assert framing._client_name.cache_info().currsize == 0
    decode_request_header(_header(b"short"))
    assert framing._client_name.cache_info().currsize == 1
    assert CLIENT_NAMES * CLIENT_NAME_BYTES * 2 < BYTES_MAX


def test_long_group_names_are_hashed_and_not_cached() -> None:
    before = cached_java_hash.cache_info().currsize
    assert java_hash("g" * LONG) == java_hash("g" * LONG)
    assert cached_java_hash.cache_info().currsize == before
    assert NAMES_CACHED * CACHED_NAME_MAX < BYTES_MAX
    assert java_hash("hello") == 99162322, "Java's"


def test_rates_of_long_client_ids_take_bounded_space(tmp_path: Path) -> None:
    quotas = StoredQuotas(tmp_path)
    quotas.set_quotas(quota_entity_key((CLIENT, None)), {"producer_byte_rate": 1.0})
    throttling = Throttling(quotas, 11, 1000)
    for number in range(8):
        throttling.record("producer_byte_rate", "alice", f"{number:05d}" + "x" * LONG, 10.0)
    names = [scope[2] or "" for scope in throttling._rates]
    assert len(names) == 8
    assert max(map(len, names)) <= CLIENT_ID_MAX
    assert max((len(key[2]) for key in throttling._limits), default=0) <= CLIENT_ID_MAX
    assert RATES_MAX * CLIENT_ID_MAX < BYTES_MAX
