"""DescribeClientQuotas and AlterClientQuotas. `kohort.broker.server.throttling` enforces the quotas."""

from __future__ import annotations

from kohort.broker.config.quotas import CLIENT, IP, USER, Entity, check_quota, quota_entity_key, quota_entity_of
from kohort.broker.dispatch import ApiHandler, api_handler
from kohort.broker.node import Node
from kohort.broker.server.requests import Request
from kohort.errors import ErrorCode, InvalidInputError, KafkaError
from kohort.wire.cluster_admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

EXACT, DEFAULT, SPECIFIED = range(3)
_Described = DescribeClientQuotasResponse.EntryData
_KEY_ORDER = {
    key: place for place, key in enumerate(("consumer_byte_rate", "request_percentage", "producer_byte_rate"))
}
"""The order of Apache Kafka 4.4 for these three, which its clients' tests expect; its order is a hash table's."""


def describe_quotas(node: Node, request: Request[DescribeClientQuotasRequest]) -> DescribeClientQuotasResponse:
    """Describe the quotas of entities that match a filter."""
    message = request.message
    try:
        wanted = _filter(message.components)
    except KafkaError as error:
        return DescribeClientQuotasResponse(error_code=error.code, error_message=error.message, entries=None)
    entries = [
        _Described(
            entity=[_Described.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
            values=[_Described.ValueData(key=key, value=values[key]) for key in sorted(values, key=_order_of_key)],
        )
        for entity, values in node.quotas.all_quotas().items()
        if _passes(entity, wanted, message.strict)
    ]
    return DescribeClientQuotasResponse(error_message="", entries=entries)


def _order_of_key(key: str) -> tuple[int, str]:
    return _KEY_ORDER.get(key, len(_KEY_ORDER)), key


def _filter(components: list[DescribeClientQuotasRequest.ComponentData]) -> dict[str, tuple[int, str | None]]:
    wanted: dict[str, tuple[int, str | None]] = {}
    for component in components:
        kind = component.entity_type
        if kind not in (USER, CLIENT, IP):
            raise InvalidInputError(f"there are no quotas for a {kind!r}", ErrorCode.UNSUPPORTED_VERSION)
        if kind in wanted:
            raise InvalidInputError(f"{kind} is named twice", ErrorCode.INVALID_REQUEST)
        if component.match_type not in (EXACT, DEFAULT, SPECIFIED) or (component.match is None) == (
            component.match_type == EXACT
        ):
            raise InvalidInputError("what a component matches is not clear", ErrorCode.INVALID_REQUEST)
        wanted[kind] = (component.match_type, component.match)
    if IP in wanted and len(wanted) > 1:
        raise InvalidInputError("an ip has quotas by itself only", ErrorCode.INVALID_REQUEST)
    return wanted


def _passes(entity: Entity, wanted: dict[str, tuple[int, str | None]], strict: bool) -> bool:
    names = dict(entity)
    if strict and names.keys() != wanted.keys():
        return False
    for kind, (match_type, match) in wanted.items():
        if kind not in names:
            return False
        if match_type != SPECIFIED and names[kind] != (match if match_type == EXACT else None):
            return False
    return True


def alter_quotas(node: Node, request: Request[AlterClientQuotasRequest]) -> AlterClientQuotasResponse:
    """Set or remove client quotas."""
    make = AlterClientQuotasResponse.EntryData
    entries = []
    for entry in request.message.entries:
        error, text = ErrorCode.NONE, None
        try:
            _alter(node, entry, request.message.validate_only)
        except KafkaError as refused:
            error, text = refused.code, refused.message
        parts = quota_entity_key(*((part.entity_type, part.entity_name) for part in entry.entity))
        named = [make.EntityData(entity_type=kind, entity_name=name) for kind, name in parts]
        entries.append(make(error_code=error, error_message=text, entity=named))
    return AlterClientQuotasResponse(entries=entries)


def _alter(node: Node, entry: AlterClientQuotasRequest.EntryData, validate_only: bool) -> None:
    entity = quota_entity_of([(part.entity_type, part.entity_name) for part in entry.entity])
    values: dict[str, float | None] = {}
    for op in entry.ops:
        check_quota(entity, op.key, 1.0 if op.remove else op.value)
        values[op.key] = None if op.remove else op.value
    if not validate_only:
        node.quotas.set_quotas(entity, values)


HANDLERS: list[ApiHandler[Node]] = [
    api_handler(DescribeClientQuotasRequest, DescribeClientQuotasResponse, describe_quotas),
    api_handler(AlterClientQuotasRequest, AlterClientQuotasResponse, alter_quotas),
]
