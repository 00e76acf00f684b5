"""The processes of a soak: each is started, killed, paused, started again, and its memory is read."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kohort.errors import KafkaError
from kohort.io.java import start_dependent_child
from kohort.zookeeper import free_ports
from tests.support.supervise import descendants

READY_S = 90
STOP_S = 120
TAIL = 400


@dataclass(slots=True)
class Sample:
    """The resident memory of a part's processes.

    Attributes:
        second: of the soak.
        life: how often the part had been started.
        mib: of the process and all below it.
    """

    second: float
    life: int
    mib: float


@dataclass(slots=True)
class Part:
    """A process of the system.

    Attributes:
        name: unique; its log has this name.
        command: what starts it, each time.
        kinds: the faults that befall it.
        prints_ready: whether its first line of output says that it is ready.
        started: how often it was started.
        ended: the last line of its log each time it ended by itself.
    """

    name: str
    command: Sequence[str]
    folder: Path
    kinds: tuple[str, ...]
    prints_ready: bool = False
    started: int = 0
    ended: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def output(self) -> Path:
        return self.folder / f"{self.name}.out"

    def start(self) -> None:
        """Start it; return when it is ready, if it says so.

        Raises:
            KafkaError: it ended, or was not ready in time.
        """
        with self.output.open("wb") as output, self.log.open("ab") as log:
            self.process = start_dependent_child(self.command, stdout=output, stderr=log)
        self.started += 1
        deadline = time.monotonic() + READY_S
        while self.prints_ready and not self.output.read_bytes().startswith(b"ready "):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise KafkaError(f"{self.name} did not start: {self.last_line()}")
            time.sleep(0.05)

    def last_line(self) -> str:
        """The last line of its log."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1][-TAIL:] if lines else ""

    def has_ended(self) -> bool:
        """Whether it ended by itself since its start; the reason is kept."""
        if self.process is None or self.process.poll() is None:
            return False
        self.ended.append(f"exit {self.process.returncode}: {self.last_line()}")
        return True

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process and all below it."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """End it by SIGKILL, with all below it."""
        self.send(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()
        self.process = None

    def stop(self, meanwhile: Callable[[], None]) -> int:
        """End it by SIGTERM, as an operator would; its exit code.

        Args:
            meanwhile: called until it has ended: the broker that it waits for may have to be started again.
        """
        process, self.process = self.process, None
        if process is None:
            return 0
        process.terminate()
        deadline = time.monotonic() + STOP_S
        while process.poll() is None:
            if time.monotonic() > deadline:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return -signal.SIGKILL
            meanwhile()
            time.sleep(0.05)
        return process.returncode

    def sample(self, second: float) -> None:
        """Read its memory."""
        if self.process is not None and self.process.poll() is None:
            pids = [self.process.pid, *descendants(self.process.pid)]
            self.samples.append(Sample(second, self.started, sum(map(_resident_mib, pids))))


def _resident_mib(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
    except (OSError, IndexError):
        return 0.0


def build_system(folder: Path, *, spark: bool) -> tuple[list[Part], Path]:
    """The parts, the broker first, and the clients' properties, which the broker makes at its first start.

    With versitygw on PATH the region writes to an object store of it, which `store.json` in `folder` describes.
    """
    (port, metrics, lag, page, objects, *coordinators) = free_ports(7)
    secure = folder / "secure"
    properties = secure / "client-kohort.properties"
    kohort = [sys.executable, "-m", "kohort"]
    broker = [*kohort, "broker", "--listen", f"127.0.0.1:{port}", "--data", str(folder / "data")]
    broker += ["--secure", str(secure), "--metrics-listen", f"127.0.0.1:{metrics}"]
    every = ("SIGKILL", "SIGTERM", "SIGSTOP")
    parts = [Part("broker", broker, folder, ("SIGKILL", "SIGTERM"), prints_ready=True)]
    if gateway := shutil.which("versitygw"):
        parts.append(_object_store(gateway, folder, objects))
    (folder / "coordinators").write_text(",".join(f"127.0.0.1:{at}" for at in coordinators))
    for number, at in enumerate(coordinators, 1):
        command = [*kohort, "coordinator", "--kafka", f"127.0.0.1:{port}", "--listen", f"127.0.0.1:{at}"]
        command += ["--tls", str(secure / "server.pem"), "--sasl", str(secure / "users.properties")]
        command += ["--command-config", str(properties)]
        parts.append(Part(f"coordinator-{number}", command, folder, every))
    for program in ("transactions", "consumer", "push", "coordinated", "region"):
        for number in (1, 2):
            name = f"{program}-{number}"
            command = [sys.executable, "-m", "tests.soak.programs", program, str(properties), str(folder / name)]
            parts.append(Part(name, command, folder, every))
    if spark:
        command = [sys.executable, "-m", "tests.soak.programs", "query", str(properties), str(folder / "query-1")]
        parts.append(Part("query-1", command, folder, ("SIGKILL", "SIGTERM")))
    settings = ["--command-config", str(properties), "--interval", "2000"]
    exporter = [*kohort, "exporter", "--listen", f"127.0.0.1:{lag}", "--config", str(properties), "--interval", "2000"]
    exporter += ["--servers", f"127.0.0.1:{port}"]
    dashboard = [*kohort, "dashboard", "--listen", f"127.0.0.1:{page}", *settings]
    parts.append(Part("exporter", exporter, folder, (), prints_ready=True))
    parts.append(Part("dashboard", dashboard, folder, (), prints_ready=True))
    return parts, properties


def _object_store(gateway: str, folder: Path, port: int) -> Part:
    """An object store with the bucket `lake`: its folder, and how it is reached."""
    (folder / "objects" / "lake").mkdir(parents=True)
    access, secret = "kohort", uuid.uuid4().hex
    reached = {
        "access_key_id": access,
        "secret_access_key": secret,
        "region": "us-east-1",
        "endpoint": f"http://127.0.0.1:{port}",
        "allow_http": "true",
    }
    (folder / "store.json").write_text(json.dumps(reached))
    command = [gateway, "--access", access, "--secret", secret, "--port", f"127.0.0.1:{port}"]
    return Part("objects", [*command, "posix", str(folder / "objects")], folder, ("SIGKILL", "SIGTERM", "SIGSTOP"))


def pages(parts: Sequence[Part]) -> dict[str, str]:
    """The addresses that are read while the soak goes on, by part."""
    found = {}
    for part in parts:
        words = part.output.read_text().split() if part.prints_ready and part.name != "broker" else []
        if len(words) > 1:
            address = words[1].removeprefix("http://").rstrip("/")
            found[part.name] = f"http://{address}/" + ("metrics" if part.name == "exporter" else "")
    return found
