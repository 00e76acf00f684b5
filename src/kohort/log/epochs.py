"""Leader epochs with their first offsets, ascending: what a partition says of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


def end_of(epochs: Sequence[tuple[int, int]], epoch: int, end_offset: int) -> tuple[int, int]:
    """`(epoch, end)` of the largest epoch not above `epoch`, which is over, in a log that ends at `end_offset`.

    One before the first that is known ended where that began.
    """
    number = bisect_right(epochs, (epoch, end_offset)) - 1
    if number < 0:
        return epoch, epochs[0][1]
    return epochs[number][0], epochs[number + 1][1] if number + 1 < len(epochs) else end_offset


def epoch_at(epochs: Sequence[tuple[int, int]], offset: int) -> int:
    """The epoch that an offset was written in, -1 if that is not known."""
    number = bisect_right(epochs, offset, key=lambda entry: entry[1]) - 1
    return epochs[number][0] if number >= 0 else -1


def begun(epochs: Sequence[tuple[int, int]], epoch: int, start: int, end: int) -> list[tuple[int, int]]:
    """The epochs of a log from `start` to `end` once another begins: without those that no record is left of."""
    kept = [entry for entry in epochs if entry[1] < end]
    while len(kept) > 1 and kept[1][1] <= start:
        del kept[0]
    return [*kept, (epoch, end)]
