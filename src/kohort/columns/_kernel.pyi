from collections.abc import Sequence

from kohort.columns.decoded import Block
from kohort.columns.record import Record as Record
from kohort.columns.shapes import BytesLike, DecodeOptions, RecordSet, RowRange

def decode_block(sets: Sequence[RecordSet], options: DecodeOptions) -> tuple[list[RowRange], Block]: ...
def crc32c(data: BytesLike, software: bool = False) -> int: ...
