"""All coordinators of a run, and the routing of members to the one that has their group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kohort.coordinator.shard import Shard
from kohort.errors import ErrorCode
from kohort.groups.events import TopicImage
from simulation.checkers.group_checkers import Checkers
from simulation.harness.network import Connection, Network
from simulation.harness.plan import Plan
from simulation.harness.push_gate import Respond
from simulation.harness.world import Chance, World
from simulation.remote.coordinator import Coordinator
from simulation.remote.kafka import Kafka
from simulation.remote.zookeeper import ZooKeeper

ASTRAY = 0.1
"""The probability that a client asks any coordinator, instead of one that knows where the group is."""
NOWHERE = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)


class Routes(Network):
    """The members' network: a new connection leads to the coordinator that has the group, according to one of them."""

    coordinators: list[Coordinator]

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._targets: dict[int, Coordinator] = {}

    def connect(self, client: str, on_closed: Callable[[], None], chance: Chance, process: str) -> Connection:
        """Open a connection."""
        connection = super().connect(client, on_closed, chance, process)
        self._targets[connection.id] = self._found(chance)
        return connection

    def _found(self, chance: Chance) -> Coordinator:
        asked = chance.choice(self.coordinators)
        if asked.coordination is None or asked.coordination.placement is None or chance.likely(ASTRAY):
            return asked
        owner = asked.coordination.placement.owners[0]
        return self.coordinators[owner] if owner >= 0 else asked

    def ask(self, connection: Connection, event: Any, on_reply: Callable[[Any], None]) -> None:
        """Send a request; a client whose coordinator has moved connects again."""
        target = self._targets[connection.id]

        def answer(value: Any) -> None:
            def arrived() -> None:
                on_reply(value)
                if value in NOWHERE:
                    connection.break_()

            connection.send_down(arrived)

        connection.send_up(lambda: target.receive(connection, event, answer))

    def receive_frame(self, connection: Connection, frame: bytes, respond: Respond) -> None:
        """Receive a push member's frame."""
        self._targets[connection.id].receive_frame(connection, frame, respond)

    def closed(self, connection_id: int) -> None:
        """Notice the end of a connection at a server's side."""
        self._targets[connection_id].on_closed(connection_id)


class Fleet:
    """All coordinators, in the role of the run's single server.

    Attributes:
        coordinators: by number.
    """

    def __init__(self, world: World, network: Routes, plan: Plan, checkers: Checkers, mutant: Any) -> None:
        self.world = world
        self.config = plan.config
        self.chance = world.stream("fleet")
        self.kafka = Kafka(world)
        self.zookeeper = ZooKeeper(world)
        places = self.kafka, self.zookeeper
        self.coordinators = [
            Coordinator(number, world, network, places, plan.config, checkers, mutant)
            for number in range(plan.coordinators)
        ]
        network.coordinators = self.coordinators
        network.server_sees_close = network.closed
        self.image = TopicImage()

    @property
    def waiting(self) -> dict[int, tuple[Any, Any, int]]:
        """Return the unanswered requests at all coordinators."""
        return {token: asked for coordinator in self.coordinators for token, asked in coordinator.waiting.items()}

    @property
    def shard(self) -> Shard | None:
        """Return one of the shards."""
        return next((coordinator.shard for coordinator in self.coordinators if coordinator.shard is not None), None)

    def start(self) -> None:
        """Start all coordinators, one after the other."""
        for coordinator in self.coordinators:
            self.world.after(self.chance.upto(500), coordinator.start)

    def pass_weeks(self) -> None:
        """Let all take a jump of the wall clock for time that has passed."""
        for coordinator in self.coordinators:
            coordinator.pass_weeks()

    def crash(self, down_ms: int) -> None:
        """Crash one coordinator, most often the one that serves; the others notice that it refuses connections."""
        serving = [
            coordinator for coordinator in self.coordinators if coordinator.shard is not None and coordinator.life.alive
        ]
        one = self.chance.choice(serving if serving and self.chance.likely(0.7) else self.coordinators)
        one.crash(down_ms)
        for other in self.coordinators:
            if other is not one and other.life.alive:
                other.suspect(one)

    def reload(self, away_ms: int) -> None:
        """Break one coordinator's connection to the journal: its term ends if that lasts."""
        one = self.chance.choice(self.coordinators)
        self.kafka.network.cut_off[one.name] = self.world.now_ms + away_ms

    def change_topics(self, image: TopicImage, deleted: str | None = None) -> None:
        """Publish the topics to all coordinators."""
        self.image = image
        for coordinator in self.coordinators:
            coordinator.change_topics(image, deleted)
