"""Runs a suite against a broker of its own, and counts what came of it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kohort import Broker
from tests.peers.peers import CACHE, PeerUnavailable, build
from tests.peers.suites.suites import Suite

_TIMEOUT_S = 1500
_SAID_MAX = 40
"""Lines of a failed test that are kept."""


@dataclass(slots=True)
class Outcome:
    """The results of a suite's tests by name; subtests count as tests.

    Attributes:
        failed: with the last lines that each printed.
        whole: whether it ran to its end.
    """

    suite: Suite
    passed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed: dict[str, list[str]] = field(default_factory=dict)
    whole: bool = False

    @property
    def unexpected(self) -> dict[str, list[str]]:
        """Failures that no reason is known of; a test fails with its subtests, which speak for it."""
        known = self.suite.expected
        above = {name.rpartition("/")[0] for name in self.failed}
        return {
            name: said
            for name, said in self.failed.items()
            if name not in above and not any(name == prefix or name.startswith(f"{prefix}/") for prefix in known)
        }


def run(suite: Suite, log: Callable[[str], None] = lambda _: None, *, short: bool = False) -> Outcome:
    """One run of a suite, or of its short form.

    Args:
        log: is called with the name of each test that is done.

    Raises:
        PeerUnavailable: it can't be had or run here.
    """
    tests = _compiled(_go(), suite)
    with tempfile.TemporaryDirectory(prefix="kohort-suite-") as folder:
        with Broker(Path(folder), dict(suite.settings), listen=f"127.0.0.1:{_port(suite)}") as broker:
            environment = {**os.environ, **suite.environment, **(suite.short_environment if short else {})}
            if suite.servers_variable:
                environment[suite.servers_variable] = broker.bootstrap_servers
            return _follow(tests, short, environment, folder, log)


def _port(suite: Suite) -> int:
    if suite.port:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", suite.port))
            except OSError as error:
                raise PeerUnavailable(f"its tests want port {suite.port}, which is taken") from error
    return suite.port


@dataclass(frozen=True, slots=True)
class _Tests:
    """A suite's tests, compiled, and the folder that they run in."""

    suite: Suite
    go: str
    program: Path
    files: Path

    def command(self, short: bool) -> list[str]:
        """Return the command that runs the tests and prints their events."""
        runs = [self.go, "tool", "test2json", str(self.program), "-test.v=test2json", f"-test.timeout={_TIMEOUT_S}s"]
        if short:
            # Tests wait for sessions that time out: more of them go together than there are cores.
            runs += [f"-test.run={self.suite.short}", "-test.parallel=8"]
        if self.suite.left_out:
            names = "|".join(f"^{name.replace('/', '$/^')}$" for name in self.suite.left_out)
            runs.append(f"-test.skip={names}")
        return runs


def _go() -> str:
    go = shutil.which("go")
    if go is None:
        raise PeerUnavailable("go is not installed")
    return go


def _compiled(go: str, suite: Suite) -> _Tests:
    """The suite's tests, built once for each version."""
    program = CACHE / f"{suite.name}-tests-{suite.version}"
    tests = _Tests(suite, go, program, CACHE / f"{program.name}-files")
    if program.exists():
        return tests
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kohort-suite-") as folder:
        source = Path(folder) / "module"
        shutil.copytree(_module(go, suite), source, copy_function=shutil.copyfile)
        for path in (source, *source.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        build([go, "mod", "tidy"], source, "go mod tidy")
        made = Path(folder) / program.name
        build([go, "test", "-c", "-o", str(made), f"./{suite.package}"], source, "go test -c")
        shutil.rmtree(tests.files, ignore_errors=True)
        shutil.copytree(source / suite.package, tests.files)
        shutil.move(made, program)
    return tests


def _module(go: str, suite: Suite) -> Path:
    command = [go, "mod", "download", "-json", f"{suite.module}@{suite.version}"]
    with tempfile.TemporaryDirectory(prefix="kohort-suite-") as folder:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise PeerUnavailable(f"go mod download failed: {' '.join((done.stdout + done.stderr).split())[-300:]}")
    return Path(json.loads(done.stdout)["Dir"])


def _follow(
    tests: _Tests, short: bool, environment: dict[str, str], folder: str, log: Callable[[str], None]
) -> Outcome:
    outcome = Outcome(tests.suite)
    command = tests.command(short)
    said: dict[str, list[str]] = {}
    with (
        (Path(folder) / "stderr.txt").open("w") as errors,
        subprocess.Popen(
            command, cwd=tests.files, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        for event in _events(process):
            _take(outcome, said, event, log)
    return outcome


def _events(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            yield json.loads(line)


def _take(outcome: Outcome, said: dict[str, list[str]], event: dict[str, Any], log: Callable[[str], None]) -> None:
    test, action = event.get("Test", ""), event["Action"]
    if not test:
        outcome.whole |= action in ("pass", "fail")
    elif action == "output":
        lines = said.setdefault(test, [])
        lines.append(event["Output"].rstrip())
        del lines[:-_SAID_MAX]
    elif action in ("pass", "fail", "skip"):
        log(test)
        lines = said.pop(test, [])
        if action == "fail":
            outcome.failed[test] = lines
        else:
            (outcome.passed if action == "pass" else outcome.skipped).append(test)
