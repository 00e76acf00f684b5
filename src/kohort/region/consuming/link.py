"""A member's connection to the control plane, wherever that is now."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from kohort.channel import Link
from kohort.errors import KafkaError, RetriableError
from kohort.region import messages as told
from kohort.region.codec import UnknownMessageError, decode_heard, encode
from kohort.region.serving import SILENCE_S

log = logging.getLogger("kohort.region")
AGAIN_S = 0.2


class PlaneLink:
    """Connects in the background, and again when the connection ends."""

    def __init__(
        self,
        reach: Callable[[], Link],
        connected: Callable[[str], None],
        heard: Callable[[told.Order], None],
        name: str,
    ) -> None:
        """Not connected before `start`.

        Args:
            reach: connects to whoever is the control plane now; OSError or KafkaError when there is none.
            connected: there is a new connection, over which this may be told of this process; called by the link's
                thread, as `heard` is. An OSError or a RetriableError of it ends the connection, and another is made.
            heard: the control plane said something.
            name: of the member.
        """
        self._reach, self._connected, self._heard, self._name = reach, connected, heard, name
        self._link: Link | None = None
        self._ended = threading.Event()
        self._told = False
        self._thread = threading.Thread(target=self._run, name=f"kohort-link-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def say(self, report: told.Report) -> None:
        """Say something, if there is a connection; who connects again says what counts."""
        link = self._link
        if link is not None:
            link.send(encode(report))

    def close(self) -> None:
        """Hang up."""
        self._ended.set()
        link = self._link
        if link is not None:
            link.close()
        if threading.current_thread() is not self._thread and self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                link = self._reach()
            except (OSError, KafkaError) as error:
                if not self._told:
                    log.info("%s: no control plane is reached yet: %s", self._name, error)
                    self._told = True
                self._ended.wait(AGAIN_S)
                continue
            try:
                self._talk(link)
            except (OSError, RetriableError) as error:
                if not self._told:
                    log.warning("%s: waits for its sink, to compare it with the region's topic: %s", self._name, error)
                    self._told = True
                self._ended.wait(AGAIN_S)

    def _talk(self, link: Link) -> None:
        self._link = link
        try:
            if self._ended.is_set():
                return
            self._connected(link.told_name())
            self._told = False
            for body in link.bodies(SILENCE_S):
                message = decode_heard(body)
                if isinstance(message, told.Alive):
                    link.send(encode(told.Alive()))
                elif not isinstance(message, told.RegionSeen):
                    self._heard(message)
        except UnknownMessageError as error:
            log.warning("%s: the control plane said what is not understood: %s", self._name, error)
        finally:
            self._link = None
            link.close()
