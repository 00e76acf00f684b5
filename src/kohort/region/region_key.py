"""The key of a region: the secret that members, commands and control planes share, and that the topic never holds.

The key seals every record of the region's topic and proves the right to connect to the control plane. It is the
operator's (`key=` or `$KOHORT_REGION_KEY`), the same in all processes of the region. Where none is given, it is a file
of this user on this machine, which is created when something is first sealed with it. So one machine needs no setting.

A seal binds a record to the producer id and epoch that wrote it. A copy of a record under another producer is no fact.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import stat
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from kohort.errors import InvalidInputError
from kohort.region.files import SYSTEM, make_folder, sync_folder

KEY_VARIABLE: Final = "KOHORT_REGION_KEY"
KEY_CHARACTERS_MIN: Final = 32
"""Least characters of an operator's key. A reader of the topic can try keys offline against a seal; 32 characters of
`secrets.token_urlsafe` have 192 bits."""
FILE: Final = "region.key"
SEAL: Final = "kohort-seal"
"""Name of the record header with the seal."""
_ID_BYTES: Final = 4
_AUTHOR: Final = struct.Struct(">qhi")
_ABSENT: Final = b"\0"
_PRESENT: Final = b"\1"


class RecordAuthor(NamedTuple):
    """The producer id and producer epoch of a record batch, to which a record's seal binds it."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class RegionKey:
    """The secret key of a region's processes, from which the keys of each region and purpose are derived.

    Attributes:
        origin: where the key comes from, for messages.
    """

    secret: bytes = field(repr=False)
    origin: str

    @property
    def name(self) -> str:
        """A short id of the key, to tell two keys apart; it does not reveal the key."""
        return self._id().hex()

    def seal(self, region: str, author: RecordAuthor, key: bytes, value: bytes | None) -> bytes:
        """Return the seal of a record, for its header: the id of the key, then an HMAC over author, key and value."""
        said = _AUTHOR.pack(author.producer_id, author.epoch, len(key)) + key
        said += _ABSENT if value is None else _PRESENT + value
        return self._id() + hmac.digest(self._derived(f"records of {region}"), said, "sha256")

    def verifies_seal(self, region: str, author: RecordAuthor, key: bytes, value: bytes | None, seal: bytes) -> bool:
        """Return whether this key made a seal, for this record and this producer."""
        return hmac.compare_digest(seal, self.seal(region, author, key, value))

    def seal_names_this_key(self, seal: bytes) -> bool:
        """Return whether a seal begins with the id of this key. Only `verifies` proves that the key made the seal."""
        return seal[:_ID_BYTES] == self._id()

    def term_secret(self, region: str, term: int) -> bytes:
        """Return the secret that both ends of a connection to the control plane prove, for one region and term."""
        return self._derived(f"connections of {region} in term {term}")

    def _id(self) -> bytes:
        return self._derived("id")[:_ID_BYTES]

    def _derived(self, purpose: str) -> bytes:
        return hmac.digest(self.secret, f"kohort region: {purpose}".encode(), "sha256")


def region_key(given: str | None = None) -> RegionKey:
    """Return the key to use: the given one, that of `$KOHORT_REGION_KEY`, or this user's on this machine.

    This user's key is created if it does not exist.

    Raises:
        InvalidInputError: the key is too short, or the machine's can't be kept or is open to other users.
    """
    return _given_key(given) or _machine_key(_machine_folder())


def existing_key() -> RegionKey | None:
    """Return the key of `$KOHORT_REGION_KEY` or this user's on this machine; None: there is neither. Create none.

    Raises:
        InvalidInputError: the key is too short, or the machine's can't be read or is open to other users.
    """
    path = _machine_folder() / FILE
    if os.environ.get(KEY_VARIABLE) or path.is_symlink() or path.exists():
        return region_key()
    return None


def random_key() -> RegionKey:
    """Return a random key for a reader that has none: it verifies no record."""
    return RegionKey(secrets.token_bytes(KEY_CHARACTERS_MIN), "no key")


def is_given_by_operator(given: str | None) -> bool:
    """Return whether the key is given or in `$KOHORT_REGION_KEY`, so that other machines can have it too."""
    return bool(given or os.environ.get(KEY_VARIABLE))


def _given_key(given: str | None) -> RegionKey | None:
    for text, origin in ((given, "key="), (os.environ.get(KEY_VARIABLE), f"${KEY_VARIABLE}")):
        if text:
            return _operators_key(text, origin)
    return None


def _operators_key(text: str, origin: str) -> RegionKey:
    if len(text) < KEY_CHARACTERS_MIN:
        raise InvalidInputError(
            f"the region key of {origin} has {len(text)} characters, and needs {KEY_CHARACTERS_MIN}: make one with "
            '`python -c "import secrets; print(secrets.token_urlsafe(32))"`'
        )
    return RegionKey(text.encode(), origin)


def _machine_folder() -> Path:
    """Return the folder in which this user's key is kept. Source: XDG Base Directory Specification."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path("~/.local/state").expanduser()) / "kohort"


def _machine_key(folder: Path) -> RegionKey:
    """Read this user's key, or create it; if two processes create it at once, both use the first one's."""
    path = folder / FILE
    try:
        if not path.is_symlink() and not path.exists():
            make_folder(SYSTEM, str(folder.parent))
            folder.mkdir(0o700, exist_ok=True)
            sync_folder(SYSTEM, str(folder.parent))
            _create(path)
            sync_folder(SYSTEM, str(folder))  # the brokers keep what it seals, also when this machine loses power
        return RegionKey(_read_private(path), str(path))
    except OSError as error:
        raise InvalidInputError(
            f"this user's region key can't be kept in {path} ({error}): set ${KEY_VARIABLE} to a key of your own in "
            "all processes of the region"
        ) from error


def _create(path: Path) -> None:
    """Create the key's file atomically: write a temporary file, and link it to the final name."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(secrets.token_urlsafe(KEY_CHARACTERS_MIN).encode())
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.unlink(temporary)


def _read_private(path: Path) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(file.fileno())
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise InvalidInputError(f"{path} must be this user's alone: chmod 600 {path}, or remove it")
        secret = file.read()
    if len(secret) < KEY_CHARACTERS_MIN:
        raise InvalidInputError(f"{path} is too short for a region key: remove it, and it is made again")
    return secret
