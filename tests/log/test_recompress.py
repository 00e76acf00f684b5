"""Batches compressed anew: in every codec from every other, with all else of them as it was."""

from __future__ import annotations

import pytest

from kohort.errors import CorruptDataError
from kohort.log import COMPRESSIONS, LogConfig
from kohort.log.recompress import validate_and_recompress as prepared_by
from kohort.log.validator import BatchValidator
from kohort.wire.batch import BatchRecord, build_batch, has_valid_crc, iter_headers
from kohort.wire.compression import CODECS
from kohort.wire.records import read_records
from tests.log.making import NOW

FACTS = {"producer_id": 7, "producer_epoch": 3, "base_sequence": 11, "transactional": True}
RECORDS = [
    BatchRecord(0, NOW + 5, b"k", b"v" * 900, [("h", b"1"), ("n", None)]),
    BatchRecord(0, NOW - 9, None, None, []),
    BatchRecord(0, NOW, b"", b"w" * 900, []),
]


def prepared(batches: bytes | bytearray, config: LogConfig) -> bytes:
    return bytes(prepared_by(BatchValidator("t-0", config), batches, config, NOW)[0])


@pytest.mark.parametrize("wanted", COMPRESSIONS)
@pytest.mark.parametrize("sent", CODECS)
def test_batch_keeps_all_but_its_codec(sent: str, wanted: str) -> None:
    batches = b"".join(build_batch(RECORDS, compression=sent, **FACTS) for _ in range(2))
    made = prepared(batches, LogConfig(compression_type=wanted))
    before = [(header._replace(batch_length=0, crc=0), at) for at, header in iter_headers(batches)]
    after = list(iter_headers(made))
    assert len(after) == len(before) == 2
    for (at, header), (old, old_at) in zip(after, before, strict=True):
        assert has_valid_crc(made, header, at)
        assert header.compression == COMPRESSIONS[wanted]
        same = header._replace(batch_length=0, crc=0, attributes=header.attributes & ~7)
        assert same == old._replace(attributes=old.attributes & ~7)
        assert read_records(made[at:]) == read_records(batches[old_at:])


def test_batch_in_the_wanted_codec_stays_as_it_is() -> None:
    batch = build_batch(RECORDS, compression="gzip", **FACTS)
    assert prepared(batch, LogConfig(compression_type="gzip", compression_gzip_level=9)) == batch


def test_level_is_that_of_the_topic() -> None:
    batch = build_batch([BatchRecord(0, NOW, None, bytes(range(256)) * 400, [])])
    fast, small = (
        len(prepared(batch, LogConfig(compression_type="gzip", compression_gzip_level=level))) for level in (1, 9)
    )
    assert small < fast < len(batch)


def test_batch_that_does_not_match_its_checksum_is_not_compressed() -> None:
    batch = bytearray(build_batch(RECORDS))
    batch[-1] ^= 1
    with pytest.raises(CorruptDataError):
        prepared(batch, LogConfig(compression_type="zstd"))
