"""The account of a run: every flight counted once from what the programs wrote, shown as tables and as a picture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from kohort.demo.flights import flights_table

_KINDS: dict[str, pa.DataType] = {
    "partition": pa.int32(),
    "offset": pa.int64(),
    "carrier": pa.string(),
    "origin": pa.string(),
    "dest": pa.string(),
    "hour": pa.int32(),
    "dep_delay": pa.int32(),
    "arr_delay": pa.int32(),
}
SCHEMA = pa.schema(_KINDS)
"""The columns of a written flight."""
CONNECTION = ("carrier", "origin", "dest")
SUMS = ("flights", "dep_known", "dep_minutes", "arr_known", "arr_minutes")
TABLE, LAKE = "air.flights", "lake"
"""The Iceberg table of region_query.py, and the folder of its files and its catalog."""
WORST = 10
"""The number of connections that are listed."""

# -- What the programs wrote


def read_batches(folder: Path) -> pa.Table:
    """Read the Parquet files of all finished batches of group_query.py."""
    files = [file for done in folder.glob("batches/*/*/_SUCCESS") for file in sorted(done.parent.glob("*.parquet"))]
    return pa.concat_tables([SCHEMA.empty_table(), *(pq.ParquetFile(file).read().cast(SCHEMA) for file in files)])


def read_iceberg(folder: Path) -> tuple[pa.Table, str]:
    """Read the Iceberg table of region_query.py, as any reader of its catalog does.

    Returns:
        the rows, and the path of the newest metadata file; no rows and an empty path if there is no table.
    """
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import NoSuchTableError

    lake = folder / LAKE
    if not (lake / "catalog.db").exists():
        return SCHEMA.empty_table(), ""
    catalog = SqlCatalog("default", uri=f"sqlite:///{lake}/catalog.db", warehouse=f"file://{lake}")
    try:
        found = catalog.load_table(TABLE)
        rows = found.scan(selected_fields=tuple(SCHEMA.names)).to_arrow().select(SCHEMA.names).cast(SCHEMA)
    except NoSuchTableError:
        return SCHEMA.empty_table(), ""
    finally:
        catalog.close()
    return rows, found.metadata_location.removeprefix("file://")


def duckdb_query_of(metadata: str) -> str:
    """Return the query by which DuckDB reads an Iceberg table.

    Args:
        metadata: the path of the table's newest metadata file.
    """
    return (
        "SELECT origin, count(*) AS flights, round(avg(dep_delay), 1) AS minutes_late "
        f"FROM iceberg_scan('{metadata}') GROUP BY origin ORDER BY origin"
    )


# -- The count


@dataclass(frozen=True, slots=True)
class CountResult:
    """The result of comparing the written rows with the records of the topic.

    Attributes:
        written: the number of written rows.
        repeated: surplus rows of records that are written more than once.
        missing: records that are not written.
        unknown: rows of offsets that no record has.
        once: the flights, each of them once.
    """

    written: int
    repeated: int
    missing: int
    unknown: int
    once: pa.Table


def compare_with_topic(rows: pa.Table, ends: Mapping[int, int]) -> CountResult:
    """Compare the written rows with the records of the topic.

    Args:
        rows: the written rows.
        ends: the offset after the last record, by partition; partitions start at 0 and offsets have no holes.
    """
    once = rows.group_by(SCHEMA.names).aggregate([])
    offsets = once.group_by(["partition", "offset"]).aggregate([])
    known = 0
    for partition, end in ends.items():
        own = (pc.field("partition") == partition) & (pc.field("offset") >= 0) & (pc.field("offset") < end)
        known += offsets.filter(own).num_rows
    repeated, missing = rows.num_rows - once.num_rows, sum(ends.values()) - known
    return CountResult(rows.num_rows, repeated, missing, once.num_rows - known, once)


def sum_by_columns(flights: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the number of flights and their delays, by the columns `keys`, in their order."""
    delays: list[Any] = [(name, how) for name in ("dep_delay", "arr_delay") for how in ("count", "sum")]
    found = flights.group_by(list(keys)).aggregate([([], "count_all"), *delays])
    names = ["count_all", *(f"{name}_{how}" for name, how in delays)]
    sums: list[Any] = [pc.fill_null(found.column(name), pa.scalar(0, pa.int64())) for name in names]
    table = pa.table([*(found.column(name) for name in keys), *sums], [*keys, *SUMS])
    return table.sort_by([(name, "ascending") for name in keys])


def sum_differences(once: pa.Table, rows: int) -> Iterator[str]:
    """Return a line for each connection and hour whose sums are not those of the first `rows` flights of the data."""
    keys = [*CONNECTION, "hour"]
    wanted = {tuple(row[name] for name in keys): row for row in sum_by_columns(flights_table(rows), keys).to_pylist()}
    found = {tuple(row[name] for name in keys): row for row in sum_by_columns(once, keys).to_pylist()}
    for key in sorted(wanted | found):
        if wanted.get(key) != found.get(key):
            yield f"{' '.join(map(str, key))}:00: {found.get(key)} instead of {wanted.get(key)}"


def worst_connections(once: pa.Table, least: int) -> list[dict[str, Any]]:
    """Return the connections with the largest mean departure delay, of those with `least` flights or more."""
    found = []
    for row in sum_by_columns(once, CONNECTION).to_pylist():
        if row["flights"] >= least and row["dep_known"]:
            means = {f"{end}_mean": row[f"{end}_minutes"] / max(1, row[f"{end}_known"]) for end in ("dep", "arr")}
            found.append({name: row[name] for name in (*CONNECTION, "flights")} | means)
    return sorted(found, key=lambda connection: -connection["dep_mean"])[:WORST]


# -- The tables


def print_result(outcome: Mapping[str, Any], console: Console) -> None:
    """Print the result of a run as tables."""
    account, group, killed, region = (outcome[name] for name in ("account", "group", "killed", "region"))
    title = "The connections that leave latest"
    _show(console, title, "carrier  from  to  >flights  >leaves late by  >arrives late by", [
        (late["carrier"], late["origin"], late["dest"], f"{late['flights']:,}", f"{late['dep_mean']:.1f} min",
         f"{late['arr_mean']:.1f} min")
        for late in outcome["worst"]
    ])  # fmt: skip
    title = "Group {id}: {state}, lag {lag}".format(**group)
    if region:
        title += "; region {name}: sequence {sequence}, epoch {epoch}".format(**region)
    _show(console, title, ">partition  >committed  >log end  >lag  owner", [
        (str(share["partition"]), f"{share['committed']:,}", f"{share['log_end']:,}", str(share["lag"]), share["owner"])
        for share in group["partitions"]
    ])  # fmt: skip
    how = "published" if region else "counted"
    verdict = f"[green]every flight {how} once[/green]" if outcome["exact"] else "[red]the account is not right[/red]"
    again = f"rows of a batch that {killed['member']} wrote and did not commit: written again after its end"
    _show(console, f"Account: {verdict}", "what  >count  note", [
        ("replayed", f"{outcome['flights']:,}", "flights the broker acknowledged"),
        ("written", f"{account['written']:,}", "rows that both applications wrote"),
        ("repeated", f"{account['repeated']:,}", "rows too many" if region else again),
        ("missing", f"{account['missing']:,}", "flights in no row"),
        ("counted", f"{account['counted']:,}", "rows that remain when each offset counts once"),
        ("takeover", f"{killed['takeover_s']:.1f} s", "from the kill to the first commit of its partitions elsewhere"),
    ])  # fmt: skip
    for fault in account["faults"]:
        console.print(f"[red]wrong:[/red] {fault}")
    console.print(f"picture: {outcome['picture']}", soft_wrap=True, highlight=False)
    if query := outcome["query"]:
        console.print("read the Iceberg table with DuckDB (INSTALL iceberg; LOAD iceberg):")
        console.print(f"{query};", soft_wrap=True, highlight=False, markup=False)


def _show(console: Console, title: str, columns: str, rows: Iterable[Sequence[str]]) -> None:
    """Print a table; two blanks separate the names of its columns, and ">" puts a column on the right."""
    console.print(f"[bold]{title}[/bold]", highlight=False)
    table = Table(box=None, header_style="dim")
    for name in columns.split("  "):
        table.add_column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table, highlight=False)
    console.print()


# -- The picture

INK = "#22303c"
AIRPORTS = {"EWR": ("Newark", "#d1495b"), "JFK": ("Kennedy", "#2e86ab"), "LGA": ("LaGuardia", "#66a182")}
FLIGHTS_OF_HOUR_MIN = 50
"""The fewest flights of an hour that say anything about delay."""


def draw_delays(once: pa.Table, file: Path, how: str) -> None:
    """Write a PNG: how late flights leave, by the hour they should have left.

    Args:
        once: the flights, each of them once.
        file: the file to write.
        how: how the flights were counted, in words.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6.2), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    hours, flights, means = _by_hour(once)
    upper.fill_between(hours, means, color="#dfe6ec")
    upper.plot(hours, means, color=INK, lw=2.5, label="all three airports")
    for origin, (name, color) in AIRPORTS.items():
        own_hours, _, own_means = _by_hour(once.filter(pc.field("origin") == origin))
        upper.plot(own_hours, own_means, color=color, lw=1.6, marker="o", ms=3.5, label=name)
    upper.set_ylabel("mean delay of departure, minutes", color=INK)
    upper.legend(frameon=False, loc="upper left", fontsize=9.5)
    lower.bar(hours, [count / 1000 for count in flights], color="#9fb3c8", width=0.72)
    lower.set_ylabel("flights, thousands", color=INK)
    lower.set_xlabel("scheduled hour of departure", color=INK)
    lower.set_xticks(hours, [f"{hour}:00" for hour in hours], fontsize=8.5)
    for axes in (upper, lower):
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.grid(axis="y", color="#e8ecf0", lw=0.8)
        axes.set_axisbelow(True)
    title = "Late begets late: departure delay grows through the day"
    figure.suptitle(title, x=0.01, ha="left", fontsize=15, weight="bold", color=INK)
    source = f"{once.num_rows:,} flights from New York's airports, 2013, {how}"
    figure.supxlabel(source, x=0.01, ha="left", fontsize=8.5, color="#66727d")
    figure.savefig(file)


def _by_hour(once: pa.Table) -> tuple[list[int], list[int], list[float]]:
    """Return hours, flights and mean departure delays in minutes."""
    rows = [row for row in sum_by_columns(once, ["hour"]).to_pylist() if row["dep_known"] >= FLIGHTS_OF_HOUR_MIN]
    means = [row["dep_minutes"] / row["dep_known"] for row in rows]
    return [row["hour"] for row in rows], [row["flights"] for row in rows], means
