"""How a member of a region behaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from kohort.client.setting_types import ConsumerSettings
from kohort.errors import InvalidInputError
from kohort.region.consuming.starts import Start
from kohort.region.consuming.work_queue import QUEUE_MAX_BYTES
from kohort.region.sinks import Sink
from kohort.region.sinks.dead_letters import FAIL


def _nothing() -> None:
    return None


def _no_state(sequence: int) -> bytes:
    del sequence
    return b""


class MemberSettings(ConsumerSettings, total=False):
    """Options of `Region.consumer`; beside these, the consumer's settings.

    Attributes:
        start: where partitions begin that the region has never read: 'beginning', 'end', 'committed' (else as
            `auto_offset_reset` says, by default the beginning) or a time in ms since the epoch.
        on_rebalance: 'reset': who must give up partitions that it has read from has all go back; 'checkpoint': it
            holds them until a sequence is complete.
        every_records: ask for a sequence after so many records; the region's `checkpoint_every` may be None then.
        queue_max_bytes: bounds the records that were fetched and not handed to the application yet, beside their count
            (100 polls' records): 128 MiB, as much as the consumer itself keeps (`queued_max_bytes`).
        fail_on_data_loss: an offset that the log does not have any more stops the region.
        reads_again: a group that is new to the region may read topics that another group of it has read into the same
            sink: their records are there twice then. Refused by default, for it follows from a changed `group_id`.
        on_bad_record: what becomes of a row that the sink can't take (null in a key, a value that the column does not
            hold): 'fail': `submit` raises `RowRefusedError`; 'dead-letter': it goes to `dead_letters`, and the other
            rows into the sink.
        dead_letters: the sink of such rows, with topic, partition, offset, timestamp, key and value of the record, the
            row as JSON, the reason and the member's name. Members may share one. With 'fail' it is still published.
        on_drain: all that was submitted is committed.
        on_checkpoint: gives the application's state for a sequence, at most 512 KiB.
        on_reset: go back to what it gave for that sequence; None: nothing, or the initial state (sequence 0).
        on_retire: nothing goes back to this sequence, or one before it, any more.
    """

    start: str | int
    on_rebalance: Literal["reset", "checkpoint"]
    every_records: int | None
    queue_max_bytes: int
    fail_on_data_loss: bool
    reads_again: bool
    on_bad_record: Literal["fail", "dead-letter"]
    dead_letters: Sink | None
    on_drain: Callable[[], None]
    on_checkpoint: Callable[[int], bytes]
    on_reset: Callable[[int, bytes | None], None]
    on_retire: Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Own:
    """Those of `MemberSettings` that are the region's."""

    start: str | int = "committed"
    auto_offset_reset: str = "earliest"
    on_rebalance: str = "reset"
    every_records: int | None = None
    queue_max_bytes: int = QUEUE_MAX_BYTES
    fail_on_data_loss: bool = True
    reads_again: bool = False
    on_bad_record: str = FAIL
    dead_letters: Sink | None = None
    on_drain: Callable[[], None] = _nothing
    on_checkpoint: Callable[[int], bytes] = _no_state
    on_reset: Callable[[int, bytes | None], None] = lambda sequence, state: None
    on_retire: Callable[[int], None] = lambda sequence: None

    @property
    def keeps_state(self) -> bool:
        """Whether the application has a state, which a table that is left undone may have changed already."""
        return self.on_checkpoint is not _no_state


def split(options: Mapping[str, Any]) -> tuple[Own, dict[str, Any]]:
    """The region's own, and the consumer's settings.

    Raises:
        InvalidInputError: a value that can't be.
    """
    names = {field.name for field in fields(Own)}
    own = Own(**{name: value for name, value in options.items() if name in names})
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
    """What a member reads, and from where.

    Attributes:
        fail_on_data_loss: an offset that the log does not have any more stops the region.
    """

    topics: tuple[str, ...]
    pattern: str | None
    start: Start
    fail_on_data_loss: bool = True


@dataclass(slots=True)
class Figures:
    """Of a member. Times in ms; -1: none yet. Source: spec 5.13.

    Attributes:
        waits_for_its_place: why its sink does not answer when the member has connected, which goes on when it does.
        waits_to_stage: why its sink takes nothing at the moment.
        dead_letters: rows that its sink could not take, in complete sequences.
    """

    partitions: int = 0
    topics: int = 0
    drain_ms: float = -1
    longest_drain_ms: float = -1
    sequences: int = 0
    resets: int = 0
    waits_for_its_place: str = ""
    waits_to_stage: str = ""
    dead_letters: int = 0

    @property
    def waits_for(self) -> str:
        """Why its sink takes nothing at the moment; empty: the sink does."""
        return self.waits_for_its_place or self.waits_to_stage
