"""`kohort groups delete-offsets, delete, clone`: each shows what it would do, and does it on --execute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from kohort.cli.app import FAILED, UsageError
from kohort.cli.common import Common, check_names
from kohort.cli.group_resets import has_members, reset_offsets
from kohort.cli.group_rows import check_chosen, chosen_groups, tell
from kohort.cli.nearest import groups_with_nearest
from kohort.cli.output import confirmed, show, show_changes
from kohort.cli.partitions import chosen_partitions
from kohort.errors import NotFoundError
from kohort.ids import TopicPartition

if TYPE_CHECKING:  # the client is imported by the commands that need it
    from kohort.client.admin.admin import Admin

_COMMON = Common()
_Flag = Annotated[bool, Parameter(negative="")]
_Topics = Annotated[tuple[str, ...], Parameter(negative="")]
_OFFSET = ("group", "topic", "partition", "committed")


def delete_offsets(group: str, *, topic: _Topics = (), execute: _Flag = False, common: Common = _COMMON) -> int:
    """Delete a group's committed offsets of topics that no member subscribes to.

    Args:
        group: its name.
        topic: a topic, or some of its partitions as TOPIC:0,1,2; may be given again.
        execute: do it; without this it is only shown.
    """
    if not topic:
        raise UsageError("name at least one --topic")
    check_names("group", group)
    with common.admin() as admin:
        committed = admin.list_consumer_group_offsets(group).all()
        partitions = chosen_partitions(topic, {key.topic: _numbers(committed, key.topic) for key in committed})
        rows = [_offset_row(group, key, _offset(committed, key)) for key in partitions]
        if not rows:
            _must_be_there(admin, group)
            raise NotFoundError(f"group {group!r} has no committed offsets in {', '.join(topic)}")
        if not execute:
            show(rows, _OFFSET, as_json=common.json)
        if not confirmed(execute, f"Delete {len(rows)} offsets of group {group}?"):
            return FAILED
        results = admin.delete_consumer_group_offsets(group, partitions)
    done = [{**row, "done": TopicPartition(row["topic"], row["partition"]) in results.values} for row in rows]
    show_changes(done, _OFFSET, results.errors, _partition_of, as_json=common.json)
    return tell(results.errors)


def delete(*groups: str, all_groups: _Flag = False, execute: _Flag = False, common: Common = _COMMON) -> int:
    """Delete groups that have no members, with all their offsets.

    Args:
        groups: their names.
        all_groups: every group of the cluster.
        execute: do it; without this it is only shown.
    """
    check_chosen(groups, all_groups)
    with common.admin() as admin:
        found = admin.describe_consumer_groups(chosen_groups(admin, groups, all_groups))
        errors = groups_with_nearest(admin, found.errors)
        rows = [
            {
                "group": group.group_id,
                "state": group.state,
                "members": len(group.members),
                "offsets": len(admin.list_consumer_group_offsets(group.group_id).values),
            }
            for group in found.values.values()
        ]
        columns = ("group", "state", "members", "offsets")
        if not execute:
            show(rows, columns, as_json=common.json, empty="no such groups")
        if not rows:
            return tell(errors)
        if not confirmed(execute, f"Delete {len(rows)} groups?"):
            tell(errors)
            return FAILED
        results = admin.delete_consumer_groups(list(found.values))
    done = [{**row, "done": row["group"] in results.values} for row in rows]
    show_changes(done, columns, results.errors, lambda row: row["group"], as_json=common.json)
    return tell({**errors, **results.errors})


def clone(source: str, target: str, *, topic: _Topics = (), execute: _Flag = False, common: Common = _COMMON) -> int:
    """Give a group the committed offsets of another one. The group that gets them must have no members.

    Args:
        source: the group whose offsets are taken.
        target: the group that gets them; it need not be there. Its offsets of other partitions stay.
        topic: a topic, or some of its partitions as TOPIC:0,1,2; may be given again. Else all that have offsets.
        execute: do it; without this it is only shown.
    """
    check_names("group", source, target)
    if source == target:
        raise UsageError("a group can't be cloned to itself")
    with common.admin() as admin:
        committed = {key: value for key, value in admin.list_consumer_group_offsets(source).all().items() if value}
        there = {key.topic: _numbers(committed, key.topic) for key in committed}
        wanted = chosen_partitions(topic, there) if topic else sorted(committed)
        if not wanted:
            _must_be_there(admin, source)
            where = f" in {', '.join(topic)}" if topic else ""
            raise NotFoundError(f"group {source!r} has no committed offsets{where}")
        _must_be_empty(admin, target)
        current = admin.list_consumer_group_offsets(target).all()
        new = {key: committed[key] for key in wanted}
        rows = [{**_offset_row(target, key, _offset(current, key)), "new": new[key].offset} for key in wanted]
        columns = (*_OFFSET, "new")
        if not execute:
            show(rows, columns, as_json=common.json)
        if not confirmed(execute, f"Set {len(rows)} offsets of group {target} as {source} has them?"):
            return FAILED
        results = admin.alter_consumer_group_offsets(target, new)
    done = [{**row, "done": TopicPartition(row["topic"], row["partition"]) in results.values} for row in rows]
    show_changes(done, columns, results.errors, _partition_of, as_json=common.json)
    return tell(results.errors)


COMMANDS: dict[str, Callable[..., int]] = {
    "delete-offsets": delete_offsets,
    "delete": delete,
    "reset-offsets": reset_offsets,
    "clone": clone,
}


def _partition_of(row: Mapping[str, Any]) -> TopicPartition:
    return TopicPartition(row["topic"], row["partition"])


def _must_be_there(admin: Admin, group: str) -> None:
    """Raises NotFoundError, with the nearest group's name, where there is none of this name."""
    for error in groups_with_nearest(admin, admin.describe_consumer_groups([group]).errors).values():
        raise error


def _must_be_empty(admin: Admin, group: str) -> None:
    """Kafka refuses commits from outside while a group has members; said before anything is planned."""
    found = admin.describe_consumer_groups([group])
    if group in found.values and found.values[group].members:
        raise has_members(group, len(found.values[group].members))


def _numbers(partitions: Mapping[TopicPartition, Any], topic: str) -> list[int]:
    return sorted(key.partition for key in partitions if key.topic == topic)


def _offset(committed: Mapping[TopicPartition, Any], key: TopicPartition) -> int | None:
    found = committed.get(key)
    return None if found is None else found.offset


def _offset_row(group: str, key: TopicPartition, committed: int | None) -> dict[str, Any]:
    return {"group": group, "topic": key.topic, "partition": key.partition, "committed": committed}
