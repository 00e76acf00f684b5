"""Certificates and private keys from files: PEM, and Java's JKS and PKCS#12 stores, for TLS of clients and servers.

PKCS#12 is read by `cryptography`. JKS is read here: `pyjks` needs five more packages, and 330 ms of CPU to import where
this module takes 75 ms.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import ssl
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kohort.errors import InvalidInputError

# -- Certificates in a trust store as Java's clients have it, JKS or PKCS#12. Private keys in it are skipped
#
# Source: JDK, sun.security.provider.JavaKeyStore, for JKS; RFC 7292 for PKCS#12.

JKS_MAGIC, JCEKS_MAGIC = b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce"
_DIGEST_BYTES = 20
_WHITENER = b"Mighty Aphrodite"
_KEY, _CERTIFICATE = 1, 2
BYTES_MAX = 64 * 1024 * 1024
"""A store of all public authorities has a few hundred kilobytes."""


def trusted_certificates(location: str, password: str | None) -> bytes | None:
    """Return the certificates of a JKS or PKCS#12 store as DER, concatenated as `ssl` takes them; None for other files.

    Args:
        location: The file; its first bytes show its format.
        password: The store's; None: a JKS is not checked for changes.

    Raises:
        InvalidInputError: The store is damaged or has no certificate, or the password is wrong.
        OSError: The file can't be read.
    """
    data = read_store_file(location)
    refuse_unsupported_store(location, data)
    if data.startswith(JKS_MAGIC):
        _, certificates = jks_entries(location, data, password, "ssl.truststore.password")
    elif data.startswith(b"\x30"):  # a DER sequence
        certificates = _pkcs12(location, data, password)
    else:
        return None
    if not certificates:
        raise InvalidInputError(f"{location} holds no certificate of an authority")
    return b"".join(certificates)


class TrustedAuthorities(NamedTuple):
    """The certificate authorities that a client trusts, under the names of Kafka's settings.

    Attributes:
        location: the file of a PEM bundle, or of a trust store; None: not given.
        password: the password of a trust store.
        certificates: the certificates themselves, as PEM.
    """

    location: str | None
    password: str | None = None
    certificates: str | None = None

    def __repr__(self) -> str:
        """Return the file alone: the password must not be in a traceback."""
        return f"TrustedAuthorities({self.location!r}, …)"

    def load_authorities(self) -> tuple[str | None, bytes | str | None]:
        """Return the path of a PEM bundle, and other certificates as `ssl` takes them; both None: the system's.

        Raises:
            InvalidInputError: A store can't be read, or both a store and certificates are given.
            OSError: The file can't be read.
        """
        if self.certificates is not None:
            if self.location is not None:
                raise InvalidInputError("ssl.truststore.certificates and a trust store are given: give one of them")
            return None, self.certificates.encode("ascii", "replace").decode()  # a comment may have other characters
        stored = None if self.location is None else trusted_certificates(self.location, self.password)
        return self.location if stored is None else None, stored


def read_store_file(location: str) -> bytes:
    """Read the file of a key store or trust store.

    Raises:
        InvalidInputError: The file is far larger than stores are.
        OSError: The file can't be read.
    """
    path = Path(location)
    if path.stat().st_size > BYTES_MAX:
        raise InvalidInputError(f"{location} is larger than a store of certificates")
    return path.read_bytes()


def refuse_unsupported_store(location: str, data: bytes) -> None:
    """Refuse a kind of Java store that is not supported.

    Raises:
        InvalidInputError: The store is a JCEKS store.
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

    def read_text(self) -> bytes:
        (size,) = struct.unpack(">H", self.take(2))
        return self.take(size)


PrivateKeys = list[tuple[bytes, list[bytes]]]


def jks_entries(location: str, data: bytes, password: str | None, setting: str) -> tuple[PrivateKeys, list[bytes]]:
    """Return a JKS store's encrypted private keys with their certificate chains, and its trusted certificates.

    Args:
        location: The store's path.
        data: The store's bytes.
        password: The store's; None: the store is not checked for changes.
        setting: The name of the password's setting, for errors.

    Raises:
        InvalidInputError: The password is wrong, or the store damaged.
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
        reader.read_text()
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
        kind = reader.read_text()
        if kind not in (b"X.509", b"X509"):
            raise ValueError(f"a certificate is of the kind {kind!r}")
    return reader.take(reader.number())


def _pkcs12(location: str, data: bytes, password: str | None) -> list[bytes]:
    try:
        from cryptography.hazmat.primitives.serialization import Encoding, pkcs12
    except ImportError:
        raise InvalidInputError(
            f"{location} is a PKCS12 store, which needs the package cryptography: install it, or make PEM of "
            f"the store (openssl pkcs12 -in {Path(location).name} -nokeys -out ca.pem) and name that in ssl.ca.location"
        ) from None
    try:
        store = pkcs12.load_pkcs12(data, None if password is None else password.encode())
    except ValueError as error:
        raise InvalidInputError(
            f"{location} is no PKCS12 store, or ssl.truststore.password is wrong: {error}"
        ) from None
    return [entry.certificate.public_bytes(Encoding.DER) for entry in store.additional_certs]


# -- A certificate with its private key: PEM, or a key store as Java has it
#
# Source: JDK, sun.security.provider.KeyProtector, for how a JKS store encrypts a private key; RFC 5208 for its content.

_SALT_BYTES = _SHA1_BYTES = 20
_SUN_PROTECTION = bytes.fromhex("060a2b060104012a02110101")
"""The object identifier 1.3.6.1.4.1.42.2.17.1.1 of Sun's own encryption of keys."""


class KeyStore(NamedTuple):
    """Where a certificate and its private key come from, under the names of Kafka's settings.

    Attributes:
        location: the file of the certificate chain, or of the store; None: not given.
        key_location: the file of a PEM private key; None: it is in `location`.
        key: the private key itself, as PEM.
        chain: the certificate chain itself, as PEM.
        password: the password of a store.
        key_password: the password of the private key.
    """

    location: str | None
    key_location: str | None = None
    key: str | None = None
    chain: str | None = None
    password: str | None = None
    key_password: str | None = None

    def __repr__(self) -> str:
        """Return the files alone: key and passwords must not be in a traceback."""
        return f"KeyStore({self.location!r}, {self.key_location!r}, …)"


def load_certificate_and_key(context: ssl.SSLContext, store: KeyStore) -> None:
    """Load a certificate and private key into a TLS context, if there are any.

    Raises:
        InvalidInputError: A store can't be read or has no key, or its password is wrong.
        OSError: A file can't be read.
    """
    key, chain, location = store.key, store.chain, store.location
    if (key is None) != (chain is None):
        raise InvalidInputError("ssl.keystore.key and ssl.keystore.certificate.chain belong together: give both")
    if key is not None and chain is not None:
        if location is not None:
            raise InvalidInputError("ssl.keystore.key and ssl.keystore.location both have a key: give one of them")
        _load_chain(context, f"{key.strip()}\n{chain.strip()}\n".encode(), store.key_password)
        return
    if location is None:
        return
    data = read_store_file(location)
    refuse_unsupported_store(location, data)
    if data.startswith(JKS_MAGIC):
        _load_chain(context, _of_jks(location, data, store), None)
    elif data.startswith(b"\x30"):  # a DER sequence
        _load_chain(context, _of_pkcs12(location, data, store), None)
    else:
        context.load_cert_chain(location, store.key_location, store.key_password or "")


def _load_chain(context: ssl.SSLContext, text: bytes, password: str | None) -> None:
    with _as_file(text) as name:
        context.load_cert_chain(name, None, password or "")  # "": never asks at the terminal


@contextlib.contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """Yield the path of a file with this content, for `ssl`: in memory if possible, so that no key is on a disk."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("kohort-identity", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            yield f"/proc/self/fd/{descriptor}"
        return
    descriptor, name = tempfile.mkstemp(prefix="kohort-")  # readable by this user alone
    try:
        with os.fdopen(descriptor, "wb") as file:  # closed before `ssl` opens it, which Windows asks for
            file.write(data)
        yield name
    finally:
        os.unlink(name)


def _passwords(location: str, store: KeyStore) -> tuple[str, str]:
    """Return the passwords of the store and of its key."""
    if store.password is None:
        raise InvalidInputError(f"{location} is a key store: give its password by ssl.keystore.password")
    return store.password, store.key_password or store.password


def _pem(kind: str, data: bytes) -> bytes:
    text = base64.encodebytes(data).decode()
    return f"-----BEGIN {kind}-----\n{text}-----END {kind}-----\n".encode()


def _of_jks(location: str, data: bytes, given: KeyStore) -> bytes:
    """Return key and certificates of the first private key in a JKS store, as PEM."""
    store, password = _passwords(location, given)
    keys, _ = jks_entries(location, data, store, "ssl.keystore.password")
    if not keys:
        raise InvalidInputError(f"{location} holds no private key")
    protected, chain = keys[0]
    key = _unprotected(protected, password)
    if key is None:
        raise InvalidInputError(f"{location}: ssl.key.password is wrong for its private key, or the key is damaged")
    return _pem("PRIVATE KEY", key) + b"".join(_pem("CERTIFICATE", certificate) for certificate in chain)


def _unprotected(data: bytes, password: str) -> bytes | None:
    """Decrypt a private key of a JKS store; None if the password is wrong or the key damaged."""
    at = data.find(_SUN_PROTECTION)
    if at < 0:
        return None
    sealed = _octets(data[at + len(_SUN_PROTECTION) :])
    if sealed is None or len(sealed) < _SALT_BYTES + _SHA1_BYTES:
        return None
    secret = password.encode("utf-16-be")
    block, hidden, check = sealed[:_SALT_BYTES], sealed[_SALT_BYTES:-_SHA1_BYTES], sealed[-_SHA1_BYTES:]
    stream = b""
    while len(stream) < len(hidden):
        block = hashlib.sha1(secret + block, usedforsecurity=False).digest()
        stream += block
    plain = bytes(left ^ right for left, right in zip(hidden, stream, strict=False))
    made = hashlib.sha1(secret + plain, usedforsecurity=False).digest()
    return plain if hmac.compare_digest(made, check) else None


def _octets(data: bytes) -> bytes | None:
    """Return the encrypted key bytes of a JKS entry: the DER octet string after the algorithm's null parameters."""
    if data[:3] != b"\x05\x00\x04" or len(data) < 4:
        return None
    size, start = data[3], 4
    if size & 0x80:
        start += size & 0x7F
        size = int.from_bytes(data[4:start], "big")
    return data[start : start + size] if start + size <= len(data) else None


def _of_pkcs12(location: str, data: bytes, given: KeyStore) -> bytes:
    """Return key and certificates of a PKCS#12 store, as PEM."""
    try:
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12
    except ImportError:
        raise InvalidInputError(
            f"{location} is a PKCS12 store, which needs the package cryptography: install it, or make PEM of "
            f"the store (openssl pkcs12 -in {Path(location).name} -nodes -out client.pem) and name that instead"
        ) from None
    store, _ = _passwords(location, given)
    try:
        key, certificate, others = pkcs12.load_key_and_certificates(data, store.encode())
    except ValueError as error:
        raise InvalidInputError(f"{location} is no PKCS12 store, or ssl.keystore.password is wrong: {error}") from None
    if key is None or certificate is None:
        raise InvalidInputError(f"{location} holds no private key")
    chain = b"".join(part.public_bytes(Encoding.PEM) for part in (certificate, *others))
    plain: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return plain + chain
