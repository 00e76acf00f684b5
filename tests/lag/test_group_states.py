"""States of groups as the coordinator names them: in the command, in the metric, and on the page."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
from tests.broker.raw import RawClient
from tests.lag.test_evaluation import STABLE, At, reports
from tests.support.waiting import until

from kohort import Admin, TopicPartition
from kohort.cli.app import run
from kohort.cli.group_rows import group_row
from kohort.client.admin.values import ConfigResource, NewTopic, ResourceType
from kohort.dashboard.observer import LagHistory, overview
from kohort.lag import LagReader, exporter
from kohort.lag.cluster_watch import ClusterWatch
from kohort.lag.exporter import LagExporter
from kohort.wire.groups import ConsumerGroupHeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from kohort.wire.streams_groups import StreamsGroupHeartbeatRequest, StreamsSubtopology

ALL_STATES = (
    "Stable", "Empty", "Dead", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "NotReady",
    "StateOfALaterKafka",
)  # fmt: skip
TIMEOUT_MS = 60_000
INFO = "kohort_consumergroup_info"


class States:
    """Groups of one topic that stay in their states, because their members say no more than they are told to."""

    def __init__(self, servers: str, is_apache: bool, stack: ExitStack) -> None:
        self._servers, self._stack, self.is_apache = servers, stack, is_apache
        self.topic = f"states-{uuid.uuid4().hex[:8]}"
        self._admin = stack.enter_context(Admin(servers))
        self._admin.create_topics([NewTopic(self.topic, 4, 1)]).all()

    def group(self, state: str) -> str:
        return f"{self.topic}-{state}"

    def client(self) -> RawClient:
        return self._stack.enter_context(RawClient(self._servers))

    def empty(self) -> None:
        self._admin.alter_consumer_group_offsets(self.group("Empty"), {TopicPartition(self.topic, 0): 0}).all()

    def heartbeat(self, client: RawClient, state: str, member: str) -> None:
        joins = ConsumerGroupHeartbeatRequest(
            group_id=self.group(state), member_id=member, rebalance_timeout_ms=TIMEOUT_MS,
            subscribed_topic_names=[self.topic], topic_partitions=[],
        )  # fmt: skip
        until(lambda: client.ask(joins).error_code == 0, f"{member} has joined", 60)

    def stable(self) -> None:
        self.heartbeat(self.client(), "Stable", "first")

    def assignment_interval(self, state: str, interval_ms: int) -> None:
        """How long Kafka's coordinator waits between two targets; ours makes each at once."""
        if self.is_apache:
            resource = ConfigResource(ResourceType.GROUP, self.group(state))
            self._admin.incremental_alter_configs(
                {resource: {"consumer.assignment.interval.ms": str(interval_ms)}}
            ).all()

    def reconciling(self) -> None:
        """The first member does not release what the second is to have."""
        self.assignment_interval("Reconciling", 0)
        for member in ("first", "second"):
            self.heartbeat(self.client(), "Reconciling", member)
        group = self.group("Reconciling")  # Kafka computes assignments beside its coordinator's thread
        until(
            lambda: self._admin.describe_consumer_groups([group]).result(group).state == "Reconciling",
            "it has a target",
        )

    def assigning(self) -> None:
        """The second member waits for a target, since the coordinator has just made one."""
        self.assignment_interval("Assigning", 15_000)
        for member in ("first", "second"):
            self.heartbeat(self.client(), "Assigning", member)

    def not_ready(self) -> None:
        """A source topic is missing."""
        part = StreamsSubtopology(subtopology_id="0", source_topics=[f"{self.topic}-missing"])
        topology = StreamsGroupHeartbeatRequest.Topology(epoch=1, subtopologies=[part])
        joins = StreamsGroupHeartbeatRequest(
            group_id=self.group("NotReady"), member_id="first", rebalance_timeout_ms=TIMEOUT_MS, topology=topology,
            active_tasks=[], standby_tasks=[], warmup_tasks=[], process_id="process",
        )  # fmt: skip
        client = self.client()
        until(lambda: client.ask(joins, 0).error_code == 0, "the instance has joined", 60)

    def join(self, client: RawClient, state: str) -> None:
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"\0\0" + bytes(8))
        joins = JoinGroupRequest(
            group_id=self.group(state), session_timeout_ms=45_000, rebalance_timeout_ms=TIMEOUT_MS,
            protocol_type="consumer", protocols=[protocol],
        )  # fmt: skip
        client.send(joins, 3)

    def joined(self, client: RawClient, state: str) -> tuple[str, int]:
        """The member's id and generation."""
        while True:
            self.join(client, state)
            answer = client.receive()
            if answer.error_code == 0:
                return answer.member_id, answer.generation_id

    def completing_rebalance(self) -> None:
        """The leader does not send the assignment."""
        self.joined(self.client(), "CompletingRebalance")

    def preparing_rebalance(self) -> None:
        """The first member does not join again, for which the second waits."""
        state, leader = "PreparingRebalance", self.client()
        member, generation = self.joined(leader, state)
        assert leader.ask(SyncGroupRequest(group_id=self.group(state), generation_id=generation, member_id=member), 2)
        self.join(self.client(), state)


@pytest.fixture
def states(servers: str, request: pytest.FixtureRequest) -> Iterator[States]:
    with ExitStack() as stack:
        yield States(servers, request.node.callspec.params["servers"] == "apache", stack)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_state_is_shown_as_the_coordinator_names_it(
    servers: str, states: States, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kafbat #1950: Assigning and Reconciling are shown as UNKNOWN; akhq #2720: groups of KIP-848 are dead."""
    states.empty()
    states.stable()
    states.completing_rebalance()
    states.preparing_rebalance()
    states.reconciling()
    expected = {"Empty", "Stable", "CompletingRebalance", "PreparingRebalance", "Reconciling"}
    if states.is_apache:
        states.not_ready()
        states.assigning()
        expected |= {"NotReady", "Assigning"}
    wanted = {states.group(state): state for state in expected}

    def of_test(shown: dict[str, str]) -> dict[str, str]:
        return {group: state for group, state in shown.items() if group.startswith(states.topic)}

    def printed(*args: str) -> dict[str, str]:
        capsys.readouterr()
        assert run(["groups", *args, "--bootstrap-server", servers, "--json"]) == 0
        return of_test({row["group"]: row["state"] for row in json.loads(capsys.readouterr().out)})

    with LagReader(servers) as reader:
        watch = ClusterWatch("local", reader, 3_600)
        try:
            until(lambda: watch.state.is_up, "the cluster is read", 60)
            report, families = watch.state.report, list(LagExporter([watch]).collect())
        finally:
            watch.close()
    assert report is not None
    assert of_test({name: group.description.state for name, group in report.groups.items()}) == wanted, report.failures
    assert of_test({row["group"]: row.get("state") for row in overview(report, LagHistory())["groups"]}) == wanted
    samples = [sample.labels for family in families for sample in family.samples if sample.name == INFO]
    assert of_test({labels["group"]: labels["state"] for labels in samples}) == wanted
    assert printed("list") == wanted
    assert printed("describe", *sorted(wanted)) == wanted
    for group, state in wanted.items():
        assert printed("list", "--state", state.lower()) == {group: state}


@pytest.mark.parametrize("state", ALL_STATES)
def test_no_state_is_translated(state: str) -> None:
    """Also one that this version does not know."""
    report = reports([At(13, 20, group=replace(STABLE, state=state))])[-1]
    group = report.groups["payments"]
    (row,) = overview(report, LagHistory())["groups"]
    assert row["state"] == group_row(group.description)["state"] == state
    families = exporter._Families([*exporter.METRICS])
    exporter._add_group(families, "local", group)
    (sample,) = families.by_name[INFO].samples
    assert sample.labels["state"] == state
