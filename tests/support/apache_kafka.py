"""A real Apache Kafka, one node, on loopback; and its command line tools against any broker."""

from __future__ import annotations

import base64
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from kohort.errors import NotFoundError
from kohort.io.java import JavaProgram, JavaServer, java_path, log4j_properties, start_dependent_child
from kohort.zookeeper import free_ports
from tests.support import maven
from tests.support.class_archive import formatted_folder, kafka_options, keep

_START_TIMEOUT_MS = 90_000
SERVER_OPTIONS = ("-Xmx1g", "-Xms256m", "-XX:+UseG1GC", "-XX:MaxDirectMemorySize=512m")
"""Of a node whose speed is measured."""
_OF_ARCHIVE = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
BRIEF_OPTIONS = ("-Xmx1g", "-XX:MaxDirectMemorySize=512m", *_OF_ARCHIVE)
"""Of one that a few tests use: compiling it well costs more than it saves."""
SOON_BACK = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
"""Settings of a node that is killed: its controller refuses it until the session before is over, else nine seconds."""
_TOOL_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def kafka_jars() -> Path:
    """The folder of Apache Kafka's jars.

    Raises:
        MavenUnavailable: no Maven, no Java 17, or nothing could be resolved.
    """
    try:
        java_path()
    except NotFoundError as error:
        raise maven.MavenUnavailable(str(error)) from error
    return maven.jars("kafka", maven.KAFKA)


class KafkaTools:
    """Apache Kafka's own command line tools, run as the user would.

    Args:
        folder: a folder for their settings and output.
    """

    CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
    CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
    CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    TOPICS = "org.apache.kafka.tools.TopicCommand"
    CONSUMER_PERFORMANCE = "org.apache.kafka.tools.ConsumerPerformance"
    PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
    DUMP_LOG = "org.apache.kafka.tools.DumpLogSegments"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._jars = kafka_jars()
        self.classpath = f"{self._jars}/*"
        self._log_settings = folder / "tools-log4j2.properties"
        self._log_settings.write_text(log4j_properties())

    def program(self, main: str, args: Sequence[str], options: Sequence[str] = _TOOL_OPTIONS) -> JavaProgram:
        logging = f"-Dlog4j2.configurationFile={self._log_settings}"
        classes = kafka_options(self._jars) if options is _TOOL_OPTIONS else ()
        return JavaProgram(main, self.classpath, args, [*options, *classes, logging])

    def run(
        self,
        main: str,
        *args: str,
        stdin: str | None = None,
        timeout_s: float = 60,
        options: Sequence[str] = _TOOL_OPTIONS,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a tool to its end; what it printed is in `stdout` and `stderr`."""
        return subprocess.run(
            self.program(main, args, options).command_line(),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def start(self, main: str, *args: str, stdout: Path) -> subprocess.Popen[bytes]:
        """Starts a tool that goes on; what it prints goes to the file `stdout`."""
        with stdout.open("wb") as output:
            return start_dependent_child(
                self.program(main, args).command_line(), stdout=output, stderr=subprocess.STDOUT
            )


class ApacheKafka:
    """One node of Apache Kafka (KRaft, broker and controller in one) in a temporary folder.

        with ApacheKafka() as kafka:
            kafka.bootstrap_servers

    Args:
        settings: server properties beside or instead of the usual ones.
        options: of the virtual machine.

    Raises:
        MavenUnavailable: it can't be run on this machine; the text says why.
    """

    def __init__(self, settings: Mapping[str, str] | None = None, options: Sequence[str] = BRIEF_OPTIONS) -> None:
        self._jars = kafka_jars()
        self._options = options
        self.folder = Path(tempfile.mkdtemp(prefix="kohort-apache-kafka-"))
        self.tools = KafkaTools(self.folder)
        self._port, controller = free_ports(2)
        self.bootstrap_servers = f"127.0.0.1:{self._port}"
        self._properties = self.folder / "server.properties"
        lines = {**_node_settings(self.folder, self._port, controller), **(settings or {})}
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        (self.folder / "log4j2.properties").write_text(log4j_properties())
        try:
            self._format()
            self.start()
        except BaseException:
            self.close()
            raise

    def _program(self, main: str, *args: str) -> JavaProgram:
        logging = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"
        classes = kafka_options(self._jars) if tuple(self._options[-2:]) == _OF_ARCHIVE else ()
        return JavaProgram(main, f"{self._jars}/*", args, [*self._options, *classes, logging])

    def _format(self) -> None:
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        while cluster.startswith("-"):  # the tool would take it for an option
            cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self._format_for(cluster)

    def _format_for(self, cluster: str) -> None:
        """Make the node's folder as Kafka's tool does; the tool runs once for each node id, which takes it a second."""
        settings = dict(line.split("=", 1) for line in self._properties.read_text().splitlines() if "=" in line)
        made = formatted_folder(self._jars, settings["node.id"])
        if not made.is_dir():
            program = self._program("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._properties))
            done = subprocess.run(program.command_line(), capture_output=True, text=True, check=False)
            if done.returncode != 0:
                said = f"{done.stdout}{done.stderr}"[:500]
                raise maven.MavenUnavailable(f"Kafka's storage could not be formatted: {said}")
            keep(self.log_dir, made)
            return
        shutil.copytree(made, self.log_dir)
        facts = self.log_dir / "meta.properties"
        own = ("cluster.id=", "directory.id=")
        lines = [line for line in facts.read_text().splitlines() if not line.startswith(own)]
        directory = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        facts.write_text("\n".join([*lines, f"cluster.id={cluster}", f"directory.id={directory}"]) + "\n")

    def start(self) -> None:
        """Starts the node again after `kill` or `stop`, on the same port and data."""
        self._server = JavaServer(
            self._program("kafka.Kafka", str(self._properties)), self.folder / "server.log", "Apache Kafka"
        )
        self._server.wait_until(self._answers, _START_TIMEOUT_MS)

    def _answers(self) -> bool:
        """True once ApiVersions is answered, which is when the broker takes clients."""
        request = bytes.fromhex("0000001300120000000000010009") + b"are-you-u"
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=2) as connection:
                connection.sendall(request)
                return len(connection.recv(4)) == 4
        except OSError:
            return False

    @property
    def pid(self) -> int:
        """The process that runs now."""
        return self._server.pid

    @property
    def log_dir(self) -> Path:
        """The folder of its topics' segments."""
        return self.folder / "data"

    def stop(self, timeout_ms: int = 10_000) -> None:
        """Ends the node cleanly, or as `kill` after the timeout; its data stays."""
        self._server.stop(timeout_ms)

    def kill(self) -> None:
        """Ends the node as a crash would; its data stays."""
        self._server.kill()

    def close(self) -> None:
        """Ends the node and deletes its folder; may be called again."""
        server = getattr(self, "_server", None)
        if server is not None:
            server.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> ApacheKafka:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _node_settings(folder: Path, port: int, controller: int) -> dict[str, str]:
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(folder / "data"),
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        "num.partitions": "4",
        "log.cleaner.dedupe.buffer.size": "20000000",
        "metadata.max.idle.interval.ms": "0",  # a node that nothing is asked of writes nothing
    }
