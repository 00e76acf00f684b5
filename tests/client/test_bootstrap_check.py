"""Brokers that can't be reached: what polls, calls and the log say of it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kohort import Admin, AsyncAdmin, Broker, Consumer, Producer, TopicPartition
from kohort.broker.embedded import FaultHandle
from kohort.broker.server.fault_kinds import Fault
from kohort.client.group.push import PushCoordinator
from kohort.client.net.bootstrap_check import explain_connection_failure
from kohort.client.net.connection import Address, ConnectionFailed
from kohort.client.net.health import check_reachable
from kohort.client.net.thread_driver import ThreadClient
from kohort.client.settings import ConnectionConfig, client_config
from kohort.errors import ErrorCode, KafkaError, TimedOutError
from kohort.wire.push import ClusterMetadataResponse, PushType, RegisterConsumerRequest, push_frame_type
from tests.client.virtual import PARK, VirtualCluster
from tests.support.secured_kafka import make_certificates
from tests.support.waiting import until

NOBODY = "127.0.0.1:1"
REFUSED = "127.0.0.1:1: connection refused"
PART = TopicPartition("numbers", 0)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize("group", [None, "g"])
def test_a_poll_waits_for_a_broker_and_the_log_is_warned_at_once(
    group: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with Consumer(NOBODY, group_id=group) as consumer:
        if group is None:
            consumer.assign([PART])
        else:
            consumer.subscribe(["numbers"])
        for _ in range(20):
            assert not consumer.poll(100)
        assert warnings_of(caplog) == [f"can't connect to broker {REFUSED}; retrying"]


@pytest.mark.kohort_broker({"group.initial.rebalance.delay.ms": 0})
def test_a_broker_that_comes_up_later_is_found(kohort_broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    with Producer(kohort_broker.bootstrap_servers) as producer:
        producer.send("numbers", "1", partition=0).result(timeout_ms=20_000)
    kohort_broker.kill()
    with Consumer(kohort_broker.bootstrap_servers, auto_offset_reset="earliest", group_id="g") as consumer:
        consumer.subscribe(["numbers"])
        assert not consumer.poll(500)
        kohort_broker.restart()
        until(lambda: len(consumer.poll(200)) > 0, "it reads")
    assert len([text for text in warnings_of(caplog) if "connection refused; retrying" in text]) == 1


def test_in_the_log_an_address_that_stays_out_of_reach_is_named_rarely(caplog: pytest.LogCaptureFixture) -> None:
    world = VirtualCluster(settings={"group_id": "g"}, refuse={9092})
    world.cluster.request_metadata()
    world.run(3_600_000)
    assert len(world.opened) > 3_000
    assert 8 <= len(warnings_of(caplog)) <= 14
    caplog.clear()
    world.refuse = set()
    world.run(world.runtime.now_ms + 5_000)
    world.refuse = {9092}
    world.cut()
    world.cluster.request_metadata()
    world.run(world.runtime.now_ms + 5_000)
    assert warnings_of(caplog) == ["can't connect to broker 127.0.0.1:9092: connection refused; retrying"]


def test_a_broker_that_is_back_is_reached_before_a_third_as_long_again_as_it_was_away() -> None:
    """A client has several connections to it: those that fail together count as one failure."""
    world = VirtualCluster(refuse={9092})
    links, runtime = world.cluster.connections, world.runtime

    async def reach(channel: str) -> None:
        while True:
            with contextlib.suppress(ConnectionFailed):
                await links.acquire(1, Address("127.0.0.1", 9092), channel, 10_000)
                return

    for channel in ("main", "fetch", "push"):
        runtime.spawn(reach(channel), channel)
    assert tries(world, 2_000) == [0, 50, 113, 191, 289, 411, 563, 754, 993, 1_291, 1_663]


def tries(world: VirtualCluster, until_ms: int) -> list[int]:
    """When connections were tried, in whole ms."""
    found: list[int] = []
    before = 0
    for ms in range(until_ms):
        world.run(ms)
        if len(world.opened) > before:
            before = len(world.opened)
            found.append(ms)
    return found


class Loading(VirtualCluster):
    """A broker that knows no coordinator of push groups yet."""

    def _receive(self, link: int, frame: bytes) -> None:
        if push_frame_type(memoryview(frame)[4:]) == PushType.CLUSTER_METADATA:
            answer = ClusterMetadataResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE).encode_frame()
            self.cluster.connections.on_frame_received(link, memoryview(answer))
        else:
            super()._receive(link, frame)


def register(world: VirtualCluster) -> None:
    """Have a push consumer try."""
    way = PushCoordinator(world.cluster, "g", 6_000, lambda: None)
    asked = RegisterConsumerRequest("g", "a", '{"t": 1}', True, "smallest", 6_000)
    world.runtime.spawn(way.register(asked, world.runtime.clock_with_sleep_ms), "registration")


def test_a_push_consumer_asks_ever_more_rarely_for_a_coordinator_that_is_not_there_yet() -> None:
    world = Loading()
    register(world)
    assert 15 <= len(tries(world, 20_000)) <= 25


def test_a_push_consumer_waits_no_longer_for_a_coordinator_that_is_back() -> None:
    world = VirtualCluster(refuse={9092})
    register(world)
    tried = tries(world, 6_000)
    assert tried[-1] > 4_000
    assert all(later - at <= max(100, at / 3) for at, later in itertools.pairwise(tried))
    assert len(tried) < 30


Ask = Callable[[str, dict[str, Any]], object]
QUICK: dict[str, Any] = {"default_api_timeout_ms": 2_000}


def ask_committed(servers: str, chosen: dict[str, Any]) -> None:
    with Consumer(servers, group_id="g", **QUICK, **chosen) as consumer:
        consumer.committed([PART])


def ask_position(servers: str, chosen: dict[str, Any]) -> None:
    with Consumer(servers, group_id="g", **QUICK, **chosen) as consumer:
        consumer.assign([PART])
        consumer.position(PART)


def ask_partitions(servers: str, chosen: dict[str, Any]) -> None:
    with Consumer(servers, **QUICK, **chosen) as consumer:
        consumer.partitions_for_topic("numbers")


def commit(servers: str, chosen: dict[str, Any]) -> None:
    with Consumer(servers, group_id="g", **QUICK, **chosen) as consumer:
        consumer.subscribe(["numbers"])
        consumer.poll(500)
        consumer.commit({PART: 1})


def send(servers: str, chosen: dict[str, Any]) -> None:
    with Producer(servers, max_block_ms=1_000, **chosen) as producer:
        producer.send("numbers", "1")


def list_topics(servers: str, chosen: dict[str, Any]) -> None:
    with Admin(servers, **QUICK, **chosen) as admin:
        admin.list_topics()


def list_groups(servers: str, chosen: dict[str, Any]) -> None:
    with Admin(servers, **QUICK, **chosen) as admin:
        admin.list_groups()


def create(servers: str, chosen: dict[str, Any]) -> None:
    from kohort.client.admin.values import NewTopic

    with Admin(servers, **QUICK, **chosen) as admin:
        admin.create_topics([NewTopic("numbers", 1)]).all()


def offsets_of_a_group(servers: str, chosen: dict[str, Any]) -> None:
    with Admin(servers, **QUICK, **chosen) as admin:
        admin.list_consumer_group_offsets("g").all()


def in_asyncio(servers: str, chosen: dict[str, Any]) -> None:
    async def ask() -> None:
        async with AsyncAdmin(servers, **QUICK, **chosen) as admin:
            (await admin.list_consumer_group_offsets("g")).all()

    asyncio.run(ask())


def contact(servers: str, chosen: dict[str, Any]) -> None:
    client = ThreadClient(client_config(ConnectionConfig, servers, chosen))
    try:
        client.call(check_reachable(client.cluster, 1_000))
    finally:
        client.close()


CALLS = [ask_committed, ask_position, ask_partitions, commit, send, list_topics, list_groups, create]
CALLS += [offsets_of_a_group, in_asyncio, contact]


@pytest.mark.parametrize("ask", CALLS)
def test_a_call_that_can_not_be_answered_names_address_and_cause(ask: Ask) -> None:
    with pytest.raises(KafkaError, match=REFUSED):
        ask(NOBODY, {})


def test_a_name_that_can_not_be_resolved_is_reported() -> None:
    for name in ("no-such-host.invalid", f"{'x' * 70}.invalid"):
        with pytest.raises(KafkaError, match=f"{name}:9092: "):
            list_topics(f"{name}:9092", {})


@pytest.mark.parametrize("ask", [ask_position, list_groups, offsets_of_a_group, in_asyncio, contact])
def test_an_address_that_a_broker_names_and_that_no_one_answers_at_is_reported_with_its_origin(
    kohort_broker_factory: Callable[..., Broker], ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    broker = kohort_broker_factory({"advertised.port": 1})
    with pytest.raises(KafkaError) as caught:
        ask(broker.bootstrap_servers, {})
    assert f"{broker.bootstrap_servers} answers, but none of the broker addresses that it names can be reached" in str(
        caught.value
    )
    assert REFUSED in str(caught.value)
    text = f"can't connect to broker {NOBODY}, named by {broker.bootstrap_servers}: connection refused; retrying"
    assert text in warnings_of(caplog)


def test_flush_reports_what_was_sent_and_is_not_taken(kohort_broker: Broker) -> None:
    with Producer(kohort_broker.bootstrap_servers, max_block_ms=2_000, buffer_memory=40_000) as producer:
        producer.send("numbers", "1").result(timeout_ms=20_000)
        kohort_broker.kill()
        producer.send("numbers", "2")
        with pytest.raises(TimedOutError, match=f"not delivered after 1000 ms: .*{kohort_broker.bootstrap_servers}: "):
            producer.flush(timeout_ms=1_000)

        def fill() -> None:
            for _ in range(100):
                producer.send("numbers", "3" * 1_000)

        with pytest.raises(TimedOutError, match=f"stayed full .*{kohort_broker.bootstrap_servers}: "):
            fill()
        producer.close(timeout_ms=0)


@contextlib.contextmanager
def added(broker: Broker, fault: Fault) -> Iterator[FaultHandle]:
    """While it lasts."""
    rule = broker.faults.add(fault)
    yield rule
    rule.remove()


def test_delivery_result_says_what_it_waits_for(kohort_broker: Broker) -> None:
    """Partition, time and cause: that the broker takes its time, refuses for now, or can't be reached."""
    servers = kohort_broker.bootstrap_servers
    with Producer(servers, linger_ms=0, retry_backoff_ms=20) as producer:
        producer.send("numbers", "1", partition=0).result(timeout_ms=20_000)
        with added(kohort_broker, Fault("Produce", "hold", times=None)) as held:
            late = producer.send("numbers", "2", partition=0)
            held.wait()
            text = rf"numbers-0: not delivered yet after 300 ms: broker 1 \({servers}\) has it and has not answered"
            with pytest.raises(TimedOutError, match=text):
                late.result(timeout_ms=300)
            with pytest.raises(TimedOutError, match=text.replace("300", "0")):
                late.exception(timeout_ms=0)
            rows = producer.send_arrow("numbers", pa.table({"value": ["3", "4"]}))
            with pytest.raises(TimedOutError, match=r"numbers-0: not all rows are delivered yet after 200 ms: ."):
                rows.result(timeout_ms=200)
        assert [late.result(timeout_ms=20_000).offset, rows.result(timeout_ms=20_000)[0][1]] == [1, 2]
        refusal = Fault("Produce", "fail", error=ErrorCode.NOT_ENOUGH_REPLICAS, times=None)
        with added(kohort_broker, refusal) as refused:
            late = producer.send("numbers", "5", partition=0)
            refused.wait(3)
            with pytest.raises(
                TimedOutError, match=r"numbers-0: .*after 0 ms: it was sent \d+ times and not taken: .*NOT_ENOUGH"
            ):
                late.result(timeout_ms=0)
        assert late.result(timeout_ms=20_000).offset == 4
        kohort_broker.kill()
        late = producer.send("numbers", "6", partition=0)
        with pytest.raises(TimedOutError, match=rf"numbers-0: .*after 5000 ms: .*\({servers}: "):
            late.result(timeout_ms=5_000)
        producer.close(timeout_ms=0)


def test_a_delivery_waits_for_the_producers_id(kohort_broker: Broker) -> None:
    refusal = Fault("InitProducerId", "fail", error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, times=None)
    with Producer(kohort_broker.bootstrap_servers, retry_backoff_ms=20) as producer:
        with added(kohort_broker, refusal) as refused:
            late = producer.send("numbers", "1", partition=0)
            refused.wait(2)
            with pytest.raises(TimedOutError, match=r"numbers-0: .*: the broker gives no producer id: "):
                late.result(timeout_ms=200)
        assert late.result(timeout_ms=20_000).offset == 0


@contextlib.contextmanager
def listener(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """Someone who is no broker; gives the address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def run() -> None:
            while True:
                try:
                    accepted, _ = server.accept()
                except OSError:
                    return
                with accepted, contextlib.suppress(OSError):
                    serve(accepted)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(20)


FACES = [list_topics, in_asyncio]


@pytest.mark.parametrize("ask", FACES)
def test_one_that_closes_at_once_is_asked_whether_it_wants_tls(ask: Ask) -> None:
    with (
        listener(lambda accepted: None) as servers,
        pytest.raises(KafkaError, match=f"{servers}: .*security.protocol is PLAINTEXT: does the broker want TLS"),
    ):
        ask(servers, {})


@pytest.mark.parametrize("ask", FACES)
def test_tls_to_a_broker_without_it_is_reported(kohort_broker: Broker, ask: Ask) -> None:
    servers = kohort_broker.bootstrap_servers
    with pytest.raises(KafkaError, match=f"{servers}: the broker speaks Kafka without TLS there: .* PLAINTEXT"):
        ask(servers, {"security_protocol": "SSL"})


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.parametrize("ask", FACES)
def test_plain_text_to_a_broker_with_tls_is_reported(tmp_path: Path, ask: Ask) -> None:
    make_certificates(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "broker.crt", tmp_path / "broker.key")

    def handshake(accepted: socket.socket) -> None:
        context.wrap_socket(accepted, server_side=True).close()

    with (
        listener(handshake) as servers,
        # Whether its alert comes, or the end of the connection overtakes it, is a race.
        pytest.raises(KafkaError, match=f"{servers}: .*(answers in TLS: set |does the broker want TLS)"),
    ):
        ask(servers, {})


@pytest.mark.parametrize("ask", FACES)
def test_an_alert_of_tls_is_taken_for_what_it_is(ask: Ask) -> None:
    def alert(accepted: socket.socket) -> None:
        accepted.recv(1_000)
        accepted.sendall(b"\x15\x03\x03\x00\x02\x02\x46")
        accepted.recv(1)

    with (
        listener(alert) as servers,
        pytest.raises(KafkaError, match=f"{servers}: the broker answers in TLS: set security.protocol to SSL"),
    ):
        ask(servers, {})


def test_a_server_that_accepts_and_says_nothing_is_reported() -> None:
    ended = threading.Event()

    def hold(accepted: socket.socket) -> None:
        ended.wait(20)

    with listener(hold) as servers:
        with pytest.raises(KafkaError, match=f"{servers}: no answer to the connection attempt yet"):
            contact(servers, {})
        ended.set()


def test_contact_is_made_as_soon_as_there_is_a_broker(kohort_broker: Broker) -> None:
    contact(kohort_broker.bootstrap_servers, {})
    kohort_broker.kill()
    client = ThreadClient(client_config(ConnectionConfig, kohort_broker.bootstrap_servers, {}))
    try:
        waiting = client.submit(check_reachable(client.cluster, 60_000))
        address = client.cluster.bootstrap[0]
        until(lambda: client.cluster.connections.health(address).failures > 1, "it was tried")
        kohort_broker.restart()
        waiting.result(60)
    finally:
        client.close()


def test_of_the_brokers_that_a_cluster_names_one_that_answers_is_enough() -> None:
    world = VirtualCluster()
    metadata = world.handlers["Metadata"]

    def with_others(message: Any, version: int) -> Any:
        answer = metadata(message, version)
        for node, port in ((2, 9), (3, 10)):
            answer.brokers.insert(0, type(answer.brokers[0])(node_id=node, host="127.0.0.1", port=port))
        return answer

    world.handlers["Metadata"] = with_others
    world.refuse = {9, 10}
    world.call(check_reachable(world.cluster, 1_000))
    world.handlers["Metadata"] = lambda message, version: PARK
    with pytest.raises(TimedOutError, match="gave up after 1000 ms"):
        world.call(check_reachable(world.cluster, 1_000))


def test_a_broker_that_hangs_up_at_the_login_is_not_said_to_lack_tls() -> None:
    """The broker has answered over TLS by then, so the error gives the login's reason."""
    settings = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.password": "b"}
    config = client_config(ConnectionConfig, NOBODY, settings)
    closed = "the broker closed the connection"
    assert "does the broker speak TLS there?" in explain_connection_failure(closed, config, connected=True)
    assert (
        explain_connection_failure(closed, config, connected=True, greeted=True) == f"{closed} during the login (PLAIN)"
    )
    refused = "127.0.0.1:1 refused PLAIN of user 'a'"
    assert explain_connection_failure(refused, config, connected=True, greeted=True) == refused
