"""Clients that are not known yet: handshakes and logins in progress, with one deadline each and a common bound.

TLS handshakes and slow checks of credentials run in threads, so that strangers do not delay the clients being served.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from kohort.broker.security.principals import Principal
from kohort.broker.security.tls import ServerTls, TlsTransport
from kohort.io.thread_pools import run_in_pool

T = TypeVar("T")
log = logging.getLogger("kohort.broker")

PENDING_MAX = 1_000
"""Handshakes and logins in progress, of about 100 KB each. Beyond it, the oldest that keeps us waiting is closed."""
YOUNG_S = 1.0
"""A younger client is not closed in favour of another: thousands of honest ones may come back at once."""
THREADS = 2
"""Threads for handshakes, as many for passwords, and as many for tokens, where a slow server of keys takes seconds.

OpenSSL and hashlib release the interpreter lock.
"""
NOTICE_HOSTS_MAX = 1_000
NOTICE_PAUSE_S = 60.0
"""A line about the same problem of the same host is logged again after this time."""


class FailingHostThrottle:
    """Throttle of log lines about clients that keep failing: one line a minute for each host and problem."""

    def __init__(self) -> None:
        self._times: OrderedDict[tuple[str, str], float] = OrderedDict()

    def should_log(self, host: str, problem: str) -> bool:
        """Return whether a line about this host and problem is due, and count it as logged."""
        now = time.monotonic()
        logged = self._times.get((host, problem))
        if logged is not None and now - logged < NOTICE_PAUSE_S:
            return False
        self._times.pop((host, problem), None)
        self._times[host, problem] = now
        if len(self._times) > NOTICE_HOSTS_MAX:
            self._times.popitem(last=False)
        return True


class PendingLogin:
    """One client from its connection until it is authenticated.

    Attributes:
        waits: whether the broker waits for the client, and not the reverse.
    """

    __slots__ = ("_owner", "_timer", "began", "close", "waits")

    def __init__(self, owner: PendingLogins, timer: asyncio.TimerHandle, close: Callable[[str], None]) -> None:
        self._owner = owner
        self._timer = timer
        self.began = time.monotonic()
        self.close = close
        self.waits = True

    def cancel_login_deadline(self) -> None:
        """Stop the deadline, because the client is known or gone. May be called again."""
        self._timer.cancel()
        self._owner.end_login(self)


class PendingLogins:
    """All clients that are not authenticated yet, and the threads that check their logins.

    Attributes:
        notices: log lines about clients that keep failing.
        on_login: called with the outcome of each login: principal or claimed name, host, mechanism, success.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._clients: dict[PendingLogin, None] = {}
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self.notices = FailingHostThrottle()
        self.on_login: Callable[[Principal | str, str, str, bool], None] | None = None

    def __len__(self) -> int:
        return len(self._clients)

    def begin_login(self, timeout_ms: int, close: Callable[[str], None]) -> PendingLogin | None:
        """Count a new client as not authenticated yet, and start its deadline; return None if there is no room for it.

        Args:
            timeout_ms: the deadline of handshake and login.
            close: closes the connection for the given reason.
        """
        if len(self._clients) >= PENDING_MAX:
            slowest = next((client for client in self._clients if client.waits), None)
            if slowest is None or time.monotonic() - slowest.began < YOUNG_S:
                return None
            slowest.cancel_login_deadline()
            slowest.close("too many clients log in at once, and this one took the longest")

        def close_at_deadline() -> None:
            pending.cancel_login_deadline()
            pending.close(f"not logged in within {timeout_ms} ms (login.timeout.ms)")

        pending = PendingLogin(self, self._loop.call_later(timeout_ms / 1000, close_at_deadline), close)
        self._clients[pending] = None
        return pending

    def end_login(self, pending: PendingLogin) -> None:
        """Stop counting a client as not authenticated, because it is known or gone."""
        self._clients.pop(pending, None)

    def run_in_thread(self, purpose: str, work: Callable[[], T], done: Callable[[asyncio.Future[T]], None]) -> None:
        """Run a blocking function in the thread pool of this purpose, then call `done` with its future on the loop."""
        threads = self._threads.get(purpose)
        if threads is None:
            threads = self._threads[purpose] = ThreadPoolExecutor(THREADS, f"kohort-{purpose}")
        run_in_pool(self._loop, threads, work).add_done_callback(done)

    def close(self) -> None:
        """Close all connections that are not authenticated yet, and stop the threads."""
        for client in [*self._clients]:
            client.cancel_login_deadline()
            client.close("the broker ends")
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)


# -- TLS handshakes

_WITHOUT_CERTIFICATE = "PEER_DID_NOT_RETURN_A_CERTIFICATE"
_REASONS = {
    "HTTP_REQUEST": "the client speaks HTTP",
    "WRONG_VERSION_NUMBER": "the client does not speak TLS: set security.protocol=SSL or SASL_SSL there",
    _WITHOUT_CERTIFICATE: "the client shows no certificate, which ssl.client.auth=required asks for",
    "UNSUPPORTED_PROTOCOL": "the client speaks only versions of TLS that are not enabled here",
    "NO_SHARED_CIPHER": "client and broker have no cipher suite in common",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust the authority of the broker's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client does not accept the broker's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client does not accept the broker's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client says that the broker's certificate has expired",
}
_TLS_HANDSHAKE, _TLS_MAJOR = 0x16, 0x03


def handshake_failure_text(error: ssl.SSLError) -> str:
    """Return why a handshake has failed, in an operator's words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not accepted: {error.verify_message}"
    return _REASONS.get(error.reason or "", "") or str(error.reason or error).lower().replace("_", " ")


class TlsHandshake:
    """The TLS handshake of one new connection; it ends with a call of `done`, or of `gone` after a failure."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        logins: PendingLogins,
        transport: TlsTransport,
        tls: ServerTls,
        listener: str,
    ) -> None:
        self._loop = loop
        self._logins = logins
        self._transport = transport
        self._tls = tls
        self._listener = listener
        self._closed = False
        self._complete = False
        self._received = False
        self._stepping = False
        self._pending: PendingLogin | None = None

    def begin(
        self, timeout_ms: int, done: Callable[[str | None, PendingLogin], None], gone: Callable[[], None]
    ) -> None:
        """Start the TLS handshake; it ends with a call of `done`, or of `gone` after a failure or the deadline.

        Args:
            timeout_ms: the deadline.
            done: called after the handshake, with the user of the client's certificate.
            gone: called when the connection was closed instead.
        """
        self._done, self._gone = done, gone
        self._pending = self._logins.begin_login(timeout_ms, self._end)
        if self._pending is None:
            self._end("too many clients log in at once")
        else:
            self._loop.add_reader(self._transport.fd, self._on_readable)

    def _on_readable(self) -> None:
        try:
            data = self._transport.receive_handshake()
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._end("")
            return
        if not self._received and not (data[0] == _TLS_HANDSHAKE and (len(data) < 2 or data[1] == _TLS_MAJOR)):
            with contextlib.suppress(OSError):
                self._transport.refuse_plaintext_client()
            self._end(_REASONS["WRONG_VERSION_NUMBER"])
            return
        self._received = True
        assert self._pending is not None
        self._loop.remove_reader(self._transport.fd)
        self._pending.waits = False
        self._stepping = True
        self._logins.run_in_thread("handshake", self._transport.continue_handshake, self._on_step)

    def _on_step(self, finished: asyncio.Future[bool]) -> None:
        self._stepping = False
        if self._closed or finished.cancelled():
            self._release()
            return
        try:
            self._complete = finished.result()
        except ssl.SSLError as error:
            if isinstance(error, ssl.SSLCertVerificationError) or error.reason == _WITHOUT_CERTIFICATE:
                self._report("", succeeded=False)
            with contextlib.suppress(OSError):
                self._transport.send_encrypted()  # the alert that tells the client
            self._end(f"TLS handshake failed: {handshake_failure_text(error)}")
            return
        assert self._pending is not None
        self._pending.waits = True
        self._flush()

    def _flush(self) -> None:
        try:
            self._transport.send_encrypted()
        except (BlockingIOError, InterruptedError):
            self._loop.add_writer(self._transport.fd, self._on_writable)
            return
        except OSError:
            self._end("")
            return
        if not self._complete:
            self._loop.add_reader(self._transport.fd, self._on_readable)
            return
        assert self._pending is not None
        try:
            user = self._tls.user_of_certificate(self._transport.certificate)
        except ValueError as error:
            self._report("", succeeded=False)
            self._end(f"the client's certificate names no user: {error}")
            return
        if user is not None:
            self._report(Principal("User", user), succeeded=True)
        self._done(user, self._pending)

    def _report(self, who: Principal | str, *, succeeded: bool) -> None:
        if self._logins.on_login is not None:
            self._logins.on_login(who, self._transport.peer[0], "SSL", succeeded)

    def _on_writable(self) -> None:
        self._loop.remove_writer(self._transport.fd)
        self._flush()

    def _end(self, why: str) -> None:
        """Close the connection of a failed handshake once no thread uses it, and log `why` unless that is empty."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._transport.fd)
        self._loop.remove_writer(self._transport.fd)
        if self._pending is not None:
            self._pending.cancel_login_deadline()
        host, port = self._transport.peer
        if why and self._logins.notices.should_log(host, why):
            log.warning(
                "[listener %s] TLS login of %s:%d failed, closing the connection: %s",
                self._listener,
                host,
                port,
                why,
            )
        if not self._stepping:
            self._release()

    def _release(self) -> None:
        self._transport.close()
        self._gone()
