"""Values with a schema id before them, shown as JSON to people: in `kohort consume` and the dashboard."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from kohort.errors import CorruptDataError
from kohort.schema_registry.registry import SchemaRegistry

SHOWN_BYTES_MAX = 32 << 20
"""The most characters of text in a value that is shown. A schema has the names of fields and enums once, the JSON each
time. An enum's name of 20,000 characters makes 400 MB of a value of 20 KB.
"""


def value_as_json(registry: SchemaRegistry, data: bytes) -> bytes:
    """Return a value as JSON in UTF-8.

    Times are in ISO 8601, bytes in base 64, decimals, UUIDs, NaN and infinite numbers are text.

    Raises:
        CorruptDataError: the id is missing or unknown, the schema can't be used, or the bytes are not of it; or the
            JSON would be too large.
        InvalidInputError: a library that reads such values is not installed.
        RetriableError: the registry can't be reached, or has a fault.
    """
    try:
        return msgspec.json.encode(_JsonParts().part(registry.deserialize(data)))
    except (TypeError, ValueError, RecursionError) as error:
        raise CorruptDataError(f"the value can't be shown as JSON: {type(error).__name__}: {error}") from None


class _JsonParts:
    """A converter of a value to types that JSON has, which bounds the total length of its text."""

    def __init__(self) -> None:
        self._left = SHOWN_BYTES_MAX

    def part(self, found: Any) -> Any:
        """Return a part of the value. NaN and infinite numbers are text: msgspec would write null.

        Raises:
            ValueError: there is too much text.
        """
        if found is None or isinstance(found, int):
            return found
        if isinstance(found, dict):
            return {self._map_key(name): self.part(item) for name, item in found.items()}
        if isinstance(found, list | tuple):
            return [self.part(item) for item in found]
        if isinstance(found, float) and not math.isfinite(found):
            return str(found)
        if isinstance(found, str | bytes):
            self._spend(len(found))
        return found

    def _map_key(self, name: Any) -> Any:
        """Return a map's key as a key for msgspec, which writes no boolean keys, as maps of Protobuf may have."""
        if isinstance(name, str):
            self._spend(len(name))
        elif isinstance(name, bool):
            return "true" if name else "false"
        return name

    def _spend(self, characters: int) -> None:
        self._left -= characters
        if self._left < 0:
            raise ValueError(f"it has more than {SHOWN_BYTES_MAX >> 20} MiB of text")
