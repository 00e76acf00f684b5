"""The permissions that each API requires, and the authorizer that grants them.

`NEEDS` names for each API the operations on resources that a client must be allowed. The dispatcher checks needs of the
whole request. A handler checks needs of each resource with `is_allowed` and `unauthorized_names`, and goes on with the
resources that are allowed. Lists show only resources that the client may describe. An API without needs is used before
authentication, or only reads or changes what belongs to the caller.

A host without an authorizer allows everything. Source: Apache Kafka's documentation, "Authorization and ACLs"; KIP-430,
KIP-496, KIP-679, KIP-848.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from enum import IntEnum
from typing import NamedTuple, Protocol

from kohort.broker.acls import AclIndex
from kohort.broker.security.principals import Principal
from kohort.broker.server.requests import PushRequest, Request
from kohort.errors import ErrorCode
from kohort.ids import AclOperation
from kohort.wire.message import Message
from kohort.wire.push import PushType, RegisterConsumerRequest, parse_topic_count

CLUSTER_NAME = "kafka-cluster"
"""The name of the only resource of type CLUSTER."""


class Resource(IntEnum):
    """Kinds of resources, with the numbers of the protocol's ACLs."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7

    @property
    def refusal_error_code(self) -> ErrorCode:
        """The error code for a client without permission for such a resource, e.g. TOPIC_AUTHORIZATION_FAILED."""
        return _REFUSALS[self]


_REFUSALS = {
    Resource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Resource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    Resource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    Resource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    Resource.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    Resource.USER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}


class RefusalScope(IntEnum):
    """The extent of a refusal when a client lacks a permission: the whole request, or the single resource."""

    REQUEST = 1
    RESOURCE = 2


class RequiredPermission(NamedTuple):
    """A permission that an API requires: an operation on a kind of resource, and what is refused without it."""

    operation: AclOperation
    resource: Resource
    scope: RefusalScope = RefusalScope.REQUEST


class Caller(Protocol):
    """The client of a request, as authorizers and the audit log see it."""

    @property
    def principal(self) -> Principal: ...
    @property
    def host(self) -> str:
        """The client's address."""

    @property
    def client_id(self) -> str | None: ...
    @property
    def api(self) -> str:
        """The name of the API that the client called."""


class CallerCopy(NamedTuple):
    """A copy of a request's caller, kept for later decisions without keeping the request's memory."""

    principal: Principal
    host: str
    client_id: str | None
    api: str

    @classmethod
    def copy_of(cls, caller: Caller) -> CallerCopy:
        """Return a copy of a request's caller that does not keep the request in memory."""
        return cls(caller.principal, caller.host, caller.client_id, caller.api)


class Authorizer(Protocol):
    """An authorizer: decides what the principal of a request may do. All methods are called on the loop.

    `allows` is also called in threads, for the topics of regular expressions.
    """

    @property
    def version(self) -> int:
        """A number that changes whenever the authorizer may decide differently; negative: it can't decide for now."""

    def allows(
        self, caller: Caller, operation: AclOperation, resource: Resource, name: str, *, audited: bool = True
    ) -> bool:
        """Return whether the caller may do an operation on a resource.

        Args:
            caller: the request, or its client.
            operation: the operation.
            resource: the kind of the resource.
            name: the resource's name.
            audited: whether a refusal goes into the audit log; False if the client did not ask for the resource.
        """

    def allows_on_any(self, caller: Caller, operation: AclOperation, resource: Resource) -> bool:
        """Return whether the caller may do an operation on at least one resource of a kind."""


class HostWithAuthorizer(Protocol):
    """A host that may have an authorizer."""

    @property
    def authorizer(self) -> Authorizer | None: ...


DECISIONS_MAX = 10_000
"""The most cached decisions, which bounds their memory: clients choose names."""
CACHED_NAME_MAX = 300
"""The longest name of a cached decision. Topic names have at most 249 characters."""
SOME_NAME = "hardcode"
"""The resource name that Kafka checks to find out whether a principal may do anything
(`Authorizer.authorizeByResourceType`).
"""


class StandardAuthorizer:
    """An authorizer by ACLs, with the semantics of Apache Kafka's class of this name."""

    def __init__(
        self,
        acls: AclIndex,
        super_users: Collection[str] = (),
        allow_if_no_acl: bool = False,
        on_refused: Callable[[Caller, AclOperation, Resource, str], None] | None = None,
    ) -> None:
        """Create an authorizer.

        Args:
            acls: the rules, which may change.
            super_users: principals that may do everything, such as `User:admin`.
            allow_if_no_acl: the decision for resources that no rule names.
            on_refused: called for each audited refusal.
        """
        self._acls = acls
        self._super_users = frozenset(super_users)
        self._default = allow_if_no_acl
        self.on_refused = on_refused
        self._decisions: dict[tuple[object, ...], bool] = {}
        self._decided_at = -1

    @property
    def version(self) -> int:
        """A number that grows with each change of the rules."""
        return self._acls.version

    def allows(
        self, caller: Caller, operation: AclOperation, resource: Resource, name: str, *, audited: bool = True
    ) -> bool:
        """Return whether the caller may do an operation on a resource."""
        if self._decided_at != self._acls.version or len(self._decisions) >= DECISIONS_MAX:
            self._decisions = {}
            self._decided_at = self._acls.version
        decisions = self._decisions
        key = (caller.principal, caller.host, operation, resource, name)
        decision = decisions.get(key)
        if decision is None:
            decision = self._decide(caller, operation, resource, name)
            if len(name) <= CACHED_NAME_MAX:
                decisions[key] = decision
        if not decision and audited and self.on_refused is not None:
            self.on_refused(caller, operation, resource, name)
        return decision

    def _decide(self, caller: Caller, operation: AclOperation, resource: Resource, name: str) -> bool:
        principal = str(caller.principal)
        if principal in self._super_users:
            return True
        return self._acls.is_allowed(principal, caller.host, operation, (resource, name), self._default)

    def allows_on_any(self, caller: Caller, operation: AclOperation, resource: Resource) -> bool:
        """Return whether the caller may do an operation on at least one resource of a kind."""
        if self.allows(caller, operation, resource, SOME_NAME, audited=False):
            return True
        return self._acls.is_allowed_on_any(str(caller.principal), caller.host, operation, resource)


NONE_REFUSED: frozenset[str] = frozenset()


def is_allowed(
    host: HostWithAuthorizer, caller: Caller, operation: AclOperation, resource: Resource, name: str = CLUSTER_NAME
) -> bool:
    """Return whether the caller may do an operation on a resource."""
    guard = host.authorizer
    return guard is None or guard.allows(caller, operation, resource, name)


def may_see(host: HostWithAuthorizer, caller: Caller, operation: AclOperation, resource: Resource, name: str) -> bool:
    """Return whether a list includes a resource. A resource that is left out is no refusal for the audit log."""
    guard = host.authorizer
    return guard is None or guard.allows(caller, operation, resource, name, audited=False)


def unauthorized_names(
    host: HostWithAuthorizer, caller: Caller, operation: AclOperation, resource: Resource, names: Iterable[str]
) -> frozenset[str]:
    """Return those of the names on which the caller may not do an operation; none without an authorizer."""
    guard = host.authorizer
    if guard is None:
        return NONE_REFUSED
    return frozenset(name for name in set(names) if not guard.allows(caller, operation, resource, name))


def request_authorization_error(
    guard: Authorizer, request: Request[Message], needs: Iterable[RequiredPermission]
) -> ErrorCode:
    """Check the permissions that an API needs for the request as a whole, such as on its group or the cluster.

    Return the error code that rejects it, or NONE.
    """
    for need in needs:
        if need.scope is RefusalScope.REQUEST and not guard.allows(
            request, need.operation, need.resource, _resource_name(request.message, need.resource)
        ):
            return need.resource.refusal_error_code
    return ErrorCode.NONE


def _resource_name(message: Message, resource: Resource) -> str:
    """Return the name of the resource that a request as a whole is for."""
    if resource is Resource.CLUSTER:
        return CLUSTER_NAME
    name: str = message.group_id if resource is Resource.GROUP else message.transactional_id  # type: ignore[attr-defined]
    return name


_O, _R = AclOperation, Resource


def _each(operation: AclOperation, resource: Resource) -> RequiredPermission:
    """Return a permission that is checked for each resource in a request, not once for the whole request."""
    return RequiredPermission(operation, resource, RefusalScope.RESOURCE)


_CLUSTER_ALTER = (RequiredPermission(_O.ALTER, _R.CLUSTER),)
_CLUSTER_DESCRIBE = (RequiredPermission(_O.DESCRIBE, _R.CLUSTER),)
_TOPIC_DESCRIBE = (_each(_O.DESCRIBE, _R.TOPIC),)
_TOPIC_READ = (_each(_O.READ, _R.TOPIC),)
_GROUP_READ = (RequiredPermission(_O.READ, _R.GROUP),)
_GROUP_DESCRIBE = (_each(_O.DESCRIBE, _R.GROUP),)
_TRANSACTION_WRITE = (RequiredPermission(_O.WRITE, _R.TRANSACTIONAL_ID),)
_TRANSACTION_DESCRIBE = (_each(_O.DESCRIBE, _R.TRANSACTIONAL_ID),)
_CONFIGS_DESCRIBE = tuple(_each(_O.DESCRIBE_CONFIGS, kind) for kind in (_R.TOPIC, _R.GROUP, _R.CLUSTER))
_CONFIGS_ALTER = tuple(_each(_O.ALTER_CONFIGS, kind) for kind in (_R.TOPIC, _R.GROUP, _R.CLUSTER))

NEEDS: dict[str, tuple[RequiredPermission, ...]] = {
    "AddOffsetsToTxn": (*_TRANSACTION_WRITE, *_GROUP_READ),
    "AddPartitionsToTxn": (
        _each(_O.WRITE, _R.TRANSACTIONAL_ID),
        _each(_O.WRITE, _R.TOPIC),
        _each(_O.CLUSTER_ACTION, _R.CLUSTER),  # instead of both, since version 4
    ),
    "AlterClientQuotas": (RequiredPermission(_O.ALTER_CONFIGS, _R.CLUSTER),),
    "AlterConfigs": _CONFIGS_ALTER,
    "AlterPartitionReassignments": _CLUSTER_ALTER,
    "AlterReplicaLogDirs": _CLUSTER_ALTER,
    "AlterUserScramCredentials": _CLUSTER_ALTER,
    "ApiVersions": (),
    "ConsumerGroupDescribe": (*_GROUP_DESCRIBE, *_TOPIC_DESCRIBE),
    "ConsumerGroupHeartbeat": (*_GROUP_READ, *_TOPIC_DESCRIBE),
    "CreateAcls": _CLUSTER_ALTER,
    "CreateDelegationToken": (_each(_O.CREATE_TOKENS, _R.USER),),
    "CreatePartitions": (_each(_O.ALTER, _R.TOPIC),),
    "CreateTopics": (
        _each(_O.CREATE, _R.CLUSTER),  # or of each topic
        _each(_O.CREATE, _R.TOPIC),
        _each(_O.DESCRIBE_CONFIGS, _R.TOPIC),
    ),
    "DeleteAcls": _CLUSTER_ALTER,
    "DeleteGroups": (_each(_O.DELETE, _R.GROUP),),
    "DeleteRecords": (_each(_O.DELETE, _R.TOPIC),),
    "DeleteTopics": (
        _each(_O.DELETE, _R.CLUSTER),  # or of each topic
        *_TOPIC_DESCRIBE,
        _each(_O.DELETE, _R.TOPIC),
    ),
    "DescribeAcls": _CLUSTER_DESCRIBE,
    "DescribeClientQuotas": (RequiredPermission(_O.DESCRIBE_CONFIGS, _R.CLUSTER),),
    "DescribeCluster": (),
    "DescribeConfigs": _CONFIGS_DESCRIBE,
    "DescribeCoordinators": _CLUSTER_DESCRIBE,
    "DescribeDelegationToken": (_each(_O.DESCRIBE, _R.DELEGATION_TOKEN), _each(_O.DESCRIBE_TOKENS, _R.USER)),
    "DescribeGroups": _GROUP_DESCRIBE,
    "DescribeLogDirs": _CLUSTER_DESCRIBE,
    "DescribeQuorum": _CLUSTER_DESCRIBE,
    "DescribeProducers": _TOPIC_READ,
    "DescribeTopicPartitions": _TOPIC_DESCRIBE,
    "DescribeTransactions": (*_TRANSACTION_DESCRIBE, *_TOPIC_DESCRIBE),
    "DescribeUserScramCredentials": _CLUSTER_DESCRIBE,
    "ElectLeaders": _CLUSTER_ALTER,
    "EndTxn": _TRANSACTION_WRITE,
    "ExpireDelegationToken": (),
    "Fetch": _TOPIC_READ,
    "FindCoordinator": (*_GROUP_DESCRIBE, *_TRANSACTION_DESCRIBE),
    "Heartbeat": _GROUP_READ,
    "IncrementalAlterConfigs": _CONFIGS_ALTER,
    "InitProducerId": (
        _each(_O.WRITE, _R.TRANSACTIONAL_ID),
        _each(_O.IDEMPOTENT_WRITE, _R.CLUSTER),  # without a transactional id; or of any topic
        _each(_O.WRITE, _R.TOPIC),
    ),
    "JoinGroup": _GROUP_READ,
    "LeaveGroup": _GROUP_READ,
    "ListConfigResources": (RequiredPermission(_O.DESCRIBE_CONFIGS, _R.CLUSTER),),
    "ListGroups": (_each(_O.DESCRIBE, _R.CLUSTER), *_GROUP_DESCRIBE),  # either one
    "ListOffsets": _TOPIC_DESCRIBE,
    "ListPartitionReassignments": _CLUSTER_DESCRIBE,
    "ListTransactions": _TRANSACTION_DESCRIBE,
    "Metadata": (*_TOPIC_DESCRIBE, _each(_O.CREATE, _R.CLUSTER), _each(_O.CREATE, _R.TOPIC)),
    "OffsetCommit": (*_GROUP_READ, *_TOPIC_READ),
    "OffsetDelete": (RequiredPermission(_O.DELETE, _R.GROUP), *_TOPIC_READ),
    "OffsetFetch": (*_GROUP_DESCRIBE, *_TOPIC_DESCRIBE),
    "OffsetForLeaderEpoch": (_each(_O.CLUSTER_ACTION, _R.CLUSTER), *_TOPIC_DESCRIBE),  # either one
    "Produce": (_each(_O.WRITE, _R.TRANSACTIONAL_ID), _each(_O.WRITE, _R.TOPIC)),
    "RenewDelegationToken": (),
    "SaslAuthenticate": (),
    "SaslHandshake": (),
    "StreamsGroupHeartbeat": _GROUP_READ,
    "SyncGroup": _GROUP_READ,
    "TxnOffsetCommit": (*_TRANSACTION_WRITE, *_GROUP_READ, *_TOPIC_READ),
    "UpdateFeatures": _CLUSTER_ALTER,
    "WriteTxnMarkers": (_each(_O.ALTER, _R.CLUSTER), _each(_O.CLUSTER_ACTION, _R.CLUSTER)),  # either one
}

PUSH_NEEDS: dict[PushType, tuple[RequiredPermission, ...]] = {
    PushType.CLUSTER_METADATA: (RequiredPermission(_O.DESCRIBE, _R.GROUP),),
    PushType.REGISTER_CONSUMER: (*_GROUP_READ, _each(_O.READ, _R.TOPIC)),
}
"""Permissions that requests of push consumers require.

The positions in a consumer's answers are committed under the permissions of its registration. Registration therefore
requires what OffsetCommit does, for as long as the consumer is registered: see `PushAuthorization`. A regular
expression selects only topics that the consumers of its group may read.
"""


class PushAuthorization:
    """The authorization of a push consumer's request, checked again whenever the authorizer changes.

    Attributes:
        caller: the consumer.
    """

    __slots__ = ("_authorizer", "_groups", "_kind", "_topics", "_version", "caller")

    def __init__(self, authorizer: Authorizer, request: PushRequest) -> None:
        self._authorizer = authorizer
        self.caller = CallerCopy.copy_of(request)
        self._kind = request.kind
        message = request.message
        self._groups: tuple[str, ...] = () if message.group_id is None else (message.group_id,)
        self._topics: tuple[str, ...] = ()
        if isinstance(message, RegisterConsumerRequest):
            self._topics = tuple(parse_topic_count(message.topic_count).topics)
        self._version: int | None = None

    def current_error(self) -> ErrorCode:
        """Return NONE while the request is allowed, else the error code."""
        version = self._authorizer.version
        if version < 0:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if version == self._version:
            return ErrorCode.NONE
        for need in PUSH_NEEDS[self._kind]:
            for name in self._groups if need.resource is Resource.GROUP else self._topics:
                if not self._authorizer.allows(self.caller, need.operation, need.resource, name):
                    return need.resource.refusal_error_code
        self._version = version
        return ErrorCode.NONE

    def may_read(self, topic: str) -> bool:
        """Return whether the consumer may read a topic that its regular expression matches."""
        return self._authorizer.allows(self.caller, AclOperation.READ, Resource.TOPIC, topic, audited=False)


# -- The `authorized_operations` of responses: the operations that a client may perform, as bits. Source: KIP-430

UNKNOWN_OPERATIONS = -(2**31)
"""The field's value if the client did not request it."""

_OPERATION_NAMES = {
    Resource.CLUSTER: "CREATE ALTER DESCRIBE CLUSTER_ACTION DESCRIBE_CONFIGS ALTER_CONFIGS IDEMPOTENT_WRITE",
    Resource.TOPIC: "READ WRITE CREATE DELETE ALTER DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS",
    Resource.GROUP: "READ DELETE DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS",
}
OPERATIONS = {kind: [AclOperation[name] for name in names.split()] for kind, names in _OPERATION_NAMES.items()}
"""The operations that exist for a kind of resource."""
_ALL_OPERATIONS = {kind: sum(1 << operation for operation in operations) for kind, operations in OPERATIONS.items()}


def permitted_operations(asked: bool, host: HostWithAuthorizer, caller: Caller, resource: Resource, name: str) -> int:
    """Return a resource's `authorized_operations`: a bit field of the ACL operations that the caller may perform.

    UNKNOWN_OPERATIONS if the client did not ask for it.
    """
    if not asked:
        return UNKNOWN_OPERATIONS
    if host.authorizer is None:
        return _ALL_OPERATIONS[resource]
    operations = OPERATIONS[resource]
    return sum(1 << operation for operation in operations if may_see(host, caller, operation, resource, name))


def permitted_on_cluster(asked: bool, host: HostWithAuthorizer, caller: Caller) -> int:
    """Return the cluster's `authorized_operations` for the caller; none if it may not describe the cluster."""
    if asked and not is_allowed(host, caller, AclOperation.DESCRIBE, Resource.CLUSTER):
        return 0
    return permitted_operations(asked, host, caller, Resource.CLUSTER, CLUSTER_NAME)
