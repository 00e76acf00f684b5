"""Stateful queries over rows that can be read again, with other values after a point, and what they must give.

The rows of batch b are the numbers from 20 b up to 20 (b + 1), as Spark's rate-micro-batch source counts them. A row's
content comes from its number and its timeline's salt, alike in SQL and here. A region that resets to batch N reads
later rows again with another salt. A query that kept anything of the abandoned time shows it. Queries must therefore
use state long after it was written, and each batch must rewrite little of it. Otherwise a later batch would hide what
an older one left. The expectations are plain Python, from the meaning of the operators, and know nothing of how Spark
keeps state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

ROWS = 20
"""In each batch."""
DELAY_MS = 4500
"""Of the watermark: rows are late by less, so that none is dropped, and windows stay open for five batches."""
WINDOW_MS = 1000
BACK = 100
"""A row joins the one that came five batches before."""
NEAR_MS = 7000

Output = list[list[tuple[int, ...]]]
"""The sorted rows that each batch gives."""


@dataclass(frozen=True)
class Row:
    """`time` in ms, behind the first watermark; `seen` comes again and again, in other batches too."""

    number: int
    salt: int

    @property
    def key(self) -> int:
        return (self.number * 7919 + self.salt * 577) % 1009 % 97

    @property
    def amount(self) -> int:
        return (self.number * 13 + self.salt * 101) % 1000

    @property
    def seen(self) -> int:
        return self.number * (self.number + 17 + self.salt * 5) % 1009 % 211

    @property
    def time(self) -> int:
        return 100 + self.number * 50 + (self.number * (self.salt + 1)) % 4 * 250


SQL = {
    "key": "(value * 7919 + salt * 577) % 1009 % 97",
    "amount": "(value * 13 + salt * 101) % 1000",
    "seen": "value * (value + 17 + salt * 5) % 1009 % 211",
    "time": "timestamp_millis(100 + value * 50 + (value * (salt + 1)) % 4 * 250)",
}
"""The same columns."""


@dataclass(frozen=True)
class Timeline:
    """Which batches were given up, and what came instead: after batch `cuts[0]` rows have salt 1, and so on."""

    cuts: tuple[int, ...] = ()

    def batch(self, number: int) -> list[Row]:
        salt = sum(number > cut for cut in self.cuts)
        return [Row(amount, salt) for amount in range(number * ROWS, (number + 1) * ROWS)]

    def batches(self, count: int) -> list[list[Row]]:
        return [self.batch(number) for number in range(count)]

    def rows(self, spark: Any) -> Any:
        """The rows as a stream."""
        salts = " + ".join(f"CAST(value >= {(cut + 1) * ROWS} AS INT)" for cut in self.cuts) or "0"
        stream = (
            spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", ROWS)
            .option("numPartitions", 1)
            .option("startTimestamp", 0)
            .load()
        )
        columns = [f"{text} AS {name}" for name, text in SQL.items()]
        return stream.selectExpr("value", f"{salts} AS salt").selectExpr("value AS number", *columns)


@dataclass(frozen=True)
class Operator:
    """A query and what it gives: `build(rows)`, `expected(batches)`."""

    mode: str
    build: Callable[[Callable[[], Any]], Any]
    expected: Callable[[Sequence[Sequence[Row]]], Iterator[list[tuple[int, ...]]]]
    rocksdb_alone: bool = False


def _aggregate(rows: Callable[[], Any]) -> Any:
    return rows().groupBy("key").agg({"amount": "sum", "number": "count"})


def _aggregated(batches: Sequence[Sequence[Row]]) -> Iterator[list[tuple[int, ...]]]:
    sums: dict[int, tuple[int, int]] = {}
    for batch in batches:
        for row in batch:
            total, count = sums.get(row.key, (0, 0))
            sums[row.key] = (total + row.amount, count + 1)
        yield [(key, *reversed(sums[key])) for key in {row.key for row in batch}]


def _window(rows: Callable[[], Any]) -> Any:
    from pyspark.sql import functions as f

    return (
        rows()
        .withWatermark("time", f"{DELAY_MS} milliseconds")
        .groupBy(f.window("time", f"{WINDOW_MS} milliseconds"))
        .agg(f.sum("amount").alias("amount"), f.count("*").alias("count"))
        .selectExpr("unix_millis(window.start) AS start", "amount", "count")
    )


def _windowed(batches: Sequence[Sequence[Row]]) -> Iterator[list[tuple[int, ...]]]:
    """A window is given once, by the first batch that begins with a watermark at or behind its end."""
    open_windows: dict[int, tuple[int, int]] = {}
    watermark = 0
    for batch in batches:
        for row in batch:
            start = row.time // WINDOW_MS * WINDOW_MS
            assert start + WINDOW_MS > watermark, "no row is late"
            amount, count = open_windows.get(start, (0, 0))
            open_windows[start] = (amount + row.amount, count + 1)
        done = [start for start in open_windows if start + WINDOW_MS <= watermark]
        yield [(start, *open_windows.pop(start)) for start in done]
        watermark = max(watermark, max(row.time for row in batch) - DELAY_MS)


def _deduplicate(rows: Callable[[], Any]) -> Any:
    return rows().select("seen").dropDuplicates()


def _deduplicated(batches: Sequence[Sequence[Row]]) -> Iterator[list[tuple[int, ...]]]:
    before: set[int] = set()
    for batch in batches:
        new = {row.seen for row in batch} - before
        before |= new
        yield [(seen,) for seen in new]


def _deduplicate_and_count(rows: Callable[[], Any]) -> Any:
    return rows().select("seen").dropDuplicates().selectExpr("seen % 7 AS key").groupBy("key").count()


def _deduplicated_and_counted(batches: Sequence[Sequence[Row]]) -> Iterator[list[tuple[int, ...]]]:
    counts: dict[int, int] = {}
    for new in _deduplicated(batches):
        for (seen,) in new:
            counts[seen % 7] = counts.get(seen % 7, 0) + 1
        yield [(key, counts[key]) for key in {seen % 7 for (seen,) in new}]


def _join(rows: Callable[[], Any]) -> Any:
    from pyspark.sql import functions as f

    delay = f"{DELAY_MS} milliseconds"
    one = rows().selectExpr("number", "amount AS amount_now", "time").withWatermark("time", delay)
    other = rows().selectExpr("number AS was", "amount AS amount_then", "time AS then").withWatermark("then", delay)
    near = f.expr(f"number = was + {BACK} AND time BETWEEN then AND then + INTERVAL {NEAR_MS} MILLISECONDS")
    return one.join(other, near).select("number", "amount_now", "amount_then")


def _joined(batches: Sequence[Sequence[Row]]) -> Iterator[list[tuple[int, ...]]]:
    before: dict[int, Row] = {}
    for batch in batches:
        before |= {row.number: row for row in batch}
        pairs = [(row, before[row.number - BACK]) for row in batch if row.number >= BACK]
        assert all(then.time <= now.time <= then.time + NEAR_MS for now, then in pairs)
        yield [(now.number, now.amount, then.amount) for now, then in pairs]


def _count_in_pandas(rows: Callable[[], Any]) -> Any:
    def count(key: Any, frames: Any, state: Any) -> Iterator[Any]:
        import pandas as pd

        amount, counted = state.get if state.exists else (0, 0)
        for frame in frames:
            amount, counted = amount + int(frame["amount"].sum()), counted + len(frame)
        state.update((amount, counted))
        yield pd.DataFrame({"key": [key[0]], "count": [counted], "amount": [amount]})

    schema = "key long, count long, amount long"
    grouped = rows().selectExpr("CAST(key AS LONG) AS key", "amount").groupBy("key")
    return grouped.applyInPandasWithState(count, schema, "amount long, count long", "update", "NoTimeout")


def _transform(rows: Callable[[], Any]) -> Any:
    from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

    class Totals(StatefulProcessor):
        """A key's sum and count; all its amounts; how often each last digit came."""

        def init(self, handle: StatefulProcessorHandle) -> None:
            self.total = handle.getValueState("total", "amount long, count long")
            self.amounts = handle.getListState("amounts", "amount long")
            self.digits = handle.getMapState("digits", "digit long", "times long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803  # Spark's
            import pandas as pd

            amount, count = self.total.get() if self.total.exists() else (0, 0)
            for frame in rows:
                for entry in frame["amount"]:
                    amount, count = amount + int(entry), count + 1
                    self.amounts.appendValue((int(entry),))
                    times = self.digits.getValue((int(entry) % 10,))
                    self.digits.updateValue((int(entry) % 10,), ((times[0] if times else 0) + 1,))
            self.total.update((amount, count))
            listed = sum(entry[0] for entry in self.amounts.get())
            most = max(digit[0] for digit in self.digits.values())
            yield pd.DataFrame({"key": [key[0]], "c": [count], "a": [amount], "l": [listed], "m": [most]})

        def close(self) -> None:
            pass

    grouped = rows().selectExpr("CAST(key AS LONG) AS key", "amount").groupBy("key")
    schema = "key long, c long, a long, l long, m long"
    return grouped.transformWithStateInPandas(Totals(), schema, "Update", "None")


def _transformed(batches: Sequence[Sequence[Row]]) -> Iterator[list[tuple[int, ...]]]:
    amounts: dict[int, list[int]] = {}
    for batch in batches:
        for row in batch:
            amounts.setdefault(row.key, []).append(row.amount)
        found = []
        for key in {row.key for row in batch}:
            all_of, digits = amounts[key], [amount % 10 for amount in amounts[key]]
            most = max(digits.count(digit) for digit in digits)
            found.append((key, len(all_of), sum(all_of), sum(all_of), most))
        yield found


def _counted(batches: Sequence[Sequence[Row]]) -> Iterator[list[tuple[int, ...]]]:
    """Return the counts like `_aggregated`, with another order of columns."""
    yield from ([(key, count, amount) for key, count, amount in batch] for batch in _aggregated(batches))


OPERATORS = {
    "aggregation": Operator("update", _aggregate, _aggregated),
    "window": Operator("append", _window, _windowed),
    "dedup": Operator("append", _deduplicate, _deduplicated),
    "dedup-count": Operator("update", _deduplicate_and_count, _deduplicated_and_counted),
    "join": Operator("append", _join, _joined),
    "in-pandas": Operator("update", _count_in_pandas, _counted),
    "transform": Operator("update", _transform, _transformed, rocksdb_alone=True),
}


def expected(operator: Operator, timeline: Timeline, batches: int) -> Output:
    """Return the expected result of each batch."""
    return [sorted(rows) for rows in operator.expected(timeline.batches(batches))]
