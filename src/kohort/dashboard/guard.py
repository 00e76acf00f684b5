"""Checks of every request to the dashboard (host, origin, login), and the headers of every answer."""

from __future__ import annotations

import contextlib
import ipaddress
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kohort.dashboard.cluster_lookups import BusyError
from kohort.dashboard.group_changes import ChangedMeanwhileError
from kohort.dashboard.logins import SESSION_S, DashboardLogins, LoginSession
from kohort.errors import InvalidInputError, KafkaError, NotAuthorizedError, NotFoundError
from kohort.io.server_certificates import ServerCertificates
from kohort.lag.snapshot import failure_reason_of
from kohort.settings.config import is_loopback

T = TypeVar("T")

BODY_BYTES_MAX = 64 << 10
"""The most bytes of a request's body."""
COOKIE, SECURE_COOKIE = "kohort-session", "__Host-kohort-session"
"""How the name of the session's cookie begins. A browser takes `__Host-` from this host alone, and over TLS alone."""
DEFAULT_PORTS = {"http": 80, "https": 443}
CERTIFICATES_CHECK_S = 1.0
"""How often the files of the certificates are looked at."""
SECRET, SESSION = "kohort.secret", "kohort.session"
"""Where a request's scope has its session."""
LOGIN_PATHS = ("/api/login", "/api/session")
"""The answers that need no login."""
HEADERS: Mapping[str, str] = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
"""The headers of every answer: the page loads nothing from elsewhere, and no other page loads from here."""


@dataclass(frozen=True, slots=True)
class DashboardAccess:
    """Access to the dashboard: logins, TLS, and the names under which it is reached.

    Attributes:
        logins: The logins; None: everyone who can connect may use it.
        tls: The TLS settings of connections; None: plain HTTP.
        is_insecure: Whether passwords may cross the network unencrypted.
        hosts: The names that browsers may use besides those of loopback.
        allows_changes: Whether groups can be changed from the page.
        port: The port that is bound. Browsers send a cookie to all ports of a host, so that its name has the port.
    """

    logins: DashboardLogins | None = None
    tls: ServerCertificates | None = None
    is_insecure: bool = False
    hosts: frozenset[str] = frozenset()
    allows_changes: bool = False
    port: int = 0

    def check(self, host: str, port: int) -> None:
        """Check that other machines, if they can reach the address, must log in, and over TLS unless `is_insecure`.

        Raises:
            InvalidInputError: They need no login, or their passwords would cross the network unencrypted.
        """
        if is_loopback(host) or (self.logins is not None and (self.tls is not None or self.is_insecure)):
            return
        lack = "it has no login" if self.logins is None else "passwords would cross the network unencrypted"
        raise InvalidInputError(
            f"{host}:{port} can be reached from other machines, and {lack}. Ways to go on: --users FILE with --tls "
            "FILE (users log in), --users FILE with --insecure (the same, where something else encrypts), or listen on "
            "127.0.0.1 and reach it by ssh -L"
        )

    def is_dashboard_host(self, host: str) -> bool:
        """Return whether the host of a request's Host header belongs to this dashboard, against DNS rebinding.

        Otherwise a page of a foreign name that leads here would count as one of the dashboard. IP addresses beyond
        loopback are accepted only if users log in.
        """
        try:
            name = urlsplit(f"//{host}").hostname or ""
            if name == "localhost" or (name and name in self.hosts):
                return True
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or self.logins is not None

    @property
    def cookie(self) -> str:
        """The name of the session's cookie."""
        return f"{COOKIE if self.tls is None else SECURE_COOKIE}-{self.port}"

    def set_cookie(self, answer: Response, secret: str | None) -> None:
        """Set the session's cookie in an HTTP response; `secret` None deletes it in the browser."""
        answer.set_cookie(
            self.cookie,
            secret or "",
            max_age=int(SESSION_S) if secret else 0,
            path="/",
            httponly=True,
            samesite="strict",
            secure=self.tls is not None,
        )


OPEN = DashboardAccess()


class RenewedContext(ssl.SSLContext):
    """A TLS server context that reads changed certificate files again for new connections."""

    certificates: ServerCertificates
    checked_s = -CERTIFICATES_CHECK_S

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Begin a TLS connection with the current certificates.

        Their files are checked for changes at most once a second.
        """
        now_s = time.monotonic()
        if now_s - self.checked_s >= CERTIFICATES_CHECK_S:
            self.checked_s = now_s
            self.certificates.reload_if_changed()
        return self.certificates.loaded.context.wrap_bio(*args, **options)


def renewed_context(certificates: ServerCertificates) -> RenewedContext:
    """Return a TLS context for asyncio servers, which call its `wrap_bio` for each connection."""
    context = RenewedContext(ssl.PROTOCOL_TLS_SERVER)
    context.certificates = certificates
    return context


class DashboardGuard:
    """ASGI middleware that checks every request before the dashboard's routes, and adds headers to every answer.

    The checks are needed on loopback too: a browser also sends requests that other web pages make.

    Args:
        app: The application to which allowed requests are passed.
        access: Who may use the dashboard.
        changes: The paths that accept POST: those of changes and of logins.
    """

    def __init__(self, app: ASGIApp, access: DashboardAccess, changes: frozenset[str]) -> None:
        self._app, self._access, self._changes = app, access, changes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request. Answer it if it is refused, else pass it on to the application."""
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope, headers)
        app = self._app if refusal is None else refusal

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *own]}
            await send(message)

        with contextlib.suppress(ClientDisconnect):  # in the middle of its body
            await app(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope, headers: Mapping[str, str]) -> Response | None:
        method, path, host = scope["method"], scope["path"], headers.get("host", "")
        if method not in (("POST",) if path in self._changes else ("GET", "HEAD")):
            return error_answer(405, "POST" if path in self._changes else "this only reads: GET", "refused")
        if not self._access.is_dashboard_host(host):
            return error_answer(
                421, "the host in the address must be localhost, a loopback address, or a name of --host", "refused"
            )
        if path.startswith("/api/") and headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return error_answer(403, "asked by another page", "refused")
        if method == "POST":
            if not _is_same_host(headers.get("origin", ""), host):
                return error_answer(403, "asked by another page, or by none: Origin must be this host", "refused")
            if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
                return error_answer(415, "the body must be application/json", "refused")
        return self._login_refusal(scope, path, headers)

    def _login_refusal(self, scope: Scope, path: str, headers: Mapping[str, str]) -> Response | None:
        scope[SECRET], scope[SESSION] = "", None
        if self._access.logins is None:
            return None
        scope[SECRET] = _cookie(headers.get("cookie", ""), self._access.cookie)
        scope[SESSION] = self._access.logins.find_session(scope[SECRET]) if scope[SECRET] else None
        if scope[SESSION] is None and path.startswith("/api/") and path not in LOGIN_PATHS:
            return error_answer(401, "log in", "not_authorized")
        return None


def _is_same_host(origin: str, host: str) -> bool:
    """Return whether a request's Origin and Host name the same host and port; the default port may be left out."""
    try:
        asked, own = urlsplit(origin), urlsplit(f"//{host}")
        default = DEFAULT_PORTS[asked.scheme]
        ports = [default if port is None else port for port in (asked.port, own.port)]
    except (ValueError, KeyError):
        return False
    return bool(asked.hostname) and asked.hostname == own.hostname and ports[0] == ports[1]


def _cookie(header: str, name: str) -> str:
    """Return a cookie's value. `http.cookies` would drop all cookies after one with a character it does not know."""
    for part in header.split(";"):
        key, _, value = part.partition("=")
        if key.strip() == name:
            return value.strip()
    return ""


def session_user_of(request: Request) -> str | None:
    """Return the user of a request's login session; None: there is none, or the dashboard has no logins."""
    session: LoginSession | None = request.scope[SESSION]
    return None if session is None else session.user


async def decode_body(request: Request, kind: type[T]) -> T:
    """Read a request's body, and decode it as JSON of the msgspec type `kind`.

    Raises:
        InvalidInputError: The body is too long, or does not fit the type.
    """
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_MAX:
            raise InvalidInputError(f"the body has more than {BODY_BYTES_MAX} bytes")
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"the body is not as expected: {error}") from None


# -- Answers


def json_response(value: Any, status: int = 200) -> Response:
    """Return an HTTP response with a value as JSON."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def error_answer(status: int, text: str, reason: str) -> Response:
    """Return an HTTP response with an error's text and reason as JSON."""
    return json_response({"error": text, "reason": reason}, status)


def failure_response(error: KafkaError) -> Response:
    """Return the HTTP response for an error of a call, with its status and text."""
    kinds = (
        (InvalidInputError, 400), (NotAuthorizedError, 403), (NotFoundError, 404), (ChangedMeanwhileError, 409),
        (BusyError, 429),
    )  # fmt: skip
    status = next((status for kind, status in kinds if isinstance(error, kind)), 503)
    return error_answer(status, str(error), failure_reason_of(error))
