"""What there is to read: partitions, their first and last offsets, and where a read starts and ends."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kohort.client.consumer.range_reader import RangeReader
from kohort.errors import InvalidInputError, NotFoundError, OffsetError
from kohort.ids import TopicPartition
from kohort.spark.options import EARLIEST, LATEST, SourceOptions, numbers_of_json

SAMPLE_RECORDS = 256
"""How many records are looked at to learn their size."""


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
    if bound.kind == "latest" and not streaming:
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
    return Bound("offsets", numbers_of_json(name, text))


def client_settings(options: SourceOptions) -> dict[str, Any]:
    """The `kafka.*` options without the addresses, for the client."""
    own = ("bootstrap.servers", "group.id", "group.protocol")
    return {"client.id": "kohort-spark"} | {k: v for k, v in options.kafka.items() if k not in own}


class Catalog:
    """Asks the cluster; for one thread. Connects with the first question."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._reader = RangeReader(options.bootstrap_servers, columns=("key", "value"), **client_settings(options))

    def partitions(self) -> list[TopicPartition]:
        """Every partition the options choose, sorted.

        Raises:
            NotFoundError: a topic, or a partition named by `assign`, does not exist.
        """
        options = self._options
        wanted = options.assigned()
        if wanted:
            topics = sorted({tp.topic for tp in wanted})
        elif options.subscribe_pattern is not None:
            matches = re.compile(options.subscribe_pattern).fullmatch
            topics = [topic for topic in self._reader.topics() if matches(topic)]
        else:
            topics = sorted(set(options.subscribe or ()))
        found = self._reader.partitions_of(topics)
        missing = [topic for topic in topics if topic not in found]
        if missing:
            raise NotFoundError(
                f"no topic {' or '.join(missing)} at {options.bootstrap_servers}; create it before the query starts"
            )
        every = sorted(TopicPartition(t, number) for t, numbers in found.items() for number in numbers)
        absent = sorted(set(wanted) - set(every))
        if absent:
            raise NotFoundError(f"assign names partitions that do not exist: {', '.join(map(str, absent))}")
        return list(wanted) or every

    def beginnings(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        wanted = list(partitions)
        return self._reader.beginning_offsets(wanted) if wanted else {}

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        wanted = list(partitions)
        return self._reader.end_offsets(wanted) if wanted else {}

    def resolve(self, bound: Bound, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset of a bound in each partition.

        Raises:
            InvalidInputError: a form by partition leaves one out.
            OffsetError: no record is as young as a timestamp, and the strategy is to fail.
        """
        wanted = list(partitions)
        if bound.kind == "earliest":
            return self.beginnings(wanted)
        if bound.kind == "latest":
            return self.ends(wanted)
        if bound.kind == "committed":
            return self._committed(wanted)
        if bound.kind == "time":
            return self._at_times(dict.fromkeys(wanted, bound.number), bound.strategy)
        missing = [tp for tp in wanted if tp not in bound.numbers]
        if missing:
            raise InvalidInputError(f"offsets by partition must name every partition; {missing[0]} is missing")
        chosen = {tp: bound.numbers[tp] for tp in wanted}
        if bound.kind == "times":
            return self._at_times(chosen, bound.strategy)
        first = self.beginnings(tp for tp, number in chosen.items() if number == EARLIEST)
        last = self.ends(tp for tp, number in chosen.items() if number == LATEST)
        return chosen | first | last

    def _committed(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """The group's offsets, as anyone may ask for them; where there is none, `without_commit`."""
        from kohort.client.consumer.consumer import Consumer  # more than a batch read needs otherwise

        options = self._options
        with Consumer(options.bootstrap_servers, group_id=options.group_id, **client_settings(options)) as consumer:
            found = consumer.committed(partitions)
        known = {tp: one.offset for tp, one in found.items() if one is not None}
        return known | self.without_commit(tp for tp in partitions if tp not in known)

    def without_commit(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where partitions start that the group has no offset for, as `kafka.auto.offset.reset` says.

        Raises:
            OffsetError: it says none.
        """
        wanted = list(partitions)
        reset = self._options.kafka.get("auto.offset.reset", "latest")
        if wanted and reset not in ("earliest", "latest"):
            raise OffsetError(
                f"the group {self._options.group_id} has no offset for {wanted[0]}, "
                f"and kafka.auto.offset.reset is {reset}"
            )
        return self.beginnings(wanted) if reset == "earliest" else self.ends(wanted)

    def _at_times(self, times: Mapping[TopicPartition, int], strategy: str) -> dict[TopicPartition, int]:
        found = self._reader.offsets_for_times(times)
        late = [tp for tp in times if found.get(tp) is None]
        if late and strategy == "error":
            raise OffsetError(
                f"{late[0]} has no record at or after the timestamp {times[late[0]]}; "
                "set startingOffsetsByTimestampStrategy to latest to start at its end"
            )
        return {tp: at.offset for tp, at in found.items() if at is not None} | self.ends(late)

    def bytes_per_record(self, partition: TopicPartition, start: int, end: int) -> float:
        """The mean size of key and value of some records from `start` on, 1.0 at least."""
        rows = size = 0
        for batch in self._reader.read(partition, start, min(end, start + SAMPLE_RECORDS), fail_on_data_loss=False):
            rows += batch.num_rows
            size += batch.nbytes
        return max(1.0, size / rows) if rows else 1.0

    def close(self) -> None:
        self._reader.close()
