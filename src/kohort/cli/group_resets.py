"""`kohort groups reset-offsets`: where groups go on reading, shown first and set on --execute."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from cyclopts import Parameter

from kohort.cli.app import DONE, FAILED, UsageError
from kohort.cli.common import Common, check_names
from kohort.cli.group_rows import check_chosen, chosen_groups, tell
from kohort.cli.nearest import topics_with_nearest
from kohort.cli.output import confirmed, note, printable, show, show_changes
from kohort.cli.partitions import chosen_partitions, name_of
from kohort.cli.reset_targets import Goal, Plan, Target, parse_goal, plan_lines, read_plan
from kohort.config import did_you_mean
from kohort.errors import ErrorCode, InvalidInputError, KafkaError, NotFoundError
from kohort.ids import TopicPartition

if TYPE_CHECKING:  # the client is imported by the commands that need it
    from kohort.client.admin.admin import Admin

_COMMON = Common()
_Flag = Annotated[bool, Parameter(negative="")]
_COLUMNS = ("group", "topic", "partition", "committed", "requested", "new", "note")


class _Change(NamedTuple):
    group: str
    key: TopicPartition
    committed: int | None
    target: Target

    def row(self, done: bool | None = None) -> dict[str, Any]:
        new, requested, why = self.target
        row = {"group": self.group, "topic": self.key.topic, "partition": self.key.partition}
        row |= {"committed": self.committed, "requested": requested, "new": new, "note": why}
        return row if done is None else {**row, "done": done}


def reset_offsets(  # noqa: PLR0913 - one keyword for each way to say where to
    *groups: str,
    all_groups: _Flag = False,
    topic: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    all_topics: _Flag = False,
    to_earliest: _Flag = False,
    to_latest: _Flag = False,
    to_current: _Flag = False,
    to_offset: Annotated[int | None, Parameter(allow_leading_hyphen=True)] = None,
    to_datetime: str | None = None,
    by_duration: str | None = None,
    shift_by: Annotated[int | None, Parameter(allow_leading_hyphen=True)] = None,
    from_file: Path | None = None,
    execute: _Flag = False,
    export: _Flag = False,
    common: Common = _COMMON,
) -> int:
    """Set the committed offsets of groups anew. Groups that have members are left as they are, and told.

    An offset outside what its partition holds becomes the first or the end offset; the preview says where.

    Args:
        groups: their names. A group that is not there gets offsets of the topics that are named.
        all_groups: every group of the cluster.
        topic: a topic, or some of its partitions as TOPIC:0,1,2; may be given again.
        all_topics: every topic that the group has committed offsets for.
        to_earliest: to the first record there is.
        to_latest: to the end.
        to_current: to the committed offset as it is now (into the bounds of the partition).
        to_offset: to this offset.
        to_datetime: to the first record at or after this time, as 2026-01-31T12:00:00 (UTC unless it has a zone).
        by_duration: to the first record since this long ago, as P1DT12H or PT30M.
        shift_by: forward, or backward when negative, by so many records.
        from_file: to what the lines TOPIC,PARTITION,OFFSET of this file say, with GROUP, before each for several.
        execute: do it; without this it is only shown.
        export: print lines that --from-file reads, and change nothing unless --execute is given too.
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
    plan = read_plan(from_file) if from_file else None
    if plan is None and all_topics == bool(topic):
        raise UsageError("name topics with --topic, or give --all-topics, or --from-file")
    if plan is not None and (topic or all_topics):
        raise UsageError("--from-file names the topics: leave --topic and --all-topics out")
    if export and common.json:
        raise UsageError("--export prints lines of its own: leave --json out")
    check_names("group", *groups)
    with common.admin() as admin:
        names = _groups(admin, groups, all_groups, plan)
        changes, errors = _changes(admin, names, goal, topic, plan)
        if export:
            _export(changes, with_group=len(names) > 1)
            code = tell(errors)
            return _execute(admin, changes, common, shown=True) or code if execute else code
        if not execute:
            show([change.row() for change in changes], _COLUMNS, as_json=common.json, empty="no offsets to set")
        code = tell(errors)
        if not changes:
            return code or DONE
        count = len({change.group for change in changes})
        if not confirmed(execute, f"Set {len(changes)} offsets of {_numbered(count, 'group')}?"):
            return FAILED
        return _execute(admin, changes, common, shown=False) or code


def _numbered(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _groups(admin: Admin, groups: tuple[str, ...], all_groups: bool, plan: Plan | None) -> list[str]:
    """The groups that are named, by the arguments or by the file."""
    named_by_file = plan is not None and "" not in plan
    if plan is not None and named_by_file and not groups and not all_groups:
        return sorted(plan)
    check_chosen(groups, all_groups)
    names = list(dict.fromkeys(chosen_groups(admin, groups, all_groups)))
    if plan is None:
        return names
    if not named_by_file:
        if len(names) != 1 or all_groups:
            raise UsageError("the lines of the file name no groups, so it is for one group: name that")
        plan[names[0]] = plan.pop("")
        return names
    if all_groups:
        return [name for name in names if name in plan]
    missing = [name for name in names if name not in plan]
    if missing:
        raise UsageError(f"the file has no offsets of group {missing[0]!r}{did_you_mean(missing[0], plan)}")
    return names


def _changes(
    admin: Admin, names: list[str], goal: Goal, topics: tuple[str, ...], plan: Plan | None
) -> tuple[list[_Change], dict[Any, KafkaError]]:
    """What is to be set, by group and partition, and what befell the others."""
    ready, errors = _ready_groups(admin, names)
    named = _named_partitions(admin, topics) if topics else []
    committed: dict[str, dict[TopicPartition, int]] = {}
    wanted: dict[str, list[TopicPartition]] = {}
    for name in ready:
        try:
            found = admin.list_consumer_group_offsets(name).all()
        except KafkaError as error:
            errors[name] = error
            continue
        committed[name] = {key: value.offset for key, value in found.items() if value}
        wanted[name] = sorted(plan[name]) if plan is not None else named or sorted(committed[name])
        if not wanted[name]:
            errors[name] = NotFoundError(f"group {name!r} has no committed offsets: name topics with --topic")
    every = sorted({key for keys in wanted.values() for key in keys})
    bounds, unknown = goal.bounds(admin, every) if every else ({}, {})
    errors |= unknown
    changes = []
    for name, keys in wanted.items():
        for key in keys:
            if key not in bounds:
                continue
            planned = plan[name][key] if plan is not None else None
            current = committed[name].get(key)
            try:
                changes.append(_Change(name, key, current, goal.target(key, bounds[key], current, planned)))
            except InvalidInputError as error:
                errors[name, key] = InvalidInputError(
                    f"group {name!r}, {error.message}", ErrorCode.UNKNOWN_SERVER_ERROR
                )
    return changes, errors


def _ready_groups(admin: Admin, names: list[str]) -> tuple[list[str], dict[Any, KafkaError]]:
    """The groups whose offsets may be set, and why not of the others: Kafka refuses it while a group has members."""
    found = admin.describe_consumer_groups(names)
    errors: dict[Any, KafkaError] = {}
    ready = []
    there: list[str] | None = None
    for name in names:
        error = found.errors.get(name)
        if error is not None and error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            there = [group.group_id for group in admin.list_groups()] if there is None else there
            note(f"group {name!r} is not there yet{did_you_mean(name, there)}")
        elif error is not None:
            errors[name] = error
            continue
        elif found.values[name].members:
            errors[name] = has_members(name, len(found.values[name].members))
            continue
        ready.append(name)
    return ready, errors


def has_members(group: str, count: int) -> KafkaError:
    """Why a group's offsets can't be set."""
    return KafkaError(f"group {group!r} has {count} members: stop them first, or they would overwrite the offsets")


def _named_partitions(admin: Admin, topics: tuple[str, ...]) -> list[TopicPartition]:
    described = admin.describe_topics(sorted({name_of(text) for text in topics}))
    for error in topics_with_nearest(admin, described.errors).values():
        raise error
    found = described.values
    return chosen_partitions(topics, {name: sorted(info.partitions) for name, info in found.items()})


def _export(changes: list[_Change], *, with_group: bool) -> None:
    for change in changes:
        if change.target.note is not None:
            note(f"group {change.group!r}, {change.key}: {change.target.note}; {change.target.new} is written")
    lines = plan_lines([change.row() for change in changes], with_group=with_group)
    sys.stdout.write(printable(lines, keep="\n") if sys.stdout.isatty() else lines)
    sys.stdout.flush()  # with --execute nothing is set before the lines are out


def _execute(admin: Admin, changes: list[_Change], common: Common, *, shown: bool) -> int:
    from kohort.client.offset_values import OffsetAndMetadata

    done: list[dict[str, Any]] = []
    errors: dict[Any, KafkaError] = {}
    by_group: dict[str, list[_Change]] = {}
    for change in changes:
        by_group.setdefault(change.group, []).append(change)
    for group, own in by_group.items():
        befell = _set(admin, group, {change.key: OffsetAndMetadata(change.target.new) for change in own})
        errors |= {(group, key): error for key, error in befell.items()}
        done += [change.row(done=change.key not in befell) for change in own]
    if not shown:
        show_changes(done, _COLUMNS, errors, _key_of, as_json=common.json)
    return tell(errors)


def _key_of(row: Mapping[str, Any]) -> tuple[str, TopicPartition]:
    return row["group"], TopicPartition(row["topic"], row["partition"])


def _set(admin: Admin, group: str, offsets: Mapping[TopicPartition, Any]) -> Mapping[TopicPartition, KafkaError]:
    try:
        return admin.alter_consumer_group_offsets(group, offsets).errors
    except KafkaError as error:  # the other groups' offsets are still set
        return dict.fromkeys(offsets, error)
