"""Held heartbeats of classic members: when they are held, what releases them, and who is told of a change when."""

from __future__ import annotations

from typing import Any

import pytest

from kohort.errors import ErrorCode
from kohort.groups import client_quirks
from kohort.groups.effects import CoordinatorMeter
from kohort.groups.events import ConnectionLost, Heartbeat, ReleaseLongPolls
from tests.groups.harness import Trial, protocols
from tests.groups.test_conversion import make_classic, make_trial

HOLD_MS = 30_000
TOLD = ErrorCode.REBALANCE_IN_PROGRESS


class Held(Trial):
    """Three stable members whose clients bear to be held, heard every 3 s, each on a connection of its own number."""

    def __init__(
        self, count: int = 3, delay_ms: int = HOLD_MS, config: dict[str, Any] | None = None, **more: Any
    ) -> None:
        super().__init__(**(config or {}))
        self.members, self.generation = self.stable(count, **more)
        self.delay_ms = delay_ms
        self.beats: dict[str, int] = {}
        for _ in range(2):
            self.beat_all()
            self.pass_time(3_000)

    def send(self, member: str, **more: Any) -> int:
        """A heartbeat; its request."""
        fields = {"delay_ms": self.delay_ms, "connection": self.members.index(member) + 1} | more
        request = self.beats[member] = self.request()
        self.feed(Heartbeat(request, "g", self.generation, member, **fields))
        return request

    def beat_all(self) -> None:
        for member in self.members:
            self.send(member)

    def release(self, member: str) -> Any:
        """Send another request on the member's connection; return the answer to its held heartbeat."""
        self.feed(ReleaseLongPolls((self.beats[member],)))
        return self.heard(member)

    def heard(self, member: str) -> Any:
        """Return the answer to the member's last heartbeat, None while it is held."""
        reply = self.reply(self.beats[member])
        return None if reply is None else reply.error

    def all_heard(self) -> list[Any]:
        return [self.heard(member) for member in self.members]


def test_a_heartbeat_is_held_once_the_interval_is_known() -> None:
    trial = Trial()
    (member,), generation = trial.stable(1)
    assert trial.heartbeat(member, generation, delay_ms=HOLD_MS) is ErrorCode.NONE
    trial.pass_time(3_000)
    held = Heartbeat(trial.request(), "g", generation, member, delay_ms=HOLD_MS)
    assert trial.ask(held) is None


def test_the_first_heartbeat_is_held_of_a_client_whose_interval_is_known() -> None:
    trial = Trial()
    members, generation = trial.stable(2)
    beats = [
        Heartbeat(trial.request(), "g", generation, member, delay_ms=750, connection=number, interval_ms=800)
        for number, member in enumerate(members, 1)
    ]
    assert [trial.ask(beat) for beat in beats] == [None, None]
    trial.join(connection=3)
    assert [trial.reply(beat.request).error for beat in beats] == [TOLD, TOLD], "nobody is waited for"


def test_a_known_interval_is_not_learned_from_a_heartbeat_that_comes_early() -> None:
    trial = Trial()
    (member,), generation = trial.stable(1)
    for _ in range(4):
        beat = Heartbeat(trial.request(), "g", generation, member, delay_ms=750, connection=1, interval_ms=800)
        assert trial.ask(beat) is None
        trial.feed(ReleaseLongPolls((beat.request,)))
        trial.pass_time(20)


def test_a_hold_ends_before_the_next_heartbeat_is_due() -> None:
    trial = Held()
    trial.beat_all()
    trial.pass_time(2_699)
    assert trial.all_heard() == [None] * 3
    trial.pass_time(1)
    assert trial.all_heard() == [ErrorCode.NONE] * 3


def test_a_hold_takes_a_third_of_the_session_at_most() -> None:
    trial = Held(session_timeout_ms=6_000)
    trial.beat_all()
    trial.pass_time(2_000)
    assert trial.all_heard() == [ErrorCode.NONE] * 3


def test_a_hold_takes_what_the_client_bears_at_most() -> None:
    trial = Held(delay_ms=1_000)
    trial.beat_all()
    trial.pass_time(1_000)
    assert trial.all_heard() == [ErrorCode.NONE] * 3


def test_another_request_releases_it() -> None:
    trial = Held()
    trial.beat_all()
    assert trial.release(trial.members[1]) is ErrorCode.NONE
    assert trial.all_heard() == [None, ErrorCode.NONE, None]


def test_a_second_heartbeat_releases_the_first() -> None:
    trial = Held()
    first = trial.send(trial.members[0])
    trial.pass_time(1_000)
    trial.send(trial.members[0], connection=9)
    assert trial.reply(first).error is ErrorCode.NONE


def test_the_session_starts_again_when_the_reply_is_released() -> None:
    trial = Held(1)
    trial.beat_all()
    trial.pass_time(2_700)
    trial.pass_time(9_999)
    assert trial.heartbeat(trial.members[0], trial.generation) is ErrorCode.NONE


def test_a_member_that_is_held_is_not_evicted() -> None:
    trial = Held(1)
    for _ in range(5):
        trial.beat_all()
        trial.pass_time(3_000)
    assert trial.all_heard() == [ErrorCode.NONE]


def test_the_interval_is_not_learned_from_held_heartbeats() -> None:
    """A client that times from the reply would be held longer and longer."""
    trial = Held(1)
    for _ in range(4):
        trial.beat_all()
        trial.pass_time(5_700)
    trial.beat_all()
    trial.pass_time(2_700)
    assert trial.all_heard() == [ErrorCode.NONE]


def test_an_interval_that_has_become_shorter_is_learned() -> None:
    trial = Held(1)
    for _ in range(2):
        trial.send(trial.members[0])
        trial.pass_time(1_000)
    trial.send(trial.members[0])
    trial.pass_time(900)
    assert trial.all_heard() == [ErrorCode.NONE]


def test_members_that_do_not_wait_for_their_topics_are_answered_at_once() -> None:
    trial = Trial()
    (member,), generation = trial.stable(1, protocol_type="connect")
    for _ in range(4):
        assert trial.heartbeat(member, generation, delay_ms=HOLD_MS) is ErrorCode.NONE
        trial.pass_time(3_000)


def test_nothing_is_held_that_is_refused() -> None:
    trial = Held()
    assert trial.heartbeat("stranger", trial.generation, delay_ms=HOLD_MS) is ErrorCode.UNKNOWN_MEMBER_ID
    assert trial.heartbeat(trial.members[0], 99, delay_ms=HOLD_MS) is ErrorCode.ILLEGAL_GENERATION


def test_a_leave_notifies_all_at_once() -> None:
    trial = Held()
    trial.beat_all()
    trial.feed(ReleaseLongPolls((trial.beats[trial.members[2]],)))
    trial.leave(trial.members[2])
    assert trial.all_heard() == [TOLD, TOLD, ErrorCode.NONE]


def test_everyone_works_on_until_the_last_is_here() -> None:
    trial = Held()
    trial.beat_all()
    trial.pass_time(500)
    trial.release(trial.members[0])  # due in 2,500 ms
    trial.join()
    trial.pass_time(2_000)
    assert trial.all_heard() == [ErrorCode.NONE, None, None]
    assert trial.commit(7, trial.members[1], trial.generation) is ErrorCode.NONE
    trial.send(trial.members[0])
    assert trial.all_heard() == [TOLD] * 3


def test_notified_members_join_and_the_round_is_as_ever() -> None:
    trial = Held()
    trial.beat_all()
    joins = [trial.join()]
    assert trial.all_heard() == [TOLD] * 3
    joins += [trial.join(member) for member in trial.members]
    replies = [trial.reply(request) for request in joins]
    assert {reply.generation for reply in replies} == {trial.generation + 1}
    assert len(next(reply for reply in replies if reply.members).members) == 4


def fall_silent(trial: Held) -> None:
    """The first member's heartbeat is due in 2,500 ms, and does not come; a fourth wants to join.

    Its session ends in 9,500 ms.
    """
    trial.send(trial.members[0])
    trial.pass_time(500)
    trial.send(trial.members[1])
    trial.send(trial.members[2])
    trial.release(trial.members[0])
    trial.join()
    trial.pass_time(2_599)
    assert trial.all_heard() == [ErrorCode.NONE, None, None]


def beat_on(trial: Held, ms: int) -> None:
    """The other two go on, and are held."""
    for _ in range(ms // 1_000):
        trial.pass_time(1_000)
        for member in trial.members[1:]:
            trial.send(member)


def test_nobody_stands_still_for_a_silent_member_until_it_is_out() -> None:
    trial = Held()
    fall_silent(trial)
    beat_on(trial, 7_000)
    assert trial.all_heard() == [ErrorCode.NONE, None, None], "it is overdue, and the round can't end without it"
    assert trial.commit(7, trial.members[1], trial.generation) is ErrorCode.NONE
    trial.pass_time(400)
    trial.send(trial.members[1])
    trial.pass_time(1)
    assert trial.all_heard() == [ErrorCode.NONE, TOLD, TOLD], "its session is over"
    assert trial.heartbeat(trial.members[0], trial.generation) is ErrorCode.UNKNOWN_MEMBER_ID
    joins = [trial.join(member) for member in trial.members[1:]]
    assert {trial.reply(request).generation for request in joins} == {trial.generation + 1}


def test_all_are_notified_when_a_silent_member_is_heard_again() -> None:
    trial = Held()
    fall_silent(trial)
    beat_on(trial, 3_000)
    assert trial.all_heard() == [ErrorCode.NONE, None, None]
    trial.send(trial.members[0])
    assert trial.all_heard() == [TOLD] * 3


def test_when_a_silent_member_is_heard_again_others_are_awaited_that_are_due_soon() -> None:
    trial = Held()
    fall_silent(trial)
    beat_on(trial, 3_000)
    trial.release(trial.members[2])  # due in 1,000 ms, as it was heard every 1,000 ms
    trial.send(trial.members[0])
    assert trial.all_heard() == [TOLD, None, ErrorCode.NONE], "its next heartbeat would be too late"
    trial.pass_time(800)
    trial.send(trial.members[2])
    assert trial.all_heard() == [TOLD] * 3


def test_all_are_notified_when_a_silent_member_joins_or_leaves() -> None:
    for how in ("join", "leave"):
        trial = Held()
        fall_silent(trial)
        beat_on(trial, 3_000)
        getattr(trial, how)(trial.members[0])
        assert trial.all_heard() == [ErrorCode.NONE, TOLD, TOLD]


def test_who_falls_silent_after_another_is_not_worked_on_for() -> None:
    trial = Held(4)
    for member in trial.members:
        trial.send(member)
    trial.feed(ConnectionLost(1))
    trial.join()
    trial.pass_time(5_000)
    trial.feed(ConnectionLost(2))
    for _ in range(2):
        for member in trial.members[2:]:
            trial.send(member)
        trial.pass_time(2_000)
    for member in trial.members[2:]:
        trial.send(member)
    trial.pass_time(999)
    assert TOLD not in trial.all_heard()
    trial.pass_time(1)
    assert trial.all_heard()[2:] == [TOLD, TOLD], "one session after the change"


def test_a_member_whose_connection_has_ended_is_silent_at_once() -> None:
    trial = Held()
    trial.beat_all()
    trial.feed(ConnectionLost(1))
    trial.join()
    beat_on(trial, 9_000)
    assert trial.all_heard()[1:] == [None, None]
    trial.send(trial.members[0], connection=8)
    assert trial.all_heard()[1:] == [TOLD, TOLD]


def test_who_is_late_only_is_no_longer_silent_in_the_next_change() -> None:
    trial = Held()
    trial.feed(ConnectionLost(1))
    trial.beats[trial.members[0]] = trial.request()
    trial.feed(
        Heartbeat(trial.beats[trial.members[0]], "g", trial.generation, trial.members[0], delay_ms=0, connection=9)
    )
    trial.send(trial.members[1])
    trial.send(trial.members[2])
    trial.join()
    trial.pass_time(1_000)
    trial.send(trial.members[0], connection=9, delay_ms=0)
    assert trial.all_heard() == [TOLD] * 3


def test_for_the_silent_half_of_the_rebalance_timeout_is_spent_at_most_and_all_of_it_is_left() -> None:
    trial = Held(rebalance_timeout_ms=12_000)
    trial.beat_all()
    trial.feed(ConnectionLost(1))
    trial.join(rebalance_timeout_ms=12_000)
    beat_on(trial, 5_000)
    trial.pass_time(950)
    for member in trial.members[1:]:
        trial.send(member)
    assert TOLD not in trial.all_heard()
    trial.pass_time(50)
    assert trial.all_heard()[1:] == [TOLD, TOLD]
    trial.join(trial.members[1], rebalance_timeout_ms=12_000)
    beats = 0
    while trial.heartbeat(trial.members[2], trial.generation, connection=3) is TOLD:
        trial.pass_time(1_000)
        trial.heartbeat(trial.members[0], trial.generation, connection=4)
        beats += 1
    assert beats == 12


def test_a_commit_notifies_the_members_that_it_releases_only_if_that_would_come_too_late() -> None:
    trial = Held()
    early, late, missing = trial.members
    trial.send(early)
    trial.send(missing)
    trial.pass_time(1_000)
    trial.send(late)
    trial.release(missing)  # due in 2,000 ms: so long everyone is waited for
    trial.join()
    assert trial.release(late) is TOLD  # due in 3,000 ms
    assert trial.release(early) is ErrorCode.NONE  # due with the missing one
    trial.pass_time(1_900)
    trial.send(early)
    assert trial.heard(early) is None
    trial.send(missing)
    assert trial.all_heard() == [TOLD] * 3


def test_a_client_that_does_not_bear_it_is_notified_when_it_comes() -> None:
    trial = Held()
    trial.send(trial.members[0])
    trial.send(trial.members[1])
    trial.send(trial.members[2], delay_ms=0)
    assert trial.heard(trial.members[2]) is ErrorCode.NONE
    trial.join()
    trial.pass_time(2_000)
    assert trial.all_heard() == [None, None, ErrorCode.NONE]
    trial.send(trial.members[2], delay_ms=0)
    assert trial.all_heard() == [TOLD] * 3


def test_clients_that_bear_no_hold_work_on_too_until_the_silent_one_is_out() -> None:
    trial = Held(delay_ms=0)
    trial.feed(ConnectionLost(1))  # it was heard 3 s ago
    trial.join()
    for _ in range(2):
        for member in trial.members[1:]:
            trial.send(member)
        assert trial.all_heard()[1:] == [ErrorCode.NONE, ErrorCode.NONE]
        trial.pass_time(2_500)
    for member in trial.members[1:]:
        trial.send(member)
    assert trial.all_heard()[1:] == [TOLD, TOLD], "their next heartbeats would be too late"
    joins = [trial.join(member) for member in trial.members[1:]]
    trial.pass_time(1_999)
    assert [trial.reply(request) for request in joins] == [None, None]
    trial.pass_time(1)
    assert {trial.reply(request).generation for request in joins} == {trial.generation + 1}


def test_without_it_all_are_notified_as_by_kafka() -> None:
    trial = Held(delay_ms=0, config={"notify_at_once": "off"})
    trial.feed(ConnectionLost(1))
    trial.join()
    for member in trial.members[1:]:
        trial.send(member)
    assert trial.all_heard()[1:] == [TOLD, TOLD]


def test_clients_that_bear_nothing_are_notified_as_by_kafka() -> None:
    trial = Held(delay_ms=0)
    trial.join()
    trial.beat_all()
    assert trial.all_heard() == [TOLD] * 3


def test_a_deferral_ends_when_the_missing_one_leaves() -> None:
    trial = Held()
    trial.beat_all()
    trial.release(trial.members[0])
    trial.join()
    assert trial.heard(trial.members[1]) is None
    trial.leave(trial.members[0])
    assert trial.all_heard() == [ErrorCode.NONE, TOLD, TOLD]


def test_a_deferral_ends_when_the_missing_one_joins() -> None:
    trial = Held()
    trial.beat_all()
    trial.release(trial.members[0])
    trial.join()
    trial.join(trial.members[0])
    assert trial.all_heard() == [ErrorCode.NONE, TOLD, TOLD]


def test_a_deferral_leaves_most_of_the_rebalance_timeout_for_joining() -> None:
    trial = Held(rebalance_timeout_ms=4_000)
    trial.beat_all()
    trial.release(trial.members[0])
    trial.join(rebalance_timeout_ms=4_000)
    trial.pass_time(1_000)
    assert trial.all_heard() == [ErrorCode.NONE, TOLD, TOLD]


def test_cooperative_members_are_notified_at_once() -> None:
    trial = Held(protocols=protocols("cooperative-sticky"))
    trial.beat_all()
    trial.release(trial.members[0])
    trial.join(protocols=protocols("cooperative-sticky"))
    assert trial.all_heard() == [ErrorCode.NONE, TOLD, TOLD]


def test_a_client_that_times_from_the_reply_is_waited_for_accordingly() -> None:
    trial = Held(2)
    one, other = trial.members
    for _ in range(2):
        trial.beat_all()
        trial.pass_time(3_000)
        trial.send(other)
        trial.pass_time(2_700)
    trial.beat_all()
    trial.pass_time(2_700)  # both holds end: the one is due in 3,000 ms, the other in 300
    trial.send(other)
    trial.join()
    trial.pass_time(2_300)
    assert trial.heard(other) is None
    trial.send(one)
    assert trial.all_heard() == [TOLD, TOLD]


def test_until_a_hold_has_shown_how_a_client_times_it_counts_as_the_later_one() -> None:
    trial = Trial()
    (one, other), generation = trial.stable(2)
    for member in (one, other):
        assert trial.heartbeat(member, generation, delay_ms=HOLD_MS) is ErrorCode.NONE
    trial.pass_time(1_000)
    held = [trial.request(), trial.request()]
    for member, request in zip((one, other), held, strict=True):
        assert trial.ask(Heartbeat(request, "g", generation, member, delay_ms=HOLD_MS)) is None
    trial.feed(ReleaseLongPolls((held[1],)))
    trial.join()
    trial.pass_time(100)
    trial.feed(ReleaseLongPolls((held[0],)))  # due in 1,000 ms, or in 900: in time
    assert trial.reply(held[0]).error is TOLD


def test_a_connection_that_ends_while_held_is_held_no_more() -> None:
    trial = Held()
    trial.beat_all()
    trial.feed(ConnectionLost(1))
    assert trial.counted(CoordinatorMeter.HELD_DISCONNECTS) == 1
    trial.send(trial.members[0], connection=7)
    assert trial.all_heard() == [ErrorCode.NONE, None, None]
    assert trial.classic_group().members[trial.members[0]].interval_ms > 2_500


def test_a_member_that_comes_late_after_a_hold_is_held_no_more() -> None:
    trial = Held()
    trial.beat_all()
    trial.pass_time(2_700 + 4_700)
    trial.beat_all()
    assert trial.all_heard() == [ErrorCode.NONE] * 3
    assert trial.counted(CoordinatorMeter.HELD_LATE) == 3


def test_a_replaced_static_member_is_fenced_while_it_is_held() -> None:
    trial = Trial()
    reply = trial.joined(instance_id="i")
    trial.sync(reply.member_id, 1, {reply.member_id: b"x"}, instance_id="i")
    for _ in range(3):
        trial.feed(Heartbeat(trial.request(), "g", 1, reply.member_id, "i", HOLD_MS))
        trial.pass_time(1_000)
    held = trial.request()
    assert trial.ask(Heartbeat(held, "g", 1, reply.member_id, "i", HOLD_MS)) is None
    trial.join(instance_id="i")
    assert trial.reply(held).error is ErrorCode.FENCED_INSTANCE_ID


def test_who_is_removed_while_it_is_held_hears_it() -> None:
    trial = Held()
    trial.beat_all()
    trial.leave(trial.members[2])
    assert trial.all_heard() == [TOLD, TOLD, ErrorCode.UNKNOWN_MEMBER_ID]


def test_a_group_that_takes_a_consumer_member_in_holds_no_classic_heartbeat() -> None:
    trial = make_trial()
    member, generation = make_classic(trial)
    assert trial.heartbeat(member, generation, delay_ms=HOLD_MS) is ErrorCode.NONE
    trial.pass_time(3_000)
    held = trial.request()
    assert trial.ask(Heartbeat(held, "g", generation, member, delay_ms=HOLD_MS)) is None
    trial.beat("modern")
    assert trial.reply(held).error is TOLD
    assert trial.heartbeat(member, generation, delay_ms=HOLD_MS) is TOLD


@pytest.mark.parametrize(
    ("mode", "software", "expected"),
    [
        ("off", "apache-kafka-java", 0),
        ("known", "apache-kafka-java", HOLD_MS),
        ("known", "librdkafka", HOLD_MS),
        ("known", "some-client", 0),
        ("known", None, 0),
        ("all", "some-client", HOLD_MS),
        ("all", "sarama", 0),
        ("all", None, 0),
        ("all", "", 0),
    ],
)
def test_whose_heartbeats_are_held(mode: str, software: str | None, expected: int) -> None:
    assert client_quirks.max_heartbeat_delay_ms(mode, software) == expected
