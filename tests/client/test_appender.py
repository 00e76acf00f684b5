"""The short way of `send` in both forms: the same records, counts and refusals, and a lock as `threading.Lock` is."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohort import TopicPartition
from kohort.client.producer import appender
from kohort.client.producer.appender import OVERHEAD, PlainAppender, PlainBatchFill, PlainDeliveryPlace
from kohort.columns import encode, reference_encode

PLAIN = SimpleNamespace(
    Appender=PlainAppender,
    BatchFill=PlainBatchFill,
    DeliveryPlace=PlainDeliveryPlace,
    Mutex=threading.Lock,
    QueueOpening=appender.PlainQueueOpening,
)
FORMS: list[Any] = [PLAIN]
if appender.COMPILED:
    FORMS.append(importlib.import_module("kohort.client.producer._appender"))
PLACES = [TopicPartition("t", number) for number in range(3)]


class Filled:
    """An appender of one form, with an open batch in each of the three partitions of "t"."""

    def __init__(self, form: Any, memory: int = 1 << 20, largest: int = 1 << 20, limit: int = 2_000) -> None:
        delivery_type = type("PlacedDelivery", (form.DeliveryPlace,), {"__slots__": ()})
        self.appender = form.Appender(delivery_type, memory, largest, True)
        self.batches = []
        for place in PLACES:
            queue, batch = form.QueueOpening(), form.BatchFill()
            chunk = encode.Chunk(limit)
            batch.chunk, batch.count, batch.size = chunk, 0, 0
            queue.open = batch
            self.appender.queues[place] = queue
            self.batches.append(batch)
        self.appender.places["t"] = list(PLACES)
        self.appender.sticky_queues["t"] = self.appender.queues[PLACES[1]]

    def append(self, *arguments: Any) -> tuple[int, int] | None:
        """The partition and index of the record; None if it was left to the long way."""
        delivery = self.appender.append_open(*arguments)
        if delivery is None:
            return None
        assert delivery._timestamp == delivery._batch.chunk.max_timestamp
        return self.batches.index(delivery._batch), delivery._index

    def counts(self) -> tuple[int, list[tuple[int, int, int, int]]]:
        """Memory in use, and what each batch and its chunk count."""
        rows = [(batch.count, batch.size, batch.chunk.count, batch.chunk.size) for batch in self.batches]
        return self.appender.used, rows

    def bodies(self) -> list[bytes]:
        """The records of each batch without the time, which two forms do not take at the same moment."""
        return [
            b"" if not batch.count else bytes(batch.chunk.seal(0, None, -1, -1, -1, False)) for batch in self.batches
        ]


contents = st.none() | st.binary(max_size=40) | st.binary(min_size=900, max_size=1_100) | st.just(bytearray(b"v"))
topics = st.sampled_from(["t"] * 9 + ["unknown", None, ["t"], b"t"])
records = st.tuples(topics, contents, contents)


@given(st.lists(records, max_size=40), st.integers(100, 6_000), st.integers(100, 1_300), st.integers(128, 3_000))
@settings(max_examples=200, deadline=None)
def test_both_forms_take_and_count_the_same_records(
    rows: list[tuple[Any, Any, Any]], memory: int, largest: int, limit: int
) -> None:
    results = []
    for form in FORMS:
        filled = Filled(form, memory, largest, limit)
        places = [filled.append(*row) for row in rows]
        used, counts = filled.counts()
        assert used == sum(size for _, size, _, _ in counts) <= memory
        assert all(count == of_chunk for count, _, of_chunk, _ in counts)
        results.append((places, [count for count, _, _, _ in counts]))
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("key", [None, b"k", b"another key"])
def test_records_are_those_of_the_encoder(form: Any, key: bytes | None) -> None:
    filled = Filled(form)
    place = filled.append("t", b"value", key)
    assert place is not None
    partition = 1 if key is None else encode.partition_for_key(key, 3)
    assert place == (partition, 0)
    batch = filled.batches[partition]
    expected = reference_encode.Chunk(2_000)
    assert expected.append(batch.chunk.max_timestamp, key, b"value", ())
    assert (batch.size, batch.chunk.size) == (expected.size, expected.size)
    assert filled.bodies()[partition] == bytes(expected.seal(0, None, -1, -1, -1, False))


@pytest.mark.parametrize("form", FORMS)
def test_memory_and_largest_record_are_exact(form: Any) -> None:
    """A record is taken up to the very byte at which the long way refuses one."""
    assert Filled(form, memory=OVERHEAD + 100).append("t", b"v" * 100, None) == (1, 0)
    assert Filled(form, memory=OVERHEAD + 99).append("t", b"v" * 100, None) is None
    assert Filled(form, largest=OVERHEAD + 103).append("t", b"v" * 100, b"key") is not None
    assert Filled(form, largest=OVERHEAD + 102).append("t", b"v" * 100, b"key") is None


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reason", ["failure", "refusal", "no open batch", "no chunk", "no queue", "no partitions"])
def test_record_is_left_to_the_long_way(form: Any, reason: str) -> None:
    filled = Filled(form)
    queue = filled.appender.queues[PLACES[1]]
    if reason == "failure":
        filled.appender.failure = Exception("closed")
    elif reason == "refusal":
        filled.appender.refusal = lambda _: None
    elif reason == "no open batch":
        queue.open = None
    elif reason == "no chunk":
        queue.open.chunk = None
    elif reason == "no queue":
        filled.appender.sticky_queues.clear()
    else:
        filled.appender.places["t"] = []
        assert filled.append("t", b"v", b"k") is None
        return
    assert filled.append("t", b"v", None) is None
    assert filled.appender.used == 0
    assert not filled.appender.mutex.locked()


@pytest.mark.parametrize("form", FORMS)
def test_serializers_and_partitioners_see_every_record(form: Any) -> None:
    filled = Filled(form)
    closed = form.Appender(type("PlacedDelivery", (form.DeliveryPlace,), {"__slots__": ()}), 1 << 20, 1 << 20, False)
    closed.queues, closed.places = filled.appender.queues, filled.appender.places
    closed.sticky_queues = filled.appender.sticky_queues
    assert closed.append_open("t", b"v", None) is None
    assert filled.append("t", b"v", None) == (1, 0)


@pytest.mark.parametrize("form", FORMS)
def test_append_waits_for_the_lock(form: Any) -> None:
    filled = Filled(form)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(filled.append("t", b"v", None)))
    with filled.appender.mutex:
        thread.start()
        thread.join(0.05)
        assert thread.is_alive() and filled.appender.used == 0
    thread.join(30)
    assert found == [(1, 0)]


@pytest.mark.parametrize("form", FORMS)
def test_mutex_is_a_lock(form: Any) -> None:
    mutex = form.Mutex()
    assert mutex.acquire() and mutex.locked()
    assert not mutex.acquire(False)
    mutex.release()
    assert not mutex.locked()
    with pytest.raises(RuntimeError):
        mutex.release()
    with mutex:
        assert mutex.locked()
    with pytest.raises(ZeroDivisionError), mutex:
        raise ZeroDivisionError
    assert not mutex.locked()


@pytest.mark.parametrize("form", FORMS)
def test_mutex_carries_a_condition(form: Any) -> None:
    condition = threading.Condition(form.Mutex())
    seen: list[int] = []

    def wait() -> None:
        with condition:
            assert condition.wait_for(lambda: bool(seen), 30)
            seen.append(2)

    thread = threading.Thread(target=wait)
    thread.start()
    with condition:
        assert not condition.wait_for(lambda: False, 0.01)
        seen.append(1)
        condition.notify_all()
    thread.join(30)
    assert seen == [1, 2]


@pytest.mark.parametrize("form", FORMS)
def test_mutex_keeps_threads_apart(form: Any) -> None:
    mutex, count = form.Mutex(), [0]

    def add() -> None:
        for _ in range(2_000):
            with mutex:
                seen = count[0]
                for _ in range(3):
                    pass
                count[0] = seen + 1

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count == [8_000]


@pytest.mark.parametrize("form", FORMS)
def test_delivery_whose_error_was_raised_is_collected(form: Any) -> None:
    """The error's traceback has the frame that has the delivery: a cycle, which may keep an application's frames."""
    filled = Filled(form)
    delivery = filled.appender.append_open("t", b"v", None)
    assert delivery is not None and gc.is_tracked(delivery)


@pytest.mark.skipif(not appender.COMPILED, reason="the kernel was not built")
def test_wait_for_the_lock_can_be_interrupted_by_a_signal() -> None:
    """A handler that sends while its own thread has the lock waits for ever, and the next signal's error ends it."""
    mutex = FORMS[1].Mutex()
    mutex.acquire()

    def raises(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, raises)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            mutex.acquire()
    finally:
        signal.signal(signal.SIGALRM, before)
    mutex.release()
    assert mutex.acquire(False)


@pytest.mark.skipif(not appender.COMPILED, reason="the kernel was not built")
def test_delivery_type_is_of_the_kernel() -> None:
    with pytest.raises(TypeError):
        FORMS[1].Appender(PlainDeliveryPlace, 1, 1, True)


_WITHOUT_KERNEL = """
import sys
sys.modules["kohort.client.producer._appender"] = None
import pytest
status = pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "tests/client/test_appending.py"])
assert not sys.modules["kohort.client.producer.appender"].COMPILED
sys.exit(status)
"""


def test_producer_without_the_kernel_passes_the_same_tests() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])}
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_KERNEL], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
