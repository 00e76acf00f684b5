"""TLS contexts and SASL mechanisms (PLAIN, SCRAM-SHA-256 and 512, OAUTHBEARER), without I/O."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import secrets
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from kohort.client.settings import ConnectionConfig, check_extensions
from kohort.errors import ErrorCode, InvalidInputError, NotAuthorizedError
from kohort.io.key_stores import KeyStore, TrustedAuthorities, load_certificate_and_key
from kohort.settings.jaas import parse_jaas_options

log = logging.getLogger("kohort.client")

_TLS_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class SaslError(NotAuthorizedError):
    """The broker refused to authenticate the client, or could not prove its own identity. Not retried."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ErrorCode.SASL_AUTHENTICATION_FAILED)


def mechanism_refused_error(address: object, name: str, offered: Sequence[str], uses_tls: bool) -> SaslError:
    """Return the error for a mechanism that a listener does not offer; it offers none if it takes no logins at all."""
    if offered:
        return SaslError(f"{address} does not take {name}: set sasl.mechanism to one of {', '.join(offered)}")
    without = "SSL" if uses_tls else "PLAINTEXT"
    return SaslError(f"{address} takes no logins: set security.protocol to {without}, or use another port")


class TlsError(NotAuthorizedError):
    """The two sides can't agree on TLS, or the broker's certificate is not valid. Not retried.

    Kafka has no code for that; Java's clients raise an AuthenticationException for both.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, ErrorCode.SASL_AUTHENTICATION_FAILED)


class SaslMechanism(ABC):
    """The client's side of a SASL exchange: `first_message` gives the first token.

    `next_message` gives the answer to a challenge, or None.

    Attributes:
        name: Kafka's name of the mechanism.
        who: The owner of the credentials, for error texts.
    """

    name: str
    who: str

    def fetch_credentials(self) -> None:  # noqa: B027 - most mechanisms need nothing
        """Get credentials from the application. May block: drivers call it where nothing else waits."""

    @abstractmethod
    def first_message(self) -> bytes: ...

    @abstractmethod
    def next_message(self, answer: bytes) -> bytes | None: ...


class Plain(SaslMechanism):
    """User name and password in clear text (RFC 4616): only sensible over TLS."""

    name = "PLAIN"

    def __init__(self, username: str, password: str) -> None:
        self.who = f"user {username!r}"
        self._token = f"\0{username}\0{password}".encode()

    def first_message(self) -> bytes:
        return self._token

    def next_message(self, answer: bytes) -> bytes | None:
        return None


class OAuthBearer(SaslMechanism):
    """A bearer token (RFC 7628) from the application's hook or a token endpoint, which `setting` names in errors."""

    name = "OAUTHBEARER"

    def __init__(
        self, hook: Callable[[], str], setting: str = "sasl.oauth.token", extensions: Sequence[str] = ()
    ) -> None:
        self.who = "the token"
        self._hook = hook
        self._setting = setting
        self._extensions = "".join(f"{pair}\x01" for pair in extensions)
        self._token = ""
        self._failure: Exception | None = None

    def fetch_credentials(self) -> None:
        try:
            token: object = self._hook()
            if not isinstance(token, str):
                raise TypeError(f"the function must return a token as str, not {type(token).__name__}")
            self._token = token
        except Exception as error:  # noqa: BLE001 - the application's code: `first_message` reports the error
            self._failure = error

    def first_message(self) -> bytes:
        if not self._token and self._failure is None:
            self.fetch_credentials()
        if self._failure is not None:
            raise SaslError(f"{self._setting} failed: {self._failure!r}") from self._failure
        return f"n,,\x01auth=Bearer {self._token}\x01{self._extensions}\x01".encode()

    def next_message(self, answer: bytes) -> bytes | None:
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

    def first_message(self) -> bytes:
        return f"n,,{self._first_bare}".encode()

    def next_message(self, answer: bytes) -> bytes | None:
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
    """Make the client's side of a SASL exchange for one connection, by the configured mechanism.

    Raises:
        InvalidInputError: A setting that the mechanism needs is missing.
    """
    if config.sasl_mechanism == "OAUTHBEARER":
        extensions = _extensions(config)
        if config.sasl_oauth_token is not None:
            return OAuthBearer(config.sasl_oauth_token, extensions=extensions)
        if config.sasl_oauthbearer_token_url is not None:
            from kohort.client.oauth import token_endpoint  # an HTTP client that few need

            return OAuthBearer(token_endpoint(config), "sasl.oauthbearer.token.endpoint.url", extensions)
        raise InvalidInputError(
            "sasl.mechanism=OAUTHBEARER needs sasl.oauthbearer.token.endpoint.url, or sasl.oauth.token, a function "
            "that returns a token"
        )
    username, password = _credentials(config)
    if config.sasl_mechanism == "PLAIN":
        return Plain(username, password)
    return Scram(config.sasl_mechanism, username, password)


def _extensions(config: ConnectionConfig) -> tuple[str, ...]:
    """Return the NAME=VALUE pairs that go to the broker with the token, of the setting and of `sasl.jaas.config`.

    Raises:
        InvalidInputError: A pair of `sasl.jaas.config` can't be sent.
    """
    options = parse_jaas_options(config.sasl_jaas_config) if config.sasl_jaas_config else {}
    prefix = "extension_"
    written = tuple(f"{key.removeprefix(prefix)}={options[key]}" for key in options if key.startswith(prefix))
    try:
        check_extensions(written)
    except ValueError as error:
        raise InvalidInputError(f"sasl.jaas.config, {prefix}…: {error}") from None
    return config.sasl_oauthbearer_extensions or written


def fetch_sasl_mechanism(config: ConnectionConfig) -> SaslMechanism | None:
    """Make a SASL exchange for one connection, with its credentials fetched; None: the client uses no SASL.

    Blocks as long as the application's hook does, such as a function that returns a token.
    """
    if not config.uses_sasl:
        return None
    mechanism = sasl_mechanism(config)
    mechanism.fetch_credentials()
    return mechanism


def _credentials(config: ConnectionConfig) -> tuple[str, str]:
    username, password = config.sasl_username, config.sasl_password
    if config.sasl_jaas_config:
        options = parse_jaas_options(config.sasl_jaas_config)
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


def _key_store(config: ConnectionConfig) -> KeyStore:
    return KeyStore(
        config.ssl_certificate_location,
        config.ssl_key_location,
        config.ssl_keystore_key,
        config.ssl_keystore_certificate_chain,
        config.ssl_keystore_password,
        config.ssl_key_password,
    )


def tls_context(config: ConnectionConfig) -> ssl.SSLContext | None:
    """Make the TLS context for the configuration; None for plain connections.

    Raises:
        InvalidInputError: A file can't be read, is no certificate, store or key, or its password is wrong.
    """
    if not config.uses_tls:
        return None
    try:
        trusted = TrustedAuthorities(
            config.ssl_ca_location, config.ssl_truststore_password, config.ssl_truststore_certificates
        )
        cafile, cadata = trusted.load_authorities()
        context = ssl.create_default_context(cafile=cafile, cadata=cadata)
        load_certificate_and_key(context, _key_store(config))
    except (OSError, ssl.SSLError) as error:
        files = [config.ssl_ca_location, config.ssl_certificate_location, config.ssl_key_location]
        named = ", ".join(name for name in files if name) or "of the settings"
        raise InvalidInputError(f"can't load TLS files {named}: {error}") from None
    versions = sorted(_TLS_VERSIONS[name] for name in config.ssl_enabled_protocols if name in _TLS_VERSIONS)
    if not versions:
        raise InvalidInputError("ssl.enabled.protocols names no version that is spoken here: TLSv1.2 or TLSv1.3")
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    context.check_hostname = config.ssl_endpoint_identification_algorithm == "https"
    return context


class TlsFiles:
    """The TLS context of a client's new connections, loaded anew when files of certificates or keys have changed."""

    def __init__(self, config: ConnectionConfig) -> None:
        """Load the files.

        Raises:
            InvalidInputError: see `tls_context`.
        """
        self._config = config
        self._stamps = self._file_stamps()
        self._context = tls_context(config)

    def _file_stamps(self) -> list[tuple[int, int, int] | None]:
        stamps: list[tuple[int, int, int] | None] = []
        for name in (
            self._config.ssl_ca_location,
            self._config.ssl_certificate_location,
            self._config.ssl_key_location,
        ):
            try:
                found = None if name is None else Path(name).stat()
            except OSError:
                found = None
            stamps.append(None if found is None else (found.st_mtime_ns, found.st_size, found.st_ino))
        return stamps

    def current_tls_context(self) -> ssl.SSLContext | None:
        """Return the TLS context, loaded anew if files have changed; None for plain connections.

        If changed files can't be used, a warning is logged, and the context stays the old one.
        """
        if self._context is None:
            return None
        stamps = self._file_stamps()
        if stamps != self._stamps:
            self._stamps = stamps
            try:
                self._context = tls_context(self._config)
            except InvalidInputError as error:
                log.warning("changed TLS files ignored: %s; the files loaded before stay in use", error.message)
        return self._context
