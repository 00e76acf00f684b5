"""One request of a push consumer between its arrival and its answer, as `Request` is for Kafka's own.

It has no correlation id and no version. An error that its answer can hold is told, then the connection ends.
"""

from __future__ import annotations

import logging

from kohort.broker.net.connection import Connection
from kohort.broker.net.sending import Parts
from kohort.wire.push import ClusterMetadataRequest, PushType, RegisterConsumerRequest, framed

log = logging.getLogger("kohort.broker")


class PushRequest:
    """One request; also the place of its answer in its connection's order.

    Attributes:
        client: who sent it.
        client_id: None: these have no header that says one.
        principal: who that was by its authentication, when the request came.
        message: what it asks; there once it is read.
    """

    __slots__ = ("client", "client_id", "connection", "kind", "message", "parts", "principal")

    message: ClusterMetadataRequest | RegisterConsumerRequest

    def __init__(self, connection: Connection, kind: PushType) -> None:
        self.connection = connection
        self.client = connection.client
        self.client_id = None
        self.principal = connection.client.principal
        self.kind = kind
        self.parts: Parts | None = None
        connection.pending.append(self)

    @property
    def name(self) -> str:
        """The request for log lines, as `RegisterConsumer from 127.0.0.1:4711`."""
        return f"{self.kind.api} from {self.connection.name}"

    def answer(self, body: bytes) -> None:
        """Send it."""
        self.parts = [framed(body)]
        self.connection.ready(self)

    def refuse(self, body: bytes, why: str) -> None:
        """Send it, and end the connection."""
        log.warning("closing the connection from %s: %s", self.connection.name, why)
        self.answer(body)
        self.connection.finish()
