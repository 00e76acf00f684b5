"""The page of metrics is the one that prometheus-client writes."""

from __future__ import annotations

import gzip
import http.client
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    UntypedMetricFamily,
)
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from kohort.io.metrics_http import (
    CONTENT_TYPE,
    HEADERS,
    MetricsServer,
    PreformattedFamily,
    metrics_app,
    metrics_page,
    sample_number_text,
)

NAMES = ("plain", "", 'quote"d', "back\\slash", "line\nbreak", "ünïcode", 'all\\"\n\\n of them', "a,b={}")


class Everything(Collector):
    """Every kind of family, with values and labels that need care."""

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        gauge = GaugeMetricFamily("lag", "Lag of \\ a\npartition", labels=("topic", "group"))
        for number, name in enumerate(NAMES):
            gauge.add_metric((name, NAMES[-1 - number]), number)
        yield gauge
        yield GaugeMetricFamily("nothing", "Without a sample", labels=("topic",))
        counter = CounterMetricFamily("reads", "Reads", labels=("outcome",))
        counter.add_metric(("whole",), 12_345_678_901)
        yield counter
        plain = GaugeMetricFamily("up", "No labels")
        plain.add_metric((), 0.1)
        yield plain
        numbers = GaugeMetricFamily("numbers", "Numbers", labels=("kind",))
        for value in (float("inf"), float("-inf"), float("nan"), -0.0, 1e-7, 1e6, 1_234_567.0, 2**63):
            numbers.add_metric((repr(value),), value)
        yield numbers
        untyped = UntypedMetricFamily("untyped", "Of no type", labels=("a",))
        untyped.add_metric(("b",), 1)
        yield untyped
        times = HistogramMetricFamily("times", "Times", labels=("api",))
        times.add_metric(("Fetch",), [("0.1", 1), ("1.0", 3), ("+Inf", 4)], 2.5)
        yield times


def librarys_page() -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Everything())
    return generate_latest(registry)


def asked(method: str = "GET", *, is_local: bool = False, **environ: str) -> tuple[str, dict[str, str], bytes]:
    answers: list[tuple[str, dict[str, str]]] = []
    body = metrics_app(Everything(), is_local=is_local)(
        {"REQUEST_METHOD": method, **environ}, lambda status, headers: answers.append((status, dict(headers)))
    )
    return *answers[0], b"".join(body)


def test_page_is_the_librarys() -> None:
    page = b"".join(metrics_page(Everything().collect(), compressed=False))
    assert page.decode() == librarys_page().decode()
    read = {family.name: family for family in text_string_to_metric_families(page.decode())}
    assert [sample.labels["topic"] for sample in read["lag"].samples] == list(NAMES)


def test_scraper_that_takes_gzip_gets_the_same_page() -> None:
    status, headers, body = asked(HTTP_ACCEPT_ENCODING="deflate, gzip;q=1.0")
    sent_headers = {"Content-Type": CONTENT_TYPE, "Content-Length": str(len(body)), **HEADERS}
    assert (status, headers) == ("200 OK", {**sent_headers, "Content-Encoding": "gzip"})
    page = librarys_page()
    assert gzip.decompress(body) == page
    assert asked() == ("200 OK", {"Content-Type": CONTENT_TYPE, "Content-Length": str(len(page)), **HEADERS}, page)


@pytest.mark.parametrize("encoding", ["", "gzip"])
def test_long_page_is_whole_in_several_pieces(encoding: str) -> None:
    class Long(Collector):
        def describe(self) -> Iterator[Metric]:
            return iter(())

        def collect(self) -> Iterator[Metric]:
            gauge = GaugeMetricFamily("lag", "Lag", labels=("group",))
            for number in range(20_000):
                gauge.add_metric((f"group-{number}",), number)
            yield gauge
            yield PreformattedFamily(
                "kept", "Written", ("group",),
                lambda: (f'kept{{group="g-{number}"}} {sample_number_text(number)}\n' for number in range(10_000)),
                lambda: (((f"g-{number}",), number) for number in range(10_000)),
            )  # fmt: skip

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Long())
    sent_headers: list[dict[str, str]] = []
    pieces = metrics_app(Long())(
        {"REQUEST_METHOD": "GET", "HTTP_ACCEPT_ENCODING": encoding},
        lambda _, headers: sent_headers.append(dict(headers)),
    )
    assert len(pieces) > 2
    body = b"".join(pieces)
    assert sent_headers[0]["Content-Length"] == str(len(body))
    assert (gzip.decompress(body) if encoding else body) == generate_latest(registry)


def test_families_are_chosen_by_name() -> None:
    _, _, body = asked(QUERY_STRING="name[]=up&name[]=reads_total")
    assert [line for line in body.decode().splitlines() if not line.startswith("#")] == [
        'reads_total{outcome="whole"} 1.2345678901e+10', "up 0.1",
    ]  # fmt: skip


@pytest.mark.parametrize("method", ["POST", "OPTIONS", "DELETE"])
def test_other_methods_are_refused(method: str) -> None:
    status, headers, body = asked(method)
    assert (status, headers, body) == ("405 Method Not Allowed", {"Allow": "GET, HEAD"}, b"")


HOSTS = {
    "localhost": True,
    "localhost:9400": True,
    "127.0.0.1:9400": True,
    "127.8.0.1": True,
    "[::1]:9400": True,
    "": False,
    "evil.example": False,
    "evil.example:9400": False,
    "127.0.0.1.evil.example": False,
    "evil.example@127.0.0.1,evil.example": False,
    "127.0.0.1,evil.example": False,
    "[": False,
    "192.0.2.1:9400": False,
}


@pytest.mark.parametrize("host", HOSTS)
def test_server_on_loopback_answers_its_own_names_alone(host: str) -> None:
    """The name of a web page may lead to loopback; its scripts could read the names of groups."""
    server = MetricsServer("127.0.0.1", 0, Everything())
    insecure = MetricsServer("127.0.0.1", 0, Everything(), is_insecure=True)
    try:
        assert [status_of(found.address, host) for found in (server, insecure)] == [200 if HOSTS[host] else 421, 200]
    finally:
        server.close()
        insecure.close()


def test_server_on_loopback_of_ipv6_checks_names_too() -> None:
    server = MetricsServer("::1", 0, Everything())
    try:
        port = server.address.rpartition(":")[2]
        assert [status_of(f"[::1]:{port}", host) for host in ("evil.example", f"[::1]:{port}")] == [421, 200]
    finally:
        server.close()


def status_of(address: str, host: str) -> int:
    connection = http.client.HTTPConnection(address, timeout=20)
    try:
        connection.putrequest("GET", "/metrics", skip_host=True)
        connection.putheader("Host", host)
        connection.endheaders()
        answer = connection.getresponse()
        assert (b"lag{" in answer.read()) == (answer.status == 200)
        return answer.status
    finally:
        connection.close()


def test_scrape_without_a_host_is_answered() -> None:
    assert asked(is_local=True)[0] == "200 OK"
    assert asked(is_local=True, HTTP_HOST="evil.example")[0] == "421 Misdirected Request"


def test_page_is_not_for_other_web_pages() -> None:
    _, headers, _ = asked()
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
