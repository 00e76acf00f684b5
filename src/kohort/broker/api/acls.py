"""DescribeAcls, CreateAcls, DeleteAcls: the rules of the authorizer.

A broker without an authorizer has no rules and answers SECURITY_DISABLED. Versions: 2 adds prefixed patterns, 3 the
resource type USER.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from kohort.broker.acls import AclRule, AclRuleFilter, address_range
from kohort.broker.authorization import CLUSTER_NAME, Resource
from kohort.broker.config.acl_store import AclStore
from kohort.broker.dispatch import ApiHandler, api_handler
from kohort.broker.framing import BadFrame
from kohort.broker.node import Node
from kohort.broker.server.requests import Request
from kohort.errors import ErrorCode, InvalidInputError, KafkaError
from kohort.ids import AclOperation, AclPattern, AclPermission
from kohort.wire.security import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)

log = logging.getLogger("kohort.broker")

NO_AUTHORIZER = "No Authorizer is configured."
UNKNOWN, ANY = 0, 1
"""Numbers that every field of a rule shares."""
_RESOURCES = {ANY, *Resource}


def describe_acls(node: Node, request: Request[DescribeAclsRequest]) -> DescribeAclsResponse:
    """Answer DescribeAcls: return the ACL rules that a filter selects."""
    if node.acls is None:
        return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
    wanted = _filter(request, request.message)
    make = DescribeAclsResponse.DescribeAclsResource
    resources: dict[tuple[int, str, int], DescribeAclsResponse.DescribeAclsResource] = {}
    for rule in node.acls.index.matching_rules(wanted):
        key = (rule.resource_type, rule.name, rule.pattern)
        if key not in resources:
            resources[key] = make(resource_type=rule.resource_type, resource_name=rule.name, pattern_type=rule.pattern)
        resources[key].acls.append(
            make.AclDescription(
                principal=rule.principal, host=rule.host, operation=rule.operation, permission_type=rule.permission
            )
        )
    return DescribeAclsResponse(error_message="", resources=[*resources.values()])


def create_acls(node: Node, request: Request[CreateAclsRequest]) -> CreateAclsResponse:
    """Add rules; those that exist are no error. Valid rules are added even if others are rejected."""
    make = CreateAclsResponse.AclCreationResult
    creations = request.message.creations
    if node.acls is None:
        refused = make(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
        return CreateAclsResponse(results=[refused for _ in creations])
    for asked in creations:
        numbers = (asked.resource_type, asked.resource_pattern_type, asked.operation, asked.permission_type)
        _check_numbers(request, numbers)
        if ANY in numbers or asked.resource_pattern_type == AclPattern.MATCH:
            refused = make(error_code=ErrorCode.UNKNOWN_SERVER_ERROR, error_message=None)
            return CreateAclsResponse(results=[refused for _ in creations])
    results, rules = [], []
    for asked in creations:
        rule = AclRule(
            asked.resource_type,
            asked.resource_name,
            asked.resource_pattern_type,
            asked.principal,
            asked.host,
            asked.operation,
            asked.permission_type,
        )
        try:
            check_new_acl_rule(rule)
        except KafkaError as error:
            results.append(make(error_code=error.code, error_message=error.message))
        else:
            results.append(make(error_message=""))
            rules.append(rule)
    added = _change_results(node.acls, rules, [], results)
    for rule in added:
        log.info("ACL added by request %s: %s", request.name, acl_rule_text(rule))
    return CreateAclsResponse(results=results)


def _change_results(
    acls: AclStore, added: list[AclRule], removed: list[AclRule], results: list[CreateAclsResponse.AclCreationResult]
) -> list[AclRule]:
    """Add and remove ACL rules; return those of the added rules that did not exist before.

    If the store refuses the new rules, as too many or too long, each result of a valid rule gets that error.
    """
    try:
        return acls.change_rules(added, removed)
    except KafkaError as error:
        for result in results:
            if not result.error_code:
                result.error_code, result.error_message = error.code, error.message
        return []


def check_new_acl_rule(rule: AclRule) -> None:
    """Check the fields of a new ACL rule, as Kafka does.

    Raises:
        InvalidInputError: the rule can't be added; the text says why.
    """
    if rule.resource_type == Resource.CLUSTER and rule.name != CLUSTER_NAME:
        raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not rule.name:
        raise _invalid("Invalid empty resource name")
    if rule.resource_type not in {*Resource}:
        raise _invalid("Invalid resourceType UNKNOWN")
    if rule.pattern not in {*AclPattern}:
        raise _invalid("Invalid patternType UNKNOWN")
    if rule.operation not in {*AclOperation}:
        raise _invalid("Invalid operation UNKNOWN")
    if rule.permission not in {*AclPermission}:
        raise _invalid("Invalid permissionType UNKNOWN")
    if ":" not in rule.principal:
        raise _invalid(
            f"Could not parse principal from `{rule.principal}` (no colon is present separating the principal type "
            "from the principal name)"
        )
    if not rule.host:
        raise _invalid("Host pattern cannot be null or empty")
    try:
        address_range(rule.host)
    except ValueError as error:
        raise _invalid(f"Invalid CIDR notation '{rule.host}': {error}") from error


def _invalid(text: str) -> InvalidInputError:
    return InvalidInputError(text, ErrorCode.INVALID_REQUEST)


def delete_acls(node: Node, request: Request[DeleteAclsRequest]) -> DeleteAclsResponse:
    """Answer DeleteAcls: delete the ACL rules that filters select."""
    make = DeleteAclsResponse.DeleteAclsFilterResult
    filters = request.message.filters
    if node.acls is None:
        refused = make(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
        return DeleteAclsResponse(filter_results=[refused for _ in filters])
    results = []
    gone: dict[AclRule, None] = {}
    for acl_filter in [_filter(request, asked) for asked in filters]:
        result = make(error_message=None)
        results.append(result)
        if (problem := _unknown(acl_filter)) is not None:
            result.error_code, result.error_message = ErrorCode.INVALID_REQUEST, problem
            continue
        rules = node.acls.index.matching_rules(acl_filter)
        result.matching_acls = [_deleted(rule) for rule in rules]
        gone.update(dict.fromkeys(rules))
    node.acls.change_rules([], gone)
    for rule in gone:
        log.info("ACL deleted by request %s: %s", request.name, acl_rule_text(rule))
    return DeleteAclsResponse(filter_results=results)


def _unknown(wanted: AclRuleFilter) -> str | None:
    """Return the error text for an ACL filter with an unknown resource type, pattern, operation or permission.

    None: all are known.
    """
    if wanted.resource_type not in _RESOURCES or wanted.pattern not in {*AclPattern}:
        return "Unknown patternFilter."
    if wanted.operation not in {*AclOperation} or wanted.permission not in {*AclPermission}:
        return "Unknown entryFilter."
    return None


def _deleted(rule: AclRule) -> DeleteAclsResponse.DeleteAclsFilterResult.DeleteAclsMatchingAcl:
    return DeleteAclsResponse.DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=rule.resource_type,
        resource_name=rule.name,
        pattern_type=rule.pattern,
        principal=rule.principal,
        host=rule.host,
        operation=rule.operation,
        permission_type=rule.permission,
    )


def acl_rule_text(rule: AclRule) -> str:
    """Return a one-line description of an ACL rule for the log."""
    pattern = " (prefix)" if rule.pattern == AclPattern.PREFIXED else ""
    may = AclPermission(rule.permission).name
    operation, kind = AclOperation(rule.operation).name, Resource(rule.resource_type).name
    return f"{may} {rule.principal} from {rule.host}: {operation} {kind} {rule.name[:200]}{pattern}"


def _filter(
    request: Request[DescribeAclsRequest] | Request[DeleteAclsRequest],
    asked: DescribeAclsRequest | DeleteAclsRequest.DeleteAclsFilter,
) -> AclRuleFilter:
    numbers = (asked.resource_type_filter, asked.pattern_type_filter, asked.operation, asked.permission_type)
    _check_numbers(request, numbers)
    return AclRuleFilter(
        asked.resource_type_filter,
        asked.resource_name_filter,
        asked.pattern_type_filter,
        asked.principal_filter,
        asked.host_filter,
        asked.operation,
        asked.permission_type,
    )


def _check_numbers(request: Request[Any], numbers: Iterable[int]) -> None:
    """Reject a request in which a number is 0, "unknown": Kafka treats such a request as malformed.

    Raises:
        BadFrame: the connection must be closed.
    """
    if UNKNOWN in numbers:
        raise BadFrame(f"{request.name}: an unknown type, pattern, operation or permission of a rule")


HANDLERS: list[ApiHandler[Node]] = [
    api_handler(DescribeAclsRequest, DescribeAclsResponse, describe_acls),
    api_handler(CreateAclsRequest, CreateAclsResponse, create_acls),
    api_handler(DeleteAclsRequest, DeleteAclsResponse, delete_acls),
]
