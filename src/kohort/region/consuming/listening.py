"""What the group says inside a poll."""

from __future__ import annotations

from collections.abc import Callable

from kohort.client.consumer.consumer import Consumer
from kohort.client.offset_values import HoldingListener
from kohort.ids import TopicPartition
from kohort.region.member import events as happens
from kohort.region.member.events import Event
from kohort.region.parts import Part


class Listener(HoldingListener):
    """Inside a poll: what the group says is noted, and new partitions are not read before they were sought."""

    def __init__(
        self,
        hear: Callable[[Callable[[tuple[Part, ...]], Event], list[TopicPartition]], None],
        consumer: Consumer,
        wake: Callable[[], None],
    ) -> None:
        self._hear, self._consumer, self._wake = hear, consumer, wake

    def on_partitions_wanted(self, partitions: list[TopicPartition]) -> None:
        self._hear(happens.Revoked, partitions)
        self._wake()

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        """They were let go before."""

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self._hear(happens.Lost, partitions)
        self._wake()

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self._consumer.pause(*partitions)
        self._wake()
