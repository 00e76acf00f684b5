"""OffsetCommit, OffsetFetch, OffsetDelete, and what administrators ask of groups.

Describe, list, delete, find their coordinator.
"""

from __future__ import annotations

import uuid
from typing import Any

from kohort.wire.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    ListGroupsRequest,
)
from kohort.wire.offsets import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from tests.peers.alike.classic import joined, pair, stable
from tests.peers.alike.consumer import only
from tests.peers.alike.harness import Side, scenario
from tests.peers.alike.making import (
    assignment,
    commit,
    describe,
    fetch,
    heartbeat,
    join,
    leave,
    listing,
    offset_delete,
    remove,
    subscription,
    sync,
)


@scenario(OffsetCommitRequest)
def commits_without_members(side: Side, version: int) -> None:
    group, topic = side.name("group"), side.topic()
    for request in (
        commit(side, "", [(topic, 0, 1)], version),
        commit(side, group, [(topic, 0, 1)], version, member="nobody"),
        commit(side, group, [(topic, 0, 1)], version, member="nobody", generation=1),
        commit(side, group, [(topic, 0, 1)], version, generation=1),
        commit(side, group, [(topic, 0, 1)], version, instance="static"),
        commit(side, group, [], version),
    ):
        side.ask(request, version)
    side.ask(describe(group), 6)
    for request in (
        commit(side, group, [(topic, 0, 5, "note", 3), (topic, 1, 6, None)], version),
        commit(side, group, [(topic, 0, -1)], version),
        commit(side, group, [(topic, 0, -5)], version),
        commit(side, group, [(topic, 0, 2**62)], version),
        commit(side, group, [(topic, 7, 5), (topic, -1, 5), (topic, 1, 8)], version),
        commit(side, group, [(topic, 0, 9, "x" * 4096)], version),
        commit(side, group, [(topic, 0, 10, "x" * 4097), (topic, 1, 10, "é" * 2048)], version),
        commit(side, group, [(topic, 0, 1, "é" * 2049)], version),
        commit(side, group, [(topic, 0, 1), (topic, 0, 2)], version),
        commit(side, group, [(topic, 0, 3)], version, retention_time_ms=1000),
        commit(side, group, [(topic, 0, 4, "", -1), (topic, 1, 4, "", 99)], version),
        commit(side, group, [(topic, 0, 4)], version, member="nobody"),
        commit(side, group, [(topic, 0, 4)], version, member="nobody", generation=0),
        commit(side, group, [(topic, 0, 4)], version, generation=0),
        commit(side, group, [(topic, 0, 4)], version, instance="static"),
    ):
        side.ask(request, version)
        side.ask(fetch(side, group, {topic: [0, 1]}, 8), 8)
    side.ask(describe(group), 6)
    side.ask(listing(), 5, keep=only(group))


@scenario(*range(2, 10))
def commits_to_missing_topics(side: Side, version: int) -> None:
    group, topic, missing = side.name("group"), side.topic(), side.name("missing")
    parts = [(missing, 0, 5), (topic, 0, 5), (missing, 1, 5), ("", 0, 5)]
    side.ask(commit(side, group, parts, version), version, keep=by_topic)
    side.ask(commit(side, side.name("none"), [(missing, 0, 5)], version), version)
    side.ask(fetch(side, group, {missing: [0, 1], topic: [0]}, 8), 8)
    side.ask(describe(side.name("none")), 6)


@scenario(10)
def commits_by_unknown_id(side: Side, version: int) -> None:
    group, topic = side.name("group"), side.topic()
    request = commit(side, group, [(topic, 0, 5), (topic, 1, 5)], version)
    part = OffsetCommitRequest.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=""
    )
    make = OffsetCommitRequest.OffsetCommitRequestTopic
    request.topics += [
        make(topic_id=uuid.UUID(int=9), partitions=[part]),
        make(topic_id=uuid.UUID(int=0), partitions=[part]),
    ]
    side.ask(request, version, keep=by_topic)
    asked = OffsetFetchRequest.OffsetFetchRequestTopics
    wanted = [asked(topic_id=entry.topic_id, partition_indexes=[0, 1]) for entry in request.topics]
    groups = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=wanted)]
    side.ask(OffsetFetchRequest(groups=groups), 10, keep=lambda answer: by_topic(answer.groups[0]))


def by_topic(answer: Any) -> None:
    """Topics in an order of their own: Kafka names those first that it refuses, then by a hash map."""
    answer.topics.sort(key=lambda topic: (len(topic.partitions), topic.partitions[0].error_code, topic.name))


@scenario(OffsetCommitRequest)
def commits_of_members(side: Side, version: int) -> None:
    group, topic = side.name("group"), side.topic()
    a = joined(side, group)
    me, generation = a.member_id, a.generation_id
    parts = [(topic, 0, 5)]
    side.ask(commit(side, group, parts, version, member=me, generation=generation), version)
    side.ask(commit(side, group, parts, version), version)
    side.ask(sync(group, me, generation, {me: assignment(topic, 0)}), 5)
    for fields in (
        {"member": me, "generation": generation},
        {"member": me, "generation": generation + 1},
        {"member": me, "generation": generation - 1},
        {"member": me, "generation": -1},
        {"member": me},
        {"member": "nobody", "generation": generation},
        {"member": "", "generation": generation},
        {"member": "", "generation": -1},
        {"member": me, "generation": generation, "instance": "static"},
    ):
        side.ask(commit(side, group, parts, version, **fields), version)
    side.ask(leave(group, me), 5)
    side.ask(commit(side, group, parts, version, member=me, generation=generation), version)
    side.ask(commit(side, group, parts, version, member="", generation=generation), version)
    side.ask(commit(side, group, parts, version), version)
    side.ask(fetch(side, group, None, 8), 8)


@scenario(7, 8, 9, 10)
def commits_of_static_members(side: Side, version: int) -> None:
    group, topic = side.name("group"), side.topic()
    me, generation = stable(side, group, instance="one")
    parts = [(topic, 0, 5)]
    for member, instance in ((me, "one"), (me, None), ("other", "one"), (me, "two"), ("", "one")):
        request = commit(side, group, parts, version, member=member, generation=generation, instance=instance)
        side.ask(request, version)


@scenario(OffsetCommitRequest)
def commits_during_a_rebalance(side: Side, version: int) -> None:
    group, topic = side.name("group"), side.topic()
    a, b = pair(side, group)
    parts = [(topic, 0, 5)]
    side.send(join(group, b.member_id, protocols=[("range", subscription("new"))]), 9, "b")
    side.until(lambda: heartbeat(group, a.member_id, a.generation_id), 4, lambda answer: answer.error_code, "beats")
    side.ask(commit(side, group, parts, version, member=a.member_id, generation=a.generation_id), version)
    side.ask(commit(side, group, parts, version, member=b.member_id, generation=b.generation_id), version)
    side.send(join(group, a.member_id), 9, "a")
    again = side.receive("a")
    side.receive("b")
    side.ask(commit(side, group, parts, version, member=a.member_id, generation=a.generation_id), version)
    side.ask(commit(side, group, parts, version, member=a.member_id, generation=again.generation_id), version)


@scenario(OffsetFetchRequest)
def fetches(side: Side, version: int) -> None:
    group, topic, other = side.name("group"), side.topic(), side.topic("other", 1)
    for wanted in ({topic: [0, 1, 7]}, {topic: []}, {}, *([None] if version >= 2 else [])):
        side.ask(fetch(side, group, wanted, version), version)
        if wanted is not None:
            side.ask(fetch(side, "", wanted, version), version)
    side.ask(commit(side, group, [(topic, 0, 5, "note", 3), (other, 0, 6)], 9), 9)
    for wanted in ({topic: [0, 1, 7]}, {topic: []}, {}, {topic: [0, 0]}, {other: [0], topic: [1]}):
        side.ask(fetch(side, group, wanted, version), version)
    if version >= 2:
        side.ask(fetch(side, group, None, version, require_stable=True), version, keep=in_order)
    if version < 10:
        side.ask(fetch(side, group, {side.name("missing"): [0], "": [0]}, version), version)


def in_order(answer: Any) -> None:
    """Topics by name, or by offset where they have ids: of a whole group they come in no order."""
    for entry in [answer, *answer.groups]:
        entry.topics.sort(key=lambda topic: (topic.name, topic.partitions[0].committed_offset))


@scenario(8, 9, 10)
def fetches_of_several_groups(side: Side, version: int) -> None:
    first, second, topic = side.name("first"), side.name("second"), side.topic()
    side.ask(commit(side, first, [(topic, 0, 5)], 9), 9)
    side.ask(commit(side, second, [(topic, 1, 6)], 9), 9)
    groups = [
        fetch(side, group, wanted, version).groups[0]
        for group, wanted in (
            (first, {topic: [0, 1]}),
            (second, None),
            ("none", None),
            (first, None),
            ("", {topic: [0]}),
        )
    ]
    side.ask(OffsetFetchRequest(groups=groups), version)
    side.ask(OffsetFetchRequest(groups=[]), version)


@scenario(9, 10)
def fetches_of_members(side: Side, version: int) -> None:
    group, topic = side.name("group"), side.topic()
    me, generation = stable(side, group)
    for member, epoch in (
        (me, generation),
        (me, generation + 1),
        (me, -1),
        ("nobody", 1),
        ("", 1),
        (None, 5),
        (None, -1),
    ):
        side.ask(fetch(side, group, {topic: [0]}, version, member_id=member, member_epoch=epoch), version)


@scenario(OffsetDeleteRequest)
def deletes_of_offsets(side: Side, version: int) -> None:
    group, topic, other = side.name("group"), side.topic(), side.topic("other")
    missing = side.name("missing")
    side.ask(offset_delete("", {topic: [0]}), version)
    side.ask(offset_delete(group, {topic: [0]}), version)
    side.ask(commit(side, group, [(topic, 0, 5), (topic, 1, 5), (other, 0, 5), (other, 1, 5)], 9), 9)
    side.ask(offset_delete(group, {topic: [0, 7], missing: [0], "": [0]}), version, keep=by_topic_and_partition)
    side.ask(offset_delete(group, {topic: [0, 0]}), version)
    side.ask(offset_delete(group, {}), version)
    me, _ = stable(side, group, protocols=[("range", subscription(topic))])
    side.ask(offset_delete(group, {topic: [1], other: [0]}), version)
    side.ask(fetch(side, group, {topic: [0, 1], other: [0, 1]}, 8), 8)
    side.ask(leave(group, me), 5)
    side.ask(offset_delete(group, {topic: [1]}), version)
    generic = side.name("generic")
    side.ask(commit(side, generic, [(topic, 0, 5)], 9), 9)
    stable(side, generic, protocol_type="connect", by="g")
    side.ask(offset_delete(generic, {topic: [0]}), version)
    side.ask(fetch(side, group, {topic: [0, 1], other: [0, 1]}, 8), 8)


def by_topic_and_partition(answer: Any) -> None:
    answer.topics.sort(key=lambda topic: topic.name)
    for topic in answer.topics:
        topic.partitions.sort(key=lambda part: part.partition_index)


@scenario(DescribeGroupsRequest)
def describes(side: Side, version: int) -> None:
    group, simple, topic = side.name("group"), side.name("simple"), side.topic()
    side.ask(commit(side, simple, [(topic, 0, 5)], 9), 9)
    stable(side, group)
    side.ask(describe(group, simple, side.name("missing"), "", group), version)
    side.ask(describe(), version)
    side.ask(describe(group, operations=True), version)


@scenario(ListGroupsRequest)
def lists(side: Side, version: int) -> None:
    group, simple, generic, topic = side.name("group"), side.name("simple"), side.name("generic"), side.topic()
    side.ask(commit(side, simple, [(topic, 0, 5)], 9), 9)
    stable(side, group)
    joined(side, generic, by="g", protocol_type="connect")
    for states, types in (
        ((), ()),
        (("Stable",), ()),
        (("stable", "EMPTY"), ()),
        (("CompletingRebalance",), ("classic",)),
        (("Unheard",), ()),
        (("",), ()),
        ((), ("Classic",)),
        ((), ("consumer",)),
        ((), ("simple",)),
        ((), ("unheard", "classic")),
        ((), ("",)),
    ):
        side.ask(listing(states, types), version, keep=only(group, simple, generic))


@scenario(DeleteGroupsRequest)
def deletes_of_groups(side: Side, version: int) -> None:
    group, simple, topic = side.name("group"), side.name("simple"), side.topic()
    side.ask(commit(side, simple, [(topic, 0, 5)], 9), 9)
    me, _ = stable(side, group)
    side.ask(remove(group, simple, side.name("missing"), ""), version, keep=by_group)
    side.ask(remove(simple), version)
    side.ask(remove(), version)
    side.ask(remove(group, group), version, keep=by_group)
    side.ask(leave(group, me), 5)
    side.ask(remove(group, group), version, keep=by_group)
    side.ask(describe(group, simple), 6)
    side.ask(fetch(side, simple, {topic: [0]}, 8), 8)


def by_group(answer: Any) -> None:
    answer.results.sort(key=lambda result: (result.group_id, result.error_code))


@scenario(FindCoordinatorRequest)
def coordinators(side: Side, version: int) -> None:
    for kind in (0, 1, 3, -1):
        for keys in (["any"], [""], ["any", "other", "any"], []):
            if version < 4:
                side.ask(FindCoordinatorRequest(key=keys[0] if keys else "", key_type=kind), version, keep=without_text)
            else:
                side.ask(FindCoordinatorRequest(coordinator_keys=keys, key_type=kind), version, keep=without_text)


def without_text(answer: Any) -> None:
    """Only whether there is a text: brokers have their own words."""
    for result in [answer, *answer.coordinators]:
        result.error_message = "words" if result.error_code and result.error_message else result.error_message
