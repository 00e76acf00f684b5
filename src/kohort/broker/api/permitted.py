"""What a client may do, as `authorized_operations` says it: without an authorizer everything that can be done at all.

A bit for each operation of the protocol's ACLs. Source: KIP-430.
"""

from __future__ import annotations

from kohort.broker.authorization import Operation

UNKNOWN_OPERATIONS = -(2**31)
"""What the field says when it was not asked for."""


def _bits(*operations: Operation) -> int:
    return sum(1 << operation for operation in operations)


ON_CLUSTER = _bits(
    *(
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    )
)
ON_TOPIC = _bits(
    *(
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    )
)
ON_GROUP = _bits(
    Operation.READ, Operation.DELETE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
)


def permitted(asked: bool, operations: int) -> int:
    """The operations if they were asked for."""
    return operations if asked else UNKNOWN_OPERATIONS
