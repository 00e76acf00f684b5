"""Every declared setting is read somewhere, or its own description says that it has no effect."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

import kohort
from kohort.settings.config import settings
from tests.documentation.test_settings_page import declared

HOME = Path(kohort.__file__).parent
WITHOUT_EFFECT = ("taken as it is: ", "a setting of Java's clients; ", "a setting of Kafka's; ")
"""How a declaration begins that has no effect here, followed by the reason."""
READ_BY_PROPERTY = {
    "sasl.users.location": "broker/run.py",
    "default.replication.factor": "broker/config/single_broker.py",
}
"""Settings that are read by their property name, and the file that does."""
ONLY_DESCRIBED = {"min.insync.replicas"}
"""Settings without effect whose value is read to describe it."""
HOLDERS = {
    "_config",
    "_options",
    "config",
    "first_mechanism_config",
    "group_config",
    "kept",
    "limits",
    "log_config",
    "options",
    "own",
    "self",
    "settings",
    "value",
    "configs",
    "defaults",
    "log",
}
"""Names of what holds a configuration where a field of it is read."""


@cache
def _reads(text: str) -> frozenset[tuple[str, str]]:
    """The attributes that a module reads, each with the last name before it."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            base = node.value.value if isinstance(node.value, ast.Subscript) else node.value
            if isinstance(base, ast.Attribute | ast.Name):
                found.add((node.attr, base.attr if isinstance(base, ast.Attribute) else base.id))
    return frozenset(found)


def unread(sources: list[str]) -> list[str]:
    """Return the settings of all configuration classes that these modules don't read, by property name."""
    reads = {read for text in sources for read in _reads(text)}
    found = set()
    for config in declared():
        for name, setting in settings(config).items():
            says = setting.declaration.why.startswith(WITHOUT_EFFECT)
            if (
                not says
                and name not in READ_BY_PROPERTY
                and not any((setting.field, base) in reads for base in HOLDERS)
            ):
                found.add(name)
    return sorted(found)


@pytest.fixture(scope="module")
def sources() -> list[str]:
    """The text of every module."""
    return [path.read_text(encoding="utf-8") for path in sorted(HOME.rglob("*.py"))]


def test_every_setting_is_read_or_says_that_it_has_no_effect(sources: list[str]) -> None:
    assert unread(sources) == []


def test_settings_read_by_their_property_are(sources: list[str]) -> None:
    for name, file in READ_BY_PROPERTY.items():
        assert f'"{name}"' in (HOME / file).read_text(encoding="utf-8"), name


def test_settings_that_say_so_have_no_effect(sources: list[str]) -> None:
    """A description that outlives the setting's use would mislead as much."""
    reads = {attribute for text in sources for attribute, base in _reads(text) if base in HOLDERS}
    quiet = {
        name
        for config in declared()
        for name, setting in settings(config).items()
        if setting.declaration.why.startswith(WITHOUT_EFFECT) and setting.field in reads
    }
    assert quiet == ONLY_DESCRIBED


def test_a_setting_that_nothing_reads_is_found(sources: list[str]) -> None:
    fewer = [
        text.replace(".consumer_regex_refresh_ms", ".other").replace(".fetch_min_bytes", ".other") for text in sources
    ]
    assert unread(fewer) == ["fetch.min.bytes", "group.consumer.regex.refresh.interval.ms"]
