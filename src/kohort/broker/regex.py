"""Regular expressions from clients: RE2 syntax, matched in linear time if RE2 is installed.

Without the package `google-re2` (the extra `re2`), Python's own engine replaces it. Both accept the same common
expressions, but a hostile expression can make Python's engine run for very long. Long expressions and nested
repetitions are therefore rejected.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from kohort.errors import ErrorCode, InvalidInputError

try:
    import re2
except ImportError:
    re2 = None

_ERRORS: tuple[type[Exception], ...] = (re.error,) if re2 is None else (re.error, re2.error)
LENGTH_MAX = 1_000
_NESTED = re.compile(r"[*+}]\s*\)\s*[*+{]")
_ONLY_PYTHON = re.compile(r"\(\?(=|!|<=|<!|P=)|\\[1-9]")


@lru_cache(maxsize=10_000)
def matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that checks whether a whole name matches.

    Raises:
        InvalidInputError: the expression is invalid (INVALID_REGULAR_EXPRESSION).
    """
    try:
        compiled: Any = re2.compile(pattern) if re2 is not None else _compile(pattern)
    except _ERRORS as error:
        raise InvalidInputError(
            f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {_reason(error)}.",
            ErrorCode.INVALID_REGULAR_EXPRESSION,
        ) from None
    return lambda name: compiled.fullmatch(name) is not None


def _reason(error: Exception) -> str:
    """Return the error text of the regular expression library; google-re2 returns bytes."""
    said = error.args[0] if error.args else ""
    return said.decode(errors="replace") if isinstance(said, bytes) else str(said)


def _compile(pattern: str) -> re.Pattern[str]:
    if len(pattern) > LENGTH_MAX:
        raise re.error(f"longer than {LENGTH_MAX} characters")
    if _ONLY_PYTHON.search(pattern):
        raise re.error("RE2 has no look-around and no back references")
    if _NESTED.search(pattern):
        raise re.error("nested repetitions need the package google-re2")
    return re.compile(pattern)
