"""The goal of each figure, and the limit that the machine itself sets, both by the figure's title.

A figure without an entry has neither. A new benchmark appears on docs/performance.md by itself; its goal belongs here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench import light

RECORD_BYTES = 108
"""A record of 100 bytes in a batch: lengths, deltas and the count of headers take eight more."""
PEERS = (
    "Apache Kafka", "confluent-kafka", "aiokafka", "kafka-python", "Java ", "Spark's", "plain copy", "receiving",
    "links and fsyncs", "the machine",
)  # fmt: skip
"""How the names of rows begin that are not ours."""


def is_ours(row: str) -> bool:
    """Return whether a row shows this project, and not a peer or the machine."""
    return not row.startswith(PEERS)


@dataclass(frozen=True, slots=True)
class Goal:
    """The ratio or time that one row is to reach.

    Attributes:
        benchmark: the name for `python -m bench`.
        title: a regular expression for the whole title of the figure.
        row: a regular expression for the whole name of the row.
        value: "ratio" to the baseline or to `beside`, "seconds": one over the rate, or "least" or "most" of the rate.
        limit: the least ratio or rate, or the most seconds or rate.
        beside: the name of another row of the figure, in place of the baseline.
        why: what the time goes into while the goal is missed, and what it would take to reach it.
    """

    benchmark: str
    title: str
    row: str
    value: str
    limit: float
    beside: str = ""
    why: str = ""

    def measured(self, figure: Mapping[str, Any], row: Mapping[str, Any]) -> float | None:
        """Return the value that the goal is about; None if one of the rows was not measured."""
        if row.get("absent"):
            return None
        rate: float = row["rate_median"]
        if self.value == "seconds":
            return 1 / rate
        if self.value in ("least", "most"):
            return rate
        if not self.beside:
            ratio: float | None = row["ratio_median"]
            return ratio
        for other in figure["rows"]:
            if other["name"] == self.beside and not other.get("absent"):
                return float(rate / other["rate_median"])
        return None

    def reached(self, value: float) -> bool:
        """Return whether a value is as good as the goal."""
        return value <= self.limit if self.value in ("seconds", "most") else value >= self.limit

    def text(self) -> str:
        """Write the goal for a table."""
        if self.value == "seconds":
            return f"≤ {self.limit:g} s"
        if self.value in ("least", "most"):
            return f"{'≤' if self.value == 'most' else '≥'} {self.limit:g}"
        return f"≥ {self.limit:g} × {self.beside}".removesuffix(" × ") if self.beside else f"≥ {self.limit:g} ×"


_VALUES = (
    "Receiving takes a fifth of the time, and a Python object for each value the rest: 0.3 µs. Only whole batches "
    "(`poll_arrow`) avoid the objects."
)
_ARROW = (
    "Encoding takes an eighth of the time. The rest is sockets and the broker's append: the client and the broker "
    "share two cores. A sender without a copy into the socket would be needed."
)
_CHECKS = (
    "The check walks every record's lengths, which takes 10 ns a record. A compressed batch is decompressed for that, "
    "as Apache Kafka does too. Without the check a batch that nobody can read stops each reader of its partition."
)
_PUBLISHING = (
    "Beyond links and fsyncs, publishing lists the folder, removes the staged names, and writes a mark, each in "
    "folders opened without following links. The names could be removed later, in the background."
)
_START = (
    "Spark starts a Python process for the reader of the stream and one for the tasks: 1.7 s of a query. Spark's own "
    "source has none. Fewer processes need a change in Spark."
)
_COORDINATORS = (
    "The coordinator produces each commit into Kafka, so that two processes work for it beside the load, on two cores. "
    "Together they take as much processor time as Kafka's own coordinator: 8.4 s and 8.7 s for commits of 100."
)
_LARGE = (
    "At 1 KiB most of the time goes into the socket, as every client's does: without any object for a value "
    "(`poll_arrow`) the ratio is 1.61."
)
_MANY = (
    "The client takes 1.15 times the processor time for a record of 1,000 partitions. The rest is waiting for the "
    "broker, which reads 1,000 files in place of four."
)
_CROSSINGS = (
    "A Python process reads the records, Spark's JVM computes the rows, and a Python process writes the files. Spark's "
    "own source and Iceberg's sink stay in the JVM. Only a source in the JVM would need no crossing."
)
_IMPORTS = (
    "Libraries alone take 115 MB for a Delta table, and 185 MB for an Iceberg table. The rest is a unit of rows, the "
    "queue of batches, receive buffers, and what Arrow's allocator keeps."
)
_DEATH = (
    "The state takes as long as that of a member that leaves. The other 4.7 s pass until region and group have noticed "
    "the death, and the region has been reset."
)
_STREAM = "Spark from kohort: availableNow to noop, 4 partitions"
GOALS = (
    Goal("coordinator", r"commits of (1|10|100) partitions", "kohort", "ratio", 1.0),
    Goal("coordinator", r".*: SIGKILL with 1,000 members.*", "kohort", "seconds", 2.5),
    Goal("coordinator", r".*: SIGKILL with 5,000 members", "kohort", "seconds", 5.0),
    Goal("coordinator", r"consumer: 100 as librdkafka, one joins", "kohort", "seconds", 0.4),
    Goal("request_cpu", r"CPU of a commit of .*", "kohort", "ratio", 1.3),
    Goal("request_cpu", r"CPU of a .* heartbeat", "kohort", "ratio", 1.2),
    Goal("cluster", r"commits of \d+ partitions, 128 at a time", r"kohort.*", "ratio", 1.0, why=_COORDINATORS),
    Goal("produce", r"produce 100 B into .*", "kohort send", "ratio", 1.0),
    Goal("produce", r"produce 100 B into .*", "kohort send_arrow", "ratio", 6.0, why=_ARROW),
    Goal("consume", r"consume 100 B from .*", r"kohort poll, \.value", "ratio", 3.0, why=_VALUES),
    Goal("consume", r"consume 1 KiB from .*", r"kohort poll, \.value", "ratio", 1.3, why=_LARGE),
    Goal(
        "consume", r"consume 100 B of 1000 .*", "kohort poll_arrow, all columns, 1000 partitions", "ratio", 0.9,
        "kohort poll_arrow, all columns, 4 partitions", _MANY,
    ),
    Goal("spark", _STREAM, "kohort", "ratio", 2.0, "Spark's Kafka source", _START),
    Goal("spark", _STREAM, "kohort", "ratio", 1.2, "Spark's, tuned", _START),
    Goal("spark_small", r".*: start of a query to .*", "kohort, in a group", "ratio", 1 / 1.2, why=_START),
    Goal("region_spark", r"publishing 50 files", "ParquetFolder", "ratio", 1 / 1.5, why=_PUBLISHING),
    Goal(
        "region_spark", r".*: rows into Parquet files", "a query of a region without sequences", "ratio", 1.0,
        "Spark's Kafka source into its file sink",
    ),
    Goal("region_spark", r".*: three queries are reset, .*", "reset", "ratio", 1 / 1.5),
    Goal("secure", r"produce 100 B with and without the check .*", "checked", "ratio", 0.97, why=_CHECKS),
    Goal("processor_time", r"uniform, .*, one leaves", "kohort", "seconds", 0.1),
    Goal("lake", r"a topic into .*", r"(a|two) Python members?", "ratio", 1.5),
    Goal("lake", r"a topic into .*", "a Spark query of a region", "ratio", 1.5, why=_CROSSINGS),
    Goal("lake", r"until a reader sees a record, .*", r"a Python member|a Spark query of a region", "seconds", 2.0),
    Goal("lake", r"memory of a Python member while it writes", r"an? .*", "most", 300, why=_IMPORTS),
    Goal("lake", r".*: size of the full files after it", "ParquetFolder", "least", 128 * 0.9),
    Goal("state", r"1 GB of keyed state moves to another member, .*", "a member leaves", "seconds", 5.0),
    Goal("state", r"1 GB of keyed state moves to another member, .*", "a member is killed", "seconds", 5.0, why=_DEATH),
    Goal("growth", r".*", r".*", "ratio", 0.8),
    Goal("lag", r"lag of 500 groups .*", r"kohort exporter.*", "seconds", 1.0),
    Goal("lag", r"the dashboard's page of 500 groups .*", "kohort dashboard", "seconds", 0.1),
    Goal("lag", r"commands about .*", "kohort groups lag", "ratio", 5.0),
)  # fmt: skip
"""All goals. A row may have several, beside several others."""


def goals_of(benchmark: str, title: str, row: str) -> list[Goal]:
    """Return the goals of one row."""
    named = (goal for goal in GOALS if goal.benchmark == benchmark)
    return [goal for goal in named if re.fullmatch(goal.title, title) and re.fullmatch(goal.row, row)]


@dataclass(frozen=True, slots=True)
class Limit:
    """The speed of light of some figures.

    Attributes:
        title: a regular expression for the whole title of the figure.
        light: the title of the figure of `bench.light`, or "" for a row of the same figure.
        row: that row, for figures which have their limit in themselves.
        each: how much of the limit's unit one unit of the figure takes at least.
    """

    title: str
    light: str
    row: str = ""
    each: float = 1.0


LIMITS = (
    Limit(r"(produce|consume) 100 B (into|from) .*", light.BYTES, each=RECORD_BYTES),
    Limit(r"consume 100 B of 1000 .*", light.BYTES, each=RECORD_BYTES),
    Limit(r"Java (Producer|Consumer)Performance, 100 B, by broker", light.BYTES, each=RECORD_BYTES),
    Limit(r"a commit, .*, idle", light.REQUESTS),
    Limit(r"decode .*", "", "plain copy of the bytes"),
    Limit(r"publishing 50 files", "", "links and fsyncs alone"),
    Limit(r"encode 100 B", light.COPY, each=RECORD_BYTES),
)


def light_share(figure: Mapping[str, Any], row: Mapping[str, Any], lights: Mapping[str, float]) -> float | None:
    """Return a row's rate as a share of what the machine can do; None where no limit is known or measured.

    Args:
        figure: the figure of the row.
        row: the row as JSON.
        lights: the rates of `bench.light` by title.
    """
    for limit in LIMITS:
        if re.fullmatch(limit.title, figure["title"]) and not row.get("absent"):
            at_most = lights.get(limit.light)
            if limit.row:
                same = (found for found in figure["rows"] if found["name"] == limit.row and not found.get("absent"))
                rates = [found["rate_max"] for found in same]
                at_most = rates[0] if rates else None
            return None if at_most is None else float(row["rate_median"]) * limit.each / at_most
    return None
