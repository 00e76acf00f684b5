"""Everything that groups stand on is killed, or stands still, under members of both protocols.

The short form: one node of Kafka, two coordinators, a kill and a sleep. `make coordinator-chaos` disturbs three of
everything at random for `KOHORT_CLUSTER_CHAOS` seconds, as `KOHORT_CHAOS_SEED` says.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kohort.errors import NotFoundError
from tests.cluster.chaos import mutants
from tests.cluster.chaos.faults import Fault
from tests.cluster.chaos.run import Run
from tests.cluster.chaos.servers import Servers
from tests.support.apache_kafka import ApacheKafka
from tests.support.kafka_cluster import three_nodes
from tests.support.maven import MavenUnavailable
from tests.support.waiting import until
from tests.support.zookeeper_ensemble import ensemble

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(10_800)]

SECONDS = float(os.environ.get("KOHORT_CLUSTER_CHAOS", "0"))
SEED = int(os.environ.get("KOHORT_CHAOS_SEED", str(time.time_ns() % 1_000_000)))


def faults_of(run: Run, *kinds: str) -> Iterator[list[Fault]]:
    """Each befalls the coordinator that has the ledger then."""
    for kind in kinds:
        until(lambda: run.servers.has(run.ledger.group) is not None, "a coordinator has the group", 60)
        owner = run.servers.has(run.ledger.group)
        assert owner is not None
        yield [run.faults.coordinator(owner, kind)]


def test_two_coordinators_one_killed_and_one_asleep(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    with ExitStack() as stack:
        run = Run(Servers(stack, [apache_kafka], 2), tmp_path, 2, SEED)
        found = run.play(faults_of(run, "kill", "sleep"))
        assert not found, "\n".join(found)
        ledger = run.happened[-1].asked[-1]
        assert ledger.served_elsewhere and ledger.offsets is None
        assert "another coordinator has taken over" in ledger.said()


def test_a_journal_that_is_read_in_part_is_seen(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    with ExitStack() as stack:
        servers = Servers(stack, [apache_kafka], 2, coordinator=mutants.process("loads_a_part"))
        run = Run(servers, tmp_path, 1, SEED)
        found = run.play(faults_of(run, "kill"))
        assert any("was acknowledged" in text for text in found), found


@pytest.mark.skipif(not SECONDS, reason="long: KOHORT_CLUSTER_CHAOS=600 (seconds)")
@pytest.mark.parametrize("service", ["zookeeper", "group"])
def test_three_of_everything_at_random(service: str, tmp_path: Path) -> None:
    print(f"KOHORT_CHAOS_SEED={SEED}")
    with ExitStack() as stack:
        try:
            nodes = stack.enter_context(three_nodes())
            zookeepers = stack.enter_context(ensemble()) if service == "zookeeper" else None
        except (MavenUnavailable, NotFoundError) as error:
            pytest.skip(str(error))
        servers = Servers(stack, [*nodes], 3, zookeepers)
        run = Run(servers, tmp_path, 3, SEED)

        def faults() -> Iterator[list[Fault]]:
            end_s = time.monotonic() + SECONDS
            while time.monotonic() < end_s:
                yield run.faults.next()

        found = run.play(faults())
        assert not found, "\n".join(found)
