"""The figures of the push protocol, each beside Kafka's two protocols on our broker and on Apache Kafka.

Times are shown as a rate (one over the seconds), so that a ratio above 1 is always better. For cores, less is better.
Source: spec 4.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from rich.console import Console

from bench.cluster import scale
from bench.cluster.site import Site, site
from bench.coordinator import load
from bench.coordinator.places import Coordinator, coordinators, shorter
from bench.coordinator.quiet import Quiet
from bench.harness import Contender, Figure, NotHere, Options, Parts, RunFailed, Sample, compare
from bench.push import rounds
from bench.push.rounds import EVENTS, Rounds
from bench.push.takeover import Takeover

SIZES = {100: 3, 1_000: 3, 5_000: 2}
"""Members, and how many of each event one run has."""
SESSION_MS = 6_000
QUIET_S = 20.0
MOST = 5_000
TAKEN_OVER = 1_000

Run = tuple[Rounds, dict[str, Any]]


def measurements(options: Options, console: Console) -> Iterator[Figure]:
    """Every figure whose title has the text asked for, on fresh coordinators each."""
    for members, repeats in SIZES.items():
        yield from events(scaled(options, members), repeats, options, console)
    yield from cores(scaled(options, MOST), options, console)
    yield from on_coordinators(scaled(options, MOST), options, console)
    yield from takeovers(scaled(options, TAKEN_OVER), options, console)


def scaled(options: Options, members: int) -> int:
    """Return the scaled number of members; never less than the light and real ones need."""
    return max(3 * rounds.REAL, int(members * options.scale))


def contestants(places: list[Coordinator]) -> Iterator[tuple[str, Coordinator, str]]:
    """Names, coordinators, protocols; the last one is what the others are compared with."""
    yield "kohort, push", places[0], "push"
    for place in places:
        for protocol in ("classic", "consumer"):
            yield f"{place.name}, {protocol}", place, protocol


def compared(title: str, contenders: list[Contender], options: Options, console: Console, unit: str = "1/s") -> Figure:
    """All beside the last one."""
    return compare(title, contenders, rounds=options.rounds, unit=unit, baseline=contenders[-1].name, console=console)


def of_event(event: str, run: Run) -> Sample:
    """Return a run's result for one kind of event."""
    times, facts = run
    seen = times.facts(event)
    return Sample(1.0, max(seen["median_ms"] / 1e3, 1e-4), {**seen, **facts})


def events(members: int, repeats: int, options: Options, console: Console) -> Iterator[Figure]:
    """One comes, one goes, one dies: until all have what they are to have."""
    what = {"join": "joins", "leave": "leaves", "crash": "crashes"}
    titles = {event: f"push: one of {members:,} members {what[event]}" for event in EVENTS}
    wanted = {event: title for event, title in titles.items() if options.only in title}
    if not wanted:
        return
    with coordinators() as places:
        runs = {
            name: Parts(partial(played, place, protocol, members, repeats))
            for name, place, protocol in contestants(places)
        }
        for event, title in wanted.items():
            show = partial(of_event, event)
            found = [Contender(name, parts.showing(show)) for name, parts in runs.items()]
            yield compared(title, found, options, console)


def played(place: Coordinator, protocol: str, members: int, repeats: int) -> Run:
    """One run of all events.

    Raises:
        RunFailed: the group never became stable.
    """
    before = place.cpu_s()
    said = f"--bootstrap-server {place.servers} --protocol {protocol} --members {members} --client kohort"
    try:
        times, facts = rounds.run(load.arguments().parse_args(said.split()), repeats)
    except TimeoutError as error:
        raise RunFailed(str(error)) from error
    return times, {**facts, "cpu_s": round(place.cpu_s() - before, 2), "memory_mib": round(place.memory_mib())}


def cores(members: int, options: Options, console: Console) -> Iterator[Figure]:
    """Compare the cost of quiet members: nobody comes or goes."""
    title = f"push: cores for {members:,} members with sessions of {SESSION_MS // 1000} s, at a broker"
    if options.only not in title:
        return
    quiet = partial(Quiet, members=members, session_ms=SESSION_MS, seconds=QUIET_S, real=rounds.REAL)
    with coordinators(settings=shorter(SESSION_MS)) as places:
        found = [
            Contender(name, partial(quiet(protocol).cost, [place])) for name, place, protocol in contestants(places)
        ]
        yield compared(title, found, options, console, "cores")


def on_coordinators(members: int, options: Options, console: Console) -> Iterator[Figure]:
    """Compare the cost of quiet members on one coordinator over Kafka with that on two."""
    quiet = Quiet("push", members, SESSION_MS, QUIET_S, real=rounds.REAL)
    if options.only in scale.title_of(quiet):
        try:
            with site(shorter(SESSION_MS)) as here:
                yield scale.figure(here, quiet, options, console)
        except NotHere as error:
            console.print(f"push on coordinators over Kafka: {error}")


def takeovers(members: int, options: Options, console: Console) -> Iterator[Figure]:
    """Whoever has the group is killed: how long a partition stands still at worst."""
    title = f"push: a takeover with {members:,} members with sessions of {SESSION_MS // 1000} s"
    if options.only not in title:
        return
    takeover = Takeover(members, SESSION_MS)

    def compared_at(here: Site | None) -> Figure:
        found = [Contender("one broker, started again", takeover.at_broker)]
        if here is not None:
            found.append(Contender("two coordinators over Kafka", partial(takeover.at_coordinators, here)))
        return compared(title, found, options, console)

    try:
        with site(shorter(SESSION_MS)) as here:
            yield compared_at(here)
    except NotHere as error:
        console.print(f"push on coordinators over Kafka: {error}")
        yield compared_at(None)
