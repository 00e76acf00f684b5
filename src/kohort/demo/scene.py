"""The progress display: live on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

LINE_EVERY_S = 2.0
NOTES = 8


@dataclass(slots=True)
class MemberView:
    """The displayed state of one member."""

    state: str = "starting Spark"
    held: tuple[int, ...] = ()
    generation: int | None = None
    batches: int = 0
    rows: int = 0

    @property
    def style(self) -> str:
        return {"killed": "red", "running": "green", "ended": "dim"}.get(self.state, "yellow")


@dataclass(slots=True)
class Scene:
    """The state that the display shows.

    Attributes:
        total: flights to replay.
        console: the console to print on.
        phase: the present phase of the demo.
        produced: flights that the broker has acknowledged.
        lag: records after the committed offsets; None before the group has commits.
        waits_until: the condition that the demo waits for; empty: none.
        members: the members by name.
        notes: the last events, with their times.
        started: when the demo began, by the monotonic clock.
    """

    total: int
    console: Console
    phase: str = "starting"
    produced: int = 0
    lag: int | None = None
    waits_until: str = ""
    members: dict[str, MemberView] = field(default_factory=dict)
    notes: deque[str] = field(default_factory=lambda: deque(maxlen=NOTES))
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def note(self, text: str) -> None:
        """Add an event to the display."""
        line = f"{self.seconds:5.1f} s  {text}"
        self.notes.append(line)
        if not self.console.is_terminal:
            self.console.print(line, highlight=False, soft_wrap=True)

    def __rich__(self) -> Group:
        done = min(1.0, self.produced / self.total)
        head = Table.grid(padding=(0, 2))
        head.add_row(
            Text(self.phase, style="bold"),
            Text(f"{self.seconds:.0f} s", style="dim"),
            ProgressBar(total=1.0, completed=done, width=32),
            Text(f"{self.produced:,} of {self.total:,} flights"),
            Text("" if self.lag is None else f"lag {self.lag:,}", style="cyan"),
        )
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("member", "state", "partitions", "generation", "batches", "rows written"):
            table.add_column(name, justify="left" if name in ("member", "state", "partitions") else "right")
        for name, view in self.members.items():
            table.add_row(
                name,
                Text(view.state, style=view.style),
                " ".join(map(str, view.held)) or "–",
                "–" if view.generation is None else str(view.generation),
                str(view.batches),
                f"{view.rows:,}",
            )
        waits = Text(f"waits until {self.waits_until}" if self.waits_until else "", style="yellow")
        return Group(head, waits, table, Text(), *(Text(note, style="dim") for note in self.notes))

    def line(self) -> str:
        """Return the state in one line."""
        members = ", ".join(
            f"{name} {view.state} [{' '.join(map(str, view.held))}] {view.rows:,} rows"
            for name, view in self.members.items()
        )
        lag = "" if self.lag is None else f", lag {self.lag:,}"
        waits = f"; waits until {self.waits_until}" if self.waits_until else ""
        return (
            f"{self.seconds:5.1f} s  {self.phase}: {self.produced:,} of {self.total:,} flights{lag}; {members}{waits}"
        )

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the state until the block ends."""
        if self.console.is_terminal:
            with Live(self, console=self.console, refresh_per_second=4, transient=True):
                yield
            return
        ended = threading.Event()

        def lines() -> None:
            while not ended.wait(LINE_EVERY_S):
                self.console.print(self.line(), highlight=False, soft_wrap=True)

        thread = threading.Thread(target=lines, name="scene", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
