"""Kafka's own command line programs as members of a group: the console clients and the verifiable clients."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support.apache_kafka import KafkaTools
from tests.support.maven import KAFKA, MavenUnavailable

from frameworks.account import Numbered
from frameworks.builds import JAVA_OPTIONS, FrameworkUnavailable
from frameworks.framework import INPUT, Framework, Site
from kohort.io.java import start_dependent_child

CONSOLE_RECORD = re.compile(r"^(key-\d+)\t(\d+)$")
FLUSH_TIMEOUT_S = 120
VERIFIABLE_CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"


class ToolOutput:
    """Reads the records that the members print, as their files grow; one partition's records stay in order.

    A member that is killed may leave a part of a line, which is skipped: its successor prints the record again.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        for path in paths:
            path.touch()
        self._files = [path.open(encoding="utf-8", errors="replace") for path in paths]
        self._rests = ["" for _ in paths]

    def read_more(self) -> list[Numbered]:
        """Return the records that have come since the last call; empty when nothing came for a moment."""
        records = []
        for number, file in enumerate(self._files):
            *lines, self._rests[number] = (self._rests[number] + file.read()).split("\n")
            records += [record for line in lines if (record := self.parse_line(line)) is not None]
        if not records:
            time.sleep(0.2)
        return records

    def parse_line(self, line: str) -> Numbered | None:
        """Return the record in a line of kafka-console-consumer; None for its other lines."""
        found = CONSOLE_RECORD.match(line)
        return None if found is None else Numbered(found[1], int(found[2]))

    def close(self) -> None:
        for file in self._files:
            file.close()


class VerifiableOutput(ToolOutput):
    """Reads the lines `record_data` of kafka-verifiable-consumer."""

    def parse_line(self, line: str) -> Numbered | None:
        """Return the record in a line of JSON; None for its other lines."""
        if '"record_data"' not in line:
            return None
        try:
            found = json.loads(line)
        except ValueError:
            return None
        return Numbered(found["key"], int(found["value"]))


class ConsoleInput:
    """Writes numbered records through kafka-console-producer."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        with log.open("wb") as output:
            self._process = start_dependent_child(
                list(command), stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT
            )

    def write(self, records: Sequence[Numbered]) -> None:
        """Hand over lines `KEY<tab>NUMBER`."""
        assert self._process.stdin is not None
        self._process.stdin.write("".join(f"{record.key}\t{record.number}\n" for record in records).encode())
        self._process.stdin.flush()

    def flush(self) -> None:
        """End the input, and wait until the producer has sent everything and ended."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(FLUSH_TIMEOUT_S)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


class ToolFramework(Framework):
    """Two consumers of Kafka's command line in one group; what they print is the output."""

    version = KAFKA[0].rpartition(":")[2]
    exactly_once = False

    def prepare(self, site: Site) -> None:
        """Resolve the jars, and create the topics."""
        try:
            self._tools = KafkaTools(site.folder)
        except MavenUnavailable as error:
            raise FrameworkUnavailable(str(error)) from error
        super().prepare(site)

    def tool(self, main: str, *arguments: str) -> list[str]:
        """Return the command that runs a tool."""
        return self._tools.program(main, arguments, JAVA_OPTIONS).command_line()

    def logs(self, site: Site) -> list[Path]:
        """Return the files that take what the members print."""
        return [site.member_folder(member) / "member.log" for member in range(self.members)]


class ConsoleClients(ToolFramework):
    """kafka-console-producer into kafka-console-consumer."""

    name = "console"
    title = "kafka-console-producer, -consumer"
    story = "one producer, which outlives the brokers; two consumers in a group, which print"
    settings = "consumer: `session.timeout.ms=6000`; producer: `parse.key=true`, `delivery.timeout.ms=180000`"

    def command(self, site: Site, member: int) -> list[str]:
        return self.tool(
            KafkaTools.CONSOLE_CONSUMER,
            *("--bootstrap-server", site.servers, "--topic", INPUT, "--group", "frameworks-console"),
            *("--formatter-property", "print.key=true", "--from-beginning"),
            *("--command-property", "session.timeout.ms=6000", "--command-property", "heartbeat.interval.ms=1500"),
        )

    def open_input(self, site: Site) -> ConsoleInput:
        command = self.tool(
            KafkaTools.CONSOLE_PRODUCER,
            *("--bootstrap-server", site.servers, "--topic", INPUT, "--reader-property", "parse.key=true"),
            *("--command-property", "delivery.timeout.ms=180000", "--command-property", "linger.ms=5"),
            *("--message-send-max-retries", "1000"),
        )
        return ConsoleInput(command, site.folder / "producer.log")

    def open_output(self, site: Site) -> ToolOutput:
        return ToolOutput(self.logs(site))


class VerifiableClients(ToolFramework):
    """kafka-verifiable-consumer, which reports each record and commit as JSON."""

    name = "verifiable"
    title = "kafka-verifiable-consumer"
    story = "two consumers in a group that print each record, then commit"
    settings = "`--session-timeout 6000`"

    def command(self, site: Site, member: int) -> list[str]:
        return self.tool(
            VERIFIABLE_CONSUMER,
            *("--bootstrap-server", site.servers, "--topic", INPUT, "--group-id", "frameworks-verifiable"),
            *("--session-timeout", "6000", "--reset-policy", "earliest", "--verbose"),
        )

    def open_output(self, site: Site) -> VerifiableOutput:
        return VerifiableOutput(self.logs(site))


KAFKA_TOOLS: tuple[type[Framework], ...] = (ConsoleClients, VerifiableClients)
