"""The ids of a query's topics: a topic may be deleted and re-created under the same name while a query reads it.

Offsets mean nothing in another topic of the same name. So they are kept with the topic's id, in the checkpoint and in
the group, and tasks fetch by the id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kohort.ids import TopicId, TopicPartition
from kohort.spark.source.batch_offset import BatchOffset, CommittedPosition, OffsetRange
from kohort.spark.source.catalog import PresentTopics, TopicCatalog, report_lost_records


class TopicIds:
    """The ids of the topics that one query reads, by which it notices recreated ones.

    Attributes:
        ids: the ids of all topics that the query has offsets of, unless the brokers have none.
        gone: topics that do not exist, as far as is known; their loss has been reported.
        again: re-created topics, which are read from their beginning.
        certain: topics whose positions are known to belong to the topic id. Positions of a checkpoint of Spark's own
            source are not, since it has no ids.
    """

    def __init__(self, catalog: TopicCatalog, *, strict: bool) -> None:
        self.ids: dict[str, TopicId] = {}
        self.gone: set[str] = set()
        self.again: set[str] = set()
        self.certain: set[str] = set()
        self._catalog = catalog
        self._strict = strict
        self._watched: set[str] = set()  # topics of the checkpoint, then of the last assignment: their loss is reported

    @property
    def known_topics(self) -> set[str]:
        """The names of topics that the query has known to exist."""
        return self._watched | self.gone

    def remember_topic_ids(self, offset: BatchOffset) -> set[str]:
        """Remember the topic ids of a checkpoint's offsets.

        Returns:
            Topics that had another id before: the offsets known so far are not valid in them.
        """
        another = {topic for topic, of in offset.ids.items() if self.ids.get(topic, of) != of}
        self.again |= another
        self.ids |= offset.ids
        self.certain |= offset.ids.keys()
        self._watched |= {tp.topic for tp in offset.spans}
        return another

    def mark_positions_valid(self, topics: set[str]) -> None:
        """Record that the query has valid positions in all its partitions of these topics, also of re-created ones."""
        self.again -= topics
        self.certain |= topics & self.ids.keys()

    def look_up_topics(self, topics: Iterable[str]) -> tuple[PresentTopics, set[str]]:
        """Look up the topics of the present assignment.

        Returns:
            The topics that exist, and the re-created ones, in which the offsets known so far are not valid.

        Raises:
            OffsetError: a topic that the query has read was deleted or re-created, if that is an error.
        """
        held = set(topics)
        present = self._catalog.describe_existing(held | self._watched)
        void: set[str] = set()
        for topic in sorted(held | self._watched):
            if topic not in present.present_topics:
                self._report_deleted(topic)
            elif self._is_another(topic, present.ids.get(topic)):
                void.add(topic)
            else:
                self.gone.discard(topic)
        self._watched = held
        return present, void

    def _report_deleted(self, topic: str) -> None:
        if topic in self._watched and topic not in self.gone:
            text = f"topic {topic}{self._id_text(topic)} was deleted: what the query had not read of it is lost"
            report_lost_records(text, "goes on without it", strict=self._strict)
        self.gone.add(topic)

    def _is_another(self, topic: str, now: TopicId | None) -> bool:
        before = self.ids.get(topic)
        if before == now or (before is None and topic not in self.gone):
            if now is not None:
                self.ids[topic] = now
            return False
        if topic in self._watched:
            self._report_recreated(topic, before, now)
        if now is not None:
            self.ids[topic] = now
        self.gone.discard(topic)
        self.again.add(topic)
        return True

    def _report_recreated(
        self, topic: str, before: TopicId | None, now: TopicId | None, whose: str = "the query's"
    ) -> None:
        text = (
            f"topic {topic} was deleted and made again: {whose} offsets are of the one with id {before}, the one "
            f"there is now has id {now}; what was not read of the earlier one is lost. (Or this is another cluster, to "
            "which the offsets were copied: then set the group's offsets anew there, and use a fresh checkpoint)"
        )
        remedy = "reads the new one where its group is in it, else from its beginning"
        report_lost_records(text, remedy, strict=self._strict and topic not in self.gone)

    def _id_text(self, topic: str) -> str:
        return f" (id {self.ids[topic]})" if topic in self.ids else ""

    def drop_recreated_offsets(
        self, found: Mapping[TopicPartition, CommittedPosition | None]
    ) -> dict[TopicPartition, CommittedPosition | None]:
        """Return the group's committed offsets; None instead of one that belongs to an earlier topic of the same name.

        Raises:
            OffsetError: the group has such an offset, if that is an error.
        """
        valid = dict(found)
        for tp, commit in found.items():
            of = None if commit is None or commit.stamp is None else commit.stamp.topic
            now = self.ids.get(tp.topic)
            if of is None or now is None or of == now:
                continue
            valid[tp] = None
            if tp.topic not in self.again:
                self._report_recreated(tp.topic, of, now, "the group's")
                self.again.add(tp.topic)
        return valid

    def topic_ids_of(self, partitions: Iterable[TopicPartition]) -> dict[str, TopicId]:
        """Return the ids of these partitions' topics, as far as they are known."""
        return {topic: self.ids[topic] for topic in sorted({tp.topic for tp in partitions}) if topic in self.ids}

    def ranges_of_same_topics(self, planned: BatchOffset) -> dict[TopicPartition, OffsetRange]:
        """Return the ranges of an earlier run's batch whose topics are still the same."""
        return {
            tp: span
            for tp, span in planned.spans.items()
            if tp.topic not in self.gone and planned.ids.get(tp.topic) in (None, self.ids.get(tp.topic))
        }
