"""Takes the compiled kernel where it was built, and the plain-Python one, with a warning, where not."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from kohort.columns.decoded import Block
from kohort.columns.shapes import DecodeOptions, RecordSet, RowRange

DecodeBlock: TypeAlias = Callable[[Sequence[RecordSet], DecodeOptions], tuple[list[RowRange], Block]]

decode_block: DecodeBlock
COMPILED: bool

if TYPE_CHECKING:
    from kohort.columns.record import Record as Record
else:
    try:
        from kohort.columns._kernel import Record, decode_block

        COMPILED = True
    except ImportError:
        from kohort.columns.record import Record  # noqa: F401
        from kohort.columns.reference import decode_block  # noqa: F401

        COMPILED = False
        warnings.warn(
            "kohort's compiled kernel was not built, decoding and encoding run in plain Python and slowly; "
            "install a C compiler and install kohort again",
            RuntimeWarning,
            stacklevel=2,
        )
