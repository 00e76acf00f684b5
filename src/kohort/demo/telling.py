"""A run of the demo, from the broker's start to the report."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from kohort.client.admin.admin import Admin
from kohort.demo.cast import PARTITIONS, Demo
from kohort.demo.flights import archive
from kohort.demo.region_story import RegionDemo
from kohort.demo.scene import Scene
from kohort.demo.settings import DemoOptions
from kohort.demo.story import MEMBERS, GroupDemo


def tell(options: DemoOptions) -> int:
    """Run the demo; return 0 if every flight was counted once."""
    archive()
    console = Console(stderr=options.json)
    folder = options.folder
    _clear(folder)
    with ExitStack() as stack:
        scene = Scene(options.total, console)
        servers = options.bootstrap_server
        if servers is None:
            scene.note("starting a broker")
            servers = stack.enter_context(_embedded()).bootstrap_servers
        admin = stack.enter_context(Admin(servers, **options.client))
        scene.note(f"broker at {servers}")
        story = RegionDemo if options.region else GroupDemo
        demo: Demo = story(options, servers, admin, scene)
        try:
            with scene.shown():
                demo.play()
                scene.phase = "counting"
                outcome = demo.conclude()
        finally:
            demo.close()
        (folder / "outcome.json").write_text(json.dumps(outcome.to_json(), indent=2) + "\n")
        if options.json:
            sys.stdout.write(json.dumps(outcome.to_json()) + "\n")
        else:
            console.print()
            outcome.show(console)
            console.print(f"done in {outcome.seconds:.0f} s", highlight=False)
        if options.keep:
            _wait_for_interrupt(console, servers)
    return 0 if outcome.exact else 1


@contextmanager
def _embedded() -> Iterator[Any]:
    from kohort import Broker

    config = {
        "group.initial.rebalance.delay.ms": "0",
        "num.partitions": str(PARTITIONS),
    }
    with Broker(config=config) as broker:
        yield broker


def _clear(folder: Path) -> None:
    """Delete the files of earlier runs from the output folder, and nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("batches", "warehouse", "region", *(f"checkpoint-{member}" for member in MEMBERS)):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in ("outcome.json", "delay-by-hour.png", "sequences.png", *(f"member-{member}.log" for member in MEMBERS)):
        (folder / name).unlink(missing_ok=True)


def _wait_for_interrupt(console: Console, servers: str) -> None:
    console.print(f"the broker stays at {servers} until Ctrl-C (process {os.getpid()})", highlight=False)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        console.print("ended")
