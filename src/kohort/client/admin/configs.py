"""Configurations of topics, brokers and groups, as coroutines over a `Cluster`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from kohort.client.admin.routing import retry_each
from kohort.client.admin.values import ConfigEntry, ConfigResource, ResourceType, Results
from kohort.client.net.cluster import ANY, BrokerById, Cluster, Target
from kohort.errors import ErrorCode, KafkaError, RetriableError, error_for
from kohort.wire.discovery import (
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
)

V = TypeVar("V")
_Result: TypeAlias = DescribeConfigsResponse.DescribeConfigsResult | AlterConfigsResponse.AlterConfigsResourceResponse

_SET, _DELETE = 0, 1
_SOURCE_DEFAULT = 5


async def describe_configs(
    cluster: Cluster, resources: Iterable[ConfigResource], *, timeout_ms: float | None = None
) -> Results[ConfigResource, dict[str, ConfigEntry]]:
    """Describe the properties of topics, brokers and groups, by name."""

    async def send_describe_configs(
        target: Target, wanted: list[ConfigResource]
    ) -> dict[ConfigResource, dict[str, ConfigEntry] | KafkaError]:
        message = DescribeConfigsRequest(
            resources=[
                DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=int(resource.type), resource_name=resource.name, configuration_keys=None
                )
                for resource in wanted
            ]
        )
        answer = await cluster.send(message, target, timeout_ms=timeout_ms)
        return {_resource(result): _entries(result) for result in answer.results}

    return await _ask_config_brokers(cluster, list(resources), send_describe_configs, "describe configs", timeout_ms)


async def incremental_alter_configs(
    cluster: Cluster,
    changes: Mapping[ConfigResource, Mapping[str, str | None]],
    *,
    validate_only: bool = False,
    timeout_ms: float | None = None,
) -> Results[ConfigResource, None]:
    """Set the given properties, and reset those given as None to their default; the others stay."""

    def config_entries(
        resource: ConfigResource,
    ) -> list[IncrementalAlterConfigsRequest.AlterConfigsResource.AlterableConfig]:
        return [
            IncrementalAlterConfigsRequest.AlterableConfig(
                name=name, config_operation=_DELETE if value is None else _SET, value=value
            )
            for name, value in sorted(changes[resource].items())
        ]

    async def send_incremental_alter_configs(
        target: Target, wanted: list[ConfigResource]
    ) -> dict[ConfigResource, KafkaError | None]:
        message = IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsRequest.AlterConfigsResource(
                    resource_type=int(resource.type), resource_name=resource.name, configs=config_entries(resource)
                )
                for resource in wanted
            ],
            validate_only=validate_only,
        )
        answer = await cluster.send(message, target, timeout_ms=timeout_ms)
        return {
            _resource(result): _error_of_result(result) if result.error_code else None for result in answer.responses
        }

    return await _ask_config_brokers(
        cluster, list(changes), send_incremental_alter_configs, "alter configs", timeout_ms
    )


async def _ask_config_brokers(
    cluster: Cluster,
    resources: Sequence[ConfigResource],
    ask: Callable[[Target, list[ConfigResource]], Awaitable[Mapping[ConfigResource, V | KafkaError]]],
    what: str,
    timeout_ms: float | None,
) -> Results[ConfigResource, V]:
    """Describe or alter configurations: ask each broker about its own, and any broker about topics and groups.

    Resources whose outcome is a retriable error are asked for again, except topics, until the time is over.
    """
    done: dict[ConfigResource, V | KafkaError] = {}

    async def ask_config_brokers_once() -> None:
        left = {resource: _node_of(resource) for resource in resources if resource not in done}
        nodes = {node for node in left.values() if isinstance(node, int)}
        if not nodes <= cluster.metadata.brokers.keys():
            await cluster.refresh_metadata(timeout_ms)
        places: dict[Target, list[ConfigResource]] = {ANY: []}
        for resource, node in left.items():
            if isinstance(node, KafkaError):
                done[resource] = node
            elif node is not None and node not in cluster.metadata.brokers:
                done[resource] = error_for(ErrorCode.BROKER_NOT_AVAILABLE, f"the cluster has no broker {node} now")
            else:
                places.setdefault(ANY if node is None else BrokerById(node), []).append(resource)
        again: KafkaError | None = None
        for place, wanted in places.items():
            try:
                outcomes = await ask(place, wanted) if wanted else {}
            except RetriableError as error:
                again = error
                continue
            for resource, outcome in outcomes.items():
                if isinstance(outcome, KafkaError) and outcome.code.retriable and resource.type != ResourceType.TOPIC:
                    again = outcome
                else:
                    done[resource] = outcome
        if again is not None:
            raise again

    await retry_each(cluster, ask_config_brokers_once, resources, done, what, timeout_ms)
    return Results.of(done)


def _node_of(resource: ConfigResource) -> int | KafkaError | None:
    """Return the broker to ask about a resource, since a broker knows its own settings; None: any broker.

    An error: the resource is a broker, and its name is no node id.
    """
    if resource.type not in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) or not resource.name:
        return None
    try:
        return int(resource.name)
    except ValueError:
        return error_for(ErrorCode.INVALID_REQUEST, f"a broker is named by its node id, and not {resource.name!r}")


def _resource(result: _Result) -> ConfigResource:
    return ConfigResource(ResourceType(result.resource_type), result.resource_name)


def _error_of_result(result: _Result) -> KafkaError:
    resource = _resource(result)
    return error_for(result.error_code, result.error_message or f"{resource.type.name.lower()} {resource.name!r}")


def _entries(result: DescribeConfigsResponse.DescribeConfigsResult) -> dict[str, ConfigEntry] | KafkaError:
    if result.error_code:
        return _error_of_result(result)
    return {
        entry.name: ConfigEntry(
            entry.name, entry.value, entry.config_source == _SOURCE_DEFAULT, entry.read_only, entry.is_sensitive
        )
        for entry in result.configs
    }
