"""How much a micro-batch takes, and from which partitions. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)


def fair_shares(available: Mapping[Key, int], limit: int, first: int = 0) -> dict[Key, int]:
    """Split `limit` over partitions so that none starves: equal shares, what one can't use going to the others.

    Args:
        available: records waiting, by partition, in a stable order.
        limit: the most to take of all together.
        first: whose turn it is when single records are left over; a count that the caller raises with each batch.

    Returns:
        What to take of each, never more than it has; together `min(limit, sum(available))`.
    """
    shares = dict.fromkeys(available, 0)
    if sum(available.values()) <= limit:
        return {key: max(0, count) for key, count in available.items()}
    left = limit
    open_keys = sorted((key for key in available if available[key] > 0), key=lambda key: available[key])
    while open_keys:
        level = left // len(open_keys)
        key = open_keys[0]
        if available[key] > level:
            break
        shares[key] = available[key]
        left -= available[key]
        open_keys.pop(0)
    if open_keys:
        level, rest = divmod(left, len(open_keys))
        order = [key for key in available if key in set(open_keys)]
        turn = first % len(order)
        for place, key in enumerate(order[turn:] + order[:turn]):
            shares[key] = level + (1 if place < rest else 0)
    return shares


@dataclass(slots=True)
class BytesSeen:
    """Bytes per record of one partition, as a sliding mean of samples."""

    mean: float
    batches_ago: int = 0

    def add(self, mean: float) -> None:
        self.mean += (mean - self.mean) / 2
        self.batches_ago = 0


def limit_by_bytes(available: Mapping[Key, int], bytes_per_record: Mapping[Key, float], limit: int) -> int:
    """The number of records that a byte limit lets through, at least one, if a batch is split fairly.

    Args:
        available: records waiting, by partition.
        bytes_per_record: an estimate for each of these partitions.
        limit: bytes.
    """
    low, high = 1, max(1, sum(available.values()))
    while low < high:
        middle = (low + high + 1) // 2
        shares = fair_shares(available, middle)
        if sum(shares[key] * bytes_per_record[key] for key in shares) <= limit:
            low = middle
        else:
            high = middle - 1
    return low
