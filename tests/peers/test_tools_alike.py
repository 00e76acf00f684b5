"""Apache Kafka's own tools print the same, whichever broker they are asked about."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kohort import Broker
from tests.support.apache_kafka import ApacheKafka, KafkaTools
from tests.support.maven import MavenUnavailable

pytestmark = [pytest.mark.peer, pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]
TOPIC, GROUP = "tools", "readers"
PACKAGE = "org.apache.kafka.tools"
STEPS: tuple[tuple[str, str], ...] = (
    ("TopicCommand", f"--create --topic {TOPIC} --partitions 2 --config retention.ms=100000"),
    ("TopicCommand", f"--describe --topic {TOPIC}"),
    ("GetOffsetShell", f"--topic {TOPIC}"),
    ("consumer.group.ConsumerGroupCommand", f"--reset-offsets --group {GROUP} --topic {TOPIC} --to-latest --execute"),
    ("consumer.group.ConsumerGroupCommand", f"--describe --group {GROUP}"),
    ("consumer.group.ConsumerGroupCommand", f"--describe --group {GROUP} --state"),
    ("consumer.group.ConsumerGroupCommand", f"--delete --group {GROUP}"),
    ("ConfigCommand", f"--describe --topic {TOPIC}"),
    ("ConfigCommand", f"--alter --topic {TOPIC} --add-config unheard=1"),
    ("ConfigCommand", f"--describe --group {GROUP}"),
    ("ConfigCommand", "--alter --user alice --add-config producer_byte_rate=1024"),
    ("ConfigCommand", "--alter --user alice --add-config SCRAM-SHA-256=[password=secret]"),
    ("ConfigCommand", "--describe --user alice"),
    ("LeaderElectionCommand", f"--election-type preferred --topic {TOPIC} --partition 0"),
    ("reassign.ReassignPartitionsCommand", "--list"),
    ("TransactionsCommand", f"describe-producers --topic {TOPIC} --partition 0"),
    ("AclCommand", "--list"),
    ("DeleteRecordsCommand", "--offset-json-file RECORDS"),
    ("TopicCommand", f"--delete --topic {TOPIC}"),
)
OF_GROUPS = (*STEPS[:7], STEPS[-1])
"""The steps that read topics and groups."""
MAIN = {"ConfigCommand": "kafka.admin.ConfigCommand", "AclCommand": "kafka.admin.AclCommand"}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The address of each broker by its name."""
    try:
        kafka = ApacheKafka()
    except MavenUnavailable as error:
        pytest.skip(f"Apache Kafka can't run here: {error}")
    settings = {"num.partitions": 4, "offsets.topic.num.partitions": 4, "group.initial.rebalance.delay.ms": 0}
    with kafka, Broker(tmp_path_factory.mktemp("tools-alike"), settings) as ours:
        yield {"Kafka": kafka.bootstrap_servers, "ours": ours.bootstrap_servers}


@pytest.mark.parametrize("steps", [OF_GROUPS, STEPS], ids=["of-groups", "whole"])
def test_tools_print_the_same(
    servers: dict[str, str], kafka_tools: KafkaTools, tmp_path: Path, steps: tuple[tuple[str, str], ...]
) -> None:
    records = tmp_path / "records.json"
    records.write_text('{"partitions": [{"topic": "tools", "partition": 0, "offset": 0}], "version": 1}')

    def printed(address: str) -> list[str]:
        said = []
        for tool, line in steps:
            args = line.replace("RECORDS", str(records)).split()
            main = MAIN.get(tool, f"{PACKAGE}.{tool}")
            done = kafka_tools.run(main, "--bootstrap-server", address, *args, timeout_s=180)
            said.append(plain(done.stdout + done.stderr, address))
        return said

    with ThreadPoolExecutor(2) as pool:
        theirs, mine = pool.map(printed, servers.values())
    differing = [
        f"{tool} {line}\n--- Kafka\n{left}\n--- ours\n{right}"
        for (tool, line), left, right in zip(steps, theirs, mine, strict=True)
        if left != right
    ]
    assert not differing, "\n\n".join(differing)


def plain(said: str, address: str) -> str:
    """Return a tool's output without addresses, ids, times, stack traces and error texts."""
    said = said.replace(address, "ADDRESS").replace(address.rpartition(":")[2], "PORT")
    said = re.sub(r"TopicId: \S+", "TopicId: ID", said)
    said = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", "TIME", said)
    said = re.sub(r"(Exception|Error)(: )[^\n]*", r"\1\2WORDS", said)
    said = re.sub(r"\n\s+at [^\n]*|\n\s*\.\.\. \d+ more|\n\s*(Caused by|Suppressed)[^\n]*", "", said)
    return "\n".join(sorted(line.rstrip() for line in said.splitlines() if line.strip()))
