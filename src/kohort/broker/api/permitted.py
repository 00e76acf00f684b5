"""What a client may do, as `authorized_operations` says it: without an authorizer everything that can be done at all.

A bit for each operation of the protocol's ACLs. Source: KIP-430.
"""

from __future__ import annotations

UNKNOWN_OPERATIONS = -(2**31)
"""What the field says when it was not asked for."""
READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = range(
    3, 13
)


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


ON_CLUSTER = _bits(CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE)
ON_TOPIC = _bits(READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS)
ON_GROUP = _bits(READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS)


def permitted(asked: bool, operations: int) -> int:
    """The operations if they were asked for."""
    return operations if asked else UNKNOWN_OPERATIONS
