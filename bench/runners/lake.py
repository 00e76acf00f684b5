"""A Python member of a region that writes a topic into a table: `python -m bench.runners.lake`.

It takes one job as a line of JSON, then lines `checkpoint` and `stop`. It prints lines of JSON: when it took its first
table, how many rows it has submitted, and that it has stopped.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import pyarrow as pa

from kohort.region import Region, Sink
from kohort.region.consumer import RegionConsumer

TABLE = "bench.lines"


def sink_of(job: dict[str, Any]) -> Sink:
    """Return the table of a job; import what it needs alone, as an application would."""
    if job["kind"] == "delta":
        from kohort.region import DeltaTable

        return DeltaTable(job["path"], storage_options=job["storage"])
    from kohort.region import IcebergTable

    return IcebergTable(TABLE, catalog=job["catalog"])


def lines_of(table: pa.Table) -> pa.Table:
    """Return the rows of records: what every contender writes."""
    columns = table.select(["partition", "offset", "timestamp"])
    return columns.append_column("line", table.column("value").cast(pa.string()))


def send_line(**what: Any) -> None:
    """Print a line of JSON."""
    print(json.dumps(what), flush=True)


def obey(consumer: RegionConsumer) -> None:
    """Follow the lines of standard input until it ends."""
    for line in sys.stdin:
        if line.strip() == "checkpoint":
            consumer.checkpoint()
        else:
            break
    consumer.close()


def main() -> None:
    """Run one job."""
    job = json.loads(sys.stdin.readline())
    with Region(job["region"], job["servers"], checkpoint_every=job["every"]) as region:
        consumer = region.consumer(
            job["name"], group_id=job["region"], topics=[job["topic"]], into=sink_of(job), start="beginning",
            on_rebalance="checkpoint",
        )  # fmt: skip
        with consumer:
            threading.Thread(target=obey, args=(consumer,), daemon=True).start()
            rows = 0
            for table in consumer.tables():
                if not rows:
                    send_line(began=time.monotonic())
                consumer.submit(lines_of(table))
                rows += table.num_rows
                send_line(rows=rows)
    send_line(stopped=True)


if __name__ == "__main__":
    main()
