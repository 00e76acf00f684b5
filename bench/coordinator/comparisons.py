"""The figures of the coordinator, each load against ours and against Apache Kafka in the same round.

Times are shown as a rate (one over the seconds), so that a ratio above 1 is always the better one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.console import Console

from bench.coordinator import load
from bench.coordinator.places import Coordinator, coordinators
from bench.goals import goals_of
from bench.harness import Contender, Figure, Options, RunFailed, Sample, compare

Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One load.

    Attributes:
        arguments: of `bench.coordinator.load`.
        read: from its result to amount and seconds.
        restarts: the coordinator is killed and started again in between.
    """

    title: str
    unit: str
    arguments: str
    read: Callable[[Result], tuple[float, float]]
    restarts: bool = False


def seconds_of(*path: str) -> Callable[[Result], tuple[float, float]]:
    """A reader of one time."""

    def read(result: Result) -> tuple[float, float]:
        value: Any = result
        for name in path:
            value = value[name]
        return 1.0, max(value, 0.001)

    return read


def churn_share(name: str) -> Callable[[Result], tuple[float, float]]:
    """A reader of a share of the time of a churn; never 0, so that others can be compared with it."""
    return lambda result: (max(result["churn"][name], 1e-4), 1.0)


def p99(result: Result) -> tuple[float, float]:
    """A reader of the latency of heartbeats."""
    return 1.0, result["heartbeats"]["p99_ms"] / 1e3


def scenarios() -> Iterator[Scenario]:
    """Yield the scenarios to compare."""
    for count in (1, 10, 100):
        alone = f"--members 1 --commits {count}"
        rate: Callable[[Result], tuple[float, float]] = partial(commit_rate, count)
        yield Scenario(f"commits of {count} partitions", "commits/s", alone, rate)
    for protocol in ("classic", "consumer"):
        said = f"--protocol {protocol}"
        one = f"{said} --members 100 --events join,leave,crash"
        yield Scenario(f"{protocol}: 100 members, one joins", "1/s", one, seconds_of("join", "whole_s"))
        many = f"{said} --members 1000"
        yield Scenario(f"{protocol}: 1,000 join at once", "1/s", many, seconds_of("join_all_s"))
        churn = f"{said} --members 100 --churn-s 45"
        title = f"{protocol}: churn, share of time"
        yield Scenario(f"{title} wholly stable", "share", f"{churn} --client kohort", churn_share("stable_share"))
        zombies = f"{churn} --churn-kinds leave,crash,pause"
        yield Scenario(
            f"{title} the living are stable, zombies too", "share", zombies, churn_share("living_stable_share")
        )
        yield Scenario(f"{title} a partition is held, zombies too", "share", zombies, churn_share("held_share"))
        kept = f"{said} --members 1000 --offsets 100000"
        whole = seconds_of("restart", "whole_s")
        yield Scenario(f"{protocol}: SIGKILL with 1,000 members, 100,000 offsets", "1/s", kept, whole, restarts=True)
        most = f"{said} --members 5000 --quiet-s 12 --client unnamed"  # no coordinator holds their replies
        yield Scenario(f"{protocol}: heartbeat p99, 5,000 members in one group", "1/s", most, p99)
        spread = f"{most} --groups 500 --partitions 100"
        yield Scenario(f"{protocol}: heartbeat p99, 5,000 members in 500 groups", "1/s", spread, p99)
        storm = f"{said} --members 5000 --offsets 1000"
        yield Scenario(f"{protocol}: SIGKILL with 5,000 members", "1/s", storm, whole, restarts=True)
    stands = seconds_of("join", "downtime_median_s")
    for commits in ("", " --commit-ms 5000"):
        title = f"classic: 100 members{commits and ' that commit each 5 s'}, median downtime of a join"
        yield Scenario(title, "1/s", f"--members 100 --events join{commits}", stands)
        title = f"{title.removesuffix('join')}crash with a join in its place"
        replaced = seconds_of("replace", "downtime_median_s")
        yield Scenario(title, "1/s", f"--members 100 --events replace{commits}", replaced)
    rdkafka = "--protocol consumer --client librdkafka --members 100 --events join,leave"
    yield Scenario("consumer: 100 as librdkafka, one joins", "1/s", rdkafka, seconds_of("join", "whole_s"))
    long_ids = "--members 5000 --client-id-length 200"
    yield Scenario("classic: 5,000 with long client ids join", "1/s", long_ids, seconds_of("join_all_s"))


def commit_rate(count: int, result: Result) -> tuple[float, float]:
    """A reader of commits a second."""
    return result[f"commits_{count}_s"], 1.0


def flat(result: Result, prefix: str = "") -> Iterator[tuple[str, float]]:
    """All numbers of a result by name."""
    for name, value in result.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name} ")
        elif isinstance(value, int | float):
            yield prefix + name, value


def play(scenario: Scenario, place: Coordinator) -> Sample:
    """One run.

    Raises:
        RunFailed: the groups never became stable, or a commit was refused.
    """
    arguments = ["--bootstrap-server", place.servers, *scenario.arguments.split()]
    before = place.cpu_s()
    try:
        hooks = (place.kill, place.start) if scenario.restarts else (None, None)
        result = load.run(load.arguments().parse_args(arguments), *hooks)
    except (TimeoutError, RuntimeError) as error:
        raise RunFailed(str(error)) from error
    amount, seconds = scenario.read(result)
    facts = dict(flat(result))
    facts["memory_mib"] = round(place.memory_mib())
    facts["cpu_s"] = round(place.cpu_s() - (0.0 if scenario.restarts else before), 2)
    return Sample(amount, seconds, facts)


def measurements(options: Options, console: Console) -> Iterator[Figure]:
    """Every scenario whose title has the text asked for, on fresh coordinators each; first those with a goal."""
    for scenario in sorted(scenarios(), key=lambda scenario: not goals_of("coordinator", scenario.title, "kohort")):
        if options.only not in scenario.title:
            continue
        with coordinators() as places:
            yield compare(
                scenario.title,
                [
                    Contender(place.name, partial(play, scenario, place), 0.0 if scenario.restarts else place.warm_s)
                    for place in places
                ],
                rounds=options.rounds,
                unit=scenario.unit,
                baseline=places[-1].name,
                console=console,
            )
