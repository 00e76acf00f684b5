"""TLS contexts and SASL mechanisms (PLAIN, SCRAM-SHA-256 and 512, OAUTHBEARER), without I/O."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import re
import secrets
import ssl
import struct
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path

from kohort.client.settings import ConnectionConfig
from kohort.errors import ErrorCode, InvalidInputError, NotAuthorizedError

# -- Certificates in a trust store as Java's clients have it, JKS or PKCS#12. Private keys in it are skipped
#
# Source: JDK, sun.security.provider.JavaKeyStore, for JKS; RFC 7292 for PKCS#12.

JKS_MAGIC, JCEKS_MAGIC = b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce"
_DIGEST_BYTES = 20
_WHITENER = b"Mighty Aphrodite"
_KEY, _CERTIFICATE = 1, 2
BYTES_MAX = 64 * 1024 * 1024
"""A store of all public authorities has a few hundred kilobytes."""


def trusted(location: str, password: str | None) -> bytes | None:
    """Return the certificates of a JKS or PKCS#12 store as DER, concatenated as `ssl` takes them; None for other files.

    Args:
        location: The file; its first bytes show its format.
        password: The store's; None: a JKS is not checked for changes.

    Raises:
        InvalidInputError: The store is damaged or has no certificate, or the password is wrong.
        OSError: The file can't be read.
    """
    data = store_bytes(location)
    refuse_other_stores(location, data)
    if data.startswith(JKS_MAGIC):
        _, certificates = jks_entries(location, data, password, "ssl.truststore.password")
    elif data.startswith(b"\x30"):  # a DER sequence
        certificates = _pkcs12(location, data, password)
    else:
        return None
    if not certificates:
        raise InvalidInputError(f"{location} holds no certificate of an authority")
    return b"".join(certificates)


def store_bytes(location: str) -> bytes:
    """Read a store.

    Raises:
        InvalidInputError: The file is far larger than stores are.
        OSError: The file can't be read.
    """
    path = Path(location)
    if path.stat().st_size > BYTES_MAX:
        raise InvalidInputError(f"{location} is larger than a store of certificates")
    return path.read_bytes()


def refuse_other_stores(location: str, data: bytes) -> None:
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

    def text(self) -> bytes:
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
    return [entry.certificate.public_bytes(Encoding.DER) for entry in store.additional_certs]


# -- The client's certificate and private key, for mutual TLS: PEM, or a key store as Java's clients have it
#
# Source: JDK, sun.security.provider.KeyProtector, for how a JKS store encrypts a private key; RFC 5208 for its content.

_SALT_BYTES = _SHA1_BYTES = 20
_SUN_PROTECTION = bytes.fromhex("060a2b060104012a02110101")
"""The object identifier 1.3.6.1.4.1.42.2.17.1.1 of Sun's own encryption of keys."""


def load_identity(context: ssl.SSLContext, config: ConnectionConfig) -> None:
    """Load the client's certificate and private key into a TLS context, if the configuration has any.

    Raises:
        InvalidInputError: A store can't be read or has no key, or its password is wrong.
        OSError: A file can't be read.
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
    """Yield the path of a file with this content, for `ssl`: in memory if possible, so that no key is on a disk."""
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
    """Return the passwords of the store and of its key."""
    if config.ssl_keystore_password is None:
        raise InvalidInputError(f"{location} is a key store: give its password by ssl.keystore.password")
    return config.ssl_keystore_password, config.ssl_key_password or config.ssl_keystore_password


def _pem(kind: str, data: bytes) -> bytes:
    text = base64.encodebytes(data).decode()
    return f"-----BEGIN {kind}-----\n{text}-----END {kind}-----\n".encode()


def _of_jks(location: str, data: bytes, config: ConnectionConfig) -> bytes:
    """Return key and certificates of the first private key in a JKS store, as PEM."""
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
    """Return the octet string that follows an encryption's (null) parameters, in DER."""
    if data[:3] != b"\x05\x00\x04" or len(data) < 4:
        return None
    size, start = data[3], 4
    if size & 0x80:
        start += size & 0x7F
        size = int.from_bytes(data[4:start], "big")
    return data[start : start + size] if start + size <= len(data) else None


def _of_pkcs12(location: str, data: bytes, config: ConnectionConfig) -> bytes:
    """Return key and certificates of a PKCS#12 store, as PEM."""
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


_TLS_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class SaslError(NotAuthorizedError):
    """The broker refused to authenticate the client, or could not prove its own identity. Not retried."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ErrorCode.SASL_AUTHENTICATION_FAILED)


class TlsError(NotAuthorizedError):
    """The two sides can't agree on TLS, or the broker's certificate is not valid. Not retried.

    Kafka has no code for that; Java's clients raise an AuthenticationException for both.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, ErrorCode.SASL_AUTHENTICATION_FAILED)


class SaslMechanism(ABC):
    """The client's side of a SASL exchange: `start` gives the first token, `next` the answer to a challenge, or None.

    Attributes:
        name: Kafka's name of the mechanism.
        who: The owner of the credentials, for error texts.
    """

    name: str
    who: str

    def fetch(self) -> None:  # noqa: B027 - most mechanisms need nothing
        """Get credentials from the application. May block: drivers call it where nothing else waits."""

    @abstractmethod
    def start(self) -> bytes: ...

    @abstractmethod
    def next(self, answer: bytes) -> bytes | None: ...


class Plain(SaslMechanism):
    """User name and password in clear text (RFC 4616): only sensible over TLS."""

    name = "PLAIN"

    def __init__(self, username: str, password: str) -> None:
        self.who = f"user {username!r}"
        self._token = f"\0{username}\0{password}".encode()

    def start(self) -> bytes:
        return self._token

    def next(self, answer: bytes) -> bytes | None:
        return None


class OAuthBearer(SaslMechanism):
    """A bearer token (RFC 7628) from the application's hook."""

    name = "OAUTHBEARER"

    def __init__(self, hook: Callable[[], str]) -> None:
        self.who = "the token"
        self._hook = hook
        self._token = ""
        self._failure: Exception | None = None

    def fetch(self) -> None:
        try:
            self._token = self._hook()
        except Exception as error:  # noqa: BLE001 - the application's code: `start` reports the error
            self._failure = error

    def start(self) -> bytes:
        if not self._token and self._failure is None:
            self.fetch()
        if self._failure is not None:
            raise SaslError(f"sasl.oauth.token failed: {self._failure!r}") from self._failure
        return f"n,,\x01auth=Bearer {self._token}\x01\x01".encode()

    def next(self, answer: bytes) -> bytes | None:
        if answer:
            raise SaslError(f"the broker refused the token: {answer.decode(errors='replace')}")
        return None


class Scram(SaslMechanism):
    """Salted challenge and response (RFC 5802); the password does not cross the wire."""

    def __init__(self, name: str, username: str, password: str, nonce: str | None = None) -> None:
        self.name = name
        self.who = f"user {username!r}"
        self._hash = _HASHES[name]
        self._password = password
        escaped = username.replace("=", "=3D").replace(",", "=2C")
        self._nonce = nonce or secrets.token_urlsafe(24)
        self._first_bare = f"n={escaped},r={self._nonce}"
        self._server_signature = b""
        self._step = 0

    def start(self) -> bytes:
        return f"n,,{self._first_bare}".encode()

    def next(self, answer: bytes) -> bytes | None:
        try:
            return self._next(answer)
        except ValueError as error:
            raise SaslError(f"the broker's SCRAM challenge is not valid: {error}") from error

    def _next(self, answer: bytes) -> bytes | None:
        self._step += 1
        fields = dict(part.split("=", 1) for part in answer.decode().split(",") if "=" in part)
        if "e" in fields:
            raise SaslError(f"the broker refused the password: {fields['e']}")
        if self._step == 1:
            return self._final(answer.decode(), fields)
        if not hmac.compare_digest(base64.b64decode(fields.get("v", ""), validate=True), self._server_signature):
            raise SaslError("the broker did not prove that it knows the password")
        return None

    def _final(self, server_first: str, fields: dict[str, str]) -> bytes:
        nonce, salt, rounds = fields.get("r", ""), fields.get("s", ""), int(fields.get("i", "0"))
        if not nonce.startswith(self._nonce) or not 4096 <= rounds <= 1_000_000:
            raise SaslError("the broker's SCRAM challenge is not valid")
        salted = salted_password(self.name, self._password, base64.b64decode(salt, validate=True), rounds)
        client_key = hmac.digest(salted, b"Client Key", self._hash)
        without_proof = f"c=biws,r={nonce}"
        message = f"{self._first_bare},{server_first},{without_proof}".encode()
        signature = hmac.digest(hashlib.new(self._hash, client_key).digest(), message, self._hash)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = hmac.digest(hmac.digest(salted, b"Server Key", self._hash), message, self._hash)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Return the salted password that a SCRAM broker stores instead of the password (RFC 5802)."""
    return hashlib.pbkdf2_hmac(_HASHES[mechanism], password.encode(), salt, iterations)


def sasl_mechanism(config: ConnectionConfig) -> SaslMechanism:
    """Make a new exchange for one connection.

    Raises:
        InvalidInputError: A setting that the mechanism needs is missing.
    """
    if config.sasl_mechanism == "OAUTHBEARER":
        if config.sasl_oauth_token is None:
            raise InvalidInputError(
                "sasl.mechanism=OAUTHBEARER needs sasl.oauth.token, a function that returns a token"
            )
        return OAuthBearer(config.sasl_oauth_token)
    username, password = _credentials(config)
    if config.sasl_mechanism == "PLAIN":
        return Plain(username, password)
    return Scram(config.sasl_mechanism, username, password)


def fetched_mechanism(config: ConnectionConfig) -> SaslMechanism | None:
    """Make a new exchange with its credentials; None without SASL. Blocks as long as the application's hook does."""
    if not config.uses_sasl:
        return None
    mechanism = sasl_mechanism(config)
    mechanism.fetch()
    return mechanism


def _credentials(config: ConnectionConfig) -> tuple[str, str]:
    username, password = config.sasl_username, config.sasl_password
    if config.sasl_jaas_config:
        options = jaas_options(config.sasl_jaas_config)
        if options.get("tokenauth", "").lower() == "true":
            raise InvalidInputError(
                'sasl.jaas.config has tokenauth="true": a login by delegation token is not there; give a name and '
                "password of a user"
            )
        username = options.get("username") if username is None else username
        password = options.get("password") if password is None else password
    if username is None or password is None:
        raise InvalidInputError(f"sasl.mechanism={config.sasl_mechanism} needs sasl.username and sasl.password")
    return username, password


_JAAS = re.compile(r'(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s";]+))', re.DOTALL)


def jaas_options(text: str) -> dict[str, str]:
    """Parse the options of a JAAS login module: `…ScramLoginModule required username="a" …;`.

    A value without spaces needs no quotes; in quotes, a backslash escapes the next character.

    Raises:
        InvalidInputError: The text is not a login module.
    """
    module, _, rest = text.strip().partition(" ")
    if not module or "=" in module or not rest.rstrip().endswith(";"):
        raise InvalidInputError(
            "sasl.jaas.config must be a login module, `required`, its options and a semicolon, as in "
            '\'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="…";\''
        )
    return {
        name: plain or re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL) for name, quoted, plain in _JAAS.findall(rest)
    }


def tls_context(config: ConnectionConfig) -> ssl.SSLContext | None:
    """Make the TLS context for the configuration; None for plain connections.

    Raises:
        InvalidInputError: A file can't be read, is no certificate, store or key, or its password is wrong.
    """
    if not config.uses_tls:
        return None
    try:
        store = config.ssl_ca_location
        stored: bytes | str | None = None if store is None else trusted(store, config.ssl_truststore_password)
        if config.ssl_truststore_certificates is not None:
            if store is not None:
                raise InvalidInputError("ssl.truststore.certificates and a trust store are given: give one of them")
            stored = config.ssl_truststore_certificates
        context = ssl.create_default_context(cafile=store if stored is None else None, cadata=stored)
        load_identity(context, config)
    except (OSError, ssl.SSLError) as error:
        files = [config.ssl_ca_location, config.ssl_certificate_location, config.ssl_key_location]
        raise InvalidInputError(f"can't load TLS files {', '.join(name for name in files if name)}: {error}") from None
    versions = sorted(_TLS_VERSIONS[name] for name in config.ssl_enabled_protocols if name in _TLS_VERSIONS)
    if not versions:
        raise InvalidInputError("ssl.enabled.protocols names no version that is spoken here: TLSv1.2 or TLSv1.3")
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    context.check_hostname = config.ssl_endpoint_identification_algorithm == "https"
    return context
