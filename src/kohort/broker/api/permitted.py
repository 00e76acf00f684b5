"""The `authorized_operations` of responses: without an authorizer, all operations that exist for a resource.

Each operation of the protocol's ACLs has one bit. Source: KIP-430.
"""

from __future__ import annotations

from kohort.ids import AclOperation

UNKNOWN_OPERATIONS = -(2**31)
"""The field's value if the client did not request it."""


def _bits(*operations: AclOperation) -> int:
    return sum(1 << operation for operation in operations)


ON_CLUSTER = _bits(
    *(
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    )
)
ON_TOPIC = _bits(
    *(
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    )
)
ON_GROUP = _bits(
    AclOperation.READ,
    AclOperation.DELETE,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)


def permitted(asked: bool, operations: int) -> int:
    """Return the operations if the client requested them."""
    return operations if asked else UNKNOWN_OPERATIONS
