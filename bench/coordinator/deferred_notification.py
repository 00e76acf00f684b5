"""A comparison in virtual time of ways to notify a classic eager group of a change, by its members' working time.

`python -m bench.coordinator.deferred_notification` prints a table; docs/notification.md holds one, and the decision.
The policies are:

- off: as in Apache Kafka, a member learns of the change from the response to its next heartbeat;
- parking: responses are delayed while nothing happens, and all delayed ones are released at once on a change;
- one interval: deferred notification. On a change everyone continues until all responses are delayed or a deadline has
  passed, and is notified then. A response may be released earlier, by a commit or at the end of its delay. Its member
  is then notified at once only if its next heartbeat is due after the deadline. The deadline is one interval;
- last due: deferred notification with an earlier deadline. The deadline is the moment when the last missing heartbeat
  is due, if that is earlier. This is what kohort.groups.classic.deferred_notification does.

A notified member joins at its next poll. It stands still from then until the last has joined and the leader's
assignment has arrived.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from rich.console import Console
from rich.table import Table

INTERVAL_S = 3.0
HELD_SHARE = 0.9
BEFORE_S = 25.0
"""How long members live before the change, so that their heartbeats and commits are in step with nothing."""
AUTO_COMMIT_S = 5.0
ROUND_S = 0.01
ROUND_PER_MEMBER_S = 0.0002
"""From the last join to the assignment: measured with 100 and 1,000 members."""
POLICIES = ("off", "parking", "one interval", "last due")
GATHERING = POLICIES[2:]
LATE_S = 0.1
"""A heartbeat may come so much later than it is due."""
COMMITS = ("none", "each 5 s", "each poll")
TIMED_FROM = ("send", "reply")


@dataclass(frozen=True, slots=True)
class Group:
    """Members that are alike.

    Attributes:
        commits: of `COMMITS`.
        timed_from: whether the next heartbeat is due an interval after the last was sent, or was answered.
        poll_s: the longest time between two polls.
    """

    members: int
    commits: str
    timed_from: str
    poll_s: float


class Member:
    """When it acts next, and how it stands."""

    __slots__ = ("due", "held", "joined", "notified", "sent", "version")

    def __init__(self) -> None:
        self.sent = 0.0
        self.due = 0.0
        self.held = False
        self.notified = False
        self.joined = 0.0
        self.version = 0


class Trial:
    """One change in one group."""

    def __init__(self, group: Group, policy: str, seed: int) -> None:
        self.group = group
        self.policy = policy
        self.chance = random.Random(seed)
        self.now = 0.0
        self.members = [Member() for _ in range(group.members)]
        self.changed = False
        self.deadline = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._untold = group.members
        self._not_held = group.members

    def play(self) -> tuple[float, float]:
        """The whole time and the median downtime, in seconds."""
        for member in self.members:
            self._at(self.chance.random() * 2 * INTERVAL_S, self._beat(member))
            if self.group.commits != "none":
                self._at(self.chance.random() * self._commit_pause(), self._commit(member))
        change = BEFORE_S + self.chance.random() * INTERVAL_S
        self._at(change, self._change)
        while self._untold:
            self.now, _, act = heapq.heappop(self._events)
            act()
        last = max(member.joined for member in self.members)
        assigned = last + ROUND_S + ROUND_PER_MEMBER_S * self.group.members
        return assigned - change, statistics.median(assigned - member.joined for member in self.members)

    def _at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), act))

    def _commit_pause(self) -> float:
        return AUTO_COMMIT_S if self.group.commits == "each 5 s" else self.group.poll_s * self.chance.uniform(0.2, 1.0)

    def _beat(self, member: Member) -> Callable[[], None]:
        def act() -> None:
            if member.notified:
                return
            member.sent = self.now
            if self.policy == "off" or (self.changed and self.policy == "parking"):
                self._answer(member, notify=self.changed)
                return
            member.held = True
            self._not_held -= 1
            member.version += 1
            version = member.version
            self._at(self.now + HELD_SHARE * INTERVAL_S, lambda: self._release(member, version))
            self._notify_if_all_held()

        return act

    def _commit(self, member: Member) -> Callable[[], None]:
        def act() -> None:
            if member.notified:
                return
            self._release(member, member.version)
            self._at(self.now + self._commit_pause(), self._commit(member))

        return act

    def _release(self, member: Member, version: int) -> None:
        """A hold ends, or a commit came."""
        if not member.held or member.version != version:
            return
        member.held = False
        self._not_held += 1
        self._answer(member, notify=self.changed and self._next_due(member) > self.deadline)
        self._notify_if_all_held()

    def _next_due(self, member: Member) -> float:
        return (self.now if self.group.timed_from == "reply" else member.sent) + INTERVAL_S

    def _answer(self, member: Member, *, notify: bool) -> None:
        if notify:
            self._notify(member)
            return
        member.due = max(self._next_due(member), self.now)
        self._at(member.due, self._beat(member))

    def _notify(self, member: Member) -> None:
        member.notified = True
        self._untold -= 1
        self._not_held -= not member.held
        member.held = False
        member.joined = self.now + 0.002 + self.chance.random() * self.group.poll_s

    def _change(self) -> None:
        self.changed = True
        if self.policy == "parking":
            self._notify_all()
        elif self.policy in GATHERING:
            self.deadline = self.now + INTERVAL_S
            if self.policy == "last due":
                last = max((member.due for member in self.members if not member.held), default=self.now)
                self.deadline = min(self.deadline, last + LATE_S)
            self._at(self.deadline, self._end)
            self._notify_if_all_held()

    def _end(self) -> None:
        self.policy = "parking"  # whoever is not held is told when it comes
        self._notify_all()

    def _notify_if_all_held(self) -> None:
        if self.changed and self._not_held == 0 and self.policy in GATHERING:
            self._notify_all()

    def _notify_all(self) -> None:
        for member in self.members:
            if member.held and not member.notified:
                self._notify(member)


def compare(group: Group, runs: int) -> dict[str, tuple[float, float]]:
    """Policy to mean whole time and mean of the median downtime, in seconds, over the same changes."""
    found = {}
    for policy in POLICIES:
        results = [Trial(group, policy, seed).play() for seed in range(runs)]
        whole, still = zip(*results, strict=True)
        found[policy] = (statistics.fmean(whole), statistics.fmean(still))
    return found


def main() -> None:
    """Compare over sizes, commits, timing and poll loops."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", default="3,10,100,300")
    parser.add_argument("--poll-s", default="0.1", help="longest times between two polls")
    parser.add_argument("--runs", type=int, default=10, help="changes per group and policy")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    table = Table("members", "commits", "timed from", "poll", *POLICIES, title="whole time; median downtime (s)")
    for poll in map(float, options.poll_s.split(",")):
        for commits in COMMITS:
            for timed_from in TIMED_FROM:
                for members in map(int, options.members.split(",")):
                    group = Group(members, commits, timed_from, poll)
                    found = compare(group, options.runs)
                    if options.json:
                        print(
                            json.dumps(
                                {"members": members, "commits": commits, "timed_from": timed_from, "poll_s": poll}
                                | found
                            )
                        )
                    cells = [f"{whole:.2f}; {still:.2f}" for whole, still in found.values()]
                    table.add_row(str(members), commits, timed_from, f"{poll:g}", *cells)
    if not options.json:
        Console().print(table)


if __name__ == "__main__":
    main()
