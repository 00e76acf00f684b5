"""The group shards of this process: which one a group belongs to, whether it is here, and questions to several.

Groups are spread over all shards there are, by their names. Here are those that have begun here and not ended: all of
them in a broker by itself, some of them where several processes share the groups. What is asked of one that is not here
is refused with NOT_COORDINATOR, which has clients look for the coordinator again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from typing import Any, TypeAlias, TypeVar

from kohort.broker.server.connection import ClientSession
from kohort.coordinator.shard import Shard
from kohort.errors import ErrorCode
from kohort.groups.effects import ReplyValue
from kohort.groups.events import (
    ConnectionLost,
    ConsumerGroupHeartbeat,
    Event,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    ListGroups,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    RegisterConsumer,
    ReleaseHeld,
    Request,
    SyncGroup,
    TransactionEnded,
    TxnOffsetCommit,
)
from kohort.log import Steps

MakeShard: TypeAlias = Callable[[int, int], Shard]
"""Makes the shard of an index, for a term."""
E = TypeVar("E")
Answer: TypeAlias = Callable[[Any], None]
"""Takes the value of an event's reply, whose class the event decides, or the code that refuses it."""
OfOneGroup: TypeAlias = (
    JoinGroup
    | SyncGroup
    | Heartbeat
    | LeaveGroup
    | OffsetCommit
    | TxnOffsetCommit
    | OffsetFetch
    | OffsetDelete
    | ConsumerGroupHeartbeat
    | RegisterConsumer
)
"""Requests that name a group."""


@lru_cache(maxsize=100_000)
def java_hash(text: str) -> int:
    """Java's String.hashCode, made non-negative as Kafka does: which partition of an internal topic a name goes to."""
    value = 0
    data = text.encode("utf-16-be")
    for position in range(0, len(data), 2):
        value = (31 * value + (data[position] << 8 | data[position + 1])) & 0xFFFFFFFF
    return value & 0x7FFFFFFF


class GroupShards:
    """Routes events to shards.

    Attributes:
        count: how many shards there are, here and elsewhere.
        on_end: takes the index of a shard that is given up.
    """

    def __init__(self, token: Callable[[], int], make: MakeShard) -> None:
        self.count = 1
        self.on_end: Callable[[int], None] = lambda index: None
        self._shards: dict[int, Shard] = {}
        self._token = token
        self._make = make

    def __iter__(self) -> Iterator[Shard]:
        return iter([*self._shards.values()])

    # -- which are here

    def begin(self, index: int, term: int) -> None:
        """Take a shard over, for a term: it loads, then serves. One that is here already ends first."""
        self.end(index)
        shard = self._shards[index] = self._make(index, term)
        shard.load()

    def end(self, index: int) -> None:
        """Give a shard up: who waits there is refused with NOT_COORDINATOR. One that is not here stays so."""
        shard = self._shards.pop(index, None)
        if shard is not None:
            shard.close()
            self.on_end(index)

    def let_go(self, index: int) -> bool:
        """Another process is to have a shard: that it fences it is no trouble then. Gives whether it serves here."""
        shard = self._shards.get(index)
        if shard is None or not shard.loaded:
            return False
        shard.let_go = True
        return True

    def keep(self, index: int) -> bool:
        """It is not to have it after all. Gives whether it serves here still."""
        shard = self._shards[index]
        shard.let_go = False
        return shard.loaded

    def prove(self, index: int) -> None:
        """Have a shard find out whether another has fenced it."""
        self.ask_at(index, ListGroups(self._token(), states=("none",)), lambda _: None)

    def __contains__(self, index: int) -> bool:
        return index in self._shards

    def index_of(self, group: str) -> int:
        """The partition that a group's records are in."""
        return java_hash(group) % self.count

    # -- requests

    def ask(self, client: ClientSession, event: OfOneGroup, answer: Answer) -> None:
        """Have the shard of the event's group answer; the client is remembered there.

        Args:
            event: of a request, with a `group_id`.
            answer: called once, with the value of the event's reply or the code that refuses it.
        """
        index = java_hash(event.group_id) % self.count
        shard = self._shards.get(index)
        if shard is None:
            answer(ErrorCode.NOT_COORDINATOR)
            return
        client.shards.add(index)
        shard.ask(event, answer)

    def ask_at(self, index: int, event: Request | TransactionEnded, answer: Answer) -> None:
        """Have a journal partition's shard answer."""
        shard = self._shards.get(index)
        if shard is None:
            answer(ErrorCode.NOT_COORDINATOR)
        else:
            shard.ask(event, answer)

    def ask_by_shard(
        self,
        groups: Iterable[str],
        make_event: Callable[[int, tuple[str, ...]], Request],
        entries: Callable[[tuple[str, ...], Any], list[E]],
        answer: Callable[[dict[str, E]], None],
    ) -> None:
        """Ask each shard for its own of several groups, and answer when all have.

        Args:
            make_event: makes a shard's event from a token and its groups.
            entries: one entry per group of a shard's event, in its order, from the value of its reply or the code that
                refused it.
            answer: takes the entries by group.
        """
        by_shard: dict[int, list[str]] = {}
        for group in dict.fromkeys(groups):
            by_shard.setdefault(self.index_of(group), []).append(group)
        found: dict[str, E] = {}
        left = len(by_shard)
        if not left:
            answer(found)
            return

        def collect(names: tuple[str, ...], value: ReplyValue | ErrorCode) -> None:
            nonlocal left
            found.update(zip(names, entries(names, value), strict=True))
            left -= 1
            if not left:
                answer(found)

        for index, of_shard in by_shard.items():
            names = tuple(of_shard)
            self.ask_at(index, make_event(self._token(), names), partial(collect, names))

    def ask_all(self, make_event: Callable[[int], Request], answer: Callable[[list[Any]], None]) -> None:
        """Ask every shard here; `answer` takes the values (or codes) in order. A damaged one hides no other."""
        asked = [shard for shard in self if not shard.damaged]
        values: list[ReplyValue | ErrorCode] = [ErrorCode.NONE] * len(asked)
        left = len(asked)
        if not left:
            answer(values)
            return

        def collect(index: int, value: ReplyValue | ErrorCode) -> None:
            nonlocal left
            values[index] = value
            left -= 1
            if not left:
                answer(values)

        for index, shard in enumerate(asked):
            shard.ask(make_event(self._token()), partial(collect, index))

    # -- news

    def tell(self, group: str, event: Event) -> None:
        """News for the shard of a group, if that is here."""
        self._tell_at(self.index_of(group), event)

    def tell_all(self, event: Event) -> None:
        """News for every shard."""
        for shard in self:
            shard.tell(event)

    def settling(self) -> Steps[None]:
        """Have every shard write now that topics were deleted, before one of the same name can be made."""
        for shard in self:
            while shard.settle():
                yield

    def unloaded(self) -> tuple[int, ...]:
        """The shards that do not serve here: their journals may hold positions of topics that are gone."""
        loaded = {index for index, shard in self._shards.items() if shard.loaded}
        return tuple(index for index in range(self.count) if index not in loaded)

    def knows(self, group: str) -> bool:
        """Whether a group is in a shard here."""
        shard = self._shards.get(self.index_of(group))
        return shard is not None and shard.knows(group)

    def is_damaged(self, index: int) -> bool:
        """Whether a shard is here, and serves nothing for damage in its journal."""
        shard = self._shards.get(index)
        return shard is not None and shard.damaged

    def takes_transactions(self, index: int) -> bool:
        """Whether a shard's journal can hold offsets of transactions; one that is not here says so itself."""
        shard = self._shards.get(index)
        return shard is None or shard.holds_transactions

    def release(self, client: ClientSession) -> None:
        """Have a client's heartbeats answered that shards hold back: another request came behind them."""
        for token, index in client.held.items():
            self._tell_at(index, ReleaseHeld((token,)))
        client.held.clear()

    def connection_lost(self, client: ClientSession, *, noticed: bool, ended: bool) -> None:
        """A connection has ended; whether that evicts members before their session ends; if its process ended too."""
        process = client.process if ended else ""
        for index in client.shards:
            self._tell_at(index, ConnectionLost(client.number, noticed, client.lease_ms, process))

    def _tell_at(self, index: int, event: Event) -> None:
        shard = self._shards.get(index)
        if shard is not None:
            shard.tell(event)
