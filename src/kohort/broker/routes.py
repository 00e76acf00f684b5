"""Every API this broker serves."""

from __future__ import annotations

from kohort.broker.api import (
    cluster,
    configs,
    consumer_groups,
    fetch,
    group_offsets,
    groups,
    listoffsets,
    operations,
    produce,
    quotas,
    security,
    topics,
    transactions,
)
from kohort.broker.api.cluster import unknown_api_versions
from kohort.broker.net.dispatch import route_table

__all__ = ["ROUTES", "unknown_api_versions"]

PRODUCE, INIT_PRODUCER_ID = 0, 22

ROUTES = route_table(
    [
        cluster.HANDLERS,
        configs.HANDLERS,
        consumer_groups.HANDLERS,
        fetch.HANDLERS,
        groups.HANDLERS,
        listoffsets.HANDLERS,
        group_offsets.HANDLERS,
        operations.HANDLERS,
        produce.HANDLERS,
        quotas.HANDLERS,
        security.HANDLERS,
        topics.HANDLERS,
        transactions.HANDLERS,
    ],
    advertise_from={PRODUCE: 0},  # librdkafka compresses only for brokers that name Produce 0, as Kafka 4 found out
    serve_to={INIT_PRODUCER_ID: 5},  # 6 is for two-phase commits, which Kafka 4.3 does not serve either
)
