"""The source's ear: what the application says of the query that this process drives."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from kohort.errors import InvalidInputError
from kohort.spark.channel import Contact, Line, Message

log = logging.getLogger("kohort.spark")

LAST_WORDS_S = 1.0
"""How long a query that is stopped waits to hear whether its running batch is done: what Spark tells of a batch takes
0.2 to 0.3 s."""


class Hearing:
    """Hears when a sink is done, and when the query is over and all has been said.

    Messages: `done` with the batch's `end`, as the checkpoint has it; `over` after the last of a run.

    Attributes:
        line: to the application.
    """

    def __init__(self, contact: Contact, sink_done: Callable[[str], bool]) -> None:
        """Connect in the background.

        Args:
            contact: of the application.
            sink_done: takes a batch's end; gives whether that ended the running batch.
        """
        self._sink_done = sink_done
        self._stopping = False
        self._enough = threading.Event()
        self.line = Line(contact, {"done": self._done, "over": self._over}, self._lost)
        self.line.start()

    @property
    def connected(self) -> bool:
        """Whether the application is there."""
        return self.line.connected

    def drives(self, query: str) -> None:
        """Say which query this process drives: it is heard of from now on."""
        self.line.drives(query)

    def last_words(self, running: Callable[[], bool]) -> None:
        """Wait, for a moment, until it is known whether the running batch is done.

        Spark ends the process without waiting for it, and without saying how far its sink has come. What it told the
        application before that is on its way.
        """
        self._stopping = True
        if self.connected and running():
            self._enough.wait(LAST_WORDS_S)

    def close(self) -> None:
        self.line.close()

    def _done(self, message: Message) -> None:
        try:
            ended = self._sink_done(str(message.get("end")))
        except (InvalidInputError, KeyError, TypeError, ValueError):
            log.warning("the application spoke of a batch that can't be read: %.200s", message)
            return
        if ended and self._stopping:
            self._enough.set()

    def _lost(self) -> None:
        if self._stopping:
            self._enough.set()

    def _over(self, _message: Message) -> None:
        self._enough.set()
