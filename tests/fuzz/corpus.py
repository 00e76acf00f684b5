"""The kept inputs of each target, and changes to them that are drawn from a seed.

A corpus is a text file: a line for each input, its name and its bytes as Python writes them. An input that showed a
fault stays there as `found-…`.
"""

from __future__ import annotations

import ast
import hashlib
import random
from collections.abc import Callable
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "corpus"
KEYS = FOLDER / "jose-keys.json"
"""The public keys of the tokens' issuer. Nobody has the private ones."""
INPUT_BYTES_MAX = 65_536
KEPT_BYTES_MAX = 4_096
"""Longer inputs are not added to a corpus: its files stay small."""
_NUMBERS = (
    b"\0", b"\x7f", b"\x80", b"\xff", b"\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff\xff\xff",
    b"\xff\xff\xff\xff\x0f", b"\xff" * 9 + b"\x01", b"\xff" * 10, b"\xfe\xff\xff\xff\x0f", b"\0\x10\0\0", b"\0\0\0\1",
)  # fmt: skip


def read_corpus(name: str) -> dict[str, bytes]:
    """Return the inputs of a target, by name."""
    found = {}
    for line in (FOLDER / f"{name}.txt").read_text(encoding="ascii").splitlines():
        title, _, text = line.partition(": ")
        found[title] = bytes(ast.literal_eval(text))
    return found


def keep_input(name: str, prefix: str, data: bytes) -> str:
    """Add an input to a target's corpus, unless it is there; return its name."""
    title = f"{prefix}-{hashlib.sha256(data).hexdigest()[:10]}"
    if title not in read_corpus(name):
        with (FOLDER / f"{name}.txt").open("a", encoding="ascii") as file:
            file.write(f"{title}: {data!r}\n")
    return title


# -- Changes


def _flip_bit(pick: random.Random, data: bytearray, _other: bytes, _words: tuple[bytes, ...]) -> None:
    if data:
        data[pick.randrange(len(data))] ^= 1 << pick.randrange(8)


def _set_byte(pick: random.Random, data: bytearray, _other: bytes, _words: tuple[bytes, ...]) -> None:
    if data:
        data[pick.randrange(len(data))] = pick.randrange(256)


def _set_number(pick: random.Random, data: bytearray, _other: bytes, _words: tuple[bytes, ...]) -> None:
    number = pick.choice(_NUMBERS)
    at = pick.randrange(len(data) + 1)
    data[at : at + (len(number) if pick.random() < 0.7 else 0)] = number


def _delete(pick: random.Random, data: bytearray, _other: bytes, _words: tuple[bytes, ...]) -> None:
    at = pick.randrange(len(data) + 1)
    del data[at : at + pick.choice((1, 2, 4, 16, 1_000))]


def _repeat(pick: random.Random, data: bytearray, _other: bytes, _words: tuple[bytes, ...]) -> None:
    start = pick.randrange(len(data) + 1)
    part = bytes(data[start : start + pick.choice((1, 2, 8, 40, 1_000))])
    at = pick.randrange(len(data) + 1)
    data[at:at] = part * pick.choice((1, 1, 2, 30))


def _insert_word(pick: random.Random, data: bytearray, _other: bytes, words: tuple[bytes, ...]) -> None:
    word = pick.choice(words) if words else pick.randbytes(4)
    at = pick.randrange(len(data) + 1)
    data[at : at + pick.choice((0, 0, len(word)))] = word


def _insert_noise(pick: random.Random, data: bytearray, _other: bytes, _words: tuple[bytes, ...]) -> None:
    at = pick.randrange(len(data) + 1)
    data[at:at] = pick.randbytes(pick.choice((1, 3, 20)))


def _cross(pick: random.Random, data: bytearray, other: bytes, _words: tuple[bytes, ...]) -> None:
    start = pick.randrange(len(other) + 1)
    at = pick.randrange(len(data) + 1)
    if pick.random() < 0.5:
        data[at:] = other[start:]
    else:
        part = other[start : start + pick.choice((4, 20, 200))]
        data[at : at + pick.choice((0, len(part)))] = part


_CHANGES: tuple[Callable[[random.Random, bytearray, bytes, tuple[bytes, ...]], None], ...] = (
    _flip_bit, _flip_bit, _set_byte, _set_number, _set_number, _delete, _repeat, _insert_word, _insert_word,
    _insert_noise, _cross,
)  # fmt: skip


def mutated(pick: random.Random, data: bytes, other: bytes, words: tuple[bytes, ...] = ()) -> bytes:
    """Change an input in one to eight places.

    Args:
        pick: the source of chance.
        data: the input.
        other: another input, of which parts may be taken.
        words: what the format knows, such as names of its fields.
    """
    changed = bytearray(data)
    for _ in range(pick.choice((1, 1, 1, 2, 3, 8))):
        pick.choice(_CHANGES)(pick, changed, other, words)
    return bytes(changed[:INPUT_BYTES_MAX])
