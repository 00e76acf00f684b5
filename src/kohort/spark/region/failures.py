"""Whether a query that fails again and again gets anywhere: going back mends a full disk, and no wrong code."""

from __future__ import annotations

Where = frozenset[tuple[int, str, int, int]]
"""From where a batch reads: number of the source, topic, partition, offset."""
IN_A_ROW_MAX = 5


class Failures:
    """Of one query, while its application lives; for one thread.

    Sequences that are complete in between say nothing: others make them, and so does a query that has only begun. What
    counts is whether a failed batch begins where an earlier one did.
    """

    def __init__(self) -> None:
        self.last: BaseException | None = None
        self.in_a_row = 0
        self._where: Where = frozenset()

    def another(self, error: BaseException, where: Where) -> bool:
        """Note a failure of a batch that reads from there; gives whether it is one too many."""
        moved = bool(where) and bool(self._where) and not where & self._where
        self.in_a_row = 1 if moved else self.in_a_row + 1
        self.last, self._where = error, where or self._where
        return self.in_a_row >= IN_A_ROW_MAX
