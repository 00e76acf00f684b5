"""A broker in ZooKeeper on a loop of this process, in a thread of its own: a test reaches its session."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kohort.broker.run import BrokerServer
from kohort.cluster.zookeeper.shown import BrokerInZooKeeper

READY_S = 60.0
SETTINGS = {"push.min.session.timeout.ms": 300, "log.retention.ms": -1}


class BrokerHere:
    """One that serves until it is left.

    Attributes:
        address: where it listens.
        beside: its place in ZooKeeper.
    """

    def __init__(self, data: Path, zookeeper: str, **knobs: Any) -> None:
        """`knobs`: of its place in ZooKeeper; `node_id` is the broker's."""
        self._settings = SETTINGS | ({"node.id": knobs.pop("node_id")} if "node_id" in knobs else {})
        self._data = data
        self._ready, self._error = threading.Event(), list[BaseException]()
        self.beside = BrokerInZooKeeper(zookeeper, **knobs)
        self.address = ""
        self._thread = threading.Thread(target=self._run, name="broker")

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - the test's thread raises it
            self._error.append(error)
        self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        broker = BrokerServer(self._loop, self._data, "127.0.0.1:0", self._settings, self.beside)
        try:
            await broker.start_accepting()
            self.address = broker.address
            self._ready.set()
            await self._end.wait()
        finally:
            await broker.close()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(READY_S)
        if self._error:
            raise self._error[0]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(READY_S)
        assert not self._thread.is_alive()
