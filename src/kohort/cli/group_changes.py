"""`kohort groups delete-offsets, delete, reset-offsets, clone`: each shows what it would do, and does it on --execute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from kohort.cli.app import FAILED, UsageError
from kohort.cli.common import Common
from kohort.cli.group_rows import tell
from kohort.cli.output import confirmed, show
from kohort.cli.reset_targets import parse_goal, read_plan
from kohort.errors import KafkaError, NotFoundError
from kohort.ids import TopicPartition

if TYPE_CHECKING:  # the client is imported by the commands that need it
    from kohort.client.admin.admin import Admin
    from kohort.client.offset_values import OffsetAndMetadata

_COMMON = Common()
_Flag = Annotated[bool, Parameter(negative="")]
_Topics = Annotated[tuple[str, ...], Parameter(negative="")]


def delete_offsets(group: str, *, topic: _Topics = (), execute: _Flag = False, common: Common = _COMMON) -> int:
    """Delete a group's committed offsets of topics that no member subscribes to.

    Args:
        group: its name.
        topic: a topic, or some of its partitions as TOPIC:0,1,2; may be given again.
        execute: do it; without this it is only shown.
    """
    if not topic:
        raise UsageError("name at least one --topic")
    with common.admin() as admin:
        committed = admin.list_consumer_group_offsets(group).all()
        partitions = _chosen(topic, {key.topic: _numbers(committed, key.topic) for key in committed})
        rows = [_offset_row(group, key, _offset(committed, key), None) for key in partitions]
        if not rows:
            raise NotFoundError(f"group {group!r} has no committed offsets in {', '.join(topic)}")
        if not execute:
            _preview(rows, common, {"current": "Committed"})
        if not confirmed(execute, f"Delete {len(rows)} offsets of group {group}?"):
            return FAILED
        results = admin.delete_consumer_group_offsets(group, partitions)
    done = [{**row, "done": TopicPartition(row["topic"], row["partition"]) in results.values} for row in rows]
    _preview(done, common, {"current": "Committed", "done": "Deleted"})
    return tell(results.errors)


def delete(*groups: str, execute: _Flag = False, common: Common = _COMMON) -> int:
    """Delete groups that have no members, with all their offsets.

    Args:
        groups: their names.
        execute: do it; without this it is only shown.
    """
    if not groups:
        raise UsageError("name at least one group")
    with common.admin() as admin:
        found = admin.describe_consumer_groups(groups)
        rows = [
            {
                "group": group.group_id,
                "state": group.state,
                "members": len(group.members),
                "offsets": len(admin.list_consumer_group_offsets(group.group_id).values),
            }
            for group in found.values.values()
        ]
        columns = {"group": "Group", "state": "State", "members": "Members", "offsets": "Offsets"}
        if not execute:
            show(rows, columns, as_json=common.json, empty="no such groups")
        if not rows:
            return tell(found.errors)
        if not confirmed(execute, f"Delete {len(rows)} groups?"):
            tell(found.errors)
            return FAILED
        results = admin.delete_consumer_groups(list(found.values))
    done = [{**row, "deleted": row["group"] in results.values} for row in rows]
    show(done, {**columns, "deleted": "Deleted"}, as_json=common.json)
    return tell({**found.errors, **results.errors})


def reset_offsets(  # noqa: PLR0913 - one keyword for each way to say where to
    group: str,
    *,
    topic: _Topics = (),
    all_topics: _Flag = False,
    to_earliest: _Flag = False,
    to_latest: _Flag = False,
    to_current: _Flag = False,
    to_offset: int | None = None,
    to_datetime: str | None = None,
    by_duration: str | None = None,
    shift_by: Annotated[int | None, Parameter(allow_leading_hyphen=True)] = None,
    from_file: Path | None = None,
    execute: _Flag = False,
    export: _Flag = False,
    common: Common = _COMMON,
) -> int:
    """Set a group's committed offsets anew. The group must have no members.

    Args:
        group: its name.
        topic: a topic, or some of its partitions as TOPIC:0,1,2; may be given again.
        all_topics: every topic that the group has committed offsets for.
        to_earliest: to the first record there is.
        to_latest: to the end.
        to_current: to the committed offset as it is now (into the bounds of the partition).
        to_offset: to this offset.
        to_datetime: to the first record at or after this time, as 2026-01-31T12:00:00 (UTC unless it has a zone).
        by_duration: to the first record since this long ago, as P1DT12H or PT30M.
        shift_by: forward, or backward when negative, by so many records.
        from_file: to what the lines TOPIC,PARTITION,OFFSET of this file say.
        execute: do it; without this it is only shown.
        export: print lines that --from-file reads.
    """
    goal = parse_goal(
        {
            "earliest": to_earliest or None,
            "latest": to_latest or None,
            "current": to_current or None,
            "offset": to_offset,
            "datetime": to_datetime,
            "duration": by_duration,
            "shift": shift_by,
            "file": from_file,
        }
    )
    from kohort.client.offset_values import OffsetAndMetadata

    with common.admin() as admin:
        _must_be_empty(admin, group)
        current = {key: value for key, value in admin.list_consumer_group_offsets(group).all().items() if value}
        targets = read_plan(from_file) if from_file else None
        partitions = sorted(targets) if targets is not None else _reset_partitions(admin, topic, all_topics, current)
        new = goal.offsets(admin, partitions, {key: value.offset for key, value in current.items()}, targets)
        rows = [_offset_row(group, key, _offset(current, key), new[key]) for key in partitions]
        if export:
            for key in partitions:
                print(f"{key.topic},{key.partition},{new[key]}")
        elif not execute:
            _preview(rows, common, {"current": "Committed", "new": "New offset"})
        if not confirmed(execute, f"Set {len(rows)} offsets of group {group}?"):
            return FAILED
        offsets = {key: OffsetAndMetadata(offset) for key, offset in new.items()}
        return _set_offsets(admin, group, offsets, rows, common, shown=export)


def clone(source: str, target: str, *, topic: _Topics = (), execute: _Flag = False, common: Common = _COMMON) -> int:
    """Give a group the committed offsets of another one. The group that gets them must have no members.

    Args:
        source: the group whose offsets are taken.
        target: the group that gets them; it need not be there. Its offsets of other partitions stay.
        topic: a topic, or some of its partitions as TOPIC:0,1,2; may be given again. All that have offsets when not given.
        execute: do it; without this it is only shown.
    """
    if source == target:
        raise UsageError("a group can't be cloned to itself")
    with common.admin() as admin:
        committed = {key: value for key, value in admin.list_consumer_group_offsets(source).all().items() if value}
        there = {key.topic: _numbers(committed, key.topic) for key in committed}
        wanted = _chosen(topic, there) if topic else sorted(committed)
        if not wanted:
            where = f" in {', '.join(topic)}" if topic else ""
            raise NotFoundError(f"group {source!r} has no committed offsets{where}")
        _must_be_empty(admin, target)
        current = admin.list_consumer_group_offsets(target).all()
        new = {key: committed[key] for key in wanted}
        rows = [_offset_row(target, key, _offset(current, key), new[key].offset) for key in wanted]
        if not execute:
            _preview(rows, common, {"current": "Committed", "new": "New offset"})
        if not confirmed(execute, f"Set {len(rows)} offsets of group {target} as {source} has them?"):
            return FAILED
        return _set_offsets(admin, target, new, rows, common, shown=False)


COMMANDS: dict[str, Callable[..., int]] = {
    "delete-offsets": delete_offsets,
    "delete": delete,
    "reset-offsets": reset_offsets,
    "clone": clone,
}


def _set_offsets(
    admin: Admin,
    group: str,
    new: Mapping[TopicPartition, OffsetAndMetadata],
    rows: list[dict[str, Any]],
    common: Common,
    *,
    shown: bool,
) -> int:
    results = admin.alter_consumer_group_offsets(group, new)
    done = [{**row, "done": TopicPartition(row["topic"], row["partition"]) in results.values} for row in rows]
    if not shown:
        _preview(done, common, {"current": "Committed", "new": "New offset", "done": "Set"})
    return tell(results.errors)


def _must_be_empty(admin: Admin, group: str) -> None:
    """Kafka refuses commits from outside while a group has members; said before anything is planned."""
    found = admin.describe_consumer_groups([group])
    if group in found.values and found.values[group].members:
        count = len(found.values[group].members)
        raise KafkaError(f"group {group!r} has {count} members: stop them first, or they would overwrite the offsets")


def _reset_partitions(
    admin: Admin, topics: tuple[str, ...], all_topics: bool, current: Mapping[TopicPartition, Any]
) -> list[TopicPartition]:
    if all_topics == bool(topics):
        raise UsageError("name topics with --topic, or give --all-topics, or --from-file")
    if all_topics:
        return sorted(current)
    names = {text.partition(":")[0] for text in topics}
    found = admin.describe_topics(sorted(names)).all()
    return _chosen(topics, {name: sorted(info.partitions) for name, info in found.items()})


def _chosen(topics: tuple[str, ...], there: Mapping[str, list[int]]) -> list[TopicPartition]:
    """The partitions that TOPIC and TOPIC:0,1 options name, among those that are there."""
    chosen: set[TopicPartition] = set()
    for text in topics:
        name, colon, numbers = text.partition(":")
        if not colon:
            chosen |= {TopicPartition(name, number) for number in there.get(name, ())}
            continue
        try:
            wanted = [int(number) for number in numbers.split(",")]
        except ValueError as error:
            raise UsageError(f"--topic {text}: partitions are numbers with commas between") from error
        missing = [number for number in wanted if number not in there.get(name, ())]
        if missing:
            raise NotFoundError(f"nothing known of {name} partition {missing[0]}")
        chosen |= {TopicPartition(name, number) for number in wanted}
    return sorted(chosen)


def _numbers(partitions: Mapping[TopicPartition, Any], topic: str) -> list[int]:
    return sorted(key.partition for key in partitions if key.topic == topic)


def _offset(committed: Mapping[TopicPartition, Any], key: TopicPartition) -> int | None:
    found = committed.get(key)
    return None if found is None else found.offset


def _offset_row(group: str, key: TopicPartition, current: int | None, new: int | None) -> dict[str, Any]:
    row: dict[str, Any] = {"group": group, "topic": key.topic, "partition": key.partition, "current": current}
    if new is not None:
        row["new"] = new
    return row


def _preview(rows: list[dict[str, Any]], common: Common, more: Mapping[str, str]) -> None:
    show(rows, {"group": "Group", "topic": "Topic", "partition": "Partition", **more}, as_json=common.json)
