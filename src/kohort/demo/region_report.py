"""The report of the region's demo, on a terminal and as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kohort.demo.account import FlightConnection
from kohort.demo.history import History
from kohort.demo.region_account import RegionAccount
from kohort.demo.report import Share, group_table, worst_table


@dataclass(frozen=True, slots=True)
class RegionOutcome:
    """The result of the region's demo.

    Attributes:
        looks: the number of readings of the places; `different_looks` of them saw something new.
        takeover_s: seconds from the kill to a complete sequence in which a survivor reads the victim's partitions.
        faults: one line for each fault.
    """

    flights: int
    region: str
    group: str
    group_state: str
    shares: tuple[Share, ...]
    account: RegionAccount
    history: History
    looks: int
    different_looks: int
    worst: tuple[FlightConnection, ...]
    least: int
    pictures: tuple[Path, ...]
    killed: str
    killed_processes: int
    takeover_s: float
    seconds: float
    faults: tuple[str, ...]

    @property
    def lag(self) -> int:
        return sum(share.lag for share in self.shares)

    @property
    def exact(self) -> bool:
        """Whether every flight is published once, and no reader saw a part of a sequence."""
        account = self.account
        wrong = account.twice or account.missing or account.unknown or self.faults or self.lag
        return not wrong and account.published == self.flights

    def to_json(self) -> dict[str, Any]:
        account, steps = self.account, self.history.sequences
        return {
            "exact": self.exact,
            "flights": self.flights,
            "account": {
                "published": account.published,
                "places": dict(account.rows),
                "twice": account.twice,
                "missing": account.missing,
                "unknown": account.unknown,
                "faults": list(self.faults),
            },
            "region": {
                "name": self.region,
                "sequences": self.history.last,
                "with_rows": sum(step.rows > 0 for step in steps),
                "resets": [
                    {"to": reset.to, "epoch": reset.epoch, "cause": reset.cause} for reset in self.history.resets
                ],
                "terms": len(self.history.terms),
            },
            "reader": {"looks": self.looks, "different": self.different_looks},
            "group": {
                "id": self.group,
                "state": self.group_state,
                "lag": self.lag,
                "partitions": [share.to_json() for share in self.shares],
            },
            "killed": {
                "application": self.killed,
                "processes": self.killed_processes,
                "takeover_s": round(self.takeover_s, 2),
            },
            "worst": [asdict(connection) for connection in self.worst],
            "pictures": [str(picture) for picture in self.pictures],
            "seconds": round(self.seconds, 1),
        }

    def show(self, console: Console) -> None:
        """Print the tables."""
        for table in (
            worst_table(self.worst, self.least),
            group_table(self.group, self.group_state, self.shares),
            _members(self),
            _resets(self),
            _account(self),
        ):
            console.print(table)
            console.print()
        for fault in self.faults:
            console.print(f"[red]wrong:[/red] {fault}")
        for picture in self.pictures:
            console.print(f"picture: {picture}", soft_wrap=True, highlight=False)


def _table(title: str, **options: Any) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=None, header_style="dim", **options)


def _members(outcome: RegionOutcome) -> Table:
    table = _table(f"Region {outcome.region}: {outcome.history.last} sequences")
    sequences: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    for step in outcome.history.sequences:
        for given in step.contributions:
            sequences[given.member] += 1
            rows[given.member] += sum(span.end - span.begin for span in given.spans)
    for name in ("query", "sequences", "rows"):
        table.add_column(name, justify="left" if name == "query" else "right")
    for name in sorted(sequences):
        table.add_row(name, f"{sequences[name]:,}", f"{rows[name]:,}")
    return table


def _resets(outcome: RegionOutcome) -> Table:
    table = _table("Resets: all queries went back, and nobody who reads noticed")
    table.add_column("to sequence", justify="right")
    table.add_column("because")
    for reset in outcome.history.resets:
        table.add_row(str(reset.to), reset.cause)
    return table


def _account(outcome: RegionOutcome) -> Table:
    account = outcome.account
    verdict = "[green]every flight published once[/green]" if outcome.exact else "[red]the account is not right[/red]"
    table = _table(f"Account: {verdict}", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    rows = [("replayed", outcome.flights, "flights the broker acknowledged")]
    rows += [(name, count, "rows in what the queries have written") for name, count in account.rows.items()]
    rows += [
        ("twice", account.twice, "rows too many"),
        ("missing", account.missing, "flights in no file"),
        ("looked", outcome.looks, f"times at what was there, {outcome.different_looks} of them new: never a part"),
        ("served", len(outcome.history.terms), "control planes, one after the other"),
    ]
    for name, number, text in rows:
        table.add_row(name, f"{number:,}", text)
    table.add_row(
        "takeover",
        f"{outcome.takeover_s:.1f} s",
        f"from the kill of {outcome.killed} to a complete sequence with its partitions from another",
    )
    return table
