"""Fetch sessions (KIP-227) of the consumer.

What requests name, and that nothing is lost or repeated whatever happens.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kohort.client.consumer.subscription import FetchPosition
from kohort.errors import ErrorCode
from kohort.ids import TopicPartition
from tests.client.written_log import A0, A1, Log, offsets

ID, OTHER_ID = UUID(int=77), UUID(int=78)


def with_sessions(sizes: dict[TopicPartition, int], **options: Any) -> Log:
    log = Log(sizes, **options)
    log.world.ids["a"] = ID
    log.sessions = {}
    return log


def requests(log: Log) -> list[tuple[int, int, dict[int, int], list[int]]]:
    """Of each fetch: session id, epoch, offsets by partition, partitions forgotten."""
    return [
        (
            request.message.session_id,
            request.message.session_epoch,
            {part.partition: part.fetch_offset for topic in request.message.topics for part in topic.partitions},
            [number for topic in request.message.forgotten_topics_data for number in topic.partitions],
        )
        for request in log.world.sent("Fetch")
    ]


def test_only_what_moved_is_named_again() -> None:
    log = with_sessions({A0: 40, A1: 0})
    assert offsets(log.poll(), A0) == list(range(20))
    assert requests(log)[:3] == [(0, 0, {0: 0, 1: 0}, []), (1, 1, {0: 20}, []), (1, 2, {0: 40}, [])]


def test_a_pause_forgets_a_partition_and_a_resume_names_it_again() -> None:
    log = with_sessions({A0: 1000, A1: 0})
    log.poll()
    log.core.pause([A1])
    log.poll()
    assert requests(log)[-1][2:] == ({0: 60}, [1])
    log.core.resume([A1])
    log.poll()
    assert requests(log)[-1][2][1] == 0


@pytest.mark.parametrize(
    ("code", "named"), [(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0), (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 1)]
)
def test_a_session_that_the_broker_gave_up_is_begun_anew_at_once(code: ErrorCode, named: int) -> None:
    log = with_sessions({A0: 60, A1: 0})
    start = log.world.runtime.now_ms
    log.world.run()
    log.session_error = code
    seen = log.poll() + log.poll() + log.poll()
    assert offsets(seen, A0) == list(range(60))
    assert log.world.runtime.now_ms == start
    assert (named, 0, {0: 40, 1: 0}, []) in requests(log)


def test_after_a_broken_connection_the_old_session_is_closed_by_the_next() -> None:
    log = with_sessions({A0: 20})
    log.poll()
    assert log.world.parked_named("Fetch")
    log.world.cut()
    log.ends[A0] = 40
    assert offsets(log.poll(), A0) == list(range(20, 40))
    assert requests(log)[2][:3] == (1, 0, {0: 20})
    assert log.sessions is not None and len(log.sessions) == 1


def test_a_topic_that_was_made_again_begins_a_session_that_does_not_know_the_old_one() -> None:
    log = with_sessions({A0: 1000, A1: 0})
    assert offsets(log.poll(), A0) == list(range(20))
    log.world.ids["a"] = OTHER_ID
    while 0 not in (got := offsets(log.poll(), A0)):
        assert got[0] >= 20
    assert offsets(log.poll(), A0)[0] == 20
    under_new = [
        request.message
        for request in log.world.sent("Fetch")
        if OTHER_ID in {topic.topic_id for topic in request.message.topics}
    ]
    assert (under_new[0].session_id, under_new[0].session_epoch) == (1, 0)
    assert {topic.topic_id for message in under_new for topic in message.topics} == {OTHER_ID}


def test_a_consumer_that_is_closed_closes_its_session() -> None:
    log = with_sessions({A0: 20})
    log.poll()
    assert log.sessions
    log.carry_out(log.core.close(1000))
    assert log.sessions == {}


def test_an_answer_without_a_session_keeps_requests_whole() -> None:
    log = Log({A0: 60})
    log.poll()
    log.poll()
    assert {(request[0], request[1]) for request in requests(log)} == {(0, 0)}


def test_a_broker_that_may_not_be_asked_is_an_error_of_poll() -> None:
    log = Log({A0: 60})
    log.world.highest[1] = 3
    with pytest.raises(Exception, match="FetchRequest: 127.0.0.1:9092 speaks it not at all"):
        log.poll()


class Reading(RuleBasedStateMachine):
    """Whatever the application and the network do, each partition's records come in order, once, from its position."""

    @initialize(share=st.sampled_from(("greedy", "proportional")), prefetch=st.sampled_from(("total", "share")))
    def begin(self, share: str, prefetch: str) -> None:
        self.log = with_sessions({A0: 0, A1: 0}, poll_share=share, prefetch=prefetch, max_poll_records=15)
        self.expected = {A0: 0, A1: 0}
        self.paused: set[TopicPartition] = set()
        self.assigned = {A0, A1}
        self.log.world.run()

    @rule(partition=st.sampled_from((A0, A1)), batches=st.integers(1, 9))
    def append(self, partition: TopicPartition, batches: int) -> None:
        self.log.append(partition, batches)

    @rule(limit=st.one_of(st.none(), st.integers(1, 25)))
    def poll(self, limit: int | None) -> None:
        for partition, offset in self.log.poll(limit, timeout_ms=150):
            assert partition in self.assigned - self.paused
            assert offset == self.expected[partition]
            self.expected[partition] += 1

    @rule(partition=st.sampled_from((A0, A1)), part=st.integers(0, 100))
    def seek(self, partition: TopicPartition, part: int) -> None:
        if partition in self.assigned:
            self.expected[partition] = self.log.ends[partition] * part // 100
            self.log.core.seek(partition, FetchPosition(self.expected[partition]))

    @rule(partition=st.sampled_from((A0, A1)))
    def pause_or_resume(self, partition: TopicPartition) -> None:
        if partition in self.paused:
            self.log.core.resume([partition])
        elif partition in self.assigned:
            self.log.core.pause([partition])
        self.paused = (self.paused ^ {partition}) & self.assigned

    @rule(kept=st.sets(st.sampled_from((A0, A1)), min_size=1))
    def assign(self, kept: set[TopicPartition]) -> None:
        self.log.core.assign(kept)
        self.log.world.run()
        for partition in kept - self.assigned:
            self.expected[partition] = 0
        self.assigned, self.paused = kept, self.paused & kept

    @rule(code=st.sampled_from((ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH)))
    def refuse_session(self, code: ErrorCode) -> None:
        self.log.session_error = code

    @rule()
    def cut(self) -> None:
        self.log.world.cut()

    @rule()
    def restart_broker(self) -> None:
        assert self.log.sessions is not None
        self.log.sessions.clear()
        self.log.world.cut()

    @invariant()
    def all_that_is_due_is_done(self) -> None:
        if hasattr(self, "log"):
            self.log.world.run()

    def teardown(self) -> None:
        if not hasattr(self, "log"):
            return
        self.log.world.run()
        self.log.core.resume(self.paused)
        self.paused = set()
        for _ in range(200):
            if all(self.expected[part] >= self.log.ends[part] for part in self.assigned):
                self.log.world.run()  # the last poll began fetches
                return
            self.poll(None)
        raise AssertionError(f"stuck at {self.expected} of {self.log.ends}")


TestReading = Reading.TestCase
TestReading.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, phases=(Phase.reuse, Phase.generate)
)
