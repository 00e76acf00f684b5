"""PURE. Who serves which shard: one map of all shards, even, and changed by little.

A map says where groups are looked for. It guards nothing: two coordinators that both believe that a shard is theirs are
told apart by the journal, whose broker refuses the appends of the one that was overtaken.

Source: spec 4.2, 4.11.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CANDIDATE_ID_MAX = 32_767
"""Ids are int16 in the frames of spec 4.3."""
NOBODY = -1


@dataclass(frozen=True, slots=True)
class Candidate:
    """A process that can serve shards.

    Attributes:
        id: Its number among the candidates, which outlives the process.
        incarnation: Of the process: another one under the same number has another.
        host: Where clients reach it.
        port: The same.
        rack: Where it stands, if told.
    """

    id: int
    incarnation: str
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> str:
        """HOST:PORT, for people."""
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Placement:
    """One map.

    Attributes:
        version: Counts the maps of one door; a door that was emptied counts from the start again.
        elected: The candidate in office when it was made, -1 for none.
        candidates: Those that can serve, by id.
        owners: For each shard the id of its candidate, -1 for nobody.
    """

    version: int
    elected: int
    candidates: tuple[Candidate, ...]
    owners: tuple[int, ...]

    def of(self, candidate_id: int) -> frozenset[int]:
        """The shards of one candidate."""
        return frozenset(shard for shard, owner in enumerate(self.owners) if owner == candidate_id)

    def candidate(self, candidate_id: int) -> Candidate | None:
        """The candidate with this id, if the map names it."""
        return next((one for one in self.candidates if one.id == candidate_id), None)


def placed(before: Placement | None, alive: Sequence[Candidate], elected: int, shards: int) -> Placement:
    """The next map: each candidate has as many shards as any other, or one more, and as few as possible change hands.

    Args:
        before: The map that stands; it is returned itself where nothing is to change.
        alive: Who can serve, no id twice.
        elected: Who is in office.
        shards: How many there are.
    """
    candidates = tuple(sorted(alive, key=lambda one: one.id))
    standing = () if before is None else before.owners[:shards]
    held: dict[int, list[int]] = {one.id: [] for one in candidates}
    for shard, owner in enumerate(standing):
        if owner in held:
            held[owner].append(shard)
    owners = [NOBODY] * shards
    if held:
        share, over = divmod(shards, len(held))
        fullest = sorted(held, key=lambda one: (-len(held[one]), one))
        room = {one: share + (place < over) for place, one in enumerate(fullest)}
        for one, its in held.items():
            for shard in its[: room[one]]:
                owners[shard] = one
            room[one] -= min(len(its), room[one])
        free = iter(one for one in sorted(room) for _ in range(room[one]))
        owners = [next(free) if owner == NOBODY else owner for owner in owners]
    version = 1 if before is None else before.version + 1
    after = Placement(version, elected, candidates, tuple(owners))
    if before is not None and (before.elected, before.candidates, before.owners) == (elected, candidates, after.owners):
        return before
    return after
