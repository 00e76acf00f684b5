"""Whether to believe a broker that does not have an offset.

A leader that stood still answers as leader for a moment after it wakes, when another has led for long: what that one
took is not there, and a reset would begin the partition anew. The leader epoch tells such a broker from the leader
where both the position and the metadata have one (KIP-320): a position of a later epoch says that the metadata is old.
Where a position has none, the answer has to last.
"""

from __future__ import annotations

from typing import Final

from kohort.client.consumer.subscription import Position
from kohort.client.net.metadata import PartitionInfo

CONFIRM_MS: Final = 1_000
"""A broker that woke has learnt by then that it leads no more."""
BEHIND_MS: Final = 10_000
"""All brokers name an earlier epoch than the position's for so long: that was of another log under this name."""


def patience_ms(position: Position, info: PartitionInfo | None) -> int:
    """How long brokers have to say that they do not have a position, until that is believed.

    Args:
        position: What was asked for.
        info: What the metadata says of its partition.
    """
    named = -1 if info is None else info.leader_epoch
    if position.leader_epoch < 0 or named < 0:
        return CONFIRM_MS
    return 0 if position.leader_epoch <= named else BEHIND_MS
