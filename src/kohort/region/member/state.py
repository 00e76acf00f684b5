"""What a member knows, and the few verbs that all of its handlers need."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from kohort.region import messages as told
from kohort.region.member import events as happens
from kohort.region.member.events import Effect
from kohort.region.messages import Cut, Identity
from kohort.region.parts import Part
from kohort.region.records import Contribution, Position
from kohort.region.states import MemberState

SUBSCRIBED, RECORDS_FETCHED = MemberState.SUBSCRIBED, MemberState.RECORDS_FETCHED
DRAINED, CHECKPOINTED = MemberState.DRAINED, MemberState.CHECKPOINTED
PENDING, RESET_COMPLETE = MemberState.CR_RESET_PENDING, MemberState.RESET_COMPLETE


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How a member takes part.

    Attributes:
        holds_back: a revocation waits for a checkpoint, and does not have all go back.
        reads_on: it does not stop for a cut, and contributes what it has finished. Who carries its effects out says
            `Fetched` before a piece of work begins, answers `Quiesce` at once, and says `Revoked` between two pieces,
            after which it begins none with these partitions.
        shares: its state moves with partitions, or it has none; otherwise it must be alone in its group.
        keeps: its state waits for it while it is away; else it begins anew when it comes back.
        of: the same for all members of one query, its siblings, and for no other; empty: it is one of its own.
        sources: how many they are.
        pinned: all queries of its group, where each partition is one of theirs for ever; empty: it is not so.
    """

    holds_back: bool = False
    reads_on: bool = False
    shares: bool = True
    keeps: bool = False
    of: str = ""
    sources: int = 1
    pinned: tuple[str, ...] = ()


BEHAVIOUR = Behaviour()


class Member:
    """One member.

    Attributes:
        begins: where the next contribution begins, of each partition that the control plane gave to read.
        assigned: what the group gave.
        held: what the group wants back, held until a sequence is complete.
        covered: what of it was held already when it contributed: all that was read of it is in that sequence.
        names: all members of the region, as last told.
        cut: that the member drains for, is drained for or has contributed to.
        contributed: the sequence, `ends` the ends that it gave; until the outcome is known.
        failure: why it can't go on: said to each control plane, for the first may have died over it.
        wants_back: what it asked for, until it is told to go back: it takes part in no cut meanwhile, for what it had
            fetched may be thrown away already.
        going_back: it was told to, and its operator has not yet.
        went_back: no sequence was complete since.
    """

    def __init__(
        self,
        region: str,
        name: str,
        incarnation: UUID,
        group: str,
        sink: str = "",
        how: Behaviour = BEHAVIOUR,
        *,
        letters: str = "",
    ) -> None:
        """A member.

        Args:
            region: its name.
            name: of the member.
            incarnation: of this object.
            group: its group's id.
            sink: the place that it writes to; empty: none.
            how: it takes part.
            letters: the place of its dead letters; empty: it has none.
        """
        self.region, self.name, self.incarnation, self.group = region, name, incarnation, group
        self.sink, self.how, self.letters = sink, how, letters
        self.state = SUBSCRIBED
        self.resting = SUBSCRIBED  # where it stands when no cut is under way
        self.identity = Identity()
        self.term, self.epoch, self.sequence = -1, -1, 0
        self.names: tuple[str, ...] = ()
        self.assigned: dict[Part, None] = {}
        self.begins: dict[Part, int] = {}
        self.held: dict[Part, None] = {}
        self.covered: dict[Part, None] = {}
        self.cut: Cut | None = None
        self.contributed = 0
        self.ends: dict[Part, Position] = {}
        self.given: Contribution | None = None
        self.failure: told.CantGoOn | None = None
        self.wants_back: told.AskReset | None = None
        self.closing = self.went_back = self.going_back = False
        self.effects: list[Effect] = []
        self._asks = 0

    # -- verbs

    def do(self, *effects: Effect) -> None:
        self.effects += effects

    def say(self, report: told.Report) -> None:
        self.do(happens.Say(report))

    def be(self, state: MemberState) -> None:
        """Stand there when no cut is under way."""
        self.state = self.resting = state

    def holds(self) -> tuple[Position, ...]:
        """What it was given to read, with where its next contribution begins."""
        return tuple(
            Position(part.group, part.topic, part.topic_id, part.partition, begin)
            for part, begin in sorted(self.begins.items())
        )

    def ask_starts(self) -> None:
        """Of all that the group gave and the control plane has not."""
        wanted = tuple(part for part in self.assigned if part not in self.begins and part not in self.held)
        if wanted and self.epoch >= 0 and self.state is not PENDING and not self.going_back:
            self._asks += 1
            self.say(told.AskStarts(self._asks, wanted))

    def drop(self, parts: Iterable[Part]) -> None:
        for part in parts:
            self.assigned.pop(part, None)
            self.begins.pop(part, None)
            self.held.pop(part, None)
            self.ends.pop(part, None)

    def let_go(self, parts: Iterable[Part]) -> None:
        """Give partitions up, and say so."""
        gone = tuple(parts)
        self.drop(gone)
        self.do(happens.Release(gone))
        self.say(told.Moved(self.identity, gone))

    def go_on(self) -> None:
        """Out of a cut."""
        self.cut = None
        self.state = self.resting
        self.do(happens.GoOn(), happens.Poll(slowly=self.resting is RESET_COMPLETE))
