"""One load against one coordinator: measures how long the group stood still.

`python -m bench.coordinator.load --bootstrap-server HOST:PORT --protocol classic --members 100` prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
import uuid
from collections.abc import Callable
from typing import Any, TypeAlias

from bench.coordinator.book import Book
from bench.coordinator.members import NOT_YET, ClassicMember, ConsumerMember, Member, Plan
from bench.coordinator.pushed import PushMember
from bench.coordinator.wire import OWN_CLIENT, Link, Repeating
from kohort import AsyncAdmin
from kohort.broker.server.listener import raise_open_file_limit
from kohort.broker.serving import new_loop
from kohort.wire import framing
from kohort.wire.discovery import CreateTopicsRequest, MetadataRequest
from kohort.wire.groups import FindCoordinatorRequest
from kohort.wire.offsets import OffsetCommitRequest, OffsetCommitResponse, OffsetFetchRequest

STABLE_WITHIN_S = 150.0
LOOK_S = 0.005
LOOK_SHARE = 10
"""The divisor of the load's own time that checks of stability may take at most."""
OFFSETS_PER_COMMIT = 1_000
COMMITS = 8
"""The version of OffsetCommit that is measured."""
SOFTWARE = {"java": "apache-kafka-java", "librdkafka": "librdkafka", "kohort": OWN_CLIENT, "unnamed": ""}
"""What clients call themselves: a coordinator may treat them accordingly."""
KINDS: dict[str, type[Member]] = {"classic": ClassicMember, "consumer": ConsumerMember, "push": PushMember}
"""Members by protocol."""


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of the sorted values lie; 0.0 for none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def host_and_port(address: str) -> tuple[str, int]:
    """The two parts of HOST:PORT."""
    host, _, port = address.rpartition(":")
    return host, int(port)


async def prepare_topic(address: tuple[str, int], made_at: tuple[str, int], topic: str, partitions: int) -> uuid.UUID:
    """Create the topic and return its id once the cluster shows it and its coordinator answers.

    The look-up comes first: Apache Kafka makes its offsets topic only when asked for a coordinator. It is done under
    kohort's name, since coordinators apart from the brokers refuse it to others.

    Args:
        address: where groups are.
        made_at: where topics are made.
        topic: its name.
        partitions: how many it has.
    """
    link = await Link.open(*made_at, "load")
    create = CreateTopicsRequest(
        topics=[CreateTopicsRequest.CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1)],
        timeout_ms=30_000,
    )
    await link.ask(create, 5)
    link.abort()
    link = await Link.open(*address, "load", OWN_CLIENT)
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


def group_name(run: str, number: int) -> str:
    """Of a load's groups."""
    return f"{run}-g{number}"


class Load:
    """Members spread over groups; each event is timed until the whole of its group is stable again."""

    def __init__(self, plan: Plan, protocol: str, groups: int, run: str) -> None:
        self.plan = plan
        self._kind = KINDS[protocol]
        self._run = run
        self.groups: dict[str, list[Member]] = {group_name(run, number): [] for number in range(groups)}
        self.books = {group: Book() for group in self.groups}
        self._count = 0

    def members(self) -> list[Member]:
        return [member for group in self.groups.values() for member in group]

    def add(self, group: str, plan: Plan | None = None) -> Member:
        """One more, which sets out now; `plan` is its own, if it is not the others'."""
        self._count += 1
        member = self._kind(plan or self.plan, group, f"load-{self._count}", self.books[group])
        self.groups[group].append(member)
        member.start()
        return member

    def group_stable(self, group: str) -> bool:
        return len(self.books[group].holders) == self.plan.partitions and self.living_stable(group)

    def living_stable(self, group: str) -> bool:
        """Whether all members that live have what they are to have, whoever has the rest."""
        members = self.groups[group]
        return (
            bool(members)
            and all(member.stable for member in members)
            and len({member.epoch for member in members}) == 1
        )

    def stable(self) -> bool:
        return all(self.group_stable(group) for group in self.groups)

    def overlaps(self) -> int:
        return sum(book.overlaps for book in self.books.values())

    def errors(self) -> dict[str, int]:
        """Return the errors of the members of all groups, and their numbers."""
        found: dict[str, int] = {}
        for member in self.members():
            for name, count in member.heard.errors.items():
                found[name] = found.get(name, 0) + count
        return found

    async def until_stable(self) -> float:
        """Seconds until all groups are stable; raises TimeoutError with what is missing."""
        return await self.until_reached(self.stable)

    async def until_reached(self, reached: Callable[[], bool]) -> float:
        """Wait until a condition holds; return the seconds, as `until_stable` does."""
        started = time.monotonic()
        while True:
            before = time.monotonic()
            if reached():
                return time.monotonic() - started
            if before - started > STABLE_WITHIN_S:
                unstable = [group for group in self.groups if not self.group_stable(group)]
                raise TimeoutError(f"{len(unstable)} groups not stable; errors seen: {self.errors()}")
            await asyncio.sleep(max(LOOK_S, LOOK_SHARE * (time.monotonic() - before)))

    async def event(self, name: str) -> dict[str, float]:
        """One join, leave or crash in the first group, or a crash and a join in its place: times in seconds.

        The joiner waits until it has work. Standstill is that of members which gave all up (classic), else that of
        partitions that changed hands.
        """
        group = next(iter(self.groups))
        members, book = self.groups[group], self.books[group]
        for member in members:
            member.heard.downtimes_s.clear()
        book.still.clear()
        started = time.monotonic()
        if name != "join":
            gone = members.pop(len(members) // 2)
            await (gone.leave() if name == "leave" else gone.crash())
        joiner = self.add(group) if name in ("join", "replace") else None
        waited = await self.until_reached(lambda: joiner is None or bool(joiner.owned))
        await self.until_stable()
        whole = time.monotonic() - started
        still = [value for member in members for value in member.heard.downtimes_s] or book.still
        return {
            "whole_s": round(whole, 3),
            **({} if joiner is None else {"joiner_waits_s": round(waited, 3)}),
            "downtime_median_s": round(statistics.median(still), 3) if still else 0.0,
            "downtime_max_s": round(max(still), 3) if still else 0.0,
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

    async def churn(self, seconds: float, events_s: float, count: int, kinds: list[str]) -> dict[str, float]:
        """Joins and losses of these kinds (leave, crash, pause beyond the session), in the first group of `count`.

        A paused member wakes after its session and commits with its old epoch, which must be refused. `possible_share`
        is the most that `stable_share` can be where the partitions of who is silent go to nobody before its session
        ends.
        """
        group = next(iter(self.groups))
        members, chance = self.groups[group], random.Random(1)
        overlaps, stable, living, looked, stale = self.overlaps(), 0, 0, 0, 0
        held, possible, missed_until = 0.0, 0, 0.0
        zombies: set[asyncio.Task[bool]] = set()
        going: set[asyncio.Task[None]] = set()
        did = dict.fromkeys(("join", "leave", "crash", "pause"), 0)
        started = time.monotonic()
        due = started
        while (now := time.monotonic()) < started + seconds:
            if now >= due:
                due += 1 / events_s
                name = "join" if len(members) < count else chance.choice(kinds)
                did[name] += 1
                if name == "join":
                    self.add(group)
                else:
                    lost = members.pop(chance.randrange(len(members)))
                    if name != "leave" and lost.owned:
                        missed_until = now + (self.plan.session_ms - self.plan.heartbeat_ms) / 1000
                    losing = self._lose(lost, name, zombies)
                    going.add(asyncio.create_task(losing))  # a leave may wait for the round that its member has joined
            looked += 1
            stable += self.group_stable(group)
            living += self.living_stable(group)
            possible += now >= missed_until
            held += len(self.books[group].holders) / self.plan.partitions
            await asyncio.sleep(LOOK_S)
        await asyncio.gather(*going)
        stale = sum(await asyncio.gather(*zombies))
        return {
            "stable_share": round(stable / looked, 4),
            "possible_share": round(possible / looked, 4),
            "living_stable_share": round(living / looked, 4),
            "held_share": round(held / looked, 4),
            "overlaps": self.overlaps() - overlaps,
            "stale_commits_taken": stale,
            "stale_commits": did["pause"],
            **did,
            "settled_after_s": round(await self.until_stable(), 3),
        }

    async def _lose(self, member: Member, how: str, zombies: set[asyncio.Task[bool]]) -> None:
        if how == "leave":
            await member.leave()
        elif how == "crash":
            await member.crash()
        else:
            await member.freeze()

            async def wake() -> bool:
                await asyncio.sleep(self.plan.session_ms / 1000 + 3)
                return await member.thaw()

            zombies.add(asyncio.create_task(wake()))

    async def restart(self, kill: Callable[[], None], start: Callable[[], None]) -> dict[str, float]:
        """SIGKILL the coordinator and start it again at once: seconds until all members are stable again.

        `start` may block until clients are served; members try all the time.
        """
        for member in self.members():
            member.heard.errors.clear()
        epochs = {member: member.epoch for member in self.members()}
        started = time.monotonic()
        await asyncio.to_thread(kill)
        for member in self.members():
            member.stable = False
        await asyncio.to_thread(start)
        served = time.monotonic() - started
        await self.until_stable()
        errors = self.errors()
        return {
            "whole_s": round(time.monotonic() - started, 3),
            "process_up_s": round(served, 3),
            "expired": errors.get("UNKNOWN_MEMBER_ID", 0) + errors.get("FENCED_MEMBER_EPOCH", 0),
            "rebalanced": sum(member.epoch != epoch for member, epoch in epochs.items()),
        }

    async def store_offsets(self, count: int) -> list[str]:
        """Commit `count` offsets in groups of their own; return the groups' names."""
        link = await Link.open(*self.plan.address(), "offsets", self.plan.software)
        each = min(OFFSETS_PER_COMMIT, self.plan.partitions)
        names = [f"{self._run}-o{index}" for index in range(-(-count // each))]
        for name in names:
            answer = await self._first_commit(link, self._commit_request(name, each))
            bad = {p.error_code for topic in answer.topics for p in topic.partitions} - {0}
            if bad:
                raise RuntimeError(f"commit refused: {bad}")
        link.abort()
        return names

    async def count_offsets(self, names: list[str]) -> int:
        """How many offsets these groups have, each with its right value."""
        link = await Link.open(*self.plan.address(), "offsets", self.plan.software)
        found = 0
        for name in names:
            asked = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=name, topics=None)
            answer = (await link.ask(OffsetFetchRequest(groups=[asked]), 8)).groups[0]
            while answer.error_code in NOT_YET:  # another coordinator than the members' may still load
                await asyncio.sleep(LOOK_S)
                answer = (await link.ask(OffsetFetchRequest(groups=[asked]), 8)).groups[0]
            for topic in answer.topics:
                found += sum(part.committed_offset == part.partition_index for part in topic.partitions)
        link.abort()
        return found

    async def commits(self, seconds: float, partitions: int, links: int = 16) -> float:
        """Offset commits a second by simple consumers, each commit naming `partitions` partitions.

        Requests are encoded once and answers compared as bytes: it is not the load that is measured.
        """
        host, port = self.plan.address()
        loop = asyncio.get_running_loop()

        async def begin(index: int) -> tuple[Repeating, bytes, bytes]:
            link = await Link.open(host, port, "commits", self.plan.software)
            request = self._commit_request(f"{self._run}-commits-{index}", partitions)
            answer = await self._first_commit(link, request)
            bad = {part.error_code for topic in answer.topics for part in topic.partitions} - {0}
            if bad:
                raise RuntimeError(f"commit refused: {bad}")
            link.abort()
            _, repeating = await loop.create_connection(Repeating, host, port)
            await repeating.introduce(self.plan.software)
            frame = framing.encode_request(request, COMMITS, 0, "commits")
            return repeating, frame, await repeating.settle(frame)

        repeated = [await begin(index) for index in range(links)]
        started = time.monotonic()
        await asyncio.gather(*(link.repeat(frame, answer, seconds) for link, frame, answer in repeated))
        took = time.monotonic() - started
        for link, _, _ in repeated:
            link.abort()
        return round(sum(link.answers for link, _, _ in repeated) / took, 1)

    async def _first_commit(self, link: Link, request: OffsetCommitRequest) -> OffsetCommitResponse:
        """A commit to a group that may have to be looked for elsewhere first."""
        answer: OffsetCommitResponse = await link.ask(request, COMMITS)
        while answer.topics[0].partitions[0].error_code in NOT_YET:
            await asyncio.sleep(LOOK_S)
            answer = await link.ask(request, COMMITS)
        return answer

    def _commit_request(self, group: str, partitions: int) -> OffsetCommitRequest:
        offsets = [
            OffsetCommitRequest.OffsetCommitRequestPartition(
                partition_index=index, committed_offset=index, committed_metadata=""
            )
            for index in range(partitions)
        ]
        topic = OffsetCommitRequest.OffsetCommitRequestTopic(name=self.plan.topic, partitions=offsets)
        return OffsetCommitRequest(group_id=group, topics=[topic])

    async def close(self) -> None:
        await asyncio.gather(*(member.crash() for member in self.members()))

    async def drop_topic(self, servers: str) -> None:
        """Delete what may be thousands of partitions, which the next load's coordinator would look after too."""
        async with AsyncAdmin(servers) as admin:
            await admin.delete_topics([self.plan.topic])


Address: TypeAlias = Callable[[], tuple[str, int]]


def new_run() -> str:
    """A name for a load: its topic's, and what those of its groups begin with."""
    return f"load-{uuid.uuid4().hex[:8]}"


async def make_load(options: argparse.Namespace, address: Address | None = None, run: str = "") -> Load:
    """A topic and as many members as asked for, which set out when this returns.

    Args:
        options: see `arguments`.
        address: where the coordinator is now; None: it stays where the options say.
        run: the load's name, "": a new one.
    """
    here = host_and_port(options.bootstrap_server)
    run = run or new_run()
    partitions = options.partitions or max(100, options.members // options.groups + 1)  # who joins gets one too
    plan = Plan(
        run,
        partitions,
        await prepare_topic(here, host_and_port(options.topics_at or options.bootstrap_server), run, partitions),
        heartbeat_ms=options.heartbeat_ms,
        session_ms=options.session_ms,
        address=address or (lambda: here),
        software=SOFTWARE[options.client],
        patient=options.client != "librdkafka",
        id_length=options.client_id_length,
        commit_ms=options.commit_ms,
        from_reply=options.from_reply,
        processes=options.client == "kohort" and options.churn_s > 0,
    )
    load = Load(plan, options.protocol, options.groups, run)
    names = list(load.groups)
    for index in range(options.members):
        load.add(names[index % len(names)])
    return load


async def measure(
    options: argparse.Namespace,
    kill: Callable[[], None] | None = None,
    start: Callable[[], None] | None = None,
    address: Address | None = None,
) -> dict[str, Any]:
    """Everything the options ask for, as one result; `kill` and `start` are needed for a restart."""
    out: dict[str, Any] = {"protocol": options.protocol, "members": options.members}
    load = await make_load(options, address)
    started = time.monotonic()
    try:
        await load.until_stable()
        out["join_all_s"] = round(time.monotonic() - started, 3)
        for name in options.events.split(",") if options.events else []:
            await asyncio.sleep(options.heartbeat_ms / 1000 * 1.5)
            out[name] = await load.event(name)
        if options.quiet_s:
            await asyncio.sleep(1)
            out["heartbeats"] = await load.heartbeats(options.quiet_s)
        for count in (int(n) for n in options.commits.split(",")) if options.commits else []:
            out[f"commits_{count}_s"] = await load.commits(options.commit_s, count)
        if options.churn_s:
            out["churn"] = await load.churn(
                options.churn_s, options.churn_rate, options.members, options.churn_kinds.split(",")
            )
        if kill is not None and start is not None:
            names = await load.store_offsets(options.offsets)
            out["restart"] = await load.restart(kill, start)
            stored = min(OFFSETS_PER_COMMIT, load.plan.partitions) * len(names)
            out["restart"]["offsets_lost"] = stored - await load.count_offsets(names)
        if options.commit_ms:
            seen = [value for member in load.members() for value in member.heard.commits]
            out["commit_p50_ms"] = round(percentile(seen, 0.5) * 1e3, 3)
            out["commit_p99_ms"] = round(percentile(seen, 0.99) * 1e3, 3)
        out["overlaps"] = load.overlaps()
        out["errors"] = load.errors()
    finally:
        await load.close()
    return out


def arguments() -> argparse.ArgumentParser:
    """Return the parser of a load's options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--topics-at", default="", help="where topics are made, if not at the coordinator")
    parser.add_argument("--protocol", choices=tuple(KINDS), default="classic")
    parser.add_argument("--client", choices=tuple(SOFTWARE), default="java", help="whose name and habits")
    parser.add_argument("--members", type=int, default=100)
    parser.add_argument("--groups", type=int, default=1)
    parser.add_argument("--partitions", type=int, default=0, help="0: one more than members, at least 100")
    parser.add_argument("--client-id-length", type=int, default=0, help="pad client ids to so many characters")
    parser.add_argument("--heartbeat-ms", type=int, default=3_000)
    parser.add_argument("--session-ms", type=int, default=10_000)
    parser.add_argument("--commit-ms", type=int, default=0, help="classic members commit this often; 0: never")
    parser.add_argument(
        "--from-reply", action="store_true", help="heartbeats are due an interval after the last answer"
    )
    parser.add_argument("--events", default="", help="of join,leave,crash,replace, in this order")
    parser.add_argument("--quiet-s", type=float, default=0.0, help="watch heartbeats so long")
    parser.add_argument("--commits", default="", help="partitions per commit, such as 1,10,100")
    parser.add_argument("--commit-s", type=float, default=5.0)
    parser.add_argument("--churn-s", type=float, default=0.0)
    parser.add_argument("--churn-kinds", default="leave,crash", help="how members go: leave, crash, pause")
    parser.add_argument("--churn-rate", type=float, default=2.0, help="events a second")
    parser.add_argument("--offsets", type=int, default=0, help="offsets that are committed before a restart")
    return parser


def run(
    options: argparse.Namespace,
    kill: Callable[[], None] | None = None,
    start: Callable[[], None] | None = None,
    address: Address | None = None,
) -> dict[str, Any]:
    """`measure` on a loop of its own."""
    raise_open_file_limit()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(measure(options, kill, start, address))


def main() -> None:
    """Parse, run, print one JSON line."""
    print(json.dumps(run(arguments().parse_args())), flush=True)


if __name__ == "__main__":
    main()
