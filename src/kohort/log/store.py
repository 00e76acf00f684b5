"""A data folder: one owner, a catalog of topics, their partition logs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from kohort.ids import TopicPartition
from kohort.log.config import LogConfig, StoreLimits
from kohort.log.partition import PartitionLog


@dataclass(frozen=True, slots=True)
class Topic:
    """One line of the catalog.

    Attributes:
        configs: what was set explicitly, under Kafka's property names; everything else is the store's default.
    """

    name: str
    id: uuid.UUID
    partitions: int
    configs: Mapping[str, str]


class LogStore:
    """All logs under one data folder. A context manager; `close()` marks a clean shutdown."""

    topics: Mapping[str, Topic]
    topics_by_id: Mapping[uuid.UUID, Topic]
    cluster_id: str
    node_id: int

    def __init__(
        self,
        data_dir: Path | str,
        *,
        defaults: LogConfig | None = None,
        limits: StoreLimits | None = None,
        node_id: int = 0,
        cluster_id: str | None = None,
    ) -> None:
        """Take the folder, finish interrupted changes, and open every partition with recovery.

        Raises:
            InvalidInputError: another broker has the folder, or it is not one of ours; the text says what to do.
        """
        raise NotImplementedError

    def partition(self, tp: TopicPartition) -> PartitionLog:
        """The log. Raises NotFoundError (UNKNOWN_TOPIC_OR_PARTITION)."""
        raise NotImplementedError

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        """The log or None: one dictionary lookup, for the produce and fetch paths."""
        raise NotImplementedError

    def partitions(self) -> Iterator[tuple[TopicPartition, PartitionLog]]:
        """All logs, in the catalog's order."""
        raise NotImplementedError

    def create_topic(
        self, name: str, partitions: int, configs: Mapping[str, str] | None = None, topic_id: uuid.UUID | None = None
    ) -> Topic:
        """Create a topic; durable when returned.

        Raises:
            InvalidInputError: INVALID_TOPIC_EXCEPTION, INVALID_PARTITIONS, INVALID_CONFIG, TOPIC_ALREADY_EXISTS,
                POLICY_VIOLATION (a limit of `StoreLimits`).
        """
        raise NotImplementedError

    def check_topic(self, name: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        """What `create_topic` would refuse, without creating (`validate_only`)."""
        raise NotImplementedError

    def delete_topic(self, name: str) -> Topic:
        """Remove a topic from the catalog, then its files. Raises NotFoundError."""
        raise NotImplementedError

    def add_partitions(self, name: str, partitions: int) -> Topic:
        """Grow a topic to `partitions` in all. Raises InvalidInputError (INVALID_PARTITIONS), NotFoundError."""
        raise NotImplementedError

    def set_configs(self, name: str, configs: Mapping[str, str]) -> Topic:
        """Replace a topic's explicit configs. Raises InvalidInputError (INVALID_CONFIG), NotFoundError."""
        raise NotImplementedError

    def log_config(self, name: str) -> LogConfig:
        """A topic's settings in effect."""
        raise NotImplementedError

    def maintain(self, now_ms: int) -> None:
        """Retention, compaction, checkpoints, expiry: a bounded slice of work; call about once a second."""
        raise NotImplementedError

    def close(self) -> None:
        """Flush all, mark the shutdown clean, give the folder free."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
