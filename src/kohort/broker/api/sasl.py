"""SASL logins: SaslHandshake and SaslAuthenticate, which the login of the connection answers.

Versions: SaslHandshake 0 is followed by raw tokens. SaslAuthenticate 1 adds the time that the login lasts.
"""

from __future__ import annotations

from kohort.broker.dispatch import ApiHandler, api_handler
from kohort.broker.host import GroupHost
from kohort.broker.server.requests import Request
from kohort.errors import ErrorCode
from kohort.wire.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)


def sasl_handshake(_host: GroupHost, request: Request[SaslHandshakeRequest]) -> SaslHandshakeResponse | None:
    """Begin a login, or reject it because the listener has none."""
    login = request.client.login
    if login is None:
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    return login.handshake(request, request.message)


def sasl_authenticate(_host: GroupHost, request: Request[SaslAuthenticateRequest]) -> SaslAuthenticateResponse | None:
    """Continue a login, or reject it because the listener has none."""
    login = request.client.login
    if login is None:
        text = "this listener asks for no authentication"
        return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=text)
    login.authenticate(request, request.message)
    return None


HANDLERS: list[ApiHandler[GroupHost]] = [
    api_handler(SaslHandshakeRequest, SaslHandshakeResponse, sasl_handshake),
    api_handler(SaslAuthenticateRequest, SaslAuthenticateResponse, sasl_authenticate),
]
