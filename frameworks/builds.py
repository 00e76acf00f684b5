"""Programs made ready: Java sources compiled against pinned jars, Python packages in environments of their own.

Both are kept in `.cache/frameworks`, under names made from what they were made of.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support import maven

from kohort.errors import NotFoundError
from kohort.io.java import java_path, log4j_properties

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
CACHE = HERE.parent / ".cache" / "frameworks"
BUILD_TIMEOUT_S = 600
JAVA_OPTIONS = ("-Xmx256m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
LOGGING = ("org.apache.logging.log4j:log4j-core:2.24.3", "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3")


class FrameworkUnavailable(Exception):
    """A framework can't be had on this machine; the text says why in a few words."""


def java_command(main: str, coordinates: Sequence[str], options: Sequence[str] = JAVA_OPTIONS) -> list[str]:
    """Compile `programs/MAIN.java` against these Maven coordinates; return the command that runs it.

    Raises:
        FrameworkUnavailable: no Maven, no JDK, or the build failed.
    """
    jars = java_libraries(main.lower(), coordinates)
    source = PROGRAMS / f"{main}.java"
    classes = CACHE / f"{main.lower()}-{digest(source.read_bytes(), jars.name.encode())}"
    if not classes.is_dir():
        compiler = java_path().with_name("javac") if os.environ.get("JAVA_HOME") else shutil.which("javac")
        if compiler is None:
            raise FrameworkUnavailable("javac is not installed (a JDK, not only a JRE)")
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
            made = Path(temporary, "classes")
            run_build([str(compiler), "-d", str(made), "-cp", f"{jars}/*", str(source)])
            (made / "log4j2.properties").write_text(log4j_properties())
            keep_build(made, classes)
    return [str(java_path()), *options, "-cp", f"{classes}:{jars}/*", main]


def java_libraries(name: str, coordinates: Sequence[str]) -> Path:
    """Return the folder with the jars of these coordinates and what they need.

    Raises:
        FrameworkUnavailable: no Java 17, or Maven is missing or can't resolve them.
    """
    try:
        java_path()
        return maven.jars(name, coordinates)
    except (maven.MavenUnavailable, NotFoundError) as error:
        raise FrameworkUnavailable(str(error)) from error


def python_environment(name: str) -> Path:
    """Return the interpreter of an environment that has exactly the packages of `pins/NAME.txt`.

    Raises:
        FrameworkUnavailable: uv is missing, or the packages can't be installed.
    """
    pins = HERE / "pins" / f"{name}.txt"
    folder = CACHE / f"{name}-{digest(pins.read_bytes(), sys.version.encode())}"
    if not folder.is_dir():
        uv = Path(sys.executable).with_name("uv")
        if not uv.exists():
            raise FrameworkUnavailable("uv is not installed beside this Python: make setup")
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
            made = Path(temporary, "environment")
            run_build([sys.executable, "-m", "venv", "--without-pip", str(made)])
            interpreter = str(made / "bin" / "python")
            run_build([str(uv), "pip", "install", "-q", "--require-hashes", "--python", interpreter, "-r", str(pins)])
            keep_build(made, folder)
    return folder / "bin" / "python"


def pinned_version(pins: str, package: str) -> str:
    """Return the version of a package in `pins/PINS.txt`.

    Raises:
        KeyError: the file does not have it.
    """
    lines = (HERE / "pins" / f"{pins}.txt").read_text(encoding="utf-8").splitlines()
    versions = {line.partition("==")[0]: line.partition("==")[2].split()[0] for line in lines if "==" in line}
    return versions[package]


def run_build(command: Sequence[str]) -> None:
    """Run a build tool to its end.

    Raises:
        FrameworkUnavailable: it failed, or took too long.
    """
    tool = Path(command[0]).name
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise FrameworkUnavailable(f"{tool} took longer than {BUILD_TIMEOUT_S} s") from error
    if done.returncode != 0:
        raise FrameworkUnavailable(f"{tool} failed: {' '.join((done.stderr or done.stdout).split())[-400:]}")


def keep_build(made: Path, folder: Path) -> None:
    """Give a finished build its name; another process may have been faster."""
    try:
        made.rename(folder)
    except OSError:
        if not folder.is_dir():  # another process was faster
            raise


def digest(*parts: bytes) -> str:
    """Return a name for a build, made from what it is built from."""
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]
