"""Access rules, SCRAM credentials and quotas, as coroutines over a `Cluster`."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, get_args

from kohort.client.admin.routing import RequestAttempts, error_of_result, send_to_controller
from kohort.client.admin.values import (
    Acl,
    AclFilter,
    AclPattern,
    AclPermission,
    AclResource,
    QuotaEntity,
    Results,
    ScramCredential,
    ScramMechanism,
)
from kohort.client.net.cluster import ANY, CONTROLLER, Cluster
from kohort.client.net.security import salted_password
from kohort.errors import ErrorCode, KafkaError, error_for
from kohort.ids import AclOperation
from kohort.wire.cluster_admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from kohort.wire.security import (
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeUserScramCredentialsRequest,
)

# -- SCRAM credentials and quotas of users and clients, as coroutines over a `Cluster`

_SCRAM_NUMBERS: dict[str, int] = {name: number for number, name in enumerate(get_args(ScramMechanism), 1)}
_SCRAM_NAMES: dict[int, ScramMechanism] = dict(enumerate(get_args(ScramMechanism), 1))
_Entry: TypeAlias = DescribeClientQuotasResponse.EntryData | AlterClientQuotasResponse.EntryData
_SALT_BYTES = 16
_EXACT, _DEFAULT, _ANY_NAME = 0, 1, 2


async def describe_user_scram_credentials(
    cluster: Cluster, users: Iterable[str] | None = None, *, timeout_ms: float | None = None
) -> Results[str, dict[ScramMechanism, int]]:
    """Describe the SCRAM mechanisms that users have credentials for, with their iterations; None: of every user."""
    kind = DescribeUserScramCredentialsRequest
    named = None if users is None else [kind.UserName(name=name) for name in users]

    async def describe_user_scram_credentials_once() -> Results[str, dict[ScramMechanism, int]]:
        answer = await cluster.send(kind(users=named), ANY)
        if answer.error_code:
            raise error_of_result(answer, "describe SCRAM credentials")
        return Results.of(
            {
                result.user: error_of_result(result, f"user {result.user!r}")
                if result.error_code
                else {_SCRAM_NAMES[info.mechanism]: info.iterations for info in result.credential_infos}
                for result in answer.results
            }
        )

    return await cluster.retry_call(describe_user_scram_credentials_once, "describe SCRAM credentials", timeout_ms)


async def alter_user_scram_credentials(
    cluster: Cluster,
    upsertions: Iterable[ScramCredential] = (),
    deletions: Iterable[tuple[str, ScramMechanism]] = (),
    *,
    timeout_ms: float | None = None,
) -> Results[str, None]:
    """Set and delete SCRAM credentials, with outcomes by user. Passwords are salted here and are never sent.

    Kafka accepts one change per user in a call.

    Args:
        upsertions: User, password, mechanism and iterations.
        deletions: Pairs of user and mechanism.
    """
    kind = AlterUserScramCredentialsRequest
    upserted, deleted = [_upsertion(credential) for credential in upsertions], list(deletions)
    users = list(dict.fromkeys([*(entry.name for entry in upserted), *(user for user, _ in deleted)]))
    attempts = RequestAttempts[str]()

    async def send_alter_user_scram_credentials(names: Sequence[str]) -> dict[str, KafkaError | None]:
        request = kind(
            deletions=[
                kind.ScramCredentialDeletion(name=user, mechanism=_SCRAM_NUMBERS[mechanism])
                for user, mechanism in deleted
                if user in names
            ],
            upsertions=[entry for entry in upserted if entry.name in names],
        )
        answer = await cluster.send(request, CONTROLLER, leaving=attempts.sending(names))
        return {
            result.user: error_of_result(result, f"user {result.user!r}") if result.error_code else None
            for result in answer.results
        }

    return await send_to_controller(
        cluster, users, send_alter_user_scram_credentials, "alter SCRAM credentials", timeout_ms, attempts
    )


def _upsertion(credential: ScramCredential) -> AlterUserScramCredentialsRequest.ScramCredentialUpsertion:
    salt = secrets.token_bytes(_SALT_BYTES)
    return AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name=credential.user,
        mechanism=_SCRAM_NUMBERS[credential.mechanism],
        iterations=credential.iterations,
        salt=salt,
        salted_password=salted_password(credential.mechanism, credential.password, salt, credential.iterations),
    )


async def describe_client_quotas(
    cluster: Cluster,
    matching: Mapping[str, str | None] | None = None,
    *,
    strict: bool = False,
    timeout_ms: float | None = None,
) -> dict[QuotaEntity, dict[str, float]]:
    """Describe quotas by their entities.

    Args:
        matching: Kinds (`user`, `client-id`, `ip`) with a name, "*" for any name, or None for the default; None: all.
        strict: Leave out entities that have further kinds.
    """
    components = [_component(kind, name) for kind, name in (matching or {}).items()]
    request = DescribeClientQuotasRequest(components=components, strict=strict)

    async def describe_client_quotas_once() -> dict[QuotaEntity, dict[str, float]]:
        answer = await cluster.send(request, ANY)
        if answer.error_code:
            raise error_of_result(answer, "describe quotas")
        return {_entity(entry): {value.key: value.value for value in entry.values} for entry in answer.entries or ()}

    return await cluster.retry_call(describe_client_quotas_once, "describe quotas", timeout_ms)


def _component(kind: str, name: str | None) -> DescribeClientQuotasRequest.ComponentData:
    match_type = _DEFAULT if name is None else _ANY_NAME if name == "*" else _EXACT
    match = name if match_type == _EXACT else None
    return DescribeClientQuotasRequest.ComponentData(entity_type=kind, match_type=match_type, match=match)


async def alter_client_quotas(
    cluster: Cluster,
    changes: Mapping[QuotaEntity, Mapping[str, float | None]],
    *,
    validate_only: bool = False,
    timeout_ms: float | None = None,
) -> Results[QuotaEntity, None]:
    """Set quotas, and remove those given as None.

    Args:
        changes: Values by Kafka's names (`producer_byte_rate`, `consumer_byte_rate`, `request_percentage`,
            `controller_mutation_rate`) for each entity: a tuple of (kind, name) pairs; the name None is the default.
        validate_only: Only check whether that would succeed.
    """
    kind = AlterClientQuotasRequest
    sorted_changes = {tuple(sorted(entity)): values for entity, values in changes.items()}

    async def send_alter_client_quotas(wanted: Sequence[QuotaEntity]) -> dict[QuotaEntity, KafkaError | None]:
        entries = [
            kind.EntryData(
                entity=[kind.EntityData(entity_type=entity_type, entity_name=name) for entity_type, name in entity],
                ops=[
                    kind.OpData(key=key, value=0.0 if value is None else float(value), remove=value is None)
                    for key, value in sorted_changes[entity].items()
                ],
            )
            for entity in wanted
        ]
        answer = await cluster.send(kind(entries=entries, validate_only=validate_only), CONTROLLER)
        return {
            _entity(entry): error_of_result(entry, f"quota of {_entity(entry)}") if entry.error_code else None
            for entry in answer.entries
        }

    return await send_to_controller(cluster, list(sorted_changes), send_alter_client_quotas, "alter quotas", timeout_ms)


def _entity(entry: _Entry) -> QuotaEntity:
    return tuple(sorted((part.entity_type, part.entity_name) for part in entry.entity))


_Deleted: TypeAlias = DeleteAclsResponse.DeleteAclsFilterResult.DeleteAclsMatchingAcl


async def describe_acls(
    cluster: Cluster, matching: AclFilter | None = None, *, timeout_ms: float | None = None
) -> list[Acl]:
    """List the access rules that match a filter, sorted; None: all."""
    found = await _described_acls(cluster, matching or AclFilter(), timeout_ms)
    return sorted(_acl(resource, rule) for resource in found for rule in resource.acls)


async def list_enforceable_acls(cluster: Cluster, *, timeout_ms: float) -> list[Acl]:
    """List all access rules (ACLs), except those for operations or resource types that this version does not know.

    Such a rule, made for a later version of Kafka, decides about no request that this version can receive.
    """
    return [
        _acl(resource, rule)
        for resource in await _described_acls(cluster, AclFilter(), timeout_ms)
        for rule in resource.acls
        if rule.operation in _OPERATIONS and resource.resource_type in _RESOURCES
    ]


_OPERATIONS, _RESOURCES = {*AclOperation}, {*AclResource}


async def _described_acls(
    cluster: Cluster, matching: AclFilter, timeout_ms: float | None
) -> list[DescribeAclsResponse.DescribeAclsResource]:
    request = DescribeAclsRequest(
        resource_type_filter=matching.resource_type,
        resource_name_filter=matching.resource_name,
        pattern_type_filter=matching.pattern,
        principal_filter=matching.principal,
        host_filter=matching.host,
        operation=matching.operation,
        permission_type=matching.permission,
    )

    async def describe_acls_once() -> list[DescribeAclsResponse.DescribeAclsResource]:
        answer = await cluster.send(request, ANY)
        if answer.error_code:
            raise error_of_result(answer, "describe access rules")
        return answer.resources

    return await cluster.retry_call(describe_acls_once, "describe access rules", timeout_ms)


async def create_acls(cluster: Cluster, acls: Iterable[Acl], *, timeout_ms: float | None = None) -> Results[Acl, None]:
    """Add access rules; an existing rule is no error."""

    async def send_create_acls(wanted: Sequence[Acl]) -> dict[Acl, KafkaError | None]:
        creations = [
            CreateAclsRequest.AclCreation(
                resource_type=acl.resource_type,
                resource_name=acl.resource_name,
                resource_pattern_type=acl.pattern,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
            for acl in wanted
        ]
        answer = await cluster.send(CreateAclsRequest(creations=creations), CONTROLLER)
        return {
            acl: error_of_result(result, str(acl)) if result.error_code else None
            for acl, result in zip(wanted, answer.results, strict=True)
        }

    return await send_to_controller(cluster, list(acls), send_create_acls, "create access rules", timeout_ms)


async def delete_acls(
    cluster: Cluster, filters: Iterable[AclFilter], *, timeout_ms: float | None = None
) -> Results[AclFilter, list[Acl]]:
    """Delete the access rules that match filters; return the deleted ones for each filter.

    A rule that could not be deleted makes its filter an error; others that match the filter may be deleted.
    """

    async def send_delete_acls(wanted: Sequence[AclFilter]) -> dict[AclFilter, list[Acl] | KafkaError]:
        request = DeleteAclsRequest(
            filters=[
                DeleteAclsRequest.DeleteAclsFilter(
                    resource_type_filter=acl_filter.resource_type,
                    resource_name_filter=acl_filter.resource_name,
                    pattern_type_filter=acl_filter.pattern,
                    principal_filter=acl_filter.principal,
                    host_filter=acl_filter.host,
                    operation=acl_filter.operation,
                    permission_type=acl_filter.permission,
                )
                for acl_filter in wanted
            ]
        )
        answer = await cluster.send(request, CONTROLLER)
        results = zip(wanted, answer.filter_results, strict=True)
        return {acl_filter: _deleted(acl_filter, result) for acl_filter, result in results}

    return await send_to_controller(cluster, list(filters), send_delete_acls, "delete access rules", timeout_ms)


def _deleted(wanted: AclFilter, result: DeleteAclsResponse.DeleteAclsFilterResult) -> list[Acl] | KafkaError:
    if result.error_code:
        return error_of_result(result, str(wanted))
    for rule in result.matching_acls:
        if rule.error_code:
            return error_of_result(rule, str(_acl(rule, rule)))
    return sorted(_acl(rule, rule) for rule in result.matching_acls)


def _acl(
    resource: DescribeAclsResponse.DescribeAclsResource | _Deleted,
    rule: DescribeAclsResponse.DescribeAclsResource.AclDescription | _Deleted,
) -> Acl:
    """Convert a rule in a response to an `Acl`.

    Raises:
        KafkaError: UNSUPPORTED_VERSION: the rule has an operation or type of a later version of Kafka.
    """
    try:
        return Acl(
            rule.principal,
            AclOperation(rule.operation),
            AclResource(resource.resource_type),
            resource.resource_name,
            AclPattern(resource.pattern_type),
            rule.host,
            AclPermission(rule.permission_type),
        )
    except ValueError as error:
        raise error_for(
            ErrorCode.UNSUPPORTED_VERSION, f"a rule of {rule.principal} is of a later version of Kafka: {error}"
        ) from None
