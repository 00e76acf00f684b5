"""Changes of groups with a preview: offset resets, and deletions of offsets or groups.

Commands and the dashboard preview and make changes by the same functions. All calls block.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from kohort.errors import ErrorCode, InvalidInputError, KafkaError, NotFoundError, RetriableError
from kohort.ids import TopicPartition
from kohort.settings.config import did_you_mean

if TYPE_CHECKING:
    from kohort.client.admin.admin import Admin
    from kohort.client.admin.values import Results

K = TypeVar("K")


class ChangeInputError(InvalidInputError):
    """Error: the description of a change is invalid, such as a malformed time."""


# -- Suggestions for misspelled names of groups and topics


def group_errors_with_suggestions(admin: Admin, errors: Mapping[str, KafkaError]) -> dict[str, KafkaError]:
    """Add the existing group with the most similar name to the error of each group that does not exist."""
    return errors_with_similar_names(errors, lambda: [group.group_id for group in admin.list_groups()])


def errors_with_similar_names(
    errors: Mapping[str, KafkaError], names: Callable[[], Iterable[str]]
) -> dict[str, KafkaError]:
    """Add the most similar of `names()` to the error of each group that does not exist."""
    return _with_nearest(errors, ErrorCode.GROUP_ID_NOT_FOUND, names)


def topic_errors_with_suggestions(admin: Admin, errors: Mapping[str, KafkaError]) -> dict[str, KafkaError]:
    """Add the existing topic with the most similar name to the error of each topic that does not exist."""
    return _with_nearest(
        errors, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, lambda: [topic.name for topic in admin.list_topics()]
    )


def _with_nearest(
    errors: Mapping[str, KafkaError], missing: ErrorCode, names: Callable[[], Iterable[str]]
) -> dict[str, KafkaError]:
    """Add `did you mean …?` to errors with the code `missing`: the most similar of the existing `names()`.

    `names` is only called if there are such errors.
    """
    there = list(names()) if any(error.code is missing for error in errors.values()) else []
    return {
        name: NotFoundError(f"{error.message}{did_you_mean(name, there)}", error.code)
        if error.code is missing
        else error
        for name, error in errors.items()
    }


# -- Topics and partitions as arguments name them: TOPIC for all of a topic's partitions, TOPIC:0,1 for some


def topic_of_option(text: str) -> str:
    """Return the topic of a command line option `TOPIC` or `TOPIC:0,1`."""
    return text.partition(":")[0]


def parse_partition_options(texts: Iterable[str], there: Mapping[str, list[int]]) -> list[TopicPartition]:
    """Return the partitions that command line options name (`TOPIC` or `TOPIC:0,1`), sorted.

    Args:
        texts: TOPIC or TOPIC:0,1.
        there: the partitions that each topic has.

    Raises:
        ChangeInputError: a partition is not a number.
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
            raise ChangeInputError(f"--topic {text}: partitions are numbers with commas between") from error
        missing = [number for number in wanted if number not in there.get(name, ())]
        if missing:
            known = ", ".join(map(str, sorted(there.get(name, ()))))
            has = f"it has {known}" if known else f"nothing is known of {name}"
            raise NotFoundError(f"there is no partition {missing[0]} of {name} here; {has}")
        chosen |= {TopicPartition(name, number) for number in wanted}
    return sorted(chosen)


# -- Target offsets of `kohort groups reset-offsets`

Plan = dict[str, dict[TopicPartition, int]]
"""The offsets in a file, by group; the group is '' if the file names none."""
OFFSET_MAX = 2**63 - 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ResetBounds(NamedTuple):
    """The offsets that bound a reset of one partition.

    They are its first offset, its end offset, and that of the first record at or after the requested time (-1: none).
    """

    start: int
    end: int
    at_time: int


class ResetOffset(NamedTuple):
    """The offset that a reset would commit for one partition, and why it differs from the requested one.

    Attributes:
        new: the new offset, within the partition's bounds.
        requested: the requested offset, if it is another one.
        note: why `new` is not the requested offset.
    """

    new: int
    requested: int | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """The target of an offset reset: earliest, latest, current, offset, shift, time (ms since 1970) or file."""

    kind: str
    value: int = 0

    def bounds(
        self, admin: Admin, partitions: Sequence[TopicPartition]
    ) -> tuple[dict[TopicPartition, ResetBounds], dict[TopicPartition, KafkaError]]:
        """Look up the bounds of partitions for this reset; return them, and the errors of the other partitions."""
        starts = admin.list_offsets(dict.fromkeys(partitions, "earliest"))
        ends = admin.list_offsets(dict.fromkeys(partitions, "latest"))
        errors = {**starts.errors, **ends.errors}
        by_time = None
        if self.kind == "time":
            by_time = admin.list_offsets(dict.fromkeys(partitions, self.value))
            errors |= by_time.errors
        found = {
            key: ResetBounds(
                starts.values[key].offset, ends.values[key].offset, by_time.values[key].offset if by_time else -1
            )
            for key in partitions
            if key not in errors
        }
        return found, errors

    def target(
        self, key: TopicPartition, bounds: ResetBounds, committed: int | None, planned: int | None
    ) -> ResetOffset:
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
            return ResetOffset(start)
        if self.kind == "latest":
            return ResetOffset(end)
        if self.kind == "time":
            return ResetOffset(at_time) if at_time >= 0 else ResetOffset(end, None, "no record is that young: the end")
        if committed is None and self.kind == "current":
            return ResetOffset(end, None, "nothing was committed: the end")
        if committed is None and self.kind == "shift":
            raise InvalidInputError(f"{key}: there is no committed offset to shift from")
        wanted = {
            "current": committed,
            "offset": self.value,
            "shift": (committed or 0) + self.value,
            "file": planned,
        }[self.kind]
        return _within(wanted or 0, start, end)


def _within(wanted: int, start: int, end: int) -> ResetOffset:
    if wanted > end:
        return ResetOffset(end, wanted, f"{wanted} is past the end {end}")
    if wanted < start:
        return ResetOffset(start, wanted, f"{wanted} is before the first offset {start}")
    return ResetOffset(wanted)


def parse_reset_target(given: Mapping[str, Any]) -> ResetTarget:
    """Return the target of an offset reset that a command's options name.

    Raises:
        ChangeInputError: none or several were given, or a time or an offset is invalid.
    """
    chosen = [(kind, value) for kind, value in given.items() if value is not None]
    if len(chosen) != 1:
        raise ChangeInputError(
            "say where to with exactly one of --to-earliest, --to-latest, --to-current, --to-offset, --to-datetime, "
            "--by-duration, --shift-by, --from-file"
        )
    kind, value = chosen[0]
    if kind == "datetime":
        return ResetTarget("time", _milliseconds(value))
    if kind == "duration":
        return ResetTarget("time", max(0, int(time.time() * 1000) - _duration(value)))
    if kind == "offset" and not 0 <= value <= OFFSET_MAX:
        raise ChangeInputError(f"--to-offset {value}: offsets are from 0 to {OFFSET_MAX}")
    return ResetTarget(kind, value if kind in ("offset", "shift") else 0)


def _milliseconds(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ChangeInputError(f"--to-datetime {text}: write it as 2026-01-31T12:00:00") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0, -((EPOCH - moment) // timedelta(milliseconds=1)))  # a float of seconds may be a millisecond less


def _duration(text: str) -> int:
    from kohort.client.settings import duration_ms

    try:
        return duration_ms(text)
    except ValueError as error:
        raise ChangeInputError(f"--by-duration: {error}") from error


class OffsetChange(NamedTuple):
    """A committed offset that is to be set.

    Attributes:
        group: the group.
        key: the partition.
        committed: its committed offset now; None: it has none.
        target: the new one.
    """

    group: str
    key: TopicPartition
    committed: int | None
    target: ResetOffset

    def row(self) -> dict[str, Any]:
        """Return the change as the row of a preview."""
        new, requested, why = self.target
        row = {"group": self.group, "topic": self.key.topic, "partition": self.key.partition}
        return {**row, "committed": self.committed, "requested": requested, "new": new, "note": why}


def preview_offset_changes(
    admin: Admin,
    names: list[str],
    goal: ResetTarget,
    topics: Sequence[str],
    plan: Plan | None = None,
    *,
    on_note: Callable[[str], None] = lambda _: None,
) -> tuple[list[OffsetChange], dict[Any, KafkaError]]:
    """Return the offset changes that a reset would make, and an error for each group or partition that can't be reset.

    Args:
        admin: asks the cluster.
        names: the groups.
        goal: where to reset to, for example the earliest offset or a time.
        topics: TOPIC or TOPIC:0,1; none: all partitions for which the group has committed offsets.
        plan: the offsets of a file, by group and partition; None: `goal` names no file.
        on_note: is called with a text for each group that does not exist yet, before anything is raised.

    Raises:
        ChangeInputError: a topic's partition is not a number.
        NotFoundError: a topic or partition does not exist.
    """
    ready, errors = _groups_to_set(admin, names, on_note)
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
                changes.append(OffsetChange(name, key, current, goal.target(key, bounds[key], current, planned)))
            except InvalidInputError as error:
                errors[name, key] = InvalidInputError(
                    f"group {name!r}, {error.message}", ErrorCode.UNKNOWN_SERVER_ERROR
                )
    return changes, errors


def _groups_to_set(
    admin: Admin, names: list[str], on_note: Callable[[str], None]
) -> tuple[list[str], dict[Any, KafkaError]]:
    """Return the groups whose offsets can be set, and the errors of the others. Report groups that do not exist yet.

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
            on_note(f"group {name!r} is not there yet{did_you_mean(name, there)}")
        elif error is not None:
            errors[name] = error
            continue
        elif found.values[name].members:
            errors[name] = group_has_members_error(name, len(found.values[name].members))
            continue
        ready.append(name)
    return ready, errors


def group_has_members_error(group: str, count: int) -> KafkaError:
    """Return the error for a group whose offsets can't be set because it has members."""
    members, them, they = ("member", "it", "it") if count == 1 else ("members", "them", "they")
    return KafkaError(
        f"group {group!r} has {count} {members}: stop {them} first, or {they} would overwrite the offsets"
    )


def _named_partitions(admin: Admin, topics: Sequence[str]) -> list[TopicPartition]:
    described = admin.describe_topics(sorted({topic_of_option(text) for text in topics}))
    for error in topic_errors_with_suggestions(admin, described.errors).values():
        raise error
    found = described.values
    return parse_partition_options(topics, {name: sorted(info.partitions) for name, info in found.items()})


# -- Changes that are made: what is known of each afterwards


class OutcomeUnknownError(KafkaError):
    """Error: a change may have been made or not: its answer was lost, or only a repetition of it was refused."""


def change_was_made(error: KafkaError | None) -> bool | None:
    """Return whether a change with this error was made; None if that is unknown (`OutcomeUnknownError`)."""
    if error is None:
        return True
    return None if isinstance(error, OutcomeUnknownError) else False


def set_previewed_offsets(
    admin: Admin, changes: Iterable[OffsetChange]
) -> tuple[list[dict[str, Any]], dict[tuple[str, TopicPartition], KafkaError]]:
    """Commit the offsets of a preview (`preview_offset_changes`) to their groups.

    Returns:
        A row for each change, whose `done` is None if unknown. And the errors by group and partition, of changes that
        were refused or whose outcome is unknown.
    """
    from kohort.client.offsets import OffsetAndMetadata

    done: list[dict[str, Any]] = []
    errors: dict[tuple[str, TopicPartition], KafkaError] = {}
    by_group: dict[str, list[OffsetChange]] = {}
    for change in changes:
        by_group.setdefault(change.group, []).append(change)
    for group, own in by_group.items():
        befell = set_group_offsets(admin, group, {change.key: OffsetAndMetadata(change.target.new) for change in own})
        errors |= {(group, key): error for key, error in befell.items()}
        done += [{**change.row(), "done": change_was_made(befell.get(change.key))} for change in own]
    return done, errors


def set_group_offsets(
    admin: Admin, group: str, offsets: Mapping[TopicPartition, Any]
) -> dict[TopicPartition, KafkaError]:
    """Set offsets of a group. Return the errors of those that were refused, or whose outcome is unknown."""
    text = f"offsets of group {group!r} may have been set"
    return _make_change(offsets, lambda: admin.alter_consumer_group_offsets(group, offsets), lambda _: text)


def delete_group_offsets(
    admin: Admin, group: str, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, KafkaError]:
    """Delete committed offsets of a group. Return the errors of deletions that were refused or may have failed."""
    text = f"offsets of group {group!r} may have been deleted"
    return _make_change(
        partitions,
        lambda: admin.delete_consumer_group_offsets(group, partitions),
        lambda _: text,
        (ErrorCode.GROUP_ID_NOT_FOUND,),
    )


def delete_groups(admin: Admin, names: Sequence[str]) -> dict[str, KafkaError]:
    """Delete existing groups; return an error for each that was not, or perhaps not, deleted; empty: all were."""
    return _make_change(
        names,
        lambda: admin.delete_consumer_groups(names),
        lambda name: f"group {name!r} may have been deleted",
        (ErrorCode.GROUP_ID_NOT_FOUND,),
    )


def _make_change(
    keys: Iterable[K],
    change: Callable[[], Results[K, None]],
    may_be: Callable[[K], str],
    unknown: Sequence[ErrorCode] = (),
) -> dict[K, KafkaError]:
    """Make a change, and return an error for each key that was not changed or whose outcome is unknown.

    Args:
        keys: The groups or partitions to change.
        change: Sends the requests for all keys.
        may_be: Returns the text of the error for a key whose outcome is unknown.
        unknown: Error codes that leave the outcome unknown: a repetition gets them if the first request succeeded.
    """
    try:
        results = change()
    except KafkaError as error:  # of the call: the broker may have taken a request whose answer never came
        was_sent = error.code is not ErrorCode.UNSUPPORTED_VERSION
        return {key: _outcome_unknown(error, may_be(key)) if was_sent else error for key in keys}
    errors: dict[K, KafkaError] = {}
    for key in keys:
        if key not in results.values:
            refusal = results.errors.get(key, RetriableError("the broker's answer does not have it"))
            is_unknown = isinstance(refusal, RetriableError) or refusal.code in unknown or refusal.after_lost_answer
            errors[key] = _outcome_unknown(refusal, may_be(key)) if is_unknown else refusal
    return errors


def _outcome_unknown(error: KafkaError, text: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(f"{text}, look again: {error.message}", error.code)


# -- Deletions


def preview_offset_deletions(admin: Admin, group: str, topics: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each committed offset of a group in topics, or in some of their partitions.

    Raises:
        ChangeInputError: a partition is not a number.
        NotFoundError: there is no such group or partition, or no such offset.
    """
    committed = admin.list_consumer_group_offsets(group).all()
    partitions = parse_partition_options(
        topics, {key.topic: partition_numbers(committed, key.topic) for key in committed}
    )
    rows = [offset_row(group, key, committed_offset(committed, key)) for key in partitions]
    if not rows:
        check_group_exists(admin, group)
        raise NotFoundError(f"group {group!r} has no committed offsets in {', '.join(topics)}")
    return rows


def preview_group_deletions(admin: Admin, names: Sequence[str]) -> tuple[list[dict[str, Any]], dict[str, KafkaError]]:
    """Return a row for each group that would be deleted with its offsets, and the errors of the others."""
    found = admin.describe_consumer_groups(names)
    rows = [
        {
            "group": group.group_id,
            "state": group.state,
            "members": len(group.members),
            "offsets": len(admin.list_consumer_group_offsets(group.group_id).values),
        }
        for group in found.values.values()
    ]
    return rows, group_errors_with_suggestions(admin, found.errors)


def check_group_exists(admin: Admin, group: str) -> None:
    """Check that there is a group.

    Raises:
        NotFoundError: there is none of this name; the error names the nearest.
    """
    for error in group_errors_with_suggestions(admin, admin.describe_consumer_groups([group]).errors).values():
        raise error


def partition_numbers(partitions: Mapping[TopicPartition, Any], topic: str) -> list[int]:
    """Return the sorted partition numbers of one topic, out of partitions of several topics."""
    return sorted(key.partition for key in partitions if key.topic == topic)


def committed_offset(committed: Mapping[TopicPartition, Any], key: TopicPartition) -> int | None:
    """Return a partition's offset among these committed offsets; None if it has none."""
    found = committed.get(key)
    return None if found is None else found.offset


def offset_row(group: str, key: TopicPartition, committed: int | None) -> dict[str, Any]:
    """Return a committed offset as a row for commands and the dashboard."""
    return {"group": group, "topic": key.topic, "partition": key.partition, "committed": committed}
