"""PURE. The metadata that coordinators send when they join their group on Kafka, and their leader's assignments.

Both are JSON objects. A member's metadata holds its candidate and the placement that it uses. The leader's assignment
holds the new placement and the member ids, with which any member can remove another one from the group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kohort.cluster.coordination.placement import (
    Candidate,
    Placement,
    candidate_fields,
    compute_placement,
    from_bytes,
    placement_fields,
    read_candidate,
    read_placement,
    to_bytes,
)
from kohort.errors import CorruptDataError

_DIGITS_MAX = 10
"""The most digits of a candidate's number. Python refuses to convert more than 4,300."""


@dataclass(frozen=True, slots=True)
class JoinMetadata:
    """A member's metadata in its JoinGroup request.

    Attributes:
        candidate: The member's identity.
        shards: The number of shards, as this member knows it.
        retiring: Whether it stops, and must get no shards.
        placement: The placement that it uses, if it has one.
    """

    candidate: Candidate
    shards: int
    retiring: bool = False
    placement: Placement | None = None

    def to_bytes(self) -> bytes:
        """Encode the member's metadata for JoinGroup as JSON."""
        fields = {"candidate": candidate_fields(self.candidate), "shards": self.shards, "retiring": self.retiring}
        if self.placement is not None:
            fields["placement"] = placement_fields(self.placement)
        return to_bytes(fields)

    @staticmethod
    def from_bytes(data: bytes) -> JoinMetadata:
        """Decode a member's metadata.

        Raises:
            CorruptDataError: the bytes are not a member's metadata.
        """
        fields = from_bytes(data)
        candidate, shards, placement = fields.get("candidate"), fields.get("shards"), fields.get("placement")
        if not isinstance(candidate, dict) or not isinstance(shards, int) or not isinstance(placement, dict | None):
            raise CorruptDataError(f"no member's bytes: {fields!r}"[:300])
        standing = None if placement is None else read_placement(placement)
        return JoinMetadata(read_candidate(candidate), shards, fields.get("retiring") is True, standing)


@dataclass(frozen=True, slots=True)
class LeaderAssignment:
    """The leader's assignment to one member.

    Attributes:
        placement: The placement, whose version is the group's generation.
        members: The member id of each candidate of this generation.
        refused: Why this member is not registered, "" if it is.
    """

    placement: Placement
    members: Mapping[int, str]
    refused: str = ""

    def to_bytes(self) -> bytes:
        """Encode the assignment for SyncGroup as JSON."""
        members = {str(number): member for number, member in self.members.items()}
        return to_bytes({"placement": placement_fields(self.placement), "members": members, "refused": self.refused})

    @staticmethod
    def from_bytes(data: bytes) -> LeaderAssignment:
        """Decode a leader's assignment.

        Raises:
            CorruptDataError: the bytes are not a leader's assignment.
        """
        fields = from_bytes(data)
        placement, members, refused = fields.get("placement"), fields.get("members"), fields.get("refused", "")
        if not isinstance(placement, dict) or not isinstance(members, dict) or not isinstance(refused, str):
            raise CorruptDataError(f"no leader's bytes: {fields!r}"[:300])
        numbers = [number for number in members if number.isdecimal() and len(number) <= _DIGITS_MAX]
        ids = {int(number): str(members[number]) for number in numbers}
        return LeaderAssignment(read_placement(placement), ids, refused)


def compute_assignments(
    generation: int, leader: str, metadata: Mapping[str, JoinMetadata]
) -> dict[str, LeaderAssignment]:
    """Compute the leader's assignment to each member of a generation.

    Args:
        generation: The group's generation.
        leader: The leader's member id, one of those in `metadata`.
        metadata: The metadata of each member, by member id.
    """
    before = _before(metadata)
    holders: dict[int, str] = {}
    for member in sorted(metadata):
        number = metadata[member].candidate.id
        holders[number] = _holder(member, holders.get(number), metadata, before)
    alive = [metadata[member].candidate for member in holders.values() if not metadata[member].retiring]
    me = metadata[leader]
    after = replace(compute_placement(before, alive, me.candidate.id, me.shards), version=generation)
    return {
        member: LeaderAssignment(
            after, holders, id_conflict(joined.candidate, metadata[holders[joined.candidate.id]].candidate)
        )
        for member, joined in metadata.items()
    }


def _before(metadata: Mapping[str, JoinMetadata]) -> Placement | None:
    """Return the placement before this rebalance: the one that most members report; on a tie, the highest version.

    The version alone proves nothing: it restarts at 1 if Kafka deletes the group, and a member may have been suspended
    for long.
    """
    counts = Counter(joined.placement for joined in metadata.values() if joined.placement is not None)
    return max(counts, key=lambda placement: (counts[placement], placement.version), default=None)


def _holder(member: str, other: str | None, metadata: Mapping[str, JoinMetadata], before: Placement | None) -> str:
    """Return which of two members that claim the same coordinator id keeps it.

    An address belongs to one process at a time. Of two members at the same address, the newer is therefore the one that
    the placement does not name yet. At different addresses, the present holder keeps the id.
    """
    if other is None:
        return member
    number, one, two = metadata[member].candidate.id, metadata[member].candidate, metadata[other].candidate
    known = None if before is None else before.candidate(number)
    known_incarnation = None if known is None else known.incarnation
    if one.incarnation == two.incarnation or known_incarnation not in (one.incarnation, two.incarnation):
        return max(member, other, key=lambda name: (metadata[name].candidate.incarnation, name))
    standing, newer = (member, other) if one.incarnation == known_incarnation else (other, member)
    return newer if one.address == two.address else standing


def id_conflict(one: Candidate, holder: Candidate) -> str:
    """Return why candidate `one` can't have the id of `holder`; "" if both are the same process."""
    if one.incarnation == holder.incarnation:
        return ""
    return f"the id {one.id} is taken by the coordinator at {holder.address}"
