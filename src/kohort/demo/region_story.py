"""The script of the region's demo: three queries of two Spark applications write exactly once, despite failures."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import Any

from kohort.client.admin.admin import Admin
from kohort.demo.account import compare, worst_connections
from kohort.demo.cast import FIRST_BATCH, Demo, words
from kohort.demo.history import History
from kohort.demo.member_settings import RegionMemberSettings
from kohort.demo.picture import draw, draw_sequences
from kohort.demo.places import KINDS, omen
from kohort.demo.region_account import counted_by_hour, settle_places
from kohort.demo.region_report import RegionOutcome
from kohort.demo.report import Share
from kohort.demo.scene import Scene
from kohort.demo.settings import DemoOptions
from kohort.demo.watching import Watcher, parts_seen
from kohort.errors import KafkaError
from kohort.region.region import Region
from kohort.spark.region.query_state import SavedQuery

QUERIES = {
    "anna": {"anna-1": "parquet", "anna-2": "delta"},
    "bela": {"bela-1": "sqlite"},
}
"""Each application's queries, all of one group, and the kind of place that each writes to."""
KIND_OF = {query: kind for queries in QUERIES.values() for query, kind in queries.items()}
SURVIVOR, VICTIM = QUERIES
FALTERING = "anna-2"
CHECKPOINT_EVERY = "2s"
BEFORE_SHARED = 0.15
FULL_DISKS = ((0.18, 0.28), (0.75, 0.85))
"""The shares of the flights between which the sink of one query fails, at a random moment."""
KILL_AT = 0.42
HELD_BACK = 0.07
"""The share by which the replay may pass an event that has not happened yet; on a slow machine it waits there."""
CALM_MS = 1_000
"""Half of the interval between sequences."""
BACK_BY = 0.7
"""The share at which the replay waits until the killed application is back."""


class RegionDemo(Demo):
    """The demo of a consistent region: every flight is written once, because sequences are atomic."""

    final: tuple[tuple[Share, ...], str] = ((), "unknown")

    def __init__(self, options: DemoOptions, servers: str, admin: Admin, scene: Scene) -> None:
        super().__init__(options, servers, admin, scene)
        self.home = self.folder / "region"
        self.home.mkdir()
        self.name = f"flights-{self.run}".rstrip("-")
        client = {name.replace(".", "_"): value for name, value in options.client.items()}
        self.history = History(self.name, servers, client)
        self.region = Region(self.name, servers, serves=False, **client)
        self.places = {kind: KINDS[kind](self.home) for kind in dict.fromkeys(KIND_OF.values())}
        self.watcher = Watcher(self.places)
        self.replayed: list[tuple[int, int]] = []
        self.marks: list[tuple[int, str]] = []
        self._told = 0
        self._steps = 0
        self._steps_before_kill = 0

    def start(self, name: str) -> None:
        """Start an application."""
        client = {key: str(value) for key, value in self.options.client.items()}
        queries = QUERIES[name]
        self.start_member(
            RegionMemberSettings(
                name,
                str(self.home),
                self.source_options() | {"columns": "value,partition,offset"},
                cores=len(queries),
                region=self.name,
                servers=self.servers,
                client=client,
                queries=queries,
                faltering=FALTERING,
                checkpoint_every=CHECKPOINT_EVERY,
            )
        )

    # -- observations

    def on_batch(self, name: str, facts: Mapping[str, Any]) -> None:
        """Do nothing: these applications report no batches, their sequences come from the region's topic."""

    def look(self) -> None:
        """Read the region's topic, and update the display."""
        self.history.follow()
        self.replayed.append((_now_ms(), self.feed.produced))
        for reset in self.history.resets[self._told :]:
            self.scene.note(f"all go back to sequence {reset.to}: {reset.cause}")
            self.mark("reset", reset.at_ms)
        self._told = len(self.history.resets)
        for step in self.history.sequences[self._steps :]:
            for given in step.contributions:
                view, saved = self.scene.members[given.member], SavedQuery.from_bytes(given.state)
                if view.state != "killed":
                    view.state = "running"
                view.batches = 0 if saved.batch is None else saved.batch + 1
                view.rows += sum(span.end - span.begin for span in given.spans)
                view.generation = given.generation
        self._steps = len(self.history.sequences)
        self.scene.phase = f"{self.scene.phase.partition(', sequence ')[0]}, sequence {self.history.last}"

    def mark(self, what: str, at_ms: int | None = None) -> None:
        """Mark an event in the picture."""
        self.marks.append((_now_ms() if at_ms is None else at_ms, what))

    def at(self, share: float) -> bool:
        """Return whether this share of the flights is replayed."""
        return self.feed.produced >= share * self.options.total

    def _taken_over(self) -> bool:
        later = self.history.sequences[self._steps_before_kill :]
        return any(
            span.partition in self.orphans and span.end > span.begin
            for step in later
            for given in step.contributions
            if given.member not in QUERIES[VICTIM]
            for span in given.spans
        )

    def _holds_again(self) -> bool:
        return all(self.scene.members[query].held for query in QUERIES[VICTIM])

    def _all_published(self) -> bool:
        shares, state = self.shares()
        if state != "Stable" or any(share.lag for share in shares) or not any(share.log_end for share in shares):
            return False
        return self._nothing_is_owed()

    def _nothing_is_owed(self) -> bool:
        """Return whether all sinks have published the last sequence, as the region's topic records."""
        try:
            seen = self.region.describe()
        except KafkaError:
            return False
        return seen.published >= seen.sequence

    def _is_between_two(self) -> bool:
        """Return whether the last sequence is less than a second old, so that the next one is not due yet.

        Only the victim can publish its sink. If it died between a sequence and its publication, the region would wait
        for its return.
        """
        return bool(self.history.sequences) and _now_ms() - self.history.sequences[-1].at_ms < CALM_MS

    # -- the script

    def play(self) -> None:
        """Run the demo from the start of the members until everything is published."""
        scene = self.scene
        scene.phase = "starting Spark"
        self.feed.start()
        self.create_topic()
        self.watcher.start()
        for name in QUERIES:
            self.start(name)
        scene.note("two Spark applications are starting, with three queries of one region")
        self.until(self.all_up, "both Spark applications are up")
        scene.phase = "replaying"
        scene.note("the replay begins")
        self.feed.allowed = BEFORE_SHARED
        self.feed.go.set()
        self.until(lambda: self.shared() and self.history.last > 0, f"all three queries hold partitions: {FIRST_BATCH}")
        held = ", ".join(f"{name}: {words(set(view.held))}" for name, view in scene.members.items())
        scene.note(f"all three are members of one group ({held})")
        self._fill_the_disk(*FULL_DISKS[0])
        self._kill()
        self._bring_back()
        self._fill_the_disk(*FULL_DISKS[1])
        self.feed.allowed = 1.0
        self.until(lambda: self.feed.done, "the replay ends")
        scene.phase = "reading the rest"
        scene.note("all flights are replayed")
        self.until(self._all_published, "everything is read and published")
        self.look()
        scene.note(f"nothing is left to read; sequence {self.history.last} is published")
        self.final = self.shares()
        for member in self.members.values():
            member.ask_to_end()
        for member in self.members.values():
            member.end()
        self.look()
        self.watcher.stop()

    def _fill_the_disk(self, least: float, most: float) -> None:
        moment = random.uniform(least, most)
        self.feed.allowed = most + HELD_BACK
        self.until(lambda: self.at(moment), "the moment at which a sink fails")
        resets, sign = len(self.history.resets), omen(self.home)
        sign.touch()
        self.until(lambda: not sign.exists(), "a sink fails")
        self.mark("disk full")
        self.scene.note(f"the sink of {FALTERING} finds no room on the disk, once")
        self.until(lambda: len(self.history.resets) > resets, "all go back")
        before = self.history.last
        self.until(lambda: self.history.last > before, "a sequence after the reset")

    def _kill(self) -> None:
        self.feed.allowed = KILL_AT + HELD_BACK
        self.until(
            lambda: self.at(KILL_AT) and self.shared() and self._is_between_two() and self._nothing_is_owed(),
            "the moment at which an application dies",
        )
        self.kill(VICTIM, tuple(QUERIES[VICTIM]))
        self._steps_before_kill = len(self.history.sequences)
        self.mark(f"SIGKILL to {VICTIM}")
        self.scene.note(
            f"SIGKILL to {VICTIM}, {self.killed_processes} processes; it held partitions {words(self.orphans)}"
        )
        self.feed.allowed = BACK_BY - HELD_BACK
        self.until(self._taken_over, "the other application takes over")
        assert self.killed_at is not None
        self.takeover_s = time.monotonic() - self.killed_at
        self.scene.phase = "replaying"
        self.scene.note(
            f"{SURVIVOR} has partitions {words(self.orphans)} in a complete sequence, {self.takeover_s:.1f} s after"
        )

    def _bring_back(self) -> None:
        self.feed.allowed = BACK_BY
        self.start(VICTIM)
        self.scene.note(f"{VICTIM} is started again")
        self.until(self._holds_again, f"{VICTIM} holds partitions again")
        self.mark(f"{VICTIM} is back")
        self.scene.note(f"{VICTIM} holds partitions again, without a reset")

    def conclude(self) -> RegionOutcome:
        """Read the places, count every flight once, and draw the pictures."""
        shares, state = self.final
        tables = {kind: place.rows() for kind, place in self.places.items()}
        account = settle_places(tables, {share.partition: share.log_end for share in shares})
        counted = counted_by_hour(tables)
        pictures = self.folder / "delay-by-hour.png", self.folder / "sequences.png"
        draw(counted, pictures[0], "each published once by three Spark queries of a consistent region")
        draw_sequences(self.history.sequences, self.replayed, self.marks, pictures[1])
        parts = list(parts_seen(self.watcher.looks, self.history.sequences, KIND_OF))
        if self.watcher.error is not None:
            parts.append(f"the reader failed: {self.watcher.error}")
        return RegionOutcome(
            flights=self.feed.produced,
            region=self.name,
            group=self.group,
            group_state=state,
            shares=shares,
            account=account,
            history=self.history,
            looks=self.watcher.count,
            different_looks=len(self.watcher.looks),
            worst=tuple(worst_connections(counted, self.options.least)),
            least=self.options.least,
            pictures=pictures,
            killed=VICTIM,
            killed_processes=self.killed_processes,
            takeover_s=self.takeover_s or 0.0,
            seconds=self.scene.seconds,
            faults=(*parts, *compare(counted, self.feed.tally)),
        )

    def close(self) -> None:
        """End the reader and the applications, and delete the region from a user's cluster."""
        self.watcher.stop()
        super().close()
        self.history.close()
        if self.options.bootstrap_server and not self.options.keep and self.final[0]:
            self.region.delete()
        self.region.close()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
