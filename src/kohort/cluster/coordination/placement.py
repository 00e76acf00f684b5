"""PURE. The placement: a map from each shard to its intended owner, balanced, with few moves at each change.

Clients find a group's coordinator by the placement. It is not trusted for safety. When two coordinators both believe
that they own a shard, the journal decides: Kafka refuses the appends of the fenced one.

Source: spec 4.2, 4.11.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from kohort.errors import CorruptDataError

CANDIDATE_ID_MAX = 32_767
"""Ids are int16 in the frames of spec 4.3."""
NOBODY = -1


@dataclass(frozen=True, slots=True)
class Candidate:
    """A coordinator process that can own shards.

    Attributes:
        id: Its id among the candidates, which outlives the process.
        incarnation: The id of the process: a successor with the same `id` has another one.
        host: The host that clients connect to.
        port: The port that clients connect to.
        rack: Its rack, if configured.
    """

    id: int
    incarnation: str
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> str:
        """HOST:PORT, for messages."""
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Placement:
    """One version of the map from shards to their owners.

    Attributes:
        version: A counter of the placements of one coordination service; it restarts if the service's data is deleted.
        elected: The id of the leader that made the placement, -1 for none.
        candidates: The candidates that can serve, ordered by id.
        owners: For each shard the id of its owner, -1 for nobody.
    """

    version: int
    elected: int
    candidates: tuple[Candidate, ...]
    owners: tuple[int, ...]

    def shards_of(self, candidate_id: int) -> frozenset[int]:
        """Return the shards that the placement assigns to one candidate."""
        return frozenset(shard for shard, owner in enumerate(self.owners) if owner == candidate_id)

    def candidate(self, candidate_id: int) -> Candidate | None:
        """Return the candidate with this id, if the placement names it."""
        return next((candidate for candidate in self.candidates if candidate.id == candidate_id), None)


def compute_placement(before: Placement | None, alive: Sequence[Candidate], elected: int, shards: int) -> Placement:
    """Compute the next placement: shard counts differ by at most one, and as few shards as possible move.

    Args:
        before: The current placement; it is returned itself if nothing has to change.
        alive: The candidates that can serve, without duplicate ids.
        elected: The id of the leader.
        shards: The number of shards.
    """
    candidates = tuple(sorted(alive, key=lambda candidate: candidate.id))
    standing = () if before is None else before.owners[:shards]
    held: dict[int, list[int]] = {candidate.id: [] for candidate in candidates}
    for shard, owner in enumerate(standing):
        if owner in held:
            held[owner].append(shard)
    owners = [NOBODY] * shards
    if held:
        share, over = divmod(shards, len(held))
        fullest = sorted(held, key=lambda owner: (-len(held[owner]), owner))
        room = {owner: share + (rank < over) for rank, owner in enumerate(fullest)}
        for owner, owned in held.items():
            for shard in owned[: room[owner]]:
                owners[shard] = owner
            room[owner] -= min(len(owned), room[owner])
        free = iter(owner for owner in sorted(room) for _ in range(room[owner]))
        owners = [next(free) if owner == NOBODY else owner for owner in owners]
    version = 1 if before is None else before.version + 1
    after = Placement(version, elected, candidates, tuple(owners))
    if before is not None and (before.elected, before.candidates, before.owners) == (elected, candidates, after.owners):
        return before
    return after


# -- Candidates and placements as JSON, in a group's metadata on Kafka or in a ZooKeeper node

PLACEMENT_MAX_BYTES = 512 * 1024
"""Half of ZooKeeper's frame limit; 1,000 candidates and 10,000 shards need a third of it."""


def candidate_fields(candidate: Candidate) -> dict[str, Any]:
    """Return a candidate as fields of a JSON object."""
    fields: dict[str, Any] = {
        "id": candidate.id,
        "incarnation": candidate.incarnation,
        "host": candidate.host,
        "port": candidate.port,
    }
    return fields if candidate.rack is None else {**fields, "rack": candidate.rack}


def read_candidate(fields: Mapping[str, Any]) -> Candidate:
    """Build a candidate from the JSON fields that `candidate_fields` returns.

    Raises:
        CorruptDataError: the fields are not a candidate's.
    """
    number, incarnation = fields.get("id"), fields.get("incarnation")
    host, port, rack = fields.get("host"), fields.get("port"), fields.get("rack")
    if not (
        _is_count(number, CANDIDATE_ID_MAX)
        and isinstance(incarnation, str)
        and isinstance(host, str)
        and _is_count(port, 65_535)
        and (rack is None or isinstance(rack, str))
    ):
        raise CorruptDataError(f"no candidate: {dict(fields)!r}"[:300])
    return Candidate(number, incarnation, host, port, rack)  # type: ignore[arg-type]  # looked at above


def placement_fields(placement: Placement) -> dict[str, Any]:
    """Return a placement as fields of a JSON object."""
    return {
        "version": placement.version,
        "elected": placement.elected,
        "candidates": [candidate_fields(candidate) for candidate in placement.candidates],
        "owners": list(placement.owners),
    }


def read_placement(fields: Mapping[str, Any]) -> Placement:
    """Build a placement from the JSON fields that `placement_fields` returns.

    Raises:
        CorruptDataError: the fields are not a placement's.
    """
    version, elected = fields.get("version"), fields.get("elected")
    candidates, owners = fields.get("candidates"), fields.get("owners")
    if not (
        isinstance(version, int)
        and isinstance(elected, int)
        and isinstance(candidates, list)
        and all(isinstance(candidate, dict) for candidate in candidates)
        and isinstance(owners, list)
        and all(isinstance(owner, int) and owner >= NOBODY for owner in owners)
    ):
        raise CorruptDataError(f"no map of shards: {dict(fields)!r}"[:300])
    return Placement(version, elected, tuple(read_candidate(candidate) for candidate in candidates), tuple(owners))


def to_bytes(fields: Mapping[str, Any]) -> bytes:
    """Encode a JSON object compactly, for a node or group message of limited size.

    Raises:
        CorruptDataError: it exceeds `PLACEMENT_MAX_BYTES`.
    """
    data = msgspec.json.encode(fields)
    if len(data) > PLACEMENT_MAX_BYTES:
        raise CorruptDataError(f"a map of {len(data)} bytes, {PLACEMENT_MAX_BYTES} are allowed")
    return data


def from_bytes(data: bytes) -> dict[str, Any]:
    """Decode a JSON object.

    Raises:
        CorruptDataError: the bytes are no JSON object.
    """
    try:
        fields = msgspec.json.decode(data)
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(f"no JSON: {bytes(data[:100])!r}") from error
    if not isinstance(fields, dict):
        raise CorruptDataError(f"no JSON object: {bytes(data[:100])!r}")
    return fields


def _is_count(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most
