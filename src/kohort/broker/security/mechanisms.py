"""The broker's side of the SASL mechanisms PLAIN, SCRAM and OAUTHBEARER, without I/O.

A stranger can't find out which users exist: an unknown user is asked, checked and refused like a known one.
Source: RFC 4616 (PLAIN), RFC 5802 and RFC 7677 (SCRAM), RFC 7628 (OAUTHBEARER). Error texts are Kafka's.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from kohort.broker.security.settings import NAME_CHARS_MAX, OAUTHBEARER, SCRAM_SHA_256, SCRAM_SHA_512
from kohort.broker.security.tokens import VerifiedToken

HASHES = {SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"}


class LoginRefused(Exception):
    """A login is refused. The text is for the client: it names no reason that would help to guess."""


class StoredCredential(NamedTuple):
    """A SCRAM credential: salt, iterations and keys, by which a password can be checked and not be recovered."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        """Return the iterations alone: with the keys others could try passwords, or pose as the broker."""
        return f"StoredCredential(iterations={self.iterations}, …)"


class Credentials(Protocol):
    """The interface of the store of all SCRAM users' credentials."""

    def credential(self, user: str, mechanism: str) -> StoredCredential | None:
        """Return a user's credential for a SCRAM mechanism, by Kafka's name; None: there is none."""

    def decoy_credential(self, user: str, mechanism: str) -> StoredCredential:
        """Return a credential that no password fits, always the same for a name, and of the form of real ones."""


class SaslExchange(ABC):
    """One login from the client's first token to its end.

    Attributes:
        user: the user, once the login is complete.
        expires_ms: when the credentials end, in milliseconds since 1970; None: never.
        claimed: the name that the client gave, for the log.
        off_loop: whether `process_token` takes so long that it must run in a thread.
        threads: the name of these threads. Those that wait for another server must not hold up the others.
    """

    user: str | None = None
    expires_ms: int | None = None
    claimed = ""
    off_loop = False
    threads = "login"

    @abstractmethod
    def process_token(self, token: bytes) -> bytes:
        """Process a SASL token of the client, and return the broker's next one.

        Raises:
            LoginRefused: the login has failed.
        """


def _bad_credentials(mechanism: str) -> LoginRefused:
    return LoginRefused(
        f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}"
    )


# -- PLAIN


class PlainExchange(SaslExchange):
    """A SASL/PLAIN login: user name and password in clear text.

    Args:
        passwords: the users with their passwords; None: passwords are those of the SCRAM users in `store`.
        store: the SCRAM users.
    """

    def __init__(self, passwords: Mapping[str, str] | None, store: Credentials) -> None:
        self._passwords = passwords
        self._store = store
        self.off_loop = passwords is None

    def process_token(self, token: bytes) -> bytes:
        parts = token.split(b"\0")
        if len(parts) != 3:
            raise LoginRefused(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        try:
            asked, user, password = (part.decode() for part in parts)
        except UnicodeDecodeError:
            raise LoginRefused("Authentication failed: Invalid username or password") from None
        if not user:
            raise LoginRefused("Authentication failed: username not specified")
        if not password:
            raise LoginRefused("Authentication failed: password not specified")
        self.claimed = user[:NAME_CHARS_MAX]
        fits = self._fits(user, password)
        if not fits or len(user) > NAME_CHARS_MAX:
            raise LoginRefused("Authentication failed: Invalid username or password")
        if asked and asked != user:
            raise LoginRefused(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self.user = user
        return b""

    def _fits(self, user: str, password: str) -> bool:
        if self._passwords is not None:
            expected = self._passwords.get(user)
            equal = hmac.compare_digest(
                hashlib.sha256(password.encode()).digest(), hashlib.sha256((expected or "").encode()).digest()
            )
            return equal and expected is not None
        fits = [self._fits_stored(user, password, mechanism) for mechanism in HASHES]  # all, whatever the user has
        return any(fits)

    def _fits_stored(self, user: str, password: str, mechanism: str) -> bool:
        found = self._store.credential(user, mechanism)
        made_up = self._store.decoy_credential(user, mechanism)  # also for a known user, which takes as long
        known = found or made_up
        name = HASHES[mechanism]
        salted = hashlib.pbkdf2_hmac(name, password.encode(), known.salt, known.iterations)
        server_key = hmac.digest(salted, b"Server Key", name)
        return hmac.compare_digest(server_key, known.server_key) and found is not None


# -- SCRAM

_NAME = r"(?:[^=,\0]|=2C|=3D)+"
_CLIENT_FIRST = re.compile(rf"([ny]),(?:a=({_NAME}))?,((?:m=[^\0,]*,)?n=({_NAME}),r=([\x21-\x2b\x2d-\x7e]+)((?:,.*)?))")
_CLIENT_FINAL = re.compile(r"(c=([A-Za-z0-9+/=]+),r=([\x21-\x2b\x2d-\x7e]+)(?:,[^p].*)?),p=([A-Za-z0-9+/=]+)")
_NONCE_CHARS_MAX = 1_000


class ScramExchange(SaslExchange):
    """A SASL/SCRAM login by salted challenge and response: neither the wire nor the broker has the password."""

    def __init__(self, mechanism: str, store: Credentials) -> None:
        self._mechanism = mechanism
        self._hash = HASHES[mechanism]
        self._store = store
        self._header = b""
        self._messages = ""
        self._nonce = ""
        self._credential: StoredCredential | None = None
        self._known = False

    def process_token(self, token: bytes) -> bytes:
        try:
            text = token.decode()
        except UnicodeDecodeError:
            raise _bad_credentials(self._mechanism) from None
        return self._first(text) if self._credential is None else self._final(text, self._credential)

    def _first(self, text: str) -> bytes:
        found = _CLIENT_FIRST.fullmatch(text)
        if found is None:
            raise _bad_credentials(self._mechanism)
        flag, asked, bare, name, nonce, extensions = found.groups()
        user = name.replace("=2C", ",").replace("=3D", "=")
        self.claimed = user[:NAME_CHARS_MAX]
        if bare.startswith("m=") or len(user) > NAME_CHARS_MAX or len(nonce) > _NONCE_CHARS_MAX:
            raise _bad_credentials(self._mechanism)
        if "tokenauth=true" in extensions.split(","):
            raise LoginRefused("Authentication failed: delegation tokens are not available here")
        if asked and asked != name:
            raise LoginRefused(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self._header = f"{flag},{'a=' + asked if asked else ''},".encode()
        found_credential = self._store.credential(user, self._mechanism)
        self._known = found_credential is not None
        made_up = self._store.decoy_credential(user, self._mechanism)  # also for a known user, which takes as long
        credential = self._credential = found_credential or made_up
        self._nonce = nonce + secrets.token_urlsafe(24)
        salt = base64.b64encode(credential.salt).decode()
        answer = f"r={self._nonce},s={salt},i={credential.iterations}"
        self._messages = f"{bare},{answer}"
        return answer.encode()

    def _final(self, text: str, credential: StoredCredential) -> bytes:
        found = _CLIENT_FINAL.fullmatch(text)
        if found is None:
            raise _bad_credentials(self._mechanism)
        without_proof, binding, nonce, proof_text = found.groups()
        try:
            bound = base64.b64decode(binding, validate=True)
            proof = base64.b64decode(proof_text, validate=True)
        except (binascii.Error, ValueError):
            raise _bad_credentials(self._mechanism) from None
        message = f"{self._messages},{without_proof}".encode()
        signature = hmac.digest(credential.stored_key, message, self._hash)
        if len(proof) != len(signature):
            raise _bad_credentials(self._mechanism)
        client_key = bytes(left ^ right for left, right in zip(proof, signature, strict=True))
        fits = hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), credential.stored_key)
        if not (fits and self._known and bound == self._header and hmac.compare_digest(nonce, self._nonce)):
            raise _bad_credentials(self._mechanism)
        self.user = self.claimed
        return b"v=" + base64.b64encode(hmac.digest(credential.server_key, message, self._hash))


# -- OAUTHBEARER

_BEARER = re.compile(r"n,(?:a=([^,\x01]*))?,\x01((?:[A-Za-z]+=[\x21-\x7e \t\r\n]*\x01)+)\x01")
TOKEN_CHARS_MAX = 65_536


VerifyToken = Callable[[str], VerifiedToken]
"""Verify a bearer token. Raises ValueError if it is not valid. May block."""


class BearerExchange(SaslExchange):
    """A SASL/OAUTHBEARER login with a bearer token that its issuer has signed."""

    off_loop = True
    threads = "token"

    def __init__(self, verify: VerifyToken) -> None:
        self._verify = verify
        self._refusal = ""
        self.why = ""

    def process_token(self, token: bytes) -> bytes:
        if self._refusal:
            raise LoginRefused(self._refusal)  # whatever the client answers to the error
        found = _BEARER.fullmatch(token.decode("latin-1"))
        fields = [part.partition("=") for part in found[2].split("\x01")] if found else []
        bearer = next((value for key, _, value in fields if key.lower() == "auth"), "")
        scheme, _, text = bearer.strip().partition(" ")
        if found is None or scheme.lower() != "bearer" or not 0 < len(text) <= TOKEN_CHARS_MAX:
            raise _bad_credentials(OAUTHBEARER)
        try:
            verified = self._verify(text.strip())
        except ValueError as error:
            self.why = str(error)
            self._refusal = '{"status": "invalid_token"}'
            return self._refusal.encode()
        if found[1] and found[1] != verified.user:
            raise LoginRefused(
                f"Authentication failed: Client requested an authorization id ({found[1]}) that is different from the "
                f"token's principal name ({verified.user})"
            )
        self.user, self.claimed, self.expires_ms = verified.user, verified.user, verified.expires_ms
        return b""
