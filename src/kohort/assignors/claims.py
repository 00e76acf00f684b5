"""Who is believed to own what: the claims of members, with conflicts settled."""

from __future__ import annotations

from collections.abc import Mapping

from kohort.assignors.shapes import MemberSubscription, TopicInfo
from kohort.ids import MemberId, TopicPartition


def believed(
    members: Mapping[MemberId, MemberSubscription], topics: Mapping[str, TopicInfo]
) -> dict[MemberId, list[TopicPartition]]:
    """What each member owns of the topics that exist and that it is still subscribed to, sorted.

    Where several members claim a partition, the highest generation is believed, and nobody when two share it: after a
    rebalance that a member missed, both can't be right.

    Source: KIP-792; spec 3.10.
    """
    owner: dict[TopicPartition, tuple[int, MemberId | None]] = {}
    for member in sorted(members):
        subscription = members[member]
        subscribed = set(subscription.topics)
        for claim in dict.fromkeys(subscription.owned):
            info = topics.get(claim.topic)
            if info is None or not 0 <= claim.partition < info.partitions or claim.topic not in subscribed:
                continue
            generation, _ = owner.get(claim, (subscription.generation - 1, None))
            if subscription.generation > generation:
                owner[claim] = subscription.generation, member
            elif subscription.generation == generation:
                owner[claim] = generation, None
    held: dict[MemberId, list[TopicPartition]] = {member: [] for member in sorted(members)}
    for claim, (_, winner) in owner.items():
        if winner is not None:
            held[winner].append(claim)
    for claims in held.values():
        claims.sort()
    return held


def beside(member: MemberSubscription, partition: TopicPartition, topics: Mapping[str, TopicInfo]) -> bool:
    """Whether a replica of the partition is in the member's rack; False where either is not known."""
    racks = topics[partition.topic].racks
    return member.rack is not None and partition.partition < len(racks) and member.rack in racks[partition.partition]


def keep_order(
    claims: list[TopicPartition], member: MemberSubscription, topics: Mapping[str, TopicInfo]
) -> list[TopicPartition]:
    """Claims in the order in which a member keeps them: those beside it first."""
    if member.rack is None:
        return claims
    return sorted(claims, key=lambda claim: (not beside(member, claim, topics), claim))
