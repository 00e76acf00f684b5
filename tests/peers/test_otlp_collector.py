"""`kohort exporter --otlp` with OpenTelemetry's own collector, built of its Go modules."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kohort import Admin, Broker, TopicPartition
from kohort.client.admin.values import NewTopic
from kohort.zookeeper import free_ports
from tests.lag.test_exporter import behind
from tests.lag.test_otlp import page, pushing
from tests.peers.peers import CACHE, HERE, PeerUnavailable, build, digest
from tests.support.processes import Start, ready
from tests.support.secured_kafka import make_certificates
from tests.support.waiting import until

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra `otlp` is not installed")
pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.timeout(900)]
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
LAG = ("kafka_consumergroup_group_sum_lag", (("cluster_name", "local"), ("group", "g")))
READS = ("kohort_exporter_reads_total", (("cluster_name", "local"), ("outcome", "whole")))


def built_collector() -> str:
    """The collector's path; it is built once.

    Raises:
        PeerUnavailable: Go is missing, or the modules can't be fetched or built.
    """
    go = shutil.which("go")
    if go is None:
        raise PeerUnavailable("go is not installed")
    folder = HERE / "go" / "collector"
    program = CACHE / f"collector-{digest([folder / name for name in ('go.mod', 'go.sum', 'main.go')])}"
    if not program.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        build([go, "build", "-mod=readonly", "-o", str(program), "."], folder, "go")
    return str(program)


@pytest.fixture(scope="module")
def program() -> str:
    try:
        return built_collector()
    except PeerUnavailable as error:
        pytest.skip(f"no OpenTelemetry collector: {error}")


class Collector:
    """A collector that may be stopped and started again.

    Attributes:
        address: HOST:PORT of its OTLP receiver.
    """

    def __init__(self, program: str, folder: Path, **http: Any) -> None:
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        self._folder, self._lines = folder, folder / "metrics.jsonl"
        receiver = {"otlp": {"protocols": {"http": {"endpoint": self.address, **http}}}}
        telemetry = {"metrics": {"level": "none"}, "logs": {"level": "warn"}}
        service = {"pipelines": {"metrics": {"receivers": ["otlp"], "exporters": ["lines"]}}, "telemetry": telemetry}
        config = {"receivers": receiver, "exporters": {"lines": {"path": str(self._lines)}}, "service": service}
        (folder / "collector.yaml").write_text(json.dumps(config))
        self._command = [program, "--config", f"file:{folder / 'collector.yaml'}"]
        self.start()

    def start(self) -> None:
        self._lines.unlink(missing_ok=True)
        self._log = (self._folder / "collector.log").open("w")
        self._process = subprocess.Popen(self._command, stdout=self._log, stderr=subprocess.STDOUT)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)
        self._log.close()

    def requests(self) -> list[Mapping[str, Any]]:
        """The requests since it was started, each as its only resource."""
        assert self._process.poll() is None, Path(self._log.name).read_text()
        if not self._lines.exists():
            return []
        whole = [line for line in self._lines.read_text().splitlines(keepends=True) if line.endswith("\n")]
        resources = [json.loads(line)["resourceMetrics"] for line in whole]
        assert all(len(found) == 1 for found in resources)
        return [found[0] for found in resources]

    def samples(self) -> Samples:
        """The samples of the last send: its requests have the same time."""
        requests = self.requests()
        if not requests:
            return {}
        times = [next(time_of(resource)) for resource in requests]
        return {
            key: value
            for resource, at in zip(requests, times, strict=True)
            if at == times[-1]
            for key, value in samples_of(resource)
        }


def points_of(resource: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    for scope in resource["scopeMetrics"]:
        for metric in scope["metrics"]:
            data = metric.get("sum") or metric["gauge"]
            if "sum" in metric:
                assert data["isMonotonic"] and data["aggregationTemporality"] == 2, "cumulative"
            for point in data["dataPoints"]:
                yield metric, point


def time_of(resource: Mapping[str, Any]) -> Iterator[str]:
    for _, point in points_of(resource):
        yield point["timeUnixNano"]


def samples_of(resource: Mapping[str, Any]) -> Iterator[tuple[tuple[str, tuple[tuple[str, str], ...]], float]]:
    for metric, point in points_of(resource):
        labels = {pair["key"]: pair["value"].get("stringValue", "") for pair in point.get("attributes", ())}
        yield (metric["name"], tuple(sorted(labels.items()))), float(point["asDouble"])


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        behind(broker.bootstrap_servers, "t", "g")
        yield broker


@contextmanager
def collecting(program: str, folder: Path, **http: Any) -> Iterator[Collector]:
    collector = Collector(program, folder, **http)
    try:
        yield collector
    finally:
        collector.stop()


def begin(start: Start, broker: Broker, url: str) -> subprocess.Popen[str]:
    options = ("--listen", "127.0.0.1:0", "--interval", "200", "--otlp", url)
    return start("exporter", "--servers", f"local={broker.bootstrap_servers}", *options)


def tls_settings(folder: Path) -> dict[str, Any]:
    """Of a receiver that wants a certificate of its clients."""
    make_certificates(folder)
    pem = str(folder / "broker.pem")
    return {"tls": {"cert_file": pem, "key_file": pem, "client_ca_file": str(folder / "ca.pem")}}


def offsets_and_lags(samples: Samples) -> Samples:
    """The samples that stay as they are while nobody reads or writes."""
    return {key: value for key, value in samples.items() if key[0].endswith(("_offset", "_lag"))}


@pytest.mark.parametrize("compression", ["none", "gzip", "deflate"])
def test_collector_takes_what_the_page_has(
    program: str, start: Start, broker: Broker, tmp_path: Path, compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", compression)
    with collecting(program, tmp_path) as collector:
        address = ready(begin(start, broker, f"http://{collector.address}"))
        until(lambda: collector.samples().get(LAG) == 7, "the lag has arrived", 60)
        until(lambda: collector.samples().keys() == page(address).keys(), "both have the same", 60)
        taken = collector.samples()
        attributes = collector.requests()[-1]["resource"]["attributes"]
        assert offsets_and_lags(taken) == offsets_and_lags(page(address))
    resource = {pair["key"]: pair["value"]["stringValue"] for pair in attributes}
    assert resource["service.name"] == "kohort-exporter"
    assert len(offsets_and_lags(taken)) >= 10 and READS in taken


def test_collector_that_checks_certificates_takes_metrics(
    program: str, start: Start, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tls_settings(tmp_path)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", str(tmp_path / "client.crt"))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CLIENT_KEY", str(tmp_path / "client.key"))
    with collecting(program, tmp_path, **settings) as collector:
        ready(begin(start, broker, f"https://{collector.address}"))
        until(lambda: collector.samples().get(LAG) == 7, "the lag has arrived", 60)


def test_collector_that_was_away_has_the_present_values_again(
    program: str, start: Start, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with collecting(program, tmp_path) as collector:
        process = begin(start, broker, f"http://{collector.address}")
        ready(process)
        until(lambda: collector.samples().get(READS, 0) >= 1, "it is sent", 60)
        reads = collector.samples()[READS]
        collector.stop()
        wait_for_line(process, "metrics not sent: Connection refused")
        collector.start()
        until(lambda: collector.samples().get(READS, 0) > reads, "counters go on where they are", 90)
        until(lambda: collector.samples().get(LAG) == 7, "and the lag is there", 60)
        wait_for_line(process, "metrics are sent again")


def wait_for_line(process: subprocess.Popen[str], text: str) -> None:
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if text in line:
            return
    raise AssertionError(said)


def test_collector_takes_a_page_of_several_requests(program: str, start: Start, tmp_path: Path) -> None:
    """The page is longer than this limit. A collector has 20 MiB unless told otherwise."""
    with Broker() as broker, collecting(program, tmp_path, max_request_body_size=1 << 20) as collector:
        many_partitions(broker)
        address = ready(begin(start, broker, f"http://{collector.address}"))
        until(lambda: len(collector.samples()) > 5_000, "more than a request has arrived", 60)
        until(lambda: collector.samples().keys() == page(address).keys(), "both have the same", 60)


def many_partitions(broker: Broker) -> None:
    parts = [TopicPartition("many", number) for number in range(500)]
    with Admin(broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("many", len(parts), 1)]).all()
        for number in range(5):
            admin.alter_consumer_group_offsets(f"many-{number}", dict.fromkeys(parts, 0)).all()


REFUSALS: dict[str, tuple[str, dict[str, Any], str]] = {
    "body too large": ("http", {"max_request_body_size": 100}, "400 Bad Request: 'http: request body too large'"),
    "other compression": (
        "http", {"compression_algorithms": ["zstd"]}, "400 Bad Request: 'unsupported Content-Encoding: gzip'",
    ),
    "wrong path": ("http", {"metrics_url_path": "/elsewhere"}, "404 Not Found"),
    "plain to TLS": ("http", {"tls": None}, "400 Bad Request: 'Client sent an HTTP request to an HTTPS server.'"),
    "TLS to plain": ("https", {}, "[SSL: WRONG_VERSION_NUMBER] wrong version number"),
    "no certificate": ("https", {"tls": None}, "certificate required|EOF occurred in violation of protocol"),
}  # fmt: skip
"""The scheme of the URL, the collector's settings, and what the log has."""


@pytest.mark.parametrize("name", REFUSALS)
def test_refusal_is_logged_with_the_collectors_own_reason(
    program: str, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Some of these reasons are not in the collector's own log."""
    scheme, settings, said = REFUSALS[name]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    if "tls" in settings:
        settings = tls_settings(tmp_path)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(tmp_path / "ca.pem"))
    with collecting(program, tmp_path, **settings) as collector:
        until(lambda: answers(collector.address), "the collector listens", 60)
        with pushing(f"{scheme}://{collector.address}"):
            until(lambda: "metrics not sent" in caplog.text, "it is logged", 60)
        assert collector.requests() == []
    (line,) = (record.getMessage() for record in caplog.records if "metrics not sent" in record.getMessage())
    assert any(text in line for text in said.split("|")), line


def answers(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as client:
        return client.connect_ex((host, int(port))) == 0
