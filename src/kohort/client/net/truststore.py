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
    data = store_bytes(location)
    refuse_other_stores(location, data)
    if data.startswith(JKS_MAGIC):
        _, found = jks_entries(location, data, password, "ssl.truststore.password")
    elif data.startswith(b"\x30"):  # a DER sequence
        found = _pkcs12(location, data, password)
    else:
        return None
    if not found:
        raise InvalidInputError(f"{location} holds no certificate of an authority")
    return b"".join(found)


def store_bytes(location: str) -> bytes:
    """The bytes of a store.

    Raises:
        InvalidInputError: it is far larger than stores are.
        OSError: it can't be read.
    """
    path = Path(location)
    if path.stat().st_size > BYTES_MAX:
        raise InvalidInputError(f"{location} is larger than a store of certificates")
    return path.read_bytes()


def refuse_other_stores(location: str, data: bytes) -> None:
    """Refuse a kind of Java's stores that is not read here.

    Raises:
        InvalidInputError: it is a JCEKS store.
    """
    if data.startswith(JCEKS_MAGIC):
        raise InvalidInputError(
            f"{location} is a JCEKS store: make PKCS12 or JKS of it (keytool -importkeystore -deststoretype JKS)"
        )


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


PrivateKeys = list[tuple[bytes, list[bytes]]]


def jks_entries(location: str, data: bytes, password: str | None, setting: str) -> tuple[PrivateKeys, list[bytes]]:
    """The private keys of a JKS store, encrypted, each with its certificates, and the certificates it trusts.

    Args:
        location: of the store.
        data: its bytes.
        password: of the store; None: it is not checked for changes.
        setting: the one with the password, for errors.

    Raises:
        InvalidInputError: a wrong password, or a damaged store.
    """
    body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if password is not None:
        made = hashlib.sha1(password.encode("utf-16-be") + _WHITENER + body, usedforsecurity=False).digest()
        if not hmac.compare_digest(made, digest):
            raise InvalidInputError(f"{location}: {setting} is wrong, or the file was changed")
    try:
        return _entries(_Reader(body))
    except ValueError as error:
        raise InvalidInputError(f"{location} is a damaged JKS store: {error}") from None


def _entries(reader: _Reader) -> tuple[PrivateKeys, list[bytes]]:
    reader.take(4)
    version, count = reader.number(), reader.number()
    if version not in (1, 2):
        raise ValueError(f"version {version} is not known")
    keys: PrivateKeys = []
    found: list[bytes] = []
    for _ in range(count):
        tag = reader.number()
        reader.text()
        reader.take(8)
        if tag == _KEY:
            key = reader.take(reader.number())
            keys.append((key, [_certificate(reader, version) for _ in range(reader.number())]))
        elif tag == _CERTIFICATE:
            found.append(_certificate(reader, version))
        else:
            raise ValueError(f"an entry of kind {tag} is not known")
    return keys, found


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
