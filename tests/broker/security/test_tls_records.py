"""TLS records without data: a client may send some, such as key updates, and never enough to hold up the broker."""

from __future__ import annotations

import _ssl
import ctypes
import socket
import ssl

from kohort.broker.security.tls import RECORD_HEADER_BYTES, SILENT_RECORDS_MAX, RecordCounter
from kohort.wire import framing
from kohort.wire.discovery import ApiVersionsRequest
from tests.support.secured_broker import SecuredBroker

REQUEST_UPDATE = 1
"""The peer answers such a key update with one of its own."""
SSL_POINTER_AT = 24
"""Where a connection of CPython's `_ssl` has OpenSSL's pointer: after the object's header and one reference."""


class TlsClient:
    """A client that decides when its encrypted bytes are sent."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.sock = socket.create_connection((host, int(port)), 20.0)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing)
        self._openssl = ctypes.CDLL(_ssl.__file__)
        while not self._shaken():
            self._incoming.write(self.sock.recv(65_536))
        self._pointer = ctypes.c_void_p.from_address(id(self._tls._sslobj) + SSL_POINTER_AT)

    def _shaken(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            self.sock.sendall(self._outgoing.read())
        return True

    def key_updates(self, count: int) -> bytes:
        """Return the encrypted bytes of so many key updates."""
        for _ in range(count):
            assert self._openssl.SSL_key_update(self._pointer, REQUEST_UPDATE) == 1
            assert self._openssl.SSL_do_handshake(self._pointer) == 1
        return self._outgoing.read()

    def request(self) -> bytes:
        """Return the encrypted bytes of a request."""
        message = ApiVersionsRequest(client_software_name="raw", client_software_version="1")
        self._tls.write(framing.encode_request(message, 3, 1, "raw"))
        return self._outgoing.read()

    def answered(self) -> bool:
        """Return whether an answer comes; False if the broker closes the connection."""
        while True:
            try:
                return bool(self._tls.read(65_536))
            except ssl.SSLWantReadError:
                try:
                    data = self.sock.recv(65_536)
                except ConnectionResetError:
                    return False
                if not data:
                    return False
                self._incoming.write(data)
            except ssl.SSLZeroReturnError:
                return False


def test_a_client_that_changes_its_keys_is_served(secured: SecuredBroker) -> None:
    client = TlsClient(secured.address("TLS"))
    with client.sock:
        for _ in range(5):
            client.sock.sendall(client.key_updates(10) + client.request())
            assert client.answered()


def test_a_client_that_does_nothing_but_change_its_keys_is_closed(secured: SecuredBroker) -> None:
    for listener in ("TLS", "BOTH"):
        client = TlsClient(secured.address(listener))
        with client.sock:
            client.sock.sendall(client.key_updates(2 * SILENT_RECORDS_MAX))
            assert not client.answered()


def test_requests_between_key_updates_do_not_hide_them(secured: SecuredBroker) -> None:
    client = TlsClient(secured.address("TLS"))
    with client.sock:
        client.sock.sendall(b"".join(client.key_updates(2) + client.request() for _ in range(SILENT_RECORDS_MAX)))
        answers = 0
        while client.answered():
            answers += 1
        assert answers < SILENT_RECORDS_MAX


def test_records_are_counted_wherever_the_bytes_are_split() -> None:
    sizes = [0, 1, 300, 16_401, 22] * 7
    stream = b"".join(b"\x17\x03\x03" + size.to_bytes(2, "big") + b"x" * size for size in sizes)
    for step in (1, 2, 3, RECORD_HEADER_BYTES, 7, 1_000, len(stream)):
        counter, found, pieces = RecordCounter(4), 0, b""
        for start in range(0, len(stream), step):
            for piece, count in counter.pieces(stream[start : start + step]):
                assert count <= 4
                found += count
                pieces += piece
        assert (found, pieces) == (len(sizes), stream)
