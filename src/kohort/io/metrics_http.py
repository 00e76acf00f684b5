"""Metrics for Prometheus: a small HTTP or HTTPS server on its own thread, and the page in the text format 0.0.4.

prometheus-client writes the same page. An exporter shows 75,000 samples for 500 groups of 50 partitions. The library
takes 20 µs for each, since it checks each label's name. It compresses the page as well as it can, which takes another
second. Here a sample takes 2 µs, and one family is in memory at a time. A family of many samples writes its own lines
(`PreformattedFamily`): then a sample takes under 1 µs.

Source: Prometheus, "Exposition formats", text-based format.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import socket
import socketserver
import ssl
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client.core import Metric
from prometheus_client.exposition import gzip_accepted
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from kohort.errors import KafkaError
from kohort.io.connection_gate import PausingServer
from kohort.io.host_header import names_loopback
from kohort.io.log_throttle import FailureThrottle
from kohort.io.platforms import reserve_port
from kohort.io.server_certificates import ServerCertificates

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

log = logging.getLogger("kohort.metrics")

RequestSocket: TypeAlias = socket.socket | tuple[bytes, socket.socket]
"""The request object of a socket server: of a stream, the connection."""
Address: TypeAlias = tuple[str, int] | tuple[str, int, int, int]
SCRAPES_MAX = 8
"""The most connections at once: each has a thread and a descriptor."""
SCRAPE_S = 10.0
"""The time for a whole scrape, from the connection to the answer's last byte (Prometheus waits 10 s by default)."""
HEADER_BYTES_MAX = 16 << 10
"""The most bytes of a request. Python's own parser would take 100 lines of 64 KiB."""


class _BoundedInput(socket.SocketIO):
    """The input of an HTTP request; a read raises OSError after `HEADER_BYTES_MAX` bytes."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, "r")
        self._left = HEADER_BYTES_MAX

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        """Receive at most as many bytes as are left."""
        if self._left == 0:
            raise OSError(errno.EMSGSIZE, f"a request of more than {HEADER_BYTES_MAX} bytes")
        count = super().readinto(memoryview(buffer)[: self._left])
        self._left -= count or 0
        return count


class _Request(WSGIRequestHandler):
    """The handler of one scrape request."""

    server: _Server
    timeout = SCRAPE_S

    def setup(self) -> None:
        """Limit how many bytes of a request are read."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_BoundedInput(self.connection))

    def parse_request(self) -> bool:
        """Parse the request; from now on the connection counts as served, and is the last to be closed for others."""
        parsed = super().parse_request()
        self.server.has_asked(self.connection)
        return parsed

    def log_message(self, format: str, *args: str | int) -> None:
        """Log nothing: scrapes come all the time."""


@dataclass(slots=True)
class _Scrape:
    has_asked: bool
    since: float


class _Server(ThreadingMixIn, PausingServer, WSGIServer):
    """The HTTP server. Slow clients can't keep others out.

    A connection beyond `SCRAPES_MAX` takes the place of the oldest one, first of those that have not sent their whole
    request: a scraper sends it at once, and its answer takes milliseconds. Every connection ends after `SCRAPE_S`.
    """

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = False  # `reserve_port` decides

    def __init__(self, address: tuple[str, int], tls: ServerCertificates | None) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._tls = tls
        self._failures = FailureThrottle(lambda: time.monotonic() * 1000)
        self._lock = threading.Lock()
        self._scrapes: dict[socket.socket, _Scrape] = {}
        super().__init__(address, _Request)

    def server_bind(self) -> None:
        """Bind without a look-up of the host's name."""
        reserve_port(self.socket)
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: RequestSocket, client_address: Address) -> None:
        """Serve the request in a thread."""
        assert isinstance(request, socket.socket)
        with self._lock:
            if len(self._scrapes) >= SCRAPES_MAX:
                self._abort(min(self._scrapes, key=lambda sock: astuple(self._scrapes[sock])))
            self._scrapes[request] = _Scrape(False, time.monotonic())
        super().process_request(request, client_address)

    def process_request_thread(self, request: RequestSocket, client_address: Address) -> None:
        """Serve the request, after the handshake if the server speaks TLS."""
        assert isinstance(request, socket.socket)
        served: socket.socket | None = request
        try:
            if self._tls is not None:
                served = self._after_handshake(request, client_address, self._tls)
            if served is not None:
                super().process_request_thread(served, client_address)
        finally:
            with self._lock:
                self._scrapes.pop(served or request, None)

    def _after_handshake(
        self, request: socket.socket, client_address: Address, tls: ServerCertificates
    ) -> ssl.SSLSocket | None:
        """Return the encrypted connection; None: it ended before."""
        context = tls.current_tls_context()
        request.settimeout(SCRAPE_S)
        secured = None
        try:
            with self._lock:
                scrape = self._scrapes.pop(request, None)
                if scrape is not None:
                    secured = context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
                    self._scrapes[secured] = scrape
            if secured is not None:
                secured.do_handshake()
                return secured
        except ssl.SSLEOFError:
            pass  # a probe of the port alone, or an abort
        except ssl.SSLError as error:
            if self._failures.should_log(error.reason):
                log.warning(
                    "TLS handshake with %s failed, its metrics scrape is not answered: %s",
                    client_address[0],
                    error.reason,
                )
        except OSError:
            pass  # the client has gone, or was too slow
        with self._lock:
            self._scrapes.pop(secured or request, None)
        (secured or request).close()
        return None

    def shutdown_request(self, request: RequestSocket) -> None:
        """End a connection; with TLS, send the closing alert that shows the client that the response is complete."""
        if isinstance(request, ssl.SSLSocket):
            request.setblocking(False)
            with contextlib.suppress(OSError, ValueError):  # the client's own end is not waited for
                request.unwrap()
        super().shutdown_request(request)

    def has_asked(self, request: socket.socket) -> None:
        """Record that a connection has sent its whole request, so that slower ones are closed first to make room."""
        with self._lock:
            if request in self._scrapes:
                self._scrapes[request].has_asked = True

    def service_actions(self) -> None:
        """End scrapes that take too long. Called at least twice a second."""
        before = time.monotonic() - SCRAPE_S
        with self._lock:
            for request in [sock for sock, scrape in self._scrapes.items() if scrape.since < before]:
                self._abort(request)

    def _abort(self, request: socket.socket) -> None:
        """Shut down a connection that takes too long, or makes room for another; its thread then closes the socket."""
        del self._scrapes[request]
        with contextlib.suppress(OSError):
            socket.socket.shutdown(request, socket.SHUT_RDWR)  # an SSLSocket's own would send the rest in plain text

    def handle_error(self, request: RequestSocket, client_address: Address) -> None:
        """Ignore a client that disconnected; log other errors with their traceback."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            log.error(
                "unexpected error while answering the metrics scrape from %s; closing its connection",
                client_address,
                exc_info=error,
            )


# -- The page

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_GZIP_BITS: Final = 31
"""zlib's largest window (15), and 16 for the header and trailer of gzip."""
_GZIP_LEVEL: Final = 1
"""The fastest: a page shrinks to a tenth already, and goes over a network once in a scrape."""
_PIECE_CHARS: Final = 1 << 17
"""Characters that are encoded and compressed at once."""
_PLAIN_MAX: Final = 1_000_000
"""Integers from here on have an exponent on the page."""
_float_text: Callable[[float], str] = floatToGoString
_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})

HEADERS: Final[Mapping[str, str]] = {"Cross-Origin-Resource-Policy": "same-origin", "X-Content-Type-Options": "nosniff"}
"""Headers of the page for browsers: no other page embeds it."""
_MISDIRECTED: Final = (
    b"the host in the address must be localhost or a loopback address; a proxy has to send such a name\n"
)

WsgiApp: TypeAlias = Callable[[dict[str, str], Callable[[str, list[tuple[str, str]]], object]], list[bytes]]


class PreformattedFamily(Metric):
    """A gauge of many samples that writes its lines of the metrics page itself, which saves time per sample.

    Attributes:
        lines: Returns pieces of whole lines.
        values: Returns the labels' values of each sample, and its value, for those that want `samples`.
        labels: The labels' names.
    """

    def __init__(
        self,
        name: str,
        documentation: str,
        labels: Sequence[str],
        lines: Callable[[], Iterator[str]],
        values: Callable[[], Iterator[tuple[Sequence[str], float]]],
    ) -> None:
        self.labels, self.lines, self.values = labels, lines, values
        super().__init__(name, documentation, "gauge")

    @property
    def samples(self) -> list[Sample]:
        """The samples, made when they are asked for: a page of 75,000 needs none of them."""
        return [Sample(self.name, dict(zip(self.labels, names, strict=True)), value) for names, value in self.values()]

    @samples.setter
    def samples(self, samples: list[Sample]) -> None:
        """Ignore the empty list that the library's initialiser sets."""


@lru_cache(maxsize=10_000)
def escape_label_value(value: str) -> str:
    """Return a label's value with the escapes of Prometheus's text format.

    The results are cached, because most values stand in many samples: groups, topics, members.
    """
    return value.translate(_ESCAPES)


def sample_number_text(value: float) -> str:
    """Return a sample's value in Prometheus's text format."""
    if type(value) is int and 0 <= value < _PLAIN_MAX:
        return f"{value}.0"
    return _float_text(value)


def page_lines(families: Iterable[Metric]) -> Iterator[str]:
    """Yield the text of the metrics page in pieces of one or several whole lines."""
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        meaning = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
        kind = "untyped" if family.type == "unknown" else family.type
        yield f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n"
        if isinstance(family, PreformattedFamily):
            yield from family.lines()
            continue
        for sample in family.samples:
            value = sample_number_text(sample.value)
            if not sample.labels:
                yield f"{sample.name} {value}\n"
                continue
            labels = ",".join(
                [f'{label}="{escape_label_value(text)}"' for label, text in sorted(sample.labels.items())]
            )
            yield f"{sample.name}{{{labels}}} {value}\n"


def metrics_page(families: Iterable[Metric], *, compressed: bool) -> list[bytes]:
    """Return the metrics page as pieces of bytes, so that a long page is in memory only once."""
    compressor = zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP_BITS) if compressed else None
    page, texts, size = list[bytes](), list[str](), 0
    for text in page_lines(families):
        texts.append(text)
        size += len(text)
        if size >= _PIECE_CHARS:
            page.append(_encoded(texts, compressor))
            texts.clear()
            size = 0
    page.append(_encoded(texts, compressor))
    if compressor is not None:
        page.append(compressor.flush())
    return page


def _encoded(texts: list[str], compressor: zlib._Compress | None) -> bytes:
    text = "".join(texts).encode()
    return text if compressor is None else compressor.compress(text)


def metrics_app(collector: Collector, *, is_local: bool = False) -> WsgiApp:
    """Return the WSGI application of the page.

    `?name[]=` selects families by name. All paths answer, as prometheus-client's do. One page is written at a time,
    since one of many groups takes memory.

    Args:
        collector: Yields the families.
        is_local: Refuse requests whose Host header names another host than this machine. Browsers always send one.
    """
    writing = threading.Lock()

    def app(request: dict[str, str], start: Callable[[str, list[tuple[str, str]]], object]) -> list[bytes]:
        if request["REQUEST_METHOD"] not in ("GET", "HEAD"):
            start("405 Method Not Allowed", [("Allow", "GET, HEAD")])
            return []
        if is_local and not names_loopback(request.get("HTTP_HOST", "localhost")):
            start("421 Misdirected Request", [("Content-Type", "text/plain; charset=utf-8")])
            return [_MISDIRECTED]
        wanted = set(parse_qs(request.get("QUERY_STRING", "")).get("name[]", ()))
        families = (family for family in collector.collect() if not wanted or _is_wanted(family, wanted))
        compressed = gzip_accepted(request.get("HTTP_ACCEPT_ENCODING", ""))
        with writing:
            page = metrics_page(families, compressed=compressed)
        headers = [
            ("Content-Type", CONTENT_TYPE),
            ("Content-Length", str(sum(map(len, page)))),
            *HEADERS.items(),
        ]
        start("200 OK", [*headers, *([("Content-Encoding", "gzip")] if compressed else [])])
        return page

    return app


def _is_wanted(family: Metric, names: set[str]) -> bool:
    return not names.isdisjoint((family.name, f"{family.name}_total"))


class MetricsServer:
    """A server that answers scrapes until it is closed.

    Raises:
        KafkaError: the address can't be listened on.
    """

    def __init__(
        self,
        host: str,
        port: int,
        collector: Collector,
        tls: ServerCertificates | None = None,
        *,
        is_insecure: bool = False,
    ) -> None:
        """Start the server.

        Args:
            host: The address to listen on. On loopback, web pages of other hosts get no answer.
            port: The port; 0: any free one.
            collector: Each scrape queries it on a thread of its own.
            tls: The TLS of connections; None: plain HTTP.
            is_insecure: The operator lets everyone read the metrics, so that web pages may too.
        """
        try:
            self._server = _Server((host, port), tls)
        except OSError as error:
            raise KafkaError(f"can't serve metrics on {host}:{port}: {error.strerror or error}") from None
        bound = self._server.server_name
        is_local = names_loopback(f"[{bound}]" if ":" in bound else bound)
        is_open = is_insecure or (tls is not None and tls.requires_client_certificates)
        self._server.set_app(metrics_app(collector, is_local=is_local and not is_open))
        self._thread = threading.Thread(target=self._server.serve_forever, name="kohort-metrics", daemon=True)
        self._thread.start()
        self.address = f"{host}:{self._server.server_port}"
        log.info(
            "metrics for Prometheus are served on %s://%s/metrics", "http" if tls is None else "https", self.address
        )

    def close(self) -> None:
        """Stop the server and release the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
