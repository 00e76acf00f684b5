"""Topics and partitions as arguments name them: TOPIC for all of a topic's partitions, TOPIC:0,1 for some."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from kohort.cli.app import UsageError
from kohort.config import did_you_mean
from kohort.errors import ErrorCode, KafkaError, NotFoundError
from kohort.ids import TopicPartition

if TYPE_CHECKING:  # the client is imported by the commands that need it
    from kohort.client.admin.admin import Admin


def name_of(text: str) -> str:
    """The topic that an option names."""
    return text.partition(":")[0]


def chosen_partitions(texts: Iterable[str], there: Mapping[str, list[int]]) -> list[TopicPartition]:
    """The partitions that options name, sorted.

    Args:
        texts: TOPIC or TOPIC:0,1.
        there: the partitions that each topic has.

    Raises:
        UsageError: partitions that are no numbers.
        NotFoundError: a partition that is not there.
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


def topics_with_nearest(admin: Admin, errors: Mapping[str, KafkaError]) -> dict[str, KafkaError]:
    """The errors, with the nearest topic's name where a topic is not there."""
    told = dict(errors)
    missing = [name for name, error in errors.items() if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    if missing:
        there = [topic.name for topic in admin.list_topics()]
        for name in missing:
            told[name] = NotFoundError(f"{errors[name].message}{did_you_mean(name, there)}", errors[name].code)
    return told
