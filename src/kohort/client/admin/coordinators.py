"""How kohort's coordinators over a Kafka cluster are, as each says of itself. Coroutines over a `Cluster`."""

from __future__ import annotations

from dataclasses import dataclass, field

from kohort.client.net.cluster import Cluster, Node
from kohort.errors import ErrorCode, InvalidInputError, KafkaError, error_for
from kohort.wire.coordinators import DescribeCoordinatorsRequest, DescribeCoordinatorsResponse

ASKED_MS = 3_000
"""One that does not answer for so long is shown as silent."""


@dataclass(frozen=True, slots=True)
class CoordinatorSeen:
    """One coordinator.

    Attributes:
        elected: whether it is in office, by the newest map.
        shards: how many that map gives to it.
        map_version: of the map that it goes by itself; -1: not known.
        trouble: why it did not answer, empty where it did.
    """

    id: int
    address: str
    rack: str | None
    elected: bool
    shards: int
    map_version: int
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class ShardSeen:
    """One shard; None and -1 are not known.

    Attributes:
        coordinator: whom the newest map gives it, -1: nobody.
        phase: as that one says: loading, serving, failed, fenced, damaged.
        figures: its own; see `DescribeCoordinatorsResponse.Shard`.
    """

    index: int
    coordinator: int
    phase: str = ""
    figures: DescribeCoordinatorsResponse.Shard = field(
        default_factory=lambda: DescribeCoordinatorsResponse.Shard(index=-1)
    )


async def describe_coordinators(cluster: Cluster, timeout_ms: float) -> tuple[list[CoordinatorSeen], list[ShardSeen]]:
    """All coordinators, and all shards.

    Raises:
        InvalidInputError: the bootstrap addresses are brokers'.
        KafkaError: no coordinator answers.
    """
    nodes = await cluster.group_nodes(timeout_ms)
    if not cluster.links.apart:
        named = ", ".join(map(str, cluster.bootstrap))
        raise InvalidInputError(f"{named} is no coordinator of kohort's over a Kafka cluster, but a broker")
    said: dict[int, DescribeCoordinatorsResponse] = {}
    trouble: dict[int, str] = {}
    for node in nodes:
        try:
            answer = await cluster.send(DescribeCoordinatorsRequest(), Node(node), timeout_ms=ASKED_MS)
        except KafkaError as error:
            trouble[node] = str(error)
            continue
        said[node] = answer
    if not said:
        raise error_for(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"no coordinator answers: {'; '.join(trouble.values())}")
    newest = max(said.values(), key=_standing)
    coordinators = [
        CoordinatorSeen(
            each.node_id,
            f"{each.host}:{each.port}",
            each.rack,
            each.node_id == newest.elected_id,
            newest.owners.count(each.node_id),
            said[each.node_id].map_version if each.node_id in said else -1,
            trouble.get(each.node_id, ""),
        )
        for each in newest.coordinators
    ]
    figures = {(node, shard.index): shard for node, answer in said.items() for shard in answer.shards}
    shards = []
    for index, owner in enumerate(newest.owners):
        found = figures.get((owner, index))
        shards.append(ShardSeen(index, owner) if found is None else ShardSeen(index, owner, found.phase, found))
    return coordinators, shards


def _standing(answer: DescribeCoordinatorsResponse) -> tuple[bool, int]:
    """Whose map counts: the elected one's own, else the highest version."""
    return answer.node_id == answer.elected_id, answer.map_version
