"""The schema id before a value: a zero byte and the id, four bytes big-endian, as Confluent's serializers write it."""

from __future__ import annotations

from kohort.errors import CorruptDataError, InvalidInputError

PREFIX_BYTES = 5
VALUE_BYTES = 4 * 1024 * 1024
"""Size of the largest value that is read, if the application does not say otherwise.

As Python objects a value may take about two hundred times its size: an array of records of one boolean makes a dict of
each byte. So this is 0.8 GB at most, and four times the largest record that a broker takes by default. Compressed, such
a value has a few kB, and that limit does not hold it back.
"""
ID_MAX = 2**31 - 1
"""Highest id of a schema: Confluent's registry numbers them by Java's int."""
NO_PREFIX = "no schema's id before the value: a zero byte and four of the id"


class UnusableSchemaError(InvalidInputError):
    """A schema of the registry by which values can't be read or written. The registry itself works."""


def schema_prefix(number: int) -> bytes:
    """Return the bytes before a value of the schema with this id."""
    return b"\0" + number.to_bytes(4, "big")


def has_prefix(data: bytes) -> bool:
    """Return whether a value begins with a schema id."""
    return len(data) >= PREFIX_BYTES and data[0] == 0


def schema_id(data: bytes) -> int:
    """Return the schema id that stands before a value.

    Raises:
        CorruptDataError: no schema id is there, or its number is one that no registry gives.
    """
    if not has_prefix(data):
        raise CorruptDataError(NO_PREFIX)
    number = int.from_bytes(data[1:PREFIX_BYTES], "big")
    if number > ID_MAX:
        raise CorruptDataError(f"the schema's id {number} is above {ID_MAX}")
    return number


def check_value_size(data: bytes, most: int) -> None:
    """Check the size of a value before it is read.

    Raises:
        CorruptDataError: it is too large.
    """
    if len(data) > most:
        raise CorruptDataError(
            f"{len(data)} bytes are more than the {most} that are read; max_value_bytes of SchemaRegistry allows more"
        )
