"""The permissions that each API requires: an operation on a kind of resource, as in Apache Kafka's authorizer.

No authorizer is installed today, so everything is allowed; the table is for a future one. An entry names what the
request as a whole requires, and what each resource in the request requires. An API without an entry's needs is used
before authentication, or only reads or changes what belongs to the caller.

Source: Apache Kafka's documentation, "Authorization and ACLs"; KIP-430, KIP-496, KIP-848.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, Protocol

from kohort.broker.server.requests import PushRequest, Request
from kohort.errors import ErrorCode
from kohort.ids import AclOperation
from kohort.wire.message import Message
from kohort.wire.push import PushType


class Resource(IntEnum):
    """Kinds of resources, with the numbers of the protocol's ACLs."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7

    @property
    def refusal(self) -> ErrorCode:
        """The error code for a client without the permission."""
        return _REFUSALS[self]


_REFUSALS = {
    Resource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Resource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    Resource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    Resource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    Resource.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    Resource.USER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}


class Need(NamedTuple):
    """A required permission: one operation on one kind of resource."""

    operation: AclOperation
    resource: Resource


class Authorize(Protocol):
    """An authorizer: decides whether the principal of a request may make it.

    The result is NONE, or the error code that rejects the whole request.
    """

    @property
    def version(self) -> int:
        """A number that changes whenever the authorizer may decide differently than before."""

    def __call__(self, request: Request[Message] | PushRequest, needs: tuple[Need, ...], /) -> ErrorCode: ...


_O, _R = AclOperation, Resource
_CLUSTER_ALTER = (Need(_O.ALTER, _R.CLUSTER),)
_CLUSTER_DESCRIBE = (Need(_O.DESCRIBE, _R.CLUSTER),)
_TOPIC_DESCRIBE = (Need(_O.DESCRIBE, _R.TOPIC),)
_GROUP_READ = (Need(_O.READ, _R.GROUP),)
_TRANSACTION_WRITE = Need(_O.WRITE, _R.TRANSACTIONAL_ID)
_CONFIGS_DESCRIBE = tuple(Need(_O.DESCRIBE_CONFIGS, kind) for kind in (_R.TOPIC, _R.GROUP, _R.CLUSTER))
_CONFIGS_ALTER = tuple(Need(_O.ALTER_CONFIGS, kind) for kind in (_R.TOPIC, _R.GROUP, _R.CLUSTER))

NEEDS: dict[str, tuple[Need, ...]] = {
    "AddOffsetsToTxn": (_TRANSACTION_WRITE, *_GROUP_READ),
    "AddPartitionsToTxn": (_TRANSACTION_WRITE, Need(_O.WRITE, _R.TOPIC)),
    "AlterClientQuotas": (Need(_O.ALTER_CONFIGS, _R.CLUSTER),),
    "AlterConfigs": _CONFIGS_ALTER,
    "AlterPartitionReassignments": _CLUSTER_ALTER,
    "AlterReplicaLogDirs": _CLUSTER_ALTER,
    "AlterUserScramCredentials": _CLUSTER_ALTER,
    "ApiVersions": (),
    "ConsumerGroupDescribe": (Need(_O.DESCRIBE, _R.GROUP), *_TOPIC_DESCRIBE),
    "ConsumerGroupHeartbeat": (*_GROUP_READ, *_TOPIC_DESCRIBE),
    "CreateAcls": _CLUSTER_ALTER,
    "CreateDelegationToken": (Need(_O.CREATE_TOKENS, _R.USER),),
    "CreatePartitions": (Need(_O.ALTER, _R.TOPIC),),
    "CreateTopics": (Need(_O.CREATE, _R.TOPIC),),
    "DeleteAcls": _CLUSTER_ALTER,
    "DeleteGroups": (Need(_O.DELETE, _R.GROUP),),
    "DeleteRecords": (Need(_O.DELETE, _R.TOPIC),),
    "DeleteTopics": (Need(_O.DELETE, _R.TOPIC),),
    "DescribeAcls": _CLUSTER_DESCRIBE,
    "DescribeClientQuotas": (Need(_O.DESCRIBE_CONFIGS, _R.CLUSTER),),
    "DescribeCluster": (),
    "DescribeConfigs": _CONFIGS_DESCRIBE,
    "DescribeCoordinators": _CLUSTER_DESCRIBE,
    "DescribeDelegationToken": (Need(_O.DESCRIBE, _R.DELEGATION_TOKEN), Need(_O.DESCRIBE_TOKENS, _R.USER)),
    "DescribeGroups": (Need(_O.DESCRIBE, _R.GROUP),),
    "DescribeLogDirs": _CLUSTER_DESCRIBE,
    "DescribeQuorum": _CLUSTER_DESCRIBE,
    "DescribeProducers": (Need(_O.READ, _R.TOPIC),),
    "DescribeTopicPartitions": _TOPIC_DESCRIBE,
    "DescribeTransactions": (Need(_O.DESCRIBE, _R.TRANSACTIONAL_ID),),
    "DescribeUserScramCredentials": _CLUSTER_DESCRIBE,
    "ElectLeaders": _CLUSTER_ALTER,
    "EndTxn": (_TRANSACTION_WRITE,),
    "ExpireDelegationToken": (),
    "Fetch": (Need(_O.READ, _R.TOPIC),),
    "FindCoordinator": (Need(_O.DESCRIBE, _R.GROUP), Need(_O.DESCRIBE, _R.TRANSACTIONAL_ID)),
    "Heartbeat": _GROUP_READ,
    "IncrementalAlterConfigs": _CONFIGS_ALTER,
    "InitProducerId": (_TRANSACTION_WRITE, Need(_O.IDEMPOTENT_WRITE, _R.CLUSTER)),
    "JoinGroup": _GROUP_READ,
    "LeaveGroup": _GROUP_READ,
    "ListConfigResources": (Need(_O.DESCRIBE_CONFIGS, _R.CLUSTER),),
    "ListGroups": (*_CLUSTER_DESCRIBE, Need(_O.DESCRIBE, _R.GROUP)),
    "ListOffsets": _TOPIC_DESCRIBE,
    "ListPartitionReassignments": _CLUSTER_DESCRIBE,
    "ListTransactions": (Need(_O.DESCRIBE, _R.TRANSACTIONAL_ID),),
    "Metadata": _TOPIC_DESCRIBE,
    "OffsetCommit": (*_GROUP_READ, Need(_O.READ, _R.TOPIC)),
    "OffsetDelete": (Need(_O.DELETE, _R.GROUP), Need(_O.READ, _R.TOPIC)),
    "OffsetFetch": (Need(_O.DESCRIBE, _R.GROUP), *_TOPIC_DESCRIBE),
    "OffsetForLeaderEpoch": _TOPIC_DESCRIBE,
    "Produce": (Need(_O.WRITE, _R.TOPIC), _TRANSACTION_WRITE),
    "RenewDelegationToken": (),
    "SaslAuthenticate": (),
    "SaslHandshake": (),
    "SyncGroup": _GROUP_READ,
    "TxnOffsetCommit": (_TRANSACTION_WRITE, *_GROUP_READ, Need(_O.READ, _R.TOPIC)),
    "UpdateFeatures": _CLUSTER_ALTER,
    "WriteTxnMarkers": (Need(_O.CLUSTER_ACTION, _R.CLUSTER),),
}

PUSH_NEEDS: dict[PushType, tuple[Need, ...]] = {
    PushType.CLUSTER_METADATA: (Need(_O.DESCRIBE, _R.GROUP),),
    PushType.REGISTER_CONSUMER: (*_GROUP_READ, Need(_O.READ, _R.TOPIC)),
}
"""Permissions that requests of push consumers require.

The positions in a consumer's answers are committed under the permissions of its registration. Registration therefore
requires what OffsetCommit does, for as long as the consumer is registered: see `Right`.
"""


class Right:
    """The authorization of a push consumer's request, checked again whenever the authorizer changes."""

    __slots__ = ("_authorize", "_request", "_version")

    def __init__(self, authorize: Authorize, request: PushRequest) -> None:
        self._authorize = authorize
        self._request = request
        self._version: int | None = None

    def refusal(self) -> ErrorCode:
        """Return NONE while the request is allowed, else the error code."""
        version = self._authorize.version
        if version == self._version:
            return ErrorCode.NONE
        refused = self._authorize(self._request, PUSH_NEEDS[self._request.kind])
        if refused is ErrorCode.NONE:
            self._version = version
        return refused
