"""What is said where brokers can't be reached.

A consumer that polls and a producer's background go on trying for as long as they live: a broker that restarts is back
soon, and one that never was there can't be told from it. So the log is warned at once and then sparingly. A call that
has to be answered ends with its own time limit, in an error that names addresses and causes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from kohort.client.net.log_throttle import Sparingly
from kohort.client.net.runtime import Runtime
from kohort.client.settings import ConnectionConfig

A = TypeVar("A")
SILENT_MS = 10_000
"""Whoever did not answer in time is passed over for so long, where there are others."""
log = logging.getLogger("kohort.client")


@dataclass(slots=True)
class NodeHealth:
    """What the attempts to reach one address have taught.

    Attributes:
        failures: in a row; attempts that were under way together count as one.
        failed_ms: when the last of them failed.
        silent_until_ms: it has not answered in time: so long others are asked before it.
    """

    failures: int = 0
    failed_ms: float = float("-inf")
    retry_at_ms: float = 0.0
    last_error: str = ""
    silent_until_ms: float = 0.0

    def fail(self, reason: str, began_ms: float, now_ms: float, *, stood: bool) -> None:
        """An attempt that began then has failed, or a connection has ended that stood."""
        if stood or not self.failures:
            self.failures = 1
        elif began_ms > self.failed_ms:
            self.failures += 1
        self.failed_ms, self.last_error = now_ms, reason


class Reaching:
    """Tells the log of addresses that can't be reached, and when they can be again."""

    def __init__(self, runtime: Runtime) -> None:
        self._sparingly = Sparingly(runtime)

    def failed(
        self, address: Hashable, reason: str, *, stood: bool, named_by: Hashable | None = None, final: bool = False
    ) -> None:
        """A connection could not be made, or has ended.

        Args:
            address: where to.
            reason: why.
            stood: it had been made.
            named_by: the other address at which a broker answers, and says that one is at this.
            final: trying again does not cure it: calls that need the connection fail.
        """
        if stood:
            log.info("the connection to %s ended: %s", address, reason)
        elif self._sparingly.due(address):
            named = "" if named_by is None else f", named by {named_by}"
            then = "calls that need it fail" if final else "it is tried again"
            log.warning("no connection to %s%s: %s; %s", address, named, reason, then)

    def reached(self, address: Hashable) -> None:
        """A connection stands."""
        if self._sparingly.over(address):
            log.info("%s is reached again", address)


def explained(reason: str, config: ConnectionConfig, *, connected: bool, greeted: bool = False) -> str:
    """Why a connection did not come up, with what may be behind it where both sides may not speak of the same thing.

    Args:
        reason: what the socket said.
        config: the client's.
        connected: the connection stood.
        greeted: the broker had said which requests it knows: what is left is the login.
    """
    if greeted:
        hung_up = reason.startswith(("connection reset", "the broker closed"))
        return f"{reason} during the login ({config.sasl_mechanism})" if hung_up else reason
    if config.uses_tls and reason.startswith(("TLS failed", "connection reset", "the broker closed")):
        return f"{reason} (security.protocol is {config.security_protocol}: does the broker speak TLS there?)"
    if connected and not config.uses_tls and reason.startswith(("connection reset", "the broker closed")):
        return f"{reason} (security.protocol is {config.security_protocol}: does the broker want TLS there?)"
    return reason


def unreachable(bootstrap: Iterable[A], named: Collection[A], trouble: Callable[[A], str]) -> str:
    """For error texts: each address that fails and why; empty when none does.

    Args:
        bootstrap: the addresses that the client was given.
        named: where the cluster says that its brokers are.
        trouble: why an address can't be reached, empty where nothing is known against it.
    """
    failed = [f"{address}: {reason}" for address in named if (reason := trouble(address))]
    others = {address: trouble(address) for address in bootstrap if address not in named}
    answering = [str(address) for address, reason in others.items() if not reason]
    if failed and answering:
        text = f"{', '.join(answering)} answers, but where it says that brokers are none can be reached"
        return f"{text} ({'; '.join(failed)}): see advertised.listeners of the brokers"
    failed += [f"{address}: {reason}" for address, reason in others.items() if reason]
    return f"no broker can be reached ({'; '.join(failed)})" if failed else ""
