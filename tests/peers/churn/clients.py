"""The member programs: how each is built, and the command that runs it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from kohort.errors import NotFoundError
from kohort.io.java import java_path, log4j_properties
from tests.peers.peers import CACHE, PeerUnavailable, build, digest
from tests.support.apache_kafka import kafka_jars
from tests.support.maven import MavenUnavailable

MEMBERS = Path(__file__).resolve().parent / "members"
_GO = MEMBERS.parents[1] / "go"
_JAVA_OPTIONS = ("-Xmx128m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


def command(client: str) -> list[str]:
    """The program of a client's member; its orders come after it as `name=value` words.

    Raises:
        PeerUnavailable: it can't be had here; the text says why in a few words.
    """
    return _COMMANDS[client]()


def _python(program: str) -> Callable[[], list[str]]:
    return lambda: [sys.executable, "-W", "ignore", str(MEMBERS / program)]


def _java() -> list[str]:
    try:
        jars = kafka_jars()
        java = java_path()
    except (MavenUnavailable, NotFoundError) as error:
        raise PeerUnavailable(str(error)) from error
    home = os.environ.get("JAVA_HOME")
    compiler = shutil.which(str(Path(home) / "bin" / "javac") if home else "javac")
    if compiler is None:
        raise PeerUnavailable("javac is not installed (a JDK, not only a JRE)")
    source = MEMBERS / "ChurnMember.java"
    classes = CACHE / f"java-{digest([source])}"
    if not (classes / "ChurnMember.class").exists():
        classes.mkdir(parents=True, exist_ok=True)
        build([compiler, "-d", str(classes), "-cp", f"{jars}/*", str(source)], MEMBERS, "javac")
    (classes / "log4j2.properties").write_text(log4j_properties("info"))
    return [str(java), *_JAVA_OPTIONS, "-cp", f"{classes}:{jars}/*", "ChurnMember"]


def _franz_go() -> list[str]:
    go = shutil.which("go")
    if go is None:
        raise PeerUnavailable("go is not installed")
    program = CACHE / f"churn-franz-go-{digest([_GO / 'go.mod', _GO / 'go.sum', _GO / 'churn' / 'main.go'])}"
    if not program.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        build([go, "build", "-mod=readonly", "-o", str(program), "./churn"], _GO, "go")
    return [str(program)]


_COMMANDS: dict[str, Callable[[], list[str]]] = {
    "kohort": _python("kohort_member.py"),
    "java": _java,
    "librdkafka": _python("confluent_member.py"),
    "franz-go": _franz_go,
    "aiokafka": _python("aiokafka_member.py"),
    "kafka-python": _python("kafka_python_member.py"),
}
