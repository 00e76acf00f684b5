"""The figures of coordinators over Kafka. One node of Apache Kafka serves both sides of each, in turn.

Times are shown as a rate (one over the seconds), so that a ratio above 1 is always better. For cores, less is better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from rich.console import Console

from bench.cluster import costs, downtime, latency, loading, scale, takeover
from bench.cluster.site import KAFKAS, Site, site, site_of_three
from bench.coordinator.comparisons import Scenario, commit_rate, play
from bench.coordinator.places import Coordinator, shorter
from bench.coordinator.quiet import Quiet
from bench.harness import Contender, Figure, NotHere, Options, Sample, compare, warmed

_REQUESTS = 2_000
_OFFSETS = 100_000
_QUIET_S = 12.0
_MEMBERS = 5_000
_SHORT_MS = 3_000
"""The shortest sessions that are measured."""
_WATCHED_S = 20.0
_PROVING = 50
ONE, THREE = "one node", "three nodes"

Taken = Iterator[Figure]


def measurements(options: Options, console: Console) -> Taken:
    """Every figure whose title has the text asked for."""
    try:
        with site() as here:
            for taken in (latencies, commits, quiet, proofs, ends, silences, loads):
                yield from taken(here, options, console)
        yield from scales(options, console)
        yield from three_nodes(options, console)
    except NotHere as error:
        console.print(f"coordinators over Kafka: {error}")


def _shown(
    title: str, contenders: list[Contender], options: Options, console: Console, unit: str = "1/s", base: int = 0
) -> Figure:
    baseline = contenders[base].name
    return compare(title, contenders, rounds=options.rounds, unit=unit, baseline=baseline, console=console)


def _latency_titles(where: str) -> dict[str, int]:
    """The titles of latencies that are asked for, with how many others do the same meanwhile."""
    return {f"a commit, {where}, idle": 0, f"a commit, {where}, under {latency.OTHERS} others": latency.OTHERS}


def three_nodes(options: Options, console: Console) -> Taken:
    """On three nodes; started only where that is asked for."""
    titles = [*_latency_titles(THREE), _proofs_title(THREE), _pause_title(THREE)]
    if any(options.only in title for title in titles):
        with site_of_three() as here:
            for taken in (latencies, proofs, silences):
                yield from taken(here, options, console, THREE)
    title = "SIGKILL of the broker that leads the journal, three nodes"
    if options.only in title:
        yield _shown(title, downtime.elections(), options, console)


def latencies(here: Site, options: Options, console: Console, where: str = ONE) -> Taken:
    """Compare a commit with a produce, one at a time."""
    for title, others in _latency_titles(where).items():
        if options.only in title:
            with here.ours() as ours:
                many = options.records(_REQUESTS)
                found = latency.contenders(here, ours, many, others)
                yield _shown(title, warmed(found), options, console)


def commits(here: Site, options: Options, console: Console) -> Taken:
    """Compare the highest commit rates."""
    for count in (1, 10, 100):
        title = f"commits of {count} partitions, 128 at a time"
        if options.only in title:
            rate: Callable[[dict[str, object]], tuple[float, float]] = partial(commit_rate, count)
            said = f"--members 1 --commits {count} --client kohort --topics-at {here.kafka.bootstrap_servers}"
            scenario = Scenario(title, "commits/s", said, rate)
            with here.ours() as ours:
                found = [Contender(ours.name, partial(_both, scenario, ours, here.kafkas))]
                found.append(Contender(KAFKAS, partial(play, scenario, here.kafkas)))
                yield _shown(title, warmed(found), options, console, "commits/s", base=1)


def _both(scenario: Scenario, ours: Coordinator, kafka: Coordinator) -> Sample:
    """Play a scenario, and measure Kafka's processor time meanwhile."""
    before = kafka.cpu_s()
    sample = play(scenario, ours)
    sample.facts["kafka's cpu_s"] = round(kafka.cpu_s() - before, 2)
    return sample


def quiet(here: Site, options: Options, console: Console) -> Taken:
    """Compare the cost of members that only heartbeat."""
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


def scales(options: Options, console: Console) -> Taken:
    """Compare one coordinator for all members with two for half of them each, with short sessions."""
    each = [Quiet(name, options.records(_MEMBERS), _SHORT_MS, _WATCHED_S) for name in ("classic", "consumer")]
    wanted = [quiet_load for quiet_load in each if options.only in scale.title_of(quiet_load)]
    if wanted:
        with site(shorter(_SHORT_MS)) as here:
            for quiet_load in wanted:
                yield scale.figure(here, quiet_load, options, console)


def _proofs_title(where: str) -> str:
    return f"what proofs cost an idle cluster, {where}"


def proofs(here: Site, options: Options, console: Console, where: str = ONE) -> Taken:
    """Members that only heartbeat, a group each, in as many shards."""
    title = _proofs_title(where)
    if options.only in title:
        yield _shown(title, costs.proofs(here, _PROVING, _WATCHED_S), options, console, "cores")


def _pause_title(where: str) -> str:
    return f"a coordinator's host falls silent, {where}"


def silences(here: Site, options: Options, console: Console, where: str = ONE) -> Taken:
    """Measure the downtime when one of two coordinators is stopped."""
    title = _pause_title(where)
    if options.only in title:
        yield _shown(title, downtime.silences(here), options, console)


def ends(here: Site, options: Options, console: Console) -> Taken:
    """Measure the downtime when one of two coordinators ends."""
    for protocol in ("classic", "consumer"):
        title = f"{protocol}: SIGKILL with 1,000 members, {_OFFSETS:,} offsets"
        if options.only in title:
            run = partial(takeover.killed, here, protocol, 1_000, _OFFSETS)
            yield _shown(title, [Contender("kohort over Kafka", run)], options, console)
    title = "the longest commit around the end of a coordinator"
    if options.only in title:
        yield _shown(title, takeover.ends(here), options, console)


def loads(here: Site, options: Options, console: Console) -> Taken:
    """Compare the loading of a shard."""
    title = f"a shard with {_OFFSETS:,} offsets loads"
    if options.only in title:
        with loading.contenders(here, options.records(_OFFSETS)) as found:
            yield _shown(title, found, options, console, "records/s")
