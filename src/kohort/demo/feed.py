"""Replays the flights into the topic at an even pace, in a thread."""

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
"""How far the replay may lag behind its pace and still catch up."""
PIECE = 500
"""Flights that are sent and awaited together."""


class Tally:
    """The flights counted as they are replayed, by carrier, origin, destination and hour: what the end must give."""

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
    """Sends the flights; `produced` counts those that the broker has acknowledged, `allowed` is the share it may reach.

    Args:
        servers: where to.
        client: further client properties.
        topic: of six partitions; the aircraft is the key.
        rows: how many flights.
        seconds: over how long.
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
