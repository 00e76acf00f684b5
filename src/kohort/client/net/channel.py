"""One socket of a client that a thread drives.

How it comes up, what is sent and received on it, what went wrong in words.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import ssl
import struct
from collections import deque
from collections.abc import Iterator, Sequence

from kohort.client.net.buffers import FrameReader
from kohort.client.net.links import Address
from kohort.client.net.security import TlsError
from kohort.client.settings import ConnectionConfig
from kohort.wire import framing
from kohort.wire.cluster import ApiVersionsRequest
from kohort.wire.schema import Buffer

_LARGE_WAIT_US = 20_000
_FRAMES_A_TURN = 64


class Channel:
    """One socket, what waits to be sent on it, and the frame being received."""

    def __init__(self, link: int, sock: socket.socket, reader: FrameReader) -> None:
        self.link = link
        self.sock = sock
        self.selector: selectors.BaseSelector | None = None
        self._tls = isinstance(sock, ssl.SSLSocket)
        self._reader = reader
        self._out: deque[memoryview] = deque()
        if self._tls:
            sock.setblocking(False)
        else:
            # The descriptor stays blocking: small reads pass MSG_DONTWAIT, large ones wait a little for the whole
            # frame.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 0, _LARGE_WAIT_US))

    def send(self, parts: Sequence[Buffer]) -> None:
        idle = not self._out
        self._out.extend(memoryview(part).cast("B") for part in parts if len(part))
        if idle:
            self.flush()

    def flush(self) -> None:
        """Write what the socket takes now; the rest when it can be written to."""
        try:
            while self._out:
                if self._tls:
                    sent = self.sock.send(self._out[0])
                else:
                    batch = [self._out[i] for i in range(min(len(self._out), 64))]
                    sent = self.sock.sendmsg(batch, [], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                self._sent(sent)
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass
        if self.selector is not None:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)
            if self.selector.get_key(self.sock).events != events:
                self.selector.modify(self.sock, events, self)

    def _sent(self, count: int) -> None:
        while count:
            head = self._out.popleft()
            if count < len(head):
                self._out.appendleft(head[count:])
                return
            count -= len(head)

    def receive(self) -> Iterator[memoryview]:
        """Frames that are whole, until the socket has nothing more for now.

        Never frames and then the end of the connection: what the broker said last is worked on before it is known that
        the broker has hung up.

        Raises:
            OSError: the connection has ended.
        """
        for _ in range(_FRAMES_A_TURN):
            target = self._reader.target()
            try:
                if self._tls:
                    count = self.sock.recv_into(target)
                else:
                    flags = socket.MSG_WAITALL if self._reader.large else socket.MSG_DONTWAIT
                    count = self.sock.recv_into(target, 0, flags)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            if count == 0:
                raise ConnectionResetError("the broker closed the connection")
            whole = False
            for frame in self._reader.filled(count):
                whole = True
                yield frame
            if not self._tls and count < len(target) and not self._reader.large:
                return
            if whole and not self._decrypted():
                return

    def _decrypted(self) -> bool:
        """Whether bytes wait where the selector does not see them; a record that is not decrypted is in the socket."""
        return isinstance(self.sock, ssl.SSLSocket) and self.sock.pending() > 0

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.close()


_EXPIRED, _OTHER_HOST = (9, 10), (62, 63, 64)
"""OpenSSL's codes: not valid yet, expired; another host name, e-mail address or IP address."""
_PROBE, _PROBE_MS = 0x6B6F686F, 2_000
"""The correlation id of the question whether a listener speaks without TLS, and how long its answer may take."""


def connect(address: Address, config: ConnectionConfig, tls: ssl.SSLContext | None) -> socket.socket:
    """A connected blocking socket, after the TLS handshake where one is configured.

    Raises:
        OSError: with a reason for people.
    """
    timeout = config.socket_connection_setup_timeout_ms / 1000
    sock = socket.create_connection((address.host, address.port), timeout)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if config.receive_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, config.receive_buffer_bytes)
        if config.send_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, config.send_buffer_bytes)
        if tls is not None:
            sock = tls.wrap_socket(sock, server_hostname=address.host)
        sock.settimeout(None)
    except OSError:
        sock.close()
        raise
    return sock


def tls_error(error: BaseException, address: Address, config: ConnectionConfig) -> TlsError | None:
    """The error, and what to do, where TLS failed for a reason that lasts; None for any other error.

    A listener without TLS only hangs up, as one that restarts does: it is asked in plain whether it is there. Blocks.
    """
    if isinstance(error, TlsError):
        return error
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsError(f"the broker's certificate is not trusted: {error.verify_message}: {_remedy(error)}")
    hung_up = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ConnectionResetError)
    if (refused := alert(error)) is not None:
        return refused
    if isinstance(error, ssl.SSLError) and not hung_up:
        reason = (error.reason or str(error)).lower().replace("_", " ")
        protocol = config.security_protocol
        return TlsError(f"TLS failed: {reason} (security.protocol is {protocol}: does the broker speak TLS there?)")
    if hung_up and _speaks_plainly(address, config):
        return TlsError(
            f"the broker speaks Kafka without TLS there: security.protocol is {config.security_protocol}; set it to "
            f"{'SASL_PLAINTEXT' if config.uses_sasl else 'PLAINTEXT'}, or use the address of its listener with TLS"
        )
    return None


def alert(error: BaseException) -> TlsError | None:
    """The broker's refusal of this client's certificate, which comes after the handshake with TLS 1.3; else None."""
    reason = error.reason or "" if isinstance(error, ssl.SSLError) else ""
    if "CERTIFICATE" not in reason and "UNKNOWN_CA" not in reason:
        return None
    text = reason.lower().replace("_", " ")
    return TlsError(f"the broker refuses this client: {text}: look at ssl.certificate.location and ssl.key.location")


def _remedy(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code in _EXPIRED:
        return "give the broker one that holds now, and look at this machine's clock"
    if error.verify_code in _OTHER_HOST:
        return "use an address that it names, or trust any name with ssl.endpoint.identification.algorithm=none"
    return "name the authority that signed it in ssl.ca.location"


def _speaks_plainly(address: Address, config: ConnectionConfig) -> bool:
    """Whether a listener answers ApiVersions without TLS, which says nothing of the client."""
    message = ApiVersionsRequest(client_software_name="kohort", client_software_version="")
    frame = b"".join(bytes(part) for part in framing.encode_request_parts(message, 0, _PROBE, None))
    try:
        with socket.create_connection((address.host, address.port), _PROBE_MS / 1000) as sock:
            sock.settimeout(min(_PROBE_MS, config.socket_connection_setup_timeout_ms) / 1000)
            sock.sendall(frame)
            head = sock.recv(8, socket.MSG_WAITALL)
    except OSError:
        return False
    return head[4:] == _PROBE.to_bytes(4, "big")


def describe(error: BaseException) -> str:
    """What went wrong on a socket, in words."""
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
