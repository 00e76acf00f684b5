"""The writers that are compared: members of a kohort region, Iceberg's Kafka Connect sink, Spark's own source."""

from __future__ import annotations

import sys
import threading
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pyspark
from tests.support import maven

import kohort
from frameworks.builds import PROGRAMS, java_libraries, pinned_version, python_environment
from frameworks.connect import VERSION as CONNECT_VERSION
from frameworks.connect import ConnectWorkers
from frameworks.framework import INPUT, PARTITIONS, Framework, Site
from frameworks.lake_kills.table import CATALOG, NAME, NAMESPACE, DeltaNumbers, IcebergNumbers, NumbersTable
from kohort import Admin
from kohort.client.admin.values import NewTopic

ICEBERG_VERSION = "1.12.0"
DELTA_VERSION = "4.3.0"
CONTROL_TOPIC = "control-iceberg"
CONNECTOR = "numbers"
REST_CALL_S = 5.0
RESTART_EVERY_S = 3.0
COMMIT_INTERVAL_MS = 2000


class LakeWriter(Framework):
    """A framework that writes numbers from a topic into a table."""

    exactly_once = True

    def open_table(self, site: Site) -> NumbersTable:
        """Return the table, before `prepare`."""
        raise NotImplementedError

    def prepare(self, site: Site) -> None:
        """Create the topic."""
        with Admin(site.servers) as admin:
            admin.create_topics([NewTopic(INPUT, PARTITIONS)]).all()


class IcebergWriter(LakeWriter):
    """A writer of an Iceberg table."""

    table: IcebergNumbers

    def open_table(self, site: Site) -> IcebergNumbers:
        """Return the table, before `prepare`."""
        self.table = IcebergNumbers(site.folder)
        return self.table


class KohortMembers(IcebergWriter):
    """Python members of a region. Each of them can become the control plane, which is killed with it."""

    name = "kohort"
    title = "kohort, IcebergTable in a region"
    version = kohort.__version__
    story = "two Python programs, members of one region"
    settings = '`checkpoint_every="2s"`, `session_timeout_ms=6000`'

    def command(self, site: Site, member: int) -> list[str]:
        program = str(PROGRAMS / "kohort_iceberg_app.py")
        return [sys.executable, program, site.servers, INPUT, str(self.table.warehouse), f"worker-{member}"]


class KohortQueries(IcebergWriter):
    """Spark queries of a region, each in an application of its own."""

    name = "kohort-spark"
    title = "kohort, Spark queries in a region"
    version = f"{kohort.__version__} on Spark {pyspark.__version__}"
    story = "two Spark applications with a query each, members of one region"
    settings = '`checkpoint_every="2s"`'

    def command(self, site: Site, member: int) -> list[str]:
        arguments = [site.servers, INPUT, str(self.table.warehouse), f"query-{member}", str(site.folder / "regions")]
        return [sys.executable, str(PROGRAMS / "kohort_spark_app.py"), *arguments]


class KohortMixed(IcebergWriter):
    """Two Python members and two Spark applications of one region and one group."""

    name = "kohort-mixed"
    title = "kohort, two Python programs and two Spark applications in a region"
    version = KohortQueries.version
    story = "two Python programs and two Spark applications, members of one region"
    settings = KohortMembers.settings
    members = 4

    def command(self, site: Site, member: int) -> list[str]:
        kind: type[IcebergWriter] = KohortMembers if member < 2 else KohortQueries
        part = kind()
        part.table = self.table
        return part.command(site, member)


class FailedTasks:
    """A thread that restarts a connector's failed tasks, as operators do: Connect itself never does.

    Args:
        workers: addresses of the workers' REST interface, any of which may be away.
        connector: the connector's name.
    """

    def __init__(self, workers: Sequence[str], connector: str) -> None:
        self._workers, self._connector = workers, connector
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        path = f"/connectors/{self._connector}/restart?includeTasks=true&onlyFailed=true"
        while not self._closed.wait(RESTART_EVERY_S):
            for worker in self._workers:
                request = urllib.request.Request(worker + path, b"", method="POST")
                with suppress(OSError), urllib.request.urlopen(request, timeout=REST_CALL_S):
                    break

    def close(self) -> None:
        """Let the thread end."""
        self._closed.set()
        self._thread.join()


class IcebergConnect(ConnectWorkers, IcebergWriter):
    """Iceberg's sink with two tasks on two Connect workers, as its documentation sets it up."""

    name = "connect"
    title = "Iceberg's Kafka Connect sink"
    version = f"{ICEBERG_VERSION} on Connect {CONNECT_VERSION}"
    exactly_once = True
    story = "two distributed workers, `tasks.max=2`, JDBC catalog on SQLite"
    settings = (
        "`iceberg.control.commit.interval-ms=2000`, `scheduled.rebalance.max.delay.ms=0`, session timeouts 6 s, "
        "`offset.flush.interval.ms=500`; failed tasks are restarted every 3 s; `-Xms256m -Xmx2g`"
    )
    libraries = (
        f"org.apache.kafka:connect-runtime:{CONNECT_VERSION}",
        f"org.apache.kafka:connect-json:{CONNECT_VERSION}",
        f"org.apache.iceberg:iceberg-kafka-connect:{ICEBERG_VERSION}",
        f"org.apache.iceberg:iceberg-parquet:{ICEBERG_VERSION}",
        f"org.apache.iceberg:iceberg-orc:{ICEBERG_VERSION}",
        "org.xerial:sqlite-jdbc:3.46.1.3",
    )
    java_options = ("-Xms256m", "-Xmx2g")
    more: ClassVar[dict[str, str]] = {}
    """Settings of the connector beside those that every run has."""

    def prepare(self, site: Site) -> None:
        """Resolve the jars, create the table and the topics."""
        self.table.create()
        super().prepare(site)
        with Admin(site.servers) as admin:
            admin.create_topics([NewTopic(CONTROL_TOPIC, 1)]).all()

    def begin(self, site: Site) -> None:
        """Create the connector, and restart its failed tasks from now on."""
        super().begin(site)
        self._restarts = FailedTasks([f"http://127.0.0.1:{port}" for port in self._ports], CONNECTOR)

    def close(self) -> None:
        """Restart no more tasks."""
        if hasattr(self, "_restarts"):
            self._restarts.close()

    def extra_jars(self) -> Sequence[Path]:
        """Return Hadoop's jars, by which Iceberg writes local files; PySpark has them."""
        return sorted(Path(pyspark.__file__).parent.glob("jars/hadoop-client-*.jar"))

    def connector(self, site: Site) -> tuple[str, dict[str, Any]]:
        config = {
            "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
            "tasks.max": "2",
            "topics": INPUT,
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "false",
            "iceberg.tables": f"{NAMESPACE}.{NAME}",
            "iceberg.catalog": CATALOG,
            "iceberg.catalog.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            "iceberg.catalog.uri": f"jdbc:sqlite:{self.table.catalog_file}",
            "iceberg.catalog.jdbc.schema-version": "V1",
            "iceberg.catalog.warehouse": f"file://{self.table.warehouse}",
            "iceberg.control.topic": CONTROL_TOPIC,
            "iceberg.control.commit.interval-ms": str(COMMIT_INTERVAL_MS),
            "iceberg.kafka.bootstrap.servers": site.servers,
            **self.more,
        }
        return CONNECTOR, config


class IcebergConnectEarliest(IcebergConnect):
    """Iceberg's sink, with the control topic read from its beginning after a change of the coordinator."""

    name = "connect-earliest"
    title = "Iceberg's Kafka Connect sink, control topic from earliest"
    settings = f"{IcebergConnect.settings}, `iceberg.kafka.auto.offset.reset=earliest`"
    more: ClassVar = {"iceberg.kafka.auto.offset.reset": "earliest"}


class SparkDelta(LakeWriter):
    """Spark's own Kafka source with the Delta sink: one application, because a query can't be shared."""

    name = "spark-delta"
    title = "Spark's Kafka source, Delta sink"
    version = f"Spark {pinned_version('spark-delta', 'pyspark')}, Delta {DELTA_VERSION}"
    story = "one application"
    settings = '`trigger(processingTime="2 seconds")`'
    members = 1

    def open_table(self, site: Site) -> DeltaNumbers:
        """Return the table, before `prepare`."""
        self.table = DeltaNumbers(site.folder)
        return self.table

    def prepare(self, site: Site) -> None:
        """Make the environment, resolve the jars, create the topic."""
        self._python = python_environment("spark-delta")
        folders = [
            java_libraries("spark-delta", [f"io.delta:delta-spark_4.1_2.13:{DELTA_VERSION}"]),
            maven.jars("spark-kafka", maven.SPARK_KAFKA_SOURCE, transitive=False),
        ]
        self._jars = ",".join(str(jar) for folder in folders for jar in sorted(folder.glob("*.jar")))
        super().prepare(site)

    def command(self, site: Site, member: int) -> list[str]:
        program = str(PROGRAMS / "spark_delta_app.py")
        return [str(self._python), program, site.servers, INPUT, str(self.table.folder), self._jars]


WRITERS: tuple[type[LakeWriter], ...] = (
    KohortMembers,
    KohortQueries,
    KohortMixed,
    IcebergConnect,
    IcebergConnectEarliest,
    SparkDelta,
)
