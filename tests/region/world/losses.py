"""Records that the log loses before a member has read them, and the errors that say so.

The event thread that ships decides which partition is moved. The error's value names the partition. Its text names
another one, as texts of a broker or a library may.
"""

from __future__ import annotations

import random
from collections import defaultdict
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from kohort.errors import ErrorCode, OffsetError
from kohort.ids import TopicPartition
from kohort.region.consuming.event_thread import EventThread
from kohort.region.records import Part
from tests.region.world.names import TOPIC, part

if TYPE_CHECKING:
    from tests.region.world.member import Member
    from tests.region.world.world import World

LOSE_MS = 4_000
"""Losses are at most so far apart."""


class Losses:
    """Where the log of each partition begins, and what members passed over for it. With chance of its own.

    Attributes:
        begins: by partition; where none is, the log has all.
        passed: what a member of this name passed over in an epoch: partition and offset.
    """

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.chance = world, random.Random(f"{seed}: losses")
        self.begins: dict[Part, int] = {}
        self.passed: dict[tuple[str, int], set[tuple[int, int]]] = defaultdict(set)
        self.errors = 0

    def start(self) -> None:
        self.world.clock.after(self.chance.randint(1, LOSE_MS), self._lose)

    def _lose(self) -> None:
        world = self.world
        if world.healed:
            return
        where = self.chance.choice(world.group.parts())
        begin = self.begins.get(where, 0)
        self.begins[where] = max(begin, world.ends[where] - self.chance.randint(0, 20))
        world.clock.log(f"-- the log of {where} begins at {self.begins[where]} from now on")
        world.clock.after(self.chance.randint(1, LOSE_MS), self._lose)

    def meet(self, member: Member) -> bool:
        """Have a poll of a member raise, if the log does not have one of its positions any more."""
        lost = [at for at, offset in sorted(member.positions.items()) if offset < self.begins.get(at, 0)]
        if not lost:
            return False
        here = self.chance.choice(lost)
        others = [at for at in self.world.group.parts() if at != here]
        announced = TopicPartition(TOPIC, self.chance.choice(others or [here]).partition)
        error = OffsetError(
            f"offset {member.positions[here]} of {announced} is out of range",
            ErrorCode.OFFSET_OUT_OF_RANGE,
            TopicPartition(TOPIC, here.partition),
        )
        self.errors += 1
        thread = SimpleNamespace(
            name=member.name,
            _config=SimpleNamespace(fail_on_data_loss=False),
            _reads={TopicPartition(TOPIC, at.partition) for at in member.positions},
            _consumer=SimpleNamespace(seek_to_beginning=lambda at: self._move(member, part(at.partition))),
            _step=member.step,
        )
        EventThread._data_lost(cast(EventThread, thread), error)
        return True

    def _move(self, member: Member, at: Part) -> None:
        before, after = member.positions[at], self.begins.get(at, 0)
        self.passed[member.name, member.epoch].update((at.partition, offset) for offset in range(before, after))
        member.positions[at] = after
        self.world.clock.log(f"{member.name} goes on with {at} at {after}, from {before}")
