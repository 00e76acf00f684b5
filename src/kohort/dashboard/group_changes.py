"""Changes of a group from the page: a preview as the command's, and then exactly what was previewed, or nothing."""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from kohort.client.admin.admin import Admin
from kohort.client.admin.group_changes import (
    OffsetChange,
    OutcomeUnknownError,
    ResetTarget,
    change_was_made,
    check_group_exists,
    delete_group_offsets,
    delete_groups,
    parse_reset_target,
    preview_group_deletions,
    preview_offset_changes,
    preview_offset_deletions,
    set_previewed_offsets,
)
from kohort.errors import InvalidInputError, KafkaError, NotFoundError
from kohort.ids import TopicPartition

log = logging.getLogger("kohort.dashboard")

PREVIEW_S = 300.0
"""How long a preview can be confirmed."""
PREVIEWS_MAX = 100
"""The most previews that wait to be confirmed; then the oldest is forgotten."""
PREVIEW_ROWS_MAX = 100_000
"""The most rows of all previews that wait; then the oldest preview is forgotten."""
OFFSETS_MAX = 10_000
"""The most offsets of a change. The command has no such limit."""
TOPICS_MAX = 100
"""The most topics that a change names."""

View = dict[str, Any]
RESET, DELETE_OFFSETS, DELETE = "reset-offsets", "delete-offsets", "delete"


class ChangedMeanwhileError(KafkaError):
    """The error that a preview can't be confirmed: it is unknown or has expired, or the group has changed since."""


class PreviewBody(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON body of a request to preview a change of a group.

    Attributes:
        change: The kind of change, named as the subcommand of `kohort groups`.
        group: The group.
        topics: TOPIC, or TOPIC:0,1 for some partitions; empty, for a reset: all with committed offsets.
        goal: The target of a reset, named by the options of `kohort groups reset-offsets`: `earliest` is --to-earliest,
            `duration` --by-duration, `shift` --shift-by.
        value: The offset, number of records, time or duration that belongs to the goal.
    """

    change: Literal["reset-offsets", "delete-offsets", "delete"]
    group: str
    topics: list[str] = []
    goal: Literal["earliest", "latest", "current", "offset", "datetime", "duration", "shift"] | None = None
    value: int | str | None = None


class ConfirmBody(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON body of a request to make a previewed change: the preview's token."""

    token: str


@dataclass(frozen=True, slots=True)
class GroupPreview:
    """A change of a group that was shown to a user and waits to be confirmed by its token.

    Attributes:
        change: `RESET`, `DELETE_OFFSETS` or `DELETE`.
        group: The group.
        owner: The secret of the user's login session; empty without logins.
        rows: The rows of a deletion, as they were shown; empty for a reset.
        offsets: The offsets that a reset will commit; empty for a deletion.
        state: A digest of the group's members and offsets, which must still be the same.
        ends_s: The time in s, on the monotonic clock, after which the change can't be confirmed.
    """

    change: str
    group: str
    owner: str
    rows: tuple[View, ...]
    offsets: tuple[OffsetChange, ...]
    state: bytes
    ends_s: float

    @property
    def row_count(self) -> int:
        """The number of rows that the previewed change affects."""
        return len(self.rows) + len(self.offsets)


class GroupChanges:
    """The dashboard's changes of groups: each is previewed first, then confirmed. Calls block. Thread-safe.

    Args:
        admin: Makes an administration client.
        now_s: The monotonic clock, in s.
    """

    def __init__(self, admin: Callable[[], Admin], now_s: Callable[[], float] = time.monotonic) -> None:
        self._admin, self._now_s = admin, now_s
        self._lock = threading.Lock()
        self._previews: OrderedDict[str, GroupPreview] = OrderedDict()

    @property
    def waiting_rows(self) -> int:
        """The number of rows of all stored previews, which may still be confirmed unless they have expired."""
        with self._lock:
            return sum(preview.row_count for preview in self._previews.values())

    def preview(self, asked: PreviewBody, owner: str) -> View:
        """Return the rows of a change, as its command shows them, the errors, and a token that confirms the change.

        The token is None if there is nothing to change, or if the group can't be changed now, as `errors` says.

        Args:
            asked: The change.
            owner: The secret of the login session; empty without logins.

        Raises:
            InvalidInputError: The request describes no change.
            NotFoundError: There is no such group, topic or partition.
            KafkaError: The cluster refuses, or can't be reached; or the group has members.
        """
        goal = _reset_target(asked)
        if not asked.group or len(asked.topics) > TOPICS_MAX or not all(asked.topics):
            raise InvalidInputError(f"name a group, and at most {TOPICS_MAX} topics")
        offsets: list[OffsetChange] = []
        errors: Mapping[Any, KafkaError] = {}
        with self._admin() as admin:
            check_group_exists(admin, asked.group)
            state = _state(admin, asked.group)  # before the preview: what comes between is refused later
            if goal is not None:
                offsets, errors = preview_offset_changes(admin, [asked.group], goal, asked.topics)
                rows = [change.row() for change in offsets]
            elif asked.change == DELETE_OFFSETS:
                rows = preview_offset_deletions(admin, asked.group, asked.topics)
            else:
                rows, errors = preview_group_deletions(admin, [asked.group])
                errors = {**errors, **_with_members(rows)}
        if len(rows) > OFFSETS_MAX:
            raise InvalidInputError(f"these are {len(rows)} offsets: more than {OFFSETS_MAX} are for kohort groups")
        found = GroupPreview(
            asked.change,
            asked.group,
            owner,
            () if offsets else tuple(rows),
            tuple(offsets),
            state,
            self._now_s() + PREVIEW_S,
        )
        return {
            "rows": rows,
            "errors": _texts(errors.values()),
            "token": self._keep_preview(found, errors),
        }

    def _keep_preview(self, preview: GroupPreview, errors: Mapping[Any, KafkaError]) -> str | None:
        if not preview.row_count or preview.group in errors:
            return None
        token = secrets.token_urlsafe(32)
        self._put_preview(token, preview)
        return token

    def _put_preview(self, token: str, preview: GroupPreview) -> None:
        """Store a preview under its token. Drop expired previews, and the oldest if there are too many."""
        now_s = self._now_s()
        with self._lock:
            self._previews[token] = preview
            for late in [late for late, found in self._previews.items() if found.ends_s <= now_s]:
                if late != token:
                    del self._previews[late]
            rows = sum(found.row_count for found in self._previews.values())
            while len(self._previews) > PREVIEWS_MAX or (rows > PREVIEW_ROWS_MAX and len(self._previews) > 1):
                rows -= self._previews.popitem(last=False)[1].row_count

    def _find_preview(self, token: str, owner: str) -> GroupPreview:
        """Return the preview of a token if this login session made it. The caller holds the lock.

        Raises:
            ChangedMeanwhileError: There is no such preview.
        """
        found = self._previews.get(token)
        if found is None or not hmac.compare_digest(found.owner.encode(), owner.encode()):
            raise ChangedMeanwhileError("there is no such preview: look at it again")
        return found

    def _take_preview(self, token: str, owner: str) -> GroupPreview:
        """Remove and return the preview of a token, so that it can't be confirmed twice."""
        with self._lock:
            found = self._find_preview(token, owner)
            del self._previews[token]
        if found.ends_s <= self._now_s():
            raise ChangedMeanwhileError(f"the preview is older than {PREVIEW_S:.0f} s: look at it again")
        return found

    def confirm(self, token: str, owner: str, user: str | None) -> View:
        """Make a previewed change, at most once. Return its rows with `done`, and the errors.

        Args:
            token: The preview's token.
            owner: The secret of the login session; empty without logins.
            user: The session's user, for the log; None: there are no logins.

        Raises:
            ChangedMeanwhileError: There is no such preview of this session, or the group has changed since.
            KafkaError: The cluster can't be reached.
        """
        with self._lock:
            self._find_preview(token, owner)
        with self._admin() as admin:  # may be refused: the preview still waits then
            found = self._take_preview(token, owner)
            who = f"[group {_logged(found.group)}][user {'(no login)' if user is None else _logged(user)}]"
            try:
                _check_unchanged(admin, found)
            except ChangedMeanwhileError as error:
                log.warning("%s %s: change refused: %s", who, found.change, error.message)
                raise
            except KafkaError as error:
                log.warning("%s %s: change not begun, and it can be confirmed again: %s", who, found.change, error)
                self._put_preview(token, found)
                raise
            rows, errors = _make(admin, found)
        _log_outcome(f"{who} {found.change}", rows, errors.values())
        return {"rows": rows, "errors": _texts(errors.values())}


def _log_outcome(what: str, rows: Iterable[View], errors: Iterable[KafkaError]) -> None:
    """Log which parts of a change were made, which were refused, and which have an unknown outcome."""
    if done := [_text(row) for row in rows if row["done"]]:
        log.info("%s: change made: %s", what, "; ".join(done))
    if unknown := [_text(row) for row in rows if row["done"] is None]:
        why = _texts(error for error in errors if isinstance(error, OutcomeUnknownError))
        log.warning(
            "%s: change may have been made, its outcome is unknown: %s: %s", what, "; ".join(unknown), "; ".join(why)
        )
    if refused := _texts(error for error in errors if not isinstance(error, OutcomeUnknownError)):
        log.warning("%s: change refused: %s", what, "; ".join(refused))


def _texts(errors: Iterable[KafkaError]) -> list[str]:
    """Return errors as texts without repetition: all offsets of a group may have failed for one reason."""
    return list(dict.fromkeys(str(error) for error in errors))


def _reset_target(asked: PreviewBody) -> ResetTarget | None:
    """Return the target of an offset reset; None for a deletion, which has none.

    Raises:
        InvalidInputError: The fields of the request contradict each other.
    """
    if asked.change != RESET:
        if asked.goal is not None or asked.value is not None:
            raise InvalidInputError(f"{asked.change} has no goal")
        if (asked.change == DELETE_OFFSETS) != bool(asked.topics):
            raise InvalidInputError("name topics to delete offsets, and none to delete a group")
        return None
    kinds: dict[str | None, type] = {"offset": int, "shift": int, "datetime": str, "duration": str}
    kind = kinds.get(asked.goal)
    if asked.goal is None or not (asked.value is None if kind is None else isinstance(asked.value, kind)):
        raise InvalidInputError(
            "say where to: earliest, latest, current; or offset, shift, datetime, duration with a value"
        )
    return parse_reset_target({asked.goal: True if kind is None else asked.value})


def _state(admin: Admin, group: str) -> bytes:
    """Return a digest of the group's members and offsets, which must be the same when a preview is confirmed."""
    found = admin.describe_consumer_groups([group]).result(group)
    committed = admin.list_consumer_group_offsets(group).all()
    digest = hashlib.sha256(repr((found.state, sorted(member.member_id for member in found.members))).encode())
    for item in sorted(committed.items()):
        digest.update(repr(item).encode())
    return digest.digest()


def _with_members(rows: list[View]) -> dict[str, KafkaError]:
    """Return an error for each group that has members, since Kafka refuses to delete such a group."""
    found: dict[str, KafkaError] = {}
    for row in rows:
        if row["members"]:
            words = "1 member: stop it first" if row["members"] == 1 else f"{row['members']} members: stop them first"
            found[row["group"]] = KafkaError(f"group {row['group']!r} has {words}")
    return found


def _check_unchanged(admin: Admin, preview: GroupPreview) -> None:
    try:
        state: bytes | None = _state(admin, preview.group)
    except NotFoundError:
        state = None
    if state != preview.state:
        raise ChangedMeanwhileError(f"group {preview.group!r} has changed since the preview: look at it again")
    if preview.offsets:
        keys = [change.key for change in preview.offsets]
        bounds, errors = ResetTarget("current").bounds(admin, keys)
        for error in errors.values():
            raise error
        for change in preview.offsets:
            if not bounds[change.key].start <= change.target.new <= bounds[change.key].end:
                raise ChangedMeanwhileError(
                    f"{change.key} has no offset {change.target.new} any more: look at it again"
                )


def _make(admin: Admin, preview: GroupPreview) -> tuple[list[View], Mapping[Any, KafkaError]]:
    if preview.change == RESET:
        return set_previewed_offsets(admin, preview.offsets)
    if preview.change == DELETE:
        refused = delete_groups(admin, [preview.group])
        return [{**row, "done": change_was_made(refused.get(row["group"]))} for row in preview.rows], refused
    keys = [TopicPartition(row["topic"], row["partition"]) for row in preview.rows]
    errors = delete_group_offsets(admin, preview.group, keys)
    return [
        {**row, "done": change_was_made(errors.get(key))} for row, key in zip(preview.rows, keys, strict=True)
    ], errors


def _text(row: View) -> str:
    """Return one row of a change as text for the log."""
    if "topic" not in row:
        return f"{row['offsets']} offsets"
    new = f" -> {row['new']}" if "new" in row else ""
    return f"{_logged(row['topic'])}-{row['partition']} {row['committed']}{new}"


def _logged(name: str) -> str:
    return name if name.isprintable() else name.encode("unicode_escape").decode()
