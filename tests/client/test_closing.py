"""The duration of a close: its timeout bounds all of it, in virtual time. All four facades follow one rule."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from kohort import AsyncConsumer, AsyncProducer, Consumer, Producer, TopicPartition
from kohort.client.consumer.core import ConsumerCore
from kohort.client.consumer.subscription import FetchPosition
from kohort.client.offsets import RebalanceListener
from kohort.client.producer.core import ProducerCore, producer_config
from kohort.client.producer.transactions import TxnState
from kohort.errors import CommitFailedError, ErrorCode
from kohort.wire.groups import LeaveGroupResponse
from kohort.wire.offsets import OffsetFetchRequest, OffsetFetchResponse
from kohort.wire.transactions import AddPartitionsToTxnResponse, InitProducerIdResponse
from tests.client.test_membership import Coordinator
from tests.client.virtual import DROP, PARK, VirtualCluster
from tests.client.written_log import carry_out

A0 = TopicPartition("a", 0)
FACES = (Consumer, AsyncConsumer, Producer, AsyncProducer)


def nothing_committed(message: OffsetFetchRequest, version: int) -> OffsetFetchResponse:
    """The answer of a coordinator that has no offset of what it is asked for."""
    group = OffsetFetchResponse.OffsetFetchResponseGroup
    kind = group.OffsetFetchResponseTopics
    topics = [
        kind(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[
                kind.OffsetFetchResponsePartitions(partition_index=number, committed_offset=-1)
                for number in topic.partition_indexes
            ],
        )
        for topic in message.groups[0].topics or ()
    ]
    return OffsetFetchResponse(groups=[group(group_id=message.groups[0].group_id, topics=topics)])


class Member:
    """A consumer in a group of its own, with a position to commit; brokers answer what a test lets them."""

    def __init__(self, silent: tuple[str, ...], listener: RebalanceListener | None = None, **settings: Any) -> None:
        self.trial = Coordinator(**settings)
        self.world = self.trial.world
        self.let_answer({"Fetch": PARK, "ListOffsets": PARK})
        self.world.handlers["OffsetFetch"] = nothing_committed
        self.core = ConsumerCore(self.world.cluster, self.world.config)
        self.core.subscribe(["a"], listener=listener)
        carry_out(self.world, self.core.poll(None, 5_000))
        self.core.seek(A0, FetchPosition(5))
        self.let_answer(dict.fromkeys(silent, PARK))

    def let_answer(self, answers: dict[str, Any]) -> None:
        for name, answer in answers.items():
            self.world.handlers[name] = lambda message, version, answer=answer: answer

    def close(self, timeout_ms: float | None) -> float:
        """Close; the milliseconds that it took."""
        began_ms = self.world.runtime.now_ms
        carry_out(self.world, self.core.close(timeout_ms))
        return self.world.runtime.now_ms - began_ms


SILENT = [("LeaveGroup",), ("OffsetCommit",), ("OffsetCommit", "LeaveGroup"), ("OffsetCommit", "LeaveGroup", "Fetch")]


@pytest.mark.parametrize("silent", SILENT, ids=" ".join)
@pytest.mark.parametrize("timeout_ms", [0, 300, 2_000])
def test_a_consumers_close_takes_no_longer_than_it_may(silent: tuple[str, ...], timeout_ms: float) -> None:
    member = Member(silent)
    assert member.close(timeout_ms) <= max(timeout_ms, 1), "a commit is given a millisecond at least"
    if timeout_ms:
        assert member.world.sent("OffsetCommit"), "what was read is committed first"
        assert member.world.sent("LeaveGroup"), "a commit that is not answered leaves time to leave"


def test_a_close_without_a_limit_of_its_own_ends_all_the_same() -> None:
    member = Member(("OffsetCommit", "LeaveGroup"))
    assert 0 < member.close(None) <= 10_000


def test_a_lost_coordinator_is_not_looked_for_beyond_the_time_of_a_close() -> None:
    member = Member(("LeaveGroup", "FindCoordinator"))
    member.world.cut()
    member.world.refuse = {9092}
    assert member.close(1_000) <= 1_000


def test_what_a_listener_takes_is_not_taken_from_the_leave() -> None:
    class Slow(RebalanceListener):
        def on_partitions_revoked(self, partitions: Any) -> None:
            member.world.run(member.world.runtime.now_ms + 60_000)

    member = Member((), Slow())
    member.world.handlers["LeaveGroup"] = lambda message, version: LeaveGroupResponse()
    assert 60_000 <= member.close(1_000) <= 61_000
    assert member.world.sent("LeaveGroup")


@pytest.mark.parametrize("timeout_ms", [0, 300, 2_000])
def test_a_producers_close_takes_no_longer_than_it_may(timeout_ms: float) -> None:
    """Records that no one takes, and a transaction whose end no one answers."""
    world = VirtualCluster(topics={"a": 1})
    config = producer_config("127.0.0.1:9092", {"transactional_id": "t"})
    given = InitProducerIdResponse(producer_id=7, producer_epoch=0)
    world.handlers["InitProducerId"] = lambda message, version: given
    added = AddPartitionsToTxnResponse(error_code=0, results_by_transaction=[], results_by_topic_v3_and_below=[])
    world.handlers["AddPartitionsToTxn"] = lambda message, version: added
    for name in ("Produce", "EndTxn"):
        world.handlers[name] = lambda message, version: PARK
    core = ProducerCore(world.cluster, config, lambda step: step(), clock_ms=lambda: world.runtime.now_ms)
    world.call(core.init_transactions())
    world.call(core.begin_transaction())
    world.call(core.partitions_for("a"))
    core.send("a", b"1", None, 0, None, (), None)
    world.run(world.runtime.now_ms + 100)
    assert world.sent("Produce") and core.transactions is not None and core.transactions.state is TxnState.OPEN
    began_ms = world.runtime.now_ms
    world.call(core.close(timeout_ms))
    assert world.runtime.now_ms - began_ms <= timeout_ms
    assert not timeout_ms or world.sent("EndTxn"), "what is on its way leaves time to abort"


def test_every_close_takes_the_same() -> None:
    """A number of milliseconds by name, or None, which is the default."""
    for face in FACES:
        parameter = inspect.signature(face.close).parameters["timeout_ms"]
        said = (str(parameter.annotation), parameter.default, parameter.kind)
        assert said == ("float | None", None, parameter.KEYWORD_ONLY), face


@pytest.mark.parametrize("timeout_ms", [None, 0, 1_000.0])
def test_every_face_closes_without_a_broker(timeout_ms: float | None) -> None:
    for face in (Consumer, Producer):
        face("127.0.0.1:1").close(timeout_ms=timeout_ms)

    async def in_asyncio() -> None:
        for face in (AsyncConsumer, AsyncProducer):
            await face("127.0.0.1:1").close(timeout_ms=timeout_ms)

    asyncio.run(in_asyncio())


def test_commit_that_waits_is_not_sent_after_the_partitions_were_lost() -> None:
    """The member has them again when the commits before have an answer, but another may have committed further."""
    member = Member(())
    member.world.handlers["OffsetCommit"] = lambda *_: DROP
    member.core.commit_async({A0: 5}, None)
    errors: list[Any] = []
    member.core.commit_async({A0: 6}, lambda _, error: errors.append(error))
    member.world.run(member.world.runtime.now_ms + 100)
    membership = member.core.membership
    assert membership is not None
    lost_at = membership.rebalances
    membership._fence(ErrorCode.UNKNOWN_MEMBER_ID)
    while membership.rebalances == lost_at or not membership.holds_assignment:
        carry_out(member.world, member.core.poll(None, member.world.runtime.now_ms + 500))
    member.world.handlers["OffsetCommit"] = lambda *_: PARK
    member.world.run(member.world.runtime.now_ms + 60_000)
    assert len(errors) == 1 and isinstance(errors[0], CommitFailedError)
    assert "given up" in str(errors[0])
