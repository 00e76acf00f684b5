"""The contents of `pip install kohort`, with and without a compiler: built once, and installed like a release."""

from __future__ import annotations

import email
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest
from tools.hygiene import tracked_files

import kohort
from kohort.client.net.negotiation import SOFTWARE_VERSION
from tests.documentation.snippets import ROOT
from tests.support.waiting import LAST_RESORT

BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"
CHECKERS = ROOT / "requirements" / "release.txt"
UV = [str(Path(sys.executable).with_name("uv"))]
TRIAL = ROOT / "tools" / "wheel_trial.py"
TEST = """
def test_in_a_users_project(kohort_broker):
    assert kohort_broker.pid
"""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_package_client_and_project_have_one_version() -> None:
    assert {kohort.__version__, SOFTWARE_VERSION} == {PROJECT["project"]["version"]}
    assert f"## [{kohort.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


class Built(NamedTuple):
    """The distributions of one checkout."""

    sdist: Path
    plain: Path
    windows: Path
    compiled: Path | None


def build(what: str, tree: Path, out: Path, **environment: str) -> Path:
    """Builds a distribution as pip does, with the build packages that are here."""
    out.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", BUILD, what, str(out)],
        cwd=tree,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out / done.stdout.split()[-1]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The source distribution of the tracked files, and from it alone the wheels, in one folder.

    The C files of the first wheel serve the others, and are compiled without optimization: 15 s of processor time less.
    """
    folder = tmp_path_factory.mktemp("distributions")
    checkout, out = folder / "checkout", folder / "dist"
    for name in tracked_files():
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, checkout / name)
    sdist = build("build_sdist", checkout, out)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    tree = folder / sdist.name.removesuffix(".tar.gz")
    plain = build("build_wheel", tree, out / "plain", CC="no-such-compiler")
    options = "[bdist_wheel]\nplat_name=win_amd64\n"
    (tree / "setup.cfg").write_text(options)
    windows = build("build_wheel", tree, out / "windows", KOHORT_KERNELS="none")
    (tree / "setup.cfg").unlink()
    has_compiler = shutil.which(os.environ.get("CC", "cc")) is not None
    compiled = build("build_wheel", tree, out / "compiled", CFLAGS="-O0") if has_compiler else None
    return Built(sdist, plain, windows, compiled)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment. What kohort depends on is seen in this environment's folder."""
    folder = tmp_path_factory.mktemp("user") / "venv"
    venv.create(folder, symlinks=True)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


def install(python: Path, wheel: Path) -> None:
    """Installs a wheel over any other of the same version."""
    command = [*UV, "pip", "install", "--quiet", "--python", str(python), "--no-deps", "--offline", "--reinstall"]
    subprocess.run([*command, str(wheel)], check=True)


def run(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
@LAST_RESORT
@pytest.mark.parametrize("kernel", ["plain", "compiled"])
def test_an_empty_environment_has_all_that_it_needs(built: Built, python: Path, tmp_path: Path, kernel: str) -> None:
    wheel: Path | None = getattr(built, kernel)
    if wheel is None:
        pytest.skip("no C compiler here")
    install(python, wheel)
    used = run(tmp_path, python, TRIAL, kernel)
    assert used.returncode == 0, used.stderr
    assert used.stdout.split()[0] == kernel
    assert ("install a C compiler" in used.stderr) == (kernel == "plain")

    kohort = python.with_name("kohort")
    asked = run(tmp_path, kohort, "doctor", "--json", "--listen", "127.0.0.1:0")
    rows = {row["what"]: row for row in json.loads(asked.stdout)}
    assert rows["compiled kernel"]["state"] == ("ok" if kernel == "compiled" else "optional")
    assert rows["required packages"]["state"] == "ok"
    assert run(tmp_path, kohort, "--version").stdout.strip() == PROJECT["project"]["version"]

    if kernel == "plain":
        return
    (tmp_path / "test_users.py").write_text(TEST)
    tested = run(tmp_path, python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_users.py")
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.slow
@LAST_RESORT
def test_pip_takes_the_best_wheel_and_its_requirements_from_an_index(built: Built, tmp_path: Path) -> None:
    """The environment sees the dependencies as installed, so that the index needs no others, and pip no network."""
    index = tmp_path / "index" / "kohort"
    index.mkdir(parents=True)
    files = [path for path in built if path is not None]
    for path in files:
        shutil.copy(path, index)
    (index / "index.html").write_text("".join(f'<a href="{path.name}">{path.name}</a>\n' for path in files))
    venv.create(tmp_path / "venv", symlinks=True, with_pip=True)
    (packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    dependencies = tmp_path / "dependencies"
    dependencies.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "kohort" not in path.name:
            (dependencies / path.name).symlink_to(path)
    (packages / "dependencies.pth").write_text(f"{dependencies}\n")
    python = tmp_path / "venv" / "bin" / "python"
    address = (tmp_path / "index").as_uri()
    options = ("--no-cache-dir", "--disable-pip-version-check", "--report", "report.json")
    done = run(tmp_path, python, "-m", "pip", "install", "--index-url", address, *options, "kohort[registry]")
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads((tmp_path / "report.json").read_text())["install"]
    best = built.plain if built.compiled is None else built.compiled
    assert found["download_info"]["url"].rpartition("/")[2] == best.name
    used = run(tmp_path, python, TRIAL, "plain" if built.compiled is None else "compiled")
    assert used.returncode == 0, used.stderr


def test_source_distribution_has_the_package_and_what_builds_it_and_nothing_else(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        sources = {name.partition("/")[2] for name in archive.getnames() if not archive.getmember(name).isdir()}
        assert all(member.isfile() or member.isdir() for member in archive.getmembers())
    made = {"PKG-INFO", "setup.cfg"} | {name for name in sources if name.startswith("src/kohort.egg-info/")}
    files = {"LICENSE", "MANIFEST.in", "README.md", "CHANGELOG.md", "pyproject.toml", "setup.py"}
    package = {name for name in tracked_files() if name.startswith("src/kohort/")}
    assert sources - made == files | package


def test_wheels_hold_the_package_alone(built: Built) -> None:
    sources = {name.removeprefix("src/") for name in tracked_files() if name.startswith("src/kohort/")}
    python_files = {name for name in sources if name.endswith(".py")}
    pages = {name for name in sources if name.startswith("kohort/dashboard/static/")}
    assert pages
    for path in (built.plain, built.windows, *([built.compiled] if built.compiled else [])):
        with zipfile.ZipFile(path) as wheel:
            names = set(wheel.namelist())
            (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
            facts = email.message_from_bytes(wheel.read(metadata))
            (licence,) = [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]
            assert wheel.read(licence) == (ROOT / "LICENSE").read_bytes()
        home = metadata.partition("/")[0]
        kernels = {name for name in names if name.endswith(".so")}
        assert len(kernels) == (5 if path == built.compiled else 0)
        of_package = {name for name in names if not name.startswith(f"{home}/")} - kernels
        assert python_files | pages | {"kohort/py.typed"} <= of_package <= sources
        assert facts["License-Expression"] == "Apache-2.0"
        assert set(facts.get_all("Provides-Extra", [])) == set(PROJECT["project"]["optional-dependencies"])


def test_names_of_wheels_say_whether_they_have_kernels(built: Built) -> None:
    assert built.plain.name.endswith("-py3-none-any.whl"), "pip keeps it: its name says that it has no kernel"
    assert built.windows.name.endswith("-py3-none-win_amd64.whl"), "no other platform takes it"
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    if built.compiled is not None:
        assert re.search(rf"-{version}-{version}-\w+\.whl$", built.compiled.name)


@pytest.mark.slow
@LAST_RESORT
def test_twine_and_check_wheel_contents_have_no_complaint(built: Built) -> None:
    wheels = " ".join(str(path) for path in built[1:] if path is not None)
    checks = f"echo ready; twine check --strict {built.sdist} {wheels} && check-wheel-contents {wheels}"
    environment = [*UV, "run", "--quiet", "--isolated", "--no-project", "--with-requirements", str(CHECKERS)]
    done = run(ROOT, *environment, "sh", "-c", checks)
    if not done.stdout.startswith("ready"):
        pytest.skip(f"twine and check-wheel-contents can't be had here: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stdout + done.stderr
