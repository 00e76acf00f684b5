"""The assignor of queries whose state belongs to their partitions: a partition has one query for ever.

The queries of such a group are named once and for all, and a partition is one of theirs by its number: nobody has to
remember it, and a partition that is added later changes nothing for those before it. What an absent query reads waits
for it.

Source: spec 3.3, 6.2.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence

from kohort.assignors.claims import believed
from kohort.assignors.shapes import Assignment, MemberSubscription, Stateless, TopicInfo
from kohort.errors import InvalidInputError
from kohort.ids import MemberId, TopicPartition


class Pinned(Stateless):
    """Each partition to its own query, or to nobody."""

    name = "kohort-pinned"
    cooperative = True

    def __init__(self, query: str, queries: Sequence[str]) -> None:
        """`query` is this member's, one of all `queries` of the group."""
        self._query, self._queries = query, tuple(sorted(queries))

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        """Which query this is, and which there are."""
        return json.dumps({"query": self._query, "queries": self._queries}).encode()

    def assign(self, members: Mapping[MemberId, MemberSubscription], topics: Mapping[str, TopicInfo]) -> Assignment:
        """See the class. Of two members of one name, as after a crash, the one with the greater id gets nothing.

        Raises:
            InvalidInputError: the members do not agree on the queries.
        """
        named = self._by_query(members)
        held = {partition: member for member, parts in believed(members, topics).items() for partition in parts}
        result: Assignment = {member: [] for member in sorted(members)}
        for topic, info in sorted(topics.items()):
            for number in range(info.partitions):
                member = named.get(query_of(topic, number, self._queries))
                if member is None or topic not in members[member].topics:
                    continue
                partition = TopicPartition(topic, number)
                if held.get(partition, member) == member:  # else it is given up first
                    result[member].append(partition)
        return result

    def _by_query(self, members: Mapping[MemberId, MemberSubscription]) -> dict[str, MemberId]:
        found: dict[str, MemberId] = {}
        for member in sorted(members):
            try:
                told = json.loads(members[member].user_data or b"")
                query, queries = str(told["query"]), tuple(told["queries"])
            except (KeyError, TypeError, ValueError) as error:
                raise InvalidInputError(f"member {member} of the group is no query that is pinned") from error
            if queries != self._queries:
                raise InvalidInputError(
                    f"the queries of the group do not agree on who there is: {self._query} says "
                    f"{', '.join(self._queries)}, and {query} says {', '.join(queries)}"
                )
            found.setdefault(query, member)
        return found


def query_of(topic: str, partition: int, queries: Sequence[str]) -> str:
    """Whose a partition is, of the sorted names."""
    return queries[(zlib.crc32(topic.encode()) + partition) % len(queries)]
