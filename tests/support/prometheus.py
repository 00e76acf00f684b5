"""A real Prometheus, Debian's package, as a process on loopback."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from kohort.zookeeper import free_ports
from tests.support.waiting import until

Labels = tuple[tuple[str, str], ...]


def prometheus_program(name: str) -> str:
    """The path of `prometheus` or `promtool`; skips the test where it is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip("Debian's package prometheus is not installed")
    return found


def otlp_options() -> list[str]:
    """The option by which this version receives OTLP; none before 2.47."""
    said = subprocess.run([prometheus_program("prometheus"), "--version"], capture_output=True, text=True, check=True)
    version = (said.stdout + said.stderr).split("version ", 1)[1].split(maxsplit=1)[0]
    major, minor = (int("".join(filter(str.isdigit, part))) for part in version.split(".")[:2])
    if major > 2:
        return ["--web.enable-otlp-receiver"]
    return ["--enable-feature=otlp-write-receiver"] if minor >= 47 else []


class Prometheus:
    """The server.

    Args:
        folder: Its configuration and data.
        jobs: Its scrape jobs, as in its configuration.
        rules: Files with rules.

    Attributes:
        address: HOST:PORT.
    """

    def __init__(self, folder: Path, jobs: Sequence[Mapping[str, Any]], rules: Sequence[Path] = ()) -> None:
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rule) for rule in rules],
            "scrape_configs": list(jobs),
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        self._log = (folder / "prometheus.log").open("w+")
        command = [
            *(prometheus_program("prometheus"), f"--config.file={folder / 'prometheus.yml'}", *otlp_options()),
            *(f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={self.address}", "--log.level=warn"),
        ]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT)
        until(self._is_ready, "Prometheus is ready", 60)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(60)
        self._log.close()

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, Path(self._log.name).read_text()
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=20):
                return True
        except (OSError, urllib.error.URLError):
            return False

    def query(self, expression: str) -> dict[Labels, float]:
        """The present values by sorted labels, without those of the scrape."""
        data = urllib.parse.urlencode({"query": expression}).encode()
        with urllib.request.urlopen(f"http://{self.address}/api/v1/query", data, timeout=20) as answer:
            said = json.load(answer)
        assert said["status"] == "success" and said["data"]["resultType"] == "vector", said
        return {tuple(sorted(row["metric"].items())): float(row["value"][1]) for row in said["data"]["result"]}

    def value(self, expression: str) -> float | None:
        """The only value; None: there is none."""
        found = self.query(expression)
        assert len(found) <= 1, found
        return next(iter(found.values()), None)
