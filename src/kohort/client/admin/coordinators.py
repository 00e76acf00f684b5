"""State of kohort's coordinators over a Kafka cluster, as each reports it. Coroutines over a `Cluster`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kohort.client.net.cluster import BrokerById, Cluster
from kohort.errors import ErrorCode, InvalidInputError, KafkaError, error_for
from kohort.wire.coordinators import DescribeCoordinatorsRequest, DescribeCoordinatorsResponse

DESCRIBE_TIMEOUT_MS = 3_000
"""A coordinator that does not answer within this time is shown as silent."""


@dataclass(frozen=True, slots=True)
class CoordinatorStatus:
    """The state of one of kohort's coordinators over Kafka, which share the groups in shards.

    Attributes:
        elected: Whether it is the elected leader by the newest placement (the map from shards to coordinators).
        shards: Number of shards that the placement assigns to it.
        map_version: The version of the placement that it knows; -1: unknown.
        trouble: Why it did not answer; empty if it did.
    """

    id: int
    address: str
    rack: str | None
    elected: bool
    shards: int
    map_version: int
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """The state of one shard: the groups of one partition of `__consumer_offsets`. None and -1 mean unknown.

    Attributes:
        coordinator: The id of the coordinator that owns it by the newest placement; -1: none.
        phase: The phase that its owner reports: loading, serving, failed, fenced, damaged.
        metrics: Its metrics, as in `DescribeCoordinatorsResponse.Shard`.
    """

    index: int
    coordinator: int
    phase: str = ""
    metrics: DescribeCoordinatorsResponse.Shard = field(
        default_factory=lambda: DescribeCoordinatorsResponse.Shard(index=-1)
    )


async def describe_coordinators(
    cluster: Cluster, timeout_ms: float
) -> tuple[list[CoordinatorStatus], list[ShardStatus]]:
    """Describe all of kohort's coordinators over Kafka, and all shards of groups.

    Raises:
        InvalidInputError: The bootstrap servers are brokers.
        KafkaError: No coordinator answers.
    """
    nodes = await cluster.group_coordinator_nodes(timeout_ms)
    if not cluster.connections.apart:
        named = ", ".join(map(str, cluster.bootstrap))
        raise InvalidInputError(f"{named} is no coordinator of kohort's over a Kafka cluster, but a broker")
    said: dict[int, DescribeCoordinatorsResponse] = {}
    trouble: dict[int, str] = {}
    for node in nodes:
        try:
            answer = await cluster.send(DescribeCoordinatorsRequest(), BrokerById(node), timeout_ms=DESCRIBE_TIMEOUT_MS)
        except KafkaError as error:
            trouble[node] = str(error)
            continue
        said[node] = answer
    if not said:
        raise error_for(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"no coordinator answers: {'; '.join(trouble.values())}")
    newest = max(said.values(), key=_placement_order)
    coordinators = [
        CoordinatorStatus(
            coordinator.node_id,
            f"{coordinator.host}:{coordinator.port}",
            coordinator.rack,
            coordinator.node_id == newest.elected_id,
            newest.owners.count(coordinator.node_id),
            said[coordinator.node_id].map_version if coordinator.node_id in said else -1,
            trouble.get(coordinator.node_id, ""),
        )
        for coordinator in newest.coordinators
    ]
    metrics = {(node, shard.index): shard for node, answer in said.items() for shard in answer.shards}
    shards = []
    for index, owner in enumerate(newest.owners):
        found = metrics.get((owner, index))
        shards.append(ShardStatus(index, owner) if found is None else ShardStatus(index, owner, found.phase, found))
    return coordinators, shards


def shard_row(shard: ShardStatus) -> dict[str, Any]:
    """Return a shard's state as a row for commands and the dashboard; None where a value is unknown."""
    metrics = shard.metrics
    return {
        "shard": shard.index,
        "coordinator": shard.coordinator,
        "phase": shard.phase or "not known",
        "term": _known(metrics.term),
        "proof_age_ms": _known(metrics.proof_age_ms),
        "load_ms": _known(metrics.load_ms),
        "appends": metrics.appends,
        "append_p50_ms": None if metrics.append_p50_us < 0 else metrics.append_p50_us / 1000,
        "append_p99_ms": None if metrics.append_p99_us < 0 else metrics.append_p99_us / 1000,
        "fences": metrics.fences,
        "groups": metrics.groups,
    }


def _known(value: int) -> int | None:
    return None if value < 0 else value


def _placement_order(answer: DescribeCoordinatorsResponse) -> tuple[bool, int]:
    """Return the sort key of coordinators' answers about the placement; the greatest one counts.

    That is the elected leader's own answer, else the one with the highest version of the placement.
    """
    return answer.node_id == answer.elected_id, answer.map_version
