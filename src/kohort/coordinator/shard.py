"""One shard of the group coordinator: a partition of `__consumer_offsets` and the state machine of its records.

Events wait in a queue and are processed together in the next turn that the driver gives. All their records go to the
journal in one append. Only when the append is durable are the replies sent, in order.

| phase | meaning | reply to requests | next phase |
|---|---|---|---|
| LOADING | the journal's replay, and its appends | COORDINATOR_LOAD_IN_PROGRESS | SERVING, FAILED, FENCED, DAMAGED |
| SERVING | the machine steps events | its reply | FAILED (`expects_takeover`: CLOSED), FENCED, CLOSED, LOADING |
| FAILED | after a failure: no machine, one reload is scheduled | COORDINATOR_LOAD_IN_PROGRESS | LOADING |
| FENCED | another coordinator has taken over | NOT_COORDINATOR | none |
| DAMAGED | the journal cannot be read | UNKNOWN_SERVER_ERROR, which clients report and do not retry | none |
| CLOSED | the broker is shutting down | COORDINATOR_NOT_AVAILABLE | none |

A machine is never kept beside a journal that lacks its records. When SERVING ends, waiting requests are answered with
the code of the cause, and the queue is dropped. So every request has exactly one reply.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, TypeAlias

from kohort.coordinator.driver import Action, Driver, ScheduledCall
from kohort.errors import ErrorCode, FencedError, KafkaError
from kohort.groups.config import GroupConfig
from kohort.groups.effects import CoordinatorMeter, CounterIncreased, Effects, GroupState, LogLine, Now, ReplyValue
from kohort.groups.events import (
    ConsumerGroupDescribe,
    DeleteGroups,
    DescribeGroups,
    Event,
    ListGroups,
    OffsetDelete,
    OffsetFetch,
    Request,
    TimersDue,
    TopicsDeleted,
    TransactionEnded,
)
from kohort.groups.machine import GroupMachine
from kohort.groups.records import Record
from kohort.groups.sizes import record_bytes
from kohort.io.backoff import exponential_backoff
from kohort.journal.protocol import Journal

# -- Appends and ownership proofs
#
# The effects of steps are released in order as soon as they are durable.
#
# Some journals tell their owner late that another one has begun a term (`Journal.ownership_proof_ms`). With such a
# journal nothing is answered without an ownership proof. A deposed owner could otherwise keep members alive whose
# sessions its successor ends, or contradict what the successor has changed. The proof is an acknowledged append; its
# age counts from when it was sent. A reply leaves while the newest proof is young enough; the reply to a read needs a
# proof that was sent after the read came. If there is nothing else to write, an empty append is sent. It serves all
# replies that came before it.

Step: TypeAlias = tuple[Event | None, Effects]
"""An event and its effects; the event is None for the effects of loading."""

APPEND_RECORDS = 100_000
"""An append takes in no further event once it has this many records.

This bounds its memory, and how long it delays the next append.
"""
WAITING_STEPS = 100_000
"""The number of steps, with or without records, that wait for appends; later events stay in the queue.

This bounds the memory of their replies.
"""


READING = frozenset(
    (OffsetFetch, DescribeGroups, ListGroups, ConsumerGroupDescribe, DeleteGroups, OffsetDelete),
)
"""Events whose replies report the present state, so that no other owner may have changed it since."""


class PendingAppend:
    """The steps whose records form one append to the journal.

    Attributes:
        alone: whether no steps may be added: the journal refused these steps together with others, so they are retried
            alone.
        records, size: the number of their records, and about how many bytes (0 if the journal has no bound).
    """

    __slots__ = ("alone", "records", "size", "steps")

    def __init__(self, steps: list[Step], *, alone: bool) -> None:
        self.steps = steps
        self.alone = alone
        self.records = self.size = 0


class Appends:
    """The appends of one load of a shard, from the state machine's steps to the release of their replies.

    A step is an event with its effects: records to append, and replies to send when those records are durable. One
    append is under way at a time. Steps that the machine makes meanwhile form the next one. A step without records,
    such as a read, waits for the appends whose effects it may have seen. With a journal that answers immediately,
    nothing ever waits. The journal calls this object as the `Owner` of its term.

    Attributes:
        bytes_max: an append takes in no further event once it has this many bytes, None: no limit.
        waiting: the number of steps that wait for an append to be durable.
        ended: whether the load is over, so that nothing is appended any more.
        wrote: whether any append of this load has become durable.
        proven_ms: the send time of the newest durable append with a later answer: until then this was the owner.
        ownership_proof_ms: the greatest age of a proof for replies, as the journal demands; None: no proof is needed.
    """

    def __init__(
        self,
        journal: Journal,
        term: int,
        driver: Driver,
        release: Callable[[list[Step]], None],
        lost: Callable[[Exception, Step | None], None],
    ) -> None:
        """Create the queue of a shard's appends for one term of its journal.

        Args:
            journal: the journal.
            term: the owner's term.
            driver: the shard's driver.
            release: receives the steps whose records are durable, in order, to carry out their effects.
            lost: receives the error of a failed append, and the step if the journal refuses just that. No other call
                follows.
        """
        self._journal = journal
        self._term = term
        self._driver = driver
        self._clock = driver.clock
        self._took = driver.metrics.append.observe
        self._release = release
        self._lost = lost
        self.bytes_max = journal.append_bytes_max
        self.ownership_proof_ms = journal.ownership_proof_ms
        self._elapsed_ms = driver.clock_with_sleep_ms
        self._ownership_proved_at: int | None = None
        self._sending_at = 0
        self._unproven: list[Step] = []
        self.waiting = 0
        self._token: int | None = None
        self._sent: list[Step] = []
        self._sent_at = 0.0
        self._behind: deque[PendingAppend] = deque()
        self._last: Action | None = None
        self._reading: Action | None = None
        self.ended = False
        self.proven_ms: int | None = None
        self.wrote = False

    @property
    def next_append_records(self) -> int:
        """The number of records in the next append."""
        return self._behind[-1].records if self._behind else 0

    @property
    def next_append_bytes(self) -> int:
        """The estimated bytes of the next append; 0 if the journal has no bound."""
        return self._behind[-1].size if self._behind else 0

    @property
    def is_full(self) -> bool:
        """Whether no event may be processed before an append is durable."""
        if self.next_append_records >= APPEND_RECORDS or self.waiting >= WAITING_STEPS:
            return True
        return self.bytes_max is not None and self.next_append_bytes >= self.bytes_max

    def add(self, steps: list[Step], now: Now) -> None:
        """Queue the records of processed events. Without records to wait for, carry out the effects at once."""
        if self._token is None:
            self._send(steps, now)
            if self._behind or self._unproven:
                self._append_next()
            return
        self.waiting += len(steps)
        records = [record for _, outcome in steps for record in outcome.records]
        if not records and not self._behind and not (self.ownership_proof_ms is not None and _reads(steps)):
            self._sent += steps
            return
        if not self._behind or self._behind[-1].alone:
            self._behind.append(PendingAppend([], alone=False))
        pending = self._behind[-1]
        pending.steps += steps
        pending.records += len(records)
        if self.bytes_max is not None:
            pending.size += sum(map(record_bytes, records))

    def awaits_durability_of(self, kind: type) -> bool:
        """Return whether an event of this type was processed and its records are not durable yet."""
        waiting = (self._unproven, self._sent, *(pending.steps for pending in self._behind))
        return any(type(event) is kind for steps in waiting for event, _ in steps)

    def call_when_released(self, action: Action) -> None:
        """Call `action` once all effects queued so far are carried out; never if an append fails or the load ends."""
        self._last = action
        self._append_next()

    def abandon_load(self) -> None:
        """End the load: drop waiting steps, and ignore later answers of the journal."""
        self.ended = True
        self._token, self._last, self._reading = None, None, None
        self._sent, self._unproven, self.waiting = [], [], 0
        self._behind.clear()

    # -- answers of the journal

    def on_append_durable(self, token: int, sent_ms: int) -> None:
        """Send the replies that waited for a durable append, and begin the next append (`Owner.on_append_durable`)."""
        if self.ended or token != self._token:
            return
        steps, self._token, self._sent = self._sent, None, []
        self.proven_ms = sent_ms
        self._took(self._clock() - self._sent_at)
        self.wrote = True
        if self.ownership_proof_ms is not None:
            steps = self._proved(steps)
        self.waiting -= len(steps)
        self._release(steps)
        self._append_next()

    def on_journal_lost(self, reason: Exception) -> None:
        """Fail this load: an append under way may not be durable, the term takes no more (`Owner.on_journal_lost`)."""
        if not self.ended:
            self._fail(reason, None)

    def on_records_available(self) -> None:
        """Continue to load records after the journal had none available for a while (`Owner.on_records_available`)."""
        reading, self._reading = self._reading, None
        if reading is not None:
            self._driver.call_soon(reading)

    def continue_when_notified(self, action: Action) -> None:
        """Let the load continue with `action` when the journal calls `on_records_available`."""
        self._reading = action

    # -- appending

    def _send(self, steps: list[Step], now: Now) -> None:
        records: list[Record] = []
        for _, outcome in steps:
            if outcome.records:
                records += outcome.records
        if records or (self.ownership_proof_ms is not None and self._needs_ownership_proof(steps)):
            began = self._clock()
            if self.ownership_proof_ms is not None:
                self._sending_at = self._elapsed_ms()
            try:
                token = self._journal.append(self._term, records, now.wall_ms)
            except Exception as error:  # noqa: BLE001  # passed to the shard, which handles it
                refused = isinstance(error, KafkaError) and not isinstance(error, FencedError | OSError)
                if refused and len(steps) > 1:
                    self._behind.extendleft(PendingAppend([step], alone=True) for step in reversed(steps))
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
            if self.ownership_proof_ms is not None:
                self.waiting += len(steps)
                steps = self._proved(steps)
                self.waiting -= len(steps)
        self._release(steps)

    def _append_next(self) -> None:
        """Append the queued steps to the journal, one append after the other, until one is not answered at once."""
        while self._token is None and (self._behind or self._unproven):
            steps = self._behind.popleft().steps if self._behind else []
            self.waiting -= len(steps)
            self._send(steps, self._driver.now())
        if self._token is None and self._last is not None:
            last, self._last = self._last, None
            last()

    # -- ownership proof

    def _needs_ownership_proof(self, steps: list[Step]) -> bool:
        """Return whether steps that write no records must still wait for an append, to prove ownership."""
        if self._unproven or _reads(steps):
            return True
        return not self._is_proven() and any(outcome.replies or outcome.pushes for _, outcome in steps)

    def _is_proven(self) -> bool:
        """Return whether ownership is proven recently enough for replies to be sent now."""
        assert self.ownership_proof_ms is not None
        return (
            self._ownership_proved_at is not None
            and self._elapsed_ms() - self._ownership_proved_at <= self.ownership_proof_ms
        )

    def _proved(self, steps: list[Step]) -> list[Step]:
        """Return the steps that may be released after a durable append has proved ownership of the journal.

        All wait for the next append, which is sent immediately, if this one took so long that the proof has expired.
        """
        self._ownership_proved_at = self._sending_at
        steps, self._unproven = self._unproven + steps, []
        if self._is_proven():
            return steps
        self._unproven = steps
        return []

    def _fail(self, error: Exception, refused: Step | None) -> None:
        self.abandon_load()
        self._lost(error, refused)


def _reads(steps: list[Step]) -> bool:
    """Return whether one of these steps answers a read. Its ownership proof must be sent after the read has arrived."""
    return any(type(event) in READING for event, _ in steps)


OnReply: TypeAlias = Callable[[ReplyValue | ErrorCode], None]
"""Receives the reply's value, or the error code if the shard cannot serve the request."""

LOAD_SLICE_S = 0.02
"""The time slice of a load, after which the event loop serves others."""
STEP_SLICE_EVENTS = 2_000
"""The number of events processed before the event loop continues, which bounds the delay by one append."""
QUEUE_EVENTS_MAX = 200_000
"""The length of the queue. Further requests get COORDINATOR_NOT_AVAILABLE, which clients retry, to bound memory."""
RELOAD_DELAY_MS = 500
"""The delay of a reload after a failure; it doubles after each further failure without an append between."""
RELOAD_DELAY_MAX_MS = 5_000
"""The longest such delay: a disk that stays full costs a replay this often."""

GROUP_SHOWN = 200
"""The number of characters of a group's name in a log line, because names may be long."""


class Phase(enum.Enum):
    """A phase in the life of a shard; the table in the module's docstring describes them."""

    LOADING = enum.auto()
    SERVING = enum.auto()
    FAILED = enum.auto()
    FENCED = enum.auto()
    DAMAGED = enum.auto()
    CLOSED = enum.auto()

    @property
    def is_final(self) -> bool:
        """Whether the phase is final: fenced, damaged or closed."""
        return self in (Phase.FENCED, Phase.DAMAGED, Phase.CLOSED)


_SERVING: Final = Phase.SERVING
"""Kept, because on Python 3.11 looking up a member of an enumeration costs as much as a call."""

REFUSED = {
    Phase.LOADING: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    Phase.FAILED: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    Phase.FENCED: ErrorCode.NOT_COORDINATOR,
    Phase.DAMAGED: ErrorCode.UNKNOWN_SERVER_ERROR,
    Phase.CLOSED: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
"""Error code returned to requests in each phase that does not serve."""


class Shard:
    """The coordinator of the groups whose names hash to one journal partition.

    A shard has no event loop and no clock of its own; its driver schedules its turns and supplies the time.

    Attributes:
        expects_takeover: another process will own the shard next. Fencing is expected, and a failure causes no reload.
    """

    def __init__(
        self,
        index: int,
        journal: Journal,
        term: int,
        config: GroupConfig,
        driver: Driver,
        machine: Callable[[GroupConfig], GroupMachine] = GroupMachine,
    ) -> None:
        self.index = index
        self.phase = Phase.LOADING
        self.expects_takeover = False
        self._journal = journal
        self._term = term
        self._config = config
        self._driver = driver
        self._make_machine = machine
        self._machine: GroupMachine | None = None
        self._queue: list[Event] = []
        self._waiting: dict[int, OnReply] = {}
        self._scheduled = False
        self._queued_at = 0.0
        self._times = driver.metrics
        self._clock = driver.clock
        self._timer: ScheduledCall | None = None
        self._timer_at = 0
        self._ticking = False
        self._reload: ScheduledCall | None = None
        self._appends: Appends | None = None
        self._failures = 0

    @property
    def is_loaded(self) -> bool:
        """Whether requests are served."""
        return self.phase is Phase.SERVING and self._machine is not None

    @property
    def is_damaged(self) -> bool:
        """Whether damage in the journal keeps its groups from being served."""
        return self.phase is Phase.DAMAGED

    def group_states(self) -> Iterator[tuple[str, GroupState]]:
        """Return the protocol and state of every group; none during a load."""
        return iter(()) if self._machine is None else self._machine.group_states()

    def has_group(self, group_id: str) -> bool:
        """Return whether there is such a group; False during a load."""
        return self._machine is not None and self._machine.has_group(group_id)

    @property
    def has_unpublished_push_groups(self) -> bool:
        """Whether push groups have changed since they were last published (`GroupMachine`); False during a load."""
        return self._machine is not None and self._machine.has_unpublished_push_groups

    @property
    def is_idle(self) -> bool:
        """Whether the shard is idle: no event is queued, and no step waits for the journal."""
        return not self._queue and (self._appends is None or not self._appends.waiting)

    @property
    def holds_transactions(self) -> bool:
        """Whether the journal can hold offsets of open transactions (`Journal.holds_transactions`)."""
        return self._journal.holds_transactions

    # -- loading

    def start_loading(self) -> None:
        """Begin to replay the journal; requests are refused until that is done.

        Does nothing in a final phase.
        """
        if self.phase.is_final:
            return
        self._unload(Phase.LOADING, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        appends = self._appends = Appends(self._journal, self._term, self._driver, self._release, self._lost)
        self._replay(appends, self._make_machine(self._config), self._committed(appends))

    def _committed(self, appends: Appends) -> Iterator[Any]:
        yield from self._journal.begin_term(self._term, appends)

    def _replay(self, appends: Appends, machine: GroupMachine, batches: Iterator[Any]) -> None:
        """Apply the journal's records in time slices, until a later load or the end stops it."""
        if appends.ended:
            return
        until = self._driver.clock() + LOAD_SLICE_S
        try:
            for records in batches:
                if records is None:
                    appends.continue_when_notified(partial(self._replay, appends, machine, batches))
                    return
                for record in records:
                    machine.apply(record)
                if self._driver.clock() > until:
                    self._driver.call_soon(partial(self._replay, appends, machine, batches))
                    return
            time_now, driver = self._driver.now(), self._driver
            settings, ownership_proof_ms = (
                driver.group_settings_of_shard(self.index),
                self._journal.ownership_proof_ms or 0,
            )
            loaded = machine.on_loaded(time_now, driver.topic_image(), settings, ownership_proof_ms)
            steps: list[Step] = [(None, loaded)]
            if unseen := driver.topics_since_load(self.index):
                event = TopicsDeleted(tuple(unseen))
                steps.append((event, machine.step(event, time_now)))
        except FencedError as error:
            self._fenced(error)
        except OSError as error:
            self._discard_machine(f"journal not loaded: {error}")
        except KafkaError as error:
            self._driver.log_error(f"shard {self.index}: journal damaged, groups not served: {error.message}")
            self._ended(Phase.DAMAGED, error)
        except Exception as fault:  # noqa: BLE001  # a bug here, which is logged
            self._discard_machine("a fault while it loads", fault)
        else:
            self._machine = machine
            appends.add(steps, time_now)
            if not appends.ended:
                appends.call_when_released(self._begin_serving)

    def _begin_serving(self) -> None:
        """Begin to serve: the records of the load are durable, and the driver records the load."""
        try:
            self._driver.handle_shard_loaded(self.index)
        except OSError as error:
            self._discard_machine(f"load not recorded: {error}")
            return
        self.phase = Phase.SERVING
        if self._queue and not self._scheduled:
            self._wake()

    # -- events

    def ask(self, event: Request | TransactionEnded, on_reply: OnReply) -> None:
        """Queue a request's event; `on_reply` is called once, with the reply or an error code."""
        if self.phase is not _SERVING:
            on_reply(REFUSED[self.phase])
        elif len(self._queue) >= QUEUE_EVENTS_MAX:
            on_reply(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        else:
            assert event.request is not None, event
            self._waiting[event.request] = on_reply
            self._enqueue(event)

    def queue_event(self, event: Event) -> None:
        """Queue an event without reply.

        Until the journal is replayed, the event is dropped: the load finds its content in the journal or the driver.
        """
        if self.phase is _SERVING or self._machine is not None:
            self._enqueue(event)

    def process_queued_events(self) -> bool:
        """Process the first queued events now, and report whether deleted topics still have offsets in the journal.

        Returns:
            Whether a deletion of topics is still queued, or on its way to the journal. If not, the journal holds no
            offsets of these topics any more, or the shard no longer serves.
        """
        if self._queue:
            self._run()
        queued = any(type(event) is TopicsDeleted for event in self._queue)
        return queued or (self._appends is not None and self._appends.awaits_durability_of(TopicsDeleted))

    def _enqueue(self, event: Event) -> None:
        self._queue.append(event)
        if not self._scheduled:
            self._scheduled = True
            self._queued_at = self._clock()
            self._driver.call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        machine, appends = self._machine, self._appends
        if machine is None or appends is None or self.phase is not _SERVING:
            return
        records = size = 0
        if appends.waiting:
            if appends.is_full:
                return
            records, size = appends.next_append_records, appends.next_append_bytes
        events = self._queue
        self._queue = []
        began = self._clock()
        self._times.queue.observe(began - self._queued_at)
        time_now = self._driver.now()
        step = machine.step
        steps: list[Step] = []
        bytes_max = appends.bytes_max
        for event in events[:STEP_SLICE_EVENTS]:
            try:
                outcome = step(event, time_now)
            except Exception as fault:  # noqa: BLE001  # a bug here, which is logged
                self._queue = events[len(steps) + 1 :]
                self._fault(event, steps, time_now, fault)
                return
            steps.append((event, outcome))
            records += len(outcome.records)
            if records >= APPEND_RECORDS:
                break
            if bytes_max is not None and len(steps) < len(events):
                size += sum(map(record_bytes, outcome.records))
                if size >= bytes_max:
                    break
        if len(steps) < len(events):
            self._queue = events[len(steps) :]
            self._wake()
        self._times.events += len(steps)
        self._times.step.observe(self._clock() - began)
        appends.add(steps, time_now)

    def _wake(self) -> None:
        self._scheduled = True
        self._driver.call_soon(self._run)

    # -- effects

    def _release(self, steps: list[Step]) -> None:
        """Carry out the effects of steps whose records are durable; their counters are added up before."""
        counted: dict[CoordinatorMeter, int] = {}
        for _, outcome in steps:
            for request, value in outcome.replies:
                self._answer_request(request, value)
            for push in outcome.pushes:
                self._driver.send_to_push_consumer(push)
            for work in outcome.work:
                self._driver.run_background_task(work, self.queue_event)
            for note in outcome.notes:
                if isinstance(note, CounterIncreased):
                    meter, amount = note
                    counted[meter] = counted.get(meter, 0) + amount
                elif isinstance(note, LogLine):
                    self._driver.log_line(note)
                else:
                    self._driver.record_metric(note)
        for meter, amount in counted.items():
            self._driver.record_metric(CounterIncreased(meter, amount))
        self._set_timer()
        if self._queue and not self._scheduled:
            self._wake()

    def _answer_request(self, request: int | None, value: ReplyValue | ErrorCode) -> None:
        """Answer a request if it still waits; an exception in one recipient must not affect other requests."""
        on_reply = self._waiting.pop(request, None) if request is not None else None
        if on_reply is not None:
            try:
                on_reply(value)
            except Exception as fault:  # noqa: BLE001  # a bug here, which is logged
                self._driver.log_error(
                    f"shard {self.index}: unexpected error while sending a reply, its client gets none", fault
                )

    # -- the end of serving

    def _lost(self, error: Exception, refused: Step | None) -> None:
        """Handle an append that failed: reject the refused step alone, or discard the machine and reload."""
        if isinstance(error, FencedError):
            self._fenced(error)
        elif refused is not None and isinstance(error, KafkaError):
            event = refused[0]
            self._answer_request(getattr(event, "request", None), error.code)
            self._discard_machine(f"journal refused the records of {_name(event)}: {error.message}")
        elif isinstance(error, OSError | KafkaError):
            self._discard_machine(f"journal not written: {error}")
        else:
            self._discard_machine("a fault in the journal", error)

    def _fault(self, event: Event, before: list[Step], time_now: Now, fault: Exception) -> None:
        """Handle an exception in the machine: append the records of the earlier events, and discard the machine."""

        def fail_request_and_reload() -> None:
            self._answer_request(getattr(event, "request", None), ErrorCode.UNKNOWN_SERVER_ERROR)
            self._discard_machine(f"a fault in the coordinator at {_name(event)}", fault)

        self._machine, appends = None, self._appends
        assert appends is not None
        appends.add(before, time_now)
        if not appends.ended:
            appends.call_when_released(fail_request_and_reload)

    def _discard_machine(self, why: str, fault: Exception | None = None) -> None:
        """Discard the machine, and schedule one reload, unless another process is to own the shard."""
        if self.expects_takeover:
            self._driver.log_error(
                f"shard {self.index}: {why}; not reloaded, since another coordinator takes over", fault
            )
            self._unload(Phase.CLOSED, ErrorCode.NOT_COORDINATOR)
            return
        if self._appends is not None and self._appends.wrote:
            self._failures = 0
        self._failures += 1
        delay_ms = int(exponential_backoff(self._failures, RELOAD_DELAY_MS, RELOAD_DELAY_MAX_MS))
        self._driver.log_error(f"shard {self.index}: {why}; reloading in {delay_ms / 1000:.1f} s", fault)
        self._unload(Phase.FAILED, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._reload = self._driver.call_at(self._driver.now().mono_ms + delay_ms, self.start_loading)

    def _fenced(self, error: FencedError) -> None:
        proven_ms = None if self._appends is None else self._appends.proven_ms
        since = (
            ""
            if proven_ms is None
            else f"; its own last append was sent {self._driver.now().mono_ms - proven_ms} ms before"
        )
        if not self.expects_takeover:
            self._driver.log_error(f"shard {self.index}: another coordinator has taken over: {error}{since}")
        self._ended(Phase.FENCED, error)

    def _ended(self, phase: Phase, error: Exception) -> None:
        """Enter a final phase after a fence or damage, and report it to the driver."""
        self._unload(phase, REFUSED[phase])
        self._driver.call_soon(partial(self._driver.handle_shard_ended, self.index, error))

    def close(self) -> None:
        """Stop the shard: waiting requests get NOT_COORDINATOR, so that clients look up the coordinator again."""
        self._unload(Phase.CLOSED, ErrorCode.NOT_COORDINATOR)

    def _unload(self, phase: Phase, error: ErrorCode) -> None:
        """Leave the current phase: drop the machine, queue and timers, and answer waiting requests with `error`."""
        self.phase = phase
        self._machine = None
        if self._appends is not None:
            self._appends.abandon_load()
        self._queue = []
        for timer in (self._timer, self._reload):
            if timer is not None:
                timer.cancel()
        self._timer = self._reload = None
        for request in [*self._waiting]:
            self._answer_request(request, error)

    # -- time

    def _set_timer(self) -> None:
        machine = self._machine
        if self._ticking:
            return
        due = machine.next_deadline_ms() if machine is not None else None
        timer = self._timer
        if timer is not None:
            if due is not None and self._timer_at <= due:
                return  # the timer fires early and is set again: cheaper than moving it at each heartbeat
            timer.cancel()
            self._timer = None
        if due is not None:
            self._timer_at = due
            self._timer = self._driver.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        """Handle the timer after the event loop has polled its sockets: a broker's pause is not members' silence."""
        self._timer = None
        self._ticking = True
        # The event loop may make the first call before it polls, but not the second.
        self._driver.call_soon(partial(self._driver.call_soon, self._tick))

    def _tick(self) -> None:
        self._ticking = False
        machine = self._machine
        if machine is None:
            return
        due = machine.next_deadline_ms()
        if due is not None and due <= self._driver.now().mono_ms:
            self._enqueue(TimersDue())
        else:
            self._set_timer()


def _name(event: Event | None) -> str:
    """Return an event's name and group, for the log."""
    if event is None:
        return "loading"
    group = getattr(event, "group_id", None)
    return type(event).__name__ if group is None else f"{type(event).__name__} of group {group[:GROUP_SHOWN]}"
