"""The application's server: forwards what Spark reports about queries to the processes of their sources.

A batch is done when its sink has completed it and the checkpoint's commit log has it. Spark tells the source only at
the query's next trigger, but a StreamingQueryListener at once. Its `onQueryProgress` comes 0.2 to 0.3 s after the
commit log was written, never before, with each source's end offset. `listen_to_queries` adds such a
listener, which sends the end offset over the channel to the source that planned the batch.
"""

# ruff: noqa: N802 (the methods' names are Spark's)

from __future__ import annotations

import contextlib
import json  # not msgspec: text of other programs, with NaN and integers of any size
import logging
import os
import threading
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from kohort.spark.driver_channel import ChannelAddress, ChannelServer, Message
from kohort.spark.source.read_twice import DoubleReads, sources_in_plan
from kohort.spark.source_sessions import SOURCE_SESSIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("kohort.spark")

RUNS_MAX = 1_024
"""Most runs remembered at once; beyond it the oldest run, whose end Spark never reported, is forgotten."""


def query_in_offset(text: str | None) -> str | None:
    """Return the identity of the query in an offset's JSON; None if the offset is another source's."""
    try:
        offset = json.loads(text or "")
    except ValueError:
        return None
    query = offset.get("query") if isinstance(offset, dict) and "kohort" in offset else None
    return query if isinstance(query, str) else None


class CompletedBatches:
    """The last completed batch of each running query, for sources that connect after it was reported. Pure."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, dict[str, Message]] = {}

    def record_batch_completed(self, run: str, ends: Iterable[str], *, stateful: bool = False) -> dict[str, Message]:
        """Record that a batch of a query's run is done.

        Args:
            run: Spark's id of the run.
            ends: the JSON of its sources' end offsets.
            stateful: whether the query keeps state, as windows and joins of streams do.

        Returns:
            The messages to send, by query identity: a Spark query that reads several kohort sources has several.
        """
        more = {"stateful": True} if stateful else {}
        messages = {
            query: {"kind": "done", "end": text, **more}
            for text in ends
            if (query := query_in_offset(text)) is not None
        }
        if messages:
            with self._lock:
                self._runs[run] = self._runs.pop(run, {}) | messages
                if len(self._runs) > RUNS_MAX:
                    del self._runs[next(iter(self._runs))]
        return messages

    def forget_ended_run(self, run: str) -> dict[str, Message]:
        """Forget a run of a Spark query that has ended, after its last batch was reported.

        Return the messages that tell its sources so, by query identity.
        """
        with self._lock:
            return {query: {"kind": "over"} for query in self._runs.pop(run, {})}

    def last_message(self, query: str) -> Message | None:
        """Return the last message about a query; None if there is none."""
        with self._lock:
            messages = [by_query[query] for by_query in self._runs.values() if query in by_query]
        return messages[-1] if messages else None


class SinkListener(StreamingQueryListener):
    """A query listener that forwards completed batches and ended runs; batches of other sources cost one lookup."""

    def __init__(self, completed: CompletedBatches, server: ChannelServer, jvm: Any) -> None:
        """Set up the listener; it is not added to a session yet.

        Args:
            completed: the completed batches.
            server: the server that the sources are connected to.
            jvm: py4j's view of Spark's classes.
        """
        self._completed, self._server = completed, server
        self._read_twice = DoubleReads()
        self.rows = 0  # records read by queries, for the summary at the end
        self._sessions: weakref.WeakSet[SparkSession] = weakref.WeakSet()
        self._jlistenerobj = jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(
            _JsonProgressListener(self)
        )

    def add_session(self, spark: SparkSession) -> None:
        """Check the plans of a session's queries when they start."""
        self._sessions.add(spark)

    def sessions(self) -> list[SparkSession]:
        """Return the sessions whose queries are listened to."""
        return list(self._sessions)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self.mark_double_reads(str(event.id), str(event.runId))

    def mark_double_reads(self, query: str, run: str) -> None:
        """Mark the sources of a starting query that read one topic in one group, so that they refuse to start.

        The query's sources do not run yet. When its plan can't be inspected, the query starts without the check.
        """
        try:
            for session in self.sessions():
                running = session.streams.get(query)
                if running is not None:
                    self._read_twice.mark_run_sources(
                        run, sources_in_plan(running._jsq.streamingQuery().analyzedPlan())
                    )
                    return
        except (Py4JError, OSError) as error:
            log.debug(
                "[query %s] skipped the check that no two of its sources read a topic in one group: "
                "its plan can't be read: %s",
                query,
                error,
            )

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: the previous batch was reported already."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self.record_progress(event.progress.json)

    def record_progress(self, progress: str) -> None:
        """Handle a query's progress, as JSON: one of its batches is done."""
        report = json.loads(progress)
        ends = [json.dumps(source["endOffset"]) for source in report["sources"]]
        self.rows += sum(
            source["numInputRows"] for source, end in zip(report["sources"], ends, strict=True) if query_in_offset(end)
        )
        stateful = bool(report.get("stateOperators"))
        self._send_messages(self._completed.record_batch_completed(report["runId"], ends, stateful=stateful))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self._read_twice.forget_run(str(event.runId))
        self._send_messages(self._completed.forget_ended_run(str(event.runId)))

    def _send_messages(self, messages: dict[str, Message]) -> None:
        for query, message in messages.items():
            self._server.send_message(query, message)


class _JsonProgressListener(JStreamingQueryListener):
    """A Java listener that takes the progress from the JVM as one JSON text.

    PySpark's own listener asks the JVM for each number, which takes 20 ms of CPU time for each batch of each query.
    """

    pylistener: SinkListener

    def onQueryStarted(self, jevent: Any) -> None:
        """Check the plan while the query waits to start."""
        self.pylistener.mark_double_reads(jevent.id().toString(), jevent.runId().toString())

    def onQueryIdle(self, jevent: object) -> None:
        """Do nothing."""

    def onQueryProgress(self, jevent: Any) -> None:
        self.pylistener.record_progress(jevent.progress().json())


class Application:
    """The application of this process's sessions: one channel server, and one listener for each JVM."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._completed = CompletedBatches()
        answers = {"ask": SOURCE_SESSIONS.answer_request, "initial": self._initial}
        self._server = ChannelServer(self._completed.last_message, {"lost": SOURCE_SESSIONS.report_lost}, answers)
        self._listener: SinkListener | None = None
        self._gateway: Any = None

    @property
    def channel_address(self) -> ChannelAddress:
        return self._server.address

    def listen_to_session(self, spark: SparkSession, gateway: Any) -> None:
        """Listen to a session's queries; repeated calls do nothing."""
        if self._listener is None or self._gateway is not gateway:
            self._listener = SinkListener(self._completed, self._server, gateway.jvm)
            self._gateway = gateway
        self._listener.add_session(spark)
        mine = self._listener._jlistenerobj
        present = spark._jsparkSession.streams().listListeners()
        if not any(listener.equals(mine) for listener in present):  # removing and adding it would lose an event
            spark.streams.addListener(self._listener)

    def count_rows_read(self) -> int:
        """Return how many records the queries of this JVM have read, after waiting for Spark's pending events."""
        if self._listener is None:
            return 0
        for session in self._listener.sessions():
            with contextlib.suppress(Py4JError, OSError, AttributeError):  # the session was stopped
                session.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        return self._listener.rows

    def _initial(self, _query: str, message: Message) -> Message:
        """Answer a source's request for the offsets at which its first batch starts."""
        from kohort.spark.source.first_batch import answer_first_batch_start

        return answer_first_batch_start([] if self._listener is None else self._listener.sessions(), message)


_lock = threading.Lock()
_application: Application | None = None


def count_rows_read() -> int:
    """Return how many records this application's streaming queries have read, as far as Spark has reported."""
    return 0 if _application is None else _application.count_rows_read()


def listen_to_queries(spark: SparkSession) -> ChannelAddress | None:
    """Listen to a session's queries; return the address for their sources.

    Return None on Spark Connect, where the sources run on the server's machine and can't reach this one.
    """
    global _application
    try:
        context = spark.sparkContext
    except AttributeError:  # Spark Connect
        return None
    with _lock:
        if _application is None or _application.pid != os.getpid():
            _application = Application()
        _application.listen_to_session(spark, context._gateway)
        return _application.channel_address
