"""`kohort exporter` beside a real Prometheus: scrapes, TLS, OTLP, the alert rules, and the queries of the dashboard."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.lag.test_exporter import behind
from tests.support.processes import Start, ready
from tests.support.prometheus import Prometheus, otlp_options, prometheus_program
from tests.support.secured_kafka import make_certificates
from tests.support.waiting import until

from kohort import Broker, Consumer
from kohort.zookeeper import free_ports

pytestmark = pytest.mark.timeout(300)
LAG_DOCS = Path(__file__).resolve().parents[2] / "docs" / "lag"
RULES, DASHBOARD = LAG_DOCS / "alerts.yml", LAG_DOCS / "grafana-dashboard.json"
SUM_LAG = 'kafka_consumergroup_group_sum_lag{cluster_name="c",group="g"}'


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    prometheus_program("prometheus")


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(config={"group.initial.rebalance.delay.ms": 0}) as broker:
        behind(broker.bootstrap_servers, "t", "g")
        yield broker


def exporter(start: Start, broker: Broker, *options: str) -> str:
    """The address of an exporter that reads often."""
    listen = ("--listen", "127.0.0.1:0", "--interval", "200")
    return ready(start("exporter", *listen, "--servers", f"c={broker.bootstrap_servers}", *options))


def job(*addresses: str, **more: Any) -> dict[str, Any]:
    return {"job_name": "kohort", "static_configs": [{"targets": list(addresses)}], **more}


def test_prometheus_has_the_lag_says_when_the_cluster_is_away_and_has_it_again(
    start: Start, broker: Broker, tmp_path: Path
) -> None:
    address = exporter(start, broker)
    with Prometheus(tmp_path, [job(address)], [RULES]) as prometheus:
        until(lambda: prometheus.value(SUM_LAG) == 7, "it has the lag", 60)
        assert prometheus.value('up{job="kohort"}') == 1
        assert prometheus.value('kohort_consumergroup_status{group="g"}') == 0, "nobody has been a member"
        broker.kill()
        until(lambda: prometheus.value("kohort_exporter_up") == 0, "it has the outage", 60)
        pending = 'ALERTS{alertname="KafkaClusterNotRead",cluster_name="c"}'
        until(lambda: prometheus.value(pending) == 1, "the alert is pending", 60)
        broker.restart()
        until(lambda: prometheus.value("kohort_exporter_up") == 1, "it has the end of it", 60)
        until(lambda: prometheus.value(pending) is None, "the alert is over", 60)


def test_every_query_of_the_dashboard_is_answered_and_those_of_a_live_group_have_data(
    start: Start, broker: Broker, tmp_path: Path
) -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = {
        (panel["title"], target["expr"]): target["expr"]
        .replace("$cluster", ".*")
        .replace("$group", "g")
        .replace("$__rate_interval", "1m")
        for panel in panels
        for target in panel.get("targets", [])
    }
    without_data = {"What could not be read", "Changes", "Causes"}
    """Nothing fails, nobody joins between two reads, and no partition has a cause."""
    servers = broker.bootstrap_servers
    with Consumer(servers, group_id="g", enable_auto_commit=True, auto_commit_interval_ms=200) as consumer:
        consumer.subscribe(["t"])
        until(lambda: bool(consumer.poll(50) or consumer.assignment()), "the consumer has its partitions", 60)
        address = exporter(start, broker, "--window", "1000")
        with Prometheus(tmp_path, [job(address)]) as prometheus:

            def missing() -> set[str]:
                consumer.poll(50)
                found = {key: prometheus.query(query) for key, query in queries.items()}
                return {title for (title, _), values in found.items() if not values} - without_data

            until(lambda: not missing(), "every panel has data", 60)


def test_prometheus_scrapes_an_exporter_that_wants_a_certificate(start: Start, broker: Broker, tmp_path: Path) -> None:
    folder = tmp_path / "certificates"
    folder.mkdir()
    make_certificates(folder)
    address = exporter(start, broker, "--tls", str(folder / "broker.pem"), "--client-ca", str(folder / "ca.pem"))
    files = {"ca_file": "ca.pem", "cert_file": "client.crt", "key_file": "client.key"}
    tls = {name: str(folder / file) for name, file in files.items()}
    stranger = {**job(address), "job_name": "stranger", "scheme": "https", "tls_config": {"ca_file": tls["ca_file"]}}
    with Prometheus(tmp_path, [job(address, scheme="https", tls_config=tls), stranger]) as prometheus:
        until(lambda: prometheus.value(SUM_LAG) == 7, "it has the lag", 60)
        until(lambda: prometheus.value('up{job="stranger"}') == 0, "a job without a certificate gets nothing", 60)


def test_prometheus_receives_the_same_by_otlp(start: Start, broker: Broker, tmp_path: Path) -> None:
    if not otlp_options():
        pytest.skip("this Prometheus is older than 2.47 and receives no OTLP")
    with Prometheus(tmp_path, []) as prometheus:
        exporter(start, broker, "--otlp", f"http://{prometheus.address}/api/v1/otlp")
        until(lambda: prometheus.value(SUM_LAG) == 7, "it has the lag", 60)
        ((labels, _),) = prometheus.query(SUM_LAG).items()
        assert ("job", "kohort-exporter") in labels
        until(lambda: prometheus.value('kohort_exporter_reads_total{outcome="whole"}'), "counters keep their name", 60)


def test_exporters_that_share_groups_show_each_once_also_after_one_is_killed(
    start: Start, broker: Broker, tmp_path: Path
) -> None:
    config = tmp_path / "client.properties"
    config.write_text("session.timeout.ms=6000\n")
    ports = free_ports(2)
    options = ("--interval", "200", "--servers", f"c={broker.bootstrap_servers}", "--share", "e", "--config")
    processes = [start("exporter", "--listen", f"127.0.0.1:{port}", *options, str(config)) for port in ports]
    addresses = [ready(process) for process in processes]
    with Prometheus(tmp_path, [job(*addresses)]) as prometheus:

        def is_whole() -> bool:
            shares = prometheus.query("kohort_exporter_shares")
            summed = prometheus.value("sum by (cluster_name) (kohort_exporter_shares)")
            lag = prometheus.value('max by (cluster_name, group) (kafka_consumergroup_group_sum_lag{group="g"})')
            return summed == 32 and lag == 7 and len(shares) == sum(process.poll() is None for process in processes)

        until(is_whole, "two exporters have all shares", 60)
        processes[0].kill()
        processes[0].wait(60)
        until(is_whole, "the other one has all shares", 90)


# -- Alert rules

PLACE = 'cluster_name="c",group="g"'
ALERTS: dict[str, dict[str, str]] = {
    "KafkaClusterNotRead": {'kohort_exporter_up{cluster_name="c"}': "0x30"},
    "KafkaClusterPartlyRead": {
        'kohort_exporter_up{cluster_name="c"}': "1x30",
        'kohort_exporter_failures{cluster_name="c",reason="timed_out"}': "2x30",
        'kohort_exporter_failures{cluster_name="c",reason="refused"}': "0x30",
    },
    "KafkaSharesNotRead": {
        'kohort_exporter_shares{cluster_name="c",instance="a"}': "16x30",
        'kohort_exporter_shares{cluster_name="c",instance="b"}': "0x30",
    },
    "KafkaGroupLostRecords": {
        f'kohort_consumergroup_lost_offsets{{{PLACE},topic="t",partition="0",instance="{instance}"}}': "5x30"
        for instance in "ab"
    },
    "KafkaGroupCannotContinue": {
        f'kohort_consumergroup_partition_status{{{PLACE},topic="t",partition="0",cause="past end"}}': "4x30"
    },
    "KafkaGroupStopped": {f'kohort_consumergroup_status{{{PLACE},instance="{instance}"}}': "3x30" for instance in "ab"},
    "KafkaGroupStalled": {
        f'kohort_consumergroup_partition_status{{{PLACE},topic="t",partition="{number}",cause="no progress"}}': "2x30"
        for number in range(3)
    },
    "KafkaGroupFallsBehind": {
        f'kohort_consumergroup_partition_status{{{PLACE},topic="t",partition="0",cause="falling behind"}}': "1x30"
    },
    "KafkaGroupLate": {
        f'kafka_consumergroup_group_max_lag_seconds{{{PLACE},instance="{instance}"}}': "901x30" for instance in "ab"
    },
    "KafkaGroupRebalancesOften": {f'kohort_consumergroup_changes_total{{{PLACE},kind="joined"}}': "0+2x30"},
}
"""Values by series, a minute apart; each set fires its alert once, and no other."""
WELL = {
    'kohort_exporter_up{cluster_name="c"}': "1x30",
    'kohort_exporter_failures{cluster_name="c",reason="timed_out"}': "0x30",
    'kohort_exporter_shares{cluster_name="c",instance="a"}': "20x30",
    'kohort_exporter_shares{cluster_name="c",instance="b"}': "12x30",
    f"kohort_consumergroup_status{{{PLACE}}}": "0x30",
    f"kafka_consumergroup_group_max_lag_seconds{{{PLACE}}}": "890x30",
    f'kohort_consumergroup_changes_total{{{PLACE},kind="joined"}}': "0x10 1x20",
    f'kohort_consumergroup_partition_status{{{PLACE},topic="t",partition="0",cause="abandoned"}}': "0x30",
}
SHORT = {
    f"kohort_consumergroup_status{{{PLACE}}}": "0x15 3x2 0x12",
    'kohort_exporter_up{cluster_name="c"}': "1x15 0 1x13",
}
"""Conditions that end before a rule's `for` has passed: no alert fires."""


@pytest.mark.parametrize(
    ("series", "fires"),
    [*((series, name) for name, series in ALERTS.items()), (WELL, None), (SHORT, None)],
    ids=[*ALERTS, "all is well", "short"],
)
def test_alert_fires_for_what_it_names_and_for_nothing_else(
    series: dict[str, str], fires: str | None, tmp_path: Path
) -> None:
    expected = [] if fires is None else [{"labels": f'{{alertname="{fires}"}}', "value": 1}]
    query = {
        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": "25m",
        "exp_samples": expected,
    }
    case = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [query] if fires else [{**query, "eval_time": f"{at}m"} for at in range(1, 26)],
    }
    file = tmp_path / "alerts_test.yml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [case]}))
    run = subprocess.run(
        [prometheus_program("promtool"), "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_each_alert_has_a_case_and_the_rules_are_valid() -> None:
    named = {line.split("alert:")[1].strip() for line in RULES.read_text().splitlines() if "- alert:" in line}
    assert named == ALERTS.keys()
    run = subprocess.run(
        [prometheus_program("promtool"), "check", "rules", str(RULES)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
