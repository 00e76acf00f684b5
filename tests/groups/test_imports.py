"""Groups that an earlier coordinator has kept are taken over once, when they are first named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kohort.errors import ErrorCode
from kohort.groups import admission, offsets
from kohort.groups.effects import CoordinatorMeter, ImportGroupOffsets, LogLine
from kohort.groups.events import (
    ConsumerGroupDescribe,
    DeleteGroups,
    DescribeGroups,
    GroupImported,
    ListGroups,
    OffsetFetch,
    OffsetToCommit,
    RegisterConsumer,
    Topic,
    TopicImage,
    TopicsChanged,
)
from kohort.groups.machine import GroupMachine
from kohort.groups.records import GroupSaved, OffsetCommitted, OffsetsImported
from kohort.ids import NO_TOPIC_ID
from tests.groups.harness import CLIENT, Trial, topic_id
from tests.groups.push_harness import PushTrial

LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
MEMBERS_THERE = ErrorCode.NON_EMPTY_GROUP
DAY_MS = 86_400_000


class Importing(Trial):
    """A machine that asks an earlier coordinator."""

    def __init__(self, **config: object) -> None:
        super().__init__(group_import="auto", **config)

    def asked(self) -> ImportGroupOffsets:
        """Return the pending request; there is at most one."""
        [question] = self.questions
        assert isinstance(question, ImportGroupOffsets)
        self.questions.clear()
        return question

    def answer(self, *offsets: OffsetToCommit, error: ErrorCode = ErrorCode.NONE, text: str = "") -> None:
        """Answer the pending request as the earlier coordinator does."""
        question = self.asked()
        self.feed(GroupImported(question.group_id, question.ticket, offsets, error, text))

    def fetch(self, group_id: str = "g") -> ErrorCode | list[tuple[str, int, int]]:
        """All positions of a group, or why they are not told."""
        reply = self.ask(OffsetFetch(self.request(), group_id))
        return reply.error or [(offset.topic, offset.partition, offset.offset) for offset in reply.offsets]

    def join_error(self, **more: object) -> ErrorCode:
        """Return the error that a new member gets."""
        reply = self.reply(self.join(**more))
        assert reply is not None
        error: ErrorCode = reply.error
        return error

    def log_lines(self) -> list[str]:
        """The lines of the log."""
        return [note.text for note in self.notes if isinstance(note, LogLine)]


OFFSETS = (OffsetToCommit("t", 0, 7, 3, "note"), OffsetToCommit("t", 1, 8), OffsetToCommit("u", 0, 9))
POSITIONS = [("t", 0, 7), ("t", 1, 8), ("u", 0, 9)]


def register_push(trial: Importing) -> ErrorCode:
    """Return the error that a push consumer's registration gets."""
    request = trial.request()
    trial.feed(RegisterConsumer(request, "g", "p", CLIENT, {"t": 1}, None, False, 1, True, False, 6_000, 1))
    reply = trial.reply(request)
    assert reply is not None
    error: ErrorCode = reply.error
    return error


Naming = Callable[[Importing], ErrorCode]
NAMED: dict[str, Naming] = {
    "join": lambda trial: trial.join_error(),
    "commit": lambda trial: trial.commit(1),
    "fetch": lambda trial: trial.ask(OffsetFetch(trial.request(), "g")).error,
    "heartbeat": lambda trial: trial.beat("m").error,
    "push": register_push,
}


@pytest.mark.parametrize("naming", NAMED.values(), ids=NAMED)
def test_offsets_are_there_before_the_first_answer(naming: Naming) -> None:
    trial = Importing()
    assert naming(trial) is LOADING
    assert naming(trial) is LOADING
    assert trial.journal == []
    trial.answer(*OFFSETS)
    records = trial.outcome.records
    assert [type(record) for record in records] == [GroupSaved, OffsetsImported, *[OffsetCommitted] * 3]
    assert records[1] == OffsetsImported("g", trial.wall_ms, 3)
    assert trial.fetch() == POSITIONS
    assert naming(trial) is ErrorCode.NONE
    assert trial.questions == []
    assert trial.counted(CoordinatorMeter.GROUP_IMPORTS) == 1
    assert any("imported with 3 offsets" in line for line in trial.log_lines())
    kept = trial.machine.context.ledger.groups["g"].offsets["t", 1]
    assert (kept.leader_epoch, kept.metadata, kept.commit_ms, kept.expire_ms) == (-1, "", trial.wall_ms, -1)


def test_the_whole_position_is_taken_over() -> None:
    trial = Importing()
    trial.image = TopicImage(1, {"t": Topic("t", topic_id("t"), 2)}, sure=False)
    trial.feed(TopicsChanged(trial.image))
    trial.fetch()
    trial.answer(*OFFSETS)
    kept = trial.machine.context.ledger.groups["g"].offsets
    assert (kept["t", 0].leader_epoch, kept["t", 0].metadata, kept["t", 0].topic_id) == (3, "note", topic_id("t"))
    assert kept["u", 0].topic_id == NO_TOPIC_ID  # a topic that may not be seen


def test_a_group_that_is_nowhere_leaves_no_record() -> None:
    trial = Importing()
    assert trial.fetch() is LOADING
    trial.answer()
    assert trial.fetch() == []
    assert trial.journal == []
    trial.pass_time(admission.NOTHING_MS)
    assert trial.fetch() is LOADING  # it may be there by now


def test_a_group_that_is_made_here_is_not_asked_for_again() -> None:
    trial = Importing()
    assert trial.commit(1) is LOADING
    trial.answer()
    assert trial.commit(1) is ErrorCode.NONE
    trial.pass_time(admission.NOTHING_MS)
    trial.restart()
    assert trial.fetch() == [("t", 0, 1)]
    assert trial.questions == []


@pytest.mark.parametrize("naming", NAMED.values(), ids=NAMED)
def test_members_at_the_earlier_coordinator_refuse_the_group_until_they_have_left(naming: Naming) -> None:
    trial = Importing()
    assert naming(trial) is LOADING
    trial.answer(error=MEMBERS_THERE, text="stop them")
    assert naming(trial) is MEMBERS_THERE
    assert naming(trial) is MEMBERS_THERE
    assert trial.questions == []
    assert any("stop them" in line for line in trial.log_lines())
    trial.pass_time(admission.REFUSED_MS)
    assert naming(trial) is LOADING
    trial.answer(*OFFSETS)
    assert trial.fetch() == POSITIONS


def test_a_member_under_kip_848_learns_what_to_do() -> None:
    trial = Importing()
    trial.beat("m")
    trial.answer(error=MEMBERS_THERE, text="stop them")
    assert (trial.beat("m").error, trial.beat("m").error_message) == (MEMBERS_THERE, "stop them")


def test_an_earlier_coordinator_that_is_silent_is_asked_later_each_time() -> None:
    trial = Importing()
    waits = []
    for _ in range(8):
        assert trial.fetch() is LOADING
        trial.answer(error=LOADING, text="Kafka does not answer")
        began = trial.mono_ms
        while not trial.questions:
            assert trial.fetch() is LOADING
            trial.pass_time(50)
        waits.append(trial.mono_ms - began)
        question = trial.questions.pop()
        assert isinstance(question, ImportGroupOffsets)
        trial.questions.append(question)
        trial.answer(error=LOADING, text="Kafka does not answer")
        trial.pass_time(admission.SILENT_MAX_MS)
    assert waits[0] < waits[2]
    assert max(waits) <= admission.SILENT_MAX_MS + 50
    assert len([line for line in trial.log_lines() if "Kafka does not answer" in line]) == 1
    assert trial.journal == []
    trial.fetch()
    trial.answer(*OFFSETS)
    assert trial.fetch() == POSITIONS


def delete(trial: Importing) -> None:
    """An administrator deletes the group."""
    assert trial.ask(DeleteGroups(trial.request(), ("g",))).errors == (ErrorCode.NONE,)


def expire(trial: Importing) -> None:
    """Expire the group's offsets, and the group with them."""
    trial.pass_time(9 * DAY_MS)


@pytest.mark.parametrize("end", [delete, expire])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_group_that_is_gone_does_not_return_with_old_offsets(
    end: Callable[[Importing], None], restarted: bool
) -> None:
    trial = Importing()
    trial.fetch()
    trial.answer(*OFFSETS)
    end(trial)
    assert not trial.machine.has_group("g")
    if restarted:
        trial.restart()
    assert trial.fetch() == []
    assert trial.commit(1) is ErrorCode.NONE
    assert trial.questions == []
    assert [record for record in trial.machine.snapshot() if isinstance(record, OffsetsImported)]


def test_push_consumer_starts_at_an_imported_offset() -> None:
    trial = PushTrial(partitions=1, group_import="auto")
    assert trial.consumer("a", from_begin=False).error is LOADING
    [question] = trial.questions
    assert isinstance(question, ImportGroupOffsets)
    assert not trial.machine.has_group("g")
    trial.feed(GroupImported("g", question.ticket, OFFSETS[:1]))
    consumer = trial.consumer("a", from_begin=False)
    assert (consumer.error, consumer.reads) == (ErrorCode.NONE, {("t", 0): 7})


def test_looking_at_groups_imports_nothing() -> None:
    trial = Importing()
    trial.ask(DescribeGroups(trial.request(), ("g",)))
    trial.ask(ConsumerGroupDescribe(trial.request(), ("g",)))
    trial.ask(ListGroups(trial.request()))
    assert trial.ask(DeleteGroups(trial.request(), ("g",))).errors == (ErrorCode.GROUP_ID_NOT_FOUND,)
    assert trial.heartbeat("m", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert trial.questions == []


def test_a_broker_by_itself_asks_nobody() -> None:
    trial = Trial()
    assert trial.commit(1) is ErrorCode.NONE
    assert trial.questions == []


def test_an_answer_to_an_earlier_load_counts_for_nothing() -> None:
    trial = Importing()
    trial.fetch()
    question = trial.asked()
    trial.restart()
    trial.feed(GroupImported(question.group_id, question.ticket, OFFSETS))
    assert trial.journal == []
    assert trial.fetch() is LOADING
    trial.answer()
    assert trial.fetch() == []


def test_only_so_many_groups_are_asked_for_at_a_time() -> None:
    trial = Importing()
    for number in range(admission.UNDER_WAY_MAX + 5):
        assert trial.fetch(f"g{number}") is LOADING
    assert len(trial.questions) == admission.UNDER_WAY_MAX
    for question in trial.questions:
        assert isinstance(question, ImportGroupOffsets)
        trial.feed(GroupImported(question.group_id, question.ticket))
    trial.questions.clear()
    assert trial.fetch("g0") == []
    assert trial.fetch(f"g{admission.UNDER_WAY_MAX}") is LOADING
    assert trial.asked().group_id == f"g{admission.UNDER_WAY_MAX}"


def test_what_is_remembered_without_a_record_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "VERDICTS_MAX", 2)
    trial = Importing()
    for name in "abc":
        trial.fetch(name)
        trial.answer()
    assert trial.fetch("c") == []
    assert trial.fetch("a") is LOADING


def test_a_shard_with_as_many_groups_as_it_may_have_takes_none_over() -> None:
    trial = Importing(groups_max=1)
    trial.commit(1, group_id="other")
    trial.answer()
    trial.commit(1, group_id="other")
    trial.fetch()
    trial.answer(*OFFSETS)
    assert trial.fetch() is ErrorCode.POLICY_VIOLATION


def test_more_offsets_than_one_append_takes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "OFFSETS_MAX", 2)
    trial = Importing()
    trial.fetch()
    trial.answer(*OFFSETS)
    assert trial.fetch() is ErrorCode.POLICY_VIOLATION
    assert trial.journal == []


class Forgets(GroupMachine):
    """A planted fault: what was imported is not noted."""

    def step(self, event: object, now: object) -> object:  # type: ignore[override]
        outcome = super().step(event, now)  # type: ignore[arg-type]
        if isinstance(event, GroupImported):
            self.context.ledger.imported.clear()
            outcome.records = [r for r in outcome.records if not isinstance(r, OffsetsImported)]
        return outcome


class Guesses(GroupMachine):
    """A planted fault: who is silent has nothing."""

    def step(self, event: object, now: object) -> object:  # type: ignore[override]
        if isinstance(event, GroupImported) and event.error is LOADING:
            event = GroupImported(event.group_id, event.ticket)
        return super().step(event, now)  # type: ignore[arg-type]


def deleted_and_named_again(trial: Importing) -> bool:
    trial.fetch()
    trial.answer(*OFFSETS)
    delete(trial)
    found = trial.fetch()
    if found is LOADING:
        trial.answer(*OFFSETS)
        found = trial.fetch()
    return found == []


def silent(trial: Importing) -> bool:
    trial.fetch()
    trial.answer(error=LOADING)
    return trial.fetch() is LOADING


@pytest.mark.parametrize(("mutant", "holds"), [(Forgets, deleted_and_named_again), (Guesses, silent)])
def test_planted_faults_are_seen(mutant: type[GroupMachine], holds: Callable[[Importing], bool]) -> None:
    class Faulty(Importing):
        def make_machine(self) -> GroupMachine:
            return mutant(self.config)

    assert holds(Importing())
    assert not holds(Faulty())
