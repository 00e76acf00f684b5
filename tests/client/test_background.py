"""Faults in background tasks, against a real broker: the caller learns of them, or the log if nobody calls."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from kohort import Admin, AsyncConsumer, Broker, Consumer, Producer, TopicPartition
from kohort.broker.server.fault_kinds import Fault
from kohort.client.admin.values import NewTopic
from kohort.client.group.member import GroupMember
from kohort.client.net.thread_driver import ClientClosedError
from kohort.client.producer.sender import Sender
from kohort.errors import ErrorCode, KafkaError, TimedOutError
from tests.support.waiting import until

pytestmark = pytest.mark.kohort_broker({"group.initial.rebalance.delay.ms": 0})
"""Groups start at once: none of these is about who else may join."""


@pytest.fixture
def topic(kohort_broker: Broker) -> str:
    name = f"numbers-{uuid.uuid4().hex[:8]}"
    with Admin(kohort_broker.bootstrap_servers) as admin, Producer(kohort_broker.bootstrap_servers) as producer:
        admin.create_topics([NewTopic(name, 1)]).all()
        for number in range(100):
            producer.send(name, str(number))
    return name


def grouped(broker: Broker, protocol: str = "classic", **more: Any) -> Consumer:
    settings = {"group_id": "g", "group_protocol": protocol, "auto_offset_reset": "earliest", "max_poll_records": 10}
    return Consumer(broker.bootstrap_servers, heartbeat_interval_ms=200, client_id="victim", **{**settings, **more})


def error_of(poll: Callable[[], object]) -> KafkaError:
    """Polls until one raises."""
    found: list[KafkaError] = []

    def raised() -> bool:
        try:
            poll()
        except KafkaError as error:
            found.append(error)
        return bool(found)

    until(raised, "a poll raises")
    return found[0]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("action", ["garble", "fail"])
def test_poll_raises_when_heartbeats_fail_for_good_and_no_record_follows(
    kohort_broker: Broker, topic: str, protocol: str, action: str
) -> None:
    api = {"classic": "Heartbeat", "consumer": "ConsumerGroupHeartbeat"}[protocol]
    with grouped(kohort_broker, protocol) as consumer:
        consumer.subscribe([topic])
        until(lambda: len(consumer.poll(200)) > 0, "it reads")
        refusal = ErrorCode.GROUP_AUTHORIZATION_FAILED
        kohort_broker.faults.add(Fault(api, action, client_id="victim", times=None, error=refusal))
        # Polls without work: each of them only asks what is new.
        error = error_of(lambda: (consumer.pause(*consumer.assignment()), consumer.poll(50)))
        assert error.code is ErrorCode.CORRUPT_MESSAGE if action == "garble" else error.code is refusal
        consumer.resume(*consumer.assignment())
        handed = []
        for _ in range(5):
            with contextlib.suppress(KafkaError):
                handed += list(consumer.poll(50))
        assert handed == []
        kohort_broker.faults.clear()

        def reads_on() -> bool:
            try:
                return len(consumer.poll(200)) > 0
            except KafkaError:  # of the last heartbeat under the fault
                return False

        until(reads_on, "it reads on as a member")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_that_does_not_read_gets_the_error_too(kohort_broker: Broker, topic: str, protocol: str) -> None:
    settings: dict[str, Any] = {"group_protocol": protocol, "heartbeat_interval_ms": 200, "client_id": "victim"}
    with GroupMember(kohort_broker.bootstrap_servers, "g", topics=[topic], **settings) as member:
        member.wait_assignment(20_000)
        for api in ("Heartbeat", "ConsumerGroupHeartbeat"):
            kohort_broker.faults.add(Fault(api, "garble", client_id="victim", times=None))
        assert error_of(member.revocation).code is ErrorCode.CORRUPT_MESSAGE


def test_poll_raises_when_metadata_can_not_be_read(kohort_broker: Broker, topic: str) -> None:
    with Consumer(kohort_broker.bootstrap_servers, client_id="victim") as consumer:
        kohort_broker.faults.add(Fault("Metadata", "garble", client_id="victim", times=None))
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)
        assert error_of(lambda: consumer.poll(50)).code is ErrorCode.CORRUPT_MESSAGE
        kohort_broker.faults.clear()

        def reads() -> bool:
            try:
                return len(consumer.poll(200)) > 0
            except KafkaError:
                return False

        until(reads, "it reads")


def test_a_commit_callback_that_raises_ends_nothing(
    kohort_broker: Broker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    called = threading.Event()

    def careless(offsets: object, error: object) -> None:
        called.set()
        raise ZeroDivisionError("by its own fault")

    with grouped(kohort_broker, enable_auto_commit=False) as consumer:
        consumer.subscribe([topic])
        until(lambda: len(consumer.poll(200)) > 0, "it reads")
        consumer.commit_async(None, careless)
        assert called.wait(20)
        assert len(consumer.poll(20_000)) > 0
        consumer.commit(timeout_ms=20_000)
    (record,) = [record for record in caplog.records if record.exc_info]
    assert record.exc_info is not None and isinstance(record.exc_info[1], ZeroDivisionError)


def test_log_reports_a_failed_commit_that_nobody_waits_for(
    kohort_broker: Broker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    part = TopicPartition(topic, 0)
    refusal = ErrorCode.GROUP_AUTHORIZATION_FAILED
    with grouped(kohort_broker, enable_auto_commit=False) as consumer:
        kohort_broker.faults.add(Fault("OffsetCommit", "fail", client_id="victim", times=None, error=refusal))
        consumer.assign([part])
        consumer.commit_async({part: 5})
        with pytest.raises(KafkaError):
            consumer.commit({part: 6})  # waits for the one before
        for _ in range(5):
            consumer.commit_async({part: 7})
        with pytest.raises(KafkaError):
            consumer.commit({part: 8})
    reported = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(reported) == 1 and reported[0].startswith("background task commit failed: commit for group 'g' of ")


def test_a_commit_waits_for_those_before_it_within_its_own_time(kohort_broker: Broker, topic: str) -> None:
    """So does the last one, of a consumer that is closed: an answer that never comes holds up neither."""
    part = TopicPartition(topic, 0)
    with grouped(kohort_broker) as consumer:
        kohort_broker.faults.add(Fault("OffsetCommit", "drop", client_id="victim", times=None))
        consumer.assign([part])
        consumer.seek(part, 3)
        first: list[KafkaError | None] = []
        consumer.commit_async({part: 5}, lambda _, error: first.append(error))
        with pytest.raises(TimedOutError, match="an earlier commit has no answer yet"):
            consumer.commit({part: 6}, timeout_ms=300)
        with pytest.raises(TimedOutError, match="an earlier commit has no answer yet"):
            consumer.commit({part: 7}, timeout_ms=300)  # it waits for the first one too
        consumer.close(timeout_ms=300)
        assert [str(error) for error in first if "the client was closed" in str(error)]


def test_a_fault_of_the_clients_thread_is_raised_by_every_call(kohort_broker: Broker, topic: str) -> None:
    """A call that waits and those that come after; nobody may wait for a thread that is gone."""
    with grouped(kohort_broker) as consumer:
        consumer.subscribe([topic])
        until(lambda: len(consumer.poll(200)) > 0, "it reads")
        kohort_broker.faults.add(Fault("ListOffsets", "hold", client_id="victim"))
        failures: list[BaseException] = []

        def ask() -> None:
            try:
                consumer.end_offsets([TopicPartition(topic, 0)])
            except BaseException as error:  # noqa: BLE001 - looked at below
                failures.append(error)

        waiting = threading.Thread(target=ask)
        waiting.start()
        runtime = consumer._client.cluster.runtime
        with consumer._client.lock:
            runtime.promise_at(0).on_done(lambda _: 1 / 0)  # type: ignore[arg-type,return-value]
            consumer._client.wake()
        waiting.join(20)
        assert [type(error) for error in failures] == [ClientClosedError]
        assert isinstance(failures[0].__cause__, ZeroDivisionError)
        for _ in range(2):
            with pytest.raises(ClientClosedError, match="has ended the client .ZeroDivisionError"):
                consumer.poll(10)
        with pytest.raises(ClientClosedError, match="has ended the client"):
            consumer.committed([TopicPartition(topic, 0)])


def test_a_fault_of_the_asyncio_client_is_raised_by_every_call(kohort_broker: Broker, topic: str) -> None:
    async def trial() -> None:
        settings: dict[str, Any] = {"group_id": "g", "auto_offset_reset": "earliest", "client_id": "victim"}
        async with AsyncConsumer(kohort_broker.bootstrap_servers, **settings) as consumer:
            consumer.subscribe([topic])
            while not await consumer.poll(200):
                pass
            kohort_broker.faults.add(Fault("ListOffsets", "hold", client_id="victim"))
            waiting = asyncio.ensure_future(consumer.end_offsets([TopicPartition(topic, 0)]))
            await asyncio.sleep(0)
            consumer._client.cluster.runtime.promise_at(0).on_done(lambda _: 1 / 0)  # type: ignore[arg-type,return-value]
            consumer._client.wake()
            with pytest.raises(ClientClosedError, match="has ended the client .ZeroDivisionError"):
                await asyncio.wait_for(waiting, 20)
            with pytest.raises(ClientClosedError, match="has ended the client"):
                await consumer.poll(10)

    asyncio.run(trial())


def test_a_fault_of_the_sender_fails_what_was_sent(
    kohort_broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*_: object) -> None:
        raise ZeroDivisionError("by our fault")

    with Producer(kohort_broker.bootstrap_servers, linger_ms=0) as producer:
        producer.send(topic, "before").result(timeout_ms=20_000)
        with monkeypatch.context() as patched:
            patched.setattr(Sender, "_answered", fault)
            with pytest.raises(KafkaError, match="ZeroDivisionError"):
                producer.send(topic, "in the midst of it").result(timeout_ms=20_000)
            producer.flush(timeout_ms=20_000)
        producer.send(topic, "after").result(timeout_ms=20_000)
        with monkeypatch.context() as patched:
            patched.setattr(Sender, "_step", fault)
            with pytest.raises(KafkaError, match="ZeroDivisionError"):
                producer.send(topic, "never").result(timeout_ms=20_000)
            with pytest.raises(KafkaError, match="ZeroDivisionError"):
                producer.send(topic, "nor this")


def test_calls_under_way_fail_when_the_client_is_closed() -> None:
    consumer = Consumer("127.0.0.1:1")
    failures: list[BaseException] = []
    began = threading.Event()

    def ask() -> None:
        began.set()
        try:
            consumer.partitions_for_topic("a")
        except BaseException as error:  # noqa: BLE001 - looked at below
            failures.append(error)

    waiting = threading.Thread(target=ask)
    waiting.start()
    began.wait(20)
    address = consumer._client.cluster.bootstrap[0]
    until(lambda: consumer._client.cluster.connections.health(address).failures > 2, "it tries again and again")
    consumer.close()
    waiting.join(20)
    assert len(failures) == 1 and isinstance(failures[0], KafkaError)


def test_client_outlives_a_moment_without_a_thread_for_its_connection(
    kohort_broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A machine has no thread left for a moment, or Python 3.12 shuts down: the client ended with a traceback."""
    start, refused = threading.Thread.start, [2]

    def start_later(thread: threading.Thread) -> None:
        if thread.name == "kohort-connect" and refused[0]:
            refused[0] -= 1
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_later)
    with Producer(kohort_broker.bootstrap_servers) as producer:
        assert producer.send(topic, "one more").result().offset == 100
    assert refused == [0]
    assert "can't start new thread; retrying" in caplog.text
    assert "unexpected" not in caplog.text
