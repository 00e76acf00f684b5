"""An unexpected exception in each of a client's background tasks and threads: the user's call raises.

No call may wait for a task that is gone. What ends by itself is tried with a real broker; the last test holds the
list of tasks to the source.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kohort.client
from kohort import Admin, AsyncConsumer, AsyncProducer, Broker, Consumer, Fault, Producer, TopicPartition
from kohort.client.admin.values import NewTopic
from kohort.client.consumer.fetching import Fetcher
from kohort.client.consumer.positions import PositionFinder
from kohort.client.group.classic import ClassicMembership
from kohort.client.group.kip848 import ConsumerMembership
from kohort.client.group.membership import Membership
from kohort.client.net import thread_driver
from kohort.client.net.cluster import Cluster
from kohort.client.net.connection import BrokerConnections
from kohort.client.net.thread_driver import ClientClosedError
from kohort.client.producer.sender import Sender
from kohort.client.producer.transactions import TransactionManager
from kohort.errors import KafkaError
from kohort.region.consuming.publishing import SinkPublisher
from tests.support.waiting import until

PLANTED = "ZeroDivisionError"
LIMIT_S = 45


def label(value: object) -> str:
    """Return a name without an address: workers must find the same tests."""
    return str(getattr(value, "__name__", value))


def planted(*_: object, **__: object) -> Any:
    raise ZeroDivisionError("planted")


async def planted_later(*_: object, **__: object) -> Any:
    raise ZeroDivisionError("planted")


@pytest.fixture(scope="module")
def kohort_broker() -> Iterator[Broker]:
    """Return a broker for all these tests, which leave nothing in it."""
    with Broker(config={"group.initial.rebalance.delay.ms": "0"}) as broker:
        yield broker


@pytest.fixture
def topic(kohort_broker: Broker) -> str:
    name = f"ended-{uuid.uuid4().hex[:8]}"
    with Admin(kohort_broker.bootstrap_servers) as admin, Producer(kohort_broker.bootstrap_servers) as producer:
        admin.create_topics([NewTopic(name, 1)]).all()
        for number in range(100):
            producer.send(name, str(number))
    return name


def raised(call: Callable[[], object]) -> BaseException | None:
    """Return what a call raises, made in a thread of its own: a call that never ends fails the test, not the run."""
    found: list[BaseException | None] = []

    def run() -> None:
        try:
            call()
            found.append(None)
        except BaseException as error:  # noqa: BLE001 - looked at by the caller
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    assert found, "the call waits for a task that is gone"
    return found[0]


def until_raised(call: Callable[[], object]) -> KafkaError:
    found: list[KafkaError] = []

    def tries() -> bool:
        error = raised(call)
        if isinstance(error, KafkaError):
            found.append(error)
        else:
            assert error is None, error
        return bool(found)

    until(tries, "a call raises")
    return found[0]


# -- the producer

SENDER_FAULTS = [
    (Sender, "_step", planted),
    (Sender, "_seal", planted),
    (Sender, "_collect", planted),
    (Sender, "_deliver_batches", planted_later),
]


@pytest.mark.parametrize(("owner", "name", "fault"), SENDER_FAULTS, ids=label)
def test_flush_and_commit_raise_when_the_sender_has_ended(
    kohort_broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, fault: Any
) -> None:
    servers = kohort_broker.bootstrap_servers
    with contextlib.ExitStack() as stack:
        plain = stack.enter_context(Producer(servers, linger_ms=0))
        exact = stack.enter_context(Producer(servers, linger_ms=0, transactional_id=uuid.uuid4().hex))
        plain.send(topic, "before").result(timeout_ms=20_000)
        exact.init_transactions()
        exact.begin_transaction()
        exact.send(topic, "before").result(timeout_ms=20_000)
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, fault)
            deliveries = [producer.send(topic, "never") for producer in (plain, exact)]
            assert PLANTED in str(raised(plain.flush))
            assert PLANTED in str(raised(exact.commit_transaction))
        for delivery in deliveries:
            assert PLANTED in str(delivery.exception(timeout_ms=20_000))
        for _ in range(2):  # the error is final
            assert PLANTED in str(raised(plain.flush))
            assert PLANTED in str(raised(lambda: plain.send(topic, "nor this")))
        exact.abort_transaction()
        assert PLANTED in str(raised(exact.begin_transaction))


def test_commit_raises_when_a_failed_batch_can_not_be_handled(
    kohort_broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error strikes while another one is handled: nobody would complete the batch."""
    with Producer(kohort_broker.bootstrap_servers, linger_ms=0, transactional_id=uuid.uuid4().hex) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        with monkeypatch.context() as patched:
            patched.setattr(Sender, "_answered", planted)
            patched.setattr(Sender, "_batch_failed", planted)
            producer.send(topic, "never")
            assert PLANTED in str(raised(producer.commit_transaction))
        producer.abort_transaction()


def test_commit_raises_when_partitions_can_not_be_added(
    kohort_broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer(kohort_broker.bootstrap_servers, linger_ms=0, transactional_id=uuid.uuid4().hex) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        monkeypatch.setattr(TransactionManager, "_add_once", planted_later)
        monkeypatch.setattr(producer._core.transactions, "_version", 1)
        producer.send(topic, "never")
        assert PLANTED in str(raised(producer.commit_transaction))


def test_deliveries_and_flush_raise_when_the_clients_thread_has_ended(kohort_broker: Broker, topic: str) -> None:
    producer = Producer(kohort_broker.bootstrap_servers, linger_ms=60_000)
    producer.partitions_for(topic)
    delivery = producer.send(topic, "waits for its linger time")
    with producer._client.lock:
        producer._client.cluster.runtime.promise_at(0).on_done(planted)
        producer._client.wake()
    assert PLANTED in str(raised(delivery.result))
    for call in (producer.flush, lambda: producer.send(topic, "nor this")):
        assert PLANTED in str(raised(call))
    producer.close()


def test_a_caller_that_waits_for_memory_learns_that_the_sender_has_ended(
    kohort_broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer(kohort_broker.bootstrap_servers, buffer_memory=40_000, linger_ms=60_000) as producer:
        delivery = producer.send(topic, bytes(30_000))
        monkeypatch.setattr(Sender, "_step", planted)
        assert PLANTED in str(raised(lambda: producer.send(topic, bytes(30_000))))
        assert PLANTED in str(delivery.exception(timeout_ms=20_000))


def test_asyncio_producers_raise_too(kohort_broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def trial() -> None:
        async with AsyncProducer(kohort_broker.bootstrap_servers, linger_ms=0) as producer:
            await (await producer.send(topic, "before"))
            with monkeypatch.context() as patched:
                patched.setattr(Sender, "_seal", planted)
                delivery = await producer.send(topic, "never")
                with pytest.raises(KafkaError, match=PLANTED):
                    await asyncio.wait_for(producer.flush(), LIMIT_S)
                with pytest.raises(KafkaError, match=PLANTED):
                    await asyncio.wait_for(_of(delivery), LIMIT_S)

    asyncio.run(trial())


async def _of(delivery: Any) -> Any:
    return await delivery


# -- the consumer

CONSUMER_FAULTS = [
    ("classic", Fetcher, "_take_in", planted),
    ("classic", Fetcher, "_not_fetched", planted),
    ("classic", PositionFinder, "_committed", planted_later),
    ("classic", ClassicMembership, "_heartbeat", planted_later),
    ("classic", ClassicMembership, "_round", planted_later),
    ("classic", ClassicMembership, "_log_retry", planted),
    ("consumer", ConsumerMembership, "_request", planted),
    ("consumer", ConsumerMembership, "_reconcile", planted),
    ("consumer", ConsumerMembership, "_may_beat_now", planted),
    ("classic", Membership, "_fatal", planted_later),
]


@pytest.mark.parametrize(("protocol", "owner", "name", "fault"), CONSUMER_FAULTS, ids=label)
def test_poll_raises_when_a_task_of_the_consumer_has_ended(
    kohort_broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch, protocol: str, owner: type, name: str,
    fault: Any,
) -> None:  # fmt: skip
    also = {"_not_fetched": (Fetcher, "_take_in", planted), "_fatal": (ClassicMembership, "_round", planted_later),
            "_log_retry": (ClassicMembership, "_join", _not_available)}  # fmt: skip
    settings: dict[str, Any] = {"group_protocol": protocol, "group_id": uuid.uuid4().hex, "heartbeat_interval_ms": 200}
    with Consumer(kohort_broker.bootstrap_servers, auto_offset_reset="earliest", **settings) as consumer:
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, fault)
            if name in also:
                patched.setattr(*also[name])
            consumer.subscribe([topic])
            assert PLANTED in str(until_raised(lambda: consumer.poll(50)))


async def _not_available(*_: object) -> Any:
    from kohort.errors import RetriableError

    raise RetriableError("planted, and retried")


BACKGROUND = [(Cluster, "_keep_up"), (Membership, "_watch_lease")]


@pytest.mark.parametrize(("owner", "name"), BACKGROUND, ids=label)
def test_poll_raises_when_a_task_that_only_watches_has_ended(
    kohort_broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    monkeypatch.setattr(owner, name, planted_later)
    with Consumer(kohort_broker.bootstrap_servers, group_id=uuid.uuid4().hex, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        assert PLANTED in str(until_raised(lambda: consumer.poll(50)))


def test_commits_raise_what_ended_them(kohort_broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Consumer(kohort_broker.bootstrap_servers, group_id=uuid.uuid4().hex, enable_auto_commit=False) as consumer:
        consumer.subscribe([topic])
        until(lambda: consumer.poll(50) is not None and bool(consumer.assignment()), "it holds partitions")
        heard: list[KafkaError | None] = []
        with monkeypatch.context() as patched:
            patched.setattr("kohort.client.group.membership.commit_offsets", planted_later)
            part = next(iter(consumer.assignment()))
            consumer.commit_async({part: 1}, lambda _, error: heard.append(error))
            error = raised(lambda: consumer.commit({part: 2}))
        assert isinstance(error, ZeroDivisionError | KafkaError)
        until(lambda: bool(heard), "the callback is called")
        assert PLANTED in str(heard[0])


def test_asyncio_consumers_raise_too(kohort_broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def trial() -> None:
        monkeypatch.setattr(Cluster, "_keep_up", planted_later)
        async with AsyncConsumer(kohort_broker.bootstrap_servers, group_id=uuid.uuid4().hex) as consumer:
            consumer.subscribe([topic])
            with pytest.raises(ClientClosedError, match=PLANTED):
                await asyncio.wait_for(_polls(consumer), LIMIT_S)

    asyncio.run(trial())


async def _polls(consumer: AsyncConsumer) -> None:
    while True:
        await consumer.poll(100)


# -- connections, and admin


@pytest.mark.parametrize("driver", ["thread", "asyncio"])
def test_an_answer_that_can_not_be_taken_ends_the_call(
    kohort_broker: Broker, monkeypatch: pytest.MonkeyPatch, driver: str
) -> None:
    monkeypatch.setattr(BrokerConnections, "on_frame_received", planted)
    if driver == "thread":
        with Admin(kohort_broker.bootstrap_servers) as admin:
            assert PLANTED in str(raised(lambda: admin.list_topics().all()))
            assert PLANTED in str(raised(lambda: admin.list_topics().all()))
        return

    async def trial() -> None:
        async with AsyncProducer(kohort_broker.bootstrap_servers) as producer:
            for _ in range(2):
                with pytest.raises(ClientClosedError, match=PLANTED):
                    await asyncio.wait_for(producer.partitions_for("any"), LIMIT_S)

    asyncio.run(trial())


def test_a_login_that_fails_unexpectedly_is_named(kohort_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_driver, "fetch_sasl_mechanism", planted)
    with Admin(kohort_broker.bootstrap_servers, default_api_timeout_ms=2_000) as admin:
        assert PLANTED in str(raised(lambda: admin.list_topics().all()))


def test_a_fault_on_the_callers_thread_ends_the_client(kohort_broker: Broker, topic: str) -> None:
    """A caller steps the core itself where that is faster: its fault is as final as one on the client's thread."""
    with Consumer(kohort_broker.bootstrap_servers) as consumer:
        consumer.partitions_for_topic(topic)
        client = consumer._client
        with client.lock:
            client.cluster.spawn_essential_task(planted_later(), "planted")
            with pytest.raises(ClientClosedError, match=PLANTED):
                client.send_now()
        assert PLANTED in str(raised(lambda: consumer.partitions_for_topic(topic)))


def end_by_a_fault(client: Any) -> None:
    """Plant an unexpected error in a background task, and wait until the client has ended by it."""
    with client.lock:
        client.cluster.spawn_essential_task(planted_later(), "planted")
        client.wake()
    until(lambda: client.failed, "the client ends")


def test_a_loop_over_records_raises_when_the_client_has_ended(kohort_broker: Broker, topic: str) -> None:
    with Consumer(kohort_broker.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])

        def run() -> None:
            for number, _ in enumerate(consumer):
                if number == 4:
                    end_by_a_fault(consumer._client)

        assert PLANTED in str(raised(run))


def test_a_producers_block_raises_what_was_not_delivered_when_the_client_has_ended(
    kohort_broker: Broker, topic: str
) -> None:
    def run() -> None:
        with Producer(kohort_broker.bootstrap_servers, linger_ms=60_000) as producer:
            producer.send(topic, "never")
            end_by_a_fault(producer._client)

    assert "1 record was not delivered" in str(raised(run))


def test_an_exit_within_a_callback_ends_the_client(kohort_broker: Broker, topic: str) -> None:
    producer = Producer(kohort_broker.bootstrap_servers)
    producer.send(topic, "x", on_delivery=lambda *_: sys.exit(3))
    for _ in range(2):
        assert "SystemExit(3)" in str(raised(producer.flush))


def test_a_commits_callback_runs_when_the_client_has_ended(kohort_broker: Broker, topic: str) -> None:
    kohort_broker.faults.add(Fault("OffsetCommit", "delay", delay_ms=20_000))
    errors: list[KafkaError | None] = []
    with Consumer(kohort_broker.bootstrap_servers, group_id=uuid.uuid4().hex) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.commit_async({TopicPartition(topic, 0): 1}, lambda _, error: errors.append(error))
        end_by_a_fault(consumer._client)
        until(lambda: bool(errors), "the callback runs")
    kohort_broker.faults.clear()
    assert "may have been made or not" in str(errors[0])


# -- the region's publishing thread


def test_a_member_learns_that_its_publishing_thread_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoSink:
        place = "nowhere"

    publisher = SinkPublisher(NoSink(), "a")  # type: ignore[arg-type]
    monkeypatch.setattr(SinkPublisher, "_next", planted)
    heard: list[BaseException] = []
    publisher.start(lambda sequence, cause: None, heard.append)
    until(lambda: bool(heard), "the member hears of it")
    assert isinstance(heard[0], ZeroDivisionError)


# -- the list

AWAITED = {
    "admin": "each future's error is the caller's",
    "net/cluster.py": "look-ups and refreshes are awaited; the list of coordinators is refreshed again",
    "net/connection.py": "the handshake turns any error into the connection's",
    "net/runtime.py": "`within` awaits its task",
    "net/health.py": "",
    "net/bootstrap_check.py": "awaited",
    "net/thread_driver.py": "the caller's future has the error",
    "net/asyncio_driver.py": "the caller's future has the error",
    "consumer/commits.py": "awaited, or given to the callback, or logged",
    "consumer/positions.py": "`gather` raises the first error",
    "group/classic.py": "awaited at once, or cancelled",
    "group/kip848.py": "the heartbeat fails too, and is retried",
    "offsets.py": "`gather` raises the first error",
    "producer/transactions.py": "awaited at once",
}
"""Files that start tasks by `spawn`, and who learns of their errors. `spawn_essential_task` starts all others."""


def spawning() -> Iterator[str]:
    root = Path(kohort.client.__path__[0])
    for path in sorted(root.rglob("*.py")):
        if ".spawn(" in path.read_text():
            yield path.relative_to(root).as_posix()


def test_tasks_that_nobody_awaits_are_kept_running() -> None:
    assert [name for name in spawning() if name not in AWAITED] == []
