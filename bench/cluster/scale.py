"""Quiet members on coordinators over Kafka: one that has all of them, beside two that have half of them each."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from rich.console import Console

from bench.cluster.site import KAFKAS, SHARDS, Site, as_coordinator
from bench.cluster.takeover import until_spread
from bench.coordinator.quiet import Quiet
from bench.harness import Contender, Figure, Options, Sample, compare


def title_of(quiet: Quiet) -> str:
    """Of the figure."""
    sessions = f"sessions of {quiet.session_ms // 1000} s"
    return f"{quiet.protocol}: cores for {quiet.members:,} members with {sessions}, coordinators over Kafka"


def on_coordinators(site: Site, quiet: Quiet, count: int) -> Sample:
    """Measure the cores of `count` coordinators, and of Kafka beside them."""
    settings = site.settings(shards=SHARDS)
    with ExitStack() as stack:
        running = [stack.enter_context(site.start(settings)) for _ in range(count)]
        until_spread(running)
        return quiet.cost([as_coordinator(process) for process in running], site.kafka_cpu_s)


def figure(site: Site, quiet: Quiet, options: Options, console: Console) -> Figure:
    """One, two, and Kafka's own coordinator where it knows the protocol. The same members each time."""
    quiet = replace(quiet, topics_at=site.kafka.bootstrap_servers)
    contenders = [
        Contender("one coordinator", lambda: on_coordinators(site, quiet, 1)),
        Contender("two, half of them each", lambda: on_coordinators(site, quiet, 2)),
    ]
    if quiet.protocol != "push":
        contenders.append(Contender(KAFKAS, lambda: quiet.cost([site.kafkas])))
    return compare(title_of(quiet), contenders, rounds=options.rounds, unit="cores", console=console)
