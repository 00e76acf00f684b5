"""What the members of a classic group tell each other through the coordinator: subscriptions up, assignments down.

Their bytes are in `kohort.consumer_protocol`. Source: spec 3.2-3.6, 3.10, 3.13; KIP-429; KIP-792.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from kohort import consumer_protocol
from kohort.assignors import Assignor, MemberSubscription, client_assignor
from kohort.assignors import TopicInfo as AssignableTopic
from kohort.client.group.subscription import Subscription
from kohort.client.net.cluster import Cluster
from kohort.client.net.metadata import Metadata
from kohort.client.net.runtime import Awaited
from kohort.client.offset_values import Assignment
from kohort.client.settings import ConsumerConfig
from kohort.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    NEWEST_VERSION,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from kohort.errors import CorruptDataError, ErrorCode, InvalidInputError, KafkaError, error_for
from kohort.ids import TopicPartition
from kohort.wire.groups import JoinGroupResponse

log = logging.getLogger("kohort.client")


class ClassicProtocol:
    """Builds and reads the protocol's bytes, runs the assignor as the leader, and watches for reasons to rebalance."""

    protocol_type = CONSUMER_PROTOCOL_TYPE

    def __init__(
        self, cluster: Cluster, config: ConsumerConfig, owner: object, request_rejoin: Callable[[str], None]
    ) -> None:
        self._owner = owner
        self._cluster = cluster
        self._config = config
        self._request_rejoin = request_rejoin
        self._assignors: dict[str, Assignor] = _assignors(config)
        self.eager = not all(assignor.cooperative for assignor in self._assignors.values())
        self._subscription: Subscription | None = None
        self._joined_with: tuple[str, ...] = ()
        self._watched: frozenset[str] | None = None
        self._assigned_for: dict[str, tuple[int, ...]] = {}
        self._chosen: Assignor | None = None
        self._batching = False

    def subscribe(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._want()

    def topics(self) -> tuple[str, ...]:
        """The topics subscribed to, as far as metadata tells."""
        if self._subscription is None:
            return ()
        return self._subscription.resolve(self._cluster.metadata, self._config.exclude_internal_topics)

    def unsubscribed(self, held: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Those held whose topic is not subscribed to any more."""
        topics = set(self.topics())
        return [part for part in held if part.topic not in topics]

    # Up: this member's subscription.

    async def prepare(self) -> None:
        """A pattern needs to have seen the topics before it can join."""
        if (
            self._subscription is not None
            and self._subscription.pattern is not None
            and not self._cluster.metadata.complete
        ):
            await self._cluster.refresh_metadata(self._config.default_api_timeout_ms)

    def metadata(self, held: Assignment, generation: int) -> list[tuple[str, bytes]]:
        """The join's protocols: assignor name and subscription bytes, by preference."""
        topics = self.topics()
        self._joined_with = topics
        protocols = []
        for name, assignor in self._assignors.items():
            given = self._subscription.user_data if self._subscription is not None else None
            user_data = assignor.subscription_user_data(topics) if given is None else given
            owned = tuple(held.partitions)
            said = consumer_protocol.Subscription(
                NEWEST_VERSION,
                topics,
                owned,
                self._config.client_rack or None,
                generation if owned else -1,
                user_data,
            )
            protocols.append((name, write_subscription(said)))
        return protocols

    # The leader's part.

    async def assign(self, joined: JoinGroupResponse) -> list[tuple[str, bytes]]:
        """Every member's assignment bytes.

        Raises:
            KafkaError: no assignment can be made; says why.
        """
        assignor = self._assignors.get(joined.protocol_name or "")
        if assignor is None:
            text = f"the coordinator chose the assignor {joined.protocol_name!r}, which is not configured here"
            raise error_for(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, text)
        members = {member.member_id: _member_subscription(member) for member in joined.members}
        topics = sorted({topic for member in members.values() for topic in member.topics})
        self._watched = frozenset(topics)
        self._assigned_for = {}  # what is learned now is no change since
        self._want()
        await self._cluster.describe_topics(topics)
        metadata = self._cluster.metadata
        self._assigned_for = {topic: tuple(metadata.partitions_of(topic)) for topic in topics}
        if joined.skip_assignment:
            return []
        assignable = {
            topic: _assignable(metadata, topic, parts) for topic, parts in self._assigned_for.items() if parts
        }
        try:
            result = assignor.assign(members, assignable)
            extra = assignor.assignment_user_data()
        except KafkaError:
            raise
        except Exception as error:  # an assignor of the application's own: its failure is reported, not swallowed
            raise KafkaError(f"the assignor {joined.protocol_name!r} failed: {error!r}") from error
        return [
            (member, write_assignment(NEWEST_VERSION, parts, extra.get(member))) for member, parts in result.items()
        ]

    def followed(self) -> None:
        """Another member leads: watch only what this member's own subscription needs."""
        self._watched = None
        self._assigned_for = {}
        self._want()

    # Down: this member's assignment.

    def decode_assignment(self, content: bytes) -> tuple[list[TopicPartition], bytes | None]:
        """Partitions and user data; no bytes at all mean no partitions.

        Raises:
            CorruptDataError: it is no assignment.
        """
        assignment = read_assignment(bytes(content))
        if assignment is None:
            raise CorruptDataError(f"assignment: {len(content)} bytes that are none")
        return sorted(assignment.partitions), assignment.user_data

    def assigned(
        self, protocol_name: str, partitions: list[TopicPartition], user_data: bytes | None, generation: int
    ) -> None:
        """Tell the chosen assignor what came of it."""
        assignor = self._assignors.get(protocol_name)
        if assignor is not None:
            assignor.on_assignment(partitions, user_data, generation)

    # Metadata.

    def metadata_changed(self) -> None:
        """Ask for a rebalance where topics appeared, grew or went since the last assignment.

        The leader gathers changes first.
        """
        if not self._batching and self._what_changed():
            self._batch()

    def _what_changed(self) -> str:
        """Why the last assignment is out of date, "" while it is not."""
        by_pattern = self._subscription is not None and self._subscription.pattern is not None
        if by_pattern and self.topics() != self._joined_with:
            return "the topics that match the subscription changed"
        return "partitions changed" if self._assigned_for and self._leader_sees_change() else ""

    def _leader_sees_change(self) -> bool:
        metadata = self._cluster.metadata
        return any(
            tuple(metadata.partitions_of(topic)) != parts
            for topic, parts in self._assigned_for.items()
            if topic not in metadata.topics
            or metadata.topics[topic].error in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        )

    def _batch(self) -> None:
        """Rebalance once changes were gathered for a while, unless a rebalance has taken them up meanwhile."""
        wait_ms = self._config.rebalance_batch_ms

        def over(_: Awaited | None = None) -> None:
            self._batching = False
            if reason := self._what_changed():
                self._request_rejoin(reason)

        if wait_ms == 0:
            over()
            return
        self._batching = True
        runtime = self._cluster.runtime
        runtime.at(runtime.now_ms + wait_ms).on_done(over)

    def _want(self) -> None:
        if self._subscription is None:
            return
        if self._subscription.pattern is not None:
            self._cluster.want_topics(self._owner, None)
        else:
            self._cluster.want_topics(self._owner, {*self._subscription.topics, *(self._watched or ())})


def _member_subscription(member: JoinGroupResponse.JoinGroupResponseMember) -> MemberSubscription:
    """What a member asks for.

    Nothing, when its bytes can't be read, so that one such member does not stop the group.
    """
    said = read_subscription(bytes(member.metadata))
    if said is None:
        log.warning("member %s gets no partitions: its subscription can't be read", member.member_id)
        return MemberSubscription(topics=(), instance_id=member.group_instance_id)
    return MemberSubscription(
        topics=said.topics,
        instance_id=member.group_instance_id,
        rack=said.rack,
        owned=said.owned,
        generation=said.generation,
        user_data=said.user_data,
    )


def _assignable(metadata: Metadata, topic: str, numbers: tuple[int, ...]) -> AssignableTopic:
    racks: list[frozenset[str]] = []
    for number in range(len(numbers)):
        part = metadata.partition(TopicPartition(topic, number))
        nodes = [metadata.brokers.get(node) for node in part.replicas] if part is not None else []
        racks.append(frozenset(broker.rack for broker in nodes if broker is not None and broker.rack))
    return AssignableTopic(len(numbers), tuple(racks) if any(racks) else ())


def _assignors(config: ConsumerConfig) -> dict[str, Assignor]:
    """Assignors by name, in order of preference.

    Raises:
        InvalidInputError: an unknown name, none at all, or one that needs a rack where none is configured.
    """
    chosen = [
        client_assignor(strategy, config.client_rack) if isinstance(strategy, str) else strategy
        for strategy in config.partition_assignment_strategy
    ]
    if not chosen:
        raise InvalidInputError("partition.assignment.strategy names no assignor")
    return {assignor.name: assignor for assignor in chosen}
