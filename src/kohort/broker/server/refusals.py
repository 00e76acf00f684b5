"""Error responses to a whole request of any API, with the error code in every error field."""

from __future__ import annotations

from collections.abc import Iterable

from kohort.broker.server.requests import Request
from kohort.errors import ErrorCode
from kohort.wire.cluster_admin import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeClientQuotasResponse,
)
from kohort.wire.framing import APIS
from kohort.wire.message import Message
from kohort.wire.schema import Struct
from kohort.wire.security import AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse

_ITEMS = {
    "topics": "topics",
    "topic_data": "responses",
    "groups": "groups",
    "groups_names": "results",
    "group_ids": "groups",
    "resources": "results",
    "partitions": "partitions",
    "partition_data": "partition_responses",
    "partition_indexes": "partitions",
    "coordinator_keys": "coordinators",
    "topic_names": "responses",
    "v3_and_below_topics": "results_by_topic_v3_and_below",
    "filters": "filter_results",
    "topic_partitions": "replica_election_results",
}
"""Request field to the response field that lists its results. Other fields have the same name in both."""
_INDEX = {"partition", "index", "partition_index"}
_AT_THE_TOP = frozenset({"DescribeQuorum", "LeaveGroup", "OffsetDelete", "SyncGroup"})
"""APIs whose error is only at the top of the answer, as in Kafka."""


def refusal(request: Request[Message], error: ErrorCode, text: str | None = None) -> Message:
    """Build the response to `request` with `error` in every error field, at the top and for each requested item."""
    response = APIS[request.key].response()
    message = request.message
    if isinstance(message, AlterUserScramCredentialsRequest):
        assert isinstance(response, AlterUserScramCredentialsResponse)
        users = [deletion.name for deletion in message.deletions]
        users += [upsertion.name for upsertion in message.upsertions]
        made = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
        response.results = [made(user=user, error_code=error, error_message=text) for user in dict.fromkeys(users)]
    elif isinstance(message, AlterReplicaLogDirsRequest):
        assert isinstance(response, AlterReplicaLogDirsResponse)
        topics = [topic for folder in message.dirs for topic in folder.topics]
        response.results = [_unmoved(topic.name, topic.partitions, error) for topic in topics]
    elif isinstance(response, DescribeClientQuotasResponse):
        response.error_code, response.error_message, response.entries = error, text, None
    elif request.api in _AT_THE_TOP:
        _set_error(response, error, text)
    else:
        _fill(message, response, error, text)
    return response


def _unmoved(
    topic: str, partitions: Iterable[int], error: ErrorCode
) -> AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult:
    make = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult
    part = make.AlterReplicaLogDirPartitionResult
    return make(topic_name=topic, partitions=[part(partition_index=index, error_code=error) for index in partitions])


def _set_error(answer: Struct, error: ErrorCode, text: str | None) -> None:
    names = {field.name for field in answer.FIELDS}
    for name in names & {"error_code", "partition_error_code"}:
        setattr(answer, name, int(error))
    if "error_message" in names:
        setattr(answer, "error_message", text)  # noqa: B010 - not every struct has it


def _fill(asked: Struct, answer: Struct, error: ErrorCode, text: str | None) -> None:
    fields = {field.name: field for field in answer.FIELDS}
    _set_error(answer, error, text)
    for field in asked.FIELDS:
        value = getattr(asked, field.name)
        target = fields.get(field.name)
        if isinstance(value, list):
            named = fields.get(_ITEMS.get(field.name, field.name)) or fields.get("partition_result")
            listed = named or fields.get("results") or fields.get("responses")
            if listed is not None and listed.element is not None and listed.element.struct is not None:
                setattr(answer, listed.name, [_item(item, listed.element.struct, error, text) for item in value])
        elif (
            target is not None and target.struct is None and target.element is None and field.name != "throttle_time_ms"
        ):
            setattr(answer, field.name, value)
        elif field.name in _INDEX:
            for name in _INDEX & fields.keys():
                setattr(answer, name, value)


def _item(asked: Struct | str | int, kind: type[Struct], error: ErrorCode, text: str | None) -> Struct:
    answer = kind()
    if isinstance(asked, Struct):
        _fill(asked, answer, error, text)
        return answer
    fields = [field.name for field in answer.FIELDS]
    for name in ("error_code", "partition_error_code"):
        if name in fields:
            setattr(answer, name, int(error))
    names = (
        ("partition_index", "partition", "partition_id")
        if isinstance(asked, int)
        else ("group_id", "key", "name", "topic")
    )
    for name in names:
        if name in fields:
            setattr(answer, name, asked)
            break
    return answer
