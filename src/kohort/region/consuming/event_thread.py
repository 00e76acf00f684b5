"""The event thread of a member: it alone polls, commits, and hears of its group and of its control plane.

Others post events to it. It steps the member's machine and carries out what comes of that; what has to wait (until
nothing is in flight, until a look-up succeeds) is looked at again in every turn, so that polls go on meanwhile and the
group sees a member that is alive. Source: spec 5.2, 5.7-5.11.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from kohort.channel import Link
from kohort.client.consumer.consumer import Consumer
from kohort.client.consumer.core import WakeupError
from kohort.client.offset_values import OffsetAndMetadata
from kohort.errors import FencedError, InvalidInputError, KafkaError, NotAuthorizedError, OffsetError
from kohort.ids import NO_TOPIC_ID, TopicPartition
from kohort.region.consuming.flow import Flow, Piece
from kohort.region.consuming.link import PlaneLink
from kohort.region.consuming.listening import Listener
from kohort.region.consuming.publishing import Publisher
from kohort.region.consuming.settings import Figures, MemberConfig
from kohort.region.consuming.staging import Stager
from kohort.region.consuming.starts import look_up
from kohort.region.facts import Contribution, Position, Span
from kohort.region.member import events as happens
from kohort.region.member.events import Effect, Event
from kohort.region.member.machine import MemberMachine
from kohort.region.messages import Cut, Identity
from kohort.region.parts import Part, part_of
from kohort.region.records import value_of
from kohort.region.staged import StagedKey

log = logging.getLogger("kohort.region")

STATE_BYTES_MAX = 512 * 1024
POLL_MS, SLOW_S, AGAIN_S = 100, 0.1, 0.2
COMMIT_MS = 5_000


class RegionStoppedError(KafkaError):
    """The member is over: the region has stopped, or would not have it."""


class Callbacks(Protocol):
    """What an application does at a cut and at a reset."""

    def on_drain(self) -> None: ...

    def on_checkpoint(self, sequence: int) -> bytes: ...

    def on_reset(self, sequence: int, state: bytes | None) -> None: ...

    def on_retire(self, sequence: int) -> None: ...


@dataclass(slots=True)
class _Waiting:
    """What is looked at again in every turn."""

    drain: Cut | None = None
    drain_since_s: float = 0.0
    go_back: happens.GoBack | None = None
    look_up: list[happens.LookUp] = field(default_factory=list)
    look_again_s: float = 0.0
    commit: dict[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)


class EventThread:
    """See the module's text."""

    def __init__(
        self,
        machine: MemberMachine,
        consumer: Consumer,
        flow: Flow,
        stager: Stager,
        publisher: Publisher | None,
        callbacks: Callbacks,
        config: MemberConfig,
    ) -> None:
        """Does nothing before `start`."""
        self.machine, self.figures = machine, Figures()
        self._consumer, self._flow, self._stager, self._publisher = consumer, flow, stager, publisher
        self._callbacks, self._config = callbacks, config
        self._posted: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._from_group: list[tuple[Callable[[tuple[Part, ...]], Event], list[TopicPartition]]] = []
        self._link: PlaneLink | None = None
        self._waiting = _Waiting()
        self._parts: dict[TopicPartition, Part] = {}
        self._place: tuple[Identity, tuple[Part, ...]] = (Identity(), ())
        self._sought: set[TopicPartition] = set()
        self._resumed: set[TopicPartition] = set()
        self._let_go: set[TopicPartition] = set()
        self._at: dict[TopicPartition, OffsetAndMetadata] = {}
        self._polls = self._slowly = self._full = self._over = self.aborting = False
        self._polled_s = 0.0
        self._news = threading.Event()
        self._error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name=f"kohort-region-{machine.name}", daemon=True)

    def start(self, reach: Callable[[], Link]) -> None:
        """Subscribe, and find the control plane."""
        config = self._config
        self._consumer.subscribe(
            config.topics, pattern=config.pattern, listener=Listener(self._hear_group, self._consumer, self.wake)
        )
        self._flow.on_change(self._flow_changed)
        if self._publisher is not None:
            self._publisher.start(self._published)
        self._link = PlaneLink(
            reach, lambda: self.post(happens.Connected()), lambda order: self.post(happens.Ordered(order)), self.name
        )
        self.thread.start()
        self._link.start()

    @property
    def name(self) -> str:
        return self.machine.name

    def post(self, event: Event) -> None:
        """Have the event thread hear of something; from any thread."""
        self._posted.put(event)
        self.wake()

    def _published(self, sequence: int, cause: str) -> None:
        """What a sequence staged is published; or not yet, and why."""
        self.post(happens.PublishEnded(sequence, cause))

    def abandon(self) -> None:
        """End without a word."""
        self._over = True
        self.wake()

    def wake(self) -> None:
        """Have it look at what waits."""
        self._news.set()
        self._consumer.wakeup()

    def _flow_changed(self) -> None:
        """A piece was taken or finished: that may be what is waited for."""
        waiting = self._waiting
        if waiting.drain is not None or waiting.go_back is not None or self._full:
            self.wake()

    def _most(self) -> int:
        return self._consumer.config.max_poll_records

    # -- the turns

    def _run(self) -> None:
        try:
            while not self._over:
                self._turn()
        except BaseException as error:  # noqa: BLE001 - the application's thread raises it
            self._error = error
        finally:
            self._end()

    def _turn(self) -> None:
        while not self._posted.empty():
            self._step(self._posted.get())
        self._follow_group()
        self._go_on_draining()
        self._go_on_going_back()
        self._go_on_looking_up()
        self._go_on_committing()
        if not self._over:
            self._poll()

    def _end(self) -> None:
        if self._link is not None:
            self._link.close()
        self._flow.end(self._error)
        if self._publisher is not None:
            self._publisher.close()
        try:
            self._consumer.close()
        except KafkaError as error:
            log.warning("%s: could not leave its group: %s", self.name, error)

    def _step(self, event: Event) -> None:
        for effect in self.machine.step(event):
            self._carry_out(effect)

    # -- polling

    def _poll(self) -> None:
        self._full = self._flow.room() < self._most()
        reading = self._polls and self._waiting.drain is None and not self._full
        self._resume(self._sought if reading else set())
        self._news.clear()
        if not self._posted.empty():
            return
        if self._slowly and (wait_s := self._polled_s + SLOW_S - time.monotonic()) > 0 and self._news.wait(wait_s):
            return
        self._polled_s = time.monotonic()
        try:
            batch = self._poll_once()
        except WakeupError:
            return
        except OffsetError as error:
            self._data_lost(error)
            return
        if batch is not None and batch.num_rows:
            self._fetched(batch)

    def _poll_once(self) -> pa.RecordBatch | None:
        """As many records as are taken at once: a poll costs about the same however many it gives."""
        most = max(self._most(), min(self._flow.room(), self._flow.at_once))
        try:
            return self._consumer.poll_arrow(POLL_MS, max_records=most)
        except WakeupError:
            if self._news.is_set():
                raise
        return self._consumer.poll_arrow(POLL_MS, max_records=most)  # what woke it was heard before

    def _resume(self, wanted: set[TopicPartition]) -> None:
        held = self._consumer.assignment()
        wanted = (wanted & held) - self._consumer.wanted()
        self._resumed &= held
        if wanted != self._resumed:
            self._consumer.pause(*(self._resumed - wanted))
            self._consumer.resume(*(wanted - self._resumed))
            self._resumed = wanted

    def _fetched(self, batch: pa.RecordBatch) -> None:
        self._step(happens.Fetched())
        if not self._polls:
            return  # what came is thrown away: all go back
        now = self._consumer.positions()
        moved = {part: now[part] for part in self._sought if part in now and now[part] != self._at.get(part)}
        self._at.update(moved)
        ends = {self._parts[at]: _position(self._parts[at], where) for at, where in moved.items()}
        self._flow.put(Piece(pa.Table.from_batches([batch]), ends))

    def _data_lost(self, error: OffsetError) -> None:
        """A position that the log does not have any more."""
        if not self._config.fail_on_data_loss:
            lost = [part for part in self._sought if str(part) in str(error)]
            log.warning("%s: records are lost, going on at the beginning: %s", self.name, error)
            self._consumer.seek_to_beginning(*lost)
            return
        self._step(
            happens.Failed(
                f"records are lost: {error}",
                "go on with fail_on_data_loss=False, which leaves them out, or reset the region to its initial state",
            )
        )
        self._sought.clear()

    # -- the group

    def _hear_group(self, make: Callable[[tuple[Part, ...]], Event], partitions: list[TopicPartition]) -> None:
        self._from_group.append((make, partitions))

    def _follow_group(self) -> None:
        while self._from_group:
            make, partitions = self._from_group.pop(0)
            if not self._parts.keys() >= set(partitions):
                self._follow_assignment()  # one poll may give partitions and want them back
            self._step(make(tuple(self._parts[part] for part in partitions if part in self._parts)))
        self._follow_assignment()

    def _follow_assignment(self) -> None:
        who = self._consumer.group_metadata()
        identity = Identity(who.member_id, who.generation_id, who.group_instance_id)
        ids = self._consumer.topic_ids()
        held = sorted(self._consumer.assignment())
        parts = tuple(
            Part(self.machine.group, part.topic, part.partition, ids.get(part.topic, NO_TOPIC_ID)) for part in held
        )
        if (identity, parts) != self._place:
            self._place = (identity, parts)
            self._parts = dict(zip(held, parts, strict=True))
            self._sought &= set(held)
            self.figures.partitions, self.figures.topics = len(held), len({part.topic for part in held})
            self._step(happens.Assigned(identity, parts))

    # -- what waits

    def _go_on_draining(self) -> None:
        """Nothing is in flight: commit, once and for all partitions. Source: spec 5.9.

        A generation that is over is followed by a poll: by another generation, or by the loss of what was held.
        """
        cut = self._waiting.drain
        if cut is None or not self._flow.is_idle():
            return
        offsets = {_partition(part): _offset(at) for part, at in self._ends().items()}
        try:
            if offsets:
                self._consumer.commit(offsets, timeout_ms=COMMIT_MS)
        except (FencedError, NotAuthorizedError) as error:
            self._waiting.drain = None
            self._step(happens.NotQuiet(cut, f"its offsets could not be committed: {error}"))
            return
        except KafkaError as error:
            log.info("%s: offsets could not be committed, and will be again: %s", self.name, error)
            return
        self._waiting.drain = None
        took_ms = (time.monotonic() - self._waiting.drain_since_s) * 1000
        self.figures.drain_ms = took_ms
        self.figures.longest_drain_ms = max(self.figures.longest_drain_ms, took_ms)
        try:
            self._callbacks.on_drain()
        except Exception as error:
            log.exception("%s: on_drain failed", self.name)
            self._step(happens.NotQuiet(cut, f"on_drain: {error!r}"))
            return
        self._step(happens.Quiet(cut))

    def _ends(self) -> dict[Part, Position]:
        """Where reading has come to: past the last record that was submitted, and what is no record behind it."""
        ends = self._flow.next_offsets()
        now = self._consumer.positions()
        for part in ends:
            at = now.get(_partition(part))
            if at is not None and at.offset > ends[part].offset and not self._flow.queued(part):
                ends[part] = _position(part, at)
        return ends

    def _go_on_going_back(self) -> None:
        wanted = self._waiting.go_back
        if wanted is None or not self._flow.is_idle():
            return
        self._waiting.go_back = None
        self._flow.clear()
        self._flow.forget()
        self._sought.clear()
        self._at.clear()
        self._waiting.look_up.clear()
        self._stager.begin(wanted.epoch)
        self.figures.resets += 1
        if not self.aborting:
            self._callbacks.on_reset(wanted.sequence, wanted.state)
        self._step(happens.WentBack(wanted.epoch))

    def _go_on_looking_up(self) -> None:
        waiting = self._waiting
        if not waiting.look_up or time.monotonic() < waiting.look_again_s:
            return
        asked = waiting.look_up[0]
        try:
            found = look_up(self._consumer, self._config.start, asked.first, asked.added)
        except (NotAuthorizedError, OffsetError):
            raise
        except KafkaError as error:
            log.warning("%s: where partitions begin is not found yet: %s", self.name, error)
            waiting.look_again_s = time.monotonic() + AGAIN_S
            return
        waiting.look_up.pop(0)
        self._step(happens.LookedUp(asked.number, found))

    def _go_on_committing(self) -> None:
        """After a reset the group's offsets are the merged ones: as soon as the group takes them."""
        waiting = self._waiting
        if not waiting.commit:
            return
        held = self._consumer.assignment()
        offsets = {part: offset for part, offset in waiting.commit.items() if part in held}
        try:
            if offsets:
                self._consumer.commit(offsets, timeout_ms=COMMIT_MS)
        except KafkaError as error:
            log.info("%s: the group's offsets could not be set back: %s", self.name, error)
        waiting.commit.clear()  # the next cut commits them

    # -- what the machine wants

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case happens.Say(report):
                if self._link is not None:
                    self._link.say(report)
            case happens.Poll(slowly):
                self._polls, self._slowly = True, slowly
            case happens.StopPolling(clear):
                self._polls = False
                self._flow.shut()
                if clear:
                    self._flow.clear()
            case happens.Quiesce(cut):
                self._flow.shut()
                self._waiting.drain, self._waiting.drain_since_s = cut, time.monotonic()
            case happens.SaveState(cut, _):
                self._save_state(cut)
            case happens.GoOn():
                self._waiting.drain = None
                self._flow.open()
            case happens.GoBack():
                self._waiting.drain, self._waiting.go_back = None, effect
                self._flow.shut()
            case happens.Begin(epoch, sequence, state):
                self._begin(epoch, sequence, state)
            case happens.Seek(positions, commit):
                self._seek(positions, commit=commit)
            case happens.LookUp():
                self._waiting.look_up.append(effect)
            case happens.Release(parts):
                self._release(parts)
            case happens.Retire(_, retired, counts):
                self._retire(retired, counts=counts)
            case happens.PublishKeys():
                if self._publisher is not None:
                    self._publisher.publish(effect)
            case happens.End(cause, remedy):
                self._over = True
                if cause:
                    self._error = RegionStoppedError(f"{self.name} of region {self.machine.region}: {cause}; {remedy}")

    def _begin(self, epoch: int, sequence: int, state: bytes | None) -> None:
        self._stager.begin(epoch)
        if state is not None:
            self._callbacks.on_reset(sequence, state)
        self._flow.open()

    def _save_state(self, cut: Cut) -> None:
        try:
            keys = self._stager.give()
            state = self._callbacks.on_checkpoint(cut.sequence)
            if not isinstance(state, bytes):
                raise InvalidInputError(
                    f"on_checkpoint gives bytes, not {type(state).__name__}: encode what it returns"
                )
        except Exception as error:
            log.exception("%s: could not save its state", self.name)
            self._step(happens.NotQuiet(cut, f"its state could not be saved: {error!r}"))
            return
        ends = self._ends()
        try:
            if (size := len(state)) > STATE_BYTES_MAX:
                raise InvalidInputError(f"{size} bytes of state are more than {STATE_BYTES_MAX}: save where it is kept")
            value_of(self._probe(cut, ends, keys, state))
        except InvalidInputError as error:
            self._step(happens.NotQuiet(cut, error.message))
            return
        self._step(happens.StateSaved(cut, tuple(ends.values()), keys, state))

    def _probe(self, cut: Cut, ends: dict[Part, Position], keys: tuple[StagedKey, ...], state: bytes) -> Contribution:
        """As large as what is contributed: what fits no record must be known before the commit point."""
        machine = self.machine
        spans = tuple(
            Span(at.group, at.topic, at.topic_id, at.partition, at.offset, at.offset, at.leader_epoch)
            for at in ends.values()
        )
        who = machine.identity
        return Contribution(
            machine.region, cut.sequence, machine.term, machine.epoch, machine.name, machine.names, machine.group,
            who.member_id, who.generation, who.instance_id, spans, keys, state, machine.sink,
        )  # fmt: skip

    def _seek(self, positions: tuple[Position, ...], *, commit: bool) -> None:
        held = self._consumer.assignment()
        for one in positions:
            partition = TopicPartition(one.topic, one.partition)
            if partition not in held:
                continue  # it is gone meanwhile
            self._consumer.seek(partition, OffsetAndMetadata(one.offset, "", one.leader_epoch))
            self._flow.begin(one, part_of(one))
            self._at[partition] = OffsetAndMetadata(one.offset, "", one.leader_epoch)
            self._sought.add(partition)
            if commit:
                self._waiting.commit[partition] = OffsetAndMetadata(one.offset, "", one.leader_epoch)

    def _release(self, parts: tuple[Part, ...]) -> None:
        self._flow.forget(parts)
        gone = {_partition(part) for part in parts}
        self._sought -= gone
        self._let_go |= gone
        if self._consumer.wanted() <= self._let_go:
            self._let_go.clear()
            self._consumer.release()

    def _retire(self, retired: int, *, counts: bool) -> None:
        self.figures.sequences += 1
        if counts:
            self._stager.counted()
        if retired > 0:
            self._callbacks.on_retire(retired)


def _partition(part: Part) -> TopicPartition:
    return TopicPartition(part.topic, part.partition)


def _offset(at: Position) -> OffsetAndMetadata:
    return OffsetAndMetadata(at.offset, "", at.leader_epoch)


def _position(part: Part, at: OffsetAndMetadata) -> Position:
    return Position(part.group, part.topic, part.topic_id, part.partition, at.offset, at.leader_epoch)
