"""Push groups as they are shown outside the journal, in ZooKeeper. Source: spec 4.7."""

from __future__ import annotations

from collections.abc import Mapping

from kohort.groups.context import Context
from kohort.groups.events import OwnersMissing, ShowPushGroups
from kohort.groups.outcome import Level, ShownPushGroup, ShowPushGroupsReply
from kohort.groups.pairs import Pairs
from kohort.groups.push import asking, rounds
from kohort.groups.push.state import PushGroup
from kohort.groups.records import PushMemberSaved
from kohort.ids import TopicPartition

TOLD = 5
"""Partitions named in a line of the log."""


def show(context: Context, event: ShowPushGroups) -> None:
    """As they are now, all of them or those that have changed."""
    ledger = context.ledger
    changed, ledger.changed = ledger.changed, {}
    names = None if event.whole else changed
    found, gone = [], []
    for group_id in ledger.groups if names is None else names:
        group = ledger.groups.get(group_id)
        push = None if group is None else group.under(PushGroup)
        if group is not None and push is not None:
            settled, offsets = not push.rebalancing, dict(group.offsets)
            found.append(ShownPushGroup(group_id, settled, owners(context, push), offsets, push.loaded))
        elif names is not None:
            gone.append(group_id)
    context.reply(event.request, ShowPushGroupsReply(tuple(found), names is None, tuple(gone)))


def owners(context: Context, push: PushGroup) -> Mapping[TopicPartition, str]:
    """Consumer and stream by partition."""
    found: dict[TopicPartition, str] = {}
    for member_id, pairs in push.owned.items():
        found.update(streams(context, push.members[member_id], pairs))
    return found


def streams(context: Context, saved: PushMemberSaved, pairs: Pairs) -> Mapping[TopicPartition, str]:
    """A consumer's partitions, dealt to its streams in their order, as `division` counts them."""
    of_topic = dict(saved.topics)
    dealt: dict[str, int] = {}
    found: dict[TopicPartition, str] = {}
    for part in asking.named_pairs(context, pairs):
        stream = dealt.get(part.topic, 0)
        dealt[part.topic] = stream + 1
        count = of_topic.get(part.topic, saved.streams if saved.regex is not None else 1)
        found[part] = f"{saved.member_id}-{stream % max(1, count)}"
    return found


def on_owners_missing(context: Context, event: OwnersMissing) -> None:
    """Somebody has deleted what was shown: who owns those partitions is started again."""
    group = context.find(event.group_id)
    push = None if group is None else group.under(PushGroup)
    if push is None:
        return
    missing = {
        (topic.id, part.partition) for part in event.partitions if (topic := context.image.topics.get(part.topic))
    }
    found = [member_id for member_id, pairs in push.owned.items() if not pairs.isdisjoint(missing)]
    if found:
        push.unregistered.update(dict.fromkeys(found))
        names = ", ".join(f"{part.topic}-{part.partition}" for part in event.partitions[:TOLD])
        context.tell(
            event.group_id, f"{len(event.partitions)} partitions have lost their owners: {names}", Level.WARNING
        )
        rounds.look(context, push, "the owners of partitions were deleted")
