"""A group shard over a journal that can be made to fail: what it tells those who wait, and what it knows afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from kohort.broker.metrics import Metrics
from kohort.broker.shard import GroupShard
from kohort.errors import CorruptDataError, ErrorCode, FencedError
from kohort.groups.config import GroupConfig
from kohort.groups.events import Event, OffsetCommit, OffsetFetch, OffsetToCommit, TopicImage
from kohort.groups.outcome import OffsetCommitReply, OffsetFetchReply
from kohort.ids import TopicPartition


class MemoryJournal:
    """Keeps records in a list; `failure` is raised by the next appends, before anything is kept."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.term = 0
        self.failure: Exception | None = None
        self.damage: Exception | None = None

    def begin(self, term: int) -> None:
        self.term = term

    def append(self, term: int, records: Sequence[Any], now_ms: int) -> int:
        if self.failure is not None:
            raise self.failure
        self.batches.append(list(records))
        return len(self.batches)

    def replay(self) -> Iterator[Sequence[Any]]:
        if self.damage is not None:
            raise self.damage
        return iter(list(self.batches))

    def barrier(self, term: int) -> int:
        return len(self.batches)

    def compact(self, now_ms: int) -> int:
        return 0


class Host:
    """What a shard needs, and nothing else."""

    def __init__(self) -> None:
        self.metrics = Metrics()

    def topic_image(self) -> TopicImage:
        return TopicImage()

    def shard_loaded(self, index: int) -> None:
        pass

    def note(self, note: Any) -> None:
        pass

    def push(self, push: Any) -> None:
        raise AssertionError("nothing is pushed here")

    def run_work(self, work: Any, done: Callable[[Event], None]) -> None:
        raise AssertionError("no work is expected here")


def commit(token: int, offset: int) -> OffsetCommit:
    return OffsetCommit(token, "g", "", -1, (OffsetToCommit("t", 0, offset),))


def fetch(token: int) -> OffsetFetch:
    return OffsetFetch(token, "g", (TopicPartition("t", 0),))


class Running:
    """A loaded shard on a running loop."""

    def __init__(self) -> None:
        self.journal = MemoryJournal()
        self.shard = GroupShard(0, asyncio.get_running_loop(), self.journal, 1, GroupConfig(), Host())
        self._tokens = iter(range(1, 1000))
        self.shard.load()

    async def ask(self, make: Callable[..., Any], *values: int) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.shard.ask(make(next(self._tokens), *values), future.set_result)
        return await asyncio.wait_for(future, 10)

    async def offset(self) -> int:
        reply = await self.ask(fetch)
        assert isinstance(reply, OffsetFetchReply)
        return reply.offsets[0].offset

    async def loaded(self) -> None:
        while True:
            if await self.ask(fetch) is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return
            await asyncio.sleep(0.01)


def run(trial: Callable[[Running], Any]) -> None:
    async def main() -> None:
        running = Running()
        try:
            await trial(running)
        finally:
            running.shard.close()

    asyncio.run(main())


def test_a_failed_append_is_told_and_leaves_no_trace() -> None:
    async def trial(running: Running) -> None:
        assert await running.ask(commit, 1) == OffsetCommitReply((ErrorCode.NONE,))
        running.journal.failure = OSError(28, "No space left on device")
        assert await running.ask(commit, 2) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await running.ask(fetch) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        running.journal.failure = None
        await running.loaded()
        assert await running.offset() == 1
        assert await running.ask(commit, 3) == OffsetCommitReply((ErrorCode.NONE,))
        assert await running.offset() == 3

    run(trial)


def test_everyone_in_the_failed_step_is_told_also_readers_of_what_was_not_durable() -> None:
    async def trial(running: Running) -> None:
        running.journal.failure = OSError(5, "Input/output error")
        answers = await asyncio.gather(running.ask(commit, 7), running.ask(fetch), running.ask(commit, 8))
        assert answers == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 3

    run(trial)


def test_a_deposed_coordinator_says_so() -> None:
    async def trial(running: Running) -> None:
        running.journal.failure = FencedError("a later term", ErrorCode.FENCED_LEADER_EPOCH)
        assert await running.ask(commit, 1) is ErrorCode.NOT_COORDINATOR
        assert not running.shard.loaded

    run(trial)


def test_a_damaged_journal_stops_its_shard(caplog: pytest.LogCaptureFixture) -> None:
    async def trial(running: Running) -> None:
        running.journal.damage = CorruptDataError("a record of no known kind")
        running.shard.load()
        assert await running.ask(fetch) is ErrorCode.COORDINATOR_NOT_AVAILABLE

    run(trial)
    assert "a record of no known kind" in caplog.text


def test_one_append_holds_a_whole_turn_of_the_loop() -> None:
    async def trial(running: Running) -> None:
        before = len(running.journal.batches)
        await asyncio.gather(*[running.ask(commit, offset) for offset in range(50)])
        assert len(running.journal.batches) == before + 1
        assert await running.offset() == 49

    run(trial)


@pytest.mark.parametrize("kind", [commit, fetch])
def test_a_closed_shard_sends_its_clients_on(kind: Callable[..., Any]) -> None:
    async def trial(running: Running) -> None:
        values = (1,) if kind is commit else ()
        asked = asyncio.ensure_future(running.ask(kind, *values))
        await asyncio.sleep(0)
        running.shard.close()
        assert await asked is ErrorCode.NOT_COORDINATOR

    run(trial)
