"""Even and sticky division when members are subscribed to different topics.

All partitions of a topic may go to the same members, so it is enough to find how many of topic t member m gets: a flow
with convex costs. Loads count first (the sum of their squares is to be least, which makes every comparison of two
members as even as subscriptions allow), then how much is kept.

Steps: keep everything; give each unowned partition to its subscriber with least; move single partitions from members
with more to members with less; move along chains of members until no chain helps, which is when the loads are optimal;
then, within a budget, cancel cycles that keep more at the same loads. Small groups get the exact optimum; the budget
bounds the time of large ones, whose loads are optimal all the same.

Source: Harvey, Ladner, Lovász, Tamir, "Semi-matchings for bipartite graphs and load balancing" (2003).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence

BUDGET = 400_000
"""Edge relaxations that may be spent on keeping more; about a quarter of a second."""

Counts = list[dict[int, int]]
"""Per topic: how many partitions each member (by number) has; only positive ones."""


class Division:
    """The state of one division; members and topics are numbers."""

    def __init__(self, sizes: Sequence[int], takers: Sequence[Sequence[int]], own: Counts, members: int) -> None:
        """Keep everything that is owned.

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
        """Run all steps; returns the counts."""
        self.deal()
        self.move_directly()
        self.move_along_chains()
        self.keep_more()
        return self.counts

    def shift(self, topic: int, giver: int, taker: int) -> None:
        """One partition changes hands."""
        row = self.counts[topic]
        row[giver] -= 1
        if not row[giver]:
            del row[giver]
        row[taker] = row.get(taker, 0) + 1
        self.load[giver] -= 1
        self.load[taker] += 1

    def deal(self) -> None:
        """Unowned partitions to those with least, topics with few subscribers first."""
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

    def cost(self, topic: int, giver: int, taker: int) -> int:
        """By how much less is kept when one partition changes hands."""
        own, row = self.own[topic], self.counts[topic]
        lost = row[giver] <= own.get(giver, 0)
        won = row.get(taker, 0) < own.get(taker, 0)
        return lost - won

    def move_directly(self) -> None:
        """From members with more to subscribers of the same topic with at least two less, the fullest first."""
        load = self.load
        if max(load) - 2 < min(load):
            return
        least = [[(load[member], member) for member in subscribed] for subscribed in self.takers]
        for heap in least:
            heapq.heapify(heap)
        held = self._held()
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
        """One member gives until it has less than `floor`; returns False when it has nothing more to give.

        Meanwhile loads of takers only rise, so a choice that is no longer the best of its topic goes back as what is.
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
            self.shift(topic, giver, taker)
            held[taker].add(topic)
            heapq.heappush(givers, (-load[taker], taker))
            if giver not in self.counts[topic]:
                held[giver].discard(topic)
                heapq.heappop(choices)
        return False

    def _choice(self, topic: int, giver: int, heap: list[tuple[int, int]]) -> tuple[int, int, int, int] | None:
        """(load, cost, topic, taker) for the subscriber with least, the giver aside; None when there is no other."""
        load = self.load
        while heap and (heap[0][0] != load[heap[0][1]] or heap[0][1] == giver):
            _, member = heapq.heappop(heap)
            if member != giver:
                heapq.heappush(heap, (load[member], member))
        if not heap:
            return None
        low, taker = heap[0]
        return low, self.cost(topic, giver, taker), topic, taker

    def _held(self) -> list[set[int]]:
        """Per member: the topics it has partitions of."""
        held: list[set[int]] = [set() for _ in self.load]
        for topic, row in enumerate(self.counts):
            for member in row:
                held[member].add(topic)
        return held

    def move_along_chains(self) -> None:
        """Until no chain of hand-overs leads from a member to one with at least two less.

        A search that fails has seen everything that can be reached, and none of it can help a member with less: it is
        left out of later searches.
        """
        if max(self.load) - 2 < min(self.load):
            return
        held = self._held()
        closed_members, closed_topics = bytearray(len(self.load)), bytearray(len(self.takers))
        heap = [(-count, member) for member, count in enumerate(self.load)]
        heapq.heapify(heap)
        lowest = min(self.load)
        while heap and -heap[0][0] - 2 >= lowest:
            count, start = heapq.heappop(heap)
            if closed_members[start] or -count != self.load[start]:
                continue
            seen: dict[int, tuple[int, int]] = {start: (-1, -1)}
            end = self._search(start, held, seen, (closed_members, closed_topics))
            if end is None:
                continue
            taker = end
            while taker != start:
                giver, topic = seen[taker]
                self.shift(topic, giver, taker)
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
        seen: dict[int, tuple[int, int]],
        closed: tuple[bytearray, bytearray],
    ) -> int | None:
        """Breadth first from a member to one with at least two less; what was reached is closed if there is none."""
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
                    if taker in seen or closed_members[taker]:
                        continue
                    seen[taker] = (giver, topic)
                    if self.load[taker] <= limit:
                        return taker
                    queue.append(taker)
        for member in seen:
            closed_members[member] = 1
        for topic in topics:
            closed_topics[topic] = 1
        return None

    def keep_more(self) -> None:
        """Cancel cycles that keep more, loads as before, while the budget lasts."""
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
        """Return whether a member has fewer partitions of a topic than it owned; else all is kept that can be."""
        return any(
            row.get(member, 0) < owned
            for row, own in zip(self.counts, self.own, strict=True)
            for member, owned in own.items()
        )

    def _edges(self) -> list[tuple[int, int, int]]:
        """(from, to, cost): member to topic gives one up, topic to member takes one, levels join equal loads.

        Nodes: members, then topics, then load levels. A member may take one more in place of another with one more
        than it: through the node of its level.
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
            self.shift(topic, giver, taker)


def _negative_cycle(edges: Sequence[tuple[int, int, int]], nodes: int, budget: int) -> tuple[list[int] | None, int]:
    """A cycle of negative cost, by Bellman and Ford, and how many relaxations it took; None where none was found."""
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


def numbers(names: Mapping[str, object]) -> dict[str, int]:
    """Names numbered in sorted order."""
    return {name: number for number, name in enumerate(sorted(names))}
