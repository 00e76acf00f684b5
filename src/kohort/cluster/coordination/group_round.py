"""PURE. What coordinators that are a group on Kafka tell when they join, and what their leader gives each.

The bytes are JSON objects: of a member the candidate with the map that it goes by, of the leader the new map with the
member ids, by which any member can have another one removed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kohort.cluster.coordination.placement import (
    Candidate,
    Placement,
    candidate_fields,
    from_bytes,
    placed,
    placement_fields,
    read_candidate,
    read_placement,
    to_bytes,
)
from kohort.errors import CorruptDataError


@dataclass(frozen=True, slots=True)
class Told:
    """What a member tells when it joins.

    Attributes:
        candidate: Who it is.
        shards: How many it knows of.
        retiring: It stops, and is to have none.
        placement: The map that it goes by, if it has one.
    """

    candidate: Candidate
    shards: int
    retiring: bool = False
    placement: Placement | None = None

    def to_bytes(self) -> bytes:
        """Its JSON."""
        fields = {"candidate": candidate_fields(self.candidate), "shards": self.shards, "retiring": self.retiring}
        if self.placement is not None:
            fields["placement"] = placement_fields(self.placement)
        return to_bytes(fields)

    @staticmethod
    def from_bytes(data: bytes) -> Told:
        """What these bytes tell.

        Raises:
            CorruptDataError: they are not a member's.
        """
        fields = from_bytes(data)
        candidate, shards, placement = fields.get("candidate"), fields.get("shards"), fields.get("placement")
        if not isinstance(candidate, dict) or not isinstance(shards, int) or not isinstance(placement, dict | None):
            raise CorruptDataError(f"no member's bytes: {fields!r}"[:300])
        before = None if placement is None else read_placement(placement)
        return Told(read_candidate(candidate), shards, fields.get("retiring") is True, before)


@dataclass(frozen=True, slots=True)
class Given:
    """What a member is given.

    Attributes:
        placement: The map, whose version is the group's generation.
        members: The member id of each candidate of this generation.
        refused: Why this member has no place, "" if it has one.
    """

    placement: Placement
    members: Mapping[int, str]
    refused: str = ""

    def to_bytes(self) -> bytes:
        """Its JSON."""
        members = {str(number): member for number, member in self.members.items()}
        return to_bytes({"placement": placement_fields(self.placement), "members": members, "refused": self.refused})

    @staticmethod
    def from_bytes(data: bytes) -> Given:
        """What these bytes give.

        Raises:
            CorruptDataError: they are not a leader's.
        """
        fields = from_bytes(data)
        placement, members, refused = fields.get("placement"), fields.get("members"), fields.get("refused", "")
        if not isinstance(placement, dict) or not isinstance(members, dict) or not isinstance(refused, str):
            raise CorruptDataError(f"no leader's bytes: {fields!r}"[:300])
        ids = {int(number): str(member) for number, member in members.items() if number.isdecimal()}
        return Given(read_placement(placement), ids, refused)


def given(generation: int, leader: str, told: Mapping[str, Told]) -> dict[str, Given]:
    """What the leader gives to each member of a generation.

    Args:
        generation: The group's.
        leader: Its own member id, one of those in `told`.
        told: What each member tells, by member id.
    """
    before = _before(told)
    holders: dict[int, str] = {}
    for member in sorted(told):
        number = told[member].candidate.id
        holders[number] = _holder(member, holders.get(number), told, before)
    alive = [told[member].candidate for member in holders.values() if not told[member].retiring]
    me = told[leader]
    after = replace(placed(before, alive, me.candidate.id, me.shards), version=generation)
    return {
        member: Given(after, holders, refusal(one.candidate, told[holders[one.candidate.id]].candidate))
        for member, one in told.items()
    }


def _before(told: Mapping[str, Told]) -> Placement | None:
    """The map that most go by; the highest version only where as many go by another.

    A version alone says nothing: a group that Kafka forgot begins at 1 again, and a member may have slept since 57.
    """
    maps = Counter(one.placement for one in told.values() if one.placement is not None)
    return max(maps, key=lambda one: (maps[one], one.version), default=None)


def _holder(member: str, other: str | None, told: Mapping[str, Told], before: Placement | None) -> str:
    """Which of two members that claim one id has it.

    An address belongs to one process at a time: of two there, the one that the map does not name yet is the newer. At
    another address, who has the id keeps it.
    """
    if other is None:
        return member
    number, one, two = told[member].candidate.id, told[member].candidate, told[other].candidate
    known = None if before is None else before.candidate(number)
    known_incarnation = None if known is None else known.incarnation
    if one.incarnation == two.incarnation or known_incarnation not in (one.incarnation, two.incarnation):
        return max(member, other, key=lambda name: (told[name].candidate.incarnation, name))
    standing, newer = (member, other) if one.incarnation == known_incarnation else (other, member)
    return newer if one.address == two.address else standing


def refusal(one: Candidate, holder: Candidate) -> str:
    """Why `one` does not have the id that `holder` has, "" if they are the same process."""
    if one.incarnation == holder.incarnation:
        return ""
    return f"the id {one.id} is taken by the coordinator at {holder.address}"
