"""Record sets to columns, and columns to record sets, in one compiled call each.

`decode(sets, options)` takes all record sets of one fetch response and returns one block of columns. Arrow batches
(`to_arrow`, no copy) and records (`records`) come from that block. Damaged input never raises: the rows before the
damage are delivered, and the record set's `RowRange` names the damage and its offset.

The kernel is compiled (`COMPILED`). Where it could not be built, a plain-Python kernel with the same results replaces
it and warns once. It is about two hundred times slower.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kohort.columns.shapes import (
    BATCH_BYTES,
    BATCH_BYTES_NAME,
    COLUMNS,
    AbortedTransaction,
    Damage,
    DamageKind,
    DecodeOptions,
    RecordSet,
    RowRange,
)

if TYPE_CHECKING:
    from kohort.columns.choice import COMPILED as COMPILED
    from kohort.columns.choice import Record as Record
    from kohort.columns.choice import extent as extent
    from kohort.columns.decoded import Decoded as Decoded
    from kohort.columns.decoded import damage_error as damage_error

__all__ = [
    "BATCH_BYTES",
    "BATCH_BYTES_NAME",
    "COLUMNS",
    "COMPILED",
    "AbortedTransaction",
    "Damage",
    "DamageKind",
    "DecodeOptions",
    "Decoded",
    "Record",
    "RecordSet",
    "RowRange",
    "damage_error",
    "decode",
    "decode_all",
    "extent",
]

_DEFAULT = DecodeOptions()
_MODULES = {
    "COMPILED": "kohort.columns.choice",
    "Record": "kohort.columns.choice",
    "extent": "kohort.columns.choice",
    "Decoded": "kohort.columns.decoded",
    "damage_error": "kohort.columns.decoded",
}
"""Names that are imported at their first use: the client's settings need the shapes alone."""


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'kohort.columns' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def decode(sets: Sequence[RecordSet], options: DecodeOptions = _DEFAULT) -> Decoded:
    """Decode the record sets of one fetch response to columns; the compiled decoder releases the GIL meanwhile.

    Args:
        sets: One per partition; a partition may come more than once.
        options: Columns, isolation and limits.

    Returns:
        The columns of all sets in their order. When a limit of the options stopped it, `Decoded.finished` is False.
    """
    from kohort.columns.choice import decode_block
    from kohort.columns.decoded import Decoded

    ranges, block = decode_block(sets, options)
    return Decoded(sets, options, ranges, block)


def decode_all(sets: Sequence[RecordSet], options: DecodeOptions = _DEFAULT) -> Iterator[Decoded]:
    """Decode until nothing remains, in as many parts as the limits of the options require."""
    part = decode(sets, options)
    yield part
    while not part.finished:
        part = decode(part.remaining(), options)
        yield part
