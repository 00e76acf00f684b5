"""The current owner of each partition, from the claims of members, with conflicts settled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kohort.assignors.shapes import AssignableTopic, MemberSubscription
from kohort.ids import MemberId, TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionOwners:
    """The owned partitions, by member and by partition.

    Attributes:
        held: the partitions of each member, in the order of its claims. Every member is a key.
        owners: per topic, the owner of each partition by its number, or None.
    """

    held: dict[MemberId, Sequence[TopicPartition]]
    owners: dict[str, list[MemberId | None]]

    def remove_owners(self, partitions: Sequence[TopicPartition]) -> None:
        """Remove the owners of partitions; the caller updates `held`."""
        for topic, number in partitions:
            self.owners[topic][number] = None

    def unowned(self, topic: str) -> list[TopicPartition]:
        """Return the partitions of one topic that have no owner, sorted."""
        row = self.owners[topic]
        if None not in row:
            return []
        return [TopicPartition(topic, number) for number, owner in enumerate(row) if owner is None]


def settle_claims(
    members: Mapping[MemberId, MemberSubscription], topics: Mapping[str, AssignableTopic]
) -> PartitionOwners:
    """Decide who owns each partition of the topics that exist.

    A claim counts if the member is still subscribed to the topic. If several members claim a partition, the highest
    generation wins. If two share it, nobody owns the partition: after a rebalance that a member missed, both can't be
    right.

    The cost is one step for each claim, without a new object: groups have 160,000 claims and more. Members with equal
    subscriptions share one table of rows.

    Source: KIP-792; spec 3.10.
    """
    owners: dict[str, list[MemberId | None]] = {topic: [None] * info.partitions for topic, info in topics.items()}
    tables: dict[tuple[str, ...], dict[str, list[MemberId | None]]] = {}
    held: dict[MemberId, Sequence[TopicPartition]] = {}
    cancelled: dict[TopicPartition, int] = {}
    disputed = False
    for member in sorted(members):
        subscription = members[member]
        rows = tables.get(subscription.topics)
        if rows is None:
            rows = {topic: owners[topic] for topic in subscription.topics if topic in owners}
            tables[subscription.topics] = rows
        if not cancelled and _claim_all(member, subscription.owned, rows):
            held[member] = subscription.owned
            continue
        disputed = True
        claims: list[TopicPartition] = []
        held[member] = claims
        for claim in subscription.owned:
            row = rows.get(claim.topic, ())
            if 0 <= claim.partition < len(row):
                claims.append(claim)
                rows[claim.topic][claim.partition] = _owner_after_claim(
                    claim, member, row[claim.partition], members, cancelled
                )
    if disputed:
        for member, claimed in held.items():
            held[member] = [claim for claim in dict.fromkeys(claimed) if owners[claim.topic][claim.partition] == member]
    return PartitionOwners(held, owners)


def _claim_all(member: MemberId, claims: Sequence[TopicPartition], rows: Mapping[str, list[MemberId | None]]) -> bool:
    """Record a member as the owner of all partitions that it claims.

    Return False at the first claim that is taken or names no existing partition.
    """
    try:
        for claim in claims:  # by index: unpacking a subclass of tuple makes an iterator each time
            row, number = rows[claim[0]], claim[1]
            if number < 0 or row[number] is not None:
                return False
            row[number] = member
    except LookupError:
        return False
    return True


def _owner_after_claim(
    claim: TopicPartition,
    member: MemberId,
    owner: MemberId | None,
    members: Mapping[MemberId, MemberSubscription],
    cancelled: dict[TopicPartition, int],
) -> MemberId | None:
    """Return a partition's owner after one more member claims it: the higher generation wins, equal ones cancel out.

    `cancelled` has the generation of claims that cancelled each other.
    """
    generation = members[member].generation
    if owner is None:
        return member if generation > cancelled.get(claim, generation - 1) else None
    if owner == member or members[owner].generation > generation:
        return owner
    if members[owner].generation < generation:
        return member
    cancelled[claim] = generation
    return None


def settled_claims(
    members: Mapping[MemberId, MemberSubscription], topics: Mapping[str, AssignableTopic]
) -> dict[MemberId, list[TopicPartition]]:
    """Return the partitions that each member owns, sorted, after conflicting claims are settled (`settle_claims`)."""
    return {member: sorted(claims) for member, claims in settle_claims(members, topics).held.items()}


def has_replica_in_rack(
    member: MemberSubscription, partition: TopicPartition, topics: Mapping[str, AssignableTopic]
) -> bool:
    """Return whether the member's rack has a replica of the partition; False where either is unknown."""
    racks = topics[partition.topic].racks
    return member.rack is not None and partition.partition < len(racks) and member.rack in racks[partition.partition]


def claims_in_keeping_order(
    claims: Sequence[TopicPartition], member: MemberSubscription, topics: Mapping[str, AssignableTopic]
) -> list[TopicPartition]:
    """Sort a member's claims so that those to keep come first: with a replica in its rack, then by partition."""
    if member.rack is None:
        return sorted(claims)
    return sorted(claims, key=lambda claim: (not has_replica_in_rack(member, claim, topics), claim))
