"""Members of consumer groups (KIP-848), and groups that change their kind.

ConsumerGroupHeartbeat and ConsumerGroupDescribe.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from typing import Any

from kohort.wire.groups import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
from tests.peers.alike.classic import stable
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
    remove,
    subscription,
    sync,
)
from tests.support.waiting import until

MEMBERS = {"a": "AAAAAAAAAAAAAAAAAAAAAA", "b": "BBBBBBBBBBBBBBBBBBBBBB", "c": "CCCCCCCCCCCCCCCCCCCCCC"}
"""Ids that members made themselves, as from version 1 on."""


def beat(group: str, member: str, epoch: int, **fields: Any) -> ConsumerGroupHeartbeatRequest:
    """A heartbeat; with epoch 0 it has everything that a join needs unless told otherwise."""
    if epoch == 0:
        fields = {"rebalance_timeout_ms": 60_000, "topic_partitions": [], **fields}
        if "subscribed_topic_regex" not in fields:
            fields.setdefault("subscribed_topic_names", ["any"])
    return ConsumerGroupHeartbeatRequest(
        group_id=group, member_id=member, member_epoch=epoch, instance_id=fields.pop("instance", None), **fields
    )


def topic_of(side: Side, word: str = "topic", partitions: int = 2) -> str:
    """A new topic that the coordinator knows already: Kafka's learns of topics a moment after they are there."""
    topic = side.topic(word, partitions)
    for number in range(4):  # one group for each coordinator, or nearly so
        tries = itertools.count()

        def assigned(number: int = number, tries: Iterator[int] = tries) -> bool:
            probe = f"{topic}-probe-{number}-{next(tries)}"
            answer = side.silently(beat(probe, MEMBERS["c"], 0, subscribed_topic_names=[topic]), 1)
            side.silently(beat(probe, MEMBERS["c"], -1), 1)
            return answer.assignment is not None and bool(answer.assignment.topic_partitions)

        until(assigned, f"the coordinator knows {topic}")
    return topic


def owns(topic_id: uuid.UUID, *partitions: int) -> Any:
    return ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=topic_id, partitions=list(partitions))


def describing(*groups: str, operations: bool = False) -> ConsumerGroupDescribeRequest:
    return ConsumerGroupDescribeRequest(group_ids=list(groups), include_authorized_operations=operations)


def settle(side: Side, group: str, member: str, version: int, topic: str, *, by: str = "a", **fields: Any) -> Any:
    """A member joins alone and acknowledges until nothing more comes."""
    answer = side.silently(beat(group, member, 0, subscribed_topic_names=[topic], **fields), version, by)
    assert answer.error_code == 0, answer
    member = side.call(answer.member_id, f"id of {by}")
    topic_id = side.id_of(topic)
    for _ in range(200):
        parts = [] if answer.assignment is None else answer.assignment.topic_partitions
        held = [owns(topic_id, *partition.partitions) for partition in parts]
        before = answer
        answer = side.silently(beat(group, member, before.member_epoch, topic_partitions=held), version, by)
        assert answer.error_code == 0, answer
        if held and answer.assignment is None and answer.member_epoch == before.member_epoch:
            break
        if answer.assignment is None and held:
            answer.assignment = before.assignment
    side.ask(describing(group), 1)
    return answer


@scenario(ConsumerGroupHeartbeatRequest)
def heartbeats_refused(side: Side, version: int) -> None:
    group, topic = side.name("group"), topic_of(side)
    named = {"subscribed_topic_names": [topic]}
    a = MEMBERS["a"]
    for request in (
        beat("", a, 0),
        beat("  ", a, 0),
        beat(group, "", 1),
        beat(group, "", -1),
        beat(group, "", -2, instance="one"),
        beat(group, a, 0, topic_partitions=None),
        beat(group, a, 0, topic_partitions=[owns(uuid.UUID(int=7), 0)]),
        beat(group, a, 0, rebalance_timeout_ms=-1),
        beat(group, a, 0, rebalance_timeout_ms=0),
        beat(group, a, 0, subscribed_topic_names=None),
        beat(group, a, 0, subscribed_topic_names=[]),
        beat(group, a, -1),
        beat(group, a, -2),
        beat(group, a, -2, instance="one"),
        beat(group, a, -3),
        beat(group, a, 1),
        beat(group, a, 1, instance="one"),
        beat(group, a, 0, server_assignor="unheard", **named),
        beat(group, a, 0, server_assignor="", **named),
        beat(group, a, 0, instance="", **named),
        beat(group, a, 0, rack_id="", **named),
        beat(group, "", 1, instance="", **named),
        beat(group, a, 1, instance=""),
        beat(group, a, 1, rack_id=""),
        beat(group, a, -2, instance=""),
    ):
        side.ask(request, version)
    side.ask(describing(group), 1)


@scenario(1)
def bad_regular_expressions(side: Side, version: int) -> None:
    for number, regex in enumerate(("[", "(?=x)", "a{1001}", r"\1", "*", "(")):
        group = side.name(f"group-{number}")
        fields = {"subscribed_topic_regex": regex, "subscribed_topic_names": []}
        side.ask(beat(group, MEMBERS["a"], 0, **fields), version, keep=only_code)
        side.ask(describing(group), 1)


def only_code(answer: Any) -> None:
    """RE2 in Java and in C++ have different words for what is wrong with an expression."""
    assert (answer.error_message or "").startswith("SubscribedTopicRegex `"), answer
    answer.error_message = None


@scenario(1)
def regular_expressions(side: Side, version: int) -> None:
    topic = topic_of(side, "orders")
    group = side.name("group")
    a, fields = MEMBERS["a"], {"subscribed_topic_names": [], "subscribed_topic_regex": f"{topic[:-2]}.."}
    with side.on_purpose("Regular expressions are resolved before a join is answered"):
        side.ask(beat(group, a, 0, **fields), version)
        side.until(lambda: beat(group, a, 0, **fields), version, lambda answer: answer.assignment.topic_partitions)
        answer = side.ask(describing(group), 1)
    epoch = answer.groups[0].group_epoch
    side.ask(beat(group, a, epoch, subscribed_topic_regex="["), version, keep=only_code)


@scenario(ConsumerGroupHeartbeatRequest)
def a_member_alone(side: Side, version: int) -> None:
    group, topic = side.name("group"), topic_of(side)
    a = MEMBERS["a"]
    topic_id = side.id_of(topic)
    answer = side.ask(beat(group, a, 0, subscribed_topic_names=[topic], rack_id="r1"), version)
    epoch = answer.member_epoch
    side.ask(describing(group), 1)
    for request in (
        beat(group, a, epoch),
        beat(group, a, epoch, topic_partitions=[]),
        beat(group, a, epoch, topic_partitions=[owns(topic_id, 0, 1)]),
        beat(group, a, epoch, topic_partitions=[owns(topic_id, 0)]),
        beat(group, a, epoch, topic_partitions=[owns(topic_id, 0, 1, 7)]),
        beat(group, a, epoch, topic_partitions=[owns(uuid.UUID(int=7), 0)]),
        beat(group, a, epoch, subscribed_topic_names=[topic]),
        beat(group, a, epoch, rebalance_timeout_ms=45_000),
        beat(group, a, epoch - 1, topic_partitions=[]),
        beat(group, a, epoch + 1),
        beat(group, MEMBERS["b"], epoch),
        beat(group, a, epoch, instance="one"),
        beat(group, a, epoch, server_assignor="unheard"),
        beat(group, a, epoch, server_assignor="uniform"),
    ):
        side.ask(request, version)
        side.ask(describing(group), 1)
    with side.on_purpose("A new subscription is answered before its assignment"):
        side.ask(beat(group, a, epoch, server_assignor="range"), version)  # the group prefers another assignor
    held = [owns(topic_id, 0, 1)]

    def has_moved_on(answer: Any) -> bool:
        return bool(answer.member_epoch > epoch)

    epoch = side.until(
        lambda: beat(group, a, epoch, topic_partitions=held), version, has_moved_on, keep=without_assignment
    ).member_epoch
    for request in (
        beat(group, a, epoch, server_assignor="range"),
        beat(group, a, 0, subscribed_topic_names=[topic]),
        beat(group, a, 0, subscribed_topic_names=[topic], rebalance_timeout_ms=1000),
    ):
        side.ask(request, version)
        side.ask(describing(group), 1)
    with side.on_purpose("A new subscription is answered before its assignment"):
        side.ask(beat(group, a, epoch, subscribed_topic_names=[]), version)
    side.ask(beat(group, a, -1), version)
    side.ask(beat(group, a, -1), version)
    side.ask(describing(group), 1)


def without_assignment(answer: Any) -> None:
    """Ours tells it with every new epoch, which another scenario shows."""
    answer.assignment = None


@scenario(ConsumerGroupHeartbeatRequest)
def static_members(side: Side, version: int) -> None:
    group, topic = side.name("group"), topic_of(side)
    a, b = MEMBERS["a"], MEMBERS["b"]
    named = {"subscribed_topic_names": [topic]}
    first = side.ask(beat(group, a, 0, instance="one", **named), version)
    side.ask(beat(group, b, 0, instance="one", **named), version)
    side.ask(beat(group, b, first.member_epoch, instance="one"), version)
    side.ask(beat(group, a, first.member_epoch, instance="two"), version)
    side.ask(beat(group, a, first.member_epoch), version)
    side.ask(beat(group, b, -2, instance="one"), version)
    side.ask(beat(group, b, -1, instance="one"), version)
    side.ask(beat(group, a, 0, **named), version)
    side.ask(describing(group), 1)
    side.ask(beat(group, a, -2, instance="one"), version)
    side.ask(describing(group), 1)
    side.ask(beat(group, a, first.member_epoch, instance="one"), version)
    side.ask(beat(group, b, first.member_epoch, instance="one"), version)
    side.ask(beat(group, a, -2, instance="one"), version)
    side.ask(beat(group, b, 0, instance="one", **named), version)
    side.ask(describing(group), 1)
    side.ask(beat(group, a, first.member_epoch, instance="one"), version)
    side.ask(beat(group, b, -1, instance="one"), version)
    side.ask(describing(group), 1)
    side.ask(beat(group, b, 0, instance="one", **named), version)


@scenario(ConsumerGroupHeartbeatRequest)
def two_members(side: Side, version: int) -> None:
    group, topic = side.name("group"), topic_of(side, partitions=2)
    a, b = MEMBERS["a"], MEMBERS["b"]
    topic_id = side.id_of(topic)
    settled = settle(side, group, a, version, topic)
    a = settled.member_id
    epoch = settled.member_epoch
    second = side.ask(beat(group, b, 0, subscribed_topic_names=[topic]), version, "b")
    b = side.call(second.member_id, "b")
    side.ask(describing(group), 1)

    def has_assignment(answer: Any) -> bool:
        return answer.assignment is not None

    answer = side.until(
        lambda: beat(group, a, epoch, topic_partitions=[owns(topic_id, 0, 1)]), version, has_assignment, "a"
    )
    kept = answer.assignment.topic_partitions[0].partitions
    side.ask(describing(group), 1)
    side.ask(beat(group, b, second.member_epoch, topic_partitions=[]), version, "b")
    side.ask(beat(group, a, epoch), version, "a")
    with side.on_purpose("A new epoch comes with the assignment"):
        answer = side.ask(beat(group, a, epoch, topic_partitions=[owns(topic_id, *kept)]), version, "a")
    side.ask(describing(group), 1)
    answer = side.until(lambda: beat(group, b, second.member_epoch, topic_partitions=[]), version, has_assignment, "b")
    with side.on_purpose("A new epoch comes with the assignment"):
        side.ask(beat(group, a, epoch, topic_partitions=[owns(topic_id, *kept)]), version, "a")
    side.ask(beat(group, a, epoch - 1), version, "a")
    side.ask(beat(group, b, -1), version, "b")


@scenario(ConsumerGroupDescribeRequest)
def describes(side: Side, version: int) -> None:
    group, classic, topic = side.name("group"), side.name("classic"), topic_of(side)
    stable(side, classic)
    settle(side, group, MEMBERS["a"], 1, topic, by="b", instance="one", rack_id="r")
    side.ask(describing(group, classic, side.name("missing"), "", group), version)
    side.ask(describing(group, operations=True), version)
    side.ask(describing(), version)
    side.ask(describe(group), 5)
    side.ask(describe(group), 6)


@scenario(9)
def classic_requests_to_a_consumer_group(side: Side, version: int) -> None:
    group, topic = side.name("group"), topic_of(side)
    answer = settle(side, group, MEMBERS["a"], 1, topic)
    a, epoch = answer.member_id, answer.member_epoch
    side.ask(heartbeat(group, a, epoch), 4)
    side.ask(sync(group, a, epoch), 5)
    side.ask(heartbeat(group, "nobody", epoch), 4)
    side.ask(sync(group, "nobody", epoch), 5)
    side.ask(join(group, a, protocols=[("range", subscription(topic))]), version)
    side.ask(join(group, protocol_type="connect", protocols=[("range", b"")]), version)
    side.ask(join(group, protocols=[("unheard", b"")]), version)
    side.ask(join(group, protocols=[]), version)
    side.ask(commit(side, group, [(topic, 0, 5)], 9), 9)
    side.ask(commit(side, group, [(topic, 0, 5)], 9, member=a, generation=epoch), 9)
    side.ask(commit(side, group, [(topic, 0, 5)], 9, member=a, generation=epoch - 1), 9)
    side.ask(commit(side, group, [(topic, 0, 5)], 9, member=a, generation=epoch - 1), 8)
    side.ask(commit(side, group, [(topic, 0, 5)], 9, member=a, generation=epoch + 1), 9)
    side.ask(commit(side, group, [(topic, 0, 5)], 9, member="nobody", generation=epoch), 9)
    side.ask(commit(side, group, [(topic, 0, 5)], 9, member="nobody", generation=epoch), 8)
    side.ask(fetch(side, group, {topic: [0]}, 9, member_id=a, member_epoch=epoch), 9)
    side.ask(fetch(side, group, {topic: [0]}, 9, member_id=a, member_epoch=epoch - 1), 9)
    side.ask(fetch(side, group, {topic: [0]}, 9, member_id="nobody", member_epoch=epoch), 9)
    side.ask(fetch(side, group, {topic: [0]}, 9, member_id="", member_epoch=epoch), 9)
    side.ask(fetch(side, group, {topic: [0]}, 8), 8)
    side.ask(remove(group), 2)
    side.ask(leave(group, a), 5)
    side.ask(describing(group), 1)


@scenario(9)
def a_classic_member_with_a_lost_id(side: Side, version: int) -> None:
    group, topic = side.name("group"), topic_of(side)
    settle(side, group, MEMBERS["a"], 1, topic)
    with side.on_purpose("A member id that no one has is unknown"):
        side.ask(join(group, "nobody", protocols=[("range", subscription(topic))]), version)


@scenario(9)
def a_classic_member_in_a_consumer_group(side: Side, version: int) -> None:
    group, topic = side.name("group"), topic_of(side)
    answer = settle(side, group, MEMBERS["a"], 1, topic)
    a, epoch = answer.member_id, answer.member_epoch
    asked = {"protocols": [("range", subscription(topic))]}
    first = side.ask(join(group, **asked), version, "b")
    b = side.call(first.member_id, "b")
    second = side.ask(join(group, b, **asked), version, "b")
    side.ask(describing(group), 1)
    generation = second.generation_id
    side.ask(sync(group, b, generation - 1), 5, "b")
    side.ask(sync(group, b, generation, protocol_name="other"), 5, "b")
    side.ask(sync(group, b, generation, protocol_type="other"), 5, "b")
    side.ask(sync(group, b, generation, instance="static"), 5, "b")
    side.ask(sync(group, b, generation), 5, "b")
    side.ask(heartbeat(group, b, generation), 4, "b")
    side.ask(heartbeat(group, b, generation - 1), 4, "b")
    side.ask(heartbeat(group, b, generation, "static"), 4, "b")
    side.ask(heartbeat(group, a, epoch), 4, "b")
    side.ask(commit(side, group, [(topic, 0, 5)], 9, member=b, generation=generation), 9, "b")
    side.ask(commit(side, group, [(topic, 0, 5)], 9, member=b, generation=generation - 1), 9, "b")
    side.ask(beat(group, b, generation), 1, "b")
    side.ask(leave(group, (b, "static")), 5, "b")
    side.ask(describing(group), 1)


@scenario(6)
def a_group_turns_classic(side: Side, version: int) -> None:
    group, topic = side.name("group"), topic_of(side)
    answer = settle(side, group, MEMBERS["a"], 1, topic)
    a = answer.member_id
    asked = {"protocols": [("range", subscription(topic))]}
    b = side.call(side.ask(join(group, **asked), 9, "b").member_id, "b")
    joined = side.ask(join(group, b, **asked), 9, "b")
    side.ask(sync(group, b, joined.generation_id), 5, "b")
    side.ask(beat(group, a, -1), 1, "a")
    side.ask(describing(group), 1)
    with side.on_purpose("A group that turns classic shows what its members have"):
        side.ask(describe(group), version)
    side.ask(listing(), 5, keep=only(group))
    side.ask(heartbeat(group, b, joined.generation_id), 4, "b")
    with side.on_purpose("A generation is never given out twice"):
        again = side.ask(join(group, b, **asked), 9, "b")
    side.ask(sync(group, b, again.generation_id, {b: b"\0\0\0\0\0\0\0\0\0\0"}), 5, "b")
    side.ask(describe(group), version)
    side.ask(beat(group, a, again.generation_id), 1, "a")
    side.ask(beat(group, b, again.generation_id), 1, "b")
    side.ask(leave(group, b), 5, "b")
    side.ask(describe(group), version)
    side.ask(describing(group), 1)


@scenario(6)
def a_group_turns_consumer(side: Side, version: int) -> None:
    group, topic = side.name("group"), topic_of(side, partitions=1)
    asked = {"protocols": [("range", subscription(topic))]}
    classic, generation = stable(side, group, share=assignment(topic, 0), **asked)
    side.ask(beat(group, MEMBERS["a"], 1), 1, "x")
    side.ask(beat(group, MEMBERS["a"], -1), 1, "x")
    side.ask(beat(group, MEMBERS["a"], 0, subscribed_topic_names=[topic]), 1, "x")
    side.ask(describing(group), 1)
    side.ask(describe(group), version)
    side.ask(listing(), 5, keep=only(group))
    side.ask(heartbeat(group, classic, generation), 4)
    side.ask(leave(group, classic), 5)


@scenario(6)
def a_generic_group_stays(side: Side, version: int) -> None:
    group, topic = side.name("group"), topic_of(side)
    stable(side, group, protocol_type="consumer", protocols=[("range", b"\0")])
    with side.on_purpose("Texts of errors"):
        side.ask(beat(group, MEMBERS["a"], 0, subscribed_topic_names=[topic]), 1, "x")
    side.ask(describe(group), version)


@scenario(6)
def an_empty_group_of_either_kind(side: Side, version: int) -> None:
    group, topic = side.name("group"), topic_of(side)
    a, _ = stable(side, group)
    side.ask(leave(group, a), 5)
    side.ask(describe(group), version)
    side.ask(beat(group, MEMBERS["a"], 0, subscribed_topic_names=[topic]), 1)
    side.ask(describe(group), version)
    side.ask(describing(group), 1)
    side.ask(beat(group, MEMBERS["a"], -1), 1)
    side.ask(describing(group), 1)
    side.ask(listing(), 5, keep=only(group))
    stable(side, group)
    side.ask(describing(group), 1)
    side.ask(describe(group), version)
    side.ask(listing(), 5, keep=only(group))


def only(*groups: str) -> Any:
    """Leaves these groups in a list of groups, in the order of their names."""

    def keep(answer: Any) -> None:
        answer.groups = sorted(
            (group for group in answer.groups if group.group_id in groups), key=lambda each: each.group_id
        )

    return keep


@scenario(ConsumerGroupHeartbeatRequest)
def member_epochs_after_a_deleted_group(side: Side, version: int) -> None:
    group, topic = side.name("group"), topic_of(side)
    answer = settle(side, group, MEMBERS["a"], version, topic)
    side.ask(remove(group), 2)
    side.ask(beat(group, answer.member_id, -1), version)
    side.ask(remove(group), 2)
    side.ask(beat(group, answer.member_id, answer.member_epoch), version)
    side.ask(describing(group), 1)


@scenario(9)
def a_commit_that_was_meant_for_an_earlier_group_of_the_name(side: Side, version: int) -> None:
    """A group that is made again begins its epochs anew, and its member's old commit meets its own new epoch."""
    group, topic, a, b = side.name("group"), topic_of(side), MEMBERS["a"], MEMBERS["b"]
    before = settle(side, group, a, 1, topic)
    both = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": [topic, "none"]}
    moved = side.silently(beat(group, a, before.member_epoch, topic_partitions=[], **both), 1, "a")
    moved = side.until(
        lambda: beat(group, a, moved.member_epoch, topic_partitions=[], **both),
        1,
        lambda answer: answer.member_epoch > before.member_epoch,
        "a",
    )
    late = commit(side, group, [(topic, 0, 5)], version, member=a, generation=moved.member_epoch)
    side.ask(beat(group, a, -1), 1, "a")
    side.ask(late, version, "late")
    side.ask(remove(group), 2)
    side.ask(late, version, "late")
    settle(side, group, b, 1, topic, by="b")
    again = side.ask(beat(group, a, 0, subscribed_topic_names=[topic]), 1, "a")
    assert again.member_epoch == moved.member_epoch, again
    side.ask(describing(group), 1)
    taken = side.ask(late, version, "late")
    assert taken.topics[0].partitions[0].error_code == 0, taken
    side.ask(fetch(side, group, {topic: [0]}, 9), 9)


@scenario(1)
def a_member_that_rejoins_at_its_epoch_with_nothing_gets_all_it_has(side: Side, version: int) -> None:
    """Our own client does so after it released its partitions in silence: it is still known, and disturbs nobody."""
    group, topic, a = side.name("group"), topic_of(side), MEMBERS["a"]
    epoch = settle(side, group, a, version, topic).member_epoch
    whole = {"topic_partitions": [], "rebalance_timeout_ms": 60_000, "subscribed_topic_names": [topic]}
    side.ask(beat(group, a, epoch, **whole), version, "a")
    side.ask(describing(group), 1)
    side.ask(beat(group, a, -1), version, "a")
    side.ask(beat(group, a, epoch, **whole), version, "a")
    side.ask(remove(group), 2)
    side.ask(beat(group, a, epoch, **whole), version, "a")
