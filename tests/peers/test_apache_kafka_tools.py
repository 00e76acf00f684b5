"""Apache Kafka's own command line tools against our broker, and its log dump over our files."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kohort import Admin, Broker, TopicPartition
from kohort.client.admin.values import GroupDescription, NewTopic
from kohort.client.offsets import OffsetAndMetadata
from tests.support.apache_kafka import KafkaTools
from tests.support.waiting import LAST_RESORT, STILL_S, until

PARTITIONS = 4
RECORDS = 200

pytestmark = [pytest.mark.peer, pytest.mark.kafka, LAST_RESORT]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    data = tmp_path_factory.mktemp("kafka-tools-broker")
    with Broker(data, {"group.initial.rebalance.delay.ms": 0}) as broker:
        yield broker


@pytest.fixture
def admin(broker: Broker) -> Iterator[Admin]:
    with Admin(broker.bootstrap_servers) as admin:
        yield admin


@pytest.fixture
def topic(admin: Admin) -> str:
    name = f"tools-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(name, PARTITIONS)]).all()
    return name


def produce(tools: KafkaTools, servers: str, topic: str, first: int) -> None:
    lines = "".join(f"key-{number}:value-{number}\n" for number in range(first, first + RECORDS))
    done = tools.run(
        tools.CONSOLE_PRODUCER,
        *("--bootstrap-server", servers, "--topic", topic),
        *("--reader-property", "parse.key=true", "--reader-property", "key.separator=:"),
        stdin=lines,
    )
    assert done.returncode == 0, done.stderr
    assert "ERROR" not in done.stderr


def test_console_clients_in_a_group_of_two(
    broker: Broker, admin: Admin, topic: str, kafka_tools: KafkaTools, tmp_path: Path
) -> None:
    servers, group = broker.bootstrap_servers, f"{topic}-group"
    outputs = [tmp_path / "first.txt", tmp_path / "second.txt"]

    def values() -> list[str]:
        return [
            line
            for path in outputs
            if path.exists()
            for line in re.findall(r"^value-\d+$", path.read_text(), re.MULTILINE)
        ]

    def described() -> GroupDescription | None:
        return admin.describe_consumer_groups([group]).values.get(group)

    def shared_by(members: int) -> Callable[[], bool]:
        def check() -> bool:
            found = described()
            sizes = [len(member.assignment or ()) for member in found.members] if found else []
            return sizes == [PARTITIONS // members] * members

        return check

    def committed() -> int:
        return sum(offset.offset for offset in admin.list_consumer_group_offsets(group).all().values() if offset)

    def moves() -> dict[str, object]:
        return {"group": described(), "values": len(values()), "committed": committed()}

    with ExitStack() as ended:

        def consume(output: Path) -> Callable[[], None]:
            process = kafka_tools.start(
                kafka_tools.CONSOLE_CONSUMER,
                *("--bootstrap-server", servers, "--topic", topic, "--group", group, "--from-beginning"),
                *("--command-property", "auto.commit.interval.ms=200"),
                *("--command-property", "heartbeat.interval.ms=500"),
                stdout=output,
            )
            ended.callback(process.wait)
            ended.callback(process.kill)

            def end() -> None:
                process.terminate()
                process.wait(STILL_S)

            return end

        produce(kafka_tools, servers, topic, 0)
        end_first = consume(outputs[0])
        until(shared_by(1), "one member has every partition", STILL_S, moves)
        until(lambda: len(values()) == RECORDS, "the first round arrives", STILL_S, moves)
        end_second = consume(outputs[1])
        until(shared_by(2), "two members have half each", STILL_S, moves)
        produce(kafka_tools, servers, topic, RECORDS)
        until(lambda: len(values()) == 2 * RECORDS, "the second round arrives", STILL_S, moves)
        until(lambda: committed() == 2 * RECORDS, "both rounds are committed", STILL_S, moves)
        end_first()
        until(shared_by(1), "the other member took over", STILL_S, moves)
        end_second()
    assert sorted(values()) == sorted(f"value-{number}" for number in range(2 * RECORDS))
    found = described()
    assert found is not None
    assert (found.state, found.members) == ("Empty", ())


def test_group_command(broker: Broker, admin: Admin, topic: str, kafka_tools: KafkaTools) -> None:
    servers, group = broker.bootstrap_servers, f"{topic}-group"
    offsets = {TopicPartition(topic, number): OffsetAndMetadata(0, "kept") for number in range(PARTITIONS)}
    admin.alter_consumer_group_offsets(group, offsets).all()

    def command(*args: str) -> str:
        done = kafka_tools.run(kafka_tools.CONSUMER_GROUPS, "--bootstrap-server", servers, *args)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert group in command("--list")
    described = command("--describe", "--group", group)
    assert len(re.findall(rf"{topic}\s+\d\s+0\s+0\s+0", described)) == PARTITIONS
    assert "Empty" in command("--describe", "--group", group, "--state")
    assert "Successful" in command("--delete-offsets", "--group", group, "--topic", f"{topic}:0")
    assert sorted(admin.list_consumer_group_offsets(group).values) == sorted(offsets)[1:]
    assert "successful" in command("--delete", "--group", group)
    assert group not in {listed.group_id for listed in admin.list_groups()}


def test_topic_command(broker: Broker, admin: Admin, kafka_tools: KafkaTools) -> None:
    servers, name = broker.bootstrap_servers, f"made-{uuid.uuid4().hex[:8]}"

    def command(*args: str) -> str:
        done = kafka_tools.run(kafka_tools.TOPICS, "--bootstrap-server", servers, *args)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    command("--create", "--topic", name, "--partitions", "3", "--config", "retention.ms=1000000")
    assert name in command("--list")
    described = command("--describe", "--topic", name)
    assert "PartitionCount: 3" in described
    assert "retention.ms=1000000" in described
    assert len(admin.describe_topics([name]).result(name).partitions) == 3
    command("--delete", "--topic", name)
    assert name not in {info.name for info in admin.list_topics()}


def test_log_dump_reads_topic_and_journal(tmp_path: Path, kafka_tools: KafkaTools) -> None:
    data = tmp_path / "data"
    with Broker(data, {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 1}) as broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("dumped", 1)]).all()
            produce(kafka_tools, broker.bootstrap_servers, "dumped", 0)
            kafka_tools.run(
                kafka_tools.CONSOLE_CONSUMER,
                *("--bootstrap-server", broker.bootstrap_servers, "--topic", "dumped", "--group", "dumpers"),
                *("--from-beginning", "--max-messages", str(RECORDS), "--timeout-ms", "20000"),
            )
            committed = admin.list_consumer_group_offsets("dumpers").all()
            assert committed[TopicPartition("dumped", 0)] == OffsetAndMetadata(RECORDS, "", 0)
    topic = dump(kafka_tools, data / "dumped-0", "--print-data-log", "--deep-iteration")
    assert len(re.findall(r"payload: value-\d+", topic)) == RECORDS
    assert "isvalid: true" in topic
    journal = dump(kafka_tools, data / "__consumer_offsets-0", "--offsets-decoder")
    assert "dumpers" in journal
    assert re.search(r"\"?offset\"?\s*[:=]\s*200", journal), journal[-3000:]


def dump(tools: KafkaTools, folder: Path, *options: str) -> str:
    """Dump every segment and index of a partition with Kafka's tool, and check that it reports no fault."""
    said = ""
    for suffix in ("*.log", "*.index", "*.timeindex"):
        for segment in sorted(folder.glob(suffix)):
            extra = options if segment.suffix == ".log" else ("--index-sanity-check",)
            done = tools.run(tools.DUMP_LOG, "--files", str(segment), *extra)
            assert done.returncode == 0, done.stdout + done.stderr
            for complaint in ("isvalid: false", "Exception", "Found timestamp mismatch", "Mismatch", "corrupt"):
                assert complaint not in done.stdout + done.stderr, f"{segment.name}: {done.stdout[-2000:]}"
            said += done.stdout
    assert said, f"no segment in {folder}: {sorted(folder.parent.iterdir())}"
    return said
