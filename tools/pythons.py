"""Runs the short tests on other Pythons: `python -m tools.pythons 3.12 3.13`, for `make test PYTHONS="3.12 3.13"`.

Each Python gets an environment in .venv/pythons with the pins of requirements/dev.txt, as far as these tests need them,
and kernels of its own. A Python that this machine does not have is left out, and the last lines say so.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools.hygiene import ROOT

ENVIRONMENTS = ROOT / ".venv" / "pythons"
PINS = ROOT / "requirements" / "dev.txt"
SHORT = (
    "tests/assignors",
    "tests/columns",
    "tests/groups",
    "tests/log",
    "tests/wire",
    "tests/test_consumer_protocol.py",
    "tests/test_durations.py",
    "tests/test_errors.py",
    "tests/test_lease.py",
    "tests/test_name_patterns.py",
    "tests/test_processes.py",
)
"""Tests of the parts that differ most between Pythons: pure Python and the kernels, without brokers and JVMs."""


def interpreter(version: str) -> Path | None:
    """Return this machine's Python of a version such as "3.12": of the PATH, then the newest that pyenv has."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser() / "versions"
    installed = [path for path in pyenv.glob(f"{version}.*") if path.name.rpartition(".")[2].isdecimal()]
    newest = sorted(installed, key=lambda path: int(path.name.rpartition(".")[2]), reverse=True)
    found = shutil.which(f"python{version}")
    for path in ([Path(found)] if found else []) + [home / "bin" / "python" for home in newest]:
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        said = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
        if said.stdout.strip() == version:
            return path
    return None


def environment(version: str, python: Path) -> Path:
    """Return the interpreter of an environment for the short tests, made anew when the pins or the kernels changed."""
    home, uv = ENVIRONMENTS / version, str(Path(sys.executable).with_name("uv"))
    listed = subprocess.run(["sh", "tools/setup.sh", "inputs"], cwd=ROOT, capture_output=True, text=True, check=True)
    digest = hashlib.sha256(str(python).encode())
    for name in [str(PINS), *listed.stdout.split()]:
        digest.update((ROOT / name).read_bytes())
    stamp, made = home / ".stamp", digest.hexdigest()
    if not stamp.is_file() or stamp.read_text() != made:
        print(f"» an environment for Python {version}, in {home.relative_to(ROOT)}", file=sys.stderr, flush=True)
        shutil.rmtree(home, ignore_errors=True)
        around = {**os.environ, "VIRTUAL_ENV": str(home), "CFLAGS": "-O1"}  # the optimizer would take half of the time
        pins = ("--constraint", str(PINS))
        for command in (
            ("venv", "--quiet", "--python", str(python), str(home)),
            ("pip", "install", "--quiet", *pins, "--group", "short", "--requirement", "pyproject.toml"),
            ("pip", "install", "--quiet", "--no-build-isolation", "--no-deps", "--editable", "."),
        ):
            subprocess.run([uv, *command], cwd=ROOT, env=around, check=True)
        stamp.write_text(made)
    return home / "bin" / "python"


def main(versions: list[str]) -> int:
    """Run the short tests on each version; return 1 if one of them fails."""
    results = {}
    for version in versions:
        python = interpreter(version)
        if python is None:
            results[version] = f"SKIPPED: this machine has no Python {version} (pyenv install {version})"
            continue
        print(f"» Python {version} ({python})", flush=True)
        command = [environment(version, python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *SHORT]
        done = subprocess.run(command, cwd=ROOT, check=False)
        results[version] = "passed" if done.returncode == 0 else f"FAILED: pytest ended with {done.returncode}"
    for version, result in results.items():
        print(f"Python {version}: {result}", flush=True)
    return 1 if any(result.startswith("FAILED") for result in results.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
