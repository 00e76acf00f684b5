"""Messages of authentication and authorization: SASL, ACLs, SCRAM credentials and delegation tokens.

Source: Kafka 4.4, message schemas.
"""

from __future__ import annotations

from kohort.wire.message import Message, RequestMessage
from kohort.wire.schema import Struct, array, binary, int8, int16, int32, int64, string


class SaslHandshakeRequest(RequestMessage["SaslHandshakeResponse"], key=17, versions=(0, 1)):
    """A request to log in with a SASL mechanism."""

    mechanism: str = string()


class SaslHandshakeResponse(Message, key=17, versions=(0, 1)):
    """The response to SaslHandshake: an error code, and the mechanisms that the listener has."""

    error_code: int = int16()
    mechanisms: list[str] = array(string)


class SaslAuthenticateRequest(RequestMessage["SaslAuthenticateResponse"], key=36, versions=(0, 2), flexible=2):
    """A request with the client's next token of a SASL login."""

    auth_bytes: bytes = binary()


class SaslAuthenticateResponse(Message, key=36, versions=(0, 2), flexible=2):
    """The response to SaslAuthenticate: the server's next token, and how long the login is valid."""

    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    auth_bytes: bytes = binary()
    session_lifetime_ms: int = int64(since=1, ignorable=True)


class DescribeAclsRequest(RequestMessage["DescribeAclsResponse"], key=29, versions=(1, 3), flexible=2):
    """A request for access rules that match a filter."""

    resource_type_filter: int = int8()
    resource_name_filter: str | None = string(nullable=True)
    pattern_type_filter: int = int8(default=3)
    principal_filter: str | None = string(nullable=True)
    host_filter: str | None = string(nullable=True)
    operation: int = int8()
    permission_type: int = int8()


class DescribeAclsResponse(Message, key=29, versions=(1, 3), flexible=2):
    """The matching access rules by resource."""

    class DescribeAclsResource(Struct):
        """A resource pattern, with the rules for it."""

        class AclDescription(Struct):
            """A rule: the principal and host to which it allows or denies an operation."""

            principal: str = string()
            host: str = string()
            operation: int = int8()
            permission_type: int = int8()

        resource_type: int = int8()
        resource_name: str = string()
        pattern_type: int = int8(default=3)
        acls: list[AclDescription] = array(AclDescription)

    AclDescription = DescribeAclsResource.AclDescription

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    resources: list[DescribeAclsResource] = array(DescribeAclsResource)


class CreateAclsRequest(RequestMessage["CreateAclsResponse"], key=30, versions=(1, 3), flexible=2):
    """A request to add access rules."""

    class AclCreation(Struct):
        """A rule to create, with its resource pattern."""

        resource_type: int = int8()
        resource_name: str = string()
        resource_pattern_type: int = int8(default=3)
        principal: str = string()
        host: str = string()
        operation: int = int8()
        permission_type: int = int8()

    creations: list[AclCreation] = array(AclCreation)


class CreateAclsResponse(Message, key=30, versions=(1, 3), flexible=2):
    """The response to CreateAcls: an error code for each ACL rule."""

    class AclCreationResult(Struct):
        """One ACL rule in the response to CreateAcls: the error code and message."""

        error_code: int = int16()
        error_message: str | None = string(nullable=True)

    throttle_time_ms: int = int32()
    results: list[AclCreationResult] = array(AclCreationResult)


class DeleteAclsRequest(RequestMessage["DeleteAclsResponse"], key=31, versions=(1, 3), flexible=2):
    """A request to delete the access rules that match filters."""

    class DeleteAclsFilter(Struct):
        """A filter that selects the rules to delete. A null resource name, principal or host matches any."""

        resource_type_filter: int = int8()
        resource_name_filter: str | None = string(nullable=True)
        pattern_type_filter: int = int8(default=3)
        principal_filter: str | None = string(nullable=True)
        host_filter: str | None = string(nullable=True)
        operation: int = int8()
        permission_type: int = int8()

    filters: list[DeleteAclsFilter] = array(DeleteAclsFilter)


class DeleteAclsResponse(Message, key=31, versions=(1, 3), flexible=2):
    """The rules deleted, for each filter."""

    class DeleteAclsFilterResult(Struct):
        """The rules that matched one filter."""

        class DeleteAclsMatchingAcl(Struct):
            """A rule that was deleted, or why it was not."""

            error_code: int = int16()
            error_message: str | None = string(nullable=True)
            resource_type: int = int8()
            resource_name: str = string()
            pattern_type: int = int8(default=3)
            principal: str = string()
            host: str = string()
            operation: int = int8()
            permission_type: int = int8()

        error_code: int = int16()
        error_message: str | None = string(nullable=True)
        matching_acls: list[DeleteAclsMatchingAcl] = array(DeleteAclsMatchingAcl)

    DeleteAclsMatchingAcl = DeleteAclsFilterResult.DeleteAclsMatchingAcl

    throttle_time_ms: int = int32()
    filter_results: list[DeleteAclsFilterResult] = array(DeleteAclsFilterResult)


class DescribeUserScramCredentialsRequest(
    RequestMessage["DescribeUserScramCredentialsResponse"], key=50, versions=(0, 0), flexible=0
):
    """A request for users' SCRAM mechanisms; null asks for all."""

    class UserName(Struct):
        """A user whose credentials are asked for."""

        name: str = string()

    users: list[UserName] | None = array(UserName, nullable=True)


class DescribeUserScramCredentialsResponse(Message, key=50, versions=(0, 0), flexible=0):
    """Mechanisms and iterations of each user."""

    class DescribeUserScramCredentialsResult(Struct):
        """The credentials of one user, without secrets."""

        class CredentialInfo(Struct):
            """A credential's mechanism and number of iterations."""

            mechanism: int = int8()
            iterations: int = int32()

        user: str = string()
        error_code: int = int16()
        error_message: str | None = string(nullable=True)
        credential_infos: list[CredentialInfo] = array(CredentialInfo)

    CredentialInfo = DescribeUserScramCredentialsResult.CredentialInfo

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    results: list[DescribeUserScramCredentialsResult] = array(DescribeUserScramCredentialsResult)


class AlterUserScramCredentialsRequest(
    RequestMessage["AlterUserScramCredentialsResponse"], key=51, versions=(0, 0), flexible=0
):
    """A request to set and delete SCRAM credentials."""

    class ScramCredentialDeletion(Struct):
        """A credential to delete, by user and mechanism."""

        name: str = string()
        mechanism: int = int8()

    class ScramCredentialUpsertion(Struct):
        """A credential to create or replace: the salted password, never the password."""

        name: str = string()
        mechanism: int = int8()
        iterations: int = int32()
        salt: bytes = binary()
        salted_password: bytes = binary()

    deletions: list[ScramCredentialDeletion] = array(ScramCredentialDeletion)
    upsertions: list[ScramCredentialUpsertion] = array(ScramCredentialUpsertion)


class AlterUserScramCredentialsResponse(Message, key=51, versions=(0, 0), flexible=0):
    """The response to AlterUserScramCredentials: an error code for each user."""

    class AlterUserScramCredentialsResult(Struct):
        """One user in the response to AlterUserScramCredentials: the error code and message."""

        user: str = string()
        error_code: int = int16()
        error_message: str | None = string(nullable=True)

    throttle_time_ms: int = int32()
    results: list[AlterUserScramCredentialsResult] = array(AlterUserScramCredentialsResult)


class CreateDelegationTokenRequest(
    RequestMessage["CreateDelegationTokenResponse"], key=38, versions=(1, 3), flexible=2
):
    """A request for a token that represents a user (KIP-48)."""

    class CreatableRenewers(Struct):
        """A principal that may renew the token."""

        principal_type: str = string()
        principal_name: str = string()

    owner_principal_type: str | None = string(since=3, nullable=True)
    owner_principal_name: str | None = string(since=3, nullable=True)
    renewers: list[CreatableRenewers] = array(CreatableRenewers)
    max_lifetime_ms: int = int64()


class CreateDelegationTokenResponse(Message, key=38, versions=(1, 3), flexible=2):
    """The token, and until when it holds."""

    error_code: int = int16()
    principal_type: str = string()
    principal_name: str = string()
    token_requester_principal_type: str = string(since=3)
    token_requester_principal_name: str = string(since=3)
    issue_timestamp_ms: int = int64()
    expiry_timestamp_ms: int = int64()
    max_timestamp_ms: int = int64()
    token_id: str = string()
    hmac: bytes = binary()
    throttle_time_ms: int = int32()


class RenewDelegationTokenRequest(RequestMessage["RenewDelegationTokenResponse"], key=39, versions=(1, 2), flexible=2):
    """A request to extend a token's validity."""

    hmac: bytes = binary()
    renew_period_ms: int = int64()


class RenewDelegationTokenResponse(Message, key=39, versions=(1, 2), flexible=2):
    """The response to RenewDelegationToken: the token's new expiry time."""

    error_code: int = int16()
    expiry_timestamp_ms: int = int64()
    throttle_time_ms: int = int32()


class ExpireDelegationTokenRequest(
    RequestMessage["ExpireDelegationTokenResponse"], key=40, versions=(1, 2), flexible=2
):
    """A request to expire a token at a given time."""

    hmac: bytes = binary()
    expiry_time_period_ms: int = int64()


class ExpireDelegationTokenResponse(Message, key=40, versions=(1, 2), flexible=2):
    """The response to ExpireDelegationToken: the token's new expiry time."""

    error_code: int = int16()
    expiry_timestamp_ms: int = int64()
    throttle_time_ms: int = int32()


class DescribeDelegationTokenRequest(
    RequestMessage["DescribeDelegationTokenResponse"], key=41, versions=(1, 3), flexible=2
):
    """A request for the tokens of owners; null asks for all."""

    class DescribeDelegationTokenOwner(Struct):
        """A principal whose tokens are asked for."""

        principal_type: str = string()
        principal_name: str = string()

    owners: list[DescribeDelegationTokenOwner] | None = array(DescribeDelegationTokenOwner, nullable=True)


class DescribeDelegationTokenResponse(Message, key=41, versions=(1, 3), flexible=2):
    """Tokens with their owners and renewers."""

    class DescribedDelegationToken(Struct):
        """A token: its owner, its times in epoch milliseconds, and its HMAC, which is the secret."""

        class DescribedDelegationTokenRenewer(Struct):
            """A principal that may renew the token."""

            principal_type: str = string()
            principal_name: str = string()

        principal_type: str = string()
        principal_name: str = string()
        token_requester_principal_type: str = string(since=3)
        token_requester_principal_name: str = string(since=3)
        issue_timestamp: int = int64()
        expiry_timestamp: int = int64()
        max_timestamp: int = int64()
        token_id: str = string()
        hmac: bytes = binary()
        renewers: list[DescribedDelegationTokenRenewer] = array(DescribedDelegationTokenRenewer)

    DescribedDelegationTokenRenewer = DescribedDelegationToken.DescribedDelegationTokenRenewer

    error_code: int = int16()
    tokens: list[DescribedDelegationToken] = array(DescribedDelegationToken)
    throttle_time_ms: int = int32()
