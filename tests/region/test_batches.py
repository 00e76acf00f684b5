"""A member that does not stop for a cut, beside one that does, in a world without other trouble."""

from __future__ import annotations

import pytest

from kohort.region.control_plane.state import ControlPlaneState
from kohort.region.states import RegionMemberState, RegionState
from tests.region.world.batches import BatchMember
from tests.region.world.member import Member
from tests.region.world.world import World


@pytest.fixture(params=range(4))
def world(request: pytest.FixtureRequest) -> World:
    """Two sinks; `m0` reads in batches and writes to one, `m1` drains and writes to the other."""
    worlds = (World(seed) for seed in range(request.param * 50, 10**6))
    world = next(world for world in worlds if world.letters is None and len(world.disks) == 2)
    world.healed = True
    world.begin_plane()
    for number, (kind, disk) in enumerate(zip((BatchMember, Member), world.disks.values(), strict=True)):
        member = world.members[f"m{number}"] = kind(world, f"m{number}", disk, holds_back=True)
        member.start()
    return world


def test_who_reads_on_does_so_while_another_sink_can_not_be_published(world: World) -> None:
    batches, drains = world.members["m0"], world.members["m1"]
    assert isinstance(batches, BatchMember) and world.plane is not None
    world.clock.run(10_000)
    assert world.stored.sequence > 1 and all(member.positions for member in (batches, drains))
    publish, drains.publish = drains.publish, lambda place: None  # type: ignore[method-assign]
    world.clock.run(15_000)
    plane: ControlPlaneState = world.plane.machine.plane
    assert plane.state is RegionState.CHECKPOINTING and set(plane.unpublished) == {drains.disk.place}
    assert batches.machine.state is drains.machine.state is RegionMemberState.CHECKPOINTED
    sequence, finished, read = world.stored.sequence, batches.finished, dict(batches.positions)
    waits = dict(drains.positions)
    world.clock.run(25_000)
    assert world.stored.sequence == sequence and drains.positions == waits, "who drains stands still"
    assert batches.finished > finished + 5, "who does not goes on"
    assert all(batches.positions[part] > read[part] for part in read)
    drains.publish = publish  # type: ignore[method-assign]
    drains.publish(drains.disk.place)
    world.well_ms = world.clock.now_ms
    world.clock.run(60_000)
    assert world.stored.sequence > sequence + 5
    assert {part: at.offset for part, at in world.stored.positions.items()} == {
        part: world.ends[part] for part in world.group.parts()
    }
    for disk in world.disks.values():
        disk.check_published(world.stored.sequence - (disk.place in world.stored.unpublished))
