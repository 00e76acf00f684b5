"""What a client may do, as `authorized_operations` says it: without an authorizer everything that can be done at all.

A bit for each operation of the protocol's ACLs. Source: KIP-430.
"""

from __future__ import annotations

from kohort.ids import AclOperation

UNKNOWN_OPERATIONS = -(2**31)
"""What the field says when it was not asked for."""


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
    """The operations if they were asked for."""
    return operations if asked else UNKNOWN_OPERATIONS
