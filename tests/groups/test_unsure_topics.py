"""Topics that others keep: an image that lacks one does not say that it is gone, and one may be made again unseen."""

from __future__ import annotations

from uuid import UUID

import pytest

from kohort.errors import ErrorCode
from kohort.groups.effects import FindDeletedTopics
from kohort.groups.events import (
    OffsetCommit,
    OffsetFetch,
    OffsetToCommit,
    Topic,
    TopicImage,
    TopicsChanged,
    TopicsDeleted,
)
from kohort.ids import NO_TOPIC_ID, TopicId, TopicPartition
from tests.groups.harness import Trial

OLD, NEW = UUID(int=1), UUID(int=2)


class Elsewhere(Trial):
    """A machine whose topics are kept elsewhere."""

    def see(self, **ids: TopicId) -> None:
        """Topics with their ids."""
        topics = {name: Topic(name, found, 2) for name, found in ids.items()}
        self.image = TopicImage(self.image.version + 1, topics, sure=False)
        self.feed(TopicsChanged(self.image))

    def keep(self, topic: str, topic_id: TopicId, offset: int) -> None:
        """A position as a shell commits it, with the id of its topic."""
        one = OffsetToCommit(topic, 0, offset, topic_id=topic_id)
        assert self.ask(OffsetCommit(self.request(), "g", "", -1, (one,))).errors == (ErrorCode.NONE,)

    def fetched(self, topic: str) -> int | ErrorCode:
        """The position, or why it is not told."""
        [found] = self.ask(OffsetFetch(self.request(), "g", (TopicPartition(topic, 0),))).offsets
        return found.error or found.offset


def test_a_shard_that_loads_looks_for_what_its_positions_name() -> None:
    trial = Elsewhere()
    trial.see(t=OLD, u=OLD, v=OLD, w=OLD)
    trial.keep("t", OLD, 1)
    trial.keep("u", OLD, 2)
    trial.keep("v", OLD, 3)
    trial.keep("w", NO_TOPIC_ID, 4)
    before = list(trial.journal)
    trial.image = TopicImage(9, {"t": Topic("t", NEW, 2), "v": Topic("v", OLD, 2)}, sure=False)
    trial.restart()
    assert trial.journal == before
    assert trial.questions == [
        FindDeletedTopics({"t": frozenset({OLD}), "u": frozenset({OLD}), "w": frozenset({NO_TOPIC_ID})})
    ]
    assert (trial.fetched("u"), trial.fetched("v"), trial.fetched("w")) == (2, 3, 4)


def test_a_position_of_an_earlier_topic_is_held_back_until_it_is_known_which_is_there() -> None:
    trial = Elsewhere()
    trial.see(t=OLD)
    trial.keep("t", OLD, 1)
    trial.image = TopicImage(9, {"t": Topic("t", NEW, 2)}, sure=False)
    trial.restart()
    assert trial.fetched("t") is ErrorCode.UNSTABLE_OFFSET_COMMIT
    trial.feed(TopicsDeleted(("t",)))
    assert trial.fetched("t") == -1


def test_positions_of_the_topic_that_is_there_stay_when_an_earlier_one_goes() -> None:
    trial = Elsewhere()
    trial.see(t=NEW, u=NEW)
    trial.keep("t", NEW, 1)
    trial.keep("u", OLD, 2)
    trial.feed(TopicsDeleted(("t", "u")))
    assert (trial.fetched("t"), trial.fetched("u")) == (1, -1)


@pytest.mark.parametrize("recorded", [OLD, NO_TOPIC_ID])
def test_positions_of_a_deleted_topic_go(recorded: TopicId) -> None:
    trial = Elsewhere()
    trial.see(t=OLD)
    trial.keep("t", recorded, 1)
    trial.see()
    assert trial.fetched("t") == 1  # not named is not gone
    trial.feed(TopicsDeleted(("t",)))
    assert trial.fetched("t") == -1


@pytest.mark.parametrize("recorded", [OLD, NO_TOPIC_ID])
def test_positions_of_a_topic_that_was_made_again_go(recorded: TopicId) -> None:
    trial = Elsewhere()
    trial.see(t=OLD)
    trial.keep("t", recorded, 1)
    trial.see(t=NEW)
    trial.feed(TopicsDeleted(("t",)))
    assert trial.fetched("t") == -1
