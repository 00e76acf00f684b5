"""The routes of all APIs, for a broker and for a host that only coordinates groups."""

from __future__ import annotations

from kohort.broker.api import (
    acls,
    cluster_admin,
    configs,
    consumer_groups,
    discovery,
    fetch,
    group_offsets,
    groups,
    list_offsets,
    metadata,
    offset_transactions,
    produce,
    quotas,
    sasl,
    security,
    streams_groups,
    topics,
    topics_on_use,
    transactions,
)
from kohort.broker.api.discovery import unknown_api_versions
from kohort.broker.dispatch import ApiHandler, Route, route_table
from kohort.broker.host import GroupHost
from kohort.broker.node import Node

__all__ = ["GROUP_ROUTES", "ROUTES", "unknown_api_versions"]

PRODUCE, INIT_PRODUCER_ID = 0, 22

_OF_GROUPS: list[list[ApiHandler[GroupHost]]] = [
    discovery.HANDLERS,
    consumer_groups.HANDLERS,
    group_offsets.HANDLERS,
    groups.HANDLERS,
    metadata.HANDLERS,
]

ROUTES: dict[int, Route[Node]] = route_table(
    [
        *_OF_GROUPS,
        acls.HANDLERS,
        configs.HANDLERS,
        fetch.HANDLERS,
        list_offsets.HANDLERS,
        offset_transactions.HANDLERS,
        cluster_admin.HANDLERS,
        produce.HANDLERS,
        quotas.HANDLERS,
        sasl.HANDLERS,
        security.HANDLERS,
        streams_groups.HANDLERS,
        topics.HANDLERS,
        topics_on_use.HANDLERS,
        transactions.HANDLERS,
    ],
    advertise_from={PRODUCE: 0},  # librdkafka compresses only for brokers that name Produce 0, as Kafka 4 found out
    serve_to={INIT_PRODUCER_ID: 5},  # 6 is for two-phase commits, which Kafka 4.4 does not serve either
)

GROUP_ROUTES: dict[int, Route[GroupHost]] = route_table([*_OF_GROUPS, metadata.AS_IT_IS])
"""The APIs of a host that only coordinates groups. Transactional offsets are missing, because it has no transactions.
"""
