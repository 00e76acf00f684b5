"""Verification of OAUTHBEARER tokens: signed JSON Web Tokens, with the issuer's keys from a file or URL.

Settings and rules are those of Apache Kafka's `BrokerJwtValidator`. A token needs a signature by one of the issuer's
keys, an expiry, an issue date, a subject, and the expected issuer and audience. The package joserfc checks signatures.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from kohort.broker.security.settings import NAME_CHARS_MAX, SecurityConfig
from kohort.errors import InvalidInputError

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
"""Signatures by a private key. With a shared secret (HS256), everyone who reads the key set could sign."""


class VerifiedToken(NamedTuple):
    """The user and expiry of a valid bearer token."""

    user: str
    expires_ms: int


class TokenVerifier:
    """The verification of tokens for one listener."""

    def __init__(self, config: SecurityConfig, clock: Callable[[], float] = time.time) -> None:
        """Check the settings; keys are read at the first login.

        Raises:
            InvalidInputError: a setting is missing, or the package joserfc.
        """
        try:
            from kohort.broker.security.key_sets import IssuerKeys, is_trustworthy
        except ImportError:
            raise InvalidInputError("OAUTHBEARER needs the package joserfc: pip install 'kohort[security]'") from None
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
            keys = self._keys.current_keys(_key_id(token))
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
