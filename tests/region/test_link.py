"""A member's connection to its control plane, when the sink fails, hangs or is away as it connects again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from typing import Any

import pytest

from kohort import Producer
from kohort.errors import TimedOutError
from kohort.region import leader_election
from kohort.region.consuming import member_thread, publishing
from kohort.region.region import Region
from kohort.region.region_topic import region_transactional_id
from kohort.region.staged import StagedKey
from tests.region.conftest import Collected, Worker, fill, make_topic
from tests.region.test_away_sinks import gauge
from tests.region.test_region import all_once
from tests.support.waiting import until


class Answering(Collected):
    """A sink whose `published` does as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = None
        self.may_continue, self.asked = threading.Event(), threading.Event()
        self.may_continue.set()
        self.publishes, self.publishing = threading.Event(), threading.Event()
        self.publishes.set()

    def published(self) -> int:
        self.asked.set()
        self.may_continue.wait(60)
        if self.error is not None:
            raise self.error
        return super().published()

    def publish(self, sequence: int, keys: Iterable[StagedKey]) -> None:
        if not self.publishes.is_set():
            self.publishing.set()
        self.publishes.wait(60)
        super().publish(sequence, keys)


@pytest.fixture
def working(own_servers: str, name: str, regions: list[Region]) -> tuple[Worker, Answering, Region, Region]:
    """A member that has published twenty records; its region; and another of the same name, which may take over."""
    make_topic(own_servers, name)
    fill(own_servers, name, range(20))
    region = Region(name, own_servers, checkpoint_every="100ms")
    other = Region(name, own_servers, checkpoint_every="100ms")
    regions += [region, other]
    sink = Answering()
    worker = Worker(region, "m1", sink, name)
    until(lambda: all_once(sink, range(20)), "all is published")
    return worker, sink, region, other


def test_term_that_no_other_application_ended_is_followed_by_another(
    own_servers: str, name: str, regions: list[Region]
) -> None:
    """The coordinator fences a control plane whose transaction takes too long, as a later producer of its name does.

    A member whose application may not serve waited for ever, and `kohort region serve` ended.
    """
    make_topic(own_servers, name)
    fill(own_servers, name, range(20))
    serving = Region(name, own_servers, checkpoint_every="100ms")
    region = Region(name, own_servers, serves=False)
    regions += [serving, region]
    lost = serving.serve()
    sink = Collected()
    Worker(region, "m1", sink, name)
    until(lambda: all_once(sink, range(20)), "all is published")
    with Producer(own_servers, transactional_id=region_transactional_id(name)) as fencing:
        fencing.init_transactions()
    fill(own_servers, name, range(20, 40))
    until(lambda: all_once(sink, range(40)), "the next term publishes")
    assert lost.over.is_set() and not serving.wait_until_replaced(0)
    assert serving.describe().term > lost.term


def test_control_plane_that_runs_here_is_not_replaced_by_its_own_application(
    own_servers: str, name: str, regions: list[Region], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user of the machine may open connections faster than handshakes end: each takes the place of the oldest.

    A new term would take the whole region back.
    """
    region = Region(name, own_servers, checkpoint_every="100ms")
    regions.append(region)
    plane = region.serve()
    until(lambda: region.describe().term == plane.term, "the term has begun")
    monkeypatch.setattr(leader_election, "ELECTION_DELAY_S", (0.0, 0.0))
    token, plane._token = plane._token, bytes(32)  # no handshake succeeds
    for _ in range(3):
        with pytest.raises(ConnectionError):
            region._election.connect_to_control_plane()
    plane._token = token
    assert region.describe().term == plane.term and not plane.over.is_set()
    plane.close()
    assert region.describe().term > plane.term


def test_thread_of_a_lost_term_holds_up_no_election(own_servers: str, name: str, regions: list[Region]) -> None:
    """A member's link may begin the next term while the lost one's thread is about to.

    Each waited for the other: the member found no control plane any more, and its process did not end after SIGTERM.
    """
    region = Region(name, own_servers, checkpoint_every="100ms")
    regions.append(region)
    lost, election = region.serve(), region._election
    until(lambda: region.describe().term == lost.term, "the term has begun")
    assert lost._loop is not None
    with election._lock:  # as the link has it
        lost._loop.call_soon_threadsafe(lost._end.set)
        assert lost.over.wait(30)
        taking_over = threading.Thread(target=election._take_over, daemon=True)
        taking_over.start()
        taking_over.join(30)
        assert not taking_over.is_alive()
    assert region.describe().term > lost.term


def test_application_that_was_replaced_does_not_serve_again(own_servers: str, name: str, regions: list[Region]) -> None:
    first, second = (Region(name, own_servers, checkpoint_every="100ms") for _ in range(2))
    regions += [first, second]
    first.serve()
    term = second.serve().term
    assert first.wait_until_replaced(60)
    assert second.describe().term == term


def close_in_a_thread(worker: Worker) -> tuple[threading.Thread, list[str]]:
    """A close that takes at most half a second, and what it says when that was too short."""
    late: list[str] = []

    def close() -> None:
        try:
            worker.consumer.close(timeout_s=0.5)
        except TimedOutError as error:
            late.append(error.message)

    closing = threading.Thread(target=close)
    closing.start()
    return closing, late


@pytest.mark.parametrize("error", [ValueError("a fault in the sink"), PermissionError(13, "no right")])
def test_error_of_a_sink_ends_its_member_when_it_connects_again(working: Any, error: Exception) -> None:
    """The link's thread died of it, and the member waited for ever."""
    worker, sink, _, other = working
    sink.error = error
    other.serve()
    worker.thread.join(60)
    assert not worker.thread.is_alive() and worker.error is error


def test_close_waits_for_no_sink_that_does_not_answer(working: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, sink, _, other = working
    monkeypatch.setattr(member_thread, "CLOSE_S", 0.1)
    sink.may_continue.clear()
    sink.asked.clear()
    other.serve()
    assert sink.asked.wait(60)
    closing, late = close_in_a_thread(worker)
    closing.join(60)
    worker.thread.join(60)
    try:
        assert not closing.is_alive() and not worker.thread.is_alive(), "the sink has not answered yet"
        assert late == ["m1: no sequence was complete within 0.5 s of the close"]
    finally:
        sink.may_continue.set()


def test_close_waits_for_no_publication_that_does_not_end(
    working: Any, own_servers: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, sink, _, _ = working
    monkeypatch.setattr(publishing, "CLOSE_S", 0.1)
    sink.publishes.clear()
    fill(own_servers, name, range(20, 30))
    assert sink.publishing.wait(60)
    closing, late = close_in_a_thread(worker)
    closing.join(60)
    worker.thread.join(60)
    try:
        assert not closing.is_alive() and not worker.thread.is_alive() and late, "it is not published yet"
    finally:
        sink.publishes.set()


def test_region_says_which_sink_a_member_waits_for_before_it_registers(
    working: Any, own_servers: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody said it, and the member was missing in the region."""
    worker, sink, region, other = working
    sink.error = OSError("the file server restarts")
    with caplog.at_level(logging.INFO, "kohort.region"):
        other.serve()
        until(lambda: any(member.waits_for for member in other.describe().members), "the control plane says it")
        [seen] = other.describe().members
        assert (seen.name, seen.registered, seen.sink) == ("m1", False, sink.place)
        assert "the file server restarts" in seen.waits_for and "the file server" in worker.consumer.metrics.waits_for
        assert gauge(region, "kohort_region_member_waits_for_sink", member="m1") == 1
        assert gauge(other, "kohort_region_sink_waits", sink=sink.place) == 1
        assert gauge(other, "kohort_region_members") == 0
        fill(own_servers, name, range(20, 40))
        sink.error = None
        until(lambda: all_once(sink, range(40)), "it goes on when the sink answers")
    until(lambda: [seen.registered for seen in other.describe().members] == [True], "it is registered")
    assert not other.describe().members[0].waits_for and not worker.consumer.metrics.waits_for
    said = [record.message for record in caplog.records if "[member m1] waiting for the sink" in record.message]
    assert len(said) == 1, "once, and again after half a minute"
    assert any(f"waiting for sink {sink.place} before m1 can register" in record.message for record in caplog.records)


def test_member_without_a_control_plane_says_nothing_of_its_sink(working: Any) -> None:
    worker, _, region, _ = working
    region._election.close()
    until(lambda: worker.consumer._events._link is not None and worker.consumer._events._link._missing.failures > 0, "")
    assert not worker.consumer.metrics.waits_for
    with pytest.raises(TimedOutError):
        worker.consumer.close(timeout_s=0.1)


def test_control_plane_that_is_closed_as_it_starts_ends(own_servers: str, name: str) -> None:
    """The thread had no event loop yet that `close` could wake, and `close` waited for ever."""
    make_topic(own_servers, name)
    for _ in range(5):
        region = Region(name, own_servers)
        region.serve()
        region.close()
        assert region._election.running_control_plane() is None
