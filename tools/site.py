"""Builds the site from README, docs/ and the other pages: `python -m tools.site` writes build/site.

Links of a checkout lead outside of docs/, so pages are copied to build/site-pages first. There a link to a page leads
to its place in the site, and one to a source file becomes its text. Then MkDocs builds with `--strict`. At the end each
link and each address that a reader's browser would load is checked. Drawings are made in the reader's browser by a copy
of Mermaid in the site. Only the first run needs the network, for MkDocs and, through npm, for Mermaid.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import kohort
import kohort.region

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "build" / "site-pages"
SITE = ROOT / "build" / "site"
FETCHED = ROOT / "build" / "site-scripts"
"""Kept between runs, which then need no network."""
SCRIPTS = "javascripts"
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
MERMAID = "mermaid@11.17.2"
"""The theme's scripts are made for version 11."""
MERMAID_FILES = {
    "mermaid.min.js": (
        "package/dist/mermaid.min.js",
        "581ed7d74bd9048d0e3a91363927d72ef22942d7722546b27f7cc29e35390eb8",
    ),
    "mermaid-license.txt": ("package/LICENSE", "ec9fb67dcb25eccc416ed56e1aab819222c805a2a4bfe4cb19e7556bf2ffde80"),
}
"""File in the site -> its place in Mermaid's package, and its SHA-256."""
DRAWN = "\n```mermaid\n"
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
            text = moved_links((ROOT / path).read_text(encoding="utf-8"), path)
            target.write_text(text + _script_of_drawings(text, place), encoding="utf-8")
        else:
            shutil.copyfile(ROOT / path, target)
    (PAGES / "reference.md").write_text(api_page(), encoding="utf-8")


def _script_of_drawings(text: str, place: str) -> str:
    """Return the element that loads the site's Mermaid; empty for a page without drawings.

    The theme would load it from another host where the page has none.
    """
    if DRAWN not in text:
        return ""
    source = posixpath.relpath(f"{SCRIPTS}/mermaid.min.js", posixpath.dirname(place) or ".")
    return f'\n<script src="{source}"></script>\n'


def fetch_mermaid(folder: Path) -> None:
    """Write Mermaid's files into a folder, if they are not there: by npm, and compared with their SHA-256.

    Raises:
        SystemExit: there is no npm, or the files are not those that are expected.
    """
    for name, (inside, expected) in MERMAID_FILES.items():
        path = folder / name
        if not path.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_out_of_package(inside))
        if hashlib.sha256(path.read_bytes()).hexdigest() != expected:
            path.unlink()
            raise SystemExit(f"site: {inside} of {MERMAID} is not the file that tools/site.py expects")


def _out_of_package(inside: str) -> bytes:
    npm = shutil.which("npm")
    if npm is None:
        raise SystemExit("site: drawings take Mermaid, which npm fetches: install npm")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([npm, "pack", "--silent", MERMAID], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        (package,) = Path(folder).glob("*.tgz")
        with tarfile.open(package) as archive:
            found = archive.extractfile(inside)
            assert found is not None
            return found.read()


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
        self.classes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors.add(found.get("id", ""))
        self.classes.update(found.get("class", "").split())
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
        if "language-mermaid" in found.classes:
            yield f"{name} shows a drawing as text"
        if "mermaid" in found.classes and not any(address.endswith("mermaid.min.js") for address in found.loaded):
            yield f"{name} has a drawing, for which the theme would load a script of another host"
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
    fetch_mermaid(FETCHED)
    write_pages()
    shutil.copytree(FETCHED, PAGES / SCRIPTS)
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
