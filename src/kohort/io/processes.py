"""The identity of a client process, which others on the same machine can check, and whether it has ended.

A process is named by the machine's boot, its PID namespace, its PID and its start time; names are never reused. Only
processes of the same boot and namespace can judge it. They report that it has ended only where the kernel is sure. That
is: no such PID, another process with that PID, or a zombie without a living thread. Only Linux processes have a name.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from socket import socket


# -- The lease: a time in ms that the broker sends to kohort's clients, and how both sides divide it. Pure
#
# A member may live on behind a broken connection, and the broker evicts it long before its session expires
# (`groups.failure_detector`). So it must have stopped by then, and both sides know the lease. The broker sends it at
# connection and only to kohort's clients. With other brokers nothing changes.
#
# The client's half is `client.group.lease`. The client owns its assignment until a lease has passed since it **sent**
# the last answered request. Then it returns no records; positions and partitions stay. The next response lets it
# continue, or tells it that it was evicted.
#
# The coordinator's half concerns a member whose connection ended. The coordinator evicts it no sooner than a lease
# after it **received** the member's last request. Any later request is a sign of life, and cancels the eviction.
#
# A request is sent before it is received, and two clocks at one rate measure the same lease. So the client's half ends
# first. Clock rates differ: a quartz is off by up to 0.01 %. A clock under correction runs up to 0.05 % fast or slow
# (Linux's own limit). Two clocks therefore differ by about 0.1 % at worst. `CLOCK_MARGIN` is twenty times that, which
# also covers that clocks are read in whole ms. No margin covers the stopped clock of a frozen virtual machine. The
# records of such a member are fenced when it commits, not before. Sleep of the whole machine is counted
# (`Runtime.clock_with_sleep_ms`). Records returned before the lease ended are the application's responsibility.

CLOCK_MARGIN = 0.02


def ownership_ms(lease_ms: float) -> float:
    """Return for how many ms a member owns its assignment: the lease less a margin for clocks that drift.

    The time counts from when it sent the last answered request.
    """
    return lease_ms * (1 - CLOCK_MARGIN)


def lease_heartbeat_ms(lease_ms: int) -> int:
    """Return the longest heartbeat interval in ms that renews a lease even if one heartbeat fails: 2/5 of the lease."""
    return lease_ms * 2 // 5


def lease_response_timeout_ms(lease_ms: int) -> int:
    """Return the time limit for a heartbeat's response in ms: half the lease.

    The rest is for a heartbeat on a new connection.
    """
    return lease_ms // 2


def long_poll_max_ms(lease_ms: int) -> int:
    """Return the longest time in ms for which a broker may delay a heartbeat response.

    Of two delayed responses the second comes up to twice as long after the first request was sent. Three eighths of the
    lease each leave a quarter for the network.
    """
    return lease_ms * 3 // 8


NAME_MAX_LENGTH = 120
ENDING_LOOKS_S = (0.001, 0.005, 0.02, 0.1)
"""The pauses between checks of a process after its connection ended: it closes its sockets before it exits."""
_PROC = Path("/proc")
_STATE, _STARTED = 0, 19
"""The positions of state and start time in /proc/PID/stat after the program's name. Source: proc_pid_stat(5), fields 3
and 22."""
_GONE = "ZXx"

_own: tuple[int, str] = -1, ""


class _Named(NamedTuple):
    boot: str
    namespace: str
    pid: int
    started: str


def own_identity() -> str:
    """Return this process's identity: boot, PID namespace, PID and start time; "" except on Linux.

    A forked child has its own.
    """
    global _own
    pid = os.getpid()
    if _own[0] != pid:
        _own = pid, process_identity(pid)
    return _own[1]


def identity_for_peer(sock: socket) -> str:
    """Return this process's identity if both ends of a connection have the same address (one machine); else ""."""
    try:
        here = sock.getpeername()[0] == sock.getsockname()[0]
    except OSError:
        return ""
    return own_identity() if here else ""


def process_identity(pid: int) -> str:
    """Return the identity of a process: boot, PID namespace, PID and start time; "" if unknown or already gone."""
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


def has_process_ended(name: str) -> bool:
    """Return whether the process of this name has certainly ended; False if it lives or its state is unknown.

    Args:
        name: the process's identity, from `own_identity`; for any other text the result is False.
    """
    mine, other = _parse(own_identity()), _parse(name)
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
    """Return the fields of /proc/PID/stat after the program's name; None if there is no such process.

    The name itself may contain anything.
    """
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return fields if len(fields) > _STARTED else None


def _threads(pid: int) -> int:
    """Return how many threads a process has.

    A process whose first thread has ended looks like a zombie while others live on.
    """
    try:
        return len(os.listdir(_PROC / str(pid) / "task"))
    except OSError:
        return 2
