"""The cost of quiet members: processor time of the servers, and of the appends that prove ownership."""

from __future__ import annotations

import asyncio
import time

from bench.cluster.site import KAFKAS, OURS, SHARDS, Site, described
from bench.coordinator import load
from bench.coordinator.places import Coordinator
from bench.harness import Contender, RunFailed, Sample
from kohort.broker.server.listener import raise_open_file_limit
from kohort.broker.serving import new_loop

KAFKAS_CORES = "kafka's cores"
_SETTLE_S = 4.0
"""A heartbeat interval and a bit: what joining left to do is done."""


def quiet(site: Site, members: int, groups: int, seconds: float, shards: int = SHARDS) -> list[Contender]:
    """Members that heartbeat each 3 s, at either coordinator; the rate is the cores that the coordinator takes.

    Args:
        site: where.
        members: how many in all; none: the coordinator idles.
        groups: over how many groups they are spread.
        seconds: that are watched.
        shards: of our coordinator.
    """

    async def appends(at: Coordinator) -> int:
        return sum(shard.appends for shard in (await described(at.servers)).shards)

    async def cost(at: Coordinator) -> Sample:
        said = f"--bootstrap-server {at.servers} --topics-at {site.kafka.bootstrap_servers} --client kohort"
        many = f"--members {members} --groups {groups} --partitions {max(1, members // groups)}"
        running = await load.make_load(load.arguments().parse_args([*said.split(), *many.split()]))
        try:
            if members:
                try:
                    await running.until_stable()
                except TimeoutError as error:
                    raise RunFailed(str(error)) from error
            await asyncio.sleep(_SETTLE_S)
            return await watch(running, at)
        finally:
            await running.close()

    async def watch(running: load.Load, at: Coordinator) -> Sample:
        ours = at.name == OURS
        began, used, kafka_used = time.monotonic(), at.cpu_s(), site.kafka_cpu_s()
        written = await appends(at) if ours else 0
        seen = await running.heartbeats(seconds)
        took = time.monotonic() - began
        facts = {f"heartbeat {name}": value for name, value in seen.items()}
        used = at.cpu_s() - used
        if ours:
            facts["appends_s"] = round((await appends(at) - written) / took, 1)
            facts[KAFKAS_CORES] = round((site.kafka_cpu_s() - kafka_used) / took, 3)
        return Sample(max(used, 1e-3), took, facts)

    def run(at: Coordinator) -> Sample:
        raise_open_file_limit()
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(cost(at))

    def run_ours() -> Sample:
        with site.ours(shards) as coordinator:
            return run(coordinator)

    return [Contender(OURS, run_ours), Contender(KAFKAS, lambda: run(site.kafkas))]


def proofs(site: Site, groups: int, seconds: float) -> list[Contender]:
    """The cores that all processes take, Kafka's nodes too: without members, and with groups of one that heartbeat.

    Kafka's own coordinator is beside them on one node; members of the load know one address, and on three nodes its
    groups are at three.
    """
    (idle, _), (ours, theirs) = quiet(site, 0, 1, seconds, groups), quiet(site, groups, groups, seconds, groups)

    def whole(of: Contender, name: str) -> Contender:
        def run() -> Sample:
            seen = of.run()
            besides = seen.facts.get(KAFKAS_CORES, 0.0)
            return Sample(seen.amount + besides * seen.seconds, seen.seconds, seen.facts | {"its own": seen.rate})

        return Contender(name, run)

    found = [whole(idle, f"{OURS}, no members"), whole(ours, f"{OURS}, {groups} groups of one")]
    return found if len(site.nodes) > 1 else [*found, whole(theirs, f"{KAFKAS}, {groups} groups of one")]
