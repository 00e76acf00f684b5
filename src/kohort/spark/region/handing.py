"""What one source of a region may read now, as its member was told: the end of the source's questions.

Two threads meet here: the member's, which gives partitions and takes them back, and the one of the source's connection.
Whatever a batch reads is fixed when it begins; what changes after that is for the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kohort.ids import TopicPartition
from kohort.region.records import Position
from kohort.spark.region.sessions import Handed, HandedPart, Idle, Lost


class HandingSeat:
    """See the module's text. It is there for as long as its member lives, whatever runs of the query come and go."""

    def __init__(self, begun: Callable[[], None], done: Callable[[], None], lost: Callable[[Lost], None]) -> None:
        """Nothing is handed out.

        Args:
            begun: called when a batch begins, before anyone can see that it runs; it may not ask the seat. So who has
                the seat hold, and finds that nothing runs, has been told of all that ever ran.
            done: called when a batch is done; from any thread.
            lost: called when the source has found that records are gone; from its connection's thread.
        """
        self._begun, self._done, self.lost = begun, done, lost
        self._changed = threading.Condition()
        self._parts: dict[TopicPartition, HandedPart] = {}
        self._kept: set[TopicPartition] = set()  # wanted back: not planned any more
        self._holds = {"not started": False}  # by reason, whether Spark's trigger stays until it is over
        self._version = self._handing = self._run = 0
        self._epoch = self._generation = -1
        self._running: int | None = None
        self._has_read = False

    # -- the source's thread

    def held(self, wait_ms: int, run: int, idle: Idle | None = None) -> Handed | None:
        """What may be read; None: nothing may be planned now, also after so long a wait, or the run is over.

        A source that is idle and knows what it may read waits first, until that changes or its run is over.
        """

        def is_news() -> bool:
            return idle is None or bool(self._holds) or (idle.version, run) != (self._version, self._run)

        with self._changed:
            if idle is not None:
                self._changed.wait_for(is_news, idle.ms / 1000)
            self._changed.wait_for(lambda: not self._holds or self._run != run, wait_ms / 1000)
            if self._holds or self._run != run:
                return None
            parts = tuple(part for at, part in sorted(self._parts.items()) if at not in self._kept)
            return Handed(self._version, self._epoch, self._generation, parts)

    def stays(self) -> bool:
        """Whether Spark may not even be told that there is nothing to read now."""
        with self._changed:
            return any(self._holds.values())

    def begin(self, version: int, batch: int) -> bool:
        """A batch begins, of what was handed out under this version; False: that has changed."""
        with self._changed:
            if self._holds or version != self._version:
                return False
            self._begun()
            self._running, self._has_read = batch, True
        return True

    def end(self, batch: int, run: int) -> None:
        """A batch is done: its sink, and the checkpoint's log. Runs count their batches alike."""
        with self._changed:
            if (self._run, self._running) != (run, batch):
                return
            self._running = None
        self._done()

    # -- the member's thread

    def end_run(self) -> None:
        """The run is about to be stopped, which would wait for its source's question: that is answered now."""
        with self._changed:
            self._run += 1
            self._changed.notify_all()

    def stop(self) -> None:
        """The run has ended, and whatever batch it was in."""
        with self._changed:
            self._running = None
        self._done()

    def start(self, epoch: int) -> RunSeat:
        """A run of the query begins: no batch of an earlier one counts, and no word of its end."""
        with self._changed:
            self._epoch, self._running = epoch, None
            self._run += 1
            self._changes()
            return RunSeat(self, self._run)

    def in_generation(self, generation: int) -> None:
        """The group's, for what the source shows of itself."""
        with self._changed:
            self._generation = generation

    def give(self, position: Position) -> None:
        """A partition may be read from here on: under a number that it never had."""
        with self._changed:
            self._handing += 1
            self._parts[TopicPartition(position.topic, position.partition)] = HandedPart(
                position.topic, position.topic_id, position.partition, position.offset, self._handing
            )
            self._changes()

    def keep_from(self, partitions: Iterable[TopicPartition]) -> None:
        """These are the member's still, and no batch reads on in them."""
        with self._changed:
            self._kept |= set(partitions) & self._parts.keys()
            self._changes()

    def take(self, partitions: Iterable[TopicPartition]) -> None:
        """These are not the member's any more."""
        with self._changed:
            for partition in partitions:
                self._parts.pop(partition, None)
                self._kept.discard(partition)
            self._changes()

    def clear(self) -> None:
        """Nothing is handed out, and no batch runs."""
        with self._changed:
            self._parts.clear()
            self._kept.clear()
            self._running, self._has_read = None, False
            self._changes()

    def hold(self, why: str, *, stays: bool = False) -> int | None:
        """No batch begins any more, until `let` with the same reason; gives the number of the one that runs.

        Args:
            why: the reason.
            stays: none without records either: Spark's trigger does not end before that.
        """
        with self._changed:
            self._holds[why] = stays
            self._changed.notify_all()
            return self._running

    def let(self, why: str) -> None:
        """A reason to hold is over."""
        with self._changed:
            self._holds.pop(why, None)
            self._changed.notify_all()

    def running(self) -> int | None:
        """The number of the batch that runs."""
        with self._changed:
            return self._running

    def has_read(self) -> bool:
        """Whether a batch has begun since all was cleared."""
        with self._changed:
            return self._has_read

    def handed(self) -> dict[TopicPartition, HandedPart]:
        """All that is handed out, also what is not planned any more."""
        with self._changed:
            return dict(self._parts)

    def _changes(self) -> None:
        self._version += 1
        self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class RunSeat:
    """The seat as one run of the query has it: what is told late of an earlier run is about no batch of the present."""

    seat: HandingSeat
    run: int

    def held(self, wait_ms: int, idle: Idle | None = None) -> Handed | None:
        return self.seat.held(wait_ms, self.run, idle)

    def stays(self) -> bool:
        return self.seat.stays()

    def begin(self, version: int, batch: int) -> bool:
        return self.seat.begin(version, batch)  # another run's versions are others

    def end(self, batch: int) -> None:
        self.seat.end(batch, self.run)

    def lost(self, lost: Lost) -> None:
        self.seat.lost(lost)
