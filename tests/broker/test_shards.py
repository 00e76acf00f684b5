"""Shards begin and end while their process runs.

What is asked of one that is not here is refused, and nobody waits for ever.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from kohort.broker.server.connection import ClientSession
from kohort.broker.shards import GroupShards
from kohort.errors import ErrorCode
from kohort.groups.effects import ListGroupsReply, OffsetCommitReply, OffsetFetchReply
from kohort.groups.events import DescribeGroups, ListGroups, OffsetCommit, OffsetFetch, OffsetToCommit, TransactionEnded
from kohort.ids import TopicPartition
from tests.broker.driven import TERM, TOPIC, Driven


class Shards:
    """One shard of one, which is here or not."""

    def __init__(self, folder: Path) -> None:
        self.driven = Driven(folder)
        self.tokens = itertools.count(1)
        self.groups = GroupShards(lambda: next(self.tokens), self.driven.make)
        self.client = ClientSession(7, "127.0.0.1")

    def begin(self, term: int) -> None:
        self.groups.take_over_shard(0, term)
        self.driven.turns.settle()

    def commit(self, offset: int) -> list[Any]:
        answers: list[Any] = []
        event = OffsetCommit(next(self.tokens), "g", "", -1, (OffsetToCommit(TOPIC, 0, offset),))
        self.groups.ask(self.client, event, answers.append)
        return answers

    def fetch(self) -> list[Any]:
        answers: list[Any] = []
        event = OffsetFetch(next(self.tokens), "g", (TopicPartition(TOPIC, 0),))
        self.groups.ask(self.client, event, answers.append)
        self.driven.turns.settle()
        return answers


def test_who_waits_in_a_shard_that_ends_is_sent_to_look_for_the_coordinator(tmp_path: Path) -> None:
    shards = Shards(tmp_path)
    shards.begin(TERM)
    answers = shards.commit(1)
    assert answers == []
    shards.groups.release_shard(0)
    assert answers == [ErrorCode.NOT_COORDINATOR]
    shards.driven.turns.settle()
    assert answers == [ErrorCode.NOT_COORDINATOR]
    assert shards.driven.written() == {}


def test_a_shard_that_is_not_here_is_asked_nothing(tmp_path: Path) -> None:
    shards = Shards(tmp_path)
    assert shards.fetch() == [ErrorCode.NOT_COORDINATOR]
    assert shards.client.shards == set()
    found: list[Any] = []
    shards.groups.ask_shard(0, TransactionEnded(1, 0, True, 9), found.append)
    assert found == [ErrorCode.NOT_COORDINATOR]
    by_group: list[Any] = []
    shards.groups.ask_groups_by_shard(
        ["g", "h"],
        DescribeGroups,
        lambda names, value: [value for _ in names],
        by_group.append,
    )
    assert by_group == [{"g": ErrorCode.NOT_COORDINATOR, "h": ErrorCode.NOT_COORDINATOR}]
    listed: list[Any] = []
    shards.groups.ask_all_shards(ListGroups, listed.append)
    assert listed == [[]]


def test_shard_has_what_was_committed_after_it_returns(tmp_path: Path) -> None:
    shards = Shards(tmp_path)
    shards.begin(TERM)
    committed = shards.commit(5)
    shards.driven.turns.settle()
    assert isinstance(committed[0], OffsetCommitReply)
    shards.groups.release_shard(0)
    assert 0 not in shards.groups
    shards.begin(TERM + 1)
    assert 0 in shards.groups
    (found,) = shards.fetch()
    assert isinstance(found, OffsetFetchReply)
    assert found.offsets[0].offset == 5
    listed: list[Any] = []
    shards.groups.ask_all_shards(ListGroups, listed.append)
    shards.driven.turns.settle()
    assert isinstance(listed[0][0], ListGroupsReply)


def test_beginning_again_ends_what_was_here(tmp_path: Path) -> None:
    """The earlier owner's writes are refused from then on, and waiting requests are answered with an error."""
    shards = Shards(tmp_path)
    shards.begin(TERM)
    before = next(iter(shards.groups))
    answers = shards.commit(1)
    shards.groups.take_over_shard(0, TERM + 1)
    assert answers == [ErrorCode.NOT_COORDINATOR]
    shards.driven.turns.settle()
    assert shards.driven.journal.appends == []
    assert next(iter(shards.groups)) is not before
    late: list[Any] = []
    before.ask(OffsetFetch(next(shards.tokens), "g", None), late.append)
    assert len(late) == 1
    assert isinstance(late[0], ErrorCode)


def test_news_for_a_shard_that_is_gone_goes_nowhere(tmp_path: Path) -> None:
    """Requests that a connection left there ended with the shard."""
    shards = Shards(tmp_path)
    shards.begin(TERM)
    shards.fetch()
    assert shards.client.shards == {0}
    shards.client.held[3] = 0
    shards.groups.release_shard(0)
    shards.groups.answer_delayed_heartbeats(shards.client)
    assert shards.client.held == {}
    shards.groups.connection_lost(shards.client, noticed=True, ended=False)
    shards.driven.turns.settle()
