"""What became of events, on its way to the journal: it is let out when it is durable, and in order.

Where the journal does not tell its owner at once that another has begun a term (`Journal.proof_ms`), nothing is
answered without proof either: a deposed owner could keep members working whose sessions its successor ends, or answer
with what the successor has changed. Proof is an append that is acknowledged, counted from when it was sent. An answer
leaves while the newest is young enough, that of a read when one is that was sent after the read came. If nothing else
is to be written, an append without records is sent, on which all stand that came before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from kohort.coordinator.driver import Action, Driver
from kohort.errors import FencedError, KafkaError
from kohort.groups.events import (
    ConsumerGroupDescribe,
    DeleteGroups,
    DescribeGroups,
    Event,
    ListGroups,
    OffsetDelete,
    OffsetFetch,
)
from kohort.groups.outcome import Now, Outcome
from kohort.groups.records import Record
from kohort.groups.sizes import record_bytes
from kohort.journal.protocol import Journal

Step: TypeAlias = tuple[Event | None, Outcome]
"""What became of one event; None: of loading."""

APPEND_RECORDS = 100_000
"""No further event is stepped into an append of so many records.

This bounds its memory, and how long it holds the next one up.
"""
WAITING_STEPS = 100_000
"""So many steps, with records or not, wait for appends; what comes then stays in the queue.

This bounds the memory of their replies.
"""


READING = frozenset(
    (OffsetFetch, DescribeGroups, ListGroups, ConsumerGroupDescribe, DeleteGroups, OffsetDelete),
)
"""Events whose answers say what there is, or what there was not to be deleted: nobody may have changed it since."""


class Gathered:
    """Steps that will be one append.

    Attributes:
        alone: the journal did not take them with others; no more are put to them.
        records, size: how many records they have, and about how many bytes (0 where the journal has no bound).
    """

    __slots__ = ("alone", "records", "size", "steps")

    def __init__(self, steps: list[Step], *, alone: bool) -> None:
        self.steps = steps
        self.alone = alone
        self.records = self.size = 0


class Appends:
    """The steps of one load, from the machine to the world: an `Owner` of the journal's term.

    One append is on its way at a time. What the machine does meanwhile is gathered into the next; what wrote nothing,
    as a read, waits with what it may have seen. A journal that answers at once never makes anything wait.

    Attributes:
        bytes_max: no further event is stepped into an append of so many bytes, None: of any number.
        waiting: steps that wait.
        ended: the load is over.
        wrote: an append was durable.
        proven_ms: when the newest append that was answered later and is durable was sent: so long this was the owner.
        proof_ms: how old the proof may be for which answers leave, as the journal says; None: they need none.
    """

    def __init__(
        self,
        journal: Journal,
        term: int,
        driver: Driver,
        release: Callable[[list[Step]], None],
        lost: Callable[[Exception, Step | None], None],
    ) -> None:
        """Args say where steps go.

        Args:
            release: takes steps that are durable, in order.
            lost: takes why an append failed, and the step that the journal refuses to take if that is why. Nothing
                comes after it.
        """
        self._journal = journal
        self._term = term
        self._driver = driver
        self._clock = driver.clock
        self._took = driver.metrics.append.observe
        self._release = release
        self._lost = lost
        self.bytes_max = journal.append_bytes_max
        self.proof_ms = journal.proof_ms
        self._elapsed_ms = driver.elapsed_ms
        self._proof_at: int | None = None
        self._sending_at = 0
        self._unproven: list[Step] = []
        self.waiting = 0
        self._token: int | None = None
        self._sent: list[Step] = []
        self._sent_at = 0.0
        self._behind: deque[Gathered] = deque()
        self._last: Action | None = None
        self._reading: Action | None = None
        self.ended = False
        self.proven_ms: int | None = None
        self.wrote = False

    @property
    def records(self) -> int:
        """Records that the next append has already."""
        return self._behind[-1].records if self._behind else 0

    @property
    def size(self) -> int:
        """About how many bytes they take; 0 where the journal has no bound."""
        return self._behind[-1].size if self._behind else 0

    @property
    def full(self) -> bool:
        """Whether no event may be stepped before something is durable."""
        full = self.records >= APPEND_RECORDS or (self.bytes_max is not None and self.size >= self.bytes_max)
        return full or self.waiting >= WAITING_STEPS

    def add(self, steps: list[Step], now: Now) -> None:
        """Take what became of events `now`; it is let out at once if nothing has to be waited for."""
        if self._token is None:
            self._send(steps, now)
            if self._behind or self._unproven:
                self._go_on()
            return
        self.waiting += len(steps)
        records = [record for _, outcome in steps for record in outcome.records]
        if not records and not self._behind and not (self.proof_ms is not None and _reads(steps)):
            self._sent += steps
            return
        if not self._behind or self._behind[-1].alone:
            self._behind.append(Gathered([], alone=False))
        gathered = self._behind[-1]
        gathered.steps += steps
        gathered.records += len(records)
        if self.bytes_max is not None:
            gathered.size += sum(map(record_bytes, records))

    def has(self, kind: type) -> bool:
        """Whether what became of such an event is not durable yet."""
        waiting = (self._unproven, self._sent, *(gathered.steps for gathered in self._behind))
        return any(type(event) is kind for steps in waiting for event, _ in steps)

    def when_out(self, action: Action) -> None:
        """Call `action` when all that was added is out; never if it is lost or the load has ended."""
        self._last = action
        self._go_on()

    def end(self) -> None:
        """The load has ended: what waits is forgotten, what the journal still says of it is ignored."""
        self.ended = True
        self._token, self._last, self._reading = None, None, None
        self._sent, self._unproven, self.waiting = [], [], 0
        self._behind.clear()

    # -- what the journal says

    def durable(self, token: int, sent_ms: int) -> None:
        """See `Owner`."""
        if self.ended or token != self._token:
            return
        steps, self._token, self._sent = self._sent, None, []
        self.proven_ms = sent_ms
        self._took(self._clock() - self._sent_at)
        self.wrote = True
        if self.proof_ms is not None:
            steps = self._proved(steps)
        self.waiting -= len(steps)
        self._release(steps)
        self._go_on()

    def lost(self, reason: Exception) -> None:
        """See `Owner`."""
        if not self.ended:
            self._fail(reason, None)

    def more(self) -> None:
        """See `Owner`."""
        reading, self._reading = self._reading, None
        if reading is not None:
            self._driver.soon(reading)

    def read_later(self, action: Action) -> None:
        """Go on with reading when the journal says so."""
        self._reading = action

    # -- appending

    def _send(self, steps: list[Step], now: Now) -> None:
        records: list[Record] = []
        for _, outcome in steps:
            if outcome.records:
                records += outcome.records
        if records or (self.proof_ms is not None and self._needs_proof(steps)):
            began = self._clock()
            if self.proof_ms is not None:
                self._sending_at = self._elapsed_ms()
            try:
                token = self._journal.append(self._term, records, now.wall_ms)
            except Exception as error:  # noqa: BLE001  # told to the shard, which looks at it
                refused = isinstance(error, KafkaError) and not isinstance(error, FencedError | OSError)
                if refused and len(steps) > 1:
                    self._behind.extendleft(Gathered([step], alone=True) for step in reversed(steps))
                    self.waiting += len(steps)
                else:
                    self._fail(error, steps[0] if refused and steps else None)
                return
            if token is not None:
                self._token, self._sent, self._sent_at = token, steps, began
                self.waiting += len(steps)
                return
            self._took(self._clock() - began)
            self.wrote = True
            if self.proof_ms is not None:
                self.waiting += len(steps)
                steps = self._proved(steps)
                self.waiting -= len(steps)
        self._release(steps)

    def _go_on(self) -> None:
        """Append what was gathered, as far as the journal answers at once."""
        while self._token is None and (self._behind or self._unproven):
            steps = self._behind.popleft().steps if self._behind else []
            self.waiting -= len(steps)
            self._send(steps, self._driver.now())
        if self._token is None and self._last is not None:
            last, self._last = self._last, None
            last()

    # -- proof

    def _needs_proof(self, steps: list[Step]) -> bool:
        """Whether steps without records wait for an append all the same."""
        if self._unproven or _reads(steps):
            return True
        return not self._is_proven() and any(outcome.replies or outcome.pushes for _, outcome in steps)

    def _is_proven(self) -> bool:
        """Whether an answer may leave now."""
        assert self.proof_ms is not None
        return self._proof_at is not None and self._elapsed_ms() - self._proof_at <= self.proof_ms

    def _proved(self, steps: list[Step]) -> list[Step]:
        """What may leave now that an append is durable: all, or nothing where that took so long that it proves nothing.

        Then they wait for the next append, which is sent at once.
        """
        self._proof_at = self._sending_at
        steps, self._unproven = self._unproven + steps, []
        if self._is_proven():
            return steps
        self._unproven = steps
        return []

    def _fail(self, error: Exception, refused: Step | None) -> None:
        self.end()
        self._lost(error, refused)


def _reads(steps: list[Step]) -> bool:
    """Whether an answer among these is only as good as an append that is sent from now on."""
    return any(type(event) in READING for event, _ in steps)
