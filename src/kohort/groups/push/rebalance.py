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
from kohort.groups.consumer.assignment import topic_info
from kohort.groups.effects import DividePartitions, Level, Meter
from kohort.groups.events import PartitionsDivided, PushRequestKind, Topic
from kohort.groups.pairs import Pair, Pairs, pack, unpack
from kohort.groups.push import registration, requests
from kohort.groups.push.group import PushGroup
from kohort.groups.records import PushMemberSaved
from kohort.groups.step import Context
from kohort.groups.topics import ImageChange
from kohort.ids import TopicId, TopicPartition

# -- Assignment of a push group's partitions, for any thread
#
# A consumer counts as many takers as it has streams of a topic. Regular expressions are resolved here too, without
# internal topics. Source: spec 4.7, 4.8.

ASSIGNORS = {"sticky": "uniform", "range": "range"}
"""The coordinator's assignors by the values of `push.assignor`; uniform leaves partitions where they are."""
INTERNAL = "__"
"""The prefix of internal topics' names."""

Matched = Mapping[tuple[str, bool], frozenset[str]]


def divide_partitions(
    work: DividePartitions,
    match: Callable[[str, Iterable[str]], Iterable[str]],
    visible: Callable[[Iterable[str]], Iterable[str]] = list,
) -> PartitionsDivided:
    """Carry out a `DividePartitions` with the caller's regular expressions, which select only `visible` topics."""
    matched = {
        (member.regex, member.excluding): frozenset(visible(found(member.regex, member.excluding, work.topics, match)))
        for member in work.members.values()
        if member.regex is not None
    }
    by_id = {topic.id: topic for topic in work.topics.values()}
    takers: dict[str, MemberSubscription] = {}
    member_of: dict[str, str] = {}
    for member_id, member in work.members.items():
        reads = {
            topic: streams
            for topic, streams in streams_of(member, matched).items()
            if topic in work.topics  # others have no partitions yet
        }
        owned = unpack(work.current[member_id])
        for taker, subscription in split(member_id, reads, owned, by_id).items():
            takers[taker] = subscription
            member_of[taker] = member_id
    read = {topic for subscription in takers.values() for topic in subscription.topics}
    infos = {name: topic_info(work.topics[name], range(work.topics[name].partitions)) for name in sorted(read)}
    given: dict[str, set[Pair]] = {member_id: set() for member_id in work.members}
    if takers:
        for taker, parts in server_assignor(ASSIGNORS[work.assignor]).assign(takers, infos).items():
            given[member_of[taker]].update((work.topics[topic].id, number) for topic, number in parts)
    shares = {member_id: pack(pairs) for member_id, pairs in given.items()}
    return PartitionsDivided(work.group_id, work.ticket, shares, matched)


def found(
    regex: str, excluding: bool, topics: Mapping[str, Topic], match: Callable[[str, Iterable[str]], Iterable[str]]
) -> frozenset[str]:
    """Return the topics that an expression selects."""
    names = [name for name in sorted(topics) if not name.startswith(INTERNAL)]
    matches = frozenset(match(regex, names))
    return frozenset(names) - matches if excluding else matches


def streams_of(member: PushMemberSaved, matched: Matched) -> Mapping[str, int]:
    """Return a member's topics with their streams."""
    if member.regex is None:
        return dict(member.topics)
    return dict.fromkeys(matched[member.regex, member.excluding], member.streams)


def split(
    member_id: str, reads: Mapping[str, int], owned: Iterable[Pair], by_id: Mapping[TopicId, Topic]
) -> dict[str, MemberSubscription]:
    """Return a member's streams as separate takers, with its partitions spread over them."""
    held: dict[int, list[TopicPartition]] = {}
    dealt: dict[str, int] = {}
    for topic_id, number in sorted(owned):
        topic = by_id.get(topic_id)
        if topic is not None and topic.name in reads and number < topic.partitions:
            stream = dealt.get(topic.name, 0)
            dealt[topic.name] = stream + 1
            held.setdefault(stream % reads[topic.name], []).append(TopicPartition(topic.name, number))
    return {
        f"{member_id}-{stream}": MemberSubscription(
            topics=tuple(sorted(topic for topic, streams in reads.items() if streams > stream)),
            owned=tuple(held.get(stream, ())),
            generation=1,
        )
        for stream in range(max(reads.values(), default=1))
    }


def look(context: Context, push: PushGroup, why: str) -> None:
    """Start a rebalance after a change, or mark that another one must follow the current one."""
    if not push.members:
        end(push)
    elif push.rebalancing or push.backoff.due_ms is not None:
        push.again = True
    else:
        context.log(push.group_id, f"rebalance started: {why}", Level.DEBUG)
        push.attempt, push.began_ms, push.still = 0, context.now.mono_ms, []
        divide(context, push)


def end(push: PushGroup) -> None:
    """End the current rebalance, and clear the mark for another one."""
    push.rebalancing = push.again = False
    push.dividing = -1
    push.began_ms = None
    if not push.members:
        push.unregistered = {}
    push.to_move({})
    push.attempts.cancel()
    push.backoff.cancel()


def divide(context: Context, push: PushGroup) -> None:
    """Request a new assignment, unless one is under way."""
    push.rebalancing = True
    context.ledger.mark_changed(push)
    push.again = False
    if push.dividing >= 0:
        push.again = True
        return
    push.dividing = context.ticket()
    context.out.work.append(
        DividePartitions(
            group_id=push.group_id,
            ticket=push.dividing,
            assignor=context.config.push_assignor,
            members=dict(push.members),
            current={member_id: pack(push.owned_by(member_id)) for member_id in push.members},
            topics=context.image.topics,
        )
    )


def on_divided(context: Context, event: PartitionsDivided) -> None:
    """Take over a computed assignment, and select the members that have to move."""
    group = context.find(event.group_id)
    push = None if group is None else group.under(PushGroup)
    if push is None or push.dividing != event.ticket:
        return
    push.dividing = -1
    if event.failure is not None:
        context.log(push.group_id, f"assignment not computed: {event.failure}", Level.ERROR)
        try_again(context, push)
        return
    push.matched = event.matched
    targets = {member_id: unpack(given) for member_id, given in event.assignment.items() if member_id in push.members}
    if context.config.push_rebalance == "all" and is_needed(push, targets):
        push.to_move(targets)
    else:
        push.to_move({member_id: want for member_id, want in targets.items() if must_move(push, member_id, want)})
    push.unregistered = {}
    context.run(push.attempts, attempt_ms(push))
    for member_id in list(push.moving):
        requests.advance(context, push, member_id)
    look_whether_done(context, push)


def is_needed(push: PushGroup, targets: dict[str, Pairs]) -> bool:
    """Return whether any member has to move: the four conditions of the specification.

    No owner is known, a partition has no owner, a partition is gone, or its owner changes. Source: spec 4.7.
    """
    return any(must_move(push, member_id, want) for member_id, want in targets.items())


def must_move(push: PushGroup, member_id: str, want: Pairs) -> bool:
    """Return whether a member has to be stopped and started: other partitions, stopped or stopping, or unregistered."""
    member = push.present[member_id]
    stops = member.stopped or member.asked is PushRequestKind.STOP
    return want != push.owned_by(member_id) or stops or member_id in push.unregistered


def attempt_ms(push: PushGroup) -> int:
    """Return the time limit of an attempt: the slowest member's for each of Stop, Ping and Start."""
    return 3 * max(requests.interval_ms(saved) for saved in push.members.values())


def look_whether_done(context: Context, push: PushGroup) -> None:
    """Complete the rebalance if all members have been started; start another one if something changed meanwhile."""
    if not push.rebalancing or push.dividing >= 0 or push.moving or push.backoff.due_ms is not None:
        return
    began_ms, still, again = push.began_ms, push.still, push.again
    end(push)
    context.ledger.mark_changed(push)
    context.rebalanced(push.group_id, "push", began_ms, still, len(push.members))
    if again:
        look(context, push, "something changed during the last rebalance")


def went_on(context: Context, push: PushGroup) -> None:
    """Restart the time limit of the attempt after an eviction, for members that waited for the evicted one."""
    if push.attempts.due_ms is not None and push.members:
        context.run(push.attempts, attempt_ms(push))
    look_whether_done(context, push)


def start_again(context: Context, push: PushGroup, member_id: str) -> None:
    """Stop a member that may read other partitions than its own, and start it with those that it owns."""
    push.to_move(push.moving | {member_id: push.owned_by(member_id)})
    if not push.rebalancing:
        push.rebalancing = True
        context.ledger.mark_changed(push)
        push.attempt, push.began_ms, push.still = 0, context.now.mono_ms, []
        context.run(push.attempts, attempt_ms(push))


def on_attempt_end(context: Context, push: PushGroup, _subject: str) -> None:
    """Retry the rebalance because an attempt took too long."""
    if push.rebalancing:
        late = ", ".join(sorted(push.moving)[:5])
        context.log(push.group_id, f"rebalance attempt {push.attempt + 1} timed out; waiting for {late}")
        try_again(context, push)


def try_again(context: Context, push: PushGroup) -> None:
    """Retry the rebalance after the backoff, or let it fail."""
    push.attempts.cancel()
    push.attempt += 1
    if push.attempt > context.config.push_rebalance_retries:
        fail_rebalance(context, push)
    context.run(push.backoff, context.config.push_rebalance_backoff_ms)


def fail_rebalance(context: Context, push: PushGroup) -> None:
    """Let the rebalance fail: members without an answer are disconnected, and evicted when their sessions end."""
    silent = [
        member_id
        for member_id in push.moving
        if not push.present[member_id].is_gone
        and push.present[member_id].asked in (PushRequestKind.STOP, PushRequestKind.START)
    ]
    context.log(
        push.group_id,
        f"rebalance failed after {push.attempt} attempts (ConsumerRebalanceFailedException); "
        f"no answer from {', '.join(silent[:10]) or 'nobody'}",
        Level.ERROR,
    )
    context.count(Meter.PUSH_FAILED)
    push.attempt = 0
    for member_id in silent:
        text = f"member {member_id} disconnected: no answer during a rebalance"
        registration.lose(context, push, push.present[member_id], text)


def pause(context: Context, push: PushGroup) -> None:
    """Retry the current step after the backoff, because it cannot continue now."""
    if push.backoff.due_ms is None:
        context.run(push.backoff, context.config.push_rebalance_backoff_ms)


def on_backoff_end(context: Context, push: PushGroup, _subject: str) -> None:
    """Begin another attempt; members that wait for offsets request them again."""
    if push.members:
        if push.began_ms is None:
            push.began_ms = context.now.mono_ms
        divide(context, push)
        for member_id in push.members:
            requests.advance(context, push, member_id)


def on_image(context: Context, push: PushGroup, change: ImageChange) -> None:
    """Rebalance after a change of topics that the group reads, or may read.

    An unresolved expression may match any topic: an assignment under way uses the topics as they were.
    """
    if not push.members:
        return
    regexes = {(member.regex, member.excluding) for member in push.members.values() if member.regex is not None}
    named = {name for member in push.members.values() for name, _ in member.topics}
    named.update(name for names in push.matched.values() for name in names)
    may_find = bool(regexes) if change.names_differ else not regexes <= push.matched.keys()
    if may_find or not named.isdisjoint(change.topics):
        look(context, push, "topics changed")
