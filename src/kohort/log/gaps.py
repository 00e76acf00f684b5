"""Compacted files: offsets beside gaps are verified only by the indexes, not by neighbouring batches.

A flipped bit may be in a batch or in an index. If a batch has neighbours on both sides, the batch is right and the
index wrong. The index is also wrong if several entries do not fit. A single entry that does not fit a batch beside a
gap means that the batch is damaged.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from kohort.log.continuity import IndexedPositions, LocatedBatch, SegmentRules
from kohort.log.damage import LogDamage


def damaged_by_index(
    findings: Iterable[LocatedBatch | LogDamage], pins: IndexedPositions, rules: SegmentRules
) -> int | None:
    """Return the position of the batch that is damaged according to the offset index, if it is exactly one.

    None if there is no such batch, or the index is wrong.
    """
    said = dict(zip(pins.positions, pins.offsets, strict=True))
    blamed: list[int] = []
    gap = False
    expected: int | None = rules.base_offset
    before = -1
    for found in findings:
        if isinstance(found, LogDamage):
            for position in [at for at in said if found.position <= at < found.position + (found.length or 0)]:
                del said[position]
            expected, before = None, -1
            continue
        header = found.header
        follows = header.base_offset == expected
        gap = gap or (before in blamed and not follows)
        relative = said.pop(found.position, None)
        if relative is not None and relative != header.last_offset - rules.base_offset:
            blamed.append(found.position)
            gap = gap or not follows
        expected, before = header.next_offset, found.position
    gap = gap or (before in blamed and expected != rules.limit)
    return blamed[0] if len(blamed) == 1 and gap and not said else None


def replace_batch_by_damage(
    findings: Iterable[LocatedBatch | LogDamage], position: int, rules: SegmentRules
) -> Iterator[LocatedBatch | LogDamage]:
    """Yield the scan results, with the batch at a position replaced by damage."""
    expected = rules.base_offset
    damaged: tuple[LocatedBatch, int] | None = None
    for found in findings:
        if damaged is not None:
            following = found.first_offset if isinstance(found, LogDamage) else found.header.base_offset
            yield _doubted(rules, *damaged, following)
            damaged = None
        if isinstance(found, LocatedBatch) and found.position == position:
            damaged = found, expected
            continue
        yield found
        expected = (found.next_offset or expected) if isinstance(found, LogDamage) else found.header.next_offset
    if damaged is not None:
        yield _doubted(rules, *damaged, rules.limit)


def _doubted(rules: SegmentRules, batch: LocatedBatch, first: int, following: int | None) -> LogDamage:
    reason = f"base offset {batch.header.base_offset}, which is not what the index says"
    return LogDamage(rules.path, batch.position, batch.header.size, first, following, reason)


def missing_end_damage(
    rules: SegmentRules, size: int, end_offset: int, claim: tuple[int, int] | None, timestamps: Container[int]
) -> LogDamage | None:
    """Return the damage at the end of a compacted file that is too short according to its time index.

    Args:
        end_offset: the offset after the last batch in the file.
        claim: the last entry of the time index: a timestamp, and the relative offset of its batch.
        timestamps: the largest timestamps of the scanned batches. If the entry's is among them, the index is wrong.
    """
    if claim is None or rules.limit is None or not end_offset <= rules.base_offset + claim[1] < rules.limit:
        return None
    if claim[0] in timestamps:
        return None
    reason = f"the file ends after {size} bytes, its time index goes on"
    return LogDamage(rules.path, size, 0, end_offset, rules.limit, reason)


class GapCount:
    """A count of the gaps in a compacted file during its scan, for the case that its offset index was lost.

    Nothing verifies the offsets beside the gaps then.

    Attributes:
        count: the number of gaps between batches.
        first: the first offset after a gap.
        timestamps: the largest timestamps of the batches.
    """

    def __init__(self, base_offset: int) -> None:
        self.count = 0
        self.first = -1
        self.timestamps: set[int] = set()
        self._expected: int | None = base_offset

    def count_gaps(self, findings: Iterable[LocatedBatch | LogDamage]) -> Iterator[LocatedBatch | LogDamage]:
        """Yield the scan results unchanged, and count the gaps between them."""
        for found in findings:
            if isinstance(found, LocatedBatch):
                header = found.header
                self.timestamps.add(header.max_timestamp)
                if self._expected is not None and header.base_offset > self._expected:
                    self.add_gap(header.base_offset)
                self._expected = header.next_offset
            else:
                self._expected = None
            yield found

    def add_gap(self, first: int) -> None:
        """Count a gap; `first` is the offset after it."""
        self.first = first if self.first < 0 else self.first
        self.count += 1

    def describe(self) -> str:
        """Describe for the log which offsets can't be verified without the offset index."""
        return (
            f"its offset index was missing or wrong, and nothing else tells whether the offsets of the batches beside "
            f"its {self.count} gaps are right, from offset {self.first} on; all of them are served. If the file was "
            "damaged too, restore the file and its index from a backup"
        )
