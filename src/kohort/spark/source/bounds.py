"""Where a read starts and ends, as its options say. Nothing is asked: that is `Catalog`'s."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from kohort.errors import InvalidInputError
from kohort.ids import TopicPartition
from kohort.spark.options import EARLIEST, LATEST, SourceOptions, numbers_of_json


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a read starts or ends.

    Attributes:
        kind: `times` and `offsets` are told by partition in `numbers`; `time` for all in `number`.
        strategy: what to do where no record is as young as a timestamp: "latest" or "error".
    """

    kind: Literal["earliest", "latest", "committed", "offsets", "time", "times"]
    numbers: Mapping[TopicPartition, int] = field(default_factory=dict)
    number: int = 0
    strategy: str = "latest"


def refuse_not_read(option: str, bound: Bound, partitions: Collection[TopicPartition]) -> None:
    """Offsets by partition name only partitions that are read, as in Spark's Kafka source.

    Args:
        option: `startingOffsets` or `endingOffsets`.
        bound: what it or its form by time says.
        partitions: all that are read.

    Raises:
        InvalidInputError: they name another one.
    """
    others = sorted(bound.numbers.keys() - set(partitions))
    if others:
        name = f"{option}ByTimestamp" if bound.kind == "times" else option
        raise InvalidInputError(
            f"{name} names {', '.join(map(str, others))}, which is not read: it must name the partitions that are, "
            f"{', '.join(map(str, sorted(partitions)))}"
        )


def starting_bound(options: SourceOptions, *, streaming: bool) -> Bound:
    """Where a read starts; a timestamp counts before an offset, as in Spark's Kafka source.

    Raises:
        InvalidInputError: malformed, or `committed` without a group.
    """
    strategy = options.starting_strategy
    if options.starting_timestamp is not None:
        return Bound("time", number=options.starting_timestamp, strategy=strategy)
    if options.starting_offsets_by_timestamp is not None:
        times = numbers_of_json("startingOffsetsByTimestamp", options.starting_offsets_by_timestamp)
        return Bound("times", times, strategy=strategy)
    default = "latest" if streaming else "earliest"
    bound = _offset_bound("startingOffsets", options.starting_offsets or default)
    if not streaming and (bound.kind == "latest" or LATEST in bound.numbers.values()):
        raise InvalidInputError("startingOffsets can't be latest in a batch read")
    if bound.kind == "committed" and options.group_id is None:
        raise InvalidInputError("startingOffsets can only be committed with a group.id")
    return bound


def ending_bound(options: SourceOptions) -> Bound:
    """Where a batch read ends.

    Raises:
        InvalidInputError: malformed, or `earliest`, or `committed` without a group.
    """
    if options.ending_timestamp is not None:
        return Bound("time", number=options.ending_timestamp)
    if options.ending_offsets_by_timestamp is not None:
        times = numbers_of_json("endingOffsetsByTimestamp", options.ending_offsets_by_timestamp)
        return Bound("times", times)
    bound = _offset_bound("endingOffsets", options.ending_offsets or "latest")
    if bound.kind == "earliest" or EARLIEST in bound.numbers.values():
        raise InvalidInputError("endingOffsets can't be earliest")
    if bound.kind == "committed" and options.group_id is None:
        raise InvalidInputError("endingOffsets can only be committed with a group.id")
    return bound


def _offset_bound(name: str, text: str) -> Bound:
    word = text.strip().lower()
    if word in ("earliest", "latest", "committed"):
        return Bound(word)  # type: ignore[arg-type]
    numbers = numbers_of_json(name, text)
    for tp, number in numbers.items():
        if number < EARLIEST:
            raise InvalidInputError(
                f"{name} asks for offset {number} of {tp}; offsets begin at 0, {EARLIEST} is earliest, {LATEST} latest"
            )
    return Bound("offsets", numbers)
