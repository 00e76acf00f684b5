"""Long polls of both protocols under the same rules, beside the rules in their tables."""

from __future__ import annotations

from kohort.groups.effects import CoordinatorMeter
from kohort.groups.events import ConnectionLost
from tests.groups.harness import Trial
from tests.groups.test_deferred_notification import Held

HOLD_MS = 1_000


def consumer_member() -> Trial:
    """Member a of a consumer group, settled, whose client bears to be held."""
    trial = Trial()
    trial.set_topics(t=1)
    trial.beat("a", connection=1)
    trial.beat("a", trial.consumer_group().epoch, connection=1)
    return trial


def hold(trial: Trial, connection: int = 1) -> int:
    event = trial.consumer_event("a", trial.consumer_group().epoch, delay_ms=HOLD_MS, connection=connection)
    trial.feed(event)
    assert trial.reply(event.request) is None
    return event.request


def test_connections_that_end_while_a_reply_is_held_are_counted_in_both_protocols() -> None:
    consumer = consumer_member()
    hold(consumer)
    classic = Held()
    classic.send(classic.members[0])
    for trial in (consumer, classic):
        assert trial.counted(CoordinatorMeter.HELD_DISCONNECTS) == 0
        trial.feed(ConnectionLost(1, noticed=False))
        assert trial.counted(CoordinatorMeter.HELD_DISCONNECTS) == 1
        trial.feed(ConnectionLost(1, noticed=False))
        assert trial.counted(CoordinatorMeter.HELD_DISCONNECTS) == 1


def test_only_a_classic_member_is_not_held_again_after_that() -> None:
    consumer = consumer_member()
    hold(consumer)
    consumer.feed(ConnectionLost(1, noticed=False))
    hold(consumer, connection=9)
    classic = Held()
    member = classic.members[0]
    classic.send(member)
    assert classic.heard(member) is None
    classic.feed(ConnectionLost(1, noticed=False))
    classic.pass_time(3_000)
    classic.send(member, connection=9)
    assert classic.heard(member) is not None


def test_a_session_starts_again_when_the_end_of_a_connection_releases_a_reply() -> None:
    classic = Held()
    member = classic.classic_group().members[classic.members[0]]
    classic.send(member.member_id)
    consumer = consumer_member()
    hold(consumer)
    for trial, pacing in ((classic, member), (consumer, consumer.consumer_group().presences["a"])):
        before_ms = pacing.session.due_ms
        assert before_ms is not None
        trial.pass_time(HOLD_MS // 2)
        trial.feed(ConnectionLost(1, noticed=False))
        assert pacing.session.due_ms == before_ms + HOLD_MS // 2
