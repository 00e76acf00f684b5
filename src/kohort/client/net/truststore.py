"""The certificates in a trust store as Java's clients have it, JKS or PKCS#12. Keys in it are passed over.

Source: JDK, sun.security.provider.JavaKeyStore, for JKS; RFC 7292 for PKCS#12.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from pathlib import Path

from kohort.errors import InvalidInputError

JKS_MAGIC, JCEKS_MAGIC = b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce"
_DIGEST_BYTES = 20
_WHITENER = b"Mighty Aphrodite"
_KEY, _CERTIFICATE = 1, 2
BYTES_MAX = 64 * 1024 * 1024
"""A store of all public authorities has a few hundred kilobytes."""


def trusted(location: str, password: str | None) -> bytes | None:
    """The certificates of a JKS or PKCS#12 store, DER one after the other, as `ssl` takes them; None: it is neither.

    Args:
        location: of the file; what it is shows in its first bytes.
        password: of JKS and PKCS#12; None: a JKS is not checked for changes.

    Raises:
        InvalidInputError: not such a store, a wrong password, or no certificate in it.
        OSError: it can't be read.
    """
    path = Path(location)
    if path.stat().st_size > BYTES_MAX:
        raise InvalidInputError(f"{location} is larger than a trust store")
    data = path.read_bytes()
    if data.startswith(JKS_MAGIC):
        found = _jks(location, data, password)
    elif data.startswith(JCEKS_MAGIC):
        raise InvalidInputError(
            f"{location} is a JCEKS store: make PKCS12 or JKS of it (keytool -importkeystore -deststoretype JKS)"
        )
    elif data.startswith(b"\x30"):  # a DER sequence
        found = _pkcs12(location, data, password)
    else:
        return None
    if not found:
        raise InvalidInputError(f"{location} holds no certificate of an authority")
    return b"".join(found)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, size: int) -> bytes:
        if size < 0 or self._at + size > len(self._data):
            raise ValueError("it ends too early")
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def text(self) -> bytes:
        (size,) = struct.unpack(">H", self.take(2))
        return self.take(size)


def _jks(location: str, data: bytes, password: str | None) -> list[bytes]:
    body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if password is not None:
        made = hashlib.sha1(password.encode("utf-16-be") + _WHITENER + body, usedforsecurity=False).digest()
        if not hmac.compare_digest(made, digest):
            raise InvalidInputError(f"{location}: ssl.truststore.password is wrong, or the file was changed")
    try:
        return _entries(_Reader(body))
    except ValueError as error:
        raise InvalidInputError(f"{location} is a damaged JKS store: {error}") from None


def _entries(reader: _Reader) -> list[bytes]:
    reader.take(4)
    version, count = reader.number(), reader.number()
    if version not in (1, 2):
        raise ValueError(f"version {version} is not known")
    found: list[bytes] = []
    for _ in range(count):
        tag = reader.number()
        reader.text()
        reader.take(8)
        if tag == _KEY:
            reader.take(reader.number())
            for _ in range(reader.number()):
                _certificate(reader, version)
        elif tag == _CERTIFICATE:
            found.append(_certificate(reader, version))
        else:
            raise ValueError(f"an entry of kind {tag} is not known")
    return found


def _certificate(reader: _Reader, version: int) -> bytes:
    if version == 2:
        kind = reader.text()
        if kind not in (b"X.509", b"X509"):
            raise ValueError(f"a certificate is of the kind {kind!r}")
    return reader.take(reader.number())


def _pkcs12(location: str, data: bytes, password: str | None) -> list[bytes]:
    try:
        from cryptography.hazmat.primitives.serialization import Encoding, pkcs12
    except ImportError:
        raise InvalidInputError(
            f"{location} is a PKCS12 store, which takes the package cryptography to read: install it, or make PEM of "
            f"the store (openssl pkcs12 -in {Path(location).name} -nokeys -out ca.pem) and name that in ssl.ca.location"
        ) from None
    try:
        store = pkcs12.load_pkcs12(data, None if password is None else password.encode())
    except ValueError as error:
        raise InvalidInputError(
            f"{location} is no PKCS12 store, or ssl.truststore.password is wrong: {error}"
        ) from None
    return [one.certificate.public_bytes(Encoding.DER) for one in store.additional_certs]
