"""Background tasks of the group coordinator, run in threads: server-side assignments and regular expressions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from kohort.errors import InvalidInputError
from kohort.groups.consumer import assignment
from kohort.groups.effects import Computation, ComputePushAssignment, ResolveRegexes
from kohort.groups.events import AssignmentComputed, Event, PushAssignmentComputed
from kohort.groups.push import rebalance
from kohort.name_patterns import matching_names

log = logging.getLogger("kohort.groups")


def run_task(work: Computation, visible: Callable[[Iterable[str]], list[str]] = list) -> Event:
    """Run a group's background task, and return the event with its result.

    `visible` selects the topics that patterns may match.
    """
    if isinstance(work, ResolveRegexes):
        return assignment.resolve_regexes(work, lambda regex, topics: visible(matching_topics(regex, topics)))
    try:
        if isinstance(work, ComputePushAssignment):
            return rebalance.compute_push_assignment(work, matching_topics, visible)
        return assignment.compute_target_assignment(work)
    except Exception as error:
        # An assignor may be third-party code: whatever it raises is an error of the group, not of the broker.
        log.exception(
            "[group %s] the server-side assignor %s raised an exception: members keep their partitions without a new "
            "assignment",
            work.group_id,
            work.assignor,
        )
        failure = f"{type(error).__name__}: {error}"
        if isinstance(work, ComputePushAssignment):
            return PushAssignmentComputed(work.group_id, work.ticket, {}, {}, failure)
        return AssignmentComputed(work.group_id, work.ticket, work.epoch, {}, failure)


def matching_topics(regex: str, topics: Iterable[str]) -> Iterable[str]:
    """Return the topics that an expression matches in full; an expression that is refused matches none.

    A heartbeat's expression was accepted before. Refused ones come from a journal, or took too long with these topics.
    """
    try:
        return matching_names(regex, topics)
    except InvalidInputError as error:
        log.error(
            "a group's subscription by regular expression is refused, so its members get no topics from it: %s",
            error.message,
        )
        return ()
