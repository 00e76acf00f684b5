"""A listener of the broker: a bound socket, and what its clients have to do before they are served."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass

from kohort.broker.security.login import SaslServer
from kohort.broker.security.tls import ServerTls
from kohort.errors import ErrorCode, KafkaError


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


def bind_socket(host: str, port: int) -> socket.socket:
    """Create a bound TCP socket, on which the server begins to listen later.

    Raises:
        KafkaError: the address is in use or not local.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise KafkaError(f"can't listen on {host}:{port}: {error.strerror or error}") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise KafkaError(bind_error_text(host, port, error), ErrorCode.UNKNOWN_SERVER_ERROR) from None
    sock.setblocking(False)
    return sock


def bind_error_text(host: str, port: int, error: OSError) -> str:
    """Return why a socket cannot listen on this address."""
    if error.errno == errno.EADDRINUSE:
        return f"can't listen on {host}:{port}: the port is in use by another process; end it, or choose another port"
    if error.errno == errno.EACCES:
        return f"can't listen on {host}:{port}: ports below 1024 need more rights"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"can't listen on {host}:{port}: no network interface of this machine has the address {host}"
    return f"can't listen on {host}:{port}: {error.strerror or error}"
