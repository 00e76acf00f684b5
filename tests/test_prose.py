"""The rules of docs/style.md that a program can see: each finds what breaks it, and leaves plain English alone."""

from __future__ import annotations

import ast

import pytest
from tools import prose


def rules_of(source: str) -> list[str]:
    return sorted({fault.rule for fault in prose.faults_of_source("src/kohort/log/segment.py", source)})


def trees(**sources: str) -> dict[str, ast.Module]:
    return {f"src/kohort/{name.replace('__', '/')}.py": ast.parse(source) for name, source in sources.items()}


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ('"""What a segment holds."""', "relative"),
        ('class Segment:\n    """Who reads it."""', "relative"),
        ("# Whose turn it is\nx = 1", "relative"),
        ('def close():\n    """It is closed."""', "pronoun"),
        ('def close():\n    """See `Segment`."""', "pointer"),
        ("for one in segments: print(one)", "loop"),
        ("names = [name for name, each in segments]", "loop"),
        ("x = 'the member has all go back'", "private"),
        ("class Tenure: pass", "word"),
        ("def take_told(): pass", "word"),
        ("def append(door): pass", "word"),
        ("class Segment:\n    knob: int = 0", "word"),
        ("segment.standstill_ms = 0", "word"),
        ("def goOn(): pass\ndef go_on_reading(): pass", "word"),
        (f'"""Segment: {" word" * 25}."""', "long"),
        (f"# {'word ' * 26}\nx = 1", "long"),
        (f"# {'word ' * 13}\n# {'word ' * 13}\nx = 1", "long"),
    ],
)
def test_source_that_breaks_a_rule_is_found(source: str, rule: str) -> None:
    assert rules_of(source) == [rule]


@pytest.mark.parametrize(
    "source",
    [
        '"""A segment of the log, which is one file and its index."""',
        '"""See the index for where a record begins. Offsets are 64-bit."""',
        "for segment in segments: print(segment)",
        f'"""Segment: {" word" * 10}. Index: {" word" * 20}."""',
        f'"""Segment.\n\nArgs:\n    first: {"word " * 15}\n    second: {"word " * 15}\n"""',
        "x = 'What is this?'",
        "def tells_apart(understood, indoors, floor): told = understood",
    ],
)
def test_plain_source_passes(source: str) -> None:
    assert rules_of(source) == []


def test_pages_are_read_without_their_tables_headings_and_code() -> None:
    long = "word " * 30
    page = f"# {long}\n\n| {long} |\n\n```sh\n{long}\n```\n\n- {long}\n- short\n\nIt is\n{long}\nhere."
    assert [(fault.rule, fault.line) for fault in prose.faults_of_page("docs/log.md", page)] == [
        ("long", 9),
        ("long", 11),
    ]


def test_a_file_named_with_a_private_word_is_found() -> None:
    found = list(prose.faults_of_source("src/kohort/cluster/doors.py", ""))
    assert [(fault.rule, fault.text) for fault in found] == [("word", "doors: write coordination services for doors")]


def test_a_name_that_python_has_chosen_is_allowed() -> None:
    source = "class Output:\n    def tell(self): pass"
    assert list(prose.faults_of_source("src/kohort/region/files.py", source)) == []
    assert list(prose.faults_of_source("src/kohort/log/files.py", source)) != []


def test_names_that_definitions_share_are_found() -> None:
    closing = {f"log__m{number}": "def close(): pass\ndef close_session(): pass" for number in range(6)}
    found = list(prose.faults_of_names(trees(**closing, log__a="class Told: pass", wire__b="class Told: pass")))
    assert [(fault.rule, fault.path, fault.text) for fault in found] == [
        ("class", "src/kohort/wire/b.py", "Told"),
        ("short", "src/kohort/log/m0.py", "close: 6 definitions"),
    ]


def test_a_module_that_only_its_neighbour_imports_is_found() -> None:
    found = list(
        prose.faults_of_grain(
            trees(
                log__index="",
                log__segment="from kohort.log import index",
                wire__codec="",
                log__partition="from kohort.wire import codec\nfrom kohort.log.segment import open",
                log__store="from kohort.log.segment import open",
            )
        )
    )
    assert [(fault.path, fault.text) for fault in found] == [
        ("src/kohort/log/index.py", "imported by kohort.log.segment alone")
    ]


def test_module_that_stays_apart_is_found_once_it_has_no_single_importer(monkeypatch: pytest.MonkeyPatch) -> None:
    apart = dict.fromkeys(("src/kohort/log/index.py", "src/kohort/log/gaps.py"), "the reason")
    monkeypatch.setattr(prose, "CHAPTERS_APART", apart)
    found = prose.faults_of_grain(trees(log__index="", log__gaps="", log__segment="from kohort.log import index"))
    assert [(fault.path, fault.text) for fault in found] == [
        ("src/kohort/log/gaps.py", "in CHAPTERS_APART, and no satellite")
    ]


def test_modules_that_stay_apart_are_there() -> None:
    assert [path for path in prose.CHAPTERS_APART if not (prose.ROOT / path).is_file()] == []


def test_a_count_may_shrink_and_not_grow() -> None:
    counts = {"loop": {"src/kohort/log": 3, "docs": 1}}
    assert prose.grown(counts, {"loop": {"src/kohort/log": 3, "docs": 2}}) == []
    (line,) = prose.grown(counts, {"loop": {"src/kohort/log": 2, "docs": 1}})
    assert line.startswith("src/kohort/log: 3 times a loop variable") and "2 are allowed" in line
    assert prose.grown({"loop": {"tools": 1}}, {}), "a room that is new has nothing to allow"


def test_the_room_of_a_file_is_two_folders_of_the_package_and_one_of_the_rest() -> None:
    paths = {"src/kohort/client/net/connection.py": "src/kohort/client", "tests/log/test_a.py": "tests/log"}
    paths |= {"simulation/clients/a.py": "simulation", "README.md": ".", "src/kohort/ids.py": "src/kohort"}
    assert {path: prose.Fault("loop", path, 1, "").room for path in paths} == paths
