"""The partitions that exist, and their first and last offsets."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

from kohort.client.consumer.positions import CONFIRM_MS
from kohort.client.consumer.range_reader import RangeReader, When
from kohort.errors import InvalidInputError, NotFoundError, OffsetError
from kohort.ids import NO_TOPIC_ID, TopicId, TopicPartition
from kohort.settings.config import did_you_mean
from kohort.spark.options import EARLIEST, LATEST, SourceOptions, client_settings
from kohort.spark.source.batch_offset import CommitStamp
from kohort.spark.source.bounds import ReadBound
from kohort.spark.topic_pattern import glob_hint, parse_topic_pattern

# -- The choice of `failOnDataLoss`: an error or a warning

log = logging.getLogger("kohort.spark")


def report_lost_records(text: str, remedy: str, *, strict: bool) -> None:
    """Raise an error because records are or may be lost; with failOnDataLoss=false, log a warning instead.

    Args:
        text: describes the loss.
        remedy: says what a query with failOnDataLoss=false does, such as "reads the new one from its beginning".
        strict: the value of failOnDataLoss.

    Raises:
        OffsetError: the option makes the loss an error.
    """
    if strict:
        raise OffsetError(f"{text}; failOnDataLoss=false {remedy}")
    log.warning("records may be lost: %s; because of failOnDataLoss=false, the query %s", text, remedy)


# -- The catalog of topics

SAMPLE_RECORDS = 256
"""Records that are read to estimate the size of records."""
RETRY_DELAY_S = 0.1
REACH_MS = 10_000
"""How long a read tries to reach a broker before it fails.

Wrong addresses and wrong security settings are thus found when the read starts. Once a broker has been reached,
`default.api.timeout.ms` bounds every wait.
"""


@dataclass(frozen=True, slots=True)
class PresentTopics:
    """The partitions and topic ids in one metadata response.

    Attributes:
        partitions: the partitions of those topics that exist.
        ids: the topics' ids, unless the brokers have none.
    """

    partitions: frozenset[TopicPartition] = frozenset()
    ids: Mapping[str, TopicId] = field(default_factory=dict)

    @property
    def present_topics(self) -> set[str]:
        return {tp.topic for tp in self.partitions}


def connect_or_fail(reader: RangeReader) -> None:
    """Connect to a broker, and fail soon if none answers.

    Raises:
        TimedOutError: no broker was reached within `REACH_MS`; names addresses and causes.
        KafkaError: authentication failed, without waiting.
    """
    reader.check_reachable(min(REACH_MS, reader.config.default_api_timeout_ms))


class TopicCatalog:
    """A client for cluster metadata and offsets, for one thread; the first call connects or fails soon."""

    def __init__(self, options: SourceOptions, *, streaming: bool = True) -> None:
        """Set up the client, not connected yet; a batch read without topics fails, a stream waits for topics."""
        self._options, self._streaming, self._warned = options, streaming, False
        self._client = RangeReader(options.bootstrap_servers, columns=("key", "value"), **client_settings(options))
        self._reached = False

    @property
    def _reader(self) -> RangeReader:
        """The reader, connected to a broker."""
        if not self._reached:
            connect_or_fail(self._client)
            self._reached = True
        return self._client

    def describe_existing(self, topics: Iterable[str]) -> PresentTopics:
        """Return the ids and partitions of those topics that exist, without waiting for missing ones.

        Raises:
            KafkaError: a topic can't be described although it may exist.
        """
        found = self._reader.present_topics(topics)
        return PresentTopics(
            frozenset(TopicPartition(name, number) for name, info in found.items() for number in info.partitions),
            {name: info.topic_id for name, info in found.items() if info.topic_id != NO_TOPIC_ID},
        )

    def partitions(self, known: Container[str] | None = ()) -> list[TopicPartition]:
        """Return every partition that the options choose, sorted.

        Args:
            known: topics that have existed, so that they are left out if they are gone, without an error. None: leave
                out every missing topic.

        Raises:
            NotFoundError: a topic, or a partition named by `assign`, does not exist; or in a batch read no topic
                matches the pattern.
        """
        options = self._options
        wanted = options.assigned_partitions()
        if wanted:
            topics = sorted({tp.topic for tp in wanted})
        elif options.subscribe_pattern is not None:
            finds = parse_topic_pattern(options.subscribe_pattern).matches_topic
            topics = [topic for topic in self._reader.topics() if finds(topic)]
            if not topics:
                self._no_match()
        else:
            topics = sorted(set(options.subscribe or ()))
        found = self.describe_existing(topics)
        missing = [
            topic for topic in topics if known is not None and topic not in known and topic not in found.present_topics
        ]
        if missing and options.subscribe_pattern is None:
            near = did_you_mean(missing[0], self._reader.topics())
            raise NotFoundError(
                f"no topic {' or '.join(missing)} at {options.bootstrap_servers}; create it before the query "
                f"starts{near}"
            )
        absent = sorted(tp for tp in set(wanted) - found.partitions if known is not None and tp.topic not in known)
        if absent:
            raise NotFoundError(f"assign names partitions that do not exist: {', '.join(map(str, absent))}")
        return sorted(found.partitions.intersection(wanted) if wanted else found.partitions)

    def _no_match(self) -> None:
        options = self._options
        text = f"no topic at {options.bootstrap_servers} matches subscribePattern={options.subscribe_pattern}"
        meaning = (
            glob_hint(str(options.subscribe_pattern))
            or "it is a regular expression of Java's, found anywhere in a name"
        )
        if not self._streaming:
            raise NotFoundError(f"{text}: {meaning}")
        if not self._warned:
            log.warning("the query waits for topics to read: %s yet (how the pattern is read: %s)", text, meaning)
        self._warned = True

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset of each partition that exists."""
        return self._offsets(dict.fromkeys(partitions, "earliest"))

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end offset of each partition that exists."""
        return self._offsets(dict.fromkeys(partitions, "latest"))

    def confirm_end_offsets(
        self, positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Return end offsets, after looking up again those that lie before the position of the query.

        Such an end means that records are lost, unless an outdated leader reported it.

        Args:
            positions: where reading is to continue.
            ends: the end offsets that a broker has reported, of the partitions to return.
        """
        beyond = {tp: at for tp, at in positions.items() if tp in ends and at > ends[tp]}
        if not beyond:
            return dict(ends)
        return {tp: end for tp, end in ends.items() if tp not in beyond} | self._ends_beyond(beyond)

    def _ends_beyond(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the end offsets of partitions that seemed to end before these positions.

        A leader that was suspended, and has been replaced, may answer with an old end offset. So the offsets are
        requested again for a while. If they stay before the positions, records are lost.
        """
        until_s = time.monotonic() + CONFIRM_MS / 1000
        while True:
            self.describe_existing({tp.topic for tp in positions})  # refresh the leaders
            ends = self.end_offsets(positions)
            if all(at <= ends[tp] for tp, at in positions.items() if tp in ends) or time.monotonic() > until_s:
                return ends
            time.sleep(RETRY_DELAY_S)

    def _offsets(self, wanted: Mapping[TopicPartition, When]) -> dict[TopicPartition, int]:
        return {tp: at.offset for tp, at in self._reader.current_offsets(wanted).items()} if wanted else {}

    def resolve_bound(self, bound: ReadBound, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset that a `ReadBound` means in each existing partition, without checking that the log has it.

        Raises:
            InvalidInputError: a form by partition leaves one out.
            OffsetError: no record is at or after a timestamp, and the strategy is to fail.
        """
        wanted = list(partitions)
        if bound.kind == "earliest":
            return self.beginning_offsets(wanted)
        if bound.kind == "latest":
            return self.end_offsets(wanted)
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
        first = self.beginning_offsets(tp for tp, number in chosen.items() if number == EARLIEST)
        last = self.end_offsets(tp for tp, number in chosen.items() if number == LATEST)
        return chosen | first | last

    def _committed(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the group's committed offsets, without joining it.

        Partitions that have none begin as `default_start_offsets` says.

        Raises:
            OffsetError: an offset belongs to a deleted topic of the same name, if lost records are an error.
        """
        from kohort.client.consumer.consumer import Consumer  # imported here because other batch reads do not need it

        options = self._options
        with Consumer(options.bootstrap_servers, group_id=options.group_id, **client_settings(options)) as consumer:
            found = consumer.committed(partitions)
        known = {tp: commit.offset for tp, commit in found.items() if commit is not None}
        stamps = {tp: CommitStamp.from_metadata(commit.metadata) for tp, commit in found.items() if commit is not None}
        of = {tp: stamp.topic for tp, stamp in stamps.items() if stamp is not None and stamp.topic is not None}
        now = self.describe_existing({tp.topic for tp in of}).ids if of else {}
        earlier = [tp for tp, topic in of.items() if now.get(tp.topic, topic) != topic]
        for tp in earlier:
            text = f"topic {tp.topic} was deleted and made again: the group's offset is of the one with id {of[tp]}"
            text = f"{text}, the one there is now has id {now[tp.topic]} (or this is another cluster, to which the "
            text += "group's offsets were copied: then set them anew there)"
            report_lost_records(text, "reads the new one from its beginning", strict=options.fail_on_data_loss)
        without = self.default_start_offsets(tp for tp in partitions if tp not in known)
        return known | self.beginning_offsets(earlier) | without

    def default_start_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the start offsets of partitions without a committed offset, according to `kafka.auto.offset.reset`.

        Raises:
            OffsetError: the setting is `none`.
        """
        wanted = list(partitions)
        reset = self._options.kafka.get("auto.offset.reset", "latest")
        if wanted and reset not in ("earliest", "latest"):
            raise OffsetError(
                f"the group {self._options.group_id} has no offset for {wanted[0]}, "
                f"and kafka.auto.offset.reset is {reset}"
            )
        return self.beginning_offsets(wanted) if reset == "earliest" else self.end_offsets(wanted)

    def _at_times(self, times: Mapping[TopicPartition, int], strategy: str) -> dict[TopicPartition, int]:
        found = self._offsets(times)
        late = [tp for tp, at in found.items() if at < 0]
        if late and strategy == "error":
            raise OffsetError(
                f"{late[0]} has no record at or after the timestamp {times[late[0]]}; "
                "set startingOffsetsByTimestampStrategy to latest to start at its end"
            )
        return found | self.end_offsets(late)

    def mean_record_bytes(self, partition: TopicPartition, start: int, end: int, topic_id: TopicId | None) -> float:
        """Return the mean size of key and value of some records from `start` on, at least 1.0."""
        rows = size = 0
        sample = self._reader.read(
            partition, start, min(end, start + SAMPLE_RECORDS), fail_on_data_loss=False, topic_id=topic_id
        )
        with contextlib.suppress(NotFoundError):  # deleted meanwhile; the next check reports it
            for batch in sample:
                rows += batch.num_rows
                size += batch.nbytes
        return max(1.0, size / rows) if rows else 1.0

    def close(self) -> None:
        self._client.close()
