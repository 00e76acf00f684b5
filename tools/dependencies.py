"""Checks the pinned dependencies: the licence of each by its metadata, and known vulnerabilities by pip-audit.

The licence check needs the development environment (`make setup`). The tools pip-audit, twine and check-wheel-contents
have environments and pins of their own, and so has MkDocs: requirements/audit.txt, release.txt and site.txt. Of these
pip-audit asks the package index. Without an answer the check says what was not looked up. It fails for a licence
that is neither allowed nor excepted, and for a known vulnerability.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageMetadata, PackageNotFoundError, metadata
from pathlib import Path
from typing import NamedTuple

from packaging.markers import Marker

ROOT = Path(__file__).resolve().parent.parent
PINS = tuple(sorted((ROOT / "requirements").glob("*.txt")))
AUDITOR = ROOT / "requirements" / "audit.txt"
OF_TOOLS = frozenset({AUDITOR, ROOT / "requirements" / "release.txt", ROOT / "requirements" / "site.txt"})
"""Pins of tools that run in an environment of their own: their licences can't be read here, and nobody gets them."""
AUDIT_S = 600

ALLOWED = frozenset(
    {
        "0BSD", "Apache-2.0", "BSD", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "MIT", "MIT-0", "MIT-CMU", "PSF-2.0",
        "Zlib",
    }
)  # fmt: skip
"""Licences, by their SPDX names, that ask for no more than a notice."""
EXCEPTIONS = {
    "crc32c": (
        "LGPL-2.1-or-later",
        "imported as a package of its own and unchanged, so that anyone can replace it; nothing of it is in our files",
    ),
    "psycopg": ("LGPL-3.0-only", "the extra postgres alone; a package of its own and unchanged, as crc32c"),
    "psycopg-binary": ("LGPL-3.0-only", "see psycopg"),
    "certifi": ("MPL-2.0", "Mozilla's list of authorities, unchanged; the extra lake alone"),
    "hypothesis": ("MPL-2.0", "for tests alone; not installed with the package"),
    "pathspec": ("MPL-2.0", "mypy needs it, for development alone; not installed with the package"),
}
"""Packages with another licence: that licence, and why they may be used. A package that changes it fails the check."""
NAMES = {
    "apache 2": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "3-clause bsd license": "BSD-3-Clause",
    "bsd license": "BSD",
    "cc0": "CC0-1.0",
    "gnu lesser general public license v2 or later (lgplv2+)": "LGPL-2.1-or-later",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
}
"""SPDX names of what packages without a licence expression say, in lower case."""


class Pin(NamedTuple):
    """A package at the version that is pinned."""

    name: str
    version: str


def pins(text: str) -> set[Pin]:
    """Return the packages of a file of pins that this platform and this Python install."""
    found = set()
    for line in text.splitlines():
        match = re.match(r"([A-Za-z0-9._-]+)==(\S+)(?: ; (.*?))?(?: \\)?$", line)
        if match and (match[3] is None or Marker(match[3]).evaluate()):
            found.add(Pin(match[1], match[2]))
    return found


def licence(about: PackageMetadata | Mapping[str, str], classifiers: Iterable[str]) -> str:
    """Return a package's licence as an SPDX expression; or what it says instead, if no name for it is known."""
    expression = about.get("License-Expression")
    if expression:
        return expression
    said = [text.rpartition("::")[2].strip() for text in classifiers if text.startswith("License ::")]
    said = [text for text in said if text != "DFSG approved"]
    short = about.get("License") or ""
    if not said:
        said = [short.strip().partition("\n")[0]]
    names = [text if text in ALLOWED else NAMES.get(text.lower(), text) for text in said]
    return " OR ".join(dict.fromkeys(names)) or "none"


def is_allowed(expression: str) -> bool:
    """Return whether allowed licences meet an SPDX expression: all of an AND, one of an OR. Parentheses are refused."""
    alternatives = expression.split(" OR ")
    return any(all(name in ALLOWED for name in alternative.split(" AND ")) for alternative in alternatives)


def licence_faults(packages: Iterable[Pin]) -> list[str]:
    """Return what is wrong with the licences of installed packages."""
    faults = []
    for package in sorted(packages):
        try:
            about = metadata(package.name)
        except PackageNotFoundError:
            faults.append(f"{package.name}: not installed, so that its licence can't be read (make setup)")
            continue
        found = licence(about, about.get_all("Classifier") or [])
        expected, _ = EXCEPTIONS.get(package.name, (None, ""))
        if found != expected and not is_allowed(found):
            faults.append(f"{package.name}: licence {found!r}: allow it, or add an exception with a reason")
    return faults


class Audit(NamedTuple):
    """Known vulnerabilities.

    Attributes:
        found: a line for each.
        unknown: why a package was not looked up, by its name.
    """

    found: list[str]
    unknown: dict[str, str]


def read_audit(text: str) -> Audit:
    """Read pip-audit's JSON."""
    found, unknown = [], {}
    for package in json.loads(text)["dependencies"]:
        if "skip_reason" in package:
            unknown[package["name"]] = package["skip_reason"]
        for vulnerability in package.get("vulns", ()):
            fixed = ", ".join(vulnerability["fix_versions"]) or "no version yet"
            found.append(f"{package['name']} {package['version']}: {vulnerability['id']}, fixed in {fixed}")
    return Audit(found, unknown)


def audit(file: Path) -> Audit | str:
    """Look up the packages of a file of pins; return why that was not possible, if it was not."""
    uv = Path(sys.executable).with_name("uv")
    environment = (str(uv), "run", "--quiet", "--isolated", "--no-project", "--with-requirements", str(AUDITOR))
    options = ("--disable-pip", "--require-hashes", "--format=json", "--requirement", str(file))
    command = (*environment, "pip-audit", *options)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=AUDIT_S, check=False)
        return read_audit(done.stdout)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    except (ValueError, KeyError):
        return (done.stderr.strip().splitlines() or ["no answer"])[-1]


def main() -> int:
    """Check all pins; return the exit code."""
    packages = {package for file in PINS if file not in OF_TOOLS for package in pins(file.read_text())}
    faults = licence_faults(packages)
    if not faults:
        print(f"licences of {len(packages)} packages: allowed, or excepted with a reason ({len(EXCEPTIONS)})")
    for file in PINS:
        answer = audit(file)
        name = file.relative_to(ROOT)
        if isinstance(answer, str):
            print(f"{name}: known vulnerabilities NOT looked up, pip-audit can't ask the package index: {answer}")
            continue
        if answer.unknown:
            print(f"{name}: NOT looked up: {', '.join(sorted(answer.unknown))}")
        elif not answer.found:
            print(f"{name}: no known vulnerability")
        faults += answer.found
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
