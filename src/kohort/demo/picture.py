"""The picture: how late flights leave, by the hour they should have left."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kohort.demo.history import SequenceStep

AIRPORTS = {"EWR": ("Newark", "#d1495b"), "JFK": ("Kennedy", "#2e86ab"), "LGA": ("LaGuardia", "#66a182")}
INK = "#22303c"
LEAST = 50
"""The fewest flights of an hour that say anything about delay."""


def hourly(counted: pa.Table, origin: str | None = None) -> list[tuple[int, int, float]]:
    """Return hour, flights and mean departure delay in minutes, for one airport or all."""
    chosen = counted if origin is None else counted.filter(pc.field("origin") == origin)
    sums = chosen.group_by("hour").aggregate([(name, "sum") for name in ("flights", "dep_known", "dep_minutes")])
    return sorted(
        (row["hour"], row["flights_sum"], row["dep_minutes_sum"] / row["dep_known_sum"])
        for row in sums.to_pylist()
        if row["dep_known_sum"] > 0
    )


ONCE = "each counted once by Spark queries sharing one consumer group"


def draw(counted: pa.Table, file: Path, how: str = ONCE) -> None:
    """Write the picture as PNG.

    Args:
        counted: the flights by carrier, connection and hour.
        file: the file to write.
        how: how the flights were counted, in words.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6.2), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    _delays(upper, counted)
    _flights(lower, counted)
    flights = pc.sum(counted.column("flights")).as_py()
    figure.suptitle(
        "Late begets late: departure delay grows through the day",
        x=0.01,
        ha="left",
        fontsize=15,
        weight="bold",
        color=INK,
    )
    figure.supxlabel(
        f"{flights:,} flights from New York's airports, 2013, {how}",
        x=0.01,
        ha="left",
        fontsize=8.5,
        color="#66727d",
    )
    figure.savefig(file)


def draw_sequences(
    steps: Sequence[SequenceStep], replayed: Sequence[tuple[int, int]], marks: Sequence[tuple[int, str]], file: Path
) -> None:
    """Write a PNG that compares the published flights with the replayed ones over time.

    Args:
        steps: the region's sequences.
        replayed: samples of (ms, flights).
        marks: events as (ms, text).
        file: the file to write.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.6), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    moved = [at for (at, flights), (_, next_) in pairwise(replayed) if next_ > flights]
    began = min([*moved, *(step.at_ms for step in steps if step.rows)], default=0)
    axes.plot([(at - began) / 1000 for at, _ in replayed], [rows for _, rows in replayed], color="#9fb3c8", lw=2,
              label="replayed")  # fmt: skip
    times, rows = [0.0], [0]
    for step in steps:
        times.append((step.at_ms - began) / 1000)
        rows.append(rows[-1] + step.rows)
    axes.step(times, rows, where="post", color=INK, lw=2.2, label="in a complete sequence")
    top, label = max(rows[-1], 1), "all go back"
    for number, (at, what) in enumerate(marks):
        color = "#d1495b"
        if what == "reset":
            axes.axvline((at - began) / 1000, color=color, lw=1, ls=":", label=label)
            label = ""
        else:
            axes.axvline((at - began) / 1000, color=color, lw=1, ls="--")
            axes.text((at - began) / 1000 + 0.2, top * (0.02 + 0.06 * (number % 3)), what, color=color, fontsize=9)
    axes.set_xlim(left=min(0.0, *times))
    axes.set_xlabel("seconds", color=INK)
    axes.set_ylabel("flights", color=INK)
    axes.legend(frameon=False, loc="upper left", fontsize=9.5)
    figure.suptitle("Whatever happens, every sequence is there whole or not at all", x=0.01, ha="left", fontsize=15,
                    weight="bold", color=INK)  # fmt: skip
    _plain(axes)
    figure.savefig(file)


def _delays(axes: Any, counted: pa.Table) -> None:
    every = [row for row in hourly(counted) if row[1] >= LEAST]
    hours = [hour for hour, _, _ in every]
    axes.fill_between(hours, [mean for _, _, mean in every], color="#dfe6ec", zorder=1)
    axes.plot(hours, [mean for _, _, mean in every], color=INK, lw=2.5, zorder=3, label="all three airports")
    for origin, (name, color) in AIRPORTS.items():
        own = [row for row in hourly(counted, origin) if row[1] >= LEAST]
        axes.plot(
            [hour for hour, _, _ in own],
            [mean for _, _, mean in own],
            color=color,
            lw=1.6,
            marker="o",
            ms=3.5,
            zorder=4,
            label=name,
        )
    if every:
        hour, _, mean = max(every, key=lambda row: row[2])
        axes.plot([hour, hour], [0, mean], color=INK, lw=1, ls=":", zorder=2)
        axes.plot([hour], [mean], color=INK, marker="o", ms=6, zorder=5)
        axes.text(hour + 0.15, 2.2, f"{hour}:00\n{mean:.0f} min late", color=INK, fontsize=10, zorder=5)
    axes.axhline(0, color=INK, lw=0.8)
    axes.set_ylabel("mean delay of departure, minutes", color=INK)
    axes.legend(frameon=False, loc="upper left", fontsize=9.5)
    axes.spines["bottom"].set_visible(False)
    _plain(axes)


def _flights(axes: Any, counted: pa.Table) -> None:
    every = [row for row in hourly(counted) if row[1] >= LEAST]
    axes.bar([hour for hour, _, _ in every], [flights / 1000 for _, flights, _ in every], color="#9fb3c8", width=0.72)
    axes.set_ylabel("flights, thousands", color=INK)
    axes.set_xlabel("scheduled hour of departure", color=INK)
    hours = [hour for hour, _, _ in every]
    axes.set_xticks(hours, [f"{hour}:00" for hour in hours], fontsize=8.5)
    _plain(axes)


def _plain(axes: Any) -> None:
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="y", color="#e8ecf0", lw=0.8, zorder=0)
    axes.set_axisbelow(True)
    axes.tick_params(colors="#4a5763", length=0)
