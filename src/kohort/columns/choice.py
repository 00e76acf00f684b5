"""The choice of the kernels: compiled where they were built, else plain Python with a warning."""

from __future__ import annotations

import importlib
import warnings
import zipimport
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from kohort.columns.decoded import Block
from kohort.columns.shapes import BytesLike, DecodeOptions, Extent, RecordSet, RowRange

if TYPE_CHECKING:
    from kohort.columns.record import Record as Record
    from kohort.columns.reference_encode import Chunk as Chunk

DecodeBlock: TypeAlias = Callable[[Sequence[RecordSet], DecodeOptions], tuple[list[RowRange], Block]]


def _remedy() -> str:
    """Return how to get the compiled modules that are missing here, for an error text.

    If kohort runs from an archive, Python can't import compiled modules from it.
    """
    loader: object = __spec__.loader
    if isinstance(loader, zipimport.zipimporter):
        return "kohort runs from an archive, as with --py-files: install it in the Python of each machine"
    return "install a C compiler, then kohort again (`kohort doctor` has the command)"


compiled_encode: Any
"""The module `_encode`; None where it was not built."""
try:
    _decode: Any = importlib.import_module("kohort.columns._kernel")
    compiled_encode = importlib.import_module("kohort.columns._encode")
except ImportError:
    compiled_encode = None
    _decode = importlib.import_module("kohort.columns.reference")
    warnings.warn(
        "kohort has no compiled kernel here: records are decoded and encoded in plain Python, about two hundred times "
        f"slower; {_remedy()}",
        RuntimeWarning,
        stacklevel=2,
    )

COMPILED = compiled_encode is not None
_encode: Any = compiled_encode or importlib.import_module("kohort.columns.reference_encode")
decode_block: DecodeBlock = _decode.decode_block
extent: Callable[[BytesLike], Extent] = _decode.extent
murmur2: Callable[[BytesLike], int] = _encode.murmur2
if not TYPE_CHECKING:
    Record = _decode.Record
    Chunk = _encode.Chunk
