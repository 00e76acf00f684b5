"""Clients of other languages at listeners with TLS and logins: programs that take orders, a line of JSON each.

An order is `{"do": …, "topic": …, "group": …, "count": …, "size": …, "seconds": …}`. The answer has `result`, "ok" or
the name of Kafka's error, else the error's text, and `count`. What an order does:

| order | |
|---|---|
| `connect` | asks for the cluster |
| `produce` | writes `count` records, waiting for each |
| `fetch` | reads them without a group (KafkaJS can't) |
| `group` | reads them in a group, and commits |
| `create`, `delete` | a topic |
| `load` | writes for `seconds`; `count` says how many |

Each order makes its own client, so that a right counts at once, and so does a login.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

import kohort
from kohort.client.admin import values
from kohort.errors import ErrorCode, KafkaError
from kohort.io.java import start_dependent_child
from tests.peers.peers import CACHE, HERE, PEERS, PeerUnavailable, build, digest
from tests.support.apache_kafka import kafka_jars, log4j_properties
from tests.support.maven import MavenUnavailable
from tests.support.waiting import until

Settings = Mapping[str, str]
END_S = 60
ADMIN_S = 20
"""The time that librdkafka's administration tries to log in."""


def franz_go() -> list[str]:
    """The command of franz-go's program. Raises PeerUnavailable."""
    go = shutil.which("go")
    if go is None:
        raise PeerUnavailable("go is not installed")
    folder = HERE / "go"
    program = (
        CACHE / f"secured-franz-go-{digest([folder / 'go.mod', folder / 'go.sum', folder / 'secured' / 'main.go'])}"
    )
    if not program.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        build([go, "build", "-mod=readonly", "-o", str(program), "./secured"], folder, "go")
    return [str(program)]


def kafkajs() -> list[str]:
    """The command of KafkaJS' program. Raises PeerUnavailable."""
    (peer,) = (peer for peer in PEERS if peer.name == "kafkajs")
    node, driver = peer.command()
    target = CACHE / driver.rpartition("/")[0] / "secured.js"
    source = HERE / "js" / "secured.js"
    if not target.exists() or target.read_bytes() != source.read_bytes():
        shutil.copy(source, target)
    return [node, str(target)]


def java() -> list[str]:
    """The command of Java's program. Raises PeerUnavailable."""
    compiler, runtime = shutil.which("javac"), shutil.which("java")
    if compiler is None or runtime is None:
        raise PeerUnavailable("javac is not installed (a JDK, not only a JRE)")
    try:
        jars = kafka_jars()
    except MavenUnavailable as error:
        raise PeerUnavailable(str(error)) from error
    source = HERE / "drivers" / "SecuredClient.java"
    classes = CACHE / f"secured-java-{digest([source])}"
    if not (classes / "SecuredClient.class").exists():
        classes.mkdir(parents=True, exist_ok=True)
        build([compiler, "-d", str(classes), "-cp", f"{jars}/*", str(source)], HERE, "javac")
    (classes / "log4j2.properties").write_text(log4j_properties("error"))
    options = ("-Xmx128m", "-XX:TieredStopAtLevel=1", f"-Dlog4j2.configurationFile={classes / 'log4j2.properties'}")
    return [runtime, *options, "-cp", f"{classes}:{jars}/*", "SecuredClient"]


PROGRAMS: dict[str, Callable[[], list[str]]] = {"franz-go": franz_go, "kafkajs": kafkajs, "java": java}


class ProgramClient:
    """A program under way that takes orders."""

    def __init__(self, command: list[str], settings: Settings, token: str = "") -> None:
        certificate = settings.get("ssl.certificate.location", "")
        given = {
            "servers": settings["bootstrap.servers"],
            "tls": settings.get("security.protocol", "").endswith("SSL"),
            "ca": settings.get("ssl.ca.location", ""),
            "cert": certificate,
            "key": settings.get("ssl.key.location", ""),
            "pem": certificate.removesuffix(".crt") + ".pem" if certificate else "",
            "mechanism": settings.get("sasl.mechanism", ""),
            "user": settings.get("sasl.username", ""),
            "password": settings.get("sasl.password", ""),
            "token": token,
        }
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = start_dependent_child([*command, json.dumps(given)], **pipes)

    def order(self, do: str, **fields: Any) -> tuple[str, int]:
        """Give an order; return its result and how many records it was about."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **fields}).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the program has ended"
        answer = json.loads(line)
        return str(answer["result"]), int(answer["count"])

    def close(self) -> None:
        """End it."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class LibrdkafkaClient:
    """A client that carries the orders out by librdkafka, in this process."""

    def __init__(self, settings: Settings) -> None:
        self._settings: dict[str, Any] = {**settings, "message.timeout.ms": 20_000}

    def order(self, do: str, **fields: Any) -> tuple[str, int]:
        """Carry an order out."""
        try:
            getattr(self, f"_{do}")(**fields)
        except confluent_kafka.KafkaException as error:
            return str(error.args[0].name()).lstrip("_"), 0
        return "ok", fields.get("count", 1)

    def _produce(self, topic: str, count: int = 1) -> None:
        failed: list[Any] = []
        producer = confluent_kafka.Producer(self._settings)
        for _ in range(count):
            producer.produce(topic, b"v", on_delivery=lambda error, _: failed.append(error) if error else None)
        producer.flush(END_S)
        if failed:
            raise confluent_kafka.KafkaException(failed[0])

    def _group(self, topic: str, group: str, count: int = 1) -> None:
        chosen = {name: value for name, value in self._settings.items() if name != "message.timeout.ms"}
        consumer = confluent_kafka.Consumer(
            {**chosen, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        )
        consumer.subscribe([topic])
        seen = 0

        def read() -> bool:
            nonlocal seen
            message = consumer.poll(0.5)
            if message is not None and message.error():
                raise confluent_kafka.KafkaException(message.error())
            seen += message is not None
            return seen >= count

        try:
            until(read, "records come", END_S)
            consumer.commit(asynchronous=False)
        finally:
            consumer.close()

    def _admin(self) -> AdminClient:
        return AdminClient({name: value for name, value in self._settings.items() if name != "message.timeout.ms"})

    def _create(self, topic: str) -> None:
        admin = self._admin()  # futures of one that is gone fail
        admin.create_topics([NewTopic(topic, 1, 1)], request_timeout=ADMIN_S)[topic].result(END_S)

    def _delete(self, topic: str) -> None:
        admin = self._admin()
        admin.delete_topics([topic], request_timeout=ADMIN_S)[topic].result(END_S)

    def close(self) -> None:
        """Nothing is open."""


class KohortClient:
    """A client that carries the orders out by kohort's own clients."""

    def __init__(self, settings: Settings) -> None:
        self._settings: dict[str, Any] = dict(settings)

    def order(self, do: str, **fields: Any) -> tuple[str, int]:
        """Carry an order out."""
        try:
            getattr(self, f"_{do}")(**fields)
        except KafkaError as error:
            return ErrorCode(error.code).name, 0
        return "ok", fields.get("count", 1)

    def _produce(self, topic: str, count: int = 1) -> None:
        with kohort.Producer(**self._settings) as producer:
            for sent in [producer.send(topic, b"v") for _ in range(count)]:
                sent.result(timeout_ms=1_000 * END_S)

    def _group(self, topic: str, group: str, count: int = 1) -> None:
        chosen = {**self._settings, "group_id": group, "auto_offset_reset": "earliest", "enable_auto_commit": False}
        with kohort.Consumer(**chosen) as consumer:
            consumer.subscribe([topic])
            seen = 0

            def read() -> bool:
                nonlocal seen
                seen += len(consumer.poll(500))
                return seen >= count

            until(read, "records come", END_S)
            consumer.commit()

    def _create(self, topic: str) -> None:
        with kohort.Admin(**self._settings) as admin:
            admin.create_topics([values.NewTopic(topic, 1, 1)]).all()

    def _delete(self, topic: str) -> None:
        with kohort.Admin(**self._settings) as admin:
            admin.delete_topics([topic]).all()

    def close(self) -> None:
        """Nothing is open."""


SecuredClientHere = ProgramClient | LibrdkafkaClient | KohortClient


def secured_client(name: str, settings: Settings, token: str = "") -> SecuredClientHere:
    """Return a client that takes orders. Raises PeerUnavailable."""
    if name in PROGRAMS:
        return ProgramClient(PROGRAMS[name](), settings, token)
    return (LibrdkafkaClient if name == "librdkafka" else KohortClient)(settings)
