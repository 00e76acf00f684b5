"""Log throttling: a failure that lasts, or a client that misbehaves, must not fill the log.

| throttle | of | limit |
|---|---|---|
| `FailureThrottle` | failures in the background, by kind | again after 10 s, then twice as long, at most 10 min |
| `IntervalThrottle` | what others do again and again, by kind | once in an interval, with the number since |
| `LogThrottle` | every line of a broker's process, because clients cause most of them | a burst, then one each 5 s |

`LogThrottle` is a filter of the loggers, so that it covers every line. Lines are of one kind if they have the same
format string. Lines of group coordinators also need the same group.

`log_to_stderr` sets up the log of every server command. Names of clients can't break its lines.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

FIRST_PAUSE_MS = 10_000
LONGEST_PAUSE_MS = 600_000
FAILURE_KINDS_MAX = 1_000
"""Limit on the kinds of failures remembered: more addresses and groups than one client deals with."""


@dataclass(slots=True)
class _Throttled:
    next_ms: float
    pause_ms: float = FIRST_PAUSE_MS


class FailureThrottle:
    """A throttle for log lines about failures in the background, by kind of failure.

    The same kind is logged again after `FIRST_PAUSE_MS`, then after twice as long each time, at most every
    `LONGEST_PAUSE_MS`.
    """

    def __init__(self, clock_ms: Callable[[], float]) -> None:
        """Create a throttle; `clock_ms` returns milliseconds of a monotonic clock."""
        self._clock_ms = clock_ms
        self._kinds: dict[object, _Throttled] = {}

    def should_log(self, kind: object) -> bool:
        """Return whether a failure of this kind is due to be logged; if so, it counts as logged."""
        now_ms = self._clock_ms()
        state = self._kinds.get(kind)
        if state is None:
            while len(self._kinds) >= FAILURE_KINDS_MAX:
                del self._kinds[next(iter(self._kinds))]
            self._kinds[kind] = _Throttled(now_ms + FIRST_PAUSE_MS)
            return True
        if now_ms < state.next_ms:
            return False
        state.pause_ms = min(state.pause_ms * 2, LONGEST_PAUSE_MS)
        state.next_ms = now_ms + state.pause_ms
        return True

    def end_failure(self, kind: object) -> bool:
        """End a kind of failure, so that the next one is logged at once; return whether one had been logged."""
        return self._kinds.pop(kind, None) is not None


class IntervalThrottle:
    """A throttle that allows one log line an interval for each kind of event.

    The line says how many events came since the last one.
    """

    def __init__(
        self, interval_s: float, clock_s: Callable[[], float] = time.monotonic, kinds_max: int = FAILURE_KINDS_MAX
    ) -> None:
        """Create a throttle that remembers the `kinds_max` kinds of the latest lines."""
        self._interval_s, self._clock_s, self._kinds_max = interval_s, clock_s, kinds_max
        self._kinds: OrderedDict[object, tuple[float, int]] = OrderedDict()  # next line at, and the number since

    def count_event(self, kind: object = None, number: int = 1) -> int:
        """Count events; return the number since the last line if the next one is due, otherwise 0."""
        now_s = self._clock_s()
        next_s, since = self._kinds.pop(kind, (now_s, 0))
        if now_s < next_s:
            self._kinds[kind] = next_s, since + number
            return 0
        self._kinds[kind] = now_s + self._interval_s, 0
        if len(self._kinds) > self._kinds_max:
            self._kinds.popitem(last=False)
        return since + number

    def forget(self, kind: object = None) -> None:
        """Make the next event of a kind due at once."""
        self._kinds.pop(kind, None)


LOGGERS = (
    "kohort.broker", "kohort.client", "kohort.cluster", "kohort.coordinator", "kohort.groups", "kohort.log",
    "kohort.transactions", "asyncio",
)  # fmt: skip
"""Loggers whose lines are limited. Those of the event loop are exceptions in its callbacks."""
KIND_BURST, KIND_PAUSE_S = 100, 5.0
"""Lines of one kind in a burst, and the time after which one more is allowed."""
LEVEL_BURST, LEVEL_PAUSE_S = 500, 1.0
"""One limit for all lines of a level, so that unimportant lines can't crowd out important ones."""
KINDS_MAX = 1_000
"""The most kinds remembered, which are the most recent."""
LINE_CHARS_MAX = 1_000
"""The longest line. Clients choose names of up to 32,767 bytes."""
NAMED_KINDS = 5
"""Kinds listed individually in the report of suppressed lines."""

Kind: TypeAlias = tuple[str, str]

_LEFT_OUT = "left out of this log, because there were too many like them: %s"

log = logging.getLogger("kohort.broker")


class LogAllowance:
    """A token bucket: a burst, then one line per pause."""

    __slots__ = ("_at", "_burst", "_left", "_pause_s")

    def __init__(self, burst: int, pause_s: float, now: float) -> None:
        self._burst, self._pause_s = burst, pause_s
        self._left, self._at = float(burst), now

    def has_room(self, now: float) -> bool:
        """Return whether another line may be written at this time."""
        self._left = min(self._burst, self._left + (now - self._at) / self._pause_s)
        self._at = now
        return self._left >= 1

    def count_line(self) -> None:
        """Count a written line against the allowance."""
        self._left -= 1


class LogThrottle(logging.Filter):
    """A logging filter that limits the number and length of lines."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: OrderedDict[Kind, LogAllowance] = OrderedDict()
        self._levels: dict[int, LogAllowance] = {}
        self._left_out: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a log line is written, or suppressed by the throttle."""
        if record.msg is _LEFT_OUT:
            return True
        now = self._clock()
        kind = (str(record.msg), getattr(record, "group_id", ""))
        of_kind = self._kinds.pop(kind, None) or LogAllowance(KIND_BURST, KIND_PAUSE_S, now)
        self._kinds[kind] = of_kind
        if len(self._kinds) > KINDS_MAX:
            self._kinds.popitem(last=False)
        of_level = self._levels.setdefault(record.levelno, LogAllowance(LEVEL_BURST, LEVEL_PAUSE_S, now))
        if not (of_kind.has_room(now) and of_level.has_room(now)):
            self._left_out[kind[0] if len(self._left_out) < KINDS_MAX else ""] += 1
            return False
        of_kind.count_line()
        of_level.count_line()
        text = record.getMessage()
        if len(text) > LINE_CHARS_MAX or not text.isprintable():
            record.msg, record.args = _tidy(text), ()
        return True

    def report_suppressed(self) -> None:
        """Log how many lines of which kinds were suppressed since the last report."""
        left_out, self._left_out = self._left_out, Counter()
        if not left_out:
            return
        named = left_out.most_common(NAMED_KINDS)
        parts = [f"{count} of {kind[:100]!r}" for kind, count in named]
        others = left_out.total() - sum(count for _, count in named)
        if others:
            parts.append(f"{others} others")
        log.warning(_LEFT_OUT, ", ".join(parts))

    def install(self) -> None:
        """Install the filter on `LOGGERS`."""
        for name in LOGGERS:
            logging.getLogger(name).addFilter(self)

    def uninstall(self) -> None:
        """Report suppressed lines, and remove the filter."""
        self.report_suppressed()
        for name in LOGGERS:
            logging.getLogger(name).removeFilter(self)


class PrintableFormatter(logging.Formatter):
    """A log format with escaped control characters: no client's name can break a line or control a terminal.

    Args:
        text: the form of a line.
        advice: returns what a line's reader can do in this program, by logger and message; "": nothing more.
    """

    def __init__(self, text: str, advice: Callable[[str, str], str] = lambda logger, message: "") -> None:
        super().__init__(text)
        self._advice = advice

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's own name
        """Return a traceback, whose last line may have a client's text: line breaks and tabs alone stay."""
        return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in super().formatException(ei))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """Return the line without what follows it, such as a traceback."""
        if len(record.message) > LINE_CHARS_MAX or not record.message.isprintable():
            record.message = _tidy(record.message)
        if advice := self._advice(record.name, record.message):
            record.message += f" ({advice})"
        return super().formatMessage(record)


def log_to_stderr(
    level: int | str = logging.INFO, advice: Callable[[str, str], str] = lambda logger, message: ""
) -> None:
    """Configure logging of a server command to standard error; a later call changes nothing.

    Args:
        level: the lowest level that is written.
        advice: as for `PrintableFormatter`.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PrintableFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s", advice))
    logging.basicConfig(level=level, handlers=[handler])


def _tidy(text: str) -> str:
    """Escape line breaks and shorten the text: a name with a line break must not look like a log line of the broker."""
    more = len(text) - LINE_CHARS_MAX
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:LINE_CHARS_MAX])
    return f"{shown} … ({more} characters more)" if more > 0 else shown
