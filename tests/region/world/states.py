"""Keyed states of the simulated members: what counts is what the records of a partition make, no more and no less.

The states are those that ship, with their working copies. Their files are on a disk in memory, which loses power.
"""

from __future__ import annotations

import errno
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa

from kohort.errors import CorruptDataError
from kohort.region.keyed_state.place import FolderStateStore, KeyedState, RegionStateStore
from kohort.region.keyed_state.states import KeyedStates, LoadedKeyedState, StateMapping
from kohort.region.records import KeyedStateChainHead, Manifest, Part, Position, to_part
from tests.region.volume import Calls, Volume
from tests.region.world.clock import ViolatedError
from tests.region.world.names import REGION_ID, part

if TYPE_CHECKING:
    from tests.region.world.member import Member
    from tests.region.world.world import World

PLACE = "/states"
SETTING = KeyedState(PLACE)
KEYS = 7
FAILS, DIES = 0.03, 0.01
"""The chances that a call which saves a state fails, or is the last of its process."""


class StatesDisk:
    """The disk of the states, and what has to be on it."""

    def __init__(self, world: World) -> None:
        self.world, self.volume = world, Volume()

    def check(self, manifest: Manifest) -> None:
        """Each state of a manifest is what the records before its offset make.

        Raises:
            ViolatedError: it is not.
        """
        place = RegionStateStore(FolderStateStore(PLACE, Calls(self.volume)), PLACE, REGION_ID)
        for position in manifest.positions:
            begin = self.world.stored.initial[to_part(position)].offset
            wanted = made_of(range(begin, position.offset))
            found = _read(place, position)
            if found != wanted:
                raise ViolatedError(
                    f"the state of {to_part(position)} at {position.offset} lacks {wanted - found}, "
                    f"and has {found - wanted} too much"
                )


def made_of(offsets: range) -> Counter[bytes]:
    """The state that records make: how many there are of each key."""
    return Counter(b"%d" % (offset % KEYS) for offset in offsets)


def _read(place: RegionStateStore, position: Position) -> Counter[bytes]:
    if position.state is None:
        return Counter()
    try:
        state = LoadedKeyedState(to_part(position), place, position.state, None)
    except CorruptDataError as error:
        raise ViolatedError(f"the state of {to_part(position)} can't be read: {error}") from error
    found = Counter({key: int(value) for key, value in StateMapping(state, lambda: True).items()})
    state.close()
    return found


class MemberStates:
    """The keyed states of one member, and its application, which counts."""

    def __init__(self, member: Member, disk: StatesDisk) -> None:
        self._member, self._disk = member, disk
        self.calls = Calls(disk.volume)
        self.calls.at = self._trouble
        self._saves = False
        place = RegionStateStore(
            FolderStateStore(PLACE, self.calls), PLACE, REGION_ID, member.clock.chance.randint(0, 5)
        )
        self.kept = KeyedStates(place, None)

    def _trouble(self, number: int, name: str, path: str) -> None:
        del number, name, path
        chance = self._member.clock.chance
        if self._saves and not self._member.world.healed:
            if chance.random() < DIES:
                self.calls.die()
            if chance.random() < FAILS:
                raise OSError(errno.EIO, "the disk of the states fails")

    def count(self, table: pa.Table) -> bool:
        """Count the records of a table; return False if another member has the partition, and this one has slept."""
        for number, offset in zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True):
            try:
                state = StateMapping(self.kept.state_of(part(number)), lambda: True)
            except CorruptDataError:
                if self._is_owner(part(number)):
                    raise
                return False
            key = b"%d" % (offset % KEYS)
            state[key] = b"%d" % (int(state.get(key, b"0")) + 1)
        return True

    def _is_owner(self, given: Part) -> bool:
        """Whether the member begins where the last manifest ends."""
        position = self._disk.world.stored.positions.get(given)
        return position is None or self.kept._heads.get(given) == position.state

    def save(self, sequence: int) -> dict[Part, KeyedStateChainHead | None]:
        self._saves = True
        try:
            return self.kept.save(sequence)
        finally:
            self._saves = False

    def sweep(self) -> None:
        for due in self.kept.on_checkpoint_completed():
            self.kept.store.sweep(due)

    def die(self) -> None:
        self.calls.dead = True
        self.kept.close()
