"""Imports: groups that an earlier coordinator has kept are looked up when they are first named here, and imported once.

The import starts when a client joins, commits to or fetches from a group that is not here and was never imported. Until
the earlier coordinator has answered, no client may be told "no offset": the group would start anew and silently skip
data. So the effect `ImportGroup` asks that coordinator. Meanwhile clients are told to retry
(COORDINATOR_LOAD_IN_PROGRESS), and the event `GroupImported` brings the answer:

| the earlier coordinator | what follows |
|---|---|
| has offsets | they are imported in one append, with an import record that outlives the group |
| has no such group, or no offsets | the group is new here; no record, or any made-up name would leave one |
| has members in the group | refused with NON_EMPTY_GROUP; asked again after a while |
| does not answer | still COORDINATOR_LOAD_IN_PROGRESS; asked again, later each time |

JoinGroup, OffsetCommit and OffsetFetch carry no text. Clients therefore show the text of the code NON_EMPTY_GROUP, "the
group is not empty", and do not retry after it. ConsumerGroupHeartbeat says in words what to do.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kohort.errors import ErrorCode
from kohort.groups.effects import ImportGroup, Level
from kohort.groups.events import GroupImported
from kohort.groups.step import Step

UNDER_WAY_MAX = 1_000
"""Groups of a shard that are looked up at the same time: bounds memory for made-up names. Others retry."""
VERDICTS_MAX = 10_000
"""The number of answers without a record that are remembered, the newest ones."""
NOTHING_MS = 5_000
"""How long "nothing to import" counts; clients that were told to retry do so within a second."""
REFUSED_MS = 2_000
"""How long clients are refused before the earlier coordinator is asked again: the members there may have left.

Longer than the retry pauses of clients (a second and a fifth); otherwise they would never see the refusal.
"""
SILENT_MS = 500
"""The delay before a coordinator that gave no answer is asked again; it doubles each time."""
SILENT_MAX_MS = 10_000
"""The longest such delay."""


class Verdict(NamedTuple):
    """The answer to a client that names a group which is not here.

    Attributes:
        error: NONE: proceed.
        text: the reason, in words.
        until_ms: when the verdict is forgotten, by the monotonic clock.
        failures: the number of attempts without an answer.
    """

    error: ErrorCode
    text: str = ""
    until_ms: int = 0
    failures: int = 0


PROCEED: Final = Verdict(ErrorCode.NONE)
RETRY_LATER: Final = Verdict(
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "The group is being looked up at its earlier coordinator."
)


class Imports:
    """Imports under way and recent answers; soft state that a load resets."""

    def __init__(self) -> None:
        self.under_way: dict[str, int] = {}
        self._verdicts: dict[str, Verdict] = {}

    def verdict(self, group_id: str, now_ms: int) -> Verdict | None:
        """Return the last answer if it still counts."""
        verdict = self._verdicts.get(group_id)
        return verdict if verdict is not None and now_ms < verdict.until_ms else None

    def failures(self, group_id: str) -> int:
        """Return the number of unanswered attempts since the last answer."""
        verdict = self._verdicts.get(group_id)
        return 0 if verdict is None else verdict.failures

    def remember(self, group_id: str, verdict: Verdict) -> None:
        """Remember an answer."""
        self._verdicts.pop(group_id, None)
        self._verdicts[group_id] = verdict
        if len(self._verdicts) > VERDICTS_MAX:
            del self._verdicts[next(iter(self._verdicts))]

    def forget(self, group_id: str) -> None:
        """Forget the answer, because the group exists here now."""
        self._verdicts.pop(group_id, None)

    def admit(self, step: Step, group_id: str) -> Verdict:
        """Return whether a missing group may be created or reported as empty; start an import if that is unknown."""
        verdict = self.verdict(group_id, step.now.mono_ms)
        if verdict is not None:
            return verdict
        if group_id not in self.under_way and len(self.under_way) < UNDER_WAY_MAX:
            ticket = self.under_way[group_id] = step.ticket()
            step.begin_task(ImportGroup(group_id, ticket))
        return RETRY_LATER

    def refuse(self, step: Step, event: GroupImported) -> None:
        """Remember that there is nothing to import, or nothing that may be imported."""
        now_ms = step.now.mono_ms
        if event.error is ErrorCode.NONE:
            self.remember(event.group_id, Verdict(ErrorCode.NONE, "", now_ms + NOTHING_MS))
        elif event.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            failures = self.failures(event.group_id)
            wait_ms = min(SILENT_MS << min(failures, 10), SILENT_MAX_MS)
            self.remember(event.group_id, Verdict(event.error, event.text, now_ms + wait_ms, failures + 1))
            if failures == 0:
                text = f"not served until its earlier coordinator answers: {event.text}"
                step.log(event.group_id, text, Level.WARNING)
        else:
            self.remember(event.group_id, Verdict(event.error, event.text, now_ms + REFUSED_MS))
            step.log(event.group_id, f"refused: {event.text}", Level.WARNING)
