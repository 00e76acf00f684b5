"""Metrics of the exporter, sent to an OpenTelemetry collector: OTLP over HTTP, as protobuf.

The samples are those of `/metrics` with the same names and labels, from the same collector. A counter has the name of
its sample, with `_total`. So a Prometheus behind the collector stores the same series as one that scrapes the page.

| case | what happens |
|---|---|
| after a read | everything is sent, at most once in an interval; without a read, once in two intervals |
| the collector is away | the library retries for 10 s; what was not sent is dropped, as in a missed scrape |
| the collector comes back | the next send has the present values; counters are cumulative and miss nothing |
| many series | several requests of `POINTS_MAX` samples each, one in memory at a time |
| credentials | in the environment variables of OpenTelemetry only; a URL with a password or a query is refused |
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import requests
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from kohort.errors import InvalidInputError
from kohort.io.log_throttle import FailureThrottle
from kohort.settings.config import is_loopback
from kohort.settings.server_access import refuse_plain_beyond_loopback

log = logging.getLogger("kohort.lag")

POINTS_MAX = 5_000
"""The most samples of a request: about 1 MiB. Collectors refuse requests of more than 20 MiB unless told otherwise."""
METRICS_PATH = "/v1/metrics"
CLOSE_S = 2.0
"""How long `close` waits for a request under way."""
TEXT_CHARS_MAX = 200
"""The most characters of a collector's own text in the log."""
ANSWER_BYTES_MAX = 64 << 10
"""The most bytes of an answer that are read. It is a short message, with a text about what was not taken."""
ANSWER_S = 10.0
"""The longest time that the body of an answer is read. The library's timeout is that of a single read."""
_FILES = ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY")
_LIBRARY_HEADERS = {
    "accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "user-agent",
}  # fmt: skip
_LIBRARY_LOGGERS = ("opentelemetry.exporter.otlp.proto.http.metric_exporter", "opentelemetry.util.re")
"""The library logs each attempt, and entries of invalid headers with their values."""


def collector_url(url: str, *, is_insecure: bool) -> str:
    """Return the URL to which metrics are posted: the given one, with `/v1/metrics` appended unless it ends so.

    Args:
        url: The collector's http or https URL, as OTEL_EXPORTER_OTLP_ENDPOINT has it.
        is_insecure: Whether metrics may cross the network unencrypted.

    Raises:
        InvalidInputError: The URL is malformed, has credentials or a query, or is plain http to another machine.
    """
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError:
        parts, host = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not host:
        raise InvalidInputError("a collector's URL is like https://collector:4318 or http://127.0.0.1:4318")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise InvalidInputError(
            f"{parts.scheme}://{host}: a command line is visible to every user of this machine, so the URL may have no "
            "password and no query; put credentials into the environment variable OTEL_EXPORTER_OTLP_HEADERS"
        )
    if parts.scheme == "http" and not is_insecure:
        refuse_plain_beyond_loopback(url, host, "read every group's lag and the headers", "--otlp-insecure")
    path = parts.path.rstrip("/")
    return parts._replace(path=path if path.endswith(METRICS_PATH) else path + METRICS_PATH).geturl()


class OtlpPush:
    """A thread that sends metrics to an OpenTelemetry collector (OTLP over HTTP) after each read, until it is closed.

    Args:
        url: Where metrics are posted to, from `collector_url`. Headers, certificates, compression and the timeout are
            those of the environment variables `OTEL_EXPORTER_OTLP_…`.
        collector: The Prometheus collector that yields the metrics.
        interval_s: The time between two reads.
        is_read: Set after each read, also after one that failed.
        instance: The value of the attribute `service.instance.id`; it is the same after a restart.
        version: The value of `service.version`.

    Raises:
        InvalidInputError: An environment variable has an invalid header, or names a file that can't be read.
    """

    def __init__(
        self, url: str, collector: Collector, interval_s: float, is_read: threading.Event, instance: str, version: str
    ) -> None:
        self.url, self._is_read = url, is_read
        self._collector, self._interval_s = collector, interval_s
        self._session = _CollectorSession()
        parts = urlsplit(url)
        if parts.scheme == "http" and is_loopback(parts.hostname or ""):
            self._session.trust_env = False  # no proxy of the environment
        self._quiet = _Quiet()
        for name in _LIBRARY_LOGGERS:
            logging.getLogger(name).addFilter(self._quiet)
        try:
            _check_files()
            self._exporter = OTLPMetricExporter(endpoint=url, session=self._session)
            if self._quiet.has_said:
                raise InvalidInputError("OTEL_EXPORTER_OTLP_HEADERS: write NAME=VALUE, several with commas between")
        except BaseException:
            self._unmute()
            raise
        self._resource = _resource(instance, version)
        self._scope = InstrumentationScope("kohort.exporter", version)
        self._throttle = FailureThrottle(lambda: time.monotonic() * 1000)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kohort-otlp", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread. A request under way is abandoned after `CLOSE_S`."""
        self._ended.set()
        self._is_read.set()
        self._exporter.shutdown()
        self._thread.join(CLOSE_S)
        self._unmute()

    def _unmute(self) -> None:
        for name in _LIBRARY_LOGGERS:
            logging.getLogger(name).removeFilter(self._quiet)

    def _run(self) -> None:
        while not self._ended.is_set():
            self._is_read.wait(2 * self._interval_s)
            self._is_read.clear()
            started = time.monotonic()
            if not self._ended.is_set():
                try:
                    self._send_metrics()
                except Exception:  # a bug must not end the thread
                    log.exception(
                        "[otlp %s] unexpected error while sending metrics; sending again at the next interval", self.url
                    )
            self._ended.wait(max(0.0, started + self._interval_s - time.monotonic()))

    def _send_metrics(self) -> None:
        """Send all metrics in batches. When a request fails, send no further batch until the next read."""
        for metrics in _batches(self._collector.collect(), time.time_ns()):
            scope = ScopeMetrics(self._scope, metrics, "")
            self._session.failure = "no request could be made of the metrics and OTEL_EXPORTER_OTLP_HEADERS"
            self._session.complaint = ""
            result = self._exporter.export(MetricsData([ResourceMetrics(self._resource, [scope], "")]))
            if self._ended.is_set():
                return
            if result is not MetricExportResult.SUCCESS:
                if self._throttle.should_log("failure"):
                    text = "[otlp %s] metrics not sent: %s; they are sent again after the next read"
                    log.warning(text, self.url, self._session.failure)
                return
            if self._session.complaint and self._throttle.should_log("complaint"):
                log.warning("[otlp %s] the collector did not take %s", self.url, self._session.complaint)
        if self._throttle.end_failure("failure"):
            log.info("[otlp %s] metrics are sent again", self.url)


class _CollectorSession(requests.Session):
    """The HTTP session that posts metrics to the OpenTelemetry collector.

    Attributes:
        failure: Why the last request failed, without headers.
        complaint: What the collector says of samples that it rejected, although the request succeeded; empty: it took
            all.
    """

    failure = complaint = ""

    def __init__(self) -> None:
        super().__init__()
        self.auth = lambda request: request  # a login in ~/.netrc would replace the header of the environment

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:
        """Send a request, and read at most `ANSWER_BYTES_MAX` of the answer.

        A redirection is a failure: the library would take it for a success. The reason of a refusal is in its body.
        """
        kwargs["stream"] = True
        if isinstance(self.verify, str):
            kwargs["verify"] = self.verify  # REQUESTS_CA_BUNDLE would go before OTEL_EXPORTER_OTLP_CERTIFICATE
        try:
            with super().send(request, **kwargs) as answer:
                content = _read_body(answer) if answer.status_code < 300 else b""
                refusal = _refusal_text(answer) if answer.status_code >= 400 else ""
        except OSError as error:
            self.failure = _cause(error)
            raise
        if answer.status_code >= 300:
            reason = (answer.reason or "")[:TEXT_CHARS_MAX]
            self.failure = (
                f"the collector answers {answer.status_code} {reason if reason.isprintable() else repr(reason)}"
            )
            if refusal:
                self.failure += f": {_without_headers(refusal, request.headers)[:TEXT_CHARS_MAX]!r}"
            if answer.status_code < 400:
                raise requests.RequestException(self.failure)
        else:
            self.complaint = _complaint(content, request.headers)
        return answer


class _Quiet(logging.Filter):
    """A logging filter that keeps lines of the OTLP library out of the log, because they may quote secret headers.

    Attributes:
        has_said: Whether the library has logged anything.
    """

    has_said = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Return False: the line is not logged, only noticed."""
        self.has_said = True
        return False


def _batches(families: Iterable[Family], now_ns: int) -> Iterator[list[Metric]]:
    """Yield metrics in batches of at most `POINTS_MAX` samples."""
    batch: list[Metric] = []
    left = POINTS_MAX
    for family in families:
        samples = family.samples
        while samples:
            taken, samples = samples[:left], samples[left:]
            points = [NumberDataPoint(dict(sample.labels), 0, now_ns, float(sample.value)) for sample in taken]
            is_counter = family.type == "counter"
            data = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True) if is_counter else Gauge(points)
            batch.append(Metric(taken[0].name, family.documentation, "", data))
            left -= len(taken)
            if left == 0:
                yield batch
                batch, left = [], POINTS_MAX
    if batch:
        yield batch


def _resource(instance: str, version: str) -> Resource:
    """Return the OTLP resource (service name, instance and version) of the metrics.

    OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME override it.
    """
    own = {"service.name": "kohort-exporter", "service.instance.id": instance, "service.version": version}
    given = OTELResourceDetector().detect().attributes
    return Resource.create({name: value for name, value in own.items() if name not in given})


def _check_files() -> None:
    """Check that the certificate files named by OTLP environment variables can be read.

    Raises:
        InvalidInputError: One can't.
    """
    for variable in (f"OTEL_EXPORTER_OTLP_{signal}{file}" for file in _FILES for signal in ("", "METRICS_")):
        path = os.environ.get(variable)
        if path:
            try:
                with open(path, "rb"):
                    pass
            except OSError as error:
                raise InvalidInputError(f"{variable}={path}: {error.strerror}") from None


def _cause(error: OSError) -> str:
    """Return the reason why a request failed, without URL and headers, which some errors' texts contain."""
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    found = type(error).__name__
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            found = cause.strerror
        elif isinstance(cause, ssl.SSLError | ConnectionError):
            found = str(cause)
        inner = next((part for part in cause.args if isinstance(part, BaseException)), None)
        cause = cause.__cause__ or cause.__context__ or inner
    return found


def _read_body(answer: requests.Response, *, is_refusal: bool = False) -> bytes:
    """Return the body of an HTTP answer; nothing if it is too large, or arrives too slowly.

    Args:
        answer: The answer, of which only the head has been read.
        is_refusal: Return the part that has arrived when the connection breaks. A server resets it after a refusal when
            it has not read the whole request.
    """
    found = bytearray()
    until_s = time.monotonic() + ANSWER_S
    try:
        for part in answer.iter_content(1):  # a longer read would wait until it is full
            found += part
            if len(found) > ANSWER_BYTES_MAX or time.monotonic() > until_s:
                return b""
    except OSError:
        if not is_refusal:
            raise
    return bytes(found)


def _refusal_text(answer: requests.Response) -> str:
    """Return the reason in the body of a refused request; empty if there is none, or only a page of HTML.

    A collector sends a `Status` as protobuf. Its HTTP server writes its own refusals as text.

    Source: the OTLP specification, "Failures".
    """
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    content = _read_body(answer, is_refusal=True)
    if kind == "application/x-protobuf":
        try:
            return str(Status.FromString(content).message)
        except DecodeError:
            return ""
    return content.decode(errors="replace").strip() if kind in ("", "text/plain") else ""


def _without_headers(text: str, headers: Mapping[str, str | bytes]) -> str:
    """Remove the header values of OTEL_EXPORTER_OTLP_HEADERS, which may be secrets, from a text for the log."""
    given = [value for name, value in headers.items() if name.lower() not in _LIBRARY_HEADERS]
    texts = [value.decode("latin-1") if isinstance(value, bytes) else value for value in given]
    for word in sorted({word for value in texts for word in value.split()}, key=len, reverse=True):
        text = text.replace(word, "***") if len(word) > 2 else text
    return text


def _complaint(content: bytes, headers: Mapping[str, str | bytes]) -> str:
    """Return the collector's message about rejected samples (`partial_success`); empty if it took all."""
    answer = ExportMetricsServiceResponse()
    try:
        answer.ParseFromString(content)
    except DecodeError:
        return ""
    partial = answer.partial_success
    if not partial.rejected_data_points and not partial.error_message:
        return ""
    text = _without_headers(partial.error_message, headers)[:TEXT_CHARS_MAX]
    return f"{partial.rejected_data_points} samples: {text!r}"
