"""Options of the demo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kohort.demo.flights import ALL
from kohort.errors import InvalidInputError

REPLAY_S = 40.0
"""Duration of the full replay: long enough to watch, short enough for a demo of less than three minutes."""
REPLAY_LEAST_S = 8.0


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Options of `kohort demo`.

    Attributes:
        bootstrap_server: a Kafka to use; None starts an embedded broker.
        client: Kafka client properties for the connection (security and the like).
        output: the folder for the picture, the tables and the Parquet files; None: `kohort-demo` in the current folder.
        rows: replay only this many flights, from the first on; None: all.
        replay_s: the duration of the replay; None: in proportion to the number of flights.
        least: the number of flights that a connection must have to be listed among the worst.
        json: print one JSON object at the end, and progress on standard error.
        keep: leave the broker running at the end, until interrupted.
        region: run the queries in a consistent region, which writes exactly once.
    """

    bootstrap_server: str | None = None
    client: Mapping[str, Any] = field(default_factory=dict)
    output: Path | None = None
    rows: int | None = None
    replay_s: float | None = None
    least: int = 100
    json: bool = False
    keep: bool = False
    region: bool = False

    def __post_init__(self) -> None:
        if self.rows is not None and not 1_000 <= self.rows <= ALL:
            raise InvalidInputError(f"rows must be from 1000 to {ALL}, not {self.rows}")
        if self.replay_s is not None and not 0 < self.replay_s <= 3_600:
            raise InvalidInputError(f"replay_s must be from 0 to 3600 seconds, not {self.replay_s:g}")

    @property
    def total(self) -> int:
        """The number of flights to replay."""
        return self.rows or ALL

    @property
    def seconds(self) -> float:
        """The duration of the replay."""
        return self.replay_s or max(REPLAY_LEAST_S, REPLAY_S * self.total / ALL)

    @property
    def folder(self) -> Path:
        return (self.output or Path("kohort-demo")).absolute()
