"""Suggestions for misspelled names of groups and topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from kohort.errors import ErrorCode, KafkaError, NotFoundError
from kohort.settings.config import did_you_mean

if TYPE_CHECKING:  # the client is imported by the commands that need it
    from kohort.client.admin.admin import Admin


def groups_with_nearest(admin: Admin, errors: Mapping[str, KafkaError]) -> dict[str, KafkaError]:
    """Add the nearest group's name to the errors of groups that do not exist."""
    return _with_nearest(
        errors, ErrorCode.GROUP_ID_NOT_FOUND, lambda: [group.group_id for group in admin.list_groups()]
    )


def topics_with_nearest(admin: Admin, errors: Mapping[str, KafkaError]) -> dict[str, KafkaError]:
    """Add the nearest topic's name to the errors of topics that do not exist."""
    return _with_nearest(
        errors, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, lambda: [topic.name for topic in admin.list_topics()]
    )


def _with_nearest(
    errors: Mapping[str, KafkaError], missing: ErrorCode, names: Callable[[], Iterable[str]]
) -> dict[str, KafkaError]:
    """Add the nearest of `names()` to errors with the code `missing`; look the names up only if there are any."""
    there = list(names()) if any(error.code is missing for error in errors.values()) else []
    return {
        name: NotFoundError(f"{error.message}{did_you_mean(name, there)}", error.code)
        if error.code is missing
        else error
        for name, error in errors.items()
    }
