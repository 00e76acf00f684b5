"""The site: links between pages, the faults that its builder reports, and the built pages in a browser."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tools import site
from tools.dashboard_picture import CHROMIUM_OPTIONS, chromium_path

from tests.support.waiting import LAST_RESORT

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


def test_pages_with_drawings_load_the_copy_of_mermaid() -> None:
    drawing = "# x\n\n```mermaid\nflowchart LR\n```\n"
    assert site._script_of_drawings(drawing, "states.md") == '\n<script src="javascripts/mermaid.min.js"></script>\n'
    assert '"../javascripts/mermaid.min.js"' in site._script_of_drawings(drawing, "design/log.md")
    assert site._script_of_drawings("# x\n\n```sh\n```\n", "states.md") == ""


def test_drawing_that_the_site_can_not_draw_is_reported(tmp_path: Path) -> None:
    (tmp_path / "mermaid.min.js").write_text("")
    (tmp_path / "good.html").write_text('<pre class="mermaid">x</pre><script src="mermaid.min.js"></script>')
    assert list(site.faults(tmp_path)) == []
    (tmp_path / "bad.html").write_text('<pre class="mermaid">x</pre>')
    (tmp_path / "text.html").write_text('<div class="language-mermaid highlight">x</div>')
    first, second = site.faults(tmp_path)
    assert "bad.html has a drawing, for which" in first and "text.html shows a drawing as text" in second


def test_other_files_of_mermaid_are_refused(tmp_path: Path) -> None:
    for name in site.MERMAID_FILES:
        (tmp_path / name).write_text("changed")
    with pytest.raises(SystemExit, match="is not the file that"):
        site.fetch_mermaid(tmp_path)
    assert not (tmp_path / "mermaid.min.js").exists(), "the next run fetches it again"


@pytest.mark.slow
@LAST_RESORT
def test_built_site_is_read_without_another_host_and_shows_its_drawings() -> None:
    sync_api = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    if chromium_path() is None or shutil.which("npm") is None:
        pytest.skip("Debian's packages chromium and npm are not installed")
    tried = subprocess.run([*site.IN_ITS_ENVIRONMENT, "mkdocs", "--version"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip("MkDocs can't be had here")
    assert site.main() == 0
    pages = [page for page in sorted(site.SITE.rglob("*.html")) if page.name != "404.html"]
    drawn = [page for page in pages if 'class="mermaid"' in page.read_text(encoding="utf-8")]
    assert len(pages) > 50 and len(drawn) == sum(site.DRAWN in path.read_text() for path in site.PAGES.rglob("*.md"))
    outside: list[str] = []
    said: list[str] = []
    with served(site.SITE) as address, sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=list(CHROMIUM_OPTIONS))
        window: Any = browser.new_page()
        window.on("request", lambda request: outside.append(request.url))
        window.on("pageerror", lambda error: said.append(str(error)))
        for page in pages:
            window.goto(f"{address}/{page.relative_to(site.SITE).as_posix()}")
            if page in drawn:  # the theme replaces each text by its drawing, if Mermaid can read it
                for drawing in window.query_selector_all("pre.mermaid"):
                    window.evaluate("text => mermaid.parse(text)", drawing.text_content())
                window.wait_for_function("!document.querySelector('pre.mermaid')")
                heights = window.eval_on_selector_all("div.mermaid", "all => all.map(one => one.clientHeight)")
                assert heights and min(heights) > 50, page.name
        browser.close()
    assert [url for url in outside if not url.startswith((address, "data:", "blob:"))] == []
    assert said == []


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server of a folder's files."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(20)
