"""`Admin`: topics, configurations, groups and their offsets, records, access rules and the cluster, as blocking calls.

Each method is a coroutine function of the named module; `values` has the types of arguments and results.
"""

from __future__ import annotations

from typing import TypeVar, Unpack

from kohort.client.admin import cluster, configs, group_offsets, groups, security, topics, transactions
from kohort.client.net.facades import blocking
from kohort.client.net.runtime import Work
from kohort.client.net.thread_driver import ThreadClient
from kohort.client.setting_types import ConnectionSettings
from kohort.client.settings import ConnectionConfig, Servers, client_config
from kohort.io.closing import ClosedOnExit
from kohort.settings.arguments import check_call_arguments, checks_arguments
from kohort.settings.config import documents_settings

T = TypeVar("T")


@checks_arguments
@documents_settings(ConnectionConfig)
class Admin(ClosedOnExit):
    """A client for administering a cluster.

        with Admin("127.0.0.1:9092") as admin:
            admin.create_topics([NewTopic("flights", 6)]).all()

    Every call takes `timeout_ms`; None is `default_api_timeout_ms`. Calls for several resources return `Results`, with
    one outcome per resource, so that one failure hides no other.

    Args:
        bootstrap_servers: HOST:PORT, several with commas between, or a list of them.
        settings: Kafka's client properties as keywords, with _ for the dots.

    Raises:
        InvalidInputError: An unknown setting, or an invalid value.
    """

    @check_call_arguments
    def __init__(self, bootstrap_servers: Servers = None, **settings: Unpack[ConnectionSettings]) -> None:
        self._client = ThreadClient(client_config(ConnectionConfig, bootstrap_servers, settings))
        self._core = self._client.cluster

    def _call(self, coro: Work[T]) -> T:
        return self._client.call(coro)

    # The cluster.

    describe_cluster = blocking(cluster.describe_cluster)
    describe_features = blocking(cluster.describe_features)
    update_features = blocking(cluster.update_features)
    describe_log_dirs = blocking(cluster.describe_log_dirs)

    # Topics and records.

    list_topics = blocking(topics.list_topics)
    describe_topics = blocking(topics.describe_topics)
    create_topics = blocking(topics.create_topics)
    delete_topics = blocking(topics.delete_topics)
    create_partitions = blocking(topics.create_partitions)
    delete_records = blocking(topics.delete_records)
    list_offsets = blocking(group_offsets.list_offsets)

    # Configurations.

    describe_configs = blocking(configs.describe_configs)
    incremental_alter_configs = blocking(configs.incremental_alter_configs)

    # Groups.

    list_groups = blocking(groups.list_groups)
    describe_consumer_groups = blocking(groups.describe_consumer_groups)
    delete_consumer_groups = blocking(groups.delete_consumer_groups)
    remove_members_from_consumer_group = blocking(groups.remove_members_from_consumer_group)
    list_consumer_group_offsets = blocking(group_offsets.list_consumer_group_offsets)
    alter_consumer_group_offsets = blocking(group_offsets.alter_consumer_group_offsets)
    delete_consumer_group_offsets = blocking(group_offsets.delete_consumer_group_offsets)

    # Transactions.

    list_transactions = blocking(transactions.list_transactions)
    describe_transactions = blocking(transactions.describe_transactions)
    describe_producers = blocking(transactions.describe_producers)
    fence_producers = blocking(transactions.fence_producers)
    abort_transaction = blocking(transactions.abort_transaction)
    _check_rights = blocking(transactions.check_transaction_rights)

    # Access rules, credentials and quotas.

    describe_acls = blocking(security.describe_acls)
    create_acls = blocking(security.create_acls)
    delete_acls = blocking(security.delete_acls)
    describe_user_scram_credentials = blocking(security.describe_user_scram_credentials)
    alter_user_scram_credentials = blocking(security.alter_user_scram_credentials)
    describe_client_quotas = blocking(security.describe_client_quotas)
    alter_client_quotas = blocking(security.alter_client_quotas)

    # Close.

    def close(self) -> None:
        """Close the connections; may be called again."""
        self._client.close()
