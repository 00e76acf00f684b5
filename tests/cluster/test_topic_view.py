"""Conclusions from a sequence of topic metadata responses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from kohort.cluster.topic_view import ASKED_MAX, TopicAnswer, TopicView
from kohort.cluster.zookeeper import shown
from kohort.cluster.zookeeper.nodes import MirroredTopic
from kohort.errors import ErrorCode
from kohort.ids import NO_TOPIC_ID, TopicId
from tests.cluster.coordination_services import until

OLD, NEW, OTHER = UUID(int=1), UUID(int=2), UUID(int=3)
A, B = 1, 2
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def topic(
    name: str = "t", topic_id: TopicId = OLD, partitions: int = 2, epoch: int = 0, leader: int = A
) -> TopicAnswer:
    """A topic that is there."""
    return TopicAnswer(name, topic_id, [(leader, epoch, [A, B], [A, B])] * partitions)


class Asked:
    """Topics that are asked of brokers as `KafkaTopics` asks."""

    def __init__(self, kind: type[TopicView] = TopicView) -> None:
        self.answers = kind()
        self.deleted: list[str] = []

    def poll(
        self, node: int, *topics: TopicAnswer, by_name: Iterable[TopicAnswer] | None = None, alone: bool = False
    ) -> tuple[str, ...]:
        """A list of one node; what it leaves out is unknown to it by name too, unless `by_name` says otherwise."""
        self.answers.merge_topic_list(node, topics, alone=alone)
        names = self.answers.topics_to_request()
        if by_name is None:
            by_name = [TopicAnswer(name, error=UNKNOWN) for name in names]
        self.answers.merge_topic_answers(node, [answers for answers in by_name if answers.name in names], alone=alone)
        deleted = self.answers.take_deleted_topics()
        self.deleted += deleted
        return deleted

    def id_of(self, name: str = "t") -> TopicId | None:
        """Return the known topic id."""
        found = self.answers.by_name.get(name)
        return None if found is None else found.id


def test_a_topic_is_there_when_one_broker_says_so() -> None:
    asked = Asked()
    asked.poll(A, topic())
    assert asked.id_of() == OLD
    assert asked.answers.by_id[OLD].partitions == 2
    image = asked.answers.topic_image()
    assert not image.sure
    asked.poll(B, topic())
    assert asked.answers.topic_image() is image


def test_a_topic_that_two_brokers_do_not_know_by_name_is_deleted() -> None:
    asked = Asked()
    asked.poll(A, topic())
    assert asked.poll(A) == ()
    assert asked.poll(A) == ()  # says nothing new
    assert asked.id_of() == OLD
    assert asked.poll(B) == ("t",)
    assert asked.id_of() is None
    assert "t" not in asked.answers.topic_image().topics


def test_a_broker_that_knew_of_another_does_not_count_twice_when_that_is_gone() -> None:
    asked = Asked()
    asked.poll(A, topic())
    assert asked.poll(A) == ()
    assert asked.poll(A, alone=True) == ()  # it may have lost the cluster, and not the topic
    assert asked.id_of() == OLD
    assert asked.poll(B) == ("t",)


def test_a_broker_that_still_knows_a_topic_overrules_an_earlier_answer() -> None:
    asked = Asked()
    asked.poll(A, topic())
    assert asked.poll(A) == ()
    assert asked.poll(B, topic()) == ()
    assert asked.poll(B) == ()  # the two did not say so one after the other
    assert asked.id_of() == OLD
    assert asked.poll(A) == ("t",)


def test_where_there_is_one_broker_it_is_asked_twice() -> None:
    asked = Asked()
    asked.poll(A, topic(), alone=True)
    assert asked.poll(A, alone=True) == ()
    assert asked.poll(A, alone=True) == ("t",)


def test_a_broker_that_knows_the_topic_again_ends_the_doubt() -> None:
    asked = Asked()
    asked.poll(A, topic())
    asked.poll(A)
    asked.poll(B, topic())
    assert asked.poll(A) == ()
    assert asked.id_of() == OLD


def test_a_topic_that_may_not_be_seen_is_not_deleted() -> None:
    asked = Asked()
    asked.poll(A, topic())
    hidden = [TopicAnswer("t", error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)]
    for node in (A, B, A, B):
        assert asked.poll(node, by_name=hidden) == ()
    assert asked.id_of() == OLD
    assert asked.answers.hidden == {"t"}
    asked.poll(A, topic())
    assert asked.answers.hidden == set()


def test_a_topic_that_was_made_again_is_another_one() -> None:
    asked = Asked()
    asked.poll(A, topic())
    assert asked.poll(A, topic(topic_id=NEW)) == ()
    assert asked.poll(B, topic(topic_id=NEW, partitions=1)) == ("t",)
    assert asked.id_of() == NEW
    assert asked.answers.by_name["t"].partitions == 1
    assert OLD not in asked.answers.by_id


def test_a_broker_that_lags_brings_no_replaced_topic_back() -> None:
    asked = Asked()
    asked.poll(A, topic())
    asked.poll(A, topic(topic_id=NEW))
    asked.poll(B, topic(topic_id=NEW))
    for node in (A, B, A, B):
        assert asked.poll(node, topic()) == ()
    assert asked.id_of() == NEW


def test_a_broker_that_lags_takes_no_topic_away_that_another_reported_first() -> None:
    """A coordinator that begins may hear the newer id first: one broker that knows the older one is no evidence."""
    asked = Asked()
    asked.poll(A, topic(topic_id=NEW))
    assert asked.poll(B, topic(topic_id=OLD)) == ()
    assert asked.poll(A, topic(topic_id=NEW)) == ()
    assert asked.poll(B, topic(topic_id=OLD)) == ()
    assert asked.id_of() == NEW


def test_a_deleted_topic_returns_when_two_brokers_have_it() -> None:
    """Two brokers that lag can be wrong together; one that has not heard of the deletion yet can't."""
    asked = Asked()
    asked.poll(A, topic())
    asked.poll(A)
    asked.poll(B)
    asked.poll(A, topic())
    assert asked.id_of() is None
    asked.poll(B, topic())
    assert asked.id_of() == OLD


def test_a_new_topic_of_a_deleted_name_is_there_at_once() -> None:
    asked = Asked()
    asked.poll(A, topic())
    asked.poll(A)
    asked.poll(B)
    assert asked.poll(A, topic(topic_id=NEW)) == ()
    assert asked.id_of() == NEW


def test_old_answers_take_no_partitions_and_no_leaders_back() -> None:
    asked = Asked()
    asked.poll(A, topic(partitions=3, epoch=5, leader=B))
    image = asked.answers.topic_image()
    asked.poll(B, topic(partitions=2, epoch=4, leader=A))
    assert asked.answers.by_name["t"].partitions == 3
    assert [leader[:2] for leader in asked.answers.by_name["t"].leaders] == [(B, 5)] * 3
    assert asked.answers.topic_image() is image
    asked.poll(A, topic(partitions=4, epoch=6))
    assert asked.answers.by_name["t"].partitions == 4
    assert asked.answers.topic_image().version > image.version


def test_racks_of_brokers_that_are_down_stay() -> None:
    asked = Asked()
    asked.answers.record_racks({A: "a", B: "b"})
    asked.poll(A, topic())
    image = asked.answers.topic_image()
    assert image.topics["t"].racks == (("a", "b"), ("a", "b"))
    asked.answers.record_racks({A: "a"})
    asked.poll(A, topic())
    assert asked.answers.topic_image() is image
    asked.answers.record_racks({B: "c"})
    asked.poll(A, topic())
    assert asked.answers.topic_image().topics["t"].racks == (("a", "c"), ("a", "c"))


@pytest.mark.parametrize("recorded", [OLD, NO_TOPIC_ID])
def test_positions_of_a_topic_that_is_not_there_go_when_two_brokers_say_so(recorded: TopicId) -> None:
    asked = Asked()
    asked.answers.find_deleted_topics({"t": [recorded]})
    assert asked.poll(A) == ()
    assert asked.poll(A) == ()
    assert asked.poll(B) == ("t",)
    assert asked.poll(A) == ()
    assert asked.answers.topics_to_request() == []


def test_positions_of_a_topic_that_a_list_left_out_stay() -> None:
    asked = Asked()
    asked.answers.find_deleted_topics({"t": [OLD]})
    asked.poll(A)
    asked.poll(B, topic())
    asked.poll(A, topic())
    assert asked.deleted == []
    assert asked.answers.topics_to_request() == []


def test_positions_of_an_earlier_topic_go_when_two_brokers_name_the_later_one() -> None:
    asked = Asked()
    asked.poll(A, topic(topic_id=NEW))
    asked.answers.find_deleted_topics({"t": [OLD]})
    assert asked.poll(A, topic(topic_id=NEW)) == ()
    assert asked.poll(B, topic(topic_id=NEW)) == ("t",)
    assert asked.id_of() == NEW


def test_positions_of_a_later_topic_than_is_known_here_make_it_known() -> None:
    """This process has heard from a broker that lags; another one took commits of the topic that was made again."""
    asked = Asked()
    asked.poll(A, topic(topic_id=OLD))
    asked.answers.find_deleted_topics({"t": [NEW]})
    asked.poll(B, topic(topic_id=NEW))
    assert asked.poll(A, topic(topic_id=NEW)) == ("t",)  # what names the newer id stays, see `TopicsDeleted`
    assert asked.id_of() == NEW


def test_positions_without_an_id_stay_with_a_topic_that_is_there() -> None:
    asked = Asked()
    asked.answers.find_deleted_topics({"t": [NO_TOPIC_ID]})
    asked.poll(A, topic())
    asked.poll(B, topic())
    assert asked.deleted == []


def test_very_many_names_take_turns_each_asked_of_two_brokers() -> None:
    asked = Asked()
    names = [f"t{number:05}" for number in range(2 * ASKED_MAX + 1)]
    asked.answers.find_deleted_topics({name: [OLD] for name in names})
    for turn in range(8):
        asked.answers.merge_topic_list(turn % 2, [], alone=False)
        wanted = asked.answers.topics_to_request()
        assert len(wanted) <= ASKED_MAX
        asked.answers.merge_topic_answers(turn % 2, [TopicAnswer(name, error=UNKNOWN) for name in wanted], alone=False)
        asked.deleted += asked.answers.take_deleted_topics()
    assert sorted(asked.deleted) == names


class ListsAreWhole(TopicView):
    """A planted fault: what a list leaves out is deleted."""

    def merge_topic_list(self, node: int, topics: Iterable[TopicAnswer], *, alone: bool) -> None:
        answers = list(topics)
        left_out = self.by_name.keys() - {entry.name for entry in answers}
        super().merge_topic_list(node, answers, alone=alone)
        self.merge_topic_answers(A, [TopicAnswer(name, error=UNKNOWN) for name in left_out], alone=alone)
        self.merge_topic_answers(B, [TopicAnswer(name, error=UNKNOWN) for name in left_out], alone=alone)


class OneIsEnough(TopicView):
    """A planted fault: what one broker says counts, as if another had said it before."""

    def merge_topic_list(self, node: int, topics: Iterable[TopicAnswer], *, alone: bool) -> None:
        answers = list(topics)
        super().merge_topic_list(-node, answers, alone=alone)
        super().merge_topic_list(node, answers, alone=alone)


def left_out_once(asked: Asked) -> None:
    """A broker that has just started knows no topics yet, and says nothing of them by name."""
    asked.poll(A, topic())
    asked.poll(B, by_name=[])
    asked.poll(A, topic())


def reported_late(asked: Asked) -> None:
    """A broker that lags names the topic's earlier id."""
    asked.poll(A, topic(topic_id=NEW))
    asked.poll(B, topic(topic_id=OLD))


@pytest.mark.parametrize(("mutant", "history"), [(ListsAreWhole, left_out_once), (OneIsEnough, reported_late)])
def test_planted_faults_lose_offsets(mutant: type[TopicView], history: object) -> None:
    assert callable(history)
    for kind, lost in ((TopicView, []), (mutant, ["t"])):
        asked = Asked(kind)
        history(asked)
        assert asked.deleted == lost


def test_zookeeper_shows_the_replicas_that_a_topic_has_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic whose partitions move to other nodes is the same for groups."""
    monkeypatch.setattr(shown, "TOPICS_S", 0.001)
    view, told = TopicView(), list[dict[str, MirroredTopic]]()
    view.merge_topic_list(A, [topic(), topic("u", OTHER)], alone=False)
    endpoints = SimpleNamespace(leaders=lambda name, numbers: view.by_name[name].leaders)
    host: Any = SimpleNamespace(topics=view, endpoints=endpoints)
    leader: Any = SimpleNamespace(is_leader=True, mirror_topics=told.append)

    async def play() -> None:
        mirror = asyncio.create_task(shown.mirror_leader_topics(leader, host))
        await until(lambda: told, "a first list")
        view.merge_topic_list(A, [TopicAnswer("t", OLD, [(A, 1, [B, A], [A])] * 2), topic("u", OTHER)], alone=False)
        await until(lambda: len(told) > 1, "the changed topic")
        mirror.cancel()

    asyncio.run(play())
    assert [topics["t"].replicas[0] for topics in told] == [(A, B), (B, A)]
    assert told[0]["u"] is told[1]["u"]
