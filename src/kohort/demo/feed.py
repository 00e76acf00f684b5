"""The replay: a thread that sends the flights to the topic at an even pace."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from typing import Any

import msgspec

from kohort.client.producer.producer import Producer
from kohort.demo.flights import flights

LATE_S = 0.5
"""The largest delay that the replay still makes up for."""
PIECE = 500
"""Flights that are sent and awaited together."""


class Tally:
    """The expected result: the replayed flights, counted by carrier, origin, destination and hour."""

    def __init__(self) -> None:
        self.flights: Counter[tuple[str, str, str, int]] = Counter()
        self.dep_minutes: Counter[tuple[str, str, str, int]] = Counter()
        self._decode = msgspec.json.Decoder().decode

    def add(self, value: bytes) -> None:
        flight = self._decode(value)
        key = (flight["carrier"], flight["origin"], flight["dest"], flight["hour"])
        self.flights[key] += 1
        if flight["dep_delay"] is not None:
            self.dep_minutes[key] += flight["dep_delay"]


class Feed:
    """The replay of the flights, in a thread.

    `produced` is the number of acknowledged flights; `allowed` is the share of all flights that it may reach.

    Args:
        servers: the bootstrap servers.
        client: further client properties.
        topic: a topic of six partitions; the aircraft is the key.
        rows: the number of flights.
        seconds: the duration of the replay.
    """

    def __init__(self, servers: str, client: Mapping[str, Any], topic: str, rows: int, seconds: float) -> None:
        self._servers, self._client, self._topic = servers, client, topic
        self._rows, self._seconds = rows, seconds
        self.produced = 0
        self.allowed = 1.0
        self.tally = Tally()
        self.error: BaseException | None = None
        self._stopped = threading.Event()
        self.go = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)

    def start(self) -> None:
        """Read the data; sending begins when `go` is set."""
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def stop(self) -> None:
        self._stopped.set()
        self.go.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._send_all()
        except BaseException as error:  # handed to the thread that watches
            self.error = error
            if not isinstance(error, Exception):
                raise

    def _send_all(self) -> None:
        source = flights(self._rows)
        first = next(source)
        self.go.wait()
        due = time.monotonic()
        with Producer(self._servers, **self._client) as producer:
            piece = [first, *islice(source, PIECE - 1)]
            while piece and not self._stopped.is_set():
                sent = [producer.send(self._topic, flight.value, flight.tail) for flight in piece]
                producer.flush()
                for delivery in sent:
                    delivery.result()
                for flight in piece:
                    self.tally.add(flight.value)
                self.produced += len(piece)
                due = max(due, time.monotonic() - LATE_S) + self._seconds * len(piece) / self._rows
                self._stopped.wait(max(0.0, due - time.monotonic()))
                while self._held_back() and not self._stopped.wait(0.05):
                    pass
                piece = list(islice(source, PIECE))

    def _held_back(self) -> bool:
        return self.allowed < 1 and self.produced >= self.allowed * self._rows
