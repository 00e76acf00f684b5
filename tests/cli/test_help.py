"""Help pages: what they say, and that they come without importing what commands work with."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache

import pytest
from cyclopts import App

from kohort.cli.app import COMMANDS, USUAL_OPTIONS, command_tree, run

CHILD = (
    "import sys; from kohort.cli.app import run; code = run(sys.argv[1:]); "
    "print(*sys.modules, sep='\\n', file=sys.stderr)"
)
CHILDREN = """
import json, os, sys
from kohort.cli.app import run
for line in sys.stdin:
    # The first page runs here: what it imports, all others are seen to have imported too.
    if "inspect" not in sys.modules:
        os.dup2(os.dup(1), keep := 99)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        run(json.loads(line))
        sys.stdout.flush()
        os.dup2(keep, 1)
    reading, writing = os.pipe()
    if not os.fork():
        os.close(reading)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        run(json.loads(line))
        with open(writing, "w") as pipe:
            print(*sys.modules, file=pipe)
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        print(pipe.read().strip(), flush=True)
    os.wait()
"""
"""Answers each command with the modules that it imports, in a copy of a process that has imported the entry alone."""
HEAVY = {"pyarrow", "asyncio", "prometheus_client", "rich", "pygments", "uvloop", "pyspark", "cramjam", "numpy", "ssl"}
OURS = {"kohort.client", "kohort.broker", "kohort.log", "kohort.groups", "kohort.wire", "kohort.columns", "kohort.demo"}
PARSING = {"cyclopts", "attrs", "docstring_parser", "importlib.metadata", "msgspec", "difflib", "inspect"}
"""What reads a command's arguments: the page of all commands needs none of it."""
FAMILIES = [name for name, (place, _) in COMMANDS.items() if place.endswith(":app")]


def every_command() -> list[list[str]]:
    """The words of each command."""
    of_families = [words for name in FAMILIES for words in below(command_tree()[name], [name])]
    return [*of_families, *([name] for name in COMMANDS if name not in FAMILIES)]


def below(family: App, words: list[str]) -> list[list[str]]:
    """The words of each command in a family, and in the families inside it."""
    found: list[list[str]] = []
    for name in (name for name in family if not name.startswith("-")):
        command = family[name]
        inside = below(command, [*words, name])
        found += [[*words, name]] if command.default_command is not None else inside
    return found


def imported(*args: str) -> set[str]:
    """The modules that a command has imported when it ends."""
    done = subprocess.run([sys.executable, "-c", CHILD, *args], capture_output=True, text=True, check=True)
    return set(done.stderr.splitlines())


@cache
def imported_by_pages() -> dict[str, set[str]]:
    """The modules that the page of each command imports, from one process: each of its own starts for a second."""
    pages = [["groups"], ["topics"], *every_command()]
    lines = "".join(json.dumps([*words, "--help"]) + "\n" for words in pages)
    done = subprocess.run([sys.executable, "-c", CHILDREN], input=lines, capture_output=True, text=True, check=True)
    found = done.stdout.splitlines()
    return {" ".join(words): set(line.split()) for words, line in zip(pages, found, strict=True)}


@pytest.mark.parametrize("args", [("--help",), ("--version",), ()], ids=lambda args: " ".join(args) or "nothing")
def test_the_first_page_imports_next_to_nothing(args: tuple[str, ...]) -> None:
    found = imported(*args)
    assert "kohort.cli.app" in found
    assert (HEAVY | OURS | PARSING) & found == set()


@pytest.mark.parametrize("words", [["groups"], ["topics"], *every_command()], ids=" ".join)
def test_pages_of_commands_import_nothing_that_they_work_with(words: list[str]) -> None:
    found = imported_by_pages()[" ".join(words)]
    assert "kohort.cli.app" in found and "cyclopts" in found
    assert (HEAVY | OURS) & found == set()


def test_a_list_imports_only_what_asks() -> None:
    """Through a pipe, and without a file of properties."""
    found = imported("groups", "list", "--bootstrap-server", "127.0.0.1:1", "--timeout", "50")
    assert "kohort.client.admin.admin" in found
    unused = {"kohort.client.consumer", "kohort.client.producer", "kohort.broker", "kohort.log", "kohort.groups"}
    assert found & {*unused, "pyarrow", "asyncio", "prometheus_client", "rich", "pygments", "pyspark"} == set()


@pytest.mark.parametrize("words", every_command(), ids=" ".join)
def test_a_page_says_what_its_command_takes(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    app = command_tree()
    for word in words:
        app = app[word]
    assert run([*words, "--help"]) == 0
    page = capsys.readouterr().out
    assert page.startswith(f"Usage: kohort {' '.join(words)}")
    assert app.default_command is not None
    for word in (app.default_command.__doc__ or "").partition("Args:")[0].split():
        assert word in page
    for argument in app.assemble_argument_collection(parse_docstring=True):
        shown = argument.name if argument.index is None else argument.field_info.names[0].upper().replace("_", "-")
        assert shown == "*" or shown in page
        for word in (argument.parameter.help or "").split():
            assert word in page
    assert max(map(len, page.splitlines())) <= 80


def test_help_wins_over_what_else_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["groups", "reset-offsets", "g", "--to-latest", "-h"]) == 0
    assert capsys.readouterr().out.startswith("Usage: kohort groups reset-offsets [GROUPS...] [OPTIONS]\n")


@pytest.mark.parametrize(
    ("words", "reported"), [(["gruops"], "groups"), (["groups", "lst"], "list"), (["topics", "creat"], "create")]
)
def test_a_page_that_is_not_there_names_the_nearest(
    words: list[str], reported: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words, "--help"]) == 2
    assert f"did you mean {reported}?" in capsys.readouterr().err
    assert run(words) == 2
    assert f'Did you mean "{reported}"?' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        pytest.param(["consume", "--topic", "t"], "as the argument TOPICS...", id="kafkas-topic-of-consume"),
        pytest.param(["groups", "lag", "--group", "g"], "as the argument GROUPS...", id="kafkas-group-of-lag"),
        pytest.param(["groups", "describe", "--group=g"], "as the argument GROUPS...", id="kafkas-group-of-describe"),
        pytest.param(["groups", "reset-offsets", "g", "--to-beginning"], "Did you mean --to-earliest?", id="beginning"),
        pytest.param(["groups", "reset-offsets", "g", "--to-end"], "Did you mean --to-latest?", id="end"),
        pytest.param(["consume", "t", "--from-earliest"], "Did you mean --from-beginning?", id="from-earliest"),
        pytest.param(["broker", "--port", "9092"], "Did you mean --listen?", id="port-of-broker"),
        pytest.param(["exporter", "--port", "9308"], "Did you mean --listen?", id="port-of-exporter"),
        pytest.param(["topics", "list", "--broker-list", "a:1"], "Did you mean --bootstrap-server?", id="broker-list"),
        pytest.param(["lag", "g"], 'Did you mean "groups lag"?', id="command-of-a-family"),
        pytest.param(["members"], 'Did you mean "groups members"?', id="another-command-of-a-family"),
    ],
)
def test_words_of_other_tools_name_what_to_write(
    words: list[str], advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    assert advice in capsys.readouterr().err


def test_each_usual_option_has_a_counterpart_somewhere(capsys: pytest.CaptureFixture[str]) -> None:
    pages = ""
    for words in (["consume"], ["exporter"], ["groups", "reset-offsets"]):
        assert run([*words, "--help"]) == 0
        pages += capsys.readouterr().out
    for ours in USUAL_OPTIONS.values():
        for name in ours:
            assert f"  {name}" in pages, name


def test_commands_that_only_read_stand_first_in_the_list_of_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["groups", "--help"]) == 0
    commands = re.findall(r"^  ([a-z-]+)  ", capsys.readouterr().out, re.MULTILINE)
    assert commands[:4] == ["list", "describe", "members", "lag"]
    assert commands[-4:] == ["reset-offsets", "clone", "delete-offsets", "delete"]


def test_help_of_the_exporter_does_not_call_every_shared_option_one_about_security(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["exporter", "--help"]) == 0
    assert "\nFurther options:\n  --otlp" in capsys.readouterr().out


@pytest.mark.parametrize("columns", ["10", "40", "400"])
def test_a_page_fits_its_terminal(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert run(["consume", "--help"]) == 0
    widest = max(map(len, capsys.readouterr().out.splitlines()))
    assert widest <= max(int(columns), 60)
    assert widest <= 120


@pytest.mark.parametrize(
    "words", [["demo", "--no-keep"], ["groups", "members", "g", "--no-all-groups"], ["groups", "list", "--empty-state"]]
)
def test_options_have_no_negative_form(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 2
    assert f"Unknown option: {words[-1]}" in capsys.readouterr().err


def options_of(words: list[str]) -> set[str]:
    """The options of a command, with their other names."""
    app = command_tree()
    for word in words:
        app = app[word]
    return {name for argument in app.assemble_argument_collection() for name in argument.names}


OF_NO_CLUSTER = {
    "broker", "zookeeper", "completion", "explain", "log check", "region files", "region compact", "groups history",
    "spark checkpoint show",
}  # fmt: skip
"""Commands that serve, or read files alone. `coordinator` is one too, but its `status` asks."""


@pytest.mark.parametrize("words", every_command(), ids=" ".join)
def test_commands_that_ask_a_cluster_take_the_options_that_the_readme_names(words: list[str]) -> None:
    options, asking = options_of(words), {"--bootstrap-server", "--command-config"}
    if " ".join(words) in OF_NO_CLUSTER:
        assert not options & asking
        return
    assert options >= asking
    if words != ["exporter"]:
        assert options >= {"--json", "--timeout"}


@pytest.mark.parametrize("words", [["broker"], ["demo"], ["doctor"], ["zookeeper"]], ids=" ".join)
def test_option_that_takes_a_folder_does_not_ask_for_a_file(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert run([*words, "--help"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if re.search(r" {2}(?:The|A) folder ", line)]
    assert lines
    assert [line for line in lines if not re.match(r"  --[a-z]+ FOLDER ", line)] == []
