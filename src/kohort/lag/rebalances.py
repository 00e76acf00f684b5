"""Rebalances as kohort's coordinators record them, in words and as rows. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kohort.client.admin.values import GroupRebalanced

CAUSES_SHOWN = 3
"""The most causes of a rebalance in a sentence."""


def rebalance_text(rebalance: GroupRebalanced) -> str:
    """Return a rebalance as a sentence: the causes first, then the members after it and the downtime."""
    causes = [cause.text for cause in rebalance.causes[:CAUSES_SHOWN]]
    more = len(rebalance.causes) - len(causes) + rebalance.causes_left_out
    if more:
        causes.append(f"{more} more")
    why = "; ".join(causes)
    if rebalance.ended_ms is None:
        return f"{why}; under way"
    if not rebalance.members:
        return f"{why}; no members are left"
    took = f"{_seconds(rebalance.ended_ms - rebalance.began_ms)} until {_counted(rebalance.members)} had partitions"
    still = f", standstill {_seconds(rebalance.downtime_ms)}" if rebalance.downtime_ms else ", nothing stood still"
    return f"{why}; {took}{still}"


def rebalances_since(
    before: Sequence[GroupRebalanced] | None, now: Sequence[GroupRebalanced] | None
) -> list[GroupRebalanced]:
    """Return the rebalances that ended since an earlier read of the same group, the oldest first."""
    known = {_key(rebalance) for rebalance in before or () if rebalance.ended_ms is not None}
    return [rebalance for rebalance in now or () if rebalance.ended_ms is not None and _key(rebalance) not in known]


def _key(rebalance: GroupRebalanced) -> tuple[int, int | None, int | None]:
    return rebalance.began_ms, rebalance.ended_ms, rebalance.generation


def _counted(members: int) -> str:
    return "1 member" if members == 1 else f"all {members} members"


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.1f} s"
