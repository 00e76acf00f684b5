"""One shard of the group coordinator: a partition of `__consumer_offsets` and the machine that it feeds.

Events wait in a queue and are stepped together at the end of the loop's turn; all their records go to the journal in
one append, which is durable when it returns; only then are the replies released, in order.

| phase | what it is | who asks gets | what follows |
|---|---|---|---|
| LOADING | the journal is replayed into a machine | COORDINATOR_LOAD_IN_PROGRESS | SERVING, FAILED, FENCED, DAMAGED |
| SERVING | the machine steps events | the machine's reply | FAILED, FENCED, CLOSED; LOADING when asked to load |
| FAILED | something failed: the machine is gone, one load is ordered | COORDINATOR_LOAD_IN_PROGRESS | LOADING |
| FENCED | another coordinator has taken over | NOT_COORDINATOR | nothing |
| DAMAGED | the journal can't be read | UNKNOWN_SERVER_ERROR, which clients tell instead of trying again | nothing |
| CLOSED | the broker ends | COORDINATOR_NOT_AVAILABLE | nothing |

A machine is never kept beside a journal that lacks what it did: whoever waits when SERVING ends is answered with the code that
says why, and the queue goes. So every request has exactly one answer.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from kohort.errors import ErrorCode, FencedError, KafkaError
from kohort.groups.config import GroupConfig
from kohort.groups.events import Event, GroupSettings, Tick, TopicImage, TopicsDeleted
from kohort.groups.machine import GroupMachine
from kohort.groups.outcome import Counted, GroupState, Now, Outcome, Push, Rebalanced, ReplyValue, Told, Work
from kohort.groups.records import Record
from kohort.journal.protocol import Journal

log = logging.getLogger("kohort.groups")

OnReply: TypeAlias = Callable[[ReplyValue | ErrorCode], None]
"""Takes the reply's value, or the code that refuses the request when the shard can't serve it."""

LOAD_SLICE_S = 0.02
"""A shard that loads lets the loop serve others this often."""
STEP_SLICE_EVENTS = 2_000
"""Events stepped before the loop has its turn: bounds what one append holds up."""
APPEND_RECORDS = 100_000
"""No further event is stepped into an append of so many records: bounds its memory."""
QUEUE_EVENTS_MAX = 200_000
"""Beyond it requests are refused with COORDINATOR_NOT_AVAILABLE, which clients retry: memory stays bounded."""
RELOAD_DELAY_S = 0.5
"""What failed is tried again this much later, and twice as much after each further failure without an append between."""
RELOAD_DELAY_MAX_S = 5.0
"""A disk that stays full costs a replay this often."""

GROUP_SHOWN = 200
"""Characters of a group's name in a line of the log: names may be long."""


class Phase(enum.Enum):
    """Where a shard is in its life; see the table above."""

    LOADING = enum.auto()
    SERVING = enum.auto()
    FAILED = enum.auto()
    FENCED = enum.auto()
    DAMAGED = enum.auto()
    CLOSED = enum.auto()

    @property
    def ended(self) -> bool:
        """Whether nothing follows."""
        return self in (Phase.FENCED, Phase.DAMAGED, Phase.CLOSED)


REFUSED = {
    Phase.LOADING: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    Phase.FAILED: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    Phase.FENCED: ErrorCode.NOT_COORDINATOR,
    Phase.DAMAGED: ErrorCode.UNKNOWN_SERVER_ERROR,
    Phase.CLOSED: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
"""What who asks is told where the machine can't be asked."""


Step: TypeAlias = tuple[Event | None, Outcome]
"""What became of one event; None: of loading."""


class Times(Protocol):
    """Takes in durations in seconds."""

    def observe(self, seconds: float) -> None:
        """One more."""


class ShardMetrics(Protocol):
    """Where a shard's times go.

    Attributes:
        events: stepped.
    """

    events: int

    @property
    def queue(self) -> Times:
        """How long the first event of a batch waited."""

    @property
    def step(self) -> Times:
        """How long a batch took to be stepped."""

    @property
    def append(self) -> Times:
        """How long an append took."""


class ShardHost(Protocol):
    """What a shard needs from the broker."""

    def topic_image(self) -> TopicImage:
        """All topics now."""

    def unseen_topics(self, index: int) -> Sequence[str]:
        """Topics made since a shard's journal was last loaded: positions that it holds under their names are of earlier ones."""

    def shard_loaded(self, index: int) -> None:
        """A shard has loaded, without positions of topics that are gone: note that. Raises OSError."""

    def own_settings(self, index: int) -> Mapping[str, GroupSettings]:
        """What groups of a shard have set for themselves, now, by group: it is not in the journal."""

    def run_work(self, work: Work, done: Callable[[Event], None]) -> None:
        """Run long work off the loop and hand its event to `done` on the loop."""

    def push(self, push: Push) -> None:
        """Send a frame no request asked for."""

    def note(self, note: Counted | Rebalanced) -> None:
        """A figure moved on."""

    @property
    def metrics(self) -> ShardMetrics:
        """Where the shard's times go."""


class GroupShard:
    """The coordinator of the groups whose names hash to one journal partition. All methods run on the loop."""

    def __init__(
        self,
        index: int,
        loop: asyncio.AbstractEventLoop,
        journal: Journal,
        term: int,
        config: GroupConfig,
        host: ShardHost,
    ) -> None:
        self.index = index
        self.phase = Phase.LOADING
        self._loop = loop
        self._journal = journal
        self._term = term
        self._config = config
        self._host = host
        self._machine: GroupMachine | None = None
        self._queue: list[Event] = []
        self._waiting: dict[int, OnReply] = {}
        self._scheduled = False
        self._queued_at = 0.0
        self._times = host.metrics
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._ticking = False
        self._reload: asyncio.TimerHandle | None = None
        self._loads = 0
        self._failures = 0
        self.records_written = 0

    @property
    def loaded(self) -> bool:
        """Whether requests are served."""
        return self.phase is Phase.SERVING

    @property
    def damaged(self) -> bool:
        """Whether its groups are not served for damage in its journal."""
        return self.phase is Phase.DAMAGED

    def group_states(self) -> Iterator[tuple[str, GroupState]]:
        """Protocol and state of every group; none while it loads."""
        return iter(()) if self._machine is None else self._machine.group_states()

    # -- loading

    def load(self) -> None:
        """Begin to replay the journal; requests are refused until that is done. A shard whose life has ended stays as it is."""
        if self.phase.ended:
            return
        self._unload(Phase.LOADING, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        self._loads += 1
        self._replay(self._loads, GroupMachine(self._config), self._committed())

    def _committed(self) -> Iterator[Any]:
        self._journal.begin(self._term)
        yield from self._journal.replay()

    def _replay(self, load: int, machine: GroupMachine, batches: Iterator[Any]) -> None:
        """Apply what the journal holds, in slices; a later load or the end stops it."""
        if load != self._loads or self.phase is not Phase.LOADING:
            return
        until = time.monotonic() + LOAD_SLICE_S
        try:
            for records in batches:
                for record in records:
                    machine.apply(record)
                if time.monotonic() > until:
                    self._loop.call_soon(self._replay, load, machine, batches)
                    return
            steps: list[Step] = [
                (None, machine.on_loaded(now(), self._host.topic_image(), self._host.own_settings(self.index)))
            ]
            if unseen := self._host.unseen_topics(self.index):
                event = TopicsDeleted(tuple(unseen))
                steps.append((event, machine.step(event, now())))
        except FencedError as error:
            self._fenced(error)
        except OSError as error:
            self._failed(f"the journal can't be loaded ({error})")
        except KafkaError as error:
            log.error("shard %d: its groups are not served: %s", self.index, error.message)
            self._unload(Phase.DAMAGED, REFUSED[Phase.DAMAGED])
        except Exception as fault:  # noqa: BLE001  # a fault of ours, which is logged
            self._failed("a fault while it loads", fault)
        else:
            self._machine, self.phase = machine, Phase.SERVING
            self._finish(steps)
            if self.loaded:
                self._begin()

    def _begin(self) -> None:
        """Serve, once it is noted that what the journal held of topics that are gone is no more in it."""
        try:
            self._host.shard_loaded(self.index)
        except OSError as error:
            self._failed(f"what has been loaded can't be noted ({error})")

    # -- events

    def ask(self, event: Any, on_reply: OnReply) -> None:
        """Queue a request's event; `on_reply` is called once, with the reply or the code that refuses it."""
        if self.phase is not Phase.SERVING:
            on_reply(REFUSED[self.phase])
        elif len(self._queue) >= QUEUE_EVENTS_MAX:
            on_reply(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        else:
            self._waiting[event.request] = on_reply
            self._enqueue(event)

    def tell(self, event: Event) -> None:
        """Queue the shell's news; a shard that loads will see it in what it loads from."""
        if self.phase is Phase.SERVING:
            self._enqueue(event)

    def settle(self) -> bool:
        """Step the first of what is queued, now. Returns whether news of deleted topics is queued still.

        When not, no position of them is in the journal any more, or the shard serves no longer.
        """
        if self._queue:
            self._run()
        return any(type(event) is TopicsDeleted for event in self._queue)

    def _enqueue(self, event: Event) -> None:
        self._queue.append(event)
        if not self._scheduled:
            self._scheduled = True
            self._queued_at = time.perf_counter()
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        machine = self._machine
        if machine is None:
            return
        events = self._queue
        self._queue = []
        began = time.perf_counter()
        self._times.queue.observe(began - self._queued_at)
        time_now = now()
        step = machine.step
        steps: list[Step] = []
        records = 0
        for event in events[:STEP_SLICE_EVENTS]:
            try:
                outcome = step(event, time_now)
            except Exception as fault:  # noqa: BLE001  # a fault of ours, which is logged
                self._queue = events[len(steps) + 1 :]
                self._fault(event, steps, fault)
                return
            steps.append((event, outcome))
            records += len(outcome.records)
            if records >= APPEND_RECORDS:
                break
        if len(steps) < len(events):
            self._queue = events[len(steps) :]
            self._scheduled = True
            self._loop.call_soon(self._run)
        self._times.events += len(steps)
        self._times.step.observe(time.perf_counter() - began)
        self._finish(steps)

    # -- outcomes

    def _finish(self, steps: list[Step]) -> None:
        """Make the steps' records durable with one append, then let everything else out."""
        records: list[Record] = []
        for _, outcome in steps:
            if outcome.records:
                records += outcome.records
        if records and not self._append(records, steps):
            return
        for _, outcome in steps:
            for token, value in outcome.replies:
                self._answer(token, value)
            for push in outcome.pushes:
                self._host.push(push)
            for work in outcome.work:
                self._host.run_work(work, self.tell)
            for note in outcome.notes:
                if isinstance(note, Told):
                    log.log(note.level, "group %s: %s", note.group_id, note.text, extra={"group_id": note.group_id})
                else:
                    self._host.note(note)
        self._set_timer()

    def _append(self, records: list[Record], steps: list[Step]) -> bool:
        """Whether the records are durable; when not, their steps are dealt with."""
        began = time.perf_counter()
        try:
            self._journal.append(self._term, records, time.time_ns() // 1_000_000)
        except FencedError as error:
            self._fenced(error)
        except OSError as error:
            self._failed(f"the journal could not be written ({error})")
        except KafkaError as error:
            self._refused(steps, error)
        except Exception as fault:  # noqa: BLE001  # a fault of ours, which is logged
            self._failed("a fault in the journal", fault)
        else:
            self._times.append.observe(time.perf_counter() - began)
            self.records_written += len(records)
            self._failures = 0
            return True
        return False

    def _refused(self, steps: list[Step], error: KafkaError) -> None:
        """The journal takes no such records: each step is appended by itself, as far as that goes."""
        if len(steps) > 1:
            for step in steps:
                self._finish([step])
                if self.phase is not Phase.SERVING:
                    return
            return
        ((event, _),) = steps
        self._answer(getattr(event, "request", None), error.code)
        self._failed(f"the journal does not take what comes of {_name(event)} ({error.message})")

    def _answer(self, token: int | None, value: ReplyValue | ErrorCode) -> None:
        """Answer a request, if it still waits; a fault of who takes the answer must not keep others from theirs."""
        on_reply = self._waiting.pop(token, None) if token is not None else None
        if on_reply is not None:
            try:
                on_reply(value)
            except Exception as fault:
                log.error("shard %d: an answer could not be handed out", self.index, exc_info=fault)

    # -- the ends of serving

    def _fault(self, event: Event, before: list[Step], fault: Exception) -> None:
        """A fault in the coordinator: what came before the event counts, the half-changed machine is thrown away."""
        self._finish(before)
        if self.phase is Phase.SERVING:
            self._answer(getattr(event, "request", None), ErrorCode.UNKNOWN_SERVER_ERROR)
            self._failed(f"a fault in the coordinator at {_name(event)}", fault)

    def _failed(self, why: str, fault: Exception | None = None) -> None:
        """Throw the machine away, and order one load."""
        delay_s = min(RELOAD_DELAY_S * 2**self._failures, RELOAD_DELAY_MAX_S)
        self._failures += 1
        log.error("shard %d: %s; it is loaded again in %.1f s", self.index, why, delay_s, exc_info=fault)
        self._unload(Phase.FAILED, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._reload = self._loop.call_later(delay_s, self.load)

    def _fenced(self, error: FencedError) -> None:
        log.error("shard %d: another coordinator has taken over: %s", self.index, error)
        self._unload(Phase.FENCED, ErrorCode.NOT_COORDINATOR)

    def close(self) -> None:
        """Stop; whoever waits is sent to find the coordinator again."""
        self._unload(Phase.CLOSED, ErrorCode.NOT_COORDINATOR)

    def _unload(self, phase: Phase, error: ErrorCode) -> None:
        """Leave the phase with all that belongs to it: machine, queue, timers, and who waits, who is told `error`."""
        self.phase = phase
        self._machine = None
        self._queue = []
        for timer in (self._timer, self._reload):
            if timer is not None:
                timer.cancel()
        self._timer = self._reload = None
        for token in [*self._waiting]:
            self._answer(token, error)

    # -- time

    def _set_timer(self) -> None:
        machine = self._machine
        if self._ticking:
            return
        due = machine.next_deadline_ms() if machine is not None else None
        timer = self._timer
        if timer is not None:
            if due is not None and self._timer_at <= due:
                return  # it fires early and is then set anew: cheaper than moving it at each heartbeat
            timer.cancel()
            self._timer = None
        if due is not None:
            self._timer_at = due
            self._timer = self._loop.call_later(max(0.0, due / 1000 - time.monotonic()), self._on_timer)

    def _on_timer(self) -> None:
        """Tick once the loop has looked at its sockets: who spoke while the broker stood still was not silent."""
        self._timer = None
        self._ticking = True
        # The loop may make the first call before it looks, but not the second.
        self._loop.call_soon(self._loop.call_soon, self._tick)

    def _tick(self) -> None:
        self._ticking = False
        machine = self._machine
        if machine is None:
            return
        due = machine.next_deadline_ms()
        if due is not None and due <= now().mono_ms:
            self._enqueue(Tick())
        else:
            self._set_timer()


def now() -> Now:
    """The time of a step."""
    return Now(time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000_000)


def _name(event: Event | None) -> str:
    """An event for the log."""
    if event is None:
        return "loading"
    group = getattr(event, "group_id", None)
    return type(event).__name__ if group is None else f"{type(event).__name__} of group {group[:GROUP_SHOWN]}"
