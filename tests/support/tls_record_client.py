"""A TLS client that decides which encrypted bytes are sent, and when: key updates, and records of any size."""

from __future__ import annotations

import _ssl
import ctypes
import socket
import ssl
from typing import Self

REQUEST_UPDATE = 1
"""The peer answers such a key update with one of its own."""
SSL_POINTER_AT = 24
"""Where a connection of CPython's `_ssl` has OpenSSL's pointer: after the object's header and one reference."""


class TlsRecordClient:
    """A client that decides when its encrypted bytes are sent. It accepts every certificate."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.sock = socket.create_connection(address, 20.0)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing)
        self._openssl = ctypes.CDLL(_ssl.__file__)
        while not self._shaken():
            self._incoming.write(self.sock.recv(65_536))
        self._pointer = ctypes.c_void_p.from_address(id(self._tls._sslobj) + SSL_POINTER_AT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

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

    def encrypted(self, data: bytes) -> bytes:
        """Return the encrypted bytes of these, one record for each 16 KiB."""
        self._tls.write(data)
        return self._outgoing.read()

    def read(self) -> bytes:
        """Return the next bytes of the other end; empty: it closed the connection."""
        while True:
            try:
                return self._tls.read(65_536)
            except ssl.SSLWantReadError:
                try:
                    data = self.sock.recv(65_536)
                except ConnectionResetError:
                    return b""
                if not data:
                    return b""
                self._incoming.write(data)
            except ssl.SSLZeroReturnError:
                return b""
