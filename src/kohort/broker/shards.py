"""All group shards of this broker: which one a group belongs to, and questions that concern several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Any

from kohort.broker.net.connection import Connection
from kohort.broker.net.request import Request
from kohort.coordinator.shard import Shard
from kohort.errors import ErrorCode
from kohort.groups.events import ConnectionLost, Event, ReleaseHeld
from kohort.log import Steps


@lru_cache(maxsize=100_000)
def java_hash(text: str) -> int:
    """Java's String.hashCode, made non-negative as Kafka does: which partition of an internal topic a name goes to."""
    value = 0
    data = text.encode("utf-16-be")
    for position in range(0, len(data), 2):
        value = (31 * value + (data[position] << 8 | data[position + 1])) & 0xFFFFFFFF
    return value & 0x7FFFFFFF


class GroupShards:
    """Routes events to shards."""

    def __init__(self, token: Callable[[], int]) -> None:
        self._shards: list[Shard] = []
        self._token = token

    def __iter__(self) -> Any:
        return iter(self._shards)

    def set(self, shards: Sequence[Shard]) -> None:
        """The shards, in the order of their partitions."""
        self._shards = list(shards)

    def index_of(self, group: str) -> int:
        """The partition that a group's records are in."""
        return java_hash(group) % len(self._shards)

    def of(self, group: str) -> Shard:
        """The shard of a group."""
        return self._shards[java_hash(group) % len(self._shards)]

    def at(self, index: int) -> Shard:
        """The shard of a journal partition."""
        return self._shards[index]

    def ask(self, request: Request, event: Any, answer: Callable[[Any], None]) -> None:
        """Have the shard of the event's group answer; the connection is remembered there."""
        index = java_hash(event.group_id) % len(self._shards)
        request.connection.shards.add(index)
        self._shards[index].ask(event, answer)

    def ask_by_shard(
        self,
        groups: Iterable[str],
        make_event: Callable[[int, tuple[str, ...]], Any],
        entries: Callable[[tuple[str, ...], Any], list[Any]],
        answer: Callable[[dict[str, Any]], None],
    ) -> None:
        """Ask each shard for its own of several groups, and answer when all have.

        Args:
            make_event: makes a shard's event from a token and its groups.
            entries: one entry per group of a shard's event, in its order, from the value of its reply or the code that refused it.
            answer: takes the entries by group.
        """
        by_shard: dict[int, list[str]] = {}
        for group in dict.fromkeys(groups):
            by_shard.setdefault(self.index_of(group), []).append(group)
        found: dict[str, Any] = {}
        left = len(by_shard)
        if not left:
            answer(found)
            return

        def collect(names: tuple[str, ...], value: Any) -> None:
            nonlocal left
            found.update(zip(names, entries(names, value), strict=True))
            left -= 1
            if not left:
                answer(found)

        for index, of_shard in by_shard.items():
            names = tuple(of_shard)
            self._shards[index].ask(make_event(self._token(), names), partial(collect, names))

    def ask_all(self, make_event: Callable[[int], Any], answer: Callable[[list[Any]], None]) -> None:
        """Ask every shard; `answer` takes the values (or codes) in the shards' order. One that is damaged hides no other."""
        asked = [shard for shard in self._shards if not shard.damaged]
        values: list[Any] = [ErrorCode.NONE] * len(asked)
        left = len(asked)
        if not left:
            answer(values)
            return

        def collect(index: int, value: Any) -> None:
            nonlocal left
            values[index] = value
            left -= 1
            if not left:
                answer(values)

        for index, shard in enumerate(asked):
            shard.ask(make_event(self._token()), partial(collect, index))

    def tell_all(self, event: Event) -> None:
        """News for every shard."""
        for shard in self._shards:
            shard.tell(event)

    def settling(self) -> Steps[None]:
        """Have every shard write now that topics were deleted, before one of the same name can be made."""
        for shard in self._shards:
            while shard.settle():
                yield

    def unloaded(self) -> tuple[int, ...]:
        """The shards that do not serve: their journals may hold positions of topics that are gone."""
        return tuple(shard.index for shard in self._shards if not shard.loaded)

    def release(self, held: dict[int, int]) -> None:
        """Have heartbeats answered that shards hold back (token to shard): another request came behind them."""
        for token, index in held.items():
            self._shards[index].tell(ReleaseHeld((token,)))
        held.clear()

    def connection_lost(self, connection: Connection, *, noticed: bool, ended: bool) -> None:
        """A connection has ended; whether that puts its members out before their session, and if its process ended too."""
        process = connection.process if ended else ""
        for index in connection.shards:
            self._shards[index].tell(ConnectionLost(connection.number, noticed, connection.lease_ms, process))
