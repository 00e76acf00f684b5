"""The script of the demo: two Spark applications share a group, and one of them is killed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from kohort.demo.account import compare, count_once, ranges_of, read_batches, settle, worst_connections
from kohort.demo.cast import FIRST_BATCH, Demo, words
from kohort.demo.member_settings import MemberSettings
from kohort.demo.picture import draw
from kohort.demo.report import Outcome, Share

MEMBERS = ("anna", "bela")
VICTIM = MEMBERS[1]
SURVIVOR = MEMBERS[0]
TRIGGER_S = 1.5
KILL_AT = 0.45
"""The share of the flights after which the victim dies, with the next batch it has written."""
BEFORE_SHARED, BEFORE_KILLED = 0.2, 0.6
"""The shares at which the replay waits until both members hold partitions, and until the victim is dead.

It has to wait only on a slow machine.
"""


class GroupDemo(Demo):
    """The demo of one group: every flight is counted once, by the offsets and generations in the batches."""

    final: tuple[tuple[Share, ...], str] = ((), "unknown")

    def start_members(self) -> None:
        """Create the topic and start both Spark applications."""
        self.create_topic()
        for name in MEMBERS:
            own = self.source_options() | {"startingOffsets": "earliest", "kafka.client.id": name}
            self.start_member(MemberSettings(name, str(self.folder), own, TRIGGER_S))
        self.scene.note("two Spark applications are starting, each a process of its own")

    def look(self) -> None:
        """Do nothing: the reports of batches update the display."""

    def on_batch(self, name: str, facts: Mapping[str, Any]) -> None:
        """Update the display; kill the victim at its time, and time the takeover."""
        view = self.scene.members[name]
        view.state = "running"
        view.batches += 1
        view.rows += facts["rows"]
        view.generation = max((written["generation"] for written in facts["ranges"]), default=view.generation)
        due = self.killed_at is None and self.feed.produced >= KILL_AT * self.options.total
        if due and name == VICTIM and facts["rows"] and self.shared():
            self._kill()
        elsewhere = self.orphans & {written["partition"] for written in facts["ranges"]}
        if self.takeover_s is None and self.killed_at is not None and name == SURVIVOR and elsewhere:
            self.takeover_s = time.monotonic() - self.killed_at
            self.scene.note(f"{SURVIVOR} counts partitions {words(self.orphans)} now, {self.takeover_s:.1f} s after")

    def _kill(self) -> None:
        self.kill(VICTIM, (VICTIM,))
        self.scene.note(
            f"SIGKILL to {VICTIM}, {self.killed_processes} processes, its last batch written and not committed; "
            f"it held partitions {words(self.orphans)}"
        )

    def play(self) -> None:
        """Run the demo from the start of the members until the group has nothing left to read."""
        scene = self.scene
        scene.phase = "starting Spark"
        self.feed.start()
        self.start_members()
        self.until(self.all_up, "both Spark applications are up")
        scene.phase = "replaying"
        scene.note("the replay begins")
        self.feed.allowed = BEFORE_SHARED
        self.feed.go.set()
        self.until(self.shared, f"both members hold partitions: {FIRST_BATCH}")
        held = ", ".join(f"{name}: {words(set(scene.members[name].held))}" for name in MEMBERS)
        scene.note(f"both are members of one group ({held})")
        self.feed.allowed = BEFORE_KILLED
        self.until(lambda: self.killed_at is not None, "the victim's last batch")
        self.feed.allowed = 1.0
        self.until(lambda: self.takeover_s is not None, "the survivor takes over")
        scene.phase = "replaying"
        self.until(lambda: self.feed.done, "the replay ends")
        scene.phase = "reading the rest"
        scene.note("all flights are replayed")
        self.until(self._drained, "the survivor reads and commits everything")
        scene.note("nothing is left to read")
        self.final = self.shares()
        self.members[SURVIVOR].end()
        scene.members[SURVIVOR].state = "ended"

    def _drained(self) -> bool:
        shares, state = self.shares()
        is_read = all(share.lag == 0 for share in shares) and sum(share.log_end for share in shares) > 0
        return state == "Stable" and is_read

    def conclude(self) -> Outcome:
        """Read the written batches, count every flight once, and draw the picture."""
        shares, state = self.final
        batches = read_batches(self.folder / "batches")
        account = settle(ranges_of(batches), {share.partition: share.log_end for share in shares})
        counted = count_once(batches, account)
        picture = self.folder / "delay-by-hour.png"
        draw(counted, picture)
        return Outcome(
            flights=self.feed.produced,
            group=self.group,
            group_state=state,
            shares=shares,
            account=account,
            worst=tuple(worst_connections(counted, self.options.least)),
            least=self.options.least,
            picture=picture,
            killed=VICTIM,
            killed_processes=self.killed_processes,
            takeover_s=self.takeover_s or 0.0,
            seconds=self.scene.seconds,
            mismatches=tuple(compare(counted, self.feed.tally)),
        )
