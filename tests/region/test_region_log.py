"""The region's topic, on our broker and on Apache Kafka: claims, terms, and the commit point."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from kohort import Admin, Broker, Consumer, Producer, TopicPartition
from kohort.broker import Fault
from kohort.client.group.member import GroupMember
from kohort.errors import ErrorCode, InvalidInputError, KafkaError, TimedOutError
from kohort.region import server
from kohort.region.control_plane.events import MemberOffsets
from kohort.region.control_plane.state import RegionConfig, RegionFacts
from kohort.region.leader_election import LeaderElection
from kohort.region.messages import Identity
from kohort.region.records import (
    Contribution,
    EpochBegun,
    InitialOffset,
    Manifest,
    OffsetSpan,
    Part,
    Position,
    PublishedCheckpoint,
    RegionStopped,
)
from kohort.region.region_key import random_key
from kohort.region.region_log import RegionLogView, RegionLogWriter
from kohort.region.region_topic import (
    TOPIC,
    is_member_client_id,
    member_client_id,
    region_partition,
    region_transactional_id,
)
from kohort.region.server import TermOverError, UnknownOutcomeError
from tests.region.conftest import make_topic
from tests.support.waiting import until

TOPIC_ID = UUID(int=4)
PIN = b"p" * 32


def at(topic: str, partition: int, offset: int) -> Position:
    return Position(topic, topic, TOPIC_ID, partition, offset, 0)


class Closing(contextlib.ExitStack):
    def add(self, one: Any) -> Any:
        self.callback(one.close)
        return one


@pytest.fixture
def closing() -> Iterator[Closing]:
    with Closing() as stack:
        yield stack


@pytest.fixture
def home(servers: str, name: str, closing: Closing) -> RegionLogView:
    make_topic(servers, name)
    home: RegionLogView = closing.add(RegionLogView(name, servers, {}))
    return home


def begin(home: RegionLogView, closing: Closing) -> tuple[RegionLogWriter, RegionFacts]:
    pen, known = home.take_over("127.0.0.1", 7, PIN)
    assert isinstance(pen, RegionLogWriter)
    closing.add(pen)
    return pen, known


class Members:
    """Two members of a group, each with two partitions."""

    def __init__(self, servers: str, name: str, closing: Closing, **settings: Any) -> None:
        self.name, self.settings = name, {"topics": [name], **settings}
        self.servers = servers
        self.first = closing.add(GroupMember(servers, name, **self.settings))
        self.first.wait_assignment(30_000)
        self.second = closing.add(GroupMember(servers, name, **self.settings))
        self.settle()

    def settle(self) -> None:
        while not (self._has_two(self.first) and self._has_two(self.second)):
            for owner in (self.first, self.second):
                owner.wait_change(50)
                owner.release()

    @staticmethod
    def _has_two(member: GroupMember) -> bool:
        return len(member.assignment().partitions) == 2 and member.revocation() is None

    def offsets(self, member: GroupMember, name: str, offset: int, **other: Any) -> MemberOffsets:
        who = member.group_metadata()
        identity = Identity(who.member_id, other.get("generation", who.generation_id), who.group_instance_id)
        parts = member.assignment().partitions
        return MemberOffsets(name, self.name, identity, tuple(at(part.topic, part.partition, offset) for part in parts))


def given(name: str, known: RegionFacts, sequence: int, offsets: MemberOffsets, state: bytes = b"") -> Contribution:
    who = offsets.identity
    spans = tuple(
        OffsetSpan(position.group, position.topic, TOPIC_ID, position.partition, 0, position.offset, 0)
        for position in offsets.positions
    )
    return Contribution(
        name,
        sequence,
        known.term,
        1,
        offsets.member,
        ("a", "b"),
        name,
        who.member_id,
        who.generation,
        None,
        spans,
        (),
        state,
    )


def manifest(name: str, known: RegionFacts, sequence: int, *offsets: MemberOffsets) -> Manifest:
    names = tuple(offset.member for offset in offsets)
    positions = tuple(position for offset in offsets for position in offset.positions)
    return Manifest(name, known.region_id, sequence, known.term, 1, 0, names, names, positions)


def commit(
    pen: RegionLogWriter, name: str, known: RegionFacts, sequence: int, *offsets: MemberOffsets
) -> dict[str, Any]:
    contributions = tuple(given(name, known, sequence, offset) for offset in offsets)
    return dict(pen.commit(manifest(name, known, sequence, *offsets), contributions, offsets))


def commit_accepted(
    pen: RegionLogWriter, known: RegionFacts, sequence: int, members: Members, *who: tuple[GroupMember, str]
) -> None:
    """Commit by members whose group may still move to another generation under them: then they are asked again."""
    until_s = time.monotonic() + 30
    while refused := commit(
        pen, members.name, known, sequence, *(members.offsets(member, name, sequence) for member, name in who)
    ):
        assert time.monotonic() < until_s, refused
        for member, _ in who:
            member.wait_change(50)
            member.release()


def committed(servers: str, group: str) -> set[int | None]:
    parts = [TopicPartition(group, number) for number in range(4)]
    with Consumer(servers, group_id=group, isolation_level="read_committed") as consumer:
        return {None if found is None else found.offset for found in consumer.committed(parts).values()}


@pytest.fixture(params=["classic", "consumer"])
def members(request: pytest.FixtureRequest, servers: str, home: RegionLogView, name: str, closing: Closing) -> Members:
    how: dict[str, Any] = {"partition_assignment_strategy": ("cooperative-sticky",)}
    if request.param == "consumer":
        how = {"group_protocol": "consumer"}
    return Members(servers, name, closing, **how)


def test_what_is_saved_is_there_for_the_next_term(home: RegionLogView, name: str, closing: Closing) -> None:
    first, known = begin(home, closing)
    assert (known.term, known.sequence, known.epoch) == (1, 0, 0)
    first.save([EpochBegun(name, 1, 1, 1, 0, "why", 7), InitialOffset(name, name, name, TOPIC_ID, 2, 17)])
    first.save([RegionStopped(name, "the cause", "m", "mend it", 7)])
    _, after = begin(home, closing)
    assert (after.term, after.region_id, after.epoch, after.floor) == (2, known.region_id, 1, 1)
    assert after.initial == (InitialOffset(name, name, name, TOPIC_ID, 2, 17),)
    assert after.stopped == "the cause"
    address = home.newest_address()
    assert address is not None and (address.term, address.port, address.pin) == (2, 7, PIN)


def test_the_next_term_knows_which_places_show_the_last_sequence(
    home: RegionLogView, name: str, members: Members, closing: Closing
) -> None:
    first, known = begin(home, closing)
    for sequence, place in ((1, "s:/a"), (1, "s:/b"), (2, "s:/b")):
        if sequence not in home.read_saved_facts().manifests:
            commit_accepted(first, known, sequence, members, (members.first, "a"))
        first.save([PublishedCheckpoint(name, place, sequence, 7)])
    _, after = begin(home, closing)
    shown = {place for place, known in after.shown.items() if known.sequence == after.sequence}
    assert (after.sequence, shown) == (2, {"s:/b"}), "the other one showed the sequence before"


def test_who_was_replaced_can_write_nothing(
    servers: str, home: RegionLogView, name: str, members: Members, closing: Closing
) -> None:
    first, known = begin(home, closing)
    ours = members.offsets(members.first, "a", 5)
    begin(home, closing)
    with pytest.raises(TermOverError):
        first.raise_if_term_over()
    with pytest.raises(TermOverError):
        commit(first, name, known, 1, ours)
    with pytest.raises(TermOverError):
        first.save([EpochBegun(name, 1, 1, 1, 0, "why", 7)])
    assert home.read_saved_facts().sequence == 0 and home.read_saved_facts().epoch is None
    assert committed(servers, name) == {None}


def test_a_closed_writer_fences_no_successor(home: RegionLogView, name: str, closing: Closing) -> None:
    """The writes of a control plane run on another thread, and may need a new producer when it has closed."""
    first, _ = begin(home, closing)
    first._drop_producer()  # as after an unknown outcome
    first.close()
    second, _ = begin(home, closing)
    writes: list[Callable[[], object]] = [
        lambda: first.save([EpochBegun(name, 1, 1, 1, 0, "why", 7)]),
        first.resolve_pending_commit,
        lambda: first.find_outside_clients(name, (), frozenset()),
    ]
    for write in writes:
        with pytest.raises(TermOverError):
            write()
    second.save([EpochBegun(name, 2, 2, 1, 0, "why", 7)])
    assert home.read_saved_facts().epoch == EpochBegun(name, 2, 2, 1, 0, "why", 7)


def test_close_ends_the_initialisation_of_a_producer(name: str, closing: Closing) -> None:
    """A cluster that does not answer now may answer later, when another control plane has begun."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        writer = closing.add(RegionLogWriter(name, address, {}, 1, random_key()))
        errors: list[BaseException] = []

        def write() -> None:
            try:
                writer.resolve_pending_commit()
            except BaseException as error:  # noqa: BLE001 - the test looks at it
                errors.append(error)

        thread = threading.Thread(target=write)
        thread.start()
        silent.accept()[0].close()  # it is connecting, and connects again
        writer.close()
        thread.join(30)  # less than `max_block_ms`
        assert not thread.is_alive()
    assert [type(error) for error in errors] == [TermOverError]


def test_who_was_replaced_and_has_nothing_to_write_ends(
    home: RegionLogView, closing: Closing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LOOK_S", 0.2)
    first, second = (closing.add(LeaderElection(home, RegionConfig())) for _ in range(2))
    replaced, plane = first.become_control_plane(), second.become_control_plane()
    assert replaced.over.wait(60)
    assert second.running_control_plane() is plane, "who is in office looks too, and stays"


def test_a_sequence_and_its_offsets_are_there_together(
    servers: str, home: RegionLogView, name: str, members: Members, closing: Closing
) -> None:
    pen, known = begin(home, closing)
    for sequence in (1, 2, 3):
        commit_accepted(pen, known, sequence, members, (members.first, "a"), (members.second, "b"))
    assert committed(servers, name) == {3}
    saved = home.read_saved_facts()
    assert sorted(saved.manifests) == sorted(saved.contributions) == [2, 3], "the last two are kept"
    _, after = begin(home, closing)
    assert after.sequence == 3 and after.expected == {"a", "b"}
    assert {position.offset for position in after.positions} == {3} and len(after.positions) == 4


def test_a_member_that_lost_its_place_is_refused_and_nothing_stands(
    servers: str, home: RegionLogView, name: str, members: Members, closing: Closing
) -> None:
    pen, known = begin(home, closing)
    stale = members.offsets(members.first, "a", 5, generation=members.first.group_metadata().generation_id - 1)
    good = members.offsets(members.second, "b", 5)
    if members.settings.get("group_protocol") != "consumer":  # KIP-1251: an earlier one is taken
        refused = commit(pen, name, known, 1, stale, good)
        assert set(refused) == {"a"} and not refused["a"].gone
    gone = members.offsets(members.first, "a", 5)
    members.first.close()
    refused = commit(pen, name, known, 1, gone)
    assert set(refused) == {"a"} and refused["a"].gone
    assert home.read_saved_facts().sequence == 0 and home.read_saved_facts().contributions == {}
    assert committed(servers, name) == {None}


def test_offsets_without_a_member_are_never_sent(home: RegionLogView, name: str, closing: Closing) -> None:
    pen, known = begin(home, closing)
    nobody = MemberOffsets("a", name, Identity(), (at(name, 0, 5),))
    with pytest.raises(InvalidInputError, match="no such member"):
        commit(pen, name, known, 1, nobody)


@pytest.mark.parametrize("stands", [True, False])
def test_the_truth_of_a_lost_answer_is_settled(
    home: RegionLogView, name: str, closing: Closing, monkeypatch: pytest.MonkeyPatch, stands: bool
) -> None:
    pen, known = begin(home, closing)
    real = Producer.commit_transaction

    def lost(self: Producer) -> None:
        if stands:
            real(self)
        raise TimedOutError("no answer came")

    monkeypatch.setattr(Producer, "commit_transaction", lost)
    with pytest.raises(UnknownOutcomeError):
        commit(pen, name, known, 1)
    monkeypatch.undo()
    assert pen.resolve_pending_commit() == (1 if stands else 0)
    assert commit(pen, name, known, 2 if stands else 1) == {}, "it goes on"


def test_an_end_that_comes_late_changes_nothing(
    home: RegionLogView, name: str, closing: Closing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking is not knowing: only after the producer was begun anew can what is on its way not come any more."""
    pen, known = begin(home, closing)
    late: list[Producer] = []

    def lost(self: Producer) -> None:
        late.append(self)
        raise TimedOutError("no answer came")

    with monkeypatch.context() as patched:
        patched.setattr(Producer, "commit_transaction", lost)
        patched.setattr(Producer, "close", lambda self, timeout_ms=None: None)
        with pytest.raises(UnknownOutcomeError):
            commit(pen, name, known, 1)
        assert pen.resolve_pending_commit() == 0
    with pytest.raises(KafkaError):
        late[0].commit_transaction()
    late[0].close(timeout_ms=0)
    assert home.read_saved_facts().sequence == 0
    assert commit(pen, name, known, 1) == {}
    assert home.read_saved_facts().sequence == 1


def test_a_sequence_larger_than_a_record(home: RegionLogView, name: str, closing: Closing) -> None:
    pen, known = begin(home, closing)
    nobody = MemberOffsets("", name, Identity(), ())
    contributions = tuple(
        given(name, known, 1, MemberOffsets(f"m{number}", name, nobody.identity, ()), bytes(900_000))
        for number in range(10)
    )
    closed = Manifest(name, known.region_id, 1, 1, 1, 0, tuple(f"m{n}" for n in range(10)), (), ())
    assert pen.commit(closed, contributions, ()) == {}
    _, after = begin(home, closing)
    assert {len(state) for state in after.states.values()} == {900_000} and len(after.states) == 10


def test_two_take_overs_at_once(home: RegionLogView, servers: str, name: str, closing: Closing) -> None:
    homes = [closing.add(RegionLogView(name, servers, {})) for _ in range(3)]
    began: list[tuple[RegionLogWriter, RegionFacts]] = []

    def take(one: RegionLogView) -> None:
        with contextlib.suppress(TermOverError):
            began.append(begin(one, closing))

    threads = [threading.Thread(target=take, args=(entry,)) for entry in homes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    terms = [known.term for _, known in began]
    assert len(set(terms)) == len(terms), "no term is begun twice"
    writes = 0
    for pen, known in began:
        with contextlib.suppress(TermOverError):
            pen.save([EpochBegun(name, known.term, known.term, 0, 0, "", 0)])
            writes += 1
    assert writes <= 1


def test_the_first_claim_of_a_group_wins(servers: str, name: str, closing: Closing) -> None:
    homes = {region: closing.add(RegionLogView(region, servers, {})) for region in (f"{name}.{n}" for n in range(4))}
    refused: dict[str, str] = {}

    def claim(region: str) -> None:
        try:
            homes[region].claim_group(name)
        except InvalidInputError as error:
            refused[region] = str(error)

    threads = [threading.Thread(target=claim, args=(region,)) for region in homes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 3
    [winner] = set(homes) - set(refused)
    assert all(f"belongs to region {winner!r}" in text for text in refused.values())
    homes[winner].claim_group(name)
    homes[winner].release_claims()
    [other, *_] = refused
    homes[other].claim_group(name)


def test_what_can_not_be_read_is_passed_over_with_a_word(
    home: RegionLogView, servers: str, name: str, closing: Closing, caplog: pytest.LogCaptureFixture
) -> None:
    pen, known = begin(home, closing)
    pen.save([EpochBegun(name, 1, 1, 1, 0, "why", 7)])
    with Producer(servers) as producer:
        for key, value in ((b"[", b"x"), (b"[[]]", b"x"), (f'["epoch","{name}"]'.encode(), b"\x07later")):
            producer.send(TOPIC, value, key, partition=region_partition(name, 9)).result()
    with caplog.at_level(logging.WARNING, "kohort.region"):
        _, after = begin(home, closing)
    assert after.epoch == 1 and after.region_id == known.region_id
    assert sum("ignored the record" in record.message for record in caplog.records) >= 2


def test_regions_of_one_partition_do_not_mix(servers: str, name: str, closing: Closing) -> None:
    same = [region for region in (f"{name}-{uuid4().hex[:6]}" for _ in range(200)) if region_partition(region, 9) == 3][
        :2
    ]
    pens = [begin(closing.add(RegionLogView(region, servers, {})), closing) for region in same]
    for number, (pen, _) in enumerate(pens):
        pen.save([EpochBegun(same[number], 5 + number, 1, 0, 0, "", 0)])
    for number, region in enumerate(same):
        _, known = begin(closing.add(RegionLogView(region, servers, {})), closing)
        assert (known.region, known.epoch, known.term) == (region, 5 + number, 2)


def test_parts_are_distinguished_by_their_topics_id() -> None:
    assert Part("g", "t", 0, TOPIC_ID) != Part("g", "t", 0, UUID(int=5))


def test_a_regions_clients_are_not_those_of_a_region_with_a_longer_name() -> None:
    assert is_member_client_id("a", member_client_id("a", "b.m"))
    assert not is_member_client_id("a", member_client_id("a.b", "m")) and not is_member_client_id(
        "a.b", member_client_id("a", "b.m")
    )


def test_a_state_that_waits_is_kept_until_its_member_is_back(home: RegionLogView, name: str, closing: Closing) -> None:
    pen, known = begin(home, closing)

    def complete(pen: RegionLogWriter, sequence: int, *members: str, **away: int) -> None:
        offsets = [MemberOffsets(member, name, Identity(), ()) for member in members]
        contributions = tuple(
            replace(
                given(name, known, sequence, offset, f"{offset.member}{sequence}".encode()), keeps=offset.member == "b"
            )
            for offset in offsets
        )
        closed = replace(manifest(name, known, sequence, *offsets), away=away)
        assert pen.commit(closed, contributions, ()) == {}

    complete(pen, 1, "a", "b")
    for sequence in (2, 3, 4):
        complete(pen, sequence, "a", b=1)
    assert {number: sorted(spans) for number, spans in home.read_saved_facts().contributions.items()} == {
        1: ["b"],
        3: ["a"],
        4: ["a"],
    }
    pen, after = begin(home, closing)
    assert after.states == {"a": b"a4", "b": b"b1"} and after.waiting == {"b": 1}
    known = after
    complete(pen, 5, "a", "b")
    assert sorted(home.read_saved_facts().contributions) == [4, 5], "what waited is not needed any more"
    assert home.read_saved_facts().application_states() == {"a": b"a5", "b": b"b5"}


@pytest.mark.parametrize("action", ["fail", "close_after"])
@pytest.mark.parametrize(
    "error", [ErrorCode.INVALID_TXN_STATE, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.TRANSACTION_ABORTABLE]
)
def test_a_sequence_whose_end_is_answered_with_an_error_is_settled(
    own_broker: Broker, name: str, closing: Closing, action: str, error: ErrorCode
) -> None:
    servers = own_broker.bootstrap_servers
    make_topic(servers, name)
    home = closing.add(RegionLogView(name, servers, {"client_id": name}))
    pen, known = begin(home, closing)
    own_broker.faults.add(Fault("EndTxn", action, client_id=name, error=error))
    if action == "fail":
        with pytest.raises(UnknownOutcomeError):
            commit(pen, name, known, 1)
        assert pen.resolve_pending_commit() == 0
    assert commit(pen, name, known, 1) == {}
    assert pen.resolve_pending_commit() == 1


def test_a_sequence_whose_transaction_the_broker_ended_meanwhile_is_settled(
    servers: str, home: RegionLogView, name: str, closing: Closing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A control plane that stood still for longer than its transaction may take."""
    monkeypatch.setattr("kohort.region.region_log.TRANSACTION_MS", 1_000)
    pen, known = begin(home, closing)
    real = Producer.commit_transaction

    def stands_still(self: Producer) -> None:
        with Admin(servers) as admin:
            mine = region_transactional_id(name)
            until(
                lambda: admin.describe_transactions([mine]).result(mine).state not in ("Ongoing", "PrepareAbort"),
                "the transaction was ended by its timeout",
            )
        real(self)

    with monkeypatch.context() as patched:
        patched.setattr(Producer, "commit_transaction", stands_still)
        with pytest.raises((UnknownOutcomeError, TermOverError)):
            commit(pen, name, known, 1)
    if pen.resolve_pending_commit() == 0:
        assert commit(pen, name, known, 1) == {}
    assert home.read_saved_facts().sequence == 1
