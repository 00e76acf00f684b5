"""Times as people write them."""

from __future__ import annotations

from kohort.errors import InvalidInputError

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration_ms(name: str, text: str) -> int:
    """Milliseconds from a time with its unit, as `15m`, `200ms`, `1h`; a plain number is milliseconds.

    Raises:
        InvalidInputError: it is not that.
    """
    word = text.strip().lower()
    number = word.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = word[len(number) :].strip() or "ms"
    try:
        return int(float(number) * _UNITS_MS[unit])
    except (KeyError, ValueError):
        raise InvalidInputError(f"{name} must be a time like 15m, 30s or 200ms, not {text!r}") from None
