"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources.

Settings of topics, groups and the broker can be altered; of the broker's settings only those that are dynamic in Kafka
too. Versions: DescribeConfigs 1 adds sources and synonyms, 3 types and documentation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Protocol, TypeVar

from kohort.broker.api.config_entries import (
    ConfigDataType,
    DescribedConfig,
    broker_config_entries,
    check_config_spelling,
    cluster_config_entries,
    group_config_entries,
    topic_config_entries,
)
from kohort.broker.authorization import CLUSTER_NAME, Caller, Resource, is_allowed
from kohort.broker.config.live_settings import ALL, store_settings_of
from kohort.broker.dispatch import ApiHandler, api_handler
from kohort.broker.node import Node
from kohort.broker.security.settings import reloadable_tls_setting
from kohort.broker.security.store_changes import TlsStoreChanges
from kohort.broker.server.requests import Request
from kohort.errors import ErrorCode, InvalidInputError, KafkaError, NotAuthorizedError, NotFoundError
from kohort.ids import TOPIC_NAME_RULE, AclOperation, topic_name_allowed
from kohort.log import CatalogTopic, LogConfig, check_config_names
from kohort.settings.config import parse_value, settings
from kohort.wire.cluster_admin import ListConfigResourcesRequest, ListConfigResourcesResponse
from kohort.wire.discovery import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kohort.wire.message import Message

log = logging.getLogger("kohort.broker")


class ConfigResourceType(IntEnum):
    """The types of configuration resources, with the protocol's numbers."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class NamedResource(Protocol):
    """A topic, broker or group whose configuration a request describes or alters."""

    resource_type: int
    resource_name: str


_TYPES = {*ConfigResourceType}
B = TypeVar("B", bound=Message)
C = TypeVar("C", AlterConfigsRequest.AlterConfigsResource, IncrementalAlterConfigsRequest.AlterConfigsResource)
SET, DELETE, APPEND, SUBTRACT = range(4)
_Synonym = DescribeConfigsResponse.DescribeConfigsSynonym


def describe_configs(node: Node, request: Request[DescribeConfigsRequest]) -> DescribeConfigsResponse:
    """Describe the settings of topics, this broker, and groups."""
    message, version = request.message, request.version
    results = []
    distinct = {(resource.resource_type, resource.resource_name): resource for resource in message.resources}
    for resource in distinct.values():
        result = DescribeConfigsResponse.DescribeConfigsResult(
            resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=""
        )
        try:
            _check_right(node, request, AclOperation.DESCRIBE_CONFIGS, resource)
            found = _entries(node, resource)
            if resource.configuration_keys:
                named = {entry.name: entry for entry in found}
                found = [named[key] for key in dict.fromkeys(resource.configuration_keys) if key in named]
            result.configs = [
                _described(entry, version, message.include_synonyms, message.include_documentation) for entry in found
            ]
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message
        results.append(result)
    return DescribeConfigsResponse(results=results)


_GUARDED = {ConfigResourceType.TOPIC: Resource.TOPIC, ConfigResourceType.GROUP: Resource.GROUP}


def _check_right(node: Node, caller: Caller, operation: AclOperation, named: NamedResource) -> None:
    """Reject a resource whose settings the client may not describe or alter.

    Settings of brokers require the right on the cluster.
    """
    resource = _GUARDED.get(ConfigResourceType(named.resource_type)) if named.resource_type in _TYPES else None
    kind, name = (Resource.CLUSTER, CLUSTER_NAME) if resource is None else (resource, named.resource_name)
    if not is_allowed(node, caller, operation, kind, name):
        raise NotAuthorizedError(kind.refusal_error_code.text, kind.refusal_error_code)


def _entries(node: Node, resource: NamedResource) -> list[DescribedConfig]:
    kind, name = resource.resource_type, resource.resource_name
    if kind == ConfigResourceType.GROUP and not name:
        raise InvalidInputError("the group's name is empty")
    if kind == ConfigResourceType.TOPIC:
        if not name:
            raise InvalidInputError("the topic's name is empty", ErrorCode.INVALID_TOPIC_EXCEPTION)
        _existing_topic(node, name)
        return topic_config_entries(node, name)
    if kind in (ConfigResourceType.BROKER_LOGGER, ConfigResourceType.CLIENT_METRICS) and not name:
        raise InvalidInputError("the name of what is to be described is empty")
    if kind in (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER):
        node.live.altered_settings(name)
        if kind == ConfigResourceType.BROKER_LOGGER:
            return []
        return broker_config_entries(node) if name else cluster_config_entries(node)
    if kind == ConfigResourceType.GROUP:
        return group_config_entries(node, name)
    if kind == ConfigResourceType.CLIENT_METRICS:
        return []
    raise InvalidInputError(f"there are no configurations of kind {kind}")


def _described(
    entry: DescribedConfig, version: int, synonyms: bool, documentation: bool
) -> DescribeConfigsResponse.DescribeConfigsResult.DescribeConfigsResourceResult:
    described = DescribeConfigsResponse.DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=[_Synonym(name=synonym.name, value=synonym.value, source=synonym.source) for synonym in entry.synonyms]
        if synonyms
        else [],
    )
    if version >= 3:
        described.config_type = entry.type
        described.documentation = entry.why if documentation else None
    return described


def alter_configs(node: Node, request: Request[AlterConfigsRequest]) -> AlterConfigsResponse | None:
    """Replace all settings of resources.

    Return None when a key store or trust store has to be loaded first: the response follows after that.
    """

    def settings_after_change(resource: AlterConfigsRequest.AlterConfigsResource) -> dict[str, str]:
        configs = {}
        for config in resource.configs:
            if config.value is None:
                raise InvalidInputError(f"{config.name} is null")
            configs[config.name] = config.value
        _check_right(node, request, AclOperation.ALTER_CONFIGS, resource)
        return configs

    return _alter_resources(node, request, request.message.resources, settings_after_change, AlterConfigsResponse)


def incremental_alter_configs(
    node: Node, request: Request[IncrementalAlterConfigsRequest]
) -> IncrementalAlterConfigsResponse | None:
    """Set, delete, append to or subtract from single settings of resources.

    Return None as in `alter_configs`: the response follows after key or trust stores are loaded.
    """
    message = request.message

    def settings_after_change(resource: IncrementalAlterConfigsRequest.AlterConfigsResource) -> dict[str, str]:
        _check_right(node, request, AclOperation.ALTER_CONFIGS, resource)
        return _altered(node, resource)

    return _alter_resources(node, request, message.resources, settings_after_change, IncrementalAlterConfigsResponse)


def _alter_resources(
    node: Node,
    request: Request[AlterConfigsRequest] | Request[IncrementalAlterConfigsRequest],
    resources: Sequence[C],
    wanted: Callable[[C], dict[str, str]],
    make_response: Callable[..., B],
) -> B | None:
    """Alter the settings of resources. If key or trust stores are concerned, first load these in a thread.

    Return None in that case: the response is sent later.

    Args:
        node: the broker.
        request: the request that a response is sent to, if it comes later.
        resources: those of the request.
        wanted: returns all settings of a resource after the change.
        make_response: makes the response to the request.
    """

    def alter(stores: TlsStoreChanges) -> B:
        def alter_resource(resource: C) -> None:
            _store(node, resource, wanted(resource), request.message.validate_only, stores)

        return make_response(responses=[_changed(resource, alter_resource) for resource in resources])

    changes = TlsStoreChanges(node.listeners)
    before: dict[str, dict[str, str]] = node.live.altered_stores
    for resource in resources:
        if resource.resource_type == ConfigResourceType.BROKER and resource.resource_name != ALL:
            named = {found[0] for config in resource.configs if (found := reloadable_tls_setting(config.name))}
            try:
                after: dict[str, dict[str, str]] = store_settings_of(wanted(resource))
            except KafkaError:  # the change below is refused with it
                continue
            changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
            changes.add_store_settings({name: after.get(name, {}) for name in named | changed})
    if not changes.wanted:
        return alter(changes)

    def answer_later(loaded: asyncio.Future[None]) -> None:
        if not loaded.cancelled():
            if loaded.exception() is not None:
                log.error(
                    "unexpected error while loading the TLS key or trust stores of changed listener settings: the "
                    "change is refused, and the previous stores stay in use",
                    exc_info=loaded.exception(),
                )
            request.reply(alter(changes))

    node.loop.run_in_executor(None, changes.load_stores).add_done_callback(answer_later)
    return None


def _changed(resource: C, change: Callable[[C], None]) -> AlterConfigsResponse.AlterConfigsResourceResponse:
    error, text = ErrorCode.NONE, None
    try:
        change(resource)
    except KafkaError as refused:
        error, text = refused.code, refused.message
    except OSError as failure:  # others of the request may have been altered
        text = "the configs of %s could not be altered, answering KAFKA_STORAGE_ERROR: %s"
        log.error(text, resource.resource_name, failure)
        error, text = ErrorCode.KAFKA_STORAGE_ERROR, str(failure)
    return AlterConfigsResponse.AlterConfigsResourceResponse(
        error_code=error,
        error_message=text,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def _explicit(node: Node, resource: NamedResource) -> dict[str, str]:
    kind, name = resource.resource_type, resource.resource_name
    if kind in (ConfigResourceType.GROUP, ConfigResourceType.TOPIC) and not name:
        raise InvalidInputError("the name of what is to be altered is empty")
    if kind == ConfigResourceType.GROUP:
        return dict(node.group_settings.settings_of_group(name))
    if kind == ConfigResourceType.BROKER:
        return dict(node.live.altered_settings(name))
    if kind != ConfigResourceType.TOPIC:
        raise InvalidInputError("only settings of topics, groups and brokers can be altered")
    return dict(_existing_topic(node, name).configs)


def _existing_topic(node: Node, name: str) -> CatalogTopic:
    if not topic_name_allowed(name):
        raise InvalidInputError(f"a topic's name is {TOPIC_NAME_RULE}", ErrorCode.INVALID_TOPIC_EXCEPTION)
    topic = node.store.topics.get(name)
    if topic is None:
        raise NotFoundError(f"there is no topic {name}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return topic


def _altered(node: Node, resource: IncrementalAlterConfigsRequest.AlterConfigsResource) -> dict[str, str]:
    configs = _explicit(node, resource)
    if len({config.name for config in resource.configs}) < len(resource.configs):
        raise InvalidInputError("a setting is named more than once")
    of_broker = resource.resource_type == ConfigResourceType.BROKER
    entries = broker_config_entries(node) if of_broker else _entries(node, resource)
    in_effect = {entry.name: entry for entry in entries}
    for config in resource.configs:
        if of_broker:
            node.live.check_alterable_setting(resource.resource_name, config.name)
        if config.config_operation == DELETE:
            configs.pop(config.name, None)
            continue
        if config.value is None:
            raise InvalidInputError(f"{config.name} is null")
        if config.config_operation == SET:
            configs[config.name] = config.value
            continue
        if config.config_operation not in (APPEND, SUBTRACT):
            raise InvalidInputError(f"there is no operation {config.config_operation}")
        entry = in_effect.get(config.name)
        if entry is None or entry.type != ConfigDataType.LIST:
            raise InvalidInputError(f"{config.name} is no list", ErrorCode.INVALID_CONFIG)
        words = [word for word in configs.get(config.name, entry.value or "").split(",") if word]
        given = [word.strip() for word in config.value.rstrip(",").split(",")] if config.value != "," else []
        if config.config_operation == APPEND:
            words += [word for word in dict.fromkeys(given) if word not in words]
        else:
            words = [word for word in words if word not in given]
        configs[config.name] = ",".join(words)
    return configs


def _store(
    node: Node, resource: NamedResource, configs: dict[str, str], validate_only: bool, stores: TlsStoreChanges
) -> None:
    _explicit(node, resource)
    if resource.resource_type == ConfigResourceType.GROUP:
        node.group_settings.parse_settings(configs)
        if not validate_only:
            node.group_settings.set(resource.resource_name, configs)
        return
    if resource.resource_type == ConfigResourceType.BROKER:
        after, is_kohort_client = store_settings_of(configs), resource.resource_name != ALL
        node.live.check(resource.resource_name, configs)
        if is_kohort_client:
            stores.check_loaded_stores(node.live.altered_stores, after)
        if not validate_only:
            node.live.set(resource.resource_name, configs)
            if is_kohort_client:
                stores.use_stores(after)
        return
    check_config_names(configs)
    known = settings(LogConfig)
    check_config_spelling(configs)
    for key, value in configs.items():
        try:
            parse_value(known[key], value)
        except InvalidInputError as error:
            raise InvalidInputError(error.message, ErrorCode.INVALID_CONFIG) from error
    if not validate_only:
        node.store.set_configs(resource.resource_name, configs)


def list_config_resources(node: Node, request: Request[ListConfigResourcesRequest]) -> ListConfigResourcesResponse:
    """Answer ListConfigResources: name all topics, this broker, and the groups with settings of their own, by type."""
    types = request.message.resource_types if request.version >= 1 else [ConfigResourceType.CLIENT_METRICS]
    if not {*types} <= {*ConfigResourceType}:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    wanted = set(
        types
        or [
            ConfigResourceType.TOPIC,
            ConfigResourceType.BROKER,
            ConfigResourceType.BROKER_LOGGER,
            ConfigResourceType.GROUP,
        ]
    )
    names: list[tuple[ConfigResourceType, str]] = []
    if ConfigResourceType.TOPIC in wanted:
        names += [(ConfigResourceType.TOPIC, name) for name in node.store.topics]
    for kind in (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER):
        if kind in wanted:
            names.append((kind, str(node.id)))
    if ConfigResourceType.GROUP in wanted:
        names += [(ConfigResourceType.GROUP, name) for name in node.group_settings.group_names()]
    make = ListConfigResourcesResponse.ConfigResource
    return ListConfigResourcesResponse(
        config_resources=[
            make(resource_name=name, resource_type=kind) if request.version >= 1 else make(resource_name=name)
            for kind, name in names
        ]
    )


HANDLERS: list[ApiHandler[Node]] = [
    api_handler(DescribeConfigsRequest, DescribeConfigsResponse, describe_configs),
    api_handler(AlterConfigsRequest, AlterConfigsResponse, alter_configs),
    api_handler(IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse, incremental_alter_configs),
    api_handler(ListConfigResourcesRequest, ListConfigResourcesResponse, list_config_resources),
]
