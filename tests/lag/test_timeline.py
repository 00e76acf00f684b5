"""Changes of a group between two reads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kohort.client.admin.values import GroupDescription, MemberDescription
from kohort.errors import ErrorCode, error_for
from kohort.ids import TopicPartition
from kohort.lag import GroupLag, LagReport, LagStatus, PartitionLag, ReadFailure, changes, changes_between
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
def test_changes_are_listed_from_cause_to_consequence(
    before: GroupLag | None, now: GroupLag | None, said: list[str]
) -> None:
    assert [f"{change.kind}: {change.text}" for change in changes(before, now)] == said


def test_groups_begin_and_end_between_two_reports() -> None:
    before = LagReport(1, {"gone": group(), "stays": group()}, {"new": error_for(ErrorCode.GROUP_ID_NOT_FOUND, "new")})
    report = LagReport(2, {"new": group(), "stays": group(ANNA)})
    found = [(name, change.kind) for name, change in changes_between(before, report)]
    assert found == [("gone", "ended"), ("new", "created"), ("stays", "joined"), ("stays", "assignment")]


def test_group_that_could_not_be_read_neither_begins_nor_ends() -> None:
    whole, refused = LagReport(1, {"g": group()}), error_for(ErrorCode.GROUP_AUTHORIZATION_FAILED, "g")
    incomplete = LagReport(2, {}, failures=(ReadFailure("broker 2", "timed_out", "no answer"),))
    for partial in (LagReport(2, {}, {"g": refused}), incomplete):
        assert changes_between(whole, partial) == []
        assert changes_between(partial, whole) == []
