"""The client's side of a connection: lost requests, and time that passes while the process is stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kohort.errors import ErrorCode
from kohort.groups.events import JoinGroup
from simulation.harness.network import Connection, Network
from simulation.harness.world import ScheduledCall, World

ANSWER_TIMEOUT_MS = 3_000
REFUSED_MS = 200
"""The maximum delay before a client repeats a request after its coordinator was loading or had moved."""
MAIN, ASIDE = "main", "aside"
FAREWELL_MS = 3_000
"""The time that a closed client stays so that its LeaveGroup can arrive; other connections stay open."""


class Client:
    """A client of the coordinator.

    Attributes:
        paused: its process is stopped; it does nothing until it wakes.
        dead: its process has ended.
        process: its process's name, "" when it runs on another machine than the coordinator.
        join_timeout_ms: the maximum time for the answer to a JoinGroup.
    """

    def __init__(self, name: str, world: World, network: Network) -> None:
        self.name = name
        self.world = world
        self.network = network
        self.chance = world.stream(name)
        self.process = name if world.stream(f"machine of {name}").random() < 0.5 else ""
        self.paused = False
        self.dead = False
        self.join_timeout_ms = ANSWER_TIMEOUT_MS
        self._channels: dict[str, Connection] = {}
        self._asked: dict[int, tuple[ScheduledCall, Connection, Callable[[], None]]] = {}
        self._asks = 0
        self._asleep: list[Callable[[], None]] = []

    def crash(self) -> None:
        """End the process without a LeaveGroup."""
        self.world.log(f"{self.name}: crashes")
        self.dead = True
        self._disconnect()

    def _close(self) -> None:
        """Stop all activity; the process ends soon."""
        self.dead = True
        self.world.after(self.chance.upto(FAREWELL_MS), self._disconnect)

    def _disconnect(self) -> None:
        """End the process, and its connections with it."""
        for connection in self._channels.values():
            connection.ended = True
            connection.break_()

    def cut(self) -> None:
        """Break the connection."""
        if MAIN in self._channels:
            self._channels[MAIN].break_()

    def _later(self, delay_ms: float, action: Callable[[], None]) -> None:
        def act() -> None:
            if self.dead:
                return
            if self.paused:
                self._asleep.append(act)
                return
            action()

        self.world.after(delay_ms, act)

    def _connect(self, channel: str) -> Connection:
        """Return the connection for a kind of requests, a new one if the last is closed."""
        connection = self._channels.get(channel)
        if connection is None or not connection.open:
            connection = self._channels[channel] = self.network.connect(
                self.name, self._on_closed, self.chance, self.process
            )
        return connection

    def _timeout_ms(self, event: Any) -> float:
        """Return how long the client waits for a response."""
        return self.join_timeout_ms if isinstance(event, JoinGroup) else ANSWER_TIMEOUT_MS

    def _ask(
        self, event: Any, on_reply: Callable[[Any], None], on_lost: Callable[[], None], channel: str = MAIN
    ) -> None:
        """Send a request; exactly one callback is called, unless the client dies. A bare error code counts as lost."""
        connection = self._connect(channel)
        self._asks += 1
        number = self._asks

        def lost() -> None:
            if self._asked.pop(number, None) is not None:
                connection.break_()
                on_lost()

        def replied(value: Any) -> None:
            asked = self._asked.pop(number, None)
            if asked is not None and not self.dead:
                asked[0].cancel()
                if isinstance(value, ErrorCode):
                    self._later(self.chance.upto(REFUSED_MS), on_lost)
                else:
                    self._awake(lambda: on_reply(value))

        timer = self.world.after(self._timeout_ms(event), lambda: self._awake(lost))
        self._asked[number] = (timer, connection, lost)
        self.network.ask(connection, event, replied)

    def _awake(self, action: Callable[[], None]) -> None:
        if self.paused:
            self._asleep.append(lambda: self._awake(action))
        elif not self.dead:
            action()

    def _on_closed(self) -> None:
        """Call `on_lost` for each request on a closed connection, when the client notices."""

        def notice() -> None:
            for _, connection, lost in list(self._asked.values()):
                if not connection.open:
                    lost()

        self._awake(notice)

    def _nothing(self, reply: object = None) -> None:
        """Ignore the response: nothing depends on it."""
        del reply
