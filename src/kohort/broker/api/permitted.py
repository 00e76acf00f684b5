"""The `authorized_operations` of responses: what the client may do with a resource.

Each operation of the protocol's ACLs has one bit. Source: KIP-430.
"""

from __future__ import annotations

from kohort.broker.authorization import CLUSTER_NAME, Caller, Guarded, Resource, is_allowed, may_see
from kohort.ids import AclOperation

UNKNOWN_OPERATIONS = -(2**31)
"""The field's value if the client did not request it."""

_NAMES = {
    Resource.CLUSTER: "CREATE ALTER DESCRIBE CLUSTER_ACTION DESCRIBE_CONFIGS ALTER_CONFIGS IDEMPOTENT_WRITE",
    Resource.TOPIC: "READ WRITE CREATE DELETE ALTER DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS",
    Resource.GROUP: "READ DELETE DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS",
}
OPERATIONS = {kind: [AclOperation[name] for name in names.split()] for kind, names in _NAMES.items()}
"""The operations that exist for a kind of resource."""
_ALL = {kind: sum(1 << operation for operation in operations) for kind, operations in OPERATIONS.items()}


def permitted_operations(asked: bool, host: Guarded, caller: Caller, resource: Resource, name: str) -> int:
    """Return the `authorized_operations` of a resource: the ACL operations that the caller may perform, as bits.

    It is UNKNOWN_OPERATIONS if the client did not ask.
    """
    if not asked:
        return UNKNOWN_OPERATIONS
    if host.authorizer is None:
        return _ALL[resource]
    operations = OPERATIONS[resource]
    return sum(1 << operation for operation in operations if may_see(host, caller, operation, resource, name))


def permitted_on_cluster(asked: bool, host: Guarded, caller: Caller) -> int:
    """Return the operations that the caller may do with the cluster: none if it may not describe it."""
    if asked and not is_allowed(host, caller, AclOperation.DESCRIBE, Resource.CLUSTER):
        return 0
    return permitted_operations(asked, host, caller, Resource.CLUSTER, CLUSTER_NAME)
