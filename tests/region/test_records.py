"""Facts as records."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import msgspec
import pytest

from kohort.errors import CorruptDataError, InvalidInputError
from kohort.region.record_codec import (
    RECORD_BYTES_MAX,
    checkpoint_tombstones,
    decode_fact,
    encode_fact_key,
    encode_fact_value,
)
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

T, U, REGION_ID = UUID(int=1), UUID(int=2), UUID(int=3)
GIVEN = Contribution(
    "r", 4, 1, 3, "m/ü", ("m/ü", "n"), "etl", "id", 5, "static",
    (OffsetSpan("etl", "t", T, 0, 1, 17, 2), OffsetSpan("etl", "t", T, 1, 0, 0), OffsetSpan("etl", "u", U, 0, 5, 6)),
    (StagedKey(REGION_ID, 3, "m/ü", 0), StagedKey(REGION_ID, 3, "m/ü", 1)), b"\0\xff", "parquet:/out",
    keeps=True, shares=False, pinned=("m/ü", "n"),
)  # fmt: skip
CLOSED = Manifest("r", REGION_ID, 4, 1, 2, 9, ("m", "n"), ("m",), (Position("etl", "t", T, 0, 17, 2),), True,
                  ("parquet:/out", "sql:sqlite:///x#t"))  # fmt: skip
STATE = KeyedStateChainHead(3, 4, bytes(range(16)), 9_000)
FACTS: list[Fact] = [
    GroupClaim("etl", "r", "me", 7),
    RegionCreated("r", REGION_ID, 7),
    TermBegun("r", 3, "127.0.0.1", 99, b"\1\2", 7),
    EpochBegun("r", 5, 3, 4, 1, "why", 7),
    InitialOffset("r", "etl", "t", T, 3, 17, -1),
    GIVEN,
    CLOSED,
    RegionStopped("r", "why", "m", "mend it", 7),
    StoppedMembers("r", {"m/ü": REGION_ID, "n": T}, 7),
    PublishedCheckpoint("r", "parquet:/out", 4, 7, True),
    InitialTopics("r", "etl", ("t", "u")),
]


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: type(fact).__name__)
def test_a_fact_is_decoded_as_it_was(fact: Fact) -> None:
    assert decode_fact(encode_fact_key(fact), encode_fact_value(fact)) == fact


def test_keys_distinguish_what_is_not_the_same_and_nothing_else() -> None:
    assert len({encode_fact_key(fact) for fact in FACTS}) == len(FACTS)
    assert encode_fact_key(replace(GIVEN, state=b"", term=9)) == encode_fact_key(GIVEN)
    assert (
        encode_fact_key(replace(GIVEN, sequence=5))
        != encode_fact_key(GIVEN)
        != encode_fact_key(replace(GIVEN, member="n"))
    )
    assert encode_fact_key(GroupClaim("etl", "r", "", 0)) != encode_fact_key(GroupClaim("etl", "s", "", 0))
    assert encode_fact_key(InitialOffset("r", "etl", "t", T, 3, 0)) != encode_fact_key(
        InitialOffset("r", "etl", "t", U, 3, 0)
    )
    assert (
        encode_fact_key(PublishedCheckpoint("r", "t:/a", 4, 7))
        == encode_fact_key(PublishedCheckpoint("r", "t:/a", 5, 8))
        != encode_fact_key(PublishedCheckpoint("r", "t:/b", 4, 7))
    )
    assert set(checkpoint_tombstones("r", 4, ["m/ü"])) == {encode_fact_key(CLOSED), encode_fact_key(GIVEN)}


def test_what_a_later_release_adds_is_passed_over() -> None:
    value = encode_fact_value(RegionCreated("r", REGION_ID, 7))
    later = value[:1] + bytes([value[1] + 1]) + value[2:] + b"\xa5later\x01"
    assert decode_fact(encode_fact_key(RegionCreated("r", REGION_ID, 7)), later) == RegionCreated("r", REGION_ID, 7)


@pytest.mark.parametrize("fact", [GIVEN, CLOSED])
def test_what_was_written_before_there_were_several_sinks_is_read(fact: Contribution | Manifest) -> None:
    value = encode_fact_value(fact)
    told = msgspec.msgpack.decode(value[1:])
    del told["sink" if isinstance(fact, Contribution) else "places"]
    before = replace(fact, sink="") if isinstance(fact, Contribution) else replace(fact, places=())
    assert decode_fact(encode_fact_key(fact), value[:1] + msgspec.msgpack.encode(told)) == before


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", b""),
        (b'["nothing","r"]', encode_fact_value(FACTS[1])),
        (encode_fact_key(FACTS[1]), b""),
        (encode_fact_key(FACTS[1]), b"\x02" + encode_fact_value(FACTS[1])[1:]),
        (encode_fact_key(FACTS[1]), encode_fact_value(FACTS[1])[:-1]),
        (b'["birth","other"]', encode_fact_value(FACTS[1])),
        (encode_fact_key(FACTS[2]), encode_fact_value(FACTS[1])),
        (encode_fact_key(GIVEN), encode_fact_value(CLOSED)),
        (b"{}", encode_fact_value(FACTS[1])),
        (b"[" * 5_000, encode_fact_value(FACTS[1])),
        (encode_fact_key(FACTS[1]), b"\x01" + b"\x91" * 5_000),
    ],
)
def test_what_is_damaged_is_said_so(key: bytes, value: bytes) -> None:
    with pytest.raises(CorruptDataError):
        decode_fact(key, value)


def test_a_large_contribution_fits_and_a_larger_one_is_refused_with_its_sizes() -> None:
    spans = tuple(OffsetSpan("etl", f"topic-{n // 100}", T, n % 100, 10**9 + n, 2 * 10**9, 12) for n in range(10_000))
    keys = tuple(StagedKey(REGION_ID, 10**6, "worker-12", unit) for unit in range(100))
    large = replace(GIVEN, spans=spans, keys=keys, state=bytes(512 * 1024))
    assert len(encode_fact_value(large)) < RECORD_BYTES_MAX
    with pytest.raises(InvalidInputError, match="1000000 of state, 10000 partitions, 100 staged units"):
        encode_fact_value(replace(large, state=bytes(1_000_000)))


def _with_states(fact: Contribution | Manifest) -> Contribution | Manifest:
    if isinstance(fact, Contribution):
        return replace(fact, spans=(replace(fact.spans[0], state=STATE), *fact.spans[1:]))
    return replace(fact, positions=(replace(fact.positions[0], state=STATE),))


@pytest.mark.parametrize("fact", [GIVEN, CLOSED], ids=["contribution", "manifest"])
def test_states_are_decoded_as_they_were_and_without_them_rows_are_as_before(fact: Contribution | Manifest) -> None:
    with_states = _with_states(fact)
    assert decode_fact(encode_fact_key(fact), encode_fact_value(with_states)) == with_states != fact
    told = msgspec.msgpack.decode(encode_fact_value(fact)[1:])
    rows = told["spans" if isinstance(fact, Contribution) else "positions"][0][3]
    assert all(len(row) == (4 if isinstance(fact, Contribution) else 3) for row in rows)


def test_manifest_of_ten_thousand_states_fits() -> None:
    at = tuple(
        Position(
            "etl",
            f"topic-{n // 100}",
            T,
            n % 100,
            2 * 10**9,
            12,
            KeyedStateChainHead(10**6, 10**6 + n, bytes(16), 10**10),
        )
        for n in range(10_000)
    )
    assert len(encode_fact_value(replace(CLOSED, positions=at))) < RECORD_BYTES_MAX / 2
