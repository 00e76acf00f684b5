"""Rebalances of a push group: one at a time, by the text's bit, with a second mark for what changes meanwhile.

A rebalance divides the partitions anew (long work), looks whether that is what members have, and stops and starts those
that gain or lose, or all (`push.rebalance`). It is done when all have been started. What takes longer than the slowest
member may take to answer is tried again after a backoff, at most `push.rebalance.retries.max` times; then it is given
up, and said so: members that have not answered lose their connections, and the group is looked at after the backoff.
A change while the bit is set marks the group to be looked at when it is done. Source: spec 4.6, 4.7, 4.9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kohort.assignors import MemberSubscription, server_assignor
from kohort.groups.consumer.assignment import topic_info
from kohort.groups.effects import DividePartitions, Level, Meter
from kohort.groups.events import Asking, PartitionsDivided, Topic
from kohort.groups.pairs import Pair, Pairs, pack, unpack
from kohort.groups.push import registration, requests
from kohort.groups.push.group import PushGroup
from kohort.groups.records import PushMemberSaved
from kohort.groups.step import Context
from kohort.groups.topics import ImageChange
from kohort.ids import TopicId, TopicPartition

# -- Who of a push group is to have what: long work, pure, for any thread
#
# A consumer counts as many takers as it has streams of a topic. Topics that a consumer's expression finds are matched
# here too; internal ones are left out. Source: spec 4.7, 4.8.

ASSIGNORS = {"sticky": "uniform", "range": "range"}
"""The coordinator's assignors by the names of `push.assignor`: uniform keeps what members have."""
INTERNAL = "__"
"""Topics whose names begin so are internal."""

Matched = Mapping[tuple[str, bool], frozenset[str]]


def divide_partitions(
    work: DividePartitions, match: Callable[[str, Iterable[str]], Iterable[str]]
) -> PartitionsDivided:
    """Carry out a `DividePartitions` with the shell's regular expressions."""
    matched = {
        (member.regex, member.excluding): found(member.regex, member.excluding, work.topics, match)
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
    """The topics that an expression finds."""
    names = [name for name in sorted(topics) if not name.startswith(INTERNAL)]
    matches = frozenset(match(regex, names))
    return frozenset(names) - matches if excluding else matches


def streams_of(member: PushMemberSaved, matched: Matched) -> Mapping[str, int]:
    """The topics that a member reads, with their streams."""
    if member.regex is None:
        return dict(member.topics)
    return dict.fromkeys(matched[member.regex, member.excluding], member.streams)


def split(
    member_id: str, reads: Mapping[str, int], owned: Iterable[Pair], by_id: Mapping[TopicId, Topic]
) -> dict[str, MemberSubscription]:
    """A member's streams as takers of their own; what it has is spread over them."""
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
    """Something changed: rebalance, or mark that another look is needed."""
    if not push.members:
        end(push)
    elif push.rebalancing or push.backoff.due_ms is not None:
        push.again = True
    else:
        context.tell(push.group_id, f"rebalances: {why}", Level.DEBUG)
        push.attempt, push.began_ms, push.still = 0, context.now.mono_ms, []
        divide(context, push)


def end(push: PushGroup) -> None:
    """No rebalance is under way, and none is wanted."""
    push.rebalancing = push.again = False
    push.dividing = -1
    push.began_ms = None
    if not push.members:
        push.unregistered = {}
    push.to_move({})
    push.attempts.cancel()
    push.backoff.cancel()


def divide(context: Context, push: PushGroup) -> None:
    """Ask who is to have what, if that is not under way."""
    push.rebalancing = True
    context.ledger.note(push)
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
    """It is known who is to have what."""
    group = context.find(event.group_id)
    push = None if group is None else group.under(PushGroup)
    if push is None or push.dividing != event.ticket:
        return
    push.dividing = -1
    if event.failure is not None:
        context.tell(push.group_id, f"its partitions can't be divided: {event.failure}", Level.ERROR)
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
    """The text's four conditions: no owner is known, a partition has none, or is no more, or another owner.

    Source: spec 4.7.
    """
    return any(must_move(push, member_id, want) for member_id, want in targets.items())


def must_move(push: PushGroup, member_id: str, want: Pairs) -> bool:
    """Whether a member is to have something else than it has, or has stopped, or is about to: its Stop is out."""
    member = push.present[member_id]
    stops = member.stopped or member.asked is Asking.STOP
    return want != push.owned_by(member_id) or stops or member_id in push.unregistered


def attempt_ms(push: PushGroup) -> int:
    """How long an attempt may take: what the slowest member has for an answer, for each of Stop, Ping and Start."""
    return 3 * max(requests.interval_ms(saved) for saved in push.members.values())


def look_whether_done(context: Context, push: PushGroup) -> None:
    """A rebalance is done when everyone has been started; what was marked meanwhile is looked at."""
    if not push.rebalancing or push.dividing >= 0 or push.moving or push.backoff.due_ms is not None:
        return
    began_ms, still, again = push.began_ms, push.still, push.again
    end(push)
    context.ledger.note(push)
    context.rebalanced(push.group_id, "push", began_ms, still, len(push.members))
    if again:
        look(context, push, "it changed meanwhile")


def went_on(context: Context, push: PushGroup) -> None:
    """Someone whom others may have waited for is out: they have time to be started, if there are any."""
    if push.attempts.due_ms is not None and push.members:
        context.run(push.attempts, attempt_ms(push))
    look_whether_done(context, push)


def start_again(context: Context, push: PushGroup, member_id: str) -> None:
    """A member that works on something else than it was told is stopped, and started with what it owns."""
    push.to_move(push.moving | {member_id: push.owned_by(member_id)})
    if not push.rebalancing:
        push.rebalancing = True
        context.ledger.note(push)
        push.attempt, push.began_ms, push.still = 0, context.now.mono_ms, []
        context.run(push.attempts, attempt_ms(push))


def on_attempt_end(context: Context, push: PushGroup, _subject: str) -> None:
    """Not all have been started in time."""
    if push.rebalancing:
        late = ", ".join(sorted(push.moving)[:5])
        context.tell(push.group_id, f"attempt {push.attempt + 1} at a rebalance took too long: {late}")
        try_again(context, push)


def try_again(context: Context, push: PushGroup) -> None:
    """Another attempt after the backoff, or none any more."""
    push.attempts.cancel()
    push.attempt += 1
    if push.attempt > context.config.push_rebalance_retries:
        give_up(context, push)
    context.run(push.backoff, context.config.push_rebalance_backoff_ms)


def give_up(context: Context, push: PushGroup) -> None:
    """A rebalance has failed: whoever did not answer loses its connection, and its place when its session is over."""
    silent = [
        member_id
        for member_id in push.moving
        if not push.present[member_id].is_gone and push.present[member_id].asked in (Asking.STOP, Asking.START)
    ]
    context.tell(
        push.group_id,
        f"a rebalance failed {push.attempt} times and is given up (ConsumerRebalanceFailedException); "
        f"not answered: {', '.join(silent[:10]) or 'nobody'}",
        Level.ERROR,
    )
    context.count(Meter.PUSH_FAILED)
    push.attempt = 0
    for member_id in silent:
        registration.lose(context, push, push.present[member_id], f"{member_id} did not answer in a rebalance")


def pause(context: Context, push: PushGroup) -> None:
    """What is under way can't go on for now: it is tried again after the backoff."""
    if push.backoff.due_ms is None:
        context.run(push.backoff, context.config.push_rebalance_backoff_ms)


def on_backoff_end(context: Context, push: PushGroup, _subject: str) -> None:
    """Another attempt; also those who wait for offsets ask again."""
    if push.members:
        if push.began_ms is None:
            push.began_ms = context.now.mono_ms
        divide(context, push)
        for member_id in push.members:
            requests.advance(context, push, member_id)


def on_image(context: Context, push: PushGroup, change: ImageChange) -> None:
    """The topics changed: a group that reads one of them, or may, is looked at.

    An expression that was not matched yet may find any: a division that is under way knows the topics as they were.
    """
    if not push.members:
        return
    regexes = {(member.regex, member.excluding) for member in push.members.values() if member.regex is not None}
    named = {name for member in push.members.values() for name, _ in member.topics}
    named.update(name for names in push.matched.values() for name in names)
    may_find = bool(regexes) if change.names_differ else not regexes <= push.matched.keys()
    if may_find or not named.isdisjoint(change.topics):
        look(context, push, "topics changed")
