"""The machine under a benchmark: what it is, and how much processor time other processes took meanwhile."""

from __future__ import annotations

import os
import platform
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

TICKS_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
QUIET_CORES = 0.15
"""The most processor time a second that others may take while a row counts as measured on a quiet machine."""
_PROC = Path("/proc")
_BUSY_FIELDS = (0, 1, 2, 7)
"""User, nice, system and stolen time of /proc/stat. Interrupts are left out: a benchmark's own traffic has many."""


def facts() -> dict[str, str | int]:
    """Return what the figures depend on: processor, cores, memory, system, Python."""
    return {
        "processor": _first("cpuinfo", "model name") or platform.machine(),
        "cores": os.cpu_count() or 1,
        "memory": f"{int((_first('meminfo', 'MemTotal') or '0').split()[0]) / 2**20:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _first(file: str, key: str) -> str:
    """Return the first value of a key in a file of /proc; "" where there is none."""
    with suppress(OSError):
        for line in (_PROC / file).read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == key:
                return value.strip()
    return ""


@dataclass(frozen=True, slots=True)
class Clock:
    """The processor seconds so far, of the whole machine and of this process with all below it."""

    wall_s: float
    machine_s: float
    own_s: float

    def others_cores(self, before: Clock) -> float:
        """Return how many cores other processes kept busy since `before`, which may be 0 through rounding."""
        wall_s = self.wall_s - before.wall_s
        others_s = (self.machine_s - before.machine_s) - (self.own_s - before.own_s)
        return max(0.0, others_s / wall_s) if wall_s > 0 else 0.0


def read_clock() -> Clock | None:
    """Read the processor times; None on systems without Linux's /proc."""
    try:
        fields = (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:]
        machine_s = sum(int(fields[index]) for index in _BUSY_FIELDS) / TICKS_S
        return Clock(time.monotonic(), machine_s, _own_s())
    except (OSError, IndexError, ValueError):
        return None


def _own_s() -> float:
    """Sum user and system time of this process and of its descendants, with those that ended and were waited for."""
    children: dict[int, list[int]] = {}
    spent: dict[int, int] = {}
    for stat in _PROC.glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            fields = stat.read_text().rpartition(")")[2].split()
            number = int(stat.parent.name)
            children.setdefault(int(fields[1]), []).append(number)
            spent[number] = sum(int(field) for field in fields[11:15])
    total, below = 0, [os.getpid()]
    while below:
        number = below.pop()
        total += spent.get(number, 0)
        below += children.get(number, [])
    return total / TICKS_S
