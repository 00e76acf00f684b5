"""Terms of a journal when answers are lost, late or refused, and when machines sleep."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from kohort.cluster.journal import kafka_journal
from kohort.cluster.journal import term as journal_term
from kohort.cluster.journal import term as journal_writing
from kohort.cluster.journal.fences import EPOCH_LAST, JournalProducers
from kohort.cluster.journal.journal_partition import JournalPartition, JournalUnavailable
from kohort.cluster.journal.term import (
    APPEND_EVERY_MS,
    REPEAT_MS,
    SILENCE_MAX_MS,
    JournalTerm,
    JournalWriter,
    bump_producer_epoch,
)
from kohort.errors import ErrorCode, FencedError, InvalidInputError, TimedOutError
from kohort.groups.config import GroupConfig
from kohort.groups.records import Record, RecordKind, Tombstone
from kohort.wire.batch import parse_header
from kohort.wire.transactions import InitProducerIdResponse
from tests.client.virtual import DROP
from tests.cluster.fake_partition import TOPIC, FakePartition, VirtualHolder
from tests.cluster.journals import committed, groups_of

DAY_MS = 86_400_000
MOVED = FakePartition.refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)


@pytest.fixture
def partition() -> FakePartition:
    return FakePartition()


@pytest.fixture
def holder(partition: FakePartition) -> VirtualHolder:
    made = VirtualHolder(partition)
    assert made.load() == []
    return made


# -- appends whose answer does not come


@pytest.mark.parametrize("fault", ["lost answer", "lost request", "cut", "moved", "too few replicas"])
def test_what_is_not_answered_is_sent_again_with_its_sequence(
    partition: FakePartition, holder: VirtualHolder, fault: str
) -> None:
    faults: dict[str, Any] = {
        "lost answer": partition.write_and_park,
        "lost request": partition.park,
        "cut": lambda _: DROP,
        "moved": MOVED,
        "too few replicas": FakePartition.refuse(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND),
    }
    partition.faults["Produce"] = [faults[fault]]
    partition.produced.clear()
    sent_ms = holder.now_ms
    token = holder.send(committed(1))
    assert token not in holder.durable_at
    holder.pass_ms(20_000)
    assert holder.durable_at == {token: sent_ms}, "a repeated append says nothing of later than when it was first sent"
    assert len(set(partition.produced)) == 1
    holder.append(committed(2))
    assert groups_of(VirtualHolder(partition).load()) == [1, 2]


def test_what_is_not_answered_is_not_sent_to_a_topic_that_was_made_again(
    partition: FakePartition, holder: VirtualHolder
) -> None:
    """By its name it would be taken: who knows no producer takes any sequence, and gives an offset that may fit."""

    def made_again(message: Any) -> Any:
        holder.virtual.ids[TOPIC.name] = uuid.UUID(int=78)
        return MOVED(message)

    partition.faults["Produce"] = [made_again]
    partition.produced.clear()
    holder.send(committed(1))
    holder.pass_ms(10_000)
    assert [str(reason) for reason in holder.reasons if "deleted and made again" in str(reason)]
    assert partition.produced == []


def test_what_an_owner_under_another_id_wrote_before_its_last_fence_is_read(
    partition: FakePartition, holder: VirtualHolder
) -> None:
    """The replay reads past the new owner's fence, which has another id, until a fence with its own id."""
    late: list[Any] = []

    def on_its_way(message: Any) -> Any:
        late.append(message)
        return partition.park(message)

    def first_the_late_one(message: Any) -> Any:
        partition._produce(late[0])
        return partition._produce(message)

    holder.append(committed(1))
    partition.faults["Produce"] = [on_its_way]
    holder.send(committed(2))
    partition.forget_id()
    partition.faults["Produce"] = [None, first_the_late_one]
    assert groups_of(VirtualHolder(partition).load()) == [1, 2]
    assert partition.producers[7].epoch == EPOCH_LAST


def test_a_duplicate_is_success(partition: FakePartition, holder: VirtualHolder) -> None:
    def write_and_say_duplicate(message: Any) -> Any:
        partition._produce(message)
        return FakePartition.refuse(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)(message)

    partition.faults["Produce"] = [write_and_say_duplicate]
    holder.append(committed(1))
    holder.append(committed(2))
    assert groups_of(VirtualHolder(partition).load()) == [1, 2]


def time_out_is_no_success(partition: FakePartition) -> None:
    """Nothing arrives any more: nobody is told that anything was written, and the term ends."""
    holder = VirtualHolder(partition)
    holder.load()
    partition.faults["Produce"] = [partition.park] * 100
    holder.send(committed(1))
    holder.pass_ms(REPEAT_MS + 10_000)
    assert holder.durable_at == {}
    assert isinstance(holder.reasons[0], JournalUnavailable)
    assert "not answered within 30 s" in str(holder.reasons[0])
    with pytest.raises(JournalUnavailable):
        holder.send(committed(2))
    partition.faults.clear()
    assert holder.load() == []
    holder.append(committed(3))


def no_batch_is_sent_again_after_sleep(partition: FakePartition) -> None:
    holder = VirtualHolder(partition)
    holder.load()
    partition.faults["Produce"] = [partition.park]
    partition.produced.clear()
    holder.send(committed(1))
    holder.sleep(REPEAT_MS + 1)
    holder.pass_ms(60_000)
    assert partition.produced == []
    assert "not answered within 30 s" in str(holder.reasons[0])


def an_answer_that_waited_through_sleep_is_not_taken(partition: FakePartition) -> None:
    holder = VirtualHolder(partition)
    holder.load()
    partition.faults["Produce"] = [partition.write_and_park]
    token = holder.send(committed(1))
    (parked,) = holder.virtual.parked_named("Produce")
    holder.sleep(REPEAT_MS + 1)
    holder.virtual.answer(parked, partition._produce(parked.message))
    assert token not in holder.durable_at
    assert "was answered after 30 s" in str(holder.reasons[0])


def sleep_is_taken_off_the_proof(partition: FakePartition) -> None:
    holder = VirtualHolder(partition)
    holder.load()
    partition.faults["Produce"] = [partition.write_and_park]
    token, sent_ms = holder.send(committed(1)), holder.now_ms
    (parked,) = holder.virtual.parked_named("Produce")
    holder.sleep(5_000)
    holder.pass_ms(100)
    holder.virtual.answer(parked, partition._produce(parked.message))
    assert holder.durable_at == {token: sent_ms - 5_000}


def paused_owner_sends_nothing(partition: FakePartition) -> None:
    """Kafka may have forgotten its producer, and would take its epoch for a new one."""
    holder = VirtualHolder(partition)
    holder.load()
    holder.append(committed(1))
    partition.producers.clear()
    partition.produced.clear()
    holder.sleep(SILENCE_MAX_MS + 1)
    holder.send(committed(2))
    assert partition.produced == []
    assert "stood still" in str(holder.reasons[0])
    assert groups_of(holder.load()) == [1]


def test_owner_that_was_paused_between_epoch_and_fence_sends_no_fence(partition: FakePartition) -> None:
    holder = VirtualHolder(partition)
    initialize = partition._init

    def then_sleep(message: Any) -> Any:
        holder.sleep(REPEAT_MS + 1)
        return initialize(message)

    partition.faults["InitProducerId"] = [then_sleep]
    with pytest.raises(JournalUnavailable, match="stood still"):
        holder.load()
    assert partition.produced == []


# -- what ends a term


@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED])
def test_a_later_epoch_ends_the_term_as_fenced(
    partition: FakePartition, holder: VirtualHolder, code: ErrorCode
) -> None:
    partition.faults["Produce"] = [FakePartition.refuse(code)]
    holder.send(committed(1))
    assert isinstance(holder.reasons[0], FencedError)
    with pytest.raises(FencedError):
        holder.send(committed(2))


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "OUT_OF_ORDER_SEQUENCE_NUMBER"),
        (ErrorCode.MESSAGE_TOO_LARGE, "MESSAGE_TOO_LARGE"),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "needs READ, WRITE.*on topic __groups.*transactional ids"),
    ],
)
def test_any_other_error_ends_the_term(
    partition: FakePartition, holder: VirtualHolder, code: ErrorCode, words: str
) -> None:
    partition.faults["Produce"] = [FakePartition.refuse(code)]
    holder.send(committed(1))
    with pytest.raises(JournalUnavailable, match=words):
        raise holder.reasons[0]
    holder.load()
    holder.append(committed(1))


def test_only_what_is_taken_away_may_be_several_batches(
    partition: FakePartition, holder: VirtualHolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_journal, "BATCH_BYTES_MAX", 1_000)
    gone: list[Record] = [Tombstone((RecordKind.OFFSET, "g", "t", number)) for number in range(200)]
    before = len(partition.log)
    holder.append(*gone)
    assert len(partition.log) - before == 8
    with pytest.raises(InvalidInputError, match="the limit is 1000") as refused:
        holder.send(*gone, committed(1))
    assert refused.value.code is ErrorCode.RECORD_LIST_TOO_LARGE
    holder.append(committed(2))
    assert VirtualHolder(partition).load() == [*gone, committed(2)]


def test_groups_may_not_write_more_than_fits() -> None:
    config = kafka_journal.cap_to_journal_limits(GroupConfig(group_record_bytes_max=200 << 20))
    assert (config.group_record_bytes_max, config.commit_bytes_max) == (16 << 20, 16 << 20)
    assert config.commit_bytes_max + kafka_journal.GATHERED_BYTES_MAX < kafka_journal.BATCH_BYTES_MAX
    small = GroupConfig(group_record_bytes_max=1024, commit_bytes_max=2 << 20)
    assert kafka_journal.cap_to_journal_limits(small) == small


def test_nobody_hears_of_a_term_that_was_closed(partition: FakePartition, holder: VirtualHolder) -> None:
    partition.faults["Produce"] = [partition.write_and_park]
    holder.send(committed(1))
    (parked,) = holder.virtual.parked_named("Produce")
    holder.journal.end_term()
    holder.virtual.answer(parked, partition._produce(parked.message))
    holder.pass_ms(APPEND_EVERY_MS * 2)
    assert (holder.durable_at, holder.reasons) == ({}, [])
    with pytest.raises(JournalUnavailable, match="closed"):
        holder.send(committed(2))


# -- taking office


def reads_what_came_before_its_fence(partition: FakePartition) -> None:
    """The owner before writes until the very moment at which the fence is written."""
    before, after = VirtualHolder(partition), VirtualHolder(partition)
    before.load()
    before.append(committed(1))

    def last_word() -> None:
        before.append(committed(2))

    partition.on_produce = last_word
    assert groups_of(after.load()) == [1, 2], "an acknowledged commit is not read"
    before.send(committed(3))
    assert isinstance(before.reasons[0], FencedError)
    after.append(committed(3))


def test_a_new_leader_is_waited_for_until_it_shows_what_is_written(
    partition: FakePartition, holder: VirtualHolder
) -> None:
    holder.append(committed(1))
    partition.shown = 1
    after = VirtualHolder(partition)
    with pytest.raises(AssertionError, match="never loads"):
        after.load(limit_ms=10_000)
    partition.shown = None
    assert groups_of(after.load()) == [1]
    partition.shown = 1
    with pytest.raises(JournalUnavailable, match="shows nothing behind offset 0"):
        after.load()


def test_a_log_that_does_not_begin_at_0_is_read_from_its_start_and_reported(
    partition: FakePartition, holder: VirtualHolder, caplog: pytest.LogCaptureFixture
) -> None:
    """Compaction never moves the start: whoever had records deleted has taken groups their offsets."""
    holder.append(committed(1))
    holder.append(committed(2))
    assert groups_of(holder.load()) == [1, 2]
    assert not caplog.records
    partition.delete_before(3)
    assert groups_of(holder.load()) == [2]
    assert "records before offset 3 have been deleted" in caplog.text


def test_a_log_that_is_cut_while_it_is_read_ends_the_term(partition: FakePartition, holder: VirtualHolder) -> None:
    """A leader without the newest records was elected, against the topic's setting."""
    holder.append(committed(1))
    partition.shown = 2

    def cut(message: Any) -> Any:
        partition.end = 1
        return partition._fetch(message)

    partition.faults["Fetch"] = [None, cut]
    with pytest.raises(JournalUnavailable, match="OFFSET_OUT_OF_RANGE"):
        VirtualHolder(partition).load()


def test_a_fence_is_sent_again_like_any_batch(partition: FakePartition, holder: VirtualHolder) -> None:
    holder.append(committed(1))
    partition.faults["Produce"] = [partition.write_and_park, MOVED]
    after = VirtualHolder(partition)
    assert groups_of(after.load()) == [1]
    after.append(committed(2))


def test_who_is_overtaken_while_it_loads_is_fenced(partition: FakePartition, holder: VirtualHolder) -> None:
    slow, quick = VirtualHolder(partition), VirtualHolder(partition)
    partition.faults["Fetch"] = [lambda message: (quick.load(), partition._fetch(message))[1]]
    with pytest.raises(FencedError):
        slow.load()
    quick.append(committed(1))


def test_a_fence_that_somebody_overtook_before_it_was_written(partition: FakePartition, holder: VirtualHolder) -> None:
    slow, quick = VirtualHolder(partition), VirtualHolder(partition)
    partition.on_produce = quick.load
    with pytest.raises(FencedError):
        slow.load()


def an_offset_that_is_not_the_next_one_ends_the_term(partition: FakePartition) -> None:
    holder = VirtualHolder(partition)
    holder.load()
    holder.append(committed(1))
    foreign = bytearray(partition.log[-1][1])
    struct.pack_into(">q", foreign, 43, -1)
    partition.append(bytes(foreign))
    holder.send(committed(2))
    with pytest.raises(JournalUnavailable, match=r"was given offset 4 in place of 3: somebody else writes"):
        raise holder.reasons[0]


# -- what happens by itself


def test_an_idle_owner_appends_every_five_minutes(partition: FakePartition, holder: VirtualHolder) -> None:
    partition.produced.clear()
    holder.pass_ms(APPEND_EVERY_MS * 10 + 1_000)
    assert len(partition.produced) == 10
    assert holder.reasons == []
    assert holder.durable_at == {}, "nobody asked for it"
    holder.append(committed(1))
    assert VirtualHolder(partition).load() == [committed(1)]


def test_an_idle_owner_learns_that_it_was_deposed(partition: FakePartition, holder: VirtualHolder) -> None:
    VirtualHolder(partition).load()
    holder.pass_ms(APPEND_EVERY_MS + 1_000)
    assert isinstance(holder.reasons[0], FencedError)


def the_epoch_is_renewed_with_a_fence_of_its_own(partition: FakePartition) -> None:
    holder = VirtualHolder(partition)
    holder.load()
    epoch = holder.journal.metrics.epoch
    holder.append(committed(1))
    holder.pass_ms(DAY_MS + APPEND_EVERY_MS)
    assert holder.journal.metrics.epoch == epoch + 1
    headers = [parse_header(batch) for _, batch in partition.log]
    first = next(header for header in headers if header.producer_epoch == epoch + 1)
    assert first.base_offset == holder.journal.metrics.fence_offset
    holder.append(committed(2))
    assert (holder.reasons, groups_of(VirtualHolder(partition).load())) == ([], [1, 2])


def test_a_renewal_that_fails_is_tried_again(partition: FakePartition, holder: VirtualHolder) -> None:
    epoch = holder.journal.metrics.epoch
    partition.faults["InitProducerId"] = [lambda _: DROP] * 300
    holder.pass_ms(DAY_MS + 60_000)
    holder.append(committed(1))
    assert holder.journal.metrics.epoch == epoch
    partition.faults.clear()
    holder.pass_ms(3 * APPEND_EVERY_MS)
    assert (holder.journal.metrics.epoch, holder.reasons) == (epoch + 1, [])


def test_a_renewal_that_is_refused_is_not_repeated_without_a_pause(
    partition: FakePartition, holder: VirtualHolder, caplog: pytest.LogCaptureFixture
) -> None:
    """Kafka refuses at once where a right was taken away: each shard asked, and logged, as fast as it answered."""
    epoch, asked = holder.journal.metrics.epoch, []

    def refuse(message: Any) -> InitProducerIdResponse:
        asked.append(message)
        assert len(asked) < 100, "again and again"
        return InitProducerIdResponse(error_code=int(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))

    partition.faults["InitProducerId"] = [refuse] * 200
    holder.pass_ms(DAY_MS + 10 * 60_000)
    assert 2 <= len(asked) <= 20
    assert sum("could not renew" in record.getMessage() for record in caplog.records) == len(asked)
    holder.append(committed(1))
    partition.faults.clear()
    holder.pass_ms(3 * APPEND_EVERY_MS)
    assert (holder.journal.metrics.epoch, holder.reasons) == (epoch + 1, [])


def test_a_renewal_that_gives_another_producer_id_ends_the_term(
    partition: FakePartition, holder: VirtualHolder
) -> None:
    holder.append(committed(1))
    partition.forget_id()
    holder.pass_ms(DAY_MS + 2 * APPEND_EVERY_MS)
    with pytest.raises(JournalUnavailable, match="another producer id"):
        raise holder.reasons[0]
    assert groups_of(holder.load()) == [1]


def test_a_renewal_of_a_deposed_owner_ends_the_term(partition: FakePartition, holder: VirtualHolder) -> None:
    partition.epochs[partition.next_id] += 1
    holder.pass_ms(DAY_MS + 2 * APPEND_EVERY_MS)
    assert isinstance(holder.reasons[0], FencedError)


def a_fence_that_was_left_out_is_made_up_for(partition: FakePartition) -> None:
    """The next owner dies between its own fence and that of the producer id before: who comes then must write that."""
    holder = VirtualHolder(partition)
    holder.load()
    partition.forget_id()
    dies = VirtualHolder(partition)
    partition.faults["Fetch"] = [partition.park]
    with pytest.raises(AssertionError, match="never loads"):
        dies.load(limit_ms=1_000)
    dies.journal.end_term()
    VirtualHolder(partition).load()
    holder.send(committed(1))
    assert isinstance(holder.reasons[0], FencedError)


# -- the properties above, and faults that they must see


async def _hasty(self: JournalTerm) -> None:
    """Reads, then fences."""
    identity = await bump_producer_epoch(self._place)
    reading = journal_term.JournalReader(self._place)
    while (view := await reading.fetch()) is not None:
        await self._handover.queue_for_decoding(view)
    await self._handover.wait_decoded()
    writer = JournalWriter(self._place, identity)
    writer.expected = 1 + await self._write_fence(writer, identity.producer_id)
    self.loaded = True
    await self._serve_term(writer)


async def _optimistic(self: JournalWriter, batch: bytes) -> int:
    """Takes a time-out for success."""
    try:
        return await _ASK(self, batch)
    except TimedOutError:
        assert self.expected is not None
        return self.expected


_ASK = JournalWriter._send_produce
PROPERTIES: list[Callable[[FakePartition], None]] = [
    time_out_is_no_success,
    no_batch_is_sent_again_after_sleep,
    an_answer_that_waited_through_sleep_is_not_taken,
    sleep_is_taken_off_the_proof,
    paused_owner_sends_nothing,
    reads_what_came_before_its_fence,
    an_offset_that_is_not_the_next_one_ends_the_term,
    the_epoch_is_renewed_with_a_fence_of_its_own,
    a_fence_that_was_left_out_is_made_up_for,
]


@pytest.mark.parametrize("holds", PROPERTIES, ids=lambda holds: holds.__name__)
def test_it_holds(partition: FakePartition, holds: Callable[[FakePartition], None]) -> None:
    holds(partition)


async def _without_fence(self: JournalTerm, renewed: Any, writer: JournalWriter) -> None:
    self._renewed = None
    writer.adopt_identity(renewed)
    self._metrics.epoch = renewed.epoch


MUTANTS: dict[str, tuple[object, str, Any, Callable[[FakePartition], None]]] = {
    "reads before it fences": (JournalTerm, "run", _hasty, reads_what_came_before_its_fence),
    "takes a time-out for success": (JournalWriter, "_send_produce", _optimistic, time_out_is_no_success),
    "repeats whenever it wakes": (journal_writing, "REPEAT_MS", 10**9, no_batch_is_sent_again_after_sleep),
    "takes answers whenever it wakes": (
        journal_writing,
        "REPEAT_MS",
        10**9,
        an_answer_that_waited_through_sleep_is_not_taken,
    ),
    "begins to write whenever it wakes": (
        journal_writing,
        "SILENCE_MAX_MS",
        10**9,
        paused_owner_sends_nothing,
    ),
    "counts time that stands still": (
        JournalPartition,
        "clock_with_sleep_ms",
        lambda self: self.cluster.runtime.now_ms,
        sleep_is_taken_off_the_proof,
    ),
    "knows nothing of the next offset": (
        JournalWriter,
        "expected",
        property(lambda self: None, lambda self, value: None),
        an_offset_that_is_not_the_next_one_ends_the_term,
    ),
    "goes on under a new epoch without a fence": (
        JournalTerm,
        "_continue_under",
        _without_fence,
        the_epoch_is_renewed_with_a_fence_of_its_own,
    ),
    "fences the newest producer id only": (
        JournalProducers,
        "fences_that_may_write",
        lambda self, own: [entry for entry in [self.newest] if entry is not None and entry.producer_id != own],
        a_fence_that_was_left_out_is_made_up_for,
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_seen(partition: FakePartition, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    owner, attribute, fault, holds = MUTANTS[name]
    monkeypatch.setattr(owner, attribute, fault, raising=False)
    with pytest.raises((AssertionError, IndexError, pytest.fail.Exception)):
        holds(partition)
