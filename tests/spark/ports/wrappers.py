"""Libraries that wrap the source: options out of dictionaries, settings of clients, offsets kept by themselves."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from tests.spark.ports.job_site import JobSite, Rows, job


@dataclass
class Connector:
    """A source as a platform's configuration describes it; unset settings are left out of the options."""

    type: str
    servers: str
    topics: list[str]
    security: dict[str, str | None] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    def options(self) -> dict[str, Any]:
        security = {f"kafka.{name}": value for name, value in self.security.items() if value is not None}
        base = {"kafka.bootstrap.servers": self.servers, "subscribe": ",".join(self.topics)}
        return base | security | self.extra

    def read_stream(self, spark: SparkSession) -> DataFrame:
        return spark.readStream.format(self.type).options(**self.options()).load()


@job()
def a_platforms_connector(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A platform's connector: options of its catalogue, unset security, client settings, its own words among them."""
    connector = Connector(
        source,
        site.servers,
        [site.fill("events", [{"id": number} for number in range(6)], key="id")],
        security={
            "security.protocol": "PLAINTEXT",
            "sasl.mechanism": None,
            "sasl.jaas.config": None,
            "ssl.truststore.location": None,
            "ssl.endpoint.identification.algorithm": "https",
        },
        extra={
            "startingOffsets": "earliest",
            "failOnDataLoss": False,
            "connectionName": "events",
            "classification": "json",
            "inferSchema": "true",
            "kafka.client.id": "platform",
            "kafka.client.dns.lookup": "use_all_dns_ips",
            "kafka.session.timeout.ms": "45000",
            "kafka.request.timeout.ms": "60000",
            "kafka.max.partition.fetch.bytes": "1048576",
            "kafka.fetch.min.bytes": "1",
            "kafkaConsumer.pollTimeoutMs": "120000",
            "minPartitions": 3,
        },
    )
    rows = connector.read_stream(spark).selectExpr(
        "CAST(CAST(key AS STRING) AS INT)", "CAST(value AS STRING)", "partition", "offset"
    )
    name = f"platform_{source}"
    site.drain(rows.writeStream.format("memory").queryName(name))
    return spark.table(name).collect()


class OffsetStore:
    """Offsets that a library keeps itself, as `startingOffsets` of its next batch read."""

    def __init__(self, file: Path, topic: str) -> None:
        self.file, self.topic = file, topic

    def starting_offsets(self) -> str:
        return self.file.read_text() if self.file.exists() else "earliest"

    def save(self, frame: DataFrame) -> None:
        ends = frame.groupBy("partition").agg({"offset": "max"}).collect()
        self.file.write_text(json.dumps({self.topic: {str(partition): offset + 1 for partition, offset in ends}}))


@job()
def offsets_kept_by_a_library(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """An incremental load by batch reads: the library keeps its offsets in a file, and names a group for looks."""
    topic = site.topic("loads")
    store = OffsetStore(site.folder / "offsets.json", topic)
    loaded: list[Any] = []
    for number in range(3):
        site.send(topic, [f"{number}-{record}" for record in range(4)])
        frame = site.batch(
            source, subscribe=topic, startingOffsets=store.starting_offsets(), kafka__group__id="loader-looks"
        )
        loaded += [(number, *row) for row in frame.selectExpr("CAST(value AS STRING)", "offset").collect()]
        store.save(frame)
    return loaded
