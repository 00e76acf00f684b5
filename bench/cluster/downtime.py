"""The downtime of groups: a coordinator's host falls silent, or a broker dies that leads the journal."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import TypeAlias

from tests.support.apache_kafka import ApacheKafka

from bench.cluster.latency import Ask, committing, producing
from bench.cluster.site import KAFKAS, OURS, Site, described, site_of_three
from bench.cluster.takeover import owner_of, until_spread
from bench.cluster.whereabouts import ANSWER_S, Address, found, leader, new_group, partitions
from bench.coordinator.load import LOOK_S, host_and_port
from bench.coordinator.members import NOT_YET
from bench.coordinator.wire import OWN_CLIENT, Link
from bench.harness import Contender, Parts, RunFailed, Sample
from kohort.errors import ErrorCode
from kohort.wire.offsets import OffsetFetchRequest

GROUPS = 8
SESSION_S = 6.0
"""The silence after which a coordinator of ours loses its shards; `placement.session.timeout.ms`."""
KAFKA_SESSION_S = 3.0
"""The silence after which one of three Kafka nodes is fenced; `broker.session.timeout.ms`."""
_WITHIN_S = 90.0
_AROUND_S = 2.0

Where: TypeAlias = Callable[[str], Awaitable[Address | None]]
"""A look-up of a group's coordinator; None: no node can name it now."""


async def offset_of(at: Address, group: str) -> int | None:
    """Return a group's offset from a coordinator; None: it does not answer for the group yet.

    The request asks for stable offsets, as consumers do. Otherwise Kafka reads only offsets that it knows to be
    replicated, which are none for a moment after an election.
    """
    with suppress(OSError, TimeoutError):
        link = await Link.open(*at, "bench", OWN_CLIENT)
        asked = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None)
        request = link.ask(OffsetFetchRequest(groups=[asked], require_stable=True), 8)
        try:
            answer = (await asyncio.wait_for(request, ANSWER_S)).groups[0]
        finally:
            link.abort()
        if answer.error_code == 0:
            return int(answer.topics[0].partitions[0].committed_offset) if answer.topics else -1
        if answer.error_code not in NOT_YET:
            raise RunFailed(f"group {group}: {ErrorCode(answer.error_code).name}")
    return None


async def until_answered(where: Where, groups: list[str], session_s: float) -> Sample:
    """Return the seconds until all groups are answered for, with their last commits.

    `wrong answers` are those without an error that had another offset, or none.
    """
    started = time.monotonic()
    wrong = 0
    for group in groups:
        while True:
            at = await where(group)
            seen = None if at is None else await offset_of(at, group)
            if seen == 1:
                break
            wrong += seen is not None
            if time.monotonic() > started + _WITHIN_S:
                raise RunFailed(f"group {group} is not answered for; the last answer: {seen}")
            await asyncio.sleep(LOOK_S)
    seconds = time.monotonic() - started
    facts = {"s": round(seconds, 3), "beyond the session, s": round(seconds - session_s, 3), "wrong answers": wrong}
    return Sample(1.0, seconds, facts)


async def committed(at: Address, topic: str, count: int) -> list[str]:
    """Create `count` groups of the coordinator at an address, each with an offset of 1."""
    groups: list[str] = []
    link = await Link.open(*at, "bench", OWN_CLIENT)
    until = time.monotonic() + _WITHIN_S
    group = new_group()
    while len(groups) < count:
        if time.monotonic() > until:
            raise RunFailed(f"{at[0]}:{at[1]} is the coordinator of no group")
        code = await committing(topic, group)(link)
        if code == ErrorCode.NONE:
            groups.append(group)
        elif code not in NOT_YET:
            raise RunFailed(f"a commit is refused: {ErrorCode(code).name}")
        if code in (ErrorCode.NONE, ErrorCode.NOT_COORDINATOR):
            group = new_group()
        else:
            await asyncio.sleep(LOOK_S)  # the group is looked for at Kafka's own coordinator first
    link.abort()
    return groups


def silent(site: Site, how: signal.Signals) -> Sample:
    """Send a signal to one of two coordinators; return the seconds until the other answers for its groups."""
    topic = site.new_topic(1)
    with ExitStack() as stack:
        settings = site.settings()
        running = [stack.enter_context(site.start(settings)) for _ in range(2)]
        until_spread(running)
        victim = owner_of(0, running)
        other = next(coordinator for coordinator in running if coordinator is not victim)
        address = host_and_port(other.address)

        async def where(_: str) -> Address:
            return address

        groups = asyncio.run(committed(host_and_port(victim.address), topic, GROUPS))
        victim.process.send_signal(how)
        return asyncio.run(until_answered(where, groups, SESSION_S))


def silent_broker(site: Site) -> Sample:
    """Stop the Kafka broker that coordinates some groups, and measure their downtime."""
    topic = site.new_topic(1)
    victim = asyncio.run(_coordinating(site))
    asked = next(host_and_port(node.bootstrap_servers) for node in site.nodes if node is not victim)
    groups = asyncio.run(committed(host_and_port(victim.bootstrap_servers), topic, GROUPS))
    os.kill(victim.pid, signal.SIGSTOP)
    try:
        return asyncio.run(until_answered(partial(found, asked), groups, KAFKA_SESSION_S))
    finally:
        os.kill(victim.pid, signal.SIGCONT)


async def _coordinating(site: Site) -> ApacheKafka:
    """A broker that has groups, once all replicas of the partitions with groups are in sync."""
    asked = host_and_port(site.kafka.bootstrap_servers)
    until = time.monotonic() + _WITHIN_S
    while time.monotonic() < until:
        at = await found(asked, new_group())
        parts = await partitions(asked, "__consumer_offsets")
        if at is not None and parts and all(len(part.isr_nodes) == len(site.nodes) for part in parts):
            return next(node for node in site.nodes if host_and_port(node.bootstrap_servers) == at)
        await asyncio.sleep(LOOK_S)
    raise RunFailed("not all replicas are in sync")


def silences(site: Site) -> list[Contender]:
    """A host that stands still, a process that ends; where there are several nodes, one of Kafka's own too."""
    contenders = [
        Contender(f"{OURS}, SIGSTOP", lambda: silent(site, signal.SIGSTOP)),
        Contender(f"{OURS}, SIGKILL", lambda: silent(site, signal.SIGKILL)),
    ]
    if len(site.nodes) > 1:
        contenders.append(Contender(f"{KAFKAS}, SIGSTOP", lambda: silent_broker(site)))
    return contenders


class Asking:
    """Asks the same again and again, of whoever is to be asked.

    Attributes:
        answered: when it was last answered.
        gap: the longest time between two answers.
    """

    def __init__(self, reach: Callable[[], Awaitable[Address | None]], ask: Ask, within_s: float = ANSWER_S) -> None:
        self._reach, self._ask, self._within_s = reach, ask, within_s
        self.answered = 0.0
        self.gap = 0.0

    async def run(self) -> None:
        """Until it is cancelled."""
        link: Link | None = None
        while True:
            try:
                if link is None:
                    at = await self._reach()
                    link = None if at is None else await Link.open(*at, "bench", OWN_CLIENT)
                code = -1 if link is None else await asyncio.wait_for(self._ask(link), self._within_s)
            except (OSError, TimeoutError):
                code = -1
            if code == 0:
                now = time.monotonic()
                if self.answered:
                    self.gap = max(self.gap, now - self.answered)
                self.answered = now
            else:
                if link is not None:
                    link.abort()
                    link = None
                await asyncio.sleep(LOOK_S)


def _node(site: Site, number: int) -> ApacheKafka:
    return site.nodes[number - 1]


async def _led_by(site: Site, asked: Address, number: int) -> tuple[str, int]:
    """A topic, and its partition that a node leads."""
    while True:
        topic = await asyncio.to_thread(site.new_topic, 3)
        for partition in range(3):
            if await leader(asked, topic, partition) == number:
                return topic, partition


async def _election(site: Site) -> dict[str, Sample]:
    settings = site.settings(shards=1)
    journal = next(word for word in settings if word.startswith("journal.topic=")).partition("=")[2]
    with ExitStack() as stack:
        ours = await asyncio.to_thread(lambda: stack.enter_context(site.start(settings)))
        first = host_and_port(site.kafka.bootstrap_servers)
        number = await leader(first, journal, 0)
        victim = _node(site, number)
        asked = next(host_and_port(node.bootstrap_servers) for node in site.nodes if node is not victim)
        topic, partition = await _led_by(site, asked, number)
        (group,) = await committed(host_and_port(victim.bootstrap_servers), topic, 1)

        async def to_leader() -> Address | None:
            now = await leader(asked, topic, partition)
            return None if now < 0 else host_and_port(_node(site, now).bootstrap_servers)

        async def to_ours() -> Address:
            return host_and_port(ours.address)

        watched = {
            "produce, acks=all": Asking(to_leader, producing(topic, partition=partition)),
            f"commit, {OURS}": Asking(to_ours, committing(topic), _WITHIN_S),
            f"commit, {KAFKAS}": Asking(lambda: found(asked, group), committing(topic, group)),
        }
        before = (await described(ours.address)).shards[0]
        await _through(victim, list(watched.values()))
        after = (await described(ours.address)).shards[0]
        samples = {name: Sample(1.0, asking.gap, {"s": round(asking.gap, 3)}) for name, asking in watched.items()}
        samples[f"commit, {OURS}"].facts["reloads"] = after.term - before.term
        return samples


async def _through(victim: ApacheKafka, watched: list[Asking]) -> None:
    """Ask before, during and after a node's death."""
    tasks = [asyncio.create_task(asking.run()) for asking in watched]
    try:
        await _answered(watched, 0.0)
        await asyncio.sleep(_AROUND_S)
        for asking in watched:
            asking.gap = 0.0
        killed = time.monotonic()
        await asyncio.to_thread(victim.kill)
        await _answered(watched, killed + _AROUND_S)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _answered(watched: list[Asking], since: float) -> None:
    """Return once all have been answered after a time."""
    until = time.monotonic() + _WITHIN_S
    while not all(asking.answered > since for asking in watched):
        if time.monotonic() > until:
            raise RunFailed("not all are answered again")
        await asyncio.sleep(LOOK_S)


def _one_election() -> dict[str, Sample]:
    with site_of_three() as site:
        return asyncio.run(_election(site))


def elections() -> list[Contender]:
    """Measure all requests while a broker dies that leads the journal: one death, on three new nodes each time."""
    runs = Parts(_one_election)

    def of(name: str) -> Contender:
        return Contender(name, runs.showing(lambda samples: samples[name]))

    return [of("produce, acks=all"), of(f"commit, {OURS}"), of(f"commit, {KAFKAS}")]
