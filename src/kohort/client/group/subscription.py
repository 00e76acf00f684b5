"""What a member subscribes to."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kohort.client.net.metadata import Metadata
from kohort.client.net.topic_existence import check_topic_names
from kohort.errors import ErrorCode, InvalidInputError

_MISSING = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INVALID_TOPIC_EXCEPTION)


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member wants to read: topics by name, or those that a regular expression finds.

    Attributes:
        topics: Names; empty with a pattern.
        pattern: Searched for in each topic's name (`^` and `$` bind it).
        user_data: For the assignor, from the application.
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
        """The topics meant, sorted.

        A pattern finds none that metadata knows to be missing, because someone asked for it.
        """
        if self.pattern is None:
            return tuple(sorted(set(self.topics)))
        found = re.compile(self.pattern).search
        known = [topic for topic in metadata.topics.values() if topic.error not in _MISSING]
        return tuple(
            sorted(topic.name for topic in known if found(topic.name) and not (topic.internal and exclude_internal))
        )
