"""Names of ours that no type checker sees exist: those that tests patch or import, and those of programs in strings."""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
OURS = ("kohort", "tests", "simulation", "bench", "frameworks", "tools")
MADE_UP = ("test_prose.py", "test_patched_names.py")
"""Files whose programs name what is not there."""
PATCHES = ("setattr", "delattr", "patch.object", "patch", "_instead")


MAY_NAME = re.compile(rf"(?:{'|'.join(map(re.escape, PATCHES))})\(|from kohort")
"""Text in each file that patches by a name, has a program, or imports a name of ours."""


@contextlib.contextmanager
def not_collected() -> Iterator[None]:
    """Look for no garbage in a million nodes meanwhile, where there is none: that takes half of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def nodes_of(text: str) -> list[ast.AST]:
    """Every node of a program. A tree is walked once: that takes longer than to parse it."""
    return list(ast.walk(ast.parse(text)))


def imported(nodes: Sequence[ast.AST]) -> dict[str, str]:
    """The names that a file's nodes import, with what they stand for."""
    names: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.asname or alias.name.partition(".")[0]: alias.name for alias in node.names if alias.asname}
    return names


def patched(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of each attribute of ours that is patched by name."""
    names = imported(nodes)
    for node in nodes:
        if not (isinstance(node, ast.Call) and node.args and ast.unparse(node.func).endswith(PATCHES)):
            continue
        words = [ast.unparse(node.args[0]), *(ast.unparse(arg) for arg in node.args[1:2])]
        first, second = (arg.value if isinstance(arg, ast.Constant) else None for arg in [*node.args, None][:2])
        if isinstance(first, str):
            dotted = first
        elif isinstance(second, str) and words[0].replace(".", "_").isidentifier():
            head, _, rest = words[0].partition(".")
            dotted = ".".join(filter(None, (names.get(head, ""), rest, second)))
        else:
            continue
        if dotted.startswith(tuple(f"{ours}." for ours in OURS)):
            yield node.lineno, dotted


def named_in_programs(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of each name of ours that is imported, or an imported module's, in a program in a string."""
    for node in nodes:
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str) and "from kohort" in node.value):
            continue
        try:
            program = nodes_of(textwrap.dedent(node.value))
        except SyntaxError:  # a text about programs, or one with places to fill in
            continue
        names = {name: dotted for name, dotted in imported(program).items() if dotted.startswith("kohort.")}
        used = {
            f"{names[part.value.id]}.{part.attr}"
            for part in program
            if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id in names
        }
        yield from ((node.lineno, dotted) for dotted in sorted({*names.values(), *used}))


@cache
def is_there(dotted: str) -> bool:
    """Whether a dotted name leads to something; a module that can't be imported here is taken to have all names."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        try:
            found = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name == name or name.startswith(f"{error.name}."):
                continue
            return True  # it needs a package that is not installed
        except ImportError:
            return True
        for part in parts[length:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def test_a_patched_name_that_is_gone_is_found() -> None:
    """Both forms, of a module and of a class in it."""
    text = """
from kohort.io import log_throttle as throttle
from kohort.ids import TopicPartition
monkeypatch.setattr("kohort.ids.TopicPartition.gone", 1)
monkeypatch.setattr(throttle.FailureThrottle, "gone", 1)
monkeypatch.setattr(TopicPartition, "_replace", 1)
mock.patch.object(throttle, "FailureThrottle")
monkeypatch.setattr(local, "gone", 1)
"""
    assert [(line, is_there(name)) for line, name in patched(nodes_of(text))] == [
        (4, False),
        (5, False),
        (6, True),
        (7, True),
    ]


def test_a_name_that_is_gone_is_found_in_a_program() -> None:
    program = "from kohort.io import log_throttle, gone\\nprint(log_throttle.FailureThrottle, log_throttle.Gone)"
    found = {name: is_there(name) for _, name in named_in_programs(nodes_of(f'run("{program}")'))}
    assert found == {
        "kohort.io.gone": False,
        "kohort.io.log_throttle": True,
        "kohort.io.log_throttle.FailureThrottle": True,
        "kohort.io.log_throttle.Gone": False,
    }


def named_by_imports(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of each name of ours that a file imports, also in a function, or where no test run does."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("kohort") and not node.level:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def test_name_that_is_gone_is_found_in_an_import() -> None:
    text = "def later():\n    from kohort.ids import TopicPartition, Gone\n"
    assert [is_there(name) for _, name in named_by_imports(nodes_of(text))] == [True, False]


def test_every_name_in_a_string_or_an_import_is_there() -> None:
    """In tests, and in the programs beside them that plant faults, measure or fuzz."""
    gone = []
    with warnings.catch_warnings(), not_collected():
        warnings.simplefilter("ignore")
        for folder in ("tests", "simulation", "bench", "frameworks"):
            for file in sorted((ROOT / folder).rglob("*.py")):
                text = file.read_text()
                if not MAY_NAME.search(text):
                    continue
                nodes = nodes_of(text)
                found = [*patched(nodes), *named_by_imports(nodes)]
                found += [] if file.name in MADE_UP else named_in_programs(nodes)
                gone += [f"{file.relative_to(ROOT)}:{line}: {name}" for line, name in found if not is_there(name)]
    assert gone == []
