"""Rebalances of a push group: one at a time, with a second mark for changes during a rebalance.

A rebalance computes a new assignment in the background and compares it with what members own. Then it stops and starts
the members that gain or lose partitions, or all of them (`push.rebalance`). It is complete when all have been started.

An attempt may take as long as the slowest member has for its answers. After that it is retried following a backoff, at
most `push.rebalance.retries.max` times. Then the rebalance fails: members that have not answered are disconnected, and
a new rebalance begins after the backoff. A change during a rebalance sets the second mark, so that another rebalance
follows. Source: spec 4.6, 4.7, 4.9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kohort.assignors import MemberSubscription, server_assignor
from kohort.groups.effects import Cause, ComputePushAssignment, Level, RebalanceReason
from kohort.groups.events import PushAssignmentComputed, PushRequestKind, Topic
from kohort.groups.push.requests import PushRequests, ping_interval_ms
from kohort.groups.records import PushMemberSaved
from kohort.groups.step import Step
from kohort.groups.topics import (
    ImageChange,
    TopicIdPartition,
    TopicIdPartitions,
    assignable_topic,
    pack_partitions,
    topic_id_partition_sort_key,
)
from kohort.ids import TopicId, TopicPartition

# -- Assignment of a push group's partitions, for any thread
#
# A consumer counts as many takers as it has streams of a topic. Regular expressions are resolved here too, without
# internal topics. Source: spec 4.7, 4.8.

ASSIGNORS = {"sticky": "uniform", "range": "range"}
"""The coordinator's assignors by the values of `push.assignor`; uniform leaves partitions where they are."""
INTERNAL = "__"
"""The prefix of internal topics' names."""

AGAIN_CAUSES_MAX = 10
"""The most causes of a next rebalance that are kept during one."""

Matched = Mapping[tuple[str, bool], frozenset[str]]


def compute_push_assignment(
    work: ComputePushAssignment,
    match: Callable[[str, Iterable[str]], Iterable[str]],
    visible: Callable[[Iterable[str]], Iterable[str]] = list,
) -> PushAssignmentComputed:
    """Compute the assignment that a `ComputePushAssignment` asks for.

    `match` is the caller's regular expression engine; patterns select only topics that `visible` returns.
    """
    matched = {
        (member.regex, member.excluding): frozenset(
            visible(selected_topics(member.regex, member.excluding, work.topics, match))
        )
        for member in work.members.values()
        if member.regex is not None
    }
    by_id = {topic.id: topic for topic in work.topics.values()}
    takers: dict[str, MemberSubscription] = {}
    member_of: dict[str, str] = {}
    for member_id, member in work.members.items():
        reads = {
            topic: streams
            for topic, streams in streams_by_topic(member, matched).items()
            if topic in work.topics  # others have no partitions yet
        }
        for taker, subscription in streams_as_members(member_id, reads, work.current[member_id], by_id).items():
            takers[taker] = subscription
            member_of[taker] = member_id
    read = {topic for subscription in takers.values() for topic in subscription.topics}
    infos = {name: assignable_topic(work.topics[name], range(work.topics[name].partitions)) for name in sorted(read)}
    given: dict[str, set[TopicIdPartition]] = {member_id: set() for member_id in work.members}
    if takers:
        for taker, parts in server_assignor(ASSIGNORS[work.assignor]).assign(takers, infos).items():
            given[member_of[taker]].update((work.topics[topic].id, number) for topic, number in parts)
    shares = {member_id: pack_partitions(pairs) for member_id, pairs in given.items()}
    return PushAssignmentComputed(work.group_id, work.ticket, shares, matched)


def selected_topics(
    regex: str, excluding: bool, topics: Mapping[str, Topic], match: Callable[[str, Iterable[str]], Iterable[str]]
) -> frozenset[str]:
    """Return the topics that match a consumer's regular expression or, if it is excluding, the other topics."""
    names = [name for name in sorted(topics) if not name.startswith(INTERNAL)]
    matches = frozenset(match(regex, names))
    return frozenset(names) - matches if excluding else matches


def streams_by_topic(member: PushMemberSaved, matched: Matched) -> Mapping[str, int]:
    """Return the topics that a consumer reads, and how many of its streams read each."""
    if member.regex is None:
        return dict(member.topics)
    return dict.fromkeys(matched[member.regex, member.excluding], member.streams)


def streams_as_members(
    member_id: str,
    streams_of: Mapping[str, int],
    owned: Iterable[TopicIdPartition],
    topics_by_id: Mapping[TopicId, Topic],
) -> dict[str, MemberSubscription]:
    """Return a consumer's streams, each as a member of its own for the assignor, with its share of the partitions.

    Args:
        member_id: the consumer.
        streams_of: the number of streams for each topic that the consumer reads.
        owned: the consumer's present partitions.
        topics_by_id: all topics.
    """
    held: dict[int, list[TopicPartition]] = {}
    dealt: dict[str, int] = {}
    for topic_id, number in sorted(owned, key=topic_id_partition_sort_key):
        topic = topics_by_id.get(topic_id)
        if topic is not None and topic.name in streams_of and number < topic.partitions:
            stream = dealt.get(topic.name, 0)
            dealt[topic.name] = stream + 1
            held.setdefault(stream % streams_of[topic.name], []).append(TopicPartition(topic.name, number))
    return {
        f"{member_id}-{stream}": MemberSubscription(
            topics=tuple(sorted(topic for topic, streams in streams_of.items() if streams > stream)),
            owned=tuple(held.get(stream, ())),
            generation=1,
        )
        for stream in range(max(streams_of.values(), default=1))
    }


class PushRebalance(PushRequests):
    """The rebalance of a push group: its beginning, its end, and which members it moves."""

    def request_rebalance(self, step: Step, cause: Cause) -> None:
        """Start a rebalance after a change, or mark that another one must follow the current one."""
        if not self.members:
            step.record_rebalance_cause(self.group_id, cause)
            self.end_rebalance()
            step.record_group_emptied(self.group_id)
        elif self.rebalancing or self.backoff.due_ms is not None:
            self.again = True
            self.again_causes = [*self.again_causes, cause][:AGAIN_CAUSES_MAX]
        else:
            step.record_rebalance_cause(self.group_id, cause)
            step.log(self.group_id, f"rebalance started: {cause.text}", Level.DEBUG)
            self.attempt, self.began_ms, self.still = 0, step.now.mono_ms, []
            self.request_assignment(step)

    def end_rebalance(self) -> None:
        """End the current rebalance, and clear the mark for another one."""
        self.rebalancing = self.again = False
        self.again_causes = []
        self.dividing = -1
        self.began_ms = None
        if not self.members:
            self.unregistered = {}
        self.set_members_to_start({})
        self.attempts.cancel()
        self.backoff.cancel()

    def request_assignment(self, step: Step) -> None:
        """Start the background task that divides the partitions, unless it is under way."""
        self.rebalancing = True
        step.mark_for_zookeeper(self.group_id)
        for cause in self.again_causes:  # this assignment answers them
            step.record_rebalance_cause(self.group_id, cause)
        self.again, self.again_causes = False, []
        if self.dividing >= 0:
            self.again = True
            return
        self.dividing = step.next_task_number()
        step.begin_task(
            ComputePushAssignment(
                group_id=self.group_id,
                ticket=self.dividing,
                assignor=step.config.push_assignor,
                members=dict(self.members),
                current={member_id: self.owned_by(member_id) for member_id in self.members},
                topics=step.image.topics,
            )
        )

    def needs_rebalance(self, targets: dict[str, TopicIdPartitions]) -> bool:
        """Return whether any member has to move: the four conditions of the specification.

        No owner is known, a partition has no owner, a partition is gone, or its owner changes. Source: spec 4.7.
        """
        return any(self.needs_restart(member_id, want) for member_id, want in targets.items())

    def needs_restart(self, member_id: str, want: TopicIdPartitions) -> bool:
        """Return whether a member needs a Stop and a Start in this rebalance.

        It gets other partitions, has been sent a Stop, or its owner nodes in ZooKeeper were deleted.
        """
        member = self.present[member_id]
        stops = member.stopped or member.asked is PushRequestKind.STOP
        return want != self.owned_by(member_id) or stops or member_id in self.unregistered

    def attempt_timeout_ms(self) -> int:
        """Return the time limit of an attempt: three request intervals of the slowest member (Stop, Ping, Start)."""
        return 3 * max(ping_interval_ms(saved) for saved in self.members.values())

    def complete_if_all_started(self, step: Step) -> None:
        """Complete the rebalance if all members have been started; start another one if something changed meanwhile."""
        if not self.rebalancing or self.dividing >= 0 or self.moving or self.backoff.due_ms is not None:
            return
        began_ms, still, again, causes = self.began_ms, self.still, self.again, self.again_causes
        self.end_rebalance()
        step.mark_for_zookeeper(self.group_id)
        step.report_rebalance(self.group_id, "push", began_ms, still, len(self.members), -1)
        if again:
            text = "something changed during the last rebalance"
            for cause in causes[:-1]:
                step.record_rebalance_cause(self.group_id, cause)
            self.request_rebalance(step, causes[-1] if causes else Cause(RebalanceReason.COORDINATOR, text))

    def continue_attempt(self, step: Step) -> None:
        """Restart the time limit of the attempt after an eviction, for members that waited for the evicted one."""
        if self.attempts.due_ms is not None and self.members:
            step.start_timer(self.attempts, self.attempt_timeout_ms())
        self.complete_if_all_started(step)

    def restart_member(self, step: Step, member_id: str) -> None:
        """Make a member stop, and start with its own partitions, because it may read partitions of others.

        A rebalance begins if none is under way.
        """
        self.set_members_to_start(self.moving | {member_id: self.owned_by(member_id)})
        if not self.rebalancing:
            self.rebalancing = True
            step.mark_for_zookeeper(self.group_id)
            self.attempt, self.began_ms, self.still = 0, step.now.mono_ms, []
            step.start_timer(self.attempts, self.attempt_timeout_ms())

    def start_rebalance_backoff(self, step: Step) -> None:
        """Start the backoff timer, unless it runs; when it ends, another attempt of the rebalance begins."""
        if self.backoff.due_ms is None:
            step.start_timer(self.backoff, step.config.push_rebalance_backoff_ms)

    def on_topics_changed(self, step: Step, change: ImageChange) -> None:
        """Rebalance after a change of topics that the group reads, or may read.

        An unresolved expression may match any topic: an assignment under way uses the topics as they were.
        """
        if not self.members:
            return
        regexes = {(member.regex, member.excluding) for member in self.members.values() if member.regex is not None}
        named = {name for member in self.members.values() for name, _ in member.topics}
        named.update(name for names in self.matched.values() for name in names)
        may_find = bool(regexes) if change.names_differ else not regexes <= self.matched.keys()
        if may_find or not named.isdisjoint(change.topics):
            self.request_rebalance(step, Cause(RebalanceReason.TOPICS_CHANGED, "topics changed"))
