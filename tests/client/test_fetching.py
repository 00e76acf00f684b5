"""The consumer core's fetches: which it sends when, and how it handles errors, in virtual time."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from kohort.client.consumer import fetching
from kohort.client.consumer.positions import BEHIND_MS, CONFIRM_MS
from kohort.client.consumer.subscription import FetchPosition
from kohort.errors import CorruptDataError, ErrorCode, KafkaError, NotAuthorizedError, OffsetError
from kohort.ids import TopicPartition
from kohort.wire.data import FetchRequest, FetchResponse
from kohort.wire.discovery import MetadataResponse
from tests.client.virtual import PARK
from tests.client.written_log import A0, A1, Log, carry_out, offsets


def test_the_next_fetch_is_out_before_the_first_is_polled() -> None:
    log = Log({A0: 100})
    assert offsets(log.poll(), A0) == list(range(20))
    assert log.fetches() == [{0: 0}, {0: 20}, {0: 40}]
    assert len(log.core.fetcher.ready) == 2


def test_two_small_answers_per_broker_wait_and_no_more_is_asked_for() -> None:
    log = Log({A0: 1000})
    log.core.fetcher.unbounded = True
    log.world.run(5000)
    assert log.fetches() == [{0: 0}, {0: 20}]
    log.poll()
    log.world.run(9000)
    assert log.fetches() == [{0: 0}, {0: 20}, {0: 40}]


def test_nothing_is_asked_for_behind_a_large_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "_SMALL_BYTES", 100)
    log = Log({A0: 1000})
    log.core.fetcher.unbounded = True
    log.world.run(5000)
    assert log.fetches() == [{0: 0}]
    log.poll()
    log.world.run(9000)
    assert log.fetches() == [{0: 0}, {0: 20}]


def test_nothing_is_fetched_ahead_while_enough_is_kept() -> None:
    log = Log({A0: 1000}, max_poll_records=5)
    seen = []
    for _ in range(3):
        seen += log.poll(5)
    assert len(log.fetches()) == 1
    seen += log.poll(5)
    assert len(log.fetches()) == 2
    assert offsets(seen, A0) == list(range(20))


def test_the_next_large_answer_is_asked_for_when_an_eighth_of_the_last_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log({A0: 1000}, max_poll_records=2)
    monkeypatch.setattr(fetching, "_LARGE_BYTES", 1)
    assert len(log.poll(2)) == 2
    assert len(log.fetches()) == 1
    assert len(log.poll(2)) == 2
    assert len(log.fetches()) == 2


def test_what_is_kept_of_a_paused_partition_keeps_nobody_waiting() -> None:
    log = Log({A0: 1000, A1: 0}, max_poll_records=5)
    assert len(log.poll(5)) == 5
    log.core.pause([A0])
    log.ends[A1] = 30
    assert offsets(log.poll(5), A1) == [0, 1, 2, 3, 4]
    log.core.resume([A0])
    assert offsets(log.poll(100), A0)[:2] == [5, 6]


@pytest.mark.parametrize(("prefetch", "ahead"), [("total", []), ("share", [{1: 0}])])
def test_by_share_a_quiet_partition_is_asked_while_a_busy_one_is_worked_off(
    prefetch: str, ahead: list[dict[int, int]]
) -> None:
    log = Log({A0: 1000, A1: 0}, max_poll_records=4, prefetch=prefetch)
    for _ in range(4):
        assert len(log.poll(4)) == 4
    assert log.fetches() == [{0: 0, 1: 0}, *ahead]


def test_bytes_that_wait_are_bounded() -> None:
    log = Log({A0: 1000}, queued_max_bytes=1)
    log.world.run(1000)
    assert len(log.fetches()) == 1


def test_what_is_decoded_counts_among_the_bytes_that_wait() -> None:
    """Each decode is larger than the bound: while records of it are left, nothing is fetched, and none is decoded."""
    free, bounded = Log({A0: 200}), Log({A0: 200}, queued_max_bytes=700)
    assert len(free.poll(15)) == len(bounded.poll(15)) == 15
    assert bounded.core.buffer.nbytes > 700
    assert len(free.poll(30)) == 30
    assert len(bounded.poll(30)) == 5, "the rest of the first response"
    assert len(free.fetches()) == 5
    assert len(bounded.fetches()) == 3  # the third left while the first was being decoded
    seen = []
    while records := bounded.poll(30, timeout_ms=50):
        assert len(records) <= 20, "those of one response"
        seen += offsets(records, A0)
    assert seen == list(range(20, 200))
    assert bounded.core.buffer.nbytes == 0


def test_what_only_paused_partitions_have_keeps_nobody_waiting() -> None:
    log = Log({A0: 100, A1: 0}, queued_max_bytes=700)
    assert len(log.poll(5)) == 5
    assert log.core.buffer.nbytes > 700
    log.core.pause([A0])
    log.ends[A1] = 100
    seen = []
    while records := log.poll(30, timeout_ms=50):
        seen += offsets(records, A1)
    assert seen == list(range(100))


def test_a_partition_that_gave_data_goes_to_the_end_of_the_next_request() -> None:
    log = Log({A0: 1000, A1: 0})
    log.core.fetcher.unbounded = True
    log.poll()
    orders = [
        [part.partition for topic in request.message.topics for part in topic.partitions]
        for request in log.world.sent("Fetch")
    ]
    assert orders[0] == [0, 1] and orders[-1][-1] == 0


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.FENCED_LEADER_EPOCH]
)
def test_a_leader_that_moved_is_looked_up_and_the_fetch_repeated(code: ErrorCode) -> None:
    log = Log({A0: 20})
    log.errors[A0] = code
    assert log.poll(timeout_ms=50) == []
    asked = len(log.world.sent("Metadata"))
    log.errors.clear()
    assert len(log.poll()) == 20
    assert asked >= 2


def test_partition_without_a_leader_is_asked_for_at_the_longest_backoff_and_read_when_it_has_one() -> None:
    """A cluster may lack it for hours, and each of its thousands of clients asked ten times a second."""
    log = Log({A0: 20})
    metadata, leaders = log.world.handlers["Metadata"], [-1]

    def name_leader(message: Any, version: int) -> MetadataResponse:
        response: MetadataResponse = metadata(message, version)
        for part in [part for topic in response.topics for part in topic.partitions]:
            part.leader_id = leaders[0]
        return response

    log.world.handlers["Metadata"] = name_leader
    log.world.call(log.world.cluster.refresh_metadata())
    log.core.seek(A0, FetchPosition(0))
    log.world.run(log.world.runtime.now_ms + 20_000)
    before = len(log.world.sent("Metadata"))
    log.world.run(log.world.runtime.now_ms + 60_000)
    assert len(log.world.sent("Metadata")) - before <= 61
    leaders[0] = 1
    assert len(log.poll(timeout_ms=1_500)) == 20


def test_partition_that_fails_for_long_is_asked_at_the_longest_backoff_and_at_once_from_another_leader() -> None:
    log = Log({A0: 20})
    metadata, epochs = log.world.handlers["Metadata"], [0]

    def name_epoch(message: Any, version: int) -> MetadataResponse:
        response: MetadataResponse = metadata(message, version)
        for part in [part for topic in response.topics for part in topic.partitions]:
            part.leader_epoch = epochs[0]
        return response

    log.world.handlers["Metadata"] = name_epoch
    log.errors[A0] = ErrorCode.NOT_LEADER_OR_FOLLOWER
    log.world.run(20_000)
    before, metadata_before = len(log.fetches()), len(log.world.sent("Metadata"))
    log.world.run(80_000)
    assert len(log.fetches()) - before <= 61
    assert len(log.world.sent("Metadata")) - metadata_before <= 61
    del log.errors[A0]
    epochs[0] = 1
    log.world.call(log.world.cluster.refresh_metadata())
    assert len(log.poll(timeout_ms=10)) == 20


def test_a_connection_that_breaks_costs_nothing_but_time() -> None:
    log = Log({A0: 60})
    seen = log.poll()
    log.world.cut()
    while len(seen) < 60:
        seen += log.poll()
    assert offsets(seen, A0) == list(range(60))


def test_a_position_below_the_log_is_reset_after_what_is_kept_was_returned() -> None:
    log = Log({A0: 100})
    first = log.poll(5)
    log.world.run()
    log.start[A0] = 50
    seen = first
    while len(seen) < 60:
        more = log.poll(5)
        assert more
        seen += more
    got = offsets(seen, A0)
    assert got[:20] == list(range(20)) and sorted(got) == got and got[-1] >= 59


def test_without_a_policy_an_offset_out_of_range_is_an_error_that_a_seek_ends() -> None:
    log = Log({A0: 100}, auto_offset_reset="none")
    log.core.seek(A0, FetchPosition(500))
    with pytest.raises(OffsetError, match="a-0: offset 500 is out of range"):
        log.poll()
    with pytest.raises(OffsetError):
        log.poll()
    log.core.seek(A0, FetchPosition(95))
    assert offsets(log.poll(), A0) == list(range(95, 100))


def test_who_is_to_be_asked_again_later_than_another_is_asked_again() -> None:
    """The timer of the earlier one was all that there was: the later one waited until something else happened."""
    log = Log({A0: 20, A1: 20})
    log.core.pause([A1])
    log.errors = dict.fromkeys((A0, A1), ErrorCode.NOT_LEADER_OR_FOLLOWER)
    log.world.run(10)
    log.world.run(50)
    log.core.pause([A0])
    log.core.resume([A1])
    log.world.run(10)
    log.errors.clear()
    assert offsets(log.poll(timeout_ms=2_000), A1) == list(range(20))


@pytest.mark.parametrize("epoch", [-1, 3])
def test_a_leader_that_was_paused_does_not_reset_what_its_successor_has(epoch: int) -> None:
    """The old leader woke without records that another consumer had read from its successor: reading restarted at 0."""
    log = Log({A0: 50})
    metadata = log.world.handlers["Metadata"]
    log.core.seek(A0, FetchPosition(80, epoch))
    late_ms = 600 if epoch < 0 else 6_000
    assert log.poll(timeout_ms=late_ms) == [] and log.world.sent("Fetch")

    def moved(message: object, version: int) -> MetadataResponse:
        answer: MetadataResponse = metadata(message, version)
        for topic in answer.topics:
            for partition in topic.partitions:
                partition.leader_epoch = 3
        return answer

    log.world.handlers["Metadata"] = moved
    log.ends[A0] = 100
    assert offsets(log.poll(), A0) == list(range(80, 100))


def test_a_topic_whose_leader_epochs_begin_anew_is_read_again() -> None:
    """A broker without topic ids does not tell that a topic was made again, nor does a restored backup."""
    log = Log({A0: 50})
    metadata, fetch = log.world.handlers["Metadata"], log.world.handlers["Fetch"]
    current = 7

    def led(message: object, version: int) -> MetadataResponse:
        answer: MetadataResponse = metadata(message, version)
        for topic in answer.topics:
            for partition in topic.partitions:
                partition.leader_epoch = current
        return answer

    def read(message: FetchRequest, version: int) -> object:
        answer = fetch(message, version)
        asked = [part for topic in message.topics for part in topic.partitions]
        if any(part.current_leader_epoch > current for part in asked):
            for topic in answer.responses:
                for part in topic.partitions:
                    part.error_code, part.records = ErrorCode.UNKNOWN_LEADER_EPOCH, b""
        return answer

    log.world.handlers |= {"Metadata": led, "Fetch": read}
    log.world.call(log.world.cluster.refresh_metadata())
    seen: list[int] = []
    while len(seen) < 50:
        seen += offsets(log.poll(), A0)
    current = 2
    log.ends[A0] = 60
    log.world.cut()
    log.world.call(log.world.cluster.refresh_metadata())
    assert log.world.cluster.metadata.partition(A0).leader_epoch == 7, "one broker may be behind"
    assert offsets(log.poll(timeout_ms=60_000), A0) == list(range(50, 60))


@pytest.mark.parametrize(("epoch", "wait_ms"), [(-1, CONFIRM_MS), (0, 0), (7, BEHIND_MS)])
def test_that_a_position_is_not_there_is_believed_in_the_end(epoch: int, wait_ms: int) -> None:
    log = Log({A0: 50})
    log.core.seek(A0, FetchPosition(80, epoch))
    began_ms = log.world.runtime.now_ms
    assert offsets(log.poll(timeout_ms=60_000), A0)[:1] == [0]
    assert wait_ms <= log.world.runtime.now_ms - began_ms < wait_ms + 1_000


def test_reader_finds_a_truncation_and_continues_where_both_histories_agree() -> None:
    log = Log({A0: 100})
    log.core.seek(A0, FetchPosition(80, 3))
    log.facts["diverging_epoch"] = FetchResponse.EpochEndOffset(epoch=2, end_offset=60)
    log.world.run(10)
    (first,) = log.world.sent("Fetch")
    assert first.message.topics[0].partitions[0].last_fetched_epoch == 3
    log.facts.clear()
    assert offsets(log.poll(), A0)[:3] == [60, 61, 62]


def test_a_right_that_is_missing_is_an_error_for_its_partition_until_it_is_paused() -> None:
    log = Log({A0: 20, A1: 20})
    log.errors[A0] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(NotAuthorizedError, match="a-0"):
        log.poll()
    log.core.pause([A0])
    assert offsets(log.poll(), A1) == list(range(20))


@pytest.mark.parametrize(
    "code",
    [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_SERVER_ERROR],
    ids=lambda code: code.name.lower(),
)
def test_partition_is_read_again_once_its_error_was_raised(code: ErrorCode) -> None:
    """A right that is given back must not need another consumer. Source: KAFKA-6877."""
    log = Log({A0: 20})
    log.errors[A0] = code
    for _ in range(3):
        with pytest.raises(KafkaError, match="a-0"):
            log.poll()
    assert len(log.fetches()) == 3
    del log.errors[A0]
    assert offsets(log.poll(), A0) == list(range(20))


def test_a_poisoned_record_is_named_keeps_the_position_and_can_be_stepped_over() -> None:
    log = Log({A0: 100})
    log.damaged = {30}
    seen = log.poll() + log.poll()
    assert offsets(seen, A0) == list(range(30))
    with pytest.raises(CorruptDataError, match="seek to 40 to step over it"):
        log.poll()
    state = log.core.partitions.state_of(A0)
    assert state.position is not None and state.position.offset == 30
    log.core.seek(A0, FetchPosition(40))
    assert offsets(log.poll(), A0)[0] == 40


def test_a_nearer_replica_is_read_from_when_the_leader_names_one() -> None:
    log = Log({A0: 100}, client_rack="north")
    log.facts["preferred_read_replica"] = 1
    log.poll()
    assert log.world.sent("Fetch")[0].message.rack_id == "north"
    assert log.core.partitions.state_of(A0).replica == 1


def test_replica_that_lacks_the_offset_is_asked_at_the_pace_of_retries_while_the_leader_names_it() -> None:
    """Leader and replica answer at once, and the consumer went from one to the other and back without a pause."""
    log = Log({A0: 20}, client_rack="r")
    metadata = log.world.handlers["Metadata"]

    def name_replica(message: Any, version: int) -> MetadataResponse:
        response: MetadataResponse = metadata(message, version)
        replica = MetadataResponse.MetadataResponseBroker(node_id=2, host="127.0.0.1", port=9093)
        response.brokers = [*response.brokers, replica]
        return response

    asked = 0

    def fetch(message: Any, version: int) -> FetchResponse:
        nonlocal asked
        asked += 1
        assert asked < 1_000, "no time passes"
        topic_type = FetchResponse.FetchableTopicResponse
        part = topic_type.PartitionData(partition_index=0, preferred_read_replica=2)
        if log.world.port_of(log.world.requests[-1].link) == 9093:
            part = topic_type.PartitionData(partition_index=0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
        return FetchResponse(responses=[topic_type(topic="a", partitions=[part])])

    log.world.handlers |= {"Metadata": name_replica, "Fetch": fetch}
    log.world.run(60_000)
    assert 50 < asked < 200


def test_what_was_fetched_for_a_partition_that_went_and_came_back_is_not_used() -> None:
    log = Log({A0: 100})
    log.world.run(10)
    assert log.core.fetcher.ready
    log.core.assign([])
    log.core.assign([A0])
    log.core.seek(A0, FetchPosition(70))
    assert offsets(log.poll(), A0)[0] == 70


def test_lag_is_known_from_the_last_fetch() -> None:
    log = Log({A0: 100})
    assert log.core.lag(A0) is None
    log.poll()
    assert log.core.lag(A0) == 80


def test_metrics_count_what_happened() -> None:
    log = Log({A0: 40})
    log.poll()
    log.poll()
    figures = log.core.metrics()
    assert (figures.polls, figures.records, figures.fetches) == (2, 40, 2)
    assert figures.fetched_bytes > 0 and figures.received_bytes > figures.fetched_bytes
    assert (figures.kept_records, figures.kept_bytes) == (0, 0)


def test_an_answer_to_what_was_asked_before_a_seek_does_not_move_the_next_fetch() -> None:
    log = Log({A0: 100})
    log.world.handlers["Fetch"] = lambda message, version: PARK
    log.world.run(10)
    (request,) = log.world.parked_named("Fetch")
    log.core.seek(A0, FetchPosition(70))
    log.world.handlers["Fetch"] = log.fetch
    log.world.answer(request, log.fetch(request.message, request.version))
    assert offsets(log.poll(), A0)[:2] == [70, 71]


def test_an_answer_that_comes_when_another_broker_has_long_answered_is_not_used() -> None:
    """The leader stood still, and was replaced; when it woke it answered, and its records were handed out again."""
    log = Log({A0: 100})
    log.world.handlers["Fetch"] = lambda message, version: PARK
    log.world.run(10)
    (late,) = log.world.parked_named("Fetch")
    metadata = log.world.handlers["Metadata"]

    def moved(message: object, version: int) -> MetadataResponse:
        answer: MetadataResponse = metadata(message, version)
        answer.brokers.append(MetadataResponse.MetadataResponseBroker(node_id=2, host="127.0.0.1", port=9093))
        for topic in answer.topics:
            for partition in topic.partitions:
                partition.leader_id = 2
        return answer

    log.world.handlers["Metadata"] = moved
    log.world.handlers["Fetch"] = log.fetch
    log.world.call(log.world.cluster.refresh_metadata())
    seen = offsets(log.poll(), A0)
    assert seen
    log.world.answer(late, log.fetch(late.message, late.version))
    while len(seen) < 100:
        seen += offsets(log.poll(), A0)
    assert seen == list(range(100))


def test_records_before_damage_on_the_broker_are_returned_before_its_error() -> None:
    """The records wait to be decoded when the error comes: an application that seeks past the damage needs them."""
    log = Log({A0: 100})

    def refuse_from_40(message: Any, version: int) -> Any:
        (asked,) = [part for topic in message.topics for part in topic.partitions]
        log.errors = {A0: ErrorCode.CORRUPT_MESSAGE} if asked.fetch_offset >= 40 else {}
        return log.fetch(message, version)

    log.world.handlers["Fetch"] = refuse_from_40
    seen = log.poll()
    log.world.run(1000)
    assert log.fetches()[-1] == {0: 40}
    seen += log.poll()
    assert offsets(seen, A0) == list(range(40))
    with pytest.raises(CorruptDataError):
        log.poll()


def test_consumer_without_partitions_asks_for_no_topic() -> None:
    """A request for a deleted topic may create it again. Source: KAFKA-2948."""
    log = Log({A0: 20})
    assert log.poll()
    carry_out(log.world, log.core.unsubscribe())
    log.world.requests.clear()
    log.world.run(log.world.runtime.now_ms + 1_200_000)
    asked = log.world.sent("Metadata")
    assert asked and not any(request.message.topics for request in asked)


@pytest.mark.parametrize("change", ["partition added", "topic created again"])
def test_latest_means_the_start_of_what_is_newer_than_the_subscription(change: str) -> None:
    """Records that are written before the consumer learns of the partition are not skipped. Source: KAFKA-20539."""
    log = Log({A0: 30}, auto_offset_reset="latest")
    log.world.topics["a"], log.world.ids["a"] = 1, uuid.uuid4()
    log.world.run(1_000)
    assert position(log, A0) == 30
    log.ends[A1], log.start[A1] = 30, 0
    if change == "partition added":
        log.world.topics["a"] = 2
    else:
        log.world.ids["a"], log.ends[A0] = uuid.uuid4(), 20
    log.world.call(log.core.cluster.refresh_metadata())
    if change == "partition added":
        log.core.assign([A0, A1])
    log.world.run(2_000)
    assert position(log, A0) == (30 if change == "partition added" else 0)
    if change == "partition added":
        assert position(log, A1) == 0


def test_latest_means_the_start_of_a_topic_that_was_missing_before_it_was_created_again() -> None:
    log = Log({A0: 30}, auto_offset_reset="latest")
    log.world.topics["a"], log.world.ids["a"] = 1, uuid.uuid4()
    log.world.run(1_000)
    assert position(log, A0) == 30
    del log.world.topics["a"]
    log.world.call(log.core.cluster.refresh_metadata())
    log.world.topics["a"], log.world.ids["a"], log.ends[A0] = 1, uuid.uuid4(), 20
    log.world.call(log.core.cluster.refresh_metadata())
    log.world.run(2_000)
    assert position(log, A0) == 0


def test_latest_means_the_end_in_another_cluster() -> None:
    """Topics with other ids are those of the other cluster, and not newer than the subscription. Source: KIP-1242."""
    log = Log({A0: 30}, auto_offset_reset="latest")
    log.world.topics["a"], log.world.ids["a"], log.world.cluster_id = 1, uuid.uuid4(), "one"
    log.world.run(1_000)
    assert position(log, A0) == 30
    log.world.ids["a"], log.ends[A0], log.world.cluster_id = uuid.uuid4(), 500, "other"
    log.world.call(log.core.cluster.refresh_metadata())
    log.world.run(2_000)
    assert position(log, A0) == 500


def test_latest_means_the_end_of_partitions_from_before_a_later_subscription() -> None:
    log = Log({A0: 30}, auto_offset_reset="latest")
    log.world.topics["a"], log.world.ids["a"] = 1, uuid.uuid4()
    log.world.run(1_000)
    carry_out(log.world, log.core.unsubscribe())
    log.ends[A1], log.start[A1], log.world.topics["a"] = 30, 0, 2
    log.core.assign([A0, A1])
    log.world.call(log.core.cluster.refresh_metadata())
    log.world.run(2_000)
    assert (position(log, A0), position(log, A1)) == (30, 30)


def position(log: Log, partition: TopicPartition) -> int | None:
    found = log.core.partitions.state_of(partition).position
    return None if found is None else found.offset
