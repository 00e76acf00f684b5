"""`Admin`: topics, configurations, groups and their offsets, records and the cluster, as plain blocking calls.

Each method is one line over a coroutine of an `admin_*` module; what the calls take and give is in `admin_values`.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from kohort.client.admin import configs as admin_configs
from kohort.client.admin import groups as admin_groups
from kohort.client.admin import offsets as admin_offsets
from kohort.client.admin import topics as admin_topics
from kohort.client.admin.values import (
    ClusterDescription,
    ConfigEntry,
    ConfigResource,
    CreatedTopic,
    GroupDescription,
    GroupListing,
    ListedOffset,
    NewTopic,
    OffsetSpec,
    PartitionResults,
    Results,
)
from kohort.client.net.metadata import TopicInfo
from kohort.client.net.thread_driver import ThreadClient
from kohort.client.offset_values import OffsetAndMetadata
from kohort.client.settings import ConnectionConfig, client_config
from kohort.ids import TopicPartition

T = TypeVar("T")


class Admin:
    """Administers a cluster.

        with Admin("127.0.0.1:9092") as admin:
            admin.create_topics([NewTopic("flights", 6)]).all()

    Every call takes `timeout_ms`; None is `default_api_timeout_ms`. Calls about several things return `Results`: one
    outcome for each, so one failure hides no other.

    Args:
        bootstrap_servers: HOST:PORT, several with commas between, or a list of them.
        settings: Kafka's client properties as keywords, with _ for the dots.

    Raises:
        InvalidInputError: an unknown setting, or a value that can't be.
    """

    def __init__(self, bootstrap_servers: str | list[str] | None = None, **settings: Any) -> None:
        self._client = ThreadClient(client_config(ConnectionConfig, bootstrap_servers, settings))
        self._cluster = self._client.cluster

    def _call(self, coro: Coroutine[Any, Any, T]) -> T:
        return self._client.call(coro)

    # The cluster and its topics.

    def describe_cluster(self, timeout_ms: int | None = None) -> ClusterDescription:
        """The cluster's id, brokers and controller."""
        return self._call(admin_topics.describe_cluster(self._cluster, timeout_ms))

    def list_topics(self, *, internal: bool = False, timeout_ms: int | None = None) -> list[TopicInfo]:
        """Every topic by name; Kafka's own ones too when `internal`."""
        return self._call(admin_topics.list_topics(self._cluster, internal, timeout_ms))

    def describe_topics(self, topics: Iterable[str], timeout_ms: int | None = None) -> Results[str, TopicInfo]:
        """Partitions, leaders and replicas of topics."""
        return self._call(admin_topics.describe_topics(self._cluster, list(topics), timeout_ms))

    def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False, timeout_ms: int | None = None
    ) -> Results[str, CreatedTopic]:
        """Creates topics; with `validate_only` it only says whether that would work."""
        return self._call(admin_topics.create_topics(self._cluster, list(topics), validate_only, timeout_ms))

    def delete_topics(self, topics: Iterable[str], timeout_ms: int | None = None) -> Results[str, None]:
        """Deletes topics with their records; groups' offsets for them go too."""
        return self._call(admin_topics.delete_topics(self._cluster, list(topics), timeout_ms))

    def create_partitions(
        self, totals: Mapping[str, int], *, validate_only: bool = False, timeout_ms: int | None = None
    ) -> Results[str, None]:
        """Raises topics' partition counts to the totals given."""
        return self._call(admin_topics.create_partitions(self._cluster, totals, validate_only, timeout_ms))

    def delete_records(
        self, before: Mapping[TopicPartition, int], timeout_ms: int | None = None
    ) -> PartitionResults[int]:
        """Deletes the records before the offsets given (-1: all there are); gives the new first offsets."""
        return self._call(admin_topics.delete_records(self._cluster, before, timeout_ms))

    # Configurations.

    def describe_configs(
        self, resources: Iterable[ConfigResource], timeout_ms: int | None = None
    ) -> Results[ConfigResource, dict[str, ConfigEntry]]:
        """The properties of topics, brokers and groups, by name."""
        return self._call(admin_configs.describe_configs(self._cluster, list(resources), timeout_ms))

    def incremental_alter_configs(
        self,
        changes: Mapping[ConfigResource, Mapping[str, str | None]],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> Results[ConfigResource, None]:
        """Sets the properties given, and those given as None back to their default; leaves the others."""
        return self._call(admin_configs.alter_configs(self._cluster, changes, validate_only, timeout_ms))

    # Groups.

    def list_groups(
        self, *, states: Sequence[str] = (), types: Sequence[str] = (), timeout_ms: int | None = None
    ) -> list[GroupListing]:
        """Groups of every coordinator, sorted; only of these states and types when given (letter case is ignored)."""
        return self._call(admin_groups.list_groups(self._cluster, states, types, timeout_ms))

    def describe_consumer_groups(
        self, groups: Iterable[str], timeout_ms: int | None = None
    ) -> Results[str, GroupDescription]:
        """State, assignor and members of groups, of either protocol."""
        return self._call(admin_groups.describe_groups(self._cluster, list(groups), timeout_ms))

    def delete_consumer_groups(self, groups: Iterable[str], timeout_ms: int | None = None) -> Results[str, None]:
        """Deletes groups without members, with their offsets."""
        return self._call(admin_groups.delete_groups(self._cluster, list(groups), timeout_ms))

    def remove_members_from_consumer_group(
        self, group: str, group_instance_ids: Iterable[str], timeout_ms: int | None = None
    ) -> Results[str, None]:
        """Puts static members out of a group, by instance id."""
        return self._call(admin_groups.remove_members(self._cluster, group, list(group_instance_ids), timeout_ms))

    # Offsets.

    def list_consumer_group_offsets(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
        timeout_ms: int | None = None,
    ) -> PartitionResults[OffsetAndMetadata | None]:
        """A group's committed offsets; None: of all partitions that have one. A partition without one gives None."""
        wanted = None if partitions is None else list(partitions)
        return self._call(admin_offsets.committed(self._cluster, group, wanted, require_stable, timeout_ms))

    def alter_consumer_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_ms: int | None = None
    ) -> PartitionResults[None]:
        """Commits offsets for a group that has no members."""
        return self._call(admin_offsets.alter(self._cluster, group, offsets, timeout_ms))

    def delete_consumer_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> PartitionResults[None]:
        """Deletes committed offsets of partitions whose topics no member subscribes to (KIP-496).

        A partition without a committed offset is no error. When the call fails for the whole group, every partition has
        that error.
        """
        return self._call(admin_offsets.delete(self._cluster, group, list(partitions), timeout_ms))

    def list_offsets(
        self,
        wanted: Mapping[TopicPartition, OffsetSpec],
        *,
        isolation_level: str = "read_uncommitted",
        timeout_ms: int | None = None,
    ) -> PartitionResults[ListedOffset]:
        """First, end, or by-time offsets of partitions."""
        return self._call(admin_offsets.list_offsets(self._cluster, wanted, isolation_level, timeout_ms))

    # Life.

    def close(self) -> None:
        """Closes the connections; may be called again."""
        self._client.close()

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
