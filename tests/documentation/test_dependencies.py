"""Pinned dependencies: licences that are allowed or excepted, and what pip-audit says of them."""

from __future__ import annotations

import json
from email.message import Message

import pytest
from tools import dependencies
from tools.dependencies import (
    AUDITOR,
    EXCEPTIONS,
    OF_TOOLS,
    PINS,
    Pin,
    audit,
    is_allowed,
    licence,
    licence_faults,
    pins,
    read_audit,
)


def test_licence_of_every_pinned_package_is_allowed_or_excepted() -> None:
    packages = {package for file in PINS if file not in OF_TOOLS for package in pins(file.read_text())}
    assert {"crc32c", "pyarrow", "uv"} <= {package.name for package in packages}
    assert licence_faults(packages) == []
    assert EXCEPTIONS.keys() <= {package.name for package in packages}, "an exception that is needed no more"
    assert all(why for _, why in EXCEPTIONS.values())


def test_licence_without_a_reason_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependencies, "EXCEPTIONS", {"psycopg": ("LGPL-2.1-only", "of another version")})
    faults = licence_faults({Pin("crc32c", "2"), Pin("psycopg", "3"), Pin("aaa-no-such-package", "1")})
    assert [fault.partition(":")[0] for fault in faults] == ["aaa-no-such-package", "crc32c", "psycopg"]
    assert "LGPL-2.1-or-later" in faults[1]


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("MIT OR GPL-3.0-only", True),
        ("MIT AND GPL-3.0-only", False),
        ("GPL-3.0-only OR MIT AND Zlib", True),
        ("(MIT OR GPL-3.0-only) AND GPL-2.0-only", False),
        ("Apache-2.0 WITH LLVM-exception", False),
        ("none", False),
    ],
)
def test_expression_needs_all_of_an_and_and_one_of_an_or(expression: str, allowed: bool) -> None:
    assert is_allowed(expression) is allowed


def test_licence_is_the_expression_then_the_classifiers_then_the_text() -> None:
    about = Message()
    about["License"] = "BSD License\nand its text"
    assert licence(about, []) == "BSD"
    assert licence(about, ["License :: OSI Approved :: MIT License"]) == "MIT"
    about["License-Expression"] = "Zlib"
    assert licence(about, ["License :: OSI Approved :: MIT License"]) == "Zlib"
    assert licence(Message(), []) == "none"


def test_pins_leave_out_other_platforms() -> None:
    text = "colorama==0.4.6 ; sys_platform == 'win32' \\\n    --hash=sha256:00\nrich==15.0.0 \\\n    --hash=sha256:00\n"
    assert pins(text) == {Pin("rich", "15.0.0")}


def test_answer_of_pip_audit_names_vulnerabilities_and_what_it_did_not_look_up() -> None:
    vulnerability = {"id": "PYSEC-2020-1", "fix_versions": ["1.2", "1.3"], "aliases": [], "description": "…"}
    answer = {
        "dependencies": [
            {"name": "a", "version": "1.0", "vulns": [vulnerability]},
            {"name": "b", "version": "1.0", "vulns": []},
            {"name": "c", "skip_reason": "Dependency not found"},
        ],
        "fixes": [],
    }
    found = read_audit(json.dumps(answer))
    assert found.found == ["a 1.0: PYSEC-2020-1, fixed in 1.2, 1.3"]
    assert found.unknown == {"c": "Dependency not found"}


def test_audit_that_can_not_run_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_NO_CACHE", "1")
    why = audit(AUDITOR)
    assert isinstance(why, str) and why
