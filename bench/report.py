"""The report: bench/report.json with every figure of the last run, docs/performance.md made of it, and what was lost.

Each figure keeps the machine, the commit and the options that it was measured with, so that one can be repeated
without the others.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

from bench import machine, plot
from bench.goals import goals_of, is_ours, light_share
from bench.harness import Options, busy_words, rate_text

ROOT = Path(__file__).resolve().parent.parent
REPORT = ROOT / "bench" / "report.json"
PAGE = ROOT / "docs" / "performance.md"
PLOTS = "performance"
"""The folder of the plots, beside the page."""
LOST_SHARE = 0.05
"""How much of its last value a row may lose before it is named."""
LESS_IS_BETTER = ("cores", "MB of memory")
"""Units of which less is better."""
Taken: TypeAlias = dict[str, Any]
"""One benchmark's figures, and notes on what is missing."""
Report: TypeAlias = dict[str, Taken]
_HEAD = """# Performance

`make bench-report` measures everything and writes this page from `bench/report.json`. Every row shows the median of its
rounds, the slowest and the fastest of them, and their number. Contenders run in turn, so a ratio to the baseline is one
of the same run. A ratio above 1 is better, except for cores and memory. Times are shown as a rate, one over the
seconds.

- **goal**: the ratio or the time that is to be reached, and whether it is.
- **of the machine**: the share of what raw sockets, memory copies or fsync do at best on the same machine
  ([light](#light)). It is empty where that can't be computed.
- **not quiet**: other processes used more than {quiet} cores while the row was measured. Such a row shows an order of
  contenders rather than their speed.

`make bench` shows the same tables without keeping them. `make bench-nightly` measures everything again and compares it
with `bench/report.json`. It names each row that lost more than {lost:.0%}, and fails if the ranges of both runs do not
overlap and both were quiet.
"""


def load(path: Path = REPORT) -> Report:
    """Read a report; empty when there is none."""
    if not path.exists():
        return {}
    found: Report = json.loads(path.read_text(encoding="utf-8"))
    return found


def save(report: Report, path: Path = REPORT) -> None:
    """Write a report, its benchmarks in alphabetical order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ordered = {name: report[name] for name in sorted(report)}
    path.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def stamped(figure: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """Return a figure with the day, the commit, the machine and the options that it was measured with."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        **figure,
        "day": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit,
        "machine": machine.facts(),
        "rounds": options.rounds,
        "scale": options.scale,
    }


def merged(before: Report, now: Report) -> Report:
    """Return a report with new figures in the place of old ones.

    Old figures stay where the benchmark did not come to them. A whole run removes figures that are no longer measured.
    """
    result = dict(before)
    for name, taken in now.items():
        fresh = {figure["title"]: figure for figure in taken["figures"]}
        old = before.get(name, {}).get("figures", ())
        kept = [fresh.pop(figure["title"], None if taken["whole"] else figure) for figure in old]
        result[name] = {"notes": taken["notes"], "figures": [*filter(None, kept), *fresh.values()]}
    return result


def write_page(report: Report, page: Path = PAGE) -> None:
    """Write the page and its plots, and delete plots of benchmarks that are gone."""
    folder = page.parent / PLOTS
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {name: plot.drawing(taken["figures"]) for name, taken in report.items() if _measured(taken)}
    for old in folder.glob("*.svg"):
        if old.stem not in drawn:
            old.unlink()
    for name, text in drawn.items():
        (folder / f"{name}.svg").write_text(text, encoding="utf-8")
    page.write_text(page_text(report), encoding="utf-8")


def page_text(report: Report) -> str:
    """Return the page of a report."""
    lights = {
        figure["title"]: row["rate_max"]
        for figure in report.get("light", {}).get("figures", ())
        for row in figure["rows"]
        if not row.get("absent")
    }
    parts = [_HEAD.format(quiet=machine.QUIET_CORES, lost=LOST_SHARE), *_goals(report), "## Machines\n"]
    parts += [f"{number}. {line}" for number, line in enumerate(_machines(report), 1)] + [""]
    parts += _not_measured(report)
    for name in sorted(report):
        if report[name]["figures"]:
            parts += _chapter(name, report, lights)
    return "\n".join(parts)


def _measured(taken: Taken) -> bool:
    return any(not row.get("absent") for figure in taken["figures"] for row in figure["rows"])


def _goals(report: Report) -> Iterator[str]:
    """Yield the table of all goals: reached ones, missed ones."""
    yield "## Goals\n"
    yield "| benchmark | figure | row | measured | goal | |"
    yield "|---|---|---|---|---|---|"
    for name, taken in sorted(report.items()):
        for figure in taken["figures"]:
            for row in figure["rows"]:
                for cells in _goal_cells(name, figure, row):
                    yield f"| {name} | {figure['title']} | {row['name']} | {' | '.join(cells)} |"
    yield ""
    yield from _missed(report)


def _missed(report: Report) -> Iterator[str]:
    """Yield why goals are missed: a line for each reason."""
    reasons: dict[str, list[str]] = {}
    for name, taken in sorted(report.items()):
        for figure in taken["figures"]:
            for row in figure["rows"]:
                for goal in goals_of(name, figure["title"], row["name"]):
                    value = goal.measured(figure, row)
                    if value is not None and not goal.reached(value) and goal.why:
                        reasons.setdefault(goal.why, []).append(f"{figure['title']}: {row['name']}, {goal.text()}")
    if reasons:
        yield "## Why goals are missed\n"
        yield "| missed | why |"
        yield "|---|---|"
        for why, rows in reasons.items():
            yield f"| {'; '.join(rows)} | {why} |"
        yield ""


def _not_measured(report: Report) -> Iterator[str]:
    """Yield the list of benchmarks without figures, and why."""
    reasons = {name: taken["notes"] for name, taken in sorted(report.items()) if not taken["figures"]}
    if reasons:
        yield "## Not measured\n"
        for name, notes in reasons.items():
            yield f"- {name}: {'; '.join(notes) or 'no reason known'}"
        yield ""


def _goal_cells(name: str, figure: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what was measured, the goal, and whether it is reached, for each goal of a row."""
    for goal in goals_of(name, figure["title"], row["name"]):
        if goal.value == "ratio" and not goal.beside and row["name"] == figure["baseline"]:
            continue
        value = goal.measured(figure, row)
        if value is None:
            yield "-", goal.text(), "not measured"
            continue
        amount = f"{value:.3g} s" if goal.value == "seconds" else f"{value:.2f} ×"
        shown = f"{value:.4g} {figure['unit']}" if goal.value in ("least", "most") else amount
        yield shown, goal.text(), "reached" if goal.reached(value) else "**missed**"


def _machines(report: Report) -> list[str]:
    """Return the lines that describe the machines, each once."""
    found = [_machine_line(figure) for taken in report.values() for figure in taken["figures"]]
    return list(dict.fromkeys(found))


def _machine_line(figure: Mapping[str, Any]) -> str:
    facts = figure["machine"]
    return (
        f"{facts['processor']}, {facts['cores']} cores, {facts['memory']}, {facts['system']}, Python {facts['python']}"
    )


def _chapter(name: str, report: Report, lights: Mapping[str, float]) -> Iterator[str]:
    """Yield the lines of one benchmark: notes, plot, and a table for each figure."""
    taken, machines = report[name], _machines(report)
    yield f"## {name}\n"
    for note in taken["notes"]:
        yield f"**{note[0].upper()}{note[1:]}.**\n"
    if _measured(taken):
        yield f"![Bars of {name}]({PLOTS}/{name}.svg)\n"
    for figure in taken["figures"]:
        number = machines.index(_machine_line(figure)) + 1
        options = f" --rounds {figure['rounds']} --scale {figure['scale']:g}"
        yield f"### {name}: {figure['title']}\n"
        yield f"`python -m bench {name} --only {json.dumps(figure['title'], ensure_ascii=False)}{options}`\n"
        yield f"({figure['day']}, commit {figure['commit']}, machine {number})\n"
        yield f"| | {figure['unit']} | slowest to fastest | × {figure['baseline']} | spread | goal | of the machine | |"
        yield "|---|---|---|---|---|---|---|---|"
        for row in figure["rows"]:
            yield f"| {' | '.join(_cells(name, figure, row, lights))} |"
        yield ""


def _cells(name: str, figure: Mapping[str, Any], row: Mapping[str, Any], lights: Mapping[str, float]) -> list[str]:
    if row.get("absent"):
        reason = " ".join(str(row["absent"]).split())[:200].replace("|", "/")
        return [row["name"], "-", "", "", "", "", "", reason]
    share = light_share(figure, row, lights)
    has_ratio = row["ratio_median"] is not None
    return [
        row["name"],
        rate_text(row["rate_median"]),
        f"{rate_text(row['rate_min'])} to {rate_text(row['rate_max'])} ({row['runs']})",
        f"{row['ratio_median']:.2f}" if has_ratio else "-",
        f"{row['ratio_min']:.2f} to {row['ratio_max']:.2f}" if has_ratio else "-",
        ", ".join(f"{goal}: {state}" for _, goal, state in _goal_cells(name, figure, row)),
        "" if share is None else f"{share:.0%}",
        "not quiet" if busy_words(dict(row)) else "",
    ]


# -- What was lost since the last report


def losses(before: Report, now: Report) -> Iterator[tuple[str, bool]]:
    """Yield a line for each of our rows that lost more than `LOST_SHARE`, and whether the loss counts.

    A loss counts if the ranges of both runs do not overlap, and both were measured on a quiet machine. Ratios to a
    peer of the same run are compared where there is a peer, else rates. Rows that are new or gone are not compared.
    """
    for name, taken in sorted(now.items()):
        known = {figure["title"]: figure for figure in before.get(name, {}).get("figures", ())}
        for figure in taken["figures"]:
            old_rows = {row["name"]: row for row in known.get(figure["title"], {}).get("rows", ())}
            for row in figure["rows"]:
                old = old_rows.get(row["name"])
                if old is not None and is_ours(row["name"]) and not old.get("absent"):
                    yield from _loss(f"{name}: {figure['title']}: {row['name']}", figure, old, row)


def not_repeated(before: Report, now: Report) -> Iterator[str]:
    """Yield the figures of the benchmarks of a run that were kept and that it did not come to."""
    for name, taken in sorted(now.items()):
        titles = {figure["title"] for figure in taken["figures"]}
        for figure in before.get(name, {}).get("figures", ()):
            if figure["title"] not in titles:
                yield f"{name}: {figure['title']}"


def _loss(
    where: str, figure: Mapping[str, Any], old: Mapping[str, Any], row: Mapping[str, Any]
) -> Iterator[tuple[str, bool]]:
    if row.get("absent"):
        yield f"{where}: {row['absent']}; it was measured before", True
        return
    paired = not is_ours(figure["baseline"]) and None not in (old["ratio_median"], row["ratio_median"])
    kind, unit = ("ratio", f"× {figure['baseline']}") if paired else ("rate", figure["unit"])
    least, most = f"{kind}_min", f"{kind}_max"
    was, found = old[f"{kind}_median"], row[f"{kind}_median"]
    if figure["unit"].startswith(LESS_IS_BETTER):
        lost, apart = (found / was - 1 if was else 0.0), row[least] > old[most]
    else:
        lost, apart = (1 - found / was if was else 0.0), row[most] < old[least]
    if lost <= LOST_SHARE:
        return
    busy = busy_words(dict(old)) or busy_words(dict(row))
    remark = "" if apart else "; within the spread"
    if busy:
        remark += "; not quiet"
    yield f"{where}: {rate_text(was)} to {rate_text(found)} {unit}, {lost:.0%} lost{remark}", apart and not busy
