"""Every command and every option says what it is for, and the page about them is current."""

from __future__ import annotations

import re

from tools import command_docs

EXPECTED = {
    "demo", "broker", "topics list", "topics describe", "topics create", "topics delete", "topics alter", "produce",
    "consume", "groups list", "groups describe", "groups members", "groups lag", "groups reset-offsets",
    "groups delete-offsets", "groups delete", "groups clone", "groups watch", "log check", "zookeeper", "doctor",
}  # fmt: skip


def test_page_is_current() -> None:
    assert command_docs.PAGE.read_text(encoding="utf-8") == command_docs.page(), "run make docs"


def test_every_command_is_there() -> None:
    headings = set(re.findall(r"^#+ kohort (.+)$", command_docs.page(), re.MULTILINE))
    assert headings >= EXPECTED


def test_every_option_says_what_it_is_for() -> None:
    options = re.findall(r"^\* `-?-?[A-Za-z].*$", command_docs.page(), re.MULTILINE)
    assert len(options) > 100
    assert [line for line in options if not re.match(r"\* `[^`]+`: \S", line)] == []
