"""Which worker runs which file: those that need the same costly server run one after another, where it has started.

A session's server is Spark, a Kafka with security, ZooKeeper, or an object store. It takes 5 to 20 s of processor time
to start and to warm up, and some while it waits. Each worker would start all four.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Server:
    """A session's server: what a file that uses it has in its text, and the workers that run those files."""

    used: str
    workers: slice
    folder: str = "tests/"


SERVERS = {
    "secured": Server(r"[(,]\s*secured: SecuredKafka|getfixturevalue\(\"secured\"\)", slice(0, 1)),
    "zookeeper": Server(r"[(,]\s*zookeeper: ZooKeeper|getfixturevalue\(\"zookeeper\"\)", slice(0, 1)),
    "spark": Server(r"[(,]\s*(spark|run|checkpoints): (Any|Callable|dict|SparkSession)", slice(1, 3), "tests/spark/"),
    "store": Server(r"[(,]\s*store: str", slice(-1, None), "tests/region/"),
}
"""By fixture."""


@cache
def server_of(file: str) -> str | None:
    """The first server of `SERVERS` that a file of tests uses; None for a file that any worker may run."""
    text = (ROOT / file).read_text(encoding="utf-8")
    for name, server in SERVERS.items():
        if file.startswith(server.folder) and re.search(server.used, text):
            return name
    return None


class ServerScheduling(LoadFileScheduling):
    """Gives workers whole files in their order; the files of a server to the workers that have it, before others."""

    workqueue: Any
    assigned_work: Any

    def homes(self) -> Mapping[str, list[WorkerController]]:
        """The workers that run each server's files: all of them where there are too few."""
        workers = sorted(self.nodes, key=lambda worker: int(worker.gateway.id.removeprefix("gw")))
        return {name: workers[server.workers] or workers for name, server in SERVERS.items()}

    def chosen(self, worker: WorkerController) -> str | None:
        """The next file for a worker, None when those that are left are others'."""
        homes = self.homes()
        own = {name for name, workers in homes.items() if worker in workers}
        free = None
        for file in self.workqueue:
            server = server_of(file)
            if server in own:
                return str(file)
            if free is None and (server is None or not homes[server]):
                free = str(file)
        return free

    def _assign_work_unit(self, node: WorkerController) -> None:
        file = self.chosen(node)
        if file is None:
            node.shutdown()
            return
        self.workqueue.move_to_end(file, last=False)
        super()._assign_work_unit(node)
