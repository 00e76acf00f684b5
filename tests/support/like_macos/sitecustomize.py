"""Takes from Python on Linux what Python on macOS does not have; with this folder in PYTHONPATH, in every process.

Source: "Availability" in the documentation of Python 3.14's `os`, `select`, `socket` and `time`.
"""

import os
import resource
import select
import selectors
import socket
import sys
import time

NAMES = {
    os: "pidfd_open memfd_create eventfd posix_fadvise posix_fallocate sched_getaffinity sched_setaffinity getrandom "
    "copy_file_range splice fdatasync setresuid setresgid getresuid O_DIRECT O_TMPFILE O_PATH O_NOATIME",
    select: "epoll",
    socket: "MSG_MORE MSG_NOSIGNAL AF_NETLINK AF_VSOCK SO_PEERCRED TCP_USER_TIMEOUT TCP_QUICKACK",
    time: "CLOCK_BOOTTIME",
}
MAC_FILES_MAX = 10_240
"""A larger limit is refused, and the hard one says "unlimited"."""


def refuse_proc(event: str, arguments: tuple[object, ...]) -> None:
    """Find nothing below /proc."""
    if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith("/proc"):
        raise FileNotFoundError(2, "No such file or directory", arguments[0])


def limits(which: int) -> tuple[int, int]:
    return (256, (1 << 63) - 1) if which == resource.RLIMIT_NOFILE else (1, 1)


def set_limits(_which: int, wanted: tuple[int, int]) -> None:
    if wanted[0] > MAC_FILES_MAX:
        raise ValueError("current limit exceeds maximum limit")


for home, names in NAMES.items():
    for name in names.split():
        if hasattr(home, name):
            delattr(home, name)
selectors.DefaultSelector = selectors.PollSelector  # type: ignore[misc]
resource.getrlimit, resource.setrlimit = limits, set_limits  # type: ignore[assignment]
sys.addaudithook(refuse_proc)
