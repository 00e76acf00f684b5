"""Calls that a signal's exception or a cancellation ends: the client goes on, and no record is lost."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kohort import AsyncConsumer, Broker, Consumer, Producer, TopicPartition
from kohort.client.consumer import async_consumer
from kohort.client.consumer import consumer as blocking_consumer
from kohort.client.net.cluster import ANY, ConnectionFailed
from kohort.client.net.connection import SocketChannel
from kohort.client.net.thread_driver import ThreadClient
from kohort.client.settings import ConnectionConfig, client_config
from kohort.io.signal_delay import SignalDelay
from kohort.wire.discovery import MetadataRequest

SETTINGS: Any = {"auto_offset_reset": "earliest"}
RECORDS, SIZE = 20, 10_000


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with Broker(config={"group.initial.rebalance.delay.ms": "0"}) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def topic(servers: str) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    with Producer(servers) as producer:
        for number in range(RECORDS):
            producer.send(name, f"{number:{SIZE}}", partition=0)
    return name


def interrupt_once(monkeypatch: pytest.MonkeyPatch, place: Any, name: str) -> list[int]:
    """Let the next call of a function end with Ctrl-C; return the list that tells when it has."""
    function: Callable[..., Any] = getattr(place, name)
    interrupted: list[int] = []

    def interrupt(*args: Any, **named: Any) -> Any:
        result = function(*args, **named)
        if not interrupted:
            interrupted.append(1)
            signal.raise_signal(signal.SIGINT)
        return result

    monkeypatch.setattr(place, name, interrupt)
    return interrupted


def offsets_until_all(consumer: Consumer) -> list[int]:
    """Poll until the last record came; return the offsets."""
    offsets: list[int] = []
    while RECORDS - 1 not in offsets:
        try:
            offsets += [record.offset for record in consumer.poll(10_000)]
        except KeyboardInterrupt:
            continue
    return offsets


@pytest.mark.parametrize("place", ["while it decodes", "when it has the records", "when the records lie ready"])
def test_records_of_an_interrupted_poll_come_with_the_next(
    servers: str, topic: str, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    with Consumer(servers, max_poll_records=7, **SETTINGS) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        before: list[int] = []
        if place == "while it decodes":
            interrupted = interrupt_once(monkeypatch, blocking_consumer, "decode")
        elif place == "when it has the records":
            interrupted = interrupt_once(monkeypatch, consumer._core, "_return")
        else:
            before = [record.offset for record in consumer.poll(10_000)]
            interrupted = interrupt_once(monkeypatch, consumer._core, "_return")
        assert before + offsets_until_all(consumer) == list(range(RECORDS))
    assert interrupted


def test_records_of_a_poll_that_is_cancelled_while_it_decodes_come_with_the_next(
    servers: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many programs put a time limit around a poll, as with `asyncio.wait_for`."""
    entered, go_on, decode = threading.Event(), threading.Event(), async_consumer.decode

    def decode_slowly(*args: Any) -> Any:
        entered.set()
        assert go_on.wait(30)
        return decode(*args)

    monkeypatch.setattr(async_consumer, "decode", decode_slowly)

    async def read() -> list[int]:
        async with AsyncConsumer(servers, **SETTINGS) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            polling = asyncio.create_task(consumer.poll(10_000))
            await asyncio.to_thread(entered.wait, 30)
            polling.cancel()
            await asyncio.wait([polling])
            assert polling.cancelled()
            go_on.set()
            offsets: list[int] = []
            while RECORDS - 1 not in offsets:
                offsets += [record.offset for record in await consumer.poll(10_000)]
            return offsets

    assert asyncio.run(read()) == list(range(RECORDS))


def test_interrupt_ends_no_task_of_the_client(servers: str) -> None:
    """A poll steps the client's tasks on the caller's thread. Nothing would start an interrupted one again."""
    client = ThreadClient(client_config(ConnectionConfig, servers, {}))
    client.call(client.cluster.refresh_metadata())
    steps: list[str] = []

    async def work() -> None:
        steps.append("begun")
        signal.raise_signal(signal.SIGINT)
        steps.append("done")

    with client.lock:
        client.cluster.spawn_essential_task(work(), "work")
        with pytest.raises(KeyboardInterrupt):
            client.send_now()
    assert steps == ["begun", "done"]
    client.close()


@pytest.mark.parametrize("calls", [1, 2], ids=["one", "two before the client's thread runs"])
def test_a_send_that_fails_on_the_callers_thread_ends_the_connection(
    servers: str, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """The system may be out of buffers for a moment. The caller learns it, and need not wait for an answer."""
    client = ThreadClient(client_config(ConnectionConfig, servers, {"request_timeout_ms": 5_000}))
    for _ in range(2):  # the second time by a connection to a broker that the cluster names
        client.call(client.cluster.refresh_metadata())
    flush, failed = SocketChannel.flush, list[int]()

    def without_buffers(channel: SocketChannel) -> None:
        if not failed:
            failed.append(channel.link)
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
        flush(channel)

    with client.lock:
        monkeypatch.setattr(SocketChannel, "flush", without_buffers)
        asked = []
        for _ in range(calls):
            asked.append(client.submit(client.cluster.send(MetadataRequest(topics=[]), ANY)))
            client.send_now()
        assert failed
    for future in asked:
        with pytest.raises(ConnectionFailed, match="no buffer space available"):
            future.result(30)
    client.call(client.cluster.refresh_metadata())
    client.close()


def out_of_time(number: int, frame: Any) -> None:
    raise TimeoutError("as a program that limits a call's time does")


@pytest.fixture
def limited() -> Iterator[None]:
    """A handler of SIGALRM that raises an exception that is no interrupt."""
    before = signal.signal(signal.SIGALRM, out_of_time)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("limited")
def test_an_exception_of_a_handler_is_no_fault_of_the_client(servers: str) -> None:
    client = ThreadClient(client_config(ConnectionConfig, servers, {}))
    client.call(client.cluster.refresh_metadata())

    async def work() -> None:
        signal.raise_signal(signal.SIGALRM)

    with client.lock:
        client.cluster.spawn_essential_task(work(), "work")
        with pytest.raises(TimeoutError, match="as a program"):
            client.send_now()
    client.call(client.cluster.refresh_metadata())
    client.close()


@pytest.mark.usefixtures("limited")
def test_an_exception_of_a_handler_is_no_fault_of_an_asyncio_client(servers: str, topic: str) -> None:
    raised: list[Any] = []

    async def work() -> None:
        signal.raise_signal(signal.SIGALRM)

    async def read() -> list[int]:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: raised.append(context["exception"]))
        async with AsyncConsumer(servers, **SETTINGS) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            consumer._client.cluster.spawn_essential_task(work(), "work")
            offsets: list[int] = []
            while RECORDS - 1 not in offsets:
                offsets += [record.offset for record in await consumer.poll(10_000)]
            return offsets

    assert asyncio.run(read()) == list(range(RECORDS))
    assert [type(error) for error in raised] == [TimeoutError]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1])
def test_delayed_handlers_run_at_the_end_and_are_those_of_before(number: signal.Signals) -> None:
    ran: list[int] = []
    before = signal.signal(number, lambda came, frame: ran.append(came))
    handler = signal.getsignal(number)
    try:
        with SignalDelay():
            with SignalDelay():
                signal.raise_signal(number)
            assert ran == []
        assert ran == [number] and signal.getsignal(number) is handler
        with SignalDelay():
            signal.signal(number, before)
        assert signal.getsignal(number) is before
    finally:
        signal.signal(number, before)


def test_a_handler_that_raises_hides_no_other_signal() -> None:
    came: list[int] = []

    def stop(number: int, frame: Any) -> None:
        came.append(number)
        raise TimeoutError

    def raise_both() -> None:
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR2)
        assert came == []

    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    try:
        for number in before:
            signal.signal(number, stop)
        with pytest.raises(TimeoutError), SignalDelay():
            raise_both()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert came == [signal.SIGUSR1, signal.SIGUSR2]


def test_other_threads_delay_nothing() -> None:
    handler, seen = signal.getsignal(signal.SIGINT), []

    def enter() -> None:
        with SignalDelay():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [handler]
