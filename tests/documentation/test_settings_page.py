"""docs/settings.md is what the declarations say, and has all of them."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from pathlib import Path

from tools import setting_docs

import kohort
from kohort.settings.config import settings

HOME = Path(kohort.__file__).parent


def declared() -> set[type]:
    """Every configuration class: a dataclass with settings, in a module that declares any."""
    found: set[type] = set()
    for module in pkgutil.walk_packages([str(HOME)], "kohort."):
        file = HOME.parent / (module.name.replace(".", "/") + ".py")
        if file.exists() and "= declare_setting(" in file.read_text(encoding="utf-8"):
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, type) and dataclasses.is_dataclass(value) and settings(value):
                    found.add(value)
    return found


def test_settings_page_is_current() -> None:
    assert setting_docs.PAGE.read_text(encoding="utf-8") == setting_docs.page(), "run make docs"


def test_settings_page_has_every_declared_setting() -> None:
    sections = {section.config for section in setting_docs.SECTIONS}
    assert sections <= declared()
    for config in declared() - sections:
        assert any(config in section.__mro__ for section in sections), f"{config} is in no section"
    page = setting_docs.page()
    for section in setting_docs.SECTIONS:
        for setting in settings(section.config).values():
            assert f"| `{setting.declaration.name}`" in page, setting.declaration.name


def test_every_setting_says_what_it_is_for() -> None:
    for section in setting_docs.SECTIONS:
        assert [name for name, setting in settings(section.config).items() if not setting.declaration.why] == []
