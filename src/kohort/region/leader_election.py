"""Who is a region's control plane: reached if there is one, else this process becomes it.

Every application of a region can. The topic says whose term it is and where it listens; who can't be reached for a
moment is replaced, and whoever was replaced while it slept can write nothing more. Source: spec 5.3.
"""

from __future__ import annotations

import logging
import random
import secrets
import socket
import threading
import time
from dataclasses import dataclass
from typing import Protocol

from kohort.errors import KafkaError
from kohort.io.channel import TOKEN_BYTES, Link, greet_listener
from kohort.region.control_plane.state import Known, RegionConfig
from kohort.region.server import CONNECTIONS_MAX, FINAL, Book, ControlPlane, OverError

log = logging.getLogger("kohort.region")

CONNECT_S = 2.0
"""How long a control plane may take to answer: one that is paused accepts connections, and says nothing."""
PATIENCE_S = (0.5, 1.5)
"""So long, by chance in between, it may be out of reach before it is replaced: the first who tries is then alone."""
LOSSES_MAX = 4
"""Who begins a term and is replaced while it does waits as long, twice as long each time, at most 2**4 times."""


class NobodyServesError(ConnectionError):
    """There is no control plane, and this process is not to be one."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a control plane listens, in which term, and what it lets in."""

    term: int
    host: str
    port: int
    token: bytes


class Place(Protocol):
    """The region's topic, as far as it is needed here. Both block."""

    def address(self) -> Address | None:
        """Of the newest term; None: there was none yet."""

    def take_over(self, host: str, port: int, token: bytes) -> tuple[Book, Known]:
        """Begin a term of one's own: when this returns, no earlier one can write."""


class Tenure:
    """One for each application. Any thread may call; they wait for each other.

    Attributes:
        replaced: Set when this application served the region and does not any more: another application has begun a
            later term, or no new term could be begun after a lost one.
    """

    def __init__(
        self,
        place: Place,
        config: RegionConfig,
        *,
        serves: bool = True,
        host: str = "127.0.0.1",
        told: str | None = None,
    ) -> None:
        """`host`: where it listens; `told`: under which name others reach it, when that is another."""
        self._place, self._config, self._serves = place, config, serves
        self._host, self._told = host, host if told is None else told
        self._lock = threading.Lock()
        self._missed: dict[int, float] = {}
        self._told_of: set[int] = set()
        self._losses, self._stays_behind_s = 0, 0.0
        self._plane: ControlPlane | None = None
        self._closed = False
        self.replaced = threading.Event()

    def reach(self, *, patiently: bool = True) -> Link:
        """A connection to the control plane of now.

        Args:
            patiently: have another one take over, if this application may, when there is none.

        Raises:
            OSError: there is none for the moment: try again.
            KafkaError: the region's topic can't be read or written.
        """
        with self._lock:
            if self._closed:
                raise NobodyServesError("the region was closed")
            address = self._place.address()
            if address is not None:
                try:
                    link = self._connect(address)
                except OSError as error:
                    if not patiently:
                        raise
                    self._wait_for(address, error)
                else:
                    self._missed.clear()
                    return link
            if not self._serves or not patiently:
                raise NobodyServesError("there is no control plane; start one with `kohort region serve`")
            return self._connect(self._compete())

    def _connect(self, address: Address) -> Link:
        sock = socket.create_connection((address.host, address.port), CONNECT_S)
        try:
            return greet_listener(sock, address.token, CONNECT_S)
        except BaseException:
            sock.close()
            raise

    def _wait_for(self, address: Address, error: OSError) -> None:
        """Have some patience with one that is not reached."""
        until_s = self._missed.setdefault(address.term, time.monotonic() + random.uniform(*PATIENCE_S))
        if time.monotonic() < until_s:
            raise error
        if address.term not in self._told_of:
            self._told_of.add(address.term)
            where = f"{address.host}:{address.port}"
            log.info("the control plane of term %s is not reached at %s any more: %s", address.term, where, error)

    def _compete(self) -> Address:
        """Take over, where others may be about to: the one that they leave alone for a moment has it."""
        if time.monotonic() < self._stays_behind_s:
            raise NobodyServesError("another application is taking over")
        try:
            address = self._take_over()
        except OverError as error:
            wait_s = random.uniform(*PATIENCE_S) * 2**self._losses
            self._losses = min(self._losses + 1, LOSSES_MAX)
            self._stays_behind_s = time.monotonic() + wait_s
            raise NobodyServesError(f"another application is taking over: {error}") from error
        self._losses = 0
        return address

    def _take_over(self) -> Address:
        if self._plane is not None:
            self._plane.close()
        token = secrets.token_bytes(TOKEN_BYTES)
        listening = socket.create_server((self._host, 0), backlog=CONNECTIONS_MAX)
        try:
            port = listening.getsockname()[1]
            book, known = self._place.take_over(self._told, port, token)
        except BaseException:
            listening.close()
            raise
        self._plane = ControlPlane(book, known, self._config, listening, token, self._serve_again)
        self.replaced.clear()
        self._plane.start()
        return Address(known.term, self._told, port, token)

    def plane(self) -> ControlPlane | None:
        """The control plane, if it is here."""
        plane = self._plane
        return None if plane is None or plane.over.is_set() else plane

    def serve(self) -> ControlPlane:
        """Take over now; again, up to `LOSSES_MAX` times, where others do at the same time or the topic fails.

        Raises:
            OverError: each time another was quicker.
            KafkaError: the region's topic can't be read or written.
        """
        with self._lock:
            for losses in range(LOSSES_MAX):
                try:
                    self._take_over()
                    break
                except FINAL:
                    raise
                except KafkaError as error:
                    log.info("a term could not be begun yet: %s", error)
                    time.sleep(random.uniform(*PATIENCE_S) * 2**losses)
            else:
                self._take_over()
            assert self._plane is not None
            return self._plane

    def _serve_again(self, lost: ControlPlane) -> None:
        """Begin another term after one that no other application has ended.

        A term also ends when the coordinator aborts its transaction at `TRANSACTION_MS`, which a busy cluster or a
        process that slept can cause. Members of applications that may not serve would then wait for ever.
        """
        for losses in range(LOSSES_MAX):
            time.sleep(random.uniform(*PATIENCE_S) * 2**losses)
            with self._lock:
                if self._closed or self._plane is not lost:
                    return
                try:
                    address = self._place.address()
                    if address is not None and address.term != lost.term:
                        break
                    log.info("region %s: term %s was lost and no other has begun: begin one", lost.region, lost.term)
                    self._take_over()
                except FINAL as error:
                    log.warning("region %s: no term could be begun after term %s: %s", lost.region, lost.term, error)
                    break
                except KafkaError as error:
                    log.info("region %s: a term could not be begun yet: %s", lost.region, error)
                else:
                    return
        self.replaced.set()

    def close(self) -> None:
        """End the control plane, if it is here: another application takes over."""
        with self._lock:
            self._closed = True
            plane, self._plane = self._plane, None
        if plane is not None:
            plane.close()
