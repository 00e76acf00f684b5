"""Iceberg's own REST catalog in a process of its own, on a SQLite database, with files of this machine or in S3."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kohort.errors import NotFoundError
from kohort.io.java import java_path
from kohort.zookeeper import free_ports
from tests.peers.peers import CACHE, build, digest
from tests.region.s3_server import ACCESS
from tests.support.maven import MavenUnavailable, jars

_PROGRAM = Path(__file__).parent / "rest_catalog" / "LoopbackCatalog.java"
_ICEBERG = "1.11.0"
_JARS = (
    f"org.apache.iceberg:iceberg-core:{_ICEBERG}",
    f"org.apache.iceberg:iceberg-core:{_ICEBERG}:tests",
    "org.eclipse.jetty.ee10:jetty-ee10-servlet:12.1.3",
    "org.xerial:sqlite-jdbc:3.46.1.3",
    "org.slf4j:slf4j-nop:2.0.17",
)
_S3_JARS = (f"org.apache.iceberg:iceberg-aws:{_ICEBERG}", f"org.apache.iceberg:iceberg-aws-bundle:{_ICEBERG}")


class RestServer:
    """A catalog that can go away and come back with what it had.

    Attributes:
        address: its URL.
    """

    def __init__(self, folder: Path, store: str = "", warehouse: str = "") -> None:
        """Initialise a catalog, whose files are in a warehouse in the S3 at `store`; without one in the folder."""
        self._folder, (self._port,) = folder, free_ports(1)
        self._warehouse, self._properties = warehouse or f"file://{folder}/lake", list[str]()
        if store:
            given = {
                "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
                "s3.endpoint": store,
                "s3.path-style-access": "true",
                "s3.access-key-id": ACCESS["s3.access-key-id"],
                "s3.secret-access-key": ACCESS["s3.secret-access-key"],
                "client.region": ACCESS["s3.region"],
            }
            self._properties = [f"{name}={value}" for name, value in given.items()]
        self.address = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the process, and wait until it answers."""
        arguments = [str(self._folder / "catalog.db"), self._warehouse, str(self._port), *self._properties]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*_command(bool(self._properties)), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == str(self._port), (self._folder / "log").read_text()

    def stop(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _command(in_s3: bool) -> list[str]:
    try:
        libraries = jars("iceberg-rest-s3", (*_JARS, *_S3_JARS)) if in_s3 else jars("iceberg-rest", _JARS)
        java = java_path()
    except (MavenUnavailable, NotFoundError) as error:
        pytest.skip(f"Iceberg's REST catalog can't run here: {error}")
    compiler = shutil.which("javac")
    if compiler is None:
        pytest.skip("javac is not installed (a JDK, not only a JRE)")
    classes = CACHE / f"java-{digest([_PROGRAM])}"
    if not (classes / "LoopbackCatalog.class").exists():
        classes.mkdir(parents=True, exist_ok=True)
        build([compiler, "-d", str(classes), "-cp", f"{libraries}/*", str(_PROGRAM)], _PROGRAM.parent, "javac")
    return [str(java), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", f"{classes}:{libraries}/*", "LoopbackCatalog"]


@contextlib.contextmanager
def running(folder: Path, store: str = "", warehouse: str = "") -> Iterator[RestServer]:
    server = RestServer(folder, store, warehouse)
    server.start()
    try:
        yield server
    finally:
        server.stop()
