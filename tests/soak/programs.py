"""The programs of a soak, each a process: `python -m tests.soak.programs PROGRAM PROPERTIES FOLDER`.

Each is written as the docs write it: it ends by SIGTERM, and on an error that it does not expect.
"""

from __future__ import annotations

import json
import signal
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow.fs as pafs

from kohort.region.sinks.parquet_folder import ParquetFolder

INPUT = "soak"
PARTITIONS = 8
OUTPUTS = {
    "transactions": "soak-transactions",
    "consumer": "soak-consumer",
    "push": "soak-push",
    "coordinated": "soak-coordinated",
    "query": "soak-query",
}
"""Output topics by program."""


def properties_of(path: Path) -> dict[str, str]:
    """The settings in a file of client properties."""
    lines = path.read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def table_of(folder: Path) -> ParquetFolder:
    """The region's table: in the object store, if `folder` says how it is reached, else in a folder of its own."""
    store = folder / "store.json"
    if not store.exists():
        return ParquetFolder(folder / "table")
    return ParquetFolder("s3://lake/table", storage_options=json.loads(store.read_text()))


def objects_of(folder: Path) -> pafs.S3FileSystem:
    """The object store's objects, as Arrow reads them."""
    reached = json.loads((folder / "store.json").read_text())
    return pafs.S3FileSystem(
        access_key=reached["access_key_id"],
        secret_key=reached["secret_access_key"],
        region=reached["region"],
        endpoint_override=reached["endpoint"],
    )


class _Ending:
    """Whether SIGTERM has come."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_: object) -> None:
        self.asked = True


def transactions(settings: dict[str, str], _: Path) -> None:
    """Our clients, classic protocol: publishes records on in transactions, exactly once."""
    from kohort import Consumer, Producer, TopicPartition

    ending = _Ending()
    consumer = Consumer(
        **settings,
        group_id="soak-transactions",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=6000,
    )
    # A name of its own for each life: the offsets are fenced by the group's generation.
    producer = Producer(**settings, transactional_id=f"soak-{uuid.uuid4()}", transaction_timeout_ms=10_000)
    with consumer, producer:
        producer.init_transactions()
        consumer.subscribe([INPUT])
        while not ending.asked:
            records = consumer.poll(timeout_ms=500, max_records=500)
            if not records:
                continue
            producer.begin_transaction()
            for record in records:
                producer.send(OUTPUTS["transactions"], key=record.key, value=record.value)
            ends = {TopicPartition(record.topic, record.partition): record.offset + 1 for record in records}
            producer.send_offsets_to_transaction(ends, consumer.group_metadata())
            producer.commit_transaction()


def consumer(settings: dict[str, str], _: Path) -> None:
    """confluent-kafka, KIP-848: publishes records on, at least once."""
    from confluent_kafka import Consumer, KafkaException, Producer

    ending = _Ending()
    names = {"sasl.mechanism": "sasl.mechanisms"}
    connection = {names.get(name, name): value for name, value in settings.items()} | {"reconnect.backoff.max.ms": 1000}
    reader = Consumer(
        {
            **connection,
            "group.id": "soak-consumer",
            "group.protocol": "consumer",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    producer = Producer({**connection, "enable.idempotence": True})
    reader.subscribe([INPUT])
    while not ending.asked:
        records = [record for record in reader.consume(500, timeout=0.5) if record.error() is None]
        for record in records:
            producer.produce(OUTPUTS["consumer"], value=record.value(), key=record.key())
        if not records or producer.flush(60):
            continue
        try:
            reader.commit(asynchronous=False)
        except KafkaException as error:  # a rebalance, or the broker is away: the records come again
            print(f"not committed: {error}", file=sys.stderr, flush=True)
    producer.flush(30)
    reader.close()


def push(settings: dict[str, str], _: Path) -> None:
    """Our clients, push protocol: publishes records on, at least once."""
    _publish_on(settings, "push", "push")


def coordinated(settings: dict[str, str], folder: Path) -> None:
    """Our clients, KIP-848, at coordinators over the broker: publishes records on, at least once."""
    servers = (folder.parent / "coordinators").read_text()
    _publish_on(settings | {"bootstrap.servers": servers}, "coordinated", "consumer")


def _publish_on(settings: dict[str, str], name: str, protocol: str) -> None:
    from kohort import Consumer, Producer
    from kohort.errors import CommitFailedError

    ending = _Ending()
    consumer = Consumer(
        **settings,
        group_id=f"soak-{name}",
        group_protocol=protocol,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        **({} if protocol == "consumer" else {"session_timeout_ms": 6000}),
    )
    with consumer, Producer(**settings) as producer:
        consumer.subscribe([INPUT])
        while not ending.asked:
            records = consumer.poll(timeout_ms=500, max_records=500)
            for record in records:
                producer.send(OUTPUTS[name], key=record.key, value=record.value)
            producer.flush()
            if not records:
                continue
            try:
                consumer.commit()
            except CommitFailedError as error:  # a rebalance: the records come again
                print(f"not committed: {error}", file=sys.stderr, flush=True)


def region(settings: dict[str, str], folder: Path) -> None:
    """A member of a region, which writes an exact table: its signal handler is the one of docs/region.md."""
    from kohort.region.region import Region

    servers = settings.pop("bootstrap.servers")
    place = Region("soak", servers, checkpoint_every="1s", **settings)
    member = place.consumer(
        folder.name,
        topics=[INPUT],
        group_id="soak-region",
        into=table_of(folder.parent),
        start="beginning",
        session_timeout_ms=6000,
    )
    signal.signal(signal.SIGTERM, lambda *_: member.close())
    with place, member:
        for table in member.tables():
            member.submit(table.select(["key", "value", "partition", "offset"]), records=table)


def query(settings: dict[str, str], folder: Path) -> None:
    """A Spark query that is a member of its group, and publishes records on, at least once."""
    from pyspark.sql import SparkSession

    from kohort.spark import register

    ending = _Ending()
    connection = {f"kafka.{name}": value for name, value in settings.items()}
    spark = (
        SparkSession.builder.master("local[1]")
        .appName(folder.name)
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    register(spark)
    rows = (
        spark.readStream.format("kohort")
        .options(**connection, subscribe=INPUT, startingOffsets="earliest")
        .option("group.id", "soak-query")
        .load()
    )
    running = (
        rows.select("key", "value")
        .writeStream.format("kohort")
        .options(**connection, topic=OUTPUTS["query"])
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(processingTime="1 second")
        .start()
    )
    while not ending.asked:
        running.awaitTermination(1)
        if not running.isActive:
            raise SystemExit(f"the query ended: {running.exception()}")
    running.stop()
    spark.stop()


PROGRAMS: dict[str, Callable[[dict[str, str], Path], None]] = {
    "transactions": transactions,
    "consumer": consumer,
    "push": push,
    "coordinated": coordinated,
    "region": region,
    "query": query,
}


def main() -> None:
    """Run a program until SIGTERM."""
    name, properties, folder = sys.argv[1:]
    path = Path(folder)
    path.mkdir(exist_ok=True)
    PROGRAMS[name](properties_of(Path(properties)), path)


if __name__ == "__main__":
    main()
