"""Users and delegation tokens: responses of a broker without tokens.

Versions: CreateDelegationToken 3 adds an owner.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TypeAlias

from kohort.broker.config.users import ITERATIONS_MAX, ITERATIONS_MIN, MECHANISMS, SALT_BYTES_MAX
from kohort.broker.dispatch import ApiHandler, api_handler
from kohort.broker.node import Node
from kohort.broker.server.requests import Request
from kohort.errors import ErrorCode, InvalidInputError, KafkaError
from kohort.wire.security import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)

log = logging.getLogger("kohort.broker")

_Deletion: TypeAlias = AlterUserScramCredentialsRequest.ScramCredentialDeletion
_Upsertion: TypeAlias = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
_User = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult


def describe_users(
    node: Node, request: Request[DescribeUserScramCredentialsRequest]
) -> DescribeUserScramCredentialsResponse:
    """Describe the SCRAM mechanisms of users' credentials."""
    asked = request.message.users
    times = Counter(user.name for user in asked) if asked else dict.fromkeys(node.users.user_names(), 1)
    results = []
    for name, count in times.items():
        found = node.users.iterations_by_mechanism(name)
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


def alter_users(node: Node, request: Request[AlterUserScramCredentialsRequest]) -> AlterUserScramCredentialsResponse:
    """Set and delete SCRAM credentials. If one change of a user is invalid, all of that user's changes are rejected."""
    message = request.message
    changes: list[_Deletion | _Upsertion] = [*message.deletions, *message.upsertions]
    times = Counter(change.name for change in changes)
    make = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
    results: dict[str, AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult] = {}
    deletions, upsertions = [], []
    for change in changes:
        if change.name in results and results[change.name].error_code:
            continue
        try:
            _check_user(node, change)
            if times[change.name] > 1:
                raise InvalidInputError("a user is changed more than once", ErrorCode.DUPLICATE_RESOURCE)
        except KafkaError as error:
            results[change.name] = make(user=change.name, error_code=error.code, error_message=error.message)
            continue
        results[change.name] = make(user=change.name, error_message=None)
        if isinstance(change, _Upsertion):
            upsertions.append((change.name, change.mechanism, change.iterations, change.salt, change.salted_password))
        else:
            deletions.append((change.name, change.mechanism))
    if deletions or upsertions:
        node.users.change_credentials(deletions, upsertions)
    if upsertions and all(listener.sasl is None for listener in node.listeners):
        log.warning(
            "[user %s] SCRAM credential stored, but no listener of this broker uses SASL, so nothing checks it: "
            "add a listener of SASL_SSL (kohort broker --sasl)",
            upsertions[0][0],
        )
    return AlterUserScramCredentialsResponse(results=list(results.values()))


def _check_user(node: Node, change: _Deletion | _Upsertion) -> None:
    if not change.name:
        raise InvalidInputError("a user without a name", ErrorCode.UNACCEPTABLE_CREDENTIAL)
    if change.mechanism not in MECHANISMS:
        raise InvalidInputError("an unknown mechanism", ErrorCode.UNSUPPORTED_SASL_MECHANISM)
    if not isinstance(change, _Upsertion):
        if change.mechanism not in node.users.iterations_by_mechanism(change.name):
            raise InvalidInputError("there is no such credential", ErrorCode.RESOURCE_NOT_FOUND)
    elif not ITERATIONS_MIN <= change.iterations <= ITERATIONS_MAX:
        text = f"iterations must be from {ITERATIONS_MIN} to {ITERATIONS_MAX}"
        raise InvalidInputError(text, ErrorCode.UNACCEPTABLE_CREDENTIAL)
    elif len(change.salt) > SALT_BYTES_MAX:
        raise InvalidInputError(f"a salt of more than {SALT_BYTES_MAX} bytes", ErrorCode.UNACCEPTABLE_CREDENTIAL)


def create_token(_node: Node, request: Request[CreateDelegationTokenRequest]) -> CreateDelegationTokenResponse:
    """Reject the request: this broker has no delegation tokens."""
    response = CreateDelegationTokenResponse(
        error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
        principal_type=request.principal.kind,
        principal_name=request.principal.name,
        issue_timestamp_ms=-1,
        expiry_timestamp_ms=-1,
        max_timestamp_ms=-1,
    )
    if request.version >= 3:
        response.token_requester_principal_type, response.token_requester_principal_name = request.principal
    return response


def renew_token(_node: Node, _request: Request[RenewDelegationTokenRequest]) -> RenewDelegationTokenResponse:
    """Reject the request: this broker has no delegation tokens."""
    return RenewDelegationTokenResponse(
        error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, expiry_timestamp_ms=-1
    )


def expire_token(_node: Node, _request: Request[ExpireDelegationTokenRequest]) -> ExpireDelegationTokenResponse:
    """Reject the request: this broker has no delegation tokens."""
    return ExpireDelegationTokenResponse(
        error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, expiry_timestamp_ms=-1
    )


def describe_tokens(_node: Node, _request: Request[DescribeDelegationTokenRequest]) -> DescribeDelegationTokenResponse:
    """Reject the request: this broker has no delegation tokens."""
    return DescribeDelegationTokenResponse(error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)


HANDLERS: list[ApiHandler[Node]] = [
    api_handler(DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse, describe_users),
    api_handler(AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse, alter_users),
    api_handler(CreateDelegationTokenRequest, CreateDelegationTokenResponse, create_token),
    api_handler(RenewDelegationTokenRequest, RenewDelegationTokenResponse, renew_token),
    api_handler(ExpireDelegationTokenRequest, ExpireDelegationTokenResponse, expire_token),
    api_handler(DescribeDelegationTokenRequest, DescribeDelegationTokenResponse, describe_tokens),
]
