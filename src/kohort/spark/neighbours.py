"""Other members of a query's group that subscribe to something else: legal, and mostly a `group.id` used twice.

Each gets partitions of its own topics only, whatever else the group reads; and all rebalance together.
"""

from __future__ import annotations

import logging
import re
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from kohort.client.net.thread_driver import ThreadClient
from kohort.client.settings import ConsumerConfig, client_config
from kohort.errors import KafkaError
from kohort.spark.options import SourceOptions, client_settings
from kohort.spark.topic_pattern import topic_pattern

if TYPE_CHECKING:
    from kohort.client.admin.values import GroupDescription, MemberDescription, Results

log = logging.getLogger("kohort.spark")

LOOK_MS = 30_000
"""How long the coordinator may take to describe the group; nothing waits for it."""
LOOKS_MOST = 10
"""How often it is asked: a classic group that rebalances does not tell what its members subscribe to."""
NAMED_MOST = 5
"""So many members are named in the warning."""
CLOSE_MS = 500
"""How long the connections' end may take."""


class Neighbours:
    """Looks once, after the first assignment, who else is in the group.

    Over connections of its own: answers come in order, and a heartbeat would wait behind this one.
    """

    def __init__(self, options: SourceOptions) -> None:
        """Nothing is connected or asked yet."""
        self._options, self._group = options, str(options.group_id)
        self._lock = threading.Lock()
        self._left = LOOKS_MOST
        self._client: ThreadClient | None = None
        self._asked: Future[Results[str, GroupDescription]] | None = None

    def warning(self, mine: str) -> str | None:
        """What to warn of, once it is known. Asks where it must, and never waits: to be called now and then.

        Who may not describe the group hears nothing: a member needs no right to.

        Args:
            mine: this query's member id; empty before the first assignment.
        """
        with self._lock:
            if not self._left or not mine:
                return None
            if self._asked is None:
                self._asked = self._ask()
            if not self._asked.done():
                return None
            asked, self._asked = self._asked, None
            try:
                found = asked.result().result(self._group)
            except KafkaError as error:
                log.debug("who else is in the group %s is not known: %s", self._group, error)
                self._end()
                return None
            self._left -= 1
            told = is_told(found, mine)
            if told or not self._left:
                self._end()
            return warning_of(found, mine, self._options.subscribe_pattern) if told else None

    def close(self) -> None:
        """Ask nothing more."""
        with self._lock:
            self._end()

    def _ask(self) -> Future[Results[str, GroupDescription]]:
        from kohort.client.admin.groups import describe_consumer_groups

        if self._client is None:
            settings = client_settings(self._options) | {"group_id": self._group}
            self._client = ThreadClient(client_config(ConsumerConfig, self._options.bootstrap_servers, settings))
        asking = describe_consumer_groups(self._client.cluster, [self._group], timeout_ms=LOOK_MS)
        return self._client.submit(asking, f"neighbours in {self._group}")

    def _end(self) -> None:
        self._left = 0
        if self._client is not None:
            self._client.close(self._client.until_s(CLOSE_MS))


def is_told(group: GroupDescription, mine: str) -> bool:
    """Whether the coordinator says of every member what it subscribes to, this one included."""
    told = {one.member_id for one in group.members if one.subscription is not None}
    return mine in told and len(told) == len(group.members)


def warning_of(group: GroupDescription, mine: str, pattern: str | None = None) -> str | None:
    """What to warn of: the members that subscribe to something else than this one; None where there is none.

    A pattern and topics that it finds count as the same: members learn of new topics one after another.

    Args:
        group: with all its members' subscriptions.
        mine: this member's id.
        pattern: what it subscribes to, if not topics by name.
    """
    (me,) = (one for one in group.members if one.member_id == mine)
    others = [one for one in group.members if one is not me and not _alike(me, one, pattern)]
    if not others:
        return None
    named = [f"{one.client_id} at {one.host.lstrip('/')} to {_topics(one)}" for one in others[:NAMED_MOST]]
    if len(others) > NAMED_MOST:
        named.append(f"{len(others) - NAMED_MOST} more")
    reads = _topics(me) if pattern is None else f"the pattern {pattern}"
    return (
        f"members of the group {group.group_id} subscribe to other topics than this query, which reads {reads}: "
        f"{'; '.join(named)}. Each gets records of its own topics only, and all of them stand still when one comes or "
        "goes: give each query a group.id of its own, unless this is meant"
    )


def _alike(me: MemberDescription, other: MemberDescription, pattern: str | None) -> bool:
    if (me.subscription, me.subscription_regex or None) == (other.subscription, other.subscription_regex or None):
        return True
    if pattern is not None:
        finds = topic_pattern(pattern).finds
        same = other.subscription_regex == pattern
        return same or bool(other.subscription and all(map(finds, other.subscription)))
    return bool(other.subscription_regex and _may_find(other.subscription_regex, me.subscription or ()))


def _may_find(regex: str, topics: tuple[str, ...]) -> bool:
    """Whether another member's pattern finds topics; so it may where it is none of Python's."""
    try:
        return all(re.fullmatch(regex, topic) for topic in topics)
    except re.error:
        return True


def _topics(one: MemberDescription) -> str:
    return ", ".join(one.subscription or ()) or f"the pattern {one.subscription_regex}"
