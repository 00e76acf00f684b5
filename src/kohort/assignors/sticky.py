"""The sticky assignors: as even as subscriptions allow, then with as few moved partitions as possible.

`Sticky` and `CooperativeSticky` serve the leader of a classic group, `Uniform` the coordinator of a KIP-848 group. All
three divide alike. They learn the previous owners from different places, and the cooperative one withholds partitions
that their owners have to revoke first.

Evenness comes before stickiness, stickiness before racks. A partition stays with its member even without a replica in
the member's rack; only unowned partitions are dealt by rack.

Source: KIP-54, KIP-341, KIP-429, KIP-792, KIP-848.
"""

from __future__ import annotations

import heapq
import struct
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby, repeat
from operator import itemgetter

from kohort.assignors.claims import PartitionOwners, claims_in_keeping_order, has_replica_in_rack, settle_claims
from kohort.assignors.shapes import AssignableTopic, Assignment, MemberSubscription, Stateless, subscribers
from kohort.ids import MemberId, TopicPartition, by_topic, topic_partition

# -- Even and sticky division when members are subscribed to different topics
#
# All partitions of a topic may go to the same members. So it is enough to find how many partitions of topic t member m
# gets: a flow with convex costs. Loads count first: the sum of their squares is minimal, which makes every pair of
# members as even as subscriptions allow. The number of kept partitions counts second.
#
# Step 1 keeps everything. Step 2 gives each unowned partition to the subscriber with the lowest load. Step 3 moves
# single partitions from members with more to members with less. Step 4 moves along chains of members until no chain
# helps: then the loads are optimal. Step 5 cancels cycles, within a budget, to keep more at the same loads.
#
# Small groups get the exact optimum. The budget bounds the time of large ones, whose loads are optimal all the same.
#
# Source: Harvey, Ladner, Lovász, Tamir, "Semi-matchings for bipartite graphs and load balancing" (2003).

BUDGET = 400_000
"""The edge relaxations that may be spent on keeping more; about a quarter of a second."""

Counts = list[dict[int, int]]
"""Per topic: the number of partitions of each member (by number); only positive ones."""


class StickyDivision:
    """One computation of the sticky assignors, in numbers instead of names: how many partitions each member gets."""

    def __init__(self, sizes: Sequence[int], takers: Sequence[Sequence[int]], own: Counts, members: int) -> None:
        """Begin a division in which every member keeps what it owns.

        Args:
            sizes: partitions of each topic.
            takers: members subscribed to each topic, rising; none of them empty.
            own: how many each member owns, only of topics it is subscribed to.
            members: how many there are.
        """
        self.takers = takers
        self.own = own
        self.counts: Counts = [dict(row) for row in own]
        self.load = [0] * members
        self.topics_of: list[list[int]] = [[] for _ in range(members)]
        for topic, subscribed in enumerate(takers):
            for member in subscribed:
                self.topics_of[member].append(topic)
            for member, count in own[topic].items():
                self.load[member] += count
        self.unowned = [size - sum(row.values()) for size, row in zip(sizes, own, strict=True)]

    def solve(self) -> Counts:
        """Run all steps of the division; return how many partitions of each topic each member gets."""
        self.give_unowned()
        self.move_directly()
        self.move_along_chains()
        self.exchange_to_keep_more()
        return self.counts

    def move_partition(self, topic: int, giver: int, taker: int) -> None:
        """Move one partition of a topic from `giver` to `taker`."""
        row = self.counts[topic]
        row[giver] -= 1
        if not row[giver]:
            del row[giver]
        row[taker] = row.get(taker, 0) + 1
        self.load[giver] -= 1
        self.load[taker] += 1

    def give_unowned(self) -> None:
        """Give unowned partitions to the members with the lowest load, topics with few subscribers first."""
        for topic in sorted(range(len(self.takers)), key=lambda each: (len(self.takers[each]), each)):
            if not self.unowned[topic]:
                continue
            heap = [(self.load[member], member) for member in self.takers[topic]]
            heapq.heapify(heap)
            row = self.counts[topic]
            for _ in range(self.unowned[topic]):
                load, member = heap[0]
                row[member] = row.get(member, 0) + 1
                self.load[member] += 1
                heapq.heapreplace(heap, (load + 1, member))

    def lost_partitions_delta(self, topic: int, giver: int, taker: int) -> int:
        """Return how many more partitions leave their owner if one moves from `giver` to `taker`: 1, 0 or -1."""
        own, row = self.own[topic], self.counts[topic]
        lost = row[giver] <= own.get(giver, 0)
        won = row.get(taker, 0) < own.get(taker, 0)
        return lost - won

    def move_directly(self) -> None:
        """Move partitions to subscribers of the same topic with at least two fewer, from the fullest members first."""
        load = self.load
        if max(load) - 2 < min(load):
            return
        least = [[(load[member], member) for member in subscribed] for subscribed in self.takers]
        for heap in least:
            heapq.heapify(heap)
        held = self._topics_by_member()
        givers = [(-count, member) for member, count in enumerate(load)]
        heapq.heapify(givers)
        lowest = min(load)  # nobody falls below it: a taker ends with no more than its giver
        while givers and -givers[0][0] - 2 >= lowest:
            count, giver = heapq.heappop(givers)
            if -count != load[giver]:
                continue
            floor = -givers[0][0] if givers else 0
            if self._give(giver, floor, held, (least, givers)):
                heapq.heappush(givers, (-load[giver], giver))
            for topic in self.topics_of[giver]:
                heapq.heappush(least[topic], (load[giver], giver))

    def _give(
        self,
        giver: int,
        floor: int,
        held: Sequence[set[int]],
        heaps: tuple[list[list[tuple[int, int]]], list[tuple[int, int]]],
    ) -> bool:
        """Move partitions away from one member until it has fewer than `floor`; return False when no more can be moved.

        Loads of takers only rise meanwhile, so an outdated choice of a topic goes back into the heap with its new load.
        """
        least, givers = heaps
        load = self.load
        choices = [choice for topic in held[giver] if (choice := self._choice(topic, giver, least[topic]))]
        heapq.heapify(choices)
        while choices:
            low, _, topic, taker = choices[0]
            if low > load[giver] - 2:
                return False
            if load[giver] < floor:
                return True
            now = self._choice(topic, giver, least[topic])
            if now is None:
                heapq.heappop(choices)
                continue
            if now != choices[0]:
                heapq.heapreplace(choices, now)
                continue
            self.move_partition(topic, giver, taker)
            held[taker].add(topic)
            heapq.heappush(givers, (-load[taker], taker))
            if giver not in self.counts[topic]:
                held[giver].discard(topic)
                heapq.heappop(choices)
        return False

    def _choice(self, topic: int, giver: int, heap: list[tuple[int, int]]) -> tuple[int, int, int, int] | None:
        """Return the best taker for a partition of this topic: the subscriber with the lowest load, except the giver.

        The result is (load, cost, topic, taker); None when there is no other subscriber.
        """
        load = self.load
        while heap and (heap[0][0] != load[heap[0][1]] or heap[0][1] == giver):
            _, member = heapq.heappop(heap)
            if member != giver:
                heapq.heappush(heap, (load[member], member))
        if not heap:
            return None
        low, taker = heap[0]
        return low, self.lost_partitions_delta(topic, giver, taker), topic, taker

    def _topics_by_member(self) -> list[set[int]]:
        """Return the topics of which each member has partitions."""
        held: list[set[int]] = [set() for _ in self.load]
        for topic, row in enumerate(self.counts):
            for member in row:
                held[member].add(topic)
        return held

    def move_along_chains(self) -> None:
        """Even out members that share no topic, by moving one partition along a chain of members between them.

        Stop when no chain leads from a member to another with at least two fewer partitions. All that a failed search
        has visited is left out of later ones.
        """
        if max(self.load) - 2 < min(self.load):
            return
        held = self._topics_by_member()
        closed_members, closed_topics = bytearray(len(self.load)), bytearray(len(self.takers))
        heap = [(-count, member) for member, count in enumerate(self.load)]
        heapq.heapify(heap)
        lowest = min(self.load)
        while heap and -heap[0][0] - 2 >= lowest:
            count, start = heapq.heappop(heap)
            if closed_members[start] or -count != self.load[start]:
                continue
            reached: dict[int, tuple[int, int]] = {start: (-1, -1)}
            end = self._search(start, held, reached, (closed_members, closed_topics))
            if end is None:
                continue
            taker = end
            while taker != start:
                giver, topic = reached[taker]
                self.move_partition(topic, giver, taker)
                held[taker].add(topic)
                if giver not in self.counts[topic]:
                    held[giver].discard(topic)
                taker = giver
            heapq.heappush(heap, (-self.load[start], start))
            heapq.heappush(heap, (-self.load[end], end))

    def _search(
        self,
        start: int,
        held: Sequence[set[int]],
        reached: dict[int, tuple[int, int]],
        closed: tuple[bytearray, bytearray],
    ) -> int | None:
        """Search breadth first for a member with at least two partitions fewer than `start`; None: there is none.

        Then all members and topics that were reached are closed to later searches.
        """
        closed_members, closed_topics = closed
        limit = self.load[start] - 2
        queue = deque((start,))
        topics: set[int] = set()
        while queue:
            giver = queue.popleft()
            for topic in sorted(held[giver]):
                if topic in topics or closed_topics[topic]:
                    continue
                topics.add(topic)
                for taker in self.takers[topic]:
                    if taker in reached or closed_members[taker]:
                        continue
                    reached[taker] = (giver, topic)
                    if self.load[taker] <= limit:
                        return taker
                    queue.append(taker)
        for member in reached:
            closed_members[member] = 1
        for topic in topics:
            closed_topics[topic] = 1
        return None

    def exchange_to_keep_more(self) -> None:
        """Exchange partitions at equal loads while members can keep more of their own, and the budget lasts.

        Each exchange cancels a negative cycle in the graph of `_edges`.
        """
        budget = BUDGET
        while budget > 0 and self._anything_lost():
            edges = self._edges()
            budget -= len(edges)
            cycle, spent = _negative_cycle(
                edges, len(self.load) + len(self.takers) + max(self.load, default=0) + 2, budget
            )
            budget -= spent
            if cycle is None:
                return
            self._apply(cycle)

    def _anything_lost(self) -> bool:
        """Return whether a member has fewer partitions of a topic than it owned; if not, nothing more can be kept."""
        return any(
            row.get(member, 0) < owned
            for row, own in zip(self.counts, self.own, strict=True)
            for member, owned in own.items()
        )

    def _edges(self) -> list[tuple[int, int, int]]:
        """Return edges (from, to, cost).

        An edge from member to topic releases a partition, one from topic to member adds one, and levels connect equal
        loads. Nodes: members, then topics, then load levels. Through the node of a level, a member may take one
        partition more in place of a member with one more than it has.
        """
        members, topics = len(self.load), len(self.takers)
        edges = []
        for topic, row in enumerate(self.counts):
            own = self.own[topic]
            for member in self.takers[topic]:
                count, owned = row.get(member, 0), own.get(member, 0)
                if count:
                    edges.append((member, members + topic, int(count <= owned)))
                edges.append((members + topic, member, -int(count < owned)))
        for member, load in enumerate(self.load):
            level = members + topics
            edges.append((member, level + load, 0))
            if load:
                edges.append((level + load - 1, member, 0))
        return edges

    def _apply(self, cycle: list[int]) -> None:
        members, topics = len(self.load), len(self.takers)
        moves = []
        for index, node in enumerate(cycle):
            if members <= node < members + topics:
                moves.append((node - members, cycle[index - 1], cycle[(index + 1) % len(cycle)]))
        for topic, giver, taker in moves:
            self.move_partition(topic, giver, taker)


def _negative_cycle(edges: Sequence[tuple[int, int, int]], nodes: int, budget: int) -> tuple[list[int] | None, int]:
    """Return a cycle of negative cost (Bellman-Ford; None if none was found) and the relaxations that it took."""
    distance, parent = [0] * nodes, [-1] * nodes
    spent, changed = 0, -1
    for _ in range(nodes):
        changed = -1
        for source, target, cost in edges:
            if distance[source] + cost < distance[target]:
                distance[target] = distance[source] + cost
                parent[target] = source
                changed = target
        spent += len(edges)
        if changed < 0 or spent > budget:
            return None, spent
    node = changed
    for _ in range(nodes):
        node = parent[node]
    cycle, at = [node], parent[node]
    while at != node:
        cycle.append(at)
        at = parent[at]
    cycle.reverse()
    return cycle, spent


def number_names(names: Mapping[str, object]) -> dict[str, int]:
    """Number names in alphabetical order, from 0."""
    return {name: number for number, name in enumerate(sorted(names))}


# -- Even and sticky division among members with equal subscriptions
#
# With P partitions and M members each gets P // M. P % M of them get one more. A member keeps its partitions up to its
# share. The larger shares go first to members that own more than the smaller one. So no equally even division moves
# less. The remaining partitions are dealt to the members that have least, by rack where that is possible.


def divide_evenly(
    members: Mapping[MemberId, MemberSubscription], topics: Mapping[str, AssignableTopic], ownership: PartitionOwners
) -> Assignment:
    """Assign all partitions to members that are all subscribed to the same topics.

    Args:
        members: all subscribed to all of `topics`.
        topics: the topics to divide.
        ownership: the current owners; afterwards `owners` has only what members keep.
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
            claims = claims_in_keeping_order(claims, members[member], topics)
            ownership.remove_owners(claims[size:])
        result[member] = list(claims[:size])
    left = [partition for topic in sorted(topics) for partition in ownership.unowned(topic)]
    if left and any(subscription.rack for subscription in members.values()):
        left = _deal_by_rack(left, members, topics, result, (share, larger_left))
    _deal(left, result)
    return result


def _deal(left: list[TopicPartition], result: Assignment) -> None:
    """Assign each partition to the member that has the fewest at that time."""
    heap = [(len(claims), member) for member, claims in result.items()]
    heapq.heapify(heap)
    for partition in left:
        size, member = heap[0]
        result[member].append(partition)
        heapq.heapreplace(heap, (size + 1, member))


def _deal_by_rack(
    left: list[TopicPartition],
    members: Mapping[MemberId, MemberSubscription],
    topics: Mapping[str, AssignableTopic],
    result: Assignment,
    shares: tuple[int, int],
) -> list[TopicPartition]:
    """Assign partitions to members with a replica in their rack, up to each member's share.

    Return the partitions without such a member.
    """
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


def divide(members: Mapping[MemberId, MemberSubscription], topics: Mapping[str, AssignableTopic]) -> Assignment:
    """Compute the assignment that all three sticky assignors share, before cooperative members withhold partitions."""
    sets: dict[tuple[str, ...], frozenset[str]] = {}
    for subscription in members.values():
        if subscription.topics not in sets:
            sets[subscription.topics] = frozenset(topics.keys() & subscription.topics)
    known = {topic: topics[topic] for topic in sorted(frozenset[str]().union(*sets.values()))}
    ownership = settle_claims(members, known)
    result: Assignment = {member: [] for member in sorted(members)}
    different = {names for names in sets.values() if names}
    if len(different) == 1:
        active = {member: subscription for member, subscription in members.items() if sets[subscription.topics]}
        result |= divide_evenly(active, known, ownership)
    elif different:
        _divide_unevenly(members, known, subscribers(members, known), ownership, result)
    for partitions in result.values():
        partitions.sort()
    return result


def _divide_unevenly(
    members: Mapping[MemberId, MemberSubscription],
    topics: Mapping[str, AssignableTopic],
    takers: Mapping[str, list[MemberId]],
    ownership: PartitionOwners,
    result: Assignment,
) -> None:
    member_numbers, topic_numbers = number_names(members), number_names(topics)
    names = list(member_numbers)
    own = [
        {member_numbers[owner]: count for owner, count in Counter(ownership.owners[topic]).items() if owner is not None}
        for topic in topic_numbers
    ]
    division = StickyDivision(
        [topics[topic].partitions for topic in topic_numbers],
        [sorted(member_numbers[member] for member in takers[topic]) for topic in topic_numbers],
        own,
        len(names),
    )
    counts = division.solve()
    losers = {
        names[member]
        for row, owned in zip(counts, own, strict=True)
        for member, count in owned.items()
        if row.get(member, 0) < count
    }
    for member, claims in ownership.held.items():
        if member not in losers:
            result[member] += claims
            continue
        for topic, group in groupby(sorted(claims), itemgetter(0)):
            share = counts[topic_numbers[topic]].get(member_numbers[member], 0)
            partitions = claims_in_keeping_order(list(group), members[member], topics)
            result[member] += partitions[:share]
            ownership.remove_owners(partitions[share:])
    for topic, number in topic_numbers.items():
        left = ownership.unowned(topic)
        if left:
            owned = own[number]
            need = {
                names[member]: count - owned.get(member, 0)
                for member, count in sorted(counts[number].items())
                if count > owned.get(member, 0)
            }
            _hand_out(left, need, (members, topics), result)


def _hand_out(
    left: list[TopicPartition],
    need: dict[MemberId, int],
    group: tuple[Mapping[MemberId, MemberSubscription], Mapping[str, AssignableTopic]],
    result: Assignment,
) -> None:
    """Assign one topic's free partitions to the members that still need some, by rack first."""
    members, topics = group
    if topics[left[0].topic].racks:
        rest = []
        for partition in left:
            near = next((m for m in need if need[m] and has_replica_in_rack(members[m], partition, topics)), None)
            if near is None:
                rest.append(partition)
            else:
                result[near].append(partition)
                need[near] -= 1
        left = rest
    at = 0
    for member, count in need.items():
        result[member] += left[at : at + count]
        at += count


class Uniform(Stateless):
    """The default assignor of the coordinator, for KIP-848 groups: sticky to the previous target (`owned`)."""

    name = "uniform"
    cooperative = False

    def assign(
        self, members: Mapping[MemberId, MemberSubscription], topics: Mapping[str, AssignableTopic]
    ) -> Assignment:
        """Assign the partitions to the members."""
        return divide(members, topics)


class Sticky(Stateless):
    """The eager assignor: members revoke everything before they join, so the user data carries what they owned.

    One instance belongs to one member and remembers its last assignment.
    """

    name = "sticky"
    cooperative = False

    def __init__(self) -> None:
        self._previous: Sequence[TopicPartition] | None = None
        self._generation = -1

    def assign(
        self, members: Mapping[MemberId, MemberSubscription], topics: Mapping[str, AssignableTopic]
    ) -> Assignment:
        """Assign the partitions to the members; `owned` of a member counts only if its user data says nothing."""
        names: dict[bytes, str] = {}
        return divide(
            {member: _with_user_data(subscription, names) for member, subscription in members.items()}, topics
        )

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        """Return this member's last assignment and its generation; nothing before the first."""
        if self._previous is None:
            return None
        return encode_sticky_user_data(self._previous, self._generation)

    def on_assignment(self, partitions: Sequence[TopicPartition], user_data: bytes | None, generation: int) -> None:
        """Remember the assignment."""
        self._previous, self._generation = tuple(partitions), generation


class CooperativeSticky(Stateless):
    """The incremental assignor: members keep what they own, and moving a partition takes two rebalances.

    One instance belongs to one member and remembers its generation.
    """

    name = "cooperative-sticky"
    cooperative = True

    def __init__(self) -> None:
        self._generation = -1

    def assign(
        self, members: Mapping[MemberId, MemberSubscription], topics: Mapping[str, AssignableTopic]
    ) -> Assignment:
        """Assign the partitions to the members, without those that another member has to revoke first."""
        members = {member: _with_generation(subscription) for member, subscription in members.items()}
        result = divide(members, topics)
        gained = {member: set(partitions).difference(members[member].owned) for member, partitions in result.items()}
        moving = set[TopicPartition]().union(*gained.values())
        held_back = moving.intersection(chain.from_iterable(member.owned for member in members.values()))
        for member, partitions in result.items():
            if not gained[member].isdisjoint(held_back):
                wait = gained[member] & held_back
                result[member] = [partition for partition in partitions if partition not in wait]
        return result

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        """Return this member's generation: subscriptions before version 2 have no field for it."""
        return struct.pack(">i", self._generation)

    def on_assignment(self, partitions: Sequence[TopicPartition], user_data: bytes | None, generation: int) -> None:
        """Remember the generation."""
        self._generation = generation


_INT16, _INT32 = struct.Struct(">h").unpack_from, struct.Struct(">i").unpack_from


def encode_sticky_user_data(partitions: Sequence[TopicPartition], generation: int) -> bytes:
    """Return the sticky assignor's user data: array of (topic, array of partitions), then the generation."""
    topics = by_topic(partitions)
    parts = [struct.pack(">i", len(topics))]
    for topic, numbers in topics.items():
        name = topic.encode()
        parts += (struct.pack(">h", len(name)), name, struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))
    parts.append(struct.pack(">i", generation))
    return b"".join(parts)


def decode_sticky_user_data(
    user_data: bytes, names: dict[bytes, str] | None = None
) -> tuple[tuple[TopicPartition, ...], int] | None:
    """Decode what `encode_sticky_user_data` wrote; None for other bytes.

    Old clients leave the generation out: it is -1 then.

    Args:
        user_data: a member's user data.
        names: topic names decoded before. Members of one group name the same topics, 1,600 of them each in a wide
            group.
    """
    names = {} if names is None else names
    partitions: list[TopicPartition] = []
    try:
        (count,) = _INT32(user_data)
        at = 4
        for _ in range(count):
            (length,) = _INT16(user_data, at)
            start, at = at + 2, at + 2 + length
            raw = user_data[start:at]
            if length < 0 or len(raw) != length:
                return None
            (size,) = _INT32(user_data, at)
            if not 0 <= size <= (len(user_data) - at) // 4:
                return None
            topic = names.get(raw) or names.setdefault(raw, raw.decode())
            if size == 1:
                partitions.append(topic_partition((topic, _INT32(user_data, at + 4)[0])))
            else:
                numbers = struct.unpack_from(f">{size}i", user_data, at + 4)
                partitions += map(topic_partition, zip(repeat(topic), numbers, strict=False))
            at += 4 + 4 * size
        generation = _INT32(user_data, at)[0] if at + 4 <= len(user_data) else -1
    except (struct.error, UnicodeDecodeError):
        return None
    return tuple(partitions), generation


def _with_user_data(subscription: MemberSubscription, names: dict[bytes, str]) -> MemberSubscription:
    previous = decode_sticky_user_data(subscription.user_data, names) if subscription.user_data else None
    if previous is None:
        return subscription
    return replace(subscription, owned=previous[0], generation=previous[1])


def _with_generation(subscription: MemberSubscription) -> MemberSubscription:
    user_data = subscription.user_data
    if subscription.generation >= 0 or user_data is None or len(user_data) < 4:
        return subscription
    return replace(subscription, generation=struct.unpack_from(">i", user_data)[0])
