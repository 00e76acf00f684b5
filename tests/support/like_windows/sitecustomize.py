"""Takes from Python on Linux what Python on Windows does not have; with this folder in PYTHONPATH, in every process.

What the standard library and other projects need is imported before, as they have code of their own for Windows. So
only kohort meets the lack. Source: "Availability: Unix" in the documentation of Python 3.14's `os`, `select`, `signal`,
`socket` and `time`.
"""

import asyncio
import concurrent.futures
import getpass
import importlib.abc
import logging.handlers
import multiprocessing
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time

import cramjam
import crc32c
import cyclopts
import msgspec
import prometheus_client
import pyarrow.parquet
import re2
import rich.table

USED = (
    asyncio, concurrent.futures, getpass, logging.handlers, multiprocessing, selectors, subprocess, tempfile,
    cramjam, crc32c, cyclopts, msgspec, prometheus_client, pyarrow.parquet, re2, rich.table,
)  # fmt: skip
MODULES = ("fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "syslog")
NAMES = {
    os: "fork forkpty register_at_fork getuid geteuid getgid getegid killpg setsid pread pwrite preadv pwritev readv "
    "writev sendfile fchown chown getpgid getsid sync fdatasync posix_fadvise posix_fallocate sched_getaffinity "
    "sched_setaffinity sysconf uname nice getloadavg wait waitid wait3 wait4 mkfifo mknod openpty "
    "pidfd_open memfd_create eventfd fchdir chroot O_CLOEXEC O_NOFOLLOW O_DIRECTORY O_NONBLOCK O_SYNC O_DSYNC",
    socket: "MSG_DONTWAIT MSG_NOSIGNAL MSG_MORE SO_REUSEPORT",
    select: "poll epoll",
    signal: "SIGKILL SIGHUP SIGUSR1 SIGUSR2 SIGALRM SIGCHLD SIGPIPE SIGQUIT SIGSTOP SIGCONT alarm setitimer "
    "pthread_kill pthread_sigmask",
    time: "clock_gettime clock_gettime_ns CLOCK_BOOTTIME CLOCK_MONOTONIC CLOCK_REALTIME CLOCK_MONOTONIC_RAW "
    "CLOCK_PROCESS_CPUTIME_ID CLOCK_THREAD_CPUTIME_ID",
}


class Absent(importlib.abc.MetaPathFinder):
    """Finds none of the modules that Windows lacks."""

    def find_spec(self, fullname, path=None, target=None):  # type: ignore[no-untyped-def]
        if fullname in MODULES:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def lacking(*_arguments: object) -> None:
    raise NotImplementedError


for module in MODULES:
    sys.modules.pop(module, None)
sys.meta_path.insert(0, Absent())
for home, names in NAMES.items():
    for name in names.split():
        if hasattr(home, name):
            delattr(home, name)
for name in ("sendmsg", "recvmsg", "recvmsg_into"):
    setattr(socket.socket, name, property(lacking))
selectors.DefaultSelector = selectors.SelectSelector  # type: ignore[misc]
asyncio.SelectorEventLoop.add_signal_handler = lacking  # type: ignore[assignment,method-assign]
asyncio.SelectorEventLoop.add_reader = lacking  # type: ignore[assignment,method-assign]
