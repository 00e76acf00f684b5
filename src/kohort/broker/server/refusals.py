"""Error responses to a whole request of any API, with the error code in every error field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kohort.broker.server.requests import Request
from kohort.errors import ErrorCode
from kohort.wire.cluster_admin import AlterReplicaLogDirsRequest, DescribeClientQuotasResponse
from kohort.wire.framing import APIS
from kohort.wire.message import Message
from kohort.wire.schema import Field, Struct, StructRows
from kohort.wire.security import AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse

_ITEMS = {
    "topics": ("topics", "responses", "results", "topic_results"),
    "topic_data": ("responses",),
    "groups": ("groups", "responses", "results"),
    "groups_names": ("results",),
    "group_ids": ("groups",),
    "resources": ("results", "responses"),
    "partitions": ("partitions", "results_by_partition", "partition_result"),
    "partition_data": ("partition_responses",),
    "partition_indexes": ("partitions",),
    "coordinator_keys": ("coordinators",),
    "topic_names": ("responses",),
    "topic_partitions": ("replica_election_results",),
    "filters": ("filter_results",),
    "transactional_ids": ("transaction_states",),
    "transactions": ("results_by_transaction",),
    "v3_and_below_topics": ("results_by_topic_v3_and_below",),
}
"""Request field to the response fields that may list its results, the first that exists. Other fields have the same
name in both, or `results` or `responses` in the response.
"""
_NAMES = ("group_id", "key", "name", "topic", "topic_name", "transactional_id")
_INDEX = ("partition_index", "partition", "index", "partition_id")


_AT_THE_TOP = frozenset({"DescribeQuorum", "LeaveGroup", "OffsetDelete", "SyncGroup"})
"""APIs whose error is only at the top of the answer, as in Kafka. LeaveGroup's is, for members of version 3 and up."""


def error_response(request: Request[Message], error: ErrorCode, text: str | None = None) -> Message:
    """Build the response to `request` with `error` in every error field, at the top and for each requested item."""
    response = APIS[request.key].response()
    asked: Struct = request.message
    made = _Refusal(request.version, error, text)
    if isinstance(asked, AlterUserScramCredentialsRequest):
        assert isinstance(response, AlterUserScramCredentialsResponse)
        users = [deletion.name for deletion in asked.deletions]
        users += [upsertion.name for upsertion in asked.upsertions]
        result = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
        response.results = [result(user=user, error_code=error, error_message=text) for user in dict.fromkeys(users)]
    elif isinstance(asked, AlterReplicaLogDirsRequest):  # its results are not ordered as the request is
        topics = [topic for folder in asked.dirs for topic in folder.topics]
        made.fill_errors(asked.AlterReplicaLogDir(topics=topics), response)
    elif isinstance(response, DescribeClientQuotasResponse):
        response.error_code, response.error_message, response.entries = error, text, None
    elif APIS[request.key].name in _AT_THE_TOP:
        made.fill_errors(Struct(), response)
    else:
        made.fill_errors(asked, response)
    return response


class _Refusal:
    """A writer of one error into every error field of a response, in the request's version."""

    def __init__(self, version: int, error: ErrorCode, text: str | None) -> None:
        self._version = version
        self._values = {"error_code": int(error), "partition_error_code": int(error), "error_message": text}

    def _with_error(self, answer: Struct) -> dict[str, Field]:
        """Write the error into a structure, and return the fields that it has in the request's version."""
        fields = {field.name: field for field in answer.FIELDS if field.is_in_version(self._version)}
        for name in self._values.keys() & fields.keys():
            setattr(answer, name, self._values[name])
        return fields

    def fill_errors(self, asked: Struct, answer: Struct) -> None:
        """Write the error into `answer`, and into one entry for each topic, partition or group that `asked` names."""
        fields = self._with_error(answer)
        for field in asked.FIELDS:
            value = getattr(asked, field.name)
            if isinstance(value, list | StructRows):
                self._list(field.name, value, answer, fields)
            elif (
                (target := fields.get(field.name)) is not None
                and target.struct is None
                and target.element is None
                and field.name != "throttle_time_ms"
            ):
                setattr(answer, field.name, value)
            elif field.name in _INDEX:
                for name in fields.keys() & set(_INDEX):
                    setattr(answer, name, value)
            elif field.name in _NAMES and (names := [name for name in _NAMES if name in fields]):
                setattr(answer, names[0], value)

    def _list(self, name: str, items: Sequence[Any], answer: Struct, fields: Mapping[str, Field]) -> None:
        """Fill the response's list that belongs to a list in the request, with one error entry for each item.

        Leave the list as it is if another field of the request has filled it.
        """
        for target in (*_ITEMS.get(name, (name,)), "results", "responses"):
            element = fields[target].element if target in fields else None
            if element is not None and element.struct is not None:
                if items and not getattr(answer, target):
                    setattr(answer, target, [self._item(item, element.struct) for item in items])
                return

    def _item(self, asked: Struct | str | int, kind: type[Struct]) -> Struct:
        answer = kind()
        if isinstance(asked, Struct):
            self.fill_errors(asked, answer)
            return answer
        fields = self._with_error(answer)
        for name in _INDEX if isinstance(asked, int) else _NAMES:
            if name in fields:
                setattr(answer, name, asked)
                break
        return answer
