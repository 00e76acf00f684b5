"""Even and sticky division when every member is subscribed to the same topics.

With P partitions and M members each gets P // M, and P % M of them one more. A member keeps what it has up to its
share, and the larger shares go first to those that have more than the smaller one: so no division that is as even moves
less. What is left is dealt to the members that have least, beside a replica where racks allow it.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from kohort.assignors.claims import Ownership, keep_order
from kohort.assignors.shapes import Assignment, MemberSubscription, TopicInfo
from kohort.ids import MemberId, TopicPartition


def divide_evenly(
    members: Mapping[MemberId, MemberSubscription], topics: Mapping[str, TopicInfo], ownership: Ownership
) -> Assignment:
    """Divide all partitions.

    Args:
        members: all subscribed to all of `topics`.
        topics: what is divided.
        ownership: what each member owns of it; afterwards `owners` has only what members keep.
    """
    share, larger = divmod(sum(info.partitions for info in topics.values()), len(members))
    result: Assignment = {}
    larger_left = larger
    for member in sorted(members):
        claims = ownership.held[member]
        size = share
        if len(claims) > share and larger_left:
            larger_left -= 1
            size += 1
        if len(claims) > size:
            claims = keep_order(claims, members[member], topics)
            ownership.release(claims[size:])
        result[member] = claims[:size]
    left = [partition for topic in sorted(topics) for partition in ownership.unowned(topic)]
    if left and any(subscription.rack for subscription in members.values()):
        left = _deal_by_rack(left, members, topics, result, (share, larger_left))
    _deal(left, result)
    return result


def _deal(left: list[TopicPartition], result: Assignment) -> None:
    """Each partition to the member that has least."""
    heap = [(len(claims), member) for member, claims in result.items()]
    heapq.heapify(heap)
    for partition in left:
        size, member = heap[0]
        result[member].append(partition)
        heapq.heapreplace(heap, (size + 1, member))


def _deal_by_rack(
    left: list[TopicPartition],
    members: Mapping[MemberId, MemberSubscription],
    topics: Mapping[str, TopicInfo],
    result: Assignment,
    shares: tuple[int, int],
) -> list[TopicPartition]:
    """Each partition to the member beside it that has least, within the shares; returns those without such a member."""
    share, larger_left = shares
    heaps: dict[str, list[tuple[int, MemberId]]] = {}
    for member, claims in result.items():
        rack = members[member].rack
        if rack is not None:
            heaps.setdefault(rack, []).append((len(claims), member))
    for heap in heaps.values():
        heapq.heapify(heap)
    rest = []
    for partition in left:
        racks = topics[partition.topic].racks
        near = racks[partition.partition] if partition.partition < len(racks) else ()
        choices = [(heaps[rack][0], rack) for rack in sorted(near) if rack in heaps]
        if not choices:
            rest.append(partition)
            continue
        (size, member), rack = min(choices)
        if size > share or (size == share and not larger_left):
            rest.append(partition)
            continue
        larger_left -= size == share
        result[member].append(partition)
        heapq.heapreplace(heaps[rack], (size + 1, member))
    return rest
