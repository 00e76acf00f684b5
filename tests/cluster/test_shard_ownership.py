"""The shards of one coordinator: as the map gives and takes them, and what follows when another has fenced one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kohort.broker.dispatch import api_keys
from kohort.broker.host import GroupHost
from kohort.broker.routes import GROUP_ROUTES
from kohort.cluster import shard_ownership
from kohort.cluster.coordination.placement import Candidate, Placement
from kohort.cluster.settings import advertised_address, coordinator_id, parse_settings
from kohort.cluster.shard_ownership import ShardOwnership
from kohort.errors import ErrorCode, InvalidInputError
from kohort.groups.config import GroupConfig
from kohort.groups.events import OffsetCommit, OffsetToCommit, Topic
from kohort.journal.local import LogJournal
from kohort.journal.protocol import Owner
from kohort.log import OpenOptions, PartitionLog
from tests.broker.storeless import FixedTopics, Map
from tests.log.making import small

SHARDS = 3
ME = Candidate(7, "this-life", "127.0.0.1", 9192)
OTHER = Candidate(8, "another", "127.0.0.1", 9193)
WAIT_S = 20.0


class Said:
    """A door that says what a test writes down.

    Attributes:
        asked: how often it was.
        reached: it answers.
    """

    is_leader = False

    def __init__(self) -> None:
        self.placement: Placement | None = None
        self.asked = 0
        self.reached = asyncio.Event()
        self.reached.set()

    def give(self, *owners: int, me: Candidate = ME) -> None:
        version = 1 if self.placement is None else self.placement.version + 1
        self.placement = Placement(version, ME.id, (me, OTHER), owners)

    def on_changes(self, on_change: Callable[[], None]) -> None: ...
    async def open(self, me: Candidate, shards: int) -> None: ...
    def remove_dead_candidate(self, candidate: Candidate) -> None: ...
    async def hand_over_and_leave(self) -> None: ...
    async def refresh_placement(self) -> None:
        self.asked += 1
        await self.reached.wait()

    def report_loop_alive(self) -> None: ...
    async def close(self) -> None: ...


class Nobody:
    """An owner of a term that is told nothing."""

    def on_append_durable(self, token: int, sent_ms: int) -> None: ...
    def on_journal_lost(self, reason: Exception) -> None: ...
    def on_records_available(self) -> None: ...


class Host(GroupHost):
    """A host whose journals are logs in a folder."""

    def __init__(self, loop: asyncio.AbstractEventLoop, folder: Path) -> None:
        self.logs = [
            PartitionLog.open(folder / f"journal-{index}", small(segment_bytes=1 << 20), OpenOptions())
            for index in range(SHARDS)
        ]
        topics = FixedTopics([Topic("t", UUID(int=7), 4)])
        super().__init__(loop, GroupConfig(), lambda _: topics, Map(), self._journal, api_keys(GROUP_ROUTES))
        self.groups.count = SHARDS
        self.service = Said()
        self.ownership = ShardOwnership(loop, self.groups, self.service, self._no_journal)

    def _journal(self, index: int) -> LogJournal:
        return LogJournal(self.logs[index])

    @staticmethod
    def _no_journal(index: int) -> Iterator[None]:
        raise AssertionError(index)

    def handle_shard_loaded(self, index: int) -> None:
        self.ownership.record_shard_loaded(index)

    def handle_shard_ended(self, index: int, error: Exception) -> None:
        self.ownership.record_ended_shard(index, error)

    def here(self) -> list[int]:
        return sorted(shard.index for shard in self.groups if shard.is_loaded)

    def fence(self, index: int, term: int) -> None:
        """Another process begins a term."""
        for _ in LogJournal(self.logs[index]).begin_term(term, Nobody()):
            pass

    async def commit(self, index: int) -> ErrorCode:
        """Have a shard append something; gives what it says."""
        answer: asyncio.Future[object] = self.loop.create_future()
        event = OffsetCommit(self.next_request_id(), f"g{index}", "", -1, (OffsetToCommit("t", 0, 5, -1, ""),))
        self.groups.ask_shard(index, event, answer.set_result)
        value = await asyncio.wait_for(answer, WAIT_S)
        return value if isinstance(value, ErrorCode) else ErrorCode.NONE


def run(folder: Path, test: Callable[[Host], Awaitable[None]]) -> None:
    async def main() -> None:
        host = Host(asyncio.get_running_loop(), folder)
        try:
            await asyncio.wait_for(test(host), WAIT_S)
        finally:
            host.answer_waiting_requests()
            host.ownership.close()
            host.close()
            for earlier in host.logs:
                earlier.close()

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - of what happens on this very loop
        await asyncio.sleep(0.005)


def test_shards_come_and_go_with_the_map(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        host.service.give(ME.id, OTHER.id, ME.id)
        host.ownership.start_owning(ME)
        await host.ownership.wait_until_shards_serve()
        assert host.here() == [0, 2]
        assert await host.commit(1) is ErrorCode.NOT_COORDINATOR
        host.service.give(OTHER.id, ME.id, ME.id)
        host.ownership.follow_placement()
        await host.ownership.wait_until_shards_serve()
        assert host.here() == [1, 2]
        assert await host.commit(0) is ErrorCode.NOT_COORDINATOR

    run(tmp_path, test)


def no_space(*_: object) -> int:
    """An append that fails."""
    raise OSError("no space left")


async def give_one_away(host: Host) -> None:
    """Two shards are here; then the map gives the first of them to another."""
    host.service.give(ME.id, OTHER.id, ME.id)
    host.ownership.start_owning(ME)
    await host.ownership.wait_until_shards_serve()
    host.service.give(OTHER.id, OTHER.id, ME.id)
    host.ownership.follow_placement()


def test_who_gives_a_shard_away_serves_until_the_next_owner_has_fenced_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(host: Host) -> None:
        await give_one_away(host)
        host.ownership.follow_placement()
        assert await host.commit(0) is ErrorCode.NONE, "nobody else serves it yet"
        host.fence(0, 1_000)
        assert await host.commit(0) is ErrorCode.NOT_COORDINATOR
        await host.ownership.wait_handed_over()
        assert host.ownership.owned.keys() == {2} and host.here() == [2]
        assert "taken over" not in caplog.text and not host.ownership.fences, "that was the plan"

    caplog.set_level("WARNING")
    run(tmp_path, test)


def test_who_gives_a_shard_away_waits_for_no_next_owner_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_ownership, "LEAVING_S", 0.05)

    async def test(host: Host) -> None:
        await give_one_away(host)
        await host.ownership.wait_handed_over()
        assert await host.commit(0) is ErrorCode.NOT_COORDINATOR
        assert host.ownership.owned.keys() == {2} and host.here() == [2]

    run(tmp_path, test)


def test_who_gives_a_shard_away_does_not_take_it_back_when_something_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard that fails is loaded again, under a term that would depose whom the map has given it to."""
    began: list[int] = []

    def begin(self: LogJournal, term: int, owner: Owner) -> Iterator[Any]:
        began.append(term)
        return iter(())

    async def test(host: Host) -> None:
        await give_one_away(host)
        monkeypatch.setattr(LogJournal, "append", no_space)
        monkeypatch.setattr(LogJournal, "begin_term", begin)
        assert await host.commit(0) is ErrorCode.NOT_COORDINATOR
        await host.ownership.wait_handed_over()
        assert host.ownership.owned.keys() == {2} and not began

    run(tmp_path, test)


def test_a_shard_that_has_failed_begins_again_when_the_map_gives_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(host: Host) -> None:
        await give_one_away(host)
        with monkeypatch.context() as patched:
            patched.setattr(LogJournal, "append", no_space)
            assert await host.commit(0) is ErrorCode.NOT_COORDINATOR
        host.service.give(ME.id, OTHER.id, ME.id)
        host.ownership.follow_placement()
        await host.ownership.wait_until_shards_serve()
        assert await host.commit(0) is ErrorCode.NONE

    run(tmp_path, test)


def test_a_shard_that_the_map_gives_back_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_ownership, "LEAVING_S", 0.05)

    async def test(host: Host) -> None:
        await give_one_away(host)
        began_s = host.ownership.owned[0].began_s
        host.service.placement = None
        host.ownership.follow_placement()
        host.service.give(ME.id, OTHER.id, ME.id)
        host.ownership.follow_placement()
        passed = asyncio.Event()
        host.loop.call_later(2 * shard_ownership.LEAVING_S, passed.set)  # behind the end, on the same clock
        await passed.wait()
        assert await host.commit(0) is ErrorCode.NONE
        assert host.ownership.owned[0].began_s == began_s
        host.fence(0, 1_000)
        assert await host.commit(0) is ErrorCode.NOT_COORDINATOR
        await until(lambda: host.ownership.fences == {0: 1})

    run(tmp_path, test)


def test_another_life_under_the_same_id_gives_nothing(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        host.service.give(ME.id, ME.id, ME.id, me=Candidate(ME.id, "next-life", ME.host, ME.port))
        host.ownership.start_owning(ME)
        assert not host.ownership.owned

    run(tmp_path, test)


def test_a_coordination_service_that_says_nothing_any_more_takes_nothing(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        host.service.give(ME.id, ME.id, ME.id)
        host.ownership.start_owning(ME)
        await host.ownership.wait_until_shards_serve()
        host.service.placement = None
        host.ownership.follow_placement()
        assert host.here() == [0, 1, 2]

    run(tmp_path, test)


def test_who_was_fenced_tries_again_later_each_time_and_only_what_the_map_gives(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_ownership, "PAUSE_S", 0.01)

    async def test(host: Host) -> None:
        host.service.give(ME.id, OTHER.id, ME.id)
        host.ownership.start_owning(ME)
        await host.ownership.wait_until_shards_serve()
        host.fence(0, 5)  # the shards here are in the terms 1 and 2; the next ones are 3, 4, 5, 6
        assert await host.commit(0) is ErrorCode.NOT_COORDINATOR
        await until(lambda: host.here() == [0, 2])
        assert await host.commit(0) is ErrorCode.NONE
        begins_again = r"shard 0: fenced by another coordinator; loading it again in ([0-9.]+) s"
        pauses = [float(seconds) for seconds in re.findall(begins_again, caplog.text)]
        assert pauses == [0.01, 0.02, 0.04]
        assert host.ownership.fences == {0: 3}

    caplog.set_level("WARNING")
    run(tmp_path, test)


def test_who_was_fenced_begins_nothing_that_the_map_has_taken_meanwhile(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        host.service.give(ME.id, OTHER.id, ME.id)
        host.ownership.start_owning(ME)
        await host.ownership.wait_until_shards_serve()
        host.fence(2, 1_000)
        assert await host.commit(2) is ErrorCode.NOT_COORDINATOR
        await until(lambda: host.ownership.fences == {2: 1})
        host.service.give(ME.id, OTHER.id, OTHER.id)
        host.ownership.follow_placement()
        passed = asyncio.Event()
        host.loop.call_later(2 * shard_ownership.PAUSE_S, passed.set)  # behind the pause, on the same clock
        await passed.wait()
        assert 2 not in host.groups

    run(tmp_path, test)


@pytest.mark.parametrize("owner", [ME.id, OTHER.id])
def test_who_was_fenced_goes_by_no_map_from_before(tmp_path: Path, owner: int) -> None:
    """One that is cut off from the door would take its shard back from whom the door has given it, again and again."""

    async def test(host: Host) -> None:
        service = host.service
        service.give(ME.id, OTHER.id, ME.id)
        host.ownership.start_owning(ME)
        await host.ownership.wait_until_shards_serve()
        service.reached.clear()
        host.fence(2, 1_000)
        assert await host.commit(2) is ErrorCode.NOT_COORDINATOR
        await until(lambda: host.ownership.owned[2].again is None or service.asked > 0)
        assert host.here() == [0] and service.asked == 1, "it began a term by the map that it was fenced with"
        began_s = host.ownership.owned[2].began_s
        service.give(ME.id, OTHER.id, owner)
        service.reached.set()
        if owner == ME.id:
            await until(lambda: host.ownership.owned[2].began_s > began_s)
        else:
            await until(lambda: 2 not in host.groups)
            assert 2 not in host.ownership.owned, "nobody said that the map has changed: it looks itself"

    run(tmp_path, test)


@pytest.mark.parametrize(("chosen", "brokers"), [(None, {1, 2}), (1200, {1}), (32_767, set())])
def test_ids_are_no_brokers(chosen: int | None, brokers: set[int]) -> None:
    found = coordinator_id(chosen, "10.0.0.5:9192", brokers)
    assert found not in brokers and 0 <= found <= 32_767
    assert coordinator_id(chosen, "10.0.0.5:9192", brokers) == found


def test_an_id_that_is_made_up_leaves_brokers_theirs() -> None:
    first = coordinator_id(None, "10.0.0.5:9192", ())
    assert coordinator_id(None, "10.0.0.5:9192", {first}) == first + 1


@pytest.mark.parametrize(("chosen", "said"), [(3, "is one of Kafka's brokers"), (40_000, "from 0 to 32767")])
def test_an_id_that_can_not_be_is_refused(chosen: int, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        coordinator_id(chosen, "10.0.0.5:9192", {3})


def test_who_listens_everywhere_must_say_where() -> None:
    config = parse_settings({}).socket
    with pytest.raises(InvalidInputError, match=r"advertised\.host\.name"):
        advertised_address(config, "0.0.0.0", 9192)
    named = parse_settings({"advertised.host.name": "kohort-1", "advertised.port": "80"})
    assert advertised_address(named.socket, "0.0.0.0", 9192) == ("kohort-1", 80)
    assert named.groups.group_import == "auto"


def test_what_a_broker_has_and_a_coordinator_has_not_is_unknown() -> None:
    with pytest.raises(InvalidInputError, match=r"unknown setting num\.partitions"):
        parse_settings({"num.partitions": "3"})
