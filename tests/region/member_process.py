"""One member of a region in a process of its own, for tests that kill it: `python -m tests.region.member_process`."""

from __future__ import annotations

import argparse
import signal
import threading

from kohort.region.region import Region
from kohort.region.sinks.parquet_folder import ParquetFolder


def main() -> None:
    """Read, and submit value, partition and offset, until SIGTERM."""
    given = argparse.ArgumentParser()
    for name in ("servers", "region", "member", "topic", "folder", "protocol", "rebalance"):
        given.add_argument(name)
    told = given.parse_args()
    settings = (
        {"group_protocol": "consumer"}
        if told.protocol == "consumer"
        else {"session_timeout_ms": 6000, "heartbeat_interval_ms": 500}  # the least that Apache Kafka takes
    )
    region = Region(told.region, told.servers, checkpoint_every="500ms")
    consumer = region.consumer(
        told.member,
        topics=[told.topic],
        group_id=told.region,
        into=ParquetFolder(told.folder),
        start="beginning",
        on_rebalance=told.rebalance,
        max_poll_records=500,
        **settings,
    )
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())

    def close() -> None:
        ended.wait()
        consumer.close()

    threading.Thread(target=close, daemon=True).start()
    print("ready", flush=True)
    with consumer:
        for table in consumer.tables():
            consumer.submit(table.select(["value", "partition", "offset"]))
    region.close()


if __name__ == "__main__":
    main()
