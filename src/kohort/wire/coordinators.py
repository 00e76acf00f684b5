"""The description of kohort's coordinators over an Apache Kafka cluster: an API that Kafka does not have.

Its key is far from Kafka's own, which are assigned consecutively. A client sends it only after an ApiVersions response
with `coordinator_id`, which says that this address belongs to a coordinator.
"""

from __future__ import annotations

from kohort.wire.message import Message, RequestMessage
from kohort.wire.schema import Struct, array, int16, int32, int64, string


class DescribeCoordinatorsRequest(
    RequestMessage["DescribeCoordinatorsResponse"], key=20400, versions=(0, 0), flexible=0
):
    """A request for the known coordinators, the shards of each, and the state of the receiver's own shards."""


class DescribeCoordinatorsResponse(Message, key=20400, versions=(0, 0), flexible=0):
    """The shard map that the responding coordinator uses, and its own shards.

    `map_version` is -1 while it knows no map. `owners` has the coordinator of each shard, -1 for none.
    """

    class Coordinator(Struct):
        """One coordinator, at the address that clients use."""

        node_id: int = int32()
        host: str = string()
        port: int = int32()
        rack: str | None = string(nullable=True, default=None)

    class Shard(Struct):
        """One shard at the responding coordinator: its phase, term, appends and groups; -1 means unknown.

        `proof_age_ms` is the time since the newest acknowledged append was sent to Kafka. `term` is the journal's term,
        which is its producer epoch. Append times cover the whole life of the process.
        """

        index: int = int32()
        phase: str = string()
        term: int = int64(default=-1)
        proof_age_ms: int = int64(default=-1)
        load_ms: int = int64(default=-1)
        appends: int = int64()
        append_p50_us: int = int64(default=-1)
        append_p99_us: int = int64(default=-1)
        fences: int = int32()
        groups: int = int32()

    error_code: int = int16()
    node_id: int = int32(default=-1)
    elected_id: int = int32(default=-1)
    map_version: int = int64(default=-1)
    coordinators: list[Coordinator] = array(Coordinator)
    owners: list[int] = array(int32)
    shards: list[Shard] = array(Shard)
