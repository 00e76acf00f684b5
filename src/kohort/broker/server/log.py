"""A log that nobody from outside can fill: most of its lines are there because some client did something.

A filter of the loggers, so that it holds for every line, also for those that are still to be written. Lines are of one
kind when they have the same text before its arguments are put in; those of group coordinators also need the same group.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import TypeAlias

LOGGERS = (
    "kohort.broker", "kohort.client", "kohort.cluster", "kohort.coordinator", "kohort.groups", "kohort.log",
    "kohort.transactions", "asyncio",
)  # fmt: skip
"""Whose lines are counted; the event loop's are faults in what it calls."""
KIND_BURST, KIND_PAUSE_S = 100, 5.0
"""Lines of one kind at once, and the time after which one more may follow."""
LEVEL_BURST, LEVEL_PAUSE_S = 500, 1.0
"""The same for all lines of one level: what matters less can't use up the room of what matters more."""
KINDS_MAX = 1_000
"""Kinds remembered: those seen last."""
LINE_CHARS_MAX = 1_000
"""Names that clients choose can have 32,767 bytes."""
NAMED_KINDS = 5
"""Kinds told apart when it is said what was left out."""

Kind: TypeAlias = tuple[str, str]

_LEFT_OUT = "left out of this log, because there were too many like them: %s"

log = logging.getLogger("kohort.broker")


class Allowance:
    """So many at once, then one after each pause."""

    __slots__ = ("_at", "_burst", "_left", "_pause_s")

    def __init__(self, burst: int, pause_s: float, now: float) -> None:
        self._burst, self._pause_s = burst, pause_s
        self._left, self._at = float(burst), now

    def has_room(self, now: float) -> bool:
        """Whether one more is allowed."""
        self._left = min(self._burst, self._left + (now - self._at) / self._pause_s)
        self._at = now
        return self._left >= 1

    def take(self) -> None:
        """It was written."""
        self._left -= 1


class LogLines(logging.Filter):
    """Bounds how many lines are written and how long they are."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: OrderedDict[Kind, Allowance] = OrderedDict()
        self._levels: dict[int, Allowance] = {}
        self._left_out: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written."""
        if record.msg is _LEFT_OUT:
            return True
        now = self._clock()
        kind = (str(record.msg), getattr(record, "group_id", ""))
        of_kind = self._kinds.pop(kind, None) or Allowance(KIND_BURST, KIND_PAUSE_S, now)
        self._kinds[kind] = of_kind
        if len(self._kinds) > KINDS_MAX:
            self._kinds.popitem(last=False)
        of_level = self._levels.setdefault(record.levelno, Allowance(LEVEL_BURST, LEVEL_PAUSE_S, now))
        if not (of_kind.has_room(now) and of_level.has_room(now)):
            self._left_out[kind[0] if len(self._left_out) < KINDS_MAX else ""] += 1
            return False
        of_kind.take()
        of_level.take()
        text = record.getMessage()
        if len(text) > LINE_CHARS_MAX or not text.isprintable():
            record.msg, record.args = _tidy(text), ()
        return True

    def say_what_is_missing(self) -> None:
        """Say how many lines of which kinds were left out since the last time."""
        left_out, self._left_out = self._left_out, Counter()
        if not left_out:
            return
        named = left_out.most_common(NAMED_KINDS)
        parts = [f"{count} of {kind[:100]!r}" for kind, count in named]
        others = left_out.total() - sum(count for _, count in named)
        if others:
            parts.append(f"{others} others")
        log.warning(_LEFT_OUT, ", ".join(parts))

    def begin(self) -> None:
        """Hold for the lines of `LOGGERS` from now on."""
        for name in LOGGERS:
            logging.getLogger(name).addFilter(self)

    def end(self) -> None:
        """Say what is missing, and hold no longer."""
        self.say_what_is_missing()
        for name in LOGGERS:
            logging.getLogger(name).removeFilter(self)


def _tidy(text: str) -> str:
    """One line of bearable length: a name with a line break in it must not look like a line of ours."""
    more = len(text) - LINE_CHARS_MAX
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:LINE_CHARS_MAX])
    return f"{shown} … ({more} characters more)" if more > 0 else shown
