"""Spark 4.1 with Delta's and Iceberg's own readers, in a process and a Python environment of its own."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from frameworks.builds import FrameworkUnavailable, python_environment

from tests.region.s3_server import ACCESS
from tests.support import maven

_PROGRAM = Path(__file__).with_name("spark_lake_reader.py")
SPARK_TABLE_JARS = (
    "io.delta:delta-spark_4.1_2.13:4.3.0",
    "io.delta:delta-storage:4.3.0",
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "org.apache.iceberg:iceberg-aws-bundle:1.12.0",
    "org.xerial:sqlite-jdbc:3.46.1.3",
    "org.apache.hadoop:hadoop-aws:3.4.2",
    "software.amazon.awssdk:s3-transfer-manager:2.29.52",
    "software.amazon.awssdk:apache-client:2.29.52",
    "org.apache.httpcomponents:httpclient:4.5.13",
    "org.apache.httpcomponents:httpcore:4.4.16",
    "commons-logging:commons-logging:1.2",
)
"""What Spark 4.1 needs for Delta and Iceberg tables, also in stores of S3's protocol."""


class LakeSpark:
    """A session that reads tables."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def read(
        self,
        kind: str,
        paths: Sequence[str],
        columns: Sequence[str],
        config: Mapping[str, str] | None = None,
        options: Mapping[str, str] | None = None,
    ) -> list[list[Any]]:
        """Return the rows of a table.

        Args:
            kind: parquet, delta or iceberg.
            paths: what is read; of Iceberg the table's name.
            columns: expressions in SQL.
            config: settings of the session.
            options: those of the reader.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        job = {"format": kind, "paths": list(paths), "columns": list(columns)}
        print(json.dumps({**job, "config": dict(config or {}), "options": dict(options or {})}), file=stdin, flush=True)
        answer = json.loads(stdout.readline())
        assert "rows" in answer, answer["error"]
        return list(answer["rows"])


def s3a_config(address: str) -> dict[str, str]:
    """Return the settings by which Hadoop's file system reaches a server of S3's protocol."""
    return {
        "fs.s3a.endpoint": address,
        "fs.s3a.endpoint.region": ACCESS["s3.region"],
        "fs.s3a.path.style.access": "true",
        "fs.s3a.access.key": ACCESS["s3.access-key-id"],
        "fs.s3a.secret.key": ACCESS["s3.secret-access-key"],
        "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    }


def catalog_config(name: str, uri: str, warehouse: str, address: str = "") -> dict[str, str]:
    """Return the settings of an Iceberg catalog in a SQLite file, whose files are on disk or in a store."""
    settings = {
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "uri": f"jdbc:{uri.replace(':///', ':')}",
        "jdbc.schema-version": "V1",
        "warehouse": warehouse,
    }
    if address:
        settings |= {
            "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            "s3.endpoint": address,
            "s3.path-style-access": "true",
            "client.region": ACCESS["s3.region"],
            "s3.access-key-id": ACCESS["s3.access-key-id"],
            "s3.secret-access-key": ACCESS["s3.secret-access-key"],
        }
    catalog = f"spark.sql.catalog.{name}"
    return {catalog: "org.apache.iceberg.spark.SparkCatalog"} | {
        f"{catalog}.{key}": value for key, value in settings.items()
    }


@contextlib.contextmanager
def running(folder: Path) -> Iterator[LakeSpark]:
    """Start the session; skip the test where Maven or the packages are missing."""
    try:
        python = python_environment("spark-lake")
        jars = maven.jars("lake-spark-tables", SPARK_TABLE_JARS, transitive=False)
    except (FrameworkUnavailable, maven.MavenUnavailable) as error:
        pytest.skip(f"Spark's readers of Delta and Iceberg can't be had here: {error}")
    command = [str(python), str(_PROGRAM), ",".join(str(jar) for jar in sorted(jars.glob("*.jar")))]
    with (folder / "spark.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder
        )
    try:
        assert process.stdout is not None
        assert "ready" in process.stdout.readline(), (folder / "spark.log").read_text()
        yield LakeSpark(process)
    finally:
        process.communicate()
