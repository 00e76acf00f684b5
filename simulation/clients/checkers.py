"""Checkers of what applications saw: reading, commits, sends and transactions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from kohort.errors import KafkaError
from kohort.ids import TopicPartition
from simulation.checkers.property import ViolatedError
from simulation.clients.broker import Brokers
from simulation.clients.partition import Fate, StoredBatch
from simulation.clients.views import COMMITTED, EARLIEST, View
from simulation.harness.world import World

MAYBE_WRITTEN = "may have been written"


@dataclass(slots=True)
class SentRecord:
    """A record that an application sent.

    Attributes:
        value: names its writer, the writer's incarnation and the record's number in it.
        transaction: the number of the writer's transaction, -1 outside any.
        offset: the offset in the delivery report; None before one.
        error: the error in the delivery report.
    """

    value: str
    partition: TopicPartition
    transaction: int
    offset: int | None = None
    error: KafkaError | None = None

    @property
    def done(self) -> bool:
        """Return whether the application has a delivery report."""
        return self.offset is not None or self.error is not None


class ClientChecker:
    """The base of a checker of clients; subclasses override the hooks that they need."""

    def __init__(self, world: World, brokers: Brokers) -> None:
        self.world = world
        self.brokers = brokers

    def fail(self, text: str) -> None:
        """Raise a violation: the property does not hold."""
        raise ViolatedError(type(self).__name__, text)

    def on_found(self, partition: TopicPartition, view: View, position: int) -> None:
        """Check the start position that a consumer has determined for a partition."""

    def on_returned(self, partition: TopicPartition, view: View, offset: int, value: str) -> None:
        """Check a record that a consumer has returned to its application."""

    def on_position(self, partition: TopicPartition, view: View, position: int) -> None:
        """Check the position that a consumer reports for a partition."""

    def on_offsets(self, partition: TopicPartition) -> None:
        """Take note that a partition's committed offset changed, or that a transaction received one for it or ended."""

    def on_commit(self, partition: TopicPartition, view: View, offset: int, number: int) -> None:
        """Check a commit that the broker carries out; `number` is that of the application's call, -1: auto-commit."""

    def on_acknowledged(self, reader: str, partitions: list[TopicPartition], number: int) -> None:
        """Check a commit whose success was reported to an application."""

    def on_append(self, partition: TopicPartition, batch: StoredBatch) -> None:
        """Check a batch that is appended to a partition's log."""

    def on_delivery_report(self, record: SentRecord) -> None:
        """Check a record whose delivery report has reached its application."""

    def on_ended(self, records: list[SentRecord], outcome: Fate) -> None:
        """Check a transaction whose outcome was reported to its application."""

    def at_end(self, views: dict[TopicPartition, list[View]], records: list[SentRecord]) -> None:
        """Check the end of the run, long after all faults. `views`: of live consumers; `records`: of live producers."""


class ReadingChecker(ClientChecker):
    """Each record is returned once, in order, from the position or last seek on; none of an aborted transaction."""

    def on_returned(self, partition: TopicPartition, view: View, offset: int, value: str) -> None:
        """Compare the record with the next visible one of the log."""
        model = self.brokers.partitions[partition]
        if view.expected is None:
            self.fail(f"{view.reader}: {partition} offset {offset} was returned before its position was known")
            return
        wanted = model.next_visible(view.expected, committed=view.committed_only)
        if offset != wanted:
            self.fail(f"{view.reader}: {partition} offset {offset} was returned where {wanted} comes next")
        if value != model.value_at(offset):
            self.fail(f"{view.reader}: {partition} offset {offset} holds {model.value_at(offset)}, not {value}")

    def on_position(self, partition: TopicPartition, view: View, position: int) -> None:
        """Reject a position behind a returned record or a seek, or one that skips a visible record."""
        if view.expected is None:
            return
        wanted = self.brokers.partitions[partition].next_visible(view.expected, committed=view.committed_only)
        if position < view.expected or (wanted is not None and position > wanted):
            self.fail(f"{view.reader}: position {position} of {partition}, expected from {view.expected} to {wanted}")


class StartChecker(ClientChecker):
    """A consumer begins at an offset that was committed and stable during its lookup, or where its policy says."""

    def __init__(self, world: World, brokers: Brokers) -> None:
        super().__init__(world, brokers)
        self._history: dict[TopicPartition, list[tuple[int, int | None, bool]]] = defaultdict(lambda: [(0, None, True)])

    def on_offsets(self, partition: TopicPartition) -> None:
        """Keep the committed offset and whether it is stable."""
        value = self.brokers.coordinator.offsets.get(partition)
        stable = not self.brokers.coordinator.pending(partition)
        self._history[partition].append((self.world.now_ms, None if value is None else value.offset, stable))

    def on_found(self, partition: TopicPartition, view: View, position: int) -> None:
        """Compare the position with the offsets that were valid since the consumer began its lookup."""
        if view.begins_at != COMMITTED:
            if view.begins_at == EARLIEST and position != 0:
                self.fail(f"{view.reader}: {partition} begins at {position}, not at its beginning")
            return
        history = self._history[partition]
        values = [
            (offset, stable)
            for index, (_, offset, stable) in enumerate(history)
            if index + 1 == len(history) or history[index + 1][0] >= view.since_ms
        ]
        possible = {offset for offset, stable in values if stable or not view.committed_only}
        if position in possible:
            return
        if None in possible and (view.reset != EARLIEST or position == 0):
            return
        self.fail(f"{view.reader}: {partition} begins at {position}; stable and committed were {possible}")


class CommitChecker(ClientChecker):
    """Commits of one consumer take effect in the order of its calls, and only for what was returned or sought."""

    def __init__(self, world: World, brokers: Brokers) -> None:
        super().__init__(world, brokers)
        self._newest: dict[tuple[str, TopicPartition], int] = {}

    def on_commit(self, partition: TopicPartition, view: View, offset: int, number: int) -> None:
        """Reject a commit that takes effect after a later call, or covers a record that was not returned."""
        model = self.brokers.partitions[partition]
        wanted = model.next_visible(view.reach, committed=view.committed_only)
        if offset > view.reach and wanted is not None and offset > wanted:
            self.fail(f"{view.reader}: {offset} of {partition} is committed, returned was up to {view.reach}")
        if number < 0:
            return
        before = self._newest.get((view.reader, partition), -1)
        if number < before:
            self.fail(f"{view.reader}: commit {number} of {partition} takes effect after commit {before}")
        self._newest[view.reader, partition] = number

    def on_acknowledged(self, reader: str, partitions: list[TopicPartition], number: int) -> None:
        """Reject an acknowledgement of a commit that never took effect."""
        for partition in partitions:
            if self._newest.get((reader, partition), -1) < number:
                self.fail(f"{reader}: commit {number} of {partition} succeeded, and never took effect")


class LogChecker(ClientChecker):
    """Each record is in the log at most once, in the order of its sends, and at the reported offset."""

    def __init__(self, world: World, brokers: Brokers) -> None:
        super().__init__(world, brokers)
        self._newest: dict[tuple[str, TopicPartition], int] = {}

    def on_append(self, partition: TopicPartition, batch: StoredBatch) -> None:
        """Reject a record that is behind a later one of the same producer."""
        for value in batch.values:
            writer, _, number = value.rpartition(":")
            before = self._newest.get((writer, partition), -1)
            if int(number) <= before:
                self.fail(f"{partition}: record {number} of {writer} is written after record {before}")
            self._newest[writer, partition] = int(number)

    def on_delivery_report(self, record: SentRecord) -> None:
        """Compare the record at the offset with what was sent."""
        if record.offset is None:
            return
        value = self.brokers.partitions[record.partition].value_at(record.offset)
        if record.offset < 0 or value != record.value:
            self.fail(f"{record.partition}: {record.value} was delivered to {record.offset}, where {value} stands")


class SequenceChecker(ClientChecker):
    """A producer's sequences begin at 0 in each partition and epoch: a broker without state accepts any number."""

    def __init__(self, world: World, brokers: Brokers) -> None:
        super().__init__(world, brokers)
        self._next: dict[tuple[TopicPartition, int, int], int] = {}

    def on_append(self, partition: TopicPartition, batch: StoredBatch) -> None:
        """Compare the batch with the next sequence."""
        if batch.fate is Fate.OPEN:
            return  # a transaction of which a batch was lost can only be aborted, whatever comes behind it
        key = (partition, batch.producer_id, batch.epoch)
        wanted = self._next.get(key, 0)
        if batch.sequence != wanted:
            self.fail(f"{partition}: sequence {batch.sequence} in epoch {batch.epoch}, expected {wanted}")
        self._next[key] = wanted + len(batch.values)


class DeliveryReportChecker(ClientChecker):
    """No delivery report denies a record that is in the log."""

    def __init__(self, world: World, brokers: Brokers) -> None:
        super().__init__(world, brokers)
        self._written: set[str] = set()

    def on_append(self, partition: TopicPartition, batch: StoredBatch) -> None:
        """Keep the records that are written outside transactions."""
        if batch.fate is Fate.PLAIN:
            self._written.update(batch.values)

    def on_delivery_report(self, record: SentRecord) -> None:
        """Reject an error that denies a record in the log."""
        error = record.error
        if error is None or MAYBE_WRITTEN in str(error):
            return
        if record.value in self._written:
            self.fail(f"{record.partition}: {record.value} is written, and the application was told: {error}")


class TransactionChecker(ClientChecker):
    """All records of a transaction count, or none, in agreement with the reported outcome, if there is one."""

    def __init__(self, world: World, brokers: Brokers) -> None:
        super().__init__(world, brokers)
        self._outcomes: list[tuple[list[SentRecord], Fate]] = []

    def on_ended(self, records: list[SentRecord], outcome: Fate) -> None:
        """Keep the transaction for the end of the run."""
        if outcome is Fate.COMMITTED:
            for record in records:
                if record.offset is None:
                    self.fail(f"{record.partition}: {record.value} is not delivered, and its transaction committed")
        self._outcomes.append((records, outcome))

    def at_end(self, views: dict[TopicPartition, list[View]], records: list[SentRecord]) -> None:
        """Check that all records of a transaction have the same outcome, and the one that its application was told."""
        fates: dict[str, Fate] = {}
        for model in self.brokers.partitions.values():
            for batch in model.batches:
                fates.update(dict.fromkeys(batch.values, batch.fate))
        for sent, outcome in self._outcomes:
            seen = {fates.get(record.value, Fate.ABORTED) for record in sent}
            if len(seen) > 1 or Fate.OPEN in seen or (outcome is not Fate.OPEN and seen - {outcome}):
                reported = ", ".join(f"{record.value} {fates.get(record.value)}" for record in sent)
                self.fail(f"a transaction that ended as {outcome.value}: {reported}")


class LivenessChecker(ClientChecker):
    """After the faults, consumers reach the end, and every sent record is delivered or has failed."""

    def at_end(self, views: dict[TopicPartition, list[View]], records: list[SentRecord]) -> None:
        """Reject a run with unread or unreported records."""
        if (text := unfinished(self.brokers, views, records)) is not None:
            self.fail(text)


def unfinished(brokers: Brokers, views: dict[TopicPartition, list[View]], records: list[SentRecord]) -> str | None:
    """Name a record that is unread, or neither delivered nor failed; None if there is none."""
    for partition, seen in views.items():
        model = brokers.partitions[partition]
        for view in seen:
            if view.expected is None:
                return f"{view.reader}: the position of {partition} is not known"
            if (left := model.next_visible(view.expected, committed=view.committed_only)) is not None:
                return f"{view.reader}: {partition} is read to {view.expected}, offset {left} is there"
    if brokers.coordinator.ending:
        return "the end of a transaction is not written"
    waiting = next((record for record in records if not record.done), None)
    return None if waiting is None else f"{waiting.partition}: nothing was told of {waiting.value}"


def from_callback(world: World, check: Callable[[], None]) -> None:
    """Run a check inside a client's callback; its violation ends the run afterwards, as the client catches it here."""

    def raise_it(violated: ViolatedError) -> None:
        raise violated

    try:
        check()
    except ViolatedError as violated:
        world.after(0, partial(raise_it, violated))


CHECKERS: tuple[type[ClientChecker], ...] = (
    ReadingChecker,
    StartChecker,
    CommitChecker,
    LogChecker,
    SequenceChecker,
    DeliveryReportChecker,
    TransactionChecker,
    LivenessChecker,
)
