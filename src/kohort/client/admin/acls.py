"""Access rules, as coroutines over a `Cluster`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from kohort.client.admin.places import at_controller, refused
from kohort.client.admin.values import (
    Acl,
    AclFilter,
    AclPattern,
    AclPermission,
    AclResource,
    Results,
)
from kohort.client.net.cluster import ANY, CONTROLLER, Cluster
from kohort.errors import KafkaError
from kohort.ids import AclOperation
from kohort.wire.security import (
    CreateAclsRequest,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)

_Deleted: TypeAlias = DeleteAclsResponse.DeleteAclsFilterResult.DeleteAclsMatchingAcl


async def describe_acls(
    cluster: Cluster, matching: AclFilter | None = None, *, timeout_ms: float | None = None
) -> list[Acl]:
    """The access rules that match a filter, sorted; None: all."""
    matching = matching or AclFilter()
    request = DescribeAclsRequest(
        resource_type_filter=matching.resource_type,
        resource_name_filter=matching.resource_name,
        pattern_type_filter=matching.pattern,
        principal_filter=matching.principal,
        host_filter=matching.host,
        operation=matching.operation,
        permission_type=matching.permission,
    )

    async def attempt() -> list[Acl]:
        answer = await cluster.send(request, ANY)
        if answer.error_code:
            raise refused(answer, "describe access rules")
        return sorted(_acl(resource, rule) for resource in answer.resources for rule in resource.acls)

    return await cluster.retrying(attempt, "describe access rules", timeout_ms)


async def create_acls(cluster: Cluster, acls: Iterable[Acl], *, timeout_ms: float | None = None) -> Results[Acl, None]:
    """Adds access rules; one that is there already is no error."""

    async def ask(wanted: Sequence[Acl]) -> dict[Acl, KafkaError | None]:
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
            acl: refused(result, str(acl)) if result.error_code else None
            for acl, result in zip(wanted, answer.results, strict=True)
        }

    return await at_controller(cluster, list(acls), ask, "create access rules", timeout_ms)


async def delete_acls(
    cluster: Cluster, filters: Iterable[AclFilter], *, timeout_ms: float | None = None
) -> Results[AclFilter, list[Acl]]:
    """Deletes the access rules that match filters; gives those deleted, for each filter.

    A rule that could not be deleted makes its filter an error; others that match the filter may be gone.
    """

    async def ask(wanted: Sequence[AclFilter]) -> dict[AclFilter, list[Acl] | KafkaError]:
        request = DeleteAclsRequest(
            filters=[
                DeleteAclsRequest.DeleteAclsFilter(
                    resource_type_filter=each.resource_type,
                    resource_name_filter=each.resource_name,
                    pattern_type_filter=each.pattern,
                    principal_filter=each.principal,
                    host_filter=each.host,
                    operation=each.operation,
                    permission_type=each.permission,
                )
                for each in wanted
            ]
        )
        answer = await cluster.send(request, CONTROLLER)
        return {each: _deleted(each, result) for each, result in zip(wanted, answer.filter_results, strict=True)}

    return await at_controller(cluster, list(filters), ask, "delete access rules", timeout_ms)


def _deleted(wanted: AclFilter, result: DeleteAclsResponse.DeleteAclsFilterResult) -> list[Acl] | KafkaError:
    if result.error_code:
        return refused(result, str(wanted))
    for rule in result.matching_acls:
        if rule.error_code:
            return refused(rule, str(_acl(rule, rule)))
    return sorted(_acl(rule, rule) for rule in result.matching_acls)


def _acl(
    resource: DescribeAclsResponse.DescribeAclsResource | _Deleted,
    rule: DescribeAclsResponse.DescribeAclsResource.AclDescription | _Deleted,
) -> Acl:
    return Acl(
        rule.principal,
        AclOperation(rule.operation),
        AclResource(resource.resource_type),
        resource.resource_name,
        AclPattern(resource.pattern_type),
        rule.host,
        AclPermission(rule.permission_type),
    )
