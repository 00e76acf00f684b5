"""Values behind a schema's id as JSON, for people who look at records: `kohort consume`, the dashboard."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from kohort.errors import CorruptDataError
from kohort.schema_registry.registry import SchemaRegistry


def shown_json(registry: SchemaRegistry, data: bytes) -> bytes:
    """Return a value as JSON in UTF-8.

    Times are in ISO 8601, bytes in base 64, decimals, UUIDs, NaN and infinite numbers are text.

    Raises:
        CorruptDataError: the id is missing or unknown, the schema can't be used, or the bytes are not of it.
        InvalidInputError: a library that reads such values is not installed.
        RetriableError: the registry can't be reached, or has a fault.
    """
    try:
        return msgspec.json.encode(_with_finite_numbers(msgspec.to_builtins(registry.deserialize(data), str_keys=True)))
    except (TypeError, ValueError, RecursionError) as error:
        raise CorruptDataError(f"the value can't be shown as JSON: {type(error).__name__}: {error}") from None


def _with_finite_numbers(found: Any) -> Any:
    """Return a value in which NaN and infinite numbers are text: JSON has none, and msgspec would write null."""
    if isinstance(found, dict):
        return {name: _with_finite_numbers(part) for name, part in found.items()}
    if isinstance(found, list):
        return [_with_finite_numbers(part) for part in found]
    if isinstance(found, float) and not math.isfinite(found):
        return str(found)
    return found
