"""A PostgreSQL server of the tests' own, where its programs are; and its tables as places."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg

from kohort.region.sinks import Sink
from kohort.region.sinks.sql_table import SqlTable
from tests.region.places import REGION, Calls, Row

_PLACES = "/usr/lib/postgresql"


def programs() -> str:
    """The folder of the server's programs; empty: there is none, or nobody to run it."""
    found = [str(path.parent) for path in Path(_PLACES).glob("*/bin/initdb")] if os.path.isdir(_PLACES) else []
    if (on_path := shutil.which("initdb")) is not None:
        found.append(os.path.dirname(os.path.realpath(on_path)))
    return max(found, default="")


class Server:
    def __init__(self, folder: str, control: Callable[[str], None]) -> None:
        self.control = control
        self.url = f"postgresql://kohort@/postgres?host={folder}"
        self._numbers = itertools.count()

    def fresh(self) -> str:
        """A URL whose tables go into a new schema."""
        name = f"s{next(self._numbers)}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}")  # type: ignore[arg-type]
        return f"{self.url}&options=-csearch_path%3D{name}"

    def fresh_database(self) -> str:
        """A URL of a new database."""
        name = f"d{next(self._numbers)}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
        return self.url.replace("/postgres?", f"/{name}?")


@contextmanager
def running(bin_folder: str) -> Iterator[Server]:
    """A server, run by another user where this one is root, as it asks for."""
    folder = tempfile.mkdtemp(prefix="kohort-postgres-")
    be: dict[str, Any] = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}
    if be:
        shutil.chown(folder, "postgres", "postgres")

    def run(*words: str) -> None:
        subprocess.run(
            [f"{bin_folder}/{words[0]}", *words[1:]], check=True, cwd=folder, stdout=subprocess.DEVNULL, **be
        )

    data, given = f"{folder}/data", f"-c listen_addresses= -k {folder} -c fsync=off"

    def control(word: str) -> None:
        how = ["-o", given, "-l", f"{folder}/log"] if word == "start" else ["-m", "immediate"]
        run("pg_ctl", "-D", data, *how, "-w", word)

    try:
        run("initdb", "-D", data, "-A", "trust", "-U", "kohort", "-E", "UTF8", "--locale=C")
        control("start")
        try:
            yield Server(folder, control)
        finally:
            control("stop")
    finally:
        shutil.rmtree(folder)


class PostgresPlace:
    shared = False

    def __init__(self, kind: str, url: str) -> None:
        self.kind, self.url, self.replaces = kind, url, kind.endswith("update")

    def at(self, root: Path) -> None:
        """Return the place at the database's URL."""

    def sink(self, calls: Calls | None = None, region: UUID = REGION) -> Sink:
        options: dict[str, Any] = {"mode": "update", "keys": ["id"]} if self.replaces else {}
        return SqlTable(self.url, "flights", **options).bind(f"region-{region.int}", region)

    def _ask(self, table: str, columns: str) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            there = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (table,)).fetchone()
            if not there or not there[0]:
                return []
            return connection.execute(f"SELECT {columns} FROM {table}").fetchall()  # type: ignore[arg-type]

    def rows(self) -> list[Row]:
        return sorted(self._ask("flights", "id, name"))

    def staged(self) -> list[str]:
        return [row[0] for row in self._ask("flights__staged", "kohort_key") + self._ask("kohort_staged", "staged_key")]
