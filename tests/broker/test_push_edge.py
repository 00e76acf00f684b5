"""Push frames at the edge of the broker: counted, timed and hit by faults both ways, as requests of Kafka are."""

from __future__ import annotations

import struct
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from kohort import Broker
from kohort.broker import Fault
from kohort.errors import ErrorCode
from tests.broker.literal_consumer import LiteralConsumer, coordinator
from tests.broker.raw import RawClient, create_topic

SETTINGS = {"push.min.session.timeout.ms": 300, "metrics.listen": "127.0.0.1:0"}
SESSION_MS = 1000
ASKED = ("Ping", "Stop", "Start")
Start = Callable[..., LiteralConsumer]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("edge"), SETTINGS) as broker:
        yield broker


@pytest.fixture
def start(broker: Broker, name: str) -> Iterator[Start]:
    """Makes consumers of a topic of four partitions, in a group of its name."""
    with RawClient(broker.bootstrap_servers) as client:
        create_topic(client, name, 4)
    with ExitStack() as stack:
        stack.callback(broker.faults.clear)

        def make(consumer: str, **more: object) -> LiteralConsumer:
            found = LiteralConsumer(broker.bootstrap_servers, name, consumer, f'{{"{name}":1}}', **more)
            stack.callback(found.close)
            return found

        yield make


def started(count: int) -> Callable[[LiteralConsumer], bool]:
    return lambda each: each.fetching and len(each.registry) == count


def address(broker: Broker) -> tuple[str, int]:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    return host, int(port)


def frame_metrics(broker: Broker) -> dict[str, tuple[int, int]]:
    """How often each frame was asked, and how often answered."""
    found = broker.metrics()
    return {api: (count, found["latency"][api]["count"]) for api, count in found["requests"].items()}


def test_all_frames_are_counted_and_timed_in_both_directions(broker: Broker, start: Start) -> None:
    before = frame_metrics(broker)
    a, b = start("a", session_timeout_ms=SESSION_MS), start("b", session_timeout_ms=SESSION_MS)
    a.until(lambda each: started(2)(each) and each.asked[-1] == "ping")
    b.until(lambda each: started(2)(each) and each.asked[-1] == "ping")
    for consumer in (a, b):
        consumer.close()
    after = frame_metrics(broker)

    def grown(api: str) -> tuple[int, ...]:
        return tuple(now - then for now, then in zip(after[api], before.get(api, (0, 0)), strict=True))

    assert grown("ClusterMetadata") == grown("RegisterConsumer") == (2, 2)
    for api in ASKED:
        seen = (a.asked + b.asked).count(api.lower())
        asked, answered = grown(api)
        assert seen, "else nothing is shown"
        assert seen <= asked <= seen + 2, "the last one to each may have been lost with the connection"
        assert seen - 2 <= answered <= seen
    scraped = urllib.request.urlopen(f"http://{broker.metrics()['listen']}/metrics", timeout=30).read().decode()
    for api in ("ClusterMetadata", "RegisterConsumer", *ASKED):
        assert f'kohort_requests_total{{api="{api}"}}' in scraped


def test_what_consumers_ask_fails_on_purpose(broker: Broker, start: Start, name: str) -> None:
    broker.faults.add(Fault("ClusterMetadata", "fail", group=name, error=ErrorCode.COORDINATOR_NOT_AVAILABLE))
    assert coordinator(*address(broker), "another")[0] == ErrorCode.NONE
    assert coordinator(*address(broker), name)[0] == ErrorCode.COORDINATOR_NOT_AVAILABLE
    broker.faults.add(Fault("RegisterConsumer", "fail", client_id="a", error=ErrorCode.GROUP_AUTHORIZATION_FAILED))
    b = start("b")
    assert b.error == ErrorCode.NONE
    a = start("a")
    assert a.error == ErrorCode.GROUP_AUTHORIZATION_FAILED
    a.until(lambda each: each.ended)
    assert start("a").error == ErrorCode.NONE


@pytest.mark.parametrize(
    ("action", "seen"), [("close", ConnectionError), ("close_after", ConnectionError), ("garble", struct.error)]
)
def test_a_registration_is_lost(broker: Broker, start: Start, name: str, action: str, seen: type[Exception]) -> None:
    """The consumer registers again under its id, whether the group knows it or not."""
    broker.faults.add(Fault("RegisterConsumer", action, group=name))
    with pytest.raises(seen):
        start("a")
    again = start("a")
    assert again.error == ErrorCode.NONE
    again.until(started(4))


def test_a_held_stop_keeps_the_partitions_where_they_are(broker: Broker, start: Start, name: str) -> None:
    a = start("a")
    a.until(started(4))
    fault = broker.faults.add(Fault("Stop", "hold", group=name))
    b = start("b")
    fault.wait()
    assert (a.asked.count("stop"), b.fetching) == (0, False)
    fault.release()
    b.until(started(2))
    a.until(started(2))
    assert a.asked.count("stop") == 1


def test_a_stop_whose_answer_is_held_starts_nobody(broker: Broker, start: Start, name: str) -> None:
    a = start("a")
    a.until(started(4))
    fault = broker.faults.add(Fault("Stop", "hold_reply", client_id="a"))
    b = start("b")
    fault.wait()
    a.until(lambda each: not each.fetching)
    assert not b.fetching
    fault.release()
    b.until(started(2))
    a.until(started(2))


@pytest.mark.parametrize(
    ("api", "action"), [("Ping", "close"), ("Ping", "garble"), ("Ping", "fail"), ("Stop", "garble")]
)
def test_a_frame_of_the_coordinator_that_ends_the_connection(
    broker: Broker, start: Start, name: str, api: str, action: str
) -> None:
    a = start("a", session_timeout_ms=SESSION_MS)
    a.until(started(4))
    fault = broker.faults.add(Fault(api, action, client_id="a"))
    b = start("b", session_timeout_ms=SESSION_MS)
    fault.wait()
    a.until(lambda each: each.ended)
    b.until(started(4))


@pytest.mark.parametrize("action", ["drop", "drop_reply"])
def test_lost_pings_end_the_session(broker: Broker, start: Start, name: str, action: str) -> None:
    """One that is lost is repeated; when all are, the consumer is out."""
    a = start("a", session_timeout_ms=SESSION_MS)
    a.until(started(4))
    broker.faults.add(Fault("Ping", action, client_id="a")).wait()
    count = a.asked.count("ping")
    a.until(lambda each: each.asked.count("ping") > count + 1)
    assert not a.ended
    broker.faults.add(Fault("Ping", action, client_id="a", times=None))
    a.until(lambda each: each.ended)


@pytest.mark.parametrize(("api", "asked"), [("Start", ["stop", "ping", "start"]), ("Stop", ["start", "stop", "ping"])])
def test_an_error_in_a_consumers_place_has_it_stopped_again(
    broker: Broker, start: Start, name: str, api: str, asked: list[str]
) -> None:
    fault = broker.faults.add(Fault(api, "fail", client_id="a"))
    a = start("a")
    a.until(started(4))
    b = start("b")
    b.until(started(2))
    a.until(started(2))
    fault.wait()
    assert a.asked[:3] == asked, "the first one never reached it"


def test_delayed(broker: Broker, start: Start, name: str) -> None:
    """Each goes on after its time."""
    faults = [broker.faults.add(Fault(api, "delay", group=name, delay_ms=50)) for api in ("RegisterConsumer", *ASKED)]
    a = start("a", session_timeout_ms=SESSION_MS)
    a.until(started(4))
    b = start("b", session_timeout_ms=SESSION_MS)
    b.until(started(2))
    a.until(started(2))
    for fault in faults:
        fault.wait()
