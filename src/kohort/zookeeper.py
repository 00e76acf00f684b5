"""A real ZooKeeper on this machine, from PySpark's jars, for tests and for trying things out."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count as count_up
from itertools import islice
from pathlib import Path

from kohort.errors import NotFoundError
from kohort.io.closing import ClosedOnExit
from kohort.io.java import JavaProgram, JavaServer, log4j_properties
from kohort.settings.server_access import AccessOptionNames, ServerAccess

_START_TIMEOUT_MS = 30_000
NOTHING: Mapping[str, str] = {}
_PORTS = range(20_000, 32_000)
"""Ports of `free_ports`. Outgoing connections get theirs from 32768 on (Linux) or 49152 on (macOS, Windows)."""
_STRIDE = 997
"""Distance between the first ports of processes whose ids follow each other: more than a run of tests draws in one."""
_STEPS = count_up()


def spark_jars() -> Path:
    """Return the folder of PySpark's jars, without importing PySpark.

    Raises:
        NotFoundError: PySpark is not installed.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise NotFoundError("ZooKeeper's jars come with PySpark, which is not installed: pip install 'kohort[spark]'")
    return Path(spec.origin).parent / "jars"


def free_port() -> int:
    """Return a port like `free_ports`."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return `count` unused ports of the loopback interface, none of which an earlier call of this process returned.

    They stay free until a server listens there. Outgoing connections get theirs from higher
    ranges, and each process begins at another port.

    Raises:
        NotFoundError: All ports of the range are in use.
    """
    found: list[int] = []
    start = os.getpid() * _STRIDE
    for step in islice(_STEPS, len(_PORTS)):
        port = _PORTS[(start + step) % len(_PORTS)]
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise NotFoundError(f"no {count} free ports from {_PORTS[0]} to {_PORTS[-1]} on 127.0.0.1: end some servers")


def check_zookeeper_access(host: str, port: int, insecure: bool, way: str) -> None:
    """Check that the operator lets everyone connect, if other machines reach the address.

    Args:
        host: The address to listen on.
        port: The port, for the error.
        insecure: Everyone may connect.
        way: What the error calls `insecure`.

    Raises:
        InvalidInputError: Other machines reach the address, and `insecure` is not set.
    """
    consequence = "read and change all that it has"
    ServerAccess(is_insecure=insecure).check(host, port, "ZooKeeper", consequence, AccessOptionNames(way, None, None))


class ZooKeeper(ClosedOnExit):
    """A ZooKeeper server as a child process, ended with this process.

        with ZooKeeper() as zookeeper:
            zookeeper.address                # 127.0.0.1:PORT

    Args:
        host: the address to listen on.
        port: 0 picks a free one.
        data_dir: the folder of its data; None is a temporary folder, deleted at the end.
        settings: lines of zoo.cfg beside the usual ones, such as a secureClientPort.
        options: options of the Java virtual machine, such as the users of SASL.
        insecure: let everyone connect, also at an address that other machines can reach.

    Raises:
        InvalidInputError: other machines reach the address, and `insecure` is not set.
        NotFoundError: no Java, or no PySpark with usable jars.
        KafkaError: the server did not start.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        data_dir: Path | None = None,
        settings: Mapping[str, str] = NOTHING,
        options: Sequence[str] = (),
        *,
        insecure: bool = False,
    ) -> None:
        check_zookeeper_access(host, port, insecure, "insecure=True")
        classpath = self._classpath()
        self.address = f"{host}:{port or free_port()}"
        self._temporary = Path(tempfile.mkdtemp(prefix="kohort-zookeeper-")) if data_dir is None else None
        self.folder = data_dir or self._temporary or Path()
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "log4j2.properties").write_text(log4j_properties())
        program = JavaProgram(
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            classpath,
            [str(self._settings(host, settings))],
            [
                *options,
                "-Xmx256m",
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}",
            ],
        )
        self._server = JavaServer(program, self.folder / "zookeeper.log", f"ZooKeeper on {self.address}")
        try:
            self._server.wait_until(self._answers, _START_TIMEOUT_MS)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _classpath() -> str:
        jars = spark_jars()
        if not list(jars.glob("zookeeper-[0-9]*.jar")):
            raise NotFoundError(f"no ZooKeeper among PySpark's jars in {jars}")
        wanted = ("zookeeper-*", "slf4j-api-*", "log4j-*", "netty-*", "metrics-core-*", "snappy-java-*", "commons-*")
        return ":".join(str(jar) for pattern in wanted for jar in sorted(jars.glob(pattern + ".jar")))

    def _settings(self, host: str, more: Mapping[str, str]) -> Path:
        settings = self.folder / "zoo.cfg"
        settings.write_text(
            f"tickTime=500\ndataDir={self.folder / 'data'}\nclientPort={self.address.rpartition(':')[2]}\n"
            f"clientPortAddress={host}\nadmin.enableServer=false\nmaxClientCnxns=0\n"
            "minSessionTimeout=1000\nmaxSessionTimeout=60000\n4lw.commands.whitelist=ruok,srvr\n"
            + "".join(f"{name}={value}\n" for name, value in more.items())
        )
        return settings

    def _answers(self) -> bool:
        host, _, port = self.address.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), timeout=1) as connection:
                connection.sendall(b"ruok")
                return connection.recv(4) == b"imok"
        except OSError:
            return False

    @property
    def pid(self) -> int:
        return self._server.pid

    def kill(self) -> None:
        """Kill the server as a crash would."""
        self._server.kill()

    def close(self) -> None:
        """Stop the server; may be called again."""
        self._server.stop()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
