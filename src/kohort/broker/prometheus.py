"""The broker's figures for Prometheus: a small HTTP server of its own thread, by prometheus-client.

The thread asks the loop for a snapshot and turns it into text itself, so that a scrape holds up no request.
"""

from __future__ import annotations

import logging
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator
from socketserver import ThreadingMixIn
from typing import Final, Literal, TypeAlias
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    UntypedMetricFamily,
)
from prometheus_client.registry import Collector

from kohort.broker.metrics import GROUP_METRICS, HistogramSummary, Snapshot
from kohort.errors import KafkaError

log = logging.getLogger("kohort.broker")

Asked: TypeAlias = socket.socket | tuple[bytes, socket.socket]
"""What a socket server hands on: of a stream the connection."""
Address: TypeAlias = tuple[str, int] | tuple[str, int, int, int]
SCRAPES_MAX = 8
"""Scrapes at once: beyond it connections are refused."""
SCRAPE_S = 10.0
"""A client that says nothing for so long is let go."""
Timed: TypeAlias = Literal["rebalance", "standstill", "event-queue", "step", "journal-append"]
HISTOGRAMS: Final[dict[Timed, tuple[str, str]]] = {
    "rebalance": ("kohort_rebalance_seconds", "From the first change until a group was whole again"),
    "standstill": ("kohort_standstill_seconds", "Mean time that who stood still did so in a rebalance"),
    "event-queue": ("kohort_event_queue_seconds", "How long the oldest event of a batch waited"),
    "step": ("kohort_step_seconds", "A batch of events in the group coordinator"),
    "journal-append": ("kohort_journal_append_seconds", "A batch's records into the journal"),
}


class Exporter(Collector):
    """Turns snapshots into metric families."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def describe(self) -> Iterator[Metric]:
        """Nothing is known before the first snapshot."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """One snapshot."""
        found = self._snapshot()
        yield from _kafka_meters(found[GROUP_METRICS])
        yield from _groups(found)
        for timed, (title, text) in HISTOGRAMS.items():
            family = HistogramMetricFamily(title, text)
            _add_histogram(family, [], found[timed])
            yield family
        latency = HistogramMetricFamily(
            "kohort_request_seconds", "From a request's arrival to its answer", labels=["api"]
        )
        requests = CounterMetricFamily("kohort_requests", "Requests that arrived", labels=["api"])
        for api, count in found["requests"].items():
            requests.add_metric([api], count)
            _add_histogram(latency, [api], found["latency"][api])
        yield requests
        yield latency
        yield GaugeMetricFamily("kohort_connections", "Open connections", value=found["connections"])
        for name, count in found["held"].items():
            title = f"kohort_{name.replace('-', '_')}"
            yield CounterMetricFamily(title, "Held heartbeats of classic members by how they ended", value=count)
        yield CounterMetricFamily("kohort_events", "Events that the group coordinators took in", value=found["events"])


def _kafka_meters(meters: dict[str, float]) -> Iterator[Metric]:
    """Under the names that Kafka's beans get from the usual JMX exporter."""
    for name, value in meters.items():
        title = f"kafka.server_{GROUP_METRICS}_{name}".replace(".", "_").replace("-", "_")
        yield UntypedMetricFamily(title, f"Kafka's {name} of {GROUP_METRICS}", value=value)


def _groups(found: Snapshot) -> Iterator[Metric]:
    states = GaugeMetricFamily("kohort_groups", "Groups", labels=["protocol", "state"])
    for protocol, counts in found["groups"].items():
        for state, count in counts.items():
            states.add_metric([protocol, state], count)
    yield states
    whole = CounterMetricFamily("kohort_group_rebalance_seconds", "Time in rebalances, by group", labels=["group"])
    still = CounterMetricFamily("kohort_group_standstill_seconds", "Time stood still, by group", labels=["group"])
    completed = CounterMetricFamily("kohort_group_rebalances", "Completed rebalances, by group", labels=["group"])
    for group, values in found["rebalances"].items():
        whole.add_metric([group], values["whole_ms"] / 1000)
        still.add_metric([group], values["standstill_ms"] / 1000)
        completed.add_metric([group], values["completed"])
    yield from (whole, still, completed)


def _add_histogram(family: HistogramMetricFamily, labels: list[str], values: HistogramSummary) -> None:
    buckets, seen = [], 0
    for bound, count in values["buckets"]:
        seen += count
        buckets.append(("+Inf" if bound == float("inf") else repr(bound), float(seen)))
    family.add_metric(labels, buckets, values["total_s"])


class _Request(WSGIRequestHandler):
    """A scrape; who asks for nothing is not waited for."""

    timeout = SCRAPE_S

    def log_message(self, format: str, *args: str | int) -> None:
        """Say nothing: scrapes come all the time."""


class _Server(ThreadingMixIn, WSGIServer):
    """Takes scrapes, as many at once as are of use: each has a thread and a descriptor."""

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

    def process_request(self, request: Asked, client_address: Address) -> None:
        """Serve in a thread, or refuse."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Asked, client_address: Address) -> None:
        """Serve."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Asked, client_address: Address) -> None:
        """A client that broke off; a fault of ours has its traceback in the log."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            log.error("metrics for %s failed", client_address, exc_info=error)


class MetricsServer:
    """Answers scrapes until closed.

    Raises:
        KafkaError: the address can't be listened on.
    """

    def __init__(self, host: str, port: int, snapshot: Callable[[], Snapshot]) -> None:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Exporter(snapshot))
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
        """Let go of the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
