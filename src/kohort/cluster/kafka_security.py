"""The check that coordinators do not take the security of a Kafka cluster away.

A coordinator reads and writes with its own rights what its clients ask for. If Kafka authenticates clients, or has
access rules, everyone who reaches the coordinator would commit offsets and join groups past them. If its clients log
in, `KafkaAuthorizer` decides. Otherwise the coordinator does not start in front of such a Kafka, and ends when Kafka
becomes one.

| a sign of security | where it shows |
|---|---|
| clients authenticate, or their traffic is encrypted | the coordinator's own `security.protocol` is not PLAINTEXT |
| access rules | DescribeAcls is answered with anything but SECURITY_DISABLED |
"""

from __future__ import annotations

import asyncio
import logging

from kohort.client.admin.security import describe_acls
from kohort.client.admin.values import AclFilter, AclResource
from kohort.client.net.asyncio_driver import AsyncClient
from kohort.client.settings import ConnectionConfig
from kohort.cluster.retry import patiently
from kohort.errors import ErrorCode, InvalidInputError, KafkaError, RetriableError

log = logging.getLogger("kohort.cluster")

CHECK_INTERVAL_S = 60.0
"""Interval of the checks while the coordinator runs: brokers get an authorizer by a rolling restart."""
ANSWER_MS = 5_000
_FEW_RULES = AclFilter(resource_type=AclResource.CLUSTER, resource_name="kafka-cluster")
"""A filter that few rules match: the check needs the error code only."""


async def security_of(client: AsyncClient, config: ConnectionConfig) -> str | None:
    """Return the sign that a Kafka cluster is secured, for a message; None: it is open to everyone.

    Raises:
        KafkaError: Kafka does not answer.
    """
    if config.security_protocol != "PLAINTEXT":
        return f"its listener has security.protocol={config.security_protocol}"
    try:
        await client.call(describe_acls(client.cluster, _FEW_RULES, timeout_ms=ANSWER_MS))
    except RetriableError:
        raise
    except KafkaError as error:
        if error.code is ErrorCode.SECURITY_DISABLED:
            return None
        return f"it has access rules (DescribeAcls is answered with {error.code.name})"
    return "it has access rules (DescribeAcls is answered)"


async def refuse_secured_kafka(client: AsyncClient, config: ConnectionConfig) -> None:
    """Check that Kafka is open to everyone; wait for its answer.

    Raises:
        InvalidInputError: it is secured; the message says how to go on.
    """
    sign = await patiently("Kafka's access rules", lambda: security_of(client, config))
    if sign is not None:
        raise InvalidInputError(
            f"this Kafka is secured: {sign}. Everyone who reaches this coordinator would join groups and commit "
            "offsets with the coordinator's rights. Ways to go on: --sasl FILE, or --tls FILE with --client-ca FILE "
            "(clients log in, and Kafka's access rules decide); --trust-everyone (only clients that may do everything "
            "can reach the address); or leave the groups at Kafka's own coordinator"
        )


async def watch_security(client: AsyncClient, config: ConnectionConfig) -> None:
    """Check once a minute that Kafka is still open to everyone, until cancelled.

    Raises:
        InvalidInputError: it is secured now.
    """
    while True:
        await asyncio.sleep(CHECK_INTERVAL_S)
        await refuse_secured_kafka(client, config)
