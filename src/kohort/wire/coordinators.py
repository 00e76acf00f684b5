"""What kohort's coordinators over an Apache Kafka cluster say of themselves: no API of Kafka's.

The key is far from Kafka's own, which are given out one by one. Only who was told in ApiVersions that coordinators are
asked here (`coordinator_id`) sends it.
"""

from __future__ import annotations

from kohort.wire.message import Message, Request
from kohort.wire.schema import Struct, array, int16, int32, int64, string


class DescribeCoordinatorsRequest(Request["DescribeCoordinatorsResponse"], key=20400, versions=(0, 0), flexible=0):
    """Asks one coordinator who they are, which shards each has, and how its own are."""


class DescribeCoordinatorsResponse(Message, key=20400, versions=(0, 0), flexible=0):
    """The map that the asked coordinator goes by, and its own shards.

    `map_version` is -1 as long as it knows none. `owners` has the coordinator of each shard, -1: nobody.
    """

    class Coordinator(Struct):
        """Part of DescribeCoordinatorsResponse: one of them, at the address that clients use."""

        node_id: int = int32()
        host: str = string()
        port: int = int32()
        rack: str | None = string(nullable=True, default=None)

    class Shard(Struct):
        """Part of DescribeCoordinatorsResponse: a shard that the asked coordinator has; -1 is not known.

        `proof_age_ms` is how long ago the newest append was sent that Kafka acknowledged, `term` what the journal calls
        this tenure (its producer epoch), times of appends are over all of this process's life.
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
