"""The pages themselves.

Blocks that are run or say why not, links that lead somewhere, versions that are those of the pins.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documentation.snippets import PAGES, ROOT, snippets
from tests.documentation.versions import table


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_has_a_rule_and_every_link_leads_somewhere(page: Path) -> None:
    snippets(page)
    targets = re.findall(r"(?<!!)\[[^\]]+\]\(([^)#]+)[^)]*\)|!\[[^\]]*\]\(([^)]+)\)|src=\"([^\"]+)\"", page.read_text())
    local = [target for found in targets for target in found if target and "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []
    assert [target for target in local if not (page.parent / target).resolve().is_relative_to(ROOT)] == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_into_a_page_names_a_heading(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:\s]*)#([^)]+)\)", page.read_text(encoding="utf-8"))
    places = [(page.parent / file if file else page, anchor) for file, anchor in targets]
    assert [f"{place}#{anchor}" for place, anchor in places if anchor not in anchors(place)] == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```text\nwhat is shown\n```\n", "has no rule"),
        ("<!-- snippet: not run -->\n```sh\nmake\n```\n", "not understood"),
        ("<!-- snippet: skipped: later -->\n```sh\nmake\n```\n", "not understood"),
        ("<!-- snippet: not run: no block follows -->\n\nText.\n", "belongs to no block"),
    ],
)
def test_a_block_can_not_be_left_out_without_a_reason(
    text: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    monkeypatch.setattr("tests.documentation.snippets.ROOT", tmp_path)
    with pytest.raises(ValueError, match=complaint):
        snippets(page)


def test_the_versions_that_the_readme_names_are_those_of_the_pins() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.partition("<!-- versions: tests/documentation/versions.py -->\n")[2].partition("\n\n")[0] == table()


MESSAGES_OF_OTHERS = (
    "AdminClient",
    "Failed to find the data source: kohort",
    "JAVA_GATEWAY_EXITED",
    "No module named 'crc32c'",
    "No module named 'kohort'",
    "No space left on device",
    "Python worker failed to connect back",
    "The cluster does not support the STREAMS group protocol",
    'cannot be written in the "ErrorIfExists" mode',
    "certificate verify failed",
    "fixture 'kohort_broker' not found",
    "list_consumer_group_offsets",
    "max.poll.interval.ms",
    "metadata.brokers[0]",
    "poll",
    "send_offsets_to_transaction",
)
"""Quotations of Spark, Java, pip, pytest and other clients on the page of troubles, and names of calls and settings."""


def texts_in_source() -> Iterator[str]:
    """The texts in kohort's source; an ellipsis stands for each value in them."""
    for file in (ROOT / "src" / "kohort").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield re.sub(r"%[srd]", "…", node.value)
            elif isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)


def test_page_of_troubles_quotes_messages_that_kohort_has() -> None:
    """A reader searches the page for what is on the screen."""
    lines = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8").splitlines()
    seen = [line.split("|")[1] for line in lines if line.startswith("| ") and not line.startswith("| seen ")]
    quoted = {text for cell in seen for text in re.findall(r"`([^`]+)`", cell)} - {*MESSAGES_OF_OTHERS}
    known = "\n".join({*texts_in_source()})
    needles = {text: max(re.split("…|: ", text), key=len).strip(" ()[]") for text in quoted}
    assert [text for text, needle in needles.items() if needle not in known] == []
    assert len(quoted) > 15
