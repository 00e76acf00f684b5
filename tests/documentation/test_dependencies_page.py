"""docs/dependencies.md has each dependency of the package with the licence that its metadata has."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import metadata

import pytest
from tools.dependencies import licence

from tests.documentation.snippets import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIRED, EXTRAS = (ROOT / "docs" / "dependencies.md").read_text().split("## Extras\n")


def name_of(requirement: str) -> str:
    return re.split(r"[\[<>=; ]", requirement, maxsplit=1)[0]


def rows(text: str) -> list[list[str]]:
    """The cells of each row of a page's table."""
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines()[1:] if "|" in line][
        2:
    ]


LICENCES = {row[-3]: row[-2] for row in [*rows(REQUIRED), *rows(EXTRAS)]}


def test_every_dependency_has_a_row_with_its_extras() -> None:
    assert {row[0] for row in rows(REQUIRED)} == {name_of(requirement) for requirement in PROJECT["dependencies"]}
    listed = {(extra.strip("` "), row[1]) for row in rows(EXTRAS) for extra in row[0].split(",")}
    assert listed == {
        (extra, name_of(requirement))
        for extra, requirements in PROJECT["optional-dependencies"].items()
        for requirement in requirements
    }


@pytest.mark.parametrize("package", LICENCES)
def test_licence_is_that_of_the_package(package: str) -> None:
    about = metadata(package)
    found = licence(about, about.get_all("Classifier") or [])
    assert found == LICENCES[package] or (found == "BSD" and LICENCES[package] == "BSD-3-Clause")
