"""An assignor that carries its own data both ways: a model for custom ones, and useful where brokers know racks.

Each member sends its rack up as user data, so this also works among clients whose subscriptions have no rack field. The
leader divides evenly and deals partitions to members beside a replica as far as that goes; then it tells each member
which of its partitions those are, so that the member knows what it may fetch nearby.

    Consumer(…, client_rack="rack-1", partition_assignment_strategy=["rack-aware", "range"])

Source: spec 3.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kohort.assignors.claims import beside
from kohort.assignors.shapes import Assignment, MemberSubscription, Stateless, TopicInfo
from kohort.assignors.sticky import decode_previous, divide, encode_previous
from kohort.errors import InvalidInputError
from kohort.ids import MemberId, TopicPartition

_PREFIX = b"rack:"


class RackAware(Stateless):
    """Even first, then as near as dealing one by one finds; remembers nothing from one rebalance to the next.

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
        self._told: dict[MemberId, bytes] = {}

    def assign(self, members: Mapping[MemberId, MemberSubscription], topics: Mapping[str, TopicInfo]) -> Assignment:
        """Who gets what; what the members will be told about it is kept for `assignment_user_data`."""
        placed = {member: replace(each, rack=_rack(each), owned=()) for member, each in members.items()}
        result = divide(placed, topics)
        self._told = {
            member: encode_previous([each for each in partitions if beside(placed[member], each, topics)], 0)
            for member, partitions in result.items()
        }
        return result

    def assignment_user_data(self) -> Mapping[MemberId, bytes]:
        """Each member's partitions beside it."""
        return self._told

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        """This member's rack."""
        return _PREFIX + self.rack.encode()

    def on_assignment(self, partitions: Sequence[TopicPartition], user_data: bytes | None, generation: int) -> None:
        """Learn which partitions are near."""
        told = decode_previous(user_data) if user_data else None
        self.near = () if told is None else tuple(each for each in told[0] if each in partitions)


def _rack(subscription: MemberSubscription) -> str | None:
    user_data = subscription.user_data
    if user_data is None or not user_data.startswith(_PREFIX):
        return subscription.rack
    return user_data[len(_PREFIX) :].decode(errors="replace")
