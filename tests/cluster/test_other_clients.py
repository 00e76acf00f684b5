"""Clients of other projects at a coordinator: each is told at once, as the table in docs/coordinator.md says."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kohort import Admin, TopicPartition
from kohort.broker.authorization import PushAuthorization
from kohort.broker.framing import BadFrame
from kohort.broker.security.principals import Principal
from kohort.cluster.host import CoordinatorHost
from kohort.cluster.kafka_authorizer import MAX_AGE_S, KafkaAuthorizer
from kohort.cluster.other_clients import (
    ANSWERED_AT_ONCE,
    LOG_INTERVAL_S,
    REPEAT_DELAY_S,
    KohortClientsDispatcher,
    OtherClientsHost,
)
from kohort.errors import ErrorCode, NotFoundError
from kohort.io.java import java_path, log4j_properties
from kohort.wire.discovery import CreateTopicsRequest, MetadataRequest
from kohort.wire.groups import FindCoordinatorRequest, JoinGroupRequest, ListGroupsRequest
from kohort.wire.offsets import OffsetCommitRequest, OffsetFetchRequest
from kohort.wire.push import PushType
from kohort.wire.transactions import AddOffsetsToTxnRequest, InitProducerIdRequest, TxnOffsetCommitRequest
from tests.broker.raw import RawClient
from tests.cluster.running import CoordinatorProcess
from tests.cluster.test_coordinator import Place
from tests.peers.peers import CACHE, build, digest
from tests.support.apache_kafka import ApacheKafka, kafka_jars
from tests.support.maven import MavenUnavailable

PROGRAMS = Path(__file__).parent / "other_clients"
PAGE = Path(__file__).parents[2] / "docs" / "coordinator.md"
COLUMNS = {"librdkafka": 1, "java": 2, "kafka-python": 3, "aiokafka": 4}
WAIT_S = 300


@pytest.fixture(scope="module")
def place(apache_kafka: ApacheKafka) -> Place:
    return Place(apache_kafka)


@pytest.fixture(scope="module")
def coordinator(place: Place) -> Iterator[CoordinatorProcess]:
    with place.start() as process:
        yield process


def expected(client: str) -> dict[str, str]:
    """Return the client's cells of the table in the page, by attempt."""
    rows = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == len(COLUMNS) + 1 and (name := re.match("`([a-z_0-9]+)`", cells[0])) and cells[COLUMNS[client]]:
            rows[name[1]] = cells[COLUMNS[client]]
    return rows


def java_attempts() -> list[str]:
    try:
        jars, java = kafka_jars(), java_path()
    except (MavenUnavailable, NotFoundError) as error:
        pytest.skip(f"Java's clients can't run here: {error}")
    compiler = shutil.which("javac")
    if compiler is None:
        pytest.skip("javac is not installed (a JDK, not only a JRE)")
    source = PROGRAMS / "JavaAttempts.java"
    classes = CACHE / f"java-{digest([source])}"
    if not (classes / "JavaAttempts.class").exists():
        classes.mkdir(parents=True, exist_ok=True)
        build([compiler, "-d", str(classes), "-cp", f"{jars}/*", str(source)], PROGRAMS, "javac")
    (classes / "log4j2.properties").write_text(log4j_properties("info"))
    return [str(java), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", f"{classes}:{jars}/*", "JavaAttempts"]


def attempts_of(client: str) -> list[str]:
    if client == "java":
        return java_attempts()
    name = {"librdkafka": "confluent"}.get(client, client.replace("-", "_"))
    return [sys.executable, "-W", "ignore", str(PROGRAMS / f"{name}_attempts.py")]


@pytest.mark.kafka
@pytest.mark.parametrize("client", COLUMNS)
def test_each_attempt_of_another_client_ends_as_the_page_says(
    place: Place, coordinator: CoordinatorProcess, client: str
) -> None:
    rows = expected(client)
    done = subprocess.run(
        [*attempts_of(client), coordinator.address, place.topic],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    seen = {line["attempt"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert seen.keys() == rows.keys(), done.stderr
    sentence = f"for kohort's clients; use {place.kafka.bootstrap_servers} of the Kafka cluster"
    name = f"use-{place.kafka.bootstrap_servers.replace(':', '_')}-of-the-Kafka-cluster"
    for attempt, cell in rows.items():
        print(client, attempt, seen[attempt]["seconds"], "s", seen[attempt]["error"])
        error = f"`{seen[attempt]['error']}`"
        cell = next((part for part in cell.split(" or ") if part.startswith(error)), cell)
        assert cell.startswith(error), (attempt, seen[attempt], done.stderr)
        assert ("the sentence" in cell) == (sentence in seen[attempt]["text"]), (attempt, seen[attempt])
        assert ("the name" in cell) == (name in seen[attempt]["text"]), (attempt, seen[attempt])
        assert "its log says" not in cell or "is not authorized" in done.stderr
    software = {"librdkafka": "confluent-kafka-python", "java": "apache-kafka-java", "aiokafka": "unknown software"}
    assert f"refused ({software.get(client, client)}" in coordinator.log


DIRECT: list[tuple[Any, int]] = [
    (OffsetCommitRequest(group_id="direct"), 9),
    (OffsetFetchRequest(group_id="direct"), 7),
    (JoinGroupRequest(group_id="direct", session_timeout_ms=6_000, protocol_type="consumer"), 9),
    (ListGroupsRequest(), 4),
    (FindCoordinatorRequest(coordinator_keys=["direct"]), 6),
    (InitProducerIdRequest(transactional_id="direct", transaction_timeout_ms=1_000), 5),
    (AddOffsetsToTxnRequest(transactional_id="direct", group_id="direct"), 3),
    (TxnOffsetCommitRequest(transactional_id="direct", group_id="direct"), 3),
    (CreateTopicsRequest(topics=[CreateTopicsRequest.CreatableTopic(name="direct")]), 7),
]


@pytest.mark.kafka
@pytest.mark.parametrize(("message", "version"), DIRECT, ids=lambda value: type(value).__name__)
def test_a_request_of_a_client_without_a_name_is_answered_and_not_served(
    place: Place, coordinator: CoordinatorProcess, message: Any, version: int
) -> None:
    if isinstance(message, OffsetCommitRequest):
        part = message.OffsetCommitRequestTopic.OffsetCommitRequestPartition(committed_offset=7)
        message.topics = [message.OffsetCommitRequestTopic(name=place.topic, partitions=[part])]
    if isinstance(message, TxnOffsetCommitRequest):
        parts = [message.TxnOffsetCommitRequestTopic.TxnOffsetCommitRequestPartition()]
        message.topics = [message.TxnOffsetCommitRequestTopic(name=place.topic, partitions=parts)]
    if isinstance(message, OffsetFetchRequest):
        message.topics = [message.OffsetFetchRequestTopic(name=place.topic, partition_indexes=[0])]
    with RawClient(coordinator.address) as client:
        answer = client.ask(message, version)
        assert "error_code=42" in repr(answer), answer
    with Admin(coordinator.address) as admin:
        assert "direct" not in {group.group_id for group in admin.list_groups()}
        assert admin.list_consumer_group_offsets("direct").values.get(TopicPartition(place.topic, 0)) is None


# -- Refusals by themselves


class RefusedRequest:
    """A request as `OtherClientsHost` reads it, and what it was answered later."""

    def __init__(self, number: int, client_id: str = "app", host: str = "10.0.0.1") -> None:
        self.parts = None
        self.key, self.version, self.api, self.client_id = 3, 12, "Metadata", client_id
        self.message = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="flights")])
        self.client = SimpleNamespace(number=number, host=host, software=("sarama", "1"), is_kohort_client=False)
        self.connection = SimpleNamespace(name=f"{host}:{number}")
        self.answers: list[Any] = []
        self.reply = self.answers.append


class Delays:
    """The loop: what is due later."""

    def __init__(self) -> None:
        self.due: list[tuple[float, Any, Any]] = []

    def call_later(self, seconds: float, call: Any, argument: Any) -> None:
        self.due.append((seconds, call, argument))


@pytest.fixture
def delays() -> Delays:
    return Delays()


@pytest.fixture
def host(delays: Delays) -> CoordinatorHost:
    broker = SimpleNamespace(host="kafka-1", port=9092)
    topics = SimpleNamespace(brokers=[broker], by_name={})
    me = SimpleNamespace(id=1101, host="10.0.0.9", port=9192)
    return cast("CoordinatorHost", SimpleNamespace(me=me, topics=topics, loop=delays))


def test_a_client_that_keeps_asking_waits_for_its_answers(host: CoordinatorHost, delays: Delays) -> None:
    refusals, request = OtherClientsHost(host), cast("Any", RefusedRequest(1))
    for _ in range(ANSWERED_AT_ONCE):
        answer = refusals.metadata(request)
        assert answer is not None
    assert refusals.metadata(request) is None
    ((seconds, call, late),) = delays.due
    assert seconds == REPEAT_DELAY_S
    call(late)
    assert request.answers == [late]
    assert late.topics[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert refusals.metadata(cast("Any", RefusedRequest(2))) is not None, "another connection"


def test_the_log_names_each_client_once_a_minute(host: CoordinatorHost, caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    refusals = OtherClientsHost(host, clock=lambda: now[0])

    def lines(*requests: RefusedRequest) -> int:
        caplog.clear()
        for request in requests:
            refusals.metadata(cast("Any", request))
        return len([line for line in caplog.messages if "kafka-1:9092 of the Kafka cluster" in line])

    with caplog.at_level("WARNING", "kohort.cluster"):
        assert lines(RefusedRequest(1), RefusedRequest(2), RefusedRequest(3)) == 1, "three connections of one client"
        assert lines(RefusedRequest(4, client_id="other"), RefusedRequest(5, host="10.0.0.2")) == 2
        now[0] = LOG_INTERVAL_S
        assert lines(RefusedRequest(6), RefusedRequest(7)) == 1


def test_a_topic_that_a_client_may_not_describe_is_left_out(host: CoordinatorHost) -> None:
    cast("Any", host.topics).by_name["flights"] = SimpleNamespace(name="flights", partitions=3)
    request = cast("Any", RefusedRequest(1))
    request.client.software = ("kafka-python", "3")
    for rules, partitions in ((None, 3), (True, 3), (False, 0)):
        authorizer = None if rules is None else SimpleNamespace(allows=lambda *_, may=rules, audited: may)
        (topic,) = cast("Any", OtherClientsHost(host, cast("Any", authorizer)).metadata(request)).topics
        assert len(topic.partitions) == partitions
        assert bool(topic.error_code) is not bool(partitions)


def test_right_of_a_push_consumer_ends_when_nobody_says_what_it_may_do() -> None:
    now = [0.0]
    authorizer = KafkaAuthorizer(cast("Any", None), clock=lambda: now[0])
    authorizer._replace_rules((), is_open=True)
    request = SimpleNamespace(
        principal=Principal("User", "bob"),
        host="10.0.0.1",
        client_id="app",
        api="ClusterMetadata",
        kind=PushType.CLUSTER_METADATA,
        message=SimpleNamespace(group_id="g"),
    )
    right = PushAuthorization(authorizer, cast("Any", request))
    assert right.current_error() is ErrorCode.NONE
    now[0] += MAX_AGE_S + 1
    assert right.current_error() is ErrorCode.COORDINATOR_NOT_AVAILABLE, "the consumer comes back"
    authorizer._replace_rules((), is_open=True)
    assert right.current_error() is ErrorCode.NONE


def test_own_clients_wait_while_nobody_says_what_they_may_do(host: CoordinatorHost) -> None:
    rules = SimpleNamespace(is_stale=True)
    refusals = OtherClientsHost(host, cast("Any", rules))
    request = cast("Any", RefusedRequest(1))
    request.client.is_kohort_client, request.client.repeated = True, {}
    served: list[Any] = []
    connection = cast("Any", SimpleNamespace(client=request.client))
    metrics = SimpleNamespace(apis={})
    cast("Any", host).metrics, cast("Any", host).faults = metrics, SimpleNamespace(active=False)
    service = KohortClientsDispatcher(lambda _, frame: served.append(frame), refusals)
    answer = cast("Any", refusals.metadata(request))
    assert answer.topics[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    with pytest.raises(BadFrame):  # the frame is nobody's: what counts is that it is not served
        service.dispatch(connection, memoryview(b"\0\0"))
    rules.is_stale = False
    service.dispatch(connection, memoryview(b"\0\0"))
    assert len(served) == 1
