"""The group shards of this process: they map a group to its shard and route requests to one or several shards.

Groups are spread over all shards by the hash of their names. A single broker has all shards. When several processes
share the groups, each has some. A request for a shard that is elsewhere fails with NOT_COORDINATOR, which makes clients
look up the coordinator again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from typing import Any, Final, TypeAlias, TypeVar

from kohort.broker.server.connection import ClientSession
from kohort.coordinator.shard import Shard
from kohort.errors import ErrorCode
from kohort.groups.effects import ReplyValue
from kohort.groups.events import (
    ConnectionLost,
    Event,
    ListGroups,
    OneGroupRequest,
    ReleaseLongPolls,
    Request,
    TransactionEnded,
)
from kohort.log import Steps

MakeShard: TypeAlias = Callable[[int, int], Shard]
"""A factory of shards, by index and term."""
E = TypeVar("E")
Answer: TypeAlias = Callable[[Any], None]
"""Callback that takes the value of an event's reply, or the error code. The event determines the value's class."""


NAMES_CACHED: Final = 100_000
CACHED_NAME_MAX: Final = 255
"""The longest name whose hash is cached, in characters. Clients may send names of 32 KiB, which would keep 3 GiB."""


def java_hash(text: str) -> int:
    """Return Java's String.hashCode, made non-negative as in Kafka. It maps a name to an internal topic's partition."""
    return cached_java_hash(text) if len(text) <= CACHED_NAME_MAX else _hash(text)


@lru_cache(maxsize=NAMES_CACHED)
def cached_java_hash(text: str) -> int:
    """Return `java_hash` of a name from a cache: the next request is likely to have the same short name."""
    return _hash(text)


def _hash(text: str) -> int:
    value = 0
    data = text.encode("utf-16-be")
    for position in range(0, len(data), 2):
        value = (31 * value + (data[position] << 8 | data[position + 1])) & 0xFFFFFFFF
    return value & 0x7FFFFFFF


class GroupShards:
    """A router of events to the shards of this process.

    Attributes:
        count: the number of shards in the cluster, here and elsewhere.
        on_end: called with the index of a shard that this process gives up.
    """

    def __init__(self, next_request_id: Callable[[], int], make: MakeShard) -> None:
        self.count = 1
        self.on_end: Callable[[int], None] = lambda index: None
        self._shards: dict[int, Shard] = {}
        self._next_request_id = next_request_id
        self._make = make

    def __iter__(self) -> Iterator[Shard]:
        return iter([*self._shards.values()])

    # -- which are here

    def take_over_shard(self, index: int, term: int) -> None:
        """Take a shard over for a term: load it, then serve it. A shard that is here already is closed first."""
        self.release_shard(index)
        shard = self._shards[index] = self._make(index, term)
        shard.start_loading()

    def release_shard(self, index: int) -> None:
        """Give a shard up: waiting requests fail with NOT_COORDINATOR. A shard that is not here is ignored."""
        shard = self._shards.pop(index, None)
        if shard is not None:
            shard.close()
            self.on_end(index)

    def expect_takeover(self, index: int) -> bool:
        """Expect another process to take a shard over, so that being fenced is no error.

        Returns:
            Whether the shard serves here.
        """
        shard = self._shards.get(index)
        if shard is None or not shard.is_loaded:
            return False
        shard.expects_takeover = True
        return True

    def cancel_takeover(self, index: int) -> bool:
        """Cancel an expected takeover of a shard.

        Returns:
            Whether the shard still serves here.
        """
        shard = self._shards[index]
        shard.expects_takeover = False
        return shard.is_loaded

    def check_ownership(self, index: int) -> None:
        """Check whether another process has fenced a shard, with a request that needs proof of ownership."""
        self.ask_shard(index, ListGroups(self._next_request_id(), states=("none",)), lambda _: None)

    def __contains__(self, index: int) -> bool:
        return index in self._shards

    def shard_index_of(self, group: str) -> int:
        """Return the index of a group's shard, which is also its partition of the offsets topic."""
        return java_hash(group) % self.count

    # -- requests

    def ask(self, client: ClientSession, event: OneGroupRequest, answer: Answer) -> None:
        """Send a request to the shard of its group, and record that the client uses this shard.

        Args:
            event: a request with a `group_id`.
            answer: called once, with the value of the event's reply or an error code.
        """
        index = java_hash(event.group_id) % self.count
        shard = self._shards.get(index)
        if shard is None:
            answer(ErrorCode.NOT_COORDINATOR)
            return
        client.shards.add(index)
        shard.ask(event, answer)

    def ask_shard(self, index: int, event: Request | TransactionEnded, answer: Answer) -> None:
        """Send a request to the shard of this index, which is its partition of the offsets topic."""
        shard = self._shards.get(index)
        if shard is None:
            answer(ErrorCode.NOT_COORDINATOR)
        else:
            shard.ask(event, answer)

    def ask_groups_by_shard(
        self,
        groups: Iterable[str],
        make_event: Callable[[int, tuple[str, ...]], Request],
        entries: Callable[[tuple[str, ...], Any], list[E]],
        answer: Callable[[dict[str, E]], None],
    ) -> None:
        """Split a request for several groups by shard, and answer when all shards have.

        Args:
            make_event: creates a shard's event from a request id and its groups.
            entries: returns one entry per group of a shard's event, in order, from the value of its reply or an error
                code.
            answer: called with the entries by group.
        """
        by_shard: dict[int, list[str]] = {}
        for group in dict.fromkeys(groups):
            by_shard.setdefault(self.shard_index_of(group), []).append(group)
        entries_by_group: dict[str, E] = {}
        left = len(by_shard)
        if not left:
            answer(entries_by_group)
            return

        def collect_reply(names: tuple[str, ...], value: ReplyValue | ErrorCode) -> None:
            nonlocal left
            entries_by_group.update(zip(names, entries(names, value), strict=True))
            left -= 1
            if not left:
                answer(entries_by_group)

        for index, of_shard in by_shard.items():
            names = tuple(of_shard)
            self.ask_shard(index, make_event(self._next_request_id(), names), partial(collect_reply, names))

    def ask_all_shards(self, make_event: Callable[[int], Request], answer: Callable[[list[Any]], None]) -> None:
        """Send a request to every shard here except damaged ones. `answer` gets the values or error codes in order."""
        asked = [shard for shard in self if not shard.is_damaged]
        values: list[ReplyValue | ErrorCode] = [ErrorCode.NONE] * len(asked)
        left = len(asked)
        if not left:
            answer(values)
            return

        def collect_reply(index: int, value: ReplyValue | ErrorCode) -> None:
            nonlocal left
            values[index] = value
            left -= 1
            if not left:
                answer(values)

        for index, shard in enumerate(asked):
            shard.ask(make_event(self._next_request_id()), partial(collect_reply, index))

    # -- news

    def queue_event(self, group: str, event: Event) -> None:
        """Send an event to the shard of a group, if it is here."""
        self._queue_at(self.shard_index_of(group), event)

    def queue_for_all_shards(self, event: Event) -> None:
        """Send an event to every shard here."""
        for shard in self:
            shard.queue_event(event)

    def remove_deleted_topic_offsets(self) -> Steps[None]:
        """Make every shard write the removal of offsets of deleted topics.

        A topic of the same name must not be created before that.
        """
        for shard in self:
            while shard.process_queued_events():
                yield

    def unserved_shards(self) -> tuple[int, ...]:
        """Return the indexes of shards that are not loaded here; their journals may hold offsets of deleted topics."""
        loaded = {index for index, shard in self._shards.items() if shard.is_loaded}
        return tuple(index for index in range(self.count) if index not in loaded)

    def has_group(self, group: str) -> bool:
        """Return whether a group exists in a shard here."""
        shard = self._shards.get(self.shard_index_of(group))
        return shard is not None and shard.has_group(group)

    def is_damaged(self, index: int) -> bool:
        """Return whether a shard is here but does not serve because its journal is damaged."""
        shard = self._shards.get(index)
        return shard is not None and shard.is_damaged

    def accepts_transactional_offsets(self, index: int) -> bool:
        """Return whether a shard's journal can store transactional offsets.

        A shard that is not here rejects them itself.
        """
        shard = self._shards.get(index)
        return shard is None or shard.holds_transactions

    def answer_delayed_heartbeats(self, client: ClientSession) -> None:
        """Answer a client's delayed heartbeats, because another request arrived on its connection."""
        for request_id, index in client.held.items():
            self._queue_at(index, ReleaseLongPolls((request_id,)))
        client.held.clear()

    def connection_lost(self, client: ClientSession, *, noticed: bool, ended: bool) -> None:
        """Notify the shards that a client has used of the end of its connection.

        Args:
            client: the client.
            noticed: whether the disconnect evicts members before their sessions expire.
            ended: whether the client's process has ended too.
        """
        process = client.process if ended else ""
        for index in client.shards:
            self._queue_at(index, ConnectionLost(client.number, noticed, client.lease_ms, process))

    def _queue_at(self, index: int, event: Event) -> None:
        shard = self._shards.get(index)
        if shard is not None:
            shard.queue_event(event)
