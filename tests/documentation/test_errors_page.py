"""docs/errors.md: current, with an anchor, a cause and a remedy for each public error."""

from __future__ import annotations

import re

import pytest
from tools import error_docs

import kohort
from kohort.errors import ErrorCode, KafkaError
from kohort.region import RowRefusedError

TEXT = error_docs.PAGE.read_text(encoding="utf-8")


def test_errors_page_is_current() -> None:
    assert error_docs.page() == TEXT, "run make docs"


def test_every_public_error_and_code_has_an_anchor() -> None:
    headings = set(re.findall(r"^## (\w+)$", TEXT, re.MULTILINE))
    exported = {name for name in kohort.__all__ if name.endswith("Error")}
    assert exported | {"RowRefusedError", "RegionStoppedError"} <= headings
    assert len(exported) > 10
    anchors = set(re.findall(r'<a id="(\w+)"></a>', TEXT))
    assert anchors == {code.name.lower() for code in ErrorCode} - {"none"}
    links = set(re.findall(r"\]\(#(\w+)\)", TEXT))
    assert links <= {heading.lower() for heading in headings}


def test_every_error_on_the_page_is_imported_from_a_public_module() -> None:
    assert set(re.findall(r"`from ([\w.]+) import \w+`", TEXT)) == {"kohort", "kohort.region"}


def test_error_without_a_remedy_is_noticed() -> None:
    class Silent(KafkaError):
        """A cause alone."""

    with pytest.raises(ValueError, match="Silent has no paragraph"):
        error_docs.cause_and_remedy(Silent)
    assert error_docs.cause_and_remedy(RowRefusedError)[1].startswith("Mend or drop the rows")
