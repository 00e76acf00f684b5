"""An assignor for queries whose state belongs to their partitions: a partition has the same query for ever.

The names of a group's queries never change, and a partition's number determines its query. So nothing has to be
remembered, and an added partition does not move the earlier ones. The partitions of an absent query wait for it.

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
    """An assignor that gives each partition to its fixed query, or to nobody."""

    name = "kohort-pinned"
    cooperative = True

    def __init__(self, query: str, queries: Sequence[str]) -> None:
        """Set up the assignor of the member that runs `query`, one of all `queries` of the group."""
        self._query, self._queries = query, tuple(sorted(queries))

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        """Return the member's query and the list of all queries, as JSON."""
        return json.dumps({"query": self._query, "queries": self._queries}).encode()

    def assign(self, members: Mapping[MemberId, MemberSubscription], topics: Mapping[str, TopicInfo]) -> Assignment:
        """Assign each partition to the member that runs its query.

        Of two members with the same query, as after a crash, the one with the greater id gets nothing.

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
                if held.get(partition, member) == member:  # otherwise its owner releases it first
                    result[member].append(partition)
        return result

    def _by_query(self, members: Mapping[MemberId, MemberSubscription]) -> dict[str, MemberId]:
        found: dict[str, MemberId] = {}
        for member in sorted(members):
            try:
                user_data = json.loads(members[member].user_data or b"")
                query, queries = str(user_data["query"]), tuple(user_data["queries"])
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
    """Return the query of a partition, from the sorted names."""
    return queries[(zlib.crc32(topic.encode()) + partition) % len(queries)]
