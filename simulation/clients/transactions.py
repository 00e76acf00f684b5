"""The coordinator of groups and transactions, as in Kafka's brokers: its state, without bytes and connections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from kohort.errors import ErrorCode
from kohort.ids import TopicPartition
from simulation.clients.partition import PartitionModel
from simulation.harness.world import World

MARKERS_MS = 400
"""The maximum time until a transaction's markers are written."""


@dataclass(slots=True)
class Committed:
    """A committed offset of a group."""

    offset: int
    metadata: str = ""


@dataclass(slots=True)
class Transaction:
    """A transactional id.

    Attributes:
        state: empty, open, ending, ended.
        committed: how the last one ended.
        began: the number of its transactions, so that a timer recognises its own.
    """

    producer_id: int
    epoch: int
    timeout_ms: int
    state: str = "empty"
    committed: bool = False
    began: int = 0
    partitions: set[TopicPartition] = field(default_factory=set)
    offsets: dict[TopicPartition, Committed] = field(default_factory=dict)


class Coordinator:
    """Transactions by transactional id, and the committed offsets of one group.

    Attributes:
        version: of the transaction protocol, 1 or 2.
        offsets: the group's committed offsets.
        on_offsets: called with a partition whose committed offset, or whose stability, changes.
    """

    def __init__(self, world: World, partitions: dict[TopicPartition, PartitionModel], version: int) -> None:
        self.world = world
        self.chance = world.stream("coordinator")
        self.version = version
        self.offsets: dict[TopicPartition, Committed] = {}
        self.on_offsets: Callable[[TopicPartition], None] = lambda partition: None
        self._partitions = partitions
        self._by_id: dict[str, Transaction] = {}
        self._next_id = 1_000

    @property
    def ending(self) -> bool:
        """Return whether a marker of the transaction is still to be written."""
        return any(transaction.state == "ending" for transaction in self._by_id.values())

    def pending(self, partition: TopicPartition) -> bool:
        """Return whether an open transaction is about to move the committed offset."""
        return any(partition in transaction.offsets for transaction in self._by_id.values())

    def init(self, name: str | None, own: tuple[int, int], timeout_ms: int) -> tuple[ErrorCode, int, int]:
        """Return a producer id and epoch."""
        known = None if name is None else self._by_id.get(name)
        if known is None:
            self._next_id += 1
            if name is not None:
                self._by_id[name] = Transaction(self._next_id, 0, timeout_ms)
            return ErrorCode.NONE, self._next_id, 0
        if own[0] >= 0 and own != (known.producer_id, known.epoch):
            if own == (known.producer_id, known.epoch - 1) and known.state not in ("open", "ending"):
                return ErrorCode.NONE, known.producer_id, known.epoch
            return ErrorCode.PRODUCER_FENCED, -1, -1
        if known.state == "open":
            known.epoch += 1
            self._end(known, commit=False)
        if known.state == "ending":
            return ErrorCode.CONCURRENT_TRANSACTIONS, -1, -1
        known.epoch += 1
        known.timeout_ms, known.state = timeout_ms, "empty"
        return ErrorCode.NONE, known.producer_id, known.epoch

    def _checked(self, name: str | None, producer_id: int, epoch: int) -> tuple[ErrorCode, Transaction | None]:
        known = self._by_id.get(name or "")
        if known is None or known.producer_id != producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING, None
        if epoch != known.epoch:
            return ErrorCode.PRODUCER_FENCED, known
        if known.state == "ending":
            return ErrorCode.CONCURRENT_TRANSACTIONS, known
        return ErrorCode.NONE, known

    def add(self, name: str | None, producer_id: int, epoch: int, *partitions: TopicPartition) -> ErrorCode:
        """Add partitions, or only offsets, to a transaction; the first call begins it."""
        code, known = self._checked(name, producer_id, epoch)
        if code or known is None:
            return code
        if known.state != "open":
            known.state = "open"
            known.began += 1
            number = known.began
            self.world.after(known.timeout_ms, lambda: self._time_out(known, number))
        known.partitions.update(partitions)
        return ErrorCode.NONE

    def holds(self, name: str | None, producer_id: int, epoch: int, partition: TopicPartition) -> ErrorCode:
        """Return whether a partition was added to the open transaction."""
        code, known = self._checked(name, producer_id, epoch)
        if code or known is None:
            return ErrorCode.INVALID_PRODUCER_EPOCH if code is ErrorCode.PRODUCER_FENCED else code
        held = known.state == "open" and partition in known.partitions
        return ErrorCode.NONE if held else ErrorCode.INVALID_TXN_STATE

    def add_offsets(
        self, name: str, producer_id: int, epoch: int, offsets: dict[TopicPartition, Committed]
    ) -> ErrorCode:
        """Keep offsets that take effect when the transaction is committed."""
        code, known = self._checked(name, producer_id, epoch)
        if code or known is None:
            return ErrorCode.INVALID_PRODUCER_EPOCH if code is ErrorCode.PRODUCER_FENCED else code
        if known.state != "open":
            return ErrorCode.INVALID_TXN_STATE
        known.offsets.update(offsets)
        for partition in offsets:
            self.on_offsets(partition)
        return ErrorCode.NONE

    def end(self, name: str, producer_id: int, epoch: int, *, commit: bool) -> tuple[ErrorCode, int, int]:
        """End a transaction; a repeated request gets the same answer."""
        known = self._by_id.get(name)
        if known is None or known.producer_id != producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING, -1, -1
        bumped = self.version >= 2
        again = known.state in ("ending", "ended") and known.committed == commit
        if again and epoch == known.epoch - bumped:
            return ErrorCode.NONE, known.producer_id, known.epoch
        if epoch != known.epoch:
            return ErrorCode.PRODUCER_FENCED, -1, -1
        if known.state == "ending":
            return ErrorCode.CONCURRENT_TRANSACTIONS, -1, -1
        if known.state != "open":
            if commit or not bumped:
                return ErrorCode.INVALID_TXN_STATE, -1, -1
            known.epoch += 1
            known.state, known.committed = "ended", False
            return ErrorCode.NONE, known.producer_id, known.epoch
        known.epoch += bumped
        self._end(known, commit=commit)
        return ErrorCode.NONE, known.producer_id, known.epoch

    def _time_out(self, known: Transaction, number: int) -> None:
        if known.state == "open" and known.began == number:
            self.world.log("coordinator: a transaction has timed out")
            known.epoch += 1
            self._end(known, commit=False)

    def _end(self, known: Transaction, *, commit: bool) -> None:
        known.state, known.committed = "ending", commit
        left = set(known.partitions)
        epoch = known.epoch

        def mark(partition: TopicPartition) -> None:
            self._partitions[partition].end_transaction(known.producer_id, epoch, commit=commit)
            left.discard(partition)
            if not left:
                self._ended(known, commit=commit)

        for partition in sorted(left):
            self.world.after(self.chance.upto(MARKERS_MS), partial(mark, partition))
        if not left:
            self.world.after(self.chance.upto(MARKERS_MS), lambda: self._ended(known, commit=commit))

    def _ended(self, known: Transaction, *, commit: bool) -> None:
        offsets, known.offsets = known.offsets, {}
        known.partitions = set()
        known.state = "ended"
        if commit:
            self.offsets.update(offsets)
        for partition in offsets:
            self.on_offsets(partition)
