"""Groups that an earlier coordinator has kept: asked for when they are first named here, and taken over once.

A group that is not here and was never imported is joined, committed to or fetched from. Until it is known what the
earlier coordinator holds, nobody may be told "no offset", or the group would begin anew and skip data in silence. So
the work `ImportGroup` leaves, who asks is told to come back (COORDINATOR_LOAD_IN_PROGRESS), and `GroupImported` says:

| the earlier coordinator | what follows |
|---|---|
| has offsets | they are taken over in one append, with a record that says so and outlives the group |
| has no such group, or no offsets | the group is new here; no record, or any made-up name would leave one |
| has members in it | refused with NON_EMPTY_GROUP; asked again after a while |
| does not answer | still COORDINATOR_LOAD_IN_PROGRESS; asked again, later each time |

NON_EMPTY_GROUP, since JoinGroup, OffsetCommit and OffsetFetch carry no text: clients show that of the code, "the group
is not empty", and do not take it for something that passes. ConsumerGroupHeartbeat says in words what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kohort.errors import ErrorCode
from kohort.groups.effects import ImportGroup, Level

if TYPE_CHECKING:
    from kohort.groups.events import GroupImported
    from kohort.groups.step import Context

UNDER_WAY_MAX = 1_000
"""Groups of a shard that are asked for at a time: bounds memory, whatever names clients make up. Others come again."""
VERDICTS_MAX = 10_000
"""Answers without a record that are remembered, the newest."""
NOTHING_MS = 5_000
"""So long it counts that there was nothing: clients that were told to come back are back in a second."""
REFUSED_MS = 2_000
"""So long who asks is refused before the earlier coordinator is asked again: the members there may have left.

Longer than the pauses of clients that were told to come back (a second and a fifth), or they would never hear of it.
"""
SILENT_MS = 500
"""Who gave no answer is asked again after this time, then after twice as long each time."""
SILENT_MAX_MS = 10_000
"""And at least this often."""


class Verdict(NamedTuple):
    """What who names a group is told.

    Attributes:
        error: NONE: go on.
        text: why, in words.
        until_ms: when it is forgotten, by the monotonic clock.
        failures: how often nobody has answered.
    """

    error: ErrorCode
    text: str = ""
    until_ms: int = 0
    failures: int = 0


GO_ON: Final = Verdict(ErrorCode.NONE)
COME_BACK: Final = Verdict(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "It is being asked for at its earlier coordinator.")


class Imports:
    """What is being asked, and what was answered a moment ago; soft state, which a load begins anew."""

    def __init__(self) -> None:
        self.under_way: dict[str, int] = {}
        self._verdicts: dict[str, Verdict] = {}

    def verdict(self, group_id: str, now_ms: int) -> Verdict | None:
        """What was answered, if that still counts."""
        verdict = self._verdicts.get(group_id)
        return verdict if verdict is not None and now_ms < verdict.until_ms else None

    def failures(self, group_id: str) -> int:
        """How often nobody has answered, since somebody did."""
        verdict = self._verdicts.get(group_id)
        return 0 if verdict is None else verdict.failures

    def remember(self, group_id: str, verdict: Verdict) -> None:
        """Keep an answer."""
        self._verdicts.pop(group_id, None)
        self._verdicts[group_id] = verdict
        if len(self._verdicts) > VERDICTS_MAX:
            del self._verdicts[next(iter(self._verdicts))]

    def forget(self, group_id: str) -> None:
        """The group is here."""
        self._verdicts.pop(group_id, None)


def admit(context: Context, group_id: str) -> Verdict:
    """Whether a group that is not here may be made, or be told to have nothing; asks for it if that is not known."""
    if context.config.group_import == "off" or group_id in context.ledger.imported:
        return GO_ON
    imports = context.imports
    verdict = imports.verdict(group_id, context.now.mono_ms)
    if verdict is not None:
        return verdict
    if group_id not in imports.under_way and len(imports.under_way) < UNDER_WAY_MAX:
        ticket = imports.under_way[group_id] = context.ticket()
        context.out.work.append(ImportGroup(group_id, ticket))
    return COME_BACK


def refuse(context: Context, event: GroupImported) -> None:
    """There is nothing to take over, or nothing that may be."""
    imports, now_ms = context.imports, context.now.mono_ms
    if event.error is ErrorCode.NONE:
        imports.remember(event.group_id, Verdict(ErrorCode.NONE, "", now_ms + NOTHING_MS))
    elif event.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        failures = imports.failures(event.group_id)
        wait_ms = min(SILENT_MS << min(failures, 10), SILENT_MAX_MS)
        imports.remember(event.group_id, Verdict(event.error, event.text, now_ms + wait_ms, failures + 1))
        if failures == 0:
            context.tell(event.group_id, f"not served yet: {event.text}", Level.WARNING)
    else:
        imports.remember(event.group_id, Verdict(event.error, event.text, now_ms + REFUSED_MS))
        context.tell(event.group_id, f"refused: {event.text}", Level.WARNING)
