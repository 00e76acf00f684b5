"""Differences between operating systems: a refusal where Linux or macOS is needed, and calls that one of them lacks.

docs/platforms.md lists every such call with what happens where it is absent.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

from kohort.errors import InvalidInputError

SIGNAL_CHECK_S = 0.5
"""The longest wait of a thread that handles signals. A signal that comes just before the wait, or on another thread,
does not interrupt it. Python runs the handler when the wait is over."""


def require_posix(what: str) -> None:
    """Refuse what needs the file locks, permissions and signals of Linux or macOS.

    Args:
        what: the subject of the error, such as "kohort broker".

    Raises:
        InvalidInputError: this system has no `fcntl`, as Windows.
    """
    try:
        import fcntl  # noqa: F401  # its presence is the question
    except ImportError:
        raise InvalidInputError(
            f"{what} needs Linux or macOS: on Windows run it in WSL 2 or in a container; the consumer, producer, admin "
            "client and the commands that use them work here (docs/platforms.md)"
        ) from None


def reserve_port(sock: socket.socket) -> None:
    """Set a socket's options so that only this process can bind its port, at once after a restart.

    Call this before `bind`.

    On Windows SO_REUSEADDR lets any process listen on the port too, and SO_EXCLUSIVEADDRUSE forbids that.
    """
    sock.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR), 1)


def is_readable_by_all(path: str | Path) -> bool:
    """Return whether every user of this machine may read a file, by its mode. On Windows the mode does not say it."""
    try:
        return os.name == "posix" and bool(os.stat(path).st_mode & stat.S_IROTH)
    except OSError:  # the file has just gone
        return False


def after_fork_in_child(callback: Callable[[], None]) -> None:
    """Register a function to run in each forked child; do nothing where processes can't fork."""
    register = getattr(os, "register_at_fork", None)
    if register is not None:
        register(after_in_child=callback)
