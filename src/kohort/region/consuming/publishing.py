"""The background thread that publishes what a sequence staged, retrying until it succeeds."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from kohort.region.member.events import PublishCheckpoint
from kohort.region.sinks import Keep, Sink, publish_rows
from kohort.region.sinks.availability import is_permanent_error

log = logging.getLogger("kohort.region")
AGAIN_S = (0.2, 0.5, 1.0, 2.0, 5.0)
CLOSE_S = 30.0
"""Seconds that `close` waits for a running attempt. Abandoning one is as safe as ending the process."""


class SinkPublisher:
    """The thread that publishes complete checkpoints to one sink of a member; a new order replaces the previous one.

    Attributes:
        refused: Whether the last attempt failed with an error that waiting does not end. It is repeated all the same,
            because the checkpoint is committed.
    """

    def __init__(self, sink: Sink, name: str) -> None:
        """Initialise the publisher; nothing runs before `start`."""
        self._sink, self._name, self.place = sink, name, sink.place
        self.refused = False
        self._ended: Callable[[int, str], None] = lambda sequence, cause: None
        self._failed: Callable[[BaseException], None] = lambda error: None
        self._lock = threading.Condition()
        self._wanted: PublishCheckpoint | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"kohort-publish-{name}", daemon=True)

    def start(
        self, on_attempt_ended: Callable[[int, str], None], on_thread_failed: Callable[[BaseException], None]
    ) -> None:
        """Start the thread.

        After each attempt it calls `on_attempt_ended(checkpoint id, cause)`; an empty cause means success.
        `on_thread_failed` gets the error that ends the thread.
        """
        self._ended, self._failed = on_attempt_ended, on_thread_failed
        self._thread.start()

    def order_publication(self, order: PublishCheckpoint) -> None:
        """Order the thread to publish a checkpoint's staged rows, in place of an earlier order."""
        with self._lock:
            self._wanted = order
            self._lock.notify_all()

    def last_published_id(self) -> int:
        """Return the id of the last checkpoint that is published in the sink."""
        return self._sink.published()

    def close(self) -> None:
        """Stop the thread after its running attempt, waiting at most 30 s; another member publishes the rest."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)
            if self._thread.is_alive():
                log.warning(
                    "[member %s] closed, but its sink does not answer: the publishing thread is still running",
                    self._name,
                )

    def _run(self) -> None:
        try:
            self._publish_orders()
        except BaseException as error:  # noqa: BLE001 - the member ends with it
            self._failed(error)

    def _publish_orders(self) -> None:
        failures = 0
        while (wanted := self._next()) is not None:
            failures = failures + 1 if not self._try(wanted, failures) else 0
            if failures:
                with self._lock:
                    self._lock.wait_for(lambda: self._closed, AGAIN_S[min(failures, len(AGAIN_S)) - 1])

    def _next(self) -> PublishCheckpoint | None:
        with self._lock:
            while self._wanted is None and not self._closed:
                self._lock.wait()
            return None if self._closed else self._wanted

    def _try(self, wanted: PublishCheckpoint, failures: int) -> bool:
        try:
            if wanted.empties:
                self._sink.empty(wanted.sequence, wanted.floor)
            else:
                publish_rows(self._sink, wanted.sequence, wanted.keys, wanted.positions)
        except Exception as error:
            told = "%s: sequence %s could not be published to %s, retrying: %s"
            log.warning(told, self._name, wanted.sequence, self.place, error, exc_info=failures == 0)
            self.refused = is_permanent_error(error)
            self._ended(wanted.sequence, f"{type(error).__name__}: {error}")
            return False
        self.refused = False
        with self._lock:
            if self._wanted == wanted:
                self._wanted = None
        self._ended(wanted.sequence, "")
        self._sweep(wanted)
        return True

    def _sweep(self, wanted: PublishCheckpoint) -> None:
        try:
            self._sink.sweep(Keep(wanted.floor))
        except Exception as error:  # noqa: BLE001 - the next sweep removes what is left
            log.info(
                "[member %s] could not remove discarded staged rows from its sink, retrying after the next sequence: "
                "%s",
                self._name,
                error,
            )
