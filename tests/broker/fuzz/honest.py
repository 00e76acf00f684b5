"""Clients that do nothing wrong while others do: they must not lose, repeat or wait for anything."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from kohort import Consumer, Producer
from kohort.errors import KafkaError, TimedOutError
from tests.broker.raw import RawClient, create_topic, end_offset

TOPIC, GROUP, PARTITIONS = "honest-topic", "honest-group", 3
PAUSE_S = 0.02
STALL_S = 3.0


class Honest:
    """A producer and a member of a group, each with a thread.

    Attributes:
        written, read: records so far.
        slowest_s: the longest time from a record's sending to its acknowledgement.
        wrong: what should not have happened.
    """

    def __init__(self, address: str, stalled: Callable[[], None]) -> None:
        """`stalled` is called when an answer takes longer than `STALL_S`."""
        self._address = address
        self._stalled = stalled
        self._ending = threading.Event()
        self.written = 0
        self.read = 0
        self.slowest_s = 0.0
        self.wrong: list[str] = []
        with RawClient(address, "honest") as client:
            create_topic(client, TOPIC, PARTITIONS)
        self._threads = [threading.Thread(target=run) for run in (self._write, self._read)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def _write(self) -> None:
        try:
            with Producer(self._address, client_id="honest") as producer:
                while not self._ending.wait(PAUSE_S):
                    began = time.monotonic()
                    number = self.written
                    sent = producer.send(TOPIC, value=str(number), partition=number % PARTITIONS)
                    with contextlib.suppress(TimedOutError):
                        sent.result(timeout_ms=1000 * STALL_S)
                    if not sent.done():
                        self._stalled()
                    if sent.result(timeout_ms=30_000).offset != number // PARTITIONS:
                        self.wrong.append(f"record {number} was written at another offset")
                    self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                    self.written += 1
        except KafkaError as error:
            self.wrong.append(f"the producer: {error!r}")

    def _read(self) -> None:
        expected = list(range(PARTITIONS))
        deadline = None
        try:
            with Consumer(
                self._address,
                group_id=GROUP,
                client_id="honest",
                auto_offset_reset="earliest",
                enable_auto_commit=False,
            ) as consumer:
                consumer.subscribe([TOPIC])
                while deadline is None or (self.read < self.written and time.monotonic() < deadline):
                    if deadline is None and self._ending.is_set():
                        self._threads[0].join()
                        deadline = time.monotonic() + 30
                    for record in consumer.poll(timeout_ms=200):
                        if int(record.value) != expected[record.partition]:
                            self.wrong.append(f"{record.value!r} instead of {expected[record.partition]}")
                        expected[record.partition] = int(record.value) + PARTITIONS
                        self.read += 1
                    consumer.commit()
        except KafkaError as error:
            self.wrong.append(f"the consumer: {error!r}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()
        if self.read != self.written:
            self.wrong.append(f"{self.written} records were written, {self.read} read")

    def check_after_restart(self, address: str) -> None:
        """Everything that was acknowledged is there."""
        with RawClient(address, "honest") as client:
            there = sum(end_offset(client, TOPIC, index) for index in range(PARTITIONS))
        if there != self.written:
            self.wrong.append(f"{self.written} records were acknowledged, {there} are there after a restart")
