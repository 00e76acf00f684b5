"""The start and end of a read, from its options; `TopicCatalog` looks up their offsets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from kohort.errors import InvalidInputError
from kohort.ids import TopicPartition
from kohort.spark.options import EARLIEST, LATEST, SourceOptions, parse_partition_offsets


@dataclass(frozen=True, slots=True)
class ReadBound:
    """The start or end of a read, as an option such as `startingOffsets` gives it.

    Attributes:
        kind: the form: a word, offsets or timestamps by partition (`numbers`), or one timestamp for all (`number`).
        numbers: offsets, or timestamps in ms, by partition.
        number: a timestamp in ms.
        strategy: "latest" or "error", for partitions without a record at or after a timestamp.
    """

    kind: Literal["earliest", "latest", "committed", "offsets", "time", "times"]
    numbers: Mapping[TopicPartition, int] = field(default_factory=dict)
    number: int = 0
    strategy: str = "latest"

    def is_explicit_for(self, partition: TopicPartition) -> bool:
        """Return whether the user gave a partition a number: an offset or a time, and not a word such as `latest`.

        Only numbers of the two bounds can contradict each other.
        """
        return self.kind in ("time", "times") or (self.kind == "offsets" and self.numbers.get(partition, EARLIEST) >= 0)

    def option_name(self, side: Literal["starting", "ending"]) -> str:
        """Return the name of the option that gives a bound of this kind, such as `startingOffsetsByTimestamp`."""
        return side + {"time": "Timestamp", "times": "OffsetsByTimestamp"}.get(self.kind, "Offsets")


def refuse_partitions_not_read(option: str, bound: ReadBound, partitions: Collection[TopicPartition]) -> None:
    """Refuse offsets by partition that name partitions outside the read, as Spark's Kafka source does.

    Args:
        option: `startingOffsets` or `endingOffsets`.
        bound: the value of the option or of its form by time.
        partitions: all partitions of the read.

    Raises:
        InvalidInputError: the bound names another partition.
    """
    others = sorted(bound.numbers.keys() - set(partitions))
    if others:
        name = f"{option}ByTimestamp" if bound.kind == "times" else option
        raise InvalidInputError(
            f"{name} names {', '.join(map(str, others))}, which is not read: it must name the partitions that are, "
            f"{', '.join(map(str, sorted(partitions)))}"
        )


def check_bound_options(options: SourceOptions) -> None:
    """Check the syntax of all options that give starting or ending offsets or timestamps.

    Raises:
        InvalidInputError: one of them is malformed.
    """
    for name, text in (("startingOffsets", options.starting_offsets), ("endingOffsets", options.ending_offsets)):
        if text is not None:
            _offset_bound(name, text)
    for name, text in (
        ("startingOffsetsByTimestamp", options.starting_offsets_by_timestamp),
        ("endingOffsetsByTimestamp", options.ending_offsets_by_timestamp),
    ):
        if text is not None:
            _times(name, text)


def starting_bound(options: SourceOptions, *, streaming: bool) -> ReadBound:
    """Return where a read starts; a timestamp takes precedence over an offset, as in Spark's Kafka source.

    Raises:
        InvalidInputError: the option is malformed, or `committed` without a group.
    """
    strategy = options.starting_strategy
    if options.starting_timestamp is not None:
        return ReadBound("time", number=options.starting_timestamp, strategy=strategy)
    if options.starting_offsets_by_timestamp is not None:
        times = _times("startingOffsetsByTimestamp", options.starting_offsets_by_timestamp)
        return ReadBound("times", times, strategy=strategy)
    default = "latest" if streaming else "earliest"
    bound = _offset_bound("startingOffsets", options.starting_offsets or default)
    if not streaming and (bound.kind == "latest" or LATEST in bound.numbers.values()):
        raise InvalidInputError("startingOffsets can't be latest in a batch read")
    if bound.kind == "committed" and options.group_id is None:
        raise InvalidInputError("startingOffsets can only be committed with a group.id")
    return bound


def ending_bound(options: SourceOptions) -> ReadBound:
    """Return where a batch read ends.

    Raises:
        InvalidInputError: the option is malformed, or `earliest`, or `committed` without a group.
    """
    if options.ending_timestamp is not None:
        return ReadBound("time", number=options.ending_timestamp)
    if options.ending_offsets_by_timestamp is not None:
        times = _times("endingOffsetsByTimestamp", options.ending_offsets_by_timestamp)
        return ReadBound("times", times)
    bound = _offset_bound("endingOffsets", options.ending_offsets or "latest")
    if bound.kind == "earliest" or EARLIEST in bound.numbers.values():
        raise InvalidInputError("endingOffsets can't be earliest")
    if bound.kind == "committed" and options.group_id is None:
        raise InvalidInputError("endingOffsets can only be committed with a group.id")
    return bound


def _times(name: str, text: str) -> dict[TopicPartition, int]:
    """Return the timestamp of each partition that an option names, in ms.

    Raises:
        InvalidInputError: the text is malformed, or has a negative time, which means something else to a broker.
    """
    times = parse_partition_offsets(name, text)
    for tp, time_ms in times.items():
        if time_ms < 0:
            raise InvalidInputError(
                f"{name} asks for the time {time_ms} of {tp}; times are milliseconds since 1970, {EARLIEST} and "
                f"{LATEST} belong to offsets"
            )
    return times


def _offset_bound(name: str, text: str) -> ReadBound:
    word = text.strip().lower()
    if word in ("earliest", "latest", "committed"):
        return ReadBound(word)  # type: ignore[arg-type]
    if not text.lstrip().startswith("{"):
        raise InvalidInputError(
            f'{name} must be earliest, latest, committed, or JSON like {{"topic": {{"0": 23}}}}, not {text!r}'
        )
    numbers = parse_partition_offsets(name, text)
    for tp, number in numbers.items():
        if number < EARLIEST:
            raise InvalidInputError(
                f"{name} asks for offset {number} of {tp}; offsets begin at 0, {EARLIEST} is earliest, {LATEST} latest"
            )
    return ReadBound("offsets", numbers)
