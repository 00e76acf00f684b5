"""The contents of `pip install kohort`, with and without a compiler: built and installed like a release."""

from __future__ import annotations

import email
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from tests.documentation.snippets import ROOT
from tests.support.waiting import LAST_RESORT

BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"
SHIPPED = ("src", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
USE = """
import sys
import kohort
from kohort import Broker, Consumer, Producer
from kohort.columns import COMPILED

assert kohort.__file__.startswith(sys.prefix), kohort.__file__
with Broker() as broker:
    with Producer(broker.bootstrap_servers, compression_type="zstd") as producer:
        producer.send("numbers", value="one").result()
    with Consumer(broker.bootstrap_servers, group_id="trial", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["numbers"])
        while (batch := consumer.poll_arrow(timeout_ms=1000)) is None:
            pass
        assert batch.column("value").to_pylist() == [b"one"]
print("compiled" if COMPILED else "plain")
"""
TEST = """
def test_in_a_users_project(kohort_broker):
    assert kohort_broker.pid
"""


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


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    tree = folder / "tree"
    tree.mkdir()
    for name in SHIPPED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("*.so", "*.c", "__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, tree / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, tree)
    return build("build_sdist", tree, folder / "dist")


def wheel_of(sdist: Path, folder: Path, **environment: str) -> Path:
    """A wheel from the source distribution alone."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return build("build_wheel", folder / sdist.name.removesuffix(".tar.gz"), folder / "dist", **environment)


@pytest.fixture(scope="module")
def plain_wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built where there is no compiler."""
    return wheel_of(sdist, tmp_path_factory.mktemp("plain"), CC="no-such-compiler")


@pytest.fixture(scope="module")
def compiled_wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built with the compiler that is here."""
    if shutil.which(os.environ.get("CC", "cc")) is None:
        pytest.skip("no C compiler here")
    return wheel_of(sdist, tmp_path_factory.mktemp("compiled"))


def installed(wheel: Path, folder: Path) -> Path:
    """The interpreter of a new environment that has the wheel.

    What it depends on is seen in this environment's folder.
    """
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--disable-pip-version-check", str(wheel)], check=True)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def run(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
@LAST_RESORT
@pytest.mark.parametrize("kernel", ["compiled", "plain"])
def test_an_empty_environment_has_all_that_it_needs(
    request: pytest.FixtureRequest, tmp_path: Path, kernel: str
) -> None:
    python = installed(request.getfixturevalue(f"{kernel}_wheel"), tmp_path / "venv")
    wheel = request.getfixturevalue(f"{kernel}_wheel")
    assert wheel.name.endswith("-py3-none-any.whl") == (kernel == "plain")
    used = run(tmp_path, python, "-c", USE)
    assert used.returncode == 0, used.stderr
    assert used.stdout.strip() == kernel
    assert ("install a C compiler" in used.stderr) == (kernel == "plain")

    kohort = python.with_name("kohort")
    asked = run(tmp_path, kohort, "doctor", "--json", "--listen", "127.0.0.1:0")
    rows = {row["what"]: row for row in json.loads(asked.stdout)}
    assert rows["compiled kernel"]["state"] == ("ok" if kernel == "compiled" else "optional")
    assert rows["required packages"]["state"] == "ok"
    said = run(tmp_path, kohort, "--version")
    assert said.stdout.strip() == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

    (tmp_path / "test_users.py").write_text(TEST)
    tested = run(tmp_path, python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_users.py")
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_the_distributions_hold_what_they_should(sdist: Path, plain_wheel: Path) -> None:
    with tarfile.open(sdist) as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "src/kohort/py.typed", "src/kohort/columns/_walk.pxi"} <= sources
    assert [name for name in sources if name.endswith((".so", ".c", ".pyc"))] == []
    with zipfile.ZipFile(plain_wheel) as wheel:
        names = wheel.namelist()
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        facts = email.message_from_bytes(wheel.read(metadata))
        (licence,) = [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]
        assert wheel.read(licence) == (ROOT / "LICENSE").read_bytes()
    assert {name.partition("/")[0] for name in names} == {"kohort", metadata.partition("/")[0]}
    assert {"kohort/py.typed", "kohort/dashboard/static/index.html", "kohort/dashboard/static/app.js"} <= set(names)
    assert plain_wheel.name.endswith("-py3-none-any.whl"), "pip keeps it: its name says that it has no kernel"
    assert [name for name in names if name.endswith(".so")] == []
    assert facts["License-Expression"] == "Apache-2.0"
    assert set(facts.get_all("Provides-Extra", [])) == {
        "spark",
        "demo",
        "dashboard",
        "delta",
        "lake",
        "postgres",
        "speed",
        "pkcs12",
        "security",
        "zookeeper",
    }
