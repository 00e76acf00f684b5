"""Access to a server that has no users: one rule, and one text, for all of kohort's servers.

The same rule for what kohort sends without encryption: only to this machine, unless the operator agrees.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kohort.errors import InvalidInputError
from kohort.settings.config import is_loopback


class AccessWays(NamedTuple):
    """The operator's choices, as errors call them; None: a server does not have this one.

    Attributes:
        insecure: Serves everyone.
        tls: Names the server's key and certificates.
        client_ca: Names the authorities of its clients.
    """

    insecure: str = "--insecure"
    tls: str | None = "--tls FILE"
    client_ca: str | None = "--client-ca FILE"


OPTIONS = AccessWays()
METRICS_OPTIONS = AccessWays("--metrics-insecure", "--metrics-tls FILE", "--metrics-client-ca FILE")
METRICS_PROPERTIES = AccessWays(
    "--metrics-insecure (allow.insecure.metrics=true)",
    "--metrics-tls FILE (metrics.tls.location)",
    "--metrics-client-ca FILE (metrics.client.ca.location)",
)
METRICS_ARGUMENTS = AccessWays("metrics_insecure=True", "metrics_tls=FILE", "metrics_client_ca=FILE")
READS_METRICS = "read the metrics"


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """The access to a server that has no users.

    Attributes:
        tls: A PEM file of the server's private key and certificates; None: connections are plain.
        client_ca: A PEM file of authorities whose certificates clients must show; None: clients need none.
        is_insecure: Everyone may connect, also from other machines.
    """

    tls: Path | None = None
    client_ca: Path | None = None
    is_insecure: bool = False

    def check(self, host: str, port: int, server: str, consequence: str, ways: AccessWays = OPTIONS) -> None:
        """Check that the operator has said who may connect, if other machines can.

        Args:
            host: The address to listen on.
            port: The port, for the error.
            server: What the error calls the server, such as `scaler`.
            consequence: What everyone may do if the operator lets everyone in.
            ways: What the error calls the operator's choices.

        Raises:
            InvalidInputError: Other machines reach the address, and nothing says who may connect; or there are
                authorities without a certificate.
        """
        if self.client_ca is not None and self.tls is None:
            raise InvalidInputError(f"{ways.client_ca} needs {ways.tls}: certificates are shown over TLS only")
        if not (self.is_insecure or self.client_ca is not None):
            refuse_beyond_loopback(host, port, server, consequence, is_encrypted=self.tls is not None, ways=ways)


def refuse_beyond_loopback(
    host: str, port: int, server: str, consequence: str, *, is_encrypted: bool, ways: AccessWays = OPTIONS
) -> None:
    """Refuse an address where a server would be open to other machines.

    The arguments are those of `ServerAccess.check`; `is_encrypted`: the server speaks TLS.

    Raises:
        InvalidInputError: Other machines reach the address.
    """
    if is_loopback(host):
        return
    secret = "encrypted, but " if is_encrypted else ""
    proven = f"{ways.tls} with {ways.client_ca} (clients show certificates), or " if ways.client_ca else ""
    raise InvalidInputError(
        f"{host}:{port} can be reached from other machines, and the {server} is {secret}open to everyone who can "
        f"connect. Ways to go on: {proven}{ways.insecure} (everyone may {consequence})"
    )


def refuse_plain_beyond_loopback(url: str, host: str, consequence: str, insecure: str) -> None:
    """Refuse to send to another machine without encryption.

    Args:
        url: Where to send to, for the error.
        host: Its host.
        consequence: What everyone on the way may do then.
        insecure: What the error calls the operator's consent.

    Raises:
        InvalidInputError: The host is another machine.
    """
    if not is_loopback(host):
        raise InvalidInputError(
            f"{url} is on another machine, and what is sent there is open to everyone on the way. Ways to go on: an "
            f"https:// URL, or {insecure} (everyone on the way may {consequence})"
        )
