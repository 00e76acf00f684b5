"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources: settings of topics, groups and the broker."""

from __future__ import annotations

from typing import Any

from kohort.wire.cluster import AlterConfigsRequest, DescribeConfigsRequest, IncrementalAlterConfigsRequest
from kohort.wire.operations import ListConfigResourcesRequest
from tests.peers.alike.harness import Side, scenario
from tests.peers.alike.operations import without_words

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
NOT_HERE = ("remote.", "share.", "streams.", "consumer.assignment.")
"""Beginnings of settings for what there is not: tiered storage, share and streams groups, paced assignments."""


def describing(kind: int, name: str, keys: list[str] | None = None, **fields: Any) -> DescribeConfigsRequest:
    make = DescribeConfigsRequest.DescribeConfigsResource
    return DescribeConfigsRequest(
        resources=[make(resource_type=kind, resource_name=name, configuration_keys=keys)],
        **{"include_synonyms": True, **fields},
    )


def known_here(answer: Any) -> None:
    """Without texts, and without settings for what is not here."""
    without_words(answer)
    for result in answer.results:
        result.error_message = None
        result.configs = [each for each in result.configs if not each.name.startswith(NOT_HERE)]
        for each in result.configs:
            each.documentation = None


@scenario(DescribeConfigsRequest)
def describes(side: Side, version: int) -> None:
    topic = side.topic(retention_ms="1234", cleanup_policy="compact,delete")
    side.ask(describing(TOPIC, topic), version, keep=known_here)
    side.ask(describing(TOPIC, topic, ["retention.ms", "unheard"]), version, keep=known_here)
    side.ask(describing(TOPIC, topic, []), version, keep=known_here)
    side.ask(describing(TOPIC, topic, ["retention.ms"], include_synonyms=False), version, keep=known_here)
    side.ask(describing(TOPIC, side.name("missing")), version, keep=known_here)
    side.ask(describing(TOPIC, ""), version, keep=known_here)
    side.ask(describing(GROUP, side.name("group")), version, keep=known_here)
    side.ask(describing(GROUP, ""), version, keep=known_here)
    side.ask(describing(BROKER, ""), version, keep=known_here)
    side.ask(describing(BROKER, "7"), version, keep=known_here)
    side.ask(describing(BROKER, "x"), version, keep=known_here)
    side.ask(describing(BROKER, "1", ["min.insync.replicas", "auto.create.topics.enable"]), version, keep=known_here)
    side.ask(describing(77, "x"), version, keep=known_here)


def altering(kind: int, name: str, configs: dict[str, str | None], **fields: Any) -> AlterConfigsRequest:
    make, entry = AlterConfigsRequest.AlterConfigsResource, AlterConfigsRequest.AlterConfigsResource.AlterableConfig
    entries = [entry(name=key, value=value) for key, value in configs.items()]
    return AlterConfigsRequest(resources=[make(resource_type=kind, resource_name=name, configs=entries)], **fields)


def changing(kind: int, name: str, ops: list[tuple[str, int, str | None]], **fields: Any) -> Any:
    make = IncrementalAlterConfigsRequest.AlterConfigsResource
    entries = [make.AlterableConfig(name=key, config_operation=op, value=value) for key, op, value in ops]
    return IncrementalAlterConfigsRequest(
        resources=[make(resource_type=kind, resource_name=name, configs=entries)], **fields
    )


def words_apart(answer: Any) -> None:
    without_words(answer)
    for each in answer.responses:
        each.error_message = each.error_message or None


@scenario(AlterConfigsRequest)
def replaces(side: Side, version: int) -> None:
    topic, group = side.topic(retention_ms="1234"), side.name("group")
    for request in (
        altering(TOPIC, topic, {"retention.ms": "99", "segment.bytes": "2000000"}),
        altering(TOPIC, topic, {"segment.bytes": "3000000"}, validate_only=True),
        altering(TOPIC, topic, {"unheard": "1"}),
        altering(TOPIC, topic, {"retention.ms": "soon"}),
        altering(TOPIC, topic, {"retention.ms": None}),
        altering(TOPIC, topic, {}),
        altering(TOPIC, side.name("missing"), {"retention.ms": "1"}),
        altering(GROUP, group, {"consumer.session.timeout.ms": "50000"}),
        altering(GROUP, group, {"consumer.session.timeout.ms": "1"}),
        altering(GROUP, group, {"unheard": "1"}),
        altering(GROUP, "", {"consumer.session.timeout.ms": "50000"}),
        altering(BROKER, "1", {"node.id": "9"}),
        altering(77, "x", {"a": "b"}),
    ):
        side.ask(request, version, keep=words_apart)
    side.ask(describing(GROUP, group), 4, keep=known_here)
    side.ask(altering(GROUP, group, {}), version, keep=words_apart)


@scenario(IncrementalAlterConfigsRequest)
def changes(side: Side, version: int) -> None:
    topic, group = side.topic(retention_ms="1234"), side.name("group")
    for request in (
        changing(TOPIC, topic, [("retention.ms", SET, "99"), ("segment.bytes", SET, "2000000")]),
        changing(TOPIC, topic, [("segment.bytes", SET, "3000000")], validate_only=True),
        changing(TOPIC, topic, [("cleanup.policy", APPEND, "compact")]),
        changing(TOPIC, topic, [("cleanup.policy", APPEND, "compact")]),
        changing(TOPIC, topic, [("cleanup.policy", SUBTRACT, "delete")]),
        changing(TOPIC, topic, [("cleanup.policy", APPEND, "unheard")]),
        changing(TOPIC, topic, [("retention.ms", APPEND, "1")]),
        changing(TOPIC, topic, [("retention.ms", DELETE, None)]),
        changing(TOPIC, topic, [("retention.ms", DELETE, "1")]),
        changing(TOPIC, topic, [("unheard", DELETE, None)]),
        changing(TOPIC, topic, [("unheard", SET, "1")]),
        changing(TOPIC, topic, [("retention.ms", SET, None)]),
        changing(TOPIC, topic, [("retention.ms", SET, "soon")]),
        changing(TOPIC, topic, [("retention.ms", SET, "-2")]),
        changing(TOPIC, topic, [("retention.ms", SET, "1"), ("retention.ms", SET, "2")]),
        changing(TOPIC, topic, [("", SET, "1")]),
        changing(TOPIC, topic, []),
        changing(TOPIC, side.name("missing"), [("retention.ms", SET, "1")]),
        changing(TOPIC, "", [("retention.ms", SET, "1")]),
        changing(GROUP, group, [("consumer.heartbeat.interval.ms", SET, "6000")]),
        changing(GROUP, group, [("consumer.heartbeat.interval.ms", SET, "1")]),
        changing(GROUP, group, [("unheard", SET, "1")]),
        changing(BROKER, "1", [("node.id", SET, "9")]),
        changing(BROKER, "7", [("log.retention.ms", SET, "9")]),
        changing(77, "x", [("a", SET, "b")]),
    ):
        side.ask(request, version, keep=words_apart)
    keys = ["retention.ms", "segment.bytes", "cleanup.policy"]

    def settled(answer: Any) -> bool:
        return "compact" in {each.value for each in answer.results[0].configs}

    side.until(lambda: describing(TOPIC, topic, keys), 4, settled)
    side.ask(describing(GROUP, group), 4, keep=known_here)
    side.ask(changing(GROUP, group, [("consumer.heartbeat.interval.ms", DELETE, None)]), version, keep=words_apart)


@scenario(1)
def lists(side: Side, version: int) -> None:
    topic, group = side.topic(), side.name("group")
    side.ask(changing(GROUP, group, [("consumer.heartbeat.interval.ms", SET, "6000")]), 1)

    def of_this_run(answer: Any) -> None:
        answer.config_resources = sorted(
            (each for each in answer.config_resources if each.resource_name in (topic, group, "1")),
            key=lambda each: (each.resource_type, each.resource_name),
        )

    for types in ([TOPIC], [GROUP], [BROKER], [LOGGER], [TOPIC, GROUP], [], [77]):
        side.ask(ListConfigResourcesRequest(resource_types=types), version, keep=of_this_run)
    side.ask(changing(GROUP, group, [("consumer.heartbeat.interval.ms", DELETE, None)]), 1)
