"""`kohort groups reset-offsets, delete-offsets, delete, clone`: each previews its change, and makes it on --execute."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from cyclopts import Parameter

from kohort.cli.app import DONE, FAILED, UsageError
from kohort.cli.common import Common, check_names, print_errors, read_client_properties
from kohort.cli.group_rows import check_groups_chosen, named_or_all_groups
from kohort.cli.output import (
    count_with_noun,
    is_confirmed,
    print_changes,
    print_note,
    print_rows,
    printable,
    standard_output,
    utc_text,
)
from kohort.errors import KafkaError, NotFoundError
from kohort.ids import TopicPartition
from kohort.settings.config import did_you_mean

if TYPE_CHECKING:
    from kohort.client.admin.admin import Admin
    from kohort.client.admin.group_changes import OffsetChange, Plan
    from kohort.client.offsets import OffsetAndMetadata

K = TypeVar("K")

# -- Files of `kohort groups reset-offsets`

_SHOWN_CHARS: Final = 100
"""Characters of a line that an error shows."""
_QUOTED: Final = re.compile('[",]')


def read_offset_plan(path: Path) -> Plan:
    """Read a file of offsets to set: lines TOPIC,PARTITION,OFFSET, or lines GROUP,TOPIC,PARTITION,OFFSET.

    A group's name counts as it is written, with blanks and line breaks: a name that differs in these is another group.

    Raises:
        UsageError: a line is neither, both kinds of lines occur, or a partition is named twice.
        OSError: the file can't be read.
    """
    from kohort.client.admin.group_changes import OFFSET_MAX

    plan: Plan = {}
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no text: {error}") from error
    for number, fields in _csv_rows(path, text):
        if not fields:
            continue
        try:
            *group, topic, partition, offset = fields
            topic = topic.strip()
            key, value = TopicPartition(topic, int(partition)), int(offset)
        except ValueError as error:
            raise UsageError(_no_line(path, number, fields)) from error
        if len(group) > 1 or key.partition < 0 or not 0 <= value <= OFFSET_MAX or not topic:
            raise UsageError(_no_line(path, number, fields))
        if key in plan.setdefault(group[0] if group else "", {}):
            raise UsageError(f"{path} line {number}: {key} is there twice")
        plan[group[0] if group else ""][key] = value
    if not plan:
        raise UsageError(f"{path} has no offsets")
    if "" in plan and len(plan) > 1:
        raise UsageError(f"{path}: either every line names its group or none does")
    return plan


def _csv_rows(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a file of comma-separated values with their numbers, from 1 on."""
    rows = csv.reader(io.StringIO(text, newline=""))
    try:
        yield from enumerate(rows, start=1)
    except csv.Error as error:  # such as a field over 131,072 characters
        raise UsageError(f"{path} line {rows.line_num}: {error}") from error


def _no_line(path: Path, number: int, fields: Iterable[str]) -> str:
    line = ",".join(fields)
    shown = repr(line) if len(line) <= _SHOWN_CHARS else f"{line[:_SHOWN_CHARS]!r}…"
    return f"{path} line {number}: {shown} is no TOPIC,PARTITION,OFFSET and no GROUP,TOPIC,PARTITION,OFFSET"


def format_plan_lines(rows: Iterable[Mapping[str, Any]], *, with_group: bool) -> str:
    """Format rows with group, topic, partition and new offset as lines that `read_offset_plan` reads."""
    return "".join(
        (f"{_csv_field(row['group'])}," if with_group else "") + f"{row['topic']},{row['partition']},{row['new']}\n"
        for row in rows
    )


def _csv_field(text: str) -> str:
    """Return a group's name as a field of a line; names with other characters than usual are quoted.

    Quotes also keep a mark of byte order at the beginning of a file, and line breaks of every kind.
    """
    if text and text.isprintable() and text == text.strip() and not _QUOTED.search(text):
        return text
    return '"' + text.replace('"', '""') + '"'


# -- `kohort groups reset-offsets`: new committed offsets, previewed first and set on --execute

_COMMON = Common()


@contextmanager
def _usage_errors() -> Iterator[None]:
    """Convert ChangeInputError raised inside the block to UsageError: the arguments describe no valid change."""
    from kohort.client.admin.group_changes import ChangeInputError

    try:
        yield
    except ChangeInputError as error:
        raise UsageError(error.message) from error


_COLUMNS = ("group", "topic", "partition", "committed", "requested", "new", "note")


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
        all_groups: Every group of the cluster.
        topic: A topic, or some of its partitions as TOPIC:0,1,2; may be given again.
        all_topics: Every topic that the group has committed offsets for.
        to_earliest: To the first record there is.
        to_latest: To the end.
        to_current: To the committed offset as it is now (into the bounds of the partition).
        to_offset: To this offset.
        to_datetime: To the first record at or after this time, as 2026-01-31T12:00:00 (UTC unless it has a zone).
        by_duration: To the first record since this long ago, as P1DT12H or PT30M.
        shift_by: Forward, or backward when negative, by so many records.
        from_file: To what the lines TOPIC,PARTITION,OFFSET of this file say, with GROUP, before each for several.
        execute: Do it; without this it is only shown.
        export: Print lines that --from-file reads, and change nothing unless --execute is given too.
    """
    from kohort.client.admin.group_changes import parse_reset_target, preview_offset_changes

    with _usage_errors():
        goal = parse_reset_target(
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
    plan = read_offset_plan(from_file) if from_file else None
    if plan is None and all_topics == bool(topic):
        raise UsageError("name topics with --topic, or give --all-topics, or --from-file")
    if plan is not None and (topic or all_topics):
        raise UsageError("--from-file names the topics: leave --topic and --all-topics out")
    if export and common.json:
        raise UsageError("--export prints lines of its own: leave --json out")
    check_names("group", *groups)
    with common.admin() as admin:
        names = _groups(admin, groups, all_groups, plan)
        with _usage_errors():
            changes, errors = preview_offset_changes(admin, names, goal, topic, plan, on_note=print_note)
        if export:
            _export(changes, with_group=len(names) > 1)
            code = print_errors(errors)
            return _execute(admin, changes, common, shown=True) or code if execute else code
        if not execute and (changes or common.json or not errors):
            print_rows([change.row() for change in changes], _COLUMNS, as_json=common.json, empty="no offsets to set")
        code = print_errors(errors)
        if not changes:
            return code or DONE
        count = len({change.group for change in changes})
        if not is_confirmed(
            execute, f"Set {count_with_noun(len(changes), 'offset')} of {count_with_noun(count, 'group')}?"
        ):
            return FAILED
        return _execute(admin, changes, common, shown=False) or code


def _groups(admin: Admin, groups: tuple[str, ...], all_groups: bool, plan: Plan | None) -> list[str]:
    """Return the groups that the arguments or the file name."""
    named_by_file = plan is not None and "" not in plan
    if plan is not None and named_by_file and not groups and not all_groups:
        return sorted(plan)
    check_groups_chosen(groups, all_groups)
    names = list(dict.fromkeys(named_or_all_groups(admin, groups, all_groups)))
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


def _export(changes: list[OffsetChange], *, with_group: bool) -> None:
    for change in changes:
        if change.target.note is not None:
            print_note(f"group {change.group!r}, {change.key}: {change.target.note}; {change.target.new} is written")
    lines = format_plan_lines([change.row() for change in changes], with_group=with_group)
    out = standard_output()
    if out.isatty():
        out.write(printable(lines, keep="\n"))
    else:
        out.flush()
        out.buffer.write(lines.encode())  # --from-file reads UTF-8, whatever the terminal has
    out.flush()  # with --execute nothing is set before the lines are out


def _execute(admin: Admin, changes: list[OffsetChange], common: Common, *, shown: bool) -> int:
    from kohort.client.admin.group_changes import set_previewed_offsets

    done, errors = set_previewed_offsets(admin, changes)
    if not shown:
        print_changes(done, _COLUMNS, errors, _key_of, as_json=common.json)
    return print_errors(errors)


def _key_of(row: Mapping[str, Any]) -> tuple[str, TopicPartition]:
    return row["group"], TopicPartition(row["topic"], row["partition"])


_OFFSET = ("group", "topic", "partition", "committed")


def delete_offsets(group: str, *, topic: tuple[str, ...] = (), execute: bool = False, common: Common = _COMMON) -> int:
    """Delete a group's committed offsets of topics that no member subscribes to.

    Args:
        group: its name.
        topic: A topic, or some of its partitions as TOPIC:0,1,2; may be given again.
        execute: Do it; without this it is only shown.
    """
    from kohort.client.admin.group_changes import delete_group_offsets, preview_offset_deletions

    if not topic:
        raise UsageError("name at least one --topic")
    check_names("group", group)
    with common.admin() as admin:
        with _usage_errors():
            rows = preview_offset_deletions(admin, group, topic)
        if not execute:
            print_rows(rows, _OFFSET, as_json=common.json)
        if not is_confirmed(execute, f"Delete {count_with_noun(len(rows), 'offset')} of group {group}?"):
            return FAILED
        errors = delete_group_offsets(admin, group, [_partition_of(row) for row in rows])
    return _show_outcome(rows, _OFFSET, errors, _partition_of, common)


def delete(*groups: str, all_groups: bool = False, execute: bool = False, common: Common = _COMMON) -> int:
    """Delete groups that have no members, with all their offsets.

    Args:
        groups: their names.
        all_groups: Every group of the cluster.
        execute: Do it; without this it is only shown.
    """
    from kohort.client.admin.group_changes import delete_groups, preview_group_deletions

    check_groups_chosen(groups, all_groups)
    with common.admin() as admin:
        rows, errors = preview_group_deletions(admin, named_or_all_groups(admin, groups, all_groups))
        columns = ("group", "state", "members", "offsets")
        if not execute:
            print_rows(rows, columns, as_json=common.json, empty=None if errors else "no groups")
        if not rows:
            return print_errors(errors)
        if not is_confirmed(execute, f"Delete {count_with_noun(len(rows), 'group')}?"):
            print_errors(errors)
            return FAILED
        refused = delete_groups(admin, [row["group"] for row in rows])
    code = print_errors(errors)
    return _show_outcome(rows, columns, refused, lambda row: row["group"], common) or code


def clone(
    source: str,
    target: str,
    *,
    topic: tuple[str, ...] = (),
    to: str | None = None,
    to_config: Path | None = None,
    execute: bool = False,
    common: Common = _COMMON,
) -> int:
    """Give a group the committed offsets of another one. The group that gets them must have no members.

    With --to it gets them in another cluster that has copies of the topics, with the same partitions, order and
    timestamps of records. The position there is found by the timestamps: nothing is skipped, and some records may be
    read again. Stop the source's members first.

    Args:
        source: the group whose offsets are taken.
        target: the group that gets them; it need not be there. Its offsets of other partitions stay.
        topic: A topic, or some of its partitions as TOPIC:0,1,2; may be given again. Else all that have offsets.
        to: HOST:PORT of a broker of the other cluster, several with commas between.
        to_config: A file of Kafka client properties for the other cluster.
        execute: Do it; without this it is only shown.
    """
    from kohort.client.admin.group_changes import committed_offset, offset_row, set_group_offsets

    check_names("group", source, target)
    if to is not None or to_config is not None:
        if to is None and to_config is not None and not read_client_properties(to_config).get("bootstrap.servers"):
            raise UsageError(f"{to_config} has no bootstrap.servers: name the other cluster by --to as well")
        other = replace(common, bootstrap_server=to, command_config=to_config)
        return _clone_to(other, source, target, topic, execute=execute, common=common)
    if source == target:
        raise UsageError("a group can't be cloned to itself")
    with common.admin() as admin:
        new = _chosen_offsets(admin, source, topic)
        _must_be_empty(admin, target)
        current = admin.list_consumer_group_offsets(target).all()
        rows = [
            {**offset_row(target, key, committed_offset(current, key)), "new": at.offset} for key, at in new.items()
        ]
        columns = (*_OFFSET, "new")
        if not execute:
            print_rows(rows, columns, as_json=common.json)
        if not is_confirmed(
            execute, f"Set {count_with_noun(len(rows), 'offset')} of group {target} as {source} has them?"
        ):
            return FAILED
        errors = set_group_offsets(admin, target, new)
    return _show_outcome(rows, columns, errors, _partition_of, common)


def _clone_to(other: Common, source: str, target: str, topic: tuple[str, ...], *, execute: bool, common: Common) -> int:
    """Set a group's offsets in another cluster, translated by the timestamps of records."""
    from kohort.client.admin.group_changes import committed_offset, offset_row, set_group_offsets
    from kohort.lag.offset_translation import translate_offsets

    with common.admin() as here, other.admin() as there, common.lag_reader() as reader:
        wanted = _chosen_offsets(here, source, topic)
        _must_be_empty(there, target)
        found, untranslated = translate_offsets(reader, here, there, source, wanted)
        current = there.list_consumer_group_offsets(target).all()
        rows = [
            {
                **offset_row(target, offset.partition, committed_offset(current, offset.partition)),
                "source_committed": offset.committed,
                "record_time": None if offset.record_ms is None else utc_text(offset.record_ms),
                "new": offset.new,
            }
            for offset in found
        ]
        columns = (*_OFFSET, "source_committed", "record_time", "new")
        if not execute:
            print_rows(rows, columns, as_json=common.json)
        failed = print_errors({str(key): error for key, error in untranslated.items()})
        question = f"Set {count_with_noun(len(rows), 'offset')} of group {target} in the other cluster?"
        if not rows or not is_confirmed(execute, question):
            return FAILED
        errors = set_group_offsets(there, target, {offset.partition: offset.new for offset in found})
    return max(failed, _show_outcome(rows, columns, errors, _partition_of, common))


def _chosen_offsets(admin: Admin, group: str, topic: tuple[str, ...]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the committed offsets of a group in the partitions that are named, or in all.

    Raises:
        NotFoundError: the group does not exist, or has no offset there.
        UsageError: a named partition has no committed offset.
    """
    from kohort.client.admin.group_changes import check_group_exists, parse_partition_options, partition_numbers

    committed = {key: value for key, value in admin.list_consumer_group_offsets(group).all().items() if value}
    there = {key.topic: partition_numbers(committed, key.topic) for key in committed}
    with _usage_errors():
        wanted = parse_partition_options(topic, there) if topic else sorted(committed)
    if not wanted:
        check_group_exists(admin, group)
        where = f" in {', '.join(topic)}" if topic else ""
        raise NotFoundError(f"group {group!r} has no committed offsets{where}")
    return {key: committed[key] for key in wanted}


def _show_outcome(
    rows: list[dict[str, Any]],
    columns: Iterable[str],
    errors: Mapping[K, KafkaError],
    key_of: Callable[[Mapping[str, Any]], K],
    common: Common,
) -> int:
    """Print the result of a change and its errors, and return the exit code."""
    from kohort.client.admin.group_changes import change_was_made

    done = [{**row, "done": change_was_made(errors.get(key_of(row)))} for row in rows]
    print_changes(done, columns, errors, key_of, as_json=common.json)
    return print_errors(errors)


def _partition_of(row: Mapping[str, Any]) -> TopicPartition:
    return TopicPartition(row["topic"], row["partition"])


def _must_be_empty(admin: Admin, group: str) -> None:
    """Raise an error if the group has members, before anything is previewed: Kafka would refuse the commit."""
    from kohort.client.admin.group_changes import group_has_members_error

    found = admin.describe_consumer_groups([group])
    if group in found.values and found.values[group].members:
        raise group_has_members_error(group, len(found.values[group].members))
