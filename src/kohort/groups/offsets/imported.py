"""The offsets of a group that an earlier coordinator has kept, as they come in. See `groups.imports`."""

from __future__ import annotations

from kohort.errors import ErrorCode
from kohort.groups import imports
from kohort.groups.context import Context
from kohort.groups.events import GroupImported, OffsetToCommit
from kohort.groups.offsets.requests import offsets_committed
from kohort.groups.outcome import Meter
from kohort.groups.records import OffsetsImported

OFFSETS_MAX = 100_000
"""Offsets of one group: they are one append."""


def on_imported(context: Context, event: GroupImported) -> None:
    """Take over what there is, unless this machine did not ask: it was loaded anew since."""
    if context.imports.under_way.get(event.group_id) != event.ticket:
        return
    del context.imports.under_way[event.group_id]
    if event.error is not ErrorCode.NONE or not event.offsets:
        imports.refuse(context, event)
    elif len(event.offsets) > OFFSETS_MAX:
        text = f"its earlier coordinator has {len(event.offsets)} offsets of it, at most {OFFSETS_MAX} are imported"
        imports.refuse(context, GroupImported(event.group_id, event.ticket, (), ErrorCode.POLICY_VIOLATION, text))
    else:
        take_over(context, event)


def take_over(context: Context, event: GroupImported) -> None:
    """One append: that the group was imported, and its offsets."""
    group = context.find(event.group_id) or context.create(event.group_id)
    if group is None:
        text = f"there are {context.config.groups_max} groups already"
        imports.refuse(context, GroupImported(event.group_id, event.ticket, (), ErrorCode.POLICY_VIOLATION, text))
        return
    context.imports.forget(event.group_id)
    context.emit(OffsetsImported(event.group_id, context.now.wall_ms, len(event.offsets)))
    offsets = tuple(named(context, offset) for offset in event.offsets)
    records = offsets_committed(event.group_id, offsets, context.now.wall_ms, -1)
    context.ledger.take_commit(group, records)
    context.out.records.extend(records)
    context.count(Meter.GROUP_IMPORTS)
    context.tell(event.group_id, f"imported with {len(records)} offsets from its earlier coordinator")


def named(context: Context, offset: OffsetToCommit) -> OffsetToCommit:
    """An offset with the id of its topic, as far as that is known."""
    topic = context.image.topics.get(offset.topic)
    return offset if topic is None or context.image.sure else offset._replace(topic_id=topic.id)
