"""A keyed state of 1 GB moves to another member: how long its partition stands still, and what the new owner takes.

A topic of one partition has twenty records a second, which change the state. A second member of the group waits. The
clock runs from the signal that kills the owner, or the request to leave, until the other has a table with its state.
That state must be the one of the table's first offset.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path

from rich.console import Console

from bench.harness import Contender, Figure, Options, RunFailed, Sample, compare
from bench.lake import Writer, peak_mb
from bench.lake_tables import Store, stores
from bench.peers import Place, new_topic
from bench.runners.state import ADD, KEY_BYTES, VALUE_BYTES
from kohort import Broker, Producer
from kohort.errors import CorruptDataError
from kohort.region import KeyedState, Region
from kohort.region.keyed_state.place import RegionStateStore
from kohort.region.keyed_state.state_files import KeyedStateFile
from kohort.region.records import Position, to_part

_BYTES = 1_000_000_000
_ADDED_BYTES = 16_000_000
"""The bytes that one record adds to the state."""
_CHANGED = 0.2
"""The least size of the changes behind the base, as a share of it. Changes of more than half become a new base."""
_EVERY_S = 0.05
_PATIENCE_S = 300.0
_MB = 1e6
LEAVES, DIES = "a member leaves", "a member is killed"


def measurements(options: Options, console: Console) -> Iterator[Figure]:
    """One figure for each store: how long a partition with a large state stands still, beside a plain copy."""
    with ExitStack() as running:
        size = max(_ADDED_BYTES, int(_BYTES * options.scale))
        titles = {where: f"{size / 1e9:.3g} GB of keyed state moves to another member, {where}"
                  for where in ("local disk", "S3")}  # fmt: skip
        if not any(options.only in title for title in titles.values()):
            return
        folder = running.enter_context(tempfile.TemporaryDirectory(prefix="kohort-bench-"))
        broker = running.enter_context(Broker(Path(folder)))
        place = Place("kohort", broker.bootstrap_servers, Path(folder))
        for store in running.enter_context(stores()):
            title = titles[store.name]
            if options.only in title:
                with MovingState(place, store, size) as state:
                    contenders = [
                        Contender("plain copy of its files", state.copy),
                        Contender(LEAVES, partial(state.move, kills=False)),
                        Contender(DIES, partial(state.move, kills=True)),
                    ]
                    yield compare(title, contenders, rounds=options.rounds, unit="1/s", console=console)


@dataclass(frozen=True, slots=True)
class Saved:
    """The files of the state that the last manifest names."""

    position: Position
    chain: list[KeyedStateFile]

    def mb(self, kind: str) -> float:
        """The size of the files of that kind."""
        return sum(file.size for file in self.chain if file.kind == kind) / _MB

    @property
    def facts(self) -> dict[str, float]:
        return {"base MB": self.mb("base"), "changes MB": self.mb("delta"), "files": len(self.chain)}


class MovingState:
    """A region with one partition, whose state is as large as it should be, and the member that owns it."""

    def __init__(self, place: Place, store: Store, size: int) -> None:
        self._place, self._store, self._size = place, store, size
        self._topic, self._name = new_topic(place, 1), f"bench-{uuid.uuid4().hex[:12]}"
        self._path = f"s3://lake/{self._name}" if store.address else str(store.folder / self._name)
        self._running = ExitStack()
        self._ended = threading.Event()
        self._members = 0
        self._made: Writer | None = None

    def __enter__(self) -> MovingState:
        self._region = self._running.enter_context(Region(self._name, self._place.servers, checkpoint_every="1s"))
        self._region.serve()
        self._producer = self._running.enter_context(Producer(self._place.servers))
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._running.close()

    # -- the state

    @property
    def _owner(self) -> Writer:
        """The member that has the state; the first one makes it."""
        if self._made is None:
            self._made = self._member()
            keys, at_once = self._size // (KEY_BYTES + VALUE_BYTES), _ADDED_BYTES // (KEY_BYTES + VALUE_BYTES)
            firsts = list(range(0, keys, at_once))
            self._set_keys(firsts, at_once)
            for first in cycle(firsts):
                _, saved = self._saved()
                if saved.mb("delta") >= _CHANGED * saved.mb("base"):
                    break
                self._set_keys([first], at_once)
            threading.Thread(target=self._send_records, daemon=True).start()
        return self._made

    def _set_keys(self, firsts: Sequence[int], count: int) -> None:
        """Have the owner set keys from these numbers on, and wait until they are saved."""
        owner = self._owner
        wanted = owner.rows + len(firsts)
        for first in firsts:
            self._producer.send(self._topic, f"{ADD} {first} {count}")
        self._wait(lambda: owner.rows >= wanted, "keys are set")
        self._wait_for_checkpoint()

    def _send_records(self) -> None:
        while not self._ended.wait(_EVERY_S):
            self._producer.send(self._topic, b"count")

    def _member(self) -> Writer:
        """Start a member, and wait until it takes part."""
        member = Writer([sys.executable, "-m", "bench.runners.state"])
        self._running.callback(member.close)
        member.wait_until_ready()
        self._members += 1
        name = f"m{self._members}"
        member.start({
            "servers": self._place.servers, "topic": self._topic, "region": self._name, "name": name,
            "place": self._path, "storage": self._store.delta_options,
        })  # fmt: skip
        self._wait(lambda: any(seen.name == name for seen in self._region.describe().members), f"{name} takes part")
        return member

    def _wait_for_checkpoint(self) -> None:
        after = self._region.describe().sequence
        self._wait(lambda: self._region.describe().sequence > after + 1, "a checkpoint is complete")

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        until_s = time.monotonic() + _PATIENCE_S
        while not done():
            if self._made is not None:
                self._made.check_alive()
            if time.monotonic() > until_s:
                raise RunFailed(f"not within {_PATIENCE_S:g} s: {what}")
            time.sleep(0.1)

    def _saved(self) -> tuple[RegionStateStore, Saved]:
        seen = self._region.describe()
        states = KeyedState(self._path, storage_options=self._store.delta_options).bind(seen.region_id)
        [position] = seen.positions
        if position.state is None:
            raise RunFailed("the state was not saved")
        return states, Saved(position, states.read_newest_file(to_part(position), position.state)[0])

    # -- the contenders

    def move(self, *, kills: bool) -> Sample:
        """Move the state from its owner to a new member."""
        owner = self._owner
        follower = self._member()
        self._wait_for_checkpoint()
        facts = self._saved()[1].facts
        began_s = time.monotonic()
        if kills:
            os.kill(owner.pid, signal.SIGKILL)
        else:
            owner.say("end")
        follower.wait_until_begun()
        took_s = follower.began_s - began_s
        self._made = follower
        with suppress(RunFailed):
            owner.close()
        return self._sample(took_s, {**facts, **follower.facts, "peak MB": peak_mb(follower.pid)})

    def copy(self) -> Sample:
        """Copy the files of the state into a new file, as they are."""
        assert self._owner
        self._wait_for_checkpoint()
        while True:
            states, saved = self._saved()
            began_s = time.monotonic()
            with suppress(CorruptDataError), tempfile.TemporaryFile() as copied:  # some were merged meanwhile
                for file in saved.chain:
                    for part in states.read_checked_parts(to_part(saved.position), file.name, file.size):
                        copied.write(part)
                return self._sample(time.monotonic() - began_s, saved.facts)

    def _sample(self, took_s: float, facts: dict[str, float]) -> Sample:
        return Sample(1, took_s, {"seconds": took_s, "MB/s": self._size / _MB / took_s, **facts})
