"""Runs one load against one coordinator and says how long the group stood still.

`python -m bench.coordinator.load --bootstrap-server HOST:PORT --protocol classic --members 100` prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
import uuid
from collections.abc import Callable

from bench.coordinator.members import ClassicMember, ConsumerMember, Member, Plan
from bench.coordinator.wire import Link

from kohort.errors import ErrorCode
from kohort.wire.cluster import CreateTopicsRequest, MetadataRequest
from kohort.wire.groups import FindCoordinatorRequest
from kohort.wire.offsets import OffsetCommitRequest

STABLE_WITHIN_S = 120.0
POLL_S = 0.005


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of the sorted values lie; 0.0 for none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def prepare_topic(host: str, port: int, topic: str, partitions: int) -> uuid.UUID:
    """Create the topic and return its id once the cluster shows it and its coordinator answers.

    The look-up comes first: Apache Kafka makes its offsets topic only when asked for a coordinator.
    """
    link = await Link.open(host, port, "load")
    create = CreateTopicsRequest(
        topics=[CreateTopicsRequest.CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1)],
        timeout_ms=30_000,
    )
    await link.ask(create, 5)
    want = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)])
    while True:
        answer = await link.ask(want, 12)
        found = answer.topics[0]
        look_up = FindCoordinatorRequest(key_type=0, coordinator_keys=[topic])
        coordinator = (await link.ask(look_up, 4)).coordinators[0]
        ready = found.error_code == coordinator.error_code == 0
        if ready and len(found.partitions) == partitions:
            link.abort()
            return uuid.UUID(str(found.topic_id))
        await asyncio.sleep(0.1)


class Load:
    """Members spread over groups; each event is timed until the whole of its group is stable again."""

    def __init__(self, plan: Plan, protocol: str, groups: int, run: str) -> None:
        self._plan = plan
        self._kind: Callable[[Plan, str, str], Member] = ClassicMember if protocol == "classic" else ConsumerMember
        self._run = run
        self.groups: dict[str, list[Member]] = {f"{run}-g{i}": [] for i in range(groups)}
        self._count = 0

    def members(self) -> list[Member]:
        return [member for group in self.groups.values() for member in group]

    def add(self, group: str) -> Member:
        self._count += 1
        member = self._kind(self._plan, group, f"load-{self._count}")
        self.groups[group].append(member)
        member.start()
        return member

    def group_stable(self, group: str) -> bool:
        members = self.groups[group]
        if not members or not all(member.stable for member in members):
            return False
        if len({member.epoch for member in members}) != 1:
            return False
        owned = [partition for member in members for partition in member.owned]
        return len(owned) == len(set(owned)) == self._plan.partitions

    def stable(self) -> bool:
        return all(self.group_stable(group) for group in self.groups)

    async def until_stable(self) -> float:
        """Seconds until all groups are stable; raises TimeoutError with what is missing."""
        started = time.monotonic()
        while not self.stable():
            if time.monotonic() - started > STABLE_WITHIN_S:
                unstable = [group for group in self.groups if not self.group_stable(group)]
                errors: dict[str, int] = {}
                for member in self.members():
                    for name, count in member.heard.errors.items():
                        errors[name] = errors.get(name, 0) + count
                raise TimeoutError(f"{len(unstable)} groups not stable; errors seen: {errors}")
            await asyncio.sleep(POLL_S)
        return time.monotonic() - started

    async def event(self, name: str) -> dict[str, float]:
        """One join, leave or crash in the first group: whole time and the members' standstill, in seconds."""
        group = next(iter(self.groups))
        members = self.groups[group]
        for member in members:
            member.heard.stood_still.clear()
        started = time.monotonic()
        if name == "join":
            self.add(group)
        else:
            gone = members.pop(len(members) // 2)
            await (gone.leave() if name == "leave" else gone.crash())
        await self.until_stable()
        whole = time.monotonic() - started
        still = [value for member in members for value in member.heard.stood_still]
        return {
            "whole_s": round(whole, 3),
            "standstill_median_s": round(statistics.median(still), 3) if still else 0.0,
            "standstill_max_s": round(max(still), 3) if still else 0.0,
        }

    async def heartbeats(self, seconds: float) -> dict[str, float]:
        """Latency of the heartbeats of a quiet stretch, in milliseconds."""
        for member in self.members():
            member.heard.latencies.clear()
        await asyncio.sleep(seconds)
        seen = [value for member in self.members() for value in member.heard.latencies]
        return {
            "heartbeats_s": round(len(seen) / seconds, 1),
            "p50_ms": round(percentile(seen, 0.5) * 1e3, 3),
            "p99_ms": round(percentile(seen, 0.99) * 1e3, 3),
        }

    async def commits(self, seconds: float, partitions: int, links: int = 16) -> float:
        """Offset commits a second by simple consumers, each commit naming `partitions` partitions."""
        host, port = self._plan.address()
        ended = time.monotonic() + seconds
        done = 0

        async def one(index: int) -> None:
            nonlocal done
            link = await Link.open(host, port, "commits")
            request = self._commit_request(f"{self._run}-commits-{index}", partitions)
            while time.monotonic() < ended:
                answers = await asyncio.gather(*(link.ask(request, 8) for _ in range(8)))
                bad = {
                    ErrorCode(partition.error_code)
                    for answer in answers
                    for topic in answer.topics
                    for partition in topic.partitions
                } - {ErrorCode.NONE}
                if bad:
                    raise RuntimeError(f"commit refused: {bad}")
                done += len(answers)
            link.abort()

        started = time.monotonic()
        await asyncio.gather(*(one(index) for index in range(links)))
        return round(done / (time.monotonic() - started), 1)

    def _commit_request(self, group: str, partitions: int) -> OffsetCommitRequest:
        offsets = [
            OffsetCommitRequest.OffsetCommitRequestPartition(
                partition_index=index, committed_offset=index, committed_metadata=""
            )
            for index in range(partitions)
        ]
        topic = OffsetCommitRequest.OffsetCommitRequestTopic(name=self._plan.topic, partitions=offsets)
        return OffsetCommitRequest(group_id=group, topics=[topic])

    async def close(self) -> None:
        for member in self.members():
            await member.crash()


async def measure(options: argparse.Namespace) -> dict[str, object]:
    """Everything the options ask for, as one flat result."""
    host, _, port = options.bootstrap_server.rpartition(":")
    run = f"load-{uuid.uuid4().hex[:8]}"
    partitions = options.partitions or max(100, options.members // options.groups)
    topic_id = await prepare_topic(host, int(port), run, partitions)
    plan = Plan(
        run,
        partitions,
        topic_id,
        heartbeat_ms=options.heartbeat_ms,
        session_ms=options.session_ms,
        address=lambda: (host, int(port)),
    )
    load = Load(plan, options.protocol, options.groups, run)
    out: dict[str, object] = {"protocol": options.protocol, "members": options.members}
    try:
        names = list(load.groups)
        for index in range(options.members):
            load.add(names[index % len(names)])
        out["join_all_s"] = round(await load.until_stable(), 3)
        for name in options.events.split(",") if options.events else []:
            await asyncio.sleep(options.heartbeat_ms / 1000 * 1.5)
            out[name] = await load.event(name)
        if options.quiet_s:
            out["heartbeats"] = await load.heartbeats(options.quiet_s)
        for count in (int(n) for n in options.commits.split(",")) if options.commits else []:
            out[f"commits_{count}_s"] = await load.commits(options.commit_s, count)
    finally:
        await load.close()
    return out


def main() -> None:
    """Parse, run, print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--protocol", choices=("classic", "consumer"), default="classic")
    parser.add_argument("--members", type=int, default=100)
    parser.add_argument("--groups", type=int, default=1)
    parser.add_argument("--partitions", type=int, default=0, help="0: as many as members, at least 100")
    parser.add_argument("--heartbeat-ms", type=int, default=3_000)
    parser.add_argument("--session-ms", type=int, default=10_000)
    parser.add_argument("--events", default="join,leave,crash")
    parser.add_argument("--quiet-s", type=float, default=0.0, help="watch heartbeats so long")
    parser.add_argument("--commits", default="", help="partitions per commit, such as 1,10,100")
    parser.add_argument("--commit-s", type=float, default=5.0)
    print(json.dumps(asyncio.run(measure(parser.parse_args()))), flush=True)


if __name__ == "__main__":
    main()
