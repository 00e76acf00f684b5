"""Metrics for Prometheus: a small HTTP server on its own thread, by prometheus-client."""

from __future__ import annotations

import logging
import socket
import socketserver
import sys
import threading
from socketserver import ThreadingMixIn
from typing import TypeAlias
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.registry import Collector

from kohort.errors import KafkaError

log = logging.getLogger("kohort.metrics")

RequestSocket: TypeAlias = socket.socket | tuple[bytes, socket.socket]
"""The request object of a socket server: of a stream, the connection."""
Address: TypeAlias = tuple[str, int] | tuple[str, int, int, int]
SCRAPES_MAX = 8
"""The maximum number of concurrent scrapes; more connections are refused."""
SCRAPE_S = 10.0
"""The time after which a silent client is disconnected."""


class _Request(WSGIRequestHandler):
    """One scrape; a client that sends no request is disconnected after `SCRAPE_S`."""

    timeout = SCRAPE_S

    def log_message(self, format: str, *args: str | int) -> None:
        """Log nothing: scrapes come all the time."""


class _Server(ThreadingMixIn, WSGIServer):
    """The HTTP server, with a limit on concurrent scrapes: each has a thread and a descriptor."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._room = threading.Semaphore(SCRAPES_MAX)
        super().__init__(address, _Request)

    def server_bind(self) -> None:
        """Bind without a look-up of the host's name."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: RequestSocket, client_address: Address) -> None:
        """Serve the request in a thread, or refuse it."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: RequestSocket, client_address: Address) -> None:
        """Serve the request."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: RequestSocket, client_address: Address) -> None:
        """Ignore a client that disconnected; log other errors with their traceback."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            log.error("metrics for %s failed", client_address, exc_info=error)


class MetricsServer:
    """A server that answers scrapes until it is closed.

    Raises:
        KafkaError: the address can't be listened on.
    """

    def __init__(self, host: str, port: int, collector: Collector) -> None:
        """Start the server. Each scrape queries `collector` on a thread of its own."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(collector)
        try:
            self._server = _Server((host, port))
        except OSError as error:
            raise KafkaError(f"can't serve metrics on {host}:{port}: {error.strerror or error}") from None
        self._server.set_app(make_wsgi_app(registry))
        self._thread = threading.Thread(target=self._server.serve_forever, name="kohort-metrics", daemon=True)
        self._thread.start()
        self.address = f"{host}:{self._server.server_port}"
        log.info("metrics on http://%s/metrics", self.address)

    def close(self) -> None:
        """Stop the server and release the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
