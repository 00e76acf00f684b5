"""The dashboard over HTTP: its answers, what it refuses, and clusters that are away, refuse or come back."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.dashboard.conftest import Dashboard, behind
from tests.region.conftest import Collected, Worker, make_topic
from tests.support.apache_kafka import ApacheKafka
from tests.support.processes import Start, ready
from tests.support.waiting import until

from kohort import Admin, Broker, Consumer
from kohort.broker.server.fault_kinds import Fault
from kohort.client.admin.values import ScramCredential
from kohort.dashboard import cluster_lookups
from kohort.dashboard.cluster_lookups import AnswerCache, BusyError
from kohort.errors import ErrorCode, KafkaError, RetriableError, TimedOutError
from kohort.region.messages import RegionStatus
from kohort.region.region import Region
from kohort.region.region_key import KEY_VARIABLE
from kohort.region.region_topic import TOPIC

pytest.importorskip("uvicorn", reason="the extra `dashboard` is not installed")

from kohort.dashboard.server import FILES

Serve = Callable[..., Dashboard]
NOBODY = "127.0.0.1:1"


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(config={"group.initial.rebalance.delay.ms": 0}) as broker:
        yield broker


# -- Answers


def test_groups_have_lag_status_and_history(serve: Serve, our_broker: Broker, name: str) -> None:
    behind(our_broker.bootstrap_servers, name, name)
    dashboard = serve(our_broker.bootstrap_servers)
    until(lambda: len(dashboard.groups().get(name, {}).get("lags", ())) >= 2, "the group is read twice")
    row = dashboard.groups()[name]
    assert (row["lag"], row["topics"], row["members"], row["exact"]) == (7, [name], 0, True)
    assert 0 < row["time_lag_ms"] < 600_000
    assert set(row["lags"]) == {7}
    cluster = dashboard.get("overview")["cluster"]
    assert cluster["up"] and cluster["messages"] == [] and cluster["age_ms"] >= 0


def test_group_has_partitions_members_and_timeline(serve: Serve, our_broker: Broker, name: str) -> None:
    servers = our_broker.bootstrap_servers
    behind(servers, name, name)
    dashboard = serve(servers)
    until(lambda: name in dashboard.groups(), "the group is read")
    with Consumer(servers, group_id=name, client_id="reader", enable_auto_commit=False) as consumer:
        consumer.subscribe([name])
        until(lambda: bool(consumer.poll(50) or consumer.assignment()), "the consumer has its partitions")
        until(lambda: dashboard.get("group", name=name)["group"]["members"] == 1, "the member is seen")
        until(lambda: dashboard.get("group", name=name)["group"]["state"] == "Stable", "the group is stable")
        found = dashboard.get("group", name=name)["group"]
    parts = {row["partition"]: row for row in found["partition_rows"]}
    assert [parts[number]["lag"] for number in (0, 1)] == [7, 0]
    assert (parts[0]["committed"], parts[0]["log_end"], parts[0]["member"]) == (3, 10, "reader")
    assert parts[0]["lags"][-1] == 7
    [member] = found["member_rows"]
    assert (member["client_id"], member["owns"], member["lag"]) == ("reader", {name: [0, 1]}, 7)
    assert {"joined", "state", "assignment"} <= {change["kind"] for change in found["timeline"]}
    assert len(found["times_ms"]) == len(found["lags"]) == len(found["time_lags_ms"])


def test_unknown_group_is_not_found_and_names_the_nearest(serve: Serve, our_broker: Broker, name: str) -> None:
    behind(our_broker.bootstrap_servers, name, name)
    dashboard = serve(our_broker.bootstrap_servers)
    until(lambda: name in dashboard.groups(), "the group is read")
    status, said = dashboard.ask("group", name=f"{name}x")
    assert status == 404 and name in said["error"]
    assert dashboard.ask("group")[0] == 400


def test_topics_have_partitions_offsets_and_readers(serve: Serve, our_broker: Broker, name: str) -> None:
    behind(our_broker.bootstrap_servers, name, f"{name}-readers")
    dashboard = serve(our_broker.bootstrap_servers)
    until(lambda: f"{name}-readers" in dashboard.groups(), "the group is read")
    rows = {row["topic"]: row for row in dashboard.get("topics")["topics"]}
    assert rows[name]["partitions"] == 2 and not rows[name]["internal"]
    assert [reader["group"] for reader in rows[name]["readers"]] == [f"{name}-readers"]
    found = dashboard.get("topic", name=name)
    assert [(row["log_start"], row["log_end"]) for row in found["partition_rows"]] == [(0, 10), (0, 0)]
    assert found["readers"][0]["lag"] == 7
    assert dashboard.ask("topic", name=f"{name}x")[0] == 404


def test_records_are_shown_and_no_offset_moves(serve: Serve, our_broker: Broker, name: str) -> None:
    behind(our_broker.bootstrap_servers, name, name)
    dashboard = serve(our_broker.bootstrap_servers)
    found = dashboard.get("records", topic=name, limit=2)["records"]
    assert [record["offset"] for record in found] == [9, 8]
    assert found[0]["value"]["json"] and found[0]["headers"][0]["name"] == "via"
    found = dashboard.get("records", topic=name, partition=0, offset=3, limit=2)["records"]
    assert [record["offset"] for record in found] == [3, 4]
    with Admin(our_broker.bootstrap_servers) as admin:
        committed = admin.list_consumer_group_offsets(name).all()
    assert {at.offset for at in committed.values() if at is not None} == {3, 0}
    for query in ({"limit": 0}, {"limit": "many"}, {"offset": 1}, {"partition": -1}, {"contains": "x" * 2000}):
        assert dashboard.ask("records", topic=name, **query)[0] == 400
    assert dashboard.ask("records", topic=name, partition=7)[0] == 404


def test_looks_at_records_beyond_the_limit_are_refused(
    serve: Serve, our_broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind(our_broker.bootstrap_servers, name, name)
    monkeypatch.setattr(cluster_lookups, "PEEKS_MAX", 0)
    status, said = serve(our_broker.bootstrap_servers).ask("records", topic=name)
    assert status == 429 and "try again" in said["error"]


def test_regions_are_shown_with_members_and_sinks(serve: Serve, our_broker: Broker, name: str) -> None:
    servers = our_broker.bootstrap_servers
    dashboard = serve(servers)
    make_topic(servers, name)
    with Region(name, servers, checkpoint_every="200ms") as served:
        worker = Worker(served, "m1", Collected(), name)
        until(lambda: worker.consumer.metrics.partitions == 4, "the member reads")
        listed = dashboard.get("regions")["regions"]
        assert [row["groups"] for row in listed if row["region"] == name] == [[name]]
        found = dashboard.get("region", name=name)["region"]
        assert [(member["member"], len(member["partitions"])) for member in found["members"]] == [("m1", 4)]
        assert found["sinks"][0]["sink"].startswith("test:")
        worker.close()


def test_cluster_whose_brokers_coordinate_groups_has_no_coordinators(serve: Serve, our_broker: Broker) -> None:
    found = serve(our_broker.bootstrap_servers).get("coordinators")
    assert (found["coordinators"], found["shards"]) == ([], [])
    assert "up" in found["cluster"]


@pytest.mark.kafka
def test_coordinators_over_kafka_are_shown_with_their_shards(
    serve: Serve, start: Start, apache_kafka: ApacheKafka, name: str
) -> None:
    own = {"journal.topic": f"__groups-{name}", "journal.partitions": "2", "placement.group": f"__members-{name}"}
    journal = [word for key, value in own.items() for word in ("--set", f"{key}={value}")]
    address = ready(
        start("coordinator", "--kafka", apache_kafka.bootstrap_servers, "--listen", "127.0.0.1:0", *journal)
    )
    dashboard = serve(address)

    def shards() -> set[str]:
        answer, found = dashboard.ask("coordinators")
        return {row["phase"] for row in found["shards"]} if answer == 200 else set()

    until(lambda: shards() == {"serving"}, "all shards are served", 120)
    (row,) = dashboard.get("coordinators")["coordinators"]
    assert (row["address"], row["elected"], row["trouble"]) == (address, True, "")


def test_looking_for_regions_creates_no_topic_and_no_key(
    serve: Serve, broker: Broker, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    dashboard = serve(broker.bootstrap_servers)
    assert dashboard.get("regions")["regions"] == []
    assert dashboard.ask("region", name=name)[0] == 404
    assert TOPIC not in {row["topic"] for row in dashboard.get("topics")["topics"]}
    assert list(tmp_path.iterdir()) == []


def test_region_of_another_key_is_listed_and_no_key_is_made(
    serve: Serve, broker: Broker, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "owner"))
    make_topic(broker.bootstrap_servers, name)
    with Region(name, broker.bootstrap_servers) as served:
        served.serve()
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "visitor"))
        dashboard = serve(broker.bootstrap_servers)
        [row] = dashboard.get("regions")["regions"]
        assert row["region"] == name and "are ignored here" in row["stopped"]
        status, said = dashboard.ask("region", name=name)
        assert status == 400 and "key" in said["error"]
    assert not (tmp_path / "visitor").exists()


def test_made_up_names_are_refused_and_other_pages_answer(serve: Serve, our_broker: Broker, name: str) -> None:
    """Each name that nobody has would open connections and log in, and a region's would wait for a control plane."""
    behind(our_broker.bootstrap_servers, name, name)
    dashboard = serve(our_broker.bootstrap_servers)
    until(lambda: name in dashboard.groups(), "the group is read")
    assert dashboard.ask("region", name=f"{name}-made-up")[0] == 404
    asked = [dashboard.ask("topic", name=f"{name}-{number}")[0] for number in range(200)]
    assert set(asked) == {404, 429}
    assert dashboard.ask("records", topic=name)[0] == 429
    assert dashboard.ask("group", name=name)[0] == 200


def test_group_is_shown_while_look_ups_of_regions_and_topics_wait(
    serve: Serve, our_broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind(our_broker.bootstrap_servers, name, name)
    dashboard = serve(our_broker.bootstrap_servers)
    until(lambda: name in dashboard.groups(), "the group is read")
    go, waits = threading.Event(), threading.Semaphore(0)

    def wait(*_: object) -> dict[str, object]:
        waits.release()
        go.wait(60)
        return {"topic": name, "regions": []}

    for method in ("topic", "region", "regions"):
        monkeypatch.setattr(cluster_lookups.ClusterLookups, method, wait)
    asking = [
        threading.Thread(target=dashboard.ask, args=(answer,), kwargs={"name": f"{name}-{number}"})
        for number in range(8)
        for answer in ("topic", "region")
    ]
    try:
        for thread in asking:
            thread.start()
        for _ in range(8):
            assert waits.acquire(timeout=60)
        assert dashboard.get("group", name=name)["group"]["lag"] == 7
    finally:
        go.set()
        for thread in asking:
            thread.join()


def test_region_without_a_control_plane_is_given_up_after_the_limit(
    broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--timeout` is the limit, not the 10 s that commands wait."""
    limits: list[float] = []
    whole = Region.describe

    def describe(self: Region, timeout_s: float = 0.0) -> RegionStatus:
        limits.append(timeout_s)
        return whole(self, timeout_s)

    monkeypatch.setattr(Region, "describe", describe)
    make_topic(broker.bootstrap_servers, name)
    with Region(name, broker.bootstrap_servers) as served:
        served.serve()
    lookups = cluster_lookups.ClusterLookups(broker.bootstrap_servers, {}, {}, 300)
    with pytest.raises(TimedOutError, match="no control plane"):
        lookups.region(name)
    assert limits == [0.3]


def test_page_gets_an_event_after_each_read_and_the_end_closes_it(serve: Serve, our_broker: Broker) -> None:
    dashboard = serve(our_broker.bootstrap_servers)
    host, port = dashboard.server.address.rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    connection.request("GET", "/api/events")
    answer = connection.getresponse()
    assert answer.getheader("content-type", "").startswith("text/event-stream")
    events: list[bytes] = []
    while len(events) < 3:
        line = answer.readline()
        assert line
        events += [line] if line.startswith(b"data:") else []
    assert len(set(events)) >= 2
    closing = threading.Thread(target=dashboard.server.close)
    closing.start()
    answer.read()
    closing.join(60)
    assert not closing.is_alive()
    connection.close()


# -- What is refused


@pytest.mark.parametrize("path", FILES)
def test_file_is_served_with_a_policy_that_allows_nothing_from_elsewhere(
    serve: Serve, our_broker: Broker, path: str
) -> None:
    status, headers, body = serve(our_broker.bootstrap_servers).send(path)
    assert status == 200 and body
    assert headers["content-type"].partition(";")[0] == FILES[path][1].partition(";")[0]
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy and "http" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert b"//" not in body.replace(b"http://www.w3.org/2000/svg", b"").replace(b"// ", b""), "no other host"


def test_requests_of_other_pages_are_refused(serve: Serve, our_broker: Broker) -> None:
    """A name that leads to 127.0.0.1 makes any page a page of this host, unless the host's name is checked."""
    dashboard = serve(our_broker.bootstrap_servers)
    assert dashboard.send("/api/overview", host="evil.example:8480")[0] == 421
    assert dashboard.send("/", host="127.0.0.1.evil.example")[0] == 421
    assert dashboard.send("/", host="localhost:8480")[0] == 200
    assert dashboard.send("/api/overview", sec_fetch_site="cross-site")[0] == 403
    assert dashboard.send("/api/overview", sec_fetch_site="same-site")[0] == 403
    assert dashboard.send("/api/overview", sec_fetch_site="same-origin")[0] == 200
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        status, headers, _ = dashboard.send("/api/overview", method)
        assert status == 405 and "content-security-policy" in headers
    for path in ("/../server.py", "/static/app.js", "/api/nothing", "/%2e%2e/%2e%2e/etc/passwd"):
        assert dashboard.send(path)[0] == 404


def test_address_that_other_machines_reach_is_refused(start: Start) -> None:
    process = start("dashboard", "--listen", "0.0.0.0:0", "--bootstrap-server", NOBODY)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert "no login" in err and "ssh -L" in err


def test_command_serves_while_no_broker_is_there_and_ends_with_a_signal(start: Start) -> None:
    process = start("dashboard", "--listen", "127.0.0.1:0", "--bootstrap-server", NOBODY)
    assert process.stdout is not None
    word, url = process.stdout.readline().split()
    host, port = url.removeprefix("http://").rstrip("/").rsplit(":", 1)
    assert (word, host) == ("ready", "127.0.0.1")
    with socket.create_connection((host, int(port)), 60) as sock:
        sock.sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.1 200")
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 0


# -- Clusters that are away, refuse, and come back


def test_cluster_that_is_away_is_said_and_the_last_read_stays(serve: Serve, broker: Broker, name: str) -> None:
    """The overview asks no cluster, so it answers; the read that is shown has its age."""
    behind(broker.bootstrap_servers, name, name)
    dashboard = serve(broker.bootstrap_servers)
    until(lambda: name in dashboard.groups(), "the group is read")
    broker.kill()
    until(lambda: not dashboard.get("overview")["cluster"]["up"], "its end is said")
    found = dashboard.get("overview")
    assert found["cluster"]["messages"] and found["cluster"]["failures"]
    assert [row["lag"] for row in found["overview"]["groups"]] == [7]
    status, said = dashboard.ask("topics")
    assert status == 503 and said["error"]
    broker.restart()
    until(lambda: dashboard.get("overview")["cluster"]["up"], "it is read again")
    until(lambda: dashboard.ask("topics")[0] == 200, "topics are there again")


def test_cluster_that_was_never_read_is_said(serve: Serve) -> None:
    dashboard = serve(NOBODY)
    until(lambda: dashboard.get("overview")["cluster"]["reads"] > 0, "the first read has ended")
    cluster = dashboard.get("overview")["cluster"]
    assert not cluster["up"] and cluster["read_at_ms"] is None and "127.0.0.1:1" in cluster["messages"][0]
    status, said = dashboard.ask("group", name="any")
    assert status == 503 and "127.0.0.1:1" in said["error"]


def test_missing_right_is_said_at_its_group_and_ends_by_itself(serve: Serve, broker: Broker, name: str) -> None:
    behind(broker.bootstrap_servers, name, name)
    dashboard = serve(broker.bootstrap_servers)
    until(lambda: name in dashboard.groups(), "the group is read")
    fault = broker.faults.add(Fault("OffsetFetch", "fail", times=None, error=ErrorCode.GROUP_AUTHORIZATION_FAILED))
    until(lambda: dashboard.groups()[name]["status"] == "UNREAD", "the refusal is said")
    row = dashboard.groups()[name]
    assert row["reason"] == "not_authorized" and "GROUP_AUTHORIZATION_FAILED" in row["error"]
    assert dashboard.get("group", name=name)["group"]["error"] == row["error"]
    assert dashboard.get("overview")["cluster"]["failures"] == {"not_authorized": 1}
    fault.remove()
    until(lambda: dashboard.groups()[name]["status"] != "UNREAD", "the group is read again")
    lags = dashboard.get("group", name=name)["group"]["lags"]
    assert None in lags and lags[-1] == 7, "the time without a read is a gap"


def test_session_that_expires_without_another_login_is_said_and_ends_by_itself(serve: Serve, name: str) -> None:
    """The broker ends sessions after a second. A user that is gone by then can't log in anew."""
    config = {
        "listener.security.protocol.map": "OPEN:PLAINTEXT,SHORT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "connections.max.reauth.ms": "1000",
        "connection.failed.authentication.delay.ms": "20",
    }
    credential = ScramCredential("dora", "secret-of-dora", "SCRAM-SHA-256")
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-256"}
    login |= {"sasl_username": "dora", "sasl_password": "secret-of-dora"}
    with Broker(config=config, listen="OPEN://127.0.0.1:0,SHORT://127.0.0.1:0") as broker:
        opened = broker.listeners["OPEN"]
        behind(opened, name, name)
        with Admin(opened) as admin:
            admin.alter_user_scram_credentials([credential]).all()
            dashboard = serve(broker.listeners["SHORT"], **login)
            until(lambda: dashboard.groups().get(name, {}).get("lag") == 7, "the group is read")
            admin.alter_user_scram_credentials(deletions=[("dora", "SCRAM-SHA-256")]).all()
            until(lambda: not dashboard.get("overview")["cluster"]["up"], "the refusal is said")
            assert "uthentication" in dashboard.get("overview")["cluster"]["messages"][0]
            admin.alter_user_scram_credentials([credential]).all()
            until(lambda: dashboard.get("overview")["cluster"]["up"], "it is read again")


# -- Answers that are kept


def test_answer_is_kept_for_a_while_also_a_failure() -> None:
    now, calls = [0.0], []
    kept = AnswerCache(lambda: now[0])

    def make() -> dict[str, object]:
        calls.append(now[0])
        if len(calls) == 2:
            raise RetriableError("away")
        return {"number": len(calls)}

    assert [kept.cached_answer("a", make) for _ in range(3)] == [{"number": 1}] * 3
    now[0] += cluster_lookups.ANSWER_KEPT_S
    for _ in range(2):
        with pytest.raises(KafkaError, match="away"):
            kept.cached_answer("a", make)
    now[0] += cluster_lookups.ANSWER_KEPT_S
    assert kept.cached_answer("a", make) == {"number": 3}
    assert len(calls) == 3


def test_look_ups_are_bounded_by_number_and_allowed_again_with_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_lookups, "LOOKUPS_AT_ONCE", 2)
    now = [0.0]
    kept = AnswerCache(lambda: now[0])
    for name in ("a", "b", "a", "b"):
        assert kept.cached_answer(name, dict) == {}
    with pytest.raises(BusyError, match="try again"):
        kept.cached_answer("c", dict)
    now[0] += 1 / cluster_lookups.LOOKUPS_PER_S
    assert kept.cached_answer("c", dict) == {}
    with pytest.raises(BusyError):
        kept.cached_answer("d", dict)


def test_name_whose_answer_fails_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> dict[str, object]:
        raise ValueError("unforeseen")

    kept = AnswerCache(lambda: 0.0)
    for number in range(10):
        with pytest.raises(ValueError, match="unforeseen"):
            kept.cached_answer(f"failing {number}", fail)
    monkeypatch.setattr(cluster_lookups.LookupBudget, "spend", fail)
    with pytest.raises(ValueError, match="unforeseen"):
        kept.cached_answer("refused", dict)
    assert kept.cached_names() == set()


def test_answers_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_lookups, "ANSWERS_KEPT", 3)
    calls: list[str] = []

    def make() -> dict[str, object]:
        calls.append("")
        return {}

    kept = AnswerCache(lambda: 0.0)
    for number in (0, 1, 2, 3, 1, 0):
        kept.cached_answer(str(number), make)
    assert len(calls) == 5, "only the oldest was made again"
    assert kept.cached_names() == {"2", "3", "0"}
