"""The figures of coordinators over Kafka. One node of Apache Kafka serves both sides of each, in turn.

Times are shown as a rate (one over the seconds), so that a ratio above 1 is always the better one; of cores, less is
better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

from rich.console import Console

from bench.cluster import costs, latency, loading, takeover
from bench.cluster.site import KAFKAS, Site, site, site_of_three
from bench.coordinator.comparisons import Scenario, commit_rate, play
from bench.coordinator.places import Coordinator
from bench.harness import Contender, Figure, NotHere, Options, RunFailed, Sample, compare

_REQUESTS = 2_000
_OFFSETS = 100_000
_QUIET_S = 12.0
_MEMBERS = 5_000

Taken = Iterator[Figure]


def figures(options: Options, console: Console) -> Taken:
    """Every figure whose title has the text asked for."""
    try:
        with site() as here:
            for taken in (latencies, commits, quiet, ends, loads):
                yield from taken(here, options, console)
        yield from latencies_of_three(options, console)
    except NotHere as error:
        console.print(f"coordinators over Kafka: {error}")


def _shown(
    title: str, contenders: list[Contender], options: Options, console: Console, unit: str = "1/s", base: int = 0
) -> Figure:
    baseline = contenders[base].name
    return compare(title, contenders, rounds=options.rounds, unit=unit, baseline=baseline, console=console)


def _warm(contenders: list[Contender]) -> None:
    """Run each once before it counts: Kafka's virtual machine compiles what it is asked to do."""
    for each in contenders:
        with suppress(RunFailed):  # told in the rounds that count
            each.run()


def _latency_titles(where: str) -> dict[str, int]:
    """The titles of latencies that are asked for, with how many others do the same meanwhile."""
    return {f"a commit, {where}, idle": 0, f"a commit, {where}, under {latency.OTHERS} others": latency.OTHERS}


def latencies_of_three(options: Options, console: Console) -> Taken:
    """On three nodes; started only where that is asked for."""
    where = "three nodes"
    if any(options.only in title for title in _latency_titles(where)):
        with site_of_three() as here:
            yield from latencies(here, options, console, where)


def latencies(here: Site, options: Options, console: Console, where: str = "one node") -> Taken:
    """A commit beside a produce, one at a time."""
    for title, others in _latency_titles(where).items():
        if options.only in title:
            with here.ours() as ours:
                many = options.records(_REQUESTS)
                found = latency.contenders(here, ours, many, others)
                _warm(found)
                yield _shown(title, found, options, console)


def commits(here: Site, options: Options, console: Console) -> Taken:
    """As many as can be."""
    for count in (1, 10, 100):
        title = f"commits of {count} partitions, 128 at a time"
        if options.only in title:
            rate: Callable[[dict[str, object]], tuple[float, float]] = partial(commit_rate, count)
            said = f"--members 1 --commits {count} --topics-at {here.kafka.bootstrap_servers}"
            scenario = Scenario(title, "commits/s", said, rate)
            with here.ours() as ours:
                found = [Contender(ours.name, partial(_both, scenario, ours, here.kafkas))]
                found.append(Contender(KAFKAS, partial(play, scenario, here.kafkas)))
                _warm(found)
                yield _shown(title, found, options, console, "commits/s", base=1)


def _both(scenario: Scenario, ours: Coordinator, kafka: Coordinator) -> Sample:
    """As `play`, and what Kafka has used meanwhile."""
    before = kafka.cpu_s()
    sample = play(scenario, ours)
    sample.facts["kafka's cpu_s"] = round(kafka.cpu_s() - before, 2)
    return sample


def quiet(here: Site, options: Options, console: Console) -> Taken:
    """What members cost that only heartbeat."""
    many = options.records(_MEMBERS)
    for title, members, groups, shards in (
        ("cores of an idle coordinator, 50 shards", 0, 1, 50),
        ("cores for 50 groups of one member, 50 shards", 50, 50, 50),
        (f"cores for {many:,} members in one group", many, 1, 4),
        (f"cores for {many:,} members in 500 groups", many, 500, 50),
    ):
        if options.only in title:
            found = costs.quiet(here, members, groups, _QUIET_S, shards)
            yield _shown(title, found, options, console, "cores", base=1)


def ends(here: Site, options: Options, console: Console) -> Taken:
    """One of two coordinators ends."""
    for protocol in ("classic", "consumer"):
        title = f"{protocol}: SIGKILL with 1,000 members, {_OFFSETS:,} offsets"
        if options.only in title:
            run = partial(takeover.killed, here, protocol, 1_000, _OFFSETS)
            yield _shown(title, [Contender("kohort over Kafka", run)], options, console)
    title = "the longest commit around the end of a coordinator"
    if options.only in title:
        yield _shown(title, takeover.ends(here), options, console)


def loads(here: Site, options: Options, console: Console) -> Taken:
    """A shard's load."""
    title = f"a shard with {_OFFSETS:,} offsets loads"
    if options.only in title:
        with loading.contenders(here, options.records(_OFFSETS)) as found:
            yield _shown(title, found, options, console, "records/s")
