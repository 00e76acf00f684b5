"""ApiVersions, DescribeCluster, FindCoordinator: what is spoken here, and who does what.

Versions: ApiVersions 3 brought the client's software name, 4 features whose lowest version is 0, 5 the cluster and the
node that the client means to reach; FindCoordinator 1 transactional ids, 4 several keys at once; DescribeCluster 1 the
endpoint type, 2 fenced brokers.
"""

from __future__ import annotations

from kohort.broker.api.permitted import ON_CLUSTER, permitted
from kohort.broker.endpoints import NOWHERE, Coordinated, Place
from kohort.broker.host import GroupHost
from kohort.broker.server.dispatch import Handled, handled
from kohort.broker.server.requests import Request
from kohort.errors import ErrorCode
from kohort.wire.discovery import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from kohort.wire.groups import FindCoordinatorRequest, FindCoordinatorResponse
from kohort.wire.message import Message

BROKERS, CONTROLLERS = 1, 2


def api_versions(host: GroupHost, request: Request[ApiVersionsRequest]) -> ApiVersionsResponse:
    """What is spoken here; the client's name is kept for what its kind bears."""
    message, client = request.message, request.client
    client.client_id = request.client_id or ""
    if request.version >= 5 and (message.cluster_id is None) != (message.node_id == -1):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    if request.version >= 3:
        name, version = message.client_software_name, message.client_software_version
        if not _plain(name) or not _plain(version):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        if message.cluster_id is not None and not host.places.is_here(message.cluster_id, message.node_id):
            return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
        client.introduce(name, version, message.client_process)
        client.lease_ms = host.lease_ms(client)
    response = ApiVersionsResponse(api_keys=[*host.api_keys])
    if request.version >= 3:
        response.lease_ms = client.lease_ms
        response.coordinator_id = host.coordinator_id if client.is_own else -1
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


def _plain(word: str) -> bool:
    """Source: KIP-511: letters, digits, dots and dashes, beginning and ending with a letter or digit."""
    return bool(word) and word[0].isalnum() and word[-1].isalnum() and all(c.isalnum() or c in ".-" for c in word)


def unknown_api_versions(host: GroupHost, request: Request[Message]) -> None:
    """A version we don't know is answered in the layout of version 0, which every client reads."""
    request.version = 0
    ours = [entry for entry in host.api_keys if entry.api_key == ApiVersionsResponse.API_KEY]
    request.reply(ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=ours))


def describe_cluster(host: GroupHost, request: Request[DescribeClusterRequest]) -> DescribeClusterResponse:
    """The cluster as AdminClient shows it."""
    message = request.message
    if request.version >= 1 and message.endpoint_type != BROKERS:
        known = message.endpoint_type == CONTROLLERS
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="this endpoint is a broker's",
        )
    make = DescribeClusterResponse.DescribeClusterBroker
    return DescribeClusterResponse(
        cluster_id=host.places.cluster_id,
        controller_id=host.places.controller_id,
        brokers=[
            make(broker_id=each.node_id, host=each.host, port=each.port, rack=each.rack)
            for each in host.places.nodes(request.connection)
        ],
        cluster_authorized_operations=permitted(message.include_cluster_authorized_operations, ON_CLUSTER),
    )


def find_coordinator(host: GroupHost, request: Request[FindCoordinatorRequest]) -> FindCoordinatorResponse:
    """Who coordinates groups or transactional ids."""
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


def _coordinator(host: GroupHost, request: Request[FindCoordinatorRequest], key: str) -> tuple[ErrorCode, Place]:
    try:
        kind = Coordinated(request.message.key_type)
    except ValueError:
        return ErrorCode.INVALID_REQUEST, NOWHERE
    found = host.places.coordinator(kind, key, request.connection)
    return (found, NOWHERE) if isinstance(found, ErrorCode) else (ErrorCode.NONE, found)


HANDLERS: list[Handled[GroupHost]] = [
    handled(ApiVersionsRequest, ApiVersionsResponse, api_versions),
    handled(DescribeClusterRequest, DescribeClusterResponse, describe_cluster),
    handled(FindCoordinatorRequest, FindCoordinatorResponse, find_coordinator),
]
