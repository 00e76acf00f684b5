"""One node of Apache Kafka, and coordinators of ours over it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from tests.cluster.running import CoordinatorProcess
from tests.support.apache_kafka import SERVER_OPTIONS, ApacheKafka
from tests.support.kafka_cluster import three_nodes
from tests.support.maven import MavenUnavailable

from bench.coordinator.load import host_and_port
from bench.coordinator.places import SETTINGS, Coordinator, cpu_s_of
from bench.coordinator.wire import OWN_CLIENT, Link
from bench.harness import NotHere, RunFailed
from kohort import Admin
from kohort.client.admin.values import NewTopic
from kohort.wire.coordinators import DescribeCoordinatorsRequest, DescribeCoordinatorsResponse

SHARDS = 4
"""As many as `__consumer_offsets` has partitions in this Kafka."""
OURS, KAFKAS = "kohort over Kafka", "Apache Kafka"


@dataclass(frozen=True, slots=True)
class Site:
    """Where figures are taken.

    Attributes:
        kafka: the node that is asked.
        common: settings of both sides.
        nodes: all that there are.
    """

    kafka: ApacheKafka
    common: Mapping[str, str] = field(default_factory=lambda: SETTINGS)
    nodes: Sequence[ApacheKafka] = ()

    @property
    def kafkas(self) -> Coordinator:
        """Kafka's own coordinator."""
        kafka = self.kafka
        return Coordinator(KAFKAS, kafka.bootstrap_servers, kafka.kill, kafka.start, lambda: kafka.pid)

    @property
    def servers(self) -> str:
        """Of all nodes."""
        return ",".join(node.bootstrap_servers for node in self.nodes)

    def kafka_cpu_s(self) -> float:
        """Return the processor seconds of all nodes."""
        return sum(cpu_s_of(node.pid) for node in self.nodes)

    def settings(self, shards: int = SHARDS) -> tuple[str, ...]:
        """Of coordinators that share a fresh journal."""
        name = uuid.uuid4().hex[:8]
        chosen = {
            **self.common,
            "group.notify.at.once": "off",  # Kafka delays no heartbeat's response either
            "journal.partitions": str(shards),
            "journal.topic": f"__groups-{name}",
            "placement.group": f"__coordinators-{name}",
        }
        return tuple(word for key, value in chosen.items() for word in ("--set", f"{key}={value}"))

    def start(self, settings: tuple[str, ...]) -> CoordinatorProcess:
        """A coordinator of those that share these settings; it serves when this returns."""
        try:
            return CoordinatorProcess(self.servers, *settings)
        except AssertionError as error:
            raise RunFailed(str(error)) from error

    @contextmanager
    def ours(self, shards: int = SHARDS) -> Iterator[Coordinator]:
        """One coordinator of ours with a fresh journal. It is not started again."""
        with self.start(self.settings(shards)) as running:
            yield as_coordinator(running)

    def new_topic(self, partitions: int) -> str:
        """A fresh topic at Kafka."""
        name = f"bench-{uuid.uuid4().hex[:8]}"
        with Admin(self.kafka.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(name, partitions)]).all()
        return name


def as_coordinator(running: CoordinatorProcess) -> Coordinator:
    """One of ours, which is not started again."""
    return Coordinator(OURS, running.address, running.kill, lambda: None, lambda: running.process.pid)


async def described(address: str) -> DescribeCoordinatorsResponse:
    """Return the description that a coordinator gives of itself and its shards."""
    link = await Link.open(*host_and_port(address), "bench", OWN_CLIENT)
    seen: DescribeCoordinatorsResponse = await link.ask(DescribeCoordinatorsRequest(), 0)
    link.abort()
    return seen


@contextmanager
def site(common: Mapping[str, str] = SETTINGS) -> Iterator[Site]:
    """A fresh node.

    Args:
        common: settings of Kafka's coordinator and of ours.

    Raises:
        NotHere: there is no Apache Kafka on this machine.
    """
    try:
        kafka = ApacheKafka(common, SERVER_OPTIONS)
    except MavenUnavailable as error:
        raise NotHere(str(error)) from error
    with kafka:
        yield Site(kafka, common, [kafka])


@contextmanager
def site_of_three() -> Iterator[Site]:
    """Three fresh nodes; topics have three replicas, two of which must have a record before it counts.

    Raises:
        NotHere: there is no Apache Kafka on this machine.
    """
    with ExitStack() as stack:
        try:
            nodes = stack.enter_context(three_nodes())
        except MavenUnavailable as error:
            raise NotHere(str(error)) from error
        yield Site(nodes[0], nodes=nodes)
