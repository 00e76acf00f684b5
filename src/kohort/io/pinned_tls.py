"""TLS with a certificate that is made for one listener, and that callers know by its SHA-256 instead of an authority.

The pin reaches callers by a way that strangers can't write to. So neither files nor a certificate authority are needed.
The package `cryptography` makes the certificate (the extra `security`).
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import os
import ssl
import tempfile
import threading
from collections.abc import Iterator
from typing import Final

from kohort.errors import InvalidInputError
from kohort.io.tls_records import EmptyTlsRecords, TlsRecordCounter

_VALID: Final = datetime.timedelta(days=3650)
"""Longer than a process lives: nobody checks the time, since the pin names one certificate."""
_READ_BYTES: Final = 65_536


def listener_tls_context() -> tuple[ssl.SSLContext, bytes]:
    """Return a listener's TLS context with a new certificate, and the certificate's pin.

    Raises:
        InvalidInputError: the package that makes certificates is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise InvalidInputError(
            "a listener on another address than loopback needs TLS, and TLS a certificate: "
            "pip install 'kohort[security]'"
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kohort")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - _VALID / 100)
    certificate = builder.not_valid_after(now + _VALID).sign(key, hashes.SHA256())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    _load_pem(context, private + certificate.public_bytes(serialization.Encoding.PEM))
    return context, _pin_of(certificate.public_bytes(serialization.Encoding.DER))


def _load_pem(context: ssl.SSLContext, pem: bytes) -> None:
    """Load a key and its certificate, which `ssl` reads from a file only: one of this user's, removed at once."""
    fd, path = tempfile.mkstemp(prefix="kohort-")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(pem)
        context.load_cert_chain(path)
    finally:
        os.unlink(path)


def _pin_of(certificate: bytes) -> bytes:
    return hashlib.sha256(certificate).digest()


class TlsPipe:
    """TLS on buffers in memory instead of a socket, so that one thread may receive while another sends.

    Attributes:
        is_done: the handshake is complete, and the other end has shown the pinned certificate.
    """

    def __init__(self, context: ssl.SSLContext, pin: bytes | None) -> None:
        """Create one end of a connection, before its handshake: the listener's end without a pin, else the caller's."""
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=pin is None)
        self._pin = pin
        self._lock = threading.Lock()
        self.is_done = False

    def continue_handshake(self) -> bytes:
        """Continue the handshake, and return what to send now.

        Raises:
            OSError: the other end does not speak TLS, or shows another certificate.
        """
        with self._lock:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                return self._out.read()
            if self._pin is not None:
                shown = self._tls.getpeercert(binary_form=True)
                if shown is None or not hmac.compare_digest(_pin_of(shown), self._pin):
                    raise PermissionError("the listener shows another certificate than the one that is pinned")
            self.is_done = True
            return self._out.read()

    def feed(self, data: bytes) -> None:
        """Add bytes that the other end sent during the handshake."""
        with self._lock:
            self._in.write(data)

    def encrypt(self, data: bytes) -> bytes:
        """Encrypt data, and return the bytes to send."""
        with self._lock:
            self._tls.write(data)
            return self._out.read()

    def decrypt(self, data: bytes) -> bytes:
        """Return the data in the bytes that came; empty: more have to come.

        Raises:
            OSError: the bytes are not of this connection, or the other end has ended TLS and all data is returned.
        """
        found = bytearray()
        with self._lock:
            self._in.write(data)
            try:
                while piece := self._tls.read(_READ_BYTES):
                    found += piece
                    self._carried(len(piece))
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLZeroReturnError:
                if not found:
                    raise
        return bytes(found)

    def _carried(self, size: int) -> None:
        """Do nothing; a listener's end counts here that a TLS record carried `size` bytes of data."""


class ListenerPipe(TlsPipe):
    """A listener's end, which bounds the records that a caller sends without data, also before it has proved itself."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(context, None)
        self._records, self._silent = TlsRecordCounter(), EmptyTlsRecords()

    def feed(self, data: bytes) -> None:
        """Add bytes that the caller sent during the handshake.

        Raises:
            ConnectionAbortedError: they are more records than a handshake has.
        """
        for piece, records in self._records.split_by_records(data):
            self._silent.count_records(records)
            self._silent.check_bound()
            super().feed(piece)

    def decrypt_in_pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield the data in the bytes that came: for each hundred records its data, which may be empty.

        Raises:
            OSError: the bytes are not of this connection, the caller has ended TLS, or sends too many records without
                data.
        """
        for piece, records in self._records.split_by_records(data):
            self._silent.count_records(records)
            yield self.decrypt(piece)
            self._silent.check_bound()

    def _carried(self, size: int) -> None:
        self._silent.credit_data(size)


def caller_tls_pipe(pin: bytes) -> TlsPipe:
    """Return a caller's end, which trusts the pinned certificate alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the pin names the certificate
    return TlsPipe(context, pin)
