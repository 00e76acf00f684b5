"""The wall clock is set forward and back while a broker runs: transactions end by the time that passes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kohort.broker.transactions import coordinator
from kohort.broker.transactions.coordinator import Transactions
from kohort.broker.transactions.log import Status
from kohort.errors import ErrorCode
from kohort.ids import TopicPartition
from kohort.io.age_clock import AgeClock
from kohort.log import LogStore

HOUR_MS = 3_600_000
TIMEOUT_MS = 60_000
EXPIRATION_MS = 24 * HOUR_MS
PARTITION = TopicPartition("t", 0)


class Clocks:
    """The clocks of the machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall_ms, self.mono_ms = 1_700_000_000_000, 5_000_000
        monkeypatch.setattr(coordinator, "_wall_ms", lambda: self.wall_ms)
        monkeypatch.setattr(coordinator, "_mono_ms", lambda: self.mono_ms)

    def pass_time(self, ms: int) -> None:
        self.wall_ms += ms
        self.mono_ms += ms


class Coordinating:
    """A transaction coordinator of a data folder, as one process has it."""

    def __init__(self, store: LogStore, clocks: Clocks) -> None:
        self.timers: dict[str, Callable[[], None]] = {}
        ages = AgeClock(clocks.wall_ms, clocks.mono_ms)

        def call_later(_delay_s: float, action: Callable[[], None], *_: object) -> SimpleNamespace:
            self.timers[action.__name__] = action
            return SimpleNamespace(cancel=lambda: None)

        host: Any = SimpleNamespace(
            loop=SimpleNamespace(call_later=call_later),
            store=store,
            config=SimpleNamespace(
                serves_older_values=False,
                transaction_timeout_max_ms=TIMEOUT_MS,
                transaction_segment_bytes=1 << 20,
                transaction_partitions=1,
                transaction_abort_interval_ms=10_000,
                transactional_id_check_ms=HOUR_MS,
                transactional_id_expiration_ms=EXPIRATION_MS,
            ),
            topics=SimpleNamespace(create=store.create_topic),
            groups=SimpleNamespace(is_damaged=lambda _: False),
            waits=SimpleNamespace(answer_waiting=lambda _: None, on_append_after_step=lambda *_: None),
            fresh_producer_id=lambda: 7,
            age_ms=lambda: ages.now_ms(clocks.wall_ms, clocks.mono_ms),
        )
        self.transactions = Transactions(host)
        self.transactions.start()

    def begin(self) -> None:
        answers: list[tuple[ErrorCode, int, int]] = []
        self.transactions.assign_producer_id("x", TIMEOUT_MS, (-1, -1), lambda *answer: answers.append(answer))
        ((error, producer_id, epoch),) = answers
        assert error is ErrorCode.NONE
        assert self.transactions.add_partitions("x", (producer_id, epoch), [PARTITION]) is ErrorCode.NONE

    def status(self) -> Status | None:
        """Return the transaction's status after a check of timeouts and expirations."""
        self.timers["_check_timeouts"]()
        self.timers["_expire"]()
        known = self.transactions.get("x")
        return None if known is None else known.status


@pytest.mark.parametrize("step_ms", [-HOUR_MS, HOUR_MS, 10_000 * HOUR_MS], ids=["back", "forward", "by a year"])
@pytest.mark.parametrize("restarted", [False, True], ids=["same process", "restarted before"])
def test_transaction_ends_at_its_timeout_when_the_clock_steps(
    restarted: bool, step_ms: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = Clocks(monkeypatch)
    with LogStore(tmp_path) as store:
        store.create_topic("t", 1)
        broker = Coordinating(store, clocks)
        broker.begin()
        clocks.pass_time(20_000)
        if restarted:
            broker = Coordinating(store, clocks)
        clocks.wall_ms += step_ms
        assert broker.status() is Status.ONGOING
        clocks.pass_time(TIMEOUT_MS - 20_000)
        assert broker.status() is Status.ONGOING
        clocks.pass_time(1)
        assert broker.status() is Status.COMPLETE_ABORT


def test_transactional_id_is_not_forgotten_when_the_clock_is_set_forward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = Clocks(monkeypatch)
    with LogStore(tmp_path) as store:
        store.create_topic("t", 1)
        broker = Coordinating(store, clocks)
        broker.begin()
        clocks.pass_time(TIMEOUT_MS + 1)
        assert broker.status() is Status.COMPLETE_ABORT
        clocks.wall_ms += 10 * EXPIRATION_MS
        assert broker.status() is Status.COMPLETE_ABORT
        clocks.wall_ms -= 10 * EXPIRATION_MS
        clocks.pass_time(EXPIRATION_MS - 1)
        assert broker.status() is Status.COMPLETE_ABORT
        clocks.pass_time(2)
        assert broker.status() is None
