"""The DescribeCoordinators API: the coordinators, the placement, and the state of this coordinator's shards.

Prometheus metrics of the shards come from the same rows (`own_shards`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kohort.broker.authorization import Resource, allowed
from kohort.broker.server.dispatch import Handled, Route, handled, route_table
from kohort.broker.server.requests import Request
from kohort.cluster.host import CoordinatorHost
from kohort.cluster.shard_ownership import Tenure
from kohort.coordinator.shard import Shard
from kohort.ids import AclOperation
from kohort.wire.coordinators import DescribeCoordinatorsRequest, DescribeCoordinatorsResponse


def describe_coordinators(
    host: CoordinatorHost, request: Request[DescribeCoordinatorsRequest]
) -> DescribeCoordinatorsResponse:
    """Return the placement that this process uses; and, to clients that may describe the cluster, its shards.

    Every client learns the coordinators, as it learns brokers from Metadata: it asks all of them for groups.
    """
    sees_shards = allowed(host, request, AclOperation.DESCRIBE, Resource.CLUSTER)
    response = DescribeCoordinatorsResponse(node_id=host.me.id, shards=[*own_shards(host)] if sees_shards else [])
    placement = host.door.placement
    if placement is not None:
        make = DescribeCoordinatorsResponse.Coordinator
        response.elected_id, response.map_version = placement.elected, placement.version
        response.owners = [*placement.owners]
        response.coordinators = [
            make(node_id=candidate.id, host=candidate.host, port=candidate.port, rack=candidate.rack)
            for candidate in placement.candidates
        ]
    return response


def own_shards(host: CoordinatorHost) -> Iterator[DescribeCoordinatorsResponse.Shard]:
    """Return a row of metrics for each shard that this coordinator owns."""
    for shard in host.groups:
        tenure = host.tenures.held.get(shard.index)
        if tenure is not None:
            yield _shard(host, shard, tenure)


def _shard(host: CoordinatorHost, shard: Shard, tenure: Tenure) -> DescribeCoordinatorsResponse.Shard:
    times = host.tenures.append[shard.index]
    count = sum(times.counts)
    row = DescribeCoordinatorsResponse.Shard(
        index=shard.index,
        phase=shard.phase.name.lower(),
        load_ms=-1 if tenure.load_s is None else round(tenure.load_s * 1000),
        appends=count,
        append_p50_us=round(times.quantile_s(0.5) * 1e6) if count else -1,
        append_p99_us=round(times.quantile_s(0.99) * 1e6) if count else -1,
        fences=host.tenures.fences.get(shard.index, 0),
        groups=sum(1 for _ in shard.group_states()),
    )
    if tenure.journal is not None:
        figures = tenure.journal.figures
        row.term = figures.epoch
        if figures.acknowledged_ms:
            row.proof_age_ms = max(0, round(host.loop.time() * 1000 - figures.acknowledged_ms))
    return row


HANDLERS: list[Handled[CoordinatorHost]] = [
    handled(DescribeCoordinatorsRequest, DescribeCoordinatorsResponse, describe_coordinators)
]
STATUS_ROUTES: dict[int, Route[CoordinatorHost]] = {
    key: replace(route, needs=()) for key, route in route_table([HANDLERS]).items()
}
"""The route of DescribeCoordinators, whose handler checks the right itself."""
