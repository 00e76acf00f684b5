"""Names that tests patch exist: a rename is seen by the type checker in code, but not in strings."""

from __future__ import annotations

import ast
import importlib
import warnings
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
OURS = ("kohort", "tests", "simulation", "bench", "frameworks", "tools")
PATCHES = ("setattr", "delattr", "patch.object", "patch", "_instead")


def imported(tree: ast.Module) -> dict[str, str]:
    """The names that a file imports, with what they stand for."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.asname or alias.name.partition(".")[0]: alias.name for alias in node.names if alias.asname}
    return names


def patched(text: str) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of each attribute of ours that is patched by name."""
    tree = ast.parse(text)
    names = imported(tree)
    for node in ast.walk(tree):
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
    assert [(line, is_there(name)) for line, name in patched(text)] == [(4, False), (5, False), (6, True), (7, True)]


def test_every_patched_name_is_there() -> None:
    """In tests, and in the programs beside them that plant faults."""
    gone = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for folder in ("tests", "simulation", "bench", "frameworks"):
            for file in sorted((ROOT / folder).rglob("*.py")):
                text = file.read_text()
                if not any(word in text for word in PATCHES):
                    continue
                where = file.relative_to(ROOT)
                gone += [f"{where}:{line}: {name}" for line, name in patched(text) if not is_there(name)]
    assert gone == []
