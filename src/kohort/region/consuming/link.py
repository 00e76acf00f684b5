"""A member's connection to the control plane, wherever that is now."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from kohort.channel import Link
from kohort.errors import KafkaError
from kohort.region import messages as told
from kohort.region.codec import UnknownMessageError, decode_heard, encode
from kohort.region.consuming.waits import Wait
from kohort.region.serving import SILENCE_S

log = logging.getLogger("kohort.region")
AGAIN_S = 0.2
CLOSE_S = 5.0
"""Seconds that `close` waits for the thread: it may be inside a call of the sink or the topic that does not end."""


class PlaneLink:
    """Connects in the background, and again when the connection ends."""

    def __init__(
        self,
        reach: Callable[[], Link],
        connected: Callable[[str], told.Waiting | None],
        heard: Callable[[told.Order], None],
        failed: Callable[[BaseException], None],
        name: str,
    ) -> None:
        """Not connected before `start`. The link's thread calls all of these.

        Args:
            reach: connects to the control plane of now; OSError or KafkaError when there is none.
            connected: there is a new connection, on which this may be told of this process. Returns what to say in
                place of a registration while the sink is away; it is called again then, with the same connection.
            heard: the control plane said something.
            failed: an error that is none of the connection's; nothing is connected any more.
            name: of the member.
        """
        self._reach, self._connected, self._heard, self._failed, self._name = reach, connected, heard, failed, name
        self._link: Link | None = None
        self._ended = threading.Event()
        self._missing = Wait(f"{name}: no control plane is reached yet, tried again until one is", level=logging.INFO)
        self._thread = threading.Thread(target=self._run, name=f"kohort-link-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def say(self, report: told.Report) -> None:
        """Say something, if there is a connection; a member that connects again says what counts."""
        link = self._link
        if link is not None:
            link.send(encode(report))

    def close(self) -> None:
        """Hang up. Leaves a thread behind that is in a call for too long: it does nothing more when that ends."""
        self._ended.set()
        link = self._link
        if link is not None:
            link.close()
        if threading.current_thread() is not self._thread and self._thread.is_alive():
            self._thread.join(CLOSE_S)
            if self._thread.is_alive():
                log.warning("%s: a call of its sink or of the region's topic does not end: left behind", self._name)

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                self._connect()
        except BaseException as error:  # noqa: BLE001 - the member ends with it
            self._failed(error)

    def _connect(self) -> None:
        try:
            link = self._reach()
        except (OSError, KafkaError) as error:
            self._missing.failed(error)
            self._ended.wait(AGAIN_S)
            return
        self._missing.ended()
        try:
            self._talk(link)
        except OSError as error:
            log.debug("%s: the connection to the control plane ended: %s", self._name, error)
            self._ended.wait(AGAIN_S)

    def _talk(self, link: Link) -> None:
        self._link = link
        try:
            is_connected = self._is_connected(link)
            for body in link.bodies(SILENCE_S):
                message = decode_heard(body)
                if isinstance(message, told.Alive):  # comes every second
                    link.send(encode(told.Alive()))
                    is_connected = is_connected or self._is_connected(link)
                elif is_connected and not isinstance(message, told.RegionSeen):
                    self._heard(message)
        except UnknownMessageError as error:
            log.warning("%s: the control plane said what is not understood: %s", self._name, error)
        finally:
            self._link = None
            link.close()

    def _is_connected(self, link: Link) -> bool:
        """Whether the member may register; else the control plane is told what it waits for."""
        if self._ended.is_set():
            link.close()
            return True
        waits = self._connected(link.told_name())
        if waits is not None:
            link.send(encode(waits))
        return waits is None
