"""The lock that gives each `load()` one query: two sinks of one DataFrame would each silently get half of its records.

Spark makes one source object for each `load()`, and gives a copy to every query that reads it. Both sides of a join
with itself get one too. The object's id distinguishes them from two `load()`s, which may share a group. All queries'
processes run on the driver's machine, so a locked file there says which ids are being read. The operating system
releases the lock with the process, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json  # not msgspec: Spark has imported it already, and a task starts sooner
import logging
import os
import stat
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kohort.errors import InvalidInputError
from kohort.settings.validation import is_secret

log = logging.getLogger("kohort.spark")

LOCK_TIMEOUT_S = 10.0
"""Longest wait of a reader for the previous one: a stopped query takes up to three seconds to leave its group, and
Spark starts the next one meanwhile.
"""
RETRY_DELAY_S = 0.1
"""Interval of attempts to get the lock."""
REMEDY = (
    "load() once for each query, each with a group.id of its own, or write to all sinks from one foreachBatch (with "
    "the same group.id, two queries share the records)"
)


def lock_folder() -> Path:
    """Return this user's folder for locks.

    Raises:
        OSError: the folder can't be made, or belongs to another user.
    """
    path = Path(tempfile.gettempdir()) / f"kohort-spark-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to another user")
    return path


class ReaderLock:
    """A lock on a name: one reader on this machine holds it until `release` or the end of its process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor

    @classmethod
    def acquire(cls, name: str) -> ReaderLock | None:
        """Lock a name; return None if another reader has it.

        Raises:
            OSError: files can't be locked here.
        """
        path = lock_folder() / f"{name}.lock"
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _same(path, descriptor):
                    return cls(path, descriptor)
            except BlockingIOError:
                os.close(descriptor)
                return None
            os.close(descriptor)  # released between the two calls: the path now has another file

    @classmethod
    def is_held(cls, name: str) -> bool:
        """Return whether a reader has locked a name, without locking it.

        Raises:
            OSError: files can't be locked here.
        """
        try:
            descriptor = os.open(lock_folder() / f"{name}.lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def release(self) -> None:
        """Unlock the name."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        os.close(self._descriptor)


def _same(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@dataclass(frozen=True, slots=True)
class LoadCall:
    """One `load()` of a DataFrame, which only one query may read.

    Attributes:
        id: its unique id.
        likeness: a hash of its options; equal ones may be the same `load()`.
    """

    id: str
    likeness: str

    @classmethod
    def from_options(cls, raw: Mapping[str, str]) -> LoadCall:
        """Make the record of a new `load()` with these options, as Spark passes them."""
        options = sorted((name.lower(), value) for name, value in raw.items() if not is_secret(name))
        return cls(uuid.uuid4().hex, hashlib.sha256(json.dumps(options).encode()).hexdigest()[:32])


class LoadLocks:
    """The locks of one query, one for each `load()` that it reads: they keep other queries from reading it too."""

    def __init__(self) -> None:
        self._locks: list[ReaderLock] = []

    def lock_load(self, load: LoadCall, group: str, *, id_is_stable: bool) -> None:
        """Lock a `load()` for this query, so that no other query reads it.

        Args:
            load: the `load()`.
            group: the query's group, for error texts.
            id_is_stable: whether all queries of one `load()` have its id. On Spark Connect each query has another id:
                there, only a warning is logged when another query has the same options.

        Raises:
            InvalidInputError: another query reads it.
        """
        try:
            if not id_is_stable:
                self._warn_of_equal_options(group, load)
                return
            deadline = time.monotonic() + LOCK_TIMEOUT_S
            while (claim := ReaderLock.acquire(load.id)) is None:
                if time.monotonic() >= deadline:
                    raise InvalidInputError(
                        "another query reads this same load() already, or this query does on the other side of a join "
                        f"or union: as members of the group {group}, each would get a part of the records only; "
                        f"{REMEDY}"
                    )
                time.sleep(RETRY_DELAY_S)
            self._locks.append(claim)
        except OSError as error:
            log.warning(
                "[group %s] can't lock the query's load(), so a second query that reads it would go unnoticed, and "
                "each would get a part of the records only: %s",
                group,
                error,
            )

    def _warn_of_equal_options(self, group: str, load: LoadCall) -> None:
        claim = ReaderLock.acquire(f"options-{load.likeness}")
        if claim is not None:
            self._locks.append(claim)
            return
        log.warning(
            "[group %s] another query reads with the same options as this one. If both are from one load(), each gets "
            "a part of the records only: %s",
            group,
            REMEDY,
        )

    def release(self) -> None:
        """Release all locks of the query."""
        while self._locks:
            self._locks.pop().release()
