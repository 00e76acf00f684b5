"""The settings of a region member."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from kohort.client.setting_types import ConsumerSettings
from kohort.errors import InvalidInputError
from kohort.region.consuming.after_snapshot import AfterSnapshot
from kohort.region.consuming.starts import StartPosition
from kohort.region.consuming.work_queue import QUEUE_MAX_BYTES
from kohort.region.keyed_state.place import KeyedState
from kohort.region.keyed_state.states import KeyedStates
from kohort.region.sinks import Sink
from kohort.region.sinks.dead_letters import FAIL


def _nothing() -> None:
    return None


def _no_state(sequence: int) -> bytes:
    del sequence
    return b""


class MemberSettings(ConsumerSettings, total=False):
    """The options of `Region.consumer`, in addition to the consumer's settings.

    Attributes:
        start: where partitions start that the region has never read: 'beginning', 'end', 'committed' (without a
            committed offset: as `auto_offset_reset` says, by default the beginning), a time in ms since the epoch, or
            `after(table)`, behind what a table has.
        on_rebalance: 'reset': a member that must give up partitions it has read from resets the whole region.
            'checkpoint': it keeps them until a checkpoint is complete.
        every_records: request a checkpoint after this many records; the region's `checkpoint_every` may be None then.
        queue_max_bytes: limit on records that are fetched and not processed yet, in addition to the limit on their
            number (the records of 100 polls). By default 128 MiB, as much as the consumer itself buffers
            (`queued_max_bytes`).
        fail_on_data_loss: stop the region when the log no longer has a needed offset.
        reads_again: let a group that is new to the region read topics that another of its groups has read into the same
            sink. Their records are then there twice. By default this is refused, because it results from a changed
            `group_id`.
        on_bad_record: how to handle a row that the sink refuses (null in a key, a value that the column's type can't
            hold). 'fail': `submit` raises `RowRefusedError`. 'dead-letter': the row goes to `dead_letters`, the other
            rows into the sink.
        dead_letters: the sink of such rows, with topic, partition, offset, timestamp, key and value of the record, the
            row as JSON, the reason and the member's name. Members may share one. With 'fail' it is still published.
        keyed_state: where the member saves a keyed state for each partition, which moves with the partition. All
            members of the group have the same place. `RegionConsumer.partition_state` has the states.
        on_drain: called when all submitted records are committed.
        on_checkpoint: returns the application's state for a checkpoint, by its id; at most 512 KiB.
        on_reset: restores the state that `on_checkpoint` returned for that checkpoint; None: no state, or the initial
            state (id 0).
        on_retire: called when no reset can return to this checkpoint, or an earlier one.
    """

    start: str | int | AfterSnapshot
    on_rebalance: Literal["reset", "checkpoint"]
    every_records: int | None
    queue_max_bytes: int
    fail_on_data_loss: bool
    reads_again: bool
    on_bad_record: Literal["fail", "dead-letter"]
    dead_letters: Sink | None
    keyed_state: KeyedState | None
    on_drain: Callable[[], None]
    on_checkpoint: Callable[[int], bytes]
    on_reset: Callable[[int, bytes | None], None]
    on_retire: Callable[[int], None]


@dataclass(frozen=True, slots=True)
class RegionOptions:
    """The options of `MemberSettings` that the region handles; the others are settings of the Kafka consumer."""

    start: str | int | AfterSnapshot = "committed"
    auto_offset_reset: str = "earliest"
    on_rebalance: str = "reset"
    every_records: int | None = None
    queue_max_bytes: int = QUEUE_MAX_BYTES
    fail_on_data_loss: bool = True
    reads_again: bool = False
    on_bad_record: str = FAIL
    dead_letters: Sink | None = None
    keyed_state: KeyedState | None = None
    on_drain: Callable[[], None] = _nothing
    on_checkpoint: Callable[[int], bytes] = _no_state
    on_reset: Callable[[int, bytes | None], None] = lambda sequence, state: None
    on_retire: Callable[[int], None] = lambda sequence: None

    @property
    def has_application_state(self) -> bool:
        """Return whether the member has state in checkpoints: an abandoned table may have changed it already."""
        return self.on_checkpoint is not _no_state or self.keyed_state is not None


def split_member_options(options: Mapping[str, Any]) -> tuple[RegionOptions, dict[str, Any]]:
    """Split options into those of the region and the consumer's settings.

    Raises:
        InvalidInputError: a value is invalid.
    """
    names = {field.name for field in fields(RegionOptions)}
    own = RegionOptions(**{name: value for name, value in options.items() if name in names})
    if own.on_rebalance not in ("reset", "checkpoint"):
        raise InvalidInputError(f"on_rebalance={own.on_rebalance!r}: say 'reset' or 'checkpoint'")
    if "push" in (options.get("group_protocol"), options.get("group.protocol")):
        raise InvalidInputError(
            "group_protocol='push' has no place in a region: its members have no epoch to commit under; "
            "use 'consumer' or 'classic'"
        )
    if own.every_records is not None and own.every_records < 1:
        raise InvalidInputError(f"every_records={own.every_records!r}: a sequence has at least one record")
    if own.queue_max_bytes < 1:
        raise InvalidInputError(f"queue_max_bytes={own.queue_max_bytes!r}: a queue holds at least one byte")
    return own, {name: value for name, value in options.items() if name not in names}


@dataclass(frozen=True, slots=True)
class MemberConfig:
    """The subscription of a member, and where it starts to read.

    Attributes:
        topics, pattern: the topics, or the regular expression, to subscribe to.
        start: the start position of partitions that the region has never read.
        fail_on_data_loss: stop the region when the log no longer has a needed offset.
        states: the keyed states of its partitions; None: it keeps none.
    """

    topics: tuple[str, ...]
    pattern: str | None
    start: StartPosition
    fail_on_data_loss: bool = True
    states: KeyedStates | None = None


@dataclass(slots=True)
class MemberMetrics:
    """The metrics of a member. Times are in ms; -1: not measured yet. Source: spec 5.13.

    Attributes:
        sequences: the number of complete checkpoints that it heard of.
        register_wait_cause: why the member can't register, because its sink does not answer; empty: it can.
        staging_wait_cause: why its sink accepts no rows at the moment; empty: it accepts them.
        dead_letters: the number of dead letters in complete checkpoints: rows that its sink refused, and those that the
            application gave to `dead_letter`.
    """

    partitions: int = 0
    topics: int = 0
    drain_ms: float = -1
    longest_drain_ms: float = -1
    sequences: int = 0
    resets: int = 0
    register_wait_cause: str = ""
    staging_wait_cause: str = ""
    dead_letters: int = 0

    @property
    def waits_for(self) -> str:
        """The reason why the member's sink does not answer or accepts no rows now; empty: it accepts rows."""
        return self.register_wait_cause or self.staging_wait_cause
