"""Bounds of one batch for its reader: decompressed bytes, rows of one decode, and offsets that do not rise."""

from __future__ import annotations

from typing import Any

import pytest

from kohort.columns import COMPILED, DamageKind, Decoded, DecodeOptions, RecordSet, damage_error, reference, shapes
from kohort.errors import CorruptDataError, InvalidInputError
from kohort.wire.batch import BatchRecord, build_batch
from kohort.wire.compression import CODECS
from tests.support.hostile_batches import HOSTILE, bomb, hostile_batch, packed, record

MIB = 1 << 20


@pytest.fixture(params=["compiled", "plain"])
def decode_block(request: pytest.FixtureRequest) -> Any:
    if request.param == "plain":
        return reference.decode_block
    if not COMPILED:
        pytest.skip("the kernel is not built")
    from kohort.columns import _kernel

    return _kernel.decode_block


def decode(decode_block: Any, buffer: bytes, options: DecodeOptions) -> Decoded:
    sets = [RecordSet("orders", 3, buffer, 0)]
    return Decoded(sets, options, *decode_block(sets, options))


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec != "none"])
def test_batch_that_decompresses_to_more_is_refused_with_the_setting(decode_block: Any, codec: str) -> None:
    good = build_batch([BatchRecord(0, 1, None, b"good")])
    found = decode(decode_block, good + shifted(bomb(codec, 2 * MIB), 1), DecodeOptions(max_batch_bytes=2 * MIB))
    assert [row.value for row in found.records()] == [b"good"]
    damage = found.ranges[0].damage
    assert damage is not None
    assert (damage.kind, damage.offset, damage.skip_offset) == (DamageKind.TOO_LARGE, 1, 2)
    error = found.damage_of(0)
    assert isinstance(error, CorruptDataError)
    assert error.message == (
        "orders-3: the batch at offset 1 can't be read: it decompresses to more than 2097152 bytes: raise "
        "max.decompressed.batch.bytes, or seek to 2 to step over it"
    )


def shifted(batch: bytes, offset: int) -> bytes:
    return offset.to_bytes(8, "big") + batch[8:]


@pytest.mark.parametrize("codec", CODECS)
def test_batch_within_the_limit_is_read(decode_block: Any, codec: str) -> None:
    value = bytes(range(256)) * 8_000
    batch = build_batch([BatchRecord(0, 1, None, value)], compression=codec)
    found = decode(decode_block, batch, DecodeOptions(max_batch_bytes=len(value) + 100))
    assert [row.value for row in found.records()] == [value]


def test_limit_is_the_decompressed_part_only(decode_block: Any) -> None:
    """A batch that is not compressed is as large as the fetch that brought it."""
    found = decode(
        decode_block, build_batch([BatchRecord(0, 1, None, bytes(9_000))]), DecodeOptions(max_batch_bytes=10)
    )
    assert found.ranges[0].damage is None


def test_limit_has_bounds() -> None:
    with pytest.raises(InvalidInputError, match="max_batch_bytes"):
        DecodeOptions(max_batch_bytes=0)


@pytest.mark.parametrize("name", HOSTILE)
def test_every_hostile_batch_is_read_or_named(decode_block: Any, name: str) -> None:
    """Whatever a foreign broker stored, the reader goes on, or says what is wrong and where."""
    good = build_batch([BatchRecord(0, 1, None, b"good")])
    found = decode(decode_block, HOSTILE[name] + shifted(good, 9), DecodeOptions(max_records=1))
    parts = 0
    while not found.finished:
        parts += 1
        assert parts < 10
        (rest,) = found.remaining()
        assert rest.first_offset > found.sets[0].first_offset
        found = Decoded([rest], found.options, *decode_block([rest], found.options))
    damage = found.ranges[0].damage
    if damage is None:
        assert found.ranges[0].next_offset == 10
    else:
        assert damage.skip_offset > damage.offset >= 0
        error = damage_error(found.sets[0], damage, found.options)
        assert "orders-3: the batch at offset" in error.message


def test_offsets_that_do_not_rise_are_damage(decode_block: Any) -> None:
    """With a limit of rows, a decode would begin again at the same offset for ever."""
    body = record(0) + record(1) + record(1) + record(3)
    found = decode(decode_block, hostile_batch(body, 4), DecodeOptions())
    damage = found.ranges[0].damage
    assert damage is not None
    assert (damage.kind, damage.offset, damage.skip_offset) == (DamageKind.RECORD, 0, 4)


def test_tiny_records_are_decoded_in_several_parts(decode_block: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "_ROW_COLUMNS_BYTES", 100 * (len("orders") + 40))
    count = 350
    body = b"".join(record(number, None, None) for number in range(count))
    batch = hostile_batch(packed("zstd", body), count, attributes=CODECS["zstd"])
    found = decode(decode_block, batch, DecodeOptions())
    sizes, offsets = [found.num_rows], [row.offset for row in found.records()]
    while not found.finished:
        rest = found.remaining()
        found = Decoded(rest, found.options, *decode_block(rest, found.options))
        sizes.append(found.num_rows)
        offsets += [row.offset for row in found.records()]
    assert sizes == [100, 100, 100, 50]
    assert offsets == list(range(count))
