"""Access to a server without logins: one rule, with one error text, for all of kohort's servers.

Unless the operator allows more, such a server listens on loopback only. The same rule holds for what kohort sends
without encryption: only to this machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kohort.errors import InvalidInputError
from kohort.settings.config import is_loopback


class AccessOptionNames(NamedTuple):
    """The options that open a server to other machines, as error texts name them; None: the server lacks the option.

    Attributes:
        insecure: The option that lets everyone connect.
        tls: The option for the server's key and certificates.
        client_ca: The option for the authorities of its clients.
    """

    insecure: str = "--insecure"
    tls: str | None = "--tls FILE"
    client_ca: str | None = "--client-ca FILE"


OPTIONS = AccessOptionNames()
METRICS_OPTIONS = AccessOptionNames("--metrics-insecure", "--metrics-tls FILE", "--metrics-client-ca FILE")
METRICS_PROPERTIES = AccessOptionNames(
    "--metrics-insecure (allow.insecure.metrics=true)",
    "--metrics-tls FILE (metrics.tls.location)",
    "--metrics-client-ca FILE (metrics.client.ca.location)",
)
METRICS_ARGUMENTS = AccessOptionNames("metrics_insecure=True", "metrics_tls=FILE", "metrics_client_ca=FILE")
READS_METRICS = "read the metrics"


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """The rules of access to a server without logins.

    Attributes:
        tls: A PEM file of the server's private key and certificates; None: connections are plain.
        client_ca: A PEM file of authorities whose certificates clients must show; None: clients need none.
        is_insecure: Everyone may connect, also from other machines.
    """

    tls: Path | None = None
    client_ca: Path | None = None
    is_insecure: bool = False

    def check(self, host: str, port: int, server: str, consequence: str, ways: AccessOptionNames = OPTIONS) -> None:
        """Check that the operator has said who may connect, if other machines can.

        Args:
            host: The address to listen on.
            port: The port, for the error.
            server: The server's name in the error, such as `scaler`.
            consequence: What everyone may do if the operator lets everyone in.
            ways: The names of the operator's options in the error.

        Raises:
            InvalidInputError: Other machines reach the address, and nothing says who may connect; or there are
                authorities without a certificate.
        """
        if self.client_ca is not None and self.tls is None:
            raise InvalidInputError(f"{ways.client_ca} needs {ways.tls}: certificates are shown over TLS only")
        if not (self.is_insecure or self.client_ca is not None):
            refuse_beyond_loopback(host, port, server, consequence, is_encrypted=self.tls is not None, ways=ways)


def refuse_beyond_loopback(
    host: str, port: int, server: str, consequence: str, *, is_encrypted: bool, ways: AccessOptionNames = OPTIONS
) -> None:
    """Refuse to listen on an address that other machines can reach; callers ask where nothing restricts who connects.

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
        url: The destination, for the error.
        host: Its host.
        consequence: What everyone on the network path could do.
        insecure: The name of the option by which the operator agrees.

    Raises:
        InvalidInputError: The host is another machine.
    """
    if not is_loopback(host):
        raise InvalidInputError(
            f"{url} is on another machine, and what is sent there is open to everyone on the way. Ways to go on: an "
            f"https:// URL, or {insecure} (everyone on the way may {consequence})"
        )
