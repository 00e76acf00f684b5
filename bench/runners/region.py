"""Writes a topic into Parquet files: `python -m bench.runners.region HOW SERVERS TOPIC COUNT`.

HOW is `plain` (a consumer that writes files, at least once), or how often a sequence is taken: `never`, `5s`, `1s`.
The clock runs from the first records to the last that was submitted or written.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kohort import Consumer
from kohort.region import ParquetFolder, Region
from kohort.region.consuming.staging import UNIT_BYTES


def plain(servers: str, topic: str, count: int, folder: Path) -> tuple[int, float]:
    """A consumer that writes a file for each unit of rows, as large as a member's."""
    seen, gathered, size, files = 0, [], 0, itertools.count()
    with Consumer(servers, group_id=f"g-{uuid.uuid4().hex}", auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        began_s = 0.0
        while seen < count:
            batch = consumer.poll_arrow(1000, max_records=10_000)
            if batch is None:
                continue
            began_s = began_s or time.perf_counter()
            table = pa.Table.from_batches([batch]).select(["value"])
            gathered.append(table)
            seen, size = seen + table.num_rows, size + table.nbytes
            if size >= UNIT_BYTES or seen >= count:
                pq.write_table(pa.concat_tables(gathered), folder / f"{next(files)}.parquet", compression="zstd")
                gathered, size = [], 0
        return seen, time.perf_counter() - began_s


def region(every: str, servers: str, topic: str, count: int, folder: Path) -> tuple[int, float]:
    """A member of a region."""
    name = f"bench-{uuid.uuid4().hex[:12]}"
    with Region(name, servers, checkpoint_every=None if every == "never" else every) as one:
        into = ParquetFolder(folder / "out")
        with one.consumer("m1", group_id=name, topics=[topic], into=into, start="beginning") as consumer:
            seen, began_s, took_s = 0, 0.0, 0.0
            for table in consumer.tables():
                began_s = began_s or time.perf_counter()
                consumer.submit(table.select(["value"]))
                seen += table.num_rows
                if seen >= count and not took_s:
                    took_s = time.perf_counter() - began_s
                    consumer.close()  # the loop ends when the last table is in a sequence
    return seen, took_s


def main() -> None:
    """One run; prints what was done as JSON."""
    how, servers, topic, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    with tempfile.TemporaryDirectory(prefix="kohort-bench-") as folder:
        job = plain if how == "plain" else lambda *of: region(how, *of)
        amount, seconds = job(servers, topic, count, Path(folder))
    print(json.dumps({"amount": amount, "seconds": seconds}))


if __name__ == "__main__":
    main()
