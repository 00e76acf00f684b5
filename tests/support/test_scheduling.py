"""Files that need the same server run on the workers that have it; no file stays behind."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support import scheduling
from tests.support.scheduling import SERVERS, ServerScheduling, server_of


@dataclass(eq=False)
class Worker:
    gateway: Any
    files: list[str] = field(default_factory=list)
    shutting_down: bool = False

    def shutdown(self) -> None:
        self.shutting_down = True


def worker(number: int) -> Any:
    return Worker(SimpleNamespace(id=f"gw{number}"))


def played(count: int, files: dict[str, str | None], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Workers that take a file each in turn, until none is left for them."""
    monkeypatch.setattr(scheduling, "server_of", files.__getitem__)
    made = cast(Any, ServerScheduling.__new__(ServerScheduling))
    workers = [worker(number) for number in range(count)]
    made.assigned_work = {taker: {} for taker in workers}
    made.workqueue = OrderedDict((file, {}) for file in files)
    while made.workqueue and any(not taker.shutting_down for taker in workers):
        for taker in workers:
            file = made.chosen(taker)
            if file is None:
                taker.shutdown()
            else:
                del made.workqueue[file]
                taker.files.append(file)
    assert not made.workqueue
    return workers


def test_files_of_a_server_run_where_it_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    files: dict[str, str | None] = {"long": None, "a": "secured", "b": "zookeeper", "c": "spark", "d": "spark"}
    files |= {"e": "spark", "f": "secured", "g": None, "h": None}
    first, second, third, fourth = played(4, files, monkeypatch)
    assert first.files[:3] == ["a", "b", "f"]
    assert {"c", "d", "e"} == {*second.files, *third.files} - {"long", "g", "h"}
    assert fourth.files[:1] == ["long"]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_workers_leave_no_file(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    files: dict[str, str | None] = {"a": "spark", "b": "secured", "c": None, "d": "zookeeper", "e": "spark"}
    played(count, files, monkeypatch)


def test_servers_are_found_in_the_text_of_the_files() -> None:
    examples = {
        "tests/client/test_rights.py": "secured",
        "tests/peers/test_secured_rights.py": "secured",
        "tests/cluster/test_broker_zookeeper.py": "zookeeper",
        "tests/spark/test_stream.py": "spark",
        "tests/broker/security/test_tls.py": None,
        "tests/region/test_parquet_s3.py": "store",
        "tests/spark/test_public_jobs.py": None,
        "tests/wire/test_oracle.py": None,
    }
    assert {file: server_of(file) for file in examples} == examples
    assert set(examples.values()) - {None} == set(SERVERS)
