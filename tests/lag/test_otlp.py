"""`kohort exporter --otlp`: what a collector receives, by OpenTelemetry's own classes, and what is said without one."""

from __future__ import annotations

import logging
import os
import re
import socket
import socketserver
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests
from google.rpc.status_pb2 import Status
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra `otlp` is not installed")

from tests.lag.test_exporter import behind
from tests.support.otlp_receiver import OtlpReceiver, Samples
from tests.support.processes import KOHORT, Start, ready
from tests.support.secured_broker import more_certificates
from tests.support.secured_kafka import make_certificates
from tests.support.waiting import until

from kohort import Broker
from kohort.cli.app import run
from kohort.lag import otlp
from kohort.lag.otlp import OtlpPush, collector_url
from kohort.zookeeper import free_ports

NOBODY = "127.0.0.1:1"


class Fixed(Collector):
    """A gauge with some samples, and a counter."""

    def __init__(self, samples: int = 2) -> None:
        self.samples = samples

    def collect(self) -> Iterator[Metric]:
        gauge = GaugeMetricFamily("lag", "Lag", labels=["group"])
        for number in range(self.samples):
            gauge.add_metric([f"g-{number}"], number)
        counter = CounterMetricFamily("reads", "Reads", labels=["group"])
        counter.add_metric(["g"], 7)
        yield from (gauge, counter)


@contextmanager
def pushing(url: str, collector: Collector | None = None) -> Iterator[threading.Event]:
    """A push to a collector; sends when the event is set."""
    is_read = threading.Event()
    address = collector_url(url, is_insecure=False)
    push = OtlpPush(address, collector or Fixed(), 0.05, is_read, "here:9308", "1.2.3")
    try:
        yield is_read
    finally:
        push.close()


def page(address: str) -> Samples:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in families
            for sample in family.samples
        }


def test_collector_receives_what_the_page_has(start: Start) -> None:
    with Broker() as broker, OtlpReceiver() as receiver:
        behind(broker.bootstrap_servers, "t", "g")
        options = ("--listen", "127.0.0.1:0", "--interval", "200", "--otlp", receiver.url)
        address = ready(start("exporter", "--servers", f"local={broker.bootstrap_servers}", *options))
        lag = ("kafka_consumergroup_group_sum_lag", (("cluster_name", "local"), ("group", "g")))
        until(lambda: any(lag in sent.samples() for sent in receiver.received), "the group is sent", 60)
        until(lambda: receiver.received[-1].samples().keys() == page(address).keys(), "both have the same", 60)
        sent, shown = receiver.received[-1], page(address)
    assert sent.path == "/v1/metrics"
    assert sent.samples()[lag] == shown[lag] == 7
    assert ("kohort_exporter_reads_total", (("cluster_name", "local"), ("outcome", "whole"))) in sent.samples()
    assert sent.resource["service.name"] == "kohort-exporter"
    assert re.fullmatch(r".+:\d+", sent.resource["service.instance.id"])
    assert {metric.description != "" and metric.unit == "" for metric, _ in sent.points()} == {True}


def test_environment_names_what_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "lag-of-east")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    with OtlpReceiver() as receiver, pushing(receiver.url):
        until(lambda: receiver.received, "it is sent without a read too", 30)
    found = receiver.received[0].resource
    assert found["service.name"] == "lag-of-east" and found["deployment.environment"] == "test"
    assert (found["service.instance.id"], found["service.version"]) == ("here:9308", "1.2.3")


def test_many_samples_are_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "POINTS_MAX", 10)
    with OtlpReceiver() as receiver, pushing(receiver.url, Fixed(25)):
        until(lambda: len(receiver.received) >= 3, "a whole send has arrived", 30)
    first = [sent for sent in receiver.received if sent.sent_ns == receiver.received[0].sent_ns]
    assert [len(sent.samples()) for sent in first] == [10, 10, 6]
    together = {key: value for sent in first for key, value in sent.samples().items()}
    assert together == {
        **{("lag", (("group", f"g-{number}"),)): number for number in range(25)},
        ("reads_total", (("group", "g"),)): 7,
    }


def test_collector_that_is_away_is_said_once_and_gets_the_rest_when_it_is_back(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.05")  # so that many sends fail
    caplog.set_level(logging.INFO)
    (port,) = free_ports(1)
    sends: list[int] = []

    class Counted(Fixed):
        def collect(self) -> Iterator[Metric]:
            sends.append(1)
            return super().collect()

    with pushing(f"http://127.0.0.1:{port}", Counted()):
        until(lambda: len(sends) > 5, "it goes on", 60)
        lines = [record.getMessage() for record in caplog.records]
        with OtlpReceiver(port=port) as receiver:
            until(lambda: receiver.received, "it is sent again", 60)
            until(lambda: "metrics are sent again" in caplog.text, "which is said", 60)
    address = f"http://127.0.0.1:{port}/v1/metrics"
    assert lines == [f"[otlp {address}] metrics not sent: Connection refused; they are sent again after the next read"]
    assert [record.name for record in caplog.records if record.name.startswith("opentelemetry")] == []


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "the collector answers 401 Unauthorized"),
        (302, "the collector answers 302 Found"),
        (404, "the collector answers 404 Not Found"),
    ],
)
def test_refusal_is_said(status: int, said: str, caplog: pytest.LogCaptureFixture) -> None:
    """The library takes a redirection for a success."""
    with OtlpReceiver(answers=[status]) as receiver, pushing(receiver.url):
        until(lambda: receiver.received, "the next send succeeds", 30)
    assert f"metrics not sent: {said}; " in caplog.text


def test_collector_that_is_busy_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    with OtlpReceiver(answers=[503]) as receiver, pushing(receiver.url):
        until(lambda: receiver.received, "the library sends it again", 30)
    assert "not sent" not in caplog.text


def test_samples_that_a_collector_did_not_take_are_said(caplog: pytest.LogCaptureFixture) -> None:
    with OtlpReceiver(partial="too old\n") as receiver, pushing(receiver.url):
        until(lambda: "did not take" in caplog.text, "it is said", 30)
        until(lambda: len(receiver.received) > 3, "it goes on", 30)
    lines = [record.getMessage() for record in caplog.records]
    address = f"{receiver.url}/v1/metrics"
    assert lines == [f"[otlp {address}] the collector did not take 3 samples: 'too old\\n'"]


@contextmanager
def answering(head: bytes, endless: bytes = b"", pause_s: float = 0) -> Iterator[tuple[str, list[int]]]:
    """A server whose answers begin with `head` and go on for 64 MiB; with the bytes that each connection took."""
    taken: list[int] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.request.recv(1 << 20)
            self.wfile.write(head)
            number = len(taken)
            taken.append(0)
            while endless and taken[number] < 64 << 20:
                taken[number] += self.request.send(endless)
                time.sleep(pause_s)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """The client has closed the connection."""

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", taken
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("status", [b"200 OK", b"400 Bad Request"])
def test_answer_without_an_end_is_not_read_to_the_end(status: bytes) -> None:
    with answering(b"HTTP/1.1 %b\r\n\r\n" % status, bytes(65536)) as (url, taken), pushing(url):
        until(lambda: len(taken) > 2, "it goes on", 60)
        assert max(taken[:2]) < 32 << 20, "what the sockets' buffers hold"


def test_answer_that_arrives_slowly_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "ANSWER_S", 0.1)
    with answering(b"HTTP/1.1 200 OK\r\n\r\n", b"\0", pause_s=0.005) as (url, taken), pushing(url):
        until(lambda: len(taken) > 1, "it goes on", 60)


def test_reason_of_a_refusal_is_no_command_to_a_terminal(caplog: pytest.LogCaptureFixture) -> None:
    reason = b"\x1b[2Jno\r" + b"x" * 10_000
    with answering(b"HTTP/1.1 403 %b\r\nContent-Length: 0\r\n\r\n" % reason) as (url, _), pushing(url):
        until(lambda: "403" in caplog.text, "it is said", 30)
    (line,) = (record.getMessage() for record in caplog.records)
    assert r"the collector answers 403 '\x1b[2Jno" in line and line.isprintable() and len(line) < 400


REFUSED = Status(code=3, message="token is s3cret\x1b[2J").SerializeToString()


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        (b"application/x-protobuf", REFUSED, r": '*** is ***\x1b[2J';"),
        (b"application/x-protobuf", b"\xff", "403 Forbidden;"),
        (b"text/plain; charset=utf-8", b"no\xff\n", ": 'no\ufffd';"),
        (b"text/plain", b"x" * 10_000, f": '{'x' * otlp.TEXT_CHARS_MAX}';"),
        (b"text/html", b"<html>a proxy's page</html>", "403 Forbidden;"),
        (b"text/plain", b"", "403 Forbidden;"),
    ],
    ids=["status", "no status", "text", "long text", "page", "empty"],
)
def test_refusal_is_logged_with_the_reason_in_its_body(
    kind: bytes, body: bytes, said: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the words of the headers, which a collector may repeat."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=token%20s3cret")
    head = b"HTTP/1.1 403 Forbidden\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n" % (kind, len(body))
    with answering(head + body) as (url, _), pushing(url):
        until(lambda: "403" in caplog.text, "it is said", 30)
    (line,) = (record.getMessage() for record in caplog.records)
    assert said in line and "s3cret" not in line and line.isprintable()


def test_reason_of_a_refusal_that_breaks_off_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A server that has not read the whole request resets the connection behind its refusal."""
    head = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 1000\r\n\r\n"
    with answering(head + b"no plain HTTP here") as (url, _), pushing(url):
        until(lambda: "not sent" in caplog.text, "it is said", 30)
    assert "the collector answers 400 Bad Request: 'no plain HTTP here';" in caplog.text


def test_login_of_netrc_does_not_replace_the_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("default login somebody password s3cret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    asked = requests.Request("POST", "https://metrics.example", headers={"authorization": "Bearer token"})
    assert otlp._CollectorSession().prepare_request(asked).headers["authorization"] == "Bearer token"


def test_bug_in_a_send_ends_no_later_send(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Fixed):
        def collect(self) -> Iterator[Metric]:
            if not caplog.records:
                raise RuntimeError("a bug")
            return super().collect()

    with OtlpReceiver() as receiver, pushing(receiver.url, Failing()):
        until(lambda: receiver.received, "the next one is sent", 30)
    assert "unexpected error" in caplog.text


def test_close_does_not_wait_for_a_collector_that_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pushing(f"http://127.0.0.1:{silent.getsockname()[1]}"):
            connection, _ = silent.accept()
        connection.close()


def test_headers_of_the_environment_arrive_and_are_nowhere_else(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20s3cret")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    with OtlpReceiver(answers=[401]) as receiver:
        options = ("--listen", "127.0.0.1:0", "--interval", "200", "--otlp", receiver.url)
        process = start("exporter", "--servers", NOBODY, *options)
        ready(process)
        until(lambda: receiver.received, "it is sent", 60)
        process.terminate()
        _, log = process.communicate(timeout=60)
    assert receiver.received[0].headers["authorization"] == "Bearer s3cret"
    assert receiver.received[0].headers["content-encoding"] == "gzip"
    assert "401" in log and "s3cret" not in log


@pytest.mark.parametrize("given", ["s3cret", "authorization=Bearer%0As3cret"])
def test_invalid_headers_are_said_without_their_values(given: str) -> None:
    """The library's own log has them."""
    command = [*KOHORT, "exporter", "--listen", "127.0.0.1:0", "--servers", NOBODY, "--otlp", f"http://{NOBODY}"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=with_headers(given)
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        said = process.stderr.readline()
        while "OTEL_EXPORTER_OTLP_HEADERS" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
    finally:
        process.kill()
        rest = process.communicate()[1]
    assert "s3cret" not in said + rest


def with_headers(value: str) -> dict[str, str]:
    return {**os.environ, "OTEL_EXPORTER_OTLP_HEADERS": value}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    more_certificates(folder)
    return folder


def test_certificates_of_the_environment_are_used(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificates / "broker.pem")
    tls.load_verify_locations(certificates / "ca.pem")
    tls.verify_mode = ssl.CERT_REQUIRED
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(certificates / "ca.pem"))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", str(certificates / "client.crt"))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CLIENT_KEY", str(certificates / "client.key"))
    with OtlpReceiver(tls) as receiver, pushing(receiver.url):
        until(lambda: receiver.received, "it is sent", 30)


def test_collector_that_can_not_prove_itself_gets_nothing(
    certificates: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificates / "broker.pem")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(certificates / "other-ca.pem"))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with OtlpReceiver(tls) as receiver, pushing(receiver.url):
        until(lambda: "CERTIFICATE_VERIFY_FAILED" in caplog.text, "it is said", 30)
    assert receiver.received == []


def test_proxy_of_the_environment_gets_nothing_that_is_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://{NOBODY}")
    with OtlpReceiver() as receiver, pushing(receiver.url):
        until(lambda: receiver.received, "it is sent", 30)


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/metrics"),
        ("http://localhost:4318/", "http://localhost:4318/v1/metrics"),
        ("http://[::1]:4318/v1/metrics", "http://[::1]:4318/v1/metrics"),
        ("https://metrics.example", "https://metrics.example/v1/metrics"),
        ("https://metrics.example/otlp/", "https://metrics.example/otlp/v1/metrics"),
        ("https://metrics.example/otlp/v1/metrics/", "https://metrics.example/otlp/v1/metrics"),
    ],
)
def test_url_is_that_of_a_collector_or_of_its_metrics(given: str, address: str) -> None:
    assert collector_url(given, is_insecure=False) == address


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("collector:4318", "a collector's URL is like"),
        ("grpc://127.0.0.1:4317", "a collector's URL is like"),
        ("http://127.0.0.1:port", "a collector's URL is like"),
        ("https://user:s3cret@metrics.example", "OTEL_EXPORTER_OTLP_HEADERS"),
        ("https://metrics.example/?token=s3cret", "OTEL_EXPORTER_OTLP_HEADERS"),
        ("http://10.0.0.7:4318", "http://10.0.0.7:4318 is on another machine"),
        ("http://collector:4318", "--otlp-insecure (everyone on the way may read every group's lag and the headers)"),
    ],
)
def test_url_that_can_not_be_used_is_refused(url: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["exporter", "--listen", "127.0.0.1:0", "--servers", NOBODY, "--otlp", url]) == 2
    words = " ".join(capsys.readouterr().err.split())
    assert said in words and "s3cret" not in words


def test_plain_url_of_another_machine_is_used_with_consent() -> None:
    assert collector_url("http://collector:4318", is_insecure=True) == "http://collector:4318/v1/metrics"


def test_missing_file_of_the_environment_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", "/missing/ca.pem")
    options = ["--listen", "127.0.0.1:0", "--servers", NOBODY, "--otlp", f"https://{NOBODY}"]
    assert run(["exporter", *options]) == 2
    assert "OTEL_EXPORTER_OTLP_CERTIFICATE=/missing/ca.pem: No such file" in " ".join(capsys.readouterr().err.split())


def test_exporter_without_a_collector_imports_nothing_of_opentelemetry() -> None:
    modules = "kohort.cli.exporter, kohort.lag.exporter, kohort.lag.cluster_watch, kohort.io.metrics_http"
    script = f"import sys, {modules}; print([name for name in sys.modules if name.startswith(('opentel', 'requests'))])"
    asked = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert asked.stdout.strip() == "[]"


def test_missing_package_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "kohort.lag.otlp")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    monkeypatch.delattr("kohort.lag.otlp", raising=False)
    assert run(["exporter", "--servers", NOBODY, "--otlp", f"http://{NOBODY}"]) == 2
    assert "pip install 'kohort[otlp]'" in " ".join(capsys.readouterr().err.split())
