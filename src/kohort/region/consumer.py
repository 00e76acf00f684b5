"""A member of a region that reads with a consumer.

    region = Region("flights", servers, checkpoint_every="5s")
    with region.consumer("worker-1", group_id="etl", topics=["flights"], into=ParquetFolder("out")) as consumer:
        for table in consumer.tables():
            consumer.submit(transform(table))

Two threads: the event thread, which polls, commits and hears of group and control plane; and the application's, which
processes. Source: spec 5.2.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

import pyarrow as pa

from kohort.channel import Link
from kohort.errors import InvalidInputError, TimedOutError
from kohort.region.consuming.event_thread import EventThread
from kohort.region.consuming.flow import Flow
from kohort.region.consuming.settings import Figures
from kohort.region.consuming.staging import Stager
from kohort.region.member import events as happens
from kohort.region.states import MemberState

CLOSE_S = 60.0


class RegionConsumer:
    """See the module's text; `Region.consumer` makes one.

    What was submitted since the last complete sequence comes again after a reset, with `on_reset` told first. One
    thread may iterate and submit; the other methods may be called from any.
    """

    def __init__(
        self,
        events: EventThread,
        flow: Flow,
        stager: Stager,
        every_records: int | None,
        ended: Callable[[RegionConsumer], None],
    ) -> None:
        self._events, self._flow, self._stager, self._ended = events, flow, stager, ended
        self._every, self._counted = every_records, 0
        self._closing = threading.Lock()
        self._closed = False

    def start(self, reach: Callable[[], Link]) -> None:
        """Begin; `Region.consumer` calls it."""
        self._events.start(reach)

    @property
    def name(self) -> str:
        """Its name in the region."""
        return self._events.name

    @property
    def state(self) -> MemberState:
        """Where it is."""
        return self._events.machine.state

    @property
    def sequence(self) -> int:
        """The last complete sequence that it has heard of; 0: none."""
        return self._events.machine.sequence

    @property
    def names(self) -> tuple[str, ...]:
        """All members of the region, as last told. Source: spec 5.3."""
        return self._events.machine.names

    @property
    def figures(self) -> Figures:
        """Counters and times."""
        return self._events.figures

    def tables(self) -> Iterator[pa.Table]:
        """Records as they come, with the columns of Spark's Kafka source, until the member is closed.

        What was yielded counts as submitted when the next is asked for.

        Raises:
            RegionStoppedError: the region has stopped, or would not have this member.
            KafkaError: the group can't be joined, or the topics can't be read.
        """
        while (piece := self._flow.take()) is not None:
            yield piece.table
            if self._every is not None:
                self._counted += piece.table.num_rows
                if self._counted >= self._every:
                    self._counted = 0
                    self._flow.finish()
                    self.checkpoint()

    def submit(self, table: pa.Table | pa.RecordBatch) -> None:
        """Give rows to the sink: with the sequence that has the records they were made of, or never.

        Raises:
            InvalidInputError: nothing is being processed, or there is no sink.
            Exception: what the sink says against these rows.
        """
        if self._flow.is_idle():
            raise InvalidInputError("submit belongs between two tables: what is it made of?")
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        if not isinstance(table, pa.Table):
            raise InvalidInputError(f"submit takes a pyarrow Table or RecordBatch, not {type(table).__name__}")
        if not self._flow.void:
            self._stager.add(table)

    def checkpoint(self) -> None:
        """Ask for a sequence: all members drain and contribute. Returns at once."""
        self._events.post(happens.CheckpointWanted())

    def reset(self, cause: str) -> None:
        """Have all members go back to the last complete sequence: something behind this one has failed."""
        self._events.post(happens.ResetWanted(cause))

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Leave with the next complete sequence. Does nothing the second time.

        Raises:
            TimedOutError: no sequence was complete in time; it has left nevertheless, and all go back.
        """
        self._close(timeout_s, happens.Closing())

    def _close(self, timeout_s: float, *news: happens.Event) -> None:
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._flow.finish()
            for event in news:
                self._events.post(event)
            thread = self._events.thread
            thread.join(timeout_s)
            late = thread.is_alive()
            if late:
                self._events.abandon()
                thread.join()
            self._ended(self)
        if late:
            raise TimedOutError(f"{self.name}: no sequence was complete within {timeout_s:g} s of the close")

    def abort(self, cause: str) -> None:
        """End at once: all members go back to the last complete sequence."""
        self._flow.clear()
        self._events.aborting = True
        self._close(CLOSE_S, happens.Closing(), happens.ResetWanted(cause))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort(f"the application has failed: {error!r}")
