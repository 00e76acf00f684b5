"""ApiVersions, DescribeCluster, FindCoordinator: the supported APIs, the cluster's nodes and its coordinators.

Versions: ApiVersions 3 adds the client's software name, 4 features with lowest version 0, 5 the cluster and node that
the client expects. FindCoordinator 1 adds transactional ids, 4 several keys. DescribeCluster 1 adds the endpoint type,
2 fenced brokers.
"""

from __future__ import annotations

from kohort.broker.authorization import Resource, is_allowed, permitted_on_cluster
from kohort.broker.dispatch import ApiHandler, api_handler
from kohort.broker.endpoints import NOWHERE, CoordinatorKind, Endpoint
from kohort.broker.host import GroupHost
from kohort.broker.server.requests import Request
from kohort.errors import ErrorCode
from kohort.ids import AclOperation
from kohort.wire.discovery import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from kohort.wire.groups import FindCoordinatorRequest, FindCoordinatorResponse
from kohort.wire.message import Message

BROKERS, CONTROLLERS = 1, 2
_RESOURCES = {CoordinatorKind.GROUP: Resource.GROUP, CoordinatorKind.TRANSACTION: Resource.TRANSACTIONAL_ID}


def api_versions(host: GroupHost, request: Request[ApiVersionsRequest]) -> ApiVersionsResponse:
    """Return the supported APIs and features, and record the client's software, which determines its quirks."""
    message, client = request.message, request.client
    client.client_id = request.client_id or ""
    if request.version >= 5 and (message.cluster_id is None) != (message.node_id == -1):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    if request.version >= 3:
        name, version = message.client_software_name, message.client_software_version
        if not _check_software_word(name) or not _check_software_word(version):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        if message.cluster_id is not None and not host.endpoints.is_this_node(message.cluster_id, message.node_id):
            return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
        client.set_software(name, version, message.client_process)
        client.lease_ms = host.lease_ms(client)
    response = ApiVersionsResponse(api_keys=[*host.api_keys])
    if request.version >= 3:
        response.lease_ms = client.lease_ms
        response.coordinator_id = host.coordinator_id if client.is_kohort_client else -1
        response.finalized_features_epoch = 1
        response.supported_features = [
            ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=low, max_version=high)
            for name, (low, high) in host.features.items()
            if request.version >= 4 or low > 0  # a lowest version of 0 breaks old Java clients
        ]
        response.finalized_features = [
            ApiVersionsResponse.FinalizedFeatureKey(name=name, min_version_level=high, max_version_level=high)
            for name, (_, high) in host.features.items()
            if high > 0
        ]
    return response


def _check_software_word(word: str) -> bool:
    """Check a software name or version.

    Source: KIP-511: letters, digits, dots and dashes, beginning and ending with a letter or digit.
    """
    return bool(word) and word[0].isalnum() and word[-1].isalnum() and all(c.isalnum() or c in ".-" for c in word)


def unknown_api_versions(host: GroupHost, request: Request[Message]) -> None:
    """Answer an unknown version of ApiVersions in the layout of version 0, which every client can decode."""
    request.version = 0
    ours = [entry for entry in host.api_keys if entry.api_key == ApiVersionsResponse.API_KEY]
    request.reply(ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=ours))


def describe_cluster(host: GroupHost, request: Request[DescribeClusterRequest]) -> DescribeClusterResponse:
    """Describe the cluster and its nodes."""
    message = request.message
    if request.version >= 1 and message.endpoint_type != BROKERS:
        known = message.endpoint_type == CONTROLLERS
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="this endpoint is a broker's",
        )
    make = DescribeClusterResponse.DescribeClusterBroker
    return DescribeClusterResponse(
        cluster_id=host.endpoints.cluster_id,
        controller_id=host.endpoints.controller_id,
        brokers=[
            make(broker_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
            for node in host.endpoints.nodes(request.connection)
        ],
        cluster_authorized_operations=permitted_on_cluster(
            message.include_cluster_authorized_operations, host, request
        ),
    )


def find_coordinator(host: GroupHost, request: Request[FindCoordinatorRequest]) -> FindCoordinatorResponse:
    """Return the coordinators of groups or transactional ids."""
    message = request.message
    if request.version < 4:
        error, place = _coordinator(host, request, message.key)
        response = FindCoordinatorResponse(error_code=error, node_id=place.node_id, host=place.host, port=place.port)
        if request.version >= 1:
            response.error_message = error.text if error else error.name
        return response
    make = FindCoordinatorResponse.Coordinator
    coordinators = []
    for key in message.coordinator_keys:
        error, place = _coordinator(host, request, key)
        coordinators.append(
            make(
                key=key,
                node_id=place.node_id,
                host=place.host,
                port=place.port,
                error_code=error,
                error_message=error.text if error else "",
            )
        )
    return FindCoordinatorResponse(coordinators=coordinators)


def _coordinator(host: GroupHost, request: Request[FindCoordinatorRequest], key: str) -> tuple[ErrorCode, Endpoint]:
    try:
        kind = CoordinatorKind(request.message.key_type)
    except ValueError:
        return ErrorCode.INVALID_REQUEST, NOWHERE
    resource = _RESOURCES.get(kind)
    if resource is not None and not is_allowed(host, request, AclOperation.DESCRIBE, resource, key):
        return resource.refusal_error_code, NOWHERE
    found = host.endpoints.coordinator(kind, key, request.connection)
    return (found, NOWHERE) if isinstance(found, ErrorCode) else (ErrorCode.NONE, found)


HANDLERS: list[ApiHandler[GroupHost]] = [
    api_handler(ApiVersionsRequest, ApiVersionsResponse, api_versions),
    api_handler(DescribeClusterRequest, DescribeClusterResponse, describe_cluster),
    api_handler(FindCoordinatorRequest, FindCoordinatorResponse, find_coordinator),
]
