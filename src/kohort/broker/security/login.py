"""SASL logins of connections: which requests are taken before, during and after a login, and how one fails.

| state | requests taken | next |
|---|---|---|
| INITIAL | ApiVersions, SaslHandshake | HANDSHAKE after ApiVersions, EXCHANGE after SaslHandshake |
| HANDSHAKE | SaslHandshake | EXCHANGE |
| EXCHANGE | SaslAuthenticate, or raw tokens after SaslHandshake 0 | KNOWN, or the connection ends |
| KNOWN | all, while the login lasts; SaslHandshake starts the login anew | EXCHANGE_AGAIN |
| EXCHANGE_AGAIN | all | KNOWN, or the connection ends |

Source: KIP-43, KIP-152, KIP-368, and the states of Apache Kafka's `SaslServerAuthenticator`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any, Protocol

from kohort.broker.framing import BadFrame, Frame, WrongSecurityProtocol
from kohort.broker.security.mechanisms import BearerExchange, LoginRefused, SaslExchange
from kohort.broker.security.pending import PendingLogin, PendingLogins
from kohort.broker.security.principals import Principal
from kohort.broker.security.settings import SecurityConfig
from kohort.broker.transport import Parts
from kohort.errors import ErrorCode
from kohort.wire.framing import APIS
from kohort.wire.message import Message
from kohort.wire.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

log = logging.getLogger("kohort.broker")

API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, SaslHandshakeRequest.API_KEY, SaslAuthenticateRequest.API_KEY
HEADER_BYTES_MIN = 8
REAUTH_PAUSE_S = 1.0
"""A client that has just logged in can't do so again. Source: KIP-368."""
Dispatch = Callable[[Any, Frame], None]
"""A function that takes a connection and a frame of it."""


class LoginState(Enum):
    """The progress of a connection's SASL login."""

    INITIAL = auto()
    HANDSHAKE = auto()
    EXCHANGE = auto()
    KNOWN = auto()
    EXCHANGE_AGAIN = auto()
    FAILED = auto()


class LoginClient(Protocol):
    """The interface of a connection's client whose principal a login sets."""

    principal: Principal

    @property
    def host(self) -> str: ...


class LoginConnection(Protocol):
    """The part of a connection that its SASL login uses. `server/connection.py` has the connections of a listener."""

    @property
    def client(self) -> LoginClient: ...
    @property
    def name(self) -> str: ...
    @property
    def closed(self) -> bool: ...

    def intercept(self, on_frame: Dispatch, size_max: int | None, /) -> None:
        """Pass all later frames to `on_frame` instead of the dispatcher.

        `size_max` is their size limit; None: the listener's.
        """

    def suspend_requests(self) -> None:
        """Handle no further request until `resume_requests`."""

    def resume_requests(self) -> None:
        """Handle requests again, also those that came in the meantime."""

    def send_raw(self, parts: Parts) -> None:
        """Send a frame that is no response, after all pending responses."""

    def close_after_responses(self) -> None:
        """Close the connection after its responses are sent."""

    def close(self) -> None:
        """Close the connection."""


class LoginRequest(Protocol):
    """The interface of a SaslHandshake or SaslAuthenticate request, to which a login replies."""

    @property
    def version(self) -> int: ...

    def reply(self, message: Message) -> None:
        """Send the response."""


class SaslServer:
    """The SASL logins of one listener: its mechanisms, and the login of each new connection.

    Attributes:
        name: the listener's.
        configs: the settings by mechanism.
        logins: the clients that are not known yet.
    """

    def __init__(
        self,
        name: str,
        configs: Mapping[str, SecurityConfig],
        exchanges: Mapping[str, Callable[[], SaslExchange]],
        logins: PendingLogins,
    ) -> None:
        """Set the mechanisms: `exchanges` makes a new exchange of each."""
        self.name = name
        self.configs = configs
        self.exchanges = exchanges
        self.logins = logins

    def begin_login(self, connection: LoginConnection, dispatch: Dispatch, pending: PendingLogin) -> SaslLogin:
        """Begin the SASL login of a new connection."""
        return SaslLogin(self, connection, dispatch, pending)

    @property
    def mechanisms(self) -> list[str]:
        """The names of the SASL mechanisms of this listener."""
        return [*self.configs]

    @property
    def first_mechanism_config(self) -> SecurityConfig:
        """The settings of the first mechanism, for what does not depend on the mechanism."""
        return next(iter(self.configs.values()))


class SaslLogin:
    """The login of one connection, which takes the connection's frames until it is complete."""

    __slots__ = (
        "_again_at", "_connection", "_dispatch", "_exchange", "_expires", "_mechanism", "_pending", "_raw", "_server",
        "_state", "_wrong_mechanism",
    )  # fmt: skip

    def __init__(
        self, server: SaslServer, connection: LoginConnection, dispatch: Dispatch, pending: PendingLogin
    ) -> None:
        self._server = server
        self._connection = connection
        self._dispatch = dispatch
        self._pending = pending
        self._state = LoginState.INITIAL
        self._mechanism = ""
        self._wrong_mechanism = ""
        self._exchange: SaslExchange | None = None
        self._raw = False
        self._expires: float | None = None
        self._again_at = 0.0
        connection.intercept(self._on_frame, server.first_mechanism_config.login_bytes_max)

    @property
    def is_authenticated(self) -> bool:
        """Whether the client has logged in. Until then it is no user, and its requests are charged to no quota."""
        return self._state in (LoginState.KNOWN, LoginState.EXCHANGE_AGAIN)

    @property
    def has_expired(self) -> bool:
        """Whether the time of the login is over, and the client has not renewed it."""
        return self._expires is not None and time.monotonic() >= self._expires

    # -- frames

    def _on_frame(self, connection: LoginConnection, frame: Frame) -> None:
        """Handle a frame of a client that has not logged in yet.

        Raises:
            BadFrame: only the requests of a login are taken.
        """
        if self._state is LoginState.FAILED:
            return
        if self._raw:
            self._take_raw(bytes(frame))
            return
        key, version = int.from_bytes(frame[:2], "big", signed=True), int.from_bytes(frame[2:4], "big", signed=True)
        if len(frame) < HEADER_BYTES_MIN or not self._takes(key):
            api = APIS.get(key)
            name = "of an unknown API" if api is None else f"of type {api.name}"
            hint = "" if self._state is LoginState.EXCHANGE else "; its security.protocol must be one with SASL"
            raise WrongSecurityProtocol(
                f"[listener {self._server.name}] unexpected request {name} during SASL handshake{hint}"
            )
        if key == API_VERSIONS and 0 <= version <= APIS[key].request.MAX_VERSION:
            self._state = LoginState.HANDSHAKE
        self._dispatch(connection, frame)

    def _takes(self, key: int) -> bool:
        if self._state is LoginState.INITIAL:
            return key in (API_VERSIONS, SASL_HANDSHAKE)
        return key == (SASL_HANDSHAKE if self._state is LoginState.HANDSHAKE else SASL_AUTHENTICATE)

    def _on_later_frame(self, connection: LoginConnection, frame: Frame) -> None:
        """Handle a frame of a client whose login expires at some time (KIP-368).

        Raises:
            BadFrame: the login has expired.
        """
        if self.has_expired:
            key = int.from_bytes(frame[:2], "big", signed=True)
            if key not in (SASL_HANDSHAKE, SASL_AUTHENTICATE):
                raise BadFrame(f"[listener {self._server.name}] the login has expired, and was not renewed")
        self._dispatch(connection, frame)

    def close_at_login_expiry(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close the connection when the login expires: a push consumer's connection takes no login."""
        if self._expires is not None:
            loop.call_later(max(0.0, self._expires - time.monotonic()), self._connection.close)

    # -- requests

    def handshake(self, request: LoginRequest, message: SaslHandshakeRequest) -> SaslHandshakeResponse | None:
        """Begin an exchange with the mechanism that the client names."""
        offered = self._server.mechanisms
        again = self.is_authenticated
        if again and (time.monotonic() < self._again_at or self._state is LoginState.EXCHANGE_AGAIN):
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=offered)
        if message.mechanism not in offered:
            request.reply(SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=offered))
            self._log_refusal("", f"unsupported SASL mechanism {message.mechanism[:100]!r}; {', '.join(offered)} are")
            self._state = LoginState.FAILED
            self._connection.close_after_responses()
            return None
        self._wrong_mechanism = message.mechanism if again and message.mechanism != self._mechanism else ""
        if not again:
            self._mechanism = message.mechanism
            self._raw = request.version == 0
        self._exchange = self._server.exchanges[self._mechanism]()
        self._state = LoginState.EXCHANGE_AGAIN if again else LoginState.EXCHANGE
        return SaslHandshakeResponse(mechanisms=offered)

    def authenticate(self, request: LoginRequest, message: SaslAuthenticateRequest) -> None:
        """Process the client's next SASL token; the response follows when the token is checked."""
        if self._exchange is None:
            text = "SaslAuthenticate request received after successful authentication"
            request.reply(SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=text))
            return

        def send_token(token: bytes, lifetime_ms: int) -> None:
            request.reply(
                SaslAuthenticateResponse(error_message=None, auth_bytes=token, session_lifetime_ms=lifetime_ms)
            )

        def refuse_login(text: str) -> None:
            error = ErrorCode.SASL_AUTHENTICATION_FAILED
            request.reply(SaslAuthenticateResponse(error_code=error, error_message=text))

        if self._wrong_mechanism:
            self._fail(
                f"SASL mechanism '{self._wrong_mechanism}' requested by client is not supported for "
                f"re-authentication of mechanism '{self._mechanism}'",
                refuse_login,
            )
            return
        self._take_token(bytes(message.auth_bytes), send_token, refuse_login)

    def _take_raw(self, token: bytes) -> None:
        """Process a SASL token that is not wrapped in a request, as after SaslHandshake version 0."""

        def send_token(token: bytes, _lifetime_ms: int) -> None:
            self._connection.send_raw([len(token).to_bytes(4, "big") + token])

        self._take_token(token, send_token, lambda _text: None)

    # -- tokens

    def _take_token(self, token: bytes, answer: Callable[[bytes, int], None], refuse: Callable[[str], None]) -> None:
        exchange = self._exchange
        if exchange is None:
            raise BadFrame(f"[listener {self._server.name}] a SASL token before SaslHandshake")
        if not exchange.off_loop:
            try:
                reply = exchange.process_token(token)
            except LoginRefused as error:
                self._fail(str(error), refuse)
                return
            self._continue_exchange(exchange, reply, answer, refuse)
            return

        def on_token_checked(finished: asyncio.Future[bytes]) -> None:
            if finished.cancelled() or self._connection.closed:
                return
            self._pending.waits = True
            try:
                reply = finished.result()
            except LoginRefused as error:
                self._fail(str(error), refuse)
            else:
                self._continue_exchange(exchange, reply, answer, refuse)
            self._connection.resume_requests()

        self._pending.waits = False
        self._connection.suspend_requests()
        self._server.logins.run_in_thread(exchange.threads, lambda: exchange.process_token(token), on_token_checked)

    def _continue_exchange(
        self, exchange: SaslExchange, reply: bytes, answer: Callable[[bytes, int], None], refuse: Callable[[str], None]
    ) -> None:
        """Answer with the broker's token. The login is complete when the exchange names the user."""
        if isinstance(exchange, BearerExchange) and exchange.why:
            self._log_refusal(exchange.claimed, exchange.why)
            exchange.why = ""
        if exchange.user is None:
            answer(reply, 0)
            return
        client = self._connection.client
        found = Principal("User", exchange.user)
        if self._state is LoginState.EXCHANGE_AGAIN and found != client.principal:
            before = client.principal
            self._fail(
                f"Cannot change principals during re-authentication from {before.kind}.{before.name}: "
                f"{found.kind}.{found.name}",
                refuse,
            )
            return
        first = self._state is LoginState.EXCHANGE
        client.principal = found
        self._report(found, succeeded=True)
        lifetime_ms = self._lifetime_ms(exchange)
        now = time.monotonic()
        self._expires = None if lifetime_ms is None else now + lifetime_ms / 1000
        self._again_at = now + REAUTH_PAUSE_S
        self._exchange, self._state = None, LoginState.KNOWN
        if first:
            self._pending.cancel_login_deadline()
            self._raw = False
            self._connection.intercept(self._on_later_frame if lifetime_ms is not None else self._dispatch, None)
        elif lifetime_ms is not None:
            self._connection.intercept(self._on_later_frame, None)
        answer(reply, lifetime_ms or 0)

    def _lifetime_ms(self, exchange: SaslExchange) -> int | None:
        """Return how long the login lasts; None: for ever. Source: KIP-368."""
        longest = self._server.configs[self._mechanism].reauth_ms or None
        if exchange.expires_ms is None:
            return longest
        left = max(0, exchange.expires_ms - time.time_ns() // 1_000_000)
        return left if longest is None else min(left, longest)

    # -- failures

    def _fail(self, text: str, refuse: Callable[[str], None]) -> None:
        """Refuse a login: send the error after a delay, which slows down guessing, and close the connection."""
        claimed = "" if self._exchange is None else self._exchange.claimed
        self._log_refusal(claimed, text)
        self._report(claimed, succeeded=False)
        self._state, self._exchange = LoginState.FAILED, None
        connection = self._connection
        connection.suspend_requests()
        connection.intercept(self._on_frame, self._server.first_mechanism_config.login_bytes_max)

        def end_connection() -> None:
            if not connection.closed:
                refuse(text)
                connection.close_after_responses()

        delay_ms = self._server.configs[self._mechanism].failure_delay_ms
        asyncio.get_running_loop().call_later(delay_ms / 1000, end_connection)

    def _report(self, who: Principal | str, *, succeeded: bool) -> None:
        on_login = self._server.logins.on_login
        if on_login is not None:
            on_login(who, self._connection.client.host, self._mechanism, succeeded)

    def _log_refusal(self, claimed: str, why: str) -> None:
        name, host = self._connection.name, self._connection.client.host
        who = f" of user {claimed!r}" if claimed else ""
        if self._server.logins.notices.should_log(host, f"{claimed}\0{why}"):
            log.warning(
                "[listener %s] login%s from %s refused (mechanism %s): %s",
                self._server.name,
                who,
                name,
                self._mechanism,
                why,
            )

    def on_connection_closed(self) -> None:
        """Stop counting the client as not authenticated, because its connection has closed."""
        self._pending.cancel_login_deadline()
