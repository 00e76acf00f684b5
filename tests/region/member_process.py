"""One member of a region in a process of its own: `python -m tests.region.member_process`.

Tests kill it, or have it end as docs/region.md shows: the signal's handler closes the member.
"""

from __future__ import annotations

import argparse
import json
import signal
import zlib

import pyarrow as pa

from kohort.region.consumer import RegionConsumer
from kohort.region.keyed_state.place import KeyedState
from kohort.region.region import Region
from kohort.region.sinks import Sink
from kohort.region.sinks.parquet_folder import ParquetFolder

COLUMNS = ["value", "partition", "offset"]


def main() -> None:
    """Read, and submit value, partition and offset, until SIGTERM."""
    parser = argparse.ArgumentParser()
    for name in ("servers", "region", "member", "topic", "folder", "protocol", "rebalance"):
        parser.add_argument(name)
    parser.add_argument("--submits", type=int, default=1, help="submit each table in so many pieces")
    parser.add_argument("--most", type=int, default=500, help="max_poll_records")
    parser.add_argument("--letters", default="", help="a folder of dead letters")
    parser.add_argument("--bad-of", type=int, default=0, help="the value of every so-manyth offset may not be")
    parser.add_argument("--ends-at", default="", help="SIGTERM itself: before, between, after the submits of a table")
    parser.add_argument("--iceberg", default="", help="the catalog's properties as JSON: the table is air.flights")
    parser.add_argument("--states", default="", help="a place of keyed states: each row has the count of its key")
    given = parser.parse_args()
    settings = (
        {"group_protocol": "consumer"}
        if given.protocol == "consumer"
        else {"session_timeout_ms": 6000, "heartbeat_interval_ms": 500}  # the least that Apache Kafka takes
    )
    region = Region(given.region, given.servers, checkpoint_every="500ms")
    consumer = region.consumer(
        given.member,
        topics=[given.topic],
        group_id=given.region,
        into=sink_of(given.folder, given.iceberg),
        start="beginning",
        on_rebalance=given.rebalance,
        on_bad_record="dead-letter" if given.letters else "fail",
        dead_letters=ParquetFolder(given.letters) if given.letters else None,
        keyed_state=keyed_state(given.states),
        max_poll_records=given.most,
        **settings,
    )
    signal.signal(signal.SIGTERM, lambda *_: consumer.close())

    def moment(name: str) -> None:
        if given.ends_at == name:
            signal.raise_signal(signal.SIGTERM)

    print("ready", flush=True)
    with region, consumer:
        for table in consumer.tables():
            moment("before")
            for number, piece in enumerate(in_pieces(table, given.submits)):
                if number == 1:
                    moment("between")
                rows = with_bad(piece.select(COLUMNS), given.bad_of)
                consumer.submit(with_counts(rows, piece, consumer) if given.states else rows, records=piece)
            moment("after")


def sink_of(folder: str, catalog: str) -> Sink:
    """The folder, or a table of an Iceberg catalog."""
    if not catalog:
        return ParquetFolder(folder)
    from kohort.region.sinks.iceberg_table import IcebergTable

    return IcebergTable("air.flights", catalog=json.loads(catalog))


def with_bad(rows: pa.Table, bad_of: int) -> pa.Table:
    """The rows, in which the value of every so-manyth offset is null and may not be."""
    if not bad_of:
        return rows
    pairs = zip(rows.column("value").to_pylist(), rows.column("offset").to_pylist(), strict=True)
    values = pa.array([value if offset % bad_of else None for value, offset in pairs], pa.binary())
    field = pa.field("value", pa.binary(), nullable=False)
    return pa.Table.from_arrays([values, *rows.columns[1:]], schema=rows.schema.set(0, field))


def keyed_state(place: str) -> KeyedState | None:
    """The place of keyed states; of an object store with the options after its URL."""
    url, *options = place.split(",")
    return KeyedState(url, storage_options=dict(option.split("=", 1) for option in options)) if url else None


def key_of(value: bytes) -> bytes:
    """The key under which a record is counted: of a few, so that each is counted often."""
    return b"%d" % (zlib.crc32(value) % 50)


def with_counts(rows: pa.Table, piece: pa.Table, consumer: RegionConsumer) -> pa.Table:
    """The rows, each with the number of records of its key in its partition so far."""
    numbers = piece.column("partition").to_pylist()
    topic = piece.column("topic")[0].as_py()
    states = {number: consumer.partition_state(topic, number) for number in set(numbers)}
    counts = []
    for value, number in zip(piece.column("value").to_pylist(), numbers, strict=True):
        key, state = key_of(value), states[number]
        counts.append(int(state.get(key, b"0")) + 1)
        state[key] = b"%d" % counts[-1]
    return rows.append_column("count", pa.array(counts, pa.int64()))


def in_pieces(table: pa.Table, count: int) -> list[pa.Table]:
    """The rows of a table in so many tables, as even as can be."""
    step = -(-table.num_rows // count)
    return [table.slice(start, step) for start in range(0, table.num_rows, step)]


if __name__ == "__main__":
    main()
