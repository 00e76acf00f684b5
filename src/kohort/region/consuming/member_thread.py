"""The thread of a member: it receives events of the group and the control plane, and steps the member's machine.

Other threads post events to it. Work that must wait (for a lookup, or until the group accepts offsets) is checked
again on every iteration. Polls therefore continue meanwhile, and the group sees a live member.

Subclasses decide what a member reads with, and what it does on a checkpoint and on a reset: `EventThread` for a
consumer, the thread in `kohort.spark.region` for a Spark query. Source: spec 5.2, 5.7-5.11.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from kohort.client.consumer.consumer import Consumer
from kohort.client.offsets import HoldingListener, OffsetAndMetadata
from kohort.errors import (
    InvalidInputError,
    KafkaError,
    NotAuthorizedError,
    OffsetError,
    TimedOutError,
)
from kohort.ids import NO_TOPIC_ID, TopicPartition
from kohort.io.channel import Link
from kohort.io.processes import own_identity
from kohort.region import messages
from kohort.region.agreement import UNKNOWN
from kohort.region.consuming.publishing import SinkPublisher
from kohort.region.consuming.settings import MemberConfig, MemberMetrics
from kohort.region.consuming.starts import look_up_start_offsets
from kohort.region.consuming.waits import RetryWait
from kohort.region.member import events
from kohort.region.member.events import Effect, Event
from kohort.region.member.machine import MemberMachine
from kohort.region.message_codec import UnknownMessageError, decode_order, encode_message
from kohort.region.messages import CheckpointAttempt, Identity, WaitingForSink
from kohort.region.record_codec import encode_fact_value
from kohort.region.records import Contribution, OffsetSpan, Part, Position
from kohort.region.server import SILENCE_S
from kohort.region.sinks.availability import is_temporary_error
from kohort.region.staged import Staged

# -- Rebalance callbacks inside a poll


class GroupListener(HoldingListener):
    """The rebalance listener: it passes revocations and losses on, and pauses newly assigned partitions.

    A partition stays paused until its start offset is known.
    """

    def __init__(
        self,
        hear: Callable[[Callable[[tuple[Part, ...]], Event], list[TopicPartition]], None],
        consumer: Consumer,
        wake: Callable[[], None],
    ) -> None:
        self._hear, self._consumer, self._wake = hear, consumer, wake

    def on_revocation_requested(self, partitions: list[TopicPartition]) -> None:
        self._hear(events.PartitionsRevoked, partitions)
        self._wake()

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        """Do nothing: the consumer calls this in `release` and `close`, when the member is done with the partitions."""

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self._hear(events.PartitionsLost, partitions)
        self._wake()

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self._consumer.pause(*partitions)
        self._wake()


# -- A member's connection to the current control plane

log = logging.getLogger("kohort.region")
AGAIN_S = 0.2
CLOSE_S = 5.0
"""Seconds that `close` waits for the thread, which may be inside a call to the sink or the topic that does not end."""


class ControlPlaneLink:
    """A member's connection to the control plane, made in a background thread and made again when it ends."""

    def __init__(
        self,
        reach: Callable[[], Link],
        connected: Callable[[str], messages.WaitingForSink | None],
        heard: Callable[[messages.Order], None],
        failed: Callable[[BaseException], None],
        name: str,
    ) -> None:
        """Initialise the link, which connects after `start` and calls all callbacks on its own thread.

        Args:
            reach: connects to the current control plane; raises OSError or KafkaError if there is none.
            connected: called with a new connection and this process's name on it. While the sink is unavailable, it
                returns a message to send instead of a registration. It is then called again for the same connection.
            heard: called with each message of the control plane.
            failed: called with an error that does not come from the connection; the link then stops.
            name: the member's name.
        """
        self._reach, self._connected, self._heard, self._failed, self._name = reach, connected, heard, failed, name
        self._link: Link | None = None
        self._ended = threading.Event()
        self._missing = RetryWait(
            f"[member {name}] the region's control plane can't be reached yet, retrying", level=logging.INFO
        )
        self._thread = threading.Thread(target=self._run, name=f"kohort-link-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send_report(self, report: messages.Report) -> None:
        """Send a message; drop it without a connection, since a member that reconnects sends its state again."""
        link = self._link
        if link is not None:
            link.send(encode_message(report))

    def close(self) -> None:
        """Close the connection and wait for its thread.

        A thread that stays in a call for more than 5 s is left behind; it does nothing after that call.
        """
        self._ended.set()
        link = self._link
        if link is not None:
            link.close()
        if threading.current_thread() is not self._thread and self._thread.is_alive():
            self._thread.join(CLOSE_S)
            if self._thread.is_alive():
                log.warning(
                    "[member %s] closed, but a call to its sink or the region's topic does not return: its thread "
                    "still runs",
                    self._name,
                )

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                self._connect()
        except BaseException as error:  # noqa: BLE001 - the member ends with it
            self._failed(error)

    def _connect(self) -> None:
        try:
            link = self._reach()
        except (OSError, KafkaError) as error:
            self._missing.record_failure(error)
            self._ended.wait(AGAIN_S)
            return
        self._missing.end_wait()
        try:
            self._talk(link)
        except OSError as error:
            log.debug(
                "[member %s] reconnecting: the connection to the region's control plane ended: %s", self._name, error
            )
            self._ended.wait(AGAIN_S)

    def _talk(self, link: Link) -> None:
        self._link = link
        try:
            is_connected = self._is_connected(link)
            for body in link.receive_bodies(SILENCE_S):
                message = decode_order(body)
                if isinstance(message, messages.KeepAlive):  # comes every second
                    link.send(encode_message(messages.KeepAlive()))
                    is_connected = is_connected or self._is_connected(link)
                elif is_connected and not isinstance(message, messages.RegionStatus | messages.ResetDeclined):
                    self._heard(message)
        except UnknownMessageError as error:
            log.warning(
                "[member %s] reconnecting: the region's control plane sent damaged bytes, or a message of another "
                "release: %s",
                self._name,
                error,
            )
        finally:
            self._link = None
            link.close()

    def _is_connected(self, link: Link) -> bool:
        """Return whether the member may register now; if its sink does not answer, report that instead."""
        if self._ended.is_set():
            link.close()
            return True
        waits = self._connected(link.identity_for_peer())
        if waits is not None:
            link.send(encode_message(waits))
        return waits is None


STATE_BYTES_MAX = 512 * 1024
COMMIT_MS = 5_000
NONE: Mapping[TopicPartition, OffsetAndMetadata] = MappingProxyType({})


class RegionStoppedError(KafkaError):
    """The error of a member that has ended: the region has stopped, or refused the member.

    Remedy: read the reason in the message. Start the member again after the region runs, or with the settings of
    the region.
    """


@dataclass(slots=True)
class _Later:
    """The deferred work of a member's thread: offsets to look up and to commit. Each iteration tries it again.

    Attributes:
        unanswered: offsets whose commit was not answered in time, and may still happen.
    """

    look_up: list[events.LookUpStartOffsets] = field(default_factory=list)
    look_again_s: float = 0.0
    commit: dict[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    unanswered: dict[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)


class MemberThread(ABC):
    """The base of the thread that runs a member; its subclasses add what a consumer or a Spark query needs."""

    def __init__(
        self, machine: MemberMachine, consumer: Consumer, publishers: Sequence[SinkPublisher], config: MemberConfig
    ) -> None:
        """Initialise the member's thread, which runs after `start`.

        `publishers` are those of the sink and of the dead-letter sink.
        """
        self.machine, self.metrics = machine, MemberMetrics()
        self._consumer, self._config = consumer, config
        self._publishers = {publisher.place: publisher for publisher in publishers}
        self._posted: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._from_group: list[tuple[Callable[[tuple[Part, ...]], Event], list[TopicPartition]]] = []
        self._link: ControlPlaneLink | None = None
        self._compares = RetryWait(
            f"[member {self.name}] waiting for the sink, which is first compared with the region's topic",
            f"[member {self.name}] the sink answers again",
        )
        self._later = _Later()
        self._parts: dict[TopicPartition, Part] = {}
        self._place: tuple[Identity, tuple[Part, ...]] = (Identity(), ())
        self._released: set[TopicPartition] = set()
        self._over = False
        self._news = threading.Event()
        self._error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name=f"kohort-region-{machine.name}", daemon=True)

    def start(self, reach: Callable[[], Link]) -> None:
        """Subscribe, and connect to the control plane."""
        config = self._config
        self._consumer.subscribe(
            config.topics, pattern=config.pattern, listener=GroupListener(self._hear_group, self._consumer, self.wake)
        )
        for place, publisher in self._publishers.items():
            publisher.start(partial(self._published, place), self._end_with_error)
        self._link = ControlPlaneLink(
            reach,
            self._connected,
            lambda order: self.post(events.ControlPlaneMessageReceived(order)),
            self._end_with_error,
            self.name,
        )
        self.thread.start()
        self._link.start()

    def _connected(self, process: str) -> WaitingForSink | None:
        """Read the last checkpoint of each sink, and let the member register with these ids.

        The control plane compares them with the region's metadata topic.

        Returns:
            A report to send in place of registering, if a sink does not answer now; else None.
        """
        machine, shown = self.machine, dict[str, int]()
        for place, publisher in self._publishers.items():
            try:
                shown[place] = publisher.last_published_id()
            except Exception as error:  # noqa: BLE001 - the member ends with it
                if not is_temporary_error(error):
                    self._end_with_error(error)
                    return None
                self.metrics.register_wait_cause = self._compares.record_failure(error)
                return WaitingForSink(self.metrics.waits_for, machine.name, machine.group, place)
        if self._compares.end_wait():
            self.metrics.register_wait_cause = ""
        self.post(
            events.ControlPlaneConnected(process, shown.get(machine.sink, UNKNOWN), shown.get(machine.letters, UNKNOWN))
        )
        return None

    def _end_with_error(self, error: BaseException) -> None:
        """End the member with an error that another connection would not repair."""
        self._error = error
        self.end_without_leaving()

    @property
    def name(self) -> str:
        return self.machine.name

    def post(self, event: Event) -> None:
        """Post an event to the member's thread. Any thread may call this."""
        self._posted.put(event)
        self.wake()

    def end_without_leaving(self) -> None:
        """End the member's thread without asking the region for leave."""
        self._over = True
        self.wake()

    def close_unstarted(self) -> None:
        """Close the consumer of a member whose thread was never started."""
        self._consumer.close()

    def wake(self) -> None:
        """Wake the thread, so that it checks its deferred work."""
        self._news.set()
        self._consumer.wakeup()

    def _published(self, place: str, sequence: int, cause: str) -> None:
        """Post the outcome of an attempt to publish a checkpoint to a sink; an empty cause: it succeeded."""
        self.post(events.PublishEnded(sequence, cause, place))

    # -- what depends on the kind of member

    @abstractmethod
    def _work(self) -> None:
        """Run the part of an iteration that depends on the kind of member; its poll blocks for a second at most."""

    @abstractmethod
    def _thread_ended(self, error: BaseException | None) -> None:
        """Handle the end of the member's thread; `error` is None if the application closed the member."""

    @abstractmethod
    def _run_effect(self, effect: Effect) -> None:
        """Carry out an effect that depends on the kind of member."""

    @abstractmethod
    def _sought(self, position: Position, partition: TopicPartition) -> None:
        """Start reading a partition, still assigned to the member, at this position."""

    @abstractmethod
    def _forget_partitions(self, parts: tuple[Part, ...]) -> None:
        """Stop reading these partitions, and drop what is kept of them."""

    @abstractmethod
    def _assignment_changed(self, partitions: set[TopicPartition]) -> None:
        """Handle a new assignment; `partitions` is the full assignment."""

    # -- iterations

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
        self._continue_lookups()
        self._commit_deferred()
        if not self._over:
            self._work()

    def _end(self) -> None:
        self._thread_ended(self._error)  # first: the other steps may wait for a sink that does not answer
        if self._link is not None:
            self._link.close()
        for publisher in self._publishers.values():
            publisher.close()
        try:
            self._consumer.close()
        except KafkaError as error:
            log.warning(
                "[member %s] could not leave its group, which evicts it after its session timeout: %s", self.name, error
            )

    def _step(self, event: Event) -> None:
        for effect in self.machine.step(event):
            self._carry_out(effect)

    # -- the group

    def _hear_group(self, make: Callable[[tuple[Part, ...]], Event], partitions: list[TopicPartition]) -> None:
        self._from_group.append((make, partitions))

    def _follow_group(self) -> None:
        while self._from_group:
            make, partitions = self._from_group.pop(0)
            if not self._parts.keys() >= set(partitions):
                self._follow_assignment()  # one poll may assign partitions and revoke them
            self._from_the_group(make(tuple(self._parts[part] for part in partitions if part in self._parts)))
        self._follow_assignment()

    def _from_the_group(self, event: Event) -> None:
        """Pass a group's event, a revocation or a loss of partitions, to the member's state machine."""
        self._step(event)

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
            self._assignment_changed(set(held))
            self.metrics.partitions, self.metrics.topics = len(held), len({part.topic for part in held})
            self._step(events.PartitionsAssigned(identity, parts))

    # -- deferred work

    def _continue_lookups(self) -> None:
        waiting = self._later
        if not waiting.look_up or time.monotonic() < waiting.look_again_s:
            return
        asked = waiting.look_up[0]
        try:
            found = look_up_start_offsets(self._consumer, self._config.start, asked.first, asked.added)
        except (NotAuthorizedError, OffsetError):
            raise
        except KafkaError as error:
            log.warning(
                "[member %s] the start offsets of its partitions could not be looked up, retrying: %s", self.name, error
            )
            waiting.look_again_s = time.monotonic() + AGAIN_S
            return
        waiting.look_up.pop(0)
        topics = () if self._config.pattern is None else tuple(sorted(self._consumer.subscription()))
        self._step(events.StartOffsetsFound(asked.number, found, topics))

    def _commit_deferred(self, again: Mapping[TopicPartition, OffsetAndMetadata] = NONE) -> None:
        """After a reset, commit the positions to which it went back, as the group's offsets.

        One attempt is made; if it fails, the next checkpoint commits its offsets. Offsets that the group has already
        are not committed. Such a commit could arrive late, after that of a later checkpoint, and set those offsets
        back.

        Args:
            again: committed whatever the group has, because an earlier commit of them may still be under way.
        """
        waiting, held = self._later, self._consumer.assignment()
        wanted = {part: at for part, at in {**again, **waiting.commit}.items() if part in held}
        waiting.commit.clear()  # the next checkpoint commits what is not committed now
        if not wanted:
            return
        sent = {part: at for part, at in wanted.items() if part in again}
        try:
            found = self._consumer.committed(list(wanted), timeout_ms=COMMIT_MS)
            sent |= {part: at for part, at in wanted.items() if _differs(found.get(part), at)}
            if sent:
                self._consumer.commit(sent, timeout_ms=COMMIT_MS)
        except KafkaError as error:
            log.info(
                "[member %s] could not reset the group's committed offsets; the next checkpoint commits them: %s",
                self.name,
                error,
            )
            if isinstance(error, TimedOutError):
                waiting.unanswered |= sent

    # -- effects

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case events.SendReport(report):
                if self._link is not None and not self._over:
                    self._link.send_report(report)
            case events.SeekPositions(positions, commit):
                self._seek(positions, commit=commit)
            case events.LookUpStartOffsets():
                self._later.look_up.append(effect)
            case events.ReleasePartitions(parts):
                self._release(parts)
            case events.PublishCheckpoint():
                publisher = self._publishers.get(effect.place or self.machine.sink)
                if publisher is not None:
                    publisher.order_publication(effect)
            case events.EndMember(cause, remedy):
                self._over = True
                if cause:
                    self._error = RegionStoppedError(f"{self.name} of region {self.machine.region}: {cause}; {remedy}")
            case _:
                self._run_effect(effect)

    def _seek(self, positions: tuple[Position, ...], *, commit: bool) -> None:
        held = self._consumer.assignment()
        for position in positions:
            partition = TopicPartition(position.topic, position.partition)
            if partition not in held:
                continue  # it was lost meanwhile
            self._sought(position, partition)
            if commit:
                self._later.commit[partition] = offset_and_metadata(position)

    def _release(self, parts: tuple[Part, ...]) -> None:
        self._forget_partitions(parts)
        self._released |= {to_topic_partition(part) for part in parts}
        if self._consumer.wanted() <= self._released:
            self._released.clear()
            self._consumer.release()

    def _give(self, cut: CheckpointAttempt, ends: dict[Part, Position], staged: Staged, state: bytes) -> None:
        """Hand the member's contribution to a checkpoint to its state machine: offsets, staged keys and state.

        If the contribution is too large for one record, the drain fails here: after the commit point is too late.
        """
        try:
            if (size := len(state)) > STATE_BYTES_MAX:
                raise InvalidInputError(f"{size} bytes of state are more than {STATE_BYTES_MAX}: save where it is kept")
            encode_fact_value(self._probe(cut, ends, staged, state))
        except InvalidInputError as error:
            self._step(events.DrainAborted(cut, error.message))
            return
        given = events.StateSaved(cut, tuple(ends.values()), staged.keys, state, staged.letters, staged.dead_letters)
        self._step(given)

    def _probe(self, cut: CheckpointAttempt, ends: dict[Part, Position], staged: Staged, state: bytes) -> Contribution:
        """Return a trial record as large as the contribution, to check before the commit point that it fits."""
        machine = self.machine
        spans = tuple(
            OffsetSpan(at.group, at.topic, at.topic_id, at.partition, at.offset, at.offset, at.leader_epoch, at.state)
            for at in ends.values()
        )
        who = machine.identity
        return Contribution(
            machine.region, cut.sequence, machine.term, machine.epoch, machine.name, machine.names, machine.group,
            who.member_id, who.generation, who.instance_id, spans, staged.keys, state, machine.sink,
            pinned=machine.how.pinned, process=own_identity(), letters=machine.letters, letter_keys=staged.letters,
            dead_letters=staged.dead_letters,
        )  # fmt: skip


def _differs(found: OffsetAndMetadata | None, wanted: OffsetAndMetadata) -> bool:
    return found is None or found.offset != wanted.offset


def to_topic_partition(part: Part) -> TopicPartition:
    """Convert a region's partition to Kafka's `TopicPartition`, which has no topic id."""
    return TopicPartition(part.topic, part.partition)


def offset_and_metadata(position: Position) -> OffsetAndMetadata:
    """Convert a region's position to `OffsetAndMetadata`, for a consumer's `commit` and `seek`."""
    return OffsetAndMetadata(position.offset, "", position.leader_epoch)
