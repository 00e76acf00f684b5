"""docs/spec.md held to the code: what an id means, where it is done, which tests prove it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "spec.md"
ABSENT = "absent"
POINTS = {1: 8, 2: 7, 3: 13, 4: 12, 5: 13, 6: 2}
"""Text to the number of its points: 1.1 to 1.8, 2.1 to 2.7, and so on."""
SCENARIOS = 22
FOLDERS = ("src", "tests", "simulation", "bench", "frameworks", "tools", "docs")
_CITED = re.compile(r"\bspec\s+(\d(?:\.\d+)?(?:\s*(?:,|–|-|and)\s*\d\.\d+)*)")
_CITED_SCENARIO = re.compile(r"\bscenarios?\s+(\d+)")
_CITED_ISSUE = re.compile(r"\bKAFKA-\d+")
_SOURCE = re.compile(r"(?<!class )\bSource:\s+((?:(?!\n\s*\n|\"\"\").)*)", re.DOTALL)
KNOWN_SOURCES = re.compile(
    r"KIP-\d+|PEP \d+|\bspec\s\d|\bscenario\s\d|KAFKA-\d+|RFC\s\d+|\bKafka('s)?\s|Spark, \"|Spark's\s|Java SE|"
    r"proc_pid_stat\(5\)|KEDA, |Confluent's (reference|documentation)|Avro's specification|Prometheus, \"|\(\d{4}\)|"
    r"XDG Base Directory|xxHash|OTLP specification"
)
"""What a reader can look up: a KIP, this page, an issue of Kafka's, a standard, other projects' documents, a paper's
year."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of one of the page's tables.

    Attributes:
        point: the id, "1.4", or the number of a scenario.
        where: the cell that says where it is done; of a scenario, where it is tested.
        files: the files of src that `where` names, each with the functions and classes in brackets behind it.
        tests: (file, test) for each test named; of a scenario the test is "".
    """

    point: str
    where: str
    files: dict[str, list[str]] = field(default_factory=dict)
    tests: list[tuple[str, str]] = field(default_factory=list)

    @property
    def is_absent(self) -> bool:
        return self.where.startswith(ABSENT)


def cells(line: str) -> list[str]:
    """The cells of a table's row."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def tests_of(cell: str) -> list[tuple[str, str]]:
    """(file, test) of each test that a cell names."""
    return re.findall(r"`([\w/]+\.py)::(\w+)`", cell)


def points(text: str) -> list[Row]:
    """The rows of the page's points."""
    found = []
    for line in re.findall(r"^\| \d+\.\d+ \|.*$", text, re.MULTILINE):
        point, _, where, tests, *_ = cells(line)
        files = {
            name: re.findall(r"`(\w+)`", inner)
            for name, inner in re.findall(r"`([\w/]+(?:\.py|/))`(?: \(([^)]*)\))?", where)
        }
        found.append(Row(point, where, files, tests_of(tests)))
    return found


def scenarios(text: str) -> list[Row]:
    """The rows of the page's scenarios."""
    found = []
    for line in re.findall(r"^\| \d+ \|.*$", text.partition("\n## Scenarios\n")[2], re.MULTILINE):
        point, *_, where = cells(line)
        found.append(Row(point, where, {}, [(file, "") for file in re.findall(r"`(tests/[\w/]+\.py)`", where)]))
    return found


@cache
def names_in(file: str) -> frozenset[str]:
    """Functions, methods and classes of a file, and what it assigns: a state machine's test is `TestX = X.TestCase`."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    found = {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
    cases = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    return frozenset(found | {target.id for target in cases if isinstance(target, ast.Name)})


def expanded(cited: str) -> Iterator[str]:
    """The ids of a citation: `2.1–2.3, 3.4` is four; a whole text, `3`, is itself."""
    for part in re.split(r"\s*(?:,|\band\b)\s*", cited):
        first, _, last = (end.strip() for end in part.replace("–", "-").partition("-"))
        text, _, number = first.partition(".")
        if not last:
            yield first
        else:
            yield from (f"{text}.{entry}" for entry in range(int(number), int(last.partition(".")[2]) + 1))


def citations(text: str) -> Iterator[str]:
    """Return a file's citations of this page: ids of points, `scenario 8`, Kafka's issues."""
    for match in _CITED.finditer(text):
        yield from (f"spec {point}" for point in expanded(match[1]))
    for match in _CITED_SCENARIO.finditer(text):
        yield f"scenario {match[1]}"
    for match in _CITED_ISSUE.finditer(text):
        yield match[0]


def texts() -> Iterator[tuple[str, str]]:
    """(file, text) of all that may cite the page, but the page."""
    paths = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.*"))]
    for path in sorted(paths):
        if path.suffix in (".py", ".pyx", ".md") and path != PAGE and path.is_file():
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def missing_ids(text: str) -> list[str]:
    """Points and scenarios without exactly one row, and rows that are no point of a text."""
    wanted = [f"{number}.{point}" for number, count in POINTS.items() for point in range(1, count + 1)]
    wanted += [str(number) for number in range(1, SCENARIOS + 1)]
    rows = [row.point for row in (*points(text), *scenarios(text))]
    found = [f"{point} has {rows.count(point)} rows" for point in wanted if rows.count(point) != 1]
    found += [f"{number} has no heading" for number in POINTS if f"\n## {number} · " not in text]
    return found + [f"{point} is no point of a text" for point in rows if point not in wanted]


def unexplained(text: str, cited_in: Iterable[tuple[str, str]]) -> list[str]:
    """Return citations that the page does not explain."""
    known = {f"spec {row.point}" for row in points(text)} | {f"scenario {row.point}" for row in scenarios(text)}
    known |= {f"spec {number}" for number in POINTS} | set(_CITED_ISSUE.findall(text))
    return [f"{file} cites {cited}" for file, inner in cited_in for cited in citations(inner) if cited not in known]


def unknown_sources(cited_in: Iterable[tuple[str, str]]) -> list[str]:
    """Sources in docstrings that are neither a KIP, nor an id, nor named in full."""
    return [
        f"{file}: Source: {match[1]}"
        for file, inner in cited_in
        if file.startswith("src/")
        for match in _SOURCE.finditer(inner)
        if KNOWN_SOURCES.search(match[1]) is None
    ]


def wrong_places(text: str) -> list[str]:
    """Files, functions and tests that rows name and that are not there."""
    found = []
    for row in points(text):
        for name, inner in row.files.items():
            file = f"src/kohort/{name}"
            if not (ROOT / file).exists():
                found.append(f"{row.point}: there is no {file}")
            else:
                found += [f"{row.point}: {file} has no {test}" for test in inner if test not in names_in(file)]
    for row in (*points(text), *scenarios(text)):
        for file, test in row.tests:
            if not (ROOT / file).is_file():
                found.append(f"{row.point}: there is no {file}")
            elif test and test not in names_in(file):
                found.append(f"{row.point}: {file} has no {test}")
    return found


def unproved(text: str) -> list[str]:
    """Rows of what is there without a place or a test, and rows of what is absent with one."""
    found = []
    for row in (*points(text), *scenarios(text)):
        if row.is_absent:
            if row.tests or row.files:
                found.append(f"{row.point} is absent and names what is there")
        elif not row.tests or ("." in row.point and not row.files):
            found.append(f"{row.point} names no place or no test, and does not say that it is absent")
    return found


def absent_and_cited(text: str, cited_in: Iterable[tuple[str, str]]) -> list[str]:
    """Rows that say `absent` of what a file claims to do or to test: one of the two is not true."""
    absent = {f"spec {row.point}" for row in points(text) if row.is_absent}
    return [
        f"{cited} is absent, and {file} cites it"
        for file, inner in cited_in
        for cited in citations(inner)
        if cited in absent
    ]


def misplaced_scenarios(text: str) -> list[str]:
    """Scenarios without a test of their name in a file that the row names, and such tests in other files."""
    said = {(row.point, file) for row in scenarios(text) for file, _ in row.tests}
    tested = {
        (found[1], path.relative_to(ROOT).as_posix())
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in names_in(path.relative_to(ROOT).as_posix())
        if (found := re.match(r"test_scenario_(\d+)_", name)) is not None
    }
    found = [f"{file} has no test_scenario_{number}_" for number, file in sorted(said - tested)]
    return found + [f"{file} tests scenario {number}, and the page does not say so" for number, file in tested - said]
