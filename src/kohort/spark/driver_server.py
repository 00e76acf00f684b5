"""The application's ear: what Spark says of its queries, passed on to the processes of their sources.

A batch is done when its sink has taken it and the checkpoint's commit log says so. Spark tells that a source only at
the query's next trigger, but a StreamingQueryListener at once: `onQueryProgress` comes 0.2 to 0.3 s after the commit
log was written, never before, with the text of each source's end offset. `install` has one listen, and what it hears
goes over the channel to the source that planned the batch.
"""

# ruff: noqa: N802 (the methods' names are Spark's)

from __future__ import annotations

import contextlib
import json
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

from kohort.spark.driver_channel import Contact, Message, Switchboard
from kohort.spark.read_twice import ReadTwice, loads_of
from kohort.spark.region.sessions import SEATS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("kohort.spark")

RUNS_MAX = 1_024
"""Runs remembered at once: of a run whose end Spark never told, the oldest is forgotten."""


def query_of(text: str | None) -> str | None:
    """The identity of the query that an offset's text is of; None: it is not of this source."""
    try:
        found = json.loads(text or "")
    except ValueError:
        return None
    query = found.get("query") if isinstance(found, dict) and "kohort" in found else None
    return query if isinstance(query, str) else None


class Ledger:
    """What is known to be done, of each query that runs: for sources that connect after it was said. Pure."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, dict[str, Message]] = {}

    def progress(self, run: str, ends: Iterable[str]) -> dict[str, Message]:
        """A batch of a run is done.

        Args:
            run: Spark's id of the run.
            ends: the texts of its sources' end offsets.

        Returns:
            What to tell, by the query's identity: a Spark query that reads several of our sources has several.
        """
        told = {query: {"kind": "done", "end": text} for text in ends if (query := query_of(text)) is not None}
        if told:
            with self._lock:
                self._runs[run] = self._runs.pop(run, {}) | told
                if len(self._runs) > RUNS_MAX:
                    del self._runs[next(iter(self._runs))]
        return told

    def terminated(self, run: str) -> dict[str, Message]:
        """A run is over, and all its batches that are done have been told; returns what to tell, by identity."""
        with self._lock:
            return {query: {"kind": "over"} for query in self._runs.pop(run, {})}

    def known(self, query: str) -> Message | None:
        """The last that was said of a query; None: nothing."""
        with self._lock:
            found = [said[query] for said in self._runs.values() if query in said]
        return found[-1] if found else None


class SinkListener(StreamingQueryListener):
    """Passes on what is done and what is over; a batch that is not ours costs one look."""

    def __init__(self, ledger: Ledger, switchboard: Switchboard, jvm: Any) -> None:
        """Not added to a session yet.

        Args:
            ledger: what is known to be done.
            switchboard: where the sources are connected.
            jvm: the gateway's view of Spark's classes.
        """
        self._ledger, self._switchboard = ledger, switchboard
        self._twice = ReadTwice()
        self.rows = 0  # records that queries have read, for an account at the end
        self._sessions: weakref.WeakSet[SparkSession] = weakref.WeakSet()
        self._jlistenerobj = jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(_Whole(self))

    def add_session(self, spark: SparkSession) -> None:
        """Look at the plans of a session's queries when they start."""
        self._sessions.add(spark)

    def sessions(self) -> list[SparkSession]:
        """Return the sessions whose queries are listened to."""
        return list(self._sessions)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self.look_at_plan(str(event.id), str(event.runId))

    def look_at_plan(self, query: str, run: str) -> None:
        """A query starts, and has no sources yet: have those refused that read a topic twice in one group.

        A plan that can't be looked at is passed over: its query goes on without the check.
        """
        try:
            for session in self.sessions():
                found = session.streams.get(query)
                if found is not None:
                    self._twice.started(run, loads_of(found._jsq.streamingQuery().analyzedPlan()))
                    return
        except (Py4JError, OSError) as error:
            log.debug("the plan of query %s was not looked at: %s", query, error)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing to do: the batch before was told."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self.hear(event.progress.json)

    def hear(self, progress: str) -> None:
        """A query's progress as JSON: a batch of it is done."""
        said = json.loads(progress)
        ends = [json.dumps(source["endOffset"]) for source in said["sources"]]
        self.rows += sum(
            source["numInputRows"] for source, end in zip(said["sources"], ends, strict=True) if query_of(end)
        )
        self._tell(self._ledger.progress(said["runId"], ends))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self._twice.terminated(str(event.runId))
        self._tell(self._ledger.terminated(str(event.runId)))

    def _tell(self, messages: dict[str, Message]) -> None:
        for query, message in messages.items():
            self._switchboard.tell(query, message)


class _Whole(JStreamingQueryListener):
    """What the JVM calls: takes a progress as one JSON text.

    PySpark's own asks the JVM for each of its numbers, which takes 20 ms of CPU time for each batch of each query.
    """

    pylistener: SinkListener

    def onQueryStarted(self, jevent: Any) -> None:
        """Called while the query waits to start."""
        self.pylistener.look_at_plan(jevent.id().toString(), jevent.runId().toString())

    def onQueryIdle(self, jevent: object) -> None:
        """Nothing to do."""

    def onQueryProgress(self, jevent: Any) -> None:
        self.pylistener.hear(jevent.progress().json())


class Application:
    """This process as the application of its sessions: one switchboard, and one listener for each JVM."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._ledger = Ledger()
        answers = {"ask": SEATS.answer, "initial": self._initial}
        self._switchboard = Switchboard(self._ledger.known, {"lost": SEATS.lost}, answers)
        self._listener: SinkListener | None = None
        self._gateway: Any = None

    @property
    def contact(self) -> Contact:
        return self._switchboard.contact

    def listen(self, spark: SparkSession, gateway: Any) -> None:
        """Hear of a session's queries, once, however often this is called."""
        if self._listener is None or self._gateway is not gateway:
            self._listener = SinkListener(self._ledger, self._switchboard, gateway.jvm)
            self._gateway = gateway
        self._listener.add_session(spark)
        mine = self._listener._jlistenerobj
        heard = spark._jsparkSession.streams().listListeners()
        if not any(listener.equals(mine) for listener in heard):  # removed and added again, it would miss an event
            spark.streams.addListener(self._listener)

    def rows_read(self) -> int:
        """Return the records that queries of the present JVM have read; waits for what Spark is about to tell."""
        if self._listener is None:
            return 0
        for session in self._listener.sessions():
            with contextlib.suppress(Py4JError, OSError, AttributeError):  # a session that was stopped
                session.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        return self._listener.rows

    def _initial(self, _query: str, message: Message) -> Message:
        """Answer a source that asks where its first batch begins."""
        from kohort.spark.source.first_batch import answer_initial

        return answer_initial([] if self._listener is None else self._listener.sessions(), message)


_lock = threading.Lock()
_application: Application | None = None


def rows_read() -> int:
    """Return how many records this application's streaming queries have read, as far as Spark has told."""
    return 0 if _application is None else _application.rows_read()


def install(spark: SparkSession) -> Contact | None:
    """Listen to a session's queries for their sources; gives what a source needs to connect.

    None on Spark Connect: there the sources are on the server's machine, and can't reach this one.
    """
    global _application
    try:
        context = spark.sparkContext
    except AttributeError:  # Spark Connect
        return None
    with _lock:
        if _application is None or _application.pid != os.getpid():
            _application = Application()
        _application.listen(spark, context._gateway)
        return _application.contact
