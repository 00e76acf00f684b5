"""A receiver of OTLP over HTTP, which reads what arrives by OpenTelemetry's own protobuf classes."""

from __future__ import annotations

import gzip
import ssl
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
"""Values by metric and sorted labels."""


@dataclass(frozen=True)
class Received:
    """One request."""

    path: str
    headers: Mapping[str, str]
    message: Any

    @property
    def resource(self) -> dict[str, str]:
        (resource,) = self.message.resource_metrics
        return {pair.key: pair.value.string_value for pair in resource.resource.attributes}

    @property
    def sent_ns(self) -> int:
        """The time of its samples; those of one send have the same."""
        (found,) = {point.time_unix_nano for _, point in self.points()}
        return found

    def points(self) -> Iterable[tuple[Any, Any]]:
        """Each metric with each of its points."""
        for resource in self.message.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in getattr(metric, metric.WhichOneof("data")).data_points:
                        yield metric, point

    def samples(self) -> Samples:
        found: Samples = {}
        for metric, point in self.points():
            if metric.WhichOneof("data") == "sum":
                assert metric.sum.is_monotonic
                assert metric.sum.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
            labels = tuple(sorted((pair.key, pair.value.string_value) for pair in point.attributes))
            assert (metric.name, labels) not in found
            found[metric.name, labels] = point.as_double
        return found


@dataclass
class OtlpReceiver:
    """The server; `answers` are the statuses of the next requests, then 200.

    Attributes:
        received: The requests that were taken, oldest first.
        partial: What each answer says about samples that were not taken.
    """

    tls: ssl.SSLContext | None = None
    port: int = 0
    received: list[Received] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    partial: str = ""

    def __enter__(self) -> Self:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                status = outer.answers.pop(0) if outer.answers else 200
                answer = ExportMetricsServiceResponse()
                if status == 200:
                    message = ExportMetricsServiceRequest.FromString(body)
                    headers = {name.lower(): value for name, value in self.headers.items()}
                    outer.received.append(Received(self.path, headers, message))
                    if outer.partial:
                        answer.partial_success.rejected_data_points = 3
                        answer.partial_success.error_message = outer.partial
                content = answer.SerializeToString()
                self.send_response(status)
                self.send_header("content-length", str(len(content)))
                self.send_header("location", "http://127.0.0.1:1/elsewhere")
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        if self.tls is not None:
            self._server.socket = self.tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(30)

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self.port}"
