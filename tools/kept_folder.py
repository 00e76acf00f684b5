"""Keeps what this version writes to a disk, for later versions to open: `python -m tools.kept_folder`.

The archive `tests/fixtures/kept-VERSION.tar.gz` has a broker's data folder with records, groups of three protocols,
transactions and a region's topic, the region's Parquet folder, the checkpoint of a Spark query, and `expected.json`:
what a reader must find. Run it once for each release, before the tag (docs/compatibility.md). An archive is never
written again.
"""

from __future__ import annotations

import json
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa

from kohort import (
    Admin,
    Broker,
    ConfigResource,
    Consumer,
    NewTopic,
    Producer,
    ResourceType,
    ScramCredential,
    __version__,
)
from kohort.region import ParquetFolder, Region

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests" / "fixtures"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
GROUPS = {"of-classic": "classic", "of-consumer": "consumer", "of-push": "push"}
RECORDS, OF_REGION = 20, 100
CONFIG = {"group.initial.rebalance.delay.ms": 0, "log.retention.ms": -1, "offsets.retention.minutes": 100_000_000}
KEY = "a key of the fixture, which guards nothing at all"
"""The region's key: public, and long enough."""


class KeptFolder(ParquetFolder):
    """A folder of Parquet files whose name is not its path, so that the archive can be opened anywhere."""

    @property
    def place(self) -> str:
        """The name by which the region knows the folder."""
        return "parquet:kept"


def write_records(servers: str) -> dict[str, Any]:
    """Write records with every codec, a compacted topic, and settings; return what is there."""
    with Admin(servers) as admin:
        admin.create_topics(
            [
                NewTopic("records", 2, configs={"retention.ms": "-1"}),
                NewTopic("compacted", 1, configs={"cleanup.policy": "compact"}),
                NewTopic("flights", 2),
            ]
        ).all()
        admin.alter_user_scram_credentials([ScramCredential("kept", "a password")]).all()
        group = ConfigResource(ResourceType.GROUP, "of-consumer")
        admin.incremental_alter_configs({group: {"consumer.session.timeout.ms": "50000"}}).all()
    values = []
    for codec in CODECS:
        with Producer(servers, compression_type=codec) as producer:
            for number in range(RECORDS):
                value = f"{codec} {number}"
                producer.send("records", value, key=f"k{number % 3}", headers=[("codec", codec.encode())])
                values.append(value)
            producer.send("compacted", codec, key="last")
    return {"values": sorted(values), "last": CODECS[-1], "settings": {"consumer.session.timeout.ms": "50000"}}


def write_groups(servers: str) -> dict[str, Any]:
    """Commit offsets in a group of each protocol; return them."""
    committed: dict[str, Any] = {}
    for group, protocol in GROUPS.items():
        with Consumer(servers, group_id=group, group_protocol=protocol, auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["records"])
            read = 0
            while read < len(CODECS) * RECORDS:
                read += len(list(consumer.poll(timeout_ms=1000)))
            consumer.commit()
        with Admin(servers) as admin:
            offsets = admin.list_consumer_group_offsets(group).all()
            committed[group] = {str(partition.partition): found.offset for partition, found in offsets.items()}
    return committed


def write_transactions(servers: str) -> dict[str, Any]:
    """Commit one transaction, abort another; return what a reader of committed records finds."""
    with Producer(servers, transactional_id="payments") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("payments", "committed", partition=0)
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send("payments", "aborted", partition=0)
        producer.abort_transaction()
    return {"committed": ["committed"], "id": "payments"}


def open_transaction(servers: str) -> Producer:
    """Begin a transaction, and leave it open when the broker ends."""
    producer = Producer(servers, transactional_id="payments", transaction_timeout_ms=900_000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("payments", "never committed", partition=0).result()
    return producer


def run_region(servers: str, out: Path, start: int, until: int) -> int | None:
    """Read the flights from `start` to `until` as a member; return the state that it began with."""
    with Producer(servers) as producer:
        for number in range(start, until):
            producer.send("flights", str(number))
    counted = start if start == 0 else None

    def reset(_sequence: int, state: bytes | None) -> None:
        nonlocal counted
        counted = int(state or b"0")

    region = Region("kept", servers, checkpoint_every=None, key=KEY)
    options: dict[str, Any] = {"group_id": "of-region", "topics": ["flights"], "start": "beginning"}
    counts = {"rows": 0}
    with (
        region,
        region.consumer(
            "worker", into=KeptFolder(out), on_checkpoint=lambda _: b"%d" % counts["rows"], on_reset=reset, **options
        ) as consumer,
    ):
        began: int | None = None
        for table in consumer.tables():
            began = counted if began is None else began
            consumer.submit(pa.table({"flight": table["value"].cast(pa.string())}))
            counts["rows"] += table.num_rows
            if counts["rows"] == until - start:
                counts["rows"] += began or 0
                consumer.close()
    return began


def run_query(servers: str, folder: Path) -> None:
    """Read the records by Spark, which leaves a checkpoint."""
    from pyspark.sql import SparkSession

    from kohort.spark import register

    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    register(spark)
    stream = spark.readStream.format("kohort").option("kafka.bootstrap.servers", servers)
    stream = stream.option("subscribe", "records").option("group.id", "of-spark").option("startingOffsets", "earliest")
    query = (
        stream.load().selectExpr("CAST(value AS STRING)").writeStream.format("noop")
        .option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    spark.stop()


def main() -> int:
    """Write the archive; return the exit code."""
    target = FIXTURES / f"kept-{__version__}.tar.gz"
    if target.exists() and "--again" not in sys.argv:
        print(f"{target} is there: a released version's archive stays as it is (--again before the release)")
        return 1
    with tempfile.TemporaryDirectory() as work:
        kept = Path(work) / "kept"
        with Broker(kept / "data", CONFIG) as broker:
            servers = broker.bootstrap_servers
            expected = write_records(servers)
            expected["groups"] = write_groups(servers)
            expected["transactions"] = write_transactions(servers)
            run_region(servers, kept / "out", 0, OF_REGION)
            expected["region"] = {"rows": OF_REGION, "state": OF_REGION}
            run_query(servers, kept / "checkpoint")
            left_open = open_transaction(servers)
        left_open.close(timeout_ms=0)
        (kept / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True))
        FIXTURES.mkdir(exist_ok=True)
        with tarfile.open(target, "w:gz", compresslevel=9) as archive:
            archive.add(kept, ".")
        shutil.rmtree(kept)
    print(f"{target.relative_to(ROOT)}: {target.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
