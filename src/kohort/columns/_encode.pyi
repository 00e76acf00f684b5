from collections.abc import Callable
from typing import Any

from kohort.columns.shapes import BytesLike, HeadersLike

class Chunk:
    def __init__(self, limit: int) -> None: ...
    @property
    def count(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def base_timestamp(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    def append(self, timestamp: int, key: BytesLike | None, value: BytesLike | None, headers: HeadersLike) -> bool: ...
    def seal(
        self, codec: int, level: int | None, producer_id: int, producer_epoch: int, sequence: int, transactional: bool
    ) -> memoryview: ...

class Column:
    def __init__(self, buffers: list[Any], first: int, width: int, fixed: int = 0) -> None: ...

class HeaderColumn:
    def __init__(self, lists: Column, names: Column, contents: Column) -> None: ...

def murmur2(data: BytesLike) -> int: ...
def encode_columns(
    length: int,
    columns: tuple[Column | None, Column | None, HeaderColumn | None],
    times: tuple[Any, int, int] | None,
    partitions: tuple[Any, int] | None,
    count: int,
    pick_sticky: Callable[[], int],
    now: int,
    limit: int,
) -> list[tuple[int, Any]]: ...
