"""Runs the tests behind each promise of the documentation, and writes docs/verified.md.

`make verify MINUTES=10` runs for that long, promises that were never run first. `make verify ONLY=1.2` runs one.
`make verify FROM=build/tests.xml` runs nothing: it takes the results that the last `make test` left there.
A promise is a row of docs/spec.md, a row of a table of guarantees, or a page whose blocks run.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

from bench.machine import facts
from tests.documentation import spec_page
from tests.documentation.snippets import PAGES, RUN, snippets

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "verified.md"
ENDING_S = 20
"""Time that an interrupted test run has to end its own processes."""
QUICK_FIRST = (
    *("tests/groups", "tests/assignors", "tests/wire", "tests/lag", "tests/columns", "tests/log", "tests/journal"),
    *("tests/client", "tests/broker", "tests/cli", "tests/simulation", "tests/region", "tests/cluster", "tests/peers"),
    *("tests/documentation", "tests/spark"),
)
"""Folders in the order in which their files run: those without processes first, Spark last."""
WORDS = {"kept", "partly", "**broken**"}
NOT_RUN = "not run"
HEAD = """<!-- Written by tools/verify.py: run `make verify`. -->

# Verified promises

`make verify` runs the tests behind each promise of these pages, and writes the result here. It ends after `MINUTES=10`,
and begins with the promises that have no result. Run it again to continue. `make verify ONLY=1.2` runs the promise of
that name. So the command of each row is `make verify ONLY=` and the name in the first column. After `make test`,
`make verify FROM=build/tests.xml` takes the results of that run.

- **kept**: each test of the promise passed at least in one of its cases, and none failed.
- **partly**: none failed, and some were skipped. `LONG=1` runs those that `tests/long_tests.txt` leaves out; others
  need Apache Kafka, Docker or another program.
- **broken**: a test failed, and the row names it.
- **not run**: the time was over before. An earlier result stays, with its day.

A row says when and at which commit its tests ran, and on which of the [machines](#machines). Goals of speed are not
here: [performance.md](performance.md) has them with what was measured.
"""
GUARANTEES: Mapping[str, tuple[str, Sequence[Sequence[str]]]] = {
    "region": (
        "## What is guaranteed",
        [
            ["region/test_region.py::test_members_that_come_and_go_publish_everything_once", "region/test_kills.py"],
            ["region/test_parquet_folder.py::test_readers_see_published_sequences_and_nothing_else"],
            ["region/test_region.py::test_what_was_not_in_a_sequence_comes_again_after_a_reset"],
            ["region/test_closing.py::test_records_are_there_once_whichever_way_the_loop_is_left"],
            [
                "region/test_keyed_states_in_a_region.py::test_states_move_with_partitions_that_come_and_go",
                "region/test_keyed_states_in_a_region.py::test_states_go_back_with_a_reset_and_begin_anew",
            ],
        ],
    ),
    "region-spark": (
        "## What is guaranteed",
        [
            ["spark/region/test_kills.py"],
            ["region/test_parquet_folder.py::test_a_reader_never_sees_a_part_while_publishers_are_killed"],
            ["spark/region/test_taken_back.py"],
            ["spark/region/test_in_one_process.py"],
            ["spark/region/test_moving_drivers.py", "spark/region/test_kills.py"],
        ],
    ),
    "coordinator": (
        "## What is guaranteed",
        [
            ["cluster/test_kafka_journal.py", "cluster/test_coordinator.py"],
            ["cluster/test_journal_faults.py::test_a_later_epoch_ends_the_term_as_fenced"],
            ["cluster/test_coordinator.py::test_a_paused_coordinator_that_wakes_answers_nothing"],
            ["client/test_push_lease.py::test_it_owns_for_a_session_after_the_last_answer_that_arrived"],
            ["cluster/test_topic_view.py", "cluster/test_taking_over.py"],
            ["cluster/test_taking_over.py::test_a_group_continues_where_it_was"],
        ],
    ),
    "iceberg": (
        "## Guarantees",
        [
            ["region/test_sinks_in_a_region.py::test_every_record_once"],
            [
                "region/test_iceberg_table.py::test_a_lost_answer_is_found_by_whoever_tries_again",
                "region/test_iceberg_table.py::test_a_commit_that_arrives_late_is_refused",
                "region/test_iceberg_rest.py::test_a_commit_that_is_done_and_called_refused_counts_once",
            ],
            ["region/test_iceberg_table.py::test_duckdb_sees_the_same_rows"],
            [
                "region/test_iceberg_table.py::test_the_sequence_survives_the_expiry_of_its_snapshot",
                "region/test_iceberg_table.py::test_a_foreign_writer_in_between_is_no_obstacle",
            ],
            ["region/test_iceberg_table.py::test_published_files_are_the_staged_ones"],
            ["region/test_iceberg_table.py::test_a_sweep_takes_unfinished_files_and_none_that_the_table_has"],
            [
                "region/test_iceberg_update.py::test_a_sequence_is_one_snapshot_that_removes_and_adds",
                "region/test_iceberg_update.py::test_a_foreign_row_of_the_same_key_between_read_and_commit",
            ],
        ],
    ),
    "ducklake": (
        "## Guarantees",
        [
            [
                "region/test_sinks_in_a_region.py::test_every_record_once",
                "region/test_ducklake_commits.py::test_a_commit_behind_any_other_is_refused",
            ],
            ["region/test_ducklake_commits.py"],
            ["region/test_ducklake_table.py::test_a_lost_answer_is_found_by_whoever_tries_again"],
            ["region/test_ducklake_table.py::test_publishers_killed_at_any_moment_and_a_reader_in_another_process"],
            [
                "region/test_ducklake_table.py::test_compaction_expiry_and_cleanup_leave_what_is_needed",
                "region/test_ducklake_table.py::test_the_sequence_survives_the_expiry_of_its_snapshot",
                "region/test_ducklake_table.py::test_a_foreign_writer_in_between_is_no_obstacle",
            ],
            ["region/test_ducklake_table.py::test_published_files_are_the_staged_ones"],
            ["region/test_ducklake_table.py::test_a_sweep_takes_unfinished_files_and_none_that_the_lake_has"],
            ["region/test_ducklake_table.py::test_files_and_the_catalog_are_durable_before_a_sequence_is_marked"],
        ],
    ),
    "object-stores": (
        "## Guarantees",
        [
            ["region/test_parquet_s3.py::test_publishers_at_once_and_a_reader"],
            ["region/test_parquet_s3.py::test_answer_of_a_publication_is_lost_and_the_sequence_is_there_once"],
            ["region/test_parquet_s3.py::test_readers_that_nobody_here_wrote_see_whole_sequences"],
            ["region/test_parquet_s3.py::test_compactors_and_publishers_at_once"],
            ["region/test_parquet_objects.py::test_run"],
            ["region/test_parquet_s3.py::test_upload_of_a_killed_member_leaves_nothing_open"],
            [],
        ],
    ),
}
"""Page to its heading and, for each row of the table below it, the tests. No tests: another party's promise."""


@dataclass(frozen=True, slots=True)
class Promise:
    """Something that a page promises, with the tests that hold it to that.

    Attributes:
        name: what `make verify ONLY=` takes.
        text: what is promised, one line.
        tests: node ids for pytest, without the cases of a parameter.
    """

    name: str
    text: str
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """The result of a promise: what, when, at which commit, on which machine; the last three are "" if it never ran."""

    result: str = NOT_RUN
    day: str = ""
    commit: str = ""
    machine: str = ""


def promises() -> list[Promise]:
    """Return every promise that has a test, in the order of the pages."""
    text = spec_page.PAGE.read_text(encoding="utf-8")
    found = [Promise(row.point, _said(text, row.point, 1), tuple(_spec_tests(row))) for row in spec_page.points(text)]
    for row in spec_page.scenarios(text):
        tests = [test for file, _ in row.tests for test in _named(file, rf"test_scenario_{row.point}_")]
        found.append(Promise(f"scenario-{row.point}", _said(text, row.point, 2), tuple(tests)))
    for page, (heading, tests_of) in GUARANTEES.items():
        for number, (said, cited) in enumerate(zip(guarantees(page, heading), tests_of, strict=True), 1):
            if cited:
                ids = [node for test in cited for node in _ids(f"tests/{test}")]
                found.append(Promise(f"{page}-{number}", said, tuple(dict.fromkeys(ids))))
    return found + [
        Promise(name, f"every block of {name} runs as it stands", (f"{_SNIPPETS}[{name}]",))
        for name in (page.relative_to(ROOT).as_posix() for page in PAGES if _has_blocks(page))
    ]


_SNIPPETS = "tests/documentation/test_snippets.py::test_every_block_of_a_page_works_as_it_stands"


def _has_blocks(page: Path) -> bool:
    return any(entry.language in RUN and entry.word != "not run" for entry in snippets(page))


def guarantees(page: str, heading: str) -> list[str]:
    """Return the first cells of the table below a heading of a page of docs/."""
    part = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").partition(f"\n{heading}\n")[2]
    table = part.partition("\n|")[2].partition("\n\n")[0]
    return [spec_page.cells(line)[0] for line in table.splitlines()[2:]]


def _said(text: str, point: str, cells: int) -> str:
    tables = text.partition("\n## Scenarios\n")[2] if cells == 2 else text
    line = re.search(rf"^\| {re.escape(point)} \|.*$", tables, re.MULTILINE)
    assert line is not None
    return ": ".join(spec_page.cells(line[0])[1 : 1 + cells])


def _spec_tests(row: spec_page.Row) -> Iterable[str]:
    for file, test in row.tests:
        yield from _ids(f"{file}::{test}")


@cache
def _ids_in(file: str) -> Mapping[str, str]:
    """Name of each test and class of tests in a file to its node id."""
    found: dict[str, str] = {}

    def add(nodes: Sequence[ast.stmt], prefix: str) -> None:
        for node in nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test"):
                found[node.name] = f"{prefix}::{node.name}"
            elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
                found[node.name] = f"{prefix}::{node.name}"
                add(node.body, found[node.name])
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name) and target.id.startswith("Test"):
                        found[target.id] = f"{prefix}::{target.id}"

    add(ast.parse((ROOT / file).read_text(encoding="utf-8")).body, file)
    return found


def _ids(test: str) -> list[str]:
    file, _, name = test.partition("::")
    return [_ids_in(file)[name]] if name else [node for node in _ids_in(file).values() if "::test" in node]


def _named(file: str, pattern: str) -> list[str]:
    return [node for name, node in _ids_in(file).items() if re.match(pattern, name)]


_OUTCOME = re.compile(r"^(tests/\S+?\.py::[^\s\[]+(?:\[.*\])?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b")


def outcome(line: str) -> tuple[str, str] | None:
    """Return the test and the word of a line that `pytest -v` prints; None: it is another line."""
    match = _OUTCOME.match(line)
    return None if match is None else (match[1], match[2])


def verdict(tests: Sequence[str], outcomes: Mapping[str, str]) -> str:
    """Return the result of a promise.

    Args:
        tests: node ids of the promise.
        outcomes: the word of each case that ran.
    """
    cases = {test: _cases(test, outcomes) for test in tests}
    words = Counter(word for found in cases.values() for word in found.values())
    failed = sorted(
        {case.rpartition("::")[2] for found in cases.values() for case, word in found.items() if word in _BAD}
    )
    if failed:
        return f"**broken**: {', '.join(f'`{name}`' for name in failed)}".replace("|", "/")
    if not all(cases.values()):
        return NOT_RUN
    said = f"{words['PASSED']} passed" + (f", {words['SKIPPED']} skipped" if words["SKIPPED"] else "")
    return f"{'kept' if all('PASSED' in found.values() for found in cases.values()) else 'partly'}: {said}"


_BAD = {"FAILED", "ERROR", "XPASS"}


def _cases(test: str, outcomes: Mapping[str, str]) -> dict[str, str]:
    begins = (f"{test}[", f"{test}::")
    return {case: word for case, word in outcomes.items() if case == test or case.startswith(begins)}


def run_file(tests: Sequence[str], seconds: float) -> dict[str, str]:
    """Run tests of one file, and return the word of each case that ended within the time."""
    options = ["-v", "-p", "no:cacheprovider", "--color=no", "-rN"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    with log_of(tests[0].partition("::")[0]).open("w+", encoding="utf-8") as log:
        child = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            child.wait(seconds)
        except subprocess.TimeoutExpired:
            child.terminate()
            try:
                child.wait(ENDING_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        return _outcomes_in(log)


def results_in(file: Path) -> tuple[str, dict[str, str]]:
    """Return the commit of a whole run and the word of each of its tests, out of the JUnit file that it wrote.

    Raises:
        ValueError: the file is not one that `make test` wrote.
    """
    try:
        suite = ElementTree.parse(file).getroot().find("testsuite")
    except ElementTree.ParseError as error:
        raise ValueError(f"{file} is not a whole JUnit file: {error}") from error
    if suite is None or not (name := suite.get("name")):
        raise ValueError(f"{file} has no test suite; make test writes build/tests.xml")
    return name, {_node(case): _word(case) for case in suite.iter("testcase") if case.get("file")}


def _node(case: ElementTree.Element) -> str:
    """Return the node id of a test: the classes follow the module in `classname`."""
    file = case.get("file", "")
    classes = case.get("classname", "").removeprefix(file.removesuffix(".py").replace("/", ".")).split(".")
    return "::".join([file, *filter(None, classes), case.get("name", "")])


def _word(case: ElementTree.Element) -> str:
    found = {part.tag for part in case}
    return next((word for tag, word in _WORDS.items() if tag in found), "PASSED")


_WORDS = {"failure": "FAILED", "error": "ERROR", "skipped": "SKIPPED"}


def log_of(file: str) -> Path:
    """Return where the output of a file's tests is kept. A pipe would be held open by processes that a test leaves."""
    folder = ROOT / "build" / "verify"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / (file.removeprefix("tests/").replace("/", "-") + ".log")


def _outcomes_in(log: IO[str]) -> dict[str, str]:
    log.seek(0)
    return dict(found for line in log if (found := outcome(line)) is not None)


def commit() -> str:
    """Return the commit that is checked out, with a plus if files differ from it."""
    name = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    changed = subprocess.run(
        ["git", "status", "--porcelain", "-uno", "--", "src", "tests"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return (name.stdout.strip() or "unknown") + ("+" if changed.stdout.strip() else "")


def machine() -> str:
    """Return what the machine is, without its name and paths."""
    found = facts()
    return (
        f"{found['processor']}, {found['cores']} cores, {found['memory']}, {found['system']}, Python {found['python']}"
    )


def kept_rows(text: str) -> dict[str, Row]:
    """Return the rows of a page by the promise's name."""
    machines = dict(re.findall(r"^(\d+)\. (.+)$", text.partition("\n## Machines\n")[2], re.MULTILINE))
    found = {}
    for line in re.findall(r"^\| `[^`]+` \|.*$", text, re.MULTILINE):
        name, _, result, day, at, number = spec_page.cells(line)
        found[name.strip("`")] = Row(result, day, at, machines.get(number, ""))
    return found


def render(wanted: Sequence[Promise], rows: Mapping[str, Row]) -> str:
    """Return the page."""
    shown = {promise.name: rows.get(promise.name, Row()) for promise in wanted}
    machines = list(dict.fromkeys(row.machine for row in shown.values() if row.machine))
    counts = Counter(row.result.partition(":")[0] for row in shown.values())
    total = ", ".join(f"{counts[word]} {word}" for word in ("kept", "partly", "**broken**", NOT_RUN))
    lines = [HEAD, f"Of {len(shown)} promises: {total}.\n"]
    for title, of_it in _chapters(wanted):
        lines += [f"## {title}\n", "| name | promise | result | day | commit | machine |", "|---|---|---|---|---|---|"]
        for promise in of_it:
            row = shown[promise.name]
            number = str(machines.index(row.machine) + 1) if row.machine else ""
            text = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", promise.text)
            lines.append(f"| `{promise.name}` | {text} | {row.result} | {row.day} | {row.commit} | {number} |")
        lines.append("")
    lines.append("## Machines\n")
    lines += [f"{number}. {text}" for number, text in enumerate(machines, 1)] or ["None yet."]
    return "\n".join(lines) + "\n"


def _chapters(wanted: Sequence[Promise]) -> list[tuple[str, list[Promise]]]:
    titles: dict[str, list[Promise]] = {"Specification": [], "Scenarios": [], "Guarantees": [], "Pages that run": []}
    for promise in wanted:
        if re.fullmatch(r"\d+\.\d+", promise.name):
            titles["Specification"].append(promise)
        elif promise.name.startswith("scenario-"):
            titles["Scenarios"].append(promise)
        else:
            titles["Pages that run" if promise.name.endswith(".md") else "Guarantees"].append(promise)
    return list(titles.items())


def _order(file: str) -> tuple[int, str]:
    places = [number for number, folder in enumerate(QUICK_FIRST) if file.startswith(f"{folder}/")]
    return (places[0] if places else len(QUICK_FIRST), file)


def verify(chosen: Sequence[Promise], seconds: float) -> dict[str, str]:
    """Run the tests of promises file by file until the time is over, and return each promise's result."""
    by_file: dict[str, dict[str, None]] = {}
    for promise in chosen:
        for test in promise.tests:
            by_file.setdefault(test.partition("::")[0], {})[test] = None
    outcomes: dict[str, str] = {}
    began = time.monotonic()
    for number, file in enumerate(sorted(by_file, key=_order), 1):
        left = seconds - (time.monotonic() - began)
        if left <= 0:
            print(f"the time is over: {len(by_file) - number + 1} of {len(by_file)} files were not run")
            break
        print(f"[{number} of {len(by_file)}, {left:.0f} s left] {file}", end=" ", flush=True)
        found = run_file(list(by_file[file]), left)
        counts = Counter(found.values())
        print(", ".join(f"{count} {word.lower()}" for word, count in sorted(counts.items())) or "nothing ended")
        if _BAD & counts.keys():
            print(f"    {log_of(file).relative_to(ROOT)} has the output")
        outcomes |= found
    return {promise.name: verdict(promise.tests, outcomes) for promise in chosen}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run promises, write the page, and return 1 if one is broken."""
    parser = argparse.ArgumentParser(prog="python -m tools.verify")
    parser.add_argument("--minutes", type=float, default=10.0, help="when to end; 0 only writes the page anew")
    parser.add_argument("--only", default="", help="names of promises, with commas")
    parser.add_argument("--results", type=Path, help="the JUnit file of a whole run, in place of running tests")
    given = parser.parse_args(arguments)
    wanted = promises()
    rows = kept_rows(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
    names = [name for name in given.only.split(",") if name]
    if unknown := set(names) - {promise.name for promise in wanted}:
        parser.error(f"no promise has the name {', '.join(sorted(unknown))}; docs/verified.md has all names")
    chosen = (
        [promise for promise in wanted if promise.name in names]
        if names
        else sorted(wanted, key=lambda promise: rows.get(promise.name, Row()).day)
    )
    if not names and any(promise.name not in rows or rows[promise.name].result == NOT_RUN for promise in wanted):
        chosen = [promise for promise in chosen if rows.get(promise.name, Row()).result == NOT_RUN]
    at, day = commit(), datetime.now(UTC)
    if given.results:
        at, outcomes = results_in(given.results)
        day = datetime.fromtimestamp(given.results.stat().st_mtime, UTC)
        chosen = wanted
        results = {promise.name: verdict(promise.tests, outcomes) for promise in wanted}
    else:
        results = verify(chosen, given.minutes * 60) if given.minutes else {}
    ran = Row("", day.date().isoformat(), at, machine())
    rows |= {name: replace(ran, result=result) for name, result in results.items() if result != NOT_RUN}
    PAGE.write_text(render(wanted, rows), encoding="utf-8")
    broken = [name for name, result in results.items() if result.startswith("**broken**")]
    for name in broken:
        print(f"{name}: {results[name]}")
    done = sum(result != NOT_RUN for result in results.values())
    print(f"{done} of {len(chosen)} promises have a result, {len(broken)} are broken; docs/verified.md has all")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
