"""Where Spark runs: a standalone cluster and a Connect server on loopback, and other versions in their environments."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyspark
from tests.support.waiting import STILL_S, until

from kohort.io.java import start_dependent_child
from kohort.zookeeper import free_port, free_ports

ROOT = Path(__file__).resolve().parents[3]
CACHE = ROOT / ".cache" / "environments"
SMALL = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_DEPLOY = "org.apache.spark.deploy"
_CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"
_ENDS_S = 30
_INSTALL_S = 900
"""An install downloads PySpark, which is 400 MB."""


class Unavailable(Exception):
    """An environment can't be had here; the text says why in a few words."""


@dataclass(frozen=True, slots=True)
class Environment:
    """An interpreter with kohort and some PySpark.

    Attributes:
        python: the interpreter.
        home: PySpark's folder.
    """

    python: str
    home: Path


OWN = Environment(sys.executable, Path(pyspark.__file__).parent)


def environment(version: str) -> Environment:
    """An environment with another PySpark and this checkout; made once, then kept in the project's `.cache`.

    The packages are those of this project's pins; only PySpark's version differs.

    Raises:
        Unavailable: the packages can't be had here.
    """
    pins = (ROOT / "requirements" / "dev.txt").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = [
        requirement
        for requirement in project["optional-dependencies"]["spark"]
        if not requirement.startswith("pyspark")
    ]
    wanted = [f"pyspark[connect]=={version}", *project["dependencies"], *extra]
    digest = hashlib.sha256("\n".join([*wanted, pins]).encode()).hexdigest()[:12]
    folder = CACHE / f"pyspark-{version}-{digest}"
    python = folder / "bin" / "python"
    made = folder / "made"
    if not made.is_file():
        CACHE.mkdir(parents=True, exist_ok=True)
        uv = Path(sys.executable).parent / "uv"
        _install([str(uv), "venv", "--clear", "--python", sys.executable, str(folder)], folder)
        lines = pins.replace("\\\n", " ").splitlines()
        constraints = folder / "constraints.txt"
        constraints.write_text(
            "\n".join(pin.split(" --hash")[0] for pin in lines if pin and not pin.startswith("pyspark=="))
        )
        _install([str(uv), "pip", "install", "--python", str(python), "-c", str(constraints), *wanted], folder)
        site = subprocess.check_output(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
        )
        (Path(site.strip()) / "kohort-checkout.pth").write_text(f"{ROOT / 'src'}\n")
        made.touch()
    home = subprocess.check_output([python, "-c", "import pyspark; print(pyspark.__path__[0])"], text=True)
    return Environment(str(python), Path(home.strip()))


def _install(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_INSTALL_S, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{folder.name} could not be made: {error}") from error
    if done.returncode != 0:
        raise Unavailable(f"{folder.name} could not be made: {done.stderr[-500:]}")


def clean_environment(**more: str) -> dict[str, str]:
    """This process's environment without what it says of Spark, on loopback."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK", "SPARK"))}
    return kept | {"SPARK_LOCAL_IP": "127.0.0.1"} | more


@contextmanager
def _server(name: str, port: int, folder: Path, command: Sequence[str], env: Mapping[str, str]) -> Iterator[None]:
    """One of Spark's servers, up; it ends with the block, or with this process, and what it started ends too."""
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = start_dependent_child(command, stdout=output, stderr=subprocess.STDOUT, cwd=folder, env=env)

    def answers() -> bool:
        assert process.poll() is None, f"the {name} ended:\n{log.read_text()[-3000:]}"
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2):
            return True
        return False

    try:
        until(answers, f"the {name} answers", STILL_S, lambda: {"log": log.stat().st_size})
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_ENDS_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """A master and one worker with two cores; gives the master's URL."""
    port, worker = free_ports(2)
    master = f"spark://127.0.0.1:{port}"
    env = clean_environment(SPARK_DAEMON_MEMORY="256m", SPARK_DAEMON_JAVA_OPTS=SMALL, SPARK_NO_DAEMONIZE="1")
    here = ("--host", "127.0.0.1", "--webui-port", "0")
    start = str(OWN.home / "bin" / "spark-class")
    lead = (start, f"{_DEPLOY}.master.Master", *here, "--port", str(port))
    work = (start, f"{_DEPLOY}.worker.Worker", *here, "--port", str(worker), "--cores", "2", "--memory", "1g")
    with _server("master", port, folder, lead, env):
        with _server("worker", worker, folder, (*work, "--work-dir", str(folder / "work"), master), env):
            yield master


@contextmanager
def connect(folder: Path, spark: Environment = OWN) -> Iterator[str]:
    """A Spark Connect server with two local cores; gives its address."""
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.driver.memory": "768m",
        "spark.sql.shuffle.partitions": "1",
    }
    start = [str(spark.home / "bin" / "spark-class"), f"{_DEPLOY}.SparkSubmit", "--master", "local[2]"]
    given = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    command = [*start, "--driver-java-options", SMALL, *given, "--class", _CONNECT, "spark-internal"]
    with _server("Connect server", port, folder, command, clean_environment(PYSPARK_PYTHON=spark.python)):
        yield f"sc://127.0.0.1:{port}"
