"""An assignor that sends its own user data in both directions: a model for custom ones, useful with rack-aware brokers.

Each member sends its rack as user data, so this also works among clients whose subscriptions have no rack field. The
leader divides evenly and deals partitions to members in a replica's rack where possible. It then tells each member
which of its partitions have such a replica, so that the member can fetch from nearby.

    Consumer(…, client_rack="rack-1", partition_assignment_strategy=["rack-aware", "range"])

Source: spec 3.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kohort.assignors.claims import has_replica_in_rack
from kohort.assignors.shapes import AssignableTopic, Assignment, MemberSubscription, Stateless
from kohort.assignors.sticky import decode_sticky_user_data, divide, encode_sticky_user_data
from kohort.errors import InvalidInputError
from kohort.ids import MemberId, TopicPartition

_PREFIX = b"rack:"


class RackAware(Stateless):
    """A stateless assignor: evenness first, then replicas in the member's rack as far as a greedy deal finds them.

    Attributes:
        near: of this member's partitions, those that have a replica in its rack.
    """

    name = "rack-aware"
    cooperative = False

    def __init__(self, rack: str) -> None:
        if not rack:
            raise InvalidInputError("the rack-aware assignor needs the member's rack: set client.rack")
        self.rack = rack
        self.near: tuple[TopicPartition, ...] = ()
        self._user_data: dict[MemberId, bytes] = {}

    def assign(
        self, members: Mapping[MemberId, MemberSubscription], topics: Mapping[str, AssignableTopic]
    ) -> Assignment:
        """Assign the partitions to the members, and prepare what `assignment_user_data` sends to each of them."""
        placed = {
            member: replace(subscription, rack=_rack(subscription), owned=())
            for member, subscription in members.items()
        }
        result = divide(placed, topics)
        self._user_data = {
            member: encode_sticky_user_data(
                [partition for partition in partitions if has_replica_in_rack(placed[member], partition, topics)], 0
            )
            for member, partitions in result.items()
        }
        return result

    def assignment_user_data(self) -> Mapping[MemberId, bytes]:
        """Return, for each member, which of its partitions have a replica in its rack, encoded."""
        return self._user_data

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        """Return this member's rack, encoded, which the group's leader needs."""
        return _PREFIX + self.rack.encode()

    def on_assignment(self, partitions: Sequence[TopicPartition], user_data: bytes | None, generation: int) -> None:
        """Learn which partitions have a replica in this member's rack."""
        decoded = decode_sticky_user_data(user_data) if user_data else None
        near = () if decoded is None else decoded[0]
        self.near = tuple(partition for partition in near if partition in partitions)


def _rack(subscription: MemberSubscription) -> str | None:
    user_data = subscription.user_data
    if user_data is None or not user_data.startswith(_PREFIX):
        return subscription.rack
    return user_data[len(_PREFIX) :].decode(errors="replace")
