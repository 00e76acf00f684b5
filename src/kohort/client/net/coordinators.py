"""Who coordinates groups and transactional ids, and who is asked for it.

| bootstrapped on | groups are asked for at | transactional ids, topics, data |
|---|---|---|
| brokers | any broker | brokers |
| kohort's coordinators over a Kafka cluster | coordinators | Kafka's brokers |

A broker of that cluster is never asked for a group: it would name Kafka's own coordinator.

Which it is, the first connection tells (`Links.apart`): it is known before anything but a bootstrap address is known.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar

from kohort.client.net.links import Address, Links
from kohort.client.net.metadata import Broker, Metadata
from kohort.client.net.runtime import Runtime, Task
from kohort.client.net.targets import ANY, ANY_BROKER, ANY_COORDINATOR, GROUP, Coordinator, Target
from kohort.client.settings import ConnectionConfig
from kohort.errors import ErrorCode, InvalidInputError, KafkaError, TimedOutError, error_for
from kohort.wire.cluster import MetadataRequest
from kohort.wire.coordinators import DescribeCoordinatorsRequest
from kohort.wire.groups import FindCoordinatorRequest
from kohort.wire.message import Message, Request

R = TypeVar("R", bound=Message)

log = logging.getLogger("kohort.client")
JOURNAL_TOPIC = "__kohort_groups"
"""Where coordinators of kohort's over this cluster keep groups, unless they are set otherwise."""

LIST_AGE_MS = 10_000
"""A look-up asks for the coordinators anew when they were named longer ago: so long one that is new is not known."""

ASKED_MS = 3_000
"""Whoever says nothing for so long, where another one could be asked as well, is left for that: it may stand still."""

PATIENCE_MAX_MS = 30_000
"""As long as Kafka's own clients wait for an answer unless they are told otherwise: what every broker has in memory
takes none longer. A longer `request_timeout_ms` is meant for requests that work long."""

REACHED_MS = 1_500
"""A coordinator of kohort's to which there is no connection within so long is looked up again: others may have its
groups by now. More than the backoff of a connection that was refused."""


class Patience:
    """How long a broker is waited for that is asked for what others could say as well.

    Longer after each that was silent, for all may be slow; not after a refusal, which tells nothing of that. Ask within
    its `with`.
    """

    def __init__(self) -> None:
        self.ms = ASKED_MS

    def __enter__(self) -> int:
        return self.ms

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None and issubclass(kind, TimedOutError):
            self.ms = min(2 * self.ms, PATIENCE_MAX_MS)


def is_apart(group: str, cluster_id: str | None) -> bool:
    """Whether a client of this process has a group of this cluster at coordinators that are apart from its brokers."""
    return any(coordinators.has_apart(group, cluster_id) for coordinators in list(_OF_THIS_PROCESS))


def check_transactional(cluster: Asking) -> None:
    """Refuse offsets within transactions where the group's coordinator is apart from the transaction's.

    Raises:
        KafkaError: UNSUPPORTED_VERSION.
    """
    if cluster.links.apart:
        raise error_for(
            ErrorCode.UNSUPPORTED_VERSION,
            "kohort's coordinators over a Kafka cluster take no offsets within transactions: commit them with the "
            "consumer when the transaction is over (records may then be read again, never skipped), or keep the "
            "group at Kafka's own coordinator",
        )


async def check_named(cluster: Asking, group: str, *, warned: set[str]) -> None:
    """Refuse a group that is at coordinators of kohort's: the offsets would go to Kafka's own, where nobody looks.

    Kafka takes the offsets of a group without members from anyone who names it; it asks a member for its place.

    Args:
        cluster: Where the offsets would go.
        group: A bare name.
        warned: Groups that need no warning any more.
    """
    why = f"group {group!r} is named without its member, and the offsets would go to Kafka's own coordinator"
    todo = "give consumer.group_metadata(), or commit with the consumer when the transaction is over"
    if is_apart(group, cluster.metadata.cluster_id):
        raise InvalidInputError(f"{why}, but the group is at kohort's coordinators: {todo}")
    if group in warned:
        return
    warned.add(group)
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=JOURNAL_TOPIC)])
    request.allow_auto_topic_creation = False
    with contextlib.suppress(KafkaError):
        answer = await cluster.send(request, ANY)
        if any(topic.partitions for topic in answer.topics):
            log.warning("%s; if it is at the coordinators over this cluster, %s", why, todo)


class Asking(Protocol):
    """What is needed of the cluster."""

    config: ConnectionConfig
    runtime: Runtime
    links: Links
    metadata: Metadata

    async def send(self, message: Request[R], to: Target, *, timeout_ms: float | None = None) -> R: ...

    def unreachable(self) -> str: ...


class Coordinators:
    """What is known of them.

    Attributes:
        own: kohort's coordinators by their ids, where they are apart from the brokers.
    """

    def __init__(self, cluster: Asking) -> None:
        self._cluster = cluster
        self.own: Mapping[int, Broker] = {}
        self._listed_ms = float("-inf")
        self._found: dict[Coordinator, int] = {}
        self._nodes: dict[int, Broker] = {}
        self._lookups: dict[Coordinator, Task[int]] = {}
        _OF_THIS_PROCESS.add(self)

    def has_apart(self, group: str, cluster_id: str | None) -> bool:
        """Whether a group of this cluster was found at a coordinator that is apart from its brokers."""
        known = self._cluster.links.apart and Coordinator(group, GROUP) in self._found
        return known and cluster_id is not None and self._cluster.metadata.cluster_id == cluster_id

    def node(self, node_id: int) -> Broker | None:
        """Where a node is that coordinates something."""
        return self.own.get(node_id) or self._nodes.get(node_id)

    async def find(self, to: Coordinator, timeout_ms: float) -> int:
        """The node id of a coordinator; look-ups of the same one are shared.

        Raises:
            KafkaError: what FindCoordinator said; retriable while the coordinator is not available.
        """
        known = self._found.get(to)
        if known is not None:
            return known
        runtime = self._cluster.runtime
        task = self._lookups.get(to)
        if task is None or task.done:
            task = self._lookups[to] = runtime.spawn(self._look_up(to), f"coordinator of {to.key}")
        if await runtime.first(task, timeout_ms=timeout_ms) is None:
            reason = self._cluster.unreachable() or "it was not named in time"
            raise TimedOutError(f"no coordinator of {to.key!r} within {timeout_ms:.0f} ms: {reason}")
        return task.result()

    def forget(self, to: Coordinator) -> None:
        """Look it up again the next time; nothing is kept of one that is never asked for again."""
        self._found.pop(to, None)
        task = self._lookups.get(to)
        if task is not None and task.done:
            del self._lookups[to]

    def forget_all(self) -> None:
        """Look all of them up again: their addresses may be those of another cluster by now."""
        self._found.clear()
        self._nodes.clear()

    async def list(self) -> Mapping[int, Broker]:
        """Ask one of kohort's coordinators which there are.

        Raises:
            KafkaError: none could be asked.
        """
        answer = await self._cluster.send(DescribeCoordinatorsRequest(), ANY_COORDINATOR, timeout_ms=ASKED_MS)
        if answer.error_code:
            raise error_for(ErrorCode.of(answer.error_code), "a coordinator could not say which there are")
        named = {
            each.node_id: Broker(each.node_id, Address(each.host, each.port), each.rack) for each in answer.coordinators
        }
        if named:
            self.own = named
            self._reach_plainly(named.values())
            self._listed_ms = self._cluster.runtime.now_ms
        return self.own

    def close(self) -> None:
        """Look nothing up any more."""
        for task in self._lookups.values():
            task.cancel()

    async def _look_up(self, to: Coordinator) -> int:
        send, links = self._cluster.send, self._cluster.links
        request = FindCoordinatorRequest(key=to.key, key_type=to.kind, coordinator_keys=[to.key])
        if links.apart and to.kind == GROUP:
            answer = await send(request, ANY_COORDINATOR, timeout_ms=ASKED_MS)
        else:
            to_ask = ANY if to.kind == GROUP else ANY_BROKER
            answer = await send(request, to_ask, timeout_ms=min(ASKED_MS, self._cluster.config.request_timeout_ms))
            if links.apart and to.kind == GROUP:  # the first connection has just told it
                return await self._look_up(to)
        found = answer.coordinators[0] if answer.coordinators else answer
        if found.error_code:
            text = found.error_message or f"no coordinator of {to.key!r}"
            raise error_for(ErrorCode.of(found.error_code), text)
        self._found[to] = found.node_id
        node = self._nodes[found.node_id] = Broker(found.node_id, Address(found.host, found.port))
        if to.kind == GROUP:
            self._reach_plainly([node])
        if node.id in self.own:  # it may have moved since they were listed
            self.own = {**self.own, node.id: node}
        if links.apart and self._cluster.runtime.now_ms - self._listed_ms > LIST_AGE_MS:
            self._cluster.runtime.spawn(self._list_quietly(), "list of coordinators").will_hear()
        return found.node_id

    def _reach_plainly(self, nodes: Iterable[Broker]) -> None:
        """No login of Kafka's goes to coordinators, where the configuration says so."""
        if self._cluster.config.coordinators_security_protocol:
            self._cluster.links.plain.update(node.address for node in nodes)

    async def _list_quietly(self) -> None:
        """For a day on which neither bootstrap address answers: whether it succeeds now does not matter."""
        try:
            await self.list()
        except KafkaError:
            return


_OF_THIS_PROCESS: weakref.WeakSet[Coordinators] = weakref.WeakSet()
