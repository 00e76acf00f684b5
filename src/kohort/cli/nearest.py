"""Names of things that are not there, with the nearest one that is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from kohort.errors import ErrorCode, KafkaError, NotFoundError
from kohort.settings.config import did_you_mean

if TYPE_CHECKING:  # the client is imported by the commands that need it
    from kohort.client.admin.admin import Admin


def groups_with_nearest(admin: Admin, errors: Mapping[str, KafkaError]) -> dict[str, KafkaError]:
    """The errors, with the nearest group's name where a group is not there."""
    return _with_nearest(
        errors, ErrorCode.GROUP_ID_NOT_FOUND, lambda: [group.group_id for group in admin.list_groups()]
    )


def topics_with_nearest(admin: Admin, errors: Mapping[str, KafkaError]) -> dict[str, KafkaError]:
    """The errors, with the nearest topic's name where a topic is not there."""
    return _with_nearest(
        errors, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, lambda: [topic.name for topic in admin.list_topics()]
    )


def _with_nearest(
    errors: Mapping[str, KafkaError], missing: ErrorCode, names: Callable[[], Iterable[str]]
) -> dict[str, KafkaError]:
    """The errors; names are asked for where one has the code of a thing that is missing."""
    there = list(names()) if any(error.code is missing for error in errors.values()) else []
    return {
        name: NotFoundError(f"{error.message}{did_you_mean(name, there)}", error.code)
        if error.code is missing
        else error
        for name, error in errors.items()
    }
