"""A member that reads in batches, as a query does, and does not stop for a cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from kohort.region.member import events as member_events
from kohort.region.messages import CheckpointAttempt
from kohort.region.records import Part, Position
from kohort.region.sinks.availability import AWAY
from kohort.region.sinks.dead_letters import make_dead_letters, split_refused_rows
from kohort.region.staged import Staged, StagedKey, merge_staged
from kohort.region.states import RegionMemberState
from tests.region.volume import Died
from tests.region.world.disk import SCHEMA, Disk
from tests.region.world.member import Member
from tests.region.world.names import REGION_ID, TOPIC

if TYPE_CHECKING:
    from tests.region.world.world import World

Batch = dict[Part, tuple[int, int]]
"""What it covers: of each partition, from one offset to before another."""


class BatchMember(Member):
    """One batch after the other: planned, run by two tasks that stage under a key each, and finished.

    Attributes:
        running: the batch that runs; None: none.
        run_keys: what its tasks have staged so far.
        finished: the number of the last one that is.
        keys: what finished batches staged and no sequence has yet, with the batch's number.
        given: the last batch that was contributed.
        wanted_back: what the group wants back, and the machine has not heard of: a batch runs.
    """

    reads_on = True

    def __init__(self, world: World, name: str, disk: Disk, *, holds_back: bool) -> None:
        super().__init__(world, name, disk, holds_back=holds_back)
        self.running: Batch | None = None
        self.run_keys: list[Staged] = []
        self.keys: list[tuple[int, Staged]] = []
        self.wanted_back: list[tuple[Part, ...]] = []
        self.finished = self.given = self.unit = 0
        self.checked = False

    def begin_epoch(self, epoch: int) -> None:
        """All that ran or was finished is void."""
        super().begin_epoch(epoch)
        self.unit, self.running = 0, None
        self.keys.clear()

    # -- batches

    def work(self) -> None:
        """A query submits nothing."""

    def close(self) -> None:
        """Leave with the batches that are finished."""
        self.step(member_events.CloseRequested())

    def read(self) -> None:
        """Plan the next batch, if none runs and nothing is to be given up."""
        if not self.alive:
            return
        chance = self.clock.chance
        self.clock.after(chance.randint(20, 120), self.read)
        if not self.polls or self.running is not None or self.wanted_back or self.clock.now_ms < self.dozes_until_ms:
            return
        if self.world.losses.meet(self):
            return
        most = 50 if self.world.healed else 5
        able = [part for part in sorted(self.positions) if part not in self.machine.held]
        batch = {
            part: (self.positions[part], min(self.positions[part] + chance.randint(0, most), self.world.ends[part]))
            for part in able
        }
        news = any(end > begin for begin, end in batch.values())
        if batch and (news or chance.random() < 0.02):
            self.step(member_events.RecordsFetched())
            self.running, self.run_keys = batch, []
            took_ms = chance.choice((20, 100, 1_000))
            self.clock.after(took_ms // 2, lambda: self.run(batch, 0))
            self.clock.after(took_ms, lambda: self.run(batch, 1))

    def run(self, batch: Batch, task: int) -> None:
        """Every second partition is one task's; the batch is finished when both have staged."""
        if not self.alive or self.running is not batch:
            return
        if self.clock.now_ms < self.dozes_until_ms:
            self.clock.after(self.dozes_until_ms - self.clock.now_ms + task, lambda: self.run(batch, task))
            return
        mine = [batch[part] for part in sorted(batch)][task::2]
        whose = [part.partition for part in sorted(batch)][task::2]
        offsets = [
            (partition, offset)
            for partition, (begin, end) in zip(whose, mine, strict=True)
            for offset in range(begin, end)
        ]
        columns = [pa.array([row[0] for row in offsets], pa.int32()), pa.array([row[1] for row in offsets], pa.int64())]
        self.stages = True
        try:
            if not self.checked:
                self.folder.check(SCHEMA)
                self.checked = True
            staged = self.stage(pa.table(columns, schema=SCHEMA))
        except (Died, *AWAY) as error:
            self.ends_by(error)
            return
        finally:
            self.stages = False
        self.run_keys.append(staged)
        if len(self.run_keys) == 2:  # who dozes may stage the second first
            self.finish(batch)

    def stage(self, table: pa.Table) -> Staged:
        """Stage the rows of a task, and its dead letters, under a key each."""
        keys = tuple(StagedKey(REGION_ID, self.epoch, self.name, self.unit + number) for number in (0, 1))
        self.unit += 2
        if self.letter_folder is None:
            self.folder.stage(keys[0], table)
            return Staged(keys[:1])
        self.check_letters()
        good, reasons = split_refused_rows(self.folder, table)
        self.folder.stage(keys[0], good)
        if not reasons:
            return Staged(keys[:1])
        records = table.append_column("topic", pa.array([TOPIC] * table.num_rows, pa.string()))
        self.letter_folder.stage(keys[1], make_dead_letters(table, reasons, self.name, records=records))
        return Staged(keys[:1], keys[1:], len(reasons))

    def finish(self, batch: Batch) -> None:
        self.finished, self.running = self.finished + 1, None
        self.keys += [(self.finished, staged) for staged in self.run_keys]
        self.run_keys = []
        self.positions.update({part: end for part, (_, end) in batch.items() if part in self.positions})
        self.hand_back()

    # -- the group

    def revoked(self, parts: tuple[Part, ...]) -> None:
        """The running batch is finished first, and none is planned until then."""
        if self.running is None:
            self.step(member_events.PartitionsRevoked(parts))
        else:
            self.wanted_back.append(parts)

    def hand_back(self) -> None:
        while self.alive and self.wanted_back and self.running is None:
            self.step(member_events.PartitionsRevoked(self.wanted_back.pop(0)))

    def hear_of_eviction(self) -> None:
        """Handle an eviction: partitions to be released now belong to another member."""
        self.wanted_back.clear()
        super().hear_of_eviction()

    # -- what the machine wants

    def carry_out(self, effect: member_events.Effect) -> None:
        match effect:
            case member_events.DrainMember(cut) if self.world.healed or self.clock.chance.random() > 0.02:
                self.step(member_events.DrainCompleted(cut))
                return
            case member_events.StopPolling() | member_events.ResetApplication():
                self.running = None
                self.clock.after(1, self.hand_back)
            case member_events.RetireCheckpoints(counts=True):
                self.keys = [(number, staged) for number, staged in self.keys if number > self.given]
            case _:
                pass
        super().carry_out(effect)

    def ends(self) -> dict[Part, int]:
        """Where the finished batches end."""
        return {part: self.positions[part] for part in self.machine.begins}

    def finished_keys(self) -> tuple[Staged, ...]:
        """Return the keys that finished tasks staged."""
        return tuple(staged for _, staged in self.keys)

    def save(self, cut: CheckpointAttempt) -> None:
        if cut == self.machine.cut and self.machine.state is RegionMemberState.DRAINED:
            self.given = self.finished
            ends = tuple(
                Position(part.group, part.topic, part.topic_id, part.partition, end)
                for part, end in sorted(self.ends().items())
            )
            staged = merge_staged(self.finished_keys())
            letters, count = staged.letters, staged.dead_letters
            self.step(member_events.StateSaved(cut, ends, staged.keys, b"state", letters, count))
