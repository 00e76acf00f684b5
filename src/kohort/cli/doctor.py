"""`kohort doctor`: a check of this machine for everything that kohort needs or can use."""

from __future__ import annotations

import errno
import logging
import os
import platform
import re
import shlex
import shutil
import socket
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from kohort.cli.app import DONE, FAILED, UsageError
from kohort.cli.common import Common
from kohort.cli.output import print_note, print_rows
from kohort.errors import InvalidInputError, KafkaError
from kohort.io.platforms import require_posix, reserve_port

_COMMON = Common()
_PYTHON_MIN = (3, 11)
_JAVA_OF_SPARK = (17, 21, 25)
"""The versions of Java that Spark 4.2 runs on. Source: the overview page of Spark's documentation."""
_FILES_WANTED = 4096
_FREE_WANTED = 1 << 30
OK, MISSING, OPTIONAL = "ok", "missing", "optional"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check of this machine.

    Attributes:
        what: the checked thing, such as a package.
        state: ok, missing (something can't work) or optional (something works worse, or is absent and not needed).
        found: the version or value on this machine.
        need: what it is needed for.
        remedy: how to get it; not shown when the state is ok.
    """

    what: str
    state: str
    found: str
    need: str
    remedy: str = ""


def doctor(*, data: Path | None = None, listen: str = "127.0.0.1:9092", common: Common = _COMMON) -> int:
    """Say what is missing on this machine, and how to get it. Exit code 1 when something needed is.

    With --bootstrap-server it also checks that that cluster answers.

    Args:
        data: The folder that a broker shall keep its data in; the one for temporary files when not given.
        listen: HOST:PORT that a broker shall listen on.
    """
    checks: list[Callable[[], Iterator[Finding]]] = [
        _python,
        _requirements,
        _kernel,
        _codecs,
        _spark,
        _extras,
        _limits,
        lambda: _folder(data or Path(tempfile.gettempdir())),
        lambda: _port(listen),
    ]
    if common.bootstrap_server is not None:
        checks.append(lambda: _cluster(common))
    findings = [finding for check in checks for finding in check()]
    rows: list[dict[str, Any]] = [
        {
            "what": finding.what,
            "state": finding.state,
            "found": finding.found,
            "for": finding.need,
            "get_it": finding.remedy if finding.state != OK else "",
        }
        for finding in findings
    ]
    columns = {"what": "What", "state": "State", "found": "Found", "for": "For", "get_it": "Get it"}
    print_rows(rows, columns, as_json=common.json)
    missing = [finding.what for finding in findings if finding.state == MISSING]
    if not common.json:
        print_note(f"missing: {', '.join(missing)}" if missing else "nothing that is needed is missing")
    return FAILED if missing else DONE


def _python() -> Iterator[Finding]:
    state = OK if sys.version_info >= _PYTHON_MIN else MISSING
    found = f"{platform.python_version()} ({sys.executable})"
    yield Finding("Python 3.11 or newer", state, found, "everything", "install Python 3.11 or newer")


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _for_pip() -> str:
    """Return the pip argument that names the kohort installed here: a local folder, a file, or the name on PyPI.

    Source: PEP 610, direct_url.json.
    """
    from urllib.request import url2pathname  # imports ssl, which the help page does without

    try:
        origin = msgspec.json.decode(distribution("kohort").read_text("direct_url.json") or "{}")
        parts = urlsplit(origin.get("url", ""))
        path = Path(url2pathname(parts.path))
    except (PackageNotFoundError, msgspec.DecodeError, ValueError):
        return "kohort"
    if parts.scheme != "file" or not os.path.exists(path):  # Path.exists raises if a folder on the way can't be read
        return "kohort"
    editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
    return editable + shlex.quote(str(path))


def _pip_install(extra: str) -> str:
    """Return the command that installs the packages of an extra: pip keeps the installed kohort, and asks no index."""
    return f"pip install 'kohort[{extra}]'"


@dataclass(frozen=True, slots=True)
class _Requirement:
    """A package that kohort's metadata requires.

    Attributes:
        package: its name.
        least: the oldest sufficient version, as numbers; empty: any version.
    """

    package: str
    least: tuple[int, ...]

    def problem(self) -> str | None:
        """Return what is wrong with the package on this machine; None if nothing is."""
        found = _installed(self.package)
        if found is None:
            return f"no {self.package}"
        if _numbers(found) < self.least:
            return f"{self.package} {found} is older than {'.'.join(map(str, self.least))}"
        return None


_PACKAGE, _LEAST = re.compile(r"[A-Za-z0-9._-]+"), re.compile(r">=([0-9.]+)")
_EXTRA = re.compile(r"extra == [\"'](?P<extra>[a-z0-9-]+)[\"']")
_NOT_ON_WINDOWS = re.compile(r"platform_system != [\"']Windows[\"']")


def _numbers(version_text: str) -> tuple[int, ...]:
    """Return the numbers of a version, without zeros at its end."""
    numbers = [int(part) for part in re.findall(r"\d+", version_text.partition("+")[0])]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _wanted_packages() -> dict[str, list[_Requirement]]:
    """Return the packages that kohort's metadata requires, by extra; those always required are under an empty text."""
    wanted: dict[str, list[_Requirement]] = {}
    for line in requires("kohort") or ():
        specified, _, condition = line.partition(";")
        package, least, extra = _PACKAGE.match(specified), _LEAST.search(specified), _EXTRA.search(condition)
        if package is None or (platform.system() == "Windows" and _NOT_ON_WINDOWS.search(condition)):
            continue
        requirement = _Requirement(package[0], _numbers(least[1]) if least else ())
        wanted.setdefault("" if extra is None else extra["extra"], []).append(requirement)
    return wanted


def _requirements() -> Iterator[Finding]:
    """Check the packages that kohort needs for everything."""
    wanted = _wanted_packages().get("", [])
    problems = {requirement.package: text for requirement in wanted if (text := requirement.problem())}
    found = ", ".join(problems.values()) or f"all {len(wanted)}"
    remedy = f"pip install --upgrade {' '.join(problems)}"
    yield Finding("required packages", MISSING if problems else OK, found, "everything", remedy)


def _kernel() -> Iterator[Finding]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the finding says the same
        from kohort.client.producer.appender import COMPILED as APPENDER_COMPILED
        from kohort.columns import COMPILED as COLUMNS_COMPILED
        from kohort.wire.record_walk import COMPILED as WALK_COMPILED

    whole = COLUMNS_COMPILED and WALK_COMPILED and APPENDER_COMPILED
    found = "yes" if whole else "no: plain Python, about two hundred times slower"
    remedy = (
        "install a C compiler (apt install gcc python3-dev, or xcode-select --install), then: "
        f"pip install --no-cache-dir --force-reinstall --no-deps {_for_pip()}"
    )
    yield Finding("compiled kernel", OK if whole else OPTIONAL, found, "records at full speed", remedy)


def _codecs() -> Iterator[Finding]:
    """Check that each compression codec decompresses what it has compressed."""
    from kohort.wire.compression import CODECS, compress, decompress

    sample = b"kohort " * 100
    bad = []
    codecs = {name: number for name, number in CODECS.items() if name != "none"}
    for name, number in codecs.items():
        try:
            intact = bytes(decompress(number, compress(number, sample), len(sample))) == sample
        except (ImportError, KafkaError):
            intact = False
        if not intact:
            bad.append(name)
    found = f"not {', '.join(bad)}" if bad else ", ".join(codecs)
    remedy = "pip install --force-reinstall cramjam"
    yield Finding("compression", MISSING if bad else OK, found, "compressed records", remedy)


def _spark() -> Iterator[Finding]:
    """Check PySpark and Java. PySpark may be absent; if installed, it must be new enough and have its Java."""
    from kohort.io.java import JAVA_VERSION_MIN, java_path, java_version
    from kohort.spark.registration import PYSPARK_MIN

    need = "the Spark source, the demo, kohort zookeeper"
    pyspark = _installed("pyspark")
    if pyspark is None:
        yield Finding("PySpark", OPTIONAL, "no", need, _pip_install("spark"))
    else:
        new = tuple(int(part) for part in pyspark.split(".")[:2]) >= PYSPARK_MIN
        yield Finding("PySpark", OK if new else MISSING, pyspark, need, _pip_install("spark"))
    remedy = "apt install openjdk-17-jre-headless, brew install openjdk@17, or set JAVA_HOME"
    try:
        path = java_path()
    except KafkaError as error:
        state = OPTIONAL if pyspark is None else MISSING
        yield Finding(f"Java {JAVA_VERSION_MIN} or newer", state, error.message, "PySpark", remedy)
    else:
        found = java_version(path)
        state = OK if found <= _JAVA_OF_SPARK[-1] else OPTIONAL
        names = f"{', '.join(map(str, _JAVA_OF_SPARK[:-1]))} and {_JAVA_OF_SPARK[-1]}"
        newer = f"Spark is made for Java {names}: if it fails, set JAVA_HOME to one of these"
        yield Finding(f"Java {JAVA_VERSION_MIN} or newer", state, f"{found} ({path})", "PySpark", newer)


EXTRAS = {
    "spark": "the Spark source, and Avro values in it",
    "demo": "kohort demo",
    "delta": "regions that write Delta tables",
    "lake": "regions that write Iceberg tables, or into object stores",
    "ducklake": "regions that write DuckLake tables",
    "postgres": "regions that write PostgreSQL tables",
    "pkcs12": "Java's trust stores that are PKCS12 files",
    "security": "kohort broker --secure, and tokens at the broker",
    "dashboard": "kohort dashboard",
    "scaler": "kohort scaler",
    "otlp": "kohort exporter --otlp",
    "zookeeper": "--zookeeper of kohort broker and coordinator",
    "registry": "Avro and JSON values of a schema registry",
    "protobuf": "Protobuf values of a schema registry",
    "speed": "a faster event loop for the broker",
}
"""The purpose of each extra."""


def _extras() -> Iterator[Finding]:
    wanted = _wanted_packages()
    for extra, need in EXTRAS.items():
        problems = [text for requirement in wanted.get(extra, ()) if (text := requirement.problem())]
        versions = [f"{requirement.package} {_installed(requirement.package)}" for requirement in wanted.get(extra, ())]
        found = ", ".join(problems or versions) or "nothing to install"
        remedy = _pip_install(extra)
        yield Finding(f"extra {extra}", OPTIONAL if problems else OK, found, need, remedy)


def _limits() -> Iterator[Finding]:
    """Check the limit of open files: the broker raises its soft limit to the hard one. Windows has no such limit."""
    try:
        require_posix("a broker")
    except InvalidInputError as error:
        yield Finding("operating system", OPTIONAL, platform.system(), "a broker, Spark, regions", error.message)
        return
    import resource

    from kohort.broker.server.listener import DESCRIPTORS_MIN

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = hard == resource.RLIM_INFINITY
    state = OK if unlimited or hard >= _FILES_WANTED else OPTIONAL if hard >= DESCRIPTORS_MIN else MISSING
    need = "a broker" if state == MISSING else f"a broker with some {_FILES_WANTED} connections and files"
    yield Finding("open files", state, "unlimited" if unlimited else f"up to {hard}", need, "ulimit -Hn 65536, as root")


def _folder(wanted: Path) -> Iterator[Finding]:
    """Check the data folder, or the nearest existing parent in which the broker would create it."""
    folder = wanted.absolute()
    need, what = "a broker's data", f"folder {wanted}"
    try:
        while not folder.exists():  # which raises if a parent can't be read
            folder = folder.parent
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0")
    except OSError as error:
        remedy = "kohort broker --data with another folder, or TMPDIR for Broker()"
        yield Finding(what, MISSING, f"can't be written: {error.strerror}", need, remedy)
        return
    free = shutil.disk_usage(folder).free
    state = OK if free >= _FREE_WANTED else OPTIONAL
    yield Finding(what, state, f"writable, {free / (1 << 30):.1f} GiB free", need, "make room, or use another disk")


def _port(listen: str) -> Iterator[Finding]:
    from kohort.settings.config import parse_listen_address

    try:
        host, port = parse_listen_address(listen)
    except InvalidInputError as error:
        raise UsageError(error.message) from error
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    what, need = f"port {listen}", "kohort broker"
    with socket.socket(family) as listener:
        reserve_port(listener)
        try:
            listener.bind((host, port))
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            found = "something listens there" if taken else f"can't be listened on: {error.strerror}"
            remedy = "kohort broker --listen 127.0.0.1:0 takes a free one"
            yield Finding(what, OPTIONAL if taken else MISSING, found, need, remedy)
        else:
            yield Finding(what, OK, "free", need)


def _cluster(common: Common) -> Iterator[Finding]:
    what, need = f"cluster {common.bootstrap_server}", "this command's --bootstrap-server"
    client_log = logging.getLogger("kohort.client")
    level = client_log.level
    client_log.setLevel(logging.ERROR)  # the finding reports an unreachable cluster
    try:
        with common.admin() as admin:
            found = admin.describe_cluster()
    except KafkaError as error:
        remedy = "start it, name another address, or give what it takes to log in by --command-config"
        yield Finding(what, MISSING, error.message, need, remedy)
    else:
        yield Finding(what, OK, f"brokers: {len(found.nodes)}", need)
    finally:
        client_log.setLevel(level)
