"""Ownership of a data folder: its lock, its cluster, and whether the last shutdown was clean."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kohort.errors import InvalidInputError
from kohort.ids import QUORUM_TOPIC
from kohort.log.catalog import FILE as CATALOG
from kohort.log.checkpoints import encode_id, new_id, replace_file
from kohort.log.filesystem import PRIVATE_MODE, sync_folder

LOCK = ".lock"
META = "meta.properties"
CLEAN = ".kafka_cleanshutdown"
_RECOVERING = "recovering"
"""Replaces the boot id in the lock file until recovery from a power loss is complete."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class FolderOwnership:
    """The exclusive use of a data folder by this process, until `release`.

    Attributes:
        fresh: whether the folder is new.
        clean: whether the last owner closed it cleanly.
        same_boot: whether the machine has been running since the last owner had all logs open, so no write is lost.
    """

    path: Path
    lock_fd: int
    fresh: bool
    clean: bool
    same_boot: bool
    cluster_id: str

    def record_logs_open(self) -> None:
        """Record on disk that all logs are open: from now on only a later power loss needs recovery.

        A start that is interrupted before this call leaves the recovery to the next start.
        """
        if not self.same_boot:
            if not self.fresh and not self.clean:
                os.sync()  # recovery's changes are in many small files
            _write_note(self.lock_fd, _boot_id())

    def release(self, *, clean: bool) -> None:
        """Release the folder, and record a clean shutdown if `clean` is set."""
        try:
            if clean:
                replace_file(self.path / CLEAN, '{"version":0,"brokerEpoch":-1}')
        finally:
            os.close(self.lock_fd)


def lock_data_folder(path: Path, node_id: int, cluster_id: str | None) -> FolderOwnership:
    """Lock a data folder; create it if it does not exist.

    Raises:
        InvalidInputError: another broker has the folder, or it is not a broker's.
    """
    try:
        path.mkdir(mode=0o750, parents=True, exist_ok=True)
        _refuse_strangers(path)
        lock_fd = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_MODE)
    except OSError as error:
        raise InvalidInputError(f"can't use the data folder {path}: {error.strerror}; choose another one") from error
    try:
        return _take_locked(path, lock_fd, node_id, cluster_id)
    except BaseException:
        os.close(lock_fd)
        raise


def _take_locked(path: Path, lock_fd: int, node_id: int, cluster_id: str | None) -> FolderOwnership:
    words = os.pread(lock_fd, 200, 0).decode(errors="replace").split()
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = f" (process {words[0]})" if words else ""
        raise InvalidInputError(
            f"the data folder {path} is in use by another broker{owner}; stop that one, or choose another folder"
        ) from None
    same_boot = has_stayed_up_since(words)
    fresh = not (path / META).exists()
    meta = _meta(path, node_id, cluster_id)
    clean = (path / CLEAN).exists()
    if clean:
        (path / CLEAN).unlink()
        sync_folder(path)
    _write_note(lock_fd, words[1] if same_boot else _RECOVERING)
    return FolderOwnership(path, lock_fd, fresh, clean, same_boot, meta)


def _write_note(lock_fd: int, boot_id: str) -> None:
    note = f"{os.getpid()} {boot_id}\n".encode()
    os.pwrite(lock_fd, note, 0)  # over the old one, which takes no room: a broker must start on a full disk
    os.ftruncate(lock_fd, len(note))
    os.fsync(lock_fd)


def has_stayed_up_since(words: Sequence[str]) -> bool:
    """Return whether the machine has been running since the owner with this lock file content had all logs open."""
    return len(words) > 1 and words[1] == _boot_id()


def _boot_id() -> str:
    """Return an id that changes when the machine restarts. If the system has none, every call returns another one."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return f"unknown-{time.time_ns()}"


def _meta(path: Path, node_id: int, cluster_id: str | None) -> str:
    """Return the cluster id of a data folder from `meta.properties`; write that file on first use."""
    file = path / META
    if file.exists():
        lines = [line.partition("=") for line in file.read_text().splitlines() if not line.startswith("#")]
        fields = {key.strip(): value.strip() for key, _, value in lines}
        found = fields.get("cluster.id", "")
        is_quorum = (path / f"{QUORUM_TOPIC}-0").exists() and not (path / CATALOG).exists()
        if not found or is_quorum:
            raise InvalidInputError(f"{path} is another kind of broker's data folder; choose another folder")
        if cluster_id is not None and cluster_id != found:
            raise InvalidInputError(
                f"the data folder {path} belongs to cluster {found}, not {cluster_id}; choose another folder"
            )
        return found
    chosen = cluster_id or encode_id(new_id())
    text = f"version=1\nnode.id={node_id}\ncluster.id={chosen}\ndirectory.id={encode_id(new_id())}\n"
    replace_file(file, text)
    return chosen


def _refuse_strangers(path: Path) -> None:
    """Refuse a folder as data folder if it has files, but neither meta file nor lock file of a broker."""
    names = sorted(os.listdir(path))
    known = any(name.startswith((META, LOCK)) for name in names)
    strangers = [name for name in names if name != "lost+found"]
    if strangers and not known:
        raise InvalidInputError(
            f"{path} holds other files ({strangers[0]} …) and no {META}; choose an empty folder for the broker's data"
        )
