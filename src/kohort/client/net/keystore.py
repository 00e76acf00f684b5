"""The client's certificate and private key, for mutual TLS: PEM, or a key store as Java's clients have it.

Source: JDK, sun.security.provider.KeyProtector, for how a JKS store encrypts a private key; RFC 5208 for what is in it.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kohort.client.net.truststore import JKS_MAGIC, jks_entries, refuse_other_stores, store_bytes
from kohort.client.settings import ConnectionConfig
from kohort.errors import InvalidInputError

_SALT_BYTES = _SHA1_BYTES = 20
_SUN_PROTECTION = bytes.fromhex("060a2b060104012a02110101")
"""The object identifier 1.3.6.1.4.1.42.2.17.1.1, of Sun's own encryption of keys."""


def load_identity(context: ssl.SSLContext, config: ConnectionConfig) -> None:
    """Give a TLS context the client's certificate and private key, if the configuration has any.

    Raises:
        InvalidInputError: a store that can't be read, holds no key, or whose password is wrong.
        OSError: a file can't be read.
    """
    key, chain = config.ssl_keystore_key, config.ssl_keystore_certificate_chain
    location = config.ssl_certificate_location
    if (key is None) != (chain is None):
        raise InvalidInputError("ssl.keystore.key and ssl.keystore.certificate.chain belong together: give both")
    if key is not None and chain is not None:
        if location is not None:
            raise InvalidInputError("ssl.keystore.key and ssl.keystore.location both have a key: give one of them")
        _load(context, f"{key.strip()}\n{chain.strip()}\n".encode(), config.ssl_key_password)
        return
    if location is None:
        return
    data = store_bytes(location)
    refuse_other_stores(location, data)
    if data.startswith(JKS_MAGIC):
        _load(context, _of_jks(location, data, config), None)
    elif data.startswith(b"\x30"):  # a DER sequence
        _load(context, _of_pkcs12(location, data, config), None)
    else:
        context.load_cert_chain(location, config.ssl_key_location, config.ssl_key_password)


def _load(context: ssl.SSLContext, text: bytes, password: str | None) -> None:
    with _as_file(text) as name:
        context.load_cert_chain(name, None, password)


@contextlib.contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """A file with these contents, which `ssl` wants: in memory where the system can, so that no key is on a disk."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("kohort-identity", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            yield f"/proc/self/fd/{descriptor}"
        return
    with tempfile.NamedTemporaryFile("wb", prefix="kohort-") as file:  # readable by this user alone
        file.write(data)
        file.flush()
        yield file.name


def _passwords(location: str, config: ConnectionConfig) -> tuple[str, str]:
    """Of the store, and of the key in it."""
    if config.ssl_keystore_password is None:
        raise InvalidInputError(f"{location} is a key store: give its password by ssl.keystore.password")
    return config.ssl_keystore_password, config.ssl_key_password or config.ssl_keystore_password


def _pem(kind: str, data: bytes) -> bytes:
    text = base64.encodebytes(data).decode()
    return f"-----BEGIN {kind}-----\n{text}-----END {kind}-----\n".encode()


def _of_jks(location: str, data: bytes, config: ConnectionConfig) -> bytes:
    """Key and certificates of the first private key in a JKS store, as PEM."""
    store, password = _passwords(location, config)
    keys, _ = jks_entries(location, data, store, "ssl.keystore.password")
    if not keys:
        raise InvalidInputError(f"{location} holds no private key")
    protected, chain = keys[0]
    key = _unprotected(protected, password)
    if key is None:
        raise InvalidInputError(f"{location}: ssl.key.password is wrong for its private key, or the key is damaged")
    return _pem("PRIVATE KEY", key) + b"".join(_pem("CERTIFICATE", certificate) for certificate in chain)


def _unprotected(data: bytes, password: str) -> bytes | None:
    """A private key as JKS stores keep it, without its encryption; None: another password's, or damaged."""
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
    """The octet string behind the parameters (null) of an encryption, in DER."""
    if data[:3] != b"\x05\x00\x04" or len(data) < 4:
        return None
    size, start = data[3], 4
    if size & 0x80:
        start += size & 0x7F
        size = int.from_bytes(data[4:start], "big")
    return data[start : start + size] if start + size <= len(data) else None


def _of_pkcs12(location: str, data: bytes, config: ConnectionConfig) -> bytes:
    """Key and certificates of a PKCS#12 store, as PEM."""
    try:
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12
    except ImportError:
        raise InvalidInputError(
            f"{location} is a PKCS12 store, which takes the package cryptography to read: install it, or make PEM of "
            f"the store (openssl pkcs12 -in {Path(location).name} -nodes -out client.pem) and name that instead"
        ) from None
    store, _ = _passwords(location, config)
    try:
        key, certificate, others = pkcs12.load_key_and_certificates(data, store.encode())
    except ValueError as error:
        raise InvalidInputError(f"{location} is no PKCS12 store, or ssl.keystore.password is wrong: {error}") from None
    if key is None or certificate is None:
        raise InvalidInputError(f"{location} holds no private key")
    chain = b"".join(part.public_bytes(Encoding.PEM) for part in (certificate, *others))
    plain: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return plain + chain
