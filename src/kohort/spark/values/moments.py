"""Dates and times in text, as Spark's JSON reader takes them, for values that Arrow's own parser refuses."""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

_DATE = re.compile(r"\s*(\d{4})(?:-(\d{1,2})(?:-(\d{1,2})(?:[T ].*)?)?)?\s*", re.ASCII | re.DOTALL)
_TIME = re.compile(
    r"\s*(\d{4})(?:-(\d{1,2})(?:-(\d{1,2})"
    r"(?:[T ](\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?)?)?\s*(\S+)?)?)?)?\s*",
    re.ASCII,
)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2})(?::?(\d{2}))?)?", re.ASCII)
_DAYS_IN_MONTH = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_MICROS_PER_DAY = 86_400_000_000


def parse_date_days(text: str) -> int:
    """Return the days since 1970-01-01 of yyyy, yyyy-mm or yyyy-mm-dd; text after a T or blank is ignored.

    Raises:
        ValueError: the text is not a date of the years 0 to 9999.
    """
    found = _DATE.fullmatch(text)
    if found is None:
        raise ValueError(f"{_short(text)} is no date like 2024-02-29")
    return _days(int(found[1]), int(found[2] or 1), int(found[3] or 1), text)


def parse_time_us(text: str, zone: tzinfo | None) -> int:
    """Return the microseconds since 1970-01-01T00:00:00 UTC of a date with an optional time; smaller parts are cut off.

    Args:
        text: the text with an offset, a region of the time zone database, or neither.
        zone: the zone of texts that name none; None: the text is local, and must have no zone.

    Raises:
        ValueError: the text is not a time of the years 0 to 9999.
    """
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(f"{_short(text)} is no time like 2024-02-29T12:30:00Z")
    hour, minute, second = (int(part or 0) for part in found.group(4, 5, 6))
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError(f"{_short(text)} is no time of a day")
    days = _days(int(found[1]), int(found[2] or 1), int(found[3] or 1), text)
    micros = int(((found[7] or "") + "000000")[:6])
    local = days * _MICROS_PER_DAY + ((hour * 60 + minute) * 60 + second) * 1_000_000 + micros
    if found[8] is None:
        return local if zone is None else local - _offset_at(zone, local, text)
    if zone is None:
        raise ValueError(f"{_short(text)} names a zone, and a TIMESTAMP_NTZ has none")
    return local - _offset(found[8], local, text)


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…")


def _days(year: int, month: int, day: int, text: str) -> int:
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not 1 <= month <= 12 or not 1 <= day <= _DAYS_IN_MONTH[month - 1] + (leap and month == 2):
        raise ValueError(f"{_short(text)} is no day of the calendar")
    # Years begin in March, so that the leap day is the last; 719468 days lie between 0000-03-01 and 1970-01-01.
    years = year - (month <= 2)
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return years * 365 + years // 4 - years // 100 + years // 400 + day_of_year - 719_468


def _offset(name: str, local: int, text: str) -> int:
    if name in ("Z", "UTC", "GMT", "UT"):
        return 0
    found = _OFFSET.fullmatch(name)
    if found is None:
        try:
            return _offset_at(iana_zone(name), local, text)
        except ValueError:
            raise ValueError(f"{_short(text)} names no zone that is known") from None
    hours, minutes, seconds = (int(part or 0) for part in found.group(2, 3, 4))
    if hours > 23 or minutes > 59 or seconds > 59:
        raise ValueError(f"{_short(text)} has an offset of a day or more")
    size = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000
    return -size if found[1] == "-" else size


@lru_cache(maxsize=128)
def iana_zone(name: str) -> tzinfo:
    """Return a zone of the time zone database.

    Raises:
        ValueError: there is no zone of this name.
    """
    if name.upper() in ("UTC", "GMT", "Z"):
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"no time zone {name!r}") from None


def _offset_at(zone: tzinfo, local: int, text: str) -> int:
    """Return a zone's UTC offset in µs at a local time.

    For a local time that comes twice it is the earlier offset; in a gap, the one before the gap. Java does the same.
    """
    if zone is UTC:
        return 0
    if not -62_135_596_800_000_000 <= local < 253_402_300_800_000_000:
        raise ValueError(f"{_short(text)} is outside of the years 1 to 9999, in which zones have rules")
    at = datetime.fromtimestamp(local // 1_000_000, UTC).replace(tzinfo=zone, fold=0)
    offset = at.utcoffset()
    if offset is None:
        raise ValueError(f"{_short(text)} names a zone without an offset")
    return (offset.days * 86_400 + offset.seconds) * 1_000_000
