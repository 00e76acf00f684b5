"""The fork that stands for Spark's process of a streaming source is as that process: its files, its end, its death."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.spark import runners
from tests.spark.preloaded.sitecustomize import RUNNER, RUNNERS
from tests.support.waiting import until

pytest.importorskip("pyspark")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks of the tests are tried on Linux")
SECRET = "secret"


@pytest.fixture(scope="module")
def address() -> Iterator[dict[str, str]]:
    with runners.running() as address:
        until(lambda: Path(address[RUNNERS]).exists(), "forks can be asked for")
        yield address


class Jvm:
    """The part of Spark's JVM: it listens, starts the process, and reads its id."""

    def __init__(self, address: dict[str, str]) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", RUNNER],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": str(Path(__file__).with_name("preloaded")),
                **address,
                "PYTHON_WORKER_FACTORY_PORT": str(self.listener.getsockname()[1]),
                "PYTHON_WORKER_FACTORY_SECRET": SECRET,
            },
        )
        self.connection = self.listener.accept()[0]
        assert self._exactly(4 + len(SECRET))[4:] == SECRET.encode()
        self.connection.sendall(struct.pack(">i", 2) + b"ok")
        (self.pid,) = struct.unpack(">i", self._exactly(4))

    def _exactly(self, size: int) -> bytes:
        return self.connection.recv(size, socket.MSG_WAITALL)

    def close(self) -> None:
        """End the process and its fork."""
        self.connection.close()
        self.listener.close()
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def jvm(address: dict[str, str]) -> Iterator[Jvm]:
    jvm = Jvm(address)
    yield jvm
    jvm.close()


def test_process_ends_as_its_fork_does(jvm: Jvm) -> None:
    assert jvm.pid != jvm.process.pid
    jvm.connection.close()
    jvm.process.communicate(timeout=60)
    assert jvm.process.returncode == 255
    until(lambda: not Path(f"/proc/{jvm.pid}").exists(), "the fork has ended")


def test_fork_ends_with_its_process(jvm: Jvm) -> None:
    assert Path(f"/proc/{jvm.pid}").exists()
    jvm.process.kill()
    until(lambda: not Path(f"/proc/{jvm.pid}").exists(), "the fork has ended")


def test_fork_gets_the_signal_that_its_process_gets(jvm: Jvm) -> None:
    jvm.process.terminate()
    jvm.process.communicate(timeout=60)
    assert jvm.process.returncode == 0xFF & -signal.SIGTERM, "it ends after its fork, as that one"
    assert not Path(f"/proc/{jvm.pid}").exists()


def test_process_works_itself_where_nobody_forks(tmp_path: Path) -> None:
    jvm = Jvm({RUNNERS: str(tmp_path / "nobody")})
    assert jvm.pid == jvm.process.pid
    jvm.close()
