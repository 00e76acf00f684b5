"""Log lines and error texts for brokers that can't be reached.

A polling consumer and a producer's background task retry for as long as they live. A broker that restarts is back
soon, and the client can't tell it from an address that never had a broker. So the log has a warning at once, and then
throttled ones. A call that needs an answer ends with its own time limit, in an error that names addresses and causes.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from kohort.client.net.runtime import Runtime
from kohort.client.settings import ConnectionConfig
from kohort.io.log_throttle import FailureThrottle

A = TypeVar("A")
SILENT_MS = 10_000
"""A broker that did not answer in time is avoided for this long, if there are others."""
log = logging.getLogger("kohort.client")


@dataclass(slots=True)
class NodeHealth:
    """The history of attempts to connect to one address: when to retry, and whether to prefer other brokers.

    Attributes:
        failures: Failures in a row; concurrent attempts count as one.
        failed_ms: When the last attempt failed.
        retry_at_ms: No attempt to connect begins before this time.
        avoid_until_ms: Until then other brokers are preferred, because this one did not answer in time.
    """

    failures: int = 0
    failed_ms: float = float("-inf")
    retry_at_ms: float = 0.0
    last_error: str = ""
    avoid_until_ms: float = 0.0

    def record_failure(self, reason: str, began_ms: float, now_ms: float, *, paused: bool) -> None:
        """Count a failed attempt to connect to this address, or the end of a connection; the count sets the backoff.

        Args:
            reason: The cause.
            began_ms: When the attempt began: one that began before the last failure is not counted again.
            now_ms: The time now.
            paused: Whether an established connection ended: failures are then counted from 1 again.
        """
        if paused or not self.failures:
            self.failures = 1
        elif began_ms > self.failed_ms:
            self.failures += 1
        self.failed_ms, self.last_error = now_ms, reason


class ReachabilityLog:
    """Log of addresses that can't be reached, and of their return."""

    def __init__(self, runtime: Runtime) -> None:
        self._throttle = FailureThrottle(lambda: runtime.now_ms)

    def log_failure(
        self, address: Hashable, reason: str, *, paused: bool, named_by: Hashable | None = None, final: bool = False
    ) -> None:
        """Log that a connection failed or ended.

        Args:
            address: The broker's address.
            reason: The cause.
            paused: Whether an established connection ended, on which the broker had answered.
            named_by: The address of the broker whose metadata named this one.
            final: Whether no retry cures the failure: calls that need the connection fail.
        """
        if paused:
            log.info("connection to broker %s lost: %s", address, reason)
        elif self._throttle.should_log(address):
            named = "" if named_by is None else f", named by {named_by}"
            then = "calls that need it fail" if final else "retrying"
            log.warning("can't connect to broker %s%s: %s; %s", address, named, reason, then)

    def log_connected(self, address: Hashable) -> None:
        """Log that a broker's address is connected again, if its failure was logged."""
        if self._throttle.end_failure(address):
            log.info("connection to broker %s established again", address)


def socket_error_text(error: BaseException) -> str:
    """Return the text of a socket's error."""
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}"
    if isinstance(error, TimeoutError):
        return "no answer to the connection attempt"
    if isinstance(error, socket.gaierror):
        return f"the name can't be resolved: {error.strerror}"
    if isinstance(error, OSError) and error.errno:
        reason = os.strerror(error.errno)
        return reason[0].lower() + reason[1:]
    if isinstance(error, ConnectionResetError):
        return str(error) or "the broker closed the connection"
    return str(error) or type(error).__name__


def explain_connection_failure(reason: str, config: ConnectionConfig, *, connected: bool, greeted: bool = False) -> str:
    """Return why a connection failed, with a hint if the two sides may not agree on TLS or the login.

    Args:
        reason: The socket's error.
        config: The client's configuration.
        connected: The connection was established.
        greeted: The broker had answered ApiVersions: only the login was left.
    """
    if greeted:
        hung_up = reason.startswith(("connection reset", "the broker closed"))
        return f"{reason} during the login ({config.sasl_mechanism})" if hung_up else reason
    if config.uses_tls and reason.startswith(("TLS failed", "connection reset", "the broker closed")):
        return f"{reason} (security.protocol is {config.security_protocol}: does the broker speak TLS there?)"
    if connected and not config.uses_tls and reason.startswith(("connection reset", "the broker closed")):
        return f"{reason} (security.protocol is {config.security_protocol}: does the broker want TLS there?)"
    return reason


def explain_unanswered_connection(reason: str, config: ConnectionConfig) -> str:
    """Return why a connection ended after ApiVersions and before any other answer, with a hint to a missing login.

    A listener with SASL answers ApiVersions, and closes the connection at any other request before the login. The hint
    is left out if this client logs in, or the connection was not closed by the broker.
    """
    if config.uses_sasl or not reason.startswith(("connection reset", "the broker closed")):
        return reason
    return f"{reason} (security.protocol is {config.security_protocol}: does the broker want a login there?)"


def unreachable_text(bootstrap: Iterable[A], named: Collection[A], trouble: Callable[[A], str]) -> str:
    """Return each failing address and why, for error texts; empty when none fails.

    Args:
        bootstrap: The bootstrap servers.
        named: The brokers' addresses in the cluster's metadata.
        trouble: Returns why an address can't be reached, empty without a failure.
    """
    failed = [f"{address}: {reason}" for address in named if (reason := trouble(address))]
    others = {address: trouble(address) for address in bootstrap if address not in named}
    answering = [str(address) for address, reason in others.items() if not reason]
    if failed and answering:
        text = f"{', '.join(answering)} answers, but none of the broker addresses that it names can be reached"
        return f"{text} ({'; '.join(failed)}): see advertised.listeners of the brokers"
    failed += [f"{address}: {reason}" for address, reason in others.items() if reason]
    return f"no broker can be reached ({'; '.join(failed)})" if failed else ""
