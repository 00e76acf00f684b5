"""The thread of a Spark source's member: it hears of group and control plane, and its query reads on meanwhile.

It differs from a member that reads by itself in three things. A cut does not stop the query: what it contributes is the
last batch that is done. What the group wants back is read by no batch any more once the running one is done, and given
up with the sequence of a cut that begins after that. Going back is the query's, which begins anew from another
checkpoint folder. Source: spec 5.6-5.12, 6.2.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from kohort.client.consumer.consumer import Consumer
from kohort.client.consumer.core import WakeupError
from kohort.errors import KafkaError
from kohort.ids import TopicPartition
from kohort.region.consuming.member_thread import MemberThread, partition_of
from kohort.region.consuming.publishing import Publisher
from kohort.region.consuming.settings import MemberConfig
from kohort.region.member import events as happens
from kohort.region.member.events import Effect, Event
from kohort.region.member.machine import MemberMachine
from kohort.region.messages import Cut
from kohort.region.parts import Part
from kohort.region.records import Position
from kohort.region.staged import Staged
from kohort.spark.region.handing import HandingSeat
from kohort.spark.region.sessions import Lost

log = logging.getLogger("kohort.spark")

POLL_MS, SOON_MS = 100, 10
"""How long a poll waits; and while something waits for the running batch."""
AGAIN_S = 1.0
"""A query that is far ahead asks again for a sequence: what it asked may be lost with a connection, or with a reset."""
RELEASE, POLLING, CLOSING, AHEAD = "partitions are wanted back", "not polling", "closing", "too far ahead"
"""Why no batch may begin."""


class Query(Protocol):
    """The query, which all of its sources' members share. Any thread may call."""

    def begin(self, member: int, epoch: int, state: bytes | None) -> None:
        """A member works in this epoch; the query starts when all of them do."""

    def go_back(self, member: int, epoch: int, state: bytes | None) -> None:
        """Stop, and start anew from this state when all members go back; each is told by `WentBack` that it has."""

    def contribute(
        self, member: int, cut: Cut, names: tuple[str, ...]
    ) -> tuple[dict[TopicPartition, Position], Staged, bytes]:
        """What counts up to the last batch that is done: where partitions end, what it staged, and the query's state.

        Args:
            member: who contributes.
            cut: to which.
            names: who else does: without all of the query's members, nothing counts.

        Raises:
            KafkaError: it can't be told.
        """

    def counted(self, member: int) -> int:
        """Forget what was contributed last, which a complete sequence has; gives how many dead letters that has."""

    def settled(self, member: int) -> None:
        """Look whether the batch that runs is done."""

    def is_idle(self) -> bool:
        """Whether no batch is under way that reads from any of the query's sources."""

    def ended(self, member: int, error: BaseException | None) -> None:
        """The member is over."""


class QueryThread(MemberThread):
    """See the module's text."""

    def __init__(
        self,
        machine: MemberMachine,
        consumer: Consumer,
        publishers: Sequence[Publisher],
        config: MemberConfig,
        query: Query,
        number: int,
    ) -> None:
        """Does nothing before `start`; `number`: of the source among its query's."""
        super().__init__(machine, consumer, publishers, config)
        self.seat = HandingSeat(lambda: self.post(happens.Fetched()), self.wake, self._lost)
        self._query, self.number = query, number
        self._asked_back: deque[happens.Revoked] = deque()  # until no batch reads of it
        self._kept: deque[happens.Revoked] = deque()  # no batch reads of it; until no cut is under way
        self._leaves = False
        self._saves: tuple[Cut, tuple[str, ...]] | None = None  # the cut that its state is to be saved for, and of whom
        self._ask_again_s = 0.0

    def leave(self) -> None:
        """Leave with the next complete sequence: no batch begins any more, the running one is finished."""
        self.seat.hold(CLOSING)
        self._leaves = True
        self.wake()

    def look_ahead(self, ahead: int, asks_at: int, holds_at: int) -> None:
        """A query that runs too far ahead of the last complete sequence asks for one, and is held."""
        if ahead >= holds_at:
            self.seat.hold(AHEAD, stays=True)  # its timers alone would carry it past what Spark keeps
        else:
            self.seat.let(AHEAD)
        if ahead < asks_at:
            self._ask_again_s = 0.0
        elif time.monotonic() >= self._ask_again_s:
            self._ask_again_s = time.monotonic() + AGAIN_S
            self.post(happens.CheckpointWanted())

    def _lost(self, lost: Lost) -> None:
        """Records are gone that the query was to read."""
        if lost.fatal:
            remedy = "set failOnDataLoss=false, which leaves them out, or reset the region to its initial state"
            self.post(happens.Failed(lost.text, remedy))

    # -- the turns

    def _work(self) -> None:
        self._go_on_saving()
        self._keep_when_idle()
        self._give_back_between_cuts()
        self._leave_when_idle()
        waits = bool(self._asked_back) or (self._leaves and not self.machine.closing)
        if waits:
            self._look_for_end()
        if not self._over:
            self._poll(SOON_MS if waits else POLL_MS)

    def _look_for_end(self) -> None:
        try:
            self._query.settled(self.number)
        except (KafkaError, OSError) as error:
            log.info("%s: whether its batch is done can't be seen, and is told by Spark: %s", self.name, error)

    def _hear_all(self) -> None:
        """What is known, above all that a batch has begun: else the machine would think that nothing was read.

        It is said again, for during a cut the machine may not note it.
        """
        while not self._posted.empty():
            self._step(self._posted.get())
        if self.seat.has_read():
            self._step(happens.Fetched())

    def _poll(self, wait_ms: float) -> None:
        self._news.clear()
        if not self._posted.empty():
            return
        try:
            self._consumer.poll(wait_ms)
        except WakeupError:
            return

    def _from_the_group(self, event: Event) -> None:
        if isinstance(event, happens.Revoked):
            self.seat.hold(RELEASE)
            self._asked_back.append(event)
            return
        if isinstance(event, happens.Lost):
            self.seat.take(map(partition_of, event.parts))  # from here on no batch begins with them
            self._hear_all()
            self._is_not_asked_back(event.parts)
        self._step(event)

    def _is_not_asked_back(self, parts: tuple[Part, ...]) -> None:
        """These are gone: a late answer to that they were wanted back would be about whatever comes after."""
        for waiting in (self._asked_back, self._kept):
            left = [tuple(part for part in event.parts if part not in parts) for event in waiting]
            waiting.clear()
            waiting.extend(happens.Revoked(each) for each in left if each)
        if not self._asked_back:
            self.seat.let(RELEASE)

    def _keep_when_idle(self) -> None:
        """What the group wants back is read by no batch any more: the others may go on with the rest."""
        if not self._asked_back or self.seat.hold(RELEASE) is not None:
            return
        while self._asked_back:
            event = self._asked_back.popleft()
            self.seat.keep_from(map(partition_of, event.parts))
            self._kept.append(event)
        self.seat.let(RELEASE)

    def _give_back_between_cuts(self) -> None:
        """Give it to the machine, which releases it with the next sequence.

        Not during a cut: what was contributed to that one may be of before the last batch that read from there.
        """
        if self._kept:
            self._hear_all()
        while self._kept and self.machine.cut is None:
            self._step(self._kept.popleft())

    def _leave_when_idle(self) -> None:
        """Between two cuts: the next one has all that was read."""
        if self._leaves and not self.machine.closing and self._query.is_idle():
            self._hear_all()
            if self.machine.cut is None:
                self._step(happens.Closing())

    def _ended(self, error: BaseException | None) -> None:
        self.seat.hold("ended")
        self._query.ended(self.number, error)

    # -- what the machine wants

    def _do(self, effect: Effect) -> None:
        match effect:
            case happens.Poll():
                self.seat.let(POLLING)
            case happens.StopPolling(clear):
                self.seat.hold(POLLING)
                if clear:
                    self.seat.clear()
            case happens.Quiesce(cut):
                self._step(happens.Quiet(cut))  # it reads on
            case happens.SaveState(cut, names):
                self._saves = cut, names
                self._go_on_saving()
            case happens.GoBack(epoch, _, state):
                self.figures.resets += 1
                self._later.look_up.clear()
                self._query.go_back(self.number, epoch, state)
            case happens.Begin(epoch, _, state):
                self._query.begin(self.number, epoch, state)
            case happens.Retire(_, _, counts):
                self.figures.sequences += 1
                if counts:
                    self.figures.dead_letters += self._query.counted(self.number)
            case _:
                pass  # `GoOn`: it never stopped

    def _go_on_saving(self) -> None:
        """Contribute when no commit is under way: else offsets of the sequence before could come after those of this.

        One that was not answered is sent once more, behind it: when that is answered, both are over.
        """
        if self._saves is None or self._saves[0] != self.machine.cut:
            self._saves = None
            return
        cut, names = self._saves
        waiting = self._later
        unanswered, waiting.unanswered = waiting.unanswered, {}
        self._go_on_committing(unanswered)
        if waiting.unanswered:
            return
        self._saves = None
        self._save_state(cut, names)

    def _save_state(self, cut: Cut, names: tuple[str, ...]) -> None:
        try:
            ends, staged, state = self._query.contribute(self.number, cut, names)
        except (KafkaError, OSError) as error:
            log.warning("%s: %s can't be contributed to: %s", self.name, cut, error)
            self._step(happens.NotQuiet(cut, str(error)))
            return
        self._give(cut, self._ends(ends), staged, state)

    def _ends(self, ends: dict[TopicPartition, Position]) -> dict[Part, Position]:
        """Of all that it was given to read; what no batch has read ends where it was begun."""
        found: dict[Part, Position] = {}
        for part, begin in self.machine.begins.items():
            at = ends.get(partition_of(part))
            sound = at is not None and at.topic_id == part.topic_id
            begun = Position(part.group, part.topic, part.topic_id, part.partition, begin)
            found[part] = at if at is not None and sound else begun
        return found

    def _held(self, partitions: set[TopicPartition]) -> None:
        gone = self.seat.handed().keys() - partitions
        if gone:
            self.seat.take(gone)
        self.seat.in_generation(self.machine.identity.generation)

    def _sought(self, position: Position, partition: TopicPartition) -> None:
        self.seat.give(position)

    def _forget(self, parts: tuple[Part, ...]) -> None:
        self.seat.take(map(partition_of, parts))
