"""What the coordinator knows of a push group: who is in it, who owns which partition, and what each was asked last.

Hard state is written by the ledger alone: the members, and what each owns. A member owns partitions from before it is
started with them until its Stop is answered and its last positions have come, or until it is out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from kohort.groups.effects import GroupState
from kohort.groups.events import Asking, RegisterConsumer
from kohort.groups.failure_detector import Pacing
from kohort.groups.group import Membership, Takes
from kohort.groups.pairs import NOTHING, Pair, Pairs, pack, unpack
from kohort.groups.records import Kind, PushGroupSaved, PushMemberSaved, PushOwned, Record, RecordKey
from kohort.groups.timers import Deadline, Timer


class PushMember(Pacing):
    """One consumer as it is heard, and what it was asked.

    Attributes:
        process: that it registered from, "": not known.
        asked: what is not answered yet, None: nothing.
        out: how many frames are not answered: one, and the repetitions of a Ping.
        ping: it is due for a Ping, or late with an answer.
        stopped: its fetchers are known to stand still: it is new, or has answered a Stop.
        told: what it was started with on this connection, and confirmed; None: nothing.
        ending: it has answered a Stop, and the Ping that brings its last positions has not been answered.
        back: it has registered again, and has not been pinged since.
        refusals: how often in a row it answered a Stop or a Start with an error.
        still_ms: since when its partitions stand still, None: they do not.
        finding: the ticket of the offsets that it waits for, -1: none.
        claim: another connection wants its id; that waits until this one has answered, or has not.
        proves: it was pinged since the claim came: its answer shows that it is there still.
    """

    __slots__ = (
        "asked",
        "back",
        "claim",
        "ending",
        "finding",
        "out",
        "ping",
        "process",
        "proves",
        "refusals",
        "still_ms",
        "stopped",
        "told",
    )

    def __init__(self, group_id: str, member_id: str) -> None:
        super().__init__(group_id, member_id)
        self.process = ""
        self.asked: Asking | None = None
        self.out = 0
        self.ping = Timer(Deadline.PING, group_id, member_id)
        self.stopped = False
        self.told: Pairs | None = None
        self.ending = False
        self.back = False
        self.refusals = 0
        self.still_ms: int | None = None
        self.finding = -1
        self.claim: RegisterConsumer | None = None
        self.proves = False


class PushGroup(Membership):
    """The members of a push group.

    Attributes:
        saved: that there is one; None before its record.
        members: what each said, by id.
        owned: what each owns; who owns nothing is left out.
        holders: who owns a partition.
        present: the members as they are heard.
        rebalancing: the text's bit: a rebalance is under way, or is to be tried again.
        again: something changed meanwhile: look again when it is done.
        attempt: of the rebalance under way, from 0.
        began_ms: when the change came that it is for; None: there is none.
        dividing: the ticket of the division that is awaited, -1: none.
        moving: by member that is still to be started in this rebalance, with what.
        takers: who is to have a partition in this rebalance, while it is to be started.
        still: how long those stood still that have been started again, in ms.
        attempts: an attempt takes too long.
        backoff: the pause before the next attempt, or before another look.
        loaded: it was there when its shard was loaded.
        unregistered: who is to be stopped and started though nothing else changed: its ownership was deleted elsewhere.
        matched: by regular expression and whether it excludes, the topics that it finds.
    """

    is_shown = True
    __slots__ = (
        "again",
        "attempt",
        "attempts",
        "backoff",
        "began_ms",
        "dividing",
        "holders",
        "loaded",
        "matched",
        "members",
        "moving",
        "owned",
        "present",
        "rebalancing",
        "saved",
        "still",
        "takers",
        "unregistered",
    )

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.saved: PushGroupSaved | None = None
        self.members: dict[str, PushMemberSaved] = {}
        self.owned: dict[str, Pairs] = {}
        self.holders: dict[Pair, str] = {}
        self.present: dict[str, PushMember] = {}
        self.rebalancing = False
        self.again = False
        self.attempt = 0
        self.began_ms: int | None = None
        self.dividing = -1
        self.moving: dict[str, Pairs] = {}
        self.takers: dict[Pair, str] = {}
        self.still: list[int] = []
        self.attempts = Timer(Deadline.ATTEMPT, group_id)
        self.backoff = Timer(Deadline.BACKOFF, group_id)
        self.loaded = False
        self.unregistered: dict[str, None] = {}
        self.matched: Mapping[tuple[str, bool], frozenset[str]] = {}

    # -- what is asked of every membership

    def group_state(self) -> GroupState:
        """Empty, PreparingRebalance while members are stopped and started, else Stable."""
        if not self.members:
            return GroupState.EMPTY
        return GroupState.PREPARING_REBALANCE if self.rebalancing else GroupState.STABLE

    def is_subscribed(self, topic: str) -> bool:
        """Whether a member reads it, by name or by an expression; one that is not matched yet may read any."""
        return any(self.reads(member, topic) for member in self.members.values())

    def reads(self, member: PushMemberSaved, topic: str) -> bool:
        """Whether this member reads the topic, or may."""
        if member.regex is None:
            return any(name == topic for name, _ in member.topics)
        matched = self.matched.get((member.regex, member.excluding))
        return matched is None or topic in matched

    def records(self) -> Iterator[Record]:
        """That it is one, its members, what they own."""
        if self.saved is not None:
            yield self.saved
        yield from self.members.values()
        for member_id, pairs in self.owned.items():
            yield PushOwned(self.group_id, member_id, pack(pairs))

    def has_records(self) -> bool:
        """Whether it was written that it is one."""
        return self.saved is not None

    def tombstones(self) -> Iterator[RecordKey]:
        """What members own, the members, the group."""
        yield from ((Kind.PUSH_OWNED, self.group_id, member_id) for member_id in self.owned)
        yield from ((Kind.PUSH_MEMBER, self.group_id, member_id) for member_id in self.members)
        if self.saved is not None:
            yield self.saved.key

    def cancel(self) -> None:
        """Stop all timers."""
        for member in self.present.values():
            member.session.cancel()
            member.ping.cancel()
        self.attempts.cancel()
        self.backoff.cancel()

    def places(self) -> Iterator[tuple[str, int, bool]]:
        """Members with their connections."""
        return ((member_id, member.connection, member.is_gone) for member_id, member in self.present.items())

    def empty_since_ms(self) -> int:
        """Since when it has had no members."""
        return -1 if self.members or self.saved is None else self.saved.state_ms

    # -- the ledger's

    def _take_group(self, record: PushGroupSaved) -> None:
        self.saved = record

    def _take_member(self, record: PushMemberSaved) -> None:
        self.members[record.member_id] = record

    def _take_owned(self, record: PushOwned) -> None:
        self._release(record.member_id)
        pairs = unpack(record.partitions)
        if pairs:
            self.owned[record.member_id] = pairs
            self.holders.update(dict.fromkeys(pairs, record.member_id))

    def _release(self, member_id: str) -> None:
        for pair in self.owned.pop(member_id, NOTHING):
            if self.holders.get(pair) == member_id:
                del self.holders[pair]

    def drop(self, kind: Kind, names: list[str]) -> bool:
        """The record of this key is gone."""
        if kind is Kind.PUSH_OWNED:
            self._release(names[0])
        elif kind is Kind.PUSH_MEMBER:
            self.members.pop(names[0], None)
        elif kind is Kind.PUSH_GROUP:
            self.saved = None
            return True
        return False

    takes: ClassVar[Takes] = {PushGroupSaved: _take_group, PushMemberSaved: _take_member, PushOwned: _take_owned}

    # -- what its handlers ask

    def owned_by(self, member_id: str) -> Pairs:
        """What a member owns."""
        return self.owned.get(member_id, NOTHING)

    def is_free_for(self, member_id: str, pairs: Pairs) -> bool:
        """Whether nobody else owns any of these."""
        return all(self.holders.get(pair, member_id) == member_id for pair in pairs)

    def waiting_for(self, pairs: Iterable[Pair]) -> list[str]:
        """Who is to be started with one of these."""
        return list(dict.fromkeys(self.takers[pair] for pair in pairs if pair in self.takers))

    def to_move(self, moving: Mapping[str, Pairs]) -> None:
        """These members are to be started with these partitions, and no others."""
        self.moving = dict(moving)
        self.takers = {pair: member_id for member_id, pairs in moving.items() for pair in pairs}

    def moved(self, member_id: str) -> None:
        """A member has been started, or is out."""
        for pair in self.moving.pop(member_id, NOTHING):
            if self.takers.get(pair) == member_id:
                del self.takers[pair]
