"""`kohort exporter --share`: each group is on one page, also after an exporter is killed, stopped or ended."""

from __future__ import annotations

import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.lag.test_exporter import NOBODY, Samples, page
from tests.support.apache_kafka import ApacheKafka
from tests.support.processes import Start, ready
from tests.support.waiting import until

from kohort import Admin, Broker, Producer, TopicPartition
from kohort.broker.server.fault_kinds import Fault
from kohort.cli.app import run
from kohort.client.admin.values import GroupDescription, NewTopic
from kohort.client.group import member as member_module
from kohort.client.group.member import GroupMember
from kohort.errors import ErrorCode, KafkaError, NotAuthorizedError, TimedOutError
from kohort.lag import GroupLag, LagReader, LagReport, LagStatus, cluster_watch, exporter_shares
from kohort.lag.cluster_watch import ClusterWatch, reached_no_group
from kohort.lag.exporter_shares import SHARES, SHARES_TOPIC, ExporterShares, share_number_of

GROUPS = [f"shared-{number}" for number in range(24)]
TOPICS = ["shared-topic-0", "shared-topic-1"]
LAG, SHARES_HELD = "kafka_consumergroup_group_sum_lag", "kohort_exporter_shares"


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(config={"group.initial.rebalance.delay.ms": 0}) as broker:
        fill(broker.bootstrap_servers)
        yield broker


def fill(servers: str) -> None:
    """Makes groups that have read three of ten records of a topic, and no members."""
    with Admin(servers) as admin, Producer(servers) as producer:
        admin.create_topics([NewTopic(topic, 1, 1) for topic in TOPICS]).all()
        for topic in TOPICS:
            for number in range(10):
                producer.send(topic, b"%d" % number, partition=0)
        producer.flush()
        for number, group in enumerate(GROUPS):
            admin.alter_consumer_group_offsets(group, {TopicPartition(TOPICS[number % 2], 0): 3}).all()


class Exporters:
    """Some exporters of one cluster."""

    def __init__(self, start: Start, servers: str, config: Path, interval_ms: int = 200) -> None:
        self._start = start
        self._args = ("--servers", f"c={servers}", "--config", str(config), "--interval", str(interval_ms))
        self.running: dict[str, subprocess.Popen[str]] = {}

    def begin(self, *others: str) -> str:
        process = self._start("exporter", "--listen", "127.0.0.1:0", *self._args, "--share", "exporters", *others)
        address = ready(process)
        self.running[address] = process
        return address

    def pages(self) -> dict[str, Samples]:
        return {address: page(address) for address in self.running}

    def is_split(self) -> bool:
        """Whether every exporter has shares, and every group and topic is on one page."""
        pages = self.pages().values()
        counts = Counter(key for found in pages for key in found if key[1][:1] == ("c",) and is_of_cluster(key[0]))
        held = [found.get((SHARES_HELD, ("c",)), 0) for found in pages]
        wanted = {(LAG, ("c", group)) for group in GROUPS}
        wanted |= {("kafka_partition_latest_offset", ("c", topic, "0")) for topic in TOPICS}
        return wanted <= counts.keys() and set(counts.values()) == {1} and min(held) > 0 and sum(held) == SHARES


def is_of_cluster(metric: str) -> bool:
    """Whether a metric is a fact about the cluster, and not about the exporter."""
    return not (metric.startswith("kohort_exporter") or metric == "kafka_consumergroup_poll_time_ms")


def groups_of(found: Samples) -> set[str]:
    return {labels[1] for metric, labels in found if metric == LAG}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Exporters whose shares are taken over after the shortest session that brokers allow."""
    file = tmp_path / "client.properties"
    file.write_text("session.timeout.ms=6000\n")
    return file


def test_exporters_split_the_groups_and_take_over_from_one_that_is_killed(
    start: Start, broker: Broker, config: Path
) -> None:
    exporters = Exporters(start, broker.bootstrap_servers, config)
    first = exporters.begin()
    until(exporters.is_split, "one exporter has all groups", 60)
    second, third = exporters.begin(), exporters.begin()
    until(exporters.is_split, "three exporters have each group once", 60)
    assert all(groups_of(found) for found in exporters.pages().values())
    exporters.running.pop(second).kill()
    until(exporters.is_split, "two exporters have each group once", 60)
    exporters.running.pop(first).terminate()
    until(exporters.is_split, "the last one has all groups", 60)
    assert groups_of(page(third)) == set(GROUPS)


def test_no_group_is_on_two_pages_while_shares_move(start: Start, broker: Broker, config: Path) -> None:
    """Each page is fetched twice around the other: what is on both times on one was there when the other was made."""
    exporters = Exporters(start, broker.bootstrap_servers, config, interval_ms=3_600_000)  # no read takes a group away
    first = exporters.begin()
    until(exporters.is_split, "one exporter has all groups", 60)
    second = exporters.begin()
    twice: list[set[str]] = []

    def moved() -> bool:
        before, other, after = groups_of(page(first)), groups_of(page(second)), groups_of(page(first))
        twice.append(before & after & other)
        return exporters.is_split()

    until(moved, "two exporters have each group once", 60)
    exporters.running.pop(first).terminate()
    until(exporters.is_split, "the other has all groups", 60)
    assert [groups for groups in twice if groups] == []


def test_successor_knows_lag_and_a_stop_from_its_first_read_and_no_rate(
    start: Start, broker: Broker, config: Path
) -> None:
    """Nothing is handed over: what needs several reads begins anew."""
    group = GROUPS[0]
    with GroupMember(broker.bootstrap_servers, group, topics=[TOPICS[0]]) as member:
        member.wait_assignment(30_000)
    exporters = Exporters(start, broker.bootstrap_servers, config, interval_ms=3_600_000)  # one read after a take-over
    exporters.begin()
    until(exporters.is_split, "one exporter has all groups", 60)
    exporters.begin()
    until(exporters.is_split, "two exporters have each group once", 60)
    (owner,) = (address for address, found in exporters.pages().items() if group in groups_of(found))
    exporters.running.pop(owner).kill()
    until(exporters.is_split, "the other has all groups", 60)
    ((_, found),) = exporters.pages().items()
    place = ("c", group)
    assert found[LAG, place] == 7 and found["kafka_consumergroup_group_max_lag_seconds", place] > 0
    assert found["kohort_consumergroup_status", place] == LagStatus.STOP
    assert ("kohort_consumergroup_consumed_per_second", place) not in found
    changes = {labels[1] for metric, labels in found if metric == "kohort_consumergroup_changes"}
    assert changes <= {"exporters"}


def test_exporter_that_was_stopped_shows_no_group_of_its_successor(start: Start, broker: Broker, config: Path) -> None:
    exporters = Exporters(start, broker.bootstrap_servers, config)
    first = exporters.begin()
    until(exporters.is_split, "one exporter has all groups", 60)
    exporters.begin()
    until(exporters.is_split, "two exporters have each group once", 60)
    stopped = exporters.running.pop(first)
    stopped.send_signal(signal.SIGSTOP)
    try:
        until(exporters.is_split, "the other has all groups", 60)
        (second,) = exporters.running
    finally:
        stopped.send_signal(signal.SIGCONT)
    woken = page(first)
    assert groups_of(woken) & groups_of(page(second)) == set()
    exporters.running[first] = stopped
    until(exporters.is_split, "both have groups again", 60)


def test_shares_end_by_the_clock_before_the_client_hears_of_it(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was stopped for a session answers a scrape before its client's thread has looked at the clock."""
    servers = broker.bootstrap_servers
    shares = ExporterShares("c", "exporters", SHARES_TOPIC, servers, {"session.timeout.ms": "6000"})
    try:
        until(lambda: len(shares.owned_shares()) == SHARES, "it has all shares", 60)
        with monkeypatch.context() as later:
            later.setattr(member_module, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 6))
            assert shares.owned_shares() == {}
        assert len(shares.owned_shares()) == SHARES
    finally:
        shares.close()
    assert shares.owned_shares() == {}


@contextmanager
def watching(servers: str, client_id: str, interval_s: float) -> Iterator[ClusterWatch]:
    """An exporter without a page, in this process. Its reads have a client id, and its membership another."""
    reader = LagReader(servers, client_id=client_id)
    shares = ExporterShares("c", "exporters", SHARES_TOPIC, servers, {"session.timeout.ms": "6000"})
    watch = ClusterWatch("c", reader, interval_s, shares=shares)
    try:
        yield watch
    finally:
        watch.close()


def held(watch: ClusterWatch) -> int:
    return len(watch.current_owned_shares or ())


def test_groups_are_read_at_once_when_a_lapsed_session_resumes(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody took the shares meanwhile; a page without groups until the next interval would be a false alarm."""
    with watching(broker.bootstrap_servers, "reader", 3_600) as watch:
        until(lambda: held(watch) == SHARES, "it has read all groups", 60)
        reads = sum(watch.state.reads.values())
        with monkeypatch.context() as later:
            later.setattr(member_module, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 6))
            watch._is_due.set()
            until(lambda: sum(watch.state.reads.values()) > reads, "it reads without its shares", 60)
            assert watch.state.shares == {}
        until(lambda: held(watch) == SHARES, "it has read all groups again", 60)


@pytest.mark.parametrize(
    ("denial", "is_up"),
    [
        pytest.param(
            Fault("ListGroups", "fail", client_id="blind", times=None, error=ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
            False,
            id="nothing",
        ),
        pytest.param(Fault("DescribeGroups", "close", client_id="blind", times=None), True, id="no-group-it-lists"),
    ],
)
def test_exporter_that_cannot_read_gives_its_shares_up_until_it_can(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, denial: Fault, is_up: bool
) -> None:
    """The heartbeats of such an exporter continue, so that nobody would show its groups while it is a member."""
    monkeypatch.setattr(cluster_watch, "STALE_MIN_S", 0.5)
    servers = broker.bootstrap_servers
    with watching(servers, "blind", 0.1) as blind, watching(servers, "other", 0.1) as other:
        until(lambda: held(blind) + held(other) == SHARES and held(blind) > 0 < held(other), "both have shares", 60)
        fault = broker.faults.add(denial)
        until(lambda: held(other) == SHARES, "the other has all groups", 60)
        assert held(blind) == 0 and blind.state.is_up is is_up
        fault.remove()
        until(lambda: held(blind) > 0, "it takes shares again", 60)
        until(lambda: held(blind) + held(other) == SHARES, "each group is shown once", 60)


TIMED_OUT, DENIED = TimedOutError("late"), NotAuthorizedError("no", ErrorCode.GROUP_AUTHORIZATION_FAILED)


@pytest.mark.parametrize(
    ("errors", "groups", "blind"),
    [
        pytest.param({"a": TIMED_OUT, "b": TIMED_OUT}, (), True, id="no-group"),
        pytest.param({"a": TIMED_OUT}, ("b",), False, id="some-groups"),
        pytest.param({"a": TIMED_OUT, "b": DENIED}, (), False, id="a-right-is-missing"),
        pytest.param({"query": TIMED_OUT}, (), False, id="checkpoint-hangs"),
        pytest.param({"a": TIMED_OUT}, ("query",), True, id="only-a-checkpoint-is-read"),
        pytest.param({}, (), False, id="no-groups-at-all"),
    ],
)
def test_exporter_is_blind_if_it_reaches_none_of_the_groups_that_it_lists(
    errors: dict[str, KafkaError], groups: tuple[str, ...], blind: bool
) -> None:
    described = {name: GroupLag(GroupDescription(name, "Classic", "Empty", "", "", ())) for name in groups}
    assert reached_no_group(LagReport(0, described, errors), {"a", "b"}) is blind


def test_exporter_that_fails_again_and_again_waits_longer_before_it_takes_shares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of its attempts costs the others a rebalance."""
    now_s = [1_000.0]
    shares = ExporterShares("c", "exporters", SHARES_TOPIC, NOBODY, {})
    monkeypatch.setattr(exporter_shares, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    pauses = []
    try:
        for _ in range(6):
            shares._owned = {0: 1}
            shares.record_read_failure(60)
            now_s[0] += 61
            shares.record_read_failure(60)
            shares._owned = {}
            began_s = now_s[0]
            shares.record_read_success(of_shares=False)
            while shares._is_resting:
                now_s[0] += 10
                shares.record_read_success(of_shares=False)
            pauses.append(now_s[0] - began_s)
    finally:
        shares.close()
    assert pauses == [0, 60, 120, 240, 480, 600]


@pytest.mark.kafka
def test_exporters_take_over_on_apache_kafka_after_a_session(
    start: Start, apache_kafka: ApacheKafka, config: Path
) -> None:
    """There nothing but the session timeout shows that an exporter has gone, or stands still."""
    servers = apache_kafka.bootstrap_servers
    fill(servers)
    exporters = Exporters(start, servers, config)
    first, second = exporters.begin(), exporters.begin()
    until(exporters.is_split, "two exporters have each group once", 60)
    stopped = exporters.running.pop(first)
    stopped.send_signal(signal.SIGSTOP)
    try:
        until(exporters.is_split, "the other has all groups", 60)
    finally:
        stopped.send_signal(signal.SIGCONT)
    woken = page(first)
    assert groups_of(woken) & groups_of(page(second)) == set()
    exporters.running[first] = stopped
    until(exporters.is_split, "both have groups again", 60)
    exporters.running.pop(second).kill()
    until(exporters.is_split, "the first has all groups", 60)


def test_missing_right_to_make_the_topic_is_said(start: Start, broker: Broker, config: Path) -> None:
    """No group is read until somebody made it."""
    denial = Fault("CreateTopics", "fail", times=None, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    fault = broker.faults.add(denial)
    exporters = Exporters(start, broker.bootstrap_servers, config)
    address = exporters.begin()
    denied = ("kohort_exporter_failures", ("c", "not_authorized"))
    until(lambda: page(address)[denied] == 1, "it is said on the page", 60)
    found = page(address)
    assert found["kohort_exporter_up", ("c",)] == 0 and found[SHARES_HELD, ("c",)] == 0 and groups_of(found) == set()
    fault.remove()
    with Admin(broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(SHARES_TOPIC, SHARES, 1)]).all()
    until(exporters.is_split, "it reads the groups", 60)
    process = exporters.running[address]
    process.terminate()
    log = process.communicate(timeout=60)[1]
    said = f"kohort topics create {SHARES_TOPIC} --partitions {SHARES}"
    assert sum(said in line for line in log.splitlines()) == 1


def test_topic_with_too_few_partitions_is_refused(start: Start, broker: Broker, config: Path) -> None:
    with Admin(broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("few", 3, 1)]).all()
        exporters = Exporters(start, broker.bootstrap_servers, config)
        address = exporters.begin("--share-topic", "few")
        until(lambda: page(address)["kohort_exporter_failures", ("c", "refused")] == 1, "it is said", 60)
        admin.create_partitions({"few": SHARES + 3}).all()
        until(exporters.is_split, "it reads the groups, and ignores partitions beyond", 60)


def test_exporter_takes_part_again_after_the_broker_was_away_or_the_topic_deleted(
    start: Start, broker: Broker, config: Path
) -> None:
    exporters = Exporters(start, broker.bootstrap_servers, config)
    address = exporters.begin()
    until(exporters.is_split, "it has all groups", 60)
    broker.kill()
    until(lambda: page(address)["kohort_exporter_up", ("c",)] == 0, "the broker's end is said", 60)
    broker.restart()
    until(exporters.is_split, "it has all groups again", 60)
    with Admin(broker.bootstrap_servers) as admin:
        admin.delete_topics([SHARES_TOPIC]).all()
    until(lambda: page(address)[SHARES_HELD, ("c",)] == 0, "its shares are gone with the topic", 60)
    until(exporters.is_split, "it has made the topic anew", 60)


def test_share_of_a_name_is_the_same_in_every_version() -> None:
    """Exporters of two versions run side by side during an upgrade."""
    assert {name: share_number_of(name) for name in ("payments", "orders", "größe")} == {
        "payments": 18,
        "orders": 14,
        "größe": 9,
    }
    assert {share_number_of(f"group-{number}") for number in range(500)} == set(range(32))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--share", ""), "at least one character"),
        (("--share-topic", "t"), "--share-topic needs --share GROUP"),
    ],
)
def test_wrong_use_is_reported(args: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["exporter", "--servers", NOBODY, *args]) == 2
    assert said in capsys.readouterr().err


def test_exporter_without_shares_reads_on_after_an_error_of_its_membership() -> None:
    """Only a read that works ends its pause. An error that stays would keep it from reading forever."""
    shares = ExporterShares("c", "exporters", SHARES_TOPIC, NOBODY, {})
    try:
        shares._owned = {0: 1}
        shares.record_read_failure(0)
        assert shares._is_resting
        shares._error = KafkaError("the group can't be joined")
        shares.check()
        shares.record_read_success(of_shares=False)
        assert not shares._is_resting
    finally:
        shares.close()
