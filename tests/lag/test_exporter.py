"""`kohort exporter`: its page as Prometheus reads it, with clusters that are there, away, silent or refuse."""

from __future__ import annotations

import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.processes import KOHORT, Start
from tests.support.waiting import until

from kohort import Admin, Broker, Consumer, Producer, TopicPartition
from kohort.broker.server.fault_kinds import Fault
from kohort.cli.app import run
from kohort.client.admin.values import NewTopic
from kohort.errors import ErrorCode
from kohort.io.metrics_http import metrics_page
from kohort.lag import LagReader, cluster_watch, exporter
from kohort.lag.cluster_watch import ClusterWatch, WatchState
from kohort.lag.exporter import COUNTERS, METRICS, LagExporter
from kohort.lag.snapshot import REASONS

Samples = dict[tuple[str, tuple[str, ...]], float]
NOBODY = "127.0.0.1:1"


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(config={"group.initial.rebalance.delay.ms": 0}) as broker:
        yield broker


def behind(servers: str, topic: str, group: str) -> None:
    """Makes a group that has read three of ten records in a partition, and all in the other."""
    with Admin(servers) as admin, Producer(servers) as producer:
        admin.create_topics([NewTopic(topic, 2, 1)]).all()
        for number in range(10):
            producer.send(topic, b"%d" % number, partition=0)
        producer.flush()
        admin.alter_consumer_group_offsets(group, {TopicPartition(topic, 0): 3, TopicPartition(topic, 1): 0}).all()


def page(address: str) -> Samples:
    """The samples by name and label values, which keep the order of `METRICS`."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
        return parsed(answer.read().decode())


def parsed(text: str) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            name = sample.name.removesuffix("_total")
            if not sample.name.endswith("_created"):
                labels = METRICS[name][1]
                assert set(sample.labels) == set(labels)
                assert sample.name.endswith("_total") == (name in COUNTERS)
                found[name, tuple(sample.labels[label] for label in labels)] = sample.value
    return found


def begin(start: Start, *args: str) -> str:
    """Starts an exporter that reads often; returns its address."""
    process = start("exporter", "--listen", "127.0.0.1:0", "--interval", "200", *args)
    assert process.stdout is not None
    said = process.stdout.readline().split()
    assert said[0] == "ready"
    return said[1]


def test_page_has_kafka_lag_exporters_names_and_labels(start: Start, broker: Broker) -> None:
    """Dashboards for kafka-lag-exporter 0.8 ask for these names by these labels."""
    servers = broker.bootstrap_servers
    behind(servers, "t", "g")
    with Consumer(servers, group_id="g", client_id="reader", enable_auto_commit=False) as consumer:
        consumer.subscribe(["t"])
        until(lambda: bool(consumer.poll(50) or consumer.assignment()), "the consumer has its partitions", 60)
        address = begin(start, "--servers", f"local={servers}")
        info = ("kohort_consumergroup_info", ("local", "g", "Classic", "consumer", "Stable", "active"))
        reads = ("kohort_exporter_reads", ("local", "whole"))
        until(lambda: page(address).get(reads, 0) >= 2 and info in page(address), "the group is read twice", 60)
        with Admin(servers) as admin:
            (member,) = admin.describe_consumer_groups(["g"]).result("g").members
        found = page(address)
    part = ("local", "g", "t", "0", member.host, member.member_id, "reader")
    assert found["kafka_consumergroup_group_offset", part] == 3
    assert found["kafka_consumergroup_group_lag", part] == 7
    assert 0 < found["kafka_consumergroup_group_lag_seconds", part] < 600
    assert found["kafka_consumergroup_group_lag_seconds", (*part[:3], "1", *part[4:])] == 0
    assert found["kafka_consumergroup_group_max_lag", ("local", "g")] == 7
    assert found["kafka_consumergroup_group_sum_lag", ("local", "g")] == 7
    assert found["kafka_consumergroup_group_topic_sum_lag", ("local", "g", "t")] == 7
    assert 0 < found["kafka_consumergroup_group_max_lag_seconds", ("local", "g")] < 600
    assert found["kafka_partition_latest_offset", ("local", "t", "0")] == 10
    assert found["kafka_partition_earliest_offset", ("local", "t", "0")] == 0
    assert found["kohort_consumergroup_members", ("local", "g")] == 1
    assert found["kohort_exporter_up", ("local",)] == 1
    assert sum(found["kohort_exporter_failures", ("local", reason)] for reason in REASONS) == 0


def test_group_that_stopped_stays_on_the_page_and_its_lag_grows(start: Start, broker: Broker) -> None:
    """kafka-lag-exporter #36 and #63: no values after the last member left, so that nobody saw the lag for hours."""
    servers = broker.bootstrap_servers
    behind(servers, "t", "g")
    with Consumer(servers, group_id="g", enable_auto_commit=False) as consumer:
        consumer.subscribe(["t"])
        until(lambda: bool(consumer.poll(50) or consumer.assignment()), "the consumer has its partitions", 60)
        address = begin(start, "--servers", f"local={servers}")
        members, lag = ("kohort_consumergroup_members", ("local", "g")), ("local", "g", "t", "0", "", "", "")
        until(lambda: page(address).get(members) == 1, "the member is seen", 60)
    until(lambda: page(address).get(members) == 0, "the member is gone", 60)
    with Producer(servers) as producer:
        for _ in range(5):
            producer.send("t", b"x", partition=0)
        producer.flush()
    until(lambda: page(address).get(("kafka_consumergroup_group_lag", lag)) == 12, "its lag has grown", 60)
    found = page(address)
    assert found["kohort_consumergroup_status", ("local", "g")] == 3
    assert found["kafka_consumergroup_group_max_lag_seconds", ("local", "g")] > 0


def test_cluster_that_is_away_is_said_and_hides_no_other(start: Start, broker: Broker) -> None:
    """kafka-lag-exporter #36, #179: the process ended, or its series did, when a cluster or a topic went away."""
    behind(broker.bootstrap_servers, "t", "g")
    address = begin(start, "--servers", f"here={broker.bootstrap_servers}", "--servers", f"away={NOBODY}")
    assert ("kohort_exporter_up", ("away",)) in page(address), "the page answers before any read ends"
    until(lambda: page(address)["kohort_exporter_up", ("here",)] == 1, "the cluster is read", 60)
    until(lambda: page(address)["kohort_exporter_reads", ("away", "failed")] >= 1, "the other is not", 60)
    found = page(address)
    assert found["kohort_exporter_up", ("away",)] == 0
    assert found["kafka_consumergroup_group_sum_lag", ("here", "g")] == 7
    broker.kill()
    until(lambda: page(address)["kohort_exporter_up", ("here",)] == 0, "its end is said", 60)
    reasons = {reason for reason in REASONS if page(address)["kohort_exporter_failures", ("here", reason)]}
    assert reasons & {"timed_out", "unreachable"}
    broker.restart()
    until(lambda: page(address)["kohort_exporter_up", ("here",)] == 1, "it is read again", 60)


def test_missing_rights_are_said_by_reason(start: Start, broker: Broker) -> None:
    behind(broker.bootstrap_servers, "t", "g")
    address = begin(start, "--servers", f"local={broker.bootstrap_servers}")
    until(lambda: page(address)["kohort_exporter_up", ("local",)] == 1, "the cluster is read", 60)
    denied = ("kohort_exporter_failures", ("local", "not_authorized"))
    assert page(address)[denied] == 0
    fault = broker.faults.add(Fault("OffsetFetch", "fail", times=None, error=ErrorCode.GROUP_AUTHORIZATION_FAILED))
    until(lambda: page(address)[denied] == 1, "the refusal is said", 30)
    found = page(address)
    assert found["kohort_exporter_up", ("local",)] == 1
    assert ("kafka_consumergroup_group_sum_lag", ("local", "g")) not in found
    fault.remove()
    until(lambda: page(address)[denied] == 0, "the group is read again", 30)


def test_names_of_groups_do_not_break_the_log(broker: Broker) -> None:
    """Whoever may commit for a group chose lines of the exporter's log, and wrote to the terminal that shows it."""
    name = "shop\n2026-11-27 10:00:00,000 INFO kohort.lag: forged\x1b]0;title\x07"
    behind(broker.bootstrap_servers, "t", name)
    fault = Fault("OffsetFetch", "fail", times=None, error=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    broker.faults.add(fault)
    command = [*KOHORT, "exporter", "--listen", "127.0.0.1:0", "--servers", broker.bootstrap_servers]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            line = next(line for line in process.stderr if "could not be read" in line)
        finally:
            process.terminate()
        rest = process.stderr.read()
    assert "shop\\n2026-11-27" in line and "forged\\x1b]0;title\\x07" in line
    assert "\x1b" not in line + rest


def test_old_read_is_left_out(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lag that stands still looks like a fact. What is said of the cluster goes on."""
    behind(broker.bootstrap_servers, "t", "g")
    with LagReader(broker.bootstrap_servers) as reader:
        watch = ClusterWatch("local", reader, 3_600)
        try:
            until(lambda: watch.state.is_up, "the cluster is read", 30)
            names = {sample.name for family in LagExporter([watch]).collect() for sample in family.samples}
            assert "kafka_consumergroup_group_lag" in names
            monkeypatch.setattr(cluster_watch, "STALE_INTERVALS", 0)
            monkeypatch.setattr(cluster_watch, "STALE_MIN_S", 0.0)
            names = {sample.name for family in LagExporter([watch]).collect() for sample in family.samples}
            assert "kafka_consumergroup_group_lag" not in names
            assert {"kohort_exporter_up", "kohort_exporter_last_read_timestamp_seconds"} <= names
        finally:
            watch.close()


def test_page_is_bounded(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups beyond the limit keep their sums, and the page says how many partitions it leaves out."""
    for number in range(3):
        behind(broker.bootstrap_servers, f"t-{number}", f"g-{number}")
    monkeypatch.setattr(exporter, "PARTITIONS_MAX", 4)
    with LagReader(broker.bootstrap_servers) as reader:
        watch = ClusterWatch("local", reader, 3_600)
        try:
            until(lambda: watch.state.is_up, "the cluster is read", 30)
            samples = [sample for family in LagExporter([watch]).collect() for sample in family.samples]
        finally:
            watch.close()
    counts = {name: sum(sample.name == name for sample in samples) for name in METRICS}
    assert counts["kafka_consumergroup_group_lag"] == 4
    assert counts["kafka_consumergroup_group_sum_lag"] == 3
    assert [sample.value for sample in samples if sample.name == "kohort_exporter_partitions_left_out"] == [2]


def test_failing_listener_of_a_watch_ends_no_reads(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[WatchState] = []

    def fail(state: WatchState) -> None:
        calls.append(state)
        raise RuntimeError("a bug")

    with LagReader(broker.bootstrap_servers) as reader:
        watch = ClusterWatch("local", reader, 0.05, fail)
        try:
            until(lambda: len(calls) > 2, "it reads again and again", 30)
        finally:
            watch.close()
    assert "unexpected error while using the lag that was read" in caplog.text


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--listen", "9308x"), "write HOST:PORT"),
        (("--interval", "0"), "milliseconds from 1 on"),
        (("--servers", "a=h:1", "--servers", "a=h:2"), "a name of its own"),
        (("--servers", "h:1", "--config", "A", "--config", "B"), "2 times for 1 clusters"),
        (("--servers", "h:1", "--config", "WRONG"), "client.id"),
        (("--servers", "nonsense"), "no HOST:PORT"),
        (("--bootstrap-server", "nonsense"), "no HOST:PORT"),
        (("--bootstrap-server", "h:1", "--command-config", "WRONG"), "client.id"),
    ],
)
def test_wrong_use_is_reported(
    args: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "wrong.properties"
    wrong.write_text("client.idd=x\n")
    words = [str(wrong) if word == "WRONG" else word for word in args]
    assert run(["exporter", *words]) == 2
    assert said in capsys.readouterr().err


def test_address_in_use_is_a_failure(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    taken = broker.bootstrap_servers
    assert run(["exporter", "--listen", taken, "--servers", NOBODY]) == 1
    assert f"can't serve metrics on {taken}" in capsys.readouterr().err


def test_sigterm_ends_it_while_a_cluster_is_away(start: Start) -> None:
    process = start("exporter", "--listen", "127.0.0.1:0", "--servers", NOBODY)
    assert process.stdout is not None and process.stdout.readline().startswith("ready ")
    process.terminate()
    assert process.wait(60) == 0


def test_page_of_groups_is_the_one_that_the_library_writes(broker: Broker) -> None:
    """The metrics of partitions write their own lines, with the labels of a member, of none, and of odd names."""
    servers = broker.bootstrap_servers
    behind(servers, "t", 'g "quoted" \\ and\nbroken')
    behind(servers, "u", "read")
    with Consumer(servers, group_id="read", client_id='reader "1"', enable_auto_commit=False) as consumer:
        consumer.subscribe(["u"])
        until(lambda: bool(consumer.poll(50) or consumer.assignment()), "the consumer has its partitions", 60)
        watch = ClusterWatch('local "east"', LagReader(servers), 3_600)
        try:
            until(lambda: watch.state.report is not None, "the cluster is read", 60)
            registry = CollectorRegistry(auto_describe=False)
            registry.register(LagExporter([watch]))
            page = b"".join(metrics_page(LagExporter([watch]).collect(), compressed=False)).decode()
            assert page == generate_latest(registry).decode()
        finally:
            watch.close()
    assert 'client_id="reader \\"1\\"",cluster_name="local \\"east\\""' in page
    assert page.count("\nkafka_consumergroup_group_lag{") == 4
    assert page.count("\nkafka_partition_latest_offset{") == 4
