"""Settings of topics, groups and the broker.

DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kohort.broker.config.live_settings import alterable_settings
from kohort.wire.cluster_admin import ListConfigResourcesRequest
from kohort.wire.discovery import AlterConfigsRequest, DescribeConfigsRequest, IncrementalAlterConfigsRequest
from tests.peers.alike.harness import Side, scenario
from tests.peers.alike.operations import without_words

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
NOT_HERE = ("remote.", "share.", "streams.", "consumer.assignment.", "errors.deadletterqueue.")
"""Beginnings of settings for what there is not: tiered storage, share groups with their dead letters, streams groups,
paced assignments."""

OTHERWISE = {"max.connections", "log.cleaner.dedupe.buffer.size", "log.cleaner.io.max.bytes.per.second"}
"""Settings with a limit of our own, another value in the test's Apache Kafka, and a number that Java writes
otherwise."""
SAME_OF_BROKERS = sorted(alterable_settings().keys() - OTHERWISE)


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
        result.configs = [config for config in result.configs if not config.name.startswith(NOT_HERE)]
        for config in result.configs:
            config.documentation = None


@scenario(DescribeConfigsRequest)
def describes(side: Side, version: int) -> None:
    topic = side.topic(retention_ms="1234", cleanup_policy="compact,delete")
    side.ask(describing(TOPIC, topic), version, keep=known_here)
    side.ask(describing(TOPIC, topic, ["retention.ms", "unheard"]), version, keep=known_here)
    side.ask(describing(TOPIC, topic, []), version, keep=known_here)
    side.ask(describing(TOPIC, topic, ["retention.ms"], include_synonyms=False), version, keep=known_here)
    side.ask(describing(TOPIC, side.name("missing")), version, keep=known_here)
    side.ask(describing(TOPIC, ""), version, keep=known_here)
    side.ask(describing(TOPIC, "bad/name"), version, keep=known_here)
    side.ask(describing(LOGGER, ""), version, keep=known_here)
    side.ask(describing(METRICS, ""), version, keep=known_here)
    side.ask(describing(GROUP, side.name("group")), version, keep=known_here)
    side.ask(describing(GROUP, ""), version, keep=known_here)
    side.ask(describing(BROKER, ""), version, keep=known_here)
    side.ask(describing(BROKER, "7"), version, keep=known_here)
    side.ask(describing(BROKER, "x"), version, keep=known_here)
    side.ask(describing(BROKER, "1", ["min.insync.replicas", "auto.create.topics.enable"]), version, keep=known_here)
    side.ask(describing(BROKER, "1", [*SAME_OF_BROKERS]), version, keep=known_here)
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
    for response in answer.responses:
        response.error_message = response.error_message or None


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
        altering(TOPIC, "bad/name", {"retention.ms": "1"}),
        altering(TOPIC, topic, {"cleanup.policy": "delete,"}),
        altering(TOPIC, topic, {"retention.ms": "1_0"}),
        altering(GROUP, group, {"consumer.session.timeout.ms": "50000"}),
        altering(GROUP, group, {"consumer.session.timeout.ms": "1"}),
        altering(GROUP, group, {"unheard": "1"}),
        altering(GROUP, "", {"consumer.session.timeout.ms": "50000"}),
        altering(BROKER, "1", {"node.id": "9"}),
        altering(77, "x", {"a": "b"}),
    ):
        side.ask(request, version, keep=words_apart)
    side.until(lambda: describing(GROUP, group), 4, has("50000"), keep=known_here)
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
        changing(TOPIC, topic, [("cleanup.policy", APPEND, "")]),
        changing(TOPIC, topic, [("cleanup.policy", APPEND, "compact,")]),
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
        changing(TOPIC, "bad/name", [("retention.ms", SET, "1")]),
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
        return "compact" in {item.value for item in answer.results[0].configs}

    side.until(lambda: describing(TOPIC, topic, keys), 4, settled)
    side.until(lambda: describing(GROUP, group), 4, has("6000"), keep=known_here)
    side.ask(changing(GROUP, group, [("consumer.heartbeat.interval.ms", DELETE, None)]), version, keep=words_apart)


@scenario(1)
def lists(side: Side, version: int) -> None:
    topic, group = side.topic(), side.name("group")
    side.ask(changing(GROUP, group, [("consumer.heartbeat.interval.ms", SET, "6000")]), 1)

    def of_this_run(answer: Any) -> None:
        answer.config_resources = sorted(
            (
                config_resource
                for config_resource in answer.config_resources
                if config_resource.resource_name in (topic, group, "1")
            ),
            key=lambda each: (each.resource_type, each.resource_name),
        )

    for types in ([TOPIC], [GROUP], [BROKER], [LOGGER], [TOPIC, GROUP], [], [77]):
        side.ask(ListConfigResourcesRequest(resource_types=types), version, keep=of_this_run)
    side.ask(changing(GROUP, group, [("consumer.heartbeat.interval.ms", DELETE, None)]), 1)


ALTERED = (
    "log.flush.interval.messages",
    "log.retention.ms",
    "log.cleanup.policy",
    "max.connections.per.ip",
    "num.io.threads",
)


@scenario(IncrementalAlterConfigsRequest)
def changes_of_the_broker(side: Side, version: int) -> None:
    topic = side.topic()
    for name in ("1", ""):
        for request in (
            changing(BROKER, name, [("log.flush.interval.messages", SET, "1234"), ("num.io.threads", SET, "9")]),
            changing(BROKER, name, [("log.retention.ms", SET, "86400001")]),
            changing(BROKER, name, [("log.cleanup.policy", APPEND, "compact")]),
            changing(BROKER, name, [("log.cleanup.policy", SUBTRACT, "delete")]),
            changing(BROKER, name, [("log.cleanup.policy", SET, "sometimes")]),
            changing(BROKER, name, [("log.retention.ms", APPEND, "1")]),
            changing(BROKER, name, [("log.retention.ms", SET, "many")]),
            changing(BROKER, name, [("log.retention.ms", SET, None)]),
            changing(BROKER, name, [("message.max.bytes", SET, "-5")]),
            changing(BROKER, name, [("max.connections.per.ip", SET, "100")], validate_only=True),
            changing(BROKER, name, [("num.partitions", SET, "3")]),
            changing(BROKER, name, [("num.partitions", DELETE, None)]),
            changing(BROKER, name, [("offsets.retention.minutes", SET, "3")]),
            changing(BROKER, name, [("log.retention.hours", SET, "3")]),
            changing(BROKER, name, [("sasl.kerberos.min.time.before.relogin", SET, "58000")], validate_only=True),
            changing(BROKER, name, [("log.retention.ms", SET, "1"), ("log.retention.ms", SET, "2")]),
            changing(BROKER, name, [("unheard", DELETE, None)]),
            changing(BROKER, name, []),
        ):
            side.ask(request, version, keep=words_apart)
        with side.on_purpose("A setting of the broker that it does not know is refused"):
            side.ask(changing(BROKER, name, [("unheard", SET, "1")]), version, keep=words_apart)
        side.until(lambda name=name: describing(BROKER, name, [*ALTERED]), 4, has("compact"), keep=known_here)
        side.until(lambda: describing(TOPIC, topic), 4, has("86400001"), keep=known_here)
    side.ask(changing(BROKER, "1", [("min.insync.replicas", SET, "2")]), version, keep=words_apart)
    side.ask(changing(BROKER, "1", [("min.insync.replicas", DELETE, None)]), version, keep=words_apart)
    side.ask(changing(BROKER, "", [("min.insync.replicas", SET, "2")]), version, keep=words_apart)
    side.until(lambda: describing(BROKER, "", ["min.insync.replicas"]), 4, has("2"), keep=known_here)
    side.ask(changing(BROKER, "", [("min.insync.replicas", DELETE, None)]), version, keep=words_apart)
    side.ask(changing(BROKER, "", [("min.insync.replicas", SET, "1")]), version, keep=words_apart)
    for name in ("1", ""):
        side.ask(changing(BROKER, name, [(key, DELETE, None) for key in (*ALTERED, "unheard")]), version)
    side.until(
        lambda: describing(TOPIC, topic),
        4,
        lambda answer: not has("86400001")(answer) and not has("1234")(answer),
        keep=known_here,
    )


@scenario(AlterConfigsRequest)
def replaces_of_the_broker(side: Side, version: int) -> None:
    topic = side.topic()
    for request in (
        altering(BROKER, "1", {"log.retention.ms": "86400002", "log.flush.interval.messages": "77"}),
        altering(BROKER, "1", {"log.retention.ms": "86400003"}),
        altering(BROKER, "1", {"log.retention.ms": "86400004"}, validate_only=True),
        altering(BROKER, "1", {"log.retention.ms": None}),
        altering(BROKER, "1", {"min.insync.replicas": "1"}),
        altering(BROKER, "7", {"log.retention.ms": "1"}),
        altering(BROKER, "x", {"log.retention.ms": "1"}),
        altering(BROKER, "", {"log.retention.ms": "1"}),
        altering(BROKER, "", {}),
    ):
        side.ask(request, version, keep=words_apart)
    side.until(lambda: describing(BROKER, "1", [*ALTERED]), 4, has("86400003"), keep=known_here)
    side.until(lambda: describing(TOPIC, topic), 4, has("86400003"), keep=known_here)
    side.ask(altering(BROKER, "1", {}), version, keep=words_apart)
    side.until(
        lambda: describing(BROKER, "1", [*ALTERED]), 4, lambda answer: not has("86400003")(answer), keep=known_here
    )


def has(value: str) -> Callable[[Any], bool]:
    """Whether a description has a setting of this value: Kafka's broker learns of a change a moment later."""
    return lambda answer: value in {item.value for item in answer.results[0].configs}
