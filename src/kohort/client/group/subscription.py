"""A member's subscription: topics or a pattern."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kohort.client.net.metadata import Metadata
from kohort.client.net.topic_existence import check_topic_names
from kohort.errors import ErrorCode, InvalidInputError

_MISSING = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INVALID_TOPIC_EXCEPTION)


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription to topics by name, or to those that match a regular expression.

    Attributes:
        topics: Names; empty with a pattern.
        pattern: Searched for in each topic's name (`^` and `$` anchor it).
        user_data: The application's data for the assignor.
    """

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    user_data: bytes | None = None

    def __post_init__(self) -> None:
        if bool(self.topics) == (self.pattern is not None):
            raise InvalidInputError("subscribe to topics or to a pattern, one of both")
        check_topic_names(self.topics)
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise InvalidInputError(f"pattern {self.pattern!r}: {error}") from None

    def resolve(self, metadata: Metadata, exclude_internal: bool) -> tuple[str, ...]:
        """Return the subscribed topics, sorted.

        A pattern skips topics that the metadata lists only as missing, because something asked for them.
        """
        if self.pattern is None:
            return tuple(sorted(set(self.topics)))
        matches = re.compile(self.pattern).search
        known = [topic for topic in metadata.topics.values() if topic.error not in _MISSING]
        return tuple(
            sorted(topic.name for topic in known if matches(topic.name) and not (topic.internal and exclude_internal))
        )
