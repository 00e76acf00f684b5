"""Verification of OAUTHBEARER tokens: signed JSON Web Tokens, with the issuer's keys from a file or URL.

Settings and rules are those of Apache Kafka's `BrokerJwtValidator`. A token needs a signature by one of the issuer's
keys, an expiry, an issue date, a subject, and the expected issuer and audience. The package joserfc checks signatures.
"""

from __future__ import annotations

import base64
import ipaddress
import logging
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from http.client import HTTPMessage
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import msgspec

from kohort.broker.security.settings import NAME_CHARS_MAX, SecurityConfig
from kohort.errors import InvalidInputError
from kohort.io.backoff import exponential_backoff

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

log = logging.getLogger("kohort.broker")

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
"""Signatures by a private key. With a shared secret (HS256), everyone who reads the key set could sign."""
KEY_SET_BYTES_MAX = 1 << 20
FETCH_TIMEOUT_S = 10.0


def is_trustworthy(url: str) -> bool:
    """Return whether nobody on the way can replace the keys at a URL: file:, https:, or http: on this machine."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "http":
        return parts.scheme in ("file", "https")
    try:
        return parts.hostname == "localhost" or ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Redirects to trustworthy URLs only."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        if not is_trustworthy(newurl):
            raise ValueError(f"redirected to {newurl}, which is not https:")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def fetch_key_set(url: str) -> bytes:
    """Return the document at a file: or https: URL. Blocks.

    Raises:
        OSError: it can't be read.
        ValueError: it is larger than key sets are.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "file":
        with Path(urllib.request.url2pathname(parts.path)).open("rb") as file:
            data = file.read(KEY_SET_BYTES_MAX + 1)
    else:
        with urllib.request.build_opener(_SafeRedirects).open(url, timeout=FETCH_TIMEOUT_S) as answer:
            data = answer.read(KEY_SET_BYTES_MAX + 1)
    if len(data) > KEY_SET_BYTES_MAX:
        raise ValueError(f"more than {KEY_SET_BYTES_MAX} bytes")
    return bytes(data)


class VerifiedToken(NamedTuple):
    """The content of a valid token."""

    user: str
    expires_ms: int


class IssuerKeys:
    """The issuer's public keys, read again at an interval, and when a token names an unknown key."""

    def __init__(self, config: SecurityConfig, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._url = url
        self._clock = clock
        self._lock = threading.Lock()
        self._keys: KeySet | None = None
        self._due = 0.0
        self._retry_at = 0.0
        self._failures = 0

    def current(self, key_id: str | None) -> KeySet:
        """Return the keys; read them first if they are old, or if there is none of this id.

        Raises:
            ValueError: no keys could be read yet.
        """
        with self._lock:
            now = self._clock()
            unknown = key_id is not None and self._keys is not None and all(key.kid != key_id for key in self._keys)
            if (now >= self._due or unknown) and now >= self._retry_at:
                self._read(now)
            if self._keys is None:
                raise ValueError("the issuer's keys could not be read")
            return self._keys

    def _read(self, now: float) -> None:
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        try:
            self._keys = KeySet.import_key_set(msgspec.json.decode(fetch_key_set(self._url)))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, JoseError) as error:
            then = "logins fail until they can" if self._keys is None else "the last keys stay in use"
            text = "sasl.oauthbearer.jwks.endpoint.url: %s: keys could not be read, retrying (%s): %s"
            log.warning(text, self._url, then, error)
            self._failures += 1
            wait_ms = exponential_backoff(self._failures, self._config.jwks_retry_ms, self._config.jwks_retry_max_ms)
            self._retry_at = now + wait_ms / 1000
            return
        self._failures = 0
        self._due = now + self._config.jwks_refresh_ms / 1000
        self._retry_at = now + self._config.jwks_retry_max_ms / 1000


class TokenVerifier:
    """The verification of tokens for one listener."""

    def __init__(self, config: SecurityConfig, clock: Callable[[], float] = time.time) -> None:
        """Check the settings; keys are read at the first login.

        Raises:
            InvalidInputError: a setting is missing, or the package joserfc.
        """
        try:
            import joserfc
        except ImportError:
            raise InvalidInputError("OAUTHBEARER takes the package joserfc: pip install 'kohort[security]'") from None
        del joserfc
        url = config.jwks_url
        if url is None or not is_trustworthy(url):
            raise InvalidInputError(
                "OAUTHBEARER needs the issuer's keys: sasl.oauthbearer.jwks.endpoint.url=https://… or file:///…"
            )
        if not config.expected_audience and not config.any_audience:
            raise InvalidInputError(
                "OAUTHBEARER needs sasl.oauthbearer.expected.audience, so that tokens for other services are refused"
            )
        if config.expected_issuer is None and not config.any_issuer:
            raise InvalidInputError("OAUTHBEARER needs sasl.oauthbearer.expected.issuer")
        self._config = config
        self._clock = clock
        self._keys = IssuerKeys(config, url)

    def __call__(self, token: str) -> VerifiedToken:
        """Verify a token. May block, to read the issuer's keys.

        Raises:
            ValueError: the token is not valid; the text says why, for the broker's log.
        """
        from joserfc import jwt
        from joserfc.errors import JoseError

        try:
            keys = self._keys.current(_key_id(token))
            claims = jwt.decode(token, keys, algorithms=list(ALGORITHMS)).claims
        except (JoseError, ValueError, TypeError, KeyError, msgspec.DecodeError, RecursionError) as error:
            raise ValueError(str(error)[:200] or type(error).__name__) from None
        return self._checked(claims)

    def _checked(self, claims: dict[str, Any]) -> VerifiedToken:
        config, now, skew = self._config, self._clock(), self._config.clock_skew_s
        expires, issued = _number_claim(claims, "exp"), _number_claim(claims, "iat")
        if now >= expires + skew:
            raise ValueError("the token has expired")
        if issued > now + skew:
            raise ValueError("the token was issued in the future")
        if "nbf" in claims and _number_claim(claims, "nbf") > now + skew:
            raise ValueError("the token is not valid yet")
        if config.expected_issuer is not None and claims.get("iss") != config.expected_issuer:
            raise ValueError("the token is from another issuer")
        audiences = claims.get("aud")
        audiences = audiences if isinstance(audiences, list) else [audiences]
        if config.expected_audience and not any(audience in config.expected_audience for audience in audiences):
            raise ValueError("the token is for another audience")
        user = claims.get(config.subject_claim)
        if not isinstance(user, str) or not user.strip() or len(user) > NAME_CHARS_MAX:
            raise ValueError(f"the token has no usable claim {config.subject_claim}")
        return VerifiedToken(user.strip(), int(expires * 1000))


def _key_id(token: str) -> str | None:
    """Return the key id that a token names, without any check."""
    head = token.partition(".")[0]
    header = msgspec.json.decode(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
    key_id = header.get("kid") if isinstance(header, dict) else None
    return key_id if isinstance(key_id, str) else None


def _number_claim(claims: dict[str, Any], name: str) -> float:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
        raise ValueError(f"the token has no usable claim {name}")
    return float(value)
