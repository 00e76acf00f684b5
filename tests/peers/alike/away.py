"""Static members of consumer groups that leave for a while (epoch -2).

Their share, their target, their session, their return.
"""

from __future__ import annotations

from typing import Any

from kohort.wire.groups import ConsumerGroupHeartbeatRequest
from tests.peers.alike.configs import GROUP, altering
from tests.peers.alike.configs import describing as describing_configs
from tests.peers.alike.consumer import MEMBERS, beat, describing, owns, settle, topic_of
from tests.peers.alike.harness import Side, scenario
from tests.peers.alike.making import commit, join, subscription, sync

SHORT_MS = 6_000
STATIC = {"instance": "one"}


def has_assignment(answer: Any) -> bool:
    return answer.assignment is not None


@scenario(ConsumerGroupHeartbeatRequest)
def who_is_away_keeps_its_share(side: Side, version: int) -> None:
    group, topic = side.name("group"), topic_of(side)
    topic_id = side.id_of(topic)
    settled = settle(side, group, MEMBERS["a"], version, topic, **STATIC)
    a, epoch = settled.member_id, settled.member_epoch
    side.ask(beat(group, a, -2, **STATIC), version, "aside")
    side.ask(describing(group), 1)
    second = side.ask(beat(group, MEMBERS["b"], 0, subscribed_topic_names=[topic]), version, "b")
    b = side.call(second.member_id, "b")
    side.ask(describing(group), 1)
    side.ask(beat(group, b, second.member_epoch, topic_partitions=[]), version, "b")
    for late in (
        beat(group, a, epoch, **STATIC),
        beat(group, a, epoch, topic_partitions=[owns(topic_id, 0, 1)], **STATIC),
        beat(group, a, epoch + 1, **STATIC),
        beat(group, a, epoch),
        beat(group, a, -2, **STATIC),
    ):
        side.ask(late, version, "a")
        side.ask(describing(group), 1)
    side.ask(commit(side, group, [(topic, 0, 5)], 9, member=a, generation=epoch), 9)
    side.ask(beat(group, b, second.member_epoch), version, "b")
    side.ask(beat(group, a, -1, **STATIC), version, "aside")

    def moved_on(answer: Any) -> bool:
        return bool(answer.member_epoch > second.member_epoch)

    side.until(lambda: beat(group, b, second.member_epoch, topic_partitions=[]), version, moved_on, "b")
    side.ask(describing(group), 1)


@scenario(1)
def member_that_is_away_rejoins_under_its_own_id(side: Side, version: int) -> None:
    group, topic = side.name("group"), topic_of(side)
    settled = settle(side, group, MEMBERS["a"], version, topic, **STATIC)
    a = settled.member_id
    side.ask(beat(group, a, -2, **STATIC), version, "aside")
    side.ask(beat(group, a, 0, subscribed_topic_names=[topic], **STATIC), version)
    side.ask(describing(group), 1)
    side.ask(beat(group, MEMBERS["b"], 0, subscribed_topic_names=[topic], **STATIC), version, "b")
    side.ask(beat(group, a, -2, **STATIC), version, "aside")
    side.ask(beat(group, MEMBERS["b"], 0, subscribed_topic_names=[topic], **STATIC), version, "b")
    side.ask(beat(group, a, -2, **STATIC), version, "aside")
    side.ask(describing(group), 1)


@scenario(1)
def member_is_away_while_it_should_revoke(side: Side, version: int) -> None:
    group, topic = side.name("group"), topic_of(side)
    topic_id = side.id_of(topic)
    settled = settle(side, group, MEMBERS["a"], version, topic, **STATIC)
    a, epoch = settled.member_id, settled.member_epoch
    second = side.ask(beat(group, MEMBERS["b"], 0, subscribed_topic_names=[topic]), version, "b")
    b, held = MEMBERS["b"], [owns(topic_id, 0, 1)]
    side.until(lambda: beat(group, a, epoch, topic_partitions=held, **STATIC), version, has_assignment)
    side.ask(describing(group), 1)
    side.ask(beat(group, a, -2, **STATIC), version, "aside")
    side.ask(describing(group), 1)
    side.until(lambda: beat(group, b, second.member_epoch, topic_partitions=[]), version, has_assignment, "b")
    side.ask(describing(group), 1)
    side.ask(beat(group, MEMBERS["c"], 0, subscribed_topic_names=[topic], **STATIC), version, "c")
    side.ask(describing(group), 1)


@scenario(1)
def who_is_away_longer_than_its_session_is_out(side: Side, version: int) -> None:
    group, topic = side.name("group"), topic_of(side)
    wanted = {"consumer.session.timeout.ms": str(SHORT_MS)}
    answer = side.silently(altering(GROUP, group, dict(wanted)))
    assert not answer.responses[0].error_code, answer
    asked = describing_configs(GROUP, group)

    def set_now(found: Any) -> bool:
        entries = {entry.name: entry.value for entry in found.results[0].configs}
        return entries["consumer.session.timeout.ms"] == str(SHORT_MS)

    before = len(side.said)
    side.until(lambda: asked, 4, set_now)
    del side.said[before:]
    a = settle(side, group, MEMBERS["a"], version, topic, **STATIC).member_id
    second = side.ask(beat(group, MEMBERS["b"], 0, subscribed_topic_names=[topic]), version, "b")
    side.ask(beat(group, a, -2, **STATIC), version, "aside")
    side.ask(describing(group), 1)
    epoch = second.member_epoch

    def next_beat() -> ConsumerGroupHeartbeatRequest:
        return beat(group, MEMBERS["b"], epoch, topic_partitions=[])

    def has_both(answer: Any) -> bool:
        """Partitions free before the new target may be assigned first: targets are computed beside requests."""
        return has_assignment(answer) and sum(len(part.partitions) for part in answer.assignment.topic_partitions) == 2

    side.until(next_beat, version, has_both, "b")
    side.ask(describing(group), 1)
    side.ask(beat(group, a, -2, **STATIC), version, "aside")
    side.ask(beat(group, MEMBERS["a"], 0, subscribed_topic_names=[topic], **STATIC), version)
    side.ask(describing(group), 1)


@scenario(9)
def a_classic_member_takes_the_place_of_who_is_away(side: Side, version: int) -> None:
    group, topic = side.name("group"), topic_of(side)
    a = settle(side, group, MEMBERS["a"], 1, topic, **STATIC).member_id
    side.ask(beat(group, MEMBERS["b"], 0, subscribed_topic_names=[topic]), 1, "b")
    side.ask(beat(group, a, -2, **STATIC), 1, "aside")
    joined = side.ask(join(group, protocols=[("range", subscription(topic))], **STATIC), version, "c")
    c = side.call(joined.member_id, "c")
    side.ask(sync(group, c, joined.generation_id, **STATIC), 5, "c")
    side.ask(describing(group), 1)
