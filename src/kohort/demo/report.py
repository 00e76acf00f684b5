"""The report of the demo, on a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kohort.demo.account import Account, FlightConnection
from kohort.lag import PartitionLag


@dataclass(frozen=True, slots=True)
class Share:
    """One partition of the group: the group's offsets in it, and the member that owns it ("": nobody)."""

    where: PartitionLag
    owner: str

    @property
    def partition(self) -> int:
        return self.where.partition.partition

    @property
    def committed(self) -> int:
        """The committed offset; 0 before the first commit, because the members start at the earliest offset."""
        return self.where.committed or 0

    @property
    def log_end(self) -> int:
        return self.where.log_end or 0

    @property
    def lag(self) -> int:
        return self.log_end if self.where.committed is None else self.where.lag or 0

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("partition", "committed", "log_end", "owner", "lag")}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of the demo.

    Attributes:
        takeover_s: seconds from the kill to the survivor's first batch of the victim's partitions.
        mismatches: differences between the flights in the files and the replayed ones.
    """

    flights: int
    group: str
    group_state: str
    shares: tuple[Share, ...]
    account: Account
    worst: tuple[FlightConnection, ...]
    least: int
    picture: Path
    killed: str
    killed_processes: int
    takeover_s: float
    seconds: float
    mismatches: tuple[str, ...] = ()
    faults: tuple[str, ...] = field(default=())

    @property
    def lag(self) -> int:
        return sum(share.lag for share in self.shares)

    @property
    def exact(self) -> bool:
        """Whether every flight was counted once and nothing is left to read."""
        faults = (*self.account.faults, *self.mismatches, *self.faults)
        return not faults and self.account.counted == self.flights and self.lag == 0

    def to_json(self) -> dict[str, Any]:
        account = self.account
        return {
            "exact": self.exact,
            "flights": self.flights,
            "account": {
                "written": account.written,
                "repeated": account.repeated,
                "dropped": account.dropped,
                "counted": account.counted,
                "faults": [*account.faults, *self.mismatches, *self.faults],
            },
            "group": {
                "id": self.group,
                "state": self.group_state,
                "lag": self.lag,
                "partitions": [share.to_json() for share in self.shares],
            },
            "killed": {
                "member": self.killed,
                "processes": self.killed_processes,
                "takeover_s": round(self.takeover_s, 2),
            },
            "worst": [asdict(connection) for connection in self.worst],
            "picture": str(self.picture),
            "seconds": round(self.seconds, 1),
        }

    def show(self, console: Console) -> None:
        """Print the tables."""
        console.print(worst_table(self.worst, self.least))
        console.print()
        console.print(group_table(self.group, self.group_state, self.shares))
        console.print()
        console.print(_account(self))
        for fault in (*self.account.faults, *self.mismatches, *self.faults):
            console.print(f"[red]wrong:[/red] {fault}")
        console.print()
        console.print(f"picture: {self.picture}", soft_wrap=True, highlight=False)


def worst_table(worst: Iterable[FlightConnection], least: int) -> Table:
    """Return a table of the connections with the largest mean departure delay."""
    table = Table(
        title=f"The connections that leave latest (of those with {least} flights or more)",
        title_justify="left",
        title_style="bold",
        box=None,
        header_style="dim",
    )
    for name in ("carrier", "from", "to"):
        table.add_column(name)
    for name in ("flights", "leaves late by", "arrives late by", "worst hour"):
        table.add_column(name, justify="right")
    for connection in worst:
        table.add_row(
            connection.carrier,
            connection.origin,
            connection.dest,
            f"{connection.flights:,}",
            f"{connection.dep_mean:.1f} min",
            f"{connection.arr_mean:.1f} min",
            f"{connection.worst_hour}:00",
        )
    return table


def group_table(group: str, state: str, shares: Sequence[Share]) -> Table:
    """Return a table of the group's offsets in each partition."""
    table = Table(
        title=f"Group {group}: {state}, lag {sum(share.lag for share in shares)}",
        title_justify="left",
        title_style="bold",
        box=None,
        header_style="dim",
    )
    for name in ("partition", "committed", "log end", "lag", "owner"):
        table.add_column(name, justify="left" if name == "owner" else "right")
    for share in shares:
        table.add_row(str(share.partition), f"{share.committed:,}", f"{share.log_end:,}", str(share.lag), share.owner)
    return table


def _account(outcome: Outcome) -> Table:
    account = outcome.account
    verdict = "[green]every flight counted once[/green]" if outcome.exact else "[red]the account is not right[/red]"
    table = Table(title=f"Account: {verdict}", title_justify="left", title_style="bold", box=None, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    rows = [
        ("replayed", outcome.flights, "flights the broker acknowledged"),
        ("written", account.written, "rows in the batches of both members"),
        ("repeated", account.repeated, f"written by {outcome.killed}, not committed, and written again after its end"),
        ("dropped", account.dropped, "left out by the final read: a later generation wrote these offsets again"),
        ("counted", account.counted, "rows that remain"),
    ]
    for name, number, text in rows:
        table.add_row(name, f"{number:,}", text)
    table.add_row(
        "takeover", f"{outcome.takeover_s:.1f} s", "from the kill to the first batch of its partitions elsewhere"
    )
    return table
