"""Connections that delay, break, and stay half open; messages keep their order within one connection only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kohort.broker.server.repeated_requests import Repetition
from simulation.harness.world import Chance, World


@dataclass(frozen=True)
class NetworkFaults:
    """The network's current delays and faults.

    Attributes:
        delay_ms: the maximum delay of a message.
        breaks: probability that a message breaks its connection instead of arriving.
        linger_ms: the maximum time until each end notices that its connection is broken.
        late: probability that requests in flight on a broken connection still arrive while the coordinator's end is
            open. A request may so arrive twice, on two connections, the older perhaps after the newer.
    """

    delay_ms: int = 20
    breaks: float = 0.0
    linger_ms: int = 50
    late: float = 0.0


class Connection:
    """One connection of a client to the coordinator.

    Attributes:
        id: the connection's id at the coordinator.
        open: messages still pass.
        heard: the coordinator's end still accepts what is in flight to it.
        lease_ms: the lease that its client was told to keep, 0: none.
        client: its client's name.
        process: its client's process by name, "" on another machine.
        ended: whether that process has ended.
        node: the server that it leads to, if there are several.
        repeated: frames that its client may send again, as the broker keeps them.
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
        """Call `deliver` at the coordinator's end, if the connection lives that long."""
        if not self.open:
            return
        faults, world, chance = self._network.faults, self._network.world, self._chance
        if (faults.breaks and chance.random() < faults.breaks) or self._is_cut_off():
            self.break_()
            return
        held_ms = self._network.held_up.get(self.client, 0)
        due = max(world.now_ms + chance.upto(faults.delay_ms), self._arrives_up, held_ms)
        self._arrives_up = due

        def arrive() -> None:
            if self.heard:
                deliver()

        world.after(due - world.now_ms, arrive)

    def send_down(self, deliver: Callable[[], None]) -> None:
        """Call `deliver` at the client's end, if the connection lives that long."""
        if not self.open:
            return
        faults, world, chance = self._network.faults, self._network.world, self._chance
        if (faults.breaks and chance.random() < faults.breaks) or self._is_cut_off():
            self.break_()
            return
        deaf = self._network.deaf
        if deaf and world.now_ms < deaf.get(self.client, 0):
            return
        held_ms = self._network.held_down.get(self.client, 0)
        due = max(world.now_ms + chance.upto(faults.delay_ms), self._arrives_down, held_ms)
        self._arrives_down = due

        def arrive() -> None:
            if self.open:
                deliver()

        world.after(due - world.now_ms, arrive)

    def _is_cut_off(self) -> bool:
        network = self._network
        return bool(network.cut_off) and network.world.now_ms < network.cut_off.get(self.client, 0)

    def break_(self) -> None:
        """Break the connection: nothing passes any more, and each end notices after its own delay."""
        if not self.open:
            return
        self.open = False
        network, chance = self._network, self._chance
        faults = network.faults
        if not (faults.late and chance.random() < faults.late):
            self.heard = False
        network.world.after(chance.upto(faults.linger_ms), self._on_closed)
        network.world.after(chance.upto(faults.linger_ms), self._seen_closed)

    def _seen_closed(self) -> None:
        self.heard = False
        self._network.server_sees_close(self.id)


class Network:
    """All connections to one coordinator.

    Attributes:
        receive: the coordinator's entrance: connection, request without token, answer.
        server_sees_close: called when the coordinator's end notices the end of a connection.
        cut_off: by client, the time until which no message passes in either direction.
        deaf: by client, the time until which it receives nothing, while its requests arrive.
        held_up, held_down: clients whose connections are half open until a time: what they send, or is sent to them,
            arrives only then, in its order; the other way everything passes.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.faults = NetworkFaults()
        self.cut_off: dict[str, int] = {}
        self.deaf: dict[str, int] = {}
        self.held_up: dict[str, int] = {}
        self.held_down: dict[str, int] = {}
        self.count = 0
        self.receive: Callable[[Connection, Any, Callable[[Any], None]], None]
        self.server_sees_close: Callable[[int], None]

    def connect(self, client: str, on_closed: Callable[[], None], chance: Chance, process: str) -> Connection:
        """Open a connection of this client and process; `on_closed` is called when the client notices its end."""
        connection = Connection(self, on_closed, chance)
        connection.client, connection.process = client, process
        return connection

    def ask(self, connection: Connection, event: Any, on_reply: Callable[[Any], None]) -> None:
        """Send a request; `on_reply` gets the answer, if it arrives."""

        def answer(value: Any) -> None:
            connection.send_down(lambda: on_reply(value))

        connection.send_up(lambda: self.receive(connection, event, answer))
