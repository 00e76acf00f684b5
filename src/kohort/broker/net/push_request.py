"""One request of a push consumer between its arrival and its answer, as `Request` is for Kafka's own.

It has no correlation id and no version. An error that its answer can hold is told, then the connection ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter

from kohort.broker.metrics import ApiMetrics, Histogram
from kohort.broker.net.connection import Connection
from kohort.broker.net.sending import Parts
from kohort.errors import ErrorCode
from kohort.wire.push import (
    ClusterMetadataRequest,
    ClusterMetadataResponse,
    ErrorResponse,
    PushType,
    RegisterConsumerRequest,
    framed,
)

log = logging.getLogger("kohort.broker")


class PushRequest:
    """One request; also the place of its answer in its connection's order.

    Attributes:
        client: who sent it.
        client_id: the consumer's id, once it is known: these have no header that says one.
        principal: who that was by its authentication, when the request came.
        message: what it asks; there once it is read.
    """

    __slots__ = (
        "began",
        "client",
        "client_id",
        "connection",
        "kind",
        "latency",
        "message",
        "on_reply",
        "parts",
        "principal",
    )

    message: ClusterMetadataRequest | RegisterConsumerRequest

    def __init__(self, connection: Connection, kind: PushType) -> None:
        self.connection = connection
        self.client = connection.client
        self.client_id: str | None = None
        self.principal = connection.client.principal
        self.kind = kind
        self.parts: Parts | None = None
        self.on_reply: Callable[[Parts], bool] | None = None
        self.began = 0.0
        self.latency: Histogram | None = None
        connection.pending.append(self)

    def begin(self, message: ClusterMetadataRequest | RegisterConsumerRequest, figures: ApiMetrics) -> None:
        """It is read: it counts, and is timed from here."""
        self.message = message
        if isinstance(message, RegisterConsumerRequest):
            self.client_id = message.consumer_id
        figures.requests += 1
        self.latency = figures.latency
        self.began = perf_counter()

    @property
    def api(self) -> str:
        """Its name."""
        return self.kind.api

    @property
    def name(self) -> str:
        """The request for log lines, as `RegisterConsumer from 127.0.0.1:4711`."""
        return f"{self.kind.api} from {self.connection.name}"

    def answer(self, body: bytes) -> None:
        """Send it."""
        self.send([framed(body)])

    def send(self, parts: Parts) -> None:
        """Answer with a frame."""
        if self.connection.closed or (self.on_reply is not None and not self.on_reply(parts)):
            return
        self.parts = parts
        if self.latency is not None:
            self.latency.observe(perf_counter() - self.began)
        self.connection.ready(self)

    def unreadable(self) -> Parts:
        """An answer that no client can read: it ends within its error code."""
        return [framed(b"\xff")]

    def fail(self, error: ErrorCode, why: str) -> None:
        """Refuse it with an error alone."""
        is_metadata = self.kind is PushType.CLUSTER_METADATA
        body = ClusterMetadataResponse(error).encode() if is_metadata else ErrorResponse(error).encode()
        self.refuse(body, f"{self.api}: {why}")

    def refuse(self, body: bytes, why: str) -> None:
        """Send it, and end the connection."""
        log.warning("closing the connection from %s: %s", self.connection.name, why)
        self.answer(body)
        self.connection.finish()
