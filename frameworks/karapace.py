"""Karapace: two schema registries on one broker; every record is a schema that a registry has answered for."""

from __future__ import annotations

import http.client
import json
import os
import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from frameworks.account import Numbered
from frameworks.builds import CACHE, PROGRAMS, FrameworkUnavailable, keep_build, python_environment, run_build
from frameworks.framework import READ_MS, Framework, Site
from kohort import Consumer, TopicPartition
from kohort.zookeeper import free_ports

VERSION = "6.2.0"
COMMIT = "6dcc96fff88d03ff97e19ae1a1851c735a75ad73"
REPOSITORY = os.environ.get("KARAPACE", "https://github.com/Aiven-Open/karapace")
"""The package index does not have Karapace. The environment variable may name a clone instead."""
SCHEMAS = "_schemas"
ASK_TIMEOUT_S = 20.0
"""A registry that is not the primary forwards a schema, and waits for the primary that it knows."""
LOOK_TIMEOUT_S = 2.0
RETRY_S = 0.2


def karapace_sources() -> Path:
    """Return the folder of Karapace's sources, at the pinned commit.

    Raises:
        FrameworkUnavailable: the repository can't be reached, or its tag is another commit.
    """
    folder = CACHE / f"karapace-{COMMIT[:12]}"
    if not folder.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
            made = Path(temporary, "karapace")
            run_build(["git", "clone", "-qn", "--depth", "1", "--branch", VERSION, REPOSITORY, str(made)])
            head = subprocess.run(["git", "-C", str(made), "rev-parse", "HEAD"], capture_output=True, check=False)
            if head.stdout.decode().strip() != COMMIT:
                raise FrameworkUnavailable(f"Karapace's tag {VERSION} is not the commit {COMMIT}")
            run_build(["git", "-C", str(made), "checkout", "-q", "HEAD", "--", "src"])
            keep_build(made, folder)
    return folder / "src"


def schema_of(record: Numbered) -> str:
    """Return a schema that no other record has."""
    name = f"{record.key.replace('-', '_')}_{record.number}"
    return json.dumps({"type": "record", "name": name, "fields": [{"name": "value", "type": "int"}]})


def record_of(schema: str) -> Numbered:
    """Return the record that a schema stands for."""
    key, _, number = json.loads(schema)["name"].rpartition("_")
    return Numbered(key.replace("_", "-"), int(number))


def ask(port: int, path: str, body: object, timeout_s: float) -> tuple[int, Any]:
    """Post a request to a registry; return the status and the JSON.

    Raises:
        OSError: the registry is away, or too slow.
        http.client.HTTPException: it went away.
        ValueError: the answer is no JSON.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/vnd.schemaregistry.v1+json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


UNANSWERED = (OSError, http.client.HTTPException, ValueError)


class SchemaInput:
    """Registers the records as schemas, one after the other, at either registry until one answers with an id."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = ports
        self._waiting: queue.Queue[Numbered] = queue.Queue()
        self._closed = threading.Event()
        self.answered: queue.Queue[tuple[Numbered, int]] = queue.Queue()
        threading.Thread(target=self._register_all, daemon=True).start()

    def write(self, records: Sequence[Numbered]) -> None:
        """Hand over records."""
        for record in records:
            self._waiting.put(record)

    def flush(self) -> None:
        """Return at once: the run waits until all schemas have come out."""

    def close(self) -> None:
        """Register no more."""
        self._closed.set()

    def _register_all(self) -> None:
        turn = 0
        while not self._closed.is_set():
            try:
                record = self._waiting.get(timeout=RETRY_S)
            except queue.Empty:
                continue
            while not self._closed.is_set():
                found = self._register(self._ports[turn % len(self._ports)], record)
                turn += 1
                if found is not None:
                    self.answered.put((record, found))
                    break
                time.sleep(RETRY_S)

    def _register(self, port: int, record: Numbered) -> int | None:
        try:
            path = f"/subjects/{record.key}/versions"
            status, answer = ask(port, path, {"schema": schema_of(record)}, ASK_TIMEOUT_S)
        except UNANSWERED:
            return None
        return int(answer["id"]) if status == http.HTTPStatus.OK else None


class SchemaOutput:
    """Yields a schema when both registries have it under the id of the answer; its version is the record's count.

    The topic is read as well. A schema that it has under a second id or version comes out a second time. A schema with
    the id of another one comes out as an unknown record.
    """

    def __init__(self, servers: str, ports: Sequence[int], answered: queue.Queue[tuple[Numbered, int]]) -> None:
        self._ports = ports
        self._answered = answered
        self._pending: list[tuple[Numbered, int]] = []
        self._places: dict[Numbered, tuple[int, int]] = {}
        self._ids: dict[int, Numbered] = {}
        self._consumer = Consumer(servers, auto_offset_reset="earliest")
        self._consumer.assign([TopicPartition(SCHEMAS, 0)])

    def read_more(self) -> list[Numbered]:
        """Return what has come since the last call."""
        found = self._read_topic()
        while not self._answered.empty():
            self._pending.append(self._answered.get())
        with suppress(*UNANSWERED):  # a registry is away, and so are the other schemas for now
            while self._pending:
                version = self._version(*self._pending[0])
                if version is None:
                    break
                found.append(self._pending.pop(0)[0]._replace(total=version))
        return found

    def close(self) -> None:
        self._consumer.close()

    def _version(self, record: Numbered, schema_id: int) -> int | None:
        """Return the version that both registries name, or None."""
        versions = set()
        for port in self._ports:
            status, answer = ask(port, f"/subjects/{record.key}", {"schema": schema_of(record)}, LOOK_TIMEOUT_S)
            if status != http.HTTPStatus.OK or answer["id"] != schema_id:
                return None
            versions.add(int(answer["version"]))
        return versions.pop() if len(versions) == 1 else None

    def _read_topic(self) -> list[Numbered]:
        return [
            wrong
            for stored in self._consumer.poll(timeout_ms=READ_MS)
            if (wrong := self.check_stored(stored.key, stored.value)) is not None
        ]

    def check_stored(self, key: bytes | None, value: bytes | None) -> Numbered | None:
        """Return the record that a stored schema repeats, an unknown one if its id is another's, else None."""
        if json.loads(key or b"{}").get("keytype") != "SCHEMA" or value is None:
            return None
        stored = json.loads(value)
        record = record_of(stored["schema"])
        place = (int(stored["id"]), int(stored["version"]))
        if self._ids.setdefault(place[0], record) != record:
            return Numbered(record.key, -1)
        return record if self._places.setdefault(record, place) != place else None


class Karapace(Framework):
    """Two Karapace registries; one of them is elected the primary, which alone writes."""

    name = "karapace"
    title = "Karapace"
    version = VERSION
    exactly_once = True
    story = "schemas registered at two registries in turn; a schema is out when both have it under the answered id"
    settings = "`KARAPACE_SESSION_TIMEOUT_MS=6000`, `KARAPACE_COMPATIBILITY=NONE`, `KARAPACE_PRODUCER_ACKS=all`"

    def prepare(self, site: Site) -> None:
        """Get the sources, and make the environment. The first registry creates its topic."""
        self._sources = karapace_sources()
        self._python = python_environment("karapace")
        self._ports = free_ports(self.members)

    def command(self, site: Site, member: int) -> list[str]:
        settings = {
            "bootstrap_uri": site.servers,
            "client_id": f"registry-{member}",
            "host": "127.0.0.1",
            "port": self._ports[member],
            "advertised_hostname": "127.0.0.1",
            "karapace_registry": "true",
            "session_timeout_ms": 6000,
            "compatibility": "NONE",
            "producer_acks": "all",
            "log_level": "WARNING",
        }
        environment = [f"KARAPACE_{name.upper()}={value}" for name, value in settings.items()]
        program = [str(self._python), "-W", "ignore", str(PROGRAMS / "karapace_app.py"), str(self._sources), VERSION]
        return ["env", *environment, *program]

    def open_input(self, site: Site) -> SchemaInput:
        self._input = SchemaInput(self._ports)
        return self._input

    def open_output(self, site: Site) -> SchemaOutput:
        return SchemaOutput(site.servers, self._ports, self._input.answered)
