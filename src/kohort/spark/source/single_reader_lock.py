"""One query for each `load()`: two sinks of one DataFrame would each get half of its records, without a word.

Spark makes one source object for each `load()`, and hands a copy to every query that reads it, also to both sides of a
join with itself: the object's id tells them from two `load()`s, which may share a group. The queries' processes run on
one machine, the driver's, so a locked file there says which ids are being read; the system unlocks it with the process,
however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
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

WAIT_S = 10.0
"""How long a reader waits for the one before it: a query that was stopped takes up to three seconds to leave its group,
and Spark starts the next one meanwhile."""
AGAIN_S = 0.1
"""How often it looks."""
REMEDY = (
    "load() once for each query, each with a group.id of its own, or write to all sinks from one foreachBatch (with "
    "the same group.id, two queries share the records)"
)


def folder() -> Path:
    """This user's folder for locks.

    Raises:
        OSError: it can't be made, or is another's.
    """
    path = Path(tempfile.gettempdir()) / f"kohort-spark-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to another user")
    return path


class Claim:
    """A name that one reader on this machine has, until `release` or the end of its process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor

    @classmethod
    def of(cls, name: str) -> Claim | None:
        """Claim a name; None: another reader has it.

        Raises:
            OSError: files can't be locked here.
        """
        path = folder() / f"{name}.lock"
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _same(path, descriptor):
                    return cls(path, descriptor)
            except BlockingIOError:
                os.close(descriptor)
                return None
            os.close(descriptor)  # released between the two calls: the file there now is another

    @classmethod
    def is_held(cls, name: str) -> bool:
        """Whether somebody has claimed a name; looking claims nothing.

        Raises:
            OSError: files can't be locked here.
        """
        try:
            descriptor = os.open(folder() / f"{name}.lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
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
        """Let others have the name."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        os.close(self._descriptor)


def _same(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@dataclass(frozen=True, slots=True)
class Load:
    """One `load()`.

    Attributes:
        id: of its own.
        likeness: the same for the same options.
    """

    id: str
    likeness: str

    @classmethod
    def of(cls, raw: Mapping[str, str]) -> Load:
        """A new one with these options, as Spark hands them over."""
        told = sorted((name.lower(), value) for name, value in raw.items() if not is_secret(name))
        return cls(uuid.uuid4().hex, hashlib.sha256(json.dumps(told).encode()).hexdigest()[:32])


class SoleReader:
    """The claims of one query on what it reads."""

    def __init__(self) -> None:
        self._claims: list[Claim] = []

    def claim(self, load: Load, group: str, *, ids_tell: bool) -> None:
        """Claim a `load()`.

        Args:
            load: which.
            group: the query's, for error texts.
            ids_tell: whether one `load()` has one id. On Spark Connect each query has an id of its own: there, the
                same options as another query's are warned of.

        Raises:
            InvalidInputError: another query reads it.
        """
        try:
            if not ids_tell:
                self._warn_of_twins(group, load)
                return
            deadline = time.monotonic() + WAIT_S
            while (claim := Claim.of(load.id)) is None:
                if time.monotonic() >= deadline:
                    raise InvalidInputError(
                        "another query reads this same load() already, or this query does on the other side of a join "
                        f"or union: as members of the group {group}, each would get a part of the records only; "
                        f"{REMEDY}"
                    )
                time.sleep(AGAIN_S)
            self._claims.append(claim)
        except OSError as error:
            log.warning(
                "that two queries read one load() of the group %s would go unnoticed here, and each would get a part "
                "of the records only: %s",
                group,
                error,
            )

    def _warn_of_twins(self, group: str, load: Load) -> None:
        claim = Claim.of(f"options-{load.likeness}")
        if claim is not None:
            self._claims.append(claim)
            return
        log.warning(
            "ANOTHER QUERY READS WITH THE VERY OPTIONS OF THIS ONE, in the group %s. If both are from one load(), each "
            "gets a part of the records only: %s",
            group,
            REMEDY,
        )

    def release(self) -> None:
        """Give back what was claimed."""
        while self._claims:
            self._claims.pop().release()
