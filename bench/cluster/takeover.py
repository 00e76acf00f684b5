"""Two coordinators, one of which ends: how long groups stand, and the longest commit of a client."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

from tests.cluster.running import CoordinatorProcess

from bench.cluster.site import Site, described
from bench.coordinator import load
from bench.coordinator.members import NOT_YET
from bench.coordinator.wire import OWN_CLIENT, Link
from bench.harness import Contender, RunFailed, Sample
from kohort import Consumer, TopicPartition
from kohort.errors import KafkaError
from kohort.wire.offsets import OffsetFetchRequest

_LOOK_S = 0.005
_AROUND_S = 2.0
"""The time before and after an end for which commits are timed."""
_PATIENCE_S = 60.0


def owner_of(index: int, running: list[CoordinatorProcess]) -> CoordinatorProcess:
    """Which of them has a shard."""
    seen = asyncio.run(described(running[0].address))
    owner = next(coordinator for coordinator in seen.coordinators if coordinator.node_id == seen.owners[index])
    address = f"{owner.host}:{owner.port}"
    return next(process for process in running if process.address == address)


def until_spread(running: list[CoordinatorProcess]) -> None:
    """Return once each has as many shards as another.

    Raises:
        RunFailed: they never do.
    """
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        owners = asyncio.run(described(running[0].address)).owners
        if len({owners.count(owner) for owner in owners}) == 1 and len(set(owners)) == len(running):
            return
        time.sleep(_LOOK_S)
    raise RunFailed("the shards are not spread over the coordinators")


async def _answers(address: tuple[str, int], group: str) -> None:
    """Return once a coordinator answers for a group."""
    link = await Link.open(*address, "probe", OWN_CLIENT)
    asked = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None)
    while True:
        answer = await link.ask(OffsetFetchRequest(groups=[asked]), 8)
        if answer.groups[0].error_code not in NOT_YET:
            break
        await asyncio.sleep(_LOOK_S)
    link.abort()


def killed(site: Site, protocol: str, members: int, offsets: int) -> Sample:
    """SIGKILL of the coordinator that has everything, beside one that has nothing.

    Seconds until all members are stable; `answers_s` until a group is answered again.

    Raises:
        RunFailed: they never were.
    """
    settings = site.settings(shards=1)
    with ExitStack() as stack:
        running = [stack.enter_context(site.start(settings)) for _ in range(2)]
        victim = owner_of(0, running)
        survivor = next(coordinator for coordinator in running if coordinator is not victim)
        now = load.host_and_port(victim.address)

        def take_over() -> None:
            nonlocal now
            now = load.host_and_port(survivor.address)
            asyncio.run(_answers(now, "probe"))

        said = f"--bootstrap-server {victim.address} --topics-at {site.kafka.bootstrap_servers}"
        said += f" --protocol {protocol} --client kohort"
        options = load.arguments().parse_args([*said.split(), "--members", str(members), "--offsets", str(offsets)])
        try:
            result = load.run(options, victim.kill, take_over, lambda: now)
        except (TimeoutError, RuntimeError) as error:
            raise RunFailed(f"{error}\n{survivor.log[-2000:]}") from error
        seen = result["restart"]
        seen["load_ms"] = asyncio.run(described(survivor.address)).shards[0].load_ms
        seen["answers_s"] = seen.pop("process_up_s")
        return Sample(1.0, max(seen["whole_s"], 1e-3), seen)


class Committing(threading.Thread):
    """A client of ours that commits without a pause in a group of its own, until it is told to end.

    Attributes:
        longest_s: of its commits.
        count: of them.
        error: why it ended early.
    """

    def __init__(self, servers: str, topic: str, group: str) -> None:
        super().__init__(daemon=True)
        self._servers, self._at, self._group = servers, TopicPartition(topic, 0), group
        self.ending = threading.Event()
        self.longest_s = 0.0
        self.count = 0
        self.error: KafkaError | None = None

    def run(self) -> None:
        try:
            with Consumer(self._servers, group_id=self._group, enable_auto_commit=False) as consumer:
                consumer.assign([self._at])
                consumer.commit({self._at: 0})
                while not self.ending.is_set():
                    began = time.monotonic()
                    consumer.commit({self._at: self.count})
                    self.longest_s = max(self.longest_s, time.monotonic() - began)
                    self.count += 1
        except KafkaError as error:
            self.error = error


def longest_commit(site: Site, end: Callable[[CoordinatorProcess], object]) -> Sample:
    """The longest commit of clients, one for each of some groups, around the end of one of two coordinators.

    Raises:
        RunFailed: one was refused, or nothing was committed after the end.
    """
    settings, topic = site.settings(), site.new_topic(1)
    with ExitStack() as stack:
        running = [stack.enter_context(site.start(settings)) for _ in range(2)]
        servers = ",".join(coordinator.address for coordinator in running)
        clients = [Committing(servers, topic, f"{topic}-{number}") for number in range(8)]
        for client in clients:
            client.start()
        try:
            _until(lambda: all(client.count for client in clients), clients)
            for client in clients:
                client.longest_s = 0.0  # the first ones look for a coordinator
            time.sleep(_AROUND_S)
            end(running[0])
            counts = [client.count for client in clients]
            _until(lambda: all(c.count > n for c, n in zip(clients, counts, strict=True)), clients)
            time.sleep(_AROUND_S)
        finally:
            for client in clients:
                client.ending.set()
            for client in clients:
                client.join(_PATIENCE_S)
        longest = max(client.longest_s for client in clients)
        return Sample(1.0, longest, {"longest_ms": round(longest * 1e3, 1), "commits": sum(c.count for c in clients)})


def _until(reached: Callable[[], bool], clients: list[Committing]) -> None:
    until = time.monotonic() + _PATIENCE_S
    while not reached():
        for client in clients:
            if client.error is not None:
                raise RunFailed(f"a commit was refused: {client.error}")
        if time.monotonic() > until:
            raise RunFailed("clients do not commit")
        time.sleep(_LOOK_S)


def ends(site: Site) -> list[Contender]:
    """A coordinator that goes on, one that ends cleanly, one that is killed."""
    return [
        Contender("nothing happens", lambda: longest_commit(site, lambda _: None)),
        Contender("clean stop", lambda: longest_commit(site, lambda coordinator: coordinator.stop())),
        Contender("SIGKILL", lambda: longest_commit(site, lambda coordinator: coordinator.kill())),
    ]
