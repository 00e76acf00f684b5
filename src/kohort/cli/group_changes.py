"""`kohort groups reset-offsets, delete-offsets, delete, clone`: each previews its change, and makes it on --execute."""

from __future__ import annotations

import csv
import io
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from cyclopts import Parameter

from kohort.cli.app import DONE, FAILED, UsageError
from kohort.cli.common import Common, check_names, groups_with_nearest, print_errors, topics_with_nearest
from kohort.cli.group_rows import check_chosen, chosen_groups
from kohort.cli.output import confirmed, note, printable, show, show_changes
from kohort.errors import ErrorCode, InvalidInputError, KafkaError, NotFoundError
from kohort.ids import TopicPartition
from kohort.settings.config import did_you_mean

if TYPE_CHECKING:
    from kohort.client.admin.admin import Admin


# -- Topics and partitions as arguments name them: TOPIC for all of a topic's partitions, TOPIC:0,1 for some


def name_of(text: str) -> str:
    """Return the topic that an option names."""
    return text.partition(":")[0]


def chosen_partitions(texts: Iterable[str], there: Mapping[str, list[int]]) -> list[TopicPartition]:
    """Return the partitions that options name, sorted.

    Args:
        texts: TOPIC or TOPIC:0,1.
        there: the partitions that each topic has.

    Raises:
        UsageError: a partition is not a number.
        NotFoundError: a partition does not exist.
    """
    chosen: set[TopicPartition] = set()
    for text in texts:
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


# -- Target offsets of `kohort groups reset-offsets`

Plan = dict[str, dict[TopicPartition, int]]
"""The offsets in a file, by group; the group is '' if the file names none."""
_OFFSET_MAX = 2**63 - 1


class Bounds(NamedTuple):
    """A partition's first and end offset, and its first offset at the requested time: -1 if no record is that young."""

    start: int
    end: int
    at_time: int


class Target(NamedTuple):
    """The target of one committed offset.

    Attributes:
        new: the new offset, within the partition's bounds.
        requested: the requested offset, if it is another one.
        note: why `new` is not the requested offset.
    """

    new: int
    requested: int | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Goal:
    """A kind of target: earliest, latest, current, offset, shift, time (milliseconds since 1970) or file."""

    kind: str
    value: int = 0

    def bounds(
        self, admin: Admin, partitions: Sequence[TopicPartition]
    ) -> tuple[dict[TopicPartition, Bounds], dict[TopicPartition, KafkaError]]:
        """Return the bounds of partitions, and the errors of those whose bounds are not available."""
        starts = admin.list_offsets(dict.fromkeys(partitions, "earliest"))
        ends = admin.list_offsets(dict.fromkeys(partitions, "latest"))
        errors = {**starts.errors, **ends.errors}
        by_time = None
        if self.kind == "time":
            by_time = admin.list_offsets(dict.fromkeys(partitions, self.value))
            errors |= by_time.errors
        found = {
            key: Bounds(
                starts.values[key].offset, ends.values[key].offset, by_time.values[key].offset if by_time else -1
            )
            for key in partitions
            if key not in errors
        }
        return found, errors

    def target(self, key: TopicPartition, bounds: Bounds, committed: int | None, planned: int | None) -> Target:
        """Return the new offset of a partition, kept within its first and end offset.

        Args:
            key: the partition.
            bounds: its bounds.
            committed: the committed offset.
            planned: the offset in the file, for the kind `file`.

        Raises:
            InvalidInputError: there is no committed offset to shift.
        """
        start, end, at_time = bounds
        if self.kind == "earliest":
            return Target(start)
        if self.kind == "latest":
            return Target(end)
        if self.kind == "time":
            return Target(at_time) if at_time >= 0 else Target(end, None, "no record is that young: the end")
        if committed is None and self.kind == "current":
            return Target(end, None, "nothing was committed: the end")
        if committed is None and self.kind == "shift":
            raise InvalidInputError(f"{key}: there is no committed offset to shift from")
        wanted = {
            "current": committed,
            "offset": self.value,
            "shift": (committed or 0) + self.value,
            "file": planned,
        }[self.kind]
        return _within(wanted or 0, start, end)


def _within(wanted: int, start: int, end: int) -> Target:
    if wanted > end:
        return Target(end, wanted, f"{wanted} is past the end {end}")
    if wanted < start:
        return Target(start, wanted, f"{wanted} is before the first offset {start}")
    return Target(wanted)


def parse_goal(given: Mapping[str, Any]) -> Goal:
    """Return the one goal among the options.

    Raises:
        UsageError: none or several were given, or a time or an offset is invalid.
    """
    chosen = [(kind, value) for kind, value in given.items() if value is not None]
    if len(chosen) != 1:
        raise UsageError(
            "say where to with exactly one of --to-earliest, --to-latest, --to-current, --to-offset, --to-datetime, "
            "--by-duration, --shift-by, --from-file"
        )
    kind, value = chosen[0]
    if kind == "datetime":
        return Goal("time", _milliseconds(value))
    if kind == "duration":
        return Goal("time", max(0, int(time.time() * 1000) - _duration(value)))
    if kind == "offset" and not 0 <= value <= _OFFSET_MAX:
        raise UsageError(f"--to-offset {value}: offsets are from 0 to {_OFFSET_MAX}")
    return Goal(kind, value if kind in ("offset", "shift") else 0)


def _milliseconds(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--to-datetime {text}: write it as 2026-01-31T12:00:00") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0, int(moment.timestamp() * 1000))


def _duration(text: str) -> int:
    from kohort.client.settings import duration_ms

    try:
        return duration_ms(text)
    except ValueError as error:
        raise UsageError(f"--by-duration: {error}") from error


def read_plan(path: Path) -> Plan:
    """Read offsets from a file of lines TOPIC,PARTITION,OFFSET, or of lines GROUP,TOPIC,PARTITION,OFFSET.

    Raises:
        UsageError: a line is neither, both kinds of lines occur, or a partition is named twice.
        OSError: the file can't be read.
    """
    plan: Plan = {}
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no text: {error}") from error
    for number, fields in enumerate(csv.reader(io.StringIO(text)), start=1):
        if not fields:
            continue
        try:
            *group, topic, partition, offset = (field.strip() for field in fields)
            key, value = TopicPartition(topic, int(partition)), int(offset)
        except ValueError as error:
            raise UsageError(_no_line(path, number, fields)) from error
        if len(group) > 1 or key.partition < 0 or not 0 <= value <= _OFFSET_MAX or not topic:
            raise UsageError(_no_line(path, number, fields))
        if key in plan.setdefault(group[0] if group else "", {}):
            raise UsageError(f"{path} line {number}: {key} is there twice")
        plan[group[0] if group else ""][key] = value
    if not plan:
        raise UsageError(f"{path} has no offsets")
    if "" in plan and len(plan) > 1:
        raise UsageError(f"{path}: either every line names its group or none does")
    return plan


def _no_line(path: Path, number: int, fields: Iterable[str]) -> str:
    return (
        f"{path} line {number}: {','.join(fields)!r} is no TOPIC,PARTITION,OFFSET and no GROUP,TOPIC,PARTITION,OFFSET"
    )


def plan_lines(rows: Iterable[Mapping[str, Any]], *, with_group: bool) -> str:
    """Return lines for `read_plan` from rows with group, topic, partition and new."""
    out = io.StringIO()
    keys = ("group", "topic", "partition", "new") if with_group else ("topic", "partition", "new")
    csv.writer(out, lineterminator="\n").writerows([row[key] for key in keys] for row in rows)
    return out.getvalue()


# -- `kohort groups reset-offsets`: new committed offsets, previewed first and set on --execute

_COMMON = Common()
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
    all_groups: bool = False,
    topic: tuple[str, ...] = (),
    all_topics: bool = False,
    to_earliest: bool = False,
    to_latest: bool = False,
    to_current: bool = False,
    to_offset: Annotated[int | None, Parameter(allow_leading_hyphen=True)] = None,
    to_datetime: str | None = None,
    by_duration: str | None = None,
    shift_by: Annotated[int | None, Parameter(allow_leading_hyphen=True)] = None,
    from_file: Path | None = None,
    execute: bool = False,
    export: bool = False,
    common: Common = _COMMON,
) -> int:
    """Reset the committed offsets of groups. Groups that have members are left as they are, and reported.

    An offset outside its partition's bounds becomes the first or the end offset; the preview says where.

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
            code = print_errors(errors)
            return _execute(admin, changes, common, shown=True) or code if execute else code
        if not execute:
            show([change.row() for change in changes], _COLUMNS, as_json=common.json, empty="no offsets to set")
        code = print_errors(errors)
        if not changes:
            return code or DONE
        count = len({change.group for change in changes})
        if not confirmed(execute, f"Set {len(changes)} offsets of {_numbered(count, 'group')}?"):
            return FAILED
        return _execute(admin, changes, common, shown=False) or code


def _numbered(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _groups(admin: Admin, groups: tuple[str, ...], all_groups: bool, plan: Plan | None) -> list[str]:
    """Return the groups that the arguments or the file name."""
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
    """Return the changes by group and partition, and the errors of the others."""
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
    """Return the groups whose offsets can be set, and the errors of the others.

    Kafka refuses to set the offsets of a group that has members.
    """
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
    """Return the error for a group whose offsets can't be set because it has members."""
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
    from kohort.client.offsets import OffsetAndMetadata

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
    return print_errors(errors)


def _key_of(row: Mapping[str, Any]) -> tuple[str, TopicPartition]:
    return row["group"], TopicPartition(row["topic"], row["partition"])


def _set(admin: Admin, group: str, offsets: Mapping[TopicPartition, Any]) -> Mapping[TopicPartition, KafkaError]:
    try:
        return admin.alter_consumer_group_offsets(group, offsets).errors
    except KafkaError as error:  # the other groups' offsets are still set
        return dict.fromkeys(offsets, error)


_OFFSET = ("group", "topic", "partition", "committed")


def delete_offsets(group: str, *, topic: tuple[str, ...] = (), execute: bool = False, common: Common = _COMMON) -> int:
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
    return print_errors(results.errors)


def delete(*groups: str, all_groups: bool = False, execute: bool = False, common: Common = _COMMON) -> int:
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
            return print_errors(errors)
        if not confirmed(execute, f"Delete {len(rows)} groups?"):
            print_errors(errors)
            return FAILED
        results = admin.delete_consumer_groups(list(found.values))
    done = [{**row, "done": row["group"] in results.values} for row in rows]
    show_changes(done, columns, results.errors, lambda row: row["group"], as_json=common.json)
    return print_errors({**errors, **results.errors})


def clone(
    source: str, target: str, *, topic: tuple[str, ...] = (), execute: bool = False, common: Common = _COMMON
) -> int:
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
    return print_errors(results.errors)


COMMANDS: dict[str, Callable[..., int]] = {
    "delete-offsets": delete_offsets,
    "delete": delete,
    "reset-offsets": reset_offsets,
    "clone": clone,
}


def _partition_of(row: Mapping[str, Any]) -> TopicPartition:
    return TopicPartition(row["topic"], row["partition"])


def _must_be_there(admin: Admin, group: str) -> None:
    """Raise NotFoundError, with the nearest group's name, if there is no group of this name."""
    for error in groups_with_nearest(admin, admin.describe_consumer_groups([group]).errors).values():
        raise error


def _must_be_empty(admin: Admin, group: str) -> None:
    """Refuse a group with members before anything is planned, because Kafka would refuse the commit later."""
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
