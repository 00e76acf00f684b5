"""The name of what a member has staged and nobody has published yet, as a value and as a file's name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from kohort.errors import InvalidInputError

MEMBER_BYTES_MAX: Final = 150
"""A member's name in the text form. With the numbers (19 digits each), the region's uuid and a sink's suffixes a key
stays below the 255 bytes that a file's name may have."""

_NUMBER_MAX: Final = 2**63 - 1
_TEXT: Final = re.compile(r"(?P<member>.+)-e(?P<epoch>[0-9]+)-u(?P<unit>[0-9]+)-(?P<region>[0-9a-f]{32})")
_ESCAPED: Final = re.compile(r"[^A-Za-z0-9._-]|^[._-]")
_ESCAPE: Final = re.compile(r"((?:~[0-9A-F]{2})+)")


def check_member(name: str) -> str:
    """A member's name as the region takes it: printable text, also with spaces, slashes and any script.

    Raises:
        InvalidInputError: it is empty, too long, or holds what can't be printed.
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
    """What one member staged in one piece: no two pieces have the same key, whoever was restarted in between.

    Attributes:
        region_id: the region's, made once at its birth.
        epoch: new at each start and each reset.
        member: its name.
        unit: number of the piece; the member counts.
    """

    region_id: UUID
    epoch: int
    member: str
    unit: int

    def text(self) -> str:
        """A file's name without an ending: readable, the same for equal keys alone, never hidden from readers.

        Raises:
            InvalidInputError: see `check_member`; a number is negative or longer than 63 bits.
        """
        check_member(self.member)
        if not (0 <= self.epoch <= _NUMBER_MAX and 0 <= self.unit <= _NUMBER_MAX):
            raise InvalidInputError(f"Epoch {self.epoch} and unit {self.unit} must lie between 0 and {_NUMBER_MAX}")
        return f"{_escape(self.member)}-e{self.epoch}-u{self.unit}-{self.region_id.hex}"

    @classmethod
    def parse(cls, text: str) -> StagedKey | None:
        """The key of a text form; None if no key has it."""
        found = _TEXT.fullmatch(text)
        if found is None:
            return None
        try:
            member = _ESCAPE.sub(lambda each: bytes.fromhex(each[1].replace("~", "")).decode(), found["member"])
            key = cls(UUID(hex=found["region"]), int(found["epoch"]), member, int(found["unit"]))
            return key if key.text() == text else None
        except ValueError:
            return None


def _escape(name: str) -> str:
    """`~` and two digits for each byte of what file systems, shells and Hadoop's paths may take amiss."""
    return _ESCAPED.sub(lambda each: "".join(f"~{byte:02X}" for byte in each[0].encode()), name)


@dataclass(frozen=True, slots=True)
class Staged:
    """The keys that a member has staged for a sequence.

    Attributes:
        keys: for its sink.
        letters: for the place of its dead letters.
        dead_letters: how many these are.
    """

    keys: tuple[StagedKey, ...] = ()
    letters: tuple[StagedKey, ...] = ()
    dead_letters: int = 0


def together(pieces: Iterable[Staged]) -> Staged:
    """All keys of several pieces."""
    those = list(pieces)
    return Staged(
        tuple(key for piece in those for key in piece.keys),
        tuple(key for piece in those for key in piece.letters),
        sum(piece.dead_letters for piece in those),
    )
