"""From a frame to the handler of its (key, version), and from the handler's answer back to bytes.

A handler takes (node, request) and returns the answer's message, or None when it will call `request.reply` later
(a parked request) or answers nothing (`request.skip`). It runs on the loop and must not block.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

from kohort.broker.connection import BadFrame, Connection
from kohort.broker.metrics import Histogram
from kohort.broker.refusals import refusal
from kohort.errors import ErrorCode, InvalidInputError, KafkaError
from kohort.wire.framing import APIS, decode_request_header, encode_response, encode_response_whole
from kohort.wire.schema import WireError

if TYPE_CHECKING:
    from kohort.broker.node import Node

log = logging.getLogger("kohort.broker")

FETCH, API_VERSIONS = 1, 18


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


Handler: TypeAlias = "Callable[[Node, Request], Any]"


@dataclass(frozen=True, slots=True)
class Route:
    """One API: who handles it, in which versions, and how its request is read."""

    handler: Handler
    name: str
    low: int
    high: int
    advertised_low: int
    decode: Callable[[Any, int], Any]


def route_table(
    handlers: Iterable[Mapping[type, Handler]], advertise_from: Mapping[int, int], serve_to: Mapping[int, int]
) -> dict[int, Route]:
    """Routes by api key, from maps of request class to handler.

    Args:
        handlers: one map of each file of handlers.
        advertise_from: api key to the lowest version ApiVersions names where it differs from the lowest served.
        serve_to: api key to the highest version served where it differs from the highest that can be read.
    """
    routes: dict[int, Route] = {}
    for group in handlers:
        for cls, handler in group.items():
            message: Any = cls
            low = message.MIN_VERSION
            routes[message.API_KEY] = Route(
                handler,
                APIS[message.API_KEY].name,
                low,
                serve_to.get(message.API_KEY, message.MAX_VERSION),
                advertise_from.get(message.API_KEY, low),
                message.decode,
            )
    return routes


class Dispatcher:
    """Reads requests and calls their handlers."""

    __slots__ = ("_apis", "_node", "_routes", "_unsupported")

    def __init__(self, node: Node, routes: Mapping[int, Route], unsupported_api_versions: Handler) -> None:
        self._node = node
        self._routes = dict(routes)
        self._unsupported = unsupported_api_versions
        self._apis = node.metrics.apis

    def dispatch(self, connection: Connection, frame: bytearray) -> None:
        """Handle one frame.

        Raises:
            BadFrame: the frame is no request that this broker serves; the connection must end.
        """
        try:
            header, body = decode_request_header(frame)
        except WireError as error:
            raise BadFrame(f"a request whose header can't be read: {error}") from None
        request = Request(connection, header.api_key, header.api_version, header.correlation_id, header.client_id)
        connection.pending.append(request)
        route = self._routes.get(header.api_key)
        if route is None:
            raise BadFrame(f"api key {header.api_key} is not served here")
        if not route.low <= header.api_version <= route.high:
            if header.api_key != API_VERSIONS:
                raise BadFrame(f"{route.name} version {header.api_version} is not served here")
            self._unsupported(self._node, request)
            return
        try:
            request.message = route.decode(body, header.api_version)
        except WireError as error:
            raise BadFrame(f"{request.name} can't be read: {error}") from None
        figures = self._apis[header.api_key]
        figures.requests += 1
        request.latency = figures.latency
        request.began = perf_counter()
        faults = self._node.faults
        if faults.active and faults.on_request(request, lambda: self._run(route, request)):
            return
        self._run(route, request)

    def _run(self, route: Route, request: Request) -> None:
        try:
            answer = route.handler(self._node, request)
        except KafkaError as error:
            answer = refusal(request, error.code, error.message)
        except OSError as error:
            log.error("%s failed: %s", request.name, error)
            answer = refusal(request, ErrorCode.KAFKA_STORAGE_ERROR, str(error))
        except Exception:
            log.error("a fault in the broker: %s; its connection is closed", request.name)
            request.connection.close()
            raise
        if answer is not None:
            request.reply(answer)
