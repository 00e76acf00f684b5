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
    poll_bound: bool = True,
) -> Membership:
    """Make a member of the protocol that `group_protocol` names, idle until it subscribes."""
    return _membership(config.group_protocol)(cluster, config, changed=changed, poll_bound=poll_bound)


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
