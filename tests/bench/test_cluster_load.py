"""The load of the benchmarks is served by coordinators over Kafka, which refuse all clients but kohort's."""

from __future__ import annotations

import asyncio

import pytest
from bench.cluster.site import Site, described
from bench.coordinator import load

from tests.cluster.running import CoordinatorProcess
from tests.support.apache_kafka import ApacheKafka


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_coordinator_serves_the_load(apache_kafka: ApacheKafka, protocol: str) -> None:
    site = Site(apache_kafka, {}, [apache_kafka])
    with CoordinatorProcess(apache_kafka.bootstrap_servers, *site.settings(shards=1)) as coordinator:
        said = f"--bootstrap-server {coordinator.address} --topics-at {apache_kafka.bootstrap_servers} --client kohort"
        said += f" --protocol {protocol} --members 2 --partitions 2 --commits 1 --commit-s 0.2 --heartbeat-ms 500"
        result = load.run(load.arguments().parse_args(said.split()))
        assert result["commits_1_s"] > 0
        assert result["overlaps"] == 0
        assert [shard.index for shard in asyncio.run(described(coordinator.address)).shards] == [0]
