"""Working off a backlog of 10 GB: how much memory the consumer holds. Needs 11 GB of disk."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from rich.console import Console

from bench.harness import Contender, Figure, NotHere, Options, RunFailed, Sample, compare
from bench.peers import PARTITIONS, Place, drop_topic, filled_topic, python_client
from kohort import Broker

_SIZE = 1000
_RECORDS = 10_000_000
_LIMIT_MB = 200
_MANY = 64
_CONTENDERS = {"kohort-arrow": "kohort poll_arrow", "kohort-records": "kohort poll, .value"}


def measurements(options: Options, console: Console) -> Iterator[Figure]:
    """Two figures.

    For few partitions, whose answers are small, and for many, whose answers are as large as they get.
    """
    for partitions in (PARTITIONS, _MANY):
        title = f"consume {_size(options) / 1e9:.3g} GB from {partitions} partitions"
        if options.only in title:
            with tempfile.TemporaryDirectory(prefix="kohort-bench-") as folder, Broker(Path(folder)) as broker:
                place = Place("kohort", broker.bootstrap_servers)
                topic = _backlog(place, options, partitions, folder)
                contenders = [
                    Contender(
                        name, _bounded(partial(python_client, "consume", client, place, topic, _records(options)))
                    )
                    for client, name in _CONTENDERS.items()
                ]
                yield compare(title, contenders, rounds=options.rounds, console=console)
                drop_topic(place, topic)


def _records(options: Options) -> int:
    return options.records(_RECORDS)


def _size(options: Options) -> int:
    return _records(options) * _SIZE


def _backlog(place: Place, options: Options, partitions: int, folder: str) -> str:
    need, free = _size(options) * 1.1, shutil.disk_usage(folder).free
    if free < need:
        raise NotHere(f"{need / 1e9:.1f} GB of disk needed, {free / 1e9:.1f} free")
    return filled_topic(place, _records(options), _SIZE, partitions)


def _bounded(run: Callable[[], Sample]) -> Callable[[], Sample]:
    def checked() -> Sample:
        sample = run()
        if sample.facts["rss_mb"] >= _LIMIT_MB:
            raise RunFailed(f"{sample.facts['rss_mb']:.0f} MB were resident, {_LIMIT_MB} are allowed")
        return sample

    return checked
