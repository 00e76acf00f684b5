"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources.

Topics and groups can be altered; the broker's settings can be read. Versions: DescribeConfigs 1 names sources and
synonyms, 3 types and documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from kohort.broker.node import Node
from kohort.broker.request import Request
from kohort.broker.settings import BrokerConfig
from kohort.config import Setting, format_value, parse_value, settings
from kohort.errors import ErrorCode, InvalidInputError, KafkaError, NotFoundError
from kohort.groups.config import GroupConfig
from kohort.log import LogConfig
from kohort.wire.cluster import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kohort.wire.operations import ListConfigResourcesRequest, ListConfigResourcesResponse


class Resource(IntEnum):
    """What a configuration belongs to, by the numbers of the protocol."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Source(IntEnum):
    """Where a value comes from, by the numbers of the protocol."""

    DYNAMIC_TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_GROUP = 8


SET, DELETE, APPEND, SUBTRACT = range(4)
_TYPES = {bool: 1, str: 2, int: 5, float: 6}
_LIST_TYPE = 7
_LONG_TYPE = 5


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting of a resource as it is described."""

    name: str
    value: str | None
    source: Source
    read_only: bool
    setting: Setting


def topic_entries(node: Node, name: str, explicit: Mapping[str, str] | None = None) -> list[Entry]:
    """A topic's settings in effect; `explicit` are the ones set on it (those it has, when it exists)."""
    if explicit is None:
        explicit = node.store.topics[name].configs
    base = node.log_config
    entries = []
    for key, setting in settings(LogConfig).items():
        if key in explicit:
            value, source = explicit[key], Source.DYNAMIC_TOPIC
        else:
            chosen = getattr(base, setting.field)
            value = format_value(chosen)
            source = Source.DEFAULT if chosen == setting.default else Source.STATIC_BROKER
        entries.append(Entry(key, value, source, False, setting))
    return entries


def _broker_entries(node: Node) -> list[Entry]:
    entries = []
    for config in (node.config, node.group_config):
        cls: type = BrokerConfig if config is node.config else GroupConfig
        for key, setting in settings(cls).items():
            value = getattr(config, setting.field)
            source = Source.DEFAULT if value == setting.default else Source.STATIC_BROKER
            entries.append(Entry(key, None if value is None else format_value(value), source, True, setting))
    return entries


def _group_entries(node: Node, group: str) -> list[Entry]:
    explicit = node.group_settings.explicit(group)
    entries = []
    for key, setting in node.group_settings.known().items():
        if key in explicit:
            value, source = explicit[key], Source.DYNAMIC_GROUP
        else:
            value, source = format_value(getattr(node.group_config, setting.field)), Source.DEFAULT
        entries.append(Entry(key, value, source, False, setting))
    return entries


def describe_configs(node: Node, request: Request) -> DescribeConfigsResponse:
    """The settings of topics, this broker, and groups."""
    message, version = request.message, request.version
    results = []
    for resource in message.resources:
        result = DescribeConfigsResponse.DescribeConfigsResult(
            resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=None
        )
        try:
            keys = resource.configuration_keys
            wanted = None if keys is None else set(keys)
            result.configs = [
                _described(entry, version, message.include_synonyms, message.include_documentation)
                for entry in _entries(node, resource)
                if wanted is None or entry.name in wanted
            ]
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message
        results.append(result)
    return DescribeConfigsResponse(results=results)


def _entries(node: Node, resource: Any) -> list[Entry]:
    kind, name = resource.resource_type, resource.resource_name
    if kind == Resource.TOPIC:
        if name not in node.store.topics:
            raise NotFoundError(f"there is no topic {name}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return topic_entries(node, name)
    if kind in (Resource.BROKER, Resource.BROKER_LOGGER):
        if name not in ("", str(node.id)):
            raise InvalidInputError(f"this is broker {node.id}, not {name}")
        return _broker_entries(node) if kind == Resource.BROKER and name else []
    if kind == Resource.GROUP:
        return _group_entries(node, name)
    if kind == Resource.CLIENT_METRICS:
        return []
    raise InvalidInputError(f"there are no configurations of kind {kind}")


def _described(entry: Entry, version: int, synonyms: bool, documentation: bool) -> Any:
    described = DescribeConfigsResponse.DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        synonyms=[
            DescribeConfigsResponse.DescribeConfigsSynonym(name=entry.name, value=entry.value, source=entry.source)
        ]
        if synonyms
        else [],
    )
    if version >= 3:
        kind = entry.setting.type
        described.config_type = _TYPES.get(kind, _LIST_TYPE if "tuple" in str(kind) else _TYPES[str])
        described.documentation = entry.setting.knob.why if documentation else None
    return described


def alter_configs(node: Node, request: Request) -> AlterConfigsResponse:
    """Replace all settings of a resource."""
    message = request.message

    def change(resource: Any) -> None:
        configs = {}
        for each in resource.configs:
            if each.value is None:
                raise InvalidInputError(f"{each.name} is null", ErrorCode.INVALID_CONFIG)
            configs[each.name] = each.value
        _store(node, resource, configs, message.validate_only)

    make = AlterConfigsResponse.AlterConfigsResourceResponse
    return AlterConfigsResponse(responses=[_changed(each, change, make) for each in message.resources])


def incremental_alter_configs(node: Node, request: Request) -> IncrementalAlterConfigsResponse:
    """Set, delete, append to or subtract from single settings."""
    message = request.message

    def change(resource: Any) -> None:
        _store(node, resource, _altered(node, resource), message.validate_only)

    make = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
    return IncrementalAlterConfigsResponse(responses=[_changed(each, change, make) for each in message.resources])


def _changed(resource: Any, change: Callable[[Any], None], make: Any) -> Any:
    error, text = ErrorCode.NONE, None
    try:
        change(resource)
    except KafkaError as refused:
        error = ErrorCode.INVALID_CONFIG if refused.code == InvalidInputError.default_code else refused.code
        text = refused.message
    return make(
        error_code=error,
        error_message=text,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def _explicit(node: Node, resource: Any) -> dict[str, str]:
    kind, name = resource.resource_type, resource.resource_name
    if kind == Resource.GROUP:
        return dict(node.group_settings.explicit(name))
    if kind != Resource.TOPIC:
        raise InvalidInputError("only settings of topics and groups can be altered; a broker's are given at its start")
    topic = node.store.topics.get(name)
    if topic is None:
        raise NotFoundError(f"there is no topic {name}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return dict(topic.configs)


def _altered(node: Node, resource: Any) -> dict[str, str]:
    configs = _explicit(node, resource)
    in_effect = {entry.name: entry.value or "" for entry in _entries(node, resource)}
    for each in resource.configs:
        if each.config_operation == DELETE:
            configs.pop(each.name, None)
            continue
        if each.value is None:
            raise InvalidInputError(f"{each.name} is null", ErrorCode.INVALID_CONFIG)
        if each.config_operation == SET:
            configs[each.name] = each.value
            continue
        if each.config_operation not in (APPEND, SUBTRACT):
            raise InvalidInputError(f"there is no operation {each.config_operation}", ErrorCode.INVALID_REQUEST)
        words = [word for word in configs.get(each.name, in_effect.get(each.name, "")).split(",") if word]
        given = [word.strip() for word in each.value.split(",")]
        if each.config_operation == APPEND:
            words += [word for word in given if word not in words]
        else:
            words = [word for word in words if word not in given]
        configs[each.name] = ",".join(words)
    return configs


def _store(node: Node, resource: Any, configs: dict[str, str], validate_only: bool) -> None:
    _explicit(node, resource)
    if resource.resource_type == Resource.GROUP:
        node.group_settings.check(configs)
        if not validate_only:
            node.group_settings.set(resource.resource_name, configs)
        return
    known = settings(LogConfig)
    for key, value in configs.items():
        if key not in known:
            raise InvalidInputError(f"topics have no setting {key}", ErrorCode.INVALID_CONFIG)
        parse_value(known[key], value)
    if not validate_only:
        node.store.set_configs(resource.resource_name, configs)


def list_config_resources(node: Node, request: Request) -> ListConfigResourcesResponse:
    """The resources that have settings of their own."""
    types = request.message.resource_types if request.version >= 1 else [Resource.CLIENT_METRICS]
    wanted = set(types or [Resource.TOPIC, Resource.BROKER, Resource.BROKER_LOGGER, Resource.GROUP])
    names: list[tuple[Resource, str]] = []
    if Resource.TOPIC in wanted:
        names += [(Resource.TOPIC, name) for name in node.store.topics]
    for kind in (Resource.BROKER, Resource.BROKER_LOGGER):
        if kind in wanted:
            names.append((kind, str(node.id)))
    if Resource.GROUP in wanted:
        names += [(Resource.GROUP, name) for name in node.group_settings.names()]
    make = ListConfigResourcesResponse.ConfigResource
    return ListConfigResourcesResponse(
        config_resources=[
            make(resource_name=name, resource_type=kind) if request.version >= 1 else make(resource_name=name)
            for kind, name in names
        ]
    )


HANDLERS: dict[type, Callable[[Any, Any], Any]] = {
    DescribeConfigsRequest: describe_configs,
    AlterConfigsRequest: alter_configs,
    IncrementalAlterConfigsRequest: incremental_alter_configs,
    ListConfigResourcesRequest: list_config_resources,
}
