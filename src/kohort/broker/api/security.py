"""ACLs, users, delegation tokens, SASL: what a broker without an authorizer, on a listener without authentication, answers.

Versions: ACLs 2 prefixed patterns; CreateDelegationToken 3 an owner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from kohort.broker.config.users import ITERATIONS_MAX, ITERATIONS_MIN, MECHANISMS
from kohort.broker.net.request import Request
from kohort.broker.node import Node
from kohort.errors import ErrorCode, InvalidInputError, KafkaError
from kohort.wire.security import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

NO_AUTHORIZER = "No Authorizer is configured."
ANYONE = ("User", "ANONYMOUS")
"""Who a client is that did not authenticate."""
_User = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult


def describe_acls(_node: Node, _request: Request) -> DescribeAclsResponse:
    """There are none."""
    return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)


def create_acls(_node: Node, request: Request) -> CreateAclsResponse:
    """There can be none."""
    made = CreateAclsResponse.AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
    return CreateAclsResponse(results=[made for _ in request.message.creations])


def delete_acls(_node: Node, request: Request) -> DeleteAclsResponse:
    """There are none."""
    made = DeleteAclsResponse.DeleteAclsFilterResult(
        error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER
    )
    return DeleteAclsResponse(filter_results=[made for _ in request.message.filters])


def describe_users(node: Node, request: Request) -> DescribeUserScramCredentialsResponse:
    """The mechanisms that users have credentials for."""
    asked = request.message.users
    times = Counter(user.name for user in asked) if asked else dict.fromkeys(node.users.names(), 1)
    results = []
    for name, count in times.items():
        found = node.users.iterations(name)
        result = _User(
            user=name,
            error_message="",
            credential_infos=[
                _User.CredentialInfo(mechanism=mechanism, iterations=iterations)
                for mechanism, iterations in found.items()
            ],
        )
        if count > 1:
            result = _User(
                user=name, error_code=ErrorCode.DUPLICATE_RESOURCE, error_message=f"{name} is asked for {count} times"
            )
        elif not found:
            text = f"there is no credential of a user {name}"
            result = _User(user=name, error_code=ErrorCode.RESOURCE_NOT_FOUND, error_message=text)
        results.append(result)
    return DescribeUserScramCredentialsResponse(error_message="", results=results)


def alter_users(node: Node, request: Request) -> AlterUserScramCredentialsResponse:
    """Set and delete credentials; a user with one that can't be has none changed."""
    message = request.message
    changes = [*message.deletions, *message.upsertions]
    times = Counter(each.name for each in changes)
    make = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
    results: dict[str, Any] = {}
    deletions, upsertions = [], []
    for each in changes:
        if each.name in results and results[each.name].error_code:
            continue
        try:
            _check_user(node, each)
            if times[each.name] > 1:
                raise InvalidInputError("a user is changed more than once", ErrorCode.DUPLICATE_RESOURCE)
        except KafkaError as error:
            results[each.name] = make(user=each.name, error_code=error.code, error_message=error.message)
            continue
        results[each.name] = make(user=each.name, error_message=None)
        if hasattr(each, "iterations"):
            upsertions.append((each.name, each.mechanism, each.iterations, each.salt, each.salted_password))
        else:
            deletions.append((each.name, each.mechanism))
    if deletions or upsertions:
        node.users.change(deletions, upsertions)
    return AlterUserScramCredentialsResponse(results=list(results.values()))


def _check_user(node: Node, change: Any) -> None:
    if not change.name:
        raise InvalidInputError("a user without a name", ErrorCode.UNACCEPTABLE_CREDENTIAL)
    if change.mechanism not in MECHANISMS:
        raise InvalidInputError("an unknown mechanism", ErrorCode.UNSUPPORTED_SASL_MECHANISM)
    if not hasattr(change, "iterations"):
        if change.mechanism not in node.users.iterations(change.name):
            raise InvalidInputError("there is no such credential", ErrorCode.RESOURCE_NOT_FOUND)
    elif not ITERATIONS_MIN <= change.iterations <= ITERATIONS_MAX:
        text = f"iterations must be from {ITERATIONS_MIN} to {ITERATIONS_MAX}"
        raise InvalidInputError(text, ErrorCode.UNACCEPTABLE_CREDENTIAL)


def create_token(_node: Node, request: Request) -> CreateDelegationTokenResponse:
    """Tokens are for users who authenticated."""
    response = CreateDelegationTokenResponse(
        error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
        principal_type=ANYONE[0],
        principal_name=ANYONE[1],
        issue_timestamp_ms=-1,
        expiry_timestamp_ms=-1,
        max_timestamp_ms=-1,
    )
    if request.version >= 3:
        response.token_requester_principal_type, response.token_requester_principal_name = ANYONE
    return response


def renew_token(_node: Node, _request: Request) -> RenewDelegationTokenResponse:
    """Tokens are for users who authenticated."""
    return RenewDelegationTokenResponse(
        error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, expiry_timestamp_ms=-1
    )


def expire_token(_node: Node, _request: Request) -> ExpireDelegationTokenResponse:
    """Tokens are for users who authenticated."""
    return ExpireDelegationTokenResponse(
        error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, expiry_timestamp_ms=-1
    )


def describe_tokens(_node: Node, _request: Request) -> DescribeDelegationTokenResponse:
    """Tokens are for users who authenticated."""
    return DescribeDelegationTokenResponse(error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)


def sasl_handshake(_node: Node, _request: Request) -> SaslHandshakeResponse:
    """The listener asks for no authentication."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


def sasl_authenticate(_node: Node, _request: Request) -> SaslAuthenticateResponse:
    """The listener asks for no authentication."""
    text = "this listener asks for no authentication"
    return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=text)


HANDLERS: dict[type, Callable[[Any, Any], Any]] = {
    DescribeAclsRequest: describe_acls,
    CreateAclsRequest: create_acls,
    DeleteAclsRequest: delete_acls,
    DescribeUserScramCredentialsRequest: describe_users,
    AlterUserScramCredentialsRequest: alter_users,
    CreateDelegationTokenRequest: create_token,
    RenewDelegationTokenRequest: renew_token,
    ExpireDelegationTokenRequest: expire_token,
    DescribeDelegationTokenRequest: describe_tokens,
    SaslHandshakeRequest: sasl_handshake,
    SaslAuthenticateRequest: sasl_authenticate,
}
