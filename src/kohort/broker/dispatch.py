"""Request dispatch: from a frame to the handler of its API, and from the handler's response to bytes.

A handler takes (host, request) and returns the response message. It returns None if it calls `request.reply` later (a
waiting request) or sends no response (`request.send_no_response`). A handler runs on the loop and must not block. The
host is a broker with a store, or a process that only coordinates groups.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from kohort.broker.audit import CHANGES, AuditLog
from kohort.broker.authorization import NEEDS, Authorizer, RequiredPermission, request_authorization_error
from kohort.broker.framing import BadFrame, Frame
from kohort.broker.metrics import Metrics
from kohort.broker.server.connection import ClientSession, Connection
from kohort.broker.server.faults import Faults
from kohort.broker.server.refusals import error_response
from kohort.broker.server.repeated_requests import REPEATED, RepeatedRequests
from kohort.broker.server.requests import Request, RequestMeter
from kohort.errors import ErrorCode, KafkaError
from kohort.wire.discovery import ApiVersionsResponse
from kohort.wire.framing import APIS, decode_request_header
from kohort.wire.message import Message
from kohort.wire.push import PUSH_TYPES
from kohort.wire.schema import WireError

log = logging.getLogger("kohort.broker")

API_VERSIONS = 18
NOTHING: Mapping[int, int] = {}
PUSH_FIRST, NEGATIVE_FIRST = PUSH_TYPES >> 8, 0x80
"""The first byte of a push frame, and the first byte of a negative number."""


class RequestThrottling(Protocol):
    """The interface of a host's quotas: measures requests, and says how long to throttle a client."""

    active: bool
    """Whether there are any quotas."""

    def begin_measuring(self, request: Request[Message], size: int) -> RequestMeter:
        """Begin to measure a request of `size` bytes toward the client's quotas."""

    def charge_push_frame(self, connection: Connection, seconds: float) -> None:
        """Record the time that a push frame took, and stop reading from its connection if that exceeds a quota."""


class DispatchHost(Protocol):
    """The interface of a host of requests: authorizer, audit log, metrics and faults.

    Attributes:
        authorizer: decides about each request; None: everything is allowed.
        audit: records what changes; None: nothing is recorded.
    """

    authorizer: Authorizer | None
    audit: AuditLog | None

    @property
    def throttling(self) -> RequestThrottling | None:
        """Measures requests for quotas; None: this host has no quotas."""

    @property
    def metrics(self) -> Metrics: ...
    @property
    def faults(self) -> Faults: ...
    @property
    def repeated(self) -> RepeatedRequests: ...

    def answer_delayed_heartbeats(self, client: ClientSession) -> None:
        """Answer a client's delayed heartbeats, because another request arrived on the connection."""


H = TypeVar("H")
H_contra = TypeVar("H_contra", contravariant=True)
Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)
D = TypeVar("D", bound=DispatchHost)

Handler: TypeAlias = Callable[[H, Request[Q]], A | None]


@dataclass(frozen=True, slots=True)
class ApiHandler(Generic[H_contra]):
    """A request class and its handler, for one kind of host."""

    request: type[Message]
    handler: Callable[[H_contra, Request[Any]], Message | None]


def api_handler(request: type[Q], response: type[A], handler: Handler[H, Q, A]) -> ApiHandler[H]:
    """Return an entry of a handler list, and check that the response class belongs to the request class."""
    assert APIS[request.API_KEY].response is response
    return ApiHandler(request, handler)


@dataclass(frozen=True, slots=True)
class Route(Generic[H_contra]):
    """The route of one API: handler, versions, decoder, and required permissions."""

    handler: Callable[[H_contra, Request[Any]], Message | None]
    name: str
    low: int
    high: int
    advertised_low: int
    decode: Callable[[memoryview, int], tuple[Message, int]]
    needs: tuple[RequiredPermission, ...]
    changes: bool
    repeats: bool


def route_table(
    handlers: Iterable[Iterable[ApiHandler[H]]],
    advertise_from: Mapping[int, int] = NOTHING,
    serve_to: Mapping[int, int] = NOTHING,
) -> dict[int, Route[H]]:
    """Build the routes by API key from lists of handlers.

    Args:
        handlers: one list per module of handlers.
        advertise_from: API key to the lowest advertised version, if it differs from the lowest served one.
        serve_to: API key to the highest served version, if it differs from the highest version that can be decoded.
    """
    routes: dict[int, Route[H]] = {}
    for entry in (entry for of_file in handlers for entry in of_file):
        message = entry.request
        key, low, name = message.API_KEY, message.MIN_VERSION, APIS[message.API_KEY].name
        assert key not in routes, f"{name} has two handlers"
        routes[key] = Route(
            entry.handler,
            name,
            low,
            serve_to.get(key, message.MAX_VERSION),
            advertise_from.get(key, low),
            message.decode_prefix,
            NEEDS[name],
            name in CHANGES,
            name in REPEATED,
        )
    return routes


def api_keys(routes: Mapping[int, Route[H]]) -> list[ApiVersionsResponse.ApiVersion]:
    """Return the served version range of each API, for the ApiVersions response."""
    make = ApiVersionsResponse.ApiVersion
    return [
        make(api_key=key, min_version=route.advertised_low, max_version=route.high)
        for key, route in sorted(routes.items())
    ]


class Dispatcher(Generic[D]):
    """A dispatcher that decodes requests and calls their handlers."""

    __slots__ = ("_apis", "_faults", "_host", "_pushing", "_routes", "_unsupported")

    def __init__(
        self,
        host: D,
        routes: Mapping[int, Route[D]],
        unsupported_api_versions: Callable[[D, Request[Message]], None],
        authorizer: Authorizer | None = None,
        pushing: Callable[[D, Connection, Frame], None] | None = None,
    ) -> None:
        """Create a dispatcher.

        Args:
            host: the host that handlers work with.
            routes: the routes by API key.
            unsupported_api_versions: answers an ApiVersions request of an unknown version.
            authorizer: the host's authorizer from now on; None: the one that the host has.
            pushing: handles push frames, which have no Kafka header, and asks the host's authorizer itself; None: push
                frames are rejected.
        """
        self._host = host
        self._routes = dict(routes)
        self._unsupported = unsupported_api_versions
        if authorizer is not None:
            host.authorizer = authorizer
        self._pushing = pushing
        self._apis = host.metrics.apis
        self._faults = host.faults

    def dispatch(self, connection: Connection, frame: Frame) -> None:
        """Decode one request frame and call its handler; the frame's memory is reused afterwards.

        Raises:
            BadFrame: the frame is no request that this host serves; the connection must be closed.
        """
        if self._pushing is not None and PUSH_FIRST <= frame[0] < NEGATIVE_FIRST:
            began = perf_counter()
            self._run_pushing(self._pushing, connection, frame)
            if (throttling := self._host.throttling) is not None and throttling.active:
                throttling.charge_push_frame(connection, perf_counter() - began)
            return
        faults = self._faults
        if faults.active:
            frame = bytearray(frame)  # the request may wait
        client = connection.client
        repetition = client.repeated.get(frame[1]) if client.repeated else None
        template = None if repetition is None else repetition.template
        numbers = None if template is None else template.varying_numbers(frame)
        if numbers is None:
            request = self._read_request(connection, frame)
            if request is None:
                return
        else:
            assert repetition is not None
            assert template is not None
            key, version, _, client_id = template.header
            request = Request(connection, key, version, numbers[0], client_id)
            if client.held:
                self._host.answer_delayed_heartbeats(client)
            connection.pending.append(request)
            request.template, request.numbers = template, numbers
            if template.same is not None:
                request.message = template.same
            repetition.uses += 1
        key = request.key
        route, metrics = self._routes[key], self._apis[key]
        metrics.requests += 1
        request.latency = metrics.latency
        request.began = perf_counter()
        throttling = self._host.throttling
        login = client.login
        if throttling is not None and throttling.active and (login is None or login.is_authenticated):
            request.meter = throttling.begin_measuring(request, len(frame))
        if route.changes and (audit := self._host.audit) is not None:
            request.on_answer = audit.record_changes_of_response
        guard = self._host.authorizer
        if guard is not None and (refused := request_authorization_error(guard, request, route.needs)):
            request.reply(error_response(request, refused, refused.text))
            return
        if faults.active and faults.apply_rules(request, lambda: self._run(route, request)):
            return
        self._run(route, request)

    def _read_request(self, connection: Connection, frame: Frame) -> Request[Message] | None:
        """Decode a frame, and put its request into the connection's order; None: it is answered already.

        Raises:
            BadFrame: the frame is no request that this host serves.
        """
        try:
            header, body = decode_request_header(frame)
        except WireError as error:
            raise BadFrame(f"a request whose header can't be read: {error}") from None
        key, version, _, _ = header
        request: Request[Message] = Request(connection, *header)
        client = request.client
        if client.held:
            self._host.answer_delayed_heartbeats(client)
        connection.pending.append(request)
        route = self._routes.get(key)
        if route is None:
            raise BadFrame(f"api key {key} is not served here")
        if not route.low <= version <= route.high:
            if key != API_VERSIONS:
                raise BadFrame(f"{route.name} version {version} is not served here")
            self._unsupported(self._host, request)
            return None
        try:  # bytes after the message are ignored, as by Apache Kafka: librdkafka sends some when it lists all topics
            request.message, _ = route.decode(body, version)
        except WireError as error:
            raise BadFrame(f"{request.name} can't be read: {error}") from None
        if route.repeats:
            self._host.repeated.record_request(client, frame, header, request.message)
        return request

    def _run_pushing(
        self, pushing: Callable[[D, Connection, Frame], None], connection: Connection, frame: Frame
    ) -> None:
        try:
            pushing(self._host, connection, frame)
        except BadFrame:
            raise
        except Exception:
            log.error(
                "closing the connection from %s: unexpected error while handling a frame of the push protocol",
                connection.name,
            )
            connection.close()
            raise

    def _run(self, route: Route[D], request: Request[Message]) -> None:
        try:
            answer = route.handler(self._host, request)
        except KafkaError as error:
            answer = error_response(request, error.code, error.message)
        except OSError as error:
            log.error("request %s answered with KAFKA_STORAGE_ERROR: %s", request.name, error)
            answer = error_response(request, ErrorCode.KAFKA_STORAGE_ERROR, str(error))
        except BadFrame:
            raise
        except Exception:
            log.error("unexpected error while handling request %s: closing its connection", request.name)
            request.connection.close()
            raise
        if answer is not None:
            request.reply(answer)
        elif request.meter is not None:
            request.meter.stop_measuring()
