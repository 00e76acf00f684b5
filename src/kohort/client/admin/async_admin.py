"""`AsyncAdmin`: the calls of `Admin` for asyncio, over the same coroutine functions."""

from __future__ import annotations

from types import TracebackType
from typing import Self, TypeVar, Unpack

from kohort.client.admin import cluster, configs, group_offsets, groups, security, topics, transactions
from kohort.client.net.asyncio_driver import AsyncClient
from kohort.client.net.facades import awaiting
from kohort.client.net.runtime import Work
from kohort.client.setting_types import ConnectionSettings
from kohort.client.settings import ConnectionConfig, Servers, client_config
from kohort.settings.arguments import check_call_arguments, checks_arguments
from kohort.settings.config import documents_settings

T = TypeVar("T")


@checks_arguments
@documents_settings(ConnectionConfig)
class AsyncAdmin:
    """A client for administering a cluster on the running event loop, with the calls and settings of `Admin`.

    async with AsyncAdmin("127.0.0.1:9092") as admin:
        (await admin.create_topics([NewTopic("flights", 6)])).all()
    """

    @check_call_arguments
    def __init__(self, bootstrap_servers: Servers = None, **settings: Unpack[ConnectionSettings]) -> None:
        """Make a client on the running loop; it connects with the first call."""
        self._client = AsyncClient(client_config(ConnectionConfig, bootstrap_servers, settings))
        self._core = self._client.cluster

    async def _call(self, coro: Work[T]) -> T:
        return await self._client.call(coro)

    # The cluster.

    describe_cluster = awaiting(cluster.describe_cluster)
    describe_features = awaiting(cluster.describe_features)
    update_features = awaiting(cluster.update_features)
    describe_log_dirs = awaiting(cluster.describe_log_dirs)

    # Topics and records.

    list_topics = awaiting(topics.list_topics)
    describe_topics = awaiting(topics.describe_topics)
    create_topics = awaiting(topics.create_topics)
    delete_topics = awaiting(topics.delete_topics)
    create_partitions = awaiting(topics.create_partitions)
    delete_records = awaiting(topics.delete_records)
    list_offsets = awaiting(group_offsets.list_offsets)

    # Configurations.

    describe_configs = awaiting(configs.describe_configs)
    incremental_alter_configs = awaiting(configs.incremental_alter_configs)

    # Groups.

    list_groups = awaiting(groups.list_groups)
    describe_consumer_groups = awaiting(groups.describe_consumer_groups)
    delete_consumer_groups = awaiting(groups.delete_consumer_groups)
    remove_members_from_consumer_group = awaiting(groups.remove_members_from_consumer_group)
    list_consumer_group_offsets = awaiting(group_offsets.list_consumer_group_offsets)
    alter_consumer_group_offsets = awaiting(group_offsets.alter_consumer_group_offsets)
    delete_consumer_group_offsets = awaiting(group_offsets.delete_consumer_group_offsets)

    # Transactions.

    list_transactions = awaiting(transactions.list_transactions)
    describe_transactions = awaiting(transactions.describe_transactions)
    describe_producers = awaiting(transactions.describe_producers)
    fence_producers = awaiting(transactions.fence_producers)
    abort_transaction = awaiting(transactions.abort_transaction)

    # Access rules, credentials and quotas.

    describe_acls = awaiting(security.describe_acls)
    create_acls = awaiting(security.create_acls)
    delete_acls = awaiting(security.delete_acls)
    describe_user_scram_credentials = awaiting(security.describe_user_scram_credentials)
    alter_user_scram_credentials = awaiting(security.alter_user_scram_credentials)
    describe_client_quotas = awaiting(security.describe_client_quotas)
    alter_client_quotas = awaiting(security.alter_client_quotas)

    # Close.

    async def close(self) -> None:
        """Close the connections; may be called again."""
        await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
