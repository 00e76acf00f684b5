"""Quotas of users, client ids and IP addresses, in the data folder; `throttling` enforces them. Source: KIP-546."""

from __future__ import annotations

import ipaddress
import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import msgspec

from kohort.broker.config.json_file import read_json, write_json
from kohort.errors import ErrorCode, InvalidInputError

log = logging.getLogger("kohort.broker")

FILE = "quotas.json"
Entity: TypeAlias = tuple[tuple[str, str | None], ...]
"""Entity types with names, sorted by type. The name None is the default of the type."""
USER, CLIENT, IP = "user", "client-id", "ip"
_WHOLE = {"producer_byte_rate", "consumer_byte_rate"}
_OF_USERS = {*_WHOLE, "request_percentage", "controller_mutation_rate"}
_OF_IPS = {"connection_creation_rate"}
_BYTE_RATE_MAX, _CONNECTION_RATE_MAX = 2.0**63, 2.0**31 - 1
"""The largest whole quotas: Kafka keeps them in 64 and 32 bits."""


def quota_entity_key(*parts: tuple[str, str | None]) -> Entity:
    """Return the quota entity of these (type, name) pairs: sorted by type."""
    return tuple(sorted(parts, key=lambda part: part[0]))


def quota_entity_of(names: list[tuple[str, str | None]]) -> Entity:
    """Return the quota entity that a request names, after checking its types and names.

    Raises:
        InvalidInputError: there is no such entity.
    """
    kinds = [kind for kind, _ in names]
    if len(set(kinds)) < len(kinds) or not kinds:
        raise InvalidInputError("a quota is for a user, a client-id, both, or an ip", ErrorCode.INVALID_REQUEST)
    for kind, name in names:
        if kind not in (USER, CLIENT, IP):
            raise InvalidInputError(f"there are no quotas for a {kind!r}", ErrorCode.INVALID_REQUEST)
        if name == "":
            raise InvalidInputError(f"an empty {kind}", ErrorCode.INVALID_REQUEST)
    if IP in kinds and len(kinds) > 1:
        raise InvalidInputError("an ip has quotas by itself only", ErrorCode.INVALID_REQUEST)
    return quota_entity_key(*names)


def check_quota(entity: Entity, key: str, value: float) -> None:
    """Check that a quota entity, such as a user or an IP address, can have this quota with this value.

    Raises:
        InvalidInputError: it can't.
    """
    address = dict(entity).get(IP)
    if address is not None:
        try:
            ipaddress.ip_address(address)
        except ValueError:
            raise InvalidInputError(f"{address} is no address", ErrorCode.INVALID_REQUEST) from None
    if key not in (_OF_IPS if entity[0][0] == IP else _OF_USERS):
        raise InvalidInputError(f"there is no quota {key} here", ErrorCode.INVALID_REQUEST)
    if not _is_possible(key, value):
        raise InvalidInputError(f"{key} can't be {value}", ErrorCode.INVALID_REQUEST)


def _is_possible(key: str, value: float) -> bool:
    """Return whether a quota can have this value: finite, above 0, and an integer in range where Kafka stores one."""
    if not math.isfinite(value) or value <= 0:
        return False
    if key not in _WHOLE and key not in _OF_IPS:
        return True
    return value == int(value) and value <= (_BYTE_RATE_MAX if key in _WHOLE else _CONNECTION_RATE_MAX)


class StoredQuotas:
    """The client quotas by entity (user, client id, IP), as requests have set them.

    Attributes:
        listeners: callbacks after a change.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self.listeners: list[Callable[[], None]] = []
        self._by_entity = self._stored()

    def _stored(self) -> dict[Entity, dict[str, float]]:
        """Return the quotas in the file, without infinite ones, which earlier versions stored as null."""
        found: dict[Entity, dict[str, float]] = {}
        for key, values in read_json(self._path).items():
            entity = tuple((kind, name) for kind, name in msgspec.json.decode(key))
            for quota in [name for name, value in values.items() if value is None]:
                log.warning("%s: the quota %s of %s has no value and is ignored", self._path, quota, key)
                del values[quota]
            if values:
                found[entity] = values
        return found

    def all_quotas(self) -> Mapping[Entity, Mapping[str, float]]:
        """Return all entities that have quotas of their own, with these quotas."""
        return self._by_entity

    def set_quotas(self, entity: Entity, values: Mapping[str, float | None]) -> None:
        """Set quotas, or remove those that are None; durable when this returns."""
        after = dict(self._by_entity)
        kept = {**after.pop(entity, {}), **values}
        left = {key: value for key, value in kept.items() if value is not None}
        if left:
            after[entity] = left
        write_json(self._path, {msgspec.json.encode(names).decode(): quotas for names, quotas in after.items()})
        self._by_entity = after
        for listener in self.listeners:
            listener()
