"""Faults on purpose, and what an embedded broker promises to its program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from kohort import Broker
from kohort.broker import Fault
from kohort.errors import ErrorCode, InvalidInputError, KafkaError, TimedOutError
from kohort.wire.discovery import MetadataRequest
from kohort.wire.records import read_records
from tests.broker.group_member import Member
from tests.broker.raw import RawClient, batch_of, end_offset, fetch, produce, produce_request


@pytest.fixture(autouse=True)
def _no_faults_after(broker: Broker) -> Iterator[None]:
    yield
    broker.faults.clear()


def test_fail_the_second_produce(broker: Broker, client: RawClient, topic: str) -> None:
    fault = broker.faults.add(Fault("Produce", "fail", skip=1, error=ErrorCode.NOT_LEADER_OR_FOLLOWER))
    codes = [produce(client, topic, 0, batch_of(b"x")).error_code for _ in range(3)]
    assert codes == [0, ErrorCode.NOT_LEADER_OR_FOLLOWER, 0]
    assert fault.hits == 1
    assert end_offset(client, topic, 0) == 2


def test_fail_a_groups_heartbeat_only(broker: Broker, client: RawClient, topic: str) -> None:
    broker.faults.add(Fault("Heartbeat", "fail", group=topic, times=None, error=ErrorCode.NOT_COORDINATOR))
    mine, other = Member(client, topic, topic), Member(client, topic + "-other", topic)
    assert mine.heartbeat() == ErrorCode.NOT_COORDINATOR
    assert other.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_hold_at_a_barrier_and_release(broker: Broker, client: RawClient, topic: str) -> None:
    fault = broker.faults.add(Fault("Produce", "hold"))
    with RawClient(broker.bootstrap_servers) as writer:
        writer.send(produce_request(topic, 0, batch_of(b"x")), 9)
        fault.wait()
        assert end_offset(client, topic, 0) == 0
        fault.release()
        writer.receive()
        assert end_offset(client, topic, 0) == 1


def test_what_is_held_is_not_overwritten_by_what_comes_after(broker: Broker, client: RawClient, topic: str) -> None:
    fault = broker.faults.add(Fault("Produce", "hold"))
    with RawClient(broker.bootstrap_servers) as writer:
        writer.send(produce_request(topic, 0, batch_of(b"held" * 100)), 9)
        fault.wait()
        for _ in range(3):
            assert end_offset(client, topic, 0) == 0
            client.ask(MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="x" * 240)]))
        fault.release()
        assert writer.receive().responses[0].partition_responses[0].error_code == 0
    found = read_records(fetch(client, topic, 0, 0).records)
    assert [bytes(record.value or b"") for record in found] == [b"held" * 100]


def test_drop_a_reply_after_the_work_is_done(broker: Broker, client: RawClient, topic: str) -> None:
    fault = broker.faults.add(Fault("Produce", "close_after"))
    with RawClient(broker.bootstrap_servers) as writer:
        writer.send(produce_request(topic, 0, batch_of(b"x")), 9)
        assert writer.closed()
    fault.wait()
    assert fetch(client, topic, 0, 0).high_watermark == 1


def test_close_before_the_work(broker: Broker, client: RawClient, topic: str) -> None:
    broker.faults.add(Fault("Produce", "close", client_id="victim"))
    with RawClient(broker.bootstrap_servers, "victim") as writer:
        writer.send(produce_request(topic, 0, batch_of(b"x")), 9)
        assert writer.closed()
    assert end_offset(client, topic, 0) == 0


def test_delay(broker: Broker, client: RawClient) -> None:
    broker.faults.add(Fault("Metadata", "delay", delay_ms=300))
    started = time.monotonic()
    client.ask(MetadataRequest(topics=[]))
    assert time.monotonic() - started >= 0.29


def test_a_rule_that_can_not_be(broker: Broker) -> None:
    with pytest.raises(InvalidInputError, match="NoSuchApi"):
        broker.faults.add(Fault("NoSuchApi", "fail"))
    with pytest.raises(InvalidInputError, match="explode"):
        Fault("Produce", "explode")


@pytest.mark.parametrize(
    ("fault", "times", "text"),
    [
        pytest.param(
            Fault("OffsetCommit", "close_after"),
            1,
            "the fault on OffsetCommit (close_after) was hit 0 of 1 times in 50 ms: no such request came",
            id="no-request",
        ),
        pytest.param(
            Fault("Metadata", "fail", skip=1, times=3),
            2,
            "the fault on Metadata (fail) was hit 0 of 2 times in 50 ms: 1 such request came, and skip=1 let it pass",
            id="skipped",
        ),
        pytest.param(
            Fault("Metadata", "drop_reply", client_id="another"),
            1,
            "the fault on Metadata of client 'another' (drop_reply) was hit 0 of 1 times in 50 ms: "
            "no such request came",
            id="another-client",
        ),
        pytest.param(
            Fault(None, "delay", group="g"),
            1,
            "the fault on any request of group 'g' (delay) was hit 0 of 1 times in 50 ms: no such request came",
            id="any-api",
        ),
        pytest.param(
            Fault("Metadata", "delay", times=None),
            2,
            "the fault on Metadata (delay) was hit 1 of 2 times in 50 ms: no other such request came",
            id="too-few",
        ),
    ],
)
def test_a_fault_that_is_not_hit_is_named_with_its_count_and_cause(
    broker: Broker, client: RawClient, fault: Fault, times: int, text: str
) -> None:
    handle = broker.faults.add(fault)
    client.ask(MetadataRequest(topics=[]))
    with pytest.raises(TimedOutError) as raised:
        handle.wait(times, timeout_ms=50)
    assert raised.value.message == text


def test_a_fault_behind_another_says_that_the_other_took_its_requests(broker: Broker, client: RawClient) -> None:
    broker.faults.add(Fault("Metadata", "delay", times=None))
    handle = broker.faults.add(Fault("Metadata", "drop"))
    client.ask(MetadataRequest(topics=[]))
    with pytest.raises(TimedOutError, match="an earlier fault took 1 such request"):
        handle.wait(timeout_ms=50)


def test_a_removed_fault_says_so(broker: Broker) -> None:
    handle = broker.faults.add(Fault("Metadata", "drop"))
    handle.remove()
    with pytest.raises(TimedOutError, match=r"the fault on Metadata \(drop\) .*: it was removed"):
        handle.wait(timeout_ms=50)


def test_waiting_for_more_hits_than_a_fault_has_is_refused_at_once(broker: Broker) -> None:
    handle = broker.faults.add(Fault("OffsetCommit", "close_after"))
    with pytest.raises(InvalidInputError, match=r"times=1, .* never be hit 2 times; write Fault\(…, times=2\)"):
        handle.wait(2)
    assert repr(handle) == "<FaultHandle on OffsetCommit (close_after)>"


@pytest.mark.parametrize("error", ["NOT_LEADER_OR_FOLLOWER", ErrorCode.NOT_LEADER_OR_FOLLOWER, 6], ids=repr)
def test_error_of_a_fault_is_a_name_a_member_or_a_number(
    broker: Broker, client: RawClient, topic: str, error: str | int
) -> None:
    fault = Fault("Produce", "fail", error=error)
    assert fault.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    broker.faults.add(fault)
    assert produce(client, topic, 0, batch_of(b"x")).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(
    ("error", "text"),
    [
        pytest.param("REBALANCE_IN_PROGRES", "did you mean REBALANCE_IN_PROGRESS?", id="misspelt"),
        pytest.param("rebalance_in_progress", "did you mean REBALANCE_IN_PROGRESS?", id="lower-case"),
        pytest.param("nonsense", "give a name of Kafka's, as 'REBALANCE_IN_PROGRESS'", id="nonsense"),
        pytest.param(9999, "give a name of Kafka's, as 'REBALANCE_IN_PROGRESS'", id="unknown-number"),
        pytest.param(None, "give a name of Kafka's, as 'REBALANCE_IN_PROGRESS'", id="none"),
        pytest.param(True, "give a name of Kafka's, as 'REBALANCE_IN_PROGRESS'", id="boolean"),
    ],
)
def test_error_of_a_fault_that_is_no_code_is_refused(error: Any, text: str) -> None:
    with pytest.raises(InvalidInputError) as raised:
        Fault("Heartbeat", "fail", error=error)
    assert raised.value.message.startswith(f"a fault's error {error!r} is no error code")
    assert text in raised.value.message


PROGRAM = """
import os, sys, multiprocessing
from kohort import Broker
if __name__ == "__main__":
    broker = Broker()
    print(broker.pid, broker.data_dir, flush=True)
    if os.fork() == 0:      # inherits every descriptor, and outlives its parent
        print(os.getpid(), flush=True)
        sys.stdin.read()
        os._exit(0)
    sys.stdin.read()
"""


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()


def test_the_broker_ends_with_its_program_even_when_that_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        pid, folder = program.stdout.readline().split()
        fork = int(program.stdout.readline())
        os.kill(program.pid, signal.SIGKILL)
        until = time.monotonic() + 20
        while not gone(int(pid)) or Path(folder).exists():
            assert time.monotonic() < until, "the broker outlives its program"
            time.sleep(0.05)
        os.kill(fork, signal.SIGKILL)


def test_a_fork_of_the_program_does_not_end_its_broker(broker: Broker, client: RawClient) -> None:
    child = os.fork()
    if child == 0:
        broker._finalizer()  # what the interpreter runs at its end
        os._exit(0)
    os.waitpid(child, 0)
    assert client.ask(MetadataRequest(topics=[])).brokers


def test_a_temporary_folder_is_deleted_and_a_given_one_kept(tmp_path: Path) -> None:
    with Broker() as broker:
        folder = broker.data_dir
        assert folder.exists()
    assert not folder.exists()
    with Broker(tmp_path / "kept") as broker:
        pass
    assert (tmp_path / "kept").exists()
    assert gone(1) is False


@pytest.mark.parametrize("line", [b"{", b"[]", b"{}"])
def test_line_that_is_no_answer_fails_the_calls_that_wait_and_no_later_one(broker: Broker, line: bytes) -> None:
    child = broker._running()
    waiting: Future[object] = Future()
    child._asked[-1] = waiting
    child._take_line(line)
    with pytest.raises(KafkaError, match="an answer of the broker's process can't be read"):
        waiting.result(0)
    broker.faults.clear()


def test_answer_without_a_result_fails_its_call_alone(broker: Broker) -> None:
    child = broker._running()
    asking, other = Future[object](), Future[object]()
    child._asked.update({-1: asking, -2: other})
    child._take_line(b'{"id": -1}')
    with pytest.raises(KafkaError, match="can't be read: KeyError"):
        asking.result(0)
    assert not other.done()
    del child._asked[-2]
