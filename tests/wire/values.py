"""Varied values for any message of any version, from a seed."""

from __future__ import annotations

import random
import uuid
from typing import Any

from kohort.errors import ErrorCode
from kohort.wire.schema import Field, Struct

FIRST_OF_KAFKA_4_4 = 134
"""Error codes from this one on are newer than kio 0.6, which tells them apart in an enumeration."""
_RANGES = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
_TEXTS = ("", "a", "orders", "Ω≈ç√ 日本語 🐍", "x" * 126, "y" * 127, "z" * 128, "w" * 1023, "v" * 1500)
_SIZES = (0, 0, 1, 1, 2, 3, 127, 130)


class Values:
    """Makes instances.

    `style` is "defaults", "nulls", "small", "large", or "plain": long arrays, hardly any text in them.
    """

    def __init__(self, seed: str, version: int, style: str) -> None:
        self.random = random.Random(seed)
        self.version = version
        self.style = style
        self.depth = 0

    def instance(self, cls: type[Struct]) -> Any:
        """An instance that the version can carry."""
        if self.style == "defaults":
            return cls()
        self.depth += 1
        values = {
            field.name: self.value(field)
            for field in cls.FIELDS
            if field.is_in_version(self.version) and not (field.tag is not None and self.random.random() < 0.3)
        }
        self.depth -= 1
        return cls(**values)

    def value(self, field: Field) -> Any:
        """A value for one field."""
        pick = self.random
        if field.null_since <= self.version and pick.random() < (0.8 if self.style == "nulls" else 0.25):
            return None
        if field.name.endswith("error_code"):
            return int(pick.choice([code for code in ErrorCode if code < FIRST_OF_KAFKA_4_4]))
        if field.kind in _RANGES:
            return self.number(field)
        if field.kind == "uint16":
            return pick.choice((0, 1, 9092, 65535))
        if field.kind == "bool":
            return pick.random() < 0.5
        if field.kind == "float64":
            return pick.choice((0.0, 1.5, -2.25, 1e300))
        if field.kind == "string":
            if self.style == "plain":
                return "" if pick.random() < 0.99 else "seldom"
            return pick.choice(_TEXTS if self.style == "large" else _TEXTS[:4])
        if field.kind in ("bytes", "records"):
            return pick.randbytes(pick.choice((0, 1, 20, 127, 128, 5000) if self.style == "large" else (0, 1, 20)))
        if field.kind == "uuid":
            return pick.choice((uuid.UUID(int=0), uuid.UUID(int=pick.getrandbits(128))))
        if field.kind == "array":
            assert field.element is not None
            if self.style == "plain":
                size = pick.choice((7, 8, 9, 40) if self.depth < 3 else (1, 8))
                return [self.value(field.element) for _ in range(size)]
            size = pick.choice(_SIZES if self.style == "large" and self.depth < 2 else _SIZES[:6])
            return [self.value(field.element) for _ in range(size)]
        assert field.struct is not None
        return self.instance(field.struct)

    def number(self, field: Field) -> int:
        """An integer; times are kept to what every implementation takes for a time."""
        bits = _RANGES[field.kind]
        if field.name.endswith(("_ms", "timestamp")):
            return self.random.choice((0, 1, 1_000, min(1_700_000_000_000, (1 << bits) - 1)))
        low, high = -(1 << bits), (1 << bits) - 1
        return self.random.choice((0, 1, -1, 7, low, high, self.random.randint(low, high)))
