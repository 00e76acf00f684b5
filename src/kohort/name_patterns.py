"""Regular expressions that clients choose, in RE2's syntax: checked, bounded, and matched in time linear in the name.

A pattern comes from the network, or from a journal or group description that another client filled. Python's own engine
never runs it: a hostile pattern such as `a*a*a*a*b` makes that engine hold the interpreter lock for hours. Names,
prefixes (`orders.*`) and alternatives of these need no engine. They have no limit except that of a string, and work
where google-re2 has no wheel. All other patterns go to RE2, which releases the interpreter lock while it matches.

| bound | of |
|---|---|
| `PATTERN_CHARS_MAX` | the text: RE2's compiler is quadratic in character classes (1,000 took 120 ms, 250 take 8 ms) |
| `PATTERN_MEMORY_BYTES` | program and states of a compiled pattern; `re2` keeps the last 128 of them: 64 MiB in all |
| `MATCH_CPU_S` | one pattern against all names: RE2 takes up to 10 ms for 249 characters once its states are full |
"""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from kohort.errors import ErrorCode, InvalidInputError

PATTERN_CHARS_MAX = 1_000
"""The longest pattern for RE2, in characters."""
PATTERN_MEMORY_BYTES = 512 << 10
"""RE2's `max_mem`: about 5,400 instructions. Larger programs are refused. Compiling one took 10 ms at most."""
MATCH_CPU_S = 1.0
"""Processor time of the matching thread for one pattern. 100,000 names of an ordinary pattern take 0.4 s."""
SLOW_PATTERNS_MAX = 1_000
"""The most patterns remembered for having exceeded `MATCH_CPU_S`, which are the most recent."""

_WORD = r"(?:[A-Za-z0-9_-]|\\[.-])*"
_PLAIN = re.compile(
    rf"\^?{_WORD}(?:\.\*)?\$?(?:\|\^?{_WORD}(?:\.\*)?\$?)*"
    rf"|\^?\((?:\?:)?({_WORD}(?:\.\*)?(?:\|{_WORD}(?:\.\*)?)*)\)(\.\*)?\$?"
)
"""A plain pattern: alternatives of names and prefixes. Groups: the alternatives in parentheses, and what follows them.

Each character can match in one way only, so that Python's engine takes linear time for any text.
"""

_slow: OrderedDict[str, None] = OrderedDict()
_slow_lock = threading.Lock()


def full_match_function(pattern: str) -> Callable[[str], bool]:
    """Return a function that checks whether a whole name matches.

    Raises:
        InvalidInputError: the pattern is invalid, too large, or was too slow before (INVALID_REGULAR_EXPRESSION).
    """
    plain = _PLAIN.fullmatch(pattern)
    if plain is not None:
        return _plain_matcher(pattern, plain)
    if len(pattern) > PATTERN_CHARS_MAX:
        raise _refused(pattern, f"longer than {PATTERN_CHARS_MAX} characters")
    if pattern in _slow:
        raise _refused(pattern, f"took longer than {MATCH_CPU_S:g} s to match")
    engine = load_re2()
    if engine is None:
        raise _refused(pattern, "without google-re2 only names, prefixes and alternatives of these are taken")
    try:
        fullmatch = engine.compile(pattern, bounded_options(engine)).fullmatch
    except UnicodeEncodeError:
        raise _refused(pattern, "not Unicode") from None
    except engine.error as error:
        raise _refused(pattern, _reason(error)) from None
    return lambda name: fullmatch(name) is not None


def matching_names(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the names that a pattern matches. Runs in a thread, because many names take long.

    Raises:
        InvalidInputError: the pattern is invalid, or too slow: see `full_match_function`.
    """
    matches = full_match_function(pattern)
    until = time.thread_time() + MATCH_CPU_S
    found = []
    for name in names:
        if matches(name):
            found.append(name)
        if time.thread_time() > until:
            with _slow_lock:
                _slow[pattern] = None
                if len(_slow) > SLOW_PATTERNS_MAX:
                    _slow.popitem(last=False)
            raise _refused(pattern, f"took longer than {MATCH_CPU_S:g} s to match")
    return found


def _plain_matcher(pattern: str, plain: re.Match[str]) -> Callable[[str], bool]:
    """Return the matcher of alternatives of names and prefixes."""
    grouped, rest = plain[1], plain[2] or ""
    words = pattern.split("|") if grouped is None else [word + rest for word in grouped.split("|")]
    stripped = [word.removeprefix("^").removesuffix("$").replace("\\", "") for word in words]
    names = frozenset(word for word in stripped if not word.endswith(".*"))
    # A group may repeat the suffix (`(a.*).*`), so all of them are removed.
    prefixes = tuple({re.sub(r"(\.\*)+$", "", word) for word in stripped if word.endswith(".*")})
    if not prefixes:
        return names.__contains__
    return lambda name: name in names or (name.startswith(prefixes) and _is_one_line(name, prefixes))


def _is_one_line(name: str, prefixes: tuple[str, ...]) -> bool:
    """Return whether the rest of a name after one of its prefixes has no line break, which `.` does not match."""
    return "\n" not in name or any(name.startswith(word) and "\n" not in name[len(word) :] for word in prefixes)


@cache
def load_re2() -> Any:
    """Return the module `re2`, imported at the first pattern that needs it (6 ms); None where it has no wheel."""
    try:
        import re2
    except ImportError:
        return None
    return re2


@cache
def bounded_options(engine: Any) -> Any:
    """Return RE2's options for a pattern of unknown origin."""
    options = engine.Options()
    options.max_mem = PATTERN_MEMORY_BYTES
    options.log_errors = False  # RE2 would write clients' patterns to standard error
    options.never_capture = True
    return options


def _refused(pattern: str, why: str) -> InvalidInputError:
    shown = pattern if len(pattern) <= PATTERN_CHARS_MAX else f"{pattern[:PATTERN_CHARS_MAX]}…"
    return InvalidInputError(
        f"SubscribedTopicRegex `{shown}` is not a valid regular expression: {why}.",
        ErrorCode.INVALID_REGULAR_EXPRESSION,
    )


def _reason(error: Exception) -> str:
    """Return the error text of RE2, which is bytes."""
    said = error.args[0] if error.args else ""
    return said.decode(errors="replace") if isinstance(said, bytes) else str(said)
