"""Candidates and maps as JSON, in a group's bytes on Kafka or in a node of ZooKeeper."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kohort.cluster.doors.placement import CANDIDATE_ID_MAX, NOBODY, Candidate, Placement
from kohort.errors import CorruptDataError

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
