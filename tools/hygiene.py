"""Fails when a tracked file has what must not be kept.

A machine's path, a package registry's host, generated code, the marks of a merge.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_HOSTS = (
    "pypi" + ".org",
    "pythonhosted" + ".org",
    "registry." + "npmjs",
    "proxy." + "golang",
    "repo1." + "maven",
    "repo." + "maven",
)
FORBIDDEN = {
    "a path of one machine": re.compile(r"(?<![\w.])/(?:work|root|home/\w+|Users/\w+)/"),
    "the host of a package registry": re.compile("|".join(re.escape(host) for host in _HOSTS)),
    "what a merge left": re.compile(r"^(?:<{7}|>{7}|\|{7})(?: |$)"),
}
GENERATED = (".so", ".c", ".pyc", ".jar", ".class", ".egg-info")


def tracked_files() -> list[str]:
    """Every tracked file that is still there."""
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    return [name for name in listing if name and (ROOT / name).is_file()]


def complaints(name: str) -> list[str]:
    """What one file must not hold, one line each."""
    found = []
    if name.endswith(GENERATED):
        found.append(f"{name}: generated files are not kept")
    try:
        text = (ROOT / name).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return found
    for number, line in enumerate(text.split("\n"), start=1):
        found += [f"{name}:{number}: {what}" for what, pattern in FORBIDDEN.items() if pattern.search(line)]
    return found


def main() -> int:
    """Prints every complaint; 1 when there is one."""
    files = tracked_files()
    found = [line for name in files for line in complaints(name)]
    for line in found:
        print(line)
    print(f"hygiene: {len(files)} files, {len(found)} complaints")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
