"""Builds the site from README, docs/ and the other pages: `python -m tools.site` writes build/site.

Links of a checkout lead outside of docs/, so pages are copied to build/site-pages first. There a link to a page leads
to its place in the site, and one to a source file becomes its text. Then MkDocs builds with `--strict`. At the end each
link and each address that a reader's browser would load is checked. Only the first run needs the network, for MkDocs.
"""

from __future__ import annotations

import inspect
import os
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import kohort
import kohort.region

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "build" / "site-pages"
SITE = ROOT / "build" / "site"
UV = Path(sys.executable).parent / "uv"
IN_ITS_ENVIRONMENT = [
    *(str(UV), "run", "--quiet", "--isolated", "--no-project"),
    *("--with-requirements", str(ROOT / "requirements" / "site.txt")),
]
"""Runs MkDocs with its pins in an environment of its own, which uv keeps: the package and its tests need none of it."""
PLACES = {
    "README.md": "index.md",
    "docs/README.md": "reading-order.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "CHANGELOG.md": "changelog.md",
    "tests/README.md": "tests.md",
    "examples/README.md": "examples.md",
}
"""Where pages outside of docs/ stand in the site, and the one in it whose name MkDocs takes for the first page."""
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_LOADED = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}
"""The tags whose addresses a browser loads by itself, each with its attribute."""


def site_path(path: str) -> str | None:
    """Return a page's or picture's place in the site; None: it has none.

    Args:
        path: its place in the checkout.
    """
    if path in PLACES:
        return PLACES[path]
    inside = path.removeprefix("docs/")
    return inside if inside != path and (ROOT / path).is_file() else None


def moved_links(text: str, path: str) -> str:
    """Return a page's text with its links as they are in the site.

    Args:
        text: the text.
        path: the page's place in the checkout.
    """
    here = posixpath.dirname(site_path(path) or "")

    def moved(match: re.Match[str]) -> str:
        mark, words, target = match.groups()
        address, hash_sign, anchor = target.partition("#")
        if urlsplit(target).scheme or not address:
            return match[0]
        place = site_path(posixpath.normpath(posixpath.join(posixpath.dirname(path), address)))
        if place is None:
            return str(words)
        return f"{mark}[{words}]({posixpath.relpath(place, here or '.')}{hash_sign}{anchor})"

    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else _LINK.sub(moved, part) for part in parts)


def write_pages() -> None:
    """Copy pages and pictures to `PAGES`, with their links moved."""
    shutil.rmtree(PAGES, ignore_errors=True)
    files = [*PLACES, *(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*") if path.is_file())]
    for path in dict.fromkeys(files):
        place = site_path(path)
        assert place is not None
        target = PAGES / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith(".md"):
            target.write_text(moved_links((ROOT / path).read_text(encoding="utf-8"), path), encoding="utf-8")
        else:
            shutil.copyfile(ROOT / path, target)
    (PAGES / "reference.md").write_text(api_page(), encoding="utf-8")


def api_page() -> str:
    """Return the page of the package's public classes, which mkdocstrings fills from the sources."""
    sections = ["# Python\n", "The names that the package exports. `help()` shows the same texts.\n"]
    for module in (kohort, kohort.region):
        sections.append(f"## {module.__name__}\n")
        for name in sorted(module.__all__):
            found = getattr(module, name)
            if inspect.isclass(found) and not issubclass(found, BaseException):
                options = "    options:\n      heading_level: 3\n"
                sections.append(f"::: {found.__module__}.{found.__qualname__}\n{options}")
    return "\n".join(sections)


class _Addresses(HTMLParser):
    """The addresses and anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors.add(found.get("id", ""))
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in _LOADED and _LOADED[tag] in found and found.get("rel") not in ("canonical", "next", "prev"):
            self.loaded.append(found[_LOADED[tag]])


def _read_page(page: Path) -> _Addresses:
    made = _Addresses()
    made.feed(page.read_text(encoding="utf-8"))
    return made


def faults(site: Path) -> Iterator[str]:
    """Yield each link that leads nowhere, and each address of another host that a browser would load."""
    pages = {page: _read_page(page) for page in sorted(site.rglob("*.html"))}
    for page, found in pages.items():
        name = page.relative_to(site)
        yield from (f"{name} loads {address}" for address in found.loaded if urlsplit(address).netloc)
        if name.name == "404.html":  # its links are absolute, for whichever address was not found
            continue
        for link in [*found.links, *found.loaded]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = page if not parts.path else (page.parent / unquote(parts.path)).resolve()
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                yield f"{name} links to {link}, which is not there"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{name} links to {link}, which has no such anchor"
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        yield from (
            f"{style.relative_to(site)} loads {url}" for url in re.findall(r"url\([\"']?(https?:[^)]+)\)", text)
        )


def main() -> int:
    """Build the site; return the exit code."""
    write_pages()
    shutil.rmtree(SITE, ignore_errors=True)
    command = [*IN_ITS_ENVIRONMENT, "mkdocs", "build", "--quiet", "--strict", "--config-file", "mkdocs.yml"]
    built = subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=False)
    if built.returncode:
        return built.returncode
    found = list(faults(SITE))
    print(*found, sep="\n", end="\n" if found else "")
    pages = len(list(SITE.rglob("*.html")))
    print(f"site: {pages} pages in build/site, {len(found)} faults; python -m http.server -d build/site shows it")
    return 1 if found or not pages else 0


if __name__ == "__main__":
    sys.exit(main())
