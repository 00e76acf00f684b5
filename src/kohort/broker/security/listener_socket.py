"""A listener of the broker: a bound socket, and what its clients have to do before they are served."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kohort.broker.security.login import SaslServer
    from kohort.broker.security.tls import ServerTls


@dataclass(slots=True, eq=False)
class ListenerSocket:
    """A listener: a bound socket, and what its clients have to do before they are served.

    Attributes:
        name: the listener's name.
        sock: the bound socket.
        protocol: Kafka's name of the security protocol.
        advertised_host, advertised_port: where clients reach it; None: the address that they used, and the own port.
        tls: its TLS; None: connections are not encrypted.
        sasl: its logins; None: clients do not log in.
        login_timeout_ms: the deadline of handshake and login.
    """

    name: str
    sock: socket.socket
    protocol: str = "PLAINTEXT"
    advertised_host: str | None = None
    advertised_port: int | None = None
    tls: ServerTls | None = None
    sasl: SaslServer | None = None
    login_timeout_ms: int = 30_000

    @property
    def host(self) -> str:
        """The host that the socket is bound to."""
        host: str = self.sock.getsockname()[0]
        return host

    @property
    def port(self) -> int:
        """The port that the socket is bound to."""
        port: int = self.sock.getsockname()[1]
        return port
