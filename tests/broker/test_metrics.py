"""Figures: Kafka's four meters, rebalances and downtime by group, latencies, and Prometheus's view of them."""

from __future__ import annotations

import socket
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from kohort import Broker
from kohort.broker.metrics import BOUNDS_S, GROUPS_MAX, Histogram, Metrics
from kohort.errors import KafkaError
from kohort.groups.effects import Rebalanced
from kohort.io import metrics_http
from kohort.io.metrics_http import SCRAPES_MAX, MetricsServer
from kohort.wire.groups import DeleteGroupsRequest, HeartbeatRequest
from kohort.wire.offsets import OffsetCommitRequest, OffsetDeleteRequest
from tests.broker.group_member import Member
from tests.broker.raw import RawClient
from tests.broker.test_consumer_protocol import Member as Modern
from tests.support.waiting import until


def commit(client: RawClient, group: str, topic: str, offset: int = 1) -> None:
    partition = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    entry = OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=[partition])
    answer = client.ask(OffsetCommitRequest(group_id=group, topics=[entry]), 8)
    assert answer.topics[0].partitions[0].error_code == 0


def join_alone(client: RawClient, group: str, topic: str) -> None:
    member = Member(client, group, topic)
    assert member.join().error_code == 0
    assert member.sync({member.id: b""}).error_code == 0


def grown(broker: Broker, before: dict[str, float], meter: str) -> float:
    return float(broker.metrics()["group-coordinator-metrics"][f"{meter}-count"] - before[f"{meter}-count"])


def test_meters_count_offsets_and_rebalances(broker: Broker, client: RawClient, topic: str) -> None:
    before = broker.metrics()["group-coordinator-metrics"]
    assert set(before) == {
        f"{meter}-{kind}"
        for meter in ("offset-commit", "offset-expiration", "offset-deletion", "group-completed-rebalance")
        for kind in ("rate", "count")
    }
    commit(client, f"{topic}-1", topic)
    commit(client, f"{topic}-1", topic, 2)
    commit(client, f"{topic}-2", topic)
    assert grown(broker, before, "offset-commit") == 3
    part = OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)
    entry = OffsetDeleteRequest.OffsetDeleteRequestTopic(name=topic, partitions=[part])
    assert client.ask(OffsetDeleteRequest(group_id=f"{topic}-1", topics=[entry])).error_code == 0
    assert client.ask(DeleteGroupsRequest(groups_names=[f"{topic}-2"])).results[0].error_code == 0
    assert grown(broker, before, "offset-deletion") == 2
    join_alone(client, f"{topic}-3", topic)
    assert grown(broker, before, "group-completed-rebalance") == 1
    assert broker.metrics()["group-coordinator-metrics"]["offset-commit-rate"] > 0


def test_a_rebalance_is_timed_by_group(broker: Broker, client: RawClient, topic: str) -> None:
    join_alone(client, topic, topic)
    found = broker.metrics()
    group = found["rebalances"][topic]
    assert (group["protocol"], group["completed"], group["members"]) == ("classic", 1, 1)
    assert 0 <= group["last_downtime_ms"] <= group["last_downtime_max_ms"] <= group["duration_ms"] < 20_000
    assert found["groups"]["classic"]["Stable"] >= 1
    assert found["rebalance"]["count"] == found["downtime"]["count"] >= 1


def test_groups_under_kip_848_are_counted_and_timed_like_the_others(
    broker: Broker, client: RawClient, topic: str
) -> None:
    before = broker.metrics()["group-coordinator-metrics"]
    member = Modern(client, topic, topic)
    until(lambda: member.heartbeat() == 0 and bool(member.owned), "the member has its assignment")
    assert member.heartbeat(topic_partitions=member.owned) == 0
    assert grown(broker, before, "group-completed-rebalance") == 1
    found = broker.metrics()
    group = found["rebalances"][topic]
    assert (group["protocol"], group["completed"], group["members"]) == ("consumer", 1, 1)
    assert found["groups"]["consumer"]["Stable"] >= 1
    part = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    asked = OffsetCommitRequest(
        group_id=topic,
        member_id="member",
        generation_id_or_member_epoch=member.epoch,
        topics=[OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=[part])],
    )
    assert client.ask(asked, 9).topics[0].partitions[0].error_code == 0
    assert grown(broker, before, "offset-commit") == 1
    member.epoch = -1
    assert member.heartbeat() == 0
    assert client.ask(DeleteGroupsRequest(groups_names=[topic])).results[0].error_code == 0
    assert grown(broker, before, "offset-deletion") == 1
    assert grown(broker, before, "group-completed-rebalance") == 1


def test_requests_and_their_latency(broker: Broker, client: RawClient, topic: str) -> None:
    before = broker.metrics()
    for _ in range(5):
        client.ask(HeartbeatRequest(group_id=topic, member_id="nobody", generation_id=1))
    after = broker.metrics()
    assert after["requests"]["Heartbeat"] - before["requests"].get("Heartbeat", 0) == 5
    latency = after["latency"]["Heartbeat"]
    assert sum(count for _, count in latency["buckets"]) == latency["count"] == after["requests"]["Heartbeat"]
    assert 0 < latency["p50_ms"] <= latency["p99_ms"] <= latency["max_ms"]
    assert after["events"] - before["events"] == 5
    assert after["event-queue"]["count"] == after["step"]["count"] > before["step"]["count"]
    assert after["connections"] >= 1


def test_prometheus_reads_the_same() -> None:
    with Broker(config={"metrics.listen": "127.0.0.1:0", "group.initial.rebalance.delay.ms": 0}) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            join_alone(client, "of-prometheus", "t")
            address = broker.metrics()["listen"]
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
                text = answer.read().decode()
        samples = {
            (sample.name, tuple(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        title = "kafka_server_group_coordinator_metrics_group_completed_rebalance"
        assert samples[f"{title}_count", ()] == 1
        assert samples[f"{title}_rate", ()] > 0
        assert samples["kohort_groups", ("classic", "Stable")] == 1
        assert samples["kohort_group_rebalances_total", ("of-prometheus",)] == 1
        assert samples["kohort_request_seconds_count", ("JoinGroup",)] >= 1
        assert samples["kohort_request_seconds_bucket", ("JoinGroup", "+Inf")] >= 1
        assert samples["kohort_connections", ()] == 1


def test_connections_that_ask_for_nothing_take_a_bounded_number_of_threads() -> None:
    with Broker(config={"metrics.listen": "127.0.0.1:0"}) as broker, ExitStack() as stack:
        host, _, port = broker.metrics()["listen"].rpartition(":")
        silent = [stack.enter_context(socket.create_connection((host, int(port)), 20)) for _ in range(SCRAPES_MAX + 30)]
        for replaced in silent[:30]:
            assert replaced.recv(1) == b""
        status = Path(f"/proc/{broker.pid}/status").read_text().splitlines()
        threads = next(int(line.split()[1]) for line in status if line.startswith("Threads"))
        assert threads < SCRAPES_MAX + 8
        assert "kohort_connections" in scraped(host, port), "silent connections keep no scrape out"


def scraped(host: str, port: str) -> str:
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=20) as answer:
        return str(answer.read().decode())


class _Nothing:
    def collect(self) -> list[Metric]:
        return []


def test_a_scrape_that_trickles_has_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_http, "SCRAPE_S", 1.0)
    server = MetricsServer("127.0.0.1", 0, _Nothing())
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), 20) as slow, suppress(ConnectionError):
        slow.sendall(b"GET /metrics HTTP/1.1\r\n")
        slow.settimeout(0.05)
        for number in range(2_000):  # no pause is as long as the deadline
            slow.sendall(b"X-%d: 1\r\n" % number if number < 80 else b"x")
            with suppress(TimeoutError):
                assert slow.recv(1) == b""
                break
        else:
            pytest.fail("it is still open")
    server.close()


@pytest.mark.parametrize("request_of", [b"GET /" + b"a" * 60_000, b"GET / HTTP/1.1\r\n" + b"X: " + b"a" * 60_000])
def test_a_request_of_a_scrape_is_bounded(request_of: bytes) -> None:
    server = MetricsServer("127.0.0.1", 0, _Nothing())
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), 20) as large:
        with suppress(ConnectionError):
            large.sendall(request_of)
            assert large.recv(1000) == b""
    assert scraped(host, port) == ""
    server.close()


def test_an_address_in_use_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(KafkaError, match=f"metrics on 127.0.0.1:{port}"):
            Broker(config={"metrics.listen": f"127.0.0.1:{port}"})


def test_number_of_groups_with_metrics_of_their_own_is_bounded() -> None:
    metrics = Metrics()
    for number in range(GROUPS_MAX + 5):
        metrics.record_measurement(Rebalanced(f"g{number}", "classic", 10, 5.0, 7, 2))
    metrics.record_measurement(Rebalanced("g5", "classic", 30, 15.0, 20, 3))
    found = metrics.snapshot((), 0)
    assert len(found["rebalances"]) == GROUPS_MAX
    assert "g4" not in found["rebalances"]
    assert found["rebalances"]["g5"]["completed"] == 2
    assert found["rebalances"]["g5"]["duration_ms"] == 40
    assert found["rebalance"]["count"] == GROUPS_MAX + 6


def test_quantiles_of_a_histogram() -> None:
    histogram = Histogram()
    for _ in range(99):
        histogram.observe(0.0009)
    histogram.observe(3.7)
    assert histogram.quantile_s(0.5) == 0.001
    assert histogram.quantile_s(0.99) == 0.001
    assert histogram.quantile_s(1.0) == 3.7
    histogram.observe(BOUNDS_S[-1] + 1)
    assert histogram.summary()["buckets"][-1] == (float("inf"), 1)
