"""Markers of a transaction that can't be written are tried again, at one pace however many of them fail."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from kohort.broker.topics import OFFSETS_TOPIC
from kohort.broker.transactions.coordinator import Transactions
from kohort.broker.transactions.log import Status, Transaction
from kohort.errors import ErrorCode
from kohort.ids import TopicPartition

ROUNDS = 12


class FullLog:
    """A partition without room for a marker."""

    def append_marker(self, *_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")


@pytest.mark.parametrize(
    "partitions",
    [
        (TopicPartition("t", 0), TopicPartition(OFFSETS_TOPIC, 3)),
        (TopicPartition(OFFSETS_TOPIC, 3), TopicPartition(OFFSETS_TOPIC, 4)),
    ],
    ids=["data and offsets", "offsets of two groups"],
)
def test_a_round_that_fails_in_several_places_is_followed_by_one(partitions: tuple[TopicPartition, ...]) -> None:
    timers: list[tuple[SimpleNamespace, Callable[..., None], tuple[object, ...]]] = []

    def call_later(_delay_s: float, action: Callable[..., None], *args: object) -> SimpleNamespace:
        handle = SimpleNamespace(cancelled=False)
        handle.cancel = partial(setattr, handle, "cancelled", True)
        timers.append((handle, action, args))
        return handle

    host: Any = SimpleNamespace(
        loop=SimpleNamespace(call_later=call_later),
        store=SimpleNamespace(get=lambda *_: FullLog(), topics={}),
        config=SimpleNamespace(serves_older_values=False),
        groups=SimpleNamespace(
            ask_shard=lambda _index, _event, on_reply: on_reply(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
            is_damaged=lambda _: False,
        ),
        waits=SimpleNamespace(answer_waiting=lambda _: None, on_append_after_step=lambda *_: None),
        next_request_id=lambda: 1,
    )
    transactions = Transactions(host)
    prepared = Transaction("x", 1, 0, 60_000, Status.PREPARE_COMMIT, partitions)
    transactions._known["x"] = prepared
    transactions._begin_markers(prepared)
    for _ in range(ROUNDS):
        due, timers[:] = [timer for timer in timers if not timer[0].cancelled], []
        assert len(due) == 1
        for _, action, args in due:
            action(*args)


def test_late_reply_about_a_marker_counts_for_its_own_transaction_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard that answers slowly is asked twice; the second answer may come when another transaction is ended."""
    replies: list[tuple[int, Callable[[object], None]]] = []
    timers: list[tuple[Callable[..., None], tuple[object, ...]]] = []

    def call_later(_delay_s: float, action: Callable[..., None], *args: object) -> SimpleNamespace:
        timers.append((action, args))
        return SimpleNamespace(cancel=lambda: None)

    host: Any = SimpleNamespace(
        loop=SimpleNamespace(call_later=call_later),
        store=SimpleNamespace(topics={}),
        config=SimpleNamespace(serves_older_values=False),
        groups=SimpleNamespace(
            ask_shard=lambda index, _event, on_reply: replies.append((index, on_reply)), is_damaged=lambda _: False
        ),
        waits=SimpleNamespace(on_append_after_step=lambda *_: None),
        next_request_id=lambda: 1,
    )
    transactions = Transactions(host)
    monkeypatch.setattr(
        Transactions, "_save", lambda self, state: self._known.__setitem__(state.id, state) or self._known[state.id]
    )
    slow, loading = TopicPartition(OFFSETS_TOPIC, 3), TopicPartition(OFFSETS_TOPIC, 4)

    def begin(*partitions: TopicPartition) -> None:
        prepared = Transaction("x", 1, 0, 60_000, Status.PREPARE_COMMIT, partitions)
        transactions._known["x"] = prepared
        transactions._begin_markers(prepared)

    def reply(value: object) -> None:
        replies.pop(0)[1](value)

    begin(slow, loading)
    (late, ((_, refuse))) = replies.pop(0), replies.pop(0)
    refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    ((action, args),) = timers
    action(*args)
    assert [index for index, _ in replies] == [3, 4]
    late[1](None)
    again = replies.pop(0)[1]
    reply(None)
    assert transactions._known["x"].status is Status.COMPLETE_COMMIT
    begin(slow)
    again(None)
    assert transactions._known["x"].status is Status.PREPARE_COMMIT, "the marker of this transaction is not written"
    reply(None)
    assert transactions._known["x"].status is Status.COMPLETE_COMMIT
