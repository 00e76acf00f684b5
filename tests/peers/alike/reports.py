"""The steps of reports about Apache Kafka's broker that were fixed in Kafka 4.0 to 4.4.

Each scenario names its report. Kafka 4.4 shows the right answer, and ours is the same.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from kohort.wire.data import DeleteRecordsRequest, FetchRequest
from kohort.wire.transactions import DescribeProducersRequest
from tests.peers.alike.classic import stable
from tests.peers.alike.configs import (
    APPEND,
    BROKER,
    DELETE,
    GROUP,
    SET,
    SUBTRACT,
    TOPIC,
    changing,
    known_here,
    words_apart,
)
from tests.peers.alike.configs import describing as describing_configs
from tests.peers.alike.consumer import MEMBERS, beat, describing, owns, settle, topic_of
from tests.peers.alike.harness import Side, scenario
from tests.peers.alike.making import (
    commit,
    describe,
    fetch,
    join,
    leave,
    listing,
    offset_delete,
    remove,
    subscription,
)
from tests.peers.alike.records import batch, listing_offsets, plain, producing
from tests.peers.alike.transactions import (
    CONCURRENT,
    add_offsets,
    add_partitions,
    added,
    begun,
    by_id,
    described,
    end,
    ended,
    init,
    txn_commit,
)
from tests.support.waiting import until

A, B, C = MEMBERS["a"], MEMBERS["b"], MEMBERS["c"]


# -- groups


@scenario(1)
def a_description_has_the_partitions_that_are_being_revoked(side: Side, version: int) -> None:
    """KAFKA-20431."""
    group, topic = side.name("group"), topic_of(side)
    answer = settle(side, group, A, version, topic)
    side.ask(beat(group, B, 0, subscribed_topic_names=[topic]), version, "b")
    side.ask(beat(group, A, answer.member_epoch), version, "a")
    side.ask(describing(group), 1)
    side.ask(describe(group), 6)


@scenario(1)
def epochs_of_members_that_release_step_by_step(side: Side, version: int) -> None:
    """KAFKA-19974, KAFKA-19449: a member that releases one thing while the next is asked of it keeps its epoch."""
    group, topic = side.name("group"), topic_of(side, partitions=4)
    topic_id = side.id_of(topic)
    answer = settle(side, group, A, version, topic)
    epoch = answer.member_epoch
    side.ask(beat(group, B, 0, subscribed_topic_names=[topic]), version, "b")
    asked = side.ask(beat(group, A, epoch), version, "a")
    kept = [part for entry in asked.assignment.topic_partitions for part in entry.partitions]
    side.ask(beat(group, C, 0, subscribed_topic_names=[topic]), version, "c")
    side.ask(describing(group), 1)
    with side.on_purpose("A new epoch comes with the assignment"):
        again = side.ask(beat(group, A, asked.member_epoch, topic_partitions=[owns(topic_id, *kept)]), version, "a")
    held = again.assignment.topic_partitions if again.assignment else [owns(topic_id, *kept)]
    held = [owns(topic_id, *entry.partitions) for entry in held]
    side.ask(beat(group, A, again.member_epoch, topic_partitions=held), version, "a")
    side.ask(describing(group), 1)


@scenario(1)
def a_lone_static_member_returns_with_another_assignor(side: Side, version: int) -> None:
    """KAFKA-20434."""
    group, topic = side.name("group"), topic_of(side)
    answer = settle(side, group, A, version, topic, instance="one", server_assignor="uniform")
    side.ask(beat(group, answer.member_id, -2, instance="one"), version)
    side.ask(describing(group), 1)
    side.ask(beat(group, B, 0, instance="one", server_assignor="range", subscribed_topic_names=[topic]), version, "b")
    side.ask(describing(group), 1)


def selected(side: Side, group: str, topic: str) -> Any:
    """A member of a pattern, once it has its partitions; Kafka resolves patterns a moment later."""
    pattern = {"subscribed_topic_regex": topic.replace("-", ".") + "$", "rebalance_timeout_ms": 60_000}
    answer = side.silently(beat(group, A, 0, **pattern), 1)

    def has_partitions() -> bool:
        nonlocal answer
        if answer.assignment is None or not answer.assignment.topic_partitions:
            answer = side.silently(beat(group, A, answer.member_epoch), 1)
        return answer.assignment is not None and bool(answer.assignment.topic_partitions)

    until(has_partitions, "the pattern selects topics")
    return answer


@scenario(1)
def a_pattern_is_taken_back(side: Side, version: int) -> None:
    """KAFKA-19891: the group's epoch grows when a member's pattern becomes empty."""
    group, topic = side.name("group"), topic_of(side)
    held = [owns(side.id_of(topic), 0, 1)]
    before = selected(side, group, topic).member_epoch
    before = side.silently(beat(group, A, before, topic_partitions=held), version).member_epoch
    names = {"subscribed_topic_regex": "", "subscribed_topic_names": [topic], "rebalance_timeout_ms": 60_000}
    side.silently(beat(group, A, before, topic_partitions=held, **names), version)

    def moved(answer: Any) -> bool:
        grown = answer.member_epoch > before
        answer.member_id, answer.member_epoch, answer.assignment = "", answer.member_epoch - before, None
        return bool(grown)

    side.until(lambda: beat(group, A, before, topic_partitions=held), version, moved)


@scenario(0)
def positions_of_a_topic_that_a_pattern_selects(side: Side, version: int) -> None:
    """KAFKA-18916: such a topic counts as subscribed to."""
    group, topic, other = side.name("group"), topic_of(side), side.topic("other")
    side.ask(commit(side, group, [(topic, 0, 1), (other, 0, 1)], 9), 9)
    selected(side, group, topic)
    side.ask(offset_delete(group, {topic: [0, 1], other: [0, 1]}), version)


@scenario(9)
def malformed_metadata_in_a_consumer_group(side: Side, version: int) -> None:
    """KAFKA-20662, KAFKA-20570."""
    group, topic = side.name("group"), topic_of(side)
    settle(side, group, A, 1, topic)
    for number, metadata in enumerate(
        (b"", b"\0", b"\0\0\xff\xff\xff\xff", b"\0\0\0\0\0\1\0\x09x", b"\0\7" + subscription(topic)[2:], b"\xff" * 40)
    ):
        by = f"x{number}"
        first = side.ask(join(group, protocols=[("range", metadata)]), version, by)
        member = side.call(first.member_id, by)
        side.ask(join(group, member, protocols=[("range", metadata)]), version, by)
    side.ask(describing(group), 1)


@scenario(0)
def positions_in_a_group_of_malformed_metadata(side: Side, version: int) -> None:
    """KAFKA-20570."""
    group, topic = side.name("group"), side.topic()
    side.ask(commit(side, group, [(topic, 0, 1)], 9), 9)
    stable(side, group, protocols=[("range", b"\0\0\0\0\0\1\0\x09x")])
    side.ask(offset_delete(group, {topic: [0]}), version)
    side.ask(describe(group), 6)


@scenario(9)
def a_classic_member_beside_a_pattern(side: Side, version: int) -> None:
    """KAFKA-19720: the classic member has no pattern."""
    group, topic = side.name("group"), topic_of(side)
    selected(side, group, topic)
    asked = {"protocols": [("range", subscription(topic))]}
    first = side.ask(join(group, **asked), version, "b")
    b = side.call(first.member_id, "b")
    side.silently(join(group, b, **asked), version, "b")

    def of_members(answer: Any) -> None:
        (found,) = answer.groups
        found.group_epoch = found.assignment_epoch = 0
        for member in found.members:
            member.member_epoch = 0

    side.ask(describing(group), 1, keep=of_members)


@scenario(6)
def the_last_consumer_member_leaves_a_mixed_group(side: Side, version: int) -> None:
    """KAFKA-18150, KAFKA-20442: by a classic LeaveGroup too."""
    for way in ("beat", "leave"):
        group, topic = side.name(f"group-{way}"), topic_of(side, f"topic-{way}")
        a = settle(side, group, A, 1, topic).member_id
        asked = {"protocols": [("range", subscription(topic))]}
        b = side.call(side.ask(join(group, **asked), 9, way).member_id, way)
        side.ask(join(group, b, **asked), 9, way)
        side.ask(beat(group, a, -1) if way == "beat" else leave(group, a), 1 if way == "beat" else 5, "a")
        side.ask(describing(group), 1)
        side.ask(listing(), 5, keep=lambda answer, group=group: _only(answer, group))


def _only(answer: Any, group: str) -> None:
    answer.groups = [found for found in answer.groups if found.group_id == group]


@scenario(2)
def a_group_with_an_open_transaction_is_deleted(side: Side, version: int) -> None:
    """KAFKA-19163, KAFKA-19164."""
    name, group, topic = side.name("tx"), side.name("group"), side.topic()
    producer = begun(side, name)
    side.ask(add_offsets(name, *producer, group), 3)
    side.ask(by_id(side, txn_commit(name, producer, group, [(topic, 0, 5)]), 4), 4)
    side.ask(offset_delete(group, {topic: [0]}), 0)
    side.ask(remove(group), version)
    side.ask(fetch(side, group, {topic: [0]}, 7, require_stable=True), 7)
    side.ask(listing(), 5, keep=lambda answer: _only(answer, group))
    ended(side, name, producer, 4)
    side.until(
        lambda: fetch(side, group, {topic: [0]}, 7, require_stable=True),
        7,
        lambda answer: not answer.topics[0].partitions[0].error_code,
    )
    side.ask(listing(), 5, keep=lambda answer: _only(answer, group))
    side.ask(remove(group), version)
    side.ask(fetch(side, group, {topic: [0]}, 7), 7)


@scenario(2)
def a_committed_group_with_an_open_transaction_is_deleted(side: Side, version: int) -> None:
    """KAFKA-19163: what was committed before goes, and what the transaction brings stays."""
    name, group, topic = side.name("tx"), side.name("group"), side.topic()
    side.ask(commit(side, group, [(topic, 0, 1), (topic, 1, 1)], 9), 9)
    producer = begun(side, name)
    side.ask(add_offsets(name, *producer, group), 3)
    side.ask(by_id(side, txn_commit(name, producer, group, [(topic, 0, 5)]), 4), 4)
    side.ask(remove(group), version)
    ended(side, name, producer, 4)
    side.until(
        lambda: fetch(side, group, {topic: [0, 1]}, 7, require_stable=True),
        7,
        lambda answer: not answer.topics[0].partitions[0].error_code,
    )
    side.ask(listing(), 5, keep=lambda answer: _only(answer, group))


@scenario(*range(1, 11))
def positions_of_another_topic_of_the_name(side: Side, version: int) -> None:
    """KAFKA-19246, KAFKA-19154: errors of a group, and of a topic's id, at every version."""
    group, topic = side.name("group"), side.topic()
    side.ask(fetch(side, "", {topic: [0]}, version), version)
    side.ask(fetch(side, group, {topic: [0]}, version), version)
    side.ask(fetch(side, group, None, version) if version >= 2 else fetch(side, group, {topic: [9]}, version), version)


@scenario(1)
def an_unheard_setting_is_appended_to(side: Side, version: int) -> None:
    """KAFKA-20129, KAFKA-19112, KAFKA-19875."""
    topic, group = side.topic(), side.name("group")
    for kind, name in ((TOPIC, topic), (GROUP, group), (BROKER, "1"), (BROKER, "")):
        for operation in (APPEND, SUBTRACT):
            side.ask(changing(kind, name, [("unheard", operation, "x")]), version, keep=words_apart)
    for operation, value in (
        (SET, ""), (SET, None), (SET, "delete,delete"), (SET, "delete,compact,delete"), (SET, ","), (SET, " delete "),
        (APPEND, "delete"), (APPEND, "compact,compact"), (SUBTRACT, "compact"), (SUBTRACT, "compact,delete"),
        (SUBTRACT, "unheard"), (APPEND, None), (SUBTRACT, None), (SUBTRACT, ""), (DELETE, None),
    ):  # fmt: skip
        side.ask(changing(TOPIC, topic, [("cleanup.policy", operation, value)]), version, keep=words_apart)
    for name in ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas"):
        for operation, value in (
            (SET, "*"), (SET, "0:1,0:1"), (SET, "0:1,1:1"), (APPEND, "1:1"), (SET, ""), (SET, "x"), (SET, "*,0:1"),
            (APPEND, "0:2"), (SUBTRACT, "*"), (SET, None),
        ):  # fmt: skip
            side.ask(changing(TOPIC, topic, [(name, operation, value)]), version, keep=words_apart)


@scenario(4)
def settings_of_a_group_that_are_set(side: Side, version: int) -> None:
    """KAFKA-20289, KAFKA-20409: where a group's setting comes from."""
    group = side.name("group")
    names = ("consumer.session.timeout.ms", "consumer.heartbeat.interval.ms")
    for name, value in zip(names, ("46000", "5001"), strict=True):
        side.ask(changing(GROUP, group, [(name, SET, value)]), 1, keep=words_apart)
    side.until(
        lambda: describing_configs(GROUP, group),
        version,
        lambda answer: {"46000", "5001"} <= {item.value for item in answer.results[0].configs},
        keep=known_here,
    )
    side.ask(changing(GROUP, group, [(name, DELETE, None) for name in names]), 1, keep=words_apart)


# -- transactions


@scenario(5)
def transactions_without_records(side: Side, version: int) -> None:
    """KAFKA-18401, KAFKA-18464: of transactions of version 2, each end gives the next epoch."""
    name, topic = side.name("tx"), side.topic()
    producer, epoch = begun(side, name)
    for committed in (True, True, False, False, True):
        answer = side.until(
            partial(end, name, producer, epoch, committed=committed), version, lambda a: a.error_code != CONCURRENT
        )
        if answer.error_code == 0:
            epoch = answer.producer_epoch
        described(side, name)
    facts = {"producer_id": producer, "producer_epoch": epoch, "transactional": True}
    side.ask(producing(side, 12, [(topic, 0, batch(b"a", base_sequence=0, **facts))], transactional_id=name), 12,
             keep=plain)  # fmt: skip
    side.ask(end(name, producer, epoch), version)
    described(side, name)


@scenario(12, 13)
def sequences_of_the_second_version(side: Side, version: int) -> None:
    """KAFKA-18202, KAFKA-18042, KAFKA-19690: which batches begin and continue a transaction of version 2."""
    name, topic = side.name("tx"), side.topic(partitions=4)
    producer, epoch = begun(side, name, 5)

    def send(index: int, sequence: int, at: int, *values: bytes) -> Any:
        facts = {"producer_id": producer, "producer_epoch": at, "base_sequence": sequence, "transactional": True}
        request = producing(side, version, [(topic, index, batch(*(values or (b"x",)), **facts))],
                            transactional_id=name)  # fmt: skip
        return side.until(
            lambda: request,
            version,
            lambda answer: answer.responses[0].partition_responses[0].error_code != CONCURRENT,
            keep=plain,
        )

    send(0, 5, epoch)
    send(0, 0, epoch)
    send(0, 0, epoch)
    send(0, 1, epoch)
    send(0, 3, epoch)
    send(1, 1, epoch)
    send(1, 0, epoch + 1)
    described(side, name)
    answer = side.until(lambda: end(name, producer, epoch), 5, lambda answer: answer.error_code != CONCURRENT)
    later = answer.producer_epoch
    described(side, name)
    send(0, 2, epoch)
    send(2, 0, epoch)
    send(0, 2, later)
    send(0, 0, later)
    send(3, 4, later)
    send(0, 0, later)
    described(side, name)
    side.ask(producers_of(topic, 0, 1, 2, 3), 0, keep=of_producer(producer))
    side.ask(listing_offsets({topic: [(index, -1) for index in range(4)]}), 7)


def producers_of(topic: str, *indexes: int) -> DescribeProducersRequest:
    make = DescribeProducersRequest.TopicRequest
    return DescribeProducersRequest(topics=[make(name=topic, partition_indexes=list(indexes))])


def of_producer(producer: int) -> Any:
    def keep(answer: Any) -> None:
        for topic in answer.topics:
            for part in topic.partitions:
                part.active_producers = [found for found in part.active_producers if found.producer_id == producer]
                for found in part.active_producers:
                    found.last_timestamp = 0

    return keep


@scenario(5)
def a_producer_returns_during_its_transaction(side: Side, version: int) -> None:
    """KAFKA-19367: its epoch grows by what Kafka's grows, once."""
    name, topic = side.name("tx"), side.topic()
    producer, epoch = begun(side, name, version)
    facts = {"producer_id": producer, "base_sequence": 0, "transactional": True}
    for known in (False, True, False):
        side.until(
            lambda epoch=epoch: producing(
                side, 12, [(topic, 0, batch(b"a", producer_epoch=epoch, **facts))], transactional_id=name
            ),
            12,
            lambda answer: answer.responses[0].partition_responses[0].error_code != CONCURRENT,
            keep=plain,
        )
        asked = init(name, producer, epoch) if known else init(name)
        answer = side.until(lambda asked=asked: asked, version, lambda answer: answer.error_code != CONCURRENT)
        epoch = answer.producer_epoch if answer.error_code == 0 else epoch
    side.ask(producers_of(topic, 0), 0, keep=of_producer(producer))


@scenario(4, 5)
def ends_of_epochs_that_are_over(side: Side, version: int) -> None:
    """KAFKA-19999: an end with an older or a later epoch leaves the transaction as it is."""
    name, topic = side.name("tx"), side.topic()
    producer, epoch = begun(side, name)
    side.until(partial(add_partitions, name, producer, epoch, {topic: [0]}), 3, added, "add")
    for off in (-1, 1, 5, -5, 32767 - epoch):
        side.ask(end(name, producer, epoch + off), version)
    described(side, name)
    first = ended(side, name, (producer, epoch), version, committed=False)
    now = first.producer_epoch if version >= 5 else epoch
    described(side, name)
    for off in (-2, -1, 1, 2):
        side.ask(end(name, producer, now + off, committed=False), version)
        side.ask(end(name, producer, now + off), version)
    described(side, name)


# -- the log


@scenario(*range(4, 19))
def no_records_are_no_null(side: Side, version: int) -> None:
    """KAFKA-18646, KAFKA-18935: clients fail at a null."""
    topic = side.topic()
    side.produce(topic, 0, b"a")
    make, part = FetchRequest.FetchTopic, FetchRequest.FetchTopic.FetchPartition
    for index, offset, epoch in ((0, 0, -1), (0, 1, -1), (0, 2, -1), (1, 0, -1), (7, 0, -1), (0, 0, 9), (0, -1, -1)):
        found = part(partition=index, fetch_offset=offset, current_leader_epoch=epoch, partition_max_bytes=1000)
        asked = make(topic=topic, topic_id=side.id_of(topic), partitions=[found])
        side.ask(
            FetchRequest(topics=[asked], max_wait_ms=0, min_bytes=0, max_bytes=10_000, session_epoch=-1),
            version,
            keep=_bytes_alone,
        )


def _bytes_alone(answer: Any) -> None:
    for topic in answer.responses:
        for found in topic.partitions:
            found.records = None if found.records is None else bytes(1 if bytes(found.records) else 0)


@scenario(7, 12, 13, 18)
def sessions_of_fetches(side: Side, version: int) -> None:
    """KIP-227: which partitions an incremental answer has, and with which facts."""
    topic, other = side.topic(partitions=3), side.topic("other")
    side.produce(topic, 0, b"a", b"b")
    session = 0
    make, part = FetchRequest.FetchTopic, FetchRequest.FetchPartition
    forgotten = FetchRequest.ForgottenTopic

    def ask(epoch: int, *wanted: tuple[str, int, int], forget: tuple[tuple[str, int], ...] = (), **fields: Any) -> None:
        by_topic: dict[str, list[Any]] = {}
        for name, index, offset in wanted:
            found = part(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
            by_topic.setdefault(name, []).append(found)
        topics = [make(topic=name, topic_id=ids[name], partitions=parts) for name, parts in by_topic.items()]
        gone = [forgotten(topic=name, topic_id=ids[name], partitions=[index]) for name, index in forget]
        values = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20, "session_id": session, **fields}
        request = FetchRequest(topics=topics, forgotten_topics_data=gone, session_epoch=epoch, **values)
        side.ask(request, version, keep=known_session)

    def known_session(answer: Any) -> None:
        nonlocal session
        session = answer.session_id or session
        answer.session_id = min(answer.session_id, 1)
        _bytes_alone(answer)
        by_topic: dict[Any, Any] = {}
        for found in answer.responses:  # Kafka names a topic twice, for its errors too
            whole = by_topic.setdefault((found.topic, found.topic_id), found)
            whole.partitions += [] if whole is found else found.partitions
        answer.responses = [*by_topic.values()]

    ids = {name: side.id_of(name) for name in (topic, other)}
    ask(0, (topic, 0, 0), (topic, 1, 0), (topic, 7, 0), (other, 0, 0))
    ask(1)
    ask(2, (topic, 0, 2))
    ask(3)
    side.produce(topic, 1, b"c")
    ask(4)
    ask(5)
    ask(6, (topic, 1, 1))
    ask(7)
    side.silently(deleting(topic, 1, 1), 2)
    ask(8)
    ask(9)
    ask(10, (topic, 1, 0))
    ask(11)
    ask(12, (topic, 1, 1), forget=((topic, 7),))
    ask(13, forget=((topic, 0), (other, 0), (other, 1)))
    side.produce(topic, 0, b"d")
    ask(14)
    ask(15, (topic, 0, 2), (topic, 2, 0))
    ask(15)
    ask(17)
    ask(16, session_id=session + 1)
    ask(16)
    ask(17, (topic, 2, 5), isolation_level=1)
    ask(18, (topic, 2, 0), isolation_level=1)
    ask(-1)
    ask(19)


def deleting(topic: str, index: int, offset: int) -> DeleteRecordsRequest:
    make = DeleteRecordsRequest.DeleteRecordsTopic
    part = make.DeleteRecordsPartition(partition_index=index, offset=offset)
    return DeleteRecordsRequest(topics=[make(name=topic, partitions=[part])], timeout_ms=10_000)
