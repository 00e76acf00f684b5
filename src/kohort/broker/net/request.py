"""One request between its arrival and its answer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter
from typing import Any

from kohort.broker.metrics import Histogram
from kohort.broker.net.connection import Connection
from kohort.errors import InvalidInputError
from kohort.wire.framing import APIS, encode_response, encode_response_whole

log = logging.getLogger("kohort.broker")

FETCH = 1


class Request:
    """One request from its arrival until its answer is on its way; also the answer's place in its connection."""

    __slots__ = (
        "began",
        "client_id",
        "connection",
        "correlation_id",
        "key",
        "latency",
        "message",
        "on_reply",
        "parts",
        "version",
    )

    def __init__(
        self, connection: Connection, key: int, version: int, correlation_id: int, client_id: str | None
    ) -> None:
        self.connection = connection
        self.key = key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.message: Any = None
        self.parts: list[Any] | None = None
        self.on_reply: Callable[[Request, list[Any]], bool] | None = None
        self.began = 0.0
        self.latency: Histogram | None = None

    @property
    def done(self) -> bool:
        """Whether an answer is no longer wanted: given already, or the client is gone."""
        return self.parts is not None or self.connection.closed

    @property
    def name(self) -> str:
        """The request for log lines, as `JoinGroup 9 from 127.0.0.1:4711 (client)`."""
        api = APIS.get(self.key)
        return f"{api.name if api else self.key} {self.version} from {self.connection.name} ({self.client_id})"

    def reply(self, message: Any) -> None:
        """Answer with a message, encoded at the request's version."""
        if self.connection.closed:
            return
        try:
            if self.key == FETCH:
                parts = encode_response(message, self.version, self.correlation_id)
            else:
                parts = [encode_response_whole(message, self.version, self.correlation_id)]
        except InvalidInputError:  # ours to mend; the others who wait for the same step must get their answers
            log.exception(
                "a fault in the broker: the answer to %s can't be encoded; its connection is closed", self.name
            )
            self.connection.close()
            return
        self.send(parts)

    def send(self, parts: list[Any]) -> None:
        """Answer with a frame's parts: buffers and file ranges."""
        if self.on_reply is not None and not self.on_reply(self, parts):
            return
        self.parts = parts
        if self.latency is not None:
            self.latency.observe(perf_counter() - self.began)
        self.connection.ready(self)

    def skip(self) -> None:
        """Answer nothing (acks=0)."""
        self.send([])
