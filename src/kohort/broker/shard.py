"""One shard of the group coordinator: a partition of `__consumer_offsets` and the machine that it feeds.

Events wait in a queue and are stepped together at the end of the loop's turn; all their records go to the journal in
one append, which is durable when it returns; only then are the replies released, in order. When an append fails, the
machine is thrown away and replayed: whoever waits is told that the coordinator is loading.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeAlias

from kohort.broker.metrics import Metrics
from kohort.errors import ErrorCode, FencedError, KafkaError
from kohort.groups.config import GroupConfig
from kohort.groups.events import Event, Tick, TopicImage
from kohort.groups.machine import GroupMachine
from kohort.groups.outcome import Counted, GroupState, Now, Outcome, Push, Rebalanced, ReplyValue, Told, Work
from kohort.groups.records import Record
from kohort.log import Journal

log = logging.getLogger("kohort.groups")

OnReply: TypeAlias = Callable[[ReplyValue | ErrorCode], None]
"""Takes the reply's value, or the code that refuses the request when the shard can't serve it."""

LOAD_SLICE_S = 0.02
"""A shard that loads lets the loop serve others this often."""
STEP_SLICE_EVENTS = 2_000
"""Events stepped before the loop has its turn: bounds what one append holds up."""
QUEUE_EVENTS_MAX = 200_000
"""Beyond it requests are refused with COORDINATOR_NOT_AVAILABLE, which clients retry: memory stays bounded."""
RELOAD_DELAY_S = 0.5
"""A disk that refused an append is asked again this much later."""


class ShardHost(Protocol):
    """What a shard needs from the broker."""

    def topic_image(self) -> TopicImage:
        """All topics now."""

    def shard_loaded(self, index: int) -> None:
        """A shard has loaded: tell it what is not in its journal."""

    def run_work(self, work: Work, done: Callable[[Event], None]) -> None:
        """Run long work off the loop and hand its event to `done` on the loop."""

    def push(self, push: Push) -> None:
        """Send a frame no request asked for."""

    def note(self, note: Counted | Rebalanced) -> None:
        """A figure moved on."""

    @property
    def metrics(self) -> Metrics:
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
        self._closed = False
        self.records_written = 0

    @property
    def loaded(self) -> bool:
        """Whether requests are served."""
        return self._machine is not None

    def group_states(self) -> Iterator[tuple[str, GroupState]]:
        """Protocol and state of every group; none while it loads."""
        return iter(()) if self._machine is None else self._machine.group_states()

    def load(self) -> None:
        """Begin to replay the journal; requests are refused until that is done."""
        self._machine = None
        self._replay(GroupMachine(self._config), self._committed())

    def _committed(self) -> Iterator[Any]:
        self._journal.begin(self._term)
        yield from self._journal.replay()

    def _replay(self, machine: GroupMachine, batches: Iterator[Any]) -> None:
        if self._closed:
            return
        until = time.monotonic() + LOAD_SLICE_S
        try:
            for records in batches:
                for record in records:
                    machine.apply(record)
                if time.monotonic() > until:
                    self._loop.call_soon(self._replay, machine, batches)
                    return
        except OSError as error:
            log.error("shard %d: the journal can't be read (%s); it is tried again", self.index, error)
            self._loop.call_later(RELOAD_DELAY_S, self.load)
            return
        except KafkaError as error:
            log.error("shard %d: the journal can't be loaded, its groups are not served: %s", self.index, error)
            self._closed = True
            return
        self._machine = machine
        self._finish(machine.on_loaded(now(), self._host.topic_image()))
        self._host.shard_loaded(self.index)

    def ask(self, event: Any, on_reply: OnReply) -> None:
        """Queue a request's event; `on_reply` is called once, with the reply or the code that refuses it."""
        if self._closed or len(self._queue) >= QUEUE_EVENTS_MAX:
            on_reply(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif self._machine is None:
            on_reply(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        else:
            self._waiting[event.request] = on_reply
            self._enqueue(event)

    def tell(self, event: Event) -> None:
        """Queue the shell's news; a shard that loads will see it in what it loads from."""
        if self._machine is not None and not self._closed:
            self._enqueue(event)

    def _enqueue(self, event: Event) -> None:
        self._queue.append(event)
        if not self._scheduled:
            self._scheduled = True
            self._queued_at = time.perf_counter()
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        machine = self._machine
        if machine is None or self._closed:
            return
        events = self._queue
        self._queue = []
        if len(events) > STEP_SLICE_EVENTS:
            self._queue = events[STEP_SLICE_EVENTS:]
            del events[STEP_SLICE_EVENTS:]
            self._scheduled = True
            self._loop.call_soon(self._run)
        began = time.perf_counter()
        self._times.queue.observe(began - self._queued_at)
        self._times.events += len(events)
        time_now = now()
        step = machine.step
        whole = Outcome()
        for event in events:
            try:
                outcome = step(event, time_now)
            except BaseException:
                self._fail(event, whole)
                raise  # the loop logs it
            if outcome.records:
                whole.records += outcome.records
            whole.replies += outcome.replies
            if outcome.notes:
                whole.notes += outcome.notes
            if outcome.pushes:
                whole.pushes += outcome.pushes
            if outcome.work:
                whole.work += outcome.work
        self._times.step.observe(time.perf_counter() - began)
        self._finish(whole)

    def _fail(self, event: Event, before: Outcome) -> None:
        """A fault in the coordinator: what came before the event counts, the half-changed machine is thrown away."""
        self._finish(before)
        on_reply = self._waiting.pop(getattr(event, "request", None) or 0, None)
        if on_reply is not None:
            on_reply(ErrorCode.UNKNOWN_SERVER_ERROR)
        log.error("shard %d: a fault in the coordinator at %s; it is loaded again", self.index, type(event).__name__)
        self._unload(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._loop.call_later(RELOAD_DELAY_S, self.load)

    def _finish(self, outcome: Outcome) -> None:
        """Make records durable, then let everything else out."""
        if outcome.records and not self._append(outcome.records):
            return
        for token, value in outcome.replies:
            on_reply = self._waiting.pop(token, None)
            if on_reply is not None:
                on_reply(value)
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

    def _append(self, records: list[Record]) -> bool:
        began = time.perf_counter()
        try:
            self._journal.append(self._term, records, time.time_ns() // 1_000_000)
        except FencedError as error:
            log.error("shard %d: another coordinator has taken over: %s", self.index, error)
            self._unload(ErrorCode.NOT_COORDINATOR)
            return False
        except OSError as error:
            log.error("shard %d: the journal could not be written (%s); it is loaded again", self.index, error)
            self._unload(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            self._loop.call_later(RELOAD_DELAY_S, self.load)
            return False
        self._times.append.observe(time.perf_counter() - began)
        self.records_written += len(records)
        return True

    def _unload(self, error: ErrorCode) -> None:
        self._machine = None
        self._queue = []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, {}
        for on_reply in waiting.values():
            on_reply(error)

    def _set_timer(self) -> None:
        machine = self._machine
        if self._ticking:
            return
        due = machine.next_deadline_ms() if machine is not None and not self._closed else None
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
        if machine is None or self._closed:
            return
        due = machine.next_deadline_ms()
        if due is not None and due <= now().mono_ms:
            self._enqueue(Tick())
        else:
            self._set_timer()

    def close(self) -> None:
        """Stop; whoever waits is sent to find the coordinator again."""
        self._unload(ErrorCode.NOT_COORDINATOR)
        self._closed = True


def now() -> Now:
    """The time of a step."""
    return Now(time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000_000)
