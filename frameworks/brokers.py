"""The brokers that frameworks run on: kohort's and Apache Kafka, as processes that are killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path

from tests.support.apache_kafka import SOON_BACK, ApacheKafka
from tests.support.maven import KAFKA

import kohort
from kohort.errors import KafkaError
from kohort.io.java import start_dependent_child
from kohort.zookeeper import free_ports

START_TIMEOUT_S = 90
STOP_TIMEOUT_S = 30
KAFKA_OPTIONS = ("-Xmx320m", "-XX:MaxDirectMemorySize=128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Options of Kafka's virtual machine: some thousand records need little, and the machine is shared."""


class FrameworkBroker(ABC):
    """A broker on a fixed port and folder, with what its processes have used so far.

    Attributes:
        name: as it stands in the page.
        version: of its package.
        bootstrap_servers: its address, the same after each start.
        processor_s: processor time of the processes that have ended.
        peak_mib: the largest resident memory of any of them.
    """

    name: str
    version: str
    bootstrap_servers: str

    def __init__(self) -> None:
        self.processor_s = 0.0
        self.peak_mib = 0.0

    @property
    @abstractmethod
    def pid(self) -> int:
        """The process that runs now."""

    @abstractmethod
    def start(self) -> None:
        """Start the broker again after `kill`, and wait until it takes clients."""

    @abstractmethod
    def _kill_process(self) -> None:
        """Kill the process as a crash would."""

    @abstractmethod
    def close(self) -> None:
        """End the broker; its folder may go."""

    def kill(self) -> None:
        """Kill the broker by SIGKILL; its data stays."""
        self.measure_usage()
        self._kill_process()

    def measure_usage(self) -> None:
        """Add what the running process has used; called once for each process, before it ends."""
        processor_s, peak_mib = process_usage(self.pid)
        self.processor_s += processor_s
        self.peak_mib = max(self.peak_mib, peak_mib)


class KohortProcess(FrameworkBroker):
    """The command `kohort broker`, on a folder that stays when it is killed."""

    name = "kohort"
    version = kohort.__version__

    def __init__(self, folder: Path) -> None:
        super().__init__()
        (port,) = free_ports(1)
        self.bootstrap_servers = f"127.0.0.1:{port}"
        self._log = folder / "broker.log"
        self._output = folder / "broker.out"
        settings = ("group.initial.rebalance.delay.ms=0", "log.retention.ms=-1")
        self._command = [sys.executable, "-m", "kohort", "broker", "--listen", self.bootstrap_servers]
        self._command += ["--data", str(folder / "data"), *(word for line in settings for word in ("--set", line))]
        self.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> None:
        """Start the command and wait for its line `ready`.

        Raises:
            KafkaError: it ended, or was not ready in time; the message has its last lines.
        """
        with self._output.open("wb") as output, self._log.open("ab") as log:
            self._process = start_dependent_child(self._command, stdout=output, stderr=log)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._output.read_bytes().startswith(b"ready "):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._kill_process()
                raise KafkaError(f"kohort broker did not start:\n{self._log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)

    def _kill_process(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """End the broker by SIGTERM, as an operator would."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._kill_process()


class KafkaProcess(FrameworkBroker):
    """One node of Apache Kafka."""

    name = "Apache Kafka"
    version = KAFKA[0].rpartition(":")[2]

    def __init__(self) -> None:
        super().__init__()
        self._kafka = ApacheKafka({**SOON_BACK, "log.retention.ms": "-1"}, KAFKA_OPTIONS)
        self.bootstrap_servers = self._kafka.bootstrap_servers

    @property
    def pid(self) -> int:
        return self._kafka.pid

    def start(self) -> None:
        self._kafka.start()

    def _kill_process(self) -> None:
        self._kafka.kill()

    def close(self) -> None:
        """Kill the node and delete its folder."""
        self._kafka.close()


def start_broker(kind: str, folder: Path) -> FrameworkBroker:
    """Start a broker: `kohort` or `kafka`.

    Raises:
        MavenUnavailable: Apache Kafka can't be had here.
        KafkaError: it did not start.
    """
    return KohortProcess(folder) if kind == "kohort" else KafkaProcess()


def process_usage(pid: int) -> tuple[float, float]:
    """Return the processor time in seconds and the peak resident memory in MiB of a running process (Linux)."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    peaks = [int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM:")]
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK"), max(peaks, default=0.0)
