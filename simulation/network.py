"""Connections that delay, break, and linger half open; order is kept within one and not between two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simulation.world import World


@dataclass
class Weather:
    """How bad the network is now.

    Attributes:
        delay_ms: up to this long a message is under way.
        breaks: probability that a message breaks its connection instead of arriving.
        linger_ms: up to this long each end believes in a broken connection.
    """

    delay_ms: int = 20
    breaks: float = 0.0
    linger_ms: int = 50


class Connection:
    """One connection of a client to the coordinator.

    Attributes:
        id: the number the coordinator knows it by.
        open: messages still pass.
    """

    def __init__(self, network: Network, on_closed: Callable[[], None]) -> None:
        network.count += 1
        self.id = network.count
        self.open = True
        self._network = network
        self._on_closed = on_closed
        self._arrives = {"up": 0, "down": 0}

    def send(self, direction: str, deliver: Callable[[], None]) -> None:
        """Let `deliver` be called at the other end, if the connection lives that long."""
        network, world = self._network, self._network.world
        if not self.open:
            return
        if world.likely(network.weather.breaks):
            self.break_()
            return
        due = world.now_ms + world.chance.randint(0, network.weather.delay_ms)
        due = self._arrives[direction] = max(due, self._arrives[direction])

        def arrive() -> None:
            if self.open:
                deliver()

        world.after(due - world.now_ms, arrive)

    def break_(self) -> None:
        """Nothing passes any more; each end learns of it in its own time."""
        if not self.open:
            return
        self.open = False
        network, world = self._network, self._network.world
        linger = network.weather.linger_ms
        world.after(world.chance.randint(0, linger), self._on_closed)
        world.after(world.chance.randint(0, linger), lambda: network.server_sees_close(self.id))


class Network:
    """All connections to one coordinator.

    Attributes:
        receive: the coordinator's door: connection, request without token, answer.
        server_sees_close: told when the coordinator's end notices.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.weather = Weather()
        self.count = 0
        self.receive: Callable[[Connection, Any, Callable[[Any], None]], None]
        self.server_sees_close: Callable[[int], None]

    def connect(self, on_closed: Callable[[], None]) -> Connection:
        """A new connection; `on_closed` is called when the client's end learns of its end."""
        return Connection(self, on_closed)

    def ask(self, connection: Connection, event: Any, on_reply: Callable[[Any], None]) -> None:
        """Send a request; `on_reply` gets the answer, if it comes."""

        def answer(value: Any) -> None:
            connection.send("down", lambda: on_reply(value))

        connection.send("up", lambda: self.receive(connection, event, answer))
