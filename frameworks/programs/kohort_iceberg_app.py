"""A member of a region that writes numbered records into an Iceberg table: `SERVERS TOPIC WAREHOUSE MEMBER`."""

import signal
import sys

import msgspec
import pyarrow as pa

from kohort.region import IcebergTable, Region


def main() -> None:
    servers, topic, warehouse, member = sys.argv[1:]
    region = Region("numbers", servers, checkpoint_every="2s")
    consumer = region.consumer(
        member,
        topics=[topic],
        group_id="numbers",
        into=IcebergTable("air.numbers", warehouse=warehouse),
        start="beginning",
        session_timeout_ms=6000,
        heartbeat_interval_ms=1500,
    )
    signal.signal(signal.SIGTERM, lambda *_: consumer.close())
    with region, consumer:
        for table in consumer.tables():
            numbers = [msgspec.json.decode(value)["number"] for value in table["value"].to_pylist()]
            consumer.submit(pa.table({"number": pa.array(numbers, pa.int64())}), records=table)


main()
