"""Bearer tokens from a token endpoint, by the grant of client credentials, or from a file.

A token is kept for most of its lifetime, so that the connections of a client ask for one together.
Source: RFC 6749, section 4.4; KIP-768.
"""

from __future__ import annotations

import base64
import json  # not msgspec, without which clients start
import logging
import math
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

from kohort.client.settings import ConnectionConfig
from kohort.errors import InvalidInputError
from kohort.io.backoff import exponential_backoff
from kohort.io.key_stores import TrustedAuthorities
from kohort.settings.config import is_loopback
from kohort.settings.jaas import parse_jaas_options
from kohort.settings.validation import redacted_url

ANSWER_BYTES_MAX = 1 << 20
KEPT_SHARE = 0.8
"""The share of a token's lifetime in which new connections get it: Kafka's `sasl.login.refresh.window.factor`."""
REQUEST_TIMEOUT_MIN_S = 1.0
RETRY_S, RETRY_MAX_S = 0.1, 1.0
ASK_AGAIN_S = 10.0
"""After a failure the endpoint is asked again this much later, while the token of before holds. Source: KIP-768's
`sasl.login.retry.backoff.max.ms`."""
log = logging.getLogger("kohort.client")


def clock_with_sleep_s() -> float:
    """Return the time by a clock that, if the system has one, also runs while the machine sleeps, as a token's life."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A handler that follows no redirect, so that the client's secret goes to the configured endpoint alone."""

    def redirect_request(self, *_args: object, **_kwargs: object) -> None:
        return None


class _EndpointRefusal(OSError):
    """Error: the token endpoint refuses the client, and a repeated request would not change that."""


class TokenEndpoint:
    """The source of a client's OAuth tokens: an endpoint that it asks with its id and secret."""

    def __init__(self, config: ConnectionConfig, clock: Callable[[], float] = clock_with_sleep_s) -> None:
        """Check the settings; nothing is asked yet.

        Raises:
            InvalidInputError: the URL has another scheme, or the client's id or secret is missing.
        """
        url = config.sasl_oauthbearer_token_url
        assert url is not None
        self._url = url
        self._scheme = urllib.parse.urlsplit(url).scheme
        if self._scheme not in ("https", "http", "file"):
            raise InvalidInputError(
                "sasl.oauthbearer.token.endpoint.url must begin with https://, http:// or file://, not "
                f"{redacted_url(url)}"
            )
        options = parse_jaas_options(config.sasl_jaas_config) if config.sasl_jaas_config else {}
        self._id = config.sasl_oauthbearer_client_id or options.get("clientId")
        self._secret = config.sasl_oauthbearer_client_secret or options.get("clientSecret")
        self._scope = config.sasl_oauthbearer_scope or options.get("scope")
        if self._scheme != "file" and (self._id is None or self._secret is None):
            raise InvalidInputError(
                "sasl.oauthbearer.token.endpoint.url needs sasl.oauthbearer.client.credentials.client.id and "
                "sasl.oauthbearer.client.credentials.client.secret"
            )
        host = urllib.parse.urlsplit(url).hostname or ""
        if self._scheme == "http" and not is_loopback(host):
            log.warning(
                "sasl.oauthbearer.token.endpoint.url is http:// at another machine (%s): everyone on the way can read "
                "the client's secret and its tokens; give an https:// URL",
                redacted_url(url),
            )
        self._timeout_s = max(REQUEST_TIMEOUT_MIN_S, config.socket_connection_setup_timeout_ms / 1000)
        self._authorities = TrustedAuthorities(
            config.ssl_ca_location, config.ssl_truststore_password, config.ssl_truststore_certificates
        )
        self._clock = clock
        self._lock = threading.Lock()
        self._token = ""
        self._until = self._expires = 0.0

    def __call__(self) -> str:
        """Return an access token; blocks while the endpoint is asked.

        A token is reused for most of its lifetime. If no new one can be had, it is reused until it expires. With a
        `file:` URL, the token is the file's content.

        Raises:
            InvalidInputError: the trust store can't be used, and no token is left.
            OSError: the endpoint can't be reached, or refuses the client, and no token is left.
            ValueError: its answer has no token, and none is left.
        """
        if self._scheme == "file":
            path = urllib.request.url2pathname(urllib.parse.urlsplit(self._url).path)
            return Path(path).read_text(encoding="utf-8").strip()
        with self._lock:
            if self._clock() >= self._until:
                try:
                    self._token, lifetime_s = self._request_with_retries()
                except (InvalidInputError, OSError, ValueError) as error:
                    left_s = self._expires - self._clock()
                    if left_s <= 0:
                        raise
                    log.warning("no new token, so the one of before is used, for %.0f s at most: %s", left_s, error)
                    self._until = self._clock() + min(ASK_AGAIN_S, left_s)
                else:
                    self._expires = self._clock() + lifetime_s
                    self._until = self._clock() + KEPT_SHARE * lifetime_s
            return self._token

    def _request_with_retries(self) -> tuple[str, float]:
        """Request a token; retry while the endpoint can't be reached, within the time that a connection may take."""
        until, failures = time.monotonic() + self._timeout_s, 0
        while True:
            try:
                return self._request_token()
            except OSError as error:
                failures += 1
                pause_s = exponential_backoff(failures, RETRY_S, RETRY_MAX_S)
                if isinstance(error, _EndpointRefusal) or time.monotonic() + pause_s >= until:
                    raise
            time.sleep(pause_s)

    def _request_token(self) -> tuple[str, float]:
        """Request a token from the endpoint; return it with its lifetime in seconds (0: unknown)."""
        fields = {"grant_type": "client_credentials"} | ({"scope": self._scope} if self._scope else {})
        pair = ":".join(urllib.parse.quote_plus(part or "") for part in (self._id, self._secret))
        request = urllib.request.Request(
            self._url,
            urllib.parse.urlencode(fields).encode(),
            {
                "Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}",
                "Content-Type": "application/x-www-form-urlencoded",
                "Accept": "application/json",
            },
        )
        context = ssl.create_default_context()
        cafile, cadata = self._authorities.load_authorities()
        if cafile is not None or cadata is not None:  # beside the system's
            context.load_verify_locations(cafile, cadata=cadata)
        opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoRedirect())
        try:
            with opener.open(request, timeout=self._timeout_s) as answer:
                data = answer.read(ANSWER_BYTES_MAX + 1)
        except urllib.error.HTTPError as error:
            with error:
                text = error.read(500).decode(errors="replace")
            kind = OSError if error.code >= HTTPStatus.INTERNAL_SERVER_ERROR else _EndpointRefusal
            raise kind(f"{redacted_url(self._url)} answered {error.code}: {text}") from None
        return _token_of(self._url, data)


def _token_of(url: str, data: bytes) -> tuple[str, float]:
    answer = json.loads(data) if len(data) <= ANSWER_BYTES_MAX else None
    if not isinstance(answer, dict):
        answer = {}
    token = answer.get("access_token")
    if not isinstance(token, str) or not token:
        raise ValueError(f"{redacted_url(url)} answered without an access_token")
    try:
        lifetime_s = float(answer.get("expires_in", 0))
    except (TypeError, ValueError, OverflowError):
        lifetime_s = 0.0
    return token, lifetime_s if 0 < lifetime_s < math.inf else 0.0


_endpoints: dict[tuple[str | None, ...], TokenEndpoint] = {}
_ENDPOINTS_MAX = 100


def token_endpoint(config: ConnectionConfig) -> TokenEndpoint:
    """Return the source of tokens for a configuration, the same one for each of its connections.

    Raises:
        InvalidInputError: see `TokenEndpoint`.
    """
    key = (
        config.sasl_oauthbearer_token_url,
        config.sasl_oauthbearer_client_id,
        config.sasl_oauthbearer_client_secret,
        config.sasl_oauthbearer_scope,
        config.sasl_jaas_config,
        config.ssl_ca_location,
        config.ssl_truststore_password,
        config.ssl_truststore_certificates,
    )
    found = _endpoints.get(key)
    if found is None:
        found = TokenEndpoint(config)
        while len(_endpoints) >= _ENDPOINTS_MAX:
            _endpoints.pop(next(iter(_endpoints)), None)
        _endpoints[key] = found
    return found
