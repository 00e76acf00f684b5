"""Topic changes: every change reaches the store, the group shards and the waiting fetches.

A client's request may concern thousands of partitions. It is processed in steps, one request after the other, while
other requests are served. Other clients see all of a change or nothing.
"""

from __future__ import annotations

import gc
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from uuid import UUID

from kohort.broker.purgatory import Purgatory
from kohort.broker.server.requests import Request
from kohort.broker.shards import GroupShards
from kohort.errors import ErrorCode, KafkaError, error_for
from kohort.groups import events
from kohort.log import CatalogTopic, LogStore, Steps, TopicPlan
from kohort.wire.message import Message

log = logging.getLogger("kohort.broker")

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
DELETED_S = 600.0
"""Time after a deletion in which automatic creation of the topic probably surprises its deleter."""
DELETED_MAX = 1_000
"""The most deleted topics remembered."""
SETTLED_PARTITIONS = 5_000
"""The garbage collector's objects are frozen after this many new partitions, if they are a quarter more.

Scanning the twenty objects of each of 100,000 partitions would block all clients for a second. Frozen objects of a
deleted topic are still freed by reference counting. Cyclic garbage that is frozen stays, so freezing is rare.
"""


class Topics:
    """The broker's topics, and the only way to create, grow and delete them.

    Attributes:
        by_name: all topics by name; the store's own dictionary, which it changes in place.
        by_id: all topics by id.
        sure: whether a topic that is not listed certainly does not exist; see `TopicImage`.
    """

    sure = True

    def __init__(
        self,
        store: LogStore,
        default_partitions: int,
        waits: Purgatory,
        groups: GroupShards,
    ) -> None:
        self._store = store
        self.by_name: Mapping[str, CatalogTopic] = store.topics
        self.by_id: Mapping[UUID, CatalogTopic] = store.topics_by_id
        self._default_partitions = default_partitions
        self._waits = waits
        self._groups = groups
        self._image: events.TopicImage | None = None
        self._version = 0
        self._deleted: OrderedDict[str, tuple[float, str]] = OrderedDict()
        self._settled = sum(topic.partitions for topic in store.topics.values())

    def invalid_name_error(self, name: str) -> KafkaError | None:
        """Return why a topic of this name can't be created, or None."""
        try:
            self._store.check_topic(name, 1)
        except KafkaError as refused:
            return refused.with_traceback(None)
        return None

    def is_internal(self, name: str) -> bool:
        """Return whether only the broker itself writes to this topic."""
        return name in INTERNAL

    def topic_image(self) -> events.TopicImage:
        """Return all topics as the group coordinator sees them."""
        if self._image is None:
            self._image = events.TopicImage(
                self._version,
                {name: events.Topic(name, topic.id, topic.partitions) for name, topic in self._store.topics.items()},
            )
        return self._image

    def requested_or_default_partitions(self, count: int) -> int:
        """Return a requested number of partitions, or the default for -1."""
        return self._default_partitions if count == -1 else count

    def create(self, name: str, partitions: int, configs: Mapping[str, str] | None = None) -> CatalogTopic:
        """Create an internal topic; durable when this returns."""
        topic = self._store.create_topic(name, partitions, configs)
        self._changed()
        return topic

    def create_topics_in_steps(
        self, plans: Sequence[TopicPlan], request: Request[Message], *, on_use: bool = False
    ) -> Steps[list[CatalogTopic | KafkaError]]:
        """Create topics that a client requested or used; for each return the topic or the error."""
        try:
            results = yield from self._store.create_topics_in_steps(plans, self._groups.unserved_shards)
        except OSError as error:
            return _nothing_changed(request, len(plans), error)
        created = [result for result in results if isinstance(result, CatalogTopic)]
        for topic in created:
            if on_use:
                self._log_automatic_creation(topic, request)
            else:
                log.info(
                    "topic %s created with %d partitions by request %s", topic.name, topic.partitions, request.name
                )
            self._deleted.pop(topic.name, None)
        if created:
            self._changed()
            self._freeze_many()
        return results

    def auto_creation_plan(self, name: str) -> TopicPlan:
        """Return the plan for a topic that is created automatically: the default number of partitions."""
        return TopicPlan(name, self._default_partitions)

    def was_just_deleted(self, name: str) -> bool:
        """Return whether a topic of this name was deleted recently and not created explicitly since."""
        return name in self._deleted and time.monotonic() - self._deleted[name][0] <= DELETED_S

    def _log_automatic_creation(self, topic: CatalogTopic, request: Request[Message]) -> None:
        """Log which request created a topic automatically, and whether somebody has just deleted it."""
        if not self.was_just_deleted(topic.name):
            text = "topic %s created with %d partitions, because it was used by request %s"
            log.info(text, topic.name, topic.partitions, request.name)
            return
        at, by = self._deleted[topic.name]
        log.warning(
            "topic %s created again with %d partitions, because it was used by request %s, %.0f s after it was deleted "
            "by request %s. A client that still uses a deleted topic creates it again, unless "
            "auto.create.topics.enable=false",
            topic.name,
            topic.partitions,
            request.name,
            time.monotonic() - at,
            by,
        )

    def delete_topics_in_steps(
        self, names: Sequence[str], request: Request[Message]
    ) -> Steps[list[CatalogTopic | KafkaError]]:
        """Delete existing topics and their committed offsets; for each return the topic or the error."""
        topics = {name: self._store.topics[name] for name in names}
        try:
            logs = yield from self._store.delete_topics_in_steps([*topics])
        except OSError as error:
            return _nothing_changed(request, len(names), error)
        for name in topics:
            log.info("topic %s deleted by request %s", name, request.name)
            self._deleted.pop(name, None)
            self._deleted[name] = time.monotonic(), request.name
            if len(self._deleted) > DELETED_MAX:
                self._deleted.popitem(last=False)
        self._waits.answer_waiting(logs)
        self._changed()
        self._groups.queue_for_all_shards(events.TopicsDeleted(tuple(topics)))
        yield from self._groups.remove_deleted_topic_offsets()
        return [*topics.values()]

    def add_partitions_in_steps(
        self, counts: Mapping[str, int], request: Request[Message], *, validate_only: bool
    ) -> Steps[list[CatalogTopic | KafkaError]]:
        """Add partitions to topics; for each return the topic or the error."""
        try:
            results = yield from self._store.add_partitions_in_steps(counts, validate_only=validate_only)
        except OSError as error:
            return _nothing_changed(request, len(counts), error)
        grown = [] if validate_only else [result for result in results if isinstance(result, CatalogTopic)]
        for topic in grown:
            log.info("topic %s has %d partitions now, added by request %s", topic.name, topic.partitions, request.name)
        if grown:
            self._changed()
            self._freeze_many()
        return results

    def _freeze_many(self) -> None:
        count = sum(topic.partitions for topic in self._store.topics.values())
        if count >= self._settled + max(SETTLED_PARTITIONS, self._settled // 4):
            self._settled = count
            gc.collect()
            gc.freeze()

    def _changed(self) -> None:
        self._version += 1
        self._image = None
        self._groups.queue_for_all_shards(events.TopicsChanged(self.topic_image()))


def _nothing_changed(request: Request[Message], count: int, error: OSError) -> list[CatalogTopic | KafkaError]:
    log.error("request %s failed with KAFKA_STORAGE_ERROR, no topic was changed: %s", request.name, error)
    return [error_for(ErrorCode.KAFKA_STORAGE_ERROR, f"nothing was changed: {error}")] * count
