"""Membership in a group: joining, holding an assignment, leaving; `join_group` chooses the protocol."""

from __future__ import annotations

from collections.abc import Callable

from kohort.client.group.membership import Membership
from kohort.client.net.cluster import Cluster
from kohort.client.settings import ConsumerConfig


def join_group(
    cluster: Cluster,
    config: ConsumerConfig,
    *,
    changed: Callable[[], None] = lambda: None,
    requires_polling: bool = True,
) -> Membership:
    """Make a group member of the configured `group_protocol`: it joins once `subscribe` is called.

    Args:
        cluster: The connections to the coordinator.
        config: `group_id` must be set.
        changed: Called after each change of assignment or revocation, and when the lease ends or is valid again.
        requires_polling: Whether the member leaves when the application does not poll for `max_poll_interval_ms`.
    """
    return _membership(config.group_protocol)(cluster, config, changed=changed, requires_polling=requires_polling)


def _membership(protocol: str) -> type[Membership]:
    """Return the membership class of a group protocol; import only that protocol's module."""
    if protocol == "consumer":
        from kohort.client.group.kip848 import ConsumerMembership

        return ConsumerMembership
    if protocol == "push":
        from kohort.client.group.push import PushMembership

        return PushMembership
    from kohort.client.group.classic import ClassicMembership

    return ClassicMembership
