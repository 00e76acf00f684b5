"""The group coordinator of one shard.

    machine = GroupMachine(config)
    for record in journal: machine.apply(record)
    outcome = machine.on_loaded(now, image)
    outcome = machine.step(event, now)

`step` applies the records it returns before it returns them; the shell appends them and only then releases the
replies. When the append fails, the shell throws the machine away and replays: nothing else puts the two in step again.
"""

from __future__ import annotations

from collections.abc import Iterator

from kohort.groups.config import GroupConfig
from kohort.groups.events import Event, TopicImage
from kohort.groups.outcome import Now, Outcome
from kohort.groups.records import Record


class GroupMachine:
    """All groups of one shard, as a deterministic state machine."""

    def __init__(self, config: GroupConfig) -> None:
        raise NotImplementedError

    def apply(self, record: Record) -> None:
        """Change the hard state by one durable record. Replay calls nothing else."""
        raise NotImplementedError

    def on_loaded(self, now: Now, image: TopicImage) -> Outcome:
        """Build the soft state after a replay: sessions start anew, unfinished rounds are over.

        Its outcome may hold records.
        """
        raise NotImplementedError

    def step(self, event: Event, now: Now) -> Outcome:
        """Take in one event. `now` never goes back."""
        raise NotImplementedError

    def next_deadline_ms(self) -> int | None:
        """The monotonic time at which a `Tick` is due; None: not before another event."""
        raise NotImplementedError

    def snapshot(self) -> Iterator[Record]:
        """Every record of the hard state, in an order that replays: what compaction keeps."""
        raise NotImplementedError
