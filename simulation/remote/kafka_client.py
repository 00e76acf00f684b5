"""The core of kohort's own client, connected to simulated brokers in virtual time."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol

from kohort.client.net.cluster import Cluster
from kohort.client.net.connection import CloseConnection, OpenConnection, SendFrame
from kohort.client.net.runtime import Task
from kohort.client.settings import ConnectionConfig, client_config
from simulation.harness.network import Connection, Network
from simulation.harness.world import Chance, ScheduledCall, World
from simulation.remote.kafka import FIRST_PORT, HOST, NODES
from simulation.remote.life import ProcessLife

SETTINGS = {
    "reconnect_backoff_ms": 50,
    "reconnect_backoff_max_ms": 250,
    "retry_backoff_ms": 50,
    "socket_connection_setup_timeout_ms": 1_500,
    "metadata_max_age_ms": 20_000,
}


class SimulatedBrokers(Protocol):
    """The brokers that a client connects to.

    Attributes:
        network: between them and their clients.
        down: nodes that refuse connections.
    """

    network: Network
    down: set[int]

    def receive(self, node: int, connection: Connection, frame: bytes, respond: Callable[[memoryview], None]) -> None:
        """Receive a frame at a node."""


class KafkaClient:
    """The client that a `KafkaJournal` uses (`ClusterLink`).

    Attributes:
        cluster: the core.
    """

    def __init__(
        self,
        world: World,
        chance: Chance,
        kafka: SimulatedBrokers,
        life: ProcessLife,
        name: str,
        config: ConnectionConfig | None = None,
    ) -> None:
        self._world = world
        self._chance = chance
        self._kafka = kafka
        self._life = life
        self._name = name
        servers = ",".join(f"{HOST}:{FIRST_PORT + node}" for node in NODES)
        self.cluster = Cluster(config or client_config(ConnectionConfig, servers, {**SETTINGS, "client_id": name}))
        runtime = self.cluster.runtime
        runtime.set_time(world.now_ms)
        runtime.clock_with_sleep_ms = lambda: world.now_ms
        self.cluster.connections.jitter = chance.random
        self._sockets: dict[int, Connection] = {}
        self._due: ScheduledCall | None = None
        self._waking = False
        self._tasks: list[Task[Any]] = []
        spawn = runtime.spawn

        def remembered(coro: Coroutine[Any, Any, Any], name: str = "") -> Task[Any]:
            task = spawn(coro, name)
            self._tasks.append(task)
            return task

        runtime.spawn = remembered  # type: ignore[method-assign]

    def wake(self) -> None:
        """Run the core soon."""
        if not self._waking:
            self._waking = True
            self._life.after(0, self._drive)

    def die(self) -> None:
        """End the process: its sockets close, and its tasks stop."""
        for connection in list(self._sockets.values()):
            connection.break_()
        for task in reversed(self._tasks):
            task.cancel()
        self._tasks.clear()

    def _drive(self) -> None:
        self._waking = False
        runtime, links = self.cluster.runtime, self.cluster.connections
        runtime.advance(self._world.now_ms)
        while commands := links.take_commands():
            for command in commands:
                self._do(command)
            runtime.advance(self._world.now_ms)
        due = runtime.next_deadline_ms()
        if self._due is not None:
            self._due.cancel()
        self._due = None if due is None else self._life.after(math.ceil(due - self._world.now_ms), self._drive)

    def _do(self, command: Any) -> None:
        network = self._kafka.network
        if isinstance(command, OpenConnection):
            link, node = command.link, command.address.port - FIRST_PORT
            connection = network.connect(
                self._name, partial(self._life.turn, partial(self._closed, link)), self._chance, ""
            )
            connection.node = node
            self._sockets[link] = connection
            delay_ms = self._chance.upto(network.faults.delay_ms)
            self._life.after(delay_ms, partial(self._opened, link, connection))
        elif isinstance(command, CloseConnection):
            if (closed := self._sockets.pop(command.link, None)) is not None:
                closed.break_()
        elif isinstance(command, SendFrame) and command.link in self._sockets:
            link, connection = command.link, self._sockets[command.link]
            frame = b"".join(bytes(part) for part in command.parts)

            def respond(answer: memoryview) -> None:
                connection.send_down(lambda: self._life.turn(partial(self._received, link, answer)))

            connection.send_up(partial(self._kafka.receive, connection.node, connection, frame, respond))

    def _opened(self, link: int, connection: Connection) -> None:
        if connection.node in self._kafka.down:
            connection.break_()
        elif connection.open and link in self._sockets:
            self.cluster.connections.on_link_opened(link)
            self._drive()

    def _received(self, link: int, answer: memoryview) -> None:
        if link in self._sockets:
            self.cluster.connections.on_frame_received(link, answer)
            self._drive()

    def _closed(self, link: int) -> None:
        if self._sockets.pop(link, None) is not None:
            self.cluster.connections.on_link_closed(link, "the connection was reset")
            self._drive()
