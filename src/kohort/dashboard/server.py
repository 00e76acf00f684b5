"""The dashboard's HTTP side: pages, answers as JSON, events, and logins."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.resources import files
from typing import Any, TypeVar, cast

import h11
import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from kohort.dashboard.cluster_lookups import BusyError, ClusterLookups
from kohort.dashboard.group_changes import ConfirmBody, GroupChanges, PreviewBody
from kohort.dashboard.guard import (
    OPEN,
    SECRET,
    DashboardAccess,
    DashboardGuard,
    decode_body,
    error_answer,
    failure_response,
    json_response,
    renewed_context,
    session_user_of,
)
from kohort.dashboard.observer import ClusterObserver
from kohort.dashboard.record_peek import PeekRequest
from kohort.errors import InvalidInputError, KafkaError, NotAuthorizedError
from kohort.io.closing import ClosedOnExit
from kohort.io.log_throttle import FailureThrottle
from kohort.io.platforms import reserve_port
from kohort.lag.history_file import RETENTION_MAX_MS

T = TypeVar("T")
log = logging.getLogger("kohort.dashboard")

LOOKUP_THREADS = 6
"""The most calls to the cluster at once for topics and records, for all pages."""
REGION_THREADS = 2
"""The most calls at once for regions, which may wait for a control plane."""
STREAMS_MAX = 64
"""The most pages that get events. Others are refused them, and try again."""
PASTS_MAX = 4
"""The most requests for the history that wait for its disk; a page has one at a time."""
CHANGES_MAX = 4
"""The most previews and changes that wait for the cluster."""
CONNECTIONS_MAX = 256
"""The most connections, those in a TLS handshake included. A further one replaces the one that has waited longest for a
request, or is closed."""
BACKLOG = 128
"""The most connections that the kernel keeps before they are accepted."""
ACCEPT_RETRY_S = 0.1
"""How soon the next connection is accepted after one could not be."""
WAIT_S = 10.0
"""How long a connection may be without a whole request, or an answer without progress."""
UNSENT_BYTES_MAX = 64 << 20
"""The most bytes of answers that wait for their readers; then the connection with most of them is closed."""
_CHECK_PARTS = 10
"""Number of checks in `WAIT_S`."""
REQUEST_BYTES_MAX = 16 << 10
"""The most bytes of a request's line and headers."""
HEARTBEAT_S = 15.0
"""How often a stream without news sends a comment, so that a connection that is dead is noticed."""
STOP_S = 2
"""How long the end waits for answers that are under way."""
QUERY_MAX = 1_000
"""The longest value of a query."""

FILES: Mapping[str, tuple[str, str]] = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/elements.js": ("elements.js", "text/javascript; charset=utf-8"),
    "/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
    "/pages.js": ("pages.js", "text/javascript; charset=utf-8"),
    "/changes.js": ("changes.js", "text/javascript; charset=utf-8"),
    "/login.js": ("login.js", "text/javascript; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


class LoginBody(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON body of a login request: user and password."""

    user: str
    password: str


class DashboardRoutes:
    """The dashboard's HTTP routes and their handlers.

    Args:
        observer: Answers requests about groups, from the last read of the cluster.
        lookups: Answers requests for which the cluster must be asked.
        access: Who may use the dashboard.
    """

    def __init__(self, observer: ClusterObserver, lookups: ClusterLookups, access: DashboardAccess) -> None:
        self._observer, self._lookups, self._access = observer, lookups, access
        self._cluster = ThreadPoolExecutor(LOOKUP_THREADS, "kohort-dashboard-lookup")
        self._regions = ThreadPoolExecutor(REGION_THREADS, "kohort-dashboard-region")
        self._memory = ThreadPoolExecutor(1, "kohort-dashboard-group")  # waits for no cluster
        self._disk = ThreadPoolExecutor(1, "kohort-dashboard-history")  # a disk that hangs delays nothing else
        self._files = {path: _file(name, kind) for path, (name, kind) in FILES.items()}
        self._group_changes = GroupChanges(lookups.admin)
        self._changing = ThreadPoolExecutor(1, "kohort-dashboard-change")
        self._turn = asyncio.Lock()
        self._streams = self._pasts = self._waiting_changes = 0
        self.is_closing = False

    def close(self) -> None:
        """End the open event streams, and refuse further requests to the cluster and changes."""
        self.is_closing = True
        for threads in (self._cluster, self._regions, self._memory, self._disk, self._changing):
            threads.shutdown(wait=False, cancel_futures=True)

    def app(self) -> ASGIApp:
        """Return the ASGI application, with all routes behind the guard."""
        observer, lookups = self._observer, self._lookups
        answers: dict[str, tuple[ThreadPoolExecutor, Callable[[Request], Any]]] = {
            "/api/group": (self._memory, lambda request: observer.group(_text(request, "name"))),
            "/api/topics": (self._cluster, lambda request: self._with_readers(lookups.topics())),
            "/api/topic": (self._cluster, lambda request: self._with_readers(lookups.topic(_text(request, "name")))),
            "/api/records": (self._cluster, lambda request: lookups.records(_peek_request(request))),
            "/api/regions": (self._regions, lambda request: self._with_cluster(lookups.regions())),
            "/api/region": (self._regions, self._region),
            "/api/coordinators": (self._cluster, lambda request: self._with_cluster(lookups.coordinators())),
        }
        routes = [Route(path, self._in_thread(*answer), methods=["GET"]) for path, answer in answers.items()]
        routes += [Route(path, self._file, methods=["GET"]) for path in FILES]
        routes.append(Route("/api/past", self._past, methods=["GET"]))
        routes.append(Route("/api/overview", self._overview, methods=["GET"]))
        routes.append(Route("/api/events", self._events, methods=["GET"]))
        routes.append(Route("/api/session", self._session, methods=["GET"]))
        changes = []
        if self._access.logins is not None:
            changes += [
                Route("/api/login", self._login, methods=["POST"]),
                Route("/api/logout", self._logout, methods=["POST"]),
            ]
        if self._access.allows_changes:
            changes += [
                Route("/api/preview", self._preview, methods=["POST"]),
                Route("/api/change", self._change, methods=["POST"]),
            ]
        paths = frozenset(route.path for route in changes)
        return DashboardGuard(Starlette(routes=[*routes, *changes]), self._access, paths)

    async def _session(self, request: Request) -> Response:
        has_login, changes = self._access.logins is not None, self._access.allows_changes
        return json_response({"login": has_login, "user": session_user_of(request), "changes": changes})

    async def _preview(self, request: Request) -> Response:
        return await self._in_turn(request, PreviewBody, self._group_changes.preview)

    async def _change(self, request: Request) -> Response:
        user = session_user_of(request)
        return await self._in_turn(
            request, ConfirmBody, lambda asked, owner: self._group_changes.confirm(asked.token, owner, user)
        )

    async def _in_turn(self, request: Request, kind: type[T], make: Callable[[T, str], Any]) -> Response:
        """Run the handler of a preview or a change, one after the other; refuse the request if too many wait."""
        try:
            asked = await decode_body(request, kind)
        except KafkaError as error:
            return failure_response(error)
        if self._waiting_changes >= CHANGES_MAX:
            return failure_response(BusyError("other changes are under way: try again"))
        self._waiting_changes += 1
        try:
            async with self._turn:
                if not self._is_current(request):
                    what = request.url.path.rpartition("/")[2]
                    log.warning(
                        "[user %s] request %s refused: the user's login ended while it waited for another change",
                        session_user_of(request),
                        what,
                    )
                    return error_answer(401, "log in", "not_authorized")
                return await self._in_thread(self._changing, lambda found: make(asked, found.scope[SECRET]))(request)
        finally:
            self._waiting_changes -= 1

    async def _login(self, request: Request) -> Response:
        assert self._access.logins is not None
        try:
            asked = await decode_body(request, LoginBody)
            address = request.client.host if request.client else ""
            secret = self._access.logins.log_in(address, asked.user, asked.password)
        except NotAuthorizedError as error:
            return error_answer(401, error.message, "not_authorized")
        except KafkaError as error:
            return failure_response(error)
        self._access.logins.log_out(request.scope[SECRET])
        answer = json_response({"user": asked.user})
        self._access.set_cookie(answer, secret)
        return answer

    async def _logout(self, request: Request) -> Response:
        assert self._access.logins is not None
        self._access.logins.log_out(request.scope[SECRET])
        answer = json_response({})
        self._access.set_cookie(answer, None)
        return answer

    def _is_current(self, request: Request) -> bool:
        """Return whether the login session of a request is still valid, after the request has waited."""
        return self._access.logins is None or self._access.logins.find_session(request.scope[SECRET]) is not None

    async def _file(self, request: Request) -> Response:
        body, kind = self._files[request.url.path]
        return Response(body, media_type=kind)

    async def _overview(self, request: Request) -> Response:
        return json_response(self._observer.overview())

    async def _past(self, request: Request) -> Response:
        """Answer a request for a group's past lag from the history file; refuse it if too many wait for the disk."""
        if self._pasts >= PASTS_MAX:
            return failure_response(BusyError("the history is being read for other pages; the page asks again"))
        self._pasts += 1
        try:
            return await self._in_thread(
                self._disk, lambda request: self._observer.lag_history(_text(request, "name"), _last_ms(request))
            )(request)
        finally:
            self._pasts -= 1

    def _region(self, request: Request) -> dict[str, Any]:
        found = self._lookups.region(_text(request, "name"))
        return {"cluster": self._observer.cluster(), "region": found}

    def _in_thread(
        self, threads: ThreadPoolExecutor, answer: Callable[[Request], Any]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def respond_from_thread(request: Request) -> Response:
            try:
                future = threads.submit(lambda: msgspec.json.encode(answer(request)))
            except RuntimeError:
                if not self.is_closing:
                    raise
                return _closing_answer()
            try:
                body = await asyncio.wrap_future(future)
            except KafkaError as error:
                return failure_response(error)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not self.is_closing or task is None or task.cancelling():
                    raise
                return _closing_answer()  # `close` cancelled the work, not the request
            return Response(body, media_type="application/json")

        return respond_from_thread

    def _with_cluster(self, found: Mapping[str, Any]) -> dict[str, Any]:
        return {"cluster": self._observer.cluster(), **found}

    def _with_readers(self, found: Mapping[str, Any]) -> dict[str, Any]:
        readers = self._observer.readers()
        view = {"cluster": self._observer.cluster(), **found}
        if "topics" in found:
            view["topics"] = [{**row, "readers": readers.get(row["topic"], [])} for row in found["topics"]]
        else:
            view["readers"] = readers.get(found["topic"], [])
        return view

    async def _events(self, request: Request) -> Response:
        if self._streams >= STREAMS_MAX:
            return error_answer(503, f"{STREAMS_MAX} pages are open", "refused")
        return StreamingResponse(self._stream(request), media_type="text/event-stream")

    async def _stream(self, request: Request) -> AsyncIterator[str]:
        """Yield a server-sent event at once, after each read, and after `HEARTBEAT_S` without one.

        The stream ends when the page is closed, the login is over, or the server closes.
        """
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def on_read() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(news.set)

        self._streams += 1
        self._observer.listeners.add_listener(on_read)
        try:
            yield "retry: 2000\n\n"
            while not self.is_closing and self._is_current(request):
                yield f"event: read\ndata: {json.dumps({'version': self._observer.version})}\n\n"
                try:
                    await asyncio.wait_for(news.wait(), HEARTBEAT_S)
                except TimeoutError:
                    yield ": no news\n\n"
                news.clear()
        finally:
            self._observer.listeners.remove_listener(on_read)
            self._streams -= 1


def _closing_answer() -> Response:
    return error_answer(503, "the dashboard is closing", "refused")


def _file(name: str, kind: str) -> tuple[bytes, str]:
    return files("kohort.dashboard").joinpath("static", name).read_bytes(), kind


def _text(request: Request, name: str) -> str:
    value = request.query_params.get(name, "")
    if not value or len(value) > QUERY_MAX:
        raise InvalidInputError(f"{name}: give 1 to {QUERY_MAX} characters")
    return value


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 19):
        raise InvalidInputError(f"{name}: give a number, not {text[:40]!r}")
    return int(text)


def _last_ms(request: Request) -> int:
    found = _number(request, "last_ms")
    if found is None or not 0 < found <= RETENTION_MAX_MS:
        raise InvalidInputError(f"last_ms: give milliseconds up to {RETENTION_MAX_MS}")
    return found


def _peek_request(request: Request) -> PeekRequest:
    contains = request.query_params.get("contains", "")
    if len(contains) > QUERY_MAX:
        raise InvalidInputError(f"contains: give at most {QUERY_MAX} characters")
    limit = _number(request, "limit")
    return PeekRequest(
        _text(request, "topic"),
        _number(request, "partition"),
        _number(request, "offset"),
        50 if limit is None else limit,
        contains,
    )


class _WholeRequests(h11.Connection):
    """An h11 connection that refuses requests with chunked bodies, which browsers do not send.

    A chunk may have one byte, and takes the event loop as long as a long one. From 256 connections 16 MB of such chunks
    would take it for a quarter of a minute.
    """

    def next_event(self) -> type[h11.NEED_DATA | h11.PAUSED] | h11.Event:
        """Return the next h11 event of a request.

        Raises:
            RemoteProtocolError: The bytes are no request, or its body comes in chunks.
        """
        event = super().next_event()
        if isinstance(event, h11.Request) and any(name == b"transfer-encoding" for name, _ in event.headers):
            raise h11.RemoteProtocolError("a body in chunks")
        return event


class LimitedProtocol(H11Protocol):
    """An HTTP connection that is closed when it waits for too long, or when a new connection needs its place.

    uvicorn's own limit answers 503 to everyone while it is reached, and closes nothing. Here a connection that only
    waits for a request makes room for a new one, so that idle connections keep nobody out. A connection has its place
    from `accept` on, so that TLS handshakes are counted too.

    Attributes:
        places: The connections that have a place, which are limited.
        sock: The connection's socket.
        is_served: Whether the TLS handshake is over, so that requests are served.
    """

    places: set[LimitedProtocol]
    sock: socket.socket
    is_served = False
    _check: asyncio.TimerHandle | None = None
    _waits_since_s = 0.0
    _unsent_then, _stands_since_s = 0, 0.0

    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self.conn = _WholeRequests(h11.SERVER, REQUEST_BYTES_MAX)

    def occupy_place(self, places: set[LimitedProtocol], sock: socket.socket) -> None:
        """Count this connection among the limited ones, before the TLS handshake."""
        self.places, self.sock = places, sock
        self._waits_since_s = self.loop.time()
        places.add(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to serve requests after the TLS handshake, unless the connection lost its place meanwhile."""
        if self not in self.places:
            transport.abort()
            return
        super().connection_made(transport)
        self.is_served = True
        self._waits_since_s = self._stands_since_s = self.loop.time()
        self._check_later()

    def close_for_another(self) -> None:
        """Close this connection to make room for a new one."""
        self.places.discard(self)
        if self.is_served:
            self.transport.abort()
        else:
            with contextlib.suppress(OSError):  # the client is gone
                self.sock.shutdown(socket.SHUT_RDWR)  # which ends the handshake

    def _others(self) -> list[LimitedProtocol]:
        return [cast(LimitedProtocol, found) for found in self.connections]

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the connection's place when it has closed."""
        self.places.discard(self)
        if self._check is not None:
            self._check.cancel()
        if self.is_served:
            super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Begin to wait for the next request on this connection."""
        self._waits_since_s = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Pause the response until the browser has read; close the connections whose browsers have too much unread."""
        super().pause_writing()
        others = self._others()
        unsent = sum(found.unsent_bytes() for found in others)
        while unsent > UNSENT_BYTES_MAX:
            most = max(others, key=LimitedProtocol.unsent_bytes)
            unsent -= most.unsent_bytes()
            others.remove(most)
            most.transport.abort()

    def unsent_bytes(self) -> int:
        """Return the number of bytes of the response that wait in the send buffer."""
        return self.transport.get_write_buffer_size()

    def may_lose_place(self) -> bool:
        """Return whether this connection may be closed for a new one: it has no complete request or unsent response."""
        if not self.is_served:
            return True
        cycle = self.cycle
        return (cycle is None or cycle.response_complete or cycle.more_body) and not self.unsent_bytes()

    def waiting_since_s(self) -> float:
        """Return the time since which the connection waits for a request, in s on the event loop's clock."""
        return self._waits_since_s

    def _check_later(self) -> None:
        self._check = self.loop.call_later(WAIT_S / _CHECK_PARTS, self._end_if_stuck)

    def _end_if_stuck(self) -> None:
        """Close the connection if it waits for a request, or for its browser to read, for longer than `WAIT_S`."""
        now_s, unsent = self.loop.time(), self.unsent_bytes()
        if not unsent or unsent < self._unsent_then:
            self._stands_since_s = now_s
        self._unsent_then = unsent
        if unsent:
            self._waits_since_s = now_s  # the answer is not over yet
        if now_s - (self._waits_since_s if self.may_lose_place() else self._stands_since_s) >= WAIT_S:
            self.transport.abort()
        else:
            self._check_later()


class LimitedServer(uvicorn.Server):
    """A uvicorn server with a limit on connections, which includes those in the TLS handshake.

    asyncio's own servers show a connection only after its handshake, and log a traceback for each failing `accept`.

    Attributes:
        tls: The TLS settings of connections; None: plain HTTP.
        places: The open connections.
    """

    tls: ssl.SSLContext | None = None

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.places: set[LimitedProtocol] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures = FailureThrottle(lambda: time.monotonic() * 1000)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections on these listening sockets."""
        for sock in sockets or ():
            sock.setblocking(False)
            self._begin_connection(self._accept_waiting(sock))
        self.servers = []
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, close connections in the TLS handshake, and let responses that are being sent end."""
        for opening in [place for place in self.places if not place.is_served]:
            opening.close_for_another()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await super().shutdown(sockets)

    def _begin_connection(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept_waiting(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listening)
            except OSError as error:  # the process has no more descriptors, or the client is gone
                if self._failures.should_log(error.errno):
                    log.warning("the dashboard can't accept a connection, retrying: %s", error)
                self._make_room()
                await asyncio.sleep(ACCEPT_RETRY_S)
                continue
            if len(self.places) < CONNECTIONS_MAX or self._make_room():
                protocol = LimitedProtocol(self.config, self.server_state, self.lifespan.state, loop)
                protocol.occupy_place(self.places, sock)
                self._begin_connection(self._open_connection(protocol))
            else:
                sock.close()
            await asyncio.sleep(0)  # an accept that need not wait lets nothing else run

    def _make_room(self) -> bool:
        waiting = [place for place in self.places if place.may_lose_place()]
        if not waiting:
            return False
        min(waiting, key=LimitedProtocol.waiting_since_s).close_for_another()
        return True

    async def _open_connection(self, protocol: LimitedProtocol) -> None:
        limit_s = None if self.tls is None else WAIT_S
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol, protocol.sock, ssl=self.tls, ssl_handshake_timeout=limit_s
            )
        except OSError as error:  # the handshake failed
            error.__traceback__ = None  # its frames are in a cycle with the connection's buffers
        finally:
            if not protocol.is_served:
                self.places.discard(protocol)


class DashboardServer(ClosedOnExit):
    """The dashboard's HTTP server, on a thread of its own until it is closed.

    Attributes:
        address: HOST:PORT.
        url: The page's URL.

    Raises:
        InvalidInputError: Other machines can reach the address, and users do not log in, or not over TLS.
        KafkaError: The address can't be listened on.
    """

    def __init__(
        self,
        host: str,
        port: int,
        observer: ClusterObserver,
        lookups: ClusterLookups,
        access: DashboardAccess = OPEN,
    ) -> None:
        access.check(host, port)
        sock = _listening_socket(host, port, access)
        bound = sock.getsockname()[1]
        self.address = f"{f'[{host}]' if ':' in host else host}:{bound}"
        access = replace(access, port=bound)
        self._observer = observer
        self._routes = DashboardRoutes(observer, lookups, access)
        config = uvicorn.Config(
            self._routes.app(),
            loop="asyncio",
            http=LimitedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # its warnings are of what clients send, one for each request
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=STOP_S,
            h11_max_incomplete_event_size=REQUEST_BYTES_MAX,
        )
        self.url = f"http{'' if access.tls is None else 's'}://{self.address}/"
        self._server = LimitedServer(config)
        self._server.tls = None if access.tls is None else renewed_context(access.tls)
        self._sock = sock
        self._thread = threading.Thread(target=self._run, name="kohort-dashboard", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.run(self._server.serve([self._sock]))

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._server.places)

    def close(self) -> None:
        """End the event streams and the server; may be called again."""
        self._routes.close()
        self._observer.listeners.call_all()
        self._server.should_exit = True
        self._thread.join()
        self._sock.close()


def _listening_socket(host: str, port: int, access: DashboardAccess) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        reserve_port(sock)
        sock.bind((host, port))
        access.check(sock.getsockname()[0], port)  # a name such as localhost may lead elsewhere
        sock.listen(BACKLOG)
    except InvalidInputError:
        sock.close()
        raise
    except OSError as error:
        sock.close()
        raise KafkaError(f"can't listen on {host}:{port}: {error.strerror or error}") from None
    return sock
