"""Topics as the broker changes them: every change reaches the store, the group shards and the waiting fetches."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kohort.broker.waits import Waits
from kohort.errors import ErrorCode, InvalidInputError
from kohort.groups import events
from kohort.log import LogStore, PartitionLog, Topic

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})


class Topics:
    """The one door to changing topics."""

    def __init__(
        self, store: LogStore, default_partitions: int, waits: Waits, tell: Callable[[events.Event], None]
    ) -> None:
        self._store = store
        self._default_partitions = default_partitions
        self._waits = waits
        self._tell = tell
        self._image: events.TopicImage | None = None
        self._version = 0

    def is_internal(self, name: str) -> bool:
        """Whether only the broker itself writes to this topic."""
        return name in INTERNAL

    def image(self) -> events.TopicImage:
        """All topics as the group coordinator sees them."""
        if self._image is None:
            self._image = events.TopicImage(
                self._version,
                {name: events.Topic(name, topic.id, topic.partitions) for name, topic in self._store.topics.items()},
            )
        return self._image

    def partitions_asked(self, count: int) -> int:
        """The number of partitions a topic gets when `count` were asked for; -1: the default."""
        return self._default_partitions if count == -1 else count

    def create(self, name: str, partitions: int, configs: Mapping[str, str] | None = None) -> Topic:
        """Create a topic; durable when returned."""
        topic = self._store.create_topic(name, partitions, configs)
        self._changed()
        return topic

    def create_on_use(self, name: str) -> Topic:
        """Create a topic because someone named it."""
        if self.is_internal(name):
            raise InvalidInputError(f"{name} is made by the broker", ErrorCode.INVALID_TOPIC_EXCEPTION)
        return self.create(name, self._default_partitions)

    def delete(self, name: str) -> Topic:
        """Delete a topic; its groups' offsets go with it."""
        logs = self._logs(name)
        topic = self._store.delete_topic(name)
        self._waits.changed(logs)
        self._changed()
        self._tell(events.TopicsDeleted((name,)))
        return topic

    def grow(self, name: str, partitions: int) -> Topic:
        """Give a topic more partitions."""
        topic = self._store.add_partitions(name, partitions)
        self._changed()
        return topic

    def _logs(self, name: str) -> list[PartitionLog]:
        topic = self._store.topics.get(name)
        found = (self._store.get(name, index) for index in range(topic.partitions if topic else 0))
        return [log for log in found if log is not None]

    def _changed(self) -> None:
        self._version += 1
        self._image = None
        self._tell(events.TopicsChanged(self.image()))
