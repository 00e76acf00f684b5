"""Which process a client is, in words that others on the same machine can check, and whether it has ended.

A process is named by the machine's boot, its PID namespace, its PID and when it started; no two are ever named alike.
Only who shares that boot and that namespace can say anything of it, and says that it has ended only where the kernel is
sure: no such PID, another process that has it now, or a zombie without a living thread. Linux; elsewhere nothing has a
name.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from socket import socket


# -- The lease: one number of ms that the broker tells kohort's clients, and how both sides divide it. Pure
#
# A member may live on behind a broken connection, and is evicted long before its session ends (`groups.liveness.lost`).
# So it must have stopped by then, and both know the lease. The broker tells it when they connect, and to no one else:
# against other brokers nothing changes.
#
# - The client's half (`client.group.lease`): it owns what it was assigned until a lease has passed since it **sent**
#   the last request that was answered. Then it hands nothing out; positions and partitions stay as they are. The next
#   answer makes it go on, or tells it that it was evicted.
# - The coordinator's half: a member whose connection ended is evicted no sooner than a lease after it **received** the
#   last request. Whatever comes later is a sign of life, and the connection's end does not count any more.
#
# A request is sent before it is received, and two clocks that run at one rate measure the same lease, so the client's
# half ends first. Clocks do not run at quite one rate: a quartz is off by up to 0.01 %, and a clock that is being
# corrected runs up to 0.05 % fast or slow (what Linux allows itself), so two differ by about 0.1 % at worst.
# `CLOCK_MARGIN` is twenty times that, which also covers that clocks are read in whole ms. A clock that stands still, of
# a virtual machine that is frozen, is beyond any margin: what such a member was handing out is fenced when it commits,
# not before. Sleep of the whole machine is counted (`Runtime.elapsed_ms`). What was handed out before the lease ended
# is in the application's hands.

CLOCK_MARGIN = 0.02


def owned_ms(lease_ms: float) -> float:
    """How long after the last answered request was sent a member owns what it was assigned, by its own clock."""
    return lease_ms * (1 - CLOCK_MARGIN)


def beat_ms(lease_ms: int) -> int:
    """At which interval a client sends heartbeats, unless told to more often: a second one can renew the lease too."""
    return lease_ms * 2 // 5


def answer_ms(lease_ms: int) -> int:
    """After which time a heartbeat without an answer has failed: a new connection may do better in time."""
    return lease_ms // 2


def hold_max_ms(lease_ms: int) -> int:
    """How long the answer to a heartbeat may be held back.

    Of two held answers the second comes up to twice as long after the first one's request was sent: with three eighths
    a quarter of the lease is left for the way there and back.
    """
    return lease_ms * 3 // 8


NAME_MAX_LENGTH = 120
ENDING_LOOKS_S = (0.001, 0.005, 0.02, 0.1)
"""Pauses between looks at a process after its connection ended: it closes its sockets before it is gone."""
_PROC = Path("/proc")
_STATE, _STARTED = 0, 19
"""Places in /proc/PID/stat behind the program's name. Source: proc_pid_stat(5), fields 3 and 22."""
_GONE = "ZXx"

_own: tuple[int, str] = -1, ""


class _Named(NamedTuple):
    boot: str
    namespace: str
    pid: int
    started: str


def own_name() -> str:
    """This process's name, "" where it can't have one. A forked child has its own."""
    global _own
    pid = os.getpid()
    if _own[0] != pid:
        _own = pid, name_of(pid)
    return _own[1]


def told_name(sock: socket) -> str:
    """What the other end of a connection is told of this process: its name if both are on one machine, else ""."""
    try:
        here = sock.getpeername()[0] == sock.getsockname()[0]
    except OSError:
        return ""
    return own_name() if here else ""


def name_of(pid: int) -> str:
    """The name of a process in this one's namespace, "" where it can't have one or is gone."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        namespace = (_PROC / "self/ns/pid").readlink().name
        seen_as = (_PROC / "self").readlink().name
    except OSError:
        return ""
    stat = _stat(pid)
    if stat is None or seen_as != str(os.getpid()):  # /proc may be another namespace's
        return ""
    return "/".join((boot, namespace, str(pid), stat[_STARTED]))


def has_ended(name: str) -> bool:
    """Whether the process of this name is gone, for certain. False: it lives, or that can't be told from here.

    Args:
        name: from `own_name`, of whoever; anything else is a process that nothing can be told of.
    """
    mine, other = _parse(own_name()), _parse(name)
    if mine is None or other is None or (mine.boot, mine.namespace) != (other.boot, other.namespace):
        return False
    try:
        os.kill(other.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # it exists, and is another user's
        pass
    stat = _stat(other.pid)
    if stat is None:
        return False  # gone this moment, or hidden
    if stat[_STARTED] != other.started:
        return True
    return stat[_STATE] in _GONE and _threads(other.pid) <= 1


def _parse(name: str) -> _Named | None:
    words = name.split("/")
    if len(name) > NAME_MAX_LENGTH or len(words) != len(_Named._fields) or not all(words):
        return None
    boot, namespace, pid, started = words
    if not (pid.isascii() and pid.isdecimal() and 0 < int(pid) < 2**31):
        return None
    return _Named(boot, namespace, int(pid), started)


def _stat(pid: int) -> list[str] | None:
    """The fields behind the program's name, which may contain anything."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return fields if len(fields) > _STARTED else None


def _threads(pid: int) -> int:
    """A process whose first thread has ended is shown as a zombie while others live on."""
    try:
        return len(os.listdir(_PROC / str(pid) / "task"))
    except OSError:
        return 2
