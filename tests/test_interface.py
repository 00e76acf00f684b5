"""The public interface as a whole: what it exports, how its settings are typed, how its times are named."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import os
import subprocess
import sys
import textwrap
import typing
import uuid
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_type_hints

import pyarrow
import pytest
from tools import setting_types

import kohort
from kohort.settings.config import settings

HOME = Path(kohort.__file__).parent
CLIENTS = {
    "Admin": kohort.ConnectionConfig,
    "AsyncAdmin": kohort.ConnectionConfig,
    "Consumer": kohort.ConsumerConfig,
    "AsyncConsumer": kohort.ConsumerConfig,
    "Producer": kohort.ProducerConfig,
    "AsyncProducer": kohort.ProducerConfig,
}
TYPES = {kind.__name__: kind for kind in (kohort.ConnectionSettings, kohort.ConsumerSettings, kohort.ProducerSettings)}


def public_classes() -> list[type]:
    return [kind for kind in (getattr(kohort, name) for name in kohort.__all__) if inspect.isclass(kind)]


def callables(kind: type) -> Iterator[tuple[str, Any]]:
    """The public methods of a class and its bases.

    The functions of its properties too, and its making where callers make it.
    """
    for name, member in inspect.getmembers_static(kind):
        made = name == "__init__" and (hasattr(member, "arguments") or dataclasses.is_dataclass(kind))
        if (name.startswith("_") and not made) or issubclass(kind, Enum):
            continue
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if inspect.isfunction(function) and (function.__module__ or "").startswith("kohort"):
            yield f"{kind.__name__}.{name}", inspect.unwrap(function)


def named_types(annotation: Any, scope: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The names in an annotation, and what they stand for."""
    if not isinstance(annotation, str):
        return
    for node in ast.walk(ast.parse(annotation, mode="eval")):
        if isinstance(node, ast.Name) and node.id in scope:
            yield node.id, scope[node.id]


def not_exported(name: str, value: Any) -> bool:
    """Whether a name in a signature is ours and can't be imported from `kohort`."""
    if isinstance(value, typing.TypeVar | typing.ParamSpec) or inspect.ismodule(value):
        return False
    home = sys.modules.get(getattr(value, "__module__", "") or "")
    if home is not None and not home.__name__.startswith("kohort") and getattr(home, name, None) is value:
        return False  # Python's own, or Arrow's
    return name not in kohort.__all__ or getattr(kohort, name) is not value


def test_every_type_of_a_public_signature_is_exported() -> None:
    missing: set[str] = set()
    seen = 0
    for kind in public_classes():
        scope = {**vars(sys.modules[kind.__module__]), "pa": pyarrow}
        for field, annotation in inspect.get_annotations(kind).items():
            if not field.startswith("_"):
                missing |= {
                    f"{kind.__name__}.{field}: {name}"
                    for name, it in named_types(annotation, scope)
                    if not_exported(name, it)
                }
        for where, function in callables(kind):
            signature = inspect.signature(function)
            parts = [*(parameter.annotation for parameter in list(signature.parameters.values())[1:])]
            if not where.endswith("__init__"):
                parts.append(signature.return_annotation)
            for annotation in parts:
                for name, it in named_types(annotation, {**function.__globals__, "pa": pyarrow}):
                    seen += 1
                    if not_exported(name, it):
                        missing.add(f"{where}: {name}")
    assert missing == set()
    assert seen > 400


def test_what_instances_have_is_annotated() -> None:
    """So that the test above sees it: `self.config = …` of a public class has its type in the class."""
    missing = []
    for kind in public_classes():
        own = kind.__dict__.get("__init__")
        if own is None or not inspect.isfunction(own) or dataclasses.is_dataclass(kind):
            continue
        hints = {name for base in kind.__mro__ for name in inspect.get_annotations(base)}
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(own))))
        for target in (node for node in ast.walk(tree) if isinstance(node, ast.Attribute)):
            stored = (
                isinstance(target.ctx, ast.Store) and isinstance(target.value, ast.Name) and target.value.id == "self"
            )
            if stored and not target.attr.startswith("_") and target.attr not in hints:
                missing.append(f"{kind.__name__}.{target.attr}")
    assert missing == []


def test_type_checkers_see_the_names_that_there_are() -> None:
    """Names under TYPE_CHECKING in the package are those that can be imported from it."""
    tree = ast.parse((HOME / "__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.asname: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert seen == kohort._HOMES
    assert list(kohort.__all__) == list(kohort._HOMES)
    for name, home in seen.items():
        assert getattr(kohort, name) is getattr(__import__(home, fromlist=[name]), name)


def test_importing_the_package_imports_nothing_of_it() -> None:
    code = (
        "import sys, kohort; "
        "print([name for name in sys.modules if name.startswith(('kohort.', 'pyarrow', 'asyncio'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_timeouts_are_timeout_ms_and_given_by_name() -> None:
    """A number without a name could be seconds.

    `poll`, whose first argument everybody knows, takes it by position too.
    """
    wrong = []
    for kind in public_classes():
        for where, function in () if dataclasses.is_dataclass(kind) else callables(kind):
            for parameter in inspect.signature(function).parameters.values():
                short = parameter.name.endswith(("_s", "_sec", "_seconds")) or parameter.name in (
                    "timeout",
                    "seconds",
                    "delay",
                )
                by_position = parameter.name == "timeout_ms" and parameter.kind is not parameter.KEYWORD_ONLY
                if (
                    short
                    or ("timeout" in parameter.name and parameter.name != "timeout_ms")
                    or (by_position and ".poll" not in where)
                ):
                    wrong.append(f"{where}({parameter})")
                if parameter.name == "timeout_ms" and not str(parameter.annotation).startswith("float"):
                    wrong.append(f"{where}: {parameter.annotation}")
    assert wrong == []


def test_settings_are_typed_as_they_are_configured() -> None:
    """The written types against the configuration classes: names, types, defaults, units, texts."""
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "-"],
        input=setting_types.source(),
        capture_output=True,
        text=True,
        check=True,
        cwd=HOME,
    )
    assert (HOME / "client/setting_types.py").read_text() == done.stdout, "make docs writes it"
    for name, config in CLIENTS.items():
        kind: Any = getattr(kohort, name)
        (taken,) = [p for p in inspect.signature(kind.__init__).parameters.values() if p.kind is p.VAR_KEYWORD]
        (typed,) = typing.get_args(eval(str(taken.annotation), {**TYPES, "Unpack": typing.Unpack}))
        fields = {setting.field for setting in settings(config).values()} - {"bootstrap_servers"}
        assert set(get_type_hints(typed)) == fields and not typed.__required_keys__
        assert "bootstrap_servers" in inspect.signature(kind.__init__).parameters


def test_help_lists_each_setting_with_default_and_unit() -> None:
    for name, config in CLIENTS.items():
        kind = getattr(kohort, name)
        text = inspect.getdoc(kind) or ""
        for setting in settings(config).values():
            assert f"\n    {setting.field}: " in text, (name, setting.field)
        assert "request_timeout_ms: 30000 ms (at least 1 ms)" in text
        assert text.startswith(kind.__doc__.splitlines()[0])
    assert "session_timeout_ms: 45000 ms" in (kohort.Consumer.__doc__ or "")
    assert "compression_type: 'none' (none, gzip," in (kohort.Producer.__doc__ or "")
    done = subprocess.run(
        [sys.executable, "-c", "import kohort; help(kohort.Consumer)"], capture_output=True, text=True, check=True,
        env={**os.environ, "PAGER": "cat"},
    )  # fmt: skip
    assert "max_poll_interval_ms: 300000 ms" in done.stdout


SNIPPET = """
from typing import Any
from kohort import Admin, AsyncConsumer, Consumer, Producer, NewTopic, TopicPartition

Consumer("h:1", group_id="g", session_timeout_ms=6000, group_protocol="consumer", auto_offset_reset="earliest")
Producer("h:1", acks=1, compression_type="zstd", value_serializer=lambda value: bytes(value))
Admin(["h:1"], request_timeout_ms=5)
settings: dict[str, Any] = {"group.id": "g"}
Consumer("h:1", **settings)
consumer = Consumer()
consumer.commit({TopicPartition("t", 0): 5}, timeout_ms=100)

Consumer(grop_id="g")  # wrong
AsyncConsumer(grop_id="g")  # wrong
Consumer(session_timeout_ms="6000")  # wrong
Consumer(group_protocol="clasic")  # wrong
Producer(group_id="g")  # wrong
Producer(compression_type="gz")  # wrong
Admin(linger_ms=5)  # wrong
Admin().create_topics(["x"])  # wrong
Admin().delete_topics(["x"], timeout=5)  # wrong
Producer().flush(10)  # wrong
consumer.assign([("t", 0)])  # wrong
"""


@pytest.mark.slow
def test_mypy_refuses_what_is_misspelt(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    file = tmp_path / f"snippet_{uuid.uuid4().hex}.py"  # a new name: mypy keeps paths of earlier ones
    file.write_text(SNIPPET)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--hide-error-context", "--no-error-summary", str(file)],
        capture_output=True, text=True, check=False, cwd=HOME.parent.parent,
    )  # fmt: skip
    told = {
        int(line.split(":")[1]) for line in done.stdout.splitlines() if "error:" in line and line.startswith(str(file))
    }
    wrong = {number for number, line in enumerate(SNIPPET.splitlines(), 1) if line.endswith("# wrong")}
    assert told == wrong, done.stdout + done.stderr
