"""TLS of a server on files that are renewed while it runs: key and certificates, and the authorities of its clients."""

from __future__ import annotations

import logging
import ssl
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from kohort.errors import InvalidInputError
from kohort.io.log_throttle import FailureThrottle

log = logging.getLogger("kohort.tls")


@dataclass(frozen=True, slots=True)
class LoadedCertificates:
    """The files as they were read, and a context that has them.

    Attributes:
        identity: The server's private key and certificates, as PEM.
        authorities: the CA certificates, as PEM, one of which must have issued a client's certificate; None: clients
            need none.
        context: Serves connections with them.
    """

    identity: bytes = field(repr=False)
    authorities: bytes | None
    context: ssl.SSLContext


class ServerCertificates:
    """TLS of a server: its key and certificates, and the authorities whose certificates clients must show.

    A server asks for each connection, so that renewed certificates count without a restart. If a file can't be used,
    the last good ones serve on. Threads may share an instance.

    Args:
        server: What log lines call the server, such as `scaler`.
        identity: A PEM file of the server's private key and certificates.
        client_ca: A PEM file of authorities; None: clients need no certificate.

    Attributes:
        loaded: The files that are in use.

    Raises:
        InvalidInputError: A file can't be read or has something else.
    """

    def __init__(self, server: str, identity: Path, client_ca: Path | None = None) -> None:
        self._server, self._identity, self._client_ca = server, identity, client_ca
        self._failures = FailureThrottle(lambda: time.monotonic() * 1000)
        self._lock = threading.Lock()
        self.loaded = self._load(None)

    @property
    def requires_client_certificates(self) -> bool:
        """Whether clients must show a certificate."""
        return self._client_ca is not None

    def reload_if_changed(self) -> LoadedCertificates | None:
        """Return the files if they have changed since the last call; None: those in use are still right."""
        with self._lock:
            try:
                found = self._load(self.loaded)
            except InvalidInputError as error:
                if self._failures.should_log(str(error)):
                    text = "[%s] %s; new connections get the certificates that were loaded last"
                    log.warning(text, self._server, error.message)
                return None
            if found is self.loaded:
                return None
            self.loaded = found
        log.info("[%s] new TLS certificates loaded from %s: new connections get them", self._server, self._identity)
        return found

    def current_tls_context(self) -> ssl.SSLContext:
        """Return the TLS context for a new connection, from the newest usable files."""
        self.reload_if_changed()
        return self.loaded.context

    def _load(self, before: LoadedCertificates | None) -> LoadedCertificates:
        """Load the files as they are now; return what was loaded before if they have not changed."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        authorities = None
        path, what = self._identity, "the key and certificate"
        try:
            identity = path.read_bytes()
            if self._client_ca is not None:
                path, what = self._client_ca, "the authorities"
                authorities = path.read_bytes()
            if before is not None and (identity, authorities) == (before.identity, before.authorities):
                return before
            path, what = self._identity, "the key and certificate"
            context.load_cert_chain(path, password="")  # "": never asks at the terminal
            if self._client_ca is not None:
                path, what = self._client_ca, "the authorities"
                context.load_verify_locations(cafile=path)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ssl.SSLError) as error:
            reason = pem_problem(error) if path == self._identity else str(error)
            raise InvalidInputError(f"can't load {what} of {path}: {reason}") from None
        return LoadedCertificates(identity, authorities, context)


def pem_problem(error: OSError) -> str:
    """Return why a file of a private key and certificates could not be loaded. OpenSSL does not say what is missing."""
    if isinstance(error, ssl.SSLError) and "PEM lib" in str(error):  # by text: the error has no code
        return "the file needs a private key, unencrypted or with the password that is set, and its certificate, as PEM"
    return str(error)


def load_certificates(
    server: str, identity: Path | str | None, client_ca: Path | str | None
) -> ServerCertificates | None:
    """Return TLS of a server; None without an identity. The arguments are those of `ServerCertificates`.

    Raises:
        InvalidInputError: A file can't be read or has something else.
    """
    if identity is None:
        return None
    return ServerCertificates(server, Path(identity), None if client_ca is None else Path(client_ca))
