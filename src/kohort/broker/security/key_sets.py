"""The issuer's public keys, which sign OAUTHBEARER tokens: read from a file or URL, and kept.

The module is imported where a listener takes tokens. Reading URLs takes Python's HTTP client, a twentieth of the time
of a broker's imports.
"""

from __future__ import annotations

import logging
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from http.client import HTTPMessage
from pathlib import Path
from typing import IO

import msgspec
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from kohort.broker.security.settings import SecurityConfig
from kohort.io.backoff import exponential_backoff
from kohort.settings.config import is_loopback

log = logging.getLogger("kohort.broker")

KEY_SET_BYTES_MAX = 1 << 20
FETCH_TIMEOUT_S = 10.0


def is_trustworthy(url: str) -> bool:
    """Return whether nobody on the way can replace the keys at a URL: file:, https:, or http: on this machine."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "http":
        return parts.scheme in ("file", "https")
    return is_loopback(parts.hostname or "")


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect handler of urllib that follows redirects only to trustworthy URLs."""

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

    def current_keys(self, key_id: str | None) -> KeySet:
        """Return the issuer's public keys.

        They are read again first if they are old or none has this id, but not soon after the last attempt.

        Raises:
            ValueError: no keys could be read yet.
        """
        with self._lock:
            now = self._clock()
            unknown = key_id is not None and self._keys is not None and all(key.kid != key_id for key in self._keys)
            if (now >= self._due or unknown) and now >= self._retry_at:
                self._fetch_keys(now)
            if self._keys is None:
                raise ValueError("the issuer's keys could not be read")
            return self._keys

    def _fetch_keys(self, now: float) -> None:
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
