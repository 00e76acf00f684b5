"""Writes the tables of docs/frameworks.md from the outcomes that are kept: `python -m frameworks.page [--check]`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from frameworks.run import Outcome

HERE = Path(__file__).resolve().parent
OUTCOMES = HERE / "outcomes.json"
PAGE = HERE.parent / "docs" / "frameworks.md"
PROGRAMS = ("framework", "version", "promise", "the program", "settings")
ACCOUNTS = (
    "framework", "broker", "records", "members killed", "broker killed", "members ended", "lost", "repeated",
    "out of order", "clean runs (seeds)", "seconds", "broker's s", "broker's MiB", "seen",
)  # fmt: skip


def kept_outcomes(path: Path = OUTCOMES) -> list[Outcome]:
    """Return the outcomes that were kept, one for each framework and broker."""
    return [Outcome.from_json(values) for values in json.loads(path.read_text(encoding="utf-8"))]


def record_outcomes(outcomes: list[Outcome], path: Path = OUTCOMES) -> None:
    """Keep outcomes, in place of earlier ones of the same framework and broker, whose clean runs they continue."""
    kept = {(outcome.framework, outcome.broker): outcome for outcome in (kept_outcomes(path) if path.exists() else [])}
    for outcome in outcomes:
        place = (outcome.framework, outcome.broker)
        kept[place] = replace(outcome, clean_seeds=_clean_seeds(outcome, kept.get(place)))
    ordered = sorted(kept.values(), key=lambda outcome: (outcome.title, outcome.broker != "kohort"))
    path.write_text(json.dumps([outcome.to_json() for outcome in ordered], indent=1) + "\n", encoding="utf-8")


def record_failure(framework: str, broker: str, fault: str, path: Path = OUTCOMES) -> None:
    """Note a run that gave no account as a fault of the outcome that is kept, if there is one."""
    for outcome in kept_outcomes(path) if path.exists() else []:
        if (outcome.framework, outcome.broker) == (framework, broker):
            record_outcomes([replace(outcome, faults=[fault])], path)


def _clean_seeds(outcome: Outcome, earlier: Outcome | None) -> list[int]:
    if outcome.faults:
        return []
    versions = (outcome.version, outcome.broker_version)
    if earlier is None or (earlier.version, earlier.broker_version) != versions:
        return [outcome.seed]
    return [*earlier.clean_seeds, outcome.seed]


def page(current: str, outcomes: list[Outcome]) -> str:
    """Return the page with the tables of these outcomes."""
    programs = {outcome.framework: outcome for outcome in outcomes}
    with_programs = _with_table(current, "programs", PROGRAMS, (_program_row(found) for found in programs.values()))
    return _with_table(with_programs, "accounts", ACCOUNTS, (_account_row(found) for found in outcomes))


def _with_table(text: str, name: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    begin, end = f"<!-- {name}: make frameworks -->", f"<!-- end of {name} -->"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    lines = [columns, ("---",) * len(columns), *rows]
    table = "\n".join(
        "| " + " | ".join(line) + " |" if line[0] != "---" else "|---" * len(line) + "|" for line in lines
    )
    return f"{before}{begin}\n{table}\n{end}{after}"


def _program_row(outcome: Outcome) -> tuple[str, ...]:
    promise = "exactly once" if outcome.exactly_once else "at least once"
    return (outcome.title, outcome.version, promise, outcome.story, outcome.settings)


def _account_row(outcome: Outcome) -> tuple[str, ...]:
    account = outcome.account
    return (
        outcome.title,
        f"{outcome.broker} {outcome.broker_version}",
        f"{account.produced:,}",
        str(outcome.kills["members"]),
        str(outcome.kills["broker"]),
        str(outcome.ended),
        f"{account.lost:,}",
        f"{account.repeated:,}",
        f"{account.out_of_order:,}",
        f"{len(outcome.clean_seeds)} ({', '.join(map(str, outcome.clean_seeds))})",
        f"{outcome.seconds:.0f}",
        f"{outcome.broker_processor_s:.1f}",
        f"{outcome.broker_peak_mib:.0f}",
        outcome.date,
    )


def main(arguments: list[str]) -> int:
    """Write the tables, or with --check say whether they are current."""
    current = PAGE.read_text(encoding="utf-8")
    text = page(current, kept_outcomes())
    if "--check" in arguments:
        print("docs/frameworks.md is " + ("current" if current == text else "out of date: make docs"))
        return 0 if current == text else 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
