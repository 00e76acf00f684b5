"""The name of a staged unit that is not published yet, as a value and as a file name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from kohort.errors import InvalidInputError

MEMBER_BYTES_MAX: Final = 150
"""Limit on a member's name in the text form. With the numbers (19 digits each), the region's uuid and a sink's
suffixes a key stays below the 255 bytes that a file name may have."""

_NUMBER_MAX: Final = 2**63 - 1
_TEXT: Final = re.compile(r"(?P<member>.+)-e(?P<epoch>[0-9]+)-u(?P<unit>[0-9]+)-(?P<region>[0-9a-f]{32})")
_ESCAPED: Final = re.compile(r"[^A-Za-z0-9._-]|^[._-]")
_ESCAPE: Final = re.compile(r"((?:~[0-9A-F]{2})+)")


def check_member(name: str) -> str:
    """Check a member's name, and return it; it may have spaces, slashes and any script.

    Raises:
        InvalidInputError: the name is empty, too long, or has characters that can't be printed.
    """
    if not name:
        raise InvalidInputError("A member's name is empty: give it one that survives restarts, such as 'worker-1'")
    if not name.isprintable():
        raise InvalidInputError(f"The member's name {name!r} holds characters that can't be printed: choose another")
    if len(_escape(name)) > MEMBER_BYTES_MAX:
        raise InvalidInputError(
            f"The member's name {name[:40]!r}… is too long: {MEMBER_BYTES_MAX} letters and digits are allowed, "
            "and any other character counts as three for each of its bytes in UTF-8"
        )
    return name


@dataclass(frozen=True, slots=True)
class StagedKey:
    """The key under which a member stages one unit of rows: some 32 MiB or more, or the rest at a checkpoint.

    Each call of `Sink.stage` gets a new key, also after a restart of the member.

    Attributes:
        region_id: the region's id, created once with the region.
        epoch: the members' epoch, which is new at each start and each reset.
        member: the member's name.
        unit: a number that grows, and is unique in one sink for the member and the epoch.
    """

    region_id: UUID
    epoch: int
    member: str
    unit: int

    def file_stem(self) -> str:
        """Return the key as text that can be a file name without a suffix; `parse` is the inverse.

        Raises:
            InvalidInputError: the member's name is invalid; a number is negative or longer than 63 bits.
        """
        check_member(self.member)
        if not (0 <= self.epoch <= _NUMBER_MAX and 0 <= self.unit <= _NUMBER_MAX):
            raise InvalidInputError(f"Epoch {self.epoch} and unit {self.unit} must lie between 0 and {_NUMBER_MAX}")
        return f"{_escape(self.member)}-e{self.epoch}-u{self.unit}-{self.region_id.hex}"

    @classmethod
    def parse(cls, text: str) -> StagedKey | None:
        """Return the key for a text that `file_stem` has made; None for any other text."""
        found = _TEXT.fullmatch(text)
        if found is None:
            return None
        try:
            member = _ESCAPE.sub(lambda escape: bytes.fromhex(escape[1].replace("~", "")).decode(), found["member"])
            key = cls(UUID(hex=found["region"]), int(found["epoch"]), member, int(found["unit"]))
            return key if key.file_stem() == text else None
        except ValueError:
            return None


def check_sequence(sequence: int) -> None:
    """Check that a sequence (checkpoint number) can be published.

    Raises:
        InvalidInputError: it is below 1.
    """
    if sequence < 1:
        raise InvalidInputError(f"Sequence {sequence} can't be published: the first is 1")


def missing_rows_text(is_there: Mapping[str, bool], what: str = "staged pieces") -> str:
    """Return the error text for staged rows that are missing; empty if none is.

    Args:
        is_there: whether the rows of each staged key are there, by the key's text.
        what: the plural noun for them in the message.
    """
    gone = [name for name, there in is_there.items() if not there]
    return f"of {len(is_there)} {what} {len(gone)} are gone, {gone[0]} among them" if gone else ""


def _escape(name: str) -> str:
    """Escape each byte that file systems, shells or Hadoop's paths may not accept as `~` and two hexadecimal digits."""
    return _ESCAPED.sub(lambda character: "".join(f"~{byte:02X}" for byte in character[0].encode()), name)


@dataclass(frozen=True, slots=True)
class Staged:
    """The keys under which a member has staged rows for one checkpoint.

    Attributes:
        keys: the keys in the sink of its rows.
        letters: the keys in its dead-letter sink.
        dead_letters: the number of rows staged under `letters`.
    """

    keys: tuple[StagedKey, ...] = ()
    letters: tuple[StagedKey, ...] = ()
    dead_letters: int = 0


def merge_staged(pieces: Iterable[Staged]) -> Staged:
    """Combine several `Staged` into one: all keys, and the sum of dead letters."""
    those = list(pieces)
    return Staged(
        tuple(key for piece in those for key in piece.keys),
        tuple(key for piece in those for key in piece.letters),
        sum(piece.dead_letters for piece in those),
    )
