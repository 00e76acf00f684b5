"""Kafka Connect, distributed: a file source that is exactly once, and a file sink."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from frameworks.account import Numbered
from frameworks.builds import JAVA_OPTIONS, LOGGING, FrameworkUnavailable, java_libraries
from frameworks.framework import INPUT, OUTPUT, Framework, Site, TopicInput, TopicOutput
from kohort import Admin
from kohort.client.admin.values import NewTopic
from kohort.io.java import java_path, log4j_properties
from kohort.zookeeper import free_ports

VERSION = "4.3.1"
LIBRARIES = tuple(f"org.apache.kafka:{name}:{VERSION}" for name in ("connect-runtime", "connect-file"))
REST_TIMEOUT_S = 240
REST_CALL_S = 60
_LINE = re.compile(r"(key-\d+) (\d+)$")


def parse_line(line: str) -> Numbered | None:
    """Return the record at the end of a line `KEY NUMBER`.

    A killed sink leaves a part of a line, to which its successor appends the next one. None: there is no whole record.
    """
    found = _LINE.search(line)
    return None if found is None else Numbered(found[1], int(found[2]))


class FileInput:
    """Appends numbered records to the file that the source connector reads."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def write(self, records: Sequence[Numbered]) -> None:
        self._file.writelines(f"{record.key} {record.number}\n" for record in records)
        self._file.flush()

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class FileOutput:
    """Reads the file that the sink connector appends to."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._file = path.open(encoding="utf-8")
        self._rest = ""

    def read_more(self) -> list[Numbered]:
        lines = (self._rest + self._file.read()).split("\n")
        self._rest = lines.pop()
        if not lines:
            time.sleep(0.2)
        records = (parse_line(line) for line in lines)
        return [record for record in records if record is not None]

    def close(self) -> None:
        self._file.close()


class LineOutput(TopicOutput):
    """Reads a topic whose values are lines `KEY NUMBER`."""

    def parse_record(self, key: str, value: str) -> Numbered:
        """Return the record of a line.

        Raises:
            ValueError: the line has another form.
        """
        found = parse_line(value)
        if found is None:
            raise ValueError(f"no record: {value!r}")
        return found


class LineInput(TopicInput):
    """Writes values `KEY NUMBER`, because the file sink writes values alone."""

    def encode_value(self, record: Numbered) -> str:
        return f"{record.key} {record.number}"


class ConnectWorkers(Framework):
    """Two distributed workers. Subclasses say which connector they run."""

    title = "Kafka Connect"
    version = VERSION
    settings = (
        "`scheduled.rebalance.max.delay.ms=0`, `offset.flush.interval.ms=500`, `session.timeout.ms=6000`, "
        "replication factors of the internal topics 1"
    )
    output_partitions = 1
    """A file source has no keys: one partition keeps the order."""
    libraries: tuple[str, ...] = LIBRARIES
    java_options: tuple[str, ...] = JAVA_OPTIONS

    def prepare(self, site: Site) -> None:
        """Resolve the jars, write the workers' properties, and create the topics."""
        jars = java_libraries("connect", [*self.libraries, *LOGGING])
        classpath = ":".join([f"{jars}/*", *map(str, self.extra_jars())])
        (site.folder / "log4j2.properties").write_text(log4j_properties())
        logging = f"-Dlog4j2.configurationFile={site.folder / 'log4j2.properties'}"
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        self._java = [str(java_path()), *self.java_options, logging, "-cp", classpath, main]
        self._ports = free_ports(self.members)
        for member, port in enumerate(self._ports):
            self._properties(site, member).write_text(self._worker(site, port))
        with Admin(site.servers) as admin:
            admin.create_topics([NewTopic(INPUT, 4), NewTopic(OUTPUT, self.output_partitions)]).all()

    def extra_jars(self) -> Sequence[Path]:
        """Return jars that are there already."""
        return ()

    def command(self, site: Site, member: int) -> list[str]:
        return [*self._java, str(self._properties(site, member))]

    def begin(self, site: Site) -> None:
        """Create the connector, once a worker answers.

        Raises:
            FrameworkUnavailable: no worker took it in time.
        """
        name, config = self.connector(site)
        deadline = time.monotonic() + REST_TIMEOUT_S
        url = f"http://127.0.0.1:{self._ports[0]}/connectors/{name}/config"
        body = json.dumps({"name": name, "tasks.max": "1", **config}).encode()
        headers = {"Content-Type": "application/json"}
        while True:
            request = urllib.request.Request(url, body, headers, method="PUT")
            try:
                with urllib.request.urlopen(request, timeout=REST_CALL_S):
                    return
            except OSError as error:  # refused until the worker listens, 404 or 409 until it is a member
                if time.monotonic() > deadline:
                    raise FrameworkUnavailable(f"no worker took the connector: {error}") from error
                time.sleep(0.5)

    def connector(self, site: Site) -> tuple[str, dict[str, Any]]:
        """Return the name and the configuration of the connector."""
        raise NotImplementedError

    @staticmethod
    def _properties(site: Site, member: int) -> Path:
        return site.member_folder(member) / "worker.properties"

    def _worker(self, site: Site, port: int) -> str:
        converter = "org.apache.kafka.connect.storage.StringConverter"
        lines = {
            "bootstrap.servers": site.servers,
            "group.id": "frameworks-connect",
            "listeners": f"http://127.0.0.1:{port}",
            "rest.advertised.host.name": "127.0.0.1",
            "key.converter": converter,
            "value.converter": converter,
            "exactly.once.source.support": "enabled",
            "scheduled.rebalance.max.delay.ms": "0",
            "offset.flush.interval.ms": "500",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "1500",
            "consumer.session.timeout.ms": "6000",
            "consumer.heartbeat.interval.ms": "1500",
            "consumer.auto.offset.reset": "earliest",
        }
        for kind, partitions in (("config", None), ("offset", 4), ("status", 2)):
            lines[f"{kind}.storage.topic"] = f"connect-{kind}"
            lines[f"{kind}.storage.replication.factor"] = "1"
            if partitions is not None:
                lines[f"{kind}.storage.partitions"] = str(partitions)
        return "".join(f"{key}={value}\n" for key, value in lines.items())


class ConnectSource(ConnectWorkers):
    """A file source: each line once in the topic."""

    name = "connect-source"
    title = "Kafka Connect, file source"
    exactly_once = True
    story = "a growing file into a topic, `exactly.once.source.support=enabled`; two distributed workers"

    def connector(self, site: Site) -> tuple[str, dict[str, Any]]:
        config = {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
            "file": str(site.folder / "numbers.txt"),
            "topic": OUTPUT,
            "exactly.once.support": "required",
            "transaction.boundary": "interval",
            "transaction.boundary.interval.ms": "300",
        }
        return "lines-in", config

    def open_input(self, site: Site) -> FileInput:
        return FileInput(site.folder / "numbers.txt")

    def open_output(self, site: Site) -> TopicOutput:
        return LineOutput(site.servers, OUTPUT, 1)


class ConnectSink(ConnectWorkers):
    """A file sink: each record at least once in the file."""

    name = "connect-sink"
    title = "Kafka Connect, file sink"
    exactly_once = False
    story = "a topic into a file; two distributed workers"

    def connector(self, site: Site) -> tuple[str, dict[str, Any]]:
        config = {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
            "file": str(site.folder / "numbers-out.txt"),
            "topics": INPUT,
        }
        return "lines-out", config

    def open_input(self, site: Site) -> TopicInput:
        return LineInput(site.servers)

    def open_output(self, site: Site) -> FileOutput:
        return FileOutput(site.folder / "numbers-out.txt")
