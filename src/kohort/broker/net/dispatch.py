"""From a frame to the handler of its (key, version), and from the handler's answer back to bytes.

A handler takes (node, request) and returns the answer's message, or None when it will call `request.reply` later
(a parked request) or answers nothing (`request.skip`). It runs on the loop and must not block.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeAlias

from kohort.broker.net.connection import BadFrame, Connection
from kohort.broker.net.refusals import refusal
from kohort.broker.net.request import Request
from kohort.broker.node import Node
from kohort.errors import ErrorCode, KafkaError
from kohort.wire.cluster import ApiVersionsResponse
from kohort.wire.framing import APIS, decode_request_header
from kohort.wire.schema import WireError

log = logging.getLogger("kohort.broker")

API_VERSIONS = 18


Handler: TypeAlias = Callable[[Node, Request], Any]


@dataclass(frozen=True, slots=True)
class Route:
    """One API: who handles it, in which versions, and how its request is read."""

    handler: Handler
    name: str
    low: int
    high: int
    advertised_low: int
    decode: Callable[[Any, int], tuple[Any, int]]


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
                message.decode_prefix,
            )
    return routes


def api_keys(routes: Mapping[int, Route]) -> list[ApiVersionsResponse.ApiVersion]:
    """What ApiVersions says of these routes."""
    make = ApiVersionsResponse.ApiVersion
    return [
        make(api_key=key, min_version=route.advertised_low, max_version=route.high)
        for key, route in sorted(routes.items())
    ]


class Dispatcher:
    """Reads requests and calls their handlers."""

    __slots__ = ("_apis", "_node", "_routes", "_unsupported")

    def __init__(self, node: Node, routes: Mapping[int, Route], unsupported_api_versions: Handler) -> None:
        self._node = node
        self._routes = dict(routes)
        self._unsupported = unsupported_api_versions
        self._apis = node.metrics.apis

    def dispatch(self, connection: Connection, frame: bytearray | memoryview) -> None:
        """Handle one frame, whose memory is not kept.

        Raises:
            BadFrame: the frame is no request that this broker serves; the connection must end.
        """
        faults = self._node.faults
        if faults.active:
            frame = bytearray(frame)  # the request may wait
        try:
            header, body = decode_request_header(frame)
        except WireError as error:
            raise BadFrame(f"a request whose header can't be read: {error}") from None
        key, version, _, _ = header
        request = Request(connection, *header)
        if connection.held:
            self._node.groups.release(connection.held)
        connection.pending.append(request)
        route = self._routes.get(key)
        if route is None:
            raise BadFrame(f"api key {key} is not served here")
        if not route.low <= version <= route.high:
            if key != API_VERSIONS:
                raise BadFrame(f"{route.name} version {version} is not served here")
            self._unsupported(self._node, request)
            return
        try:  # bytes after the message are ignored, as by Apache Kafka: librdkafka sends some when it lists all topics
            request.message, _ = route.decode(body, version)
        except WireError as error:
            raise BadFrame(f"{request.name} can't be read: {error}") from None
        figures = self._apis[key]
        figures.requests += 1
        request.latency = figures.latency
        request.began = perf_counter()
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
