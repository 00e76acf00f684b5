"""Error responses to a whole request of any API, with the error code in every error field."""

from __future__ import annotations

from kohort.broker.server.requests import Request
from kohort.errors import ErrorCode
from kohort.wire.framing import APIS
from kohort.wire.message import Message
from kohort.wire.schema import Struct

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
}
"""Request field to the response field that lists its results. Other fields have the same name in both."""
_INDEX = {"partition", "index", "partition_index"}


def refusal(request: Request[Message], error: ErrorCode, text: str | None = None) -> Message:
    """Build the response to `request` with `error` in every error field, at the top and for each requested item."""
    response = APIS[request.key].response()
    _fill(request.message, response, error, text)
    return response


def _fill(asked: Struct, answer: Struct, error: ErrorCode, text: str | None) -> None:
    fields = {field.name: field for field in answer.FIELDS}
    for name in ("error_code", "partition_error_code"):
        if name in fields:
            setattr(answer, name, int(error))
    if (message := fields.get("error_message")) is not None:
        setattr(answer, message.name, text)
    for field in asked.FIELDS:
        value = getattr(asked, field.name)
        target = fields.get(field.name)
        if isinstance(value, list):
            listed = fields.get(_ITEMS.get(field.name, field.name)) or fields.get("results") or fields.get("responses")
            if listed is not None and listed.element is not None and listed.element.struct is not None:
                setattr(answer, listed.name, [_item(item, listed.element.struct, error, text) for item in value])
        elif target is not None and target.struct is None and field.name != "throttle_time_ms":
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
    names = ("partition_index", "partition") if isinstance(asked, int) else ("group_id", "key", "name", "topic")
    for name in names:
        if name in fields:
            setattr(answer, name, asked)
            break
    return answer
