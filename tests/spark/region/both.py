"""A query without Spark under a real control plane's machine; the test says who is connected, and what is delivered."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.region.test_plane import REGION_ID
from tests.region.test_plane import Driven as DrivenPlane
from tests.spark.region.driven import TERM, TOPIC, Driven

from kohort.ids import TopicPartition
from kohort.region.control_plane import events as plane_events
from kohort.region.control_plane.state import RegionFacts
from kohort.region.member import events
from kohort.region.records import InitialOffset


def known(term: int = TERM, epoch: int = 5) -> RegionFacts:
    """A region in which nobody has read but from 100 on, and which expects nobody."""
    initial = tuple(InitialOffset("r", f"g{number}", topic, TOPIC, 0, 100) for number, topic in enumerate("tu"))
    return RegionFacts("r", REGION_ID, term=term, epoch=epoch, floor=4, sequence=7, initial=initial)


class Both:
    """A query of two sources, `q0` that reads t and `q1` that reads u, and its control plane."""

    def __init__(self, folder: Path) -> None:
        self.query = Driven(folder, "tu")
        self.plane = DrivenPlane(known())
        self.connections: dict[int, int] = {}
        self.holds_commit = False
        self._sent = [0, 0]
        self._heard: dict[int, int] = {}
        self._commits = 0

    def close(self) -> None:
        self.query.close()

    def takeover(self) -> None:
        """Another control plane, which nobody has found yet."""
        self.plane = DrivenPlane(known(TERM + 1, self.plane.machine.plane.epoch))
        self.connections, self._heard, self._commits = {}, {}, 0

    def connect(self, member: int) -> None:
        self.connections[member] = connection = 100 + len(self._heard)
        self._heard[connection] = 0
        self._sent[member] = len(self.query.planes[member].said)
        self.query.threads[member].post(events.ControlPlaneConnected())
        self.query.turn(member)

    def pump(self, *members: int) -> None:
        """Deliver what these have to say and to hear, or all, until nothing is left; commits work."""
        while self._deliver(members or (0, 1)):
            pass

    def _deliver(self, members: Sequence[int]) -> bool:
        news = False
        for member in (member for member in members if member in self.connections):
            connection, said = self.connections[member], self.query.planes[member].said
            while self._sent[member] < len(said):
                self._sent[member], news = self._sent[member] + 1, True
                self.plane.say(connection, said[self._sent[member] - 1])
            heard = self.plane.heard.get(connection, [])
            while self._heard[connection] < len(heard):
                self._heard[connection], news = self._heard[connection] + 1, True
                self.query.order(heard[self._heard[connection] - 1], member=member)
        if self._commits < len(self.plane.commits) and not self.holds_commit:
            self._commits, news = len(self.plane.commits), True
            self.plane.do(plane_events.CommitEnded(self.plane.commits[-1].cut))
        return news

    def reads(self) -> None:
        """Both work, each with partition 0, and a batch of ten rows of each is done."""
        for member in (0, 1):
            self.connect(member)
        self.pump()
        self.assign(0)
        self.assign(1)
        self.batch()

    def assign(self, member: int) -> None:
        """The group gives it partition 0 of its topic."""
        self.query.groups[member].held.add(TopicPartition("tu"[member], 0))
        self.query.turn(member)
        self.pump()

    def batch(self, *sources: int) -> None:
        run, those = self.query.run, sources or (0, 1)
        for source in those:
            run.begin(source)
        run.finish()
        for source in those:
            run.end(source)
        for member in those:
            self.query.turn(member)

    def sequences(self) -> list[tuple[str, ...]]:
        """Return the members that contributed to each checkpoint."""
        return [commit.manifest.members for commit in self.plane.commits]

    def ends(self) -> tuple[int, ...]:
        """Where t and u go on, by the last sequence."""
        return tuple(at.offset for at in sorted(self.plane.commits[-1].manifest.positions, key=lambda at: at.topic))

    def batches(self) -> list[int]:
        """All that is in a sequence."""
        return [key.unit for commit in self.plane.commits for given in commit.contributions for key in given.keys]
