"""The bench: bounded in time, marked when the machine is busy, kept as a report, compared with the last one."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest
from bench.__main__ import arguments, measured, run_bounded
from bench.goals import GOALS, Goal, light_share
from bench.harness import ENDS_AT_S, FIGURE_LIMIT_S, Contender, Figure, NotHere, Options, Sample, busy_words, compare
from bench.machine import QUIET_CORES, Clock, read_clock

from bench import plot, report
from tests.support.supervise import descendants, name_of

COMMITS = "commits of 1 partitions"
SVG = "{http://www.w3.org/2000/svg}"


def row(name: str, rates: list[float], ratio: float | None = 1.0, others: float = 0.0) -> dict[str, Any]:
    ratios = None if ratio is None else [ratio * rate / sorted(rates)[len(rates) // 2] for rate in sorted(rates)]
    return {
        "name": name, "runs": len(rates), "others_cores": others, "facts": {},
        "rate_median": sorted(rates)[len(rates) // 2], "rate_min": min(rates), "rate_max": max(rates),
        "ratio_median": ratio, "ratio_min": ratios and ratios[0], "ratio_max": ratios and ratios[-1],
    }  # fmt: skip


def figure(
    *rows: dict[str, Any], title: str = "a title", unit: str = "1/s", baseline: str = "kohort"
) -> dict[str, Any]:
    shown = {"title": title, "unit": unit, "baseline": baseline, "rows": list(rows)}
    return report.stamped(shown, Options())


def taken(*shown: dict[str, Any], whole: bool = True) -> report.Taken:
    return {"whole": whole, "notes": [], "figures": list(shown)}


def asked(*words: str) -> argparse.Namespace:
    return arguments().parse_args(words)


# -- Bounded in time


def test_benchmark_that_would_take_longer_is_stopped_with_all_it_started(tmp_path: Path) -> None:
    began_s = time.monotonic()
    found = run_bounded("growth", ["--only", "heartbeats with more groups"], tmp_path / "growth", 6.0)
    assert time.monotonic() - began_s < 60
    assert not found["whole"]
    assert [note for note in found["notes"] if note.startswith("stopped after")]
    assert [name for child in descendants(os.getpid()) if "bench" in (name := name_of(child))] == []


def test_benchmark_whose_time_is_over_keeps_what_it_has() -> None:
    runs: list[int] = []

    def measurements(options: Options, console: object) -> Iterator[Figure]:
        for title in ("first", "second"):
            yield compare(title, [Contender("kohort", run)], rounds=1000)

    def run() -> Sample:
        runs.append(len(runs))
        if len(runs) == 3:
            ENDS_AT_S.set(time.monotonic())
        return Sample(1, 0.01)

    module = ModuleType("long")
    module.measurements = measurements  # type: ignore[attr-defined]
    before = ENDS_AT_S.set(float("inf"))
    try:
        found = measured(module, asked("--json"), None)
    finally:
        ENDS_AT_S.reset(before)
    assert [(figure["title"], figure["rows"][0]["runs"]) for figure in found["figures"]] == [("first", 3)]
    assert "the time was over before all figures were measured" in found["notes"]
    assert not found["whole"]


def test_benchmark_that_ends_in_time_is_whole(tmp_path: Path) -> None:
    more = ["--rounds", "1", "--scale", "0.1", "--json"]
    found = run_bounded("light", more, tmp_path / "light", 100.0)
    assert found["whole"]
    assert len(found["figures"]) == 4
    assert all(figure["rows"][0]["rate_median"] > 0 for figure in found["figures"])


def test_benchmark_that_fails_is_named(tmp_path: Path) -> None:
    assert run_bounded("no_such_benchmark", [], tmp_path / "none", 60.0)["notes"] == ["failed: it ended with 2"]


def test_figure_ends_with_the_round_that_would_pass_its_limit() -> None:
    def run() -> Sample:
        time.sleep(0.02)
        return Sample(1, 0.02)

    before = FIGURE_LIMIT_S.set(0.2)
    try:
        rows = compare("title", [Contender("kohort", run)], rounds=1000).rows
    finally:
        FIGURE_LIMIT_S.reset(before)
    assert 1 <= len(rows[0].samples) <= 10


def test_benchmark_that_can_not_run_here_says_why() -> None:
    def measurements(*_: object) -> Iterator[None]:
        raise NotHere("11.0 GB of disk needed, 1.0 free")
        yield

    module = ModuleType("heavy")
    module.measurements = measurements  # type: ignore[attr-defined]
    assert "skipped: 11.0 GB of disk needed, 1.0 free" in measured(module, asked("--json"), None)["notes"]


# -- A busy machine


def test_time_of_others_is_that_of_the_machine_without_our_own() -> None:
    assert Clock(20.0, 130.0, 50.0).others_cores(Clock(10.0, 100.0, 35.0)) == pytest.approx(1.5)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_own_time_has_that_of_children_that_ended_and_of_children_that_run() -> None:
    work = "import time\nwhile time.process_time() < 0.4: pass\nprint(1, flush=True)\ninput()"
    before = read_clock()
    with subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        running = read_clock()
    ended = read_clock()
    assert before is not None and running is not None and ended is not None
    assert running.own_s - before.own_s >= 0.35
    assert ended.own_s - before.own_s >= 0.35


def test_busy_row_is_marked() -> None:
    assert busy_words(row("kohort", [1.0], others=QUIET_CORES)) == []
    assert busy_words(row("kohort", [1.0], others=0.8)) == ["not quiet (0.80 cores used by others)"]


# -- The report


def test_page_and_plots_show_the_kept_report() -> None:
    kept = report.load()
    assert kept
    assert report.PAGE.read_text(encoding="utf-8") == report.page_text(kept)
    for name, benchmark in kept.items():
        drawn = report.PAGE.parent / report.PLOTS / f"{name}.svg"
        assert not drawn.exists() or drawn.read_text(encoding="utf-8") == plot.drawing(benchmark["figures"])


def test_page_names_goal_reached_and_missed() -> None:
    shown = figure(row("kohort", [90.0], 0.9), row("Apache Kafka", [100.0]), title=COMMITS, baseline="Apache Kafka")
    text = report.page_text({"coordinator": taken(shown)})
    assert "| coordinator | commits of 1 partitions | kohort | 0.90 × | ≥ 1 × | **missed** |" in text
    assert 'python -m bench coordinator --only "commits of 1 partitions"' in text
    better = figure(row("kohort", [110.0], 1.1), row("Apache Kafka", [100.0]), title=COMMITS, baseline="Apache Kafka")
    assert "1.10 × | ≥ 1 × | reached |" in report.page_text({"coordinator": taken(better)})


def test_benchmark_without_measurements_is_listed_with_the_reason() -> None:
    nothing = {**taken(whole=False), "notes": ["skipped: 11.0 GB of disk needed, 1.0 free"]}
    text = report.page_text({"light": taken(figure(row("the machine", [1.0]))), "memory": nothing})
    assert "- memory: skipped: 11.0 GB of disk needed, 1.0 free" in text
    assert "## memory" not in text


def test_goal_beside_another_row_needs_that_row() -> None:
    goal = next(goal for goal in GOALS if goal.beside == "Spark's, tuned")
    shown = figure(row("kohort", [12.0]), row("Spark's, tuned", [10.0]))
    assert goal.measured(shown, shown["rows"][0]) == pytest.approx(1.2)
    assert goal.measured(figure(row("kohort", [12.0])), row("kohort", [12.0])) is None


def test_goal_of_an_amount_is_one_of_the_rate() -> None:
    shown = figure(row("a Delta table", [250.0]), unit="MB of memory")
    most, least = (Goal("lake", ".*", ".*", value, 300) for value in ("most", "least"))
    assert (most.text(), least.text()) == ("≤ 300", "≥ 300")
    assert [goal.reached(goal.measured(shown, shown["rows"][0]) or 0.0) for goal in (most, least)] == [True, False]
    page = report.page_text({"lake": taken({**shown, "title": "memory of a Python member while it writes"})})
    assert "| a Delta table | 250 MB of memory | ≤ 300 | reached |" in page


def test_missed_goal_says_why() -> None:
    title = "publishing 50 files"
    why = next(goal.why for goal in GOALS if goal.title == title)
    pages = [
        report.page_text({"region_spark": taken(figure(row("ParquetFolder", [9.0], ratio), title=title))})
        for ratio in (0.5, 0.7)
    ]
    assert f"| {title}: ParquetFolder, ≥ 0.666667 × | {why} |" in pages[0]
    assert why not in pages[1]


def test_share_of_the_machine_is_that_of_the_bytes_a_record_takes() -> None:
    shown = figure(row("kohort send", [1_000_000.0]), title="produce 100 B into kohort")
    share = light_share(shown, shown["rows"][0], {"bytes over a loopback socket": 1_080_000_000.0})
    assert share == pytest.approx(0.1)
    assert light_share(shown, shown["rows"][0], {}) is None


def test_plot_has_a_bar_for_each_row_that_was_measured() -> None:
    text = plot.drawing(
        [figure(row("kohort <1>", [1.0, 2.0]), row("Apache Kafka", [3.0]), {"name": "a", "absent": "b"})]
    )
    root = ElementTree.fromstring(text)
    assert len(root.findall(f"{SVG}rect")) == 1 + 2
    assert "kohort <1>" in [element.text for element in root.findall(f"{SVG}text")]


def test_merged_report_keeps_what_the_run_did_not_reach() -> None:
    old = {"produce": taken(figure(title="a"), figure(title="b"))}
    new = figure(row("kohort", [1.0]), title="b")
    titles = [
        shown["title"] for shown in report.merged(old, {"produce": taken(new, whole=False)})["produce"]["figures"]
    ]
    assert titles == ["a", "b"]
    whole = report.merged(old, {"produce": taken(new)})
    assert whole["produce"]["figures"] == [new]


# -- What was lost


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        (row("kohort", [100.0]), row("kohort", [96.0]), []),
        (row("kohort", [100.0]), row("kohort", [90.0]), [True]),
        (row("kohort", [89.0, 100.0, 110.0]), row("kohort", [90.0]), [False]),
        (row("kohort", [100.0]), row("kohort", [90.0], others=1.0), [False]),
        (row("Apache Kafka", [100.0]), row("Apache Kafka", [50.0]), []),
        (row("kohort", [100.0]), {"name": "kohort", "absent": "FAILED: x"}, [True]),
        (row("kohort", [100.0]), row("kohort new", [50.0]), []),
    ],
    ids=["little", "much", "within the spread", "not quiet", "a peer's", "gone", "new"],
)
def test_loss_is_named(old: dict[str, Any], new: dict[str, Any], counts: list[bool]) -> None:
    before, now = {"x": taken(figure(old))}, {"x": taken(figure(new))}
    assert [counted for _, counted in report.losses(before, now)] == counts


def test_loss_beside_a_peer_is_one_of_the_ratio() -> None:
    """A machine at half its speed is no loss; a peer that became faster is one."""
    old = figure(row("kohort", [100.0], 2.0), row("Apache Kafka", [50.0]), baseline="Apache Kafka")
    slow = figure(row("kohort", [50.0], 2.0), row("Apache Kafka", [25.0]), baseline="Apache Kafka")
    behind = figure(row("kohort", [100.0], 1.0), row("Apache Kafka", [100.0]), baseline="Apache Kafka")
    assert list(report.losses({"x": taken(old)}, {"x": taken(slow)})) == []
    assert [line for line, _ in report.losses({"x": taken(old)}, {"x": taken(behind)})] == [
        "x: a title: kohort: 2 to 1 × Apache Kafka, 50% lost"
    ]


def test_more_cores_are_a_loss() -> None:
    old, new = figure(row("kohort", [1.0], None), unit="cores"), figure(row("kohort", [1.5], None), unit="cores")
    assert [counted for _, counted in report.losses({"x": taken(old)}, {"x": taken(new)})] == [True]
    assert list(report.losses({"x": taken(new)}, {"x": taken(old)})) == []


def test_what_a_run_did_not_come_to_is_named() -> None:
    before = {"x": taken(figure(title="a"), figure(title="b")), "y": taken(figure(title="c"))}
    assert list(report.not_repeated(before, {"x": taken(figure(title="b"))})) == ["x: a"]
