"""Changes of a group between two reads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kohort.client.admin.values import GroupDescription, MemberDescription
from kohort.ids import TopicPartition
from kohort.lag import GroupLag, LagStatus, PartitionLag, changes
from kohort.lag.timeline import NAMED_MAX

PARTS = [TopicPartition("t", number) for number in range(8)]
ANNA = MemberDescription("a-1", "anna", "/10.0.0.1", None, (PARTS[0], PARTS[1]))
BERT = MemberDescription("b-1", "bert", "/10.0.0.2", "static-b", (PARTS[1],))


def group(*members: MemberDescription, state: str = "Stable", parts: tuple[PartitionLag, ...] = ()) -> GroupLag:
    return GroupLag(GroupDescription("g", "Classic", state, "consumer", "range", members, 1), True, parts)


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (None, None, []),
        (None, group(), ["created: the group is there"]),
        (group(), None, ["ended: it is gone"]),
        (group(ANNA), group(ANNA), []),
        (
            group(ANNA),
            group(replace(ANNA, assignment=(PARTS[0],)), BERT),
            ["joined: bert (static-b) at /10.0.0.2", "assignment: moved: t-1"],
        ),
        (
            group(ANNA),
            group(state="Empty"),
            ["left: anna at /10.0.0.1", "state: Stable to Empty", "assignment: unassigned: t-0 t-1"],
        ),
        (
            group(state="Empty"),
            group(replace(ANNA, assignment=tuple(PARTS))),
            [
                "joined: anna at /10.0.0.1",
                "state: Empty to Stable",
                f"assignment: assigned: t-0 t-1 t-2 t-3 t-4 and {len(PARTS) - NAMED_MAX} more",
            ],
        ),
        (
            group(),
            group(parts=(PartitionLag(PARTS[0], status=LagStatus.STOP, cause="no members"),)),
            ["status: OK to STOP: no members"],
        ),
    ],
)
def test_changes_are_told_from_cause_to_consequence(
    before: GroupLag | None, now: GroupLag | None, said: list[str]
) -> None:
    assert [f"{change.kind}: {change.text}" for change in changes(before, now)] == said
