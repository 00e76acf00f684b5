"""Topics and partitions as arguments name them: TOPIC for all of a topic's partitions, TOPIC:0,1 for some."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kohort.cli.app import UsageError
from kohort.errors import NotFoundError
from kohort.ids import TopicPartition


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
