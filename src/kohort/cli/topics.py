"""`kohort topics`: list, describe, create, delete, alter."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from kohort.cli.app import DONE, UsageError, command_family
from kohort.cli.common import Common, check_names, parse_set_options, print_errors
from kohort.cli.output import print_changes, print_json, print_rows, printable
from kohort.errors import ErrorCode, KafkaError, NotFoundError
from kohort.settings.config import did_you_mean

app = command_family("topics", "List, describe, create, delete and alter topics.")

_COMMON = Common()


@app.command(name="list")
def list_(*, internal: bool = False, common: Common = _COMMON) -> int:
    """List the topics.

    Args:
        internal: Kafka's own topics too.
    """
    with common.admin() as admin:
        topics = admin.list_topics(internal=internal)
    rows = [
        {
            "topic": topic.name,
            "partitions": len(topic.partitions),
            "replication_factor": max((len(part.replicas) for part in topic.partitions.values()), default=0),
            "topic_id": str(topic.topic_id),
            "internal": topic.internal,
        }
        for topic in topics
    ]
    columns = ("topic", "partitions", "replication_factor", "topic_id", *(("internal",) if internal else ()))
    print_rows(rows, columns, as_json=common.json, empty="no topics")
    return DONE


@app.command
def describe(*topics: str, common: Common = _COMMON) -> int:
    """Partitions, leaders, first and end offsets of topics, and the properties that were set for them.

    Args:
        topics: the topics; all when none is named.
    """
    from kohort.client.admin.group_changes import topic_errors_with_suggestions

    check_names("topic", *topics)
    with common.admin() as admin:
        names = list(topics) or [topic.name for topic in admin.list_topics()]
        found = admin.describe_topics(names)
        described = [_describe(admin, info) for _, info in sorted(found.values.items())]
        errors = topic_errors_with_suggestions(admin, found.errors)
    if common.json:
        print_json(described)
    else:
        for topic in described:
            _print_topic(topic)
    return print_errors(errors)


def _describe(admin: Any, info: Any) -> dict[str, Any]:
    from kohort.client.admin.values import ConfigResource, ResourceType
    from kohort.ids import TopicPartition

    partitions = [TopicPartition(info.name, number) for number in sorted(info.partitions)]
    starts = admin.list_offsets(dict.fromkeys(partitions, "earliest")).values
    ends = admin.list_offsets(dict.fromkeys(partitions, "latest")).values
    resource = ConfigResource(ResourceType.TOPIC, info.name)
    try:
        configs = admin.describe_configs([resource]).result(resource)
    except KafkaError:  # an older broker, or no right to see them: the rest is still worth showing
        configs = {}
    rows = [
        {
            "partition": key.partition,
            "leader": info.partitions[key.partition].leader,
            "replicas": list(info.partitions[key.partition].replicas),
            "isr": list(info.partitions[key.partition].isr),
            "log_start": starts[key].offset if key in starts else None,
            "log_end": ends[key].offset if key in ends else None,
        }
        for key in partitions
    ]
    changed = {
        name: entry.value for name, entry in sorted(configs.items()) if not entry.is_default and not entry.read_only
    }
    return {"topic": info.name, "topic_id": str(info.topic_id), "configs": changed, "partitions": rows}


def _print_topic(topic: dict[str, Any]) -> None:
    configs = " ".join(f"{name}={value}" for name, value in topic["configs"].items())
    print(printable(f"topic {topic['topic']}  topic id {topic['topic_id']}" + (f"  {configs}" if configs else "")))
    columns = ("partition", "leader", "replicas", "isr", "log_start", "log_end")
    print_rows(topic["partitions"], columns, as_json=False, empty="no partitions")


@app.command
def create(
    *topics: str,
    partitions: int = -1,
    replication_factor: int = -1,
    config: tuple[str, ...] = (),
    if_not_exists: bool = False,
    common: Common = _COMMON,
) -> int:
    """Create topics.

    Args:
        topics: their names.
        partitions: How many; the broker's default when not given.
        replication_factor: Copies of each; the broker's default when not given.
        config: A property as key=value; may be given again.
        if_not_exists: A topic that exists is no failure.
    """
    from kohort.client.admin.values import NewTopic

    _need(topics)
    properties = parse_set_options(config)
    with common.admin() as admin:
        results = admin.create_topics(
            [NewTopic(name, partitions, replication_factor, properties) for name in dict.fromkeys(topics)]
        )
    made = results.values
    rows = [
        {
            "topic": name,
            "topic_id": str(made[name].topic_id) if name in made else None,
            "partitions": made[name].num_partitions if name in made else None,
            "done": name in made,
        }
        for name in dict.fromkeys(topics)
    ]
    errors = {
        name: error
        for name, error in results.errors.items()
        if not (if_not_exists and error.code is ErrorCode.TOPIC_ALREADY_EXISTS)
    }
    print_changes(rows, ("topic", "topic_id", "partitions"), errors, _topic_of, as_json=common.json)
    return print_errors(errors)


@app.command
def delete(*topics: str, common: Common = _COMMON) -> int:
    """Delete topics with all their records.

    Args:
        topics: their names.
    """
    from kohort.client.admin.group_changes import topic_errors_with_suggestions

    _need(topics)
    with common.admin() as admin:
        results = admin.delete_topics(topics)
        errors = topic_errors_with_suggestions(admin, results.errors)
    rows = [{"topic": name, "done": name in results.values} for name in dict.fromkeys(topics)]
    print_changes(rows, ("topic",), errors, _topic_of, as_json=common.json)
    return print_errors(errors)


@app.command
def alter(
    topic: str,
    *,
    partitions: int | None = None,
    config: tuple[str, ...] = (),
    delete_config: tuple[str, ...] = (),
    common: Common = _COMMON,
) -> int:
    """Add partitions to a topic, or set its properties.

    Args:
        topic: its name.
        partitions: How many there shall be in all; only ever more than now.
        config: A property to set, as key=value; may be given again.
        delete_config: A property to set back to its default; may be given again.
    """
    from kohort.client.admin.group_changes import topic_errors_with_suggestions
    from kohort.client.admin.values import ConfigResource, ResourceType

    if partitions is None and not config and not delete_config:
        raise UsageError("nothing to alter: give --partitions, --config or --delete-config")
    check_names("topic", topic)
    changes: dict[str, str | None] = {**parse_set_options(config), **dict.fromkeys(delete_config)}
    with common.admin() as admin:
        try:
            if changes:
                resource = ConfigResource(ResourceType.TOPIC, topic)
                _must_have(admin.describe_configs([resource]).result(resource) if delete_config else (), delete_config)
                admin.incremental_alter_configs({resource: changes}).all()
            if partitions is not None:
                admin.create_partitions({topic: partitions}).all()
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            raise topic_errors_with_suggestions(admin, {topic: error})[topic] from error
    row = {"topic": topic, "partitions": partitions, "configs": changes, "done": True}
    print_rows([row], row, as_json=common.json)
    return DONE


def _must_have(there: Collection[str], names: tuple[str, ...]) -> None:
    """Raise an error for a property that topics don't have: Kafka would accept its deletion, and do nothing."""
    for name in names:
        if name not in there:
            raise NotFoundError(f"topics have no setting {name}{did_you_mean(name, there)}")


def _topic_of(row: Mapping[str, Any]) -> str:
    return str(row["topic"])


def _need(topics: tuple[str, ...]) -> None:
    if not topics:
        raise UsageError("name at least one topic")
    check_names("topic", *topics)
