"""Processor time of single operations in the calling thread, which a busy machine disturbs less than rates.

`seconds` of each sample is processor time, so a rate is "per second of one core". `python -m bench.against OTHER
processor_time` compares two checkouts.
"""

from __future__ import annotations

import gc
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial

from rich.console import Console

from bench.harness import Contender, Figure, Options, Sample, compare
from kohort.assignors import MemberSubscription, TopicInfo, Uniform
from kohort.groups.consumer.assignment import compute
from kohort.groups.effects import ComputeAssignment
from kohort.groups.events import Topic
from kohort.groups.records import MemberSaved

_MEMBERS, _TOPICS, _PARTITIONS = 100, 1600, 100
"""The shape that franz-go publishes a figure for."""


def figures(options: Options, console: Console) -> Iterator[Figure]:
    """One figure for each operation."""
    for title, unit, prepare in _OPERATIONS:
        if options.only in title:
            yield compare(title, [Contender("kohort", prepare())], rounds=options.rounds, unit=unit, console=console)


def _timed(amount: float, run: Callable[[], object]) -> Sample:
    """Run once without the collector, which the broker rarely runs either."""
    gc.collect()
    gc.disable()
    try:
        began = time.thread_time()
        run()
        return Sample(amount, time.thread_time() - began)
    finally:
        gc.enable()


def _wide_group(owned: bool) -> tuple[dict[str, MemberSubscription], dict[str, TopicInfo]]:
    topics = {f"t{number:04}": TopicInfo(_PARTITIONS) for number in range(_TOPICS)}
    names = tuple(topics)
    members = {f"m{number:03}": MemberSubscription(names) for number in range(_MEMBERS)}
    if owned:
        before = Uniform().assign(members, topics)
        members = {name: MemberSubscription(names, owned=tuple(before[name]), generation=1) for name in members}
        del members["m001"]
    return members, topics


def _assignment(owned: bool) -> Callable[[], Sample]:
    return partial(_timed, 1, partial(Uniform().assign, *_wide_group(owned)))


def _wide_task() -> Callable[[], Sample]:
    """The coordinator's background task for the same group, with the target that it replaces as the group keeps it."""
    members, infos = _wide_group(owned=True)
    topics = {name: Topic(name, uuid.uuid5(uuid.NAMESPACE_URL, name), info.partitions) for name, info in infos.items()}
    saved = {
        name: MemberSaved("g", name, None, None, "c", "/h", member.topics, None, 45_000, None)
        for name, member in members.items()
    }
    task = ComputeAssignment(
        group_id="g",
        ticket=1,
        epoch=2,
        assignor="uniform",
        members=saved,
        subscribed={name: member.topics for name, member in members.items()},
        current={
            name: frozenset((topics[claim.topic].id, claim.partition) for claim in member.owned)
            for name, member in members.items()
        },
        topics=topics,
        excluded={},
    )
    return partial(_timed, 1, partial(compute, task))


_OPERATIONS: list[tuple[str, str, Callable[[], Callable[[], Sample]]]] = [
    ("uniform, 100 members x 1,600 topics x 100, first", "assignments/s", partial(_assignment, owned=False)),
    ("uniform, 100 members x 1,600 topics x 100, one leaves", "assignments/s", partial(_assignment, owned=True)),
    ("the same as the coordinator's task", "assignments/s", _wide_task),
]
