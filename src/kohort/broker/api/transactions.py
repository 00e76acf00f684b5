"""InitProducerId and the APIs of transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kohort.errors import ErrorCode
from kohort.wire.transactions import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from kohort.broker.dispatch import Request
    from kohort.broker.node import Node


def init_producer_id(node: Node, request: Request) -> InitProducerIdResponse:
    """A producer id for an idempotent producer."""
    message = request.message
    if message.transactional_id is None:
        return InitProducerIdResponse(producer_id=node.producer_ids.take(), producer_epoch=0)
    return InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)


HANDLERS: dict[type, Callable[[Any, Any], Any]] = {InitProducerIdRequest: init_producer_id}
