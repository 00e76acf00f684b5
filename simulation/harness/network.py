"""Connections that delay, break, and linger half open; order is kept within one and not between two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kohort.broker.server.repeated_requests import Repetition
from simulation.harness.world import Chance, World


@dataclass(frozen=True)
class Weather:
    """How bad the network is now.

    Attributes:
        delay_ms: up to this long a message is under way.
        breaks: probability that a message breaks its connection instead of arriving.
        linger_ms: up to this long each end believes in a broken connection.
        late: probability that what was on its way up when a connection broke still arrives, as long as the coordinator
            believes in it: a request twice, on two connections, the older perhaps after the newer.
    """

    delay_ms: int = 20
    breaks: float = 0.0
    linger_ms: int = 50
    late: float = 0.0


class Connection:
    """One connection of a client to the coordinator.

    Attributes:
        id: the number the coordinator knows it by.
        open: messages still pass.
        heard: the coordinator's end still takes what is on its way up.
        lease_ms: the lease that its client was told to keep, 0: none.
        client: its client's name.
        process: its client's process by name, "" on another machine.
        ended: that process has ended.
        node: which of several servers it leads to.
        repeated: the requests that its client repeats.
    """

    def __init__(self, network: Network, on_closed: Callable[[], None], chance: Chance) -> None:
        network.count += 1
        self.id = network.count
        self.open = True
        self.heard = True
        self.lease_ms = 0
        self.client = ""
        self.process = ""
        self.ended = False
        self.node = 0
        self.repeated: dict[int, Repetition] = {}
        self._network = network
        self._chance = chance
        self._on_closed = on_closed
        self._arrives_up = 0
        self._arrives_down = 0

    def send_up(self, deliver: Callable[[], None]) -> None:
        """Let `deliver` be called at the coordinator's end, if the connection lives that long."""
        if not self.open:
            return
        weather, world, chance = self._network.weather, self._network.world, self._chance
        if (weather.breaks and chance.random() < weather.breaks) or self._is_cut_off():
            self.break_()
            return
        held_ms = self._network.held_up.get(self.client, 0)
        due = max(world.now_ms + chance.upto(weather.delay_ms), self._arrives_up, held_ms)
        self._arrives_up = due

        def arrive() -> None:
            if self.heard:
                deliver()

        world.after(due - world.now_ms, arrive)

    def send_down(self, deliver: Callable[[], None]) -> None:
        """Let `deliver` be called at the client's end, if the connection lives that long."""
        if not self.open:
            return
        weather, world, chance = self._network.weather, self._network.world, self._chance
        if (weather.breaks and chance.random() < weather.breaks) or self._is_cut_off():
            self.break_()
            return
        deaf = self._network.deaf
        if deaf and world.now_ms < deaf.get(self.client, 0):
            return
        held_ms = self._network.held_down.get(self.client, 0)
        due = max(world.now_ms + chance.upto(weather.delay_ms), self._arrives_down, held_ms)
        self._arrives_down = due

        def arrive() -> None:
            if self.open:
                deliver()

        world.after(due - world.now_ms, arrive)

    def _is_cut_off(self) -> bool:
        network = self._network
        return bool(network.cut_off) and network.world.now_ms < network.cut_off.get(self.client, 0)

    def break_(self) -> None:
        """Nothing passes any more; each end learns of it in its own time."""
        if not self.open:
            return
        self.open = False
        network, chance = self._network, self._chance
        weather = network.weather
        if not (weather.late and chance.random() < weather.late):
            self.heard = False
        network.world.after(chance.upto(weather.linger_ms), self._on_closed)
        network.world.after(chance.upto(weather.linger_ms), self._seen_closed)

    def _seen_closed(self) -> None:
        self.heard = False
        self._network.server_sees_close(self.id)


class Network:
    """All connections to one coordinator.

    Attributes:
        receive: the coordinator's door: connection, request without token, answer.
        server_sees_close: told when the coordinator's end notices.
        cut_off: clients of which nothing gets through, nor to them, until a time.
        deaf: clients to which nothing gets through until a time, while what they send arrives.
        held_up, held_down: clients whose connections are half open until a time: what they send, or is sent to them,
            arrives only then, in its order; the other way everything passes.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.weather = Weather()
        self.cut_off: dict[str, int] = {}
        self.deaf: dict[str, int] = {}
        self.held_up: dict[str, int] = {}
        self.held_down: dict[str, int] = {}
        self.count = 0
        self.receive: Callable[[Connection, Any, Callable[[Any], None]], None]
        self.server_sees_close: Callable[[int], None]

    def connect(self, client: str, on_closed: Callable[[], None], chance: Chance, process: str) -> Connection:
        """A new connection of this client and process; `on_closed` is called when the client learns of its end."""
        connection = Connection(self, on_closed, chance)
        connection.client, connection.process = client, process
        return connection

    def ask(self, connection: Connection, event: Any, on_reply: Callable[[Any], None]) -> None:
        """Send a request; `on_reply` gets the answer, if it comes."""

        def answer(value: Any) -> None:
            connection.send_down(lambda: on_reply(value))

        connection.send_up(lambda: self.receive(connection, event, answer))
