"""The authorizer of a coordinator: it decides by the access rules of the Kafka cluster, which it reads again and again.

| Kafka answers DescribeAcls with | clients of the coordinator may do |
|---|---|
| rules | what the rules allow them, as Apache Kafka's StandardAuthorizer decides |
| SECURITY_DISABLED: it has no authorizer | everything |
| another error, or nothing | what the last answer allowed, for `MAX_AGE_S`; then nothing, until there is an answer |

The coordinator needs DESCRIBE on the cluster for it. No request tells Kafka's super users, and its decision for
resources without rules: the coordinator has settings of the same names.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable

from kohort.broker.acls import AclIndex, AclRule
from kohort.broker.authorization import Authorizer, Caller, Resource, StandardAuthorizer
from kohort.client.admin.security import describe_acls, list_enforceable_acls
from kohort.client.admin.values import Acl, AclFilter, AclResource
from kohort.client.net.asyncio_driver import AsyncClient
from kohort.client.settings import ConnectionConfig
from kohort.cluster.retry import retry_forever
from kohort.errors import ErrorCode, InvalidInputError, KafkaError, RetriableError
from kohort.ids import AclOperation

log = logging.getLogger("kohort.cluster")

REFRESH_S = 2.0
"""Interval of the reads: a right that is taken away at Kafka counts here after this time at most."""
MAX_AGE_S = 60.0
"""Without an answer for this long, requests are answered with a retriable error: rights may have been taken away."""
ANSWER_MS = 5_000


class KafkaAuthorizer(Authorizer):
    """An authorizer by the ACLs of a Kafka cluster."""

    def __init__(
        self,
        client: AsyncClient,
        super_users: Collection[str] = (),
        allow_if_no_acl: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create an authorizer that allows nothing before its first `refresh`."""
        self._client = client
        self._clock = clock
        self._rules = AclIndex()
        self._standard = StandardAuthorizer(self._rules, super_users, allow_if_no_acl)
        self._open = False
        self._changes = 0
        self._read_s: float | None = None
        self._trouble: str | None = None

    def record_refusals(self, on_refused: Callable[[Caller, AclOperation, Resource, str], None]) -> None:
        """Call a function for each audited refusal from now on."""
        self._standard.on_refused = on_refused

    @property
    def version(self) -> int:
        """A number that differs after each change of the rules; negative while they are stale."""
        return -1 if self.is_stale else self._rules.version + self._changes

    @property
    def is_stale(self) -> bool:
        """Whether the last answer is too old to allow anything."""
        return self._read_s is None or self._clock() - self._read_s > MAX_AGE_S

    def allows(
        self, caller: Caller, operation: AclOperation, resource: Resource, name: str, *, audited: bool = True
    ) -> bool:
        """Return whether the caller may do an operation on a resource."""
        if self.is_stale:
            return False
        return self._open or self._standard.allows(caller, operation, resource, name, audited=audited)

    def allows_on_any(self, caller: Caller, operation: AclOperation, resource: Resource) -> bool:
        """Return whether the caller may do an operation on at least one resource of a kind."""
        if self.is_stale:
            return False
        return self._open or self._standard.allows_on_any(caller, operation, resource)

    async def refresh(self) -> None:
        """Read the ACLs from Kafka.

        Raises:
            RetriableError: Kafka does not answer.
            InvalidInputError: the coordinator may not read them, or can't know what a rule of a later version denies.
        """
        try:
            rules = await self._client.call(list_enforceable_acls(self._client.cluster, timeout_ms=ANSWER_MS))
        except RetriableError:
            raise
        except KafkaError as error:
            if error.code is ErrorCode.UNSUPPORTED_VERSION:
                raise
            if error.code is not ErrorCode.SECURITY_DISABLED:
                raise InvalidInputError(
                    f"Kafka does not tell this coordinator who may do what ({error.code.name}): give its user DESCRIBE "
                    "on the cluster"
                ) from error
            self._replace_rules((), is_open=True)
        else:
            self._replace_rules(rules, is_open=False)

    def _replace_rules(self, rules: Iterable[Acl], *, is_open: bool) -> None:
        wanted, before = {_rule(rule) for rule in rules}, set(self._rules)
        self._rules.remove_rules(before - wanted)
        self._rules.add_rules(wanted - before)
        if is_open is not self._open:
            self._open = is_open
            self._changes += 1
        self._read_s = self._clock()

    async def begin(self) -> None:
        """Read the ACLs from Kafka for the first time; wait for its answer.

        Raises:
            InvalidInputError: the coordinator may not read them.
        """
        await retry_forever("Kafka's access rules", self.refresh)
        if not self._open:
            log.info("%d ACLs read from Kafka: they decide what clients may do here", len(self._rules))

    async def poll_acls(self) -> None:
        """Read the ACLs from Kafka again and again, until cancelled."""
        while True:
            await asyncio.sleep(REFRESH_S)
            try:
                await self.refresh()
                self._trouble = None
            except (KafkaError, OSError) as error:
                if self._trouble != str(error):  # by text: logged once
                    log.warning(
                        "ACLs cannot be read from Kafka, retrying: %s. The last ones read apply for %.0f s, then "
                        "requests are answered COORDINATOR_NOT_AVAILABLE",
                        error,
                        MAX_AGE_S,
                    )
                self._trouble = str(error)


def _rule(rule: Acl) -> AclRule:
    return AclRule(
        int(rule.resource_type),
        rule.resource_name,
        int(rule.pattern),
        rule.principal,
        rule.host,
        int(rule.operation),
        int(rule.permission),
    )


# -- Without logins: the check that coordinators do not take the security of a Kafka cluster away
#
# A coordinator reads and writes with its own rights what its clients ask for. If Kafka authenticates clients, or has
# access rules, everyone who reaches the coordinator would commit offsets and join groups past them. A coordinator whose
# clients do not log in therefore does not start in front of such a Kafka, and ends when Kafka becomes one.
#
# | a sign of security | where it shows |
# |---|---|
# | clients authenticate, or their traffic is encrypted | the coordinator's own `security.protocol` is not PLAINTEXT |
# | access rules | DescribeAcls is answered with anything but SECURITY_DISABLED |

CHECK_INTERVAL_S = 60.0
"""Interval of the checks while the coordinator runs: brokers get an authorizer by a rolling restart."""
_FEW_RULES = AclFilter(resource_type=AclResource.CLUSTER, resource_name="kafka-cluster")
"""A filter that few rules match: the check needs the error code only."""


async def security_evidence(client: AsyncClient, config: ConnectionConfig) -> str | None:
    """Return what shows that a Kafka cluster is secured (a login or ACLs), as text; None: it is open to everyone.

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
    sign = await retry_forever("Kafka's access rules", lambda: security_evidence(client, config))
    if sign is not None:
        raise InvalidInputError(
            f"this Kafka is secured: {sign}. Everyone who reaches this coordinator would join groups and commit "
            "offsets with the coordinator's rights. Ways to go on: --sasl FILE, or --tls FILE with --client-ca FILE "
            "(clients log in, and Kafka's access rules decide); --trust-everyone (only clients that may do everything "
            "can reach the address); or leave the groups at Kafka's own coordinator"
        )


async def poll_security(client: AsyncClient, config: ConnectionConfig) -> None:
    """Check once a minute that Kafka is still open to everyone, until cancelled.

    Raises:
        InvalidInputError: it is secured now.
    """
    while True:
        await asyncio.sleep(CHECK_INTERVAL_S)
        await refuse_secured_kafka(client, config)
