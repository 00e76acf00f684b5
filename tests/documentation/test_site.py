"""The site's builder: links between pages, and the faults that it reports. `make site` builds the site itself."""

from __future__ import annotations

import re
from pathlib import Path

from tools import site

ROOT = Path(__file__).resolve().parents[2]


def test_links_lead_to_their_places_in_the_site() -> None:
    text = (
        "[a](../README.md#try-it) [b](limits.md) [c](../src/kohort/errors.py) ![p](demo.svg) [w](https://x.y) [d](#e)"
    )
    assert site.moved_links(text, "docs/lag.md") == (
        "[a](index.md#try-it) [b](limits.md) c ![p](demo.svg) [w](https://x.y) [d](#e)"
    )
    assert site.moved_links("[a](docs/lag.md) [b](ARCHITECTURE.md)", "README.md") == "[a](lag.md) [b](architecture.md)"
    assert site.moved_links("[a](../spark.md)", "docs/start/tests.md") == "[a](../spark.md)"
    code = "```sh\n[a](../README.md)\n```\n"
    assert site.moved_links(code, "docs/lag.md") == code


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")} | site.PLACES.keys()
    assert listed == {site.site_path(page) for page in pages} | {"reference.md"}


def test_broken_links_and_other_hosts_are_reported(tmp_path: Path) -> None:
    (tmp_path / "good.html").write_text('<h1 id="top">x</h1><a href="#top">up</a><a href="https://x.org">out</a>')
    assert list(site.faults(tmp_path)) == []
    (tmp_path / "bad.html").write_text(
        '<a href="none.html">1</a><a href="good.html#none">2</a><script src="https://x.org/a.js"></script>'
        '<link rel="stylesheet" href="//x.org/a.css"><img src="none.png">'
    )
    (tmp_path / "a.css").write_text("@font-face { src: url(https://x.org/f.woff) }")
    found = list(site.faults(tmp_path))
    words = ("none.html", "good.html#none", "loads https://x.org/a.js", "loads //x.org/a.css", "none.png", "f.woff")
    assert len(found) == len(words)
    assert [word for word in words if not any(word in fault for fault in found)] == []


def test_reference_names_the_public_classes() -> None:
    page = site.api_page()
    assert "::: kohort.client.consumer.consumer.Consumer\n" in page and "::: kohort.region.region.Region\n" in page
