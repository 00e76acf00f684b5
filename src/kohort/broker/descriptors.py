"""What the descriptors of the process are for: when those of one purpose are used up, the others go on."""

from __future__ import annotations

import resource
from typing import NamedTuple

from kohort.errors import InvalidInputError

OTHERS = 48
"""The event loop, pipes, locks, scrapes of the metrics, and files open for one write: checkpoints, the catalog."""
FILES_MAX = 512
"""Log files open at once: beyond it opening them anew costs less than their look-up."""
LENT_MAX = 256
"""Log files that are closed for the store but still read by answers under way."""
DESCRIPTORS_MIN = 128


class Descriptors(NamedTuple):
    """Shares of the process's descriptors."""

    files: int
    lent: int
    connections: int


def open_file_limit() -> int:
    """How many descriptors the process may have; what the system allows it to raise is raised."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return int(soft)


def shares(limit: int) -> Descriptors:
    """How a limit is shared out: a quarter and an eighth for files, as far as they need it, the rest for connections.

    Raises:
        InvalidInputError: the limit is too low to work with.
    """
    if limit < DESCRIPTORS_MIN:
        raise InvalidInputError(
            f"a broker needs {DESCRIPTORS_MIN} file descriptors at least, the limit is {limit}: raise it (ulimit -n)"
        )
    left = limit - OTHERS
    files, lent = min(FILES_MAX, left // 4), min(LENT_MAX, left // 8)
    return Descriptors(files, lent, left - files - lent)
