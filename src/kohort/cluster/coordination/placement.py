"""PURE. Who serves which shard: one map of all shards, even, and changed by little.

A map says where groups are looked for. It guards nothing: two coordinators that both believe that a shard is theirs are
told apart by the journal, whose broker refuses the appends of the one that was overtaken.

Source: spec 4.2, 4.11.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kohort.errors import CorruptDataError

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


# -- Candidates and maps as JSON, in a group's bytes on Kafka or in a node of ZooKeeper

PLACEMENT_MAX_BYTES = 512 * 1024
"""Half of what a frame of ZooKeeper holds; 1,000 candidates and 10,000 shards need a third of it."""


def candidate_fields(candidate: Candidate) -> dict[str, Any]:
    """A candidate as fields of an object."""
    fields: dict[str, Any] = {
        "id": candidate.id,
        "incarnation": candidate.incarnation,
        "host": candidate.host,
        "port": candidate.port,
    }
    return fields if candidate.rack is None else {**fields, "rack": candidate.rack}


def read_candidate(fields: Mapping[str, Any]) -> Candidate:
    """The candidate of such fields.

    Raises:
        CorruptDataError: they are not a candidate's.
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
    """A map as fields of an object."""
    return {
        "version": placement.version,
        "elected": placement.elected,
        "candidates": [candidate_fields(one) for one in placement.candidates],
        "owners": list(placement.owners),
    }


def read_placement(fields: Mapping[str, Any]) -> Placement:
    """The map of such fields.

    Raises:
        CorruptDataError: they are not a map's.
    """
    version, elected = fields.get("version"), fields.get("elected")
    candidates, owners = fields.get("candidates"), fields.get("owners")
    if not (
        isinstance(version, int)
        and isinstance(elected, int)
        and isinstance(candidates, list)
        and all(isinstance(one, dict) for one in candidates)
        and isinstance(owners, list)
        and all(isinstance(owner, int) and owner >= NOBODY for owner in owners)
    ):
        raise CorruptDataError(f"no map of shards: {dict(fields)!r}"[:300])
    return Placement(version, elected, tuple(read_candidate(one) for one in candidates), tuple(owners))


def to_bytes(fields: Mapping[str, Any]) -> bytes:
    """An object as JSON, short.

    Raises:
        CorruptDataError: it is too large to be told.
    """
    data = json.dumps(fields, separators=(",", ":")).encode()
    if len(data) > PLACEMENT_MAX_BYTES:
        raise CorruptDataError(f"a map of {len(data)} bytes, {PLACEMENT_MAX_BYTES} are allowed")
    return data


def from_bytes(data: bytes) -> dict[str, Any]:
    """The object in these bytes.

    Raises:
        CorruptDataError: they are no JSON object.
    """
    try:
        fields = json.loads(data)
    except ValueError as error:
        raise CorruptDataError(f"no JSON: {bytes(data[:100])!r}") from error
    if not isinstance(fields, dict):
        raise CorruptDataError(f"no JSON object: {bytes(data[:100])!r}")
    return fields


def _is_count(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most
