"""Leader election of a region: a process connects to the control plane, or becomes it if there is none.

Every application of a region is a candidate. The topic has the current term and its address. A control plane that
can't be reached for a moment is replaced. A replaced one that has only slept can no longer write. Source: spec 5.3.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Protocol

from kohort.errors import InvalidInputError, KafkaError
from kohort.io.backoff import exponential_backoff
from kohort.io.chance import CHANCE
from kohort.io.channel import Link, authenticate_listener
from kohort.region.control_plane.state import RegionConfig, RegionFacts
from kohort.region.server import FINAL, ControlPlane, RegionLog, TermOverError, open_listening_socket

log = logging.getLogger("kohort.region")

CONNECT_S = 2.0
"""Timeout in seconds for an answer: a control plane that is paused accepts connections, but sends nothing."""
ELECTION_DELAY_S = (0.5, 1.5)
"""Range of the random time in seconds for which a control plane may be unreachable before it is replaced. It is
random, so that the first candidate is usually alone."""
LOSSES_MAX = 4
"""Number of doublings of the backoff after a lost election: at most 2**4 times the base delay."""


class NoControlPlaneError(ConnectionError):
    """The error of a process that finds no control plane of its region, and may not become it, or not now."""


@dataclass(frozen=True, slots=True)
class ControlPlaneAddress:
    """The address of a region's control plane, with its term.

    Attributes:
        token: the secret that both ends of a connection prove to each other; the topic does not have it.
        pin: the SHA-256 of the TLS certificate that it shows; empty: it speaks no TLS.
    """

    term: int
    host: str
    port: int
    token: bytes = field(repr=False)
    pin: bytes = b""


class ElectionTopic(Protocol):
    """The region's topic, as far as leader election needs it. All methods may block."""

    def newest_address(self) -> ControlPlaneAddress | None:
        """Return the address of the newest term; None: there was no term yet."""

    def term_secret(self, term: int) -> bytes:
        """Return the shared secret of a term, which both ends of a control plane connection prove to each other."""

    def take_over(self, host: str, port: int, pin: bytes = b"") -> tuple[RegionLog, RegionFacts]:
        """Begin a term: when this returns, no earlier control plane can write."""


class LeaderElection:
    """The part of one application in electing its region's control plane. Calls from several threads are serialised.

    Attributes:
        replaced: set when this application no longer serves the region: another application has begun a later term, or
            no new term could be begun after a lost one.
    """

    def __init__(
        self,
        place: ElectionTopic,
        config: RegionConfig,
        *,
        serves: bool = True,
        host: str = "127.0.0.1",
    ) -> None:
        """Initialise the election; if this process becomes the control plane, it listens on `host`."""
        self._place, self._config, self._serves = place, config, serves
        self._host = host
        self._lock = threading.Lock()
        self._missed: dict[int, float] = {}
        self._announced_term: set[int] = set()
        self._losses, self._stays_behind_s = 0, 0.0
        self._plane: ControlPlane | None = None
        self._closed = False
        self.replaced = threading.Event()

    def connect_to_control_plane(self, *, retries: bool = True) -> Link:
        """Return a connection to the current control plane.

        Args:
            retries: become the control plane if none answers, and if this application may serve; False: fail at once.

        Raises:
            OSError: there is none at the moment; the caller should retry.
            KafkaError: the region's metadata topic can't be read or written.
        """
        with self._lock:
            if self._closed:
                raise NoControlPlaneError("the region was closed")
            address, where = self._place.newest_address(), ""
            if address is not None:
                try:
                    link = self._connect(address)
                except OSError as error:
                    if not retries:
                        raise
                    self._wait_for(address, error)
                    where = f" at {address.host}:{address.port}, where it ran last"
                else:
                    self._missed.clear()
                    return link
            if not self._serves or not retries:
                raise NoControlPlaneError(
                    f"no application of it answers{where}. Start one, or `kohort region serve`; `kohort region list` "
                    "shows what is stored"
                )
            return self._connect(self._compete())

    def _connect(self, address: ControlPlaneAddress) -> Link:
        sock = socket.create_connection((address.host, address.port), CONNECT_S)
        try:
            return authenticate_listener(sock, address.token, CONNECT_S, address.pin)
        except BaseException:
            sock.close()
            raise

    def _wait_for(self, address: ControlPlaneAddress, error: OSError) -> None:
        """Raise the connection error while the caller should retry; return once the control plane may be replaced.

        If it runs in this process and still answers there, it is not replaced. Strangers may only have taken its places
        for new connections, and its members would have to register with a new term.
        """
        until_s = self._missed.setdefault(address.term, time.monotonic() + CHANCE.uniform(*ELECTION_DELAY_S))
        if time.monotonic() < until_s:
            raise error
        plane = self.running_control_plane()
        if plane is not None and plane.term == address.term and plane.describe() is not None:
            raise error
        if address.term not in self._announced_term:
            self._announced_term.add(address.term)
            where = f"{address.host}:{address.port}"
            log.info(
                "the region's control plane of term %s can't be reached at %s, so another application may begin a new "
                "term: %s",
                address.term,
                where,
                error,
            )

    def _compete(self) -> ControlPlaneAddress:
        """Try to become the control plane; after an election lost to another application, back off exponentially."""
        if time.monotonic() < self._stays_behind_s:
            raise NoControlPlaneError("another application is taking over")
        try:
            address = self._take_over()
        except TermOverError as error:
            self._losses += 1
            self._stays_behind_s = time.monotonic() + _backoff_s(self._losses)
            raise NoControlPlaneError(f"another application is taking over: {error}") from error
        self._losses = 0
        return address

    def _take_over(self) -> ControlPlaneAddress:
        if self._plane is not None:
            self._plane.close()
        listening = open_listening_socket(self._host)
        try:
            region_log, known = self._place.take_over(self._host, listening.port, listening.pin)
            token = self._place.term_secret(known.term)
        except BaseException:
            listening.close()
            raise
        self._plane = ControlPlane(region_log, known, self._config, listening, token, self._serve_again)
        self.replaced.clear()
        self._plane.start()
        return ControlPlaneAddress(known.term, self._host, listening.port, token, listening.pin)

    def running_control_plane(self) -> ControlPlane | None:
        """Return the control plane that runs in this process; None: none does."""
        plane = self._plane
        return None if plane is None or plane.over.is_set() else plane

    def become_control_plane(self) -> ControlPlane:
        """Become the control plane now; retry up to `LOSSES_MAX` times if another application wins or the topic fails.

        Raises:
            TermOverError: another application won each time.
            InvalidInputError: `close` was called: nobody would end that term.
            KafkaError: the region's metadata topic can't be read or written.
        """
        with self._lock:
            if self._closed:
                raise InvalidInputError("the region was closed here: make another Region to serve it")
            for losses in range(1, LOSSES_MAX + 1):
                try:
                    self._take_over()
                    break
                except FINAL:
                    raise
                except KafkaError as error:
                    log.info("could not begin a term as the region's control plane, retrying: %s", error)
                    time.sleep(_backoff_s(losses))
            else:
                self._take_over()
            assert self._plane is not None
            return self._plane

    def _serve_again(self, lost: ControlPlane) -> None:
        """Begin another term in this process after its term was lost and no other application has begun a later one.

        A term also ends when the coordinator aborts its transaction at `TRANSACTION_MS`, which a busy cluster or a
        process that slept can cause. Members of applications that may not serve would then wait for ever.
        """
        for losses in range(1, LOSSES_MAX + 1):
            time.sleep(_backoff_s(losses))
            with self._lock:
                if self._closed or self._plane is not lost:
                    return
                try:
                    address = self._place.newest_address()
                    if address is not None and address.term != lost.term:
                        break
                    log.info(
                        "[region %s] term %s has ended, and no other application has begun a later one: beginning it "
                        "here",
                        lost.region,
                        lost.term,
                    )
                    self._take_over()
                except FINAL as error:
                    text = "[region %s] could not begin a term after term %s, another application has to serve it: %s"
                    log.warning(text, lost.region, lost.term, error)
                    break
                except KafkaError as error:
                    log.info("[region %s] could not begin a term as control plane, retrying: %s", lost.region, error)
                else:
                    return
        self.replaced.set()

    def close(self) -> None:
        """Stop the control plane, if this process runs it: another application takes over."""
        with self._lock:
            self._closed = True
            plane, self._plane = self._plane, None
        if plane is not None:
            plane.close()


def _backoff_s(losses: int) -> float:
    """Return the seconds to wait after this many lost elections in a row."""
    base_s = CHANCE.uniform(*ELECTION_DELAY_S)
    return exponential_backoff(losses, base_s, base_s * 2**LOSSES_MAX)
