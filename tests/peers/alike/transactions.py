"""Answers to transactional producers: InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit, EndTxn."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any

from kohort.wire.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
)
from tests.peers.alike.classic import stable
from tests.peers.alike.consumer import MEMBERS, settle, topic_of
from tests.peers.alike.harness import Side, scenario
from tests.peers.alike.making import fetch

INIT_VERSIONS = range(6)
CONCURRENT = 51


def init(name: str | None, producer: int = -1, epoch: int = -1, timeout_ms: int = 60_000) -> InitProducerIdRequest:
    return InitProducerIdRequest(
        transactional_id=name, transaction_timeout_ms=timeout_ms, producer_id=producer, producer_epoch=epoch
    )


def add_partitions(name: str, producer: int, epoch: int, topics: dict[str, list[int]]) -> AddPartitionsToTxnRequest:
    make = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    asked = [make(name=topic, partitions=parts) for topic, parts in topics.items()]
    transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
        transactional_id=name, producer_id=producer, producer_epoch=epoch, topics=asked
    )
    return AddPartitionsToTxnRequest(
        transactions=[transaction],
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=[make(name=topic, partitions=parts) for topic, parts in topics.items()],
    )


def add_offsets(name: str, producer: int, epoch: int, group: str) -> AddOffsetsToTxnRequest:
    return AddOffsetsToTxnRequest(transactional_id=name, producer_id=producer, producer_epoch=epoch, group_id=group)


def end(name: str, producer: int, epoch: int, *, committed: bool = True) -> EndTxnRequest:
    return EndTxnRequest(transactional_id=name, producer_id=producer, producer_epoch=epoch, committed=committed)


def txn_commit(
    name: str, producer: tuple[int, int], group: str, parts: list[tuple[Any, ...]], **fields: Any
) -> TxnOffsetCommitRequest:
    make, part = (
        TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic,
        TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition,
    )
    topics: dict[str, list[Any]] = {}
    for topic, index, offset, *rest in parts:
        made = part(partition_index=index, committed_offset=offset, committed_metadata=rest[0] if rest else "")
        topics.setdefault(topic, []).append(made)
    return TxnOffsetCommitRequest(
        transactional_id=name,
        producer_id=producer[0],
        producer_epoch=producer[1],
        group_id=group,
        topics=[make(name=topic, partitions=found) for topic, found in topics.items()],
        **fields,
    )


def by_id(side: Side, request: TxnOffsetCommitRequest, version: int) -> TxnOffsetCommitRequest:
    """The request with its topics' ids, which name them from version 6 on."""
    for topic in request.topics if version >= 6 else ():
        topic.topic_id = side.id_of(topic.name)
    return request


def begun(side: Side, name: str, version: int = 4) -> tuple[int, int]:
    """A producer id and epoch for a transactional id."""
    answer = side.until(lambda: init(name), version, lambda answer: answer.error_code != CONCURRENT, "init")
    side.call(answer.producer_id, f"producer of {name}")
    return answer.producer_id, answer.producer_epoch


def described(side: Side, name: str) -> None:
    """Return the coordinator's description of a transactional id, once no transaction is ending."""

    def keep(answer: Any) -> Any:
        return not answer.transaction_states[0].transaction_state.startswith("Prepare")

    answer = side.until(lambda: DescribeTransactionsRequest(transactional_ids=[name]), 0, keep, "describe")
    in_order(answer)


def in_order(answer: Any) -> None:
    """Without start times; topics and partitions in an order of their own."""
    answer.transaction_states.sort(key=lambda state: state.transactional_id)
    for state in answer.transaction_states:
        state.transaction_start_time_ms = min(state.transaction_start_time_ms, 0)
        state.topics.sort(key=lambda topic: topic.topic)
        for topic in state.topics:
            topic.partitions.sort()


def ended(side: Side, name: str, producer: tuple[int, int], version: int, *, committed: bool = True) -> Any:
    """End a transaction, as often as its coordinator is busy."""
    return side.until(
        lambda: end(name, *producer, committed=committed),
        version,
        lambda answer: answer.error_code != CONCURRENT,
        "end",
    )


@scenario(*INIT_VERSIONS)
def producer_ids(side: Side, version: int) -> None:
    name = side.name("tx")
    first = side.ask(init(None), version)
    side.call(first.producer_id, "idempotent")
    side.call(side.ask(init(None, first.producer_id, 0), version).producer_id, "idempotent again")
    side.call(side.ask(init(None, timeout_ms=-1), version).producer_id, "third")
    side.ask(init(""), version)
    for request in (
        init(name, timeout_ms=0),
        init(name, timeout_ms=-1),
        init(name, timeout_ms=2**31 - 1),
        init(name, timeout_ms=900_001),
        init(name, 5, -1),
        init(name, -1, 5),
        init(name, 2**40, 5),
    ):
        side.call(side.ask(request, version).producer_id, "made")
    side.ask(DescribeTransactionsRequest(transactional_ids=[name, "", side.name("none")]), 0, keep=in_order)


@scenario(*INIT_VERSIONS)
def producer_epochs(side: Side, version: int) -> None:
    name = side.name("tx")
    producer, epoch = begun(side, name, version)
    for request in (
        init(name),
        init(name, producer, epoch + 1),
        init(name, producer, epoch),
        init(name, producer, epoch + 7),
        init(name, producer, 0),
        init(name, producer + 1000, 0),
        init(name),
    ):
        side.call(side.ask(request, version).producer_id, f"producer of {name}")
    described(side, name)


@scenario(*INIT_VERSIONS)
def init_ends_what_was_open(side: Side, version: int) -> None:
    name, topic = side.name("tx"), side.topic()
    producer = begun(side, name, version)
    side.until(lambda: add_partitions(name, *producer, {topic: [0]}), 3, added, "add")
    described(side, name)
    again = begun(side, name, version)
    described(side, name)
    side.ask(add_partitions(name, *producer, {topic: [0]}), 3)
    side.ask(end(name, *producer), 4)
    side.ask(add_partitions(name, *again, {topic: [0]}), 3)


def added(answer: Any) -> bool:
    return all(
        part.partition_error_code != CONCURRENT
        for topic in answer.results_by_topic_v3_and_below
        for part in topic.results_by_partition
    )


@scenario(0, 1, 2, 3, 4, 5)
def partitions(side: Side, version: int) -> None:
    name, topic = side.name("tx"), side.topic()
    producer, epoch = begun(side, name)
    for request in (
        add_partitions("", producer, epoch, {topic: [0]}),
        add_partitions(side.name("none"), producer, epoch, {topic: [0]}),
        add_partitions(name, producer + 1, epoch, {topic: [0]}),
        add_partitions(name, producer, epoch + 1, {topic: [0]}),
        add_partitions(name, producer, epoch - 1, {topic: [0]}),
        add_partitions(name, producer, epoch, {topic: [0, 7], side.name("missing"): [0]}),
        add_partitions(name, producer, epoch, {topic: [0]}),
        add_partitions(name, producer, epoch, {topic: [0, 1]}),
        add_partitions(name, producer, epoch, {"__consumer_offsets": [0]}),
    ):
        side.ask(request, version, keep=sorted_results)
        described(side, name)
    if version >= 4:
        request = add_partitions(name, producer, epoch, {topic: [0, 1, 7]})
        request.transactions[0].verify_only = True
        side.ask(request, version, keep=sorted_results)


def sorted_results(answer: Any) -> None:
    """By topic and partition: they come in no order."""
    for topics in [
        answer.results_by_topic_v3_and_below,
        *(transaction.topic_results for transaction in answer.results_by_transaction),
    ]:
        topics.sort(key=lambda topic: topic.name)
        for topic in topics:
            topic.results_by_partition.sort(key=lambda part: part.partition_index)


@scenario(3)
def adding_nothing(side: Side, version: int) -> None:
    name, topic = side.name("tx"), side.topic()
    producer = begun(side, name)
    side.ask(add_partitions(name, *producer, {}), version)
    side.ask(add_partitions(name, *producer, {topic: []}), version)
    with side.on_purpose("Adding nothing begins no transaction"):
        described(side, name)


@scenario(AddOffsetsToTxnRequest)
def offsets(side: Side, version: int) -> None:
    name, group, topic = side.name("tx"), side.name("group"), side.topic()
    producer, epoch = begun(side, name)
    for request in (
        add_offsets("", producer, epoch, group),
        add_offsets(name, producer, epoch, ""),
        add_offsets(side.name("none"), producer, epoch, group),
        add_offsets(name, producer + 1, epoch, group),
        add_offsets(name, producer, epoch + 1, group),
        add_offsets(name, producer, epoch - 1, group),
        add_offsets(name, producer, epoch, group),
        add_offsets(name, producer, epoch, group),
    ):
        side.ask(request, version)
    side.ask(txn_commit(name, (producer, epoch), group, [(topic, 0, 5)]), min(version, 3))
    side.ask(fetch(side, group, {topic: [0]}, 7, require_stable=True), 7)
    side.ask(fetch(side, group, {topic: [0]}, 7), 7)
    ended(side, name, (producer, epoch), 4)
    side.until(
        lambda: fetch(side, group, {topic: [0]}, 7, require_stable=True),
        7,
        lambda answer: not answer.topics[0].partitions[0].error_code,
    )


@scenario(TxnOffsetCommitRequest)
def transactional_commits(side: Side, version: int) -> None:
    name, group, topic = side.name("tx"), side.name("group"), side.topic()
    producer, epoch = begun(side, name)
    me, generation = stable(side, group)
    if version < 5:
        side.ask(txn_commit(name, (producer, epoch), group, [(topic, 0, 5)]), version)  # not in the transaction yet
        side.ask(add_offsets(name, producer, epoch, group), 3)
    parts = [(topic, 0, 5)]
    member = {"member_id": me, "generation_id_or_member_epoch": generation}
    for request in (
        txn_commit(name, (producer, epoch), "", parts),
        txn_commit(name, (producer, epoch), group, []),
        txn_commit(name, (producer, epoch), group, parts),
        txn_commit(name, (producer, epoch), group, parts, **member),
        txn_commit(
            name, (producer, epoch), group, parts, **{**member, "generation_id_or_member_epoch": generation + 1}
        ),
        txn_commit(name, (producer, epoch), group, parts, **{**member, "member_id": "nobody"}),
        txn_commit(name, (producer, epoch), group, parts, **{**member, "member_id": ""}),
        txn_commit(name, (producer, epoch), group, parts, **{**member, "generation_id_or_member_epoch": -1}),
        txn_commit(name, (producer, epoch), group, parts, **member, group_instance_id="static"),
        txn_commit(name, (producer, epoch), group, [(topic, 7, 5), (topic, 1, 6)], **member),
        txn_commit(name, (producer, epoch), group, [(topic, 0, 5, "x" * 4097), (topic, 1, 7, "x" * 4096)], **member),
        txn_commit(name, (producer, epoch), group, [(topic, 0, 5, None)], **member),
    ):
        side.ask(by_id(side, request, version), version, keep=by_partition)
    ended(side, name, (producer, epoch), 4)
    side.until(
        lambda: fetch(side, group, {topic: [0, 1]}, 7, require_stable=True),
        7,
        lambda answer: not any(part.error_code for part in answer.topics[0].partitions),
    )


def by_partition(answer: Any) -> None:
    for topic in answer.topics:
        topic.partitions.sort(key=lambda part: part.partition_index)


@scenario(TxnOffsetCommitRequest)
def commits_of_fenced_producers(side: Side, version: int) -> None:
    name, group, topic = side.name("tx"), side.name("group"), side.topic()
    producer, epoch = begun(side, name)
    side.ask(add_offsets(name, producer, epoch, group), 3)
    again, later = begun(side, name)
    side.ask(add_offsets(name, again, later, group), 3)
    parts = [(topic, 0, 5)]
    side.ask(by_id(side, txn_commit(name, (producer, epoch), group, parts), version), version)
    side.ask(by_id(side, txn_commit(name, (again, later + 1), group, parts), version), version)
    side.ask(by_id(side, txn_commit(name, (again + 1, later), group, parts), version), version)
    side.ask(by_id(side, txn_commit(side.name("none"), (again, later), group, parts), version), version)
    side.ask(by_id(side, txn_commit("", (again, later), group, parts), version), version)
    side.ask(by_id(side, txn_commit(name, (again, later), group, parts), version), version)


@scenario(*range(3, 7))
def transactional_commits_of_consumer_members(side: Side, version: int) -> None:
    name, group, topic = side.name("tx"), side.name("group"), topic_of(side)
    producer = begun(side, name)
    side.ask(add_offsets(name, *producer, group), 3)
    parts = [(topic, 0, 5)]

    def ask(member: str, epoch: int, instance: str | None = None, group: str = group) -> None:
        who = {"member_id": member, "generation_id_or_member_epoch": epoch, "group_instance_id": instance}
        request = txn_commit(name, producer, group, parts, **who)
        side.ask(by_id(side, request, version), version)

    ask("nobody", 1)  # there is no group yet
    answer = settle(side, group, MEMBERS["a"], 1, topic)
    member, epoch = answer.member_id, answer.member_epoch
    ask(member, epoch)
    ask(member, epoch + 1)
    ask(member, -1)
    ask("nobody", epoch)
    ask("", -1)
    ask("", epoch)
    ended(side, name, producer, 4)
    side.until(
        lambda: fetch(side, group, {topic: [0]}, 7, require_stable=True),
        7,
        lambda answer: not answer.topics[0].partitions[0].error_code,
    )


@scenario(6)
def transactional_commits_by_unknown_id(side: Side, version: int) -> None:
    name, group, topic = side.name("tx"), side.name("group"), side.topic()
    producer = begun(side, name)
    request = by_id(side, txn_commit(name, producer, group, [(topic, 0, 5), (topic, 9, 5)]), version)
    make = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    part = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=""
    )
    request.topics += [make(topic_id=uuid.UUID(int=number), partitions=[part]) for number in (9, 0)]
    side.ask(request, version, keep=in_order_of_errors)
    only_unknown = txn_commit(name, producer, group, [])
    only_unknown.topics = [make(topic_id=uuid.UUID(int=9), partitions=[part])]
    side.ask(only_unknown, version)


def in_order_of_errors(answer: Any) -> None:
    for topic in answer.topics:
        topic.partitions.sort(key=lambda part: part.partition_index)
    answer.topics.sort(key=lambda topic: (len(topic.partitions), topic.topic_id.int))


@scenario(EndTxnRequest)
def ends(side: Side, version: int) -> None:
    name, topic = side.name("tx"), side.topic()
    producer, epoch = begun(side, name)
    for request in (
        end("", producer, epoch),
        end(side.name("none"), producer, epoch),
        end(name, producer + 1, epoch),
        end(name, producer, epoch + 1),
        end(name, producer, epoch - 1),
        end(name, producer, epoch),
    ):
        answer = side.ask(request, version)
        if answer.error_code == 0 and version >= 5:
            epoch = answer.producer_epoch
    if version >= 5:
        answer = side.until(
            lambda: end(name, producer, epoch, committed=False), version, lambda a: a.error_code != CONCURRENT
        )
        epoch = answer.producer_epoch if answer.error_code == 0 else epoch
    described(side, name)
    for committed in (True, False):
        side.until(partial(add_partitions, name, producer, epoch, {topic: [0]}), 3, added, "add")
        first = side.ask(end(name, producer, epoch, committed=committed), version)
        described(side, name)
        side.ask(end(name, producer, epoch, committed=committed), version)
        side.ask(end(name, producer, epoch, committed=not committed), version)
        if version >= 5:
            epoch = first.producer_epoch
        described(side, name)


@scenario(DescribeTransactionsRequest)
def describes(side: Side, version: int) -> None:
    name, topic = side.name("tx"), side.topic()
    producer = begun(side, name)
    side.until(lambda: add_partitions(name, *producer, {topic: [0, 1]}), 3, added)
    asked = DescribeTransactionsRequest(transactional_ids=[name, name, side.name("none"), ""])
    side.ask(asked, version, keep=in_order)
    side.ask(DescribeTransactionsRequest(transactional_ids=[]), version)


@scenario(ListTransactionsRequest)
def lists(side: Side, version: int) -> None:
    name, other, topic = side.name("tx"), side.name("other"), side.topic()
    producer = begun(side, name)
    begun(side, other)
    side.until(lambda: add_partitions(name, *producer, {topic: [0, 1]}), 3, added)

    def keep(answer: Any) -> None:
        answer.transaction_states = [
            state for state in answer.transaction_states if state.transactional_id in (name, other)
        ]

    for fields in (
        {},
        {"state_filters": ["Ongoing"]},
        {"state_filters": ["ongoing"]},
        {"state_filters": ["Empty", "Unheard"]},
        {"state_filters": ["PrepareAbort"]},
        {"state_filters": [""]},
        {"producer_id_filters": [producer[0]]},
        {"producer_id_filters": [2**40]},
        {"duration_filter": 0},
        {"duration_filter": 3_600_000},
        {"transactional_id_pattern": name},
        {"transactional_id_pattern": ".*-tx"},
        {"transactional_id_pattern": "tx"},
        {"transactional_id_pattern": ""},
        {"transactional_id_pattern": "["},
    ):
        side.ask(ListTransactionsRequest(**fields), version, keep=keep)


@scenario(DescribeProducersRequest)
def producers(side: Side, version: int) -> None:
    name, topic = side.name("tx"), side.topic()
    producer, epoch = begun(side, name)
    side.until(lambda: add_partitions(name, producer, epoch, {topic: [0]}), 3, added)
    side.produce(topic, 0, b"a", b"b", producer_id=producer, producer_epoch=epoch, base_sequence=0, transactional=name)
    make = DescribeProducersRequest.TopicRequest

    def ask() -> None:
        asked = [make(name=topic, partition_indexes=[0, 1, 7]), make(name=side.name("missing"), partition_indexes=[0])]
        side.ask(DescribeProducersRequest(topics=asked), version, keep=without_times)

    ask()
    ended(side, name, (producer, epoch), 4)
    described(side, name)
    ask()
    side.ask(DescribeProducersRequest(), version)
    side.ask(DescribeProducersRequest(topics=[make(name="", partition_indexes=[0])]), version, keep=without_times)


def without_times(answer: Any) -> None:
    for topic in answer.topics:
        for part in topic.partitions:
            part.error_message = "words" if part.error_message else part.error_message
        topic.partitions.sort(key=lambda part: part.partition_index)
        for part in topic.partitions:
            for state in part.active_producers:
                state.last_timestamp = min(state.last_timestamp, 0)
